//! WebSocket through the built binary: which pages and clients get in.

use crate::common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use common::{PATIENCE, Place, Server};

/// Asks for a WebSocket with these header lines; the answer's first line.
fn upgrade(server: SocketAddr, headers: &str) -> String {
    let mut stream = TcpStream::connect(server).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {server}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{headers}\r\n"
    );
    stream.write_all(request.as_bytes()).expect("writes");
    let mut answer = Vec::new();
    while !answer.windows(2).any(|end| end == b"\r\n") {
        let mut piece = [0; 1000];
        let length = stream.read(&mut piece).expect("an answer");
        assert!(length > 0, "closed after {:?}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&piece[..length]);
    }
    let text = String::from_utf8_lossy(&answer);
    text.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn only_pages_of_the_origins_that_the_listener_names_get_in() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = Place::claim();
    let (some, any) = (place.at(5066), place.at(5067));
    let text = format!(
        "[server]\nworkers = 1\ndrain_s = 1\n[admin]\nlisten = \"off\"\n\
         [[listen]]\ntransport = \"ws\"\naddress = \"{some}\"\norigins = [\"https://phone.example.com\"]\n\
         [[listen]]\ntransport = \"ws\"\naddress = \"{any}\"\n"
    );
    std::fs::write(dir.path().join("t.toml"), text).expect("writable");
    let mut server = Server::start(dir.path());
    let ready = server.wait_for("is ready");
    assert!(ready.contains(&format!("ws {some}, ws {any}")), "{ready}");
    let sip = "Sec-WebSocket-Protocol: sip\r\n";
    let from = |origin: &str| format!("{sip}Origin: {origin}\r\n");
    let switched = "HTTP/1.1 101 Switching Protocols";
    assert_eq!(upgrade(some, &from("https://phone.example.com")), switched);
    assert_eq!(upgrade(some, sip), switched, "no browser");
    let refused = upgrade(some, &from("https://example.org"));
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    let line = server.wait_for("a WebSocket was refused");
    assert!(line.contains("origin=\"https://example.org\""), "{line}");
    assert_eq!(upgrade(any, &from("https://example.org")), switched);
    let other = upgrade(any, "Sec-WebSocket-Protocol: chat\r\n");
    assert!(other.starts_with("HTTP/1.1 400"), "RFC 7118 §4: {other}");
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
}
