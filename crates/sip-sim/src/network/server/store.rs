//! The disk of a server, as far as registrations go: what a save promises, and what a crash leaves.
//!
//! A save is certain once it was answered. One that was not may be there or not; of those that
//! wait, which go to disk in one piece and in order, a crash leaves some of the first.

use std::collections::{BTreeMap, VecDeque};

use sip_core::id::QueryId;

use crate::clock::{MS, Micros};
use crate::rng::Rng;

/// Saves that may wait; one more is refused.
const MOST_WAITING: usize = 256;

/// A save under way.
#[derive(Clone, Debug)]
pub(super) struct Save {
    /// Who wants to know, if anybody.
    pub asked: Option<(usize, QueryId)>,
    /// Address-of-record.
    pub aor: Vec<u8>,
    /// Its record, encoded.
    pub record: Vec<u8>,
    /// Of two the higher wins.
    pub version: u64,
}

/// What is on disk, and what is on its way there.
#[derive(Debug)]
pub(super) struct Store {
    durable: BTreeMap<Vec<u8>, (u64, Vec<u8>)>,
    waiting: VecDeque<(Micros, Save)>,
    rng: Rng,
}

impl Store {
    /// An empty disk.
    pub(super) const fn new(rng: Rng) -> Self {
        Self {
            durable: BTreeMap::new(),
            waiting: VecDeque::new(),
            rng,
        }
    }

    /// Takes a save that will be done after `takes`; refused where too many wait.
    ///
    /// # Errors
    /// The save, which is not taken.
    pub(super) fn save(&mut self, now: Micros, takes: Micros, save: Save) -> Result<(), Save> {
        if self.waiting.len() >= MOST_WAITING {
            return Err(save);
        }
        // In order: nothing is done before what came earlier.
        let earliest = self.waiting.back().map_or(0, |(at, _)| *at);
        self.waiting.push_back(((now + takes).max(earliest), save));
        Ok(())
    }

    /// When the next is done.
    pub(super) fn next_at(&self) -> Option<Micros> {
        self.waiting.front().map(|(at, _)| *at)
    }

    /// The next that is done by now: it is on disk.
    pub(super) fn pop_done(&mut self, now: Micros) -> Option<Save> {
        if self.next_at()? > now {
            return None;
        }
        let (_, save) = self.waiting.pop_front()?;
        self.keep(&save);
        Some(save)
    }

    fn keep(&mut self, save: &Save) {
        let held = self.durable.get(&save.aor).map(|(version, _)| *version);
        if held.is_none_or(|held| held <= save.version) {
            self.durable
                .insert(save.aor.clone(), (save.version, save.record.clone()));
        }
    }

    /// What the process had not been told to be on disk is there or not.
    pub(super) fn crash(&mut self) {
        let kept = self.rng.between(0, self.waiting.len() as u64) as usize;
        let waiting = core::mem::take(&mut self.waiting);
        for (_, save) in waiting.iter().take(kept) {
            self.keep(save);
        }
    }

    /// Everything on disk: address-of-record, version, record.
    pub(super) fn records(&self) -> impl Iterator<Item = (&[u8], u64, &[u8])> {
        self.durable
            .iter()
            .map(|(aor, (version, record))| (aor.as_slice(), *version, record.as_slice()))
    }

    /// Time that a write and its sync take on a good day.
    pub(super) fn usual(&mut self) -> Micros {
        self.rng.between(MS / 10, 8 * MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn save(version: u64) -> Save {
        Save {
            asked: None,
            aor: b"a@b".to_vec(),
            record: vec![version as u8],
            version,
        }
    }

    fn held(store: &Store) -> Vec<u64> {
        store.records().map(|(_, version, _)| version).collect()
    }

    #[test]
    fn what_is_done_survives_and_the_newest_wins() {
        let mut store = Store::new(Rng::new(1));
        store.save(0, 10, save(2)).unwrap();
        store.save(0, 5, save(1)).unwrap();
        assert_eq!(store.next_at(), Some(10));
        assert!(store.pop_done(9).is_none());
        assert_eq!(store.pop_done(10).unwrap().version, 2);
        assert_eq!(
            store.pop_done(10).unwrap().version,
            1,
            "not before the one that came first"
        );
        store.crash();
        assert_eq!(held(&store), [2]);
    }

    #[test]
    fn a_crash_keeps_some_of_the_first() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let mut store = Store::new(Rng::new(seed));
            (1..=3).for_each(|version| store.save(0, 10, save(version)).unwrap());
            store.crash();
            seen.extend([held(&store)]);
        }
        assert_eq!(
            seen.into_iter().collect::<Vec<_>>(),
            [vec![], vec![1], vec![2], vec![3]]
        );
    }
}
