//! Many addresses-of-record in memory: one lock shard of the location service.
//!
//! Each record is kept in its encoded form ([`super::codec`]), in one heap block together with its
//! address-of-record, because a million registered phones must fit. As a struct a record costs its 200 bytes,
//! five blocks with their rounding, and the vector's. Encoded, it costs the bytes of its content. For a usual
//! phone (22 bytes of address-of-record, 38 of Contact, 32 of Call-ID, 24 of User-Agent;
//! `tests::memory_of_a_usual_phone` counts):
//!
//! | part | bytes |
//! | --- | --- |
//! | block: address-of-record (1 + 22), record | 154 |
//! | the allocator's rounding and header | up to 32 |
//! | slot: pointer and length, in a vector that is full on average to three quarters | 21 |
//! | index: 8 + 1, in a table that is full on average to two thirds | 14 |
//! | place among the ends ([`super::expiry_ring`]): 12, in a vector like that of the slots | 16 |
//!
//! A look-up decodes only the bindings that it asks for ([`Shard::view`]).
//!
//! Nothing depends on the order of a hash table: slots are visited in their own order, and of free slots the
//! last freed is reused first.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::Hasher as _;

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

use super::AorRecord;
use super::codec::{self, Reader, RecordRef};
use super::expiry_ring::ExpiryRing;
use super::recent::Memory;
use super::tally::{ByTransport, Tally, by_transport};

/// Bytes that a record takes beside its block: rounding and header, slot, index, place among the ends.
const BESIDE_BLOCK: usize = 32 + 21 + 14 + 16;

/// The keyed hash of an address-of-record. Its other bits choose among shards.
pub fn hash_aor(seed: (u64, u64), aor: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(seed.0, seed.1);
    hasher.write(aor);
    hasher.finish()
}

/// The shard of `shards` (at least 1) that holds `aor`. The shards may have the same seed.
pub fn shard_of(seed: (u64, u64), aor: &[u8], shards: usize) -> usize {
    // The table of a shard takes the lower half.
    (hash_aor(seed, aor) >> 32) as usize % shards.max(1)
}

/// The result of one call of [`Shard::sweep`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Records looked at.
    pub visited: usize,
    /// Bindings removed.
    pub bindings: usize,
    /// Addresses-of-record that have no binding left and were removed.
    pub records: usize,
    /// Whether no due record is left.
    pub finished: bool,
}

/// The result of one call of [`Shard::visit`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// Places looked at.
    pub looked: u32,
    /// The place at which to go on; `None`: the shard ends here.
    pub next: Option<u32>,
}

/// The block of one record: `varint length, address-of-record | record`
struct Block(Box<[u8]>);

impl Block {
    fn write(out: &mut Vec<u8>, aor: &[u8], record: &AorRecord) {
        out.clear();
        codec::put_varint(out, aor.len() as u64);
        out.extend_from_slice(aor);
        codec::encode(record, out);
    }

    /// Address-of-record and encoded record.
    fn parts(&self) -> (&[u8], &[u8]) {
        let mut reader = Reader(&self.0);
        let aor = reader.bytes().unwrap_or_default();
        (aor, reader.0)
    }

    /// Replaces the content. A refresh usually has the same length, and then needs no allocation.
    fn set(&mut self, bytes: &[u8]) {
        if self.0.len() == bytes.len() {
            self.0.copy_from_slice(bytes);
        } else {
            self.0 = Box::from(bytes);
        }
    }

    fn aor(&self) -> &[u8] {
        self.parts().0
    }

    fn record(&self) -> AorRecord {
        codec::decode(self.parts().1).unwrap_or_default()
    }
}

/// An entry of the index, with its hash, so that a growing table reads no block.
#[derive(Clone, Copy)]
struct Entry {
    slot: u32,
    /// The lower half of [`hash_aor`].
    hash: u32,
}

impl Entry {
    /// The hash by which the table places it: the table takes its index from the low bits and its
    /// tag from the seven highest.
    const fn place(hash: u32) -> u64 {
        (hash as u64) << 32 | hash as u64
    }
}

/// One lock shard. The caller owns the lock.
pub struct Shard {
    seed: (u64, u64),
    /// Slot numbers by address-of-record.
    index: HashTable<Entry>,
    slots: Vec<Option<Block>>,
    free: Vec<u32>,
    /// The times at which slots are to be looked at for bindings that have ended.
    ends: ExpiryRing,
    bindings: usize,
    tally: Tally,
    /// Bytes of all blocks.
    block_bytes: usize,
    /// The highest version among records that were removed. A record made anew starts there, so that its
    /// write wins over the one that deleted it, even if the wall clock is set back.
    floor: u64,
    recent: Memory,
    /// Memory for encoding, used again.
    scratch: Vec<u8>,
}

impl core::fmt::Debug for Shard {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shard")
            .field("records", &self.len())
            .field("bindings", &self.bindings)
            .finish_non_exhaustive()
    }
}

impl Shard {
    /// An empty shard, whose hashes are keyed with `seed`.
    pub const fn new(seed: (u64, u64)) -> Self {
        Self::starting_at(seed, 0)
    }

    /// An empty shard at this time. The time saves the first sweep a look at every record.
    pub const fn starting_at(seed: (u64, u64), now_unix_s: u64) -> Self {
        Self {
            seed,
            index: HashTable::new(),
            slots: Vec::new(),
            free: Vec::new(),
            ends: ExpiryRing::new(now_unix_s),
            bindings: 0,
            tally: Tally::new(),
            block_bytes: 0,
            floor: 0,
            recent: Memory::new(),
            scratch: Vec::new(),
        }
    }

    /// Addresses-of-record with at least one binding (ended ones included until the sweep).
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is no address-of-record.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Bindings of all records.
    pub const fn bindings(&self) -> usize {
        self.bindings
    }

    /// Bindings by transport of each domain that has any.
    pub fn by_domain(&self) -> impl Iterator<Item = (&[u8], ByTransport)> {
        self.tally.iter()
    }

    /// Bytes that the records take.
    pub fn bytes(&self) -> usize {
        self.block_bytes + self.len() * BESIDE_BLOCK
    }

    /// Runs `f` on the record of `aor`, made empty if absent, and keeps the result. A record without bindings
    /// is dropped.
    pub fn update<T>(&mut self, aor: &[u8], f: impl FnOnce(&mut AorRecord) -> T) -> T {
        let hash = self.hash(aor);
        let slot = self.find(hash, aor);
        let mut record = match self.block(slot) {
            Some(block) => block.record(),
            None => AorRecord {
                bindings: Vec::new(),
                version: self.floor,
                ..AorRecord::default()
            },
        };
        let before = by_transport(&record);
        let recent = self.recent.of(aor);
        record.recent.clone_from(&recent);
        let result = f(&mut record);
        if record.recent != recent {
            self.recent.set(aor, core::mem::take(&mut record.recent));
        }
        self.store(slot, hash, aor, before, &record);
        result
    }

    /// The record of `aor`, decoded; `None` if there is none.
    pub fn read<T>(&self, aor: &[u8], f: impl FnOnce(&AorRecord) -> T) -> Option<T> {
        self.block(self.find(self.hash(aor), aor))
            .map(|block| f(&block.record()))
    }

    /// The record of `aor`, encoded, so that the caller decodes only the bindings that it needs.
    pub fn view(&self, aor: &[u8]) -> Option<RecordRef<'_>> {
        self.block(self.find(self.hash(aor), aor))
            .and_then(|block| RecordRef::new(block.parts().1).ok())
    }

    /// Calls `f` with each address-of-record and its encoded record, in the order of the slots.
    pub fn for_each(&self, mut f: impl FnMut(&[u8], RecordRef<'_>)) {
        for block in self.slots.iter().flatten() {
            let (aor, record) = block.parts();
            if let Ok(record) = RecordRef::new(record) {
                f(aor, record);
            }
        }
    }

    /// Number of slots, those of removed records included.
    pub const fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Calls `f` with records from the slot `from` on, and looks at `budget` slots at most. `f` returns
    /// whether it took the record; if not, the walk ends before the record. Returns the slot at which the
    /// next walk goes on; `None`: this was the last of the shard.
    ///
    /// A record keeps its slot while it has a binding. So successive walks meet each record that stays once,
    /// even if records change between them.
    pub fn walk(
        &self,
        from: usize,
        budget: usize,
        mut f: impl FnMut(&[u8], RecordRef<'_>) -> bool,
    ) -> Option<usize> {
        let end = from.saturating_add(budget).min(self.slots.len());
        let slots = self.slots.get(from..end).unwrap_or_default();
        for (at, block) in slots.iter().enumerate() {
            let Some((aor, record)) = block.as_ref().map(Block::parts) else {
                continue;
            };
            if let Ok(record) = RecordRef::new(record)
                && !f(aor, record)
            {
                return Some(from + at);
            }
        }
        (end < self.slots.len()).then_some(end)
    }

    /// Calls `f` with the records at `most` places from the place `from` on. A place is the number of a slot.
    pub fn visit(&self, from: u32, most: u32, f: &mut dyn FnMut(&[u8], RecordRef<'_>)) -> Walked {
        let next = self.walk(from as usize, most as usize, |aor, record| {
            f(aor, record);
            true
        });
        Walked {
            looked: (next.unwrap_or(self.slots()) as u32).saturating_sub(from),
            next: next.map(|next| next as u32),
        }
    }

    /// Removes bindings that have ended. It looks at up to `budget` records, and only at those of which a
    /// binding may have ended ([`ExpiryRing`]). `changed` is called with each address-of-record that lost
    /// some and its present record, version included; an empty record has been dropped.
    pub fn sweep(
        &mut self,
        now_unix_ms: u64,
        budget: usize,
        mut changed: impl FnMut(&[u8], &AorRecord),
    ) -> Swept {
        let now_unix_s = now_unix_ms / 1000;
        self.recent.forget(now_unix_s);
        let mut swept = Swept::default();
        while swept.visited < budget {
            let Some(slot) = self.ends.take_due(now_unix_s) else {
                swept.finished = true;
                break;
            };
            swept.visited += 1;
            let Some(block) = self.block(Some(slot as usize)) else {
                continue;
            };
            let mut record = block.record();
            let before = by_transport(&record);
            let removed = record.remove_expired(now_unix_s);
            if removed == 0 {
                // The binding was refreshed: this is the look that the refresh saved.
                self.file(slot, &record);
                continue;
            }
            record.changed(now_unix_ms);
            let aor = Box::<[u8]>::from(block.aor());
            let hash = self.hash(&aor);
            self.store(Some(slot as usize), hash, &aor, before, &record);
            swept.bindings += removed;
            swept.records += usize::from(record.bindings.is_empty());
            changed(&aor, &record);
        }
        swept
    }

    /// Files `slot` by the earliest end of its record.
    fn file(&mut self, slot: u32, record: &AorRecord) {
        let ends = record.bindings.iter().map(|b| b.expires_unix_s);
        if let Some(earliest) = ends.min() {
            self.ends.file(slot, earliest);
        }
    }

    fn block(&self, slot: Option<usize>) -> Option<&Block> {
        self.slots.get(slot?)?.as_ref()
    }

    fn hash(&self, aor: &[u8]) -> u32 {
        hash_aor(self.seed, aor) as u32
    }

    fn find(&self, hash: u32, aor: &[u8]) -> Option<usize> {
        let slots = &self.slots;
        let is = |entry: &Entry| {
            entry.hash == hash
                && slots
                    .get(entry.slot as usize)
                    .and_then(Option::as_ref)
                    .is_some_and(|b| b.aor() == aor)
        };
        self.index
            .find(Entry::place(hash), is)
            .map(|entry| entry.slot as usize)
    }

    /// Stores a record that had the counts `before`.
    fn store(&mut self, slot: Option<usize>, hash: u32, aor: &[u8], before: ByTransport, record: &AorRecord) {
        self.tally.change(aor, before, by_transport(record));
        let before: usize = before.iter().map(|count| *count as usize).sum();
        let after = record.bindings.len();
        if after == 0 {
            self.floor = self.floor.max(record.version);
            if let Some(slot) = slot {
                self.remove(slot, hash, before);
            }
            return;
        }
        let mut scratch = core::mem::take(&mut self.scratch);
        Block::write(&mut scratch, aor, record);
        self.block_bytes += scratch.len();
        let slot = match slot {
            Some(slot) => {
                if let Some(Some(block)) = self.slots.get_mut(slot) {
                    self.block_bytes -= block.0.len();
                    block.set(&scratch);
                }
                slot as u32
            }
            None => self.insert(hash, Block(Box::from(scratch.as_slice()))),
        };
        self.scratch = scratch;
        self.file(slot, record);
        self.bindings = (self.bindings + after).saturating_sub(before);
    }

    fn insert(&mut self, hash: u32, block: Block) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = Some(block);
        }
        self.index
            .insert_unique(Entry::place(hash), Entry { slot, hash }, |entry| {
                Entry::place(entry.hash)
            });
        slot
    }

    fn remove(&mut self, slot: usize, hash: u32, bindings: usize) {
        if let Ok(entry) = self
            .index
            .find_entry(Entry::place(hash), |entry| entry.slot as usize == slot)
        {
            entry.remove();
        }
        if let Some(block) = self.slots.get_mut(slot).and_then(Option::take) {
            self.block_bytes -= block.0.len();
            self.ends.remove(slot as u32);
            self.free.push(slot as u32);
            self.bindings = self.bindings.saturating_sub(bindings);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::Binding;
    use super::super::codec::tests::record;
    use super::*;
    use crate::transport::Flow;
    use alloc::collections::BTreeMap;
    use alloc::format;
    use alloc::vec;
    use proptest::prelude::*;

    #[track_caller]
    pub(in super::super) fn binding(contact: &str, q_milli: u16, expires_unix_s: u64) -> Binding {
        let received = Flow::udp("192.0.2.17:5062".parse().unwrap());
        Binding {
            call_id: b"843817637684230@998sdasdh09.example".as_slice().into(),
            cseq: 1826,
            q_milli,
            user_agent: b"Example Phone 2.1 (b4711)".as_slice().into(),
            ..Binding::plain(contact.as_bytes(), received, expires_unix_s)
        }
    }

    #[track_caller]
    fn contacts(record: &AorRecord, now: u64) -> Vec<&str> {
        record
            .live(now)
            .map(|b| core::str::from_utf8(&b.contact).unwrap())
            .collect()
    }

    #[test]
    fn live_bindings_come_by_q_then_most_recent() {
        let mut record = AorRecord::default();
        for (contact, q, end) in [
            ("a", 500, 100),
            ("b", 1000, 100),
            ("c", 500, 50),
            ("d", 500, 100),
            ("e", 0, 100),
        ] {
            record.put(binding(contact, q, end));
        }
        assert_eq!(contacts(&record, 49), ["b", "d", "c", "a", "e"]);
        assert_eq!(contacts(&record, 50), ["b", "d", "a", "e"]);
        assert_eq!(record.remove_expired(50), 1);
        assert_eq!(contacts(&record, 0), ["b", "d", "a", "e"]);
        assert_eq!(contacts(&record, 100), [""; 0]);
    }

    #[test]
    fn update_makes_keeps_and_drops() {
        let mut shard = Shard::new((1, 2));
        shard.update(b"alice@example.com", |r| {
            assert_eq!(*r, AorRecord::default());
            r.put(binding("sip:a", 1000, 10));
            r.changed(5_000);
        });
        assert_eq!((shard.len(), shard.bindings()), (1, 1));
        assert_eq!(
            shard.read(b"alice@example.com", |r| (r.version, r.bindings.len())),
            Some((5_000, 1))
        );
        assert_eq!(shard.read(b"bob@example.com", |_| ()), None);
        assert!(shard.view(b"bob@example.com").is_none());
        assert_eq!(
            shard
                .view(b"alice@example.com")
                .unwrap()
                .bindings()
                .next()
                .unwrap()
                .unwrap()
                .contact,
            b"sip:a"
        );
        shard.update(b"bob@example.com", |_| ());
        assert_eq!((shard.len(), shard.bindings()), (1, 1));
        shard.update(b"alice@example.com", |r| {
            r.bindings.clear();
            r.changed(4_000);
        });
        assert_eq!((shard.len(), shard.bindings()), (0, 0));
        assert!(shard.is_empty());
        // The clock was set back: a record made anew still has a higher version.
        shard.update(b"alice@example.com", |r| {
            r.put(binding("sip:a", 1000, 10));
            r.changed(3_000);
            assert_eq!(r.version, 5_002);
        });
    }

    #[test]
    fn sweep_goes_on_where_it_stopped() {
        let mut shard = Shard::starting_at((1, 2), 50);
        for i in 0..10u64 {
            shard.update(format!("u{i}").as_bytes(), |r| {
                r.put(binding("sip:short", 1000, if i % 2 == 0 { 100 } else { 200 }));
                if i == 4 {
                    r.put(binding("sip:long", 1000, 200));
                }
                r.changed(1);
            });
        }
        let mut seen = vec![];
        let sweep = |shard: &mut Shard, seen: &mut Vec<_>| {
            let swept = shard.sweep(112_000, 2, |aor, r| {
                seen.push((aor.to_vec(), r.bindings.len(), r.version))
            });
            (swept.visited, swept.bindings, swept.records, swept.finished)
        };
        assert_eq!(sweep(&mut shard, &mut seen), (2, 2, 2, false));
        assert_eq!(sweep(&mut shard, &mut seen), (2, 2, 1, false));
        assert_eq!(sweep(&mut shard, &mut seen), (1, 1, 1, true));
        let expected: Vec<_> = [(8, 0), (6, 0), (4, 1), (2, 0), (0, 0)]
            .map(|(i, n)| (format!("u{i}").into_bytes(), n, 112_000))
            .into();
        assert_eq!(seen, expected);
        assert_eq!((shard.len(), shard.bindings()), (6, 6));
        assert_eq!(sweep(&mut shard, &mut seen), (0, 0, 0, true));
        assert_eq!(seen.len(), 5);
        // Freed slots are used again.
        shard.update(b"new", |r| r.put(binding("sip:a", 1000, 10)));
        assert_eq!(shard.slots.len(), 10);
    }

    /// The looks of a sweep follow from the bindings that end and are refreshed, not from those that are
    /// held. A phone that refreshes at half its time is looked at once in two refreshes.
    #[test]
    fn looks_are_bounded_by_ends_and_refreshes() {
        const PHONES: u64 = 2_000;
        const T0: u64 = 1_800_000_000;
        let mut shard = Shard::starting_at((1, 2), T0);
        let register = |shard: &mut Shard, phone: u64, now: u64| {
            shard.update(format!("u{phone}").as_bytes(), |r| {
                r.bindings.clear();
                r.put(binding("sip:a", 1000, now + 3_600));
                r.changed(now * 1000);
            });
        };
        let (mut visited, mut refreshes, mut removed) = (0, 0, 0);
        // Three hours, second by second. Each tenth phone does not refresh.
        for now in T0..T0 + 3 * 3_600 {
            for phone in 0..PHONES {
                let due = (now - T0) % 1_800 == phone * 1_800 / PHONES;
                if due && (now < T0 + 1_800 || phone % 10 != 0) {
                    register(&mut shard, phone, now);
                    refreshes += 1;
                }
            }
            let swept = shard.sweep(now * 1000, usize::MAX, |_, r| assert!(r.bindings.is_empty()));
            assert!(swept.finished);
            visited += swept.visited as u64;
            removed += swept.bindings as u64;
        }
        assert_eq!(removed, PHONES / 10);
        assert_eq!(shard.len() as u64, PHONES * 9 / 10);
        assert!(
            visited <= removed + refreshes / 2,
            "{visited} looks, {refreshes} refreshes"
        );
        // No phone refreshes any more: each is removed, after at most two looks.
        let swept = shard.sweep((T0 + 20_000) * 1000, usize::MAX, |_, _| ());
        assert_eq!((shard.len(), swept.records as u64), (0, PHONES * 9 / 10));
        assert!(swept.visited <= 2 * swept.records);
    }

    /// A walk over 20,000 records in bounded steps, while others come, go and refresh: each record that stays
    /// is met once.
    #[test]
    fn walks_meet_what_stays_once_whatever_changes() {
        const PHONES: u32 = 20_000;
        const BUDGET: usize = 64;
        let mut shard = Shard::new((1, 2));
        let register = |shard: &mut Shard, name: &str, contact: &str| {
            shard.update(name.as_bytes(), |r| {
                r.bindings.clear();
                r.put(binding(contact, 1000, 9_999));
                r.changed(5_000);
            });
        };
        for phone in 0..PHONES {
            register(&mut shard, &format!("stays{phone}"), "sip:a");
            if phone % 4 == 0 {
                register(&mut shard, &format!("goes{phone}"), "sip:a");
            }
        }
        let slots = shard.slots.len();
        let mut met = BTreeMap::new();
        let (mut from, mut steps, mut gone) = (Some(0), 0, 0);
        while let Some(at) = from {
            let mut looks = 0;
            from = shard.walk(at, BUDGET, |aor, _| {
                looks += 1;
                *met.entry(aor.to_vec()).or_insert(0) += 1;
                true
            });
            assert!(looks <= BUDGET, "{looks}");
            steps += 1;
            // One goes, another comes in its place or behind, one refreshes and takes more room.
            shard.update(format!("goes{gone}").as_bytes(), |r| r.bindings.clear());
            gone += 4 * 37;
            register(&mut shard, &format!("comes{steps}"), "sip:a");
            register(
                &mut shard,
                &format!("stays{}", steps * 61),
                "sip:a-longer-contact",
            );
        }
        let most = (slots + steps).div_ceil(BUDGET);
        assert!((slots / BUDGET..=most).contains(&steps), "{steps} steps");
        for phone in 0..PHONES {
            let name = format!("stays{phone}").into_bytes();
            assert_eq!(met.get(&name), Some(&1), "{phone}");
        }
    }

    #[test]
    fn a_walk_ends_before_what_was_not_taken() {
        let mut shard = Shard::new((1, 2));
        for name in ["a", "b", "c"] {
            shard.update(name.as_bytes(), |r| r.put(binding("sip:a", 1000, 10)));
        }
        shard.update(b"b", |r| r.bindings.clear());
        let walk = |from, budget, most: usize| {
            let mut met = vec![];
            let next = shard.walk(from, budget, |aor, _| {
                let takes = met.len() < most;
                if takes {
                    met.push(aor.to_vec());
                }
                takes
            });
            (met.concat(), next)
        };
        assert_eq!(walk(0, 9, 9), (b"ac".to_vec(), None));
        assert_eq!(walk(0, 9, 1), (b"a".to_vec(), Some(2)));
        assert_eq!(walk(0, 2, 9), (b"a".to_vec(), Some(2)));
        assert_eq!(walk(2, 1, 9), (b"c".to_vec(), None));
        assert_eq!(walk(3, 9, 9), (vec![], None));
        assert_eq!(walk(usize::MAX, 9, 9), (vec![], None));
    }

    /// Registering and removing without end leaves nothing behind.
    #[test]
    fn no_garbage_gathers() {
        let mut shard = Shard::starting_at((1, 2), 1_000);
        for round in 0..10_000u64 {
            let end = 1_000 + round * 7_919 % 7_200;
            shard.update(b"a", |r| {
                r.bindings.clear();
                r.put(binding("sip:a", 1000, end));
            });
            if round % 3 == 0 {
                shard.update(b"a", |r| r.bindings.clear());
            }
        }
        let swept = shard.sweep(1_000_000_000, usize::MAX, |_, _| ());
        assert!(swept.visited <= 1 && swept.finished, "{swept:?}");
        assert_eq!((shard.len(), shard.slots.len()), (0, 1));
    }

    #[test]
    fn memory_of_a_usual_phone() {
        let mut shard = Shard::new((1, 2));
        for i in 0..1000 {
            shard.update(format!("user{i:06}@example.com").as_bytes(), |r| {
                r.changed(1_800_000_000_000);
                r.put(Binding {
                    updated: r.version,
                    ..binding("sip:user000001@192.168.178.21:5060;ob", 1000, 1_800_003_600)
                });
            });
        }
        assert!(shard.block_bytes / 1000 <= 154, "{}", shard.block_bytes / 1000);
        assert_eq!(shard.bytes(), shard.block_bytes + 1000 * BESIDE_BLOCK);
        assert_eq!(size_of::<Option<Block>>(), 16);
    }

    #[test]
    fn shards_are_chosen_evenly() {
        let mut counts = [0; 64];
        for i in 0..64_000 {
            counts[shard_of((3, 4), format!("user{i}@example.com").as_bytes(), 64)] += 1;
        }
        assert!(counts.iter().all(|&n| (800..1200).contains(&n)), "{counts:?}");
    }

    proptest! {
        /// The shard is a map: it does what a map of decoded records does.
        #[test]
        fn behaves_as_a_map(steps in prop::collection::vec((0u8..12, record()), 0..60)) {
            let mut shard = Shard::new((5, 6));
            let mut model = BTreeMap::<u8, AorRecord>::new();
            for (key, record) in steps {
                shard.update(&[key], |r| {
                    r.bindings.clone_from(&record.bindings);
                    r.version = record.version;
                });
                if record.bindings.is_empty() { model.remove(&key); } else { model.insert(key, record); }
                prop_assert_eq!(shard.len(), model.len());
                prop_assert_eq!(shard.bindings(), model.values().map(|r| r.bindings.len()).sum::<usize>());
                let blocks: usize = shard.slots.iter().flatten().map(|b| b.0.len()).sum();
                prop_assert_eq!(shard.bytes(), blocks + model.len() * BESIDE_BLOCK);
                // Here a key is a domain.
                let counts = model.iter().map(|(key, record)| (*key, by_transport(record)));
                let tally: BTreeMap<_, _> = shard.by_domain().map(|(domain, counts)| (domain[0], counts)).collect();
                prop_assert_eq!(tally, counts.collect());
            }
            for key in 0..12 {
                prop_assert_eq!(shard.read(&[key], Clone::clone), model.get(&key).cloned());
            }
            let mut all = BTreeMap::new();
            shard.for_each(|aor, r| { all.insert(aor[0], r.version()); });
            prop_assert_eq!(all, model.iter().map(|(k, r)| (*k, r.version)).collect::<BTreeMap<_, _>>());
        }
    }
}
