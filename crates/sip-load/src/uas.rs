//! The called end: answers every INVITE with 180 and 200, and repeats the 200 until its ACK arrives (RFC 3261
//! §13.3.1.4). It also answers BYE, CANCEL and all other requests. No sockets and no clock.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::hash::{BuildHasherDefault, Hasher};

use sip_core::transport::Transport;
use sip_message::{HeaderName, Message};

use crate::Micros;
use crate::outbox::To;
use crate::plan::{Callee, Plan, uri_parameter};
use crate::text::{SDP, SDP_TYPE, body, cat, digits, hex8, read_hex8};
use crate::timers::{Timers, Wake};
use crate::uac::{T2_US, Turn};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// 180 was sent.
    Ringing,
    /// 200 was sent, and is repeated until ACK.
    Answered,
    /// 487 was sent, and is repeated until ACK.
    Refused,
    Confirmed,
    /// The dialog is over, and kept to recognize a retransmitted INVITE.
    Ended,
}

#[derive(Debug)]
struct Dialog {
    generation: u32,
    state: State,
    /// Key of the INVITE, by [`key_of`].
    key: u64,
    peer: To,
    since: Micros,
    /// The final response to the INVITE; while the call rings, its future 200.
    answer: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    /// Answer the call.
    PickUp,
    /// Send the final response again, for the n-th time.
    Resend(u8),
    /// 64 × T1 have passed without an ACK.
    GiveUp,
}

/// A hasher that keeps the key, because keys are hashes already.
#[derive(Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

/// The called end.
#[derive(Debug)]
pub(crate) struct Uas {
    contact: Vec<u8>,
    run: [u8; 8],
    t1: Micros,
    ring: Micros,
    reliable: bool,
    dialogs: Vec<Dialog>,
    free: Vec<u32>,
    known: HashMap<u64, u32, BuildHasherDefault<AsItIs>>,
    timers: Timers<Timer>,
    /// Dialogs that have ended, with the times at which they are forgotten, the earliest first.
    ended: VecDeque<(Micros, u32)>,
    most: usize,
    buffers: Vec<Vec<u8>>,
}

/// Most buffers kept for reuse.
const BUFFERS: usize = 4096;

impl Uas {
    /// The called end at `listen`.
    pub(crate) fn new(plan: &Plan, callee: &Callee, listen: std::net::SocketAddr) -> Self {
        let mut contact = Vec::new();
        let transport = uri_parameter(callee.transport);
        cat(
            &mut contact,
            &[
                b"Contact: <sip:uas@",
                listen.to_string().as_bytes(),
                transport.as_bytes(),
                b">\r\n",
            ],
        );
        Self {
            contact,
            run: digits(plan.run),
            t1: plan.t1.as_micros() as Micros,
            ring: callee.ring.as_micros() as Micros,
            reliable: callee.transport != Transport::Udp,
            dialogs: Vec::new(),
            free: Vec::new(),
            known: HashMap::default(),
            timers: Timers::new(),
            ended: VecDeque::new(),
            // Twice the number of calls under way: ended dialogs are kept for 64 × T1.
            most: plan.max_calls as usize * 2,
            buffers: Vec::new(),
        }
    }

    /// When [`Self::wake`] is next to be called.
    pub(crate) fn next(&self) -> Option<Micros> {
        self.timers.next()
    }

    /// Handles a message from `from`.
    pub(crate) fn receive(&mut self, turn: &mut Turn<'_>, from: To, message: &Message<'_>) {
        let Some(method) = message.method() else {
            return turn.stats.ignore("response to the called end");
        };
        let method = method.as_bytes();
        turn.stats.received.count(method, 0);
        if message.defect().is_some() || message.check_mandatory().is_err() {
            return turn.stats.ignore("malformed request");
        }
        match method {
            b"INVITE" => self.invited(turn, from, message),
            b"ACK" => self.acknowledged(turn, message),
            b"BYE" => {
                let slot = self.dialog_of(message);
                if let Some(slot) = slot {
                    self.end(turn, slot);
                }
                // A retransmitted BYE may belong to no dialog any more, and is answered all the same.
                let tag = slot.map(|slot| (slot, self.dialogs[slot as usize].generation));
                self.answer(turn, from, message, b"200 OK", tag, false);
            }
            b"CANCEL" => self.cancelled(turn, from, message),
            _ => self.answer(turn, from, message, b"200 OK", Some((0, 0)), false),
        }
    }

    fn invited(&mut self, turn: &mut Turn<'_>, from: To, message: &Message<'_>) {
        let key = key_of(message);
        if let Some(&slot) = self.known.get(&key) {
            return self.invited_again(turn, slot);
        }
        let Some(slot) = self.take_slot(turn.now) else {
            turn.stats.ignore("more dialogs than the called end may hold");
            return self.answer(
                turn,
                from,
                message,
                b"503 Service Unavailable",
                Some((0, 0)),
                false,
            );
        };
        let answer = self.buffers.pop().unwrap_or_default();
        let dialog = &mut self.dialogs[slot as usize];
        *dialog = Dialog {
            generation: dialog.generation.wrapping_add(1),
            state: State::Ringing,
            key,
            peer: from,
            since: turn.now,
            answer,
        };
        let tag = (slot, dialog.generation);
        self.known.insert(key, slot);
        self.answer(turn, from, message, b"180 Ringing", Some(tag), false);
        // Written now, while the INVITE is available.
        let mut answer = std::mem::take(&mut self.dialogs[slot as usize].answer);
        answer.clear();
        self.write_answer(&mut answer, message, b"200 OK", Some(tag), true);
        self.dialogs[slot as usize].answer = answer;
        if self.ring == 0 {
            self.pick_up(turn, slot);
        } else {
            self.start_timer(turn.now, self.ring, slot, Timer::PickUp);
        }
    }

    /// Repeats the last response (§17.2.1); after the ACK there is none to repeat.
    fn invited_again(&mut self, turn: &mut Turn<'_>, slot: u32) {
        turn.stats.repeated.count(b"INVITE", 0);
        let dialog = &self.dialogs[slot as usize];
        let (peer, answer) = (dialog.peer, &dialog.answer);
        if matches!(dialog.state, State::Confirmed | State::Ended) {
            return;
        }
        turn.out.push(peer, Some(slot), |out| {
            if dialog.state == State::Ringing {
                write_bodiless(out, b"180 Ringing", answer, true);
            } else {
                out.extend_from_slice(answer);
            }
        });
        turn.stats.resent.count(b"INVITE", status_of(dialog.state));
    }

    fn pick_up(&mut self, turn: &mut Turn<'_>, slot: u32) {
        self.send_final(turn, slot, State::Answered);
        self.start_timer(turn.now, self.t1, slot, Timer::Resend(1));
    }

    fn send_final(&mut self, turn: &mut Turn<'_>, slot: u32, state: State) {
        let dialog = &mut self.dialogs[slot as usize];
        dialog.state = state;
        dialog.since = turn.now;
        turn.out.push(dialog.peer, Some(slot), |out| {
            out.extend_from_slice(&dialog.answer)
        });
        turn.stats.sent.count(b"INVITE", status_of(state));
    }

    fn start_timer(&mut self, now: Micros, length: Micros, slot: u32, kind: Timer) {
        let generation = self.dialogs[slot as usize].generation;
        let wake = Wake {
            slot,
            generation,
            kind,
        };
        self.timers.start(now, length, wake);
    }

    fn acknowledged(&mut self, turn: &mut Turn<'_>, message: &Message<'_>) {
        let Some(slot) = self.dialog_of(message) else {
            return turn.stats.ignore("ACK of no dialog");
        };
        let dialog = &mut self.dialogs[slot as usize];
        match dialog.state {
            State::Answered => dialog.state = State::Confirmed,
            State::Refused => self.end(turn, slot),
            State::Confirmed | State::Ended => turn.stats.repeated.count(b"ACK", 0),
            State::Ringing => turn.stats.ignore("ACK before an answer"),
        }
    }

    /// Handles a CANCEL (§9.2).
    fn cancelled(&mut self, turn: &mut Turn<'_>, from: To, message: &Message<'_>) {
        let slot = self.known.get(&key_of(message)).copied();
        let status: &[u8] = if slot.is_some() {
            b"200 OK"
        } else {
            b"481 Call/Transaction Does Not Exist"
        };
        let tag = slot.map_or((0, 0), |slot| (slot, self.dialogs[slot as usize].generation));
        self.answer(turn, from, message, status, Some(tag), false);
        let Some(slot) = slot.filter(|slot| self.dialogs[*slot as usize].state == State::Ringing) else {
            return;
        };
        let dialog = &mut self.dialogs[slot as usize];
        let mut refusal = Vec::new();
        write_bodiless(&mut refusal, b"487 Request Terminated", &dialog.answer, false);
        dialog.answer = refusal;
        self.send_final(turn, slot, State::Refused);
        // §17.2.1 timers G and H.
        if self.reliable {
            self.start_timer(turn.now, 64 * self.t1, slot, Timer::GiveUp);
        } else {
            self.start_timer(turn.now, self.t1, slot, Timer::Resend(1));
        }
    }

    /// Handles the timers that are due, and forgets old dialogs.
    pub(crate) fn wake(&mut self, turn: &mut Turn<'_>) {
        while let Some(Wake {
            slot,
            generation,
            kind,
        }) = self.timers.due(turn.now)
        {
            let dialog = &self.dialogs[slot as usize];
            if dialog.generation != generation {
                continue;
            }
            match (kind, dialog.state) {
                (Timer::PickUp, State::Ringing) => self.pick_up(turn, slot),
                (Timer::Resend(n), State::Answered | State::Refused) => self.resend(turn, slot, n),
                (Timer::GiveUp, State::Answered | State::Refused) => self.give_up(turn, slot),
                _ => {}
            }
        }
        self.forget(turn.now);
    }

    /// Retransmits a 200 on every transport (§13.3.1.4), a 487 over UDP.
    fn resend(&mut self, turn: &mut Turn<'_>, slot: u32, n: u8) {
        let dialog = &self.dialogs[slot as usize];
        let until = dialog.since + 64 * self.t1;
        if turn.now >= until {
            return self.give_up(turn, slot);
        }
        turn.out.push(dialog.peer, Some(slot), |out| {
            out.extend_from_slice(&dialog.answer)
        });
        turn.stats.resent.count(b"INVITE", status_of(dialog.state));
        if n == 1 {
            // Started only now: for most calls the ACK has arrived by now.
            self.start_timer(turn.now, 63 * self.t1, slot, Timer::GiveUp);
        }
        let length = (self.t1 << n.min(10)).min(T2_US.max(self.t1));
        if turn.now + length < until {
            self.start_timer(turn.now, length, slot, Timer::Resend(n.saturating_add(1)));
        }
    }

    fn give_up(&mut self, turn: &mut Turn<'_>, slot: u32) {
        turn.stats.unacknowledged += u64::from(self.dialogs[slot as usize].state == State::Answered);
        self.end(turn, slot);
    }

    fn end(&mut self, turn: &mut Turn<'_>, slot: u32) {
        let dialog = &mut self.dialogs[slot as usize];
        if dialog.state == State::Ended {
            return;
        }
        dialog.state = State::Ended;
        let answer = std::mem::take(&mut dialog.answer);
        if self.buffers.len() < BUFFERS {
            self.buffers.push(answer);
        }
        self.ended.push_back((turn.now + 64 * self.t1, slot));
    }

    /// Releases the dialogs that are past any retransmission of their INVITE.
    fn forget(&mut self, now: Micros) {
        while let Some((_, slot)) = self.ended.pop_front_if(|(due, _)| *due <= now) {
            self.release(slot);
        }
    }

    fn release(&mut self, slot: u32) {
        self.known.remove(&self.dialogs[slot as usize].key);
        self.free.push(slot);
    }

    /// Takes a slot for a dialog. At the limit the dialog that ended first is forgotten before its time.
    fn take_slot(&mut self, now: Micros) -> Option<u32> {
        self.forget(now);
        if self.free.is_empty() && self.dialogs.len() >= self.most {
            let (_, slot) = self.ended.pop_front()?;
            self.release(slot);
        }
        self.free.pop().or_else(|| {
            let slot = u32::try_from(self.dialogs.len()).ok()?;
            self.dialogs.push(Dialog {
                generation: 0,
                state: State::Ended,
                key: 0,
                peer: To::Connection(0),
                since: 0,
                answer: Vec::new(),
            });
            Some(slot)
        })
    }

    /// The dialog of our tag in To.
    fn dialog_of(&self, message: &Message<'_>) -> Option<u32> {
        let tag = message.to().ok()?.tag()?;
        if tag.get(..8)? != self.run {
            return None;
        }
        let (slot, generation) = (read_hex8(tag.get(8..16)?)?, read_hex8(tag.get(16..24)?)?);
        let dialog = self.dialogs.get(slot as usize)?;
        (dialog.generation == generation).then_some(slot)
    }

    fn answer(
        &self,
        turn: &mut Turn<'_>,
        from: To,
        message: &Message<'_>,
        line: &[u8],
        tag: Option<(u32, u32)>,
        sdp: bool,
    ) {
        // Responses outside of a call have 0 for both.
        let call = tag.filter(|tag| *tag != (0, 0)).map(|(slot, _)| slot);
        turn.out
            .push(from, call, |out| self.write_answer(out, message, line, tag, sdp));
        let status = line
            .iter()
            .take(3)
            .fold(0, |n, digit| 10 * n + u16::from(digit.wrapping_sub(b'0')));
        let method = message.method().map_or(&b""[..], |m| m.as_bytes());
        turn.stats.sent.count(method, status);
    }

    fn write_answer(
        &self,
        out: &mut Vec<u8>,
        message: &Message<'_>,
        line: &[u8],
        tag: Option<(u32, u32)>,
        sdp: bool,
    ) {
        cat(out, &[b"SIP/2.0 ", line, b"\r\n"]);
        const COPIED: [HeaderName; 5] = [
            HeaderName::Via,
            HeaderName::RecordRoute,
            HeaderName::From,
            HeaderName::CallId,
            HeaderName::CSeq,
        ];
        for field in message.fields() {
            if COPIED.contains(&field.name) {
                out.extend_from_slice(message.text(field.start as usize..field.end as usize));
            } else if field.name == HeaderName::To {
                cat(out, &[b"To: ", message.field_value(field)]);
                let tagged = message.to().is_ok_and(|to| to.tag().is_some());
                if let Some((slot, generation)) = tag.filter(|_| !tagged) {
                    cat(out, &[b";tag=", &self.run]);
                    hex8(out, slot);
                    hex8(out, generation);
                }
                out.extend_from_slice(b"\r\n");
            }
        }
        out.extend_from_slice(&self.contact);
        if sdp {
            body(out, SDP_TYPE, SDP);
        } else {
            body(out, "", b"");
        }
    }
}

/// The status of the last response in this state.
const fn status_of(state: State) -> u16 {
    match state {
        State::Ringing => 180,
        State::Refused => 487,
        State::Answered | State::Confirmed | State::Ended => 200,
    }
}

/// Writes another response to the INVITE of `ok`: with this status line, and without a body.
fn write_bodiless(out: &mut Vec<u8>, line: &[u8], ok: &[u8], contact: bool) {
    let after = |from: usize| memchr::memchr(b'\n', ok.get(from..)?).map(|at| from + at + 1);
    let fields = after(0).unwrap_or(ok.len());
    let contact_at = memchr::memmem::rfind(ok, b"\r\nContact: ").map_or(ok.len(), |at| at + 2);
    let end = if contact {
        after(contact_at).unwrap_or(ok.len())
    } else {
        contact_at
    };
    cat(
        out,
        &[
            b"SIP/2.0 ",
            line,
            b"\r\n",
            ok.get(fields..end).unwrap_or_default(),
        ],
    );
    body(out, "", b"");
}

/// A key for an INVITE, its retransmissions and its CANCEL, from Call-ID and CSeq number.
fn key_of(message: &Message<'_>) -> u64 {
    let mut hasher = siphasher::sip::SipHasher13::new();
    hasher.write(message.call_id().unwrap_or_default());
    hasher.write_u32(message.cseq().map_or(0, |cseq| cseq.number));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sip_message::{HeaderIndex, parse};

    use super::*;
    use crate::outbox::Outbox;
    use crate::plan::Kind;
    use crate::stats::Stats;

    const SECOND: Micros = 1_000_000;
    const PEER: To = To::Connection(3);

    struct Bench {
        uas: Uas,
        now: Micros,
        out: Outbox,
        stats: Stats,
    }

    impl Bench {
        fn new(ring: Duration) -> Self {
            Self::over(Transport::Tcp, ring)
        }

        fn over(transport: Transport, ring: Duration) -> Self {
            let plan = crate::uac::tests::plan(Kind::Call, Transport::Udp);
            let listen = ([192, 0, 2, 7], 5070).into();
            let callee = Callee {
                listen,
                transport,
                ring,
            };
            Self {
                uas: Uas::new(&plan, &callee, listen),
                now: 0,
                out: Outbox::default(),
                stats: Stats::new(0..1000 * SECOND),
            }
        }

        #[track_caller]
        fn with(&mut self, act: impl FnOnce(&mut Uas, &mut Turn<'_>)) -> Vec<String> {
            let mut turn = Turn {
                now: self.now,
                out: &mut self.out,
                stats: &mut self.stats,
            };
            act(&mut self.uas, &mut turn);
            let sent = (0..self.out.len()).filter_map(|i| self.out.get(i));
            let text = |(to, bytes): (To, &[u8])| {
                assert_eq!(to, PEER);
                String::from_utf8(bytes.to_vec()).unwrap()
            };
            let sent = sent.map(text).collect();
            self.out.clear();
            sent
        }

        #[track_caller]
        fn get(&mut self, request: &str) -> Vec<String> {
            let mut index = HeaderIndex::new();
            let message = parse(request.as_bytes(), &mut index, 64).unwrap();
            self.with(|uas, turn| uas.receive(turn, PEER, &message))
        }

        /// Lets time pass. Returns the status lines sent, with their times.
        fn pass(&mut self, until: Micros) -> Vec<(Micros, String)> {
            let mut all = Vec::new();
            while let Some(at) = self.uas.next().filter(|at| *at <= until) {
                self.now = at;
                let sent = self.with(|uas, turn| uas.wake(turn));
                all.extend(sent.into_iter().map(|text| (at, line(&text).to_owned())));
            }
            self.now = until;
            all
        }
    }

    fn request(method: &str, call: &str, tag: &str) -> String {
        format!(
            "{method} sip:uas@192.0.2.7:5070 SIP/2.0\r\nVia: SIP/2.0/TCP p;branch=z9hG4bKp\r\n\
             Via: SIP/2.0/TCP c;branch=z9hG4bKc\r\nMax-Forwards: 69\r\nRecord-Route: <sip:p;lr>\r\n\
             From: <sip:a@b>;tag=a\r\nTo: <sip:u@b>{tag}\r\nCall-ID: {call}\r\nCSeq: 1 {method}\r\n\
             Content-Length: 0\r\n\r\n"
        )
    }

    #[track_caller]
    fn line(message: &str) -> &str {
        message.lines().next().unwrap()
    }

    #[track_caller]
    fn tag_of(message: &str) -> String {
        let to = message.lines().find(|l| l.starts_with("To: ")).unwrap();
        format!(";tag={}", to.split_once(";tag=").unwrap().1)
    }

    #[test]
    fn a_call_is_answered_until_it_is_acknowledged() {
        let mut b = Bench::new(Duration::ZERO);
        let sent = b.get(&request("INVITE", "1", ""));
        let lines: Vec<_> = sent.iter().map(|s| line(s)).collect();
        assert_eq!(lines, ["SIP/2.0 180 Ringing", "SIP/2.0 200 OK"]);
        assert_eq!(tag_of(&sent[0]), tag_of(&sent[1]));
        assert!(
            sent[1].contains("Via: SIP/2.0/TCP p;branch=z9hG4bKp\r\nVia: SIP/2.0/TCP c;branch=z9hG4bKc\r\n")
        );
        assert!(sent[1].contains("Record-Route: <sip:p;lr>\r\n") && sent[1].ends_with("a=inactive\r\n"));
        assert!(sent[1].contains("Contact: <sip:uas@192.0.2.7:5070;transport=tcp>\r\n"));
        // §13.3.1.4: T1, doubled up to T2.
        let sent_again = b.pass(8 * SECOND);
        let halves: Vec<_> = sent_again.iter().map(|(at, _)| at * 2 / SECOND).collect();
        assert_eq!(halves, [1, 3, 7, 15]);
        assert!(b.get(&request("ACK", "1", &tag_of(&sent[1]))).is_empty());
        assert!(b.pass(100 * SECOND).is_empty());
        assert_eq!(
            (b.stats.unacknowledged, b.stats.resent.count_of(b"INVITE", 200)),
            (0, 4)
        );
        assert_eq!(
            line(&b.get(&request("BYE", "1", &tag_of(&sent[1])))[0]),
            "SIP/2.0 200 OK"
        );
        assert_eq!(
            line(&b.get(&request("BYE", "1", &tag_of(&sent[1])))[0]),
            "SIP/2.0 200 OK",
            "again"
        );
    }

    #[test]
    fn without_an_ack_it_gives_up() {
        let mut b = Bench::new(Duration::ZERO);
        b.get(&request("INVITE", "1", ""));
        b.pass(32 * SECOND - 1);
        assert_eq!(b.stats.unacknowledged, 0);
        assert!(b.pass(100 * SECOND).is_empty());
        assert_eq!(b.stats.unacknowledged, 1);
    }

    #[test]
    fn an_invite_that_comes_again_is_no_other_call() {
        let mut b = Bench::new(Duration::ZERO);
        let first = b.get(&request("INVITE", "1", ""));
        assert_eq!(b.get(&request("INVITE", "1", "")), first[1..]);
        assert_eq!(b.stats.repeated.count_of(b"INVITE", 0), 1);
        let other = b.get(&request("INVITE", "2", ""));
        assert_ne!(tag_of(&first[1]), tag_of(&other[1]));
        // An ended dialog is known for as long as its INVITE may be retransmitted, and no longer.
        b.get(&request("BYE", "1", &tag_of(&first[1])));
        assert!(b.get(&request("INVITE", "1", "")).is_empty());
        b.pass(33 * SECOND);
        b.with(|uas, turn| uas.wake(turn));
        assert_eq!(b.get(&request("INVITE", "1", "")).len(), 2);
    }

    #[test]
    fn it_rings_and_can_be_cancelled_meanwhile() {
        let mut b = Bench::new(Duration::from_secs(3));
        let sent = b.get(&request("INVITE", "1", ""));
        assert_eq!(
            sent.iter().map(|s| line(s)).collect::<Vec<_>>(),
            ["SIP/2.0 180 Ringing"]
        );
        let sent = b.get(&request("CANCEL", "1", ""));
        assert_eq!(line(&sent[0]), "SIP/2.0 200 OK");
        assert_eq!(line(&sent[1]), "SIP/2.0 487 Request Terminated");
        assert!(sent[1].contains("CSeq: 1 INVITE\r\n") && sent[1].ends_with("Content-Length: 0\r\n\r\n"));
        assert!(b.pass(100 * SECOND).is_empty(), "nobody picks up");
        // A call that is not cancelled is answered in time.
        let mut b = Bench::new(Duration::from_secs(3));
        b.get(&request("INVITE", "1", ""));
        assert_eq!(b.pass(3 * SECOND), [(3 * SECOND, "SIP/2.0 200 OK".to_owned())]);
        assert_eq!(
            b.get(&request("CANCEL", "1", "")).len(),
            1,
            "too late: its own answer only"
        );
        assert!(line(&b.get(&request("CANCEL", "2", ""))[0]).starts_with("SIP/2.0 481"));
    }

    #[test]
    fn an_invite_that_comes_again_gets_the_last_answer_again() {
        let mut b = Bench::over(Transport::Udp, Duration::from_secs(3));
        let rings = b.get(&request("INVITE", "1", ""));
        assert_eq!(b.get(&request("INVITE", "1", "")), rings, "it still rings");
        b.pass(3 * SECOND);
        let answered = b.get(&request("INVITE", "1", ""));
        assert_eq!(line(&answered[0]), "SIP/2.0 200 OK");
        assert_eq!(tag_of(&answered[0]), tag_of(&rings[0]));
        b.get(&request("ACK", "1", &tag_of(&rings[0])));
        assert!(b.get(&request("INVITE", "1", "")).is_empty(), "it is set up");
        let resent = [180, 200].map(|status| b.stats.resent.count_of(b"INVITE", status));
        assert_eq!((resent, b.stats.repeated.count_of(b"INVITE", 0)), ([1, 1], 3));
        // A call that was cancelled.
        b.get(&request("INVITE", "2", ""));
        let refused = b.get(&request("CANCEL", "2", "")).remove(1);
        assert_eq!(b.get(&request("INVITE", "2", "")), [refused]);
    }

    /// §17.2.1 timers G and H.
    #[test]
    fn a_refusal_is_sent_again_until_it_is_acknowledged() {
        let halves: Vec<u64> = vec![1, 3, 7, 15, 23, 31, 39, 47, 55, 63];
        for (transport, expected) in [(Transport::Udp, halves), (Transport::Tcp, Vec::new())] {
            let mut b = Bench::over(transport, Duration::from_secs(300));
            b.get(&request("INVITE", "1", ""));
            b.get(&request("CANCEL", "1", ""));
            let again = b.pass(31_999_999);
            assert!(
                again
                    .iter()
                    .all(|(_, text)| text == "SIP/2.0 487 Request Terminated")
            );
            let at: Vec<_> = again.iter().map(|(at, _)| at * 2 / SECOND).collect();
            assert_eq!(at, expected, "{transport:?}");
            assert_eq!(b.get(&request("INVITE", "1", "")).len(), 1);
            assert!(b.pass(200 * SECOND).is_empty());
            assert_eq!(b.stats.unacknowledged, 0, "it was no call");
            let tag = tag_of(&b.get(&request("INVITE", "2", ""))[0]);
            b.get(&request("CANCEL", "2", ""));
            b.get(&request("ACK", "2", &tag));
            assert!(b.get(&request("INVITE", "2", "")).is_empty());
            assert!(b.pass(250 * SECOND).is_empty());
        }
    }

    #[test]
    fn everything_else_is_answered_and_dialogs_are_bounded() {
        let mut b = Bench::new(Duration::ZERO);
        for method in ["OPTIONS", "MESSAGE", "INFO"] {
            assert_eq!(line(&b.get(&request(method, "1", ""))[0]), "SIP/2.0 200 OK");
        }
        // There is room for four dialogs, twice the plan's two calls at a time.
        let tags: Vec<_> = (0..4)
            .map(|n| tag_of(&b.get(&request("INVITE", &format!("c{n}"), ""))[1]))
            .collect();
        assert_eq!(
            line(&b.get(&request("INVITE", "c4", ""))[0]),
            "SIP/2.0 503 Service Unavailable"
        );
        b.get(&request("BYE", "c0", &tags[0]));
        assert_eq!(
            b.get(&request("INVITE", "c4", "")).len(),
            2,
            "who has ended makes room"
        );
        // The slot's former dialog is not the present one.
        b.get(&request("ACK", "c0", &tags[0]));
        assert_eq!(b.stats.ignored.get("ACK of no dialog"), Some(&1));
    }
}
