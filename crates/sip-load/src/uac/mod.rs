//! The callers: their requests, their handling of responses, and their time-outs (RFC 3261 §8.1, §13.2, §15,
//! §17.1). No sockets and no clock.
//!
//! ```text
//! INVITE ─► Calling ──1xx──► Proceeding ──2xx──► Talking ──hold──► Ending ──2xx──► done
//!              │ 64·T1           │ rings too long   (ACK)          (BYE)  │ 64·T1
//!              ▼                 ▼                                        ▼
//!            failed          Cancelling ──487──► failed                 failed
//! ```
//! All other kinds: `Calling`, then done or failed. A 401 or 407 goes back to the state of its request, once.

mod request;
mod response;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use crate::Micros;
use crate::digest::Challenge;
use crate::outbox::{Outbox, To};
use crate::plan::{Connections, Kind, Plan};
use crate::stats::{Cause, Stats, Timed};
use crate::timers::{Timers, Wake};
use sip_core::transport::Transport;

/// Timer T2, microseconds (RFC 3261 §17.1.2.2).
pub(crate) const T2_US: Micros = 4_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// The first request was sent.
    Calling,
    /// An INVITE has a provisional answer.
    Proceeding,
    /// The INVITE has been cancelled, because it rang too long.
    Cancelling,
    /// The call is set up.
    Talking,
    /// The BYE was sent.
    Ending,
}

/// One call. Its buffers stay with its slot, for the next call.
#[derive(Debug)]
struct Call {
    generation: u32,
    state: State,
    link: To,
    user: u32,
    /// When the call was meant to begin.
    intended: Micros,
    /// When the request under way was meant to be sent; for the first, without challenges. In
    /// [`State::Talking`], when the BYE is meant to be sent.
    asked: Micros,
    /// When the request under way was first sent.
    sent: Micros,
    cseq: u32,
    /// Number of the transaction under way, as in its branch.
    transaction: u8,
    /// Whether this request was sent with credentials.
    authorized: bool,
    rang: bool,
    /// Whether the CANCEL has its response.
    cancel_answered: bool,
    /// Whether a wrong response came.
    spoilt: bool,
    /// The request under way, kept for retransmission.
    request: Vec<u8>,
    /// The ACK of a 2xx, kept for retransmissions of the 2xx.
    ack: Vec<u8>,
    /// Remote target, then the fields of all requests within the dialog: Route, From, To, Call-ID.
    dialog: Vec<u8>,
    target_len: usize,
    /// Destination of requests within the dialog.
    dialog_to: To,
}

impl Call {
    const fn free() -> Self {
        Self {
            generation: 0,
            state: State::Free,
            link: To::Connection(0),
            user: 0,
            intended: 0,
            asked: 0,
            sent: 0,
            cseq: 0,
            transaction: 0,
            authorized: false,
            rang: false,
            cancel_answered: false,
            spoilt: false,
            request: Vec::new(),
            ack: Vec::new(),
            dialog: Vec::new(),
            target_len: 0,
            dialog_to: To::Connection(0),
        }
    }

    /// Destination of the request under way.
    fn goes_to(&self) -> To {
        if self.state == State::Ending {
            self.dialog_to
        } else {
            self.link
        }
    }

    fn is_invite(&self, kind: Kind) -> bool {
        kind.is_invite() && self.state != State::Ending
    }
}

/// Purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    /// Send the request of this transaction again, for the n-th time.
    Resend(u8, u8),
    /// 64 × T1 have passed for this transaction.
    GiveUp(u8),
    /// Send the CANCEL of this transaction again, for the n-th time.
    Cancel(u8, u8),
    /// The call of this transaction rings too long, or its CANCEL had no effect.
    Ringing(u8),
    /// The hold time is over.
    HangUp,
}

/// Context of a turn.
pub(crate) struct Turn<'a> {
    pub(crate) now: Micros,
    pub(crate) out: &'a mut Outbox,
    pub(crate) stats: &'a mut Stats,
}

/// The registrations of one user.
#[derive(Clone, Copy, Debug, Default)]
struct Registered {
    /// CSeq number of the last REGISTER.
    cseq: u32,
    /// Whether a REGISTER is under way.
    busy: bool,
}

/// Most calls in [`GivenUp`].
const GIVEN_UP: usize = 1 << 17;

/// Most busy users that are passed over for an idle one.
const BUSY_USERS: u32 = 64;

/// Calls whose INVITE was given up, by slot and generation. A 2xx may arrive all the same, for 64 × T1.
#[derive(Debug, Default)]
struct GivenUp {
    calls: HashSet<(u32, u32)>,
    until: VecDeque<(Micros, (u32, u32))>,
}

impl GivenUp {
    fn add(&mut self, call: (u32, u32), now: Micros, until: Micros) {
        while let Some((_, old)) = self.until.pop_front_if(|(until, _)| *until <= now).or_else(|| {
            (self.until.len() >= GIVEN_UP)
                .then(|| self.until.pop_front())
                .flatten()
        }) {
            self.calls.remove(&old);
        }
        self.calls.insert(call);
        self.until.push_back((until, call));
    }

    /// Whether the call had been given up. The call is removed.
    fn take(&mut self, call: (u32, u32)) -> bool {
        self.calls.remove(&call)
    }
}

/// The callers' end: all calls.
#[derive(Debug)]
pub(crate) struct Uac {
    plan: Arc<Plan>,
    /// Our address, as in Via and Contact.
    local: Vec<u8>,
    /// Number of this run, as in branches and tags.
    run: [u8; 8],
    calls: Vec<Call>,
    free: Vec<u32>,
    timers: Timers<Timer>,
    next_user: u32,
    /// Registrations of each user, and below the last nonce of each; empty if the plan does not use them.
    registered: Vec<Registered>,
    nonces: Vec<Option<Challenge>>,
    /// The call of each connection, if each call has its own.
    on_link: Vec<u32>,
    given_up: GivenUp,
    reliable: bool,
    t1: Micros,
    /// Buffer for a message that is not kept.
    text: Vec<u8>,
}

impl Uac {
    /// Callers at `local`, an address and port as in Via.
    pub(crate) fn new(plan: Arc<Plan>, local: &str) -> Self {
        let users = plan.users.count() as usize;
        Self {
            local: local.as_bytes().to_vec(),
            run: crate::text::digits(plan.run),
            calls: Vec::new(),
            free: Vec::new(),
            timers: Timers::new(),
            next_user: 0,
            registered: vec![Registered::default(); if plan.kind == Kind::Register { users } else { 0 }],
            nonces: if plan.reuse_nonce {
                vec![None; users]
            } else {
                Vec::new()
            },
            on_link: Vec::new(),
            given_up: GivenUp::default(),
            reliable: plan.transport != Transport::Udp,
            t1: plan.t1.as_micros() as Micros,
            plan,
            text: Vec::new(),
        }
    }

    /// Number of calls that have not ended.
    pub(crate) fn under_way(&self) -> usize {
        self.calls.len() - self.free.len()
    }

    /// When [`Self::wake`] is next to be called.
    pub(crate) fn next(&self) -> Option<Micros> {
        self.timers.next()
    }

    /// Begins a call that was meant for `intended`, by `link`. Returns false if there is no room, or no idle
    /// user.
    pub(crate) fn start(&mut self, turn: &mut Turn<'_>, intended: Micros, link: To) -> bool {
        turn.stats.began(turn.now, intended);
        let Some(slot) = self.take_slot() else {
            turn.stats.ended(turn.now, intended, Err(Cause::GeneratorFull));
            return false;
        };
        let Some(user) = self.take_user() else {
            self.free.push(slot);
            turn.stats.ended(turn.now, intended, Err(Cause::UserBusy));
            return false;
        };
        let cseq = match self.registered.get_mut(user as usize) {
            Some(registered) => {
                registered.cseq += 1;
                registered.cseq
            }
            None => 1,
        };
        let call = &mut self.calls[slot as usize];
        let fresh = Call {
            generation: call.generation.wrapping_add(1),
            state: State::Calling,
            link,
            user,
            intended,
            asked: intended,
            sent: turn.now,
            cseq,
            request: std::mem::take(&mut call.request),
            ack: std::mem::take(&mut call.ack),
            dialog: std::mem::take(&mut call.dialog),
            dialog_to: link,
            ..Call::free()
        };
        *call = fresh;
        if let (Connections::PerCall, To::Connection(connection)) = (self.plan.connections, link) {
            let connection = connection as usize;
            self.on_link
                .resize(self.on_link.len().max(connection + 1), u32::MAX);
            self.on_link[connection] = slot;
        }
        let call = &mut self.calls[slot as usize];
        call.ack.clear();
        call.dialog.clear();
        let mut known = self.nonces.get_mut(user as usize).and_then(Option::take);
        self.write_first(slot, known.as_mut());
        if let Some(kept) = self.nonces.get_mut(user as usize) {
            self.calls[slot as usize].authorized = known.is_some();
            *kept = known;
        }
        self.send(turn, slot);
        true
    }

    /// Takes the next user. No user has two REGISTERs under way: with one Call-ID they would overtake each
    /// other (§10.2.4).
    fn take_user(&mut self) -> Option<u32> {
        let count = self.plan.users.count().max(1);
        for _ in 0..BUSY_USERS.min(count) {
            let user = self.next_user;
            self.next_user = (user + 1) % count;
            match self.registered.get_mut(user as usize) {
                Some(registered) if registered.busy => {}
                Some(registered) => {
                    registered.busy = true;
                    return Some(user);
                }
                None => return Some(user),
            }
        }
        None
    }

    fn take_slot(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let slot = u32::try_from(self.calls.len()).ok()?;
            (slot < self.plan.max_calls).then(|| self.calls.push(Call::free()))?;
            Some(slot)
        })
    }

    /// Sends the request of `slot` for the first time, and starts its timers.
    fn send(&mut self, turn: &mut Turn<'_>, slot: u32) {
        let Some(call) = self.calls.get_mut(slot as usize) else {
            return;
        };
        call.sent = turn.now;
        turn.out.push(call.goes_to(), Some(slot), |out| {
            out.extend_from_slice(&call.request)
        });
        turn.stats.sent.count(method_of(&call.request), 0);
        let (length, kind) = if self.reliable {
            (64 * self.t1, Timer::GiveUp(call.transaction))
        } else {
            (self.t1, Timer::Resend(call.transaction, 1))
        };
        let wake = Wake {
            slot,
            generation: call.generation,
            kind,
        };
        self.timers.start(turn.now, length, wake);
    }

    fn start_timer(&mut self, now: Micros, length: Micros, slot: u32, kind: Timer) {
        let generation = self.calls[slot as usize].generation;
        self.timers.start(
            now,
            length,
            Wake {
                slot,
                generation,
                kind,
            },
        );
    }

    /// Handles the timers that are due.
    pub(crate) fn wake(&mut self, turn: &mut Turn<'_>) {
        while let Some(Wake {
            slot,
            generation,
            kind,
        }) = self.timers.due(turn.now)
        {
            let Some(call) = self.calls.get(slot as usize) else {
                continue;
            };
            if call.generation != generation || call.state == State::Free {
                continue;
            }
            match kind {
                Timer::Resend(transaction, n) if transaction == call.transaction => {
                    self.resend(turn, slot, n)
                }
                Timer::GiveUp(transaction) if transaction == call.transaction && self.waits(slot) => {
                    self.give_up(turn, slot);
                }
                Timer::Ringing(transaction) if transaction == call.transaction => {
                    self.rings_too_long(turn, slot)
                }
                Timer::Cancel(transaction, n) if transaction == call.transaction => {
                    self.cancel_again(turn, slot, n)
                }
                Timer::HangUp if call.state == State::Talking => self.hang_up(turn, slot),
                Timer::Resend(..)
                | Timer::GiveUp(_)
                | Timer::Cancel(..)
                | Timer::Ringing(_)
                | Timer::HangUp => {}
            }
        }
    }

    /// Whether the request under way still waits for a response that its timers guard. An INVITE with a
    /// provisional response waits for as long as it rings.
    fn waits(&self, slot: u32) -> bool {
        matches!(self.calls[slot as usize].state, State::Calling | State::Ending)
    }

    /// Retransmits by timers A and E, and gives up by B and F (§17.1.1.2, §17.1.2.2).
    fn resend(&mut self, turn: &mut Turn<'_>, slot: u32, n: u8) {
        if !self.waits(slot) {
            return;
        }
        let call = &self.calls[slot as usize];
        let until = call.sent + 64 * self.t1;
        if turn.now >= until {
            return self.give_up(turn, slot);
        }
        turn.out.push(call.goes_to(), Some(slot), |out| {
            out.extend_from_slice(&call.request)
        });
        turn.stats.resent.count(method_of(&call.request), 0);
        let doubled = self.t1 << n.min(10);
        let length = if call.is_invite(self.plan.kind) {
            doubled
        } else {
            doubled.min(T2_US.max(self.t1))
        };
        let transaction = call.transaction;
        if n == 1 {
            // Started only now: most requests have their response by now, and need no second timer.
            self.start_timer(turn.now, 63 * self.t1, slot, Timer::GiveUp(transaction));
        }
        if turn.now + length < until {
            let kind = Timer::Resend(transaction, n.saturating_add(1));
            self.start_timer(turn.now, length, slot, kind);
        }
    }

    fn give_up(&mut self, turn: &mut Turn<'_>, slot: u32) {
        let call = &self.calls[slot as usize];
        let cause = if call.spoilt {
            Cause::BadResponse
        } else if call.state == State::Ending {
            Cause::ByeTimeout
        } else {
            Cause::Timeout
        };
        self.end(turn, slot, Err(cause));
    }

    /// Sends CANCEL; the INVITE's own 487 should follow (§9.1). If none comes, the call ends all the same.
    fn rings_too_long(&mut self, turn: &mut Turn<'_>, slot: u32) {
        let call = &self.calls[slot as usize];
        match call.state {
            State::Proceeding => {
                let transaction = call.transaction;
                let call = &mut self.calls[slot as usize];
                call.state = State::Cancelling;
                call.sent = turn.now;
                self.send_cancel(turn, slot);
                turn.stats.sent.count(b"CANCEL", 0);
                self.start_timer(turn.now, 64 * self.t1, slot, Timer::Ringing(transaction));
                if !self.reliable {
                    self.start_timer(turn.now, self.t1, slot, Timer::Cancel(transaction, 1));
                }
            }
            State::Cancelling => self.end(turn, slot, Err(Cause::NoFinal)),
            State::Free | State::Calling | State::Talking | State::Ending => {}
        }
    }

    fn send_cancel(&mut self, turn: &mut Turn<'_>, slot: u32) {
        self.write_cancel(slot);
        let (to, text) = (self.calls[slot as usize].link, &self.text);
        turn.out.push(to, Some(slot), |out| out.extend_from_slice(text));
    }

    /// Retransmits the CANCEL by timers E and F (§17.1.2.2). The INVITE's final response ends them, too.
    fn cancel_again(&mut self, turn: &mut Turn<'_>, slot: u32, n: u8) {
        let call = &self.calls[slot as usize];
        let until = call.sent + 64 * self.t1;
        if call.state != State::Cancelling || call.cancel_answered || turn.now >= until {
            return;
        }
        let transaction = call.transaction;
        self.send_cancel(turn, slot);
        turn.stats.resent.count(b"CANCEL", 0);
        let length = (self.t1 << n.min(10)).min(T2_US.max(self.t1));
        if turn.now + length < until {
            let kind = Timer::Cancel(transaction, n.saturating_add(1));
            self.start_timer(turn.now, length, slot, kind);
        }
    }

    fn hang_up(&mut self, turn: &mut Turn<'_>, slot: u32) {
        let call = &mut self.calls[slot as usize];
        call.state = State::Ending;
        call.cseq += 1;
        call.authorized = false;
        self.write_bye(slot, None);
        self.send(turn, slot);
    }

    /// Ends a call.
    fn end(&mut self, turn: &mut Turn<'_>, slot: u32, outcome: Result<(), Cause>) {
        let call = &mut self.calls[slot as usize];
        let invites = !matches!(call.state, State::Talking | State::Ending) && self.plan.kind.is_invite();
        let refused = matches!(outcome, Err(Cause::Status(300..) | Cause::CredentialsRefused));
        if invites && !refused && outcome.is_err() {
            let until = turn.now + 64 * self.t1;
            self.given_up.add((slot, call.generation), turn.now, until);
        }
        call.state = State::Free;
        if let Some(registered) = self.registered.get_mut(call.user as usize) {
            registered.busy = false;
        }
        turn.stats.ended(turn.now, call.intended, outcome);
        if let (Connections::PerCall, To::Connection(connection)) = (self.plan.connections, call.link) {
            turn.out.closing.push(connection);
        }
        self.free.push(slot);
    }

    /// Ends the calls with a transaction on a lost connection: the transaction has failed (§17.1.4).
    pub(crate) fn lost(&mut self, turn: &mut Turn<'_>, connection: u32, cause: Cause) {
        let slots = match self.plan.connections {
            Connections::Shared(_) => 0..self.calls.len() as u32,
            Connections::PerCall => {
                let slot = self.on_link.get(connection as usize).copied();
                slot.map_or(0..0, |slot| slot..slot.saturating_add(1))
            }
        };
        for slot in slots {
            let Some(call) = self.calls.get(slot as usize) else {
                return;
            };
            let waits = !matches!(call.state, State::Free | State::Talking);
            if waits && call.link == To::Connection(connection) {
                self.end(turn, slot, Err(cause));
            }
        }
    }

    /// Ends the call of a message that could not be delivered, given the message's beginning.
    pub(crate) fn undelivered(&mut self, turn: &mut Turn<'_>, message: &[u8], cause: Cause) {
        if let Some((slot, transaction)) = self.branch_in(message) {
            let call = &self.calls[slot as usize];
            if call.transaction == transaction && self.waits(slot) {
                self.end(turn, slot, Err(cause));
            }
        }
    }

    /// Ends all calls under way as failures, because the time is over.
    pub(crate) fn stop(&mut self, turn: &mut Turn<'_>) {
        for slot in 0..self.calls.len() {
            if self.calls[slot].state != State::Free {
                self.end(turn, slot as u32, Err(Cause::Unfinished));
            }
        }
    }

    /// The measured time of the first request's final response.
    const fn timed(kind: Kind) -> Timed {
        match kind {
            Kind::Call => Timed::Invite,
            Kind::Redirect => Timed::Redirect,
            Kind::Register => Timed::Register,
            Kind::Options => Timed::Options,
            Kind::Message => Timed::Message,
        }
    }
}

/// The method of one of our requests.
fn method_of(request: &[u8]) -> &[u8] {
    let end = request.iter().position(|c| *c == b' ').unwrap_or(0);
    &request[..end]
}

#[cfg(test)]
pub(crate) mod tests;
