//! A client that sends exactly what a test wrote, for what no well-behaved peer would send. Below that it
//! does as any user agent does: over UDP it sends requests again while it waits for the answer, and a test
//! never sees a message twice.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use crate::link::{Link, Reading};
use crate::repeats::Repeats;
use crate::{DOMAIN, PATIENCE, Scene, Transport};

/// One way to the server.
#[derive(Debug)]
pub struct Client {
    link: Link,
    /// What Via and Contact name: this end's address, or a made-up name if no peer can connect to it (RFC
    /// 7118 §5).
    host: String,
    pending: Vec<u8>,
    repeats: Repeats<()>,
    sends_once: bool,
}

/// A message as text: first line, then headers in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Request or status line.
    pub first_line: String,
    /// Names in lower case, values trimmed.
    pub headers: Vec<(String, String)>,
    /// What follows the empty line.
    pub body: String,
}

impl Message {
    /// Takes the first whole message off what a stream gave.
    pub(crate) fn take(pending: &mut Vec<u8>) -> Option<Vec<u8>> {
        let end = pending.windows(4).position(|w| w == b"\r\n\r\n")?;
        let length = Self::parse(&pending[..end])
            .header("content-length")
            .parse()
            .unwrap_or(0);
        let total = end + 4 + length;
        (pending.len() >= total).then(|| pending.drain(..total).collect())
    }

    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let mut lines = head.split("\r\n");
        let first_line = lines.next().unwrap_or_default().to_owned();
        let headers = lines.filter_map(|l| l.split_once(':'));
        let headers = headers
            .map(|(n, v)| (n.trim().to_ascii_lowercase(), v.trim().to_owned()))
            .collect();
        Self {
            first_line,
            headers,
            body: body.to_owned(),
        }
    }

    /// Status code of a response; 0 for a request.
    pub fn status(&self) -> u16 {
        let code = self
            .first_line
            .strip_prefix("SIP/2.0 ")
            .and_then(|rest| rest.get(..3));
        code.and_then(|c| c.parse().ok()).unwrap_or(0)
    }

    /// The branch of the topmost Via; empty where there is none.
    pub fn branch(&self) -> &str {
        let value = self.header("via").split("branch=").nth(1).unwrap_or_default();
        value.split([';', ',', ' ']).next().unwrap_or_default()
    }

    /// The method that CSeq names; empty where there is none.
    pub fn cseq_method(&self) -> &str {
        self.header("cseq").split_whitespace().nth(1).unwrap_or_default()
    }

    /// The first header of this name (lower case); empty where there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map_or("", |(_, v)| v.as_str())
    }

    /// Every header of this name (lower case).
    pub fn all(&self, name: &str) -> Vec<&str> {
        let found = self.headers.iter().filter(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str()).collect()
    }

    /// Record-Route values in order, each as one value, however they were written.
    pub fn routes(&self) -> Vec<String> {
        self.values("record-route")
    }

    /// The same of Via.
    pub fn vias(&self) -> Vec<String> {
        self.values("via")
    }

    /// For headers that have no quoted strings with commas.
    fn values(&self, name: &str) -> Vec<String> {
        let values = self.all(name);
        let split = values.iter().flat_map(|value| value.split(','));
        split.map(|value| value.trim().to_owned()).collect()
    }

    /// The URI in the first Contact.
    pub fn contact_uri(&self) -> String {
        let contact = self.header("contact");
        let uri = contact.split(['<', '>']).nth(1).unwrap_or(contact);
        uri.to_owned()
    }

    /// The first challenge; empty where there is none.
    fn first_challenge(&self) -> &str {
        match self.header("www-authenticate") {
            "" => self.header("proxy-authenticate"),
            value => value,
        }
    }

    /// A parameter of a challenge that is not quoted; empty where there is none.
    pub fn challenge_token(&self, parameter: &str) -> &str {
        let value = self.first_challenge().split(&format!("{parameter}=")).nth(1);
        let value = value.and_then(|v| v.split([',', ' ']).next());
        value.unwrap_or("")
    }

    /// A quoted parameter of a challenge.
    pub fn challenge(&self, parameter: &str) -> &str {
        self.first_challenge()
            .split(&format!("{parameter}=\""))
            .nth(1)
            .and_then(|v| v.split('"').next())
            .unwrap_or("")
    }
}

impl Client {
    /// Binds (and connects) on the scene's address, over UDP or TCP.
    ///
    /// # Panics
    /// When that fails.
    pub fn new(scene: &Scene, transport: Transport, port: u16, server: SocketAddr) -> Self {
        let port = if transport == Transport::Udp { port } else { 0 };
        Self::over(Link::open(transport, scene.at(port), server, None).expect("connecting"))
    }

    /// Over a way that is open.
    pub fn over(link: Link) -> Self {
        let local = link.local();
        let host = if link.transport().is_websocket() {
            format!("client{}.invalid", local.port())
        } else {
            local.to_string()
        };
        Self {
            link,
            host,
            pending: Vec::new(),
            repeats: Repeats::new(),
            sends_once: false,
        }
    }

    /// Sends nothing again, for a server that counts what comes.
    pub fn sending_once(mut self) -> Self {
        self.sends_once = true;
        self
    }

    /// The address that it sends from.
    pub fn local(&self) -> SocketAddr {
        self.link.local()
    }

    /// Over what it sends.
    pub fn transport(&self) -> Transport {
        self.link.transport()
    }

    /// Host and port, as its Via and its Contact name them.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Sends a message written with plain line ends and without Via, Content-Length or a body.
    #[track_caller]
    pub fn send(&mut self, text: &str, branch: &str) {
        self.send_with_body(text, branch, "");
    }

    /// The same with a body; its type is one of the headers.
    #[track_caller]
    pub fn send_with_body(&mut self, text: &str, branch: &str, body: &str) {
        let message = self.written(text, branch, body);
        self.send_bytes(message.as_bytes());
    }

    fn written(&self, text: &str, branch: &str, body: &str) -> String {
        let (first, rest) = text.trim().split_once('\n').expect("a first line and headers");
        let via = format!(
            "Via: SIP/2.0/{} {};branch=z9hG4bK{branch};rport",
            self.transport().via(),
            self.host
        );
        let headers: String = rest.lines().map(|l| format!("{}\r\n", l.trim())).collect();
        format!(
            "{}\r\n{via}\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            first.trim(),
            body.len()
        )
    }

    /// Sends these bytes.
    ///
    /// # Panics
    /// When the server has closed the connection.
    #[track_caller]
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.note_sent(bytes);
        self.link.send(bytes).expect("sending");
    }

    fn note_sent(&mut self, bytes: &[u8]) {
        self.repeats.sent(bytes, (), self.is_reliable(), Instant::now());
    }

    fn is_reliable(&self) -> bool {
        self.transport() != Transport::Udp
    }

    /// The next message that is no copy of one before.
    ///
    /// # Panics
    /// When none comes, the server closes the connection, or a WebSocket message is not one message of
    /// SIP (RFC 7118 §5).
    #[track_caller]
    pub fn receive(&mut self) -> Message {
        self.receive_unless_closed()
            .expect("the server closed the connection")
    }

    /// The same; `None` where the server closes the connection.
    ///
    /// # Panics
    /// When nothing comes, or a WebSocket message is not one message of SIP.
    #[track_caller]
    pub fn receive_unless_closed(&mut self) -> Option<Message> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            while let Some(message) = Message::take(&mut self.pending) {
                let whole = self.pending.is_empty() || !self.transport().is_websocket();
                assert!(whole, "more than one message in one of WebSocket");
                let message = Message::parse(&message);
                match self.repeats.heard(&message, self.is_reliable()) {
                    None => return Some(message),
                    Some(again) => self.send_again(again),
                }
            }
            let part = !self.pending.is_empty() && self.transport().is_websocket();
            assert!(!part, "a part of a message in one of WebSocket");
            let now = Instant::now();
            assert!(now < deadline, "no answer from the server");
            let due = self.repeats.due(now);
            self.send_again(due);
            let until = self.repeats.next().map_or(deadline, |next| next.min(deadline));
            match self.link.read_until(until) {
                Reading::Bytes(bytes) => {
                    // Keep-alives (RFC 5626 §4.4.1).
                    if bytes != b"\r\n" && bytes != b"\r\n\r\n" {
                        self.pending.extend_from_slice(&bytes);
                    }
                }
                Reading::Nothing => {}
                Reading::Closed => return None,
            }
        }
    }

    fn send_again(&mut self, messages: Vec<(Vec<u8>, ())>) {
        for (bytes, ()) in messages.into_iter().filter(|_| !self.sends_once) {
            // A connection that is gone is seen by the next reading.
            let _ = self.link.send(&bytes);
        }
    }

    /// Sends an INVITE for `sip:USER@example.com` with this Call-ID, which is also the branch.
    pub fn invite(&mut self, user: &str, call: &str) {
        let text = format!(
            "INVITE sip:{user}@{DOMAIN} SIP/2.0\nMax-Forwards: 70\nFrom: <sip:alice@{DOMAIN}>;tag=caller\n\
             To: <sip:{user}@{DOMAIN}>\nCall-ID: {call}\nCSeq: 1 INVITE\n\
             Contact: <sip:alice@{};transport={}>",
            self.host,
            self.transport().name()
        );
        self.send(&text, call);
    }

    /// Acknowledges the final answer to [`Self::invite`]: a 2xx within its dialog, any other in its transaction.
    pub fn acknowledge(&mut self, user: &str, call: &str, answer: &Message) {
        if answer.status() < 300 {
            self.in_dialog("ACK", 1, call, answer);
            return;
        }
        let text = format!(
            "ACK sip:{user}@{DOMAIN} SIP/2.0\nMax-Forwards: 70\nFrom: <sip:alice@{DOMAIN}>;tag=caller\n\
             To: {}\nCall-ID: {call}\nCSeq: 1 ACK",
            answer.header("to")
        );
        self.send(&text, call);
    }

    /// Takes [`Self::invite`] back.
    pub fn cancel(&mut self, user: &str, call: &str) {
        let text = format!(
            "CANCEL sip:{user}@{DOMAIN} SIP/2.0\nMax-Forwards: 70\nFrom: <sip:alice@{DOMAIN}>;tag=caller\n\
             To: <sip:{user}@{DOMAIN}>\nCall-ID: {call}\nCSeq: 1 CANCEL"
        );
        self.send(&text, call);
    }

    /// Sends a request within the dialog that this 2xx made.
    pub fn in_dialog(&mut self, method: &str, cseq: u32, call: &str, answer: &Message) {
        let contact = answer.header("contact");
        let target = contact
            .split(['<', '>'])
            .nth(1)
            .expect("a Contact in angle brackets");
        let mut text = format!("{method} {target} SIP/2.0\nMax-Forwards: 70\n");
        // RFC 3261 §12.1.2: the caller's route set is Record-Route, reversed.
        for route in answer.all("record-route").iter().rev() {
            text.push_str(&format!("Route: {route}\n"));
        }
        text.push_str(&format!(
            "From: <sip:alice@{DOMAIN}>;tag=caller\nTo: {}\nCall-ID: {call}\nCSeq: {cseq} {method}",
            answer.header("to")
        ));
        self.send(&text, &format!("{call}-{method}"));
    }

    /// Calls, waits for the final answer and acknowledges it; every answer, the final one last.
    #[track_caller]
    pub fn call(&mut self, user: &str, call: &str) -> Vec<Message> {
        let answers = self.call_without_ack(user, call);
        if let Some(last) = answers.last() {
            self.acknowledge(user, call, last);
        }
        answers
    }

    /// Calls, and returns the answers, of which the last is final and not acknowledged.
    pub fn call_without_ack(&mut self, user: &str, call: &str) -> Vec<Message> {
        self.invite(user, call);
        let mut answers: Vec<Message> = Vec::new();
        while answers.last().is_none_or(|last| last.status() < 200) {
            let answer = self.receive();
            // Others are of an earlier call.
            if answer.header("call-id") == call {
                answers.push(answer);
            }
        }
        answers
    }

    /// OPTIONS to `uri` is answered 200; that answer.
    ///
    /// # Panics
    /// When it is not, or the server closes the connection.
    #[track_caller]
    pub fn expect_options(&mut self, uri: &str) -> Message {
        self.options_unless_closed(uri)
            .expect("the server closed the connection")
    }

    /// The same; `None` where the server closes the connection instead of an answer.
    ///
    /// # Panics
    /// When there is another answer.
    #[track_caller]
    pub fn options_unless_closed(&mut self, uri: &str) -> Option<Message> {
        // No two of one test program have the same Call-ID, nor the same branch: ports are given out again.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let call = format!("options-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let text = format!(
            "OPTIONS {uri} SIP/2.0\nMax-Forwards: 70\nFrom: <sip:alice@{DOMAIN}>;tag=1\nTo: <{uri}>\n\
             Call-ID: {call}\nCSeq: 1 OPTIONS"
        );
        let message = self.written(&text, &call, "");
        self.note_sent(message.as_bytes());
        // Whether the server still reads is seen by what comes.
        let _ = self.link.send(message.as_bytes());
        let answer = self.receive_unless_closed()?;
        assert_eq!(answer.status(), 200, "{call}: {answer:?}");
        assert_eq!(answer.header("call-id"), call);
        Some(answer)
    }

    /// The next final response.
    #[track_caller]
    pub fn final_response(&mut self) -> Message {
        loop {
            let message = self.receive();
            if message.status() >= 200 {
                return message;
            }
        }
    }
}
