//! Instructions per parse, per parse with values, per forwarded message: exact and repeatable,
//! whatever else the machine does. Needs valgrind.
//!
//! `cargo run --release -p sip-message --example instructions`
//!
//! Runs itself under callgrind with two iteration counts for each case; the difference is free of
//! everything that happens once.
#![expect(clippy::print_stdout, reason = "a command-line tool")]

#[path = "../benches/forward/mod.rs"]
mod forward;

use std::hint::black_box;
use std::process::{Command, ExitCode};

use sip_message::HeaderIndex;
use sip_message::write::Edits;

const CASES: [&str; 3] = ["parse", "parse+values", "parse+values+forward"];
const FEW: u64 = 100;
const MANY: u64 = 1_100;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if let (Some(case), Some(count)) = (arguments.next(), arguments.next()) {
        run(&case, count.parse().unwrap_or(1));
        return ExitCode::SUCCESS;
    }
    println!("{} bytes", forward::INVITE.len());
    for case in CASES {
        match (collected(case, FEW), collected(case, MANY)) {
            (Some(few), Some(many)) => {
                println!("{case:22} {:6} instructions", (many - few) / (MANY - FEW));
            }
            _ => {
                println!("{case:22} skipped: valgrind could not be run");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn run(case: &str, count: u64) {
    let mut memory = HeaderIndex::new();
    let (mut edits, mut out) = (Edits::new(), Vec::new());
    for _ in 0..count {
        let message = forward::index(black_box(forward::INVITE), &mut memory);
        if case != CASES[0] {
            black_box(forward::read_values(&message));
        }
        if case == CASES[2] {
            forward::forward(&message, &mut edits, &mut out);
            black_box(out.len());
        }
        black_box(message.end_offset());
    }
}

/// Instructions of a whole run, as callgrind counts them.
fn collected(case: &str, count: u64) -> Option<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().ok()?)
        .args([case, &count.to_string()])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = text.lines().find(|l| l.contains("Collected :"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}
