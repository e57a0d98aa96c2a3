//! What the edge takes out or refuses must not reach the other side in any spelling.
//!
//! The first byte chooses where the rest stands: among the headers of a request from an untrusted source, of
//! a response to one, or for the whole of it. What is sent on is read by readers that are lenient in one way
//! each; none of them may find what a strict reader does not.

use sip_core::config::{Config, StateMode};
use sip_core::endpoint::{Strip, claims};
use sip_core::transport::Flow;

use crate::common::{CALLEE, CALLER, config, crlf, response, tcp_flow, udp_flow};
use crate::table::{Out, Table};

/// Bits of an input's first byte.
mod choice {
    pub(super) const STATELESS: u8 = 1;
    /// The rest stands in an answer,
    pub(super) const ANSWER: u8 = 2;
    /// is the whole message,
    pub(super) const WHOLE: u8 = 4;
    /// stands before all other headers, or behind them.
    pub(super) const FIRST: u8 = 8;
    pub(super) const LAST: u8 = 16;
    pub(super) const INVITE: u8 = 32;
    pub(super) const TCP: u8 = 64;
}

/// Takes one input.
pub fn run(bytes: &[u8]) {
    let Some((&bits, rest)) = bytes.split_first() else {
        return;
    };
    let on = |bit: u8| bits & bit != 0;
    let mut table = Table::new(&Config {
        state: if on(choice::STATELESS) {
            StateMode::Stateless
        } else {
            StateMode::Transaction
        },
        ..config()
    });
    let caller = if on(choice::TCP) {
        tcp_flow(CALLER, 3)
    } else {
        udp_flow(CALLER)
    };
    let request = request(if on(choice::INVITE) { "INVITE" } else { "MESSAGE" });
    if on(choice::ANSWER) {
        table.handle(0, caller, &request);
        let mut forwarded = None;
        table.sent(|out| forwarded = Some(out).filter(|out| !out.bytes.starts_with(b"SIP/")));
        let forwarded = forwarded.expect("it goes on");
        let answer = response(&forwarded.as_sent(), "200 OK", "Contact: <sip:bob@192.0.2.20>\n");
        let answer = placed(bits, answer.as_bytes(), rest);
        table.handle(0, udp_flow(CALLEE), &answer);
        table.sent(|out| check_for_others(&out, udp_flow(CALLEE)));
    } else {
        table.handle(0, caller, &placed(bits, &request, rest));
        table.sent(|out| check_for_others(&out, caller));
    }
}

/// Checks what goes to a peer other than the sender. Responses that are made here hold parts of the request;
/// its sender may read them as it likes.
fn check_for_others(out: &Out, from: Flow) {
    if out.to.remote.ip() != from.remote.ip() {
        check(&out.bytes);
    }
}

fn request(method: &str) -> Vec<u8> {
    let text = format!(
        "{method} sip:bob@example.com SIP/2.0\nVia: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKa\nMax-Forwards: 70\n\
         From: <sip:alice@example.com>;tag=f1\nTo: <sip:bob@example.com>\nCall-ID: c1\nCSeq: 1 {method}\n\
         Contact: <sip:alice@192.0.2.10>\nContent-Length: 0\n\n"
    );
    crlf(&text).into_bytes()
}

/// The message with `what` in its place.
fn placed(bits: u8, message: &[u8], what: &[u8]) -> Vec<u8> {
    if bits & choice::WHOLE != 0 {
        return what.to_vec();
    }
    let after = |mark: &[u8]| message.windows(mark.len()).position(|w| w == mark);
    let at = if bits & choice::FIRST != 0 {
        after(b"\r\n").map(|at| at + 2)
    } else if bits & choice::LAST != 0 {
        after(b"\r\n\r\n").map(|at| at + 2)
    } else {
        after(b"Content-Length:")
    };
    let (before, behind) = message.split_at(at.unwrap_or_default());
    [before, what, b"\r\n", behind].concat()
}

/// How a reader differs from RFC 3261.
#[derive(Clone, Copy, Debug, Default)]
struct Reader {
    /// A bare LF ends a line.
    bare_lf: bool,
    /// A bare CR ends a line.
    bare_cr: bool,
    /// A line that begins with white space is a line like others.
    no_folding: bool,
    /// A line of white space ends the headers.
    blank_ends: bool,
    /// A NUL ends what a line says.
    nul_ends: bool,
    /// Control characters around names are passed over.
    trims: bool,
}

const STRICT: Reader = Reader {
    bare_lf: false,
    bare_cr: false,
    no_folding: false,
    blank_ends: false,
    nul_ends: false,
    trims: false,
};

const LENIENT: [Reader; 6] = [
    Reader {
        bare_lf: true,
        ..STRICT
    },
    Reader {
        bare_cr: true,
        bare_lf: true,
        ..STRICT
    },
    Reader {
        no_folding: true,
        trims: true,
        ..STRICT
    },
    Reader {
        blank_ends: true,
        ..STRICT
    },
    Reader {
        nul_ends: true,
        ..STRICT
    },
    Reader {
        trims: true,
        bare_lf: true,
        bare_cr: true,
        nul_ends: true,
        blank_ends: true,
        ..STRICT
    },
];

/// A header as a reader finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Header {
    /// In lower case, its long form.
    name: String,
    value: String,
}

impl Reader {
    fn headers(self, message: &[u8]) -> Vec<Header> {
        let mut out: Vec<Header> = Vec::new();
        let mut rest = message;
        let _start_line = self.line(&mut rest);
        while !rest.is_empty() {
            let mut line = self.line(&mut rest);
            if line.is_empty() {
                break;
            }
            if self.nul_ends {
                line = line.split(|c| *c == 0).next().unwrap_or_default();
            }
            let text = String::from_utf8_lossy(line);
            let is_blank = text.trim_matches([' ', '\t']).is_empty();
            if self.blank_ends && is_blank {
                break;
            }
            if !self.no_folding
                && text.starts_with([' ', '\t'])
                && let Some(before) = out.last_mut()
            {
                before.value.push_str(&text);
                continue;
            }
            let (name, value) = text.split_once(':').unwrap_or((&text, ""));
            let name = if self.trims {
                name.trim_matches(|c: char| c.is_whitespace() || c.is_control())
            } else {
                name.trim_end_matches([' ', '\t'])
            };
            out.push(Header {
                name: long_form(&name.to_ascii_lowercase()).to_owned(),
                value: value.trim_ascii().to_owned(),
            });
        }
        out
    }

    /// Takes a line off the front.
    fn line<'a>(self, rest: &mut &'a [u8]) -> &'a [u8] {
        let text = *rest;
        let ends = |at: usize| match text[at..] {
            [b'\r', b'\n', ..] => Some(2),
            [b'\n', ..] if self.bare_lf => Some(1),
            [b'\r', ..] if self.bare_cr => Some(1),
            _ => None,
        };
        let end = (0..text.len()).find_map(|at| Some((at, ends(at)?)));
        let (at, len) = end.unwrap_or((text.len(), 0));
        *rest = &text[at + len..];
        &text[..at]
    }
}

/// Of the names that a reader acts by (RFC 3261 §7.3.3).
fn long_form(name: &str) -> &str {
    match name {
        "l" => "content-length",
        "v" => "via",
        "i" => "call-id",
        "f" => "from",
        "t" => "to",
        "m" => "contact",
        other => other,
    }
}

fn check(message: &[u8]) {
    let strict = STRICT.headers(message);
    assert_clean(&strict, message);
    let names = |headers: &[Header]| headers.iter().map(|h| h.name.clone()).collect::<Vec<_>>();
    for reader in LENIENT {
        let found = reader.headers(message);
        assert_clean(&found, message);
        assert_eq!(
            names(&found),
            names(&strict),
            "{reader:?} finds other headers in {}",
            message.escape_ascii()
        );
    }
}

fn assert_clean(headers: &[Header], message: &[u8]) {
    let lengths = headers.iter().filter(|header| header.name == "content-length");
    let text = message.escape_ascii();
    for header in headers {
        assert!(!is_claim(header), "what nobody trusted claims: {text}");
    }
    assert!(lengths.count() <= 1, "two lengths: {text}");
    if message.starts_with(b"SIP/") {
        return;
    }
    for header in headers {
        // One without a value, or with empty ones, leads nowhere.
        let value = header.value.trim_matches([',', ' ', '\t']);
        let is_route = header.name == "route" && !value.is_empty();
        assert!(!is_route, "a Route that we did not write: {text}");
        if matches!(header.name.as_str(), "authorization" | "proxy-authorization") {
            assert!(!names_our_realm(&header.value), "our credentials: {text}");
        }
    }
}

/// Whether a header says what only the operator's network may say.
fn is_claim(header: &Header) -> bool {
    let mut known = claims();
    let claim = known.find(|(name, _)| *name == header.name.as_bytes());
    claim.is_some_and(|(_, strip)| match strip {
        Strip::Always => true,
        Strip::NetworkProvided => header
            .value
            .split([';', ','])
            .any(|part| part.trim_ascii().eq_ignore_ascii_case("network-provided")),
    })
}

/// Whether `realm="example.com"` stands in it, with white space or without.
fn names_our_realm(value: &str) -> bool {
    // The name in any case, the realm in its own.
    let names = value.to_ascii_lowercase();
    let is_ours = |(at, name): (usize, &str)| {
        let before = value[..at].bytes().next_back();
        let after = value[at + name.len()..].trim_start();
        let is_name = before.is_none_or(|c| matches!(c, b' ' | b'\t' | b','));
        let quoted = after.strip_prefix('=').map(str::trim_start);
        is_name && quoted.is_some_and(|text| text.starts_with("\"example.com\""))
    };
    names.match_indices("realm").any(is_ours)
}
