//! An endpoint with a caller and a callee beside it: virtual time, fixed keys, texts of a call.

use std::hint::black_box;
use std::sync::Arc;

use sip_core::config::Config;
use sip_core::endpoint::{Endpoint, Handled};
use sip_core::id::WorkerId;
use sip_core::time::{Instant, Now};
use sip_core::transport::{Flow, TransmitBatch};

use crate::common::{CALLEE, CALLER, Shared, keys, udp_flow};

/// Microseconds that pass with each message.
const MESSAGE_US: u64 = 10;

const SDP: &str = "v=0\r\no=alice 2890844526 2890844526 IN IP4 192.0.2.10\r\ns=-\r\n\
    c=IN IP4 192.0.2.10\r\nt=0 0\r\nm=audio 49170 RTP/AVP 0 8 97\r\na=rtpmap:0 PCMU/8000\r\n\
    a=rtpmap:8 PCMA/8000\r\na=sendrecv\r\n";

pub(crate) struct Desk {
    endpoint: Endpoint,
    batch: TransmitBatch,
    now_us: u64,
    caller: Flow,
    callee: Flow,
}

impl Desk {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            endpoint: Endpoint::new(config, &keys(9), WorkerId(0), Arc::new(Shared::default())),
            batch: TransmitBatch::new(),
            now_us: 1_000_000,
            caller: udp_flow(CALLER),
            callee: udp_flow(CALLEE),
        }
    }

    fn now(&self) -> Now {
        Now {
            instant: Instant::from_micros(self.now_us),
            unix_ms: 1_700_000_000_000 + self.now_us / 1000,
        }
    }

    /// One message, and all that a turn of the worker's loop does with the endpoint for it.
    pub(crate) fn give(&mut self, text: &[u8], from_callee: bool) {
        let flow = if from_callee { self.callee } else { self.caller };
        self.give_from(flow, text);
    }

    pub(crate) fn give_from(&mut self, flow: Flow, text: &[u8]) {
        self.now_us += MESSAGE_US;
        let now = self.now();
        let handled = self.endpoint.handle_message(now, flow, text);
        assert_eq!(handled, Handled::Here);
        self.endpoint.poll_transmit(&mut self.batch);
        assert!(
            self.endpoint.poll_query().is_none(),
            "nothing here needs a back-end"
        );
        while self.endpoint.poll_event().is_some() {}
        black_box(self.endpoint.poll_timeout());
    }

    pub(crate) fn pass(&mut self, us: u64) {
        self.now_us += us;
    }

    /// Fires what is due, as the worker does.
    pub(crate) fn fire_timers(&mut self) {
        let now = self.now();
        while self
            .endpoint
            .poll_timeout()
            .is_some_and(|next| next <= now.instant)
        {
            self.endpoint.handle_timeout(now);
            let sent = self.endpoint.poll_transmit(&mut self.batch);
            assert!(!sent, "nothing is retransmitted here");
        }
    }

    /// Fires what is due, pings among it.
    pub(crate) fn fire_pings(&mut self) {
        let now = self.now();
        self.endpoint.handle_timeout(now);
        self.endpoint.poll_transmit(&mut self.batch);
        black_box(self.endpoint.poll_timeout());
    }

    /// All that left last, and where to.
    pub(crate) fn all_sent(&self) -> Vec<(Flow, Vec<u8>)> {
        let sent = self.batch.items().iter();
        sent.map(|item| (item.to, self.batch.message(item).to_vec()))
            .collect()
    }

    /// The last message that left with the last one given; it begins with `start`.
    pub(crate) fn sent(&self, start: &[u8]) -> Vec<u8> {
        let last = self.batch.items().last().map(|item| self.batch.message(item));
        let text = last.unwrap_or_default();
        assert!(
            text.starts_with(start),
            "not what should have left: {}",
            String::from_utf8_lossy(text)
        );
        text.to_vec()
    }
}

/// 14 header fields, about 800 bytes; every number makes another call, of the same length.
pub(crate) fn invite(number: u32) -> Vec<u8> {
    let length = SDP.len();
    format!(
        "INVITE sip:bob@example.com SIP/2.0\r\n\
         Via: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKi{number:08}\r\nMax-Forwards: 70\r\n\
         From: \"Alice\" <sip:alice@example.com>;tag=f1{number:08}\r\nTo: <sip:bob@example.com>\r\n\
         Call-ID: 3848276298220188511-{number:08}@192.0.2.10\r\nCSeq: 1 INVITE\r\n\
         Contact: <sip:alice@192.0.2.10:5060>\r\n\
         Allow: INVITE, ACK, CANCEL, BYE, OPTIONS, INFO, UPDATE, PRACK\r\n\
         Supported: replaces, timer, 100rel\r\nUser-Agent: Example Phone 1.2.3\r\n\
         Session-Expires: 1800\r\nSubject: call\r\nContent-Type: application/sdp\r\n\
         Content-Length: {length}\r\n\r\n{SDP}"
    )
    .into_bytes()
}

/// ACK or BYE of a call whose 200 the callee made as `ok`.
pub(crate) fn in_dialog(method: &str, ok: &[u8], number: u32) -> Vec<u8> {
    let route: String = lines(ok)
        .filter_map(|line| line.strip_prefix("Record-Route: "))
        .map(|value| format!("Route: {value}\r\n"))
        .collect();
    let cseq = if method == "ACK" { 1 } else { 2 };
    format!(
        "{method} sip:bob@192.0.2.20:5060 SIP/2.0\r\n\
         Via: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bK{method}{number:08}\r\nMax-Forwards: 70\r\n{route}\
         From: \"Alice\" <sip:alice@example.com>;tag=f1{number:08}\r\n\
         To: <sip:bob@example.com>;tag=t1{number:08}\r\n\
         Call-ID: 3848276298220188511-{number:08}@192.0.2.10\r\nCSeq: {cseq} {method}\r\n\
         User-Agent: Example Phone 1.2.3\r\nContent-Length: 0\r\n\r\n"
    )
    .into_bytes()
}

/// The response that a callee makes of `request`, the bytes that reached it.
pub(crate) fn response(request: &[u8], status: &str, number: u32) -> Vec<u8> {
    let mut text = format!("SIP/2.0 {status}\r\n");
    for line in lines(request) {
        let name = line.split(':').next().unwrap_or_default();
        if ["Via", "Record-Route", "From", "To", "Call-ID", "CSeq"].contains(&name) {
            text += line;
            if name == "To" && !line.contains(";tag=") {
                text += &format!(";tag=t1{number:08}");
            }
            text += "\r\n";
        }
    }
    text += "Contact: <sip:bob@192.0.2.20:5060>\r\nServer: Example Gateway 7\r\nContent-Length: 0\r\n\r\n";
    text.into_bytes()
}

/// The `cseq`th registration of user `number`, by one phone.
pub(crate) fn register(number: u32, cseq: u32) -> Vec<u8> {
    format!(
        "REGISTER sip:example.com SIP/2.0\r\n\
         Via: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKr{number:08}x{cseq:08}\r\nMax-Forwards: 70\r\n\
         From: <sip:user{number:08}@example.com>;tag=f1{number:08}\r\nTo: <sip:user{number:08}@example.com>\r\n\
         Call-ID: {number:08}@192.0.2.10\r\nCSeq: {cseq:08} REGISTER\r\n\
         Contact: <sip:user{number:08}@192.0.2.10:5060>\r\nUser-Agent: Example Phone 1.2.3\r\n\
         Expires: 3600\r\nContent-Length: 0\r\n\r\n"
    )
    .into_bytes()
}

/// The registration of user `number`, by a phone behind a NAT, and its source.
pub(crate) fn register_behind_nat(number: u32) -> (Flow, Vec<u8>) {
    let text = String::from_utf8(register(number, 1)).expect("messages here are ASCII");
    let text = text.replace("192.0.2.10:5060>", "192.168.178.20:5060>");
    let text = text.replace(";branch", ";rport;branch");
    let [a, b] = (number as u16).to_be_bytes();
    let source = format!("203.0.{a}.{b}:5060");
    (udp_flow(&source), text.into_bytes())
}

fn lines(message: &[u8]) -> impl Iterator<Item = &str> {
    let text = std::str::from_utf8(message).expect("messages here are ASCII");
    text.split("\r\n").take_while(|line| !line.is_empty())
}
