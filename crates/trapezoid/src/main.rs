//! Trapezoid, a SIP server: the program.

mod abuse;
mod admin;
mod cli;
mod cpu;
mod groups;
mod logs;
mod machine;
mod registrations;
mod serve;

use std::process::ExitCode;

// The address sanitizer watches only the system's allocator.
#[cfg(not(feature = "system-allocator"))]
#[global_allocator]
static ALLOCATOR: sip_net::memory::Allocator = sip_net::memory::Allocator;

fn main() -> ExitCode {
    cli::run()
}
