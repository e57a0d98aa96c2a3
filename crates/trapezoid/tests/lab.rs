//! What the lab starts, through the built binary: it ends however the lab ends.

use crate::common;

use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{PATIENCE, Place};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trapezoid"));
    command.args(arguments);
    command
}

fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.chars().next());
    matches!(state, Some(Some(state)) if state != 'Z' && state != 'X')
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Killed after a failed test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_child_is_bound_to_its_cpu_and_becomes_its_program() {
    let parent = std::process::id().to_string();
    let words = ["lab-child", "--parent", &parent, "--cpu", "0", "--"];
    let script = ["grep", "Cpus_allowed_list", "/proc/self/status"];
    let output = command(&[&words[..], &script[..]].concat())
        .output()
        .expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "Cpus_allowed_list:\t0\n");
    let orphan = command(&["lab-child", "--parent", "1", "--", "true"])
        .output()
        .expect("it runs");
    assert_eq!(orphan.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&orphan.stderr).contains("the lab has ended"));
}

#[test]
fn the_guard_ends_what_is_left_when_the_lab_is_gone() {
    let left = Command::new("sh")
        .args(["-c", "sleep 600 & wait"])
        .process_group(0)
        .spawn();
    let left = Killed(left.expect("a shell"));
    let mut guard = Killed(
        command(&["lab-guard"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("it runs"),
    );
    let mut orders = guard.0.stdin.take().expect("a pipe");
    writeln!(orders, "add {}", left.0.id()).expect("it reads");
    assert!(runs(left.0.id()));
    drop(orders);
    wait_until("the child ends", || !runs(left.0.id()));
    assert!(guard.0.wait().expect("it ends").success());
}

/// An experiment in its quick form, until its first run has been made.
fn running(out: &Path) -> Killed {
    let out = out.to_str().expect("a name");
    let mut lab = command(&["lab", "transport", "--quick", "--out", out])
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let stderr = lab.stderr.take().expect("a pipe");
    let lab = Killed(lab);
    let mut lines = BufReader::new(stderr);
    // What cannot be measured here may be said before.
    let mut said = String::new();
    while !said.lines().any(|line| line.starts_with("Trapezoid stateless")) {
        assert!(lines.read_line(&mut said).expect("text") > 0, "{said}");
    }
    // Its output has no reader any more: what it says must not end it.
    std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
    lab
}

fn children(of: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        parent == Some(of)
    };
    pids.filter(is_child).collect()
}

fn has_two_cpus() -> bool {
    std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2)
}

#[test]
fn a_signal_ends_everything_and_so_does_a_kill() {
    if !has_two_cpus() {
        return;
    }
    for signal in ["TERM", "INT", "KILL"] {
        let out = tempfile::tempdir().expect("a directory");
        let mut lab = running(out.path());
        let mut started = Vec::new();
        wait_until("server and guard run", || {
            started = children(lab.0.id());
            started.len() >= 2
        });
        let pid = lab.0.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &pid]).status();
        assert!(sent.expect("kill").success());
        let status = lab.0.wait().expect("it ends");
        assert_eq!(status.code(), (signal != "KILL").then_some(1), "{signal}");
        wait_until(&format!("all of {started:?} end after {signal}"), || {
            started.iter().all(|pid| !runs(*pid))
        });
        // What was measured until a signal is kept, and says so.
        let results = std::fs::read_to_string(out.path().join("results.json"));
        let is_kept = results.is_ok_and(|text| text.contains("the experiment ended early"));
        assert_eq!(is_kept, signal != "KILL", "{signal}");
    }
}

#[test]
fn the_floor_relays_and_asks_for_loopback() {
    let place = Place::claim();
    let own = place.at(0).to_string();
    let callee = UdpSocket::bind(&own).expect("a port");
    let target = callee.local_addr().expect("an address").to_string();
    let refused = command(&["lab-floor", "--listen", "0.0.0.0:0", "--target", &target]).output();
    assert_eq!(refused.expect("it runs").status.code(), Some(2));
    let mut floor = command(&["lab-floor", "--listen", &own, "--target", &target])
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut line = String::new();
    let stderr = floor.stderr.take().expect("a pipe");
    let _floor = Killed(floor);
    BufReader::new(stderr).read_line(&mut line).expect("a line");
    let at = line.trim().rsplit(' ').next().expect("an address").to_owned();
    let caller = UdpSocket::bind(&own).expect("a port");
    let mut bytes = [0; 64];
    for socket in [&caller, &callee] {
        socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
    }
    caller.send_to(b"there", &at).expect("sent");
    let (length, from) = callee.recv_from(&mut bytes).expect("relayed");
    assert_eq!(&bytes[..length], b"there");
    callee.send_to(b"back", from).expect("sent");
    let (length, _) = caller.recv_from(&mut bytes).expect("relayed");
    assert_eq!(&bytes[..length], b"back");
}

#[test]
fn wrong_command_lines_are_refused() {
    for arguments in [
        &["lab"][..],
        &["lab", "nothing"],
        &["lab", "transport", "--repeats", "0"],
        &["lab", "report"],
        &["lab", "peers", "--resume", "here", "--out", "there"],
    ] {
        let output = command(arguments).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    let output = command(&["lab", "report", "/nowhere"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
}
