//! Trapezoid, a SIP server: the program.

mod admin;
mod cli;
mod groups;
mod logs;
mod machine;
mod serve;
mod settings;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run()
}
