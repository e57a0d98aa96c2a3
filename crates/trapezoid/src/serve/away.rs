//! Failed next hops: the log line when one responds again.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use sip_core::event::Event;

/// Most remembered next hops. Beyond it, the one that failed longest ago is forgotten, and its return has no
/// log line.
const MOST: usize = 256;

/// Next hops whose failure was logged, and whose return was not. All workers have clones of one value, so
/// that a return has one line, although each worker sees it. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Away(Arc<Mutex<VecDeque<SocketAddr>>>);

impl Away {
    /// Logs a failure, and the return after one.
    pub(crate) fn see(&self, event: &Event) {
        if let Event::NextHopFailed {
            destination,
            timed_out,
            is_contact,
        } = event
        {
            if !is_contact {
                self.note(*destination);
            }
            let cause = if *timed_out { "no response" } else { "unreachable" };
            tracing::warn!(%destination, cause, "next hop failed");
        }
        if let Event::NextHopReturned { destination } = event
            && self.forget(*destination)
        {
            tracing::info!(%destination, "next hop responds again");
        }
    }

    fn note(&self, address: SocketAddr) {
        let mut away = self.0.lock();
        away.retain(|known| *known != address);
        if away.len() >= MOST {
            away.pop_front();
        }
        away.push_back(address);
    }

    /// Removes a next hop. Returns whether it was remembered.
    fn forget(&self, address: SocketAddr) -> bool {
        let mut away = self.0.lock();
        let before = away.len();
        away.retain(|known| *known != address);
        away.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_at_the_bound() {
        let away = Away::default();
        let address = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        (0..300).for_each(|port| away.note(address(port)));
        assert_eq!(away.0.lock().len(), MOST);
        assert!(!away.forget(address(43)) && away.forget(address(44)) && !away.forget(address(44)));
    }
}
