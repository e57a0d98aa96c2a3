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
        let mut made = Vec::new();
        self.bindings.retain(|binding| {
            let is_older_or_newer = binding.updated != version;
            if !is_older_or_newer {
                made.push(binding.clone());
            }
            is_older_or_newer
        });
        let mut undone = !made.is_empty();
        // Those that come back stand in the order in which they stood.
        let lasts = |old: &&Binding| old.updated != version && old.expires_unix_s > now_unix_s;
        for old in lost.iter().rev().filter(lasts) {
            let successor = made.iter().find(|binding| binding.is_same(old));
            let is_free = !self.bindings.iter().any(|binding| binding.is_same(old));
            if is_free && (was_last || successor.is_some() || self.was_removed(old, version)) {
                let mut old = old.clone();
                // The connection may have closed while the newer was there.
                if let Some(newer) = successor.filter(|newer| newer.received.remote == old.received.remote) {
                    old.received.conn = newer.received.conn;
                }
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
