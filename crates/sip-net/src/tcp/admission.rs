//! Admission: connections per source, and the turns of TLS handshakes.
//!
//! A handshake costs as much as a hundred messages. When all clients come at once, say after a restart,
//! established traffic is served first. Each turn of the loop takes a bounded number of handshake steps; the
//! other handshakes wait in the order in which they came. Handshakes that have their costly part behind them
//! go before most others. Otherwise, if more clients came than can be served within the handshake's time-out,
//! all would have that part done and none would finish. But one step in four goes to a fresh handshake. A
//! handshake that needs many steps to finish waits with the fresh ones, so a client that sends its end byte
//! by byte holds up no other. A client that gives up while it waits is noticed by its closing, and costs
//! nothing.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use sip_core::admission::Source;
use sip_core::id::ConnId;

/// Connections that each source has open.
#[derive(Debug, Default)]
pub(super) struct PerAddress {
    counts: HashMap<Source, usize>,
}

impl PerAddress {
    /// Counts a connection of `ip`, unless `ip` has `limit` connections already (0: any number). Returns
    /// whether it was counted.
    pub(super) fn add(&mut self, ip: IpAddr, limit: usize) -> bool {
        if limit == 0 {
            return true;
        }
        let count = self.counts.entry(Source::of(ip)).or_default();
        if *count >= limit {
            return false;
        }
        *count += 1;
        true
    }

    /// Whether `ip` may open another connection.
    pub(super) fn has_room(&self, ip: IpAddr, limit: usize) -> bool {
        limit == 0
            || self
                .counts
                .get(&Source::of(ip))
                .is_none_or(|count| *count < limit)
    }

    /// Whether `ip` may have a connection open. Always true if `limit` is 0: nothing is counted then.
    pub(super) fn may_have(&self, ip: IpAddr, limit: usize) -> bool {
        limit == 0 || self.counts.contains_key(&Source::of(ip))
    }

    /// Uncounts a connection of `ip` that has ended.
    pub(super) fn remove(&mut self, ip: IpAddr) {
        if let Entry::Occupied(mut entry) = self.counts.entry(Source::of(ip)) {
            *entry.get_mut() = entry.get().saturating_sub(1);
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

/// The queues of TLS handshakes that wait for a step, and the budget of this turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Steps left in this turn of the loop.
    left: usize,
    /// Nanoseconds left for handshakes in this turn of the loop.
    left_ns: u64,
    /// Handshakes past their costly part: the peer's first flight was answered, or ours was sent.
    begun: VecDeque<ConnId>,
    fresh: VecDeque<ConnId>,
    /// Steps given to `begun` in a row while `fresh` had one waiting.
    in_a_row: u8,
}

/// Nanoseconds for handshakes in one turn of the loop. A step that has begun is completed. Other traffic
/// waits for this long.
const TIME_NS: u64 = 250_000;

/// Steps for handshakes that have begun, for each step of a fresh one.
const BEGUN_IN_A_ROW: u8 = 3;

/// Steps for which a handshake that has begun goes first. More than its flight has records, each of which may
/// arrive alone.
pub(super) const GOES_FIRST: u8 = 4;

impl Turns {
    /// Begins a turn of the loop with this many steps.
    pub(super) fn begin(&mut self, steps: usize) {
        self.left = steps.max(1);
        self.left_ns = TIME_NS;
    }

    /// Deducts the time of a step. A step with an RSA key takes ten times as long as one with another key.
    pub(super) fn spend(&mut self, ns: u64) {
        self.left_ns = self.left_ns.saturating_sub(ns);
        if self.left_ns == 0 {
            self.left = 0;
        }
    }

    /// Takes a step, if one is left.
    pub(super) fn take(&mut self) -> bool {
        let taken = self.left > 0;
        self.left = self.left.saturating_sub(1);
        taken
    }

    /// Queues a handshake: with those that have begun if `goes_first`, else with the fresh ones.
    pub(super) fn wait(&mut self, id: ConnId, goes_first: bool) {
        if goes_first {
            self.begun.push_back(id);
        } else {
            self.fresh.push_back(id);
        }
    }

    /// The next waiting handshake, if a step is left for it. The caller then takes the step.
    pub(super) fn next(&mut self) -> Option<ConnId> {
        if self.left == 0 {
            return None;
        }
        let others = !self.fresh.is_empty();
        if others && (self.begun.is_empty() || self.in_a_row >= BEGUN_IN_A_ROW) {
            self.in_a_row = 0;
            return self.fresh.pop_front();
        }
        self.in_a_row = if others { self.in_a_row + 1 } else { 0 };
        self.begun.pop_front()
    }

    /// Number of waiting handshakes. Some of their connections may have ended.
    pub(super) fn waiting(&self) -> usize {
        self.begun.len() + self.fresh.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sip_core::id::WorkerId;

    #[test]
    fn a_begun_handshake_goes_before_a_new_one() {
        let id = |slot| ConnId {
            worker: WorkerId(0),
            slot,
            generation: 1,
        };
        let mut turns = Turns::default();
        for (slot, has_begun) in [(1, false), (2, true), (3, false), (4, true)] {
            turns.wait(id(slot), has_begun);
        }
        assert_eq!((turns.next(), turns.waiting()), (None, 4), "no turn has begun");
        let mut order = Vec::new();
        for _ in 0..2 {
            turns.begin(2);
            while let Some(next) = turns.next() {
                assert!(turns.take());
                order.push(next.slot);
            }
            assert!(!turns.take());
        }
        assert_eq!((order, turns.waiting()), (vec![2, 4, 1, 3], 0));
    }

    #[test]
    fn an_endless_handshake_holds_up_no_other() {
        let id = |slot| ConnId {
            worker: WorkerId(0),
            slot,
            generation: 1,
        };
        let mut turns = Turns::default();
        // Those below 50 send the end of their handshake byte by byte.
        (0..50).for_each(|slot| turns.wait(id(slot), true));
        (50..60).for_each(|slot| turns.wait(id(slot), false));
        let mut served = Vec::new();
        for step in 0..40 {
            turns.begin(1);
            let next = turns.next().unwrap();
            assert!(turns.take());
            if next.slot < 50 {
                turns.wait(next, true);
            } else {
                served.push((step, next.slot));
            }
        }
        let expected: Vec<_> = (0..10).map(|number| (number * 4 + 3, number + 50)).collect();
        assert_eq!(served, expected);
        turns.begin(1);
        assert!(turns.next().is_some(), "nobody else waits: no step is wasted");
    }

    #[test]
    fn costly_steps_are_fewer() {
        let mut turns = Turns::default();
        let mut steps = |ns| {
            turns.begin(8);
            let mut steps = 0;
            while turns.take() {
                turns.spend(ns);
                steps += 1;
            }
            steps
        };
        assert_eq!(steps(30_000), 8);
        assert_eq!(steps(100_000), 3);
        assert_eq!(steps(5_000_000), 1, "one at least");
    }

    #[test]
    fn an_address_has_so_many_and_a_network_of_64_bits_is_one() {
        let mut per_address = PerAddress::default();
        let [a, b] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap());
        assert!(per_address.add(a, 2) && per_address.add(a, 2));
        assert!(!per_address.add(a, 2));
        assert!(per_address.add(b, 2));
        assert!(!per_address.has_room(a, 2) && per_address.has_room(b, 2) && per_address.has_room(a, 0));
        per_address.remove(a);
        assert!(per_address.add(a, 2) && !per_address.add(a, 2));
        let [c, d, e] = ["2001:db8::1", "2001:db8::2:0:0:1", "2001:db8:0:1::1"].map(|ip| ip.parse().unwrap());
        assert!(per_address.add(c, 1) && !per_address.add(d, 1) && per_address.add(e, 1));
        for ip in [a, a, b, d, e] {
            per_address.remove(ip);
        }
        assert!(per_address.counts.is_empty(), "what has ended takes no room");
        // One IPv4 address in two notations, and two addresses behind a translator.
        let [f, g, h] =
            ["::ffff:192.0.2.1", "64:ff9b::192.0.2.1", "64:ff9b::192.0.2.2"].map(|ip| ip.parse().unwrap());
        assert!(per_address.add(a, 1) && !per_address.add(f, 1) && !per_address.add(g, 1));
        assert!(per_address.add(h, 1));
        assert!((0..100).all(|_| per_address.add(a, 0)));
    }
}
