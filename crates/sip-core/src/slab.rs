//! A slab: values in reusable slots, in pages that never move and are given back when empty.
//!
//! A full vector copies everything to a larger place: with hundreds of thousands of transactions that stalls
//! all signalling. A vector also never shrinks: after an hour of overload its memory is lost to everything
//! else. Pages do neither.
//!
//! New values go to the lowest page that has room, so that the upper ones empty when the load falls.
//! One empty page is kept, so that a load around a page's edge costs nothing.

use alloc::vec::Vec;
use core::num::NonZeroU32;

/// Slots of one page.
const PAGE: usize = 1 << PAGE_BITS;
const PAGE_BITS: u32 = 10;

/// The key of one use of a slot; it finds nothing once its value is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The index of the slot.
    pub slot: u32,
    /// The number of the slot's use.
    pub generation: NonZeroU32,
}

impl Key {
    /// The key of these numbers; `None` if the generation is 0, which no slot has.
    pub const fn new(slot: u32, generation: u32) -> Option<Self> {
        match NonZeroU32::new(generation) {
            Some(generation) => Some(Self { slot, generation }),
            None => None,
        }
    }
}

#[derive(Clone, Debug)]
enum Slot<T> {
    /// The next free slot of the page, and the generation of this one's next use.
    Free {
        next: u16,
        generation: NonZeroU32,
    },
    Used {
        generation: NonZeroU32,
        value: T,
    },
}

/// No slot of a page.
const NONE: u16 = u16::MAX;

#[derive(Clone, Debug)]
struct Page<T> {
    /// The slots, which grow up to [`PAGE`] and are dropped as a whole.
    slots: Vec<Slot<T>>,
    used: u16,
    free: u16,
    /// A generation that no slot of this page has had. A page that is made again starts with it.
    fresh: NonZeroU32,
}

impl<T> Page<T> {
    const EMPTY: Self = Self {
        slots: Vec::new(),
        used: 0,
        free: NONE,
        fresh: NonZeroU32::MIN,
    };

    fn has_room(&self) -> bool {
        usize::from(self.used) < PAGE
    }
}

/// The generation after this one; 0 is left out.
fn after(generation: NonZeroU32) -> NonZeroU32 {
    generation.checked_add(1).unwrap_or(NonZeroU32::MIN)
}

/// A slab of values; see the module.
#[derive(Clone, Debug)]
pub struct Slab<T> {
    pages: Vec<Page<T>>,
    /// One bit per page: whether the page has room.
    room: Vec<u64>,
    /// Words of `room` below this one are zero.
    first_room: usize,
    /// The empty page that keeps its memory.
    spare: Option<usize>,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            pages: Vec::new(),
            room: Vec::new(),
            first_room: 0,
            spare: None,
            len: 0,
        }
    }
}

impl<T> Slab<T> {
    /// The number of values held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slab holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Inserts a value.
    pub fn insert(&mut self, value: T) -> Key {
        let at = self.page_with_room();
        self.len += 1;
        if self.spare == Some(at) {
            self.spare = None;
        }
        let page = &mut self.pages[at];
        page.used += 1;
        let (index, generation) = match page.slots.get_mut(usize::from(page.free)) {
            Some(slot) => {
                let index = page.free;
                let mut generation = page.fresh;
                if let Slot::Free { next, generation: g } = *slot {
                    page.free = next;
                    generation = g;
                }
                *slot = Slot::Used { generation, value };
                (usize::from(index), generation)
            }
            None => {
                if page.slots.capacity() == 0 {
                    page.slots.reserve_exact(PAGE);
                }
                let generation = page.fresh;
                page.slots.push(Slot::Used { generation, value });
                (page.slots.len() - 1, generation)
            }
        };
        if !page.has_room() {
            self.room[at / 64] &= !(1 << (at % 64));
        }
        let slot = (at << PAGE_BITS | index) as u32;
        Key { slot, generation }
    }

    /// The lowest page with room; a new one if there is none.
    fn page_with_room(&mut self) -> usize {
        while let Some(word) = self.room.get(self.first_room) {
            if *word != 0 {
                return self.first_room * 64 + word.trailing_zeros() as usize;
            }
            self.first_room += 1;
        }
        let at = self.pages.len();
        self.pages.push(Page::EMPTY);
        // A word serves 64 pages.
        if at.is_multiple_of(64) {
            self.room.push(0);
        }
        self.first_room = at / 64;
        self.room[at / 64] |= 1 << (at % 64);
        at
    }

    /// The value of `key`, if it is still there.
    pub fn get(&self, key: Key) -> Option<&T> {
        match self.slot(key.slot)? {
            Slot::Used { generation, value } if *generation == key.generation => Some(value),
            Slot::Used { .. } | Slot::Free { .. } => None,
        }
    }

    /// The value of `key`, if it is still there.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match self.slot_mut(key.slot)? {
            Slot::Used { generation, value } if *generation == key.generation => Some(value),
            Slot::Used { .. } | Slot::Free { .. } => None,
        }
    }

    /// The value in a slot, with its key.
    pub fn at(&self, slot: u32) -> Option<(Key, &T)> {
        match self.slot(slot)? {
            Slot::Used { generation, value } => {
                let generation = *generation;
                Some((Key { slot, generation }, value))
            }
            Slot::Free { .. } => None,
        }
    }

    /// The value in a slot.
    pub fn at_mut(&mut self, slot: u32) -> Option<&mut T> {
        match self.slot_mut(slot)? {
            Slot::Used { value, .. } => Some(value),
            Slot::Free { .. } => None,
        }
    }

    fn slot(&self, slot: u32) -> Option<&Slot<T>> {
        let (page, index) = place(slot);
        self.pages.get(page)?.slots.get(index)
    }

    fn slot_mut(&mut self, slot: u32) -> Option<&mut Slot<T>> {
        let (page, index) = place(slot);
        self.pages.get_mut(page)?.slots.get_mut(index)
    }

    /// Removes the value of `key`.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let (at, index) = place(key.slot);
        let page = self.pages.get_mut(at)?;
        let slot = page.slots.get_mut(index)?;
        match slot {
            Slot::Used { generation, .. } if *generation == key.generation => {}
            Slot::Used { .. } | Slot::Free { .. } => return None,
        }
        let generation = after(key.generation);
        let next = page.free;
        let Slot::Used { value, .. } = core::mem::replace(slot, Slot::Free { next, generation }) else {
            return None;
        };
        page.free = index as u16;
        page.used -= 1;
        page.fresh = page.fresh.max(generation);
        self.len -= 1;
        let empty = page.used == 0;
        self.room[at / 64] |= 1 << (at % 64);
        self.first_room = self.first_room.min(at / 64);
        if empty {
            self.give_back(at);
        }
        Some(value)
    }

    /// Gives back the memory of an empty page. The lowest empty page keeps its memory.
    fn give_back(&mut self, at: usize) {
        let keep = self.spare.map_or(at, |spare| spare.min(at));
        let gone = match self.spare {
            Some(spare) => spare.max(at),
            None => {
                self.spare = Some(at);
                return;
            }
        };
        self.spare = Some(keep);
        if let Some(page) = self.pages.get_mut(gone) {
            page.slots = Vec::new();
            page.free = NONE;
        }
    }
}

const fn place(slot: u32) -> (usize, usize) {
    ((slot >> PAGE_BITS) as usize, slot as usize & (PAGE - 1))
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_key_outlives_its_value_harmlessly() {
        let mut slab = Slab::default();
        let a = slab.insert('a');
        assert_eq!(slab.remove(a), Some('a'));
        let b = slab.insert('b');
        assert_eq!(b.slot, a.slot);
        assert_eq!(slab.get(a), None);
        assert_eq!((slab.remove(a), slab.len()), (None, 1));
        assert_eq!(slab.get(b), Some(&'b'));
        assert_eq!(slab.insert('c').slot, 1);
        assert_eq!(slab.at(1).map(|(_, v)| *v), Some('c'));
        assert_eq!(slab.at_mut(2), None);
    }

    fn pages_in_memory(slab: &Slab<usize>) -> usize {
        slab.pages.iter().filter(|p| p.slots.capacity() > 0).count()
    }

    #[test]
    fn pages_stay_where_they_are_and_go_when_empty() {
        let mut slab = Slab::default();
        let keys: Vec<Key> = (0..70 * PAGE).map(|n| slab.insert(n)).collect();
        let first: *const usize = slab.get(keys[0]).unwrap();
        assert_eq!((slab.pages.len(), pages_in_memory(&slab)), (70, 70));
        for key in &keys[PAGE..] {
            slab.remove(*key).unwrap();
        }
        assert!(core::ptr::eq(first, slab.get(keys[0]).unwrap()));
        assert_eq!(pages_in_memory(&slab), 2, "the one in use and a spare");
        // A page that is made again gives no key a second time.
        let again: Vec<Key> = (0..70 * PAGE).map(|n| slab.insert(n)).collect();
        assert!(keys[PAGE..].iter().all(|key| slab.get(*key).is_none()));
        for key in again.iter().chain(&keys[..PAGE]) {
            slab.remove(*key).unwrap();
        }
        assert_eq!((slab.len(), pages_in_memory(&slab)), (0, 1));
    }

    proptest! {
        #[test]
        fn it_is_a_map(steps in proptest::collection::vec((any::<bool>(), any::<u16>()), 1..4000)) {
            let mut slab = Slab::default();
            let mut model: BTreeMap<(u32, u32), usize> = BTreeMap::new();
            for (n, (add, which)) in steps.into_iter().enumerate() {
                if add || model.is_empty() {
                    let key = slab.insert(n);
                    prop_assert!(model.insert((key.slot, key.generation.get()), n).is_none());
                } else {
                    let at = usize::from(which) % model.len();
                    let (slot, generation) = *model.keys().nth(at).unwrap();
                    let key = Key::new(slot, generation).unwrap();
                    prop_assert_eq!(slab.get(key), model.get(&(slot, generation)));
                    prop_assert_eq!(slab.remove(key), model.remove(&(slot, generation)));
                    prop_assert_eq!(slab.get(key), None);
                }
                prop_assert_eq!(slab.len(), model.len());
            }
        }
    }
}
