//! The number of responses to each source that went to the addresses in its Via, because its connection was
//! gone (RFC 3263 §5). The source writes sent-by. Without a bound, a source that sends many requests and
//! closes makes this server open connections, and query name service, wherever the source likes.
//!
//! The list is searched from end to end: it is used only for a response that could not be delivered. A
//! forgotten source may begin anew. Addresses cannot be forged on a connection, so that each further source
//! needs an address of its own.

use alloc::collections::VecDeque;
use core::net::IpAddr;

use crate::admission::Source;
use crate::time::Instant;

/// The most sources that are remembered.
const MOST: usize = 256;
/// Tries for one source in [`WINDOW_US`]. Enough for a proxy that fails with a few calls: three responses
/// each, at a few addresses. A busier neighbour belongs in `trust`.
pub(crate) const TRIES: u32 = 64;
/// Length of the window, from the first try; as long as a transaction lives.
const WINDOW_US: u64 = 32 * 1_000_000;

#[derive(Debug)]
struct Entry {
    source: Source,
    since: Instant,
    tries: u32,
}

/// Tries of each source; see the module.
#[derive(Debug, Default)]
pub(crate) struct ResponseFailover {
    /// The entries, the oldest first.
    entries: VecDeque<Entry>,
}

impl ResponseFailover {
    /// Whether one more response to this source may go to the addresses in its Via. Counts the response if
    /// so.
    pub(crate) fn may_try(&mut self, source: IpAddr, now: Instant) -> bool {
        let source = Source::of(source);
        let is_over = |entry: &Entry| now.micros_since(entry.since) >= WINDOW_US;
        while self.entries.front().is_some_and(is_over) {
            self.entries.pop_front();
        }
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.source == source) {
            let fits = entry.tries < TRIES;
            entry.tries += u32::from(fits);
            return fits;
        }
        if self.entries.len() >= MOST {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry {
            source,
            since: now,
            tries: 1,
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Instant {
        Instant::from_micros(s * 1_000_000)
    }

    #[test]
    fn each_source_has_its_tries_and_gets_new_ones() {
        let mut elsewhere = ResponseFailover::default();
        for _ in 0..TRIES {
            assert!(elsewhere.may_try([192, 0, 2, 1].into(), at(1)));
        }
        assert!(!elsewhere.may_try([192, 0, 2, 1].into(), at(2)));
        assert!(!elsewhere.may_try("::ffff:192.0.2.1".parse().unwrap(), at(2)));
        assert!(elsewhere.may_try([192, 0, 2, 2].into(), at(2)));
        assert!(elsewhere.may_try([192, 0, 2, 1].into(), at(33)));
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let mut elsewhere = ResponseFailover::default();
        let ip = |n: u16, last: u32| -> IpAddr { [0x2001, 0xdb8, 0, n, 0, 0, 0, last as u16].into() };
        assert!((0..TRIES).all(|last| elsewhere.may_try(ip(1, last), at(1))));
        assert!(!elsewhere.may_try(ip(1, 9999), at(1)));
        assert!(elsewhere.may_try(ip(2, 0), at(1)));
    }

    #[test]
    fn no_more_are_remembered_than_the_bound() {
        let mut elsewhere = ResponseFailover::default();
        for n in 0..2000u32 {
            assert!(elsewhere.may_try(n.to_be_bytes().into(), at(1)));
            assert!(elsewhere.entries.len() <= MOST);
        }
    }
}
