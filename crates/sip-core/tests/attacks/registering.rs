//! Registrations that would lead another user's calls away, or ours to places that a stranger chose.

use sip_core::config::{Config, Durability, Network};
use sip_core::transport::Transport;

use crate::agent::{Login, PASSWORD, login, nonce_of};
use crate::common::{Bench, CALLER, Sent, all_transports, config, one, over, request};

const HOST: &str = "192.0.2.10";

fn guarded() -> Config {
    let mut config = config();
    config.routes.clear();
    config.registrar.durability = Durability::Memory;
    config.domains[0].auth.methods = vec![b"REGISTER"[..].into(), b"*"[..].into()];
    config
}

fn bench(config: &Config) -> Bench {
    let bench = Bench::new(config);
    for user in ["alice", "+12015550123"] {
        let secrets = sip_core::auth::digest::secrets(user.as_bytes(), b"example.com", PASSWORD.as_bytes());
        let key = (user.as_bytes().to_vec(), b"example.com".to_vec());
        bench.shared.cached.lock().unwrap().insert(key, Some(secrets));
    }
    bench
}

/// The response to a request of `user`, with good credentials.
fn authenticated(
    bench: &mut Bench,
    method: &str,
    uri: &str,
    user: &str,
    change: impl Fn(String) -> String,
) -> Sent {
    let text = |branch: &str, extra: &str| {
        let text = request(method, uri, branch, extra)
            .replace("alice@example.com", &format!("{user}@example.com"))
            .replace("c1@", &format!("{branch}@"));
        change(text)
    };
    let nonce = nonce_of(&one(bench.udp(CALLER, &text("first", ""))));
    let line = Login {
        user: user.into(),
        ..login(method, uri)
    }
    .line(&nonce);
    let sent = bench.udp(CALLER, &text("second", &line));
    sent.into_iter().last().expect("something is sent")
}

fn register(bench: &mut Bench, to: &str, extra: &str) -> Sent {
    authenticated(bench, "REGISTER", "sip:example.com", "alice", |text| {
        text.replace("To: <sip:bob@example.com>", &format!("To: {to}"))
            .replace("Content-Length", &format!("{extra}Content-Length"))
    })
}

#[test]
fn no_user_registers_anothers_address() {
    let contact = "Contact: <sip:thief@192.0.2.10>\r\n";
    for (to, status) in [
        ("<sip:alice@example.com>", "SIP/2.0 200"),
        ("<sip:%61lice@EXAMPLE.com:5060;x=y>", "SIP/2.0 200"),
        ("<sip:bob@example.com>", "SIP/2.0 403"),
        ("\"alice\" <sip:bob@example.com>", "SIP/2.0 403"),
        ("<sip:alice%40example.com@example.com>", "SIP/2.0 403"),
        ("<sip:ALICE@example.com>", "SIP/2.0 403"),
        ("<sip:alice;x@example.com>", "SIP/2.0 403"),
        ("<sip:alice:x@elsewhere.example>", "SIP/2.0 403"),
        ("<sip:example.com>", "SIP/2.0 403"),
        ("<tel:+12015550123>", "SIP/2.0 400"),
        ("<sip:bob@example.com>, <sip:alice@example.com>", "SIP/2.0 400"),
    ] {
        let mut bench = bench(&guarded());
        let told = if status.ends_with("400") {
            let text = request("REGISTER", "sip:example.com", "a", contact)
                .replace("To: <sip:bob@example.com>", &format!("To: {to}"));
            one(bench.udp(CALLER, &text))
        } else {
            register(&mut bench, to, contact)
        };
        assert!(told.first_line().starts_with(status), "{to}: {}", told.text);
        // Whatever the response, no other user's calls come to it.
        bench.endpoint.reconfigure(&config_without_auth());
        let sent = bench.udp(
            "192.0.2.77:5060",
            &request("INVITE", "sip:bob@example.com", "z", ""),
        );
        assert!(
            sent.iter()
                .all(|s| s.address() == CALLER || s.address() == "192.0.2.77:5060")
        );
        assert!(
            sent.iter().any(|s| s.first_line().starts_with("SIP/2.0 480")),
            "{to}: {sent:?}"
        );
    }
}

fn config_without_auth() -> Config {
    let mut config = guarded();
    config.domains[0].auth.methods.clear();
    config
}

/// A WebSocket comes through a proxy on this machine. A Path that leads to its source address proves nothing then.
#[test]
fn a_path_of_a_browser_leads_nowhere() {
    let mut config = config_without_auth();
    config.listeners = all_transports().listeners;
    for transport in [Transport::Ws, Transport::Wss] {
        let text = request(
            "REGISTER",
            "sip:example.com",
            "p1",
            "Contact: <sip:alice@abc.invalid;transport=ws>\nPath: <sip:127.0.0.1:8085;transport=tcp;lr>\nSupported: path\n",
        );
        let sent = Bench::new(&config).receive(over(transport, "127.0.0.1:40000", 4), &text);
        assert_eq!(
            one(sent).first_line(),
            "SIP/2.0 403 Path Not Trusted",
            "{transport:?}"
        );
    }
}

/// RFC 3327 §6: a Path says where all calls of a user go, and by which hosts.
#[test]
fn a_path_leads_back_or_is_refused() {
    const REFUSED: &str = "SIP/2.0 403 Path Not Trusted";
    const TAKEN: &str = "SIP/2.0 200 OK";
    for (path, line) in [
        (format!("<sip:{HOST};lr>"), TAKEN),
        (format!("<sip:{HOST}:5070;transport=tcp;lr>"), TAKEN),
        (
            format!("<sip:edge@{HOST};lr;ob>, <sip:further.example;lr>"),
            TAKEN,
        ),
        ("<sip:192.0.2.66;lr>".to_owned(), REFUSED),
        (format!("<sip:192.0.2.66;lr>, <sip:{HOST};lr>"), REFUSED),
        (format!("<sip:192.0.2.66;lr>\r\nPath: <sip:{HOST};lr>"), REFUSED),
        ("<sip:gateway.example;lr>".to_owned(), REFUSED),
        (format!("<sip:{HOST};maddr=192.0.2.66;lr>"), REFUSED),
        (format!("<sip:{HOST}@192.0.2.66;lr>"), REFUSED),
        (format!("\"<sip:{HOST};lr>\" <sip:192.0.2.66;lr>"), REFUSED),
        ("<sip:localhost;lr>".to_owned(), REFUSED),
        ("<sip:192.0.2.1;lr>".to_owned(), REFUSED),
    ] {
        let extra = format!("Contact: <sip:alice@192.0.2.10>\r\nPath: {path}\r\nSupported: path\r\n");
        let mut config = guarded();
        let mut bench = bench(&config);
        assert_eq!(
            register(&mut bench, "<sip:alice@example.com>", &extra).first_line(),
            line,
            "{path}"
        );
        bench.endpoint.reconfigure(&config_without_auth());
        let call = request("INVITE", "sip:alice@example.com", "z", "");
        let sent = bench.udp("192.0.2.77:5060", &call);
        let reached = sent.iter().filter(|s| s.first_line().starts_with("INVITE "));
        assert!(
            reached.clone().all(|s| s.to.remote.ip().to_string() == HOST),
            "{path}: {sent:?}"
        );
        assert_eq!(reached.count() == 1, line == TAKEN, "{path}");
        bench.no_query();
        // An edge proxy of ours may write what it likes.
        config.trust = vec![Network {
            address: [192, 0, 2, 10].into(),
            prefix_len: 32,
        }];
        let mut bench = self::bench(&config);
        assert_eq!(
            register(&mut bench, "<sip:alice@example.com>", &extra).first_line(),
            TAKEN,
            "{path}"
        );
    }
}

/// RFC 3325 §9.2: a hint which of its own identities a caller wants shown. Gateways take it for one.
#[test]
fn a_user_may_prefer_only_an_identity_of_its_own() {
    for (user, preferred, passes) in [
        ("alice", "<sip:alice@example.com>", true),
        ("+12015550123", "<tel:+12015550123>", true),
        ("+12015550123", "<tel:+1-201-555.0123>", true),
        (
            "+12015550123",
            "<sip:+12015550123@example.com;user=phone>, <tel:+12015550123>",
            true,
        ),
        (
            "+12015550123",
            "<tel:+12015550123;phone-context=example.com>",
            true,
        ),
        ("+12015550123", "<tel:+12015550124>", false),
        ("+12015550123", "<tel:12015550123>", false),
        (
            "+12015550123",
            "<tel:+12015550123;phone-context=bank.example>",
            false,
        ),
        ("alice", "<tel:+12015550123>", false),
        ("alice", "<tel:+1>, <sip:alice@example.com>", false),
        ("alice", "<sip:+12015550123@example.com;user=phone>", false),
        ("alice", "<mailto:alice@example.com>", false),
    ] {
        let mut bench = bench(&guarded());
        let told = authenticated(&mut bench, "MESSAGE", "sip:bob@example.com", user, |text| {
            text.replace(
                "Content-Length",
                &format!("P-Preferred-Identity: {preferred}\r\nContent-Length"),
            )
        });
        // No user is registered: a caller that may use its identities gets that response.
        let line = if passes { "SIP/2.0 480" } else { "SIP/2.0 403" };
        assert!(
            told.first_line().starts_with(line),
            "{user} {preferred}: {}",
            told.text
        );
    }
}
