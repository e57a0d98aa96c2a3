//! Groups of next hops (Kamailio's dispatcher): the order in which a request tries the members.

pub mod health;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use smallvec::SmallVec;

use crate::transport::NextHop;
pub use health::{Health, MarkPolicy, MemberState};

/// The distribution of calls among members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// One after the other.
    RoundRobin,
    /// At random, by weight.
    Weighted,
    /// By Call-ID and weight: a Call-ID always leads to the same member while that is up.
    CallId,
    /// To the member with the fewest requests without a final response, by weight. Each worker counts its own
    /// requests.
    LeastLoad,
    /// To the member of the lowest `priority` that is up; equals take turns.
    Priority,
}

/// A number that one worker keeps for itself: a copy of the number starts anew.
#[derive(Debug, Default)]
pub struct Local(AtomicU32);

impl Clone for Local {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Local {
    fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }

    /// Adds one. Returns the number before.
    fn up(&self) -> u32 {
        let was = self.get();
        self.0.store(was.wrapping_add(1), Relaxed);
        was
    }

    fn down(&self) {
        self.0.store(self.get().saturating_sub(1), Relaxed);
    }
}

/// A member of a group.
#[derive(Clone, Debug)]
pub struct Member {
    /// The next hop of the member.
    pub hop: NextHop,
    /// The share of the member, 1 to 1,000; 0: none, the member is drained.
    pub weight: u16,
    /// The priority, lower ones first, for [`Distribution::Priority`].
    pub priority: u16,
    /// The health, shared by all workers.
    pub health: Arc<Health>,
    /// Requests that this worker sent to the member and that have no final response yet.
    pub load: Local,
}

impl Member {
    /// A member that is up.
    pub fn new(hop: NextHop, weight: u16, priority: u16) -> Self {
        Self {
            hop,
            weight,
            priority,
            health: Arc::default(),
            load: Local::default(),
        }
    }

    /// State of the member as the operator sees it.
    pub fn state(&self, now_unix_ms: u64) -> MemberState {
        match self.weight {
            0 => MemberState::Drained,
            _ => self.health.state(now_unix_ms),
        }
    }

    /// Notes that a request went to the member.
    pub(crate) fn begin(&self) {
        self.load.up();
    }

    /// Notes that a request to the member is done.
    pub(crate) fn end(&self) {
        self.load.down();
    }
}

/// A set of next hops that stand for each other.
#[derive(Clone, Debug)]
pub struct Group {
    /// Name in the configuration.
    pub name: Box<[u8]>,
    /// The distribution of calls among members.
    pub algorithm: Distribution,
    /// The members of the group; at most [`MAX_MEMBERS`].
    pub members: Vec<Member>,
    /// Milliseconds between two OPTIONS to each member; `None`: no probes.
    pub probe_ms: Option<u32>,
    /// The conditions under which a member counts as failed.
    pub marks: MarkPolicy,
    /// Milliseconds after which a member without a response is left for the next.
    pub reply_timeout_ms: u32,
    /// Final responses of a member that send the request on to the next one. Time-outs and errors of
    /// the transport always do.
    pub failover_on: Vec<u16>,
    /// The position of round robin.
    pub cursor: Local,
}

/// The most members of a group.
pub const MAX_MEMBERS: usize = 64;

/// Numbers of members in the order in which to try them.
pub type Order = SmallVec<[u16; 8]>;

impl Group {
    /// Members that may get a call now, in the order in which to try them. `call` is a hash of the Call-ID.
    /// If `fixed` (stateless), only the Call-ID decides, so that all requests of one call and their copies
    /// get the same first member (RFC 3261 §16.11).
    pub fn order(&self, call: u64, now_unix_ms: u64, fixed: bool) -> Order {
        let mut order: Order = (0u16..)
            .zip(&self.members)
            .filter(|(_, m)| m.state(now_unix_ms) == MemberState::Up)
            .map(|(i, _)| i)
            .collect();
        let algorithm = if fixed && self.algorithm != Distribution::Priority {
            Distribution::CallId
        } else {
            self.algorithm
        };
        match algorithm {
            Distribution::RoundRobin => self.rotate(&mut order),
            Distribution::Weighted => self.by_weight(&mut order, call ^ u64::from(self.cursor.up())),
            Distribution::CallId => self.by_weight(&mut order, call),
            Distribution::LeastLoad => {
                self.rotate(&mut order);
                // The order is by load / weight, without division.
                order.sort_by(|a, b| self.load_of(*a, *b).cmp(&self.load_of(*b, *a)));
            }
            Distribution::Priority => {
                let priority = |i: &u16| self.member(*i).map(|m| m.priority);
                order.sort_by_key(priority);
                // Members of the first priority take turns, regardless of other members.
                let equals = order
                    .iter()
                    .take_while(|i| priority(i) == order.first().and_then(priority));
                let equals = equals.count();
                if !fixed && let Some(first) = order.get_mut(..equals) {
                    self.rotate(first);
                }
            }
        }
        order
    }

    /// A member by its number.
    pub fn member(&self, number: u16) -> Option<&Member> {
        self.members.get(usize::from(number))
    }

    /// The load of one, on the scale of its comparison with the other.
    fn load_of(&self, one: u16, other: u16) -> u64 {
        let load = self.member(one).map_or(0, |m| m.load.get());
        let weight = self.member(other).map_or(1, |m| m.weight.max(1));
        u64::from(load) * u64::from(weight)
    }

    /// Puts the next member first, and the others behind it as they are listed.
    fn rotate(&self, order: &mut [u16]) {
        if !order.is_empty() {
            let by = self.cursor.up() as usize % order.len();
            order.rotate_left(by);
        }
    }

    /// Orders members by rendezvous hashing with weights: each member draws a number that depends on the call
    /// and on its URI, and the largest wins. A member that goes or comes moves only its own calls.
    fn by_weight(&self, order: &mut Order, call: u64) {
        let mut draws: SmallVec<[(u64, u16); 8]> = order
            .iter()
            .map(|&i| (self.member(i).map_or(0, |m| draw(call, m)), i))
            .collect();
        draws.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        order.clear();
        order.extend(draws.into_iter().map(|(_, i)| i));
    }
}

/// The draw of a member: `uniform^(1/weight)`, of which the largest wins with a probability in proportion to
/// its weight (Efraimidis and Spirakis). As only the order counts, -log2(uniform)/weight is compared.
fn draw(call: u64, member: &Member) -> u64 {
    let seed = member.hop.uri.iter().fold(call, |h, c| mix(h ^ u64::from(*c)));
    let uniform = mix(seed) | 1;
    u64::MAX - negative_log2(uniform) / u64::from(member.weight.max(1))
}

/// The finish of SplitMix64: each bit of the result depends on each bit of the argument.
const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// -log2(x / 2^64) in units of 2^-48, without floating point: the exponent, then bit after bit of
/// the fraction by squaring.
fn negative_log2(x: u64) -> u64 {
    let exponent = u64::from(x.leading_zeros());
    let mut mantissa = u128::from(x) << exponent;
    let mut fraction = 0u64;
    for _ in 0..48 {
        mantissa = (mantissa >> 32) * (mantissa >> 32);
        // 1 ≤ m < 2 is kept as m·2^63; its square is m²·2^62.
        let bit = mantissa >> 63 != 0;
        fraction = fraction << 1 | u64::from(bit);
        if !bit {
            mantissa <<= 1;
        }
    }
    ((exponent + 1) << 48).saturating_sub(fraction)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec;

    fn group(algorithm: Distribution, weights: &[u16]) -> Group {
        let member = |(i, w): (usize, &u16)| {
            let uri = format!("sip:192.0.2.{i}");
            Member::new(NextHop::parse(uri.as_bytes()).unwrap(), *w, 0)
        };
        Group {
            name: b"g"[..].into(),
            algorithm,
            members: weights.iter().enumerate().map(member).collect(),
            probe_ms: None,
            marks: MarkPolicy {
                fail_after: 1,
                recover_after: 1,
                hold_ms: Some(1000),
            },
            reply_timeout_ms: 2000,
            failover_on: vec![503],
            cursor: Local::default(),
        }
    }

    fn first(group: &Group, call: u64) -> u16 {
        group.order(call, 0, false)[0]
    }

    #[test]
    fn round_robin_gives_each_its_turn_and_the_others_as_spares() {
        let g = group(Distribution::RoundRobin, &[1, 1, 1]);
        let orders: Vec<Order> = (0..4).map(|_| g.order(7, 0, false)).collect();
        assert_eq!(orders[0][..], [0, 1, 2]);
        assert_eq!(orders[1][..], [1, 2, 0]);
        assert_eq!(orders[2][..], [2, 0, 1]);
        assert_eq!(orders[3], orders[0]);
    }

    #[test]
    fn failed_and_drained_members_are_left_out() {
        let g = group(Distribution::RoundRobin, &[1, 1, 1]);
        g.members[0].health.set_drained(true);
        g.members[2].health.note_failure(0, &g.marks);
        assert_eq!(g.order(7, 0, false)[..], [1]);
        g.members[1].health.set_drained(true);
        assert!(g.order(7, 0, false).is_empty());
        assert_eq!(g.order(7, 1000, false)[..], [2]);
    }

    #[test]
    fn a_member_without_weight_is_drained() {
        for algorithm in [
            Distribution::RoundRobin,
            Distribution::Weighted,
            Distribution::CallId,
            Distribution::LeastLoad,
            Distribution::Priority,
        ] {
            let g = group(algorithm, &[0, 1, 0]);
            assert_eq!(g.order(7, 0, false)[..], [1], "{algorithm:?}");
            assert_eq!(g.members[0].state(0), MemberState::Drained);
        }
    }

    #[test]
    fn shares_follow_the_weights() {
        for (algorithm, fixed) in [
            (Distribution::Weighted, false),
            (Distribution::CallId, false),
            (Distribution::RoundRobin, true),
        ] {
            let g = group(algorithm, &[1, 2, 5]);
            let mut counts = [0u32; 3];
            for call in 0..8000 {
                counts[usize::from(g.order(mix(call), 0, fixed)[0])] += 1;
            }
            for (count, expected) in counts.iter().zip([1000, 2000, 5000]) {
                assert!(count.abs_diff(expected) < 200, "{algorithm:?}: {counts:?}");
            }
        }
    }

    #[test]
    fn a_call_stays_with_its_member_and_moves_only_when_that_goes() {
        let g = group(Distribution::CallId, &[1, 1, 1, 1]);
        let before: Vec<u16> = (0..1000).map(|c| first(&g, mix(c))).collect();
        g.members[2].health.set_drained(true);
        for (call, was) in (0..1000).zip(before) {
            let is = first(&g, mix(call));
            assert!(is == was || was == 2);
            assert_ne!(is, 2);
        }
    }

    #[test]
    fn the_least_loaded_by_weight_comes_first() {
        let g = group(Distribution::LeastLoad, &[1, 3]);
        for _ in 0..8 {
            let to = first(&g, 0);
            g.members[usize::from(to)].begin();
        }
        assert_eq!([g.members[0].load.get(), g.members[1].load.get()], [2, 6]);
        g.members[1].end();
        assert_eq!(first(&g, 0), 1);
        // A copy of the configuration starts with a load of its own.
        assert_eq!(g.clone().members[1].load.get(), 0);
    }

    #[test]
    fn the_lowest_priority_that_is_up_comes_first() {
        let mut g = group(Distribution::Priority, &[1, 1, 1]);
        for (member, priority) in g.members.iter_mut().zip([20, 10, 10]) {
            member.priority = priority;
        }
        assert_eq!(g.order(0, 0, true)[..], [1, 2, 0]);
        let firsts: Vec<u16> = (0..4).map(|_| first(&g, 0)).collect();
        assert!(firsts.contains(&1) && firsts.contains(&2) && !firsts.contains(&0));
        g.members[1].health.set_drained(true);
        g.members[2].health.set_drained(true);
        assert_eq!(first(&g, 0), 0);
    }

    #[test]
    fn logarithms_are_those_of_std() {
        let unit = 1u64 << 48;
        // Half of a product's bits are lost with each squaring: about 28 of them are right.
        assert!(negative_log2(u64::MAX) < 1 << 20);
        assert_eq!(negative_log2(1 << 63), unit);
        assert_eq!(negative_log2(1), 64 * unit);
        // -log2(0.75) = 0.41503749927884376
        let three_quarters = negative_log2(3 << 62);
        assert!(three_quarters.abs_diff((0.415_037_499_278_843_76 * unit as f64) as u64) < 1 << 20);
    }
}
