//! The torture messages of RFC 4475 and RFC 5118: what parsing says of each. They are read from
//! `../shared/torture` beside the project where that exists.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests fail and tell as tests do"
)]

use crate::common;

use std::path::PathBuf;

use sip_message::header::{Contacts, HeaderError};
use sip_message::{Defect, HeaderIndex, HeaderName, Message, ParseError, StartLine, Uri, UriError, parse};

/// The outcome of parsing, worst first.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// Dropped without a response.
    Drop(ParseError),
    /// Refused for its form: 505 for [`Defect::Version`], else 400.
    Defect(Defect),
    /// Refused (or a response dropped) for a header that every message needs.
    Mandatory(HeaderError),
    /// Refused for Max-Forwards.
    Hops(HeaderError),
    /// CSeq names another method than the request line: 400.
    OtherMethod,
    /// Refused for its Request-URI.
    Uri(UriError),
    /// A Request-URI with headers: 400.
    UriHeaders,
    /// A Request-URI of another scheme: 416.
    OtherScheme,
    /// A Contact that cannot be read: 400 by the element that needs Contact.
    Contact,
    /// Nothing wrong.
    Fine,
}

fn outcome(bytes: &[u8], index: &mut HeaderIndex) -> Outcome {
    let message = match parse(bytes, index, common::MAX_HEADERS) {
        Ok(message) => message,
        Err(error) => return Outcome::Drop(error),
    };
    common::exercise(&message);
    if let Some(defect) = message.defect() {
        return Outcome::Defect(defect);
    }
    if let Err(error) = message.check_mandatory() {
        return Outcome::Mandatory(error);
    }
    if let Err(error) = message.max_forwards() {
        return Outcome::Hops(error);
    }
    if let StartLine::Request { method, uri } = message.start() {
        if message.cseq().unwrap().method != method {
            return Outcome::OtherMethod;
        }
        match Uri::parse(uri) {
            Err(error) => return Outcome::Uri(error),
            Ok(Uri::Sip(uri)) if uri.headers.is_some() => return Outcome::UriHeaders,
            Ok(Uri::Other { .. }) => return Outcome::OtherScheme,
            Ok(Uri::Sip(_) | Uri::Tel(_)) => {}
        }
    }
    match Contacts::of(&message) {
        Ok(Contacts::List(list)) if list.clone().all(|c| c.is_ok()) => Outcome::Fine,
        Ok(Contacts::Star) => Outcome::Fine,
        Ok(Contacts::List(_)) | Err(_) => Outcome::Contact,
    }
}

use HeaderName::{CSeq, CallId, ContentLength, From, MaxForwards, To, Via};
use Outcome::{Fine, Hops, Mandatory, OtherMethod, OtherScheme, UriHeaders};

const fn malformed(name: HeaderName) -> Outcome {
    Mandatory(HeaderError::Malformed(name))
}

/// RFC 4475, in the order of its sections.
const RFC4475: [(&str, Outcome); 49] = [
    // 3.1.1: valid.
    ("wsinv", Fine),
    ("intmeth", Fine),
    ("esc01", Fine),
    ("escnull", Fine),
    ("esc02", Fine),
    ("lwsdisp", Fine),
    ("longreq", Fine),
    ("dblreq", Fine),
    ("semiuri", Fine),
    ("transports", Fine),
    ("mpart01", Fine),
    ("unreason", Fine),
    ("noreason", Fine),
    // 3.1.2: invalid.
    ("badinv01", malformed(Via)),
    ("clerr", Outcome::Defect(Defect::Truncated)),
    ("ncl", Outcome::Defect(Defect::ContentLength)),
    ("scalar02", malformed(CSeq)),
    ("scalarlg", malformed(CSeq)),
    ("quotbal", malformed(To)),
    ("ltgtruri", Outcome::Uri(UriError::Scheme)),
    ("lwsruri", Outcome::Defect(Defect::RequestLine)),
    ("lwsstart", Outcome::Defect(Defect::RequestLine)),
    ("trws", Outcome::Defect(Defect::RequestLine)),
    ("escruri", UriHeaders),
    // 3.1.2.12: only an element that needs Date should refuse; a proxy does not.
    ("baddate", Fine),
    ("regbadct", Outcome::Contact),
    ("badaspec", malformed(To)),
    // Its headers do not end, and From and To have a comma in the display name.
    ("baddn", Outcome::Defect(Defect::Unterminated)),
    ("badvers", Outcome::Defect(Defect::Version)),
    ("mismatch01", OtherMethod),
    ("mismatch02", OtherMethod),
    ("bigcode", Outcome::Drop(ParseError::StatusLine)),
    // 3.2: a branch that is the magic cookie only is one of RFC 2543.
    ("badbranch", Fine),
    // 3.3: for the application.
    ("insuf", Mandatory(HeaderError::Missing(From))),
    ("unkscm", OtherScheme),
    ("novelsc", OtherScheme),
    ("unksm2", Fine),
    ("bext01", Fine),
    ("invut", Fine),
    ("regaut01", Fine),
    ("multi01", Outcome::Defect(Defect::Repeated(CSeq))),
    ("mcl01", Outcome::Defect(Defect::Repeated(ContentLength))),
    ("bcast", Fine),
    ("zeromf", Fine),
    ("cparam01", Fine),
    ("cparam02", Fine),
    ("regescrt", Fine),
    ("sdp01", Fine),
    // 3.4: RFC 2543.
    ("inv2543", Fine),
];

const RFC5118: [(&str, Outcome); 12] = [
    ("ipv6-good", Fine),
    ("ipv6-bad", Outcome::Uri(UriError::Port)),
    // 4.3: the port is part of the address: nothing shows that it was meant otherwise.
    ("port-ambiguous", Fine),
    ("port-unambiguous", Fine),
    ("via-received-param-with-delim", Fine),
    ("via-received-param-no-delim", Fine),
    ("ipv6-in-sdp", Fine),
    ("mult-ip-in-header", Fine),
    ("mult-ip-in-sdp", Fine),
    ("ipv4-mapped-ipv6", Fine),
    // 4.10: three colons came from a fault of RFC 3261's grammar, and are no address.
    ("ipv6-bug-abnf-3-colons", Outcome::Uri(UriError::Host)),
    ("ipv6-correct-abnf-2-colons", Fine),
];

/// The message, or `None` where the folder is not there.
fn read(folder: &str, name: &str) -> Option<Vec<u8>> {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/torture"));
    if !root.is_dir() {
        println!("skipped: {} is not there", root.display());
        return None;
    }
    let path = root.join(folder).join(name);
    Some(std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

/// Reads one message and checks it.
fn with(folder: &str, name: &str, check: impl FnOnce(&Message<'_>)) {
    let Some(bytes) = read(folder, name) else { return };
    let mut index = HeaderIndex::new();
    check(&parse(&bytes, &mut index, common::MAX_HEADERS).unwrap());
}

#[test]
fn every_message_of_rfc_4475_has_its_outcome() {
    let mut index = HeaderIndex::new();
    for (name, expected) in RFC4475 {
        let Some(bytes) = read("rfc4475", &format!("{name}.dat")) else {
            return;
        };
        assert_eq!(outcome(&bytes, &mut index), expected, "{name}");
    }
}

#[test]
fn every_message_of_rfc_5118_has_its_outcome() {
    let mut index = HeaderIndex::new();
    for (name, expected) in RFC5118 {
        let Some(bytes) = read("rfc5118", name) else {
            return;
        };
        // The bodies' line ends were made CRLF, so Content-Length may be off: cut to it, and where
        // it is short, extend the body.
        let body_at = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
        let mut padded = bytes.clone();
        padded.extend(std::iter::repeat_n(b'\n', 64));
        assert!(bytes.len() >= body_at);
        assert_eq!(outcome(&padded, &mut index), expected, "{name}");
    }
}

#[test]
fn wsinv_is_understood() {
    with("rfc4475", "wsinv.dat", |m| {
        let vias: Vec<_> = m
            .values(Via)
            .map(|v| {
                let via = sip_message::header::Via::parse(v.text).unwrap();
                (
                    via.transport,
                    via.host_text,
                    via.branch().unwrap(),
                    v.first,
                    v.last,
                )
            })
            .collect();
        assert_eq!(
            vias,
            [
                (&b"UDP"[..], &b"192.0.2.2"[..], &b"390skdjuw"[..], true, true),
                (b"TCP", b"spindle.example.com", b"z9hG4bK9ikj8", true, false),
                (b"UDP", b"192.168.255.111", b"z9hG4bK30239", false, true),
            ]
        );
        assert_eq!(m.to().unwrap().tag(), Some(&b"1918181833n"[..]));
        assert_eq!(m.from().unwrap().display, b"\"J Rosenberg \\\\\\\"\"");
        assert_eq!(m.from().unwrap().tag(), Some(&b"98asjd8"[..]));
        assert_eq!(m.max_forwards(), Ok(Some(68)));
        assert_eq!(m.cseq().unwrap().number, 9);
        assert_eq!(m.value(HeaderName::Subject), Some(&b""[..]));
        assert_eq!(m.body().len(), 150);
        let got = Contacts::of(m);
        let Ok(Contacts::List(mut contacts)) = got else {
            panic!("{got:?}")
        };
        let contact = contacts.next().unwrap().unwrap();
        assert_eq!(contact.q_milli, Some(330));
        assert_eq!(contact.addr.params.value(b"newparam"), Some(&b"newvalue"[..]));
        let folded = m.fields_other(b"newfangledheader").next().unwrap();
        assert_eq!(
            m.field_value(folded),
            b"newfangled value\r\n continued newfangled value"
        );
    });
}

#[test]
fn unusual_but_valid_messages_are_understood() {
    with("rfc4475", "intmeth.dat", |m| {
        let method = b"!interesting-Method0123456789_*+`.%indeed'~";
        assert_eq!(m.method().unwrap().as_bytes(), method);
        assert_eq!(
            m.call_id(),
            Some(&b"intmeth.word%ZK-!.*_+'@word`~)(><:\\/\"][?}{"[..])
        );
        assert_eq!(m.from().unwrap().tag(), Some(&b"_token~1'+`*%!-."[..]));
        assert_eq!(m.max_forwards(), Ok(Some(255)));
    });
    with("rfc4475", "esc01.dat", |m| {
        let uri = Uri::parse(m.request_uri().unwrap()).unwrap();
        assert_eq!(uri.sip().unwrap().user, Some(&b"sips%3Auser%40example.com"[..]));
        let got = Contacts::of(m);
        let Ok(Contacts::List(mut list)) = got else {
            panic!("{got:?}")
        };
        let contact = list.next().unwrap().unwrap();
        let uri = contact.addr.sip_uri().unwrap();
        assert!(uri.is_loose_route(), "%6C%72 is lr");
        assert!(Uri::parse(b"sip:caller@host5.example.net;lr;name=value%2541").unwrap() == Uri::Sip(uri));
    });
    with("rfc4475", "esc02.dat", |m| {
        assert_eq!(m.method().unwrap().as_bytes(), b"RE%47IST%45R", "not REGISTER");
        assert_eq!(
            m.values(HeaderName::Contact).count(),
            2,
            "C%6Fntact is another header"
        );
    });
    with("rfc4475", "escnull.dat", |m| {
        let users: Vec<_> = m
            .values(HeaderName::Contact)
            .map(|v| Uri::parse(&v.text[1..v.text.len() - 1]).unwrap())
            .collect();
        assert_eq!(users.len(), 2);
        assert!(users[0] != users[1], "%00 is not %00%00");
    });
    with("rfc4475", "longreq.dat", |m| {
        assert_eq!(m.values(Via).count(), 34)
    });
    with("rfc4475", "dblreq.dat", |m| {
        assert_eq!(m.body(), b"");
        assert!(m.end_offset() < m.source().len() && m.bytes().ends_with(b"Content-Length: 0\r\n\r\n"));
        assert_eq!(m.call_id(), Some(&b"dblreq.0ha0isndaksdj99sdfafnl3lk233412"[..]));
    });
    with("rfc4475", "semiuri.dat", |m| {
        let uri = Uri::parse(m.request_uri().unwrap()).unwrap();
        assert_eq!(uri.sip().unwrap().user, Some(&b"user;par=u%40example.net"[..]));
        assert_eq!(m.values(HeaderName::Accept).count(), 6);
    });
    with("rfc4475", "noreason.dat", |m| {
        assert_eq!(
            m.start(),
            StartLine::Response {
                status: 100,
                reason: b""
            }
        );
    });
    with("rfc4475", "inv2543.dat", |m| {
        assert_eq!(m.from().unwrap().tag(), None);
        assert_eq!(
            m.to().unwrap().params.value(b"user"),
            Some(&b"phone"[..]),
            "a header parameter"
        );
        assert!(m.body().starts_with(b"v=0"));
    });
    with("rfc4475", "badbranch.dat", |m| {
        assert!(!m.top_via().unwrap().has_cookie())
    });
    with("rfc4475", "scalar02.dat", |m| {
        assert_eq!(m.max_forwards(), Err(HeaderError::Malformed(MaxForwards)));
        assert_eq!(m.expires(), Ok(Some(u32::MAX)));
    });
    with("rfc4475", "cparam01.dat", |m| {
        let value = m.values(HeaderName::Contact).next().unwrap().text;
        let contact = sip_message::header::Contact::parse(value).unwrap();
        assert!(
            contact.addr.params.has(b"unknownparam"),
            "of the header, not the URI"
        );
    });
    with("rfc4475", "cparam02.dat", |m| {
        let value = m.values(HeaderName::Contact).next().unwrap().text;
        let contact = sip_message::header::Contact::parse(value).unwrap();
        assert!(contact.addr.params.as_bytes().is_empty());
        assert!(contact.addr.sip_uri().unwrap().params.has(b"unknownparam"));
    });
}

/// What an answer needs can be had of every request that is answered although it is broken.
#[test]
fn refused_requests_can_be_answered() {
    for (name, outcome) in RFC4475 {
        let can_reply = match outcome {
            Outcome::Defect(Defect::Repeated(_)) => true,
            // Their Via is of another version, or From and To are broken too.
            Outcome::Defect(_) => !matches!(name, "badvers" | "baddn"),
            Outcome::Uri(_) | UriHeaders | OtherScheme | OtherMethod | Hops(_) | Outcome::Contact => true,
            Outcome::Drop(_) | Mandatory(_) | Fine => false,
        };
        if can_reply {
            with("rfc4475", &format!("{name}.dat"), |m| {
                assert_eq!(m.check_mandatory(), Ok(()), "{name}");
            });
        }
    }
}

#[test]
fn ipv6_of_rfc_5118() {
    with("rfc5118", "port-ambiguous", |m| {
        let uri = Uri::parse(m.request_uri().unwrap()).unwrap();
        let uri = uri.sip().unwrap();
        assert_eq!(
            (uri.host.ip(), uri.port),
            ("2001:db8::10:5070".parse().ok(), None)
        );
    });
    with("rfc5118", "port-unambiguous", |m| {
        let uri = Uri::parse(m.request_uri().unwrap()).unwrap();
        let uri = uri.sip().unwrap();
        assert_eq!(
            (uri.host.ip(), uri.port),
            ("2001:db8::10".parse().ok(), Some(5070))
        );
    });
    for name in ["via-received-param-with-delim", "via-received-param-no-delim"] {
        with("rfc5118", name, |m| {
            let via = m.top_via().unwrap();
            assert_eq!(via.received(), "2001:db8::9:255".parse().ok(), "{name}");
            assert!(via.has_cookie());
        });
    }
    with("rfc5118", "ipv4-mapped-ipv6", |m| {
        let via = m.top_via().unwrap();
        assert_eq!(
            (via.host.ip(), via.port),
            ("::ffff:192.0.2.10".parse().ok(), Some(19823))
        );
    });
    with("rfc5118", "mult-ip-in-header", |m| {
        assert_eq!(m.values(Via).count(), 3)
    });
}

/// Headers that are missing are told apart from malformed ones.
#[test]
fn missing_headers_are_named() {
    let whole = b"BYE sip:a@b SIP/2.0\r\nVia: SIP/2.0/UDP a\r\nFrom: <sip:a@b>;tag=1\r\nTo: <sip:a@b>\r\n\
        Call-ID: x\r\nCSeq: 1 BYE\r\n\r\n";
    let text = String::from_utf8(whole.to_vec()).unwrap();
    let mut index = HeaderIndex::new();
    assert_eq!(outcome(whole, &mut index), Fine);
    for (start, name) in [
        ("Via", Via),
        ("From", From),
        ("To", To),
        ("Call-ID", CallId),
        ("CSeq", CSeq),
    ] {
        let without: String = text
            .split_inclusive("\r\n")
            .filter(|l| !l.starts_with(&format!("{start}:")))
            .collect();
        assert_eq!(
            outcome(without.as_bytes(), &mut index),
            Mandatory(HeaderError::Missing(name))
        );
    }
}
