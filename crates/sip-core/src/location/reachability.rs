//! The reachability of flows that are kept alive by pings: whether a phone behind a NAT answers there.
//!
//! A flow here is a listener of ours and the address behind which the phone is. Several bindings may have one flow, as
//! those of a phone with several lines, and it is pinged once for all of them. Its state:
//!
//! ```text
//!             ping          response                `most` pings in a row without a response
//! (unknown) ───────► new ─────────────► answered ──────────────────────────────────────────► lost
//!                     │ `most` pings       ▲ ▲                                                 │
//!                     ▼                    │ └───────────── response or REGISTER ──────────────┘
//!                  silent ─────────────────┘ response
//! ```
//!
//! - A flow is *lost* only if it has answered before: a phone that knows no OPTIONS is still there.
//! - A flow that has never answered is pinged `most` times after each REGISTER, and a few times more at growing intervals:
//!   the phone may have been cut off just then. With no end to the pings, a REGISTER with another's source address would make
//!   us ping that address for as long as the registration lasts.
//!
//! Only what is pinged has an entry. An entry that was not pinged for a while is forgotten, so that there are never more
//! than there are bindings.

use core::hash::Hasher as _;
use core::net::IpAddr;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use siphasher::sip::SipHasher13;

use crate::transport::Flow;

/// Turns without a ping after which a flow that has never answered gets one more.
const AGAIN_AFTER: [u8; 4] = [2, 4, 8, 16];

/// The next step for a flow whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Ping it.
    Ping {
        /// Whether it has answered and is not lost, so that no response is needed to prove it.
        answered: bool,
    },
    /// Ping it; it is lost from now on.
    Lost,
    /// Do not ping it: it has been pinged just now for another binding.
    Pinged,
    /// Do not ping it: it has never answered.
    Silent,
}

/// The reachability of a flow, as operators see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It has not answered yet.
    Unanswered,
    /// It has answered, and is not lost.
    Answered,
    /// It has answered once, and no more.
    Lost,
}

/// The bounds by which a flow is pinged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Seconds from one ping of a flow to the next.
    pub every_s: u32,
    /// Pings in a row without a response after which a flow is lost, or silent.
    pub most: u8,
    /// Whether flows that have answered must answer again.
    pub must_answer: bool,
}

/// One flow that is pinged.
#[derive(Clone, Copy, Debug)]
struct Pinged {
    key: u64,
    /// The address-of-record whose turn is the flow's.
    aor_hash: u32,
    /// The second of its last turn, counted from 1970.
    turn_unix_s: u32,
    /// Pings in a row without a response. The last one counts from the next on.
    missed: u8,
    /// Whether the last ping has no response yet.
    awaits: bool,
    answered: bool,
    lost: bool,
}

/// The flows of one lock shard.
#[derive(Debug, Default)]
pub struct Reachability {
    flows: HashTable<Pinged>,
    lost: usize,
}

/// The keyed hash of a flow, by which it is found.
pub fn flow_key(seed: (u64, u64), flow: &Flow) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(seed.0, seed.1);
    hasher.write_u16(flow.listener.0);
    hasher.write_u16(flow.remote.port());
    match flow.remote.ip() {
        IpAddr::V4(ip) => hasher.write(&ip.octets()),
        IpAddr::V6(ip) => hasher.write(&ip.octets()),
    }
    hasher.finish()
}

impl Reachability {
    /// An empty table.
    pub const fn new() -> Self {
        Self {
            flows: HashTable::new(),
            lost: 0,
        }
    }

    /// Number of flows.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Whether there is no flow.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Number of lost flows.
    pub const fn lost(&self) -> usize {
        self.lost
    }

    /// It is the turn of a binding with this flow, in the address-of-record that `aor_hash` is a hash of. A flow has its
    /// turn with one of its addresses-of-record. If that has no turns any more, another takes its place.
    pub fn turn(&mut self, key: u64, aor_hash: u32, now_unix_s: u64, bounds: &Bounds) -> Turn {
        let now = now_unix_s as u32;
        let new = Pinged {
            key,
            aor_hash,
            turn_unix_s: now,
            missed: 0,
            awaits: true,
            answered: false,
            lost: false,
        };
        let flow = match self.flows.entry(key, |flow| flow.key == key, |flow| flow.key) {
            Entry::Occupied(flow) => flow.into_mut(),
            Entry::Vacant(place) => {
                place.insert(new);
                return Turn::Ping { answered: false };
            }
        };
        let least_s = match flow.aor_hash == aor_hash {
            true => bounds.every_s.div_ceil(2),
            false => bounds.every_s.saturating_add(bounds.every_s.div_ceil(4)),
        };
        if now.wrapping_sub(flow.turn_unix_s) < least_s {
            return Turn::Pinged;
        }
        flow.aor_hash = aor_hash;
        flow.turn_unix_s = now;
        let must_answer = bounds.must_answer || !flow.answered || flow.lost;
        flow.missed = match must_answer {
            true => flow.missed.saturating_add(u8::from(flow.awaits)),
            false => 0,
        };
        flow.awaits = must_answer;
        let beyond = flow.missed.checked_sub(bounds.most);
        match (flow.answered, beyond) {
            (false, Some(turns)) if !AGAIN_AFTER.contains(&turns) => Turn::Silent,
            (true, Some(_)) if !flow.lost => {
                flow.lost = true;
                self.lost += 1;
                Turn::Lost
            }
            (answered, _) => Turn::Ping {
                answered: answered && !flow.lost,
            },
        }
    }

    /// Notes a response to a ping. Returns whether the flow was lost.
    pub fn answer(&mut self, key: u64) -> bool {
        self.revive(key, true)
    }

    /// Notes a REGISTER that came by the flow. Returns whether the flow was lost.
    pub fn register(&mut self, key: u64) -> bool {
        self.revive(key, false)
    }

    fn revive(&mut self, key: u64, answered: bool) -> bool {
        let Some(flow) = self.flows.find_mut(key, |flow| flow.key == key) else {
            return false;
        };
        flow.missed = 0;
        flow.awaits = false;
        flow.answered |= answered;
        let was_lost = core::mem::take(&mut flow.lost);
        self.lost -= usize::from(was_lost);
        was_lost
    }

    /// The reachability of a flow; `None` if it is not pinged.
    pub fn reach(&self, key: u64) -> Option<Reach> {
        let flow = self.flows.find(key, |flow| flow.key == key)?;
        Some(match (flow.lost, flow.answered) {
            (true, _) => Reach::Lost,
            (false, true) => Reach::Answered,
            (false, false) => Reach::Unanswered,
        })
    }

    /// Forgets the flows whose last turn was before this second.
    pub fn forget(&mut self, before_unix_s: u64) {
        let before = before_unix_s as u32;
        self.flows.retain(|flow| flow.turn_unix_s >= before);
        self.lost = self.flows.iter().filter(|flow| flow.lost).count();
        if self.flows.len() < self.flows.capacity() / 4 {
            self.flows.shrink_to_fit(|flow| flow.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds {
        every_s: 25,
        most: 3,
        must_answer: true,
    };
    const NEW: Turn = Turn::Ping { answered: false };
    const AGAIN: Turn = Turn::Ping { answered: true };
    const LOST: Turn = Turn::Ping { answered: false };

    /// The turns of a flow, 25 s apart; `true`: it answers.
    fn turns(flows: &mut Reachability, from_unix_s: u64, answers: &[bool]) -> Vec<Turn> {
        let turn = |(n, answers): (u64, &bool)| {
            let turn = flows.turn(7, 1, from_unix_s + n * 25, &BOUNDS);
            if *answers {
                flows.answer(7);
            }
            turn
        };
        (0..).zip(answers).map(turn).collect()
    }

    #[test]
    fn only_what_has_answered_can_be_lost() {
        let mut flows = Reachability::new();
        let found = turns(&mut flows, 1_000, &[true, false, false, false, false, true, true]);
        assert_eq!(found, [NEW, AGAIN, AGAIN, AGAIN, Turn::Lost, LOST, AGAIN]);
        assert_eq!((flows.lost(), flows.reach(7)), (0, Some(Reach::Answered)));
    }

    #[test]
    fn what_never_answers_is_left_alone_until_it_registers() {
        let mut flows = Reachability::new();
        let silent = [NEW, NEW, NEW, Turn::Silent, Turn::Silent];
        let found = turns(&mut flows, 1_000, &[false; 300]);
        assert_eq!(found[..5], silent);
        let pinged: Vec<usize> = (0..)
            .zip(&found)
            .filter(|(_, turn)| **turn == NEW)
            .map(|(n, _)| n)
            .collect();
        assert_eq!(pinged, [0, 1, 2, 5, 7, 11, 19]);
        assert_eq!((flows.lost(), flows.reach(7)), (0, Some(Reach::Unanswered)));
        assert!(!flows.register(7));
        assert_eq!(turns(&mut flows, 9_000, &[false; 4]), silent[..4]);
        // A late response counts all the same.
        assert!(!flows.answer(7));
        assert_eq!(turns(&mut flows, 9_500, &[true]), [AGAIN]);
    }

    #[test]
    fn a_lost_flow_comes_back_by_a_response_or_a_register() {
        for back in [Reachability::answer, Reachability::register] {
            let mut flows = Reachability::new();
            turns(&mut flows, 1_000, &[true, false, false, false, false]);
            assert_eq!((flows.lost(), flows.reach(7)), (1, Some(Reach::Lost)));
            assert!(back(&mut flows, 7));
            assert!(!back(&mut flows, 7));
            assert_eq!((flows.lost(), flows.reach(7)), (0, Some(Reach::Answered)));
        }
    }

    #[test]
    fn bindings_with_one_flow_share_its_pings() {
        let mut flows = Reachability::new();
        assert_eq!(flows.turn(7, 1, 1_000, &BOUNDS), NEW);
        // A second contact of the first address-of-record, and others.
        assert_eq!(flows.turn(7, 1, 1_000, &BOUNDS), Turn::Pinged);
        assert_eq!(flows.turn(7, 2, 1_024, &BOUNDS), Turn::Pinged);
        assert_eq!(flows.turn(8, 2, 1_024, &BOUNDS), NEW);
        assert_eq!(flows.turn(7, 1, 1_025, &BOUNDS), NEW);
        // The first one is not there any more.
        assert_eq!(flows.turn(7, 2, 1_049, &BOUNDS), Turn::Pinged);
        assert_eq!(flows.turn(7, 2, 1_074, &BOUNDS), NEW);
        assert_eq!(flows.turn(7, 1, 1_075, &BOUNDS), Turn::Pinged);
    }

    #[test]
    fn what_need_not_answer_is_never_lost() {
        let bounds = Bounds {
            must_answer: false,
            ..BOUNDS
        };
        let mut flows = Reachability::new();
        assert_eq!(flows.turn(7, 1, 1_000, &bounds), NEW);
        flows.answer(7);
        for n in 1..10 {
            assert_eq!(flows.turn(7, 1, 1_000 + 25 * n, &bounds), AGAIN);
        }
        assert_eq!(flows.reach(7), Some(Reach::Answered));
        // What was missed before does not count, and a lost one must answer to be back.
        let mut flows = Reachability::new();
        turns(&mut flows, 1_000, &[true, false, false, false]);
        assert_eq!(flows.turn(7, 1, 1_100, &bounds), AGAIN);
        turns(&mut flows, 2_000, &[true, false, false, false, false]);
        assert_eq!(
            (flows.reach(7), flows.turn(7, 1, 2_200, &bounds)),
            (Some(Reach::Lost), LOST)
        );
    }

    #[test]
    fn what_is_not_pinged_any_more_is_forgotten() {
        let mut flows = Reachability::new();
        turns(&mut flows, 1_000, &[true, false, false, false, false]);
        flows.turn(8, 1, 1_200, &BOUNDS);
        flows.forget(1_200);
        assert_eq!((flows.len(), flows.lost(), flows.reach(7)), (1, 0, None));
        flows.forget(1_201);
        assert!(flows.is_empty());
        assert!(!flows.answer(8) && flows.is_empty());
    }

    proptest! {
        /// The count of lost flows is that of the flows that are lost, whatever happens.
        #[test]
        fn lost_flows_are_counted(steps in prop::collection::vec((0u8..5, 0u64..4), 0..200)) {
            let mut flows = Reachability::new();
            let mut now = 1_000;
            for (step, key) in steps {
                match step {
                    0 => { flows.answer(key); }
                    1 => { flows.register(key); }
                    2 => flows.forget(now - 100),
                    _ => { flows.turn(key, 1, now, &BOUNDS); }
                }
                now += 13;
                let lost: BTreeSet<u64> = (0..4).filter(|key| flows.reach(*key) == Some(Reach::Lost)).collect();
                prop_assert_eq!(flows.lost(), lost.len());
            }
        }
    }
}
