//! What the edge strips or checks must not reach the next hop in any spelling.

use sip_core::config::{Config, Network, StateMode};
use sip_core::endpoint::claims;

use crate::common::{Bench, CALLEE, CALLER, Sent, config, one, response};

/// A request with this among its headers, as it is.
fn with(method: &str, headers: &str) -> String {
    format!(
        "{method} sip:bob@example.com SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.10:5060;branch=z9hG4bKa\r\n\
         Max-Forwards: 70\r\nFrom: <sip:alice@example.com>;tag=f1\r\nTo: <sip:bob@example.com>\r\n\
         Call-ID: c1\r\nCSeq: 1 {method}\r\n{headers}\r\nContent-Length: 0\r\n\r\n"
    )
}

/// Headers that some reader would take for this one.
fn spellings(name: &str, value: &str) -> Vec<String> {
    let forged = format!("{name}: {value}");
    vec![
        forged.clone(),
        format!("{name} : {value}"),
        format!("{name}\t: {value}"),
        format!("{}: {value}", name.to_ascii_uppercase()),
        format!("{}: {value}", name.to_ascii_lowercase()),
        format!("{name}:\r\n {value}"),
        format!("{name}\r\n : {value}"),
        format!("{forged}, <tel:+12015550123>\r\n{forged}"),
        format!("Subject: a\r\n {forged}"),
        format!("Subject: a\r\n\t{forged}"),
        format!("Subject:\r\n {forged}"),
        format!("Subject: a\r\n \r\n {forged}"),
        format!("Subject: a\r\n \r\n{forged}"),
        format!("Subject: \"a\r\n {forged}\""),
        format!("Subject: a\r{forged}"),
        format!("Subject: a\n{forged}"),
        format!("Subject: a\n\r{forged}"),
        format!("Subject: a\r\r\n{forged}"),
        format!("Subject: a\0{forged}"),
        format!("Subject: a\0\r\n{forged}"),
        format!("Subject: a\x0b{forged}"),
        format!("Subject: a\x0c{forged}"),
        format!("\0{forged}"),
        format!(" {forged}"),
        format!("\x0b{forged}"),
        format!("X\r\n{forged}"),
        format!(": {forged}"),
    ]
}

/// Header fields that untrusted sources must not write, with values.
const CLAIMS: [(&str, &str); 29] = [
    ("P-Asserted-Identity", "<sip:president@example.com>"),
    ("P-Asserted-Service", "urn:urn-7:3gpp-service.ims.icsi.mmtel"),
    (
        "Remote-Party-ID",
        "<sip:president@example.com>;screen=yes;privacy=off",
    ),
    ("P-Charging-Vector", "icid-value=1234;orig-ioi=example.com"),
    ("P-Charging-Function-Addresses", "ccf=192.0.2.66"),
    ("P-Served-User", "<sip:president@example.com>;sescase=orig"),
    ("P-Access-Network-Info", "IEEE-802.11; network-provided"),
    (
        "P-Access-Network-Info",
        "3GPP-UTRAN-TDD;utran-cell-id-3gpp=\"2\" ;Network-Provided",
    ),
    ("P-Access-Network-Info", "IEEE-802.11;\"network-provided\""),
    ("P-Access-Network-Info", "IEEE-802.11;\"network\\-provided\""),
    ("Additional-Identity", "<sip:president@example.com>"),
    ("Attestation-Info", "A"),
    ("Origination-Id", "5e8f1b1c-0000-4000-8000-000000000000"),
    ("P-Attestation-Indicator", "A"),
    ("P-Origination-ID", "5e8f1b1c-0000-4000-8000-000000000000"),
    ("P-Charge-Info", "<sip:other@example.com>;npi=ISDN"),
    ("Relayed-Charge", "ccf=192.0.2.66"),
    ("Priv-Answer-Mode", "Auto;require"),
    ("P-Called-Party-ID", "<sip:other@example.com>"),
    ("P-Visited-Network-ID", "\"other\""),
    ("P-User-Database", "<aaa://192.0.2.66>"),
    ("P-Private-Network-Indication", "example.com"),
    ("P-DCS-Billing-Info", "01:0@192.0.2.66"),
    ("P-DCS-LAES", "192.0.2.66:99"),
    (
        "P-Media-Authorization",
        "0020000100100101706466312e76697369746564",
    ),
    ("P-Profile-Key", "<sip:service@example.com>"),
    ("P-DCS-OSPS", "BLV"),
    ("P-DCS-Redirect", "<tel:+12015550123>;redirector-uri=x;count=1"),
    ("P-DCS-Trace-Party-ID", "<tel:+12015550123>"),
];

/// None is taken off that is not tried here.
#[test]
fn every_claim_is_known_here() {
    for (name, _) in claims() {
        let is_it = |known: &str| known.as_bytes().eq_ignore_ascii_case(name);
        assert!(
            CLAIMS.iter().any(|(known, _)| is_it(known)),
            "{}",
            name.escape_ascii()
        );
    }
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

/// Sends a request with each spelling; what goes on has the header for no reader, and is plain.
fn assert_stripped(name: &str, value: &str) {
    let mut relayed = 0;
    for state in [StateMode::Stateless, StateMode::Transaction] {
        for spelling in spellings(name, value) {
            let mut config = config();
            config.state = state;
            let mut bench = Bench::new(&config);
            for sent in bench.udp(CALLER, &with("MESSAGE", &spelling)) {
                if sent.address() == CALLEE {
                    relayed += 1;
                    assert!(!seen_by_some(&sent.text, name), "{spelling:?}: {}", sent.text);
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
fn no_spelling_of_a_claim_goes_on() {
    for (name, value) in CLAIMS {
        assert_stripped(name, value);
    }
}

/// Credentials for our realm end here (RFC 3261 §22.3): a host that hears them further on has a hash
/// to try passwords against.
#[test]
fn no_spelling_of_credentials_goes_on() {
    let value = "Digest username=\"alice\", realm=\"example.com\", nonce=\"x\", uri=\"sip:bob@example.com\", \
                 response=\"0123456789abcdef0123456789abcdef\"";
    for name in ["Proxy-Authorization", "Authorization"] {
        assert_stripped(name, value);
    }
}

/// Nor what a stranger says of how its own number was verified.
#[test]
fn a_verification_of_a_strangers_own_is_taken_off() {
    for (from, expected) in [
        (
            "<sip:+1;verstat=TN-Validation-Passed@example.com>;tag=f1",
            "<sip:+1@example.com>;tag=f1",
        ),
        ("<tel:+1;VERSTAT=x>;verstat=y;tag=f1", "<tel:+1>;tag=f1"),
        (
            "<sip:+1@example.com>;a ; verstat = x;tag=f1",
            "<sip:+1@example.com>;a ;tag=f1",
        ),
        (
            "<sip:+1@example.com>;verstat=\"TN-Validation-Passed\";tag=f1",
            "<sip:+1@example.com>;tag=f1",
        ),
        (
            "<sip:+1;ver%73tat=x@example.com>;tag=f1",
            "<sip:+1@example.com>;tag=f1",
        ),
    ] {
        for trusted in [false, true] {
            let mut config = config();
            if trusted {
                config.trust = vec![Network {
                    address: "192.0.2.10".parse().expect("an address"),
                    prefix_len: 32,
                }];
            }
            let text = with("MESSAGE", "Subject: x").replace("<sip:alice@example.com>;tag=f1", from);
            let sent = one(Bench::new(&config).udp(CALLER, &text));
            assert_eq!(sent.header("From"), if trusted { from } else { expected });
            // A gateway behind this server makes P-Asserted-Identity of P-Preferred-Identity.
            let value = |from: &str| from.replace(";tag=f1", "");
            let prefers = format!("P-Preferred-Identity: <sip:+2@example.com>, {}", value(from));
            let sent = one(Bench::new(&config).udp(CALLER, &with("MESSAGE", &prefers)));
            let expected = value(if trusted { from } else { expected });
            let expected = format!("<sip:+2@example.com>, {expected}");
            assert_eq!(sent.header("P-Preferred-Identity"), expected.trim_end());
        }
    }
}

#[test]
fn nor_does_one_in_an_answer() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut config = config();
        config.state = state;
        for (name, value) in CLAIMS {
            let mut relayed = 0;
            for spelling in spellings(name, value) {
                for status in ["180 Ringing", "200 OK", "486 Busy Here"] {
                    relayed += usize::from(assert_answer_stripped(&config, status, name, &spelling));
                }
            }
            assert!(relayed > 10, "what is well-formed goes on: {relayed}");
        }
    }
}

/// Whether the response goes on.
fn assert_answer_stripped(config: &Config, status: &str, name: &str, spelling: &str) -> bool {
    let mut bench = Bench::new(config);
    let sent = bench.udp(CALLER, &with("INVITE", "Contact: <sip:a@192.0.2.10>"));
    let invite = sent
        .into_iter()
        .find(|s| s.address() == CALLEE)
        .expect("it goes on");
    let answer =
        response(&invite, status, "").replace("Content-Length", &format!("{spelling}\r\nContent-Length"));
    let mut relayed = false;
    for sent in bench.udp(CALLEE, &answer) {
        if sent.address() == CALLER {
            relayed = true;
            assert!(!seen_by_some(&sent.text, name), "{spelling:?}: {}", sent.text);
            assert_plain(&sent);
        }
    }
    relayed
}

/// What a phone says of its own access it may say.
#[test]
fn what_claims_nothing_goes_on() {
    let own = "P-Access-Network-Info: IEEE-802.11;i-wlan-node-id=00112233";
    let lines = format!("{own}\r\nHistory-Info: <sip:c@example.com>;index=1\r\nP-Early-Media: supported");
    let sent = Bench::new(&config()).udp(CALLER, &with("MESSAGE", &lines));
    let sent = sent.iter().find(|s| s.address() == CALLEE).expect("it goes on");
    for name in ["P-Access-Network-Info", "History-Info", "P-Early-Media"] {
        assert_eq!(sent.headers(name).len(), 1, "{name}");
    }
}

/// From a trusted source it goes on as it came.
#[test]
fn trusted_peers_may_assert() {
    let mut config = config();
    config.trust = vec![Network {
        address: [192, 0, 2, 0].into(),
        prefix_len: 24,
    }];
    config.state = StateMode::Stateless;
    let mut bench = Bench::new(&config);
    let lines: Vec<String> = CLAIMS.iter().map(|(n, v)| format!("{n}: {v}")).collect();
    let invite = one(bench.udp(CALLER, &with("INVITE", &lines.join("\r\n"))));
    let answer = response(&invite, "200 OK", &format!("{}\n", lines.join("\n")));
    let answer = one(bench.udp(CALLEE, &answer));
    for (name, value) in CLAIMS {
        assert!(invite.headers(name).contains(&value), "{name}");
        assert!(answer.headers(name).contains(&value), "{name}");
    }
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
