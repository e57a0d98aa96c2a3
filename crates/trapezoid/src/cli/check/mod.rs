//! `trapezoid check --config FILE`.

mod connect;

use std::path::PathBuf;

use super::{Failure, configuration, say};
use crate::machine;
use crate::serve::data_dir;
use crate::serve::tls::TlsFiles;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Configuration file.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    config: PathBuf,
    /// Try the database, name service and next hops, too: read one row, ask by OPTIONS, connect.
    #[arg(long)]
    connect: bool,
}

/// A number of things, in words.
fn counted(count: usize, thing: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{ending}")
}

/// Prints the errors of the configuration, or that there are none.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let loaded = configuration(Some(&args.config), &machine::read()?)?;
    let (_, findings) = TlsFiles::load(&loaded.shell);
    if !findings.errors.is_empty() {
        return Err(Failure::Usage(findings.errors.join("\n")));
    }
    let exposed = data_dir::exposed(&loaded.shell.data_dir);
    for warning in loaded.warnings.iter().chain(&findings.warnings).chain(&exposed) {
        say(&format!("warning: {warning}"));
    }
    let core = &loaded.core;
    say(&format!(
        "{}: valid; {}, {}, {}, {}",
        args.config.display(),
        counted(core.listeners.len(), "listener"),
        counted(core.domains.len(), "domain"),
        counted(core.routes.len(), "route"),
        counted(core.groups.len(), "group")
    ));
    match args.connect {
        true => connect::run(&loaded),
        false => Ok(()),
    }
}
