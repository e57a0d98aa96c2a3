//! Reads everything that can be read of a message. Shared by the property tests and the fuzz
//! targets: whatever the bytes, none of it may panic or run on, and what comes back must agree
//! with itself.
#![allow(dead_code, reason = "each user of this file takes what it needs")]

use std::hint::black_box;

use sip_message::header::{AuthValue, Contacts, NameAddr, Via};
use sip_message::write::Edits;
use sip_message::{HeaderIndex, HeaderName, Host, Message, Params, StartLine, Uri, Value, parse};

/// Most header fields that the tests let a message have.
pub(crate) const MAX_HEADERS: usize = 256;

/// Parses `bytes` and reads all of the result.
pub(crate) fn exercise_bytes(bytes: &[u8], index: &mut HeaderIndex) {
    if let Ok(message) = parse(bytes, index, MAX_HEADERS) {
        exercise(&message);
    }
}

/// Every accessor, typed value and iterator of a message, with the invariants that hold of any.
pub(crate) fn exercise(message: &Message<'_>) {
    layout(message);
    fields(message);
    start_line(message);
    black_box((message.call_id(), message.cseq().ok()));
    black_box((message.max_forwards().ok(), message.expires().ok()));
    for name in HeaderName::all() {
        each_value(message, name);
    }
    if let Ok(contacts) = Contacts::of(message) {
        match contacts {
            Contacts::Star => assert_eq!(message.values(HeaderName::Contact).count(), 1),
            Contacts::List(list) => {
                list.for_each(|c| {
                    if let Ok(contact) = c {
                        assert!(contact.q_milli.unwrap_or_default() <= 1000);
                        name_addr(&contact.addr);
                    }
                });
            }
        }
    }
    if message.check_mandatory().is_ok() {
        assert!(message.top_via().is_ok() && message.from().is_ok() && message.to().is_ok());
        assert!(message.call_id().is_some() && message.cseq().is_ok());
    }
    unedited(message);
}

/// Offsets lie in order, and the parts add up to the whole.
fn layout(message: &Message<'_>) {
    let source = message.source();
    assert!(message.start_offset() <= message.headers_offset());
    assert!(message.headers_offset() <= message.headers_end_offset());
    assert!(message.headers_end_offset() <= message.end_offset());
    assert!(message.end_offset() <= source.len());
    assert_eq!(
        message.bytes(),
        &source[message.start_offset()..message.end_offset()]
    );
    assert!(message.bytes().ends_with(message.body()));
    black_box(message.defect().map(|d| d.reason().len()));
}

fn fields(message: &Message<'_>) {
    let mut last = message.headers_offset() as u32;
    for field in message.fields() {
        assert!(last <= field.start && field.start < field.name_end);
        assert!(field.name_end < field.value && field.value <= field.value_end);
        assert!(field.value_end <= field.end);
        assert!(field.end as usize <= message.end_offset() || message.defect().is_some());
        last = field.end;
        assert_eq!(HeaderName::lookup(message.field_name(field)), field.name);
        let value = message.field_value(field);
        assert_eq!(sip_message::chars::trim(value), value);
        if field.name == HeaderName::Other {
            assert!(
                message
                    .fields_other(message.field_name(field))
                    .any(|f| f == field)
            );
        } else {
            assert!(message.has(field.name));
            assert!(message.fields_named(field.name).any(|f| f == field));
        }
    }
}

fn start_line(message: &Message<'_>) {
    match message.start() {
        StartLine::Request { method, uri: text } => {
            assert_eq!(
                (message.method(), message.request_uri()),
                (Some(method), Some(text))
            );
            assert_eq!(message.status(), None);
            uri(text);
        }
        StartLine::Response { status, reason } => {
            assert!((100..700).contains(&status) && message.status() == Some(status));
            assert_eq!((message.method(), message.request_uri()), (None, None));
            black_box(reason);
        }
    }
}

/// Every value of a header, read as everything that a value may be.
fn each_value(message: &Message<'_>, name: HeaderName) {
    assert_eq!(message.has(name), message.value(name).is_some());
    black_box(message.has_option(name, b"100rel"));
    let mut before: Option<Value<'_>> = None;
    for value in message.values(name) {
        assert!(!value.text.is_empty());
        assert_eq!(&message.source()[value.span(message)], value.text);
        let same_field = before.is_some_and(|b| b.field == value.field);
        assert_eq!(value.first, !same_field, "first of its field");
        if let Some(before) = before {
            assert_eq!(before.last, !same_field, "last of its field");
        }
        before = Some(value);
        as_anything(value.text);
    }
    if let Some(last) = before {
        assert!(last.last);
    }
    if let Some(text) = message.value(name) {
        as_anything(text);
    }
}

/// One value read as each kind of value.
pub(crate) fn as_anything(text: &[u8]) {
    if let Some(via) = Via::parse(text) {
        assert_eq!(via.text, text);
        black_box((
            via.branch(),
            via.has_cookie(),
            via.received(),
            via.received_any(),
            via.rport(),
        ));
        params(&via.params);
    }
    if let Some(addr) = NameAddr::parse(text) {
        name_addr(&addr);
    }
    auth(text);
    black_box(sip_message::header::Contact::parse(text));
    black_box(sip_message::header::CSeq::parse(text).ok());
    black_box(sip_message::number::content_length(text));
    black_box(sip_message::number::delta_seconds(text));
    black_box(sip_message::number::qvalue(text));
    if let Some(host) = Host::parse(text) {
        let copy = host;
        assert_eq!(host, copy, "reflexive");
        black_box((host.ip(), host.to_string()));
    }
}

/// Credentials or a challenge.
pub(crate) fn auth(text: &[u8]) {
    if let Some(value) = AuthValue::parse(text) {
        black_box(value.is_digest());
        for (count, param) in value.params.iter().enumerate() {
            assert!(count < 64, "bounded");
            assert_eq!(
                value.params.get(param.name).map(|p| p.unquoted()),
                value.params.unquoted(param.name)
            );
        }
    }
}

fn name_addr(addr: &NameAddr<'_>) {
    assert!(!addr.uri.is_empty());
    black_box(addr.tag());
    params(&addr.params);
    if let Ok(parsed) = addr.parsed_uri() {
        assert_eq!(addr.sip_uri().is_some(), parsed.sip().is_some());
    }
    uri(addr.uri);
}

/// A URI and whatever is in it.
pub(crate) fn uri(text: &[u8]) {
    match Uri::parse(text) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(parsed) => {
            let copy = parsed;
            assert_eq!(parsed, copy, "reflexive");
            match parsed {
                Uri::Sip(sip) => {
                    assert_eq!(sip.text, text);
                    black_box((sip.transport(), sip.is_loose_route(), sip.host.ip()));
                    params(&sip.params);
                }
                Uri::Tel(tel) => {
                    assert!(!tel.number.is_empty());
                    params(&tel.params);
                }
                Uri::Other { scheme, rest } => assert_eq!(scheme.len() + 1 + rest.len(), text.len()),
            }
        }
    }
}

fn params(list: &Params<'_>) {
    black_box(list.is_valid());
    for param in list.iter() {
        assert!(!param.name.is_empty());
        black_box(param.unquoted());
        assert!(list.has(param.name));
    }
}

/// Parse, then write without edits: the identity.
pub(crate) fn unedited(message: &Message<'_>) {
    let mut out = Vec::new();
    Edits::new().apply(
        message.source(),
        message.start_offset()..message.end_offset(),
        &mut out,
    );
    assert_eq!(out, message.bytes());
}
