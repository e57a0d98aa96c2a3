//! Episodes of overload: a log line when the first new call or registration is dropped, and one when none has been for
//! a while.

use std::time::{Duration, Instant};

use sip_net::counters::NetCounters;

/// Time without a drop after which an episode has ended.
const QUIET: Duration = Duration::from_secs(10);

/// Datagrams that the kernel dropped because a queue of new work was full, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dropped {
    calls: u64,
    requests: u64,
}

impl Dropped {
    /// Those of all workers.
    pub(super) fn of(workers: impl Iterator<Item = NetCounters>) -> Self {
        workers.fold(Self::default(), |sum, net| Self {
            calls: sum.calls + net.udp_calls_dropped,
            requests: sum.requests + net.udp_requests_dropped,
        })
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            calls: self.calls - earlier.calls,
            requests: self.requests - earlier.requests,
        }
    }
}

/// The present episode, if there is one.
#[derive(Debug, Default)]
pub(super) struct Overload {
    seen: Dropped,
    episode: Option<Episode>,
}

#[derive(Clone, Copy, Debug)]
struct Episode {
    began: Instant,
    last_drop: Instant,
    before: Dropped,
}

/// What is to be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Began(Dropped),
    Ended(Duration, Dropped),
}

impl Overload {
    /// Logs the begin or the end of an episode. To be called each second.
    pub(super) fn see(&mut self, dropped: Dropped, now: Instant) {
        match self.note(dropped, now) {
            Some(Line::Began(Dropped { calls, requests })) => tracing::warn!(
                calls,
                requests,
                "more new calls and registrations come by UDP than can be served, and the kernel drops some of them; \
                 established calls go on (docs/overload.md)"
            ),
            Some(Line::Ended(lasted, Dropped { calls, requests })) => tracing::info!(
                for_s = lasted.as_secs(),
                calls,
                requests,
                "no new calls and registrations are dropped any more; so many datagrams were"
            ),
            None => {}
        }
    }

    fn note(&mut self, dropped: Dropped, now: Instant) -> Option<Line> {
        let before = std::mem::replace(&mut self.seen, dropped);
        let is_dropping = dropped != before;
        match &mut self.episode {
            None if is_dropping => {
                self.episode = Some(Episode {
                    began: now,
                    last_drop: now,
                    before,
                });
                Some(Line::Began(dropped.since(before)))
            }
            None => None,
            Some(episode) if is_dropping => {
                episode.last_drop = now;
                None
            }
            Some(episode) => {
                let Episode {
                    began,
                    last_drop,
                    before,
                } = *episode;
                if now.duration_since(last_drop) < QUIET {
                    return None;
                }
                self.episode = None;
                Some(Line::Ended(
                    last_drop.duration_since(began),
                    dropped.since(before),
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dropped(calls: u64, requests: u64) -> Dropped {
        Dropped { calls, requests }
    }

    #[test]
    fn an_episode_has_two_lines() {
        let mut overload = Overload::default();
        let start = Instant::now();
        let mut lines = Vec::new();
        // Calls from 3 to 5 s, registrations at 9 s; then nothing, until calls again.
        for second in 0..40 {
            let totals = match second {
                0..3 => dropped(0, 0),
                3..5 => dropped(10 * (second - 2), 0),
                5..9 => dropped(20, 0),
                9..35 => dropped(20, 7),
                _ => dropped(21, 7),
            };
            let line = overload.note(totals, start + Duration::from_secs(second));
            lines.extend(line.map(|line| (second, line)));
        }
        assert_eq!(
            lines,
            [
                (3, Line::Began(dropped(10, 0))),
                (19, Line::Ended(Duration::from_secs(6), dropped(20, 7))),
                (35, Line::Began(dropped(1, 0))),
            ]
        );
    }

    #[test]
    fn what_all_workers_dropped_is_counted() {
        let net = |calls, requests| NetCounters {
            udp_calls_dropped: calls,
            udp_requests_dropped: requests,
            udp_kernel_drops: 100,
            ..NetCounters::default()
        };
        assert_eq!(Dropped::of([net(1, 2), net(3, 4)].into_iter()), dropped(4, 6));
    }
}
