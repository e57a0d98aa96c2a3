//! A running server, and what is asked of it.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Longest that anything here may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) use test_address::Place;

/// Exit code, standard output and standard error of `trapezoid …` in a directory.
#[track_caller]
pub(crate) fn run(dir: &Path, arguments: &[&str], input: &str) -> (i32, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_trapezoid"))
        .args(arguments)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // A command that fails early does not read its input.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (
        output.status.code().expect("no signal"),
        text(output.stdout),
        text(output.stderr),
    )
}

pub(crate) struct Server {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Server {
    #[track_caller]
    pub(crate) fn start(dir: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_trapezoid"))
            .args(["serve", "--config", "t.toml"])
            .current_dir(dir)
            .env("NO_COLOR", "1")
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let (sender, lines) = channel();
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        std::thread::spawn(move || {
            stderr
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Self {
            child,
            lines,
            seen: Vec::new(),
        }
    }

    /// Waits for a line of the log with this text in it.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => self.seen.push(line),
                Err(_) => panic!("no {text:?} after:\n{}", self.seen.join("\n")),
            }
        }
    }

    /// Every line that it has written and that was not waited for; it has ended.
    pub(crate) fn all_lines(&mut self) -> Vec<String> {
        self.seen.extend(self.lines.iter());
        std::mem::take(&mut self.seen)
    }

    #[track_caller]
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status();
        assert!(status.expect("kill").success());
    }

    #[track_caller]
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it does not end");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After a failed test it still runs; otherwise there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn get(address: SocketAddr, path: &str) -> (u16, String) {
    ask(address, &format!("GET {path}"), "")
}

/// Sends a request with these header lines.
#[track_caller]
pub(crate) fn ask(address: SocketAddr, what: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("connects");
    write!(
        stream,
        "{what} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n"
    )
    .expect("writes");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
    (
        head.get(9..12)
            .and_then(|code| code.parse().ok())
            .expect("a status"),
        body.to_owned(),
    )
}

/// Runs `trapezoid check`; exit code and what it says.
#[track_caller]
pub(crate) fn check(dir: &Path, file: &str) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_trapezoid"))
        .args(["check", "--config", file])
        .current_dir(dir)
        .output()
        .expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().expect("no signal"), said)
}

/// A name server that knows no name. It ends with its first error: with the test.
#[track_caller]
pub(crate) fn empty_name_server() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("binds");
    let address = socket.local_addr().expect("an address");
    std::thread::spawn(move || {
        let mut message = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut message) {
            // A response, recursion available, NXDOMAIN (RFC 1035 §4.1.1).
            message[2] |= 0x80;
            message[3] = 0x83;
            if socket.send_to(&message[..length], from).is_err() {
                break;
            }
        }
    });
    address
}
