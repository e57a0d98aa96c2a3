//! The callee: it rings, answers, and says so again until the ACK comes (RFC 3261 §13.3.1.4).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::callers::{Callers, LONG};
use super::{CALLEE, Wants};
use crate::clock::{MS, Micros, SECOND};
use crate::message::View;

/// Time for which it rings; and for calls that their callers cancel at once, which say so ([`LONG`]).
const RINGS: Micros = 50 * MS;
const RINGS_LONG: Micros = 10 * SECOND;
const T1: Micros = 500 * MS;
const T2: Micros = 4 * SECOND;

/// One call.
#[derive(Debug)]
struct Leg {
    /// The INVITE that is to be answered, or was answered last.
    invite: String,
    state: State,
    /// The number of its latest timer; an earlier one was overtaken.
    timer: u32,
    /// Time until the response is repeated.
    interval: Micros,
    /// Whether it was answered: no CANCEL came in time.
    was_answered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ringing,
    Answered,
    Acknowledged,
    Cancelled,
    Over,
}

#[derive(Debug, Default)]
pub(super) struct Callee {
    legs: BTreeMap<u32, Leg>,
    /// Final responses that were repeated.
    pub(super) repeated: u64,
}

fn respond(request: &str, status: &str) -> String {
    let view = View::new(request);
    let lines = |name: &'static str| -> String {
        view.all(name)
            .map(|value| format!("{name}: {value}\r\n"))
            .collect()
    };
    let to = view.get("To");
    let tag = if view.to_tag().is_empty() {
        ";tag=callee"
    } else {
        ""
    };
    let address = SocketAddr::from(CALLEE);
    format!(
        "SIP/2.0 {status}\r\n{}{}From: {}\r\nTo: {to}{tag}\r\nCall-ID: {}\r\nCSeq: {}\r\nContact: <sip:callee@{address}>\r\n\
         Content-Length: 0\r\n\r\n",
        lines("Via"),
        lines("Record-Route"),
        view.get("From"),
        view.get("Call-ID"),
        view.get("CSeq"),
    )
}

impl Callee {
    pub(super) fn receive(&mut self, now: Micros, text: &str) -> Wants<u32> {
        let mut wants = Wants::default();
        let view = View::new(text);
        let Some(call) = view.call().filter(|_| view.status().is_none()) else {
            return wants;
        };
        let leg = self.legs.get_mut(&call);
        match (view.method(), leg) {
            ("INVITE", None) => {
                wants.sends.push(respond(text, "180 Ringing"));
                let rings = if text.contains(LONG) { RINGS_LONG } else { RINGS };
                wants.timers.push((now + rings, call, 0));
                let leg = Leg {
                    invite: text.to_owned(),
                    state: State::Ringing,
                    timer: 0,
                    interval: T1,
                    was_answered: false,
                };
                self.legs.insert(call, leg);
            }
            ("INVITE", Some(leg)) => leg.invited_again(now, call, text, &mut wants),
            ("ACK", Some(leg)) => {
                if leg.state == State::Answered {
                    leg.state = State::Acknowledged;
                } else if leg.state == State::Cancelled {
                    leg.state = State::Over;
                }
            }
            ("BYE", leg) => {
                wants.sends.push(respond(text, "200 OK"));
                if let Some(leg) = leg {
                    leg.state = State::Over;
                }
            }
            ("CANCEL", leg) => {
                wants.sends.push(respond(text, "200 OK"));
                if let Some(leg) = leg.filter(|leg| leg.state == State::Ringing) {
                    leg.state = State::Cancelled;
                    wants.sends.push(respond(&leg.invite, "487 Request Terminated"));
                    leg.repeat_later(now, call, &mut wants);
                }
            }
            _ => {}
        }
        wants
    }

    pub(super) fn timer(&mut self, now: Micros, call: u32, number: u32) -> Wants<u32> {
        let mut wants = Wants::default();
        let Some(leg) = self.legs.get_mut(&call).filter(|leg| leg.timer == number) else {
            return wants;
        };
        match leg.state {
            State::Ringing => leg.answer(now, call, &mut wants),
            State::Answered | State::Cancelled => {
                self.repeated += 1;
                let status = if leg.state == State::Answered {
                    "200 OK"
                } else {
                    "487 Request Terminated"
                };
                wants.sends.push(respond(&leg.invite, status));
                leg.interval = (2 * leg.interval).min(T2);
                leg.repeat_later(now, call, &mut wants);
            }
            State::Acknowledged | State::Over => {}
        }
        wants
    }

    /// Calls that their caller cancelled at once, and that ring still or were answered.
    pub(super) fn ringing_on(&self, callers: &Callers) -> Vec<u32> {
        let rang_on = |(call, leg): (&u32, &Leg)| {
            let is_cancelled = callers
                .calls
                .get(*call as usize)
                .is_some_and(|call| call.is_cancelled);
            let was_stopped = !leg.was_answered && leg.state != State::Ringing;
            (is_cancelled && !was_stopped).then_some(*call)
        };
        self.legs.iter().filter_map(rang_on).collect()
    }
}

impl Leg {
    fn answer(&mut self, now: Micros, call: u32, wants: &mut Wants<u32>) {
        wants.sends.push(respond(&self.invite, "200 OK"));
        self.state = State::Answered;
        self.was_answered = true;
        self.interval = T1;
        self.repeat_later(now, call, wants);
    }

    fn repeat_later(&mut self, now: Micros, call: u32, wants: &mut Wants<u32>) {
        self.timer += 1;
        wants.timers.push((now + self.interval, call, self.timer));
    }

    /// A copy of the INVITE, or a re-INVITE, which is answered at once.
    fn invited_again(&mut self, now: Micros, call: u32, text: &str, wants: &mut Wants<u32>) {
        let is_copy = View::new(text).cseq() == View::new(&self.invite).cseq();
        if !is_copy {
            text.clone_into(&mut self.invite);
            self.answer(now, call, wants);
            return;
        }
        let status = match self.state {
            State::Ringing => "180 Ringing",
            State::Answered | State::Acknowledged => "200 OK",
            State::Cancelled => "487 Request Terminated",
            State::Over => return,
        };
        wants.sends.push(respond(text, status));
    }
}
