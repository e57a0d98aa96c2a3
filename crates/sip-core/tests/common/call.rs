//! One call of six messages as bytes, for counting and timing: 14 headers and 800 bytes in the
//! INVITE. Requests vary by their number, so that each call is another.

#![allow(dead_code, unreachable_pub, reason = "each user of it uses its part")]

use sip_core::config::{Config, StateMode};
use sip_core::endpoint::{Endpoint, Handled};
use sip_core::id::WorkerId;
use sip_core::time::{Instant, Now};
use sip_core::transport::{Flow, TransmitBatch};

use crate::common::{CALLEE, CALLER, Shared, config, keys, udp_flow};

const SDP: &str = "v=0\r\no=alice 2890844526 2890844526 IN IP4 192.0.2.10\r\ns=-\r\nc=IN IP4 192.0.2.10\r\nt=0 0\r\n\
    m=audio 49170 RTP/AVP 0 8 97\r\na=rtpmap:0 PCMU/8000\r\na=rtpmap:8 PCMA/8000\r\na=sendrecv\r\n";

/// Texts of a call, with `@@@@@@@@` where its number goes.
pub struct Call {
    texts: [Vec<u8>; 6],
    number: u32,
    text: Vec<u8>,
    pub endpoint: Endpoint,
    batch: TransmitBatch,
    now_us: u64,
    caller: Flow,
    callee: Flow,
    /// Microseconds that pass with each message.
    pub step_us: u64,
}

const INVITE: usize = 0;
const RINGING: usize = 1;
const OK: usize = 2;
const ACK: usize = 3;
const BYE: usize = 4;
const BYE_OK: usize = 5;

impl Call {
    pub fn new(state: StateMode) -> Self {
        Self::to("sip:bob@example.com", &Config { state, ..config() })
    }

    /// A call to this Request-URI.
    pub fn to(uri: &str, config: &Config) -> Self {
        let shared = std::sync::Arc::new(Shared::default());
        let mut call = Self {
            texts: Default::default(),
            number: 0,
            text: Vec::with_capacity(2048),
            endpoint: Endpoint::new(config, &keys(9), WorkerId(0), shared),
            batch: TransmitBatch::new(),
            now_us: 1_000_000,
            caller: udp_flow(CALLER),
            callee: udp_flow(CALLEE),
            step_us: 10,
        };
        call.texts[INVITE] = request("INVITE", uri, 1, "", SDP);
        call.texts[BYE] = request("BYE", "sip:bob@192.0.2.20:5060", 2, ";tag=t1@@@@@@@@", "");
        call.texts[ACK] = request("ACK", "sip:bob@192.0.2.20:5060", 1, ";tag=t1@@@@@@@@", "");
        call
    }

    fn now(&mut self) -> Now {
        self.now_us += self.step_us;
        Now {
            instant: Instant::from_micros(self.now_us),
            unix_ms: 1_700_000_000_000 + self.now_us / 1000,
        }
    }

    /// Gives message `which` to the endpoint; what it sends is in the batch.
    #[track_caller]
    fn give(&mut self, which: usize) {
        self.text.clear();
        self.text.extend_from_slice(&self.texts[which]);
        number(&mut self.text, self.number);
        let flow = if matches!(which, RINGING | OK | BYE_OK) {
            self.callee
        } else {
            self.caller
        };
        let now = self.now();
        let handled = self.endpoint.handle_message(now, flow, &self.text);
        assert_eq!(handled, Handled::Here);
        self.endpoint.poll_transmit(&mut self.batch);
    }

    /// The last message in the batch.
    fn sent(&self) -> &[u8] {
        self.batch
            .items()
            .last()
            .map(|item| self.batch.message(item))
            .unwrap_or_default()
    }

    /// Begins the next call: its INVITE, forwarded.
    pub fn invite(&mut self) {
        self.number += 1;
        self.give(INVITE);
    }

    /// The INVITE of [`Call::invite`] again and again, and nothing but the core: what a stateless
    /// proxy forwards.
    #[track_caller]
    pub fn invite_again(&mut self) {
        let now = self.now();
        let handled = self.endpoint.handle_message(now, self.caller, &self.text);
        assert_eq!(handled, Handled::Here);
        self.endpoint.poll_transmit(&mut self.batch);
    }

    /// It rings.
    pub fn ring(&mut self) {
        self.answer(INVITE, RINGING, "180 Ringing");
        self.give(RINGING);
    }

    /// The rest of the call.
    pub fn rest(&mut self) {
        self.ring();
        self.answer(INVITE, OK, "200 OK");
        self.give(OK);
        self.route();
        self.give(ACK);
        self.give(BYE);
        self.answer(BYE, BYE_OK, "200 OK");
        self.give(BYE_OK);
        while self.endpoint.poll_event().is_some() {}
    }

    /// Fires timers that are due.
    pub fn pass(&mut self, us: u64) {
        self.now_us += us;
        let now = self.now();
        while self
            .endpoint
            .poll_timeout()
            .is_some_and(|next| next <= now.instant)
        {
            self.endpoint.handle_timeout(now);
            self.endpoint.poll_transmit(&mut self.batch);
        }
    }

    /// Makes the response to what was forwarded, in place: memory of the test itself is used again.
    fn answer(&mut self, request: usize, response: usize, status: &str) {
        // Texts of responses are made from the first forwarded request; later ones differ in the
        // branch and the mark, which are of one length.
        let mut text = core::mem::take(&mut self.texts[response]);
        if request == INVITE && response == OK {
            // The INVITE is not in the batch any more; the 180 has its headers.
            text.clear();
            let ringing = &self.texts[RINGING];
            text.extend_from_slice(b"SIP/2.0 200 OK");
            text.extend_from_slice(&ringing["SIP/2.0 180 Ringing".len()..]);
        } else {
            write_response(&mut text, self.sent(), status);
        }
        self.texts[response] = text;
    }

    /// Puts the Record-Route of the 200 into ACK and BYE.
    #[track_caller]
    fn route(&mut self) {
        let ok = core::mem::take(&mut self.texts[OK]);
        let at = memfind(&ok, b"Record-Route: ").expect("a Record-Route") + b"Record-".len();
        let end = at + memfind(&ok[at..], b"\r\n").expect("a line") + 2;
        for which in [ACK, BYE] {
            let text = &mut self.texts[which];
            let from = memfind(text, b"Route: ").expect("a Route");
            let to = from + memfind(&text[from..], b"\r\n").expect("a line") + 2;
            text.splice(from..to, ok[at..end].iter().copied());
        }
        self.texts[OK] = ok;
    }
}

fn memfind(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|w| w == what)
}

/// Puts the call's number where it belongs.
fn number(text: &mut [u8], number: u32) {
    let mut digits = [b'0'; 8];
    let mut n = number;
    for d in digits.iter_mut().rev() {
        *d = b'0' + (n % 10) as u8;
        n /= 10;
    }
    let mut at = 0;
    while let Some(from) = text[at..].iter().position(|c| *c == b'@') {
        at += from;
        if text[at..].starts_with(b"@@@@@@@@") {
            text[at..at + 8].copy_from_slice(&digits);
        }
        at += 1;
    }
}

fn request(method: &str, uri: &str, cseq: u32, to_tag: &str, body: &str) -> Vec<u8> {
    let route = if to_tag.is_empty() {
        ""
    } else {
        "Route: <sip:192.0.2.1:5060;lr;tz=0000000000000000>\r\n"
    };
    let kind = if body.is_empty() {
        ""
    } else {
        "Content-Type: application/sdp\r\n"
    };
    format!(
        "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bK{method}@@@@@@@@\r\nMax-Forwards: 70\r\n\
         {route}From: \"Alice\" <sip:alice@example.com>;tag=f1@@@@@@@@\r\nTo: <sip:bob@example.com>{to_tag}\r\n\
         Call-ID: 3848276298220188511-@@@@@@@@@192.0.2.10\r\nCSeq: {cseq} {method}\r\n\
         Contact: <sip:alice@192.0.2.10:5060>\r\nAllow: INVITE, ACK, CANCEL, BYE, OPTIONS, INFO, UPDATE, PRACK\r\n\
         Supported: replaces, timer, 100rel\r\nUser-Agent: Example Phone 1.2.3\r\nSession-Expires: 1800\r\nSubject: call\r\n\
         {kind}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// The response that a callee makes of `request`.
fn write_response(out: &mut Vec<u8>, request: &[u8], status: &str) {
    out.clear();
    out.extend_from_slice(b"SIP/2.0 ");
    out.extend_from_slice(status.as_bytes());
    out.extend_from_slice(b"\r\n");
    for line in request
        .split_inclusive(|c| *c == b'\n')
        .skip(1)
        .take_while(|l| *l != b"\r\n")
    {
        for name in [&b"Via:"[..], b"Record-Route:", b"From:", b"Call-ID:", b"CSeq:"] {
            if line.starts_with(name) {
                out.extend_from_slice(line);
            }
        }
        if line.starts_with(b"To:") {
            out.extend_from_slice(&line[..line.len() - 2]);
            if memfind(line, b";tag=").is_none() {
                out.extend_from_slice(b";tag=t1@@@@@@@@");
            }
            out.extend_from_slice(b"\r\n");
        }
    }
    out.extend_from_slice(b"Contact: <sip:bob@192.0.2.20:5060>\r\nContent-Length: 0\r\n\r\n");
}
