//! A server ends with its test program, however that ends.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use test_databases::{MariaDb, PostgreSql, Server};

/// What the test program that is run by these tests shall do.
const ROLE: &str = "TEST_DATABASES_ROLE";

/// The test program that the others run: this very one. By itself this test does nothing.
#[test]
fn program() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let (make, end) = role.split_once(' ').unwrap();
    // By a thread that ends, as those of tests do.
    let start = || -> &'static Server {
        match make {
            "mariadb" => MariaDb::shared(),
            _ => PostgreSql::shared(),
        }
    };
    let server = std::thread::scope(|scope| scope.spawn(start).join().unwrap());
    server.fresh_database();
    if end == "stopped" {
        server.stop_answering();
    }
    writeln!(std::io::stderr(), "server {}", server.pid()).unwrap();
    // Until told to go on.
    std::io::stdin().read_exact(&mut [0; 1]).unwrap();
    match end {
        "exit" => std::process::exit(0),
        "abort" => std::process::abort(),
        _ => unreachable!("killed while it waits"),
    }
}

/// Runs it and waits until its server is up; the server's process.
fn run(role: &str) -> (Child, u32) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "orphans::program", "--nocapture"])
        .env(ROLE, role)
        // Its own servers, not those that all test programs share.
        .env_remove(MariaDb::VARIABLE)
        .env_remove(PostgreSql::VARIABLE)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let pid = lines.find_map(|line| line.unwrap().strip_prefix("server ")?.parse().ok());
    (child, pid.expect("it tells its server"))
}

fn processes_in(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .filter(|process| std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(directory)))
        .collect()
}

fn ends_with_its_program(make: &str) {
    // Side by side: mostly they wait for each other's programs.
    std::thread::scope(|scope| {
        for end in ["exit", "abort", "killed", "stopped"] {
            scope.spawn(move || ends_at(make, end));
        }
    });
}

fn ends_at(make: &str, end: &str) {
    let (mut program, server) = run(&format!("{make} {end}"));
    // Servers work in their data directory.
    let data = std::fs::read_link(format!("/proc/{server}/cwd")).unwrap();
    let directory = data.parent().unwrap();
    assert!(directory.join("log").exists(), "{}", directory.display());
    assert!(!processes_in(directory).is_empty());
    match end {
        "exit" | "abort" => program.stdin.take().unwrap().write_all(b"\n").unwrap(),
        _ => program.kill().unwrap(),
    }
    program.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while directory.exists() || !processes_in(directory).is_empty() {
        let late = Instant::now() > deadline;
        assert!(!late, "{make} {end}: {:?} live on", processes_in(directory));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn mariadb_ends_with_its_program() {
    ends_with_its_program("mariadb");
}

#[test]
fn postgresql_ends_with_its_program() {
    ends_with_its_program("postgresql");
}
