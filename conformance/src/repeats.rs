//! What a user agent does about datagrams that are lost or come twice: it sends again what has no
//! answer, and passes over copies (RFC 3261 §13.3.1.4, §17). No socket and no clock.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::Message;

/// The estimate of a round trip: first interval between copies (RFC 3261 §17.1.1.1).
pub(crate) const T1: Duration = Duration::from_millis(500);
/// The longest interval between copies of anything but an INVITE.
const T2: Duration = Duration::from_secs(4);
/// How long anything is sent again: 64 times T1.
const GIVE_UP: Duration = Duration::from_secs(32);

/// The repetitions of one user agent. `W` says where a message goes.
#[derive(Debug)]
pub(crate) struct Repeats<W> {
    /// What has come, without what differs between copies.
    seen: HashSet<String>,
    open: Vec<Open<W>>,
    /// The last response to each request that came, by the key of its transaction.
    responses: HashMap<String, (Vec<u8>, W)>,
    /// ACKs, by the key of their call.
    acks: HashMap<String, (Vec<u8>, W)>,
}

/// A message that is sent again until it has its answer.
#[derive(Debug)]
struct Open<W> {
    /// Of a request: the key of its transaction. Of a response to INVITE: that of its call.
    key: String,
    is_response: bool,
    is_invite: bool,
    bytes: Vec<u8>,
    way: W,
    at: Instant,
    interval: Duration,
    until: Instant,
}

/// Branch and method: what a copy shares with the first. A CANCEL has the branch of its INVITE.
fn transaction_of(message: &Message) -> Option<String> {
    let branch = message.branch();
    let method = message.cseq_method();
    (!branch.is_empty() && !method.is_empty()).then(|| format!("{branch} {method}"))
}

/// What an ACK shares with its INVITE and all responses to that, within one user agent.
fn call_of(message: &Message) -> String {
    let number = message.header("cseq").split(' ').next().unwrap_or_default();
    format!("{} {number}", message.header("call-id"))
}

/// Whether copies of this pass through a proxy: it sends on each 1xx and each 2xx to an INVITE, and each
/// ACK of a 2xx, whatever the transport at the other side.
fn goes_end_to_end(message: &Message) -> bool {
    match message.status() {
        0 => message.cseq_method() == "ACK",
        status => status < 300 && message.cseq_method() == "INVITE",
    }
}

/// What all copies have in common. A transaction has one final response, but several 2xx to an INVITE that
/// was forked (RFC 3261 §13.2.2.4); a challenge made without state differs from copy to copy.
fn shared_by_copies(message: &Message, transaction: &str) -> String {
    let to = message.header("to");
    match message.status() {
        0 => transaction.to_owned(),
        status @ 1..200 => format!("{transaction} {status} {to}"),
        200..300 if message.cseq_method() == "INVITE" => format!("{transaction} 2xx {to}"),
        _ => format!("{transaction} final"),
    }
}

impl<W: Copy> Repeats<W> {
    pub(crate) fn new() -> Self {
        Self {
            seen: HashSet::new(),
            open: Vec::new(),
            responses: HashMap::new(),
            acks: HashMap::new(),
        }
    }

    /// Takes note of a message that is sent for the first time. Over a reliable transport only what
    /// goes end to end may have to be sent again.
    pub(crate) fn sent(&mut self, bytes: &[u8], way: W, is_reliable: bool, now: Instant) {
        let message = Message::parse(bytes);
        let Some(key) = transaction_of(&message) else {
            return;
        };
        if is_reliable && !goes_end_to_end(&message) {
            return;
        }
        let (status, method) = (message.status(), message.cseq_method());
        let (is_response, is_invite) = (status > 0, method == "INVITE");
        if method == "ACK" {
            self.acks.insert(call_of(&message), (bytes.to_vec(), way));
            return;
        }
        if is_response {
            self.responses.insert(key.clone(), (bytes.to_vec(), way));
            if !is_invite || status < 200 {
                return;
            }
        }
        self.open.push(Open {
            key: if is_response { call_of(&message) } else { key },
            is_response,
            is_invite,
            bytes: bytes.to_vec(),
            way,
            at: now + T1,
            interval: T1,
            until: now + GIVE_UP,
        });
    }

    /// Takes note of a message that came. `None`: it is new. Else it is a copy, with what is sent again
    /// for it.
    pub(crate) fn heard(&mut self, message: &Message, is_reliable: bool) -> Option<Vec<(Vec<u8>, W)>> {
        let transaction = transaction_of(message)?;
        self.close(message, &transaction);
        let status = message.status();
        let is_copy = !self.seen.insert(shared_by_copies(message, &transaction));
        if !is_copy || (is_reliable && !goes_end_to_end(message)) {
            return None;
        }
        let again = if status == 0 {
            self.responses.get(&transaction)
        } else if status >= 200 && message.cseq_method() == "INVITE" {
            self.acks.get(&call_of(message))
        } else {
            None
        };
        Some(again.cloned().into_iter().collect())
    }

    /// Ends what this message is the answer to.
    fn close(&mut self, message: &Message, transaction: &str) {
        let status = message.status();
        if status == 0 {
            if message.cseq_method() == "ACK" {
                let call = call_of(message);
                self.open.retain(|open| !open.is_response || open.key != call);
            }
            return;
        }
        // §17.1.1.2: a provisional response ends the copies of an INVITE, of nothing else.
        let ends = |open: &Open<W>| !open.is_response && open.key == transaction;
        self.open
            .retain(|open| !ends(open) || (status < 200 && !open.is_invite));
    }

    /// What is due to be sent again.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<(Vec<u8>, W)> {
        self.open.retain(|open| now < open.until);
        let mut due = Vec::new();
        for open in self.open.iter_mut().filter(|open| open.at <= now) {
            open.interval *= 2;
            if open.is_response || !open.is_invite {
                open.interval = open.interval.min(T2);
            }
            open.at = now + open.interval;
            due.push((open.bytes.clone(), open.way));
        }
        due
    }

    /// When something is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.open.iter().map(|open| open.at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(first_line: &str, cseq: &str, to: &str) -> Vec<u8> {
        format!(
            "{first_line}\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bKa;rport\r\nCall-ID: call\r\nCSeq: {cseq}\r\n\
             To: <sip:bob@example.com>{to}\r\nContent-Length: 0\r\n\r\n"
        )
        .into_bytes()
    }

    fn heard(repeats: &mut Repeats<()>, bytes: &[u8], is_reliable: bool) -> Option<usize> {
        let again = repeats.heard(&Message::parse(bytes), is_reliable);
        again.map(|again| again.len())
    }

    #[test]
    fn a_request_is_sent_again_until_its_answer() {
        let start = Instant::now();
        let mut repeats = Repeats::new();
        repeats.sent(&message("BYE sip:a SIP/2.0", "2 BYE", ""), (), false, start);
        repeats.sent(&message("INVITE sip:a SIP/2.0", "1 INVITE", ""), (), false, start);
        assert_eq!(repeats.next(), Some(start + T1));
        assert_eq!(repeats.due(start + T1).len(), 2);
        assert_eq!(repeats.next(), Some(start + 3 * T1));
        // A 100 is enough for the INVITE only.
        for cseq in ["1 INVITE", "2 BYE"] {
            assert_eq!(
                heard(&mut repeats, &message("SIP/2.0 100 Trying", cseq, ""), false),
                None
            );
        }
        assert_eq!(repeats.due(start + 3 * T1).len(), 1);
        let answer = message("SIP/2.0 200 OK", "2 BYE", ";tag=b");
        assert_eq!(heard(&mut repeats, &answer, false), None);
        assert_eq!(heard(&mut repeats, &answer, false), Some(0), "a copy");
        assert_eq!(repeats.next(), None);
    }

    #[test]
    fn a_copy_of_an_answer_has_its_ack_again() {
        let mut repeats = Repeats::new();
        let answer = message("SIP/2.0 200 OK", "1 INVITE", ";tag=b");
        assert_eq!(heard(&mut repeats, &answer, true), None);
        repeats.sent(
            &message("ACK sip:a SIP/2.0", "1 ACK", ";tag=b"),
            (),
            true,
            Instant::now(),
        );
        assert_eq!(heard(&mut repeats, &answer, true), Some(1));
        let other = message("SIP/2.0 200 OK", "1 INVITE", ";tag=c");
        assert_eq!(heard(&mut repeats, &other, true), None, "of another callee");
        // Hop by hop, and over a connection: there are no copies.
        let busy = message("SIP/2.0 486 Busy Here", "1 INVITE", ";tag=b");
        assert_eq!(heard(&mut repeats, &busy, true), None);
        assert_eq!(heard(&mut repeats, &busy, true), None);
    }

    #[test]
    fn a_final_answer_is_sent_again_until_its_ack() {
        let start = Instant::now();
        let mut repeats = Repeats::new();
        let invite = message("INVITE sip:a SIP/2.0", "1 INVITE", "");
        assert_eq!(heard(&mut repeats, &invite, false), None);
        repeats.sent(
            &message("SIP/2.0 180 Ringing", "1 INVITE", ";tag=b"),
            (),
            false,
            start,
        );
        assert_eq!(heard(&mut repeats, &invite, false), Some(1));
        assert_eq!(repeats.next(), None);
        repeats.sent(&message("SIP/2.0 200 OK", "1 INVITE", ";tag=b"), (), false, start);
        assert_eq!(repeats.due(start + T1).len(), 1);
        let ack = message("ACK sip:a SIP/2.0", "1 ACK", ";tag=b");
        assert_eq!(heard(&mut repeats, &ack, false), None);
        assert_eq!(repeats.next(), None);
    }
}
