//! The users that there are: what the responses to a stranger reveal, and what is done for it in
//! which order. Time is not measured here. The only step with a time that differs by orders of
//! magnitude is a query to a back-end, and the queries that leave show it.

use sip_core::query::{QueryKind, QueryResult, Unavailable};

use crate::agent::{Login, PASSWORD, login, nonce_of};
use crate::common::{Bench, CALLER, config, one, request};

const URI: &str = "sip:bob@example.com";

fn guarded() -> Bench {
    let mut config = config();
    config.routes.clear();
    config.domains[0].auth.methods = [&b"INVITE"[..], b"REGISTER", b"*"].map(Into::into).to_vec();
    Bench::new(&config)
}

fn remember(bench: &Bench, user: &str, known: bool) {
    let secrets = sip_core::auth::digest::secrets(user.as_bytes(), b"example.com", PASSWORD.as_bytes());
    let key = (user.as_bytes().to_vec(), b"example.com".to_vec());
    bench
        .shared
        .cached
        .lock()
        .unwrap()
        .insert(key, known.then_some(secrets));
}

/// The response to a request of `user` with a wrong password, and the number of queries that it cost.
/// The nonce and the user's name are taken out.
fn probe(bench: &mut Bench, method: &str, user: &str, found: bool) -> (String, usize) {
    let uri = if method == "REGISTER" {
        "sip:example.com"
    } else {
        URI
    };
    let text = |branch: &str, extra: &str| {
        request(method, uri, branch, extra)
            .replace("alice@example.com", &format!("{user}@example.com"))
            .replace("c1@", &format!("{branch}@"))
    };
    let nonce = nonce_of(&one(bench.udp(CALLER, &text("first", ""))));
    let wrong = Login {
        user: user.into(),
        password: "wrong".into(),
        ..login(method, uri)
    };
    let mut sent = bench.udp(CALLER, &text("second", &wrong.line(&nonce)));
    let mut asked = 0;
    while let Some(query) = bench.endpoint.poll_query() {
        assert!(matches!(query.kind, QueryKind::Credentials { .. }), "{query:?}");
        asked += 1;
        let secrets = sip_core::auth::digest::secrets(user.as_bytes(), b"example.com", PASSWORD.as_bytes());
        sent.extend(bench.answer(&query, QueryResult::Credentials(Ok(found.then_some(secrets)))));
    }
    let mut told = String::new();
    for sent in sent {
        let nonce = nonce_of(&sent);
        let text = match nonce.as_str() {
            "" => sent.text,
            nonce => sent.text.replace(nonce, "NONCE"),
        };
        told += &text.replace(user, "USER");
    }
    (told, asked)
}

#[test]
fn responses_do_not_reveal_which_users_exist() {
    for method in ["INVITE", "REGISTER", "MESSAGE"] {
        // Asked for: both cost one query. At hand: neither costs any.
        for (cached, questions) in [(false, 1), (true, 0)] {
            let mut told = vec![];
            for (user, known) in [("alice", true), ("nosuch", false)] {
                let mut bench = guarded();
                if cached {
                    remember(&bench, user, known);
                }
                told.push(probe(&mut bench, method, user, known));
            }
            assert_eq!(told[0], told[1], "{method}, cached: {cached}");
            assert_eq!(told[0].1, questions, "{method}, cached: {cached}");
            assert!(told[0].0.contains("SIP/2.0 40"), "{told:?}");
        }
    }
}

/// A request without a nonce of ours, or with another's, costs no query. A prober must come back with
/// a nonce that was sent to its address, and is seen then.
#[test]
fn no_look_up_happens_before_a_good_nonce() {
    for user in ["alice", "nosuch"] {
        let mut bench = guarded();
        for nonce in ["", "x", &"A".repeat(43), &"A".repeat(60)] {
            let line = Login {
                user: user.into(),
                ..login("MESSAGE", URI)
            }
            .line(nonce);
            let sent = one(bench.udp(CALLER, &request("MESSAGE", URI, "b1", &line)));
            assert!(sent.first_line().starts_with("SIP/2.0 407"), "{}", sent.text);
            bench.no_query();
        }
        let _ = one(bench.udp(CALLER, &request("MESSAGE", URI, "b2", "")));
        bench.no_query();
    }
}

/// While the store is away, an unknown and a known user get the same response.
#[test]
fn nor_does_a_store_that_is_away() {
    let mut told = vec![];
    for user in ["alice", "nosuch"] {
        let mut bench = guarded();
        let text = |branch: &str, extra: &str| {
            request("MESSAGE", URI, branch, extra)
                .replace("alice@example.com", &format!("{user}@example.com"))
        };
        let nonce = nonce_of(&one(bench.udp(CALLER, &text("first", ""))));
        let line = Login {
            user: user.into(),
            ..login("MESSAGE", URI)
        }
        .line(&nonce);
        let mut sent = bench.udp(CALLER, &text("second", &line));
        let query = bench.query();
        sent.extend(bench.answer(&query, QueryResult::Credentials(Err(Unavailable))));
        told.push(one(sent).first_line().to_owned());
    }
    assert_eq!(told[0], told[1]);
    assert!(told[0].starts_with("SIP/2.0 503"), "{told:?}");
}

/// A call without credentials reveals nothing at all about the callee. A caller with an account
/// learns which users are registered, as it would by calling, and nothing of which users exist.
#[test]
fn unregistered_and_unknown_users_look_alike() {
    let mut config = config();
    config.routes.clear();
    for method in ["INVITE", "MESSAGE", "OPTIONS", "SUBSCRIBE"] {
        let told = ["bob", "nosuch"].map(|user| {
            let mut bench = Bench::new(&config);
            let text = request(method, &format!("sip:{user}@example.com"), "a", "");
            let sent = bench.udp(CALLER, &text);
            bench.no_query();
            sent.last().map(|s| s.first_line().to_owned())
        });
        assert_eq!(told[0], told[1], "{method}");
        assert_eq!(
            told[0].as_deref(),
            Some("SIP/2.0 480 Temporarily Unavailable"),
            "{method}"
        );
    }
}
