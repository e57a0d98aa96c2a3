//! The rollback of one change of a record. Later changes are kept.
//!
//! A registration that cannot be stored is refused, and must "leave the bindings as they were" (RFC 3261
//! §10.3). Meanwhile others may have registered, and bindings may have ended: those changes stand. The
//! bindings that a change made are found by its version ([`Binding::updated`]), and those that it removed by
//! their tombstones ([`super::recent`]).
//!
//! If a later change affected the same binding, the later change stands. If that is rolled back as well, the
//! binding from before both comes back. So changes that were rolled back beneath later ones are remembered.

use alloc::vec::Vec;

use super::recent::{REMEMBERED_S, RolledBack};
use super::{AorRecord, Binding, meant};

impl AorRecord {
    /// Rolls back the change to version `version`. `lost` are the bindings that the change replaced or
    /// removed, as they were before it. Returns whether any binding changed. If later changes repeated or
    /// undid this one, none does. The version stays.
    pub(crate) fn rollback(&mut self, lost: &[Binding], version: u64, now_unix_s: u64) -> bool {
        let was_last = self.version == version;
        let is_made = |binding: &Binding| binding.updated == version;
        let before = |of: &Binding| {
            let old = self.before(lost, version, of);
            old.filter(|old| old.expires_unix_s > now_unix_s)
        };
        // The bindings before those that the change put into the record, by place.
        let made = self.bindings.iter().enumerate().filter(|(_, b)| is_made(b));
        let replaced: Vec<(usize, Option<Binding>)> = made
            .map(|(at, newer)| (at, before(newer).map(|old| with_connection(old, newer))))
            .collect();
        // The bindings that the change removed, and that no change has touched since.
        let is_free = |old: &&Binding| !self.bindings.iter().any(|binding| binding.is_same(old));
        let removed: Vec<Binding> = lost
            .iter()
            .filter(is_free)
            .filter(|old| {
                was_last
                    || self
                        .removal_of(old)
                        .is_some_and(|removal| removal.updated == version)
            })
            .filter_map(|old| {
                let conn = self.removal_of(old).and_then(|removal| removal.received.conn);
                let mut back = before(old)?;
                back.received.conn = conn;
                Some(back)
            })
            .collect();
        let rolled_back = !replaced.is_empty() || !removed.is_empty();
        // From the end, so that the other places stay valid.
        let mut moved = Vec::new();
        for (at, old) in replaced.into_iter().rev() {
            let newer = self.bindings.remove(at);
            match old {
                Some(old) if old.q_milli == newer.q_milli && old.call_id == newer.call_id => {
                    self.bindings.insert(at, old);
                }
                Some(old) => moved.push(old),
                None => {}
            }
        }
        for old in removed.into_iter().rev().chain(moved) {
            self.put_back(old);
        }
        self.recent.removed.retain(|removal| !is_made(removal));
        if !was_last {
            self.recent.note_rolled_back(RolledBack {
                version,
                lost: lost.to_vec(),
                until_unix_s: now_unix_s.saturating_add(REMEMBERED_S),
            });
        }
        rolled_back
    }

    /// The binding as it was before the change to `version`, which found `lost`. Changes that were rolled
    /// back count as never made.
    fn before(&self, lost: &[Binding], version: u64, of: &Binding) -> Option<Binding> {
        let (mut lost, mut version, mut of) = (lost, version, of);
        loop {
            let is_it = |old: &&Binding| old.updated != version && old.is_same(of);
            let rolled_back = self
                .recent
                .rolled_back
                .iter()
                .filter(|rolled_back| rolled_back.version < version);
            let beneath = match meant(lost.iter().filter(is_it), &of.call_id, of.received.remote.ip()) {
                Some(old) => match rolled_back
                    .clone()
                    .find(|rolled_back| rolled_back.version == old.updated)
                {
                    None => return Some(old.clone()),
                    made_it => {
                        // What was before that is before this one, too, though both may share neither Call-ID
                        // nor source.
                        of = old;
                        made_it
                    }
                },
                // The change found no such binding: perhaps a change that was rolled back had removed it, and
                // none that stands.
                None => rolled_back
                    .filter(|rolled_back| rolled_back.lost.iter().any(|old| old.is_same(of)))
                    .max_by_key(|rolled_back| rolled_back.version)
                    .filter(|rolled_back| !self.was_removed(of, rolled_back.version, version)),
            };
            (lost, version) = beneath.map(|rolled_back| (&*rolled_back.lost, rolled_back.version))?;
        }
    }

    /// The last removal of the binding.
    fn removal_of(&self, binding: &Binding) -> Option<&Binding> {
        let removals = self.recent.removed.iter();
        removals
            .filter(|removal| removal.is_same(binding))
            .max_by_key(|removal| removal.updated)
    }

    /// Whether the binding was removed between these versions.
    fn was_removed(&self, binding: &Binding, from: u64, to: u64) -> bool {
        let mut removals = self.recent.removed.iter();
        removals.any(|removal| removal.is_same(binding) && from < removal.updated && removal.updated < to)
    }

    /// Puts a binding among those of its `q`: before those that were registered earlier.
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

/// The binding as it was before `newer` took its place. The connection of that binding may have closed since.
fn with_connection(mut old: Binding, newer: &Binding) -> Binding {
    if newer.received.remote == old.received.remote {
        old.received.conn = newer.received.conn;
    }
    old
}

#[cfg(test)]
mod tests {
    use super::super::shard::tests::binding;
    use super::*;
    use alloc::vec;

    /// A binding with one private Contact, of this Call-ID and source.
    fn of(call_id: &str, source: &str, updated: u64) -> Binding {
        let mut binding = binding("sip:bob@192.168.1.2", 1000, 2_000);
        binding.call_id = call_id.as_bytes().into();
        binding.received.remote = source.parse().unwrap();
        binding.updated = updated;
        binding
    }

    /// A phone is started anew, and then moves: the first binding and the last share neither Call-ID nor source. Both
    /// changes are rolled back, the earlier one first.
    #[test]
    fn the_binding_before_two_changes_is_found_by_the_one_between() {
        let first = of("r0", "203.0.113.1:5060", 1);
        let anew = of("r1", "203.0.113.1:5060", 2);
        let moved = of("r1", "203.0.113.2:5060", 3);
        assert!(!first.is_same(&moved));
        let mut record = AorRecord {
            bindings: vec![moved],
            version: 3,
            ..AorRecord::default()
        };
        assert!(!record.rollback(core::slice::from_ref(&first), 2, 1_000));
        assert!(record.rollback(core::slice::from_ref(&anew), 3, 1_000));
        assert_eq!(record.bindings, [first]);
    }
}
