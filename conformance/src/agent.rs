//! A scripted phone on a way of its own: registers with digest, calls, is called; it is an outbound client
//! (RFC 5626) if the server cannot connect to it.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Client, DOMAIN, Link, Message, digest};

/// The phone of one subscriber of [`DOMAIN`].
#[derive(Debug)]
pub struct Agent {
    client: Client,
    user: &'static str,
    password: &'static str,
    outbound: bool,
    /// Of the agents of this test. Ports are given out again, and a phone that began anew under
    /// the Call-ID of one before it would be behind that one's CSeq.
    number: u32,
    cseq: u32,
    /// The CSeq of its last INVITE.
    invite_cseq: u32,
}

/// A dialog, as one of its ends sees it (RFC 3261 §12).
#[derive(Debug, Clone)]
pub struct Dialog {
    /// Call-ID.
    pub call: String,
    /// From of our requests.
    pub local: String,
    /// To of our requests.
    pub remote: String,
    /// The other end's Contact.
    pub target: String,
    /// Route values, in the order of sending.
    pub routes: Vec<String>,
}

impl Agent {
    /// A phone behind this way.
    pub fn new(link: Link, user: &'static str, password: &'static str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let outbound = link.transport().is_websocket();
        Self {
            client: Client::over(link),
            user,
            password,
            outbound,
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            cseq: 0,
            invite_cseq: 0,
        }
    }

    /// Registers as an outbound client does (RFC 5626 §4.2), which over WebSocket it does anyway.
    pub fn outbound(mut self) -> Self {
        self.outbound = true;
        self
    }

    /// The client below.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Its user.
    pub fn user(&self) -> &str {
        self.user
    }

    /// Its address-of-record.
    pub fn aor(&self) -> String {
        format!("sip:{}@{DOMAIN}", self.user)
    }

    /// Where it can be reached, as a URI.
    pub fn contact(&self) -> String {
        let name = self.client.transport().name();
        format!("sip:{}@{};transport={name}", self.user, self.client.host())
    }

    /// The value of Contact in requests and responses that make a dialog (RFC 5626 §4.3).
    fn dialog_contact(&self) -> String {
        let mark = if self.outbound { ";ob" } else { "" };
        format!("<{}{mark}>", self.contact())
    }

    /// Registers for this many seconds: 401, then 200, which is returned.
    ///
    /// # Panics
    /// When the answers are others.
    #[track_caller]
    pub fn register(&mut self, seconds: u32) -> Message {
        let outbound = if self.outbound {
            format!(
                ";reg-id=1;+sip.instance=\"<urn:uuid:00000000-0000-4000-8000-{:012}>\"",
                self.number
            )
        } else {
            String::new()
        };
        let text = format!(
            "To: <{aor}>\nFrom: <{aor}>;tag=r{user}\nCall-ID: register-{user}-{number}-{host}\nContact: <{contact}>{outbound}\n\
             Expires: {seconds}\nSupported: path, outbound",
            aor = self.aor(),
            user = self.user,
            number = self.number,
            host = self.client.host(),
            contact = self.contact(),
        );
        let uri = format!("sip:{DOMAIN}");
        let challenge = self.request("REGISTER", &uri, &text, "");
        assert_eq!(challenge.status(), 401, "{challenge:?}");
        let credentials = self.credentials("REGISTER", &uri, &challenge);
        let answer = self.request(
            "REGISTER",
            &uri,
            &format!("{text}\nAuthorization: {credentials}"),
            "",
        );
        assert_eq!(answer.status(), 200, "{answer:?}");
        answer
    }

    /// Sends an INVITE to this user, with credentials once it was challenged, and returns once
    /// that is sent. Its branch is that of the last request.
    ///
    /// # Panics
    /// When it is not challenged.
    #[track_caller]
    pub fn invite(&mut self, user: &str, call: &str, body: &str) {
        let uri = format!("sip:{user}@{DOMAIN}");
        let text = format!(
            "To: <{uri}>\nFrom: <{aor}>;tag=i{name}\nCall-ID: {call}\nContact: {contact}\nSupported: outbound\n\
             Content-Type: application/sdp",
            aor = self.aor(),
            name = self.user,
            contact = self.dialog_contact(),
        );
        let challenge = self.request("INVITE", &uri, &text, body);
        assert_eq!(challenge.status(), 407, "{challenge:?}");
        self.acknowledge_refusal(user, &challenge);
        let credentials = self.credentials("INVITE", &uri, &challenge);
        self.cseq += 1;
        let branch = self.branch();
        self.send(
            "INVITE",
            &uri,
            &format!("{text}\nProxy-Authorization: {credentials}"),
            &branch,
            body,
        );
    }

    /// Acknowledges the final answer, no 2xx, to the last INVITE to this user (RFC 3261 §17.1.1.3).
    pub fn acknowledge_refusal(&mut self, user: &str, answer: &Message) {
        let text = format!(
            "To: {}\nFrom: {}\nCall-ID: {}",
            answer.header("to"),
            answer.header("from"),
            answer.header("call-id")
        );
        self.send_like_invite("ACK", user, &text);
    }

    /// Takes back the last INVITE to this user, whose Call-ID this is (RFC 3261 §9.1).
    pub fn cancel(&mut self, user: &str, call: &str) {
        let text = format!(
            "To: <sip:{user}@{DOMAIN}>\nFrom: <{}>;tag=i{}\nCall-ID: {call}",
            self.aor(),
            self.user
        );
        self.send_like_invite("CANCEL", user, &text);
    }

    /// Sends what belongs to the transaction of the last INVITE to this user.
    fn send_like_invite(&mut self, method: &str, user: &str, headers: &str) {
        let branch = self.branch_of(self.invite_cseq);
        self.send(method, &format!("sip:{user}@{DOMAIN}"), headers, &branch, "");
    }

    /// The next message that is no 100. An OPTIONS of the server itself, which keeps the port of a NAT open, is
    /// answered on the way.
    pub fn receive(&mut self) -> Message {
        loop {
            let message = self.client.receive();
            if message.first_line.starts_with("OPTIONS ") && message.vias().len() == 1 {
                self.answer(&message, 200, "");
            } else if message.status() != 100 {
                return message;
            }
        }
    }

    /// The next request, which must be of this method.
    ///
    /// # Panics
    /// When it is something else.
    #[track_caller]
    pub fn expect_request(&mut self, method: &str) -> Message {
        let message = self.receive();
        let is = message.first_line.split(' ').next();
        assert_eq!(is, Some(method), "{message:?}");
        message
    }

    /// The next response but 100, which must have this status.
    ///
    /// # Panics
    /// When it is something else.
    #[track_caller]
    pub fn expect_status(&mut self, status: u16) -> Message {
        let message = self.receive();
        assert_eq!(message.status(), status, "{message:?}");
        message
    }

    /// Answers a request: 1xx and 2xx to an INVITE with Contact and Record-Route.
    pub fn answer(&mut self, request: &Message, status: u16, body: &str) {
        let text = self.response(request, status, body);
        self.client.send_bytes(text.as_bytes());
    }

    /// The text of [`Self::answer`], for tests that send it with a flaw.
    pub fn response(&self, request: &Message, status: u16, body: &str) -> String {
        let mut text = format!("SIP/2.0 {status} Scripted\r\n");
        for (name, value) in &request.headers {
            let copied = ["via", "from", "to", "call-id", "cseq", "record-route"].contains(&name.as_str());
            if copied {
                let tag = if name == "to" && !value.contains(";tag=") {
                    format!(";tag=a{}", self.user)
                } else {
                    String::new()
                };
                let _ = write!(text, "{name}: {value}{tag}\r\n");
            }
        }
        if request.first_line.starts_with("INVITE ") {
            let _ = write!(text, "Contact: {}\r\n", self.dialog_contact());
        }
        if !body.is_empty() {
            text.push_str("Content-Type: application/sdp\r\n");
        }
        let _ = write!(text, "Content-Length: {}\r\n\r\n{body}", body.len());
        text
    }

    /// Sends a request within a dialog; its answer is [`Self::expect_status`]'s.
    pub fn in_dialog(&mut self, method: &str, dialog: &Dialog) {
        self.in_dialog_with(method, dialog, "");
    }

    /// The same with further header lines, each after a line end.
    pub fn in_dialog_with(&mut self, method: &str, dialog: &Dialog, more: &str) {
        // An ACK has the number of its INVITE (RFC 3261 §13.2.2.4).
        if method != "ACK" {
            self.cseq += 1;
        }
        let mut text = format!(
            "To: {}\nFrom: {}\nCall-ID: {}{more}",
            dialog.remote, dialog.local, dialog.call
        );
        for route in &dialog.routes {
            let _ = write!(text, "\nRoute: {route}");
        }
        // What may refresh the target (RFC 3261 §12.2.1.1, RFC 6665 §8.2.1, RFC 3515 §2.4.4, RFC 3311 §5.1).
        if ["INVITE", "UPDATE", "SUBSCRIBE", "NOTIFY", "REFER"].contains(&method) {
            let _ = write!(text, "\nContact: {}", self.dialog_contact());
        }
        let branch = format!("{}-{method}", self.branch());
        self.send(method, &dialog.target, &text, &branch, "");
    }

    /// Sends a request outside of dialogs and waits for its final answer.
    pub fn request(&mut self, method: &str, uri: &str, headers: &str, body: &str) -> Message {
        self.cseq += 1;
        let branch = self.branch();
        self.send(method, uri, headers, &branch, body);
        self.client.final_response()
    }

    fn branch(&self) -> String {
        self.branch_of(self.cseq)
    }

    fn branch_of(&self, cseq: u32) -> String {
        format!("{}{}n{cseq}", self.user, self.number)
    }

    fn send(&mut self, method: &str, uri: &str, headers: &str, branch: &str, body: &str) {
        if method == "INVITE" {
            self.invite_cseq = self.cseq;
        }
        let cseq = if ["ACK", "CANCEL"].contains(&method) {
            self.invite_cseq
        } else {
            self.cseq
        };
        let text = format!("{method} {uri} SIP/2.0\nMax-Forwards: 70\nCSeq: {cseq} {method}\n{headers}");
        self.client.send_with_body(&text, branch, body);
    }

    /// Answers a challenge.
    fn credentials(&self, method: &str, uri: &str, challenge: &Message) -> String {
        digest::credentials(method, uri, challenge, self.user, self.password)
    }
}

impl Dialog {
    /// The caller's, from the 2xx to its INVITE (RFC 3261 §12.1.2).
    pub fn of_caller(answer: &Message) -> Self {
        let mut routes = answer.routes();
        routes.reverse();
        Self {
            call: answer.header("call-id").to_owned(),
            local: answer.header("from").to_owned(),
            remote: answer.header("to").to_owned(),
            target: answer.contact_uri(),
            routes,
        }
    }

    /// The callee's, from the INVITE and the 2xx to it, as the caller got that (§12.1.1).
    pub fn of_callee(invite: &Message, answer: &Message) -> Self {
        Self {
            call: invite.header("call-id").to_owned(),
            local: answer.header("to").to_owned(),
            remote: invite.header("from").to_owned(),
            target: invite.contact_uri(),
            routes: invite.routes(),
        }
    }
}
