//! What the edge strips or checks must not reach the next hop in any spelling.

use sip_core::config::{Network, StateMode};

use crate::common::{Bench, CALLEE, CALLER, Sent, config, one, response};

const FORGED: &str = "P-Asserted-Identity: <sip:president@example.com>";

/// A request with this among its headers, as it is.
fn with(method: &str, headers: &str) -> String {
    format!(
        "{method} sip:bob@example.com SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKa\r\n\
         Max-Forwards: 70\r\nFrom: <sip:alice@example.com>;tag=f1\r\nTo: <sip:bob@example.com>\r\n\
         Call-ID: c1\r\nCSeq: 1 {method}\r\n{headers}\r\nContent-Length: 0\r\n\r\n"
    )
}

/// Headers that some reader would take for an asserted identity.
fn spellings() -> Vec<String> {
    let name = "P-Asserted-Identity";
    let value = "<sip:president@example.com>";
    vec![
        FORGED.to_owned(),
        format!("{name} : {value}"),
        format!("{name}\t: {value}"),
        format!("{}: {value}", name.to_ascii_uppercase()),
        format!("{name}:\r\n {value}"),
        format!("{name}\r\n : {value}"),
        format!("{FORGED}, <tel:+12015550123>\r\n{FORGED}"),
        format!("Subject: a\r\n {FORGED}"),
        format!("Subject: a\r\n\t{FORGED}"),
        format!("Subject:\r\n {FORGED}"),
        format!("Subject: a\r\n \r\n {FORGED}"),
        format!("Subject: a\r\n \r\n{FORGED}"),
        format!("Subject: \"a\r\n {FORGED}\""),
        format!("Subject: a\r{FORGED}"),
        format!("Subject: a\n{FORGED}"),
        format!("Subject: a\n\r{FORGED}"),
        format!("Subject: a\r\r\n{FORGED}"),
        format!("Subject: a\0{FORGED}"),
        format!("Subject: a\0\r\n{FORGED}"),
        format!("Subject: a\x0b{FORGED}"),
        format!("Subject: a\x0c{FORGED}"),
        format!("\0{FORGED}"),
        format!(" {FORGED}"),
        format!("\x0b{FORGED}"),
        format!("X\r\n{FORGED}"),
        format!(": {FORGED}"),
    ]
}

/// How readers of different strictness cut a message into lines.
fn readers() -> [fn(&str) -> Vec<&str>; 4] {
    [
        |text| text.split("\r\n").collect(),
        |text| text.split('\n').collect(),
        |text| text.split(['\r', '\n']).collect(),
        |text| text.split(['\r', '\n', '\0', '\x0b', '\x0c', '\u{85}']).collect(),
    ]
}

/// Whether a reader that is lenient in one way or another finds this header.
fn seen_by_some(text: &str, name: &str) -> bool {
    readers().iter().any(|lines| {
        lines(text).iter().any(|line| {
            let found = line.split(':').next().unwrap_or_default();
            let found = found.trim_matches(|c: char| c.is_whitespace() || c.is_control());
            found.eq_ignore_ascii_case(name)
        })
    })
}

/// What goes on is in the form in which no two readers differ: lines end in CRLF, each begins with
/// the name of a header, and no control character stands in it.
#[track_caller]
fn assert_plain(sent: &Sent) {
    let (head, _) = sent.text.split_once("\r\n\r\n").expect("headers end");
    for line in head.split("\r\n").skip(1) {
        let name = line.split(':').next().unwrap_or_default().trim_end();
        let token = |c: char| c.is_ascii_alphanumeric() || "-.!%*_+`'~".contains(c);
        assert!(
            !name.is_empty() && name.chars().all(token),
            "{line:?} in {:?}",
            sent.text
        );
        assert!(!line.chars().any(|c| c.is_control() && c != '\t'), "{line:?}");
    }
}

#[test]
fn no_spelling_of_an_asserted_identity_goes_on() {
    let mut relayed = 0;
    for state in [StateMode::Stateless, StateMode::Transaction] {
        for spelling in spellings() {
            let mut config = config();
            config.state = state;
            let mut bench = Bench::new(&config);
            for sent in bench.udp(CALLER, &with("MESSAGE", &spelling)) {
                if sent.address() == CALLEE {
                    relayed += 1;
                    assert!(
                        !seen_by_some(&sent.text, "P-Asserted-Identity"),
                        "{spelling:?}: {}",
                        sent.text
                    );
                    assert_plain(&sent);
                } else {
                    assert!(sent.first_line().starts_with("SIP/2.0 4"), "{}", sent.text);
                }
            }
        }
    }
    assert!(relayed > 10, "what is well-formed goes on: {relayed}");
}

#[test]
fn nor_does_one_in_an_answer() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        for status in ["180 Ringing", "200 OK", "486 Busy Here"] {
            for spelling in spellings() {
                let mut config = config();
                config.state = state;
                let mut bench = Bench::new(&config);
                let sent = bench.udp(CALLER, &with("INVITE", "Contact: <sip:a@192.0.2.10>"));
                let invite = sent
                    .into_iter()
                    .find(|s| s.address() == CALLEE)
                    .expect("it goes on");
                let answer = response(&invite, status, "")
                    .replace("Content-Length", &format!("{spelling}\r\nContent-Length"));
                for sent in bench.udp(CALLEE, &answer) {
                    if sent.address() == CALLER {
                        assert!(
                            !seen_by_some(&sent.text, "P-Asserted-Identity"),
                            "{spelling:?}: {}",
                            sent.text
                        );
                        assert_plain(&sent);
                    }
                }
            }
        }
    }
}

/// From who is trusted it goes on as it came.
#[test]
fn trusted_peers_may_assert() {
    let mut config = config();
    config.trust = vec![Network {
        address: [192, 0, 2, 0].into(),
        prefix_len: 24,
    }];
    config.state = StateMode::Stateless;
    let mut bench = Bench::new(&config);
    let invite = one(bench.udp(CALLER, &with("INVITE", FORGED)));
    assert_eq!(invite.headers("P-Asserted-Identity").len(), 1);
    let answer = response(&invite, "200 OK", &format!("{FORGED}\n"));
    let answer = one(bench.udp(CALLEE, &answer));
    assert_eq!(answer.headers("P-Asserted-Identity").len(), 1);
}

/// A second length, and one that two readers would read differently, is refused.
#[test]
fn two_lengths_are_refused() {
    for lines in [
        "Content-Length: 0\r\nContent-Length: 40",
        "Content-Length: 40\r\nl: 0",
        "Content-Length: 0 \r\nl : 0",
        "Content-Length: +0",
        "Content-Length: 0x0",
        "Content-Length: 0, 40",
        "Content-Length: 99999999999999999999",
        "Content-Length: -1",
    ] {
        let text = with("MESSAGE", "X: y").replace("Content-Length: 0", lines);
        let sent = one(Bench::new(&config()).udp(CALLER, &text));
        assert_eq!(
            (sent.address().as_str(), &sent.first_line()[..11]),
            (CALLER, "SIP/2.0 400"),
            "{lines}"
        );
    }
}

/// Folding means white space; quoted control characters are quoted.
#[test]
fn what_may_stand_there_goes_on() {
    let mut config = config();
    config.state = StateMode::Stateless;
    let mut bench = Bench::new(&config);
    let sent = one(bench.udp(
        CALLER,
        &with("MESSAGE", "Subject: one\r\n  two\r\n\tthree\r\nX-B: \"a\\\0b\""),
    ));
    assert_eq!(sent.address(), CALLEE);
    assert_eq!(sent.header("Subject"), "one two three");
    assert_eq!(sent.header("X-B"), "\"a\\\0b\"");
}
