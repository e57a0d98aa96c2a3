//! Flawed responses: one line in the log for each peer and cause, once an hour.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sip_core::event::Event;

/// Time after a log line in which no other follows for the same peer and cause.
pub(super) const SILENCE: Duration = Duration::from_secs(3600);

/// Most remembered peers and causes. Beyond it, lines wait until one is forgotten.
const MOST: usize = 1024;

/// The log lines of the last hour, by peer and cause. All workers have clones of one value. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flaws(Arc<Mutex<Said>>);

type Said = HashMap<(IpAddr, &'static str, bool), (Instant, u64)>;

impl Flaws {
    /// Logs a flawed response, if a line is due.
    pub(crate) fn see(&self, event: &Event) {
        self.see_at(event, Instant::now());
    }

    /// Logs a flawed response at this time, if a line is due.
    pub(super) fn see_at(&self, event: &Event, now: Instant) {
        let Event::ResponseFlawed {
            source,
            call_id,
            flaw,
            mended,
        } = event
        else {
            return;
        };
        let mut said = self.0.lock();
        let Some(since) = note(&mut said, (source.ip(), flaw, *mended), now) else {
            return;
        };
        drop(said);
        let call_id = String::from_utf8_lossy(call_id);
        if *mended {
            tracing::info!(
                peer = %source, flaw, call_id = &*call_id, since,
                "responses of a peer have a flaw; they go on mended"
            );
        } else {
            tracing::warn!(
                peer = %source, flaw, call_id = &*call_id, since,
                "responses of a peer cannot be passed on; their requests fail"
            );
        }
    }
}

/// Counts a flaw. `Some` if a line is due, with the number of flaws since the last line, including this one.
fn note(said: &mut Said, key: (IpAddr, &'static str, bool), now: Instant) -> Option<u64> {
    if let Some((at, count)) = said.get_mut(&key) {
        *count += 1;
        if now.duration_since(*at) < SILENCE {
            return None;
        }
        *at = now;
        return Some(core::mem::take(count));
    }
    if said.len() >= MOST {
        said.retain(|_, (at, _)| now.duration_since(*at) < SILENCE);
    }
    if said.len() >= MOST {
        return None;
    }
    said.insert(key, (now, 0));
    Some(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(last: u32) -> (IpAddr, &'static str, bool) {
        (IpAddr::V4(last.into()), "Malformed To", true)
    }

    #[test]
    fn a_peer_and_cause_have_one_line_an_hour() {
        let (mut said, start) = (Said::new(), Instant::now());
        assert_eq!(note(&mut said, key(1), start), Some(1));
        assert_eq!(note(&mut said, key(1), start + SILENCE / 2), None);
        assert_eq!(note(&mut said, key(2), start), Some(1));
        let other = (key(1).0, "Malformed From", true);
        assert_eq!(note(&mut said, other, start), Some(1));
        assert_eq!(note(&mut said, key(1), start + SILENCE), Some(2));
        assert_eq!(note(&mut said, key(1), start + SILENCE), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut said, start) = (Said::new(), Instant::now());
        let most = u32::try_from(MOST).expect("a small number");
        let lines = |said: &mut Said, keys: std::ops::Range<u32>, at| {
            keys.filter(|n| note(said, key(*n), at).is_some()).count()
        };
        assert_eq!(lines(&mut said, 0..2 * most, start), MOST);
        assert_eq!(said.len(), MOST);
        assert_eq!(lines(&mut said, 2 * most..3 * most, start + SILENCE), MOST);
    }
}
