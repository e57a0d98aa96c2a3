//! Proxies that do not know how to fork, by which the rules are checked.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use crate::clock::Micros;
use crate::message::View;
use crate::node::{Node, Outgoing};

/// What is wrong with a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkFault {
    /// After a 2xx the other branches ring on.
    CancelsNobody,
    /// The last failure goes on in place of the best.
    LastInsteadOfBest,
    /// Only the first targets are tried.
    StopsEarly,
    /// Only the first 2xx goes on.
    DropsLateSuccess,
    /// The caller's CANCEL is answered and forgotten.
    ForgetsCancel,
    /// A CANCEL goes to whom none is due.
    CancelsTheSilent,
    /// A failure goes on at once.
    TellsEveryFailure,
}

impl ForkFault {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::CancelsNobody,
        Self::LastInsteadOfBest,
        Self::StopsEarly,
        Self::DropsLateSuccess,
        Self::ForgetsCancel,
        Self::CancelsTheSilent,
        Self::TellsEveryFailure,
    ];
}

/// What a mutant remembers of a call.
#[derive(Debug, Default)]
struct Call {
    /// Phones that got an INVITE before any failure came.
    first: Vec<SocketAddr>,
    failed: bool,
    succeeded: Option<String>,
    /// The last failure that came, without our Via.
    last_failure: Option<String>,
}

/// A node with a fault.
pub struct ForkMutant {
    inner: Box<dyn Node>,
    fault: ForkFault,
    caller: SocketAddr,
    out: VecDeque<Outgoing>,
    calls: BTreeMap<String, Call>,
}

impl std::fmt::Debug for ForkMutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ForkMutant")
            .field("fault", &self.fault)
            .finish_non_exhaustive()
    }
}

impl ForkMutant {
    /// `inner` with `fault`, between `caller` and the phones.
    pub fn new(inner: Box<dyn Node>, fault: ForkFault, caller: SocketAddr) -> Self {
        Self {
            inner,
            fault,
            caller,
            out: VecDeque::new(),
            calls: BTreeMap::new(),
        }
    }

    fn leave(&mut self, mut message: Outgoing) {
        let text = message.text.clone();
        let view = View::new(&text);
        let call = self.calls.entry(view.get("Call-ID").to_owned()).or_default();
        let (status, method) = (view.status(), view.method());
        let request = |wanted: &str| status.is_none() && method == wanted;
        let last = |status: Option<u16>| status.is_some_and(|s| s >= 200) && method == "INVITE";
        if request("CANCEL") {
            let done = call.succeeded.is_some();
            let drops = match self.fault {
                ForkFault::CancelsNobody => done,
                ForkFault::ForgetsCancel => !done,
                ForkFault::LastInsteadOfBest
                | ForkFault::StopsEarly
                | ForkFault::DropsLateSuccess
                | ForkFault::CancelsTheSilent
                | ForkFault::TellsEveryFailure => false,
            };
            if drops {
                return;
            }
        }
        if request("INVITE") {
            if !call.failed && !call.first.contains(&message.to) {
                call.first.push(message.to);
            }
            if self.fault == ForkFault::StopsEarly && !call.first.contains(&message.to) {
                return;
            }
            if self.fault == ForkFault::CancelsTheSilent && call.first.len() > 1 {
                let cancel = text
                    .replacen("INVITE ", "CANCEL ", 1)
                    .replacen(" INVITE\r\n", " CANCEL\r\n", 1);
                self.out.push_back(Outgoing {
                    to: message.to,
                    text: cancel,
                });
            }
        }
        if last(status) && message.to == self.caller {
            let success = status.is_some_and(|s| s < 300);
            let tag = view.to_tag().to_owned();
            if success && *call.succeeded.get_or_insert_with(|| tag.clone()) != tag {
                if self.fault == ForkFault::DropsLateSuccess {
                    return;
                }
            } else if !success
                && self.fault == ForkFault::LastInsteadOfBest
                && let Some(failure) = &call.last_failure
            {
                message.text.clone_from(failure);
            }
        }
        self.out.push_back(message);
    }

    fn take(&mut self) {
        while let Some(message) = self.inner.poll_transmit() {
            self.leave(message);
        }
    }
}

impl Node for ForkMutant {
    fn handle_message(&mut self, now: Micros, from: SocketAddr, text: &str) {
        let view = View::new(text);
        if view.method() == "INVITE" && view.status().is_some_and(|s| s >= 300) {
            let call = self.calls.entry(view.get("Call-ID").to_owned()).or_default();
            call.failed = true;
            let (head, rest) = text.split_once("\r\n").unwrap_or_default();
            let rest = rest.split_once("\r\n").map(|r| r.1).unwrap_or_default();
            let failure = format!("{head}\r\n{rest}");
            if self.fault == ForkFault::TellsEveryFailure {
                self.out.push_back(Outgoing {
                    to: self.caller,
                    text: failure.clone(),
                });
            }
            call.last_failure = Some(failure);
        }
        self.inner.handle_message(now, from, text);
        self.take();
    }

    fn handle_timeout(&mut self, now: Micros) {
        self.inner.handle_timeout(now);
        self.take();
    }

    fn poll_transmit(&mut self) -> Option<Outgoing> {
        self.out.pop_front()
    }

    fn poll_timeout(&self) -> Option<Micros> {
        self.inner.poll_timeout()
    }

    fn leftovers(&self) -> Option<String> {
        self.inner.leftovers()
    }
}
