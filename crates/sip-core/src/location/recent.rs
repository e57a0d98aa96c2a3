//! Recent changes that are over, in memory and for a while: removals of bindings, and rollbacks.
//!
//! A datagram that was doubled or delayed may come after later ones. A REGISTER that comes after the REGISTER
//! that removed its binding is out of order like any other (RFC 3261 §10.3 step 7). But the binding is gone,
//! and with it the CSeq to compare. So a tombstone is kept for as long as a copy may be on its way. A
//! tombstone is the removed binding with three fields changed:
//!
//! - `cseq` is that of the removing REGISTER, if the Call-IDs match;
//! - `expires_unix_s` is the second at which the tombstone itself ends;
//! - `updated` is the version of the removal; 0 if there was no binding to remove.
//!
//! A change that could not be stored is rolled back ([`super::rollback`]). A rollback needs the tombstones,
//! too, and earlier changes that were rolled back.
//!
//! **At the bounds** the oldest entry is forgotten. A copy of its REGISTER that comes still later binds again
//! until the binding ends, and the removal can no longer be rolled back.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::{AorRecord, Binding};
use crate::id::ConnId;

/// Seconds for which a message may be retransmitted and be on its way: 64·T1 and T4 (RFC 3261 §17.1.2.2,
/// Table 4).
pub(crate) const REMEMBERED_S: u64 = 37;

/// The most changes of addresses-of-record that one shard remembers.
const MOST: usize = 4_096;

/// The most bytes that these changes may take.
const MOST_BYTES: usize = 256 * 1024;

/// The most tombstones that one address-of-record may have, and the most rollbacks.
const MOST_OF_ONE: usize = 64;

/// The most bytes of tombstones, and of rollbacks, of one address-of-record: a large one must not push out
/// the entries of others.
const MOST_BYTES_OF_ONE: usize = 32 * 1024;

/// The recent changes of one address-of-record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecentChanges {
    /// The tombstones of removed bindings.
    pub(super) removed: Vec<Binding>,
    /// Changes that were rolled back while later ones stood.
    pub(super) rolled_back: Vec<RolledBack>,
}

/// A change that was rolled back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RolledBack {
    /// The version of the record that the change had made.
    pub(super) version: u64,
    /// The bindings that the change had replaced or removed.
    pub(super) lost: Vec<Binding>,
    /// The second at which the rollback is to be forgotten.
    pub(super) until_unix_s: u64,
}

impl RolledBack {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.lost.iter().map(Binding::bytes).sum::<usize>()
    }
}

impl RecentChanges {
    /// Whether a REGISTER with this Call-ID and CSeq is older than the REGISTER that removed a binding which
    /// it `names`.
    pub(crate) fn is_behind_removal(
        &self,
        call_id: &[u8],
        cseq: u32,
        now_unix_s: u64,
        names: impl Fn(&Binding) -> bool,
    ) -> bool {
        self.removed
            .iter()
            .any(|b| b.expires_unix_s > now_unix_s && *b.call_id == *call_id && b.cseq >= cseq && names(b))
    }

    /// Whether a REGISTER with this Call-ID has removed a binding that `names` names.
    pub(crate) fn has_removed(
        &self,
        call_id: &[u8],
        now_unix_s: u64,
        names: impl Fn(&Binding) -> bool,
    ) -> bool {
        self.removed
            .iter()
            .any(|b| b.updated > 0 && b.expires_unix_s > now_unix_s && *b.call_id == *call_id && names(b))
    }

    /// The number of tombstones.
    #[cfg(test)]
    pub(crate) fn removed_bindings(&self) -> usize {
        self.removed.len()
    }

    pub(super) fn note_rolled_back(&mut self, rolled_back: RolledBack) {
        while self.rolled_back.len() >= MOST_OF_ONE
            || (!self.rolled_back.is_empty()
                && self.rolled_back.iter().map(RolledBack::bytes).sum::<usize>() + rolled_back.bytes()
                    > MOST_BYTES_OF_ONE)
        {
            self.rolled_back.remove(0);
        }
        self.rolled_back.push(rolled_back);
    }

    /// Removes a closed connection from the remembered bindings.
    pub(super) fn forget_conn(&mut self, conn: ConnId) {
        let lost = self
            .rolled_back
            .iter_mut()
            .flat_map(|rolled_back| &mut rolled_back.lost);
        for binding in self.removed.iter_mut().chain(lost) {
            if binding.received.conn == Some(conn) {
                binding.received.conn = None;
            }
        }
    }

    /// Bytes of the changes in memory.
    fn bytes(&self) -> usize {
        let removed = self.removed.iter().map(Binding::bytes);
        let rolled_back = self.rolled_back.iter().map(RolledBack::bytes);
        size_of::<Self>() + removed.sum::<usize>() + rolled_back.sum::<usize>()
    }

    /// Forgets the entries that end until then.
    fn forget(&mut self, until_unix_s: u64) {
        self.removed
            .retain(|binding| binding.expires_unix_s > until_unix_s);
        self.rolled_back
            .retain(|rolled_back| rolled_back.until_unix_s > until_unix_s);
    }

    /// The second at which all entries may be forgotten; `None`: there are none.
    fn end(&self) -> Option<u64> {
        let removed = self.removed.iter().map(|b| b.expires_unix_s);
        removed
            .chain(self.rolled_back.iter().map(|u| u.until_unix_s))
            .max()
    }
}

impl AorRecord {
    /// Keeps a tombstone of a binding that a REGISTER of this CSeq removes. The caller calls this before
    /// [`AorRecord::changed`].
    pub(crate) fn remember(&mut self, binding: Binding, cseq: u32, now_unix_ms: u64) {
        let version = self.next_version(now_unix_ms);
        let removed = Binding {
            cseq,
            updated: version,
            ..binding
        };
        self.note_removed(removed, now_unix_ms);
    }

    /// Keeps a tombstone of a binding that a REGISTER was to remove, but that was not there. The record has
    /// not changed.
    pub(crate) fn remember_absent(&mut self, binding: Binding, now_unix_ms: u64) {
        let removed = Binding {
            updated: 0,
            ..binding
        };
        self.note_removed(removed, now_unix_ms);
    }

    fn note_removed(&mut self, binding: Binding, now_unix_ms: u64) {
        let now = now_unix_ms / 1000;
        let removed = &mut self.recent.removed;
        removed.retain(|b| b.expires_unix_s > now);
        let bytes = |removed: &[Binding]| removed.iter().map(Binding::bytes).sum::<usize>();
        while removed.len() >= MOST_OF_ONE
            || (!removed.is_empty() && bytes(removed) + binding.bytes() > MOST_BYTES_OF_ONE)
        {
            // Tombstones of absent bindings go first.
            let absent = removed.iter().position(|b| b.updated == 0);
            removed.remove(absent.unwrap_or(0));
        }
        removed.push(Binding {
            expires_unix_s: now.saturating_add(REMEMBERED_S),
            ..binding
        });
    }
}

/// The recent changes of all addresses-of-record of one shard.
#[derive(Debug)]
pub(super) struct Memory {
    /// The addresses-of-record and the second at which each is to be looked at, in the order in which they
    /// came.
    order: VecDeque<(u64, Box<[u8]>)>,
    records: BTreeMap<Box<[u8]>, RecentChanges>,
    /// Bytes of all entries.
    bytes: usize,
}

impl Memory {
    /// A memory without entries.
    pub(super) const fn new() -> Self {
        Self {
            order: VecDeque::new(),
            records: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// The recent changes of `aor`. Some may be due to be forgotten.
    pub(super) fn of(&self, aor: &[u8]) -> RecentChanges {
        // There hardly ever are any changes.
        if self.records.is_empty() {
            return RecentChanges::default();
        }
        self.records.get(aor).cloned().unwrap_or_default()
    }

    /// Replaces the recent changes of `aor`.
    pub(super) fn set(&mut self, aor: &[u8], recent: RecentChanges) {
        let Some(until) = recent.end() else {
            // Its place in the order then finds nothing.
            self.take(aor);
            return;
        };
        self.order.push_back((until, aor.into()));
        self.bytes += entry_bytes(aor);
        self.take(aor);
        self.put(aor.into(), recent);
        // The newest entry stays, however large.
        while self.order.len() > MOST || (self.bytes > MOST_BYTES && self.order.len() > 1) {
            self.forget_first();
        }
    }

    /// Forgets the entries that are due by now.
    pub(super) fn forget(&mut self, now_unix_s: u64) {
        while self.order.front().is_some_and(|(until, _)| *until <= now_unix_s) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let Some((until, aor)) = self.order.pop_front() else {
            return;
        };
        self.bytes -= entry_bytes(&aor);
        if let Some(mut held) = self.take(&aor) {
            held.forget(until);
            if held.end().is_some() {
                self.put(aor, held);
            }
        }
    }

    fn put(&mut self, aor: Box<[u8]>, recent: RecentChanges) {
        self.bytes += entry_bytes(&aor) + recent.bytes();
        self.records.insert(aor, recent);
    }

    fn take(&mut self, aor: &[u8]) -> Option<RecentChanges> {
        let recent = self.records.remove(aor)?;
        self.bytes -= entry_bytes(aor) + recent.bytes();
        Some(recent)
    }
}

/// Bytes of a name in the order, or among the records.
const fn entry_bytes(aor: &[u8]) -> usize {
    64 + aor.len()
}

#[cfg(test)]
mod tests {
    use super::super::codec::tests::record;
    use super::*;
    use proptest::prelude::*;

    fn counted(memory: &Memory) -> usize {
        let order = memory.order.iter().map(|(_, aor)| entry_bytes(aor));
        let records = memory.records.iter();
        order.sum::<usize>()
            + records
                .map(|(aor, l)| entry_bytes(aor) + l.bytes())
                .sum::<usize>()
    }

    fn removals(bindings: Vec<Binding>) -> RecentChanges {
        RecentChanges {
            removed: bindings,
            rolled_back: Vec::new(),
        }
    }

    proptest! {
        #[test]
        fn bytes_are_those_of_what_it_holds(
            steps in prop::collection::vec((0u8..6, record(), any::<bool>(), 0..4_000_000_000u64), 0..40),
        ) {
            let mut memory = Memory::new();
            for (key, record, is_rolled_back, now) in steps {
                let mut recent = memory.of(&[key]);
                if is_rolled_back {
                    recent.note_rolled_back(RolledBack { version: 1, lost: record.bindings, until_unix_s: now });
                } else {
                    recent.removed = record.bindings;
                }
                memory.set(&[key], recent);
                prop_assert_eq!(memory.bytes, counted(&memory));
                memory.forget(now / 2);
                prop_assert_eq!(memory.bytes, counted(&memory));
            }
            memory.forget(u64::MAX);
            prop_assert_eq!((memory.bytes, memory.order.len()), (0, 0));
        }
    }

    /// Tombstones of one address-of-record take no room from others, and those of absent bindings go first.
    #[test]
    fn those_of_one_are_bounded() {
        let binding = |n: usize, length: usize| {
            let contact = alloc::format!("sip:{n};x={}", "x".repeat(length));
            super::super::shard::tests::binding(&contact, 1000, 1_000)
        };
        for (length, most) in [(10, MOST_OF_ONE), (3_000, 10)] {
            let mut record = AorRecord::default();
            record.remember(binding(0, length), 1, 1_000);
            for n in 1..1_000 {
                record.remember_absent(binding(n, length), 1_000);
            }
            assert_eq!(
                (record.recent.removed[0].updated, record.recent.removed.len()),
                (1_000, most)
            );
            for n in 0..1_000 {
                record.remember(binding(n, length), 1, 2_000);
            }
            assert!(
                record
                    .recent
                    .removed
                    .iter()
                    .all(|removal| removal.updated == 2_000)
            );
            for version in 0..1_000 {
                let lost = alloc::vec![binding(0, length)];
                record.recent.note_rolled_back(RolledBack {
                    version,
                    lost,
                    until_unix_s: 1,
                });
            }
            assert!(record.recent.bytes() < 2 * MOST_BYTES_OF_ONE + 1_000);
            assert_eq!(record.recent.rolled_back.last().map(|u| u.version), Some(999));
        }
    }

    /// Large removals push out the oldest, and the newest stays.
    #[test]
    fn bytes_are_bounded() {
        let mut binding = super::super::shard::tests::binding("sip:a", 1000, 1_000);
        binding.contact = alloc::vec![b'x'; 20_000].into();
        let mut memory = Memory::new();
        for n in 0..1_000u32 {
            memory.set(&n.to_be_bytes(), removals(alloc::vec![binding.clone()]));
            assert!(memory.bytes <= MOST_BYTES);
            assert_eq!(memory.of(&n.to_be_bytes()).removed.len(), 1);
        }
        assert!(memory.bytes > MOST_BYTES / 2);
        assert_eq!(memory.of(&0u32.to_be_bytes()), RecentChanges::default());
        binding.contact = alloc::vec![b'x'; 2 * MOST_BYTES].into();
        memory.set(b"large", removals(alloc::vec![binding]));
        assert_eq!((memory.of(b"large").removed.len(), memory.order.len()), (1, 1));
    }
}
