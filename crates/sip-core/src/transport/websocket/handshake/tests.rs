use alloc::string::{String, ToString};
use alloc::{format, vec};

use proptest::prelude::*;

use super::*;

/// [`Handshaking`] with its bytes owned, and the rest of the input, for frames.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Nothing,
    Accepted {
        target: String,
        host: String,
        origin: Option<String>,
        response: String,
        rest: Vec<u8>,
    },
    Refused(HandshakeFault),
}

const LIMIT: usize = 600;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn pieces<'a>(all: impl IntoIterator<Item = &'a [u8]>, origins: &AllowedOrigins) -> Seen {
    let mut handshake = Handshake::new(LIMIT);
    let mut all = all.into_iter();
    while let Some(piece) = all.next() {
        let mut input = piece;
        match handshake.next(&mut input, origins) {
            Handshaking::Incomplete => assert!(input.is_empty()),
            Handshaking::Foreign(origin) => {
                let origin = text(origin);
                assert!(!origin.contains(['\r', '\n']), "{origin}");
                return Seen::Refused(HandshakeFault::Origin);
            }
            Handshaking::Refused(fault) => {
                assert!(input.is_empty());
                assert_eq!(handshake.next(&mut &piece[..], origins), Handshaking::Incomplete);
                assert_eq!(handshake.held_bytes(), 0);
                return Seen::Refused(fault);
            }
            Handshaking::Accepted(upgrade) => {
                let mut response = Vec::new();
                upgrade.write_response(&mut response);
                let mut rest = input.to_vec();
                all.for_each(|piece| rest.extend_from_slice(piece));
                return Seen::Accepted {
                    target: text(upgrade.target),
                    host: text(upgrade.host),
                    origin: upgrade.origin.map(text),
                    response: text(&response),
                    rest,
                };
            }
        }
        assert!(handshake.held_bytes() <= LIMIT);
    }
    Seen::Nothing
}

#[track_caller]
fn whole_from(request: &[u8], origins: &AllowedOrigins) -> Seen {
    let seen = pieces([request], origins);
    assert_eq!(pieces(request.chunks(1), origins), seen, "byte by byte");
    seen
}

fn whole(request: &str) -> Seen {
    whole_from(request.as_bytes(), &AllowedOrigins::any())
}

/// RFC 7118 §4.2, with the key of RFC 6455 §1.3.
const EXAMPLE: &str = "GET / HTTP/1.1\r\n\
    Host: sip-ws.example.com\r\n\
    Upgrade: websocket\r\n\
    Connection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Origin: http://www.example.com\r\n\
    Sec-WebSocket-Protocol: sip\r\n\
    Sec-WebSocket-Version: 13\r\n\r\n";

#[test]
fn the_example_is_answered() {
    let stream = format!("{EXAMPLE}\u{1}frames\r\n\r\n");
    assert_eq!(
        whole(&stream),
        Seen::Accepted {
            target: "/".into(),
            host: "sip-ws.example.com".into(),
            origin: Some("http://www.example.com".into()),
            response: "HTTP/1.1 101 Switching Protocols\r\n\
                Upgrade: websocket\r\n\
                Connection: Upgrade\r\n\
                Sec-WebSocket-Protocol: sip\r\n\
                Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
                .into(),
            rest: b"\x01frames\r\n\r\n".to_vec(),
        }
    );
}

/// The example with one text of it replaced.
#[track_caller]
fn with(from: &str, to: &str) -> String {
    assert!(EXAMPLE.contains(from), "{from}");
    EXAMPLE.replacen(from, to, 1)
}

#[test]
fn spellings_that_are_fine() {
    for request in [
        with("Upgrade: websocket", "UPGRADE:h2c, WebSocket"),
        with("Connection: Upgrade", "connection: keep-alive, upgrade"),
        with(
            "Connection: Upgrade",
            "Connection: keep-alive\r\nConnection: Upgrade",
        ),
        with("Protocol: sip", "Protocol: msrp , sip"),
        with(
            "Sec-WebSocket-Protocol: sip",
            "Sec-WebSocket-Protocol: msrp\r\nsec-websocket-protocol:sip",
        ),
        with("Version: 13", "Version: \t 13 \t "),
        with("Origin: http://www.example.com\r\n", ""),
        with("Host: sip-ws.example.com", "Host: [2001:db8::1]:8443"),
        with("Host: sip-ws.example.com", "Host: 192.0.2.1:80"),
        with("Host: sip-ws.example.com", "Host: example.com:"),
        with("Host: ", "Content-Length: 0\r\nHost: "),
        with("Host: ", "X-Name_1#: \u{fc}\tand so on\r\nHost: "),
        with("Host: ", "Sec-WebSocket-Extensions: permessage-deflate\r\nHost: "),
    ] {
        let seen = whole(&request);
        assert!(matches!(seen, Seen::Accepted { .. }), "{seen:?}: {request}");
    }
}

#[test]
fn faults_are_refused() {
    use HandshakeFault::*;
    let key = "Key: dGhlIHNhbXBsZSBub25jZQ==";
    let line = |line: &str| with("Host: ", &format!("{line}\r\nHost: "));
    for (request, fault, status) in [
        (
            with("Host: ", &format!("X: {}\r\nHost: ", "x".repeat(600))),
            HeadTooLarge,
            431,
        ),
        (line("X: a\0b"), Character, 400),
        (line("X: a\x7fb"), Character, 400),
        (line("X: a\nY: b"), Character, 400),
        (line("X: a\rY: b"), Character, 400),
        (with("HTTP/1.1\r\n", "HTTP/1.1\n"), Character, 400),
        (with("13\r\n\r\n", "13\n\n"), Character, 400),
        (with("13\r\n\r\n", "13\r\n\r\r\n"), Character, 400),
        ("\x16\x03\x01\x02\x00\x01\x00\x01".to_string(), Character, 400),
        (line("X: a\r\n b"), FoldedLine, 400),
        (line("X: a\r\n\tb"), FoldedLine, 400),
        (with("HTTP/1.1\r\n", "HTTP/1.1\r\n Host: x\r\n"), FoldedLine, 400),
        ("\r\n\r\n".to_string(), RequestLine, 400),
        (format!("\r\n{EXAMPLE}"), RequestLine, 400),
        (with("GET /", " GET /"), RequestLine, 400),
        (with("GET /", "GET  /"), RequestLine, 400),
        (with("GET /", "GET\t/"), RequestLine, 400),
        (with("GET / ", "GET "), RequestLine, 400),
        (with("GET /", "GET / /"), RequestLine, 400),
        (with("GET /", "GET *"), RequestLine, 400),
        (with("GET /", "GET sip:a@b"), RequestLine, 400),
        (with("GET /", "GET /\u{fc}"), RequestLine, 400),
        (with("GET /", "G(T /"), RequestLine, 400),
        (with("HTTP/1.1", "http/1.1"), RequestLine, 400),
        (with("HTTP/1.1", "HTTP/1.1 "), RequestLine, 400),
        (with("HTTP/1.1", "HTTP/11"), RequestLine, 400),
        (with("HTTP/1.1", "HTTP/1.0"), HttpVersion, 505),
        (with("HTTP/1.1", "HTTP/2.0"), HttpVersion, 505),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_string(), HttpVersion, 505),
        (with("GET", "POST"), Method, 405),
        (with("GET", "get"), Method, 405),
        (
            "OPTIONS sip:a@b SIP/2.0\r\nVia: x\r\n\r\n".to_string(),
            RequestLine,
            400,
        ),
        (line("no colon"), FieldLine, 400),
        (line(": no name"), FieldLine, 400),
        (line("X : white space"), FieldLine, 400),
        (line("Host : x"), FieldLine, 400),
        (line("X(: no token"), FieldLine, 400),
        (line("host: sip-ws.example.com"), Repeated(SingleField::Host), 400),
        (
            line("Origin: http://www.example.com"),
            Repeated(SingleField::Origin),
            400,
        ),
        (
            line(&format!("Sec-WebSocket-{key}")),
            Repeated(SingleField::Key),
            400,
        ),
        (
            line("Sec-WebSocket-Version: 13"),
            Repeated(SingleField::Version),
            400,
        ),
        (with("Host: sip-ws.example.com\r\n", ""), Host, 400),
        (with("Host: sip-ws.example.com", "Host:"), Host, 400),
        (with("Host: sip-ws.example.com", "Host: a b"), Host, 400),
        (with("Host: sip-ws.example.com", "Host: a@b"), Host, 400),
        (with("Host: sip-ws.example.com", "Host: a:99999"), Host, 400),
        (with("Host: sip-ws.example.com", "Host: a, b"), Host, 400),
        (with("Host: sip-ws.example.com", "Host: ::1"), Host, 400),
        (line("Content-Length: 4"), Body, 400),
        (line("Content-Length:"), Body, 400),
        (line("Transfer-Encoding: chunked"), Body, 400),
        (with("Upgrade: websocket\r\n", ""), NoUpgrade, 426),
        (with("Upgrade: websocket", "Upgrade: h2c"), NoUpgrade, 426),
        (with("Connection: Upgrade\r\n", ""), NoUpgrade, 426),
        (
            with("Connection: Upgrade", "Connection: keep-alive"),
            NoUpgrade,
            426,
        ),
        (
            with("Connection: Upgrade", "Connection: xupgrade"),
            NoUpgrade,
            426,
        ),
        (with("Version: 13", "Version: 8"), WebSocketVersion, 426),
        (with("Version: 13", "Version: 013"), WebSocketVersion, 426),
        (with("Version: 13", "Version: 13, 8"), WebSocketVersion, 426),
        (with("Sec-WebSocket-Version: 13\r\n", ""), WebSocketVersion, 426),
        (with(&format!("Sec-WebSocket-{key}\r\n"), ""), Key, 400),
        (with(key, "Key:"), Key, 400),
        (with(key, "Key: dGhlIHNhbXBsZSBub25jZQ"), Key, 400),
        (with(key, "Key: dGhlIHNhbXBsZSBub25j"), Key, 400),
        (with(key, "Key: dGhlIHNhbXBsZSBub25jZXM="), Key, 400),
        (with(key, "Key: dGhlIHNhbXBsZSBub25jZ*=="), Key, 400),
        (
            with(key, "Key: dGhlIHNhbXBsZSBub25jZQ==dGhlIHNhbXBsZSBub25jZQ=="),
            Key,
            400,
        ),
        (with("Sec-WebSocket-Protocol: sip\r\n", ""), Subprotocol, 400),
        (with("Protocol: sip", "Protocol: msrp"), Subprotocol, 400),
        (with("Protocol: sip", "Protocol: sips, xsip"), Subprotocol, 400),
        (with("Protocol: sip", "Protocol: SIP"), Subprotocol, 400),
        (with("Protocol: sip", "Protocol:"), Subprotocol, 400),
    ] {
        assert_eq!(whole(&request), Seen::Refused(fault), "{request}");
        assert_eq!(fault.status().0, status, "{fault:?}");
    }
}

#[test]
fn refusals_say_why() {
    let response = |fault: HandshakeFault| {
        let mut out = Vec::new();
        fault.write_response(&mut out);
        text(&out)
    };
    assert_eq!(
        response(HandshakeFault::Subprotocol),
        "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\
         Content-Length: 69\r\n\r\n\
         Sec-WebSocket-Protocol must offer the sub-protocol \"sip\" (RFC 7118).\n"
    );
    // RFC 6455 §4.2.2, RFC 9110 §15.5.22: the response names the version and the protocol.
    let upgrade = response(HandshakeFault::WebSocketVersion);
    assert!(upgrade.starts_with("HTTP/1.1 426 Upgrade Required\r\n"));
    assert!(upgrade.contains("\r\nSec-WebSocket-Version: 13\r\n"));
    assert!(upgrade.contains("\r\nUpgrade: websocket\r\n"));
    // RFC 9110 §15.5.6: the response names the allowed method.
    assert!(response(HandshakeFault::Method).contains("\r\nAllow: GET\r\n"));
}

#[test]
fn origins_are_held_against_the_list() {
    let list = AllowedOrigins::only(["http://WWW.example.com", "https://phone.example.com"]).unwrap();
    let seen = |request: &str| whole_from(request.as_bytes(), &list);
    for request in [
        EXAMPLE.to_string(),
        with("www.example.com", "www.EXAMPLE.com"),
        with("http://www.example.com", "https://phone.example.com"),
        with("Origin: http://www.example.com\r\n", ""),
    ] {
        assert!(matches!(seen(&request), Seen::Accepted { .. }), "{request}");
    }
    for request in [
        with("http://www.example.com", "https://www.example.com"),
        with("http://www.example.com", "http://www.example.com:81"),
        with("http://www.example.com", "null"),
        with("http://www.example.com", ""),
    ] {
        assert_eq!(seen(&request), Seen::Refused(HandshakeFault::Origin), "{request}");
    }
    assert_eq!(HandshakeFault::Origin.status().0, 403);
}

#[test]
fn the_path_is_handed_out() {
    for (target, path) in [
        ("/", "/"),
        ("/sip", "/sip"),
        ("/a/b?token=x/y", "/a/b"),
        ("//a", "//a"),
        ("/?", "/"),
        ("http://example.com/sip?x", "/sip"),
        ("WSS://example.com", "/"),
        ("ws://example.com?x=/y", "/"),
    ] {
        let request = with("GET /", &format!("GET {target}"));
        let mut input = request.as_bytes();
        let mut handshake = Handshake::new(LIMIT);
        let Handshaking::Accepted(upgrade) = handshake.next(&mut input, &AllowedOrigins::any()) else {
            panic!("accepted: {target}")
        };
        assert_eq!(text(upgrade.target), target);
        assert_eq!(text(upgrade.path()), path);
    }
}

#[test]
fn the_limit_is_exact() {
    let origins = AllowedOrigins::any();
    let length = EXAMPLE.len();
    for (limit, accepted) in [(length, true), (length - 1, false), (0, false)] {
        for size in [1, 7, length] {
            let mut handshake = Handshake::new(limit);
            let mut last = None;
            for piece in EXAMPLE.as_bytes().chunks(size) {
                let mut input = piece;
                last = match handshake.next(&mut input, &origins) {
                    Handshaking::Incomplete => last,
                    Handshaking::Accepted(_) => Some(None),
                    Handshaking::Refused(fault) => Some(Some(fault)),
                    Handshaking::Foreign(_) => Some(Some(HandshakeFault::Origin)),
                };
                assert!(handshake.held_bytes() <= limit);
            }
            let fault = (!accepted).then_some(HandshakeFault::HeadTooLarge);
            assert_eq!(last, Some(fault), "{limit} {size}");
        }
    }
}

#[test]
fn a_head_that_came_whole_is_not_copied() {
    let mut handshake = Handshake::new(LIMIT);
    let mut input = EXAMPLE.as_bytes();
    let Handshaking::Accepted(upgrade) = handshake.next(&mut input, &AllowedOrigins::any()) else {
        panic!("accepted")
    };
    assert!(core::ptr::eq(
        upgrade.target.as_ptr(),
        &raw const EXAMPLE.as_bytes()[4]
    ));
    assert_eq!(handshake.held_bytes(), 0);
    assert!(size_of::<Handshake>() <= 40);
}

/// Requests much like handshakes, good and bad.
fn requests() -> impl Strategy<Value = Vec<u8>> {
    let line = prop::sample::select(vec![
        "Host: example.com\r\n",
        "Upgrade: websocket\r\n",
        "Connection: Upgrade\r\n",
        "Sec-WebSocket-Version: 13\r\n",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        "Sec-WebSocket-Protocol: sip\r\n",
        "Origin: null\r\n",
        "X: y\r\n",
        "\r\n",
        " ",
        "\t",
        "\r",
        "\n",
        ":",
        "\0",
        "GET / HTTP/1.1\r\n",
        "Content-Length: 4\r\n",
    ]);
    let alike = (prop::collection::vec(line, 0..20))
        .prop_map(|lines| format!("GET / HTTP/1.1\r\n{}", lines.concat()).into_bytes());
    let damaged = (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, byte)| {
        let mut bytes = format!("{EXAMPLE}frames").into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        bytes
    });
    prop_oneof![2 => alike, 2 => damaged, 1 => prop::collection::vec(any::<u8>(), 0..700)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_split_reads_alike(request in requests(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10)) {
        let origins = AllowedOrigins::any();
        let expected = whole_from(&request, &origins);
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(request.len() + 1)).collect();
        at.extend([0, request.len()]);
        at.sort_unstable();
        prop_assert_eq!(pieces(at.windows(2).map(|ends| &request[ends[0]..ends[1]]), &origins), expected);
    }
}
