//! `trapezoid serve`.

use super::{ConfigOption, Failure, configuration};
use crate::{machine, serve};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigOption,
}

/// Serves until a signal ends it.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    serve::run(configuration(args.config.config.as_deref(), &machine::read()?)?)
}
