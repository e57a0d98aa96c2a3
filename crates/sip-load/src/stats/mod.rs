//! Counters and times of a run.

mod report;

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

pub use report::{Generator, Quantiles, Report, Second};

use crate::{Micros, Progress};

/// Cause of a call's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// No final response came in 64 × T1 (RFC 3261 §17.1.1.2 timer B, §17.1.2.2 timer F).
    Timeout,
    /// The call rang for too long.
    NoFinal,
    /// The call was refused with this status.
    Status(u16),
    /// The request had credentials, and was challenged again.
    CredentialsRefused,
    /// A wrong response came, and no good one after it; or a connection's bytes could not be framed.
    BadResponse,
    /// The call was set up, and its BYE got no response.
    ByeTimeout,
    /// The call was set up, and its BYE was refused with this status.
    ByeStatus(u16),
    /// The connection could not be made.
    ConnectFailed,
    /// The connection was not made in 64 × T1, its handshakes included.
    ConnectTimeout,
    /// The generator has no descriptor or port left for the connection.
    OwnLimit,
    /// The connection was lost.
    ConnectionLost,
    /// The connection accepts no more bytes for now: its buffer here is full.
    ConnectionFull,
    /// The kernel refused to send (no route, port unreachable).
    SendFailed,
    /// The call was under way when the time was over.
    Unfinished,
    /// Each user that was tried still waits for the response to its last REGISTER.
    UserBusy,
    /// The generator has no room for another call at the same time.
    GeneratorFull,
}

impl Cause {
    /// The name in the report.
    pub(crate) fn name(self) -> String {
        let fixed = match self {
            Self::Status(status) => return format!("status {status}"),
            Self::ByeStatus(status) => return format!("bye status {status}"),
            Self::Timeout => "timeout",
            Self::NoFinal => "no final answer",
            Self::CredentialsRefused => "credentials refused",
            Self::BadResponse => "bad response",
            Self::ByeTimeout => "bye timeout",
            Self::ConnectFailed => "connect failed",
            Self::ConnectTimeout => "connect timeout",
            Self::OwnLimit => "no descriptor or port",
            Self::ConnectionLost => "connection lost",
            Self::ConnectionFull => "connection full",
            Self::SendFailed => "send failed",
            Self::Unfinished => "unfinished",
            Self::UserBusy => "user busy",
            Self::GeneratorFull => "generator full",
        };
        fixed.to_owned()
    }
}

/// A measured time. Each begins when its request or connection was meant to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Timed {
    /// From the request to a 401 or 407 that the caller answers.
    Challenge,
    /// From the INVITE to the first provisional response other than 100.
    Ringing,
    /// From the INVITE to its 2xx.
    Invite,
    /// From the INVITE to its 3xx.
    Redirect,
    /// From the BYE to its 2xx.
    Bye,
    Register,
    Options,
    Message,
    /// From the start of a connection until it is open.
    Connect,
}

impl Timed {
    const ALL: [(Self, &'static str); 9] = [
        (Self::Challenge, "challenge"),
        (Self::Ringing, "INVITE 180"),
        (Self::Invite, "INVITE 200"),
        (Self::Redirect, "INVITE 302"),
        (Self::Bye, "BYE 200"),
        (Self::Register, "REGISTER 200"),
        (Self::Options, "OPTIONS 200"),
        (Self::Message, "MESSAGE 200"),
        (Self::Connect, "connect"),
    ];
}

/// Methods that are counted by name. The last, empty one stands for all others.
const METHODS: [&[u8]; 8] = [
    b"INVITE",
    b"ACK",
    b"BYE",
    b"CANCEL",
    b"REGISTER",
    b"OPTIONS",
    b"MESSAGE",
    b"",
];
/// The name in the report for all other methods.
const OTHER: &str = "other";

pub(crate) fn method_number(method: &[u8]) -> usize {
    let found = METHODS.iter().position(|m| *m == method);
    found.unwrap_or(METHODS.len() - 1)
}

/// Numbers of messages by method and status (0 for requests).
#[derive(Debug)]
pub(crate) struct Messages(Vec<u64>);

impl Messages {
    fn new() -> Self {
        Self(vec![0; 700 * METHODS.len()])
    }

    /// Counts one more message.
    pub(crate) fn count(&mut self, method: &[u8], status: u16) {
        let at = usize::from(status.min(699)) * METHODS.len() + method_number(method);
        if let Some(count) = self.0.get_mut(at) {
            *count += 1;
        }
    }

    #[cfg(test)]
    pub(crate) fn count_of(&self, method: &[u8], status: u16) -> u64 {
        self.0[usize::from(status) * METHODS.len() + method_number(method)]
    }

    fn named(&self) -> BTreeMap<String, u64> {
        let counted = self.0.iter().enumerate().filter(|(_, n)| **n > 0);
        let name = |at: usize| {
            let method = match METHODS.get(at % METHODS.len()) {
                Some(method) if !method.is_empty() => String::from_utf8_lossy(method).into_owned(),
                _ => OTHER.to_owned(),
            };
            match at / METHODS.len() {
                0 => method,
                status => format!("{status} {method}"),
            }
        };
        counted.map(|(at, n)| (name(at), *n)).collect()
    }
}

/// Most seconds with a line of their own; later ones are added to the last.
const MOST_SECONDS: usize = 24 * 3600;

#[derive(Debug)]
pub(crate) struct Stats {
    /// The time in which calls count.
    pub(crate) window: std::ops::Range<Micros>,
    pub(crate) offered: u64,
    pub(crate) succeeded: u64,
    pub(crate) failures: BTreeMap<Cause, u64>,
    /// Number of successes inside the window, even if the call began before it.
    pub(crate) completed: u64,
    pub(crate) sent: Messages,
    pub(crate) received: Messages,
    pub(crate) resent: Messages,
    /// Retransmitted requests that were received.
    pub(crate) repeated: Messages,
    /// Number of answered calls without ACK.
    pub(crate) unacknowledged: u64,
    /// Number of connections that failed or were lost, by reason.
    pub(crate) lost_connections: BTreeMap<String, u64>,
    /// First error of a socket for the generator's own lack of descriptors, ports or memory.
    pub(crate) own_limit: Option<String>,
    /// Number of received messages that were ignored, by reason.
    pub(crate) ignored: BTreeMap<&'static str, u64>,
    times: Vec<Histogram<u64>>,
    /// Delay of the start of calls, microseconds.
    pub(crate) lag: Histogram<u64>,
    pub(crate) seconds: Vec<Second>,
}

/// A histogram of three digits up to an hour, in microseconds.
fn histogram() -> Histogram<u64> {
    // `new_with_bounds` fails for bad bounds only, and these are good.
    Histogram::new_with_bounds(1, 3_600_000_000, 3).unwrap_or_else(|_| unreachable!("good bounds"))
}

impl Stats {
    pub(crate) fn new(window: std::ops::Range<Micros>) -> Self {
        Self {
            window,
            offered: 0,
            succeeded: 0,
            failures: BTreeMap::new(),
            completed: 0,
            sent: Messages::new(),
            received: Messages::new(),
            resent: Messages::new(),
            repeated: Messages::new(),
            unacknowledged: 0,
            lost_connections: BTreeMap::new(),
            own_limit: None,
            ignored: BTreeMap::new(),
            times: Timed::ALL.iter().map(|_| histogram()).collect(),
            lag: histogram(),
            seconds: Vec::new(),
        }
    }

    /// Whether a call or request that is meant for this time counts.
    pub(crate) fn counts(&self, at: Micros) -> bool {
        self.window.contains(&at)
    }

    fn second(&mut self, at: Micros) -> &mut Second {
        let second = ((at / 1_000_000) as usize).min(MOST_SECONDS);
        while self.seconds.len() <= second {
            let t = self.seconds.len() as u64;
            self.seconds.push(Second {
                t,
                ..Second::default()
            });
        }
        let last = self.seconds.len() - 1;
        &mut self.seconds[second.min(last)]
    }

    /// Counts a call that was meant to begin at `intended`, and did at `now`.
    pub(crate) fn began(&mut self, now: Micros, intended: Micros) {
        self.second(intended).offered += 1;
        if self.counts(intended) {
            self.offered += 1;
            self.lag.saturating_record(now.saturating_sub(intended));
        }
    }

    /// Counts the end of a call that was meant to begin at `intended`.
    pub(crate) fn ended(&mut self, now: Micros, intended: Micros, outcome: Result<(), Cause>) {
        match outcome {
            Ok(()) => {
                self.second(now).succeeded += 1;
                self.completed += u64::from(self.counts(now));
                self.succeeded += u64::from(self.counts(intended));
            }
            Err(cause) => {
                self.second(now).failed += 1;
                if self.counts(intended) {
                    *self.failures.entry(cause).or_default() += 1;
                }
            }
        }
    }

    /// Records the time from `intended` to `now`, if `intended` counts.
    pub(crate) fn time(&mut self, what: Timed, now: Micros, intended: Micros) {
        if self.counts(intended)
            && let Some(times) = self.times.get_mut(what as usize)
        {
            times.saturating_record(now.saturating_sub(intended));
        }
    }

    #[cfg(test)]
    pub(crate) fn times_of(&self, what: Timed) -> &Histogram<u64> {
        &self.times[what as usize]
    }

    /// Totals of all calls so far, inside and outside of the window.
    pub(crate) fn progress(&self) -> Progress {
        let zero = Progress::default();
        self.seconds.iter().fold(zero, |sum, second| Progress {
            begun: sum.begun + second.offered,
            succeeded: sum.succeeded + second.succeeded,
            failed: sum.failed + second.failed,
            ..sum
        })
    }

    pub(crate) fn ignore(&mut self, why: &'static str) {
        *self.ignored.entry(why).or_default() += 1;
    }
}
