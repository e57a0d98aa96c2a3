//! The state of pings of phones behind NATs ([`crate::proxy::ping`]): this worker's round, and which flows are lost.

use alloc::vec::Vec;
use core::ops::Range;

use super::Engine;
use crate::location::reachability::Reach;
use crate::time::Instant;
use crate::transport::{Flow, Transport};

/// A worker's round through its share of the bindings.
#[derive(Debug, Default)]
pub(crate) struct Round {
    pub(crate) began: Option<Instant>,
    /// The time of its last step.
    pub(crate) stepped: Option<Instant>,
    /// The places looked at.
    pub(crate) looked: u32,
    /// Where it goes on; `None`: it is through.
    pub(crate) at: Option<(u32, u32)>,
    /// Contacts whose turn it is. The memory is used again.
    pub(crate) found: Vec<Found>,
    /// Their texts.
    pub(crate) texts: Vec<u8>,
}

/// A contact whose turn it is.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) flow: Flow,
    pub(crate) aor: Range<usize>,
    pub(crate) contact: Range<usize>,
}

impl Engine {
    /// Whether pings have found that nothing answers where a binding was made.
    pub(crate) fn is_flow_lost(&self, flow: &Flow) -> bool {
        let mut is_lost = false;
        if flow.transport == Transport::Udp && self.config.pings.is_some() && self.shared.has_lost_flows() {
            self.shared.reachability(flow, &mut |flows, key| {
                is_lost = flows.reach(key) == Some(Reach::Lost);
            });
        }
        is_lost
    }
}
