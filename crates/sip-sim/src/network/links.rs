//! Faults of the links of a scenario.

use serde::{Deserialize, Serialize};

use super::node::NodeId;
use crate::clock::{MS, Micros};
use crate::rng::Rng;

/// Faults of one directed link for datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkPlan {
    /// Sending node.
    pub from: NodeId,
    /// Receiving node.
    pub to: NodeId,
    /// Lost datagrams, per thousand.
    pub loss: u32,
    /// Duplicated datagrams, per thousand.
    pub duplication: u32,
    /// Longest delay, microseconds.
    pub delay: Micros,
    /// Whether a datagram may overtake another.
    pub reorder: bool,
}

/// Bounds of the faults of a scenario's links.
pub(super) struct Worst {
    pub(super) loss: u64,
    pub(super) duplication: u64,
    pub(super) delay: Micros,
}

impl Worst {
    /// A link within these bounds.
    pub(super) fn link(&self, rng: &mut Rng, from: NodeId, to: NodeId) -> LinkPlan {
        LinkPlan {
            from,
            to,
            loss: rng.between(0, self.loss) as u32,
            duplication: rng.between(0, self.duplication) as u32,
            delay: 100 + rng.between(0, self.delay),
            reorder: rng.chance(700),
        }
    }
}

/// Links from each node to each other.
pub(super) fn links(rng: &mut Rng, nodes: usize) -> Vec<LinkPlan> {
    let most = Worst {
        loss: rng.pick(&[0, 0, 50, 100, 200, 300]),
        duplication: rng.pick(&[0, 20, 100, 200]),
        delay: rng.pick(&[0, 10, 50, 300]) * MS,
    };
    let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
    pairs
        .filter(|(from, to)| from != to)
        .map(|(from, to)| most.link(rng, from, to))
        .collect()
}
