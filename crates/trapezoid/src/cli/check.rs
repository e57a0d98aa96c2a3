//! `trapezoid check --config FILE`.

use std::path::PathBuf;

use super::{Failure, configuration, say};
use crate::machine;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Configuration file.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    config: PathBuf,
}

/// Says what is wrong, or that nothing is.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let loaded = configuration(Some(&args.config), &machine::read()?)?;
    for warning in &loaded.warnings {
        say(&format!("warning: {warning}"));
    }
    let core = &loaded.core;
    say(&format!(
        "{}: valid; {} listeners, {} domains, {} routes, {} groups",
        args.config.display(),
        core.listeners.len(),
        core.domains.len(),
        core.routes.len(),
        core.groups.len()
    ));
    Ok(())
}
