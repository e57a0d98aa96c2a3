//! Handling of responses by the callers.

use sip_message::{HeaderName, Message};

use super::{Call, State, Timer, Turn, Uac};
use crate::Micros;
use crate::digest::Challenge;
use crate::outbox::To;
use crate::plan::Kind;
use crate::stats::{Cause, Timed};

impl Uac {
    /// Handles a message that came by `from`.
    pub(crate) fn receive(&mut self, turn: &mut Turn<'_>, from: To, message: &Message<'_>) {
        let Some(status) = message.status() else {
            // Callers receive no requests.
            return turn.stats.ignore("request to a caller");
        };
        let cseq = message.cseq();
        let method = cseq.map_or(&b""[..], |cseq| cseq.method.as_bytes());
        turn.stats.received.count(method, status);
        let via = message.value(HeaderName::Via).unwrap_or_default();
        let Some((slot, transaction)) = self.branch_in(via) else {
            return self.late(turn, from, message, status, method, None);
        };
        let call = &mut self.calls[slot as usize];
        if call.transaction != transaction || matches!(call.state, State::Free | State::Talking) {
            return self.late(turn, from, message, status, method, Some(slot));
        }
        if method == b"CANCEL" {
            call.cancel_answered |= status >= 200;
            return;
        }
        let expected = method_expected(self.plan.kind, call.state);
        let number = cseq.map_or(0, |cseq| cseq.number);
        let sound = message.defect().is_none()
            && (method, number) == (expected, call.cseq)
            && (status == 100 || message.to().is_ok_and(|to| to.tag().is_some()));
        if !sound {
            // Ignored (§18.1.2). If no good response follows, it is the cause of the failure.
            call.spoilt = true;
            return turn.stats.ignore("bad response");
        }
        if status < 200 {
            self.provisional(turn, slot, status);
        } else {
            self.last(turn, slot, message, status);
        }
    }

    fn provisional(&mut self, turn: &mut Turn<'_>, slot: u32, status: u16) {
        let call = &mut self.calls[slot as usize];
        if !call.is_invite(self.plan.kind) {
            // §17.1.2.2: retransmission goes on. An interval of T2 would suffice, and cost no less.
            return;
        }
        if status > 100 && !call.rang {
            call.rang = true;
            turn.stats.time(Timed::Ringing, turn.now, call.asked);
        }
        if call.state == State::Calling {
            call.state = State::Proceeding;
            let transaction = call.transaction;
            let within = self.plan.answer_within.as_micros() as Micros;
            self.start_timer(turn.now, within, slot, Timer::Ringing(transaction));
        }
    }

    /// Handles a final response to the request under way.
    fn last(&mut self, turn: &mut Turn<'_>, slot: u32, message: &Message<'_>, status: u16) {
        let call = &self.calls[slot as usize];
        let (state, kind) = (call.state, self.plan.kind);
        let is_invite = call.is_invite(kind);
        if is_invite && status >= 300 {
            self.acknowledge(turn, slot, message);
        }
        let challenged = matches!(status, 401 | 407) && state != State::Cancelling;
        if challenged && self.authorize(turn, slot, message, status) {
            return;
        }
        let call = &self.calls[slot as usize];
        let outcome = match (state, status) {
            (State::Cancelling, 300..) => Err(Cause::NoFinal),
            (_, 401 | 407) if call.authorized => Err(Cause::CredentialsRefused),
            (State::Ending, 200..=299) => Ok(Timed::Bye),
            (State::Ending, _) => Err(Cause::ByeStatus(status)),
            (_, 200..=299) if kind != Kind::Redirect => Ok(Self::timed(kind)),
            (_, 300..=399) if kind == Kind::Redirect => Ok(Self::timed(kind)),
            _ => Err(Cause::Status(status)),
        };
        let timed = match outcome {
            Ok(timed) => timed,
            Err(cause) => return self.end(turn, slot, Err(cause)),
        };
        let sets_up = is_invite && kind == Kind::Call;
        if sets_up && !self.read_dialog(slot, message) {
            return self.end(turn, slot, Err(Cause::BadResponse));
        }
        turn.stats.time(timed, turn.now, self.calls[slot as usize].asked);
        if sets_up {
            self.answered(turn, slot);
        } else {
            self.end(turn, slot, Ok(()));
        }
    }

    /// Handles the answer to a call: sends ACK, and BYE after the hold time.
    fn answered(&mut self, turn: &mut Turn<'_>, slot: u32) {
        self.write_ack(slot);
        let call = &mut self.calls[slot as usize];
        call.state = State::Talking;
        turn.out
            .push(call.dialog_to, Some(slot), |out| out.extend_from_slice(&call.ack));
        turn.stats.sent.count(b"ACK", 0);
        let hold = self.plan.hold.as_micros() as Micros;
        // The BYE is meant for this time, even if it is sent later.
        call.asked = turn.now + hold;
        if hold == 0 {
            self.hang_up(turn, slot);
        } else {
            self.start_timer(turn.now, hold, slot, Timer::HangUp);
        }
    }

    fn acknowledge(&mut self, turn: &mut Turn<'_>, slot: u32, message: &Message<'_>) {
        self.write_own_ack(message);
        let (to, text) = (self.calls[slot as usize].link, &self.text);
        turn.out.push(to, Some(slot), |out| out.extend_from_slice(text));
        turn.stats.sent.count(b"ACK", 0);
    }

    /// Sends the request again with credentials, and returns whether it did. If nonces are kept, a second
    /// challenge is answered as well, because the nonce may have been stale (RFC 7616 §3.3).
    fn authorize(&mut self, turn: &mut Turn<'_>, slot: u32, message: &Message<'_>, status: u16) -> bool {
        if !self.plan.digest {
            return false;
        }
        let call = &self.calls[slot as usize];
        let kept = self.nonces.get_mut(call.user as usize);
        if call.authorized && kept.as_deref().is_none_or(Option::is_none) {
            return false;
        }
        let Some(mut challenge) = Challenge::read(message, status) else {
            return false;
        };
        turn.stats.time(Timed::Challenge, turn.now, call.asked);
        if call.state == State::Ending {
            self.calls[slot as usize].cseq += 1;
            self.write_bye(slot, Some(&mut challenge));
        } else {
            let call = &mut self.calls[slot as usize];
            call.state = State::Calling;
            call.cseq += 1;
            call.transaction = call.transaction.wrapping_add(1);
            if let Some(registered) = self.registered.get_mut(call.user as usize) {
                registered.cseq = call.cseq;
            }
            self.write_first(slot, Some(&mut challenge));
        }
        let call = &mut self.calls[slot as usize];
        let again = std::mem::replace(&mut call.authorized, true);
        if let Some(kept) = self.nonces.get_mut(call.user as usize) {
            // After a second challenge this request is the last try.
            *kept = if again { None } else { Some(challenge) };
        }
        self.send(turn, slot);
        true
    }

    /// Handles a response to a request that is not under way. A final response to an INVITE is acknowledged
    /// again.
    fn late(
        &mut self,
        turn: &mut Turn<'_>,
        from: To,
        message: &Message<'_>,
        status: u16,
        method: &[u8],
        slot: Option<u32>,
    ) {
        let via = message.value(HeaderName::Via).unwrap_or_default();
        let ours = memchr::memmem::find(via, &self.run).is_some();
        if !ours {
            return turn.stats.ignore("unknown response");
        }
        match (method, status) {
            (b"INVITE", 300..) => {
                self.write_own_ack(message);
                let text = &self.text;
                turn.out.push(from, slot, |out| out.extend_from_slice(text));
                turn.stats.resent.count(b"ACK", 0);
            }
            (b"INVITE", 200..=299) => {
                // §13.2.2.4: each 2xx is acknowledged.
                let known = slot.map(|slot| &self.calls[slot as usize]);
                if let Some(Call { ack, dialog_to, .. }) = known.filter(|call| !call.ack.is_empty()) {
                    turn.out.push(*dialog_to, slot, |out| out.extend_from_slice(ack));
                    turn.stats.resent.count(b"ACK", 0);
                } else if !self.accept_late(turn, from, message, slot) {
                    turn.stats.ignore("bad response");
                }
            }
            (b"BYE", _) if self.is_late_bye(via) => {}
            _ => turn.stats.ignore("late response"),
        }
    }

    /// Sends ACK for a 2xx of an INVITE after its call is over. If the INVITE had been given up, sends BYE
    /// too: the called end has an unwanted dialog (§13.2.2.4, §15).
    ///
    /// The BYE is sent once, also over UDP, and its response is ignored. No call depends on it, and the
    /// called end must end a dialog that stays.
    fn accept_late(
        &mut self,
        turn: &mut Turn<'_>,
        from: To,
        message: &Message<'_>,
        slot: Option<u32>,
    ) -> bool {
        let Some(mut late) = self.late_call(from, message) else {
            return false;
        };
        self.write_late(&mut late, b"ACK");
        let text = &self.text;
        turn.out
            .push(late.call.dialog_to, slot, |out| out.extend_from_slice(text));
        turn.stats.resent.count(b"ACK", 0);
        if self.given_up.take((late.slot, late.call.generation)) {
            self.write_late(&mut late, b"BYE");
            let text = &self.text;
            turn.out
                .push(late.call.dialog_to, slot, |out| out.extend_from_slice(text));
            turn.stats.sent.count(b"BYE", 0);
        }
        true
    }
}

fn method_expected(kind: Kind, state: State) -> &'static [u8] {
    if state == State::Ending {
        b"BYE"
    } else {
        kind.method()
    }
}
