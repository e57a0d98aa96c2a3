//! Recent deletions, in case an older version of the same address-of-record arrives after its deletion.
//! Workers race to the queue by microseconds, so the deletions of the last seconds suffice.
//!
//! **What happens at the bound.** The oldest is forgotten before its time.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Most bytes of the deletions.
const MOST_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of a deletion besides the address-of-record: a place in each collection, and a block.
const BESIDE_AOR: usize = 128;

#[derive(Clone, Copy, Debug)]
struct Deletion {
    version: u64,
    at_unix_s: u64,
}

/// Recent deletions by address-of-record.
#[derive(Debug, Default)]
pub(super) struct Deleted {
    noted: HashMap<Arc<[u8]>, Deletion>,
    /// Deletions in the order of their arrival. An entry may have been undone, or repeated, since.
    order: VecDeque<(u64, Arc<[u8]>)>,
    /// Bytes of all entries of `order`.
    bytes: usize,
}

const fn bytes(aor: &[u8]) -> usize {
    BESIDE_AOR + aor.len()
}

impl Deleted {
    /// The version that deleted `aor`.
    pub(super) fn version(&self, aor: &[u8]) -> Option<u64> {
        self.noted.get(aor).map(|deletion| deletion.version)
    }

    pub(super) fn insert(&mut self, aor: &[u8], version: u64, at_unix_s: u64) {
        let aor: Arc<[u8]> = aor.into();
        self.bytes += bytes(&aor);
        self.order.push_back((at_unix_s, Arc::clone(&aor)));
        self.noted.insert(aor, Deletion { version, at_unix_s });
        while self.bytes > MOST_BYTES && self.order.len() > 1 {
            self.forget_first();
        }
    }

    /// Removes the deletion of an address-of-record that exists again.
    pub(super) fn remove(&mut self, aor: &[u8]) {
        self.noted.remove(aor);
    }

    /// Forgets deletions before this second.
    pub(super) fn forget(&mut self, before_unix_s: u64) {
        while self.order.front().is_some_and(|(at, _)| *at < before_unix_s) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let Some((at, aor)) = self.order.pop_front() else {
            return;
        };
        self.bytes -= bytes(&aor);
        if self
            .noted
            .get(&aor)
            .is_some_and(|deletion| deletion.at_unix_s == at)
        {
            self.noted.remove(&aor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten() {
        let mut deleted = Deleted::default();
        for (aor, version, at) in [(b"a", 1, 10), (b"b", 2, 11), (b"c", 3, 12), (b"a", 4, 13)] {
            deleted.insert(aor, version, at);
        }
        deleted.remove(b"c");
        let known = |deleted: &Deleted| [b"a", b"b", b"c"].map(|aor| deleted.version(aor));
        assert_eq!(known(&deleted), [Some(4), Some(2), None]);
        deleted.forget(11);
        assert_eq!(known(&deleted), [Some(4), Some(2), None], "it was deleted again");
        deleted.forget(13);
        assert_eq!(known(&deleted), [Some(4), None, None]);
        deleted.forget(14);
        assert_eq!(
            (deleted.noted.len(), deleted.order.len(), deleted.bytes),
            (0, 0, 0)
        );
    }

    #[test]
    fn what_is_known_is_bounded() {
        let mut deleted = Deleted::default();
        let name = |n: usize| format!("{n}{}", "x".repeat(1_000)).into_bytes();
        let count = 2 * MOST_BYTES / bytes(&name(0));
        for n in 0..count {
            deleted.insert(&name(n), 1, n as u64);
            assert!(deleted.bytes <= MOST_BYTES);
        }
        assert_eq!(deleted.noted.len(), deleted.order.len());
        assert!(deleted.noted.len() > count / 3);
        assert_eq!(deleted.version(&name(0)), None);
        assert_eq!(deleted.version(&name(count - 1)), Some(1));
        // The same address-of-record again and again.
        for _ in 0..count {
            deleted.insert(b"same", 2, count as u64);
        }
        assert!(deleted.bytes <= MOST_BYTES);
        assert_eq!(deleted.version(b"same"), Some(2));
    }
}
