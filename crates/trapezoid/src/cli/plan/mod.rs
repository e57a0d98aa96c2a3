//! `trapezoid plan …`: the models, on the command line.

mod auth;
mod metrics;
mod units;

use clap::Subcommand;

use super::Failure;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Connections to a credential database, and batches on each, for a rate of authenticated requests.
    Auth(auth::Args),
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.what {
        What::Auth(args) => auth::run(args),
    }
}
