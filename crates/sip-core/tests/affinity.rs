//! The owner of a datagram, found without reading the message, is the worker that the reading finds.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Bench, CALLER, Shared, config, request, udp_flow};
use proptest::prelude::*;
use sip_core::config::Config;
use sip_core::endpoint::Handled;
use sip_core::id::WorkerId;

const WORKERS: u16 = 3;

struct Three([Bench; WORKERS as usize]);

impl Three {
    fn new() -> Self {
        let config = Config {
            workers: WORKERS,
            ..config()
        };
        let shared = Arc::new(Shared::default());
        Self([0, 1, 2].map(|n| Bench::worker(&config, n, shared.clone())))
    }

    /// Gives a datagram to each worker, and to the worker that it goes to from there, which must be
    /// the end of its way. Returns whether the plain look found all that reading does.
    fn check(&mut self, bytes: &[u8]) -> bool {
        let flow = udp_flow(CALLER);
        let mut same = true;
        for at in 0..self.0.len() {
            let told = self.0[at].endpoint.worker_of(bytes);
            let now = self.0[at].now();
            let read = self.0[at].endpoint.handle_message(now, flow, bytes);
            if let Handled::HandOver(owner) = read {
                assert!(told.is_none() || told == Some(owner), "{}", bytes.escape_ascii());
                same &= told.is_some();
            }
            if let Some(WorkerId(owner)) = told {
                assert_ne!(usize::from(owner), at);
                let owner = &mut self.0[usize::from(owner)];
                let handled = owner.endpoint.handle_message(now, flow, bytes);
                assert_eq!(handled, Handled::Here, "{}", bytes.escape_ascii());
            }
        }
        same
    }
}

/// All files below a folder.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Each torture message, where they are there (see `tests/torture.rs`).
fn torture() -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    files(
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/torture")),
        &mut found,
    );
    found.sort();
    found.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

#[test]
fn a_plain_message_needs_no_reading() {
    let mut three = Three::new();
    for n in 0..30 {
        for name in ["Call-ID", "call-id", "i", "CALL-ID \t"] {
            let text = request("INVITE", "sip:bob@example.com", "a1", "").replace("c1@", &format!("c{n}@"));
            assert!(text.contains("Call-ID: c"));
            let text = text.replace("Call-ID:", &format!("{name}:"));
            assert!(three.check(text.as_bytes()), "{text}");
        }
    }
}

#[test]
fn a_register_and_a_stateless_server_need_no_owner() {
    let mut three = Three::new();
    let register = request(
        "REGISTER",
        "sip:example.com",
        "a1",
        "Contact: <sip:bob@192.0.2.20>\n",
    );
    assert!(three.check(register.as_bytes()));
    for worker in &three.0 {
        assert_eq!(worker.endpoint.worker_of(register.as_bytes()), None);
    }
    let config = Config {
        workers: WORKERS,
        state: sip_core::config::StateMode::Stateless,
        ..config()
    };
    let invite = request("INVITE", "sip:bob@example.com", "a1", "");
    let is_own = |n| {
        let bench = Bench::worker(&config, n, Arc::new(Shared::default()));
        bench.endpoint.worker_of(invite.as_bytes()).is_none()
    };
    assert!((0..WORKERS).all(is_own));
}

#[test]
fn torture_messages_end_where_the_look_says() {
    let mut three = Three::new();
    for bytes in torture() {
        three.check(&bytes);
    }
}

/// A message with a part cut out, another put in.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let mut texts: Vec<Vec<u8>> = ["INVITE", "REGISTER", "BYE", "ACK"]
        .iter()
        .map(|method| request(method, "sip:bob@example.com", "a1", "").into_bytes())
        .collect();
    texts.push(
        request("INVITE", "sip:bob@example.com", "a1", "")
            .replace("INVITE sip:bob@example.com SIP/2.0", "SIP/2.0 200 OK")
            .into_bytes(),
    );
    texts.extend(torture());
    let part = prop_oneof![
        Just("\r\nCall-ID: other@example.com\r\n".to_owned()),
        Just("\r\ni:other\r\n".to_owned()),
        Just("\r\n ".to_owned()),
        Just("\r\n\r\n".to_owned()),
        Just("Call-ID: x".to_owned()),
        "[\r\n\t :iI]{0,3}",
        "[ -~]{0,5}",
    ];
    let places = (any::<prop::sample::Index>(), 0usize..12);
    (prop::sample::select(texts), places, part).prop_map(|(mut text, (at, len), part)| {
        // Where Call-ID is, more often than not.
        let name = text
            .windows(7)
            .position(|w| w.eq_ignore_ascii_case(b"call-id"))
            .unwrap_or(0);
        let at = if len % 2 == 0 {
            at.index(text.len() + 1)
        } else {
            name + at.index(40)
        };
        let at = at.min(text.len());
        let end = (at + len).min(text.len());
        text.splice(at..end, part.bytes());
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn damaged_messages_end_where_the_look_says(messages in prop::collection::vec(damaged(), 1..8)) {
        let mut three = Three::new();
        for bytes in messages {
            three.check(&bytes);
        }
    }
}
