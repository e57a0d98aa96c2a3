//! Taking back one change of a record, whatever came after it.
//!
//! A registration that cannot be stored is refused, and must "leave the bindings as they were"
//! (RFC 3261 §10.3). Meanwhile others may have registered, and bindings have ended: those changes stand.
//! What the change made is known by its version ([`Binding::updated`]), what it removed by what is
//! remembered of removals ([`super::removed`]).

use alloc::vec::Vec;

use super::{AorRecord, Binding};

impl AorRecord {
    /// Takes back what the change to version `version` did; `lost` are the bindings that were there
    /// before it and that it replaced or removed, as they were. Whether anything was taken back: nothing
    /// where later changes did the same again, or undid it. The version stays.
    pub(crate) fn take_back(&mut self, lost: &[Binding], version: u64, now_unix_s: u64) -> bool {
        let was_last = self.version == version;
        let lasts = |old: &&Binding| old.updated != version && old.expires_unix_s > now_unix_s;
        let lost = || lost.iter().filter(lasts);
        let mut made = Vec::new();
        let mut undone = false;
        self.bindings.retain_mut(|binding| {
            if binding.updated != version {
                return true;
            }
            undone = true;
            let old = lost().find(|old| old.is_same(binding) && old.q_milli == binding.q_milli);
            match old {
                Some(old) => *binding = before(old, binding),
                None => made.push(binding.clone()),
            }
            old.is_some()
        });
        // Those that come back stand in the order in which they stood.
        for old in lost().rev() {
            let successor = made.iter().find(|binding| binding.is_same(old));
            let is_free = !self.bindings.iter().any(|binding| binding.is_same(old));
            if is_free && (was_last || successor.is_some() || self.was_removed(old, version)) {
                let old = successor.map_or_else(|| old.clone(), |newer| before(old, newer));
                self.put_back(old);
                undone = true;
            }
        }
        self.removed.retain(|binding| binding.updated != version);
        undone
    }

    /// Whether the change to `version` removed the binding, and none since.
    fn was_removed(&self, binding: &Binding, version: u64) -> bool {
        let removals = self.removed.iter().filter(|removed| removed.is_same(binding));
        removals.map(|removed| removed.updated).max() == Some(version)
    }

    /// Puts a binding where its `q` and its age have it stand.
    fn put_back(&mut self, binding: Binding) {
        let rank = |b: &Binding| (b.q_milli, b.updated);
        let at = self
            .bindings
            .iter()
            .take_while(|b| rank(b) > rank(&binding))
            .count();
        self.bindings.insert(at, binding);
    }
}

/// The binding as it was before `newer` took its place. Its connection may have closed since.
fn before(old: &Binding, newer: &Binding) -> Binding {
    let mut old = old.clone();
    if newer.received.remote == old.received.remote {
        old.received.conn = newer.received.conn;
    }
    old
}
