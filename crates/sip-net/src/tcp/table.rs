//! A slab of connections with a generation in each key.

use sip_core::id::{ConnId, WorkerId};

/// The bits of a generation that fit beside a slot in an event's token.
pub(super) const LOW_GENERATION: u32 = (1 << 24) - 1;

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Values in numbered slots. A slot's generation counts its uses, so that a number that has outlived its
/// value names nothing.
#[derive(Debug)]
pub(super) struct Table<T> {
    worker: WorkerId,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    limit: usize,
    first_generation: u32,
}

impl<T> Table<T> {
    /// A table of at most `limit` values. Generations begin at `first_generation`, drawn anew for each
    /// process: keys are stored with registrations and outlive the process.
    pub(super) fn new(worker: WorkerId, limit: usize, first_generation: u32) -> Self {
        let limit = limit.min(u32::MAX as usize);
        Self {
            worker,
            slots: Vec::new(),
            free: Vec::new(),
            limit,
            first_generation,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    /// Stores a value. Returns it as the error if the table is full.
    pub(super) fn insert(&mut self, value: T) -> Result<ConnId, T> {
        if self.is_full() {
            return Err(value);
        }
        let slot = if let Some(slot) = self.free.pop() {
            slot
        } else {
            self.slots.push(Slot {
                generation: self.first_generation,
                value: None,
            });
            (self.slots.len() - 1) as u32
        };
        let Some(place) = self.slots.get_mut(slot as usize) else {
            return Err(value);
        };
        place.value = Some(value);
        Ok(ConnId {
            worker: self.worker,
            slot,
            generation: place.generation,
        })
    }

    pub(super) fn remove(&mut self, id: ConnId) -> Option<T> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation != id.generation || id.worker != self.worker {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot);
        Some(value)
    }

    pub(super) fn get_mut(&mut self, id: ConnId) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation != id.generation || id.worker != self.worker {
            return None;
        }
        slot.value.as_mut()
    }

    /// Whether the key names a value.
    pub(super) fn has(&self, id: ConnId) -> bool {
        let slot = self.slots.get(id.slot as usize);
        slot.is_some_and(|slot| slot.generation == id.generation && slot.value.is_some())
            && id.worker == self.worker
    }

    /// The keys of all values.
    pub(super) fn keys(&self) -> Vec<ConnId> {
        let worker = self.worker;
        let taken = |(slot, place): (u32, &Slot<T>)| {
            place.value.is_some().then_some(ConnId {
                worker,
                slot,
                generation: place.generation,
            })
        };
        (0..).zip(&self.slots).filter_map(taken).collect()
    }

    /// The key of the value in `slot`, if the low 24 bits of its generation are these.
    pub(super) fn key(&self, slot: u32, low_generation: u32) -> Option<ConnId> {
        let place = self.slots.get(slot as usize)?;
        let same = place.value.is_some() && place.generation & LOW_GENERATION == low_generation;
        same.then_some(ConnId {
            worker: self.worker,
            slot,
            generation: place.generation,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_its_value_only() {
        let mut table = Table::new(WorkerId(3), 2, u32::MAX);
        let a = table.insert('a').unwrap();
        let b = table.insert('b').unwrap();
        assert_eq!(table.insert('c'), Err('c'));
        assert_eq!(table.remove(a), Some('a'));
        assert_eq!(table.remove(a), None);
        let c = table.insert('c').unwrap();
        assert_eq!((c.slot, c.worker), (a.slot, WorkerId(3)));
        assert_eq!(table.get_mut(a), None);
        assert_eq!(table.get_mut(c), Some(&mut 'c'));
        assert_eq!(table.key(c.slot, 0), Some(c), "generations wrap");
        assert_eq!(table.key(c.slot, a.generation & LOW_GENERATION), None);
        assert_eq!(
            table.get_mut(ConnId {
                worker: WorkerId(0),
                ..b
            }),
            None
        );
        assert_eq!(table.get_mut(b), Some(&mut 'b'));
        assert_eq!(table.len(), 2);
        assert_eq!(table.keys(), [c, b]);
        table.remove(c);
        assert_eq!(table.keys(), [b]);
    }
}
