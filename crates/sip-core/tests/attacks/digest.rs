//! Digest headers that are broken in one way or another: refused or challenged, never let in.

use sip_core::event::Event;
use sip_core::query::{QueryKind, QueryResult};

use crate::agent::{Login, PASSWORD, login, nonce_of};
use crate::common::{Bench, CALLEE, CALLER, config, one, request};

const URI: &str = "sip:bob@example.com";
/// For this realm, and lacking what they must have.
const BAD: &str = "SIP/2.0 400 Malformed Credentials";
/// Not good, or not to be read as credentials for this realm.
const CHALLENGED: &str = "SIP/2.0 407 Proxy Authentication Required";

/// A server with alice's secrets at hand, and a nonce of it.
fn challenged() -> (Bench, String) {
    let mut config = config();
    config.domains[0].auth.methods = vec![b"MESSAGE"[..].into()];
    let mut bench = Bench::new(&config);
    let secrets = sip_core::auth::digest::secrets(b"alice", b"example.com", PASSWORD.as_bytes());
    let key = (b"alice".to_vec(), b"example.com".to_vec());
    bench.shared.cached.lock().unwrap().insert(key, Some(secrets));
    let nonce = nonce_of(&one(bench.udp(CALLER, &request("MESSAGE", URI, "first", ""))));
    (bench, nonce)
}

/// Sends a MESSAGE with these header lines; the status of the only response. The store knows no user
/// of any name that they may have.
#[track_caller]
fn refusal(bench: &mut Bench, branch: usize, lines: &str) -> String {
    let text = request("MESSAGE", URI, &format!("b{branch}"), lines).replace("c1@", &format!("c{branch}@"));
    let mut sent = bench.udp(CALLER, &text);
    if let Some(query) = bench.endpoint.poll_query() {
        assert!(matches!(query.kind, QueryKind::Credentials { .. }), "{query:?}");
        sent.extend(bench.answer(&query, QueryResult::Credentials(Ok(None))));
    }
    let sent = one(sent);
    assert_eq!(sent.address(), CALLER, "let in: {lines}");
    sent.first_line().to_owned()
}

/// `good` broken in many ways, and the response to each.
fn broken(good: &str) -> Vec<(String, &'static str)> {
    let many: String = (0..100).map(|n| format!(", p{n}=v")).collect();
    let long = "x".repeat(40_000);
    vec![
        (good.replace("username=\"alice\"", "username=\"alice"), CHALLENGED),
        (
            good.replace("username=\"alice\"", "username=\"alice\\\""),
            CHALLENGED,
        ),
        (good.replace("username=\"alice\"", "username=\"\""), BAD),
        (good.replace("username=\"alice\"", "username"), CHALLENGED),
        (
            good.replace("username=\"alice\"", "username=\"alice\", username=\"bob\""),
            CHALLENGED,
        ),
        (
            good.replace("username=\"alice\"", &format!("username=\"{long}\"")),
            CHALLENGED,
        ),
        (
            good.replace("username=\"alice\"", "username=\"alice\\0\""),
            CHALLENGED,
        ),
        (good.replace("username=\"alice\"", "username*=UTF-8''alice"), BAD),
        (good.replace("realm=\"example.com\"", "realm=\"\""), CHALLENGED),
        (
            good.replace("realm=\"example.com\"", "realm=\"example.com\", realm=\"b\""),
            CHALLENGED,
        ),
        (good.replace("response=\"", "response=\"0"), BAD),
        (good.replace("response=\"", "response=\"\", x=\""), BAD),
        (good.replace("response=\"", "response=\"zz"), BAD),
        (good.replace("qop=auth", "qop=auth-int"), BAD),
        (good.replace("qop=auth", "qop="), CHALLENGED),
        (good.replace("nc=00000001", "nc=0"), BAD),
        (good.replace("nc=00000001", "nc=00000000"), BAD),
        (good.replace("nc=00000001", "nc=000000001"), BAD),
        (good.replace("nc=00000001", "nc=-0000001"), BAD),
        (good.replace("nc=00000001", "nc=FFFFFFFFFFFFFFFF"), BAD),
        (good.replace("nc=00000001", "nc=0000000g"), BAD),
        (good.replace(", cnonce=\"abc\"", ""), BAD),
        (good.replace(", cnonce=\"abc\"", ", cnonce=\""), CHALLENGED),
        (good.replace("algorithm=MD5", "algorithm=MD5-sess"), CHALLENGED),
        (good.replace("algorithm=MD5", "algorithm=NULL"), CHALLENGED),
        (good.replace("algorithm=MD5", "algorithm="), CHALLENGED),
        (good.replace("nonce=\"", "nonce=\"\\"), CHALLENGED),
        (good.replace("nonce=\"", &format!("nonce=\"{long}")), CHALLENGED),
        (good.replace("Digest ", "Digest"), CHALLENGED),
        (good.replace("Digest ", "Basic "), CHALLENGED),
        (good.replace("Digest ", "Digest =\"\", "), CHALLENGED),
        (good.replace('\n', &format!("{many}\n")), CHALLENGED),
        ("Proxy-Authorization: Digest\n".to_owned(), CHALLENGED),
        ("Proxy-Authorization:\n".to_owned(), CHALLENGED),
        (
            "Proxy-Authorization: Digest realm=\"example.com\"\n".to_owned(),
            BAD,
        ),
    ]
}

#[test]
fn broken_digest_headers_are_refused() {
    let (mut bench, nonce) = challenged();
    let good = login("MESSAGE", URI).line(&nonce);
    let mut otherwise = vec![];
    for (branch, (lines, status)) in broken(&good).into_iter().enumerate() {
        assert_ne!(lines, good, "it is broken");
        let line = refusal(&mut bench, branch, &lines);
        if line != status {
            otherwise.push((line, lines[..lines.len().min(300)].to_owned()));
        }
    }
    assert!(otherwise.is_empty(), "{otherwise:#?}");
    bench.pass(60_000);
    bench.assert_idle();
}

/// After all that, a client with good credentials is let in, once.
#[test]
fn good_credentials_beside_broken_ones() {
    let (mut bench, nonce) = challenged();
    let good = login("MESSAGE", URI).line(&nonce);
    let theirs = "Proxy-Authorization: Digest username=\"alice\", realm=\"theirs\", nonce=\"\n";
    let text = request("MESSAGE", URI, "b1", &format!("{theirs}{good}"));
    let sent = one(bench.udp(CALLER, &text));
    // A line ends where it ends: what another server's realm has broken is that server's.
    assert_eq!(sent.address(), CALLEE, "{sent:?}");
    let wrong = Login {
        password: "wrong".into(),
        count: 2,
        ..login("MESSAGE", URI)
    };
    assert_eq!(
        refusal(&mut bench, 2, &wrong.line(&nonce)),
        "SIP/2.0 407 Proxy Authentication Required"
    );
    let right = Login {
        count: 3,
        ..login("MESSAGE", URI)
    };
    let text = request("MESSAGE", URI, "b3", &right.line(&nonce)).replace("c1@", "c3@");
    assert_eq!(one(bench.udp(CALLER, &text)).address(), CALLEE);
}

/// The report of a failure is a line of the log, whatever its sender writes.
#[test]
fn the_report_of_a_failed_authentication_is_short() {
    let long = "x".repeat(6_000);
    let (mut bench, nonce) = challenged();
    let wrong = Login {
        user: long.clone(),
        ..login("MESSAGE", URI)
    };
    let text = request("MESSAGE", URI, "long", &wrong.line(&nonce));
    bench.udp(CALLER, &text.replace("Call-ID: ", &format!("Call-ID: {long}")));
    let events = std::iter::from_fn(|| bench.endpoint.poll_event());
    let reports: Vec<_> = events
        .filter_map(|event| {
            let Event::AuthFailed { user, call_id, .. } = event else {
                return None;
            };
            Some((user.len(), call_id.len()))
        })
        .collect();
    assert_eq!(reports, [(128, 128)]);
}
