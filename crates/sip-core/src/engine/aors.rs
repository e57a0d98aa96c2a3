//! The addresses-of-record registered over one connection: one for a phone, a thousand for an SBC.
//!
//! A few are compared one by one; more are found by their hash. This list does not learn when a registration
//! ends. So as entries are added, a few others are checked in turn, and removed if they are not registered
//! over the connection any more. A lasting connection holds at most about twice its registrations, and no
//! REGISTER pays for a check of all.

use alloc::boxed::Box;
use core::slice;

use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::engine::secrets::Secrets;

/// The most entries that are compared one by one.
const FEW: usize = 8;
/// Entries checked when another is added: more than one, so that their number falls.
const LOOKS: usize = 2;
/// Entries checked if there is no room for another.
const LOOKS_WHEN_FULL: usize = 64;

/// The addresses-of-record of one connection; see the module.
#[derive(Debug, Default)]
pub(super) struct Aors {
    list: SmallVec<[Box<[u8]>; 1]>,
    /// The index, made once there are more than [`FEW`] entries.
    index: Option<Box<Index>>,
}

#[derive(Debug, Default)]
struct Index {
    places: HashTable<Place>,
    /// The position of the entry that is checked next.
    hand: usize,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    hash: u64,
    at: u32,
}

/// The hash of an address-of-record, with a key, since peers choose the names.
fn hash(secrets: &Secrets, aor: &[u8]) -> u64 {
    secrets.map_hash([aor]) as u64
}

impl Aors {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn iter(&self) -> slice::Iter<'_, Box<[u8]>> {
        self.list.iter()
    }

    pub(super) fn contains(&self, aor: &[u8], secrets: &Secrets) -> bool {
        match &self.index {
            None => self.list.iter().any(|known| **known == *aor),
            Some(index) => {
                let is_it = |place: &Place| self.list.get(place.at as usize).is_some_and(|a| **a == *aor);
                index.places.find(hash(secrets, aor), is_it).is_some()
            }
        }
    }

    /// Adds an address-of-record that is not in the list.
    pub(super) fn push(&mut self, aor: Box<[u8]>, secrets: &Secrets) {
        let at = self.list.len();
        if let Some(index) = &mut self.index {
            index.insert(&aor, at, secrets);
        }
        self.list.push(aor);
        if self.index.is_none() && self.list.len() > FEW {
            let mut index = Box::<Index>::default();
            for (at, aor) in self.list.iter().enumerate() {
                index.insert(aor, at, secrets);
            }
            self.index = Some(index);
        }
    }

    /// Removes some entries that are not `living`, before another is added. `limit` is the most entries
    /// allowed.
    pub(super) fn make_room(&mut self, limit: usize, secrets: &Secrets, living: impl Fn(&[u8]) -> bool) {
        let looks = match self.list.len() {
            len if len >= limit => LOOKS_WHEN_FULL,
            len if len > FEW => LOOKS,
            _ => return,
        };
        let mut hand = self.index.as_ref().map_or(0, |index| index.hand);
        for _ in 0..looks.min(self.list.len()) {
            hand = if hand < self.list.len() { hand } else { 0 };
            match self.list.get(hand) {
                Some(aor) if !living(aor) => self.swap_remove(hand, secrets),
                Some(_) | None => hand += 1,
            }
        }
        if self.list.len() <= FEW / 2 {
            self.index = None;
            self.list.shrink_to_fit();
        }
        if let Some(index) = &mut self.index {
            index.hand = hand;
        }
    }

    /// Removes the entry at `at`; the last one moves to its place.
    fn swap_remove(&mut self, at: usize, secrets: &Secrets) {
        let gone = self.list.swap_remove(at);
        let Some(index) = &mut self.index else { return };
        index.remove(&gone, at, secrets);
        if let Some(moved) = self.list.get(at) {
            index.remove(moved, self.list.len(), secrets);
            index.insert(moved, at, secrets);
        }
    }
}

impl Index {
    fn insert(&mut self, aor: &[u8], at: usize, secrets: &Secrets) {
        let place = Place {
            hash: hash(secrets, aor),
            at: at as u32,
        };
        self.places.insert_unique(place.hash, place, |place| place.hash);
    }

    fn remove(&mut self, aor: &[u8], at: usize, secrets: &Secrets) {
        let is_it = |place: &Place| place.at as usize == at;
        if let Ok(place) = self.places.find_entry(hash(secrets, aor), is_it) {
            place.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn name(user: u16) -> Box<[u8]> {
        Box::from(alloc::format!("u{user}@example.com").as_bytes())
    }

    fn secrets() -> Secrets {
        Secrets::new(&[1; 32], &[2; 32])
    }

    proptest! {
        /// Compared with a set: living entries stay and are found, in a list and in an index, and the bound
        /// holds.
        #[test]
        fn behave_as_a_set(
            steps in prop::collection::vec((0u16..60, any::<bool>()), 0..300),
            limit in 1usize..50,
        ) {
            let (mut aors, secrets) = (Aors::default(), secrets());
            let (mut held, mut dead) = (BTreeSet::new(), BTreeSet::new());
            for (user, dies) in steps {
                let aor = name(user);
                if dies {
                    dead.insert(aor);
                    continue;
                }
                dead.remove(&aor);
                prop_assert_eq!(aors.contains(&aor, &secrets), held.contains(&aor));
                if !aors.contains(&aor, &secrets) {
                    aors.make_room(limit, &secrets, |aor| !dead.contains(aor));
                    if aors.len() < limit {
                        aors.push(aor.clone(), &secrets);
                        held.insert(aor);
                    }
                }
                let now: BTreeSet<_> = aors.iter().cloned().collect();
                prop_assert_eq!(now.len(), aors.len());
                prop_assert!(now.is_subset(&held) && aors.len() <= limit);
                prop_assert!(held.difference(&now).all(|gone| dead.contains(gone)));
                prop_assert!(now.iter().all(|aor| aors.contains(aor, &secrets)));
                prop_assert!(held.difference(&now).all(|aor| !aors.contains(aor, &secrets)));
                let indexed = aors.index.as_ref().map_or(now.len(), |index| index.places.len());
                prop_assert_eq!(indexed, now.len());
                held = now;
            }
        }
    }

    /// Registrations that come and go over a lasting connection leave no entries behind.
    #[test]
    fn hold_about_twice_what_lives() {
        for living in [0u16, 3, 20, 300] {
            let (mut aors, secrets) = (Aors::default(), secrets());
            for user in 0..5_000u16 {
                let newest = name(user);
                aors.make_room(1024, &secrets, |aor| (0..living).any(|n| *name(n) == *aor));
                aors.push(newest, &secrets);
            }
            assert!(
                aors.len() <= usize::from(living) * 2 + 2 * FEW,
                "{living}: {}",
                aors.len()
            );
            let lives = |n: u16| aors.contains(&name(n), &secrets);
            assert!((0..living).all(lives));
        }
    }

    /// A phone's one name costs no more than the list it stands in.
    #[test]
    fn one_costs_little() {
        let (mut aors, secrets) = (Aors::default(), secrets());
        aors.push(name(1), &secrets);
        assert!(!aors.list.spilled() && aors.index.is_none());
        assert!(size_of::<Aors>() <= 32);
        let all: Vec<_> = aors.iter().collect();
        assert_eq!(all, [&name(1)]);
    }
}
