//! The network between the nodes: each directed link loses, duplicates, delays and reorders
//! by chance of its own.

use std::collections::BTreeMap;

use crate::clock::Micros;
use crate::node::NodeId;
use crate::rng::Rng;

/// How one directed link treats datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Copies lost, of a thousand.
    pub loss: u32,
    /// Datagrams sent twice by the network, of a thousand.
    pub duplication: u32,
    /// Shortest and longest time on the way; each copy draws its own.
    pub delay: (Micros, Micros),
    /// Whether a copy may overtake an earlier one.
    pub reorder: bool,
}

impl Link {
    /// Loses nothing, in order, one millisecond.
    pub const PERFECT: Self = Self {
        loss: 0,
        duplication: 0,
        delay: (1_000, 1_000),
        reorder: false,
    };
}

/// All links.
#[derive(Debug)]
pub struct Net {
    links: BTreeMap<(NodeId, NodeId), Link>,
    last_arrival: BTreeMap<(NodeId, NodeId), Micros>,
    healed: bool,
    rng: Rng,
}

impl Net {
    /// A network of these links; where none is given a link is perfect.
    pub fn new(links: BTreeMap<(NodeId, NodeId), Link>, rng: Rng) -> Self {
        Self {
            links,
            last_arrival: BTreeMap::new(),
            healed: false,
            rng,
        }
    }

    /// From now on every link is perfect.
    pub fn heal(&mut self) {
        self.healed = true;
    }

    /// Whether faults are over.
    pub fn is_healed(&self) -> bool {
        self.healed
    }

    /// When the copies of a datagram arrive; none: it was lost.
    pub fn carry(&mut self, now: Micros, from: NodeId, to: NodeId) -> Vec<Micros> {
        let link = match self.links.get(&(from, to)) {
            Some(link) if !self.healed => *link,
            _ => Link::PERFECT,
        };
        let copies = 1 + usize::from(self.rng.chance(link.duplication));
        let mut arrivals = Vec::with_capacity(copies);
        for _ in 0..copies {
            let at = now + self.rng.between(link.delay.0, link.delay.1);
            if self.rng.chance(link.loss) {
                continue;
            }
            let last = self.last_arrival.entry((from, to)).or_default();
            let at = if link.reorder { at } else { at.max(*last) };
            *last = at.max(*last);
            arrivals.push(at);
        }
        arrivals.sort_unstable();
        arrivals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(link: Link) -> Net {
        Net::new(BTreeMap::from([((0, 1), link)]), Rng::new(7))
    }

    #[test]
    fn loss_and_duplication_come_at_their_rates() {
        let mut net = net(Link {
            loss: 300,
            duplication: 200,
            ..Link::PERFECT
        });
        let copies: Vec<usize> = (0..10_000).map(|i| net.carry(i, 0, 1).len()).collect();
        // None arrives: lost once and not doubled, or doubled and both lost.
        let none = copies.iter().filter(|n| **n == 0).count();
        let two = copies.iter().filter(|n| **n == 2).count();
        assert!((2_450..2_700).contains(&none), "{none}");
        assert!((900..1_060).contains(&two), "{two}");
        assert_eq!(net.carry(0, 1, 0).len(), 1);
    }

    #[test]
    fn order_is_kept_where_the_link_keeps_it() {
        let arrivals = |reorder| {
            let mut net = net(Link {
                delay: (0, 100),
                reorder,
                ..Link::PERFECT
            });
            (0..200).flat_map(|i| net.carry(i, 0, 1)).collect::<Vec<_>>()
        };
        assert!(arrivals(false).is_sorted());
        assert!(!arrivals(true).is_sorted());
    }

    #[test]
    fn a_healed_network_loses_nothing() {
        let mut net = net(Link {
            loss: 1000,
            ..Link::PERFECT
        });
        assert!(net.carry(0, 0, 1).is_empty());
        net.heal();
        assert_eq!(net.carry(5, 0, 1), [1_005]);
    }
}
