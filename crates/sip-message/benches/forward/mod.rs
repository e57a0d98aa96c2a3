//! What is measured, shared by the benchmark, the instruction count and the allocation test: an
//! INVITE as phones send it, and what a stateless proxy does with it.
#![allow(dead_code, reason = "each user of this file takes what it needs")]

use sip_message::chars::span_in;
use sip_message::header::{Mandatory, NameAddr, Via};
use sip_message::number::write_decimal;
use sip_message::write::Edits;
use sip_message::{HeaderIndex, HeaderName, Message, Uri, parse};

/// 14 header fields, about 800 bytes.
pub(crate) const INVITE: &[u8] = b"INVITE sip:+12125550142@proxy.example.net;user=phone SIP/2.0\r\n\
Via: SIP/2.0/UDP 192.0.2.47:5060;branch=z9hG4bK-524287-1---7c1f0d5b2a9e4c36;rport\r\n\
Max-Forwards: 70\r\n\
Contact: <sip:ann@192.0.2.47:5060;transport=udp>\r\n\
To: <sip:+12125550142@example.net;user=phone>\r\n\
From: \"Ann Example\" <sip:ann@example.net>;tag=3c4e9b71\r\n\
Call-ID: 81Yx0cJ2ZQb7m3l0Vd9Kfg..@192.0.2.47\r\n\
CSeq: 1 INVITE\r\n\
Allow: INVITE, ACK, CANCEL, BYE, NOTIFY, REFER, MESSAGE, OPTIONS, INFO, SUBSCRIBE\r\n\
Supported: replaces, norefersub, timer, outbound\r\n\
Session-Expires: 1800;refresher=uac\r\n\
User-Agent: Desk Phone 4.2 build 190817\r\n\
Allow-Events: presence, kpml, talk\r\n\
Content-Type: application/sdp\r\n\
Content-Length: 158\r\n\
\r\n\
v=0\r\n\
o=- 1379 1 IN IP4 192.0.2.47\r\n\
s=-\r\n\
c=IN IP4 192.0.2.47\r\n\
t=0 0\r\n\
m=audio 40378 RTP/AVP 8 0 101\r\n\
a=rtpmap:101 telephone-event/8000\r\n\
a=fmtp:101 0-15\r\n\
a=sendrecv\r\n";

/// Header fields that the parser lets through.
pub(crate) const MAX_HEADERS: usize = 128;

/// Indexes the message, reads no value.
pub(crate) fn index<'a>(bytes: &'a [u8], index: &'a mut HeaderIndex) -> Message<'a> {
    let message = parse(bytes, index, MAX_HEADERS).expect("the message is valid");
    assert!(message.defect().is_none());
    message
}

/// Reads what a proxy needs of a request before it may forward it (RFC 3261 §16.3, §16.4).
pub(crate) fn read_values(message: &Message<'_>) -> u64 {
    let Mandatory {
        via,
        from_tag,
        to_tag,
        call_id,
        cseq,
        ..
    } = message.mandatory().expect("the message is valid");
    let hops = message.max_forwards().expect("the message is valid");
    let uri = Uri::parse(message.request_uri().unwrap_or_default()).expect("the message is valid");
    let route = message
        .values(HeaderName::Route)
        .next()
        .and_then(|v| NameAddr::parse(v.text));
    let required = message.values(HeaderName::ProxyRequire).next();
    u64::from(cseq.number)
        + u64::from(via.port.unwrap_or_default())
        + u64::from(hops.unwrap_or_default())
        + u64::from(uri.sip().is_some())
        + u64::from(via.branch().is_some() && via.rport().is_some())
        + u64::from(from_tag.is_some() && to_tag.is_none() && !call_id.is_empty())
        + u64::from(route.is_none() && required.is_none())
}

/// Adds a Via and a Record-Route, decrements Max-Forwards, fills in received and rport, and copies.
pub(crate) fn forward(message: &Message<'_>, edits: &mut Edits, out: &mut Vec<u8>) {
    edits.clear();
    out.clear();
    let top = message.values(HeaderName::Via).next().expect("checked");
    let field = message.fields()[top.field];
    edits.insert_with(field.start as usize, |text| {
        text.extend_from_slice(b"Via: SIP/2.0/UDP 198.51.100.1:5060;branch=z9hG4bK");
        write_decimal(text, 0x0123_4567_89ab_cdef);
        text.extend_from_slice(b"\r\nRecord-Route: <sip:198.51.100.1:5060;lr>\r\n");
    });
    let via = Via::parse(top.text).expect("checked");
    let rport = via.params.get(b"rport").expect("the message has it");
    let at = span_in(message.source(), rport.name)
        .expect("borrowed from it")
        .end;
    edits.insert(at, b"=5060;received=192.0.2.47");
    let hops = message
        .fields_named(HeaderName::MaxForwards)
        .next()
        .expect("checked");
    let left = message.max_forwards().expect("checked").expect("checked") - 1;
    edits.replace_with(hops.value as usize..hops.value_end as usize, |text| {
        write_decimal(text, u64::from(left));
    });
    edits.apply(
        message.source(),
        message.start_offset()..message.end_offset(),
        out,
    );
}
