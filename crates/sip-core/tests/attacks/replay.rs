//! Credentials that were good once, elsewhere, or for something else.

use sip_core::auth::digest::{self, Input, QopAuth, ha1};
use sip_core::config::Algorithm;

use crate::common::{Bench, CALLER, Sent, config, one, request};

const URI: &str = "sip:bob@example.com";

pub(crate) fn guarded() -> Bench {
    let mut config = config();
    config.domains[0].auth.methods = [&b"INVITE"[..], b"MESSAGE"].map(Into::into).to_vec();
    let bench = Bench::new(&config);
    let secrets = digest::secrets(b"alice", b"example.com", b"wonderland");
    bench
        .shared
        .cached
        .lock()
        .unwrap()
        .insert((b"alice".to_vec(), b"example.com".to_vec()), Some(secrets));
    bench
}

pub(crate) fn nonce(challenge: &Sent) -> String {
    let value = challenge.header("Proxy-Authenticate");
    let (_, rest) = value.split_once("nonce=\"").expect("a nonce");
    rest.split('"').next().unwrap_or_default().to_owned()
}

/// Credentials for these.
pub(crate) fn credentials(nonce: &str, realm: &str, method: &str, uri: &str, count: u32) -> String {
    let nc = format!("{count:08x}");
    let input = Input {
        algorithm: Algorithm::Md5,
        nonce: nonce.as_bytes(),
        qop: Some(QopAuth {
            qop: b"auth",
            nc: nc.as_bytes(),
            cnonce: b"c",
        }),
        method: method.as_bytes(),
        uri: uri.as_bytes(),
    };
    let secret = ha1(Algorithm::Md5, b"alice", realm.as_bytes(), b"wonderland");
    let answer = digest::response(&input, secret.as_bytes()).to_hex();
    format!(
        "Proxy-Authorization: Digest username=\"alice\", realm=\"{realm}\", nonce=\"{nonce}\", uri=\"{uri}\", \
         response=\"{}\", algorithm=MD5, cnonce=\"c\", qop=auth, nc={nc}\n",
        answer.as_str()
    )
}

fn challenge(bench: &mut Bench) -> String {
    nonce(&one(bench.udp(CALLER, &request("MESSAGE", URI, "first", ""))))
}

/// Whether this goes on to the callee; else it is challenged again or refused.
fn passes(bench: &mut Bench, text: &str) -> bool {
    let sent = bench.udp(CALLER, text);
    let passed = sent.iter().any(|s| s.address() != CALLER);
    assert!(
        passed || sent.iter().all(|s| s.first_line().starts_with("SIP/2.0 4")),
        "{sent:?}"
    );
    passed
}

#[test]
fn a_count_serves_once() {
    let mut bench = guarded();
    let nonce = challenge(&mut bench);
    let used = request(
        "MESSAGE",
        URI,
        "b1",
        &credentials(&nonce, "example.com", "MESSAGE", URI, 1),
    );
    assert!(passes(&mut bench, &used));
    // By who heard it: from elsewhere, or as another transaction.
    assert!(!passes(
        &mut bench,
        &used.replace("z9hG4bKb1", "z9hG4bKb2").replace("c1@", "c2@")
    ));
    let sent = bench.udp("192.0.2.99:5060", &used);
    assert!(
        sent.iter().all(|s| s.first_line().starts_with("SIP/2.0 4")),
        "{sent:?}"
    );
    let next = request(
        "MESSAGE",
        URI,
        "b3",
        &credentials(&nonce, "example.com", "MESSAGE", URI, 2),
    );
    assert!(passes(&mut bench, &next.replace("c1@", "c3@")));
}

/// To the end of the nonce's last second, and after it.
#[test]
fn nor_again_at_the_end_of_the_nonce() {
    let mut bench = guarded();
    let nonce = challenge(&mut bench);
    let used = |branch: &str| {
        request(
            "MESSAGE",
            URI,
            branch,
            &credentials(&nonce, "example.com", "MESSAGE", URI, 1),
        )
        .replace("c1@", &format!("{branch}@"))
    };
    assert!(passes(&mut bench, &used("b0")));
    bench.pass(299_900);
    for round in 1..150 {
        bench.pass(10);
        assert!(
            !passes(&mut bench, &used(&format!("b{round}"))),
            "after {} ms",
            299_900 + round * 10
        );
    }
}

#[test]
fn credentials_for_something_else_are_none() {
    for (what, line) in [
        ("another method", ("example.com", "INVITE", URI)),
        ("another URI", ("example.com", "MESSAGE", "sip:carol@example.com")),
        ("another realm", ("example.org", "MESSAGE", URI)),
    ] {
        let mut bench = guarded();
        let nonce = challenge(&mut bench);
        let (realm, method, uri) = line;
        let text = request("MESSAGE", URI, "b1", &credentials(&nonce, realm, method, uri, 1));
        assert!(!passes(&mut bench, &text), "{what}");
    }
}

/// A nonce of another realm, of another server, or of nobody.
#[test]
fn a_nonce_that_was_not_issued_here_is_none() {
    let mut other = {
        let mut config = config();
        config.node_id = 7;
        config.domains[0].auth.methods = vec![b"MESSAGE"[..].into()];
        Bench::new(&config)
    };
    let foreign = challenge(&mut other);
    let mut bench = guarded();
    let own = challenge(&mut bench);
    let flipped: String = own.chars().rev().collect();
    for nonce in [foreign.as_str(), "", "x", &"A".repeat(43), &flipped, &own[1..]] {
        let line = credentials(nonce, "example.com", "MESSAGE", URI, 1);
        let text = request("MESSAGE", URI, "b1", &line);
        assert!(!passes(&mut bench, &text), "{nonce:?}");
    }
    assert!(passes(
        &mut bench,
        &request(
            "MESSAGE",
            URI,
            "b2",
            &credentials(&own, "example.com", "MESSAGE", URI, 1)
        )
        .replace("c1@", "c9@")
    ));
}
