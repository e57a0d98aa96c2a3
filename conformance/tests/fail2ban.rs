//! The filter for fail2ban that the documentation has.

use std::fs;
use std::net::SocketAddr;

use conformance::digest::credentials;
use conformance::{Config, DOMAIN, Scene, Server, Transport, port};
use regex::bytes::{Regex, RegexBuilder};

use crate::abuse::{client, log_in, register};
use crate::logs::{PASSWORD, refused_call};

/// The `failregex` of `docs/abuse.md`, with fail2ban's pattern in place of `<HOST>` (`server/failregex.py`). Its
/// look-behind is left out: here `:::` would be an address, too.
fn fail_regex() -> Regex {
    const HOST: &str = r"(?:(?:::f{4,6}:)?(?P<ip4>(?:\d{1,3}\.){3}\d{1,3})|(?P<ip6>(?:[0-9a-fA-F]{1,4}::?|:){1,7}(?:[0-9a-fA-F]{1,4}|:))|(?P<dns>[\w\-.^_]*\w))";
    let page = include_str!("../../docs/abuse.md");
    let mut patterns = page.lines().filter_map(|line| line.strip_prefix("failregex = "));
    let pattern = patterns.next().expect("a failregex");
    assert_eq!(patterns.next(), None, "one");
    assert_eq!(pattern.matches("<HOST>").count(), 1, "{pattern}");
    let whole = pattern.replace("<HOST>", HOST);
    let built = RegexBuilder::new(&whole).unicode(false).build();
    built.unwrap_or_else(|error| panic!("{error}"))
}

/// The address that fail2ban would ban for a line.
fn banned_for(regex: &Regex, line: &str) -> Option<String> {
    let found = regex.captures(line.as_bytes())?;
    let host = ["ip4", "ip6", "dns"].iter().find_map(|name| found.name(name));
    let host = host.expect("a match has an address").as_bytes();
    Some(String::from_utf8_lossy(host).into_owned())
}

#[test]
fn the_fail2ban_filter_of_the_documentation_fits_the_log() {
    let scene = Scene::new();
    let config = Config::new().auth(&["REGISTER"]).user("alice", PASSWORD);
    let server = Server::start(&scene, &config);
    let mut guesser = client(&scene, Transport::Tcp, port::CALLER);
    assert_eq!(log_in(&mut guesser, "alice", "guess", "wrong").status(), 401);
    assert_eq!(log_in(&mut guesser, "carol", "guess", "unknown").status(), 401);
    // A name and a Call-ID that look as if another address had failed.
    let user = r#"x\" source=192.0.2.77:5060 method=\"REGISTER\" reason=\"wrong password"#;
    guesser.send(&register("alice", "named", 1, ""), "named1");
    let challenge = guesser.final_response();
    let line = credentials("REGISTER", &format!("sip:{DOMAIN}"), &challenge, user, "guess");
    let text = register("alice", "named", 2, &format!("Authorization: {line}\n"));
    guesser.send(&text, "named2");
    assert_eq!(guesser.final_response().status(), 401);
    let call = "INFO authentication failed x source=192.0.2.77:5060 x reason=\"wrong password\"";
    guesser.send(&register("alice", call, 1, ""), "called");
    assert_eq!(guesser.final_response().status(), 400);
    refused_call(&mut guesser, "other");
    let source = guesser.local();
    // At its end the server has logged everything.
    drop(server);

    let log = fs::read_to_string(scene.path("server.log")).expect("the log");
    let regex = fail_regex();
    let mut matched = 0;
    for line in log.lines() {
        let banned = banned_for(&regex, line);
        let is_failure = line
            .split_once(" INFO ")
            .is_some_and(|(_, text)| text.starts_with("authentication failed"));
        if is_failure {
            assert_eq!(banned, Some(source.ip().to_string()), "{line}");
            let other = SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], source.port()));
            let line = line.replace(&source.to_string(), &other.to_string());
            assert_eq!(
                banned_for(&regex, &line),
                Some("2001:db8::1".to_owned()),
                "{line}"
            );
            matched += 1;
        } else {
            assert_eq!(banned, None, "{line}");
        }
    }
    let refused = log.matches("INFO request refused").count();
    assert_eq!((matched, refused), (3, 2), "{log}");
}
