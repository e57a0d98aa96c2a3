//! Responses that this server makes.

use alloc::vec::Vec;

use sip_message::header::{NameAddr, Via};
use sip_message::number::write_decimal;
use sip_message::{HeaderName, Message, Method};

use super::Engine;
use super::secrets::write_hex;
use super::status::Status;
use crate::activity::Component;
use crate::transaction::table::ServerKey;
use crate::transport::{Flow, stun, via};

/// Prefix of To tags of ours; 16 hexadecimal digits follow.
pub(crate) const TAG_PREFIX: &[u8] = b"tz";

/// Appends `SIP/2.0 200 OK\r\n`.
fn write_status_line(out: &mut Vec<u8>, status: Status<'_>) {
    out.extend_from_slice(b"SIP/2.0 ");
    write_decimal(out, u64::from(status.code));
    out.push(b' ');
    // A reason from the configuration must not break the line.
    out.extend(status.reason.bytes().filter(|c| !c.is_ascii_control()));
    out.extend_from_slice(b"\r\n");
}

/// Appends all Via values of the request, the topmost with `received` and `rport`.
fn write_vias(out: &mut Vec<u8>, message: &Message<'_>, flow: Flow) {
    let mut fields = message.fields_named(HeaderName::Via);
    // Nearly always the topmost has a line of its own; the lines below it stay as they are.
    if let (Some(first), Ok(top)) = (fields.next(), message.top_via())
        && first.value != first.value_end
        && memchr::memchr(b',', message.field_value(first)).is_none()
    {
        out.extend_from_slice(b"Via: ");
        via::write_received(out, &top, flow.remote);
        out.extend_from_slice(b"\r\n");
        for field in fields {
            out.extend_from_slice(b"Via: ");
            out.extend_from_slice(message.field_value(field));
            out.extend_from_slice(b"\r\n");
        }
        return;
    }
    for (i, value) in message.values(HeaderName::Via).enumerate() {
        let top = if i == 0 { Via::parse(value.text) } else { None };
        if i == 0 && top.is_none() {
            // The bounds of the values are unknown.
            for field in message.fields_named(HeaderName::Via) {
                out.extend_from_slice(b"Via: ");
                out.extend_from_slice(message.field_value(field));
                out.extend_from_slice(b"\r\n");
            }
            return;
        }
        out.extend_from_slice(b"Via: ");
        match top {
            Some(top) => via::write_received(out, &top, flow.remote),
            None => out.extend_from_slice(value.text),
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends the Timestamp of a request to its 100, with the time since the request came if that is a
/// millisecond or more (§8.2.6.1).
fn write_timestamp(out: &mut Vec<u8>, message: &Message<'_>, waited_us: u64) {
    let Some(value) = message.value(HeaderName::Timestamp) else {
        return;
    };
    out.extend_from_slice(b"Timestamp: ");
    let waited_ms = waited_us / 1000;
    if waited_ms == 0 {
        out.extend_from_slice(value);
    } else {
        // A delay that the value has already is not ours (§20.38).
        let time = value.split(u8::is_ascii_whitespace).next();
        out.extend_from_slice(time.unwrap_or_default());
        out.push(b' ');
        write_decimal(out, waited_ms / 1000);
        out.push(b'.');
        for unit in [100, 10, 1] {
            out.push(b'0' + (waited_ms / unit % 10) as u8);
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn write_field(out: &mut Vec<u8>, message: &Message<'_>, name: HeaderName) {
    if let Some(value) = message.value(name) {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
}

/// The parts of a response, beside those of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply<'a> {
    pub(crate) status: Status<'a>,
    /// Whole header lines.
    pub(crate) extra: &'a [u8],
}

impl Engine {
    /// Appends a response to `message` (RFC 3261 §8.2.6). If the message is malformed, the fields that it has
    /// are copied.
    pub(crate) fn write_reply(
        &self,
        out: &mut Vec<u8>,
        message: &Message<'_>,
        flow: Flow,
        reply: &Reply<'_>,
    ) {
        self.write_late_reply(out, message, flow, reply, 0);
    }

    /// Appends a response as [`Engine::write_reply`] does, `waited_us` after the request came.
    pub(crate) fn write_late_reply(
        &self,
        out: &mut Vec<u8>,
        message: &Message<'_>,
        flow: Flow,
        reply: &Reply<'_>,
        waited_us: u64,
    ) {
        write_status_line(out, reply.status);
        write_vias(out, message, flow);
        write_field(out, message, HeaderName::From);
        self.write_to(out, message, reply.status.code);
        write_field(out, message, HeaderName::CallId);
        write_field(out, message, HeaderName::CSeq);
        if reply.status.code == 100 {
            write_timestamp(out, message, waited_us);
        } else if !self.config.server_header.is_empty() {
            out.extend_from_slice(b"Server: ");
            out.extend_from_slice(&self.config.server_header);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(reply.extra);
        out.extend_from_slice(b"Content-Length: 0\r\n\r\n");
    }

    /// Appends To, with our tag if To has none and the response is not a 100 (§8.2.6.2).
    fn write_to(&self, out: &mut Vec<u8>, message: &Message<'_>, code: u16) {
        let Some(value) = message.value(HeaderName::To) else {
            return;
        };
        out.extend_from_slice(b"To: ");
        out.extend_from_slice(value);
        if code != 100 && NameAddr::parse(value).is_some_and(|to| to.tag().is_none()) {
            out.extend_from_slice(b";tag=");
            out.extend_from_slice(TAG_PREFIX);
            write_hex(out, u128::from(self.own_tag(message)), 16);
        }
        out.extend_from_slice(b"\r\n");
    }

    fn own_tag(&self, message: &Message<'_>) -> u64 {
        let from_tag = message.from().ok().and_then(|f| f.tag()).unwrap_or_default();
        // The branch is that of this hop. So the response of another node that shares our secret, to
        // the same call, has another tag, and we do not absorb its ACK.
        let via = message.top_via().ok();
        let branch = via.as_ref().and_then(|v| v.branch()).unwrap_or_default();
        self.secrets
            .to_tag(message.call_id().unwrap_or_default(), from_tag, branch)
    }

    /// Whether we put the To tag of this request into a response to its INVITE.
    pub(crate) fn has_own_tag(&self, message: &Message<'_>) -> bool {
        let Some(tag) = message.to().ok().and_then(|to| to.tag()) else {
            return false;
        };
        let Some(digits) = tag.strip_prefix(TAG_PREFIX) else {
            return false;
        };
        super::secrets::read_hex(digits, 16) == Some(u128::from(self.own_tag(message)))
    }

    /// Responds to a request: through its server transaction if it has one, else statelessly. An ACK
    /// gets no response.
    pub(crate) fn reply(
        &mut self,
        message: &Message<'_>,
        flow: Flow,
        server: Option<ServerKey>,
        reply: &Reply<'_>,
    ) {
        if message.method() == Some(Method::Ack) {
            return;
        }
        let before = self.activity.enter(Component::Build);
        self.count_reply(reply.status.code);
        self.note_refusal(message, flow, server, reply.status);
        let mut text = core::mem::take(&mut self.scratch);
        text.clear();
        self.write_reply(&mut text, message, flow, reply);
        match server {
            Some(key) => self.send_response(key, reply.status.code, &text),
            None => {
                self.note_stateless_response(message, reply.status.code);
                if let Some(to) = via::way_back(flow, message) {
                    self.out.push(to, &text);
                }
            }
        }
        self.scratch = text;
        self.activity.enter(before);
    }

    /// Counts a final response, sent without a server transaction, to an INVITE that begins a call. If there
    /// is a server transaction, the response is counted there.
    fn note_stateless_response(&mut self, message: &Message<'_>, code: u16) {
        let begins_call =
            || message.method() == Some(Method::Invite) && message.to().is_ok_and(|to| to.tag().is_none());
        if code >= 300 && begins_call() {
            self.calls.completed(code, 0, None);
        }
    }

    /// Responds to a STUN keep-alive among the datagrams (RFC 5626 §8).
    #[cold]
    pub(crate) fn respond_to_stun(&mut self, flow: Flow, request: &[u8]) {
        let mut text = core::mem::take(&mut self.scratch);
        text.clear();
        match stun::respond(request, flow.remote, &mut text) {
            stun::Outcome::Sent => {
                self.out.push(flow, &text);
                self.counters.stun_responses += 1;
            }
            stun::Outcome::Ignored | stun::Outcome::Malformed => self.counters.dropped_stun += 1,
        }
        self.scratch = text;
    }

    /// Counts a response that this server makes.
    pub(crate) fn count_reply(&mut self, code: u16) {
        let c = &mut self.counters;
        let counter = match code {
            100 => &mut c.replies_100,
            200 => &mut c.replies_200,
            302 => &mut c.replies_302,
            400 => &mut c.replies_400,
            401 => &mut c.replies_401,
            403 => &mut c.replies_403,
            404 => &mut c.replies_404,
            405 => &mut c.replies_405,
            407 => &mut c.replies_407,
            408 => &mut c.replies_408,
            413 => &mut c.replies_413,
            416 => &mut c.replies_416,
            420 => &mut c.replies_420,
            423 => &mut c.replies_423,
            430 => &mut c.replies_430,
            440 => &mut c.replies_440,
            480 => &mut c.replies_480,
            481 => &mut c.replies_481,
            482 => &mut c.replies_482,
            483 => &mut c.replies_483,
            484 => &mut c.replies_484,
            486 => &mut c.replies_486,
            487 => &mut c.replies_487,
            488 => &mut c.replies_488,
            500 => &mut c.replies_500,
            501 => &mut c.replies_501,
            502 => &mut c.replies_502,
            503 => &mut c.replies_503,
            504 => &mut c.replies_504,
            505 => &mut c.replies_505,
            513 => &mut c.replies_513,
            600 => &mut c.replies_600,
            603 => &mut c.replies_603,
            607 => &mut c.replies_607,
            608 => &mut c.replies_608,
            _ => match code / 100 {
                1 => &mut c.replies_1xx,
                2 => &mut c.replies_2xx,
                3 => &mut c.replies_3xx,
                4 => &mut c.replies_4xx,
                5 => &mut c.replies_5xx,
                _ => &mut c.replies_6xx,
            },
        };
        *counter += 1;
    }
}
