//! Digest authentication through the endpoint (RFC 3261 §22, RFC 7616, RFC 8760, RFC 3325).
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::agent;
use crate::common;

use agent::*;
use common::*;
use sip_core::auth::digest;
use sip_core::config::{Algorithm, Config, Network, StateMode};
use sip_core::event::{AuthFailure, Event};
use sip_core::query::{QueryKind, QueryResult, Secrets, Unavailable};
use sip_core::shared::SharedState;
use sip_core::transport::{Flow, Proof, Transport};

const CHALLENGED: &str = "SIP/2.0 407 Proxy Authentication Required";
const BOB: &str = "sip:bob@example.com";

fn closed(state: StateMode) -> Config {
    let mut config = config();
    config.state = state;
    config.domains[0].auth.methods = ["REGISTER", "INVITE", "MESSAGE", "BYE"]
        .map(|m| m.as_bytes().into())
        .into();
    config
}

/// The secrets of alice in cache, so that nothing waits.
#[track_caller]
fn cached(config: &Config) -> Bench {
    let b = Bench::new(config);
    let mut cache = b.shared.cached.lock().unwrap();
    let domain = b"example.com".to_vec();
    cache.insert((b"alice".to_vec(), domain.clone()), Some(secrets()));
    cache.insert((b"nobody".to_vec(), domain), None);
    drop(cache);
    b
}

fn secrets() -> Secrets {
    digest::secrets(b"alice", b"example.com", PASSWORD.as_bytes())
}

fn message(branch: &str, extra: &str) -> String {
    request("MESSAGE", BOB, branch, extra)
}

fn challenge(b: &mut Bench, text: &str) -> Sent {
    one(b.udp(CALLER, text))
}

#[test]
fn a_registrar_asks_by_401_and_a_proxy_by_407() {
    let mut b = cached(&closed(StateMode::Transaction));
    let out = challenge(&mut b, &message("a1", ""));
    assert_eq!(out.first_line(), CHALLENGED);
    let nonce = nonce_of(&out);
    assert_eq!(
        out.headers("Proxy-Authenticate"),
        [format!(
            "Digest realm=\"example.com\", nonce=\"{nonce}\", qop=\"auth\", algorithm=MD5"
        )]
    );
    assert!(out.headers("WWW-Authenticate").is_empty());
    let out = challenge(&mut b, &request("REGISTER", "sip:example.com", "a2", ""));
    assert_eq!(out.first_line(), "SIP/2.0 401 Unauthorized");
    assert_eq!(out.headers("WWW-Authenticate").len(), 1);
    // Nothing is kept for a challenge, and no two are alike.
    b.assert_idle();
    assert_ne!(nonce_of(&out), nonce);
    // What the domain does not name passes.
    assert_eq!(
        one(b.udp(CALLER, &request("OPTIONS", BOB, "a3", ""))).address(),
        CALLEE
    );
}

#[test]
fn every_algorithm_in_the_order_of_preference() {
    use Algorithm::{Md5, Sha256, Sha512_256};
    for order in [vec![Md5], vec![Sha512_256, Sha256, Md5], vec![Sha256]] {
        let mut config = closed(StateMode::Stateless);
        config.domains[0].auth.algorithms.clone_from(&order);
        let mut b = cached(&config);
        let long = format!("User-Agent: {}\n", "x".repeat(300));
        let out = challenge(&mut b, &message("a1", &long));
        let offered: Vec<_> = out
            .headers("Proxy-Authenticate")
            .iter()
            .map(|h| h.split("algorithm=").nth(1).unwrap().to_string())
            .collect();
        assert_eq!(
            offered,
            order.iter().map(|a| a.name().to_string()).collect::<Vec<_>>()
        );
        for (n, algorithm) in [Md5, Sha256, Sha512_256].into_iter().enumerate() {
            let credentials = Login {
                algorithm,
                count: n as u32 + 1,
                ..login("MESSAGE", BOB)
            };
            let out = one(b.udp(
                CALLER,
                &message(&format!("b{n}"), &credentials.line(&nonce_of(&out))),
            ));
            let expected = if order.contains(&algorithm) {
                "MESSAGE sip:bob@example.com SIP/2.0"
            } else {
                CHALLENGED
            };
            assert_eq!(out.first_line(), expected, "{algorithm:?} of {order:?}");
        }
    }
}

/// A source address that may be spoofed gets no more than three times what it sent: the preferred
/// algorithm always, the others where they fit. On a connection all are offered.
#[test]
fn a_short_request_over_udp_gets_a_short_challenge() {
    use Algorithm::{Md5, Sha256, Sha512_256};
    let mut config = closed(StateMode::Stateless);
    config.domains[0].auth.algorithms = vec![Sha512_256, Sha256, Md5];
    let offered = |out: &Sent| out.headers("Proxy-Authenticate").len();
    let mut seen = Vec::new();
    for extra in 0..60 {
        let text = message("a1", &format!("X: {}\n", "x".repeat(extra * 10)));
        let mut b = cached(&config);
        let out = challenge(&mut b, &text);
        let bound = 3 * text.len();
        assert!(
            offered(&out) == 1 || out.text.len() <= bound,
            "{} for {}",
            out.text.len(),
            text.len()
        );
        seen.push(offered(&out));
    }
    assert!(seen.is_sorted(), "{seen:?}");
    assert_eq!(seen.last(), Some(&3));
    assert!(seen.contains(&2));
}

#[test]
fn credentials_of_our_realm_stay_here_and_others_go_on() {
    let mut b = cached(&closed(StateMode::Stateless));
    let nonce = nonce_of(&challenge(&mut b, &message("a1", "")));
    let theirs = "Proxy-Authorization: Digest username=\"alice\", realm=\"theirs\", nonce=\"x\"";
    let ours = login("MESSAGE", BOB).line(&nonce);
    let also_ours = format!("Authorization: {}", login("MESSAGE", BOB).answer(&nonce));
    let text = message(
        "a2",
        &format!("{theirs}\n{ours}{also_ours}\nAuthorization: Basic eA==\n"),
    );
    let out = one(b.udp(CALLER, &text));
    assert_eq!(
        out.headers("Proxy-Authorization"),
        [theirs.split_once(": ").unwrap().1]
    );
    assert_eq!(out.headers("Authorization"), ["Basic eA=="]);
    let rest = text
        .replace(&crlf(&ours), "")
        .replace(&format!("{also_ours}\r\n"), "")
        .replace(": 70", ": 69");
    assert!(out.text.ends_with(rest.split_once("\r\n").unwrap().1));
    b.no_query();
    assert_eq!(b.counters().auth_accepted, 1);
}

#[test]
fn nonces_that_cannot_be_used_are_stale() {
    let mut config = closed(StateMode::Stateless);
    config.domains[0].auth.nonce_lifetime_s = 60;
    let mut b = cached(&config);
    let nonce = nonce_of(&challenge(&mut b, &message("a1", "")));
    let mut forged = nonce.clone();
    forged.replace_range(10..11, if &nonce[10..11] == "A" { "B" } else { "A" });
    for (what, nonce) in [("forged", forged.as_str()), ("short", "x"), ("empty", "")] {
        let out = one(b.udp(CALLER, &message("a2", &login("MESSAGE", BOB).line(nonce))));
        assert_eq!(out.first_line(), CHALLENGED, "{what}");
        assert!(
            out.header("Proxy-Authenticate").ends_with(", stale=true"),
            "{what}"
        );
    }
    b.pass(62_000);
    let out = one(b.udp(CALLER, &message("a3", &login("MESSAGE", BOB).line(&nonce))));
    assert!(out.header("Proxy-Authenticate").ends_with(", stale=true"));
    assert_eq!(b.counters().auth_stale, 4);
}

/// A nonce count serves one request, and that as often as it is sent.
#[test]
fn replays_are_refused_and_retransmissions_are_not() {
    let mut b = cached(&closed(StateMode::Stateless));
    let nonce = nonce_of(&challenge(&mut b, &message("a1", "")));
    let good = message("a2", &login("MESSAGE", BOB).line(&nonce));
    let first = one(b.udp(CALLER, &good));
    assert_eq!(first.address(), CALLEE);
    assert_eq!(one(b.udp(CALLER, &good)).text, first.text);
    for (what, from, text) in [
        ("another branch", CALLER, good.replace("z9hG4bKa2", "z9hG4bKa3")),
        ("another source", "192.0.2.11:5060", good.clone()),
        ("another port", "192.0.2.10:5061", good.clone()),
    ] {
        let out = one(b.udp(from, &text));
        assert!(
            out.header("Proxy-Authenticate").ends_with(", stale=true"),
            "{what}"
        );
    }
    // At another address it may be that of a phone which has moved: it is asked anew there.
    assert_eq!((b.counters().auth_replayed, b.counters().auth_stale), (2, 1));
    let next = Login {
        count: 2,
        ..login("MESSAGE", BOB)
    };
    assert_eq!(
        one(b.udp(CALLER, &message("a4", &next.line(&nonce)))).address(),
        CALLEE
    );
    // Without qop a nonce serves once (RFC 2069 had no counts).
    let old = Login {
        qop: false,
        ..login("MESSAGE", BOB)
    };
    let nonce = nonce_of(&challenge(&mut b, &message("a5", "")));
    assert_eq!(
        one(b.udp(CALLER, &message("a6", &old.line(&nonce)))).address(),
        CALLEE
    );
    assert_eq!(
        one(b.udp(CALLER, &message("a7", &old.line(&nonce)))).first_line(),
        CHALLENGED
    );
}

/// No client learns whether a user exists, nor whether it has a hash of that algorithm.
#[test]
fn a_wrong_password_and_an_unknown_user_look_alike() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        for waits in [false, true] {
            let mut answers = vec![];
            for user in ["alice", "nobody"] {
                let mut b = match waits {
                    true => Bench::new(&closed(state)),
                    false => cached(&closed(state)),
                };
                let nonce = nonce_of(&challenge(&mut b, &message("a1", "")));
                let wrong = Login {
                    user: user.into(),
                    password: "wrong".into(),
                    ..login("MESSAGE", BOB)
                };
                let mut out = b.udp(CALLER, &message("a2", &wrong.line(&nonce)));
                if waits {
                    let query = b.query();
                    let found = (user == "alice").then(secrets);
                    out.extend(b.answer(&query, QueryResult::Credentials(Ok(found))));
                }
                let out = one(out);
                answers.push(out.text.replace(&nonce_of(&out), "NONCE"));
                let reason = if user == "alice" {
                    AuthFailure::WrongPassword
                } else {
                    AuthFailure::UnknownUser
                };
                let event = Event::AuthFailed {
                    user: user.as_bytes().into(),
                    source: CALLER.parse().unwrap(),
                    method: b"MESSAGE"[..].into(),
                    domain: b"example.com"[..].into(),
                    call_id: b"c1@192.0.2.10"[..].into(),
                    reason,
                    counts: true,
                    unreported: Some(0),
                };
                assert_eq!(b.endpoint.poll_event(), Some(event));
            }
            assert_eq!(answers[0], answers[1], "{state:?} {waits}");
            assert!(!answers[0].contains("stale"));
        }
    }
}

/// RFC 3261 §22.4, rule 6: a proxy before us has put our name into the Request-URI. The user must be the same,
/// and both hosts ours: an authenticated request must not be redirected.
#[test]
fn the_digest_uri_may_have_another_of_our_names() {
    for (uri, strict, passes) in [
        ("sip:bob@proxy.example.com", false, true),
        ("sip:b%6fb@192.0.2.1:5060;transport=udp", false, true),
        ("sip:bob@proxy.example.com", true, false),
        ("sip:b%6Fb@EXAMPLE.com", true, true),
        ("sip:bob@elsewhere.example", false, false),
        ("sip:carol@proxy.example.com", false, false),
        ("sips:bob@proxy.example.com", false, false),
        ("sip:bob@other.example", false, false),
        ("tel:+1", false, false),
    ] {
        let mut config = closed(StateMode::Stateless);
        config.domains[0].auth.strict_uri = strict;
        let mut other = config.domains[0].clone();
        other.name = b"other.example"[..].into();
        config.domains.push(other);
        let mut b = cached(&config);
        let nonce = nonce_of(&challenge(&mut b, &message("a1", "")));
        let line = Login {
            uri: uri.into(),
            ..login("MESSAGE", BOB)
        }
        .line(&nonce);
        let out = one(b.udp(CALLER, &message("a2", &line)));
        assert_eq!(
            out.address() == CALLEE,
            passes,
            "{uri} {strict}: {}",
            out.first_line()
        );
        let rewritten = passes && !strict;
        let counted = [b.counters().auth_uri_rewritten, b.counters().auth_uri_refused];
        assert_eq!(counted, [u64::from(rewritten), u64::from(!passes)], "{uri}");
        let of_uri = |event: &Event| matches!(event, Event::DigestUriRewritten { .. });
        let reported = std::iter::from_fn(|| b.endpoint.poll_event()).filter(of_uri);
        assert_eq!(reported.count(), usize::from(rewritten), "{uri}");
    }
}

#[test]
fn credentials_that_are_broken_or_for_another_uri_are_400() {
    let mut b = cached(&closed(StateMode::Stateless));
    let nonce = nonce_of(&challenge(&mut b, &message("a1", "")));
    let line = login("MESSAGE", BOB).line(&nonce);
    for (text, reason) in [
        (line.replace(", nc=00000001", ""), "Malformed Credentials"),
        (line.replace("username=\"alice\", ", ""), "Malformed Credentials"),
        (
            Login {
                uri: "sip:carol@example.com".into(),
                ..login("MESSAGE", BOB)
            }
            .line(&nonce),
            "Digest uri Is Not The Request-URI",
        ),
    ] {
        assert_eq!(
            one(b.udp(CALLER, &message("a2", &text))).first_line(),
            format!("SIP/2.0 400 {reason}")
        );
    }
    // A digest response for another method is a wrong one.
    let other = Login {
        method: "INVITE".into(),
        ..login("MESSAGE", BOB)
    }
    .line(&nonce);
    assert_eq!(
        one(b.udp(CALLER, &message("a3", &other))).first_line(),
        CHALLENGED
    );
}

#[test]
fn a_user_may_use_its_own_identity_only() {
    let nonce_for = |b: &mut Bench| nonce_of(&challenge(b, &message("a1", "")));
    let sip = "P-Preferred-Identity: \"A\" <sip:alice@example.com>\n";
    for (from, to, extra, allowed) in [
        ("", "", "", true),
        ("alice@example.com", "%61lice@EXAMPLE.com:5070", "", true),
        ("alice@example.com", "bob@example.com", "", false),
        ("alice@example.com", "Alice@example.com", "", false),
        ("alice@example.com>", "example.com>", "", false),
        ("", "", sip, true),
        (
            "",
            "",
            "P-Preferred-Identity: <sip:alice@example.com>, <tel:+1234>\n",
            false,
        ),
        ("", "", "P-Preferred-Identity: <sip:bob@example.com>\n", false),
        (
            "",
            "",
            "p-preferred-identity : <sip:alice@example.com>, <sip:bob@example.com>\n",
            false,
        ),
        (
            "",
            "",
            "P-Preferred-Identity: <sip:alice@elsewhere.example>\n",
            false,
        ),
        ("", "", "P-Preferred-Identity: nonsense <\n", false),
    ] {
        let mut b = cached(&closed(StateMode::Stateless));
        let nonce = nonce_for(&mut b);
        let mut text = message("a2", &format!("{}{extra}", login("MESSAGE", BOB).line(&nonce)));
        if !from.is_empty() {
            text = text.replacen(&format!("From: <sip:{from}"), &format!("From: <sip:{to}"), 1);
        }
        let out = one(b.udp(CALLER, &text));
        let expected = if allowed {
            "MESSAGE sip:bob@example.com SIP/2.0"
        } else {
            "SIP/2.0 403 Forbidden"
        };
        assert_eq!(out.first_line(), expected, "{to} {extra}");
    }
    // From elsewhere, to a user of ours: the domain of the Request-URI asks for credentials, and no
    // user of ours has that From.
    let mut b = cached(&closed(StateMode::Stateless));
    let nonce = nonce_for(&mut b);
    let text = message("a2", &login("MESSAGE", BOB).line(&nonce)).replace(
        "From: <sip:alice@example.com>",
        "From: <sip:alice@elsewhere.example>",
    );
    assert_eq!(one(b.udp(CALLER, &text)).first_line(), "SIP/2.0 403 Forbidden");
}

#[test]
fn asserted_identities_are_believed_of_trusted_peers_only() {
    let mut config = closed(StateMode::Stateless);
    config.domains[0].auth.methods.clear();
    let text = request(
        "INVITE",
        BOB,
        "a1",
        "P-Asserted-Identity: <sip:ceo@example.com>\nX: y\np-asserted-IDENTITY : <tel:+1>,\n <sip:a@b>\n",
    );
    let out = one(Bench::new(&config).udp(CALLER, &text));
    assert!(!out.text.to_lowercase().contains("asserted"), "{}", out.text);
    assert!(!out.text.contains("sip:a@b") && out.text.contains("\r\nX: y\r\n"));
    config.trust = vec![Network {
        address: "192.0.2.0".parse().unwrap(),
        prefix_len: 28,
    }];
    let out = one(Bench::new(&config).udp(CALLER, &text));
    assert_eq!(out.text.to_lowercase().matches("asserted").count(), 2);
    config.trust.clear();
    // Or of a peer that has proved a trusted name by certificate, and not of any holder of a
    // certificate.
    for (proof, lines) in [(Proof::None, 0), (Proof::Certificate, 0), (Proof::Trusted, 2)] {
        let flow = Flow {
            proof,
            ..udp_flow(CALLER)
        };
        let out = one(Bench::new(&config).receive(flow, &text));
        assert_eq!(
            out.text.to_lowercase().matches("asserted").count(),
            lines,
            "{proof:?}"
        );
    }
    // In a dialog as well.
    let mut b = Bench::new(&config);
    let route = one(b.udp(CALLER, &request("INVITE", BOB, "a1", "")))
        .header("Record-Route")
        .to_string();
    let within = request(
        "BYE",
        "sip:bob@192.0.2.20",
        "a2",
        &format!("Route: {route}\nP-Asserted-Identity: <sip:x@y>\n"),
    )
    .replace("bob@example.com>", "bob@example.com>;tag=t1");
    assert!(
        one(b.udp(CALLER, &within))
            .headers("P-Asserted-Identity")
            .is_empty()
    );
}

#[test]
fn in_a_dialog_its_initiator_is_asked_and_the_other_side_is_not() {
    let mut b = cached(&closed(StateMode::Stateless));
    let nonce = nonce_of(&challenge(&mut b, &request("INVITE", BOB, "a1", "")));
    let invite = request("INVITE", BOB, "a2", &login("INVITE", BOB).line(&nonce));
    let route = one(b.udp(CALLER, &invite)).header("Record-Route").to_string();
    let bye = request("BYE", "sip:bob@192.0.2.20", "a3", &format!("Route: {route}\n"))
        .replace("bob@example.com>", "bob@example.com>;tag=t1");
    assert_eq!(one(b.udp(CALLER, &bye)).first_line(), CHALLENGED);
    let credentials = Login {
        count: 2,
        ..login("BYE", "sip:bob@192.0.2.20")
    }
    .line(&nonce);
    let good = bye.replace("Content-Length", &format!("{}Content-Length", crlf(&credentials)));
    assert_eq!(
        one(b.udp(CALLER, &good)).first_line(),
        "BYE sip:bob@192.0.2.20 SIP/2.0"
    );
    let other_side = bye
        .replace(
            "From: <sip:alice@example.com>;tag=f1",
            "From: <sip:bob@elsewhere.example>;tag=t1",
        )
        .replace(
            "To: <sip:bob@example.com>;tag=t1",
            "To: <sip:alice@example.com>;tag=f1",
        )
        .replace("sip:bob@192.0.2.20", "sip:alice@192.0.2.10");
    assert_eq!(
        one(b.udp(CALLEE, &other_side)).first_line(),
        "BYE sip:alice@192.0.2.10 SIP/2.0"
    );
    // A method that the domain does not name passes from both.
    let info = bye.replace("BYE", "INFO");
    assert_eq!(
        one(b.udp(CALLER, &info)).first_line(),
        "INFO sip:bob@192.0.2.20 SIP/2.0"
    );
    // Without our mark it is new, and asked.
    let unmarked = other_side
        .replace(&format!("Route: {route}\r\n"), "")
        .replace("sip:alice@192.0.2.10 SIP", "sip:alice@example.com SIP");
    assert_eq!(one(b.udp(CALLEE, &unmarked)).first_line(), CHALLENGED);
}

/// An INVITE waits with a transaction in every mode, so that its client does not retransmit meanwhile.
#[test]
fn a_request_waits_for_secrets_that_are_not_at_hand() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut b = Bench::new(&closed(state));
        let nonce = nonce_of(&challenge(&mut b, &request("INVITE", BOB, "a1", "")));
        let invite = request("INVITE", BOB, "a2", &login("INVITE", BOB).line(&nonce));
        assert_eq!(one(b.udp(CALLER, &invite)).first_line(), "SIP/2.0 100 Trying");
        let query = b.query();
        assert_eq!(
            query.kind,
            QueryKind::Credentials {
                username: b"alice"[..].into(),
                user_len: 5,
                domain: b"example.com"[..].into(),
                realm: b"example.com"[..].into()
            }
        );
        assert_eq!(one(b.udp(CALLER, &invite)).first_line(), "SIP/2.0 100 Trying");
        b.no_query();
        assert_eq!(b.endpoint.gauges().parked_requests, 1);
        let out = one(b.answer(&query, QueryResult::Credentials(Ok(Some(secrets())))));
        assert_eq!(out.first_line(), "INVITE sip:bob@example.com SIP/2.0");
        assert!(out.headers("Proxy-Authorization").is_empty());
        assert_eq!(b.endpoint.gauges().parked_requests, 0);
        assert_eq!(
            one(b.udp(CALLEE, &response(&out, "200 OK", ""))).first_line(),
            "SIP/2.0 200 OK"
        );
        // The result comes twice: nothing.
        assert!(
            b.answer(&query, QueryResult::Credentials(Ok(Some(secrets()))))
                .is_empty()
        );
        b.pass(40_000);
        b.assert_idle();
    }
}

/// Some phones give their name with the domain in their credentials. It is the same subscriber, and
/// may use the same identities, but its digest response is over the longer name.
#[test]
fn a_name_with_its_domain_is_the_same_subscriber() {
    // Name, how much of it is the user, whether it may call as alice@example.com.
    for (name, user_len, is_alice) in [
        ("alice@example.com", 5, true),
        ("alice@EXAMPLE.com", 5, true),
        ("alice@elsewhere.org", 19, false),
        ("@example.com", 12, false),
        ("bob@example.com", 3, false),
    ] {
        let mut b = Bench::new(&closed(StateMode::Transaction));
        let nonce = nonce_of(&challenge(&mut b, &request("INVITE", BOB, "a1", "")));
        let full = Login {
            user: name.into(),
            ..login("INVITE", BOB)
        };
        b.udp(CALLER, &request("INVITE", BOB, "a2", &full.line(&nonce)));
        let query = b.query();
        assert_eq!(
            query.kind,
            QueryKind::Credentials {
                username: name.as_bytes().into(),
                user_len,
                domain: b"example.com"[..].into(),
                realm: b"example.com"[..].into()
            }
        );
        let known = digest::secrets(name.as_bytes(), b"example.com", PASSWORD.as_bytes());
        let out = b.answer(&query, QueryResult::Credentials(Ok(Some(known))));
        let expected = match is_alice {
            true => "INVITE sip:bob@example.com SIP/2.0",
            false => "SIP/2.0 403 Forbidden",
        };
        assert_eq!(out[0].first_line(), expected, "{name}");
    }
}

/// While the store is unavailable, secrets known before let in a user with the right password. A user
/// with a wrong one learns no more than an unknown user.
#[test]
fn outdated_secrets_let_in_and_do_not_refuse() {
    for (password, expected) in [
        (PASSWORD, "INVITE sip:bob@example.com SIP/2.0"),
        ("wrong", "SIP/2.0 503 Service Unavailable"),
    ] {
        let mut b = Bench::new(&closed(StateMode::Transaction));
        let nonce = nonce_of(&challenge(&mut b, &request("INVITE", BOB, "a1", "")));
        let login = Login {
            password: password.into(),
            ..login("INVITE", BOB)
        };
        b.udp(CALLER, &request("INVITE", BOB, "a2", &login.line(&nonce)));
        let query = b.query();
        let outdated = Secrets {
            outdated: true,
            ..secrets()
        };
        let out = b.answer(&query, QueryResult::Credentials(Ok(Some(outdated))));
        assert_eq!(out[0].first_line(), expected);
    }
}

/// A text with a length that a stranger chooses is neither kept nor sent on: no user has such a name.
#[test]
fn a_name_longer_than_any_is_not_looked_up() {
    for (length, looked_up) in [(255, true), (256, false), (6_000, false)] {
        let mut b = Bench::new(&closed(StateMode::Transaction));
        let nonce = nonce_of(&challenge(&mut b, &message("a1", "")));
        let login = Login {
            user: "a".repeat(length),
            ..login("MESSAGE", BOB)
        };
        let out = b.udp(CALLER, &message("a2", &login.line(&nonce)));
        if looked_up {
            b.query();
        } else {
            b.no_query();
            assert_eq!(one(out).first_line(), CHALLENGED);
        }
    }
}

#[test]
fn a_cancel_ends_the_wait() {
    let mut b = Bench::new(&closed(StateMode::Stateless));
    let nonce = nonce_of(&challenge(&mut b, &request("INVITE", BOB, "a1", "")));
    b.udp(
        CALLER,
        &request("INVITE", BOB, "a2", &login("INVITE", BOB).line(&nonce)),
    );
    let query = b.query();
    let out = b.udp(CALLER, &request("CANCEL", BOB, "a2", ""));
    assert_eq!(
        lines(&out),
        [
            format!("{CALLER} SIP/2.0 200 OK"),
            format!("{CALLER} SIP/2.0 487 Request Terminated")
        ]
    );
    assert!(
        b.answer(&query, QueryResult::Credentials(Ok(Some(secrets()))))
            .is_empty()
    );
    b.pass(40_000);
    b.assert_idle();
}

#[test]
fn without_a_result_a_caller_is_neither_let_in_nor_called_wrong() {
    for (code, first_line) in [
        (503, "SIP/2.0 503 Service Unavailable"),
        (504, "SIP/2.0 504 Server Time-out"),
    ] {
        for method in ["INVITE", "MESSAGE", "REGISTER"] {
            for says_so in [true, false] {
                let mut config = closed(StateMode::Transaction);
                config.credentials_unavailable = code;
                let mut b = Bench::new(&config);
                let uri = if method == "REGISTER" {
                    "sip:example.com"
                } else {
                    BOB
                };
                let ask = |branch: &str, extra: &str| {
                    request(method, uri, branch, extra).replace("To: <sip:bob@", "To: <sip:alice@")
                };
                let nonce = nonce_of(&challenge(&mut b, &ask("a1", "")));
                b.udp(CALLER, &ask("a2", &login(method, uri).line(&nonce)));
                let out = if says_so {
                    let query = b.query();
                    b.answer(&query, QueryResult::Credentials(Err(Unavailable)))
                } else {
                    assert!(b.pass(2_990).is_empty());
                    b.pass(20)
                };
                let out = one(out);
                assert_eq!(out.first_line(), first_line);
                let seconds: u32 = out.header("Retry-After").parse().unwrap();
                assert!((2..=7).contains(&seconds));
                assert_eq!(b.counters().auth_unavailable, 1);
                assert_eq!(b.endpoint.gauges().parked_requests, 0);
            }
        }
    }
}

/// Credentials are checked once, though name service and a second address come after.
#[test]
fn once_is_enough() {
    let mut config = closed(StateMode::Transaction);
    config.routes = vec![relay("sip:gw.example.net:5070")];
    let mut b = cached(&config);
    let nonce = nonce_of(&challenge(&mut b, &request("INVITE", BOB, "a1", "")));
    b.udp(
        CALLER,
        &request("INVITE", BOB, "a2", &login("INVITE", BOB).line(&nonce)),
    );
    b.shared.cached.lock().unwrap().clear();
    let zone = [(
        "gw.example.net A",
        vec![address("198.51.100.1"), address("198.51.100.2")],
    )];
    let out = one(b.serve(&zone).1);
    assert_eq!(out.address(), "198.51.100.1:5070");
    let second = one(b.undelivered(&out));
    assert_eq!(second.address(), "198.51.100.2:5070");
    assert!(second.headers("Proxy-Authorization").is_empty());
    assert_eq!(b.counters().auth_accepted, 1);
    b.no_query();
}

#[test]
fn the_ack_to_a_stateless_challenge_is_absorbed() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut b = cached(&closed(state));
        let out = challenge(&mut b, &request("INVITE", BOB, "a1", ""));
        let ack = request("ACK", BOB, "a1", "")
            .replace("To: <sip:bob@example.com>", &format!("To: {}", out.header("To")));
        assert!(b.udp(CALLER, &ack).is_empty());
        assert_eq!(b.counters().retransmissions_absorbed, 1);
        b.assert_idle();
    }
}

/// A REGISTER waits for its secrets while its connection closes: its binding has none (RFC 5626 §5.3).
#[test]
fn a_registration_whose_connection_closes_while_it_waits() {
    for closes in [true, false] {
        let mut config = all_transports();
        config.domains[0].auth.methods = vec![b"REGISTER"[..].into()];
        let mut b = Bench::new(&config);
        let flow = over(Transport::Wss, CALLER, 4);
        let register = |branch: &str, line: &str| {
            let contact = format!("Contact: <sip:x@y.invalid;transport=ws>\n{line}");
            request("REGISTER", "sip:example.com", branch, &contact)
                .replace("To: <sip:bob@", "To: <sip:alice@")
        };
        let nonce = nonce_of(&one(b.receive(flow, &register("r1", ""))));
        let line = login("REGISTER", "sip:example.com").line(&nonce);
        // It came twice, and both wait.
        let waiting = ["r2", "r3"].map(|branch| {
            assert!(b.receive(flow, &register(branch, &line)).is_empty());
            b.query()
        });
        assert_eq!(b.endpoint.gauges().flows, 1);
        let now = b.now();
        let other = over(Transport::Wss, CALLER, 5);
        let gone = if closes { flow } else { other };
        b.endpoint.handle_flow_closed(now, gone.conn.unwrap());
        for query in &waiting {
            b.answer(query, QueryResult::Credentials(Ok(Some(secrets()))));
        }
        let mut bound = None;
        b.shared.update_bindings(b"alice@example.com", &mut |record| {
            bound = record.bindings.first().map(|binding| binding.received.conn);
        });
        assert_eq!(bound, Some(flow.conn.filter(|_| !closes)), "{closes}");
        let gauges = b.endpoint.gauges();
        let known = u64::from(!closes);
        assert_eq!((gauges.flows, gauges.flows_registered), (known, known));
        b.assert_idle();
    }
}

/// The same where nothing comes of it: the connection is known no longer.
#[test]
fn a_registration_that_waited_in_vain_holds_no_flow() {
    let mut config = all_transports();
    config.domains[0].auth.methods = vec![b"REGISTER"[..].into()];
    let mut b = Bench::new(&config);
    let flow = over(Transport::Wss, CALLER, 4);
    let register = |line: &str| {
        request("REGISTER", "sip:example.com", "r1", line).replace("To: <sip:bob@", "To: <sip:alice@")
    };
    let nonce = nonce_of(&one(b.receive(flow, &register(""))));
    let line = login("REGISTER", "sip:example.com").line(&nonce);
    assert!(b.receive(flow, &register(&line)).is_empty());
    let out = one(b.pass(10_000));
    assert_eq!(out.first_line(), "SIP/2.0 503 Service Unavailable");
    assert_eq!(b.endpoint.gauges().flows, 0);
    b.assert_idle();
}
