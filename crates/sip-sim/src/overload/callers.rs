//! The callers: each call is set up, in some changed by a re-INVITE, and ended; each request is sent again as RFC 3261
//! §17.1 says until something comes back.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::{CALLERS, SERVER, Wants};
use crate::clock::{MS, Micros, SECOND};
use crate::message::View;

/// Timer T1.
const T1: Micros = 500 * MS;
/// Timer T2.
const T2: Micros = 4 * SECOND;
/// Timers B and F.
const GIVES_UP: Micros = 64 * T1;
/// Time between the steps of a call.
const PAUSE: Micros = 100 * MS;
/// Numbers of REGISTERs begin here.
const REGISTERS: u32 = 1 << 31;

/// Why a caller is asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// The request of this number has had no response.
    Again(u32, Micros),
    /// The next step of the call is due.
    Next,
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The INVITE has had no response.
    Calling,
    /// The INVITE has had a provisional response.
    Proceeding,
    /// The callee has answered.
    Established,
    /// Changed by a re-INVITE that has had no response.
    Changing,
    /// The BYE has had no response.
    Ending,
    /// The BYE was answered.
    Completed,
    /// The INVITE was refused.
    Refused(u16),
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// When it began.
    pub began: Micros,
    /// How far it has come.
    pub stage: Stage,
    /// When the first response came.
    pub accepted: Option<Micros>,
    /// When the callee's 200 came.
    pub established: Option<Micros>,
    /// INVITEs sent, copies included.
    pub invites: u32,
    /// Whether the caller cancelled it at once, without waiting for a response.
    pub is_cancelled: bool,
    is_changed: bool,
    cancel_answered: bool,
    cseq: u32,
    /// Route and To of requests in the dialog.
    route: String,
    to: String,
}

#[derive(Debug, Default)]
pub(super) struct Callers {
    pub(super) calls: Vec<Call>,
    pub(super) completed: Vec<Micros>,
    pub(super) registered: Vec<Micros>,
    /// REGISTERs without response, by number.
    pending: BTreeSet<u32>,
    next_register: u32,
}

fn request(method: &str, uri: &str, number: u32, cseq: u32, route: &str, to: &str) -> String {
    let (name, address) = (format!("a{number}"), SocketAddr::from(CALLERS));
    // A CANCEL and the ACK to a failure have the branch of their INVITE.
    let branch = match method {
        "CANCEL" => "INVITE",
        "ACK" if route.is_empty() => "INVITE",
        other => other,
    };
    format!(
        "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/UDP {address};branch=z9hG4bK-{number}-{cseq}-{branch}\r\n{route}\
         Max-Forwards: 70\r\nFrom: <sip:{name}@example.net>;tag=f{number}\r\nTo: {to}\r\nCall-ID: call-{number}@o\r\n\
         CSeq: {cseq} {method}\r\nContact: <sip:{name}@{address}>\r\nContent-Length: 0\r\n\r\n"
    )
}

/// A response that belongs to nothing.
pub(super) fn stray(random: u64) -> String {
    let server = SocketAddr::from(SERVER);
    format!(
        "SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP {server};branch=z9hG4bK{random:016x}\r\nFrom: <sip:a@b>;tag=1\r\n\
         To: <sip:c@d>;tag=2\r\nCall-ID: {random:x}@stray\r\nCSeq: 1 INVITE\r\nContent-Length: 0\r\n\r\n"
    )
}

/// The header line of an INVITE that its caller cancels at once: so that the callee rings until the CANCEL comes.
pub(super) const LONG: &str = "Subject: long\r\n";

const CALLED: &str = "sip:callee@example.com";

impl Call {
    fn request(&self, method: &str, number: u32) -> String {
        if self.to.is_empty() {
            return request(method, CALLED, number, 1, "", &format!("<{CALLED}>"));
        }
        let callee = format!("sip:callee@{}", SocketAddr::from(super::CALLEE));
        request(method, &callee, number, self.cseq, &self.route, &self.to)
    }
}

fn again(now: Micros, call: u32, cseq: u32, interval: Micros, wants: &mut Wants<Timer>) {
    wants
        .timers
        .push((now + interval, call, Timer::Again(cseq, interval)));
}

impl Callers {
    /// Begins a call.
    pub(super) fn begin(&mut self, now: Micros, is_cancelled: bool, is_changed: bool) -> Wants<Timer> {
        let number = self.calls.len() as u32;
        let call = Call {
            began: now,
            stage: Stage::Calling,
            accepted: None,
            established: None,
            invites: 1,
            is_cancelled,
            is_changed,
            cancel_answered: false,
            cseq: 1,
            route: String::new(),
            to: String::new(),
        };
        let mut wants = Wants::default();
        let invite = call.request("INVITE", number);
        if is_cancelled {
            let end = format!("{LONG}Content-Length");
            wants.sends.push(invite.replace("Content-Length", &end));
            wants.sends.push(call.request("CANCEL", number));
        } else {
            wants.sends.push(invite);
        }
        again(now, number, 1, T1, &mut wants);
        self.calls.push(call);
        wants
    }

    /// Sends a REGISTER.
    pub(super) fn register(&mut self, now: Micros) -> Wants<Timer> {
        let number = REGISTERS + self.next_register;
        self.next_register += 1;
        self.pending.insert(number);
        let mut wants = Wants::default();
        wants.sends.push(register(number));
        again(now, number, 1, T1, &mut wants);
        wants
    }

    pub(super) fn timer(&mut self, now: Micros, number: u32, timer: Timer) -> Wants<Timer> {
        let mut wants = Wants::default();
        if number >= REGISTERS {
            if let Timer::Again(cseq, interval) = timer
                && self.pending.contains(&number)
            {
                wants.sends.push(register(number));
                again(now, number, cseq, (2 * interval).min(T2), &mut wants);
            }
            return wants;
        }
        let Some(call) = self.calls.get_mut(number as usize) else {
            return wants;
        };
        match timer {
            Timer::Again(cseq, interval) if cseq == call.cseq => {
                if now >= call.began + GIVES_UP {
                    return wants;
                }
                let mut next = 2 * interval;
                match call.stage {
                    // A caller that has cancelled sends its CANCEL again, and its INVITE no more.
                    Stage::Calling | Stage::Proceeding if call.is_cancelled && !call.cancel_answered => {
                        wants.sends.push(call.request("CANCEL", number));
                        next = next.min(T2);
                    }
                    Stage::Calling if !call.is_cancelled => {
                        call.invites += 1;
                        wants.sends.push(call.request("INVITE", number));
                    }
                    Stage::Changing => wants.sends.push(call.request("INVITE", number)),
                    Stage::Ending => {
                        wants.sends.push(call.request("BYE", number));
                        next = next.min(T2);
                    }
                    Stage::Calling
                    | Stage::Proceeding
                    | Stage::Established
                    | Stage::Completed
                    | Stage::Refused(_) => return wants,
                }
                again(now, number, cseq, next, &mut wants);
            }
            Timer::Again(..) => {}
            Timer::Next => call.step(now, number, &mut wants),
        }
        wants
    }

    pub(super) fn receive(&mut self, now: Micros, text: &str) -> Wants<Timer> {
        let mut wants = Wants::default();
        let view = View::new(text);
        let (Some(status), Some(number)) = (view.status(), view.call()) else {
            return wants;
        };
        if number >= REGISTERS {
            if status >= 200 && self.pending.remove(&number) {
                self.registered.push(now);
            }
            return wants;
        }
        let Some(call) = self.calls.get_mut(number as usize) else {
            return wants;
        };
        let (cseq, method) = view.cseq();
        match method {
            "INVITE" => call.answered(now, number, (status, cseq), &view, &mut wants),
            "CANCEL" if status >= 200 => call.cancel_answered = true,
            "BYE" if status >= 200 && call.stage == Stage::Ending => {
                call.stage = Stage::Completed;
                self.completed.push(now);
            }
            _ => {}
        }
        wants
    }
}

impl Call {
    /// The next request of a call that is established: a re-INVITE for some, then BYE.
    fn step(&mut self, now: Micros, number: u32, wants: &mut Wants<Timer>) {
        if self.stage != Stage::Established {
            return;
        }
        self.cseq += 1;
        let method = if self.is_changed {
            self.is_changed = false;
            self.stage = Stage::Changing;
            "INVITE"
        } else {
            self.stage = Stage::Ending;
            "BYE"
        };
        wants.sends.push(self.request(method, number));
        again(now, number, self.cseq, T1, wants);
    }

    fn answered(
        &mut self,
        now: Micros,
        number: u32,
        (status, cseq): (u16, u32),
        view: &View<'_>,
        wants: &mut Wants<Timer>,
    ) {
        self.accepted.get_or_insert(now);
        match status {
            ..200 => {
                if self.stage == Stage::Calling {
                    self.stage = Stage::Proceeding;
                }
            }
            200..300 => {
                if self.to.is_empty() {
                    self.to = view.get("To").to_owned();
                    let values = view.all("Record-Route");
                    self.route = values.map(|value| format!("Route: {value}\r\n")).collect();
                    self.established = Some(now);
                }
                // Each copy of the 200 gets an ACK.
                let callee = format!("sip:callee@{}", SocketAddr::from(super::CALLEE));
                wants
                    .sends
                    .push(request("ACK", &callee, number, cseq, &self.route, &self.to));
                if cseq == self.cseq
                    && matches!(self.stage, Stage::Calling | Stage::Proceeding | Stage::Changing)
                {
                    self.stage = Stage::Established;
                    wants.timers.push((now + PAUSE, number, Timer::Next));
                }
            }
            _ => {
                let to = view.get("To");
                wants.sends.push(request("ACK", CALLED, number, cseq, "", to));
                if matches!(self.stage, Stage::Calling | Stage::Proceeding) {
                    self.stage = Stage::Refused(status);
                }
            }
        }
    }
}

fn register(number: u32) -> String {
    let aor = format!("sip:a{number}@example.com");
    let address = SocketAddr::from(CALLERS);
    format!(
        "REGISTER sip:example.com SIP/2.0\r\nVia: SIP/2.0/UDP {address};branch=z9hG4bK-{number}-r\r\nMax-Forwards: 70\r\n\
         From: <{aor}>;tag=f{number}\r\nTo: <{aor}>\r\nCall-ID: call-{number}@o\r\nCSeq: 1 REGISTER\r\n\
         Contact: <sip:a{number}@{address}>\r\nContent-Length: 0\r\n\r\n"
    )
}
