//! Bindings that were removed lately.
//!
//! A datagram that was doubled or held up may come after what was sent later. A REGISTER that comes
//! after the one that removed its binding is out of order like any other (RFC 3261 §10.3 step 7),
//! but where the binding is gone nothing of it is left to compare with. Hence what was removed is
//! remembered for as long as a copy may be on its way: as it was, but with the CSeq of the REGISTER
//! that removed it (where that has another Call-ID, with its own), with the second at which it is to be
//! forgotten as its end, and with the version of the removal. By that it is also known what a removal
//! removed that could not be stored and is taken back ([`super::undo`]).
//!
//! **What happens at the bounds.** The oldest is forgotten; a copy of its REGISTER that comes still
//! later binds again, until the end of its time, and a removal of it is not taken back any more.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::{AorRecord, Binding};

/// How long a message may be sent again and be on its way: 64·T1 and T4 (RFC 3261 §17.1.2.2,
/// Table 4), seconds.
pub(crate) const REMEMBERED_S: u64 = 37;

/// Changes of addresses-of-record that one shard remembers.
const MOST: usize = 4_096;

/// Removed bindings of one address-of-record that are remembered.
const MOST_OF_ONE: usize = 64;

impl AorRecord {
    /// Remembers a binding that a REGISTER of this CSeq removes. To be called before
    /// [`AorRecord::changed`].
    pub(crate) fn remember(&mut self, binding: Binding, cseq: u32, now_unix_ms: u64) {
        let now = now_unix_ms / 1000;
        let of_it = |b: &Binding| b.call_id == binding.call_id && b.is_same(&binding);
        self.removed.retain(|b| b.expires_unix_s > now && !of_it(b));
        if self.removed.len() >= MOST_OF_ONE {
            self.removed.remove(0);
        }
        let version = self.next_version(now_unix_ms);
        self.removed.push(Binding {
            cseq,
            updated: version,
            expires_unix_s: now.saturating_add(REMEMBERED_S),
            ..binding
        });
    }
}

/// Removed bindings by address-of-record.
#[derive(Debug)]
pub(super) struct Removed {
    /// When each is to be looked at, in the order in which they came.
    order: VecDeque<(u64, Box<[u8]>)>,
    bindings: BTreeMap<Box<[u8]>, Vec<Binding>>,
}

impl Removed {
    /// None.
    pub(super) const fn new() -> Self {
        Self {
            order: VecDeque::new(),
            bindings: BTreeMap::new(),
        }
    }

    /// Those of `aor`; some may be there still that are to be forgotten already.
    pub(super) fn of(&self, aor: &[u8]) -> Vec<Binding> {
        // There hardly ever are any.
        if self.bindings.is_empty() {
            return Vec::new();
        }
        self.bindings.get(aor).cloned().unwrap_or_default()
    }

    /// From now on these are those of `aor`.
    pub(super) fn set(&mut self, aor: &[u8], removed: Vec<Binding>) {
        let Some(until) = removed.iter().map(|b| b.expires_unix_s).max() else {
            // Its place in the order finds nothing.
            self.bindings.remove(aor);
            return;
        };
        self.order.push_back((until, aor.into()));
        self.bindings.insert(aor.into(), removed);
        while self.order.len() > MOST {
            self.forget_first();
        }
    }

    /// Forgets what is to be forgotten by now.
    pub(super) fn forget(&mut self, now_unix_s: u64) {
        while self.order.front().is_some_and(|(until, _)| *until <= now_unix_s) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let Some((until, aor)) = self.order.pop_front() else {
            return;
        };
        if let Some(held) = self.bindings.get_mut(&aor) {
            held.retain(|binding| binding.expires_unix_s > until);
            if held.is_empty() {
                self.bindings.remove(&aor);
            }
        }
    }
}
