//! The command line: one file for each command.
//!
//! Data goes to standard output, messages to standard error.

mod bans;
mod check;
mod completions;
mod duration;
mod groups;
mod http;
mod lab;
mod load;
mod plan;
mod registrations;
mod relay;
mod running;
mod schema;
mod serve;
pub(crate) mod user;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use settings::{Loaded, Machine, load};

/// A SIP server: proxy and registrar.
#[derive(Debug, Parser)]
#[command(name = "trapezoid", version, about, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server. SIGHUP reloads the configuration, SIGTERM drains and ends.
    Serve(serve::Args),
    /// Read a configuration file and tell what is wrong with it.
    Check(check::Args),
    /// Add, change, list and delete subscribers.
    User(user::Args),
    /// List, make and lift bans of the running server.
    Bans(bans::Args),
    /// List the groups of next hops of the running server, drain and enable their members.
    Groups(groups::Args),
    /// List the registrations of the running server, show and remove them.
    Registrations(Box<registrations::Args>),
    /// Work out from measurements what a load needs.
    Plan(plan::Args),
    /// Offer calls, registrations, OPTIONS or messages to a server, and tell what comes of them.
    Load(Box<load::Args>),
    /// Relay TCP connections with a delay, and stall, swallow and cut them on command, for tests.
    Relay(relay::Args),
    /// Run the experiments of the papers on this machine, and report.
    Lab(lab::Args),
    #[command(hide = true)]
    LabChild(lab::ChildArgs),
    #[command(hide = true)]
    LabCrowd(lab::CrowdArgs),
    #[command(hide = true)]
    LabGuard,
    #[command(hide = true)]
    LabFloor(lab::FloorArgs),
    /// Print the JSON Schema of the configuration file.
    ConfigSchema,
    /// Print the completion script of a shell.
    Completions(completions::Args),
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The attempt failed: exit code 1.
    Failed(String),
    /// The command line or the configuration is wrong: exit code 2.
    Usage(String),
}

impl Failure {
    /// Exit code 1, with the attempted action and its error.
    pub(crate) fn failed(what: &str, cause: impl std::fmt::Display) -> Self {
        Self::Failed(format!("{what}: {cause}"))
    }
}

/// Reads the command line and runs the command.
pub(crate) fn run() -> ExitCode {
    // A wrong command line ends the process here, with exit code 2.
    let cli = Cli::parse();
    let done = match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Check(args) => check::run(&args),
        Command::User(args) => user::run(&args),
        Command::Bans(args) => bans::run(&args),
        Command::Groups(args) => groups::run(&args),
        Command::Registrations(args) => registrations::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Relay(args) => relay::run(&args),
        Command::Lab(args) => lab::run(&args),
        Command::LabChild(args) => lab::child(&args),
        Command::LabCrowd(args) => lab::crowd(&args),
        Command::LabGuard => lab::watch(),
        Command::LabFloor(args) => lab::floor(&args),
        Command::ConfigSchema => schema::run(),
        Command::Completions(args) => completions::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Failed(text)) => {
            say_why(&text);
            ExitCode::from(1)
        }
        Err(Failure::Usage(text)) => {
            say_why(&text);
            ExitCode::from(2)
        }
    }
}

/// Reads the configuration; an error in it is a usage failure.
pub(crate) fn configuration(file: Option<&Path>, machine: &Machine) -> Result<Loaded, Failure> {
    load(file, machine).map_err(|problems| Failure::Usage(problems.to_string()))
}

/// The `--config` option of commands that can do without a file.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ConfigOption {
    /// Configuration file; without it the built-in configuration holds, with its files in ./data.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub config: Option<PathBuf>,
}

/// Prints why a command failed; an empty text was printed already.
fn say_why(text: &str) {
    if !text.is_empty() {
        say(text);
    }
}

/// Prints a line on standard error. If standard error is closed, that is no failure, because no other place
/// is left.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Prints data. A reader that has gone away (`| head`) is no failure of ours.
pub(crate) fn print(data: &str) -> Result<(), Failure> {
    print_part(data).map(|_| ())
}

/// Prints a part of the data. Returns whether there is still a reader.
pub(crate) fn print_part(data: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(data.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::failed("cannot write to standard output", error)),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
