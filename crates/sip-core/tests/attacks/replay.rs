//! Credentials that were good once, elsewhere, or for something else.

use sip_core::auth::digest;
use sip_core::config::{Config, Domain};
use sip_core::query::{QueryKind, QueryResult};
use sip_core::transport::{Flow, Transport};

use crate::agent::{Login, PASSWORD, login, nonce_of};
use crate::common::{Bench, CALLEE, CALLER, Sent, config, one, over, request, udp_flow};

const URI: &str = "sip:bob@example.com";
const CHALLENGED: &str = "SIP/2.0 407 Proxy Authentication Required";

fn policy() -> Config {
    let mut config = config();
    config.domains[0].auth.methods = [&b"INVITE"[..], b"MESSAGE"].map(Into::into).to_vec();
    config
}

/// A server with alice's secrets at hand.
pub(crate) fn guarded() -> Bench {
    let bench = Bench::new(&policy());
    let secrets = digest::secrets(b"alice", b"example.com", PASSWORD.as_bytes());
    let key = (b"alice".to_vec(), b"example.com".to_vec());
    bench.shared.cached.lock().unwrap().insert(key, Some(secrets));
    bench
}

/// Alice's, for a request to bob, as a header line.
pub(crate) fn credentials(nonce: &str, method: &str, count: u32) -> String {
    Login {
        count,
        ..login(method, URI)
    }
    .line(nonce)
}

fn challenge(bench: &mut Bench) -> String {
    nonce_of(&one(bench.udp(CALLER, &request("MESSAGE", URI, "first", ""))))
}

/// A MESSAGE to bob with these credentials.
fn message(branch: &str, line: &str) -> String {
    request("MESSAGE", URI, branch, line).replace("c1@", &format!("{branch}@"))
}

fn is_stale(challenge: &Sent) -> bool {
    challenge.header("Proxy-Authenticate").ends_with(", stale=true")
}

#[track_caller]
fn assert_passes(bench: &mut Bench, flow: Flow, text: &str) {
    let sent = bench.receive(flow, text);
    assert!(sent.iter().any(|s| s.address() == CALLEE), "{sent:?}");
}

/// The sender of this is challenged, and no secret is looked up.
#[track_caller]
fn assert_challenged(bench: &mut Bench, flow: Flow, text: &str, stale: bool) {
    let sent = one(bench.receive(flow, text));
    assert_eq!(
        (sent.first_line(), sent.to, is_stale(&sent)),
        (CHALLENGED, flow, stale),
        "{text}"
    );
    bench.no_query();
}

/// The digest covers method and Request-URI alone: what else a sniffed request said must not change, be its
/// branch and forged source the same.
#[test]
fn a_count_serves_one_message() {
    let mut bench = guarded();
    let nonce = challenge(&mut bench);
    let udp = udp_flow(CALLER);
    let extra = format!(
        "{}Contact: <sip:alice@192.0.2.10>\n",
        credentials(&nonce, "MESSAGE", 1)
    );
    let used = message("b1", &extra).replace("Content-Length: 0\r\n\r\n", "Content-Length: 2\r\n\r\nhi");
    assert_passes(&mut bench, udp, &used);
    // Once its transaction has gone, a copy is the same message, and another one is another.
    bench.pass(100_000);
    assert_passes(&mut bench, udp, &used);
    for (from, to) in [
        ("\r\n\r\nhi", "\r\n\r\nho"),
        ("sip:alice@192.0.2.10>", "sip:eve@192.0.2.66>"),
        ("b1@", "b2@"),
        ("Max-Forwards: 70", "Max-Forwards: 69"),
        ("To: <sip:bob@", "To: <sip:eve@"),
    ] {
        bench.pass(100_000);
        let changed = used.replacen(from, to, 1);
        assert_ne!(changed, used);
        assert_challenged(&mut bench, udp, &changed, true);
    }
}

/// Used again by an eavesdropper, from another address or as another transaction. Over a stream, too,
/// where a source need not show that it receives what goes to its address.
#[test]
fn a_count_serves_once() {
    let mut bench = guarded();
    let nonce = challenge(&mut bench);
    let udp = udp_flow(CALLER);
    let used = message("b1", &credentials(&nonce, "MESSAGE", 1));
    assert_passes(&mut bench, udp, &used);
    let again = used.replace("z9hG4bKb1", "z9hG4bKb2").replace("b1@", "b2@");
    assert_challenged(&mut bench, udp, &again, true);
    assert_eq!(bench.counters().auth_replayed, 1);
    let elsewhere = udp_flow("192.0.2.99:5060");
    assert_challenged(&mut bench, elsewhere, &again, true);
    let stream = over(Transport::Tcp, "192.0.2.99:5060", 3);
    assert_challenged(&mut bench, stream, &again, true);
    // As it was it is that request once more, which waits for its response.
    assert_eq!(bench.receive(elsewhere, &used), []);
    assert_eq!(bench.counters().auth_replayed, 2);
    let next = message("b3", &credentials(&nonce, "MESSAGE", 2));
    assert_passes(&mut bench, udp, &next);
}

/// To the end of the nonce's last second, and after it.
#[test]
fn nor_again_at_the_end_of_the_nonce() {
    let mut bench = guarded();
    let nonce = challenge(&mut bench);
    let used = |branch: &str| message(branch, &credentials(&nonce, "MESSAGE", 1));
    assert_passes(&mut bench, udp_flow(CALLER), &used("b0"));
    bench.pass(299_900);
    for round in 1..150 {
        bench.pass(10);
        assert_challenged(&mut bench, udp_flow(CALLER), &used(&format!("b{round}")), true);
    }
}

#[test]
fn credentials_for_something_else_are_none() {
    let message_to = |uri: &str| login("MESSAGE", uri);
    let other_method = Login {
        // The name of a header goes by the method, and so does the digest response.
        method: "INVITE".into(),
        ..message_to(URI)
    };
    let other_realm = Login {
        realm: "example.org".into(),
        ..message_to(URI)
    };
    for (what, login, status) in [
        ("another method", other_method, CHALLENGED),
        (
            "another URI",
            message_to("sip:carol@example.com"),
            "SIP/2.0 400 Digest uri Is Not The Request-URI",
        ),
        ("another realm", other_realm, CHALLENGED),
    ] {
        let mut bench = guarded();
        let nonce = challenge(&mut bench);
        let sent = one(bench.udp(CALLER, &message("b1", &login.line(&nonce))));
        assert_eq!(
            (sent.first_line(), sent.address().as_str()),
            (status, CALLER),
            "{what}"
        );
        // The right digest response under another realm's name.
        let renamed =
            credentials(&nonce, "MESSAGE", 2).replace("realm=\"example.com\"", "realm=\"example.org\"");
        assert_challenged(&mut bench, udp_flow(CALLER), &message("b2", &renamed), false);
    }
}

/// A nonce of another realm, of another server, or of none.
#[test]
fn a_nonce_that_was_not_issued_here_is_none() {
    let mut node = policy();
    node.node_id = 7;
    let foreign = challenge(&mut Bench::new(&node));
    // Another domain of the same server, which gives nonces to its users as well.
    let mut config = policy();
    let mut other: Domain = config.domains[0].clone();
    other.name = b"example.org"[..].into();
    other.auth.realm = b"example.org"[..].into();
    config.domains.push(other);
    let mut bench = Bench::new(&config);
    let to_other = request("MESSAGE", "sip:bob@example.org", "o", "").replace("example.com", "example.org");
    let challenge_there = one(bench.udp(CALLER, &to_other));
    assert!(challenge_there.text.contains("realm=\"example.org\""));
    let of_realm = nonce_of(&challenge_there);
    let own = challenge(&mut bench);
    let flipped: String = own.chars().rev().collect();
    for nonce in [
        foreign.as_str(),
        &of_realm,
        "",
        "x",
        &"A".repeat(43),
        &flipped,
        &own[1..],
    ] {
        let text = message("b1", &credentials(nonce, "MESSAGE", 1));
        assert_challenged(&mut bench, udp_flow(CALLER), &text, true);
    }
    // With a nonce of its own, the user's secret is asked for, and the user is let in.
    let sent = bench.udp(CALLER, &message("b2", &credentials(&own, "MESSAGE", 1)));
    assert!(sent.is_empty(), "{sent:?}");
    let query = bench.query();
    assert!(matches!(query.kind, QueryKind::Credentials { .. }), "{query:?}");
    let secrets = digest::secrets(b"alice", b"example.com", PASSWORD.as_bytes());
    let sent = bench.answer(&query, QueryResult::Credentials(Ok(Some(secrets))));
    assert!(sent.iter().any(|s| s.address() == CALLEE), "{sent:?}");
}
