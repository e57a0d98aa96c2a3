//! The network between the nodes: the fate of each datagram and of each piece of a connection.
//!
//! Every decision is drawn from a random generator of its own, keyed by the seed, the link and the number of
//! the message on it. If a call or a fault is taken out of a scenario, the fate of messages on other links
//! stays as it was. So a failure can be made smaller.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::node::{NodeId, Wire};
use super::scenario::LinkPlan;
use crate::clock::{MS, Micros, SECOND};
use crate::rng::Rng;

/// Time without acknowledgement after which TCP gives up.
pub(super) const USER_TIMEOUT: Micros = 30 * SECOND;

/// A partition: nothing passes between two nodes.
#[derive(Clone, Copy, Debug)]
struct Partition {
    between: (NodeId, NodeId),
    until: Micros,
}

/// All links.
#[derive(Debug)]
pub struct Fabric {
    seed: u64,
    links: BTreeMap<(NodeId, NodeId), LinkPlan>,
    /// Number of datagrams sent on each link so far, and the latest arrival.
    sent: BTreeMap<(NodeId, NodeId), (u64, Micros)>,
    partitions: Vec<Partition>,
    healed: bool,
}

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// The node of this end.
    pub node: NodeId,
    /// The address of this end.
    pub address: SocketAddr,
    /// Whether this end is closed: it takes and sends no more.
    pub closed: bool,
    /// When the last bytes sent to this end arrive.
    last: Micros,
}

/// A connection.
#[derive(Clone, Copy, Debug)]
pub struct Pipe {
    /// The end that opened the connection, then the other.
    pub ends: [End; 2],
    pieces: u64,
}

impl Pipe {
    /// A connection from the first end to the second, of which neither knows yet.
    pub fn new(ends: [(NodeId, SocketAddr); 2], now: Micros) -> Self {
        Self {
            ends: ends.map(|(node, address)| End {
                node,
                address,
                closed: false,
                last: now,
            }),
            pieces: 0,
        }
    }

    /// Index of the end of a node; for a node connected with itself, the end that opened the connection.
    pub fn side_of(&self, node: NodeId) -> usize {
        usize::from(self.ends[0].node != node)
    }

    /// Whether both ends are closed.
    pub fn is_over(&self) -> bool {
        self.ends.iter().all(|end| end.closed)
    }
}

/// Fate of bytes on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carried {
    /// The bytes arrive in these pieces: when, and how many.
    Pieces(Vec<(Micros, usize)>),
    /// The bytes are not acknowledged: both ends give up at this time.
    GivenUp(Micros),
}

fn mix(parts: [u64; 4]) -> u64 {
    parts.iter().fold(0x9e37_79b9_7f4a_7c15, |hash, part| {
        let mixed = (hash ^ part).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 29)
    })
}

impl Fabric {
    /// A network of these links; a link without a plan is perfect.
    pub fn new(seed: u64, links: &[LinkPlan]) -> Self {
        Self {
            seed,
            links: links.iter().map(|link| ((link.from, link.to), *link)).collect(),
            sent: BTreeMap::new(),
            partitions: Vec::new(),
            healed: false,
        }
    }

    /// Makes every link perfect from now on.
    pub fn heal(&mut self) {
        self.healed = true;
        self.partitions.clear();
    }

    /// Whether faults are over.
    pub const fn is_healed(&self) -> bool {
        self.healed
    }

    /// Parts two nodes until `until`.
    pub fn part(&mut self, between: (NodeId, NodeId), until: Micros) {
        self.partitions.push(Partition { between, until });
    }

    /// Until when two nodes are parted; `None` if they are not.
    fn parted_until(&self, now: Micros, a: NodeId, b: NodeId) -> Option<Micros> {
        let between = |p: &&Partition| p.between == (a, b) || p.between == (b, a);
        let open = self.partitions.iter().filter(between).map(|p| p.until);
        open.filter(|until| *until > now).max()
    }

    /// Whether two nodes are parted now.
    pub fn is_parted(&self, now: Micros, a: NodeId, b: NodeId) -> bool {
        self.parted_until(now, a, b).is_some()
    }

    fn link(&self, from: NodeId, to: NodeId) -> LinkPlan {
        let perfect = LinkPlan {
            from,
            to,
            loss: 0,
            duplication: 0,
            delay: MS,
            reorder: false,
        };
        match self.links.get(&(from, to)) {
            Some(link) if !self.healed => *link,
            _ => perfect,
        }
    }

    /// When the copies of a datagram arrive; empty if it is lost.
    pub fn carry(&mut self, now: Micros, from: NodeId, to: NodeId) -> Vec<Micros> {
        let parted = self.is_parted(now, from, to);
        let link = self.link(from, to);
        let (number, last) = self.sent.entry((from, to)).or_default();
        *number += 1;
        let mut rng = Rng::new(mix([self.seed, from as u64, to as u64, *number]));
        let copies = 1 + usize::from(rng.chance(link.duplication));
        let mut arrivals = Vec::with_capacity(copies);
        for _ in 0..copies {
            let at = now + rng.between(link.delay.min(100), link.delay);
            if rng.chance(link.loss) || parted {
                continue;
            }
            let at = if link.reorder { at } else { at.max(*last) };
            *last = at.max(*last);
            arrivals.push(at);
        }
        arrivals.sort_unstable();
        arrivals
    }

    /// Time of something small on a link, by the number of the connection.
    pub fn hop(&self, from: NodeId, to: NodeId, wire: Wire, number: u64) -> Micros {
        let link = self.link(from, to);
        let mut rng = Rng::new(mix([self.seed, 1 << 40 | u64::from(wire.0), from as u64, number]));
        rng.between(link.delay.min(100), link.delay)
    }

    /// Fate of `len` bytes that the end `side` sends. TCP hides loss, but not time.
    pub fn pipe(&self, now: Micros, wire: Wire, pipe: &mut Pipe, side: usize, len: usize) -> Carried {
        let (from, to) = (pipe.ends[side].node, pipe.ends[1 - side].node);
        pipe.pieces += 1;
        let mut rng = Rng::new(mix([
            self.seed,
            1 << 41 | u64::from(wire.0),
            side as u64,
            pipe.pieces,
        ]));
        let link = self.link(from, to);
        let mut start = now;
        if let Some(until) = self.parted_until(now, from, to) {
            if until > now + USER_TIMEOUT {
                return Carried::GivenUp(now + USER_TIMEOUT);
            }
            start = until;
        }
        // Lost bytes are sent again a round trip later at best.
        let again = if rng.chance(link.loss) { 200 * MS } else { 0 };
        let cut = if len > 1 && rng.chance(300) {
            rng.between(1, len as u64 - 1) as usize
        } else {
            len
        };
        let end = &mut pipe.ends[1 - side];
        let mut pieces = Vec::with_capacity(2);
        for piece in [cut, len - cut] {
            if piece == 0 {
                continue;
            }
            let at = start + again + rng.between(link.delay.min(100), link.delay);
            end.last = end.last.max(at);
            pieces.push((end.last, piece));
        }
        Carried::Pieces(pieces)
    }

    /// When the other end learns that `side` has closed.
    pub fn close(&self, now: Micros, wire: Wire, pipe: &mut Pipe, side: usize) -> Micros {
        let (from, to) = (pipe.ends[side].node, pipe.ends[1 - side].node);
        pipe.pieces += 1;
        let start = self
            .parted_until(now, from, to)
            .unwrap_or(now)
            .min(now + USER_TIMEOUT);
        let at = start + self.hop(from, to, wire, pipe.pieces);
        let end = &mut pipe.ends[1 - side];
        end.last = end.last.max(at);
        end.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lossy(loss: u32, duplication: u32) -> LinkPlan {
        LinkPlan {
            from: 0,
            to: 1,
            loss,
            duplication,
            delay: 5 * MS,
            reorder: true,
        }
    }

    #[test]
    fn loss_and_duplication_come_at_their_rates() {
        let mut fabric = Fabric::new(7, &[lossy(300, 200)]);
        let copies: Vec<usize> = (0..10_000).map(|at| fabric.carry(at, 0, 1).len()).collect();
        let none = copies.iter().filter(|n| **n == 0).count();
        let two = copies.iter().filter(|n| **n == 2).count();
        assert!((2_400..2_750).contains(&none), "{none}");
        assert!((880..1_090).contains(&two), "{two}");
        // A link without a plan loses nothing.
        let [at] = fabric.carry(0, 1, 0)[..] else {
            panic!("one copy")
        };
        assert!(at <= MS, "{at}");
    }

    /// The fate of a message does not depend on messages on other links.
    #[test]
    fn links_draw_apart() {
        let alone: Vec<_> = {
            let mut fabric = Fabric::new(7, &[lossy(300, 200)]);
            (0..50).map(|at| fabric.carry(at, 0, 1)).collect()
        };
        let mut fabric = Fabric::new(7, &[lossy(300, 200)]);
        let among: Vec<_> = (0..50)
            .map(|at| {
                let _ = fabric.carry(at, 1, 0);
                fabric.carry(at, 0, 1)
            })
            .collect();
        assert_eq!(alone, among);
    }

    #[test]
    fn a_partition_holds_connections_up_and_drops_datagrams() {
        let address = |n: u8| SocketAddr::from(([192, 0, 2, n], 5060));
        let mut fabric = Fabric::new(1, &[]);
        fabric.part((1, 0), 10 * SECOND);
        assert!(fabric.carry(0, 0, 1).is_empty());
        let mut pipe = Pipe::new([(0, address(1)), (1, address(2))], 0);
        let Carried::Pieces(pieces) = fabric.pipe(0, Wire(1), &mut pipe, 0, 100) else {
            panic!("ten seconds are not enough to give up")
        };
        assert!(pieces.iter().all(|(at, _)| *at > 10 * SECOND), "{pieces:?}");
        assert_eq!(pieces.iter().map(|(_, len)| len).sum::<usize>(), 100);
        fabric.part((0, 1), 100 * SECOND);
        assert_eq!(
            fabric.pipe(0, Wire(1), &mut pipe, 0, 100),
            Carried::GivenUp(USER_TIMEOUT)
        );
        fabric.heal();
        assert_eq!(fabric.carry(5, 0, 1).len(), 1);
    }
}
