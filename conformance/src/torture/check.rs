//! Checks of what the server sends.

use std::net::SocketAddr;

use sip_message::header::{NameAddr, Via};
use sip_message::{Field, HeaderName, Message, Method};

use super::{Outcome, with_message};

/// The line of a field, its end included.
fn line<'a>(message: &Message<'a>, field: &Field) -> &'a [u8] {
    message.text(field.start as usize..field.end as usize)
}

fn vias<'a>(message: &Message<'a>) -> Vec<&'a [u8]> {
    message.values(HeaderName::Via).map(|v| v.text).collect()
}

/// A Via as it leaves where the request came from `source` (RFC 3261 §18.2.1, RFC 3581 §4).
#[track_caller]
fn assert_received(sent: &[u8], left: &[u8], source: SocketAddr) {
    let (Some(sent), Some(left)) = (Via::parse(sent), Via::parse(left)) else {
        // One that cannot be read stays as it is.
        return assert_eq!(left.escape_ascii().to_string(), sent.escape_ascii().to_string());
    };
    let head = |via: &Via<'_>| {
        via.text[..via.text.len() - via.params.as_bytes().len()]
            .trim_ascii_end()
            .to_vec()
    };
    assert_eq!(
        head(&left).escape_ascii().to_string(),
        head(&sent).escape_ascii().to_string()
    );
    let others = |via: &Via<'_>| -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let ours =
            |name: &[u8]| name.eq_ignore_ascii_case(b"received") || name.eq_ignore_ascii_case(b"rport");
        let params = via.params.iter().filter(|p| !ours(p.name));
        params
            .map(|p| (p.name.to_vec(), p.value.map(<[u8]>::to_vec)))
            .collect()
    };
    assert_eq!(others(&left), others(&sent), "other parameters of Via");
    assert_eq!(left.received_any(), Some(source.ip()), "received");
    assert_eq!(left.rport(), sent.rport().map(|_| Some(source.port())), "rport");
}

/// Checks the answer that this server made to `sent`, which came from `source`.
///
/// # Panics
/// When it is not as RFC 3261 §8.2.6 has it.
#[track_caller]
pub fn assert_answer(sent: &[u8], answer: &[u8], source: SocketAddr) {
    with_message(sent, |sent| {
        with_message(answer, |answer| {
            assert_eq!(answer.defect(), None);
            assert!(answer.status().is_some(), "no response");
            let (ours, theirs) = (vias(answer), vias(sent));
            assert_eq!(ours.len(), theirs.len(), "Vias");
            assert_received(theirs[0], ours[0], source);
            assert_eq!(ours[1..], theirs[1..], "Vias below the topmost");
            for name in [HeaderName::From, HeaderName::CallId, HeaderName::CSeq] {
                assert_eq!(answer.value(name), sent.value(name), "{name:?}");
            }
            assert_to(sent.value(HeaderName::To), answer.value(HeaderName::To));
            if sent.check_mandatory().is_ok() {
                assert_eq!(answer.check_mandatory(), Ok(()));
            }
            assert_eq!(answer.value(HeaderName::ContentLength), Some(&b"0"[..]));
        });
    });
}

/// To of an answer: a tag is added where there is a To that has none (§8.2.6.2).
#[track_caller]
fn assert_to(sent: Option<&[u8]>, answered: Option<&[u8]>) {
    let (sent, answered) = (sent.unwrap_or_default(), answered.unwrap_or_default());
    let tag = answered.strip_prefix(sent).expect("To begins as it was sent");
    match NameAddr::parse(sent) {
        Some(to) if to.tag().is_none() => {
            assert!(
                tag.len() > b";tag=".len() && tag.starts_with(b";tag="),
                "{}",
                tag.escape_ascii()
            );
            let parsed = NameAddr::parse(answered).expect("To can be read");
            assert!(parsed.tag().is_some());
        }
        Some(_) | None => assert!(tag.is_empty(), "{}", tag.escape_ascii()),
    }
}

/// Status line and header lines of an answer.
#[track_caller]
fn assert_says(answer: &[u8], status: u16, reason: &str, lines: &[&str]) {
    let text = String::from_utf8_lossy(answer);
    assert_eq!(
        text.lines().next(),
        Some(format!("SIP/2.0 {status} {reason}").as_str())
    );
    for line in lines {
        assert!(
            text.split("\r\n").any(|l| l == *line),
            "{line} is missing in {text}"
        );
    }
    let unsupported = text.matches("\r\nUnsupported:").count();
    assert_eq!(
        unsupported,
        lines.iter().filter(|l| l.starts_with("Unsupported:")).count()
    );
}

/// Checks what an answer of this server says beside what every answer does.
///
/// # Panics
/// When it says something else, or `expected` is no answer.
#[track_caller]
pub fn assert_own(expected: Outcome, answer: &[u8]) {
    match expected {
        Outcome::Answered(status, reason, lines) => assert_says(answer, status, reason, lines),
        Outcome::Registered(expected) => {
            assert_says(answer, 200, "OK", &[]);
            assert_eq!(contacts(answer), expected, "contacts");
        }
        Outcome::Forwarded(_) | Outcome::Dropped(_) | Outcome::Incomplete => {
            panic!("{expected:?} is no answer")
        }
    }
}

/// Contact URIs of a 200 to a REGISTER, in alphabetical order.
#[track_caller]
fn contacts(answer: &[u8]) -> Vec<String> {
    with_message(answer, |answer| {
        let values = answer.values(HeaderName::Contact).map(|v| v.text);
        let uris = values.map(|v| NameAddr::parse(v).expect("a contact").uri);
        let mut uris: Vec<String> = uris.map(|u| String::from_utf8_lossy(u).into_owned()).collect();
        uris.sort();
        uris
    })
}

/// Checks what the callee got of `sent`, which came from `source`: the Request-URI as it was, one
/// Via more, `received`, Max-Forwards lowered, Record-Route where a dialog may begin, our Route
/// values gone; every other line, unfolded (RFC 3261 §7.3.1), and the body byte for byte, in order
/// (RFC 3261 §16.6).
///
/// # Panics
/// When it is not so.
pub fn assert_forwarded(sent: &[u8], arrived: &[u8], source: SocketAddr, values: usize) {
    assert_forwarded_by(sent, arrived, source, values, 1);
}

/// The same where a Record-Route is written once, or twice (RFC 5658 §5).
///
/// # Panics
/// When it is not so.
#[track_caller]
pub fn assert_forwarded_by(
    sent: &[u8],
    arrived: &[u8],
    source: SocketAddr,
    values: usize,
    record_routes: usize,
) {
    let mut unfolded = Vec::new();
    with_message(sent, |sent| sent.unfold(&mut unfolded));
    with_message(&unfolded, |sent| {
        with_message(arrived, |arrived| {
            assert_eq!(arrived.defect(), None);
            assert_eq!(first_line(arrived), first_line(sent), "start line");
            let (ours, theirs) = (vias(arrived), vias(sent));
            assert_eq!((ours.len(), theirs.len()), (values, values - 1), "Vias");
            let top = Via::parse(ours[0]).expect("our Via");
            assert!(top.has_cookie(), "our branch");
            assert_received(theirs[0], ours[1], source);
            assert_eq!(ours[2..], theirs[1..], "Vias below the topmost");
            let hops = |m: &Message<'_>| m.max_forwards().expect("Max-Forwards is a number");
            assert_eq!(hops(arrived), Some(hops(sent).map_or(70, |hops| hops - 1)));
            assert!(!arrived.has(HeaderName::Route), "our Route values go");
            let routes = |m: &Message<'_>| m.values(HeaderName::RecordRoute).count();
            assert_eq!(
                routes(arrived),
                routes(sent) + if begins_dialog(sent) { record_routes } else { 0 },
                "Record-Route"
            );
            assert_other_lines(sent, arrived, record_routes);
            assert_eq!(arrived.body(), sent.body(), "body");
        });
    });
}

fn first_line<'a>(message: &Message<'a>) -> &'a [u8] {
    message.text(message.start_offset()..message.headers_offset())
}

fn begins_dialog(sent: &Message<'_>) -> bool {
    let tag = sent.to().ok().and_then(|to| to.tag());
    let method = sent.method();
    tag.is_none()
        && [Method::Invite, Method::Subscribe, Method::Refer]
            .iter()
            .any(|m| Some(*m) == method)
}

/// All lines but those that forwarding changes.
#[track_caller]
fn assert_other_lines(sent: &Message<'_>, arrived: &Message<'_>, record_routes: usize) {
    let rest = |message: &Message<'_>, ours: &[HeaderName]| -> Vec<String> {
        let mut ours = ours.to_vec();
        let mut lines = Vec::new();
        for field in message.fields() {
            if let Some(at) = ours.iter().position(|name| *name == field.name) {
                ours.remove(at);
            } else if !matches!(field.name, HeaderName::MaxForwards | HeaderName::Route) {
                lines.push(line(message, field).escape_ascii().to_string());
            }
        }
        assert!(ours.is_empty(), "missing: {ours:?}");
        lines
    };
    // The topmost Via line of the sender has been changed, and ours stands above it.
    let mut added = vec![HeaderName::Via, HeaderName::Via];
    if begins_dialog(sent) {
        added.resize(2 + record_routes, HeaderName::RecordRoute);
    }
    assert_eq!(
        rest(arrived, &added),
        rest(sent, &[HeaderName::Via]),
        "other lines"
    );
}

/// The callee's answer, with this status line (RFC 3261 §8.2.6).
pub fn answer_of_callee(arrived: &[u8], status_line: &[u8]) -> Vec<u8> {
    with_message(arrived, |arrived| {
        let mut out = [status_line, b"\r\n"].concat();
        for field in arrived.fields() {
            let copied = [
                HeaderName::Via,
                HeaderName::RecordRoute,
                HeaderName::From,
                HeaderName::To,
                HeaderName::CallId,
                HeaderName::CSeq,
            ];
            if !copied.contains(&field.name) {
                continue;
            }
            out.extend_from_slice(line(arrived, field));
            if field.name == HeaderName::To && arrived.to().is_ok_and(|to| to.tag().is_none()) {
                out.truncate(out.len() - 2);
                out.extend_from_slice(b";tag=callee\r\n");
            }
        }
        out.extend_from_slice(b"X-Callee: \"untouched\r\n line\"\r\nl: 4\r\n\r\nbody");
        out
    })
}

/// Checks what the sender got of the callee's answer: all of it but the topmost Via, unfolded, with the marks of its
/// own side.
///
/// # Panics
/// When it is not so.
#[track_caller]
pub fn assert_relayed(answered: &[u8], arrived: &[u8]) {
    let expected = with_message(answered, |answered| {
        let top = answered.fields_named(HeaderName::Via).next().expect("our Via");
        let (from, to) = (top.start as usize, top.end as usize);
        let rest = [answered.text(0..from), answered.text(to..answered.end_offset())].concat();
        let mut unfolded = Vec::new();
        with_message(&rest, |rest| rest.unfold(&mut unfolded));
        unfolded
    });
    assert_eq!(unmarked(arrived), unmarked(&expected));
}

/// Without the digits of dialog marks, which differ on the two sides of the server; what is no text is escaped.
pub fn unmarked(text: &[u8]) -> String {
    let text = text.escape_ascii().to_string();
    let mut parts = text.split(";tz=");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + ";tz=" + part.get(32..).unwrap_or(part))
}
