//! Digest headers that are broken in one way or another: refused or challenged, never let in.

use sip_core::query::{Answer, QueryKind};

use crate::agent::{Login, PASSWORD, login, nonce_of};
use crate::common::{Bench, CALLEE, CALLER, config, one, request};

const URI: &str = "sip:bob@example.com";

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

/// Sends a MESSAGE with these header lines; the status of the only answer. Whoever they may be taken to be from
/// is nobody whom the store knows.
#[track_caller]
fn refusal(bench: &mut Bench, branch: usize, lines: &str) -> String {
    let text = request("MESSAGE", URI, &format!("b{branch}"), lines).replace("c1@", &format!("c{branch}@"));
    let mut sent = bench.udp(CALLER, &text);
    if let Some(query) = bench.endpoint.poll_query() {
        assert!(matches!(query.kind, QueryKind::Credentials { .. }), "{query:?}");
        sent.extend(bench.answer(&query, Answer::Credentials(Ok(None))));
    }
    let sent = one(sent);
    assert_eq!(sent.address(), CALLER, "let in: {lines}");
    sent.first_line().to_owned()
}

#[test]
fn broken_digest_headers_let_nobody_in() {
    let (mut bench, nonce) = challenged();
    let good = login("MESSAGE", URI).line(&nonce);
    let many: String = (0..100).map(|n| format!(", p{n}=v")).collect();
    let long = "x".repeat(40_000);
    let broken = [
        good.replace("username=\"alice\"", "username=\"alice"),
        good.replace("username=\"alice\"", "username=\"alice\\\""),
        good.replace("username=\"alice\"", "username=\"\""),
        good.replace("username=\"alice\"", "username"),
        good.replace("username=\"alice\"", "username=\"alice\", username=\"bob\""),
        good.replace("username=\"alice\"", &format!("username=\"{long}\"")),
        good.replace("username=\"alice\"", "username=\"alice\\0\""),
        good.replace("username=\"alice\"", "username*=UTF-8''alice"),
        good.replace("realm=\"example.com\"", "realm=\"\""),
        good.replace("realm=\"example.com\"", "realm=\"example.com\", realm=\"b\""),
        good.replace("response=\"", "response=\"0"),
        good.replace("response=\"", "response=\"\", x=\""),
        good.replace("response=\"", "response=\"zz"),
        good.replace("qop=auth", "qop=auth-int"),
        good.replace("qop=auth", "qop="),
        good.replace("nc=00000001", "nc=0"),
        good.replace("nc=00000001", "nc=00000000"),
        good.replace("nc=00000001", "nc=000000001"),
        good.replace("nc=00000001", "nc=-0000001"),
        good.replace("nc=00000001", "nc=FFFFFFFFFFFFFFFF"),
        good.replace("nc=00000001", "nc=0000000g"),
        good.replace(", cnonce=\"abc\"", ""),
        good.replace(", cnonce=\"abc\"", ", cnonce=\""),
        good.replace("algorithm=MD5", "algorithm=MD5-sess"),
        good.replace("algorithm=MD5", "algorithm=NULL"),
        good.replace("algorithm=MD5", "algorithm="),
        good.replace("nonce=\"", "nonce=\"\\"),
        good.replace("nonce=\"", &format!("nonce=\"{long}")),
        good.replace("Digest ", "Digest"),
        good.replace("Digest ", "Basic "),
        good.replace("Digest ", "Digest =\"\", "),
        good.replace('\n', &format!("{many}\n")),
        "Proxy-Authorization: Digest\n".to_owned(),
        "Proxy-Authorization:\n".to_owned(),
        "Proxy-Authorization: Digest realm=\"example.com\"\n".to_owned(),
    ];
    for (branch, lines) in broken.iter().enumerate() {
        assert_ne!(*lines, good, "it is broken");
        let line = refusal(&mut bench, branch, lines);
        assert!(
            line.starts_with("SIP/2.0 400") || line.starts_with("SIP/2.0 407"),
            "{line}: {lines}"
        );
    }
    bench.pass(60_000);
    bench.assert_idle();
}

/// After all that, who is right is let in, once.
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
