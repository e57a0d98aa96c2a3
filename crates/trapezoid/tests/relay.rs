//! `trapezoid relay`, through the built binary.

use crate::common;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{PATIENCE, Place};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trapezoid"));
    command
        .arg("relay")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The command while it runs; it ends with the test, also if the test fails.
struct Running {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
    stderr: BufReader<std::process::ChildStderr>,
    address: SocketAddr,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("a line");
    line
}

impl Running {
    fn start(place: &Place, target: SocketAddr, more: &[&str]) -> Self {
        let (listen, target) = (place.at(0).to_string(), target.to_string());
        let arguments = ["--listen", &listen, "--target", &target];
        let mut child = command(&[&arguments, more].concat())
            .spawn()
            .expect("the binary starts");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let ready = line(&mut stderr);
        let address = ready.strip_prefix("relaying ").and_then(|rest| {
            let (address, to) = rest.split_once(" to ")?;
            assert_eq!(to.trim_end(), target);
            address.parse().ok()
        });
        let address = address.unwrap_or_else(|| panic!("not ready: {ready}"));
        Self {
            child,
            stdout,
            stderr,
            address,
        }
    }

    /// Gives a command; what it says about it.
    fn tell(&mut self, text: &str) -> String {
        let mut stdin = self.child.stdin.as_ref().expect("a pipe");
        stdin
            .write_all(format!("{text}\n").as_bytes())
            .expect("it listens");
        line(&mut self.stderr)
    }

    fn counters(&mut self) -> serde_json::Value {
        let mut stdin = self.child.stdin.as_ref().expect("a pipe");
        stdin.write_all(b"stats\n").expect("it listens");
        serde_json::from_str(&line(&mut self.stdout)).expect("JSON")
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option");
        stream
    }

    /// Ends it with a signal; exit code and what it still wrote to standard output.
    fn end(&mut self, signal: &str) -> (Option<i32>, String) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &id]).status();
        assert!(status.expect("kill").success());
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).expect("text");
        (self.child.wait().expect("it ends").code(), rest)
    }
}

fn target(place: &Place) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(place.at(0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

fn hear(stream: &mut TcpStream, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    stream.read_exact(&mut got).expect("bytes come");
    assert_eq!(got, bytes);
}

#[test]
fn it_delays_obeys_and_counts() {
    let place = Place::claim();
    let (listener, address) = target(&place);
    let mut relay = Running::start(
        &place,
        address,
        &["--delay", "15ms", "--delay-to-client", "1ms", "--json"],
    );
    let mut client = relay.connect();
    let mut server = listener.accept().expect("a connection").0;
    let asked = Instant::now();
    client.write_all(b"question").expect("it takes bytes");
    hear(&mut server, b"question");
    assert!(asked.elapsed() >= Duration::from_millis(15));
    server.write_all(b"answer").expect("it takes bytes");
    hear(&mut client, b"answer");

    assert_eq!(relay.tell("delay 0 20ms"), "done: delay 0 20ms\n");
    let asked = Instant::now();
    server.write_all(b"later").expect("it takes bytes");
    hear(&mut client, b"later");
    assert!(asked.elapsed() >= Duration::from_millis(20));

    let wrong = "explode is no command; `help` lists them\n";
    assert_eq!(relay.tell("explode"), wrong);
    assert_eq!(relay.tell("refuse"), "done: refuse\n");
    // Perhaps before this thread knows that it was connected.
    let refused = TcpStream::connect(relay.address).and_then(|mut stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.read(&mut [0])
    });
    assert_eq!(refused.expect_err("refused").kind(), ErrorKind::ConnectionReset);
    assert_eq!(relay.tell("accept"), "done: accept\n");
    assert_eq!(relay.tell("reset"), "done: reset\n");
    let error = client.read(&mut [0]).expect_err("reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);

    let counters = relay.counters();
    let read = |name: &str| counters.pointer(name).and_then(serde_json::Value::as_u64);
    assert_eq!(read("/opened"), Some(1));
    assert_eq!(
        (read("/open"), read("/refused"), read("/reset")),
        (Some(0), Some(1), Some(1))
    );
    assert_eq!(read("/to_target/bytes"), Some(8));
    assert_eq!(read("/to_target/wire_bytes"), Some(8 + 66));
    assert_eq!(
        (read("/to_client/bytes"), read("/to_client/segments")),
        (Some(11), Some(2))
    );

    // The end of its input does not end it.
    drop(relay.child.stdin.take());
    let mut client = relay.connect();
    let mut server = listener.accept().expect("a connection").0;
    client.write_all(b"still").expect("it takes bytes");
    hear(&mut server, b"still");
    let (code, last) = relay.end("-TERM");
    assert_eq!((code, last.lines().count()), (Some(0), 1), "{last}");
    let last: serde_json::Value = serde_json::from_str(&last).expect("JSON");
    let read = |name: &str| last.pointer(name).and_then(serde_json::Value::as_u64);
    assert_eq!((read("/opened"), read("/to_target/bytes")), (Some(2), Some(13)));
}

#[test]
fn it_ends_quietly_if_the_counters_are_not_read() {
    let place = Place::claim();
    let mut relay = Running::start(&place, target(&place).1, &[]);
    assert_eq!(relay.end("-INT"), (Some(0), String::new()));
}

#[test]
fn errors_say_what_the_relay_cannot_do() {
    let refused = |arguments: &[&str]| {
        let output: Output = command(arguments).output().expect("it runs");
        let text = String::from_utf8(output.stderr).expect("text");
        (output.status.code(), text)
    };
    let place = Place::claim();
    let (_keep, taken) = target(&place);
    let taken = taken.to_string();
    let (code, text) = refused(&["--listen", "0.0.0.0:0", "--target", &taken]);
    assert_eq!(code, Some(2));
    assert!(
        text.contains("give a loopback address, or --any-address"),
        "{text}"
    );
    let (code, text) = refused(&["--listen", &taken, "--target", &taken]);
    assert_eq!(code, Some(1));
    assert!(
        text.starts_with(&format!("cannot relay from {taken}: ")),
        "{text}"
    );
    let listen = place.at(0).to_string();
    let arguments = ["--listen", &listen, "--target", &taken, "--delay", "15"];
    let (code, text) = refused(&arguments);
    assert_eq!(code, Some(2));
    assert!(text.contains("15 is no delay"), "{text}");
}
