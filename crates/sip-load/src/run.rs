//! The main loop: sockets, clock and the user agents.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use sip_core::transport::Transport;
use sip_message::HeaderIndex;
use sip_net::epoll::{Epoll, EventList};

use crate::Micros;
use crate::net::{CALLED_SOCKET, CALLERS_SOCKET, Datagrams, End, LISTENER, Streams, dial, listen};
use crate::outbox::{Outbox, To};
use crate::plan::{Connections, Plan};
use crate::schedule::Schedule;
use crate::stats::{Cause, Report, Stats, Timed};
use crate::uac::{Turn, Uac};
use crate::uas::Uas;

/// Most header fields of one message.
const MAX_FIELDS: usize = 128;
/// Most calls that begin in one turn, because responses are waiting.
const BURST: usize = 64;
/// Interval at which `stop` is checked, and progress is reported.
const TICK_US: Micros = 100_000;
/// Pause before a lost connection is opened again.
const REOPEN_US: Micros = 100_000;

/// Reason for which a run cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A socket of the generator failed.
    #[error("cannot {what}: {source}")]
    Socket {
        /// The action that failed.
        what: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Certificates or keys cannot be used.
    #[error("{0}")]
    Tls(String),
    /// The plan lacks a part that it needs.
    #[error("{0}")]
    Plan(String),
}

pub(crate) fn socket(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> LoadError {
    move |source| LoadError::Socket {
        what: what.into(),
        source,
    }
}

/// Progress of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Seconds since the start.
    pub seconds: f64,
    /// Number of calls that have begun, warm-up included.
    pub begun: u64,
    /// Number of calls that succeeded.
    pub succeeded: u64,
    /// Number of calls that failed.
    pub failed: u64,
    /// Number of calls under way.
    pub under_way: usize,
}

/// Plays `plan` to its end, or until `stop` is set, and reports the results until then. Calls `progress` ten
/// times a second.
///
/// # Errors
/// [`LoadError`] if the run cannot begin, or if a socket fails. Failures of calls are no errors.
pub fn run(plan: Plan, stop: &AtomicBool, progress: impl FnMut(Progress)) -> Result<Report, LoadError> {
    Load::new(Arc::new(plan))?.play(stop, progress)
}

struct Load {
    plan: Arc<Plan>,
    epoll: Epoll,
    began: Instant,
    now: Micros,
    uac: Uac,
    uas: Option<Uas>,
    callers: Option<Datagrams>,
    called: Option<Datagrams>,
    streams: Streams,
    /// Destinations of calls: the callers' shared connections, or for datagrams the target's address.
    links: Vec<To>,
    next_link: usize,
    reopen: Vec<(Micros, u32)>,
    from_callers: Outbox,
    from_called: Outbox,
    stats: Stats,
    index: HeaderIndex,
    schedule: Schedule,
    measured: Measured,
}

/// CPU seconds and dropped datagrams of the generator, at the start and end of the window.
#[derive(Debug, Default)]
struct Measured {
    from: Option<(f64, u64)>,
    until: Option<(f64, u64)>,
}

impl Measured {
    fn total(&self) -> (f64, u64) {
        match (self.from, self.until) {
            (Some(from), Some(until)) => (until.0 - from.0, until.1.saturating_sub(from.1)),
            _ => (0.0, 0),
        }
    }
}

/// CPU seconds of this process.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

impl Load {
    fn new(plan: Arc<Plan>) -> Result<Self, LoadError> {
        let epoll = Epoll::new().map_err(socket("make an epoll instance"))?;
        let mut streams = Streams::new(dial(&plan)?, (64 * plan.t1).as_micros() as Micros);
        let (mut callers, mut links) = (None, Vec::new());
        let given = plan.local.filter(|local| !local.ip().is_unspecified());
        // Also needed if the plan's address is unspecified: Via must contain a real one.
        let own = match given {
            Some(local) => local.ip(),
            None => own_address(plan.target).map_err(socket(format!("reach {}", plan.target)))?,
        };
        let local = plan.local.unwrap_or(SocketAddr::new(own, 0));
        let name = match plan.transport {
            Transport::Udp => {
                let bound = Datagrams::bind(local, &epoll, CALLERS_SOCKET);
                let bound = bound.map_err(socket(format!("bind to {local}")))?;
                let name = SocketAddr::new(own, bound.local().port()).to_string();
                callers = Some(bound);
                links.push(To::Address(plan.target));
                name
            }
            // No peer connects to a caller: responses arrive on the connection that the caller opened.
            Transport::Tcp | Transport::Tls => {
                let port = if local.port() == 0 { 5060 } else { local.port() };
                SocketAddr::new(own, port).to_string()
            }
            // RFC 7118 §5: a name that cannot be resolved.
            Transport::Ws | Transport::Wss => format!("{:08x}.invalid", plan.run),
        };
        let (mut called, mut uas) = (None, None);
        if let Some(callee) = &plan.callee {
            let at = listen(callee, &plan, &epoll, &mut streams, &mut called)?;
            uas = Some(Uas::new(&plan, callee, at));
        }
        let micros = |duration: Duration| duration.as_micros() as Micros;
        Ok(Self {
            uac: Uac::new(Arc::clone(&plan), &name),
            uas,
            schedule: Schedule::new(plan.offered),
            stats: Stats::new(micros(plan.warmup)..micros(plan.warmup + plan.duration)),
            plan,
            epoll,
            began: Instant::now(),
            now: 0,
            callers,
            called,
            streams,
            links,
            next_link: 0,
            reopen: Vec::new(),
            from_callers: Outbox::default(),
            from_called: Outbox::default(),
            index: HeaderIndex::new(),
            measured: Measured::default(),
        })
    }

    fn play(&mut self, stop: &AtomicBool, mut progress: impl FnMut(Progress)) -> Result<Report, LoadError> {
        let window_end = self.stats.window.end;
        let drain = self.plan.drain.unwrap_or_else(|| self.longest());
        let end = window_end + drain.as_micros() as Micros;
        let mut events = EventList::new(1024);
        let mut tick = 0;
        self.connect_shared();
        self.began = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            self.read_clock();
            self.turn(&events)?;
            if self.now >= tick {
                progress(self.progress());
                tick = self.now + TICK_US;
            }
            // A generator that was kept from running may still have calls to begin after the window.
            let over = self.now >= window_end && self.schedule.next() >= window_end;
            if self.now >= end || (over && self.uac.under_way() == 0) {
                break;
            }
            let until = self.next(tick, !over);
            let wait = until.saturating_sub(self.began.elapsed().as_micros() as Micros);
            self.epoll
                .wait(&mut events, Some(wait))
                .map_err(socket("wait for events"))?;
        }
        self.read_clock();
        let mut turn = Turn {
            now: self.now,
            out: &mut self.from_callers,
            stats: &mut self.stats,
        };
        self.uac.stop(&mut turn);
        // If the run was stopped early, the window ends there.
        let window = &mut self.stats.window;
        window.end = window.end.min(self.now).max(window.start);
        progress(self.progress());
        if self.measured.until.is_none() {
            self.measured.until = Some((cpu_seconds(), self.receive_drops()));
        }
        self.stats.own_limit = self.streams.own_limit.take();
        self.stats.lost_connections = std::mem::take(&mut self.streams.reasons);
        let (cpu_s, drops) = self.measured.total();
        Ok(Report::new(&self.plan, &self.stats, cpu_s, drops))
    }

    /// Reads the clock once for the whole turn. At the edges of the window it also reads the generator's own
    /// use.
    fn read_clock(&mut self) {
        self.now = self.began.elapsed().as_micros() as Micros;
        if self.measured.from.is_none() && self.now >= self.stats.window.start {
            self.measured.from = Some((cpu_seconds(), self.receive_drops()));
        }
        if self.measured.until.is_none() && self.now >= self.stats.window.end {
            self.measured.until = Some((cpu_seconds(), self.receive_drops()));
        }
    }

    /// The longest time that a call may take: INVITE, CANCEL and BYE may each time out.
    fn longest(&self) -> Duration {
        let plan = &self.plan;
        let hold = if plan.kind.is_invite() {
            plan.hold + plan.answer_within
        } else {
            Duration::ZERO
        };
        64 * plan.t1 * 3 + hold + Duration::from_secs(1)
    }

    fn progress(&self) -> Progress {
        Progress {
            seconds: self.now as f64 / 1e6,
            under_way: self.uac.under_way(),
            ..self.stats.progress()
        }
    }

    fn receive_drops(&self) -> u64 {
        let sockets = [&self.callers, &self.called];
        let open = sockets.into_iter().flatten();
        open.map(|d| u64::from(d.drops())).sum()
    }

    /// The next time with work, even if nothing arrives.
    fn next(&self, tick: Micros, offering: bool) -> Micros {
        let call = offering.then(|| self.schedule.next());
        let reopen = self.reopen.iter().map(|(at, _)| *at).min();
        let uas = self.uas.as_ref().and_then(Uas::next);
        let others = [call, reopen, self.uac.next(), uas];
        others.into_iter().flatten().min().map_or(tick, |at| at.min(tick))
    }

    fn turn(&mut self, events: &EventList) -> Result<(), LoadError> {
        for what in (0..events.len()).filter_map(|index| events.get(index)) {
            match what.token {
                CALLERS_SOCKET => self.receive(End::Callers, what.error)?,
                CALLED_SOCKET => self.receive(End::Called, what.error)?,
                LISTENER.. => self.streams.ready(&self.epoll, what, self.now),
            }
        }
        self.take_streams();
        let now = self.now;
        let mut turn = Turn {
            now,
            out: &mut self.from_callers,
            stats: &mut self.stats,
        };
        self.uac.wake(&mut turn);
        if let Some(uas) = &mut self.uas {
            turn.out = &mut self.from_called;
            uas.wake(&mut turn);
        }
        self.start_calls();
        // Once a turn: sending messages together costs less, and wakes the other side once.
        self.flush();
        self.take_streams();
        self.flush();
        Ok(())
    }

    /// Reads datagrams of one end.
    fn receive(&mut self, end: End, error: bool) -> Result<(), LoadError> {
        let (datagrams, out) = match end {
            End::Callers => (&mut self.callers, &mut self.from_callers),
            End::Called => (&mut self.called, &mut self.from_called),
        };
        let Some(datagrams) = datagrams else {
            return Ok(());
        };
        let mut turn = Turn {
            now: self.now,
            out,
            stats: &mut self.stats,
        };
        let (uac, uas, index) = (&mut self.uac, &mut self.uas, &mut self.index);
        if error {
            datagrams.undelivered(|bytes| {
                if end == End::Callers {
                    uac.undelivered(&mut turn, bytes, Cause::SendFailed);
                }
            });
        }
        datagrams
            .receive(|from, bytes| hand_over(end, from, bytes, index, uac, uas, &mut turn))
            .map_err(socket("receive"))
    }

    /// Hands over messages of connections, and handles lost connections.
    fn take_streams(&mut self) {
        let now = self.now;
        self.streams.wake(&self.epoll, now);
        for began in self.streams.opened.drain(..) {
            self.stats.time(Timed::Connect, now, began);
        }
        let (uac, uas, index) = (&mut self.uac, &mut self.uas, &mut self.index);
        let (callers, called, stats) = (&mut self.from_callers, &mut self.from_called, &mut self.stats);
        self.streams.inbox.drain(|end, from, bytes| {
            let out = if end == End::Callers {
                &mut *callers
            } else {
                &mut *called
            };
            let mut turn = Turn { now, out, stats };
            hand_over(end, from, bytes, index, uac, uas, &mut turn);
        });
        let shared = matches!(self.plan.connections, Connections::Shared(_));
        for (id, end, cause) in std::mem::take(&mut self.streams.lost) {
            if end == End::Callers {
                let mut turn = Turn {
                    now,
                    out: &mut self.from_callers,
                    stats: &mut self.stats,
                };
                self.uac.lost(&mut turn, id, cause);
                self.reopen.extend(shared.then_some((now + REOPEN_US, id)));
            }
        }
        if self.reopen.iter().any(|(at, _)| *at <= now) {
            let due: Vec<_> = self.reopen.extract_if(.., |(at, _)| *at <= now).collect();
            for (_, id) in due {
                self.streams.reopen(id, &self.epoll, now);
            }
        }
    }

    fn connect_shared(&mut self) {
        if let (Connections::Shared(count), None) = (self.plan.connections, &self.callers) {
            for _ in 0..count.max(1) {
                let id = self.streams.open(&self.epoll, 0);
                self.links.push(To::Connection(id));
            }
        }
    }

    /// Begins the calls that are due.
    fn start_calls(&mut self) {
        let end = self.stats.window.end;
        for _ in 0..BURST {
            let at = self.schedule.next();
            if at > self.now || at >= end {
                return;
            }
            self.schedule.advance();
            let link = match (self.plan.connections, &self.callers) {
                (Connections::PerCall, None) => To::Connection(self.streams.open(&self.epoll, self.now)),
                _ => {
                    self.next_link = (self.next_link + 1) % self.links.len();
                    self.links[self.next_link]
                }
            };
            let mut turn = Turn {
                now: self.now,
                out: &mut self.from_callers,
                stats: &mut self.stats,
            };
            self.uac.start(&mut turn, at, link);
        }
    }

    /// Sends the messages of both ends.
    fn flush(&mut self) {
        for end in [End::Callers, End::Called] {
            let (out, datagrams) = match end {
                End::Callers => (&mut self.from_callers, &mut self.callers),
                End::Called => (&mut self.from_called, &mut self.called),
            };
            if out.is_empty() {
                continue;
            }
            let mut failed = Vec::new();
            match datagrams {
                Some(datagrams) => {
                    datagrams.send(out, |bytes| failed.push((bytes.to_vec(), Cause::SendFailed)))
                }
                None => self.streams.send(out, &self.epoll, |bytes, cause| {
                    failed.push((bytes.to_vec(), cause))
                }),
            }
            out.clear();
            if end == End::Callers {
                let mut turn = Turn {
                    now: self.now,
                    out,
                    stats: &mut self.stats,
                };
                for (message, cause) in failed {
                    self.uac.undelivered(&mut turn, &message, cause);
                }
            }
        }
    }
}

fn hand_over(
    end: End,
    from: To,
    bytes: &[u8],
    index: &mut HeaderIndex,
    uac: &mut Uac,
    uas: &mut Option<Uas>,
    turn: &mut Turn<'_>,
) {
    let Ok(message) = sip_message::parse(bytes, index, MAX_FIELDS) else {
        // Keep-alives are no SIP messages, but no fault either.
        if !bytes.iter().all(u8::is_ascii_whitespace) {
            turn.stats.ignore("not SIP");
        }
        return;
    };
    match (end, uas) {
        (End::Callers, _) => uac.receive(turn, from, &message),
        (End::Called, Some(uas)) => uas.receive(turn, from, &message),
        (End::Called, None) => {}
    }
}

/// The local address from which the target is reached.
fn own_address(target: SocketAddr) -> std::io::Result<IpAddr> {
    let any: SocketAddr = if target.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        ([0u16; 8], 0).into()
    };
    let probe = std::net::UdpSocket::bind(any)?;
    probe.connect(target)?;
    Ok(probe.local_addr()?.ip())
}
