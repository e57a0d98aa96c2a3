//! `trapezoid completions SHELL`.

use clap::CommandFactory;

use super::{Cli, Failure, print};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Shell that the script is for.
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// Prints the script.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "trapezoid", &mut script);
    print(&String::from_utf8_lossy(&script))
}
