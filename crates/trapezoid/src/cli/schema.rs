//! `trapezoid config-schema`.

use super::{Failure, print};

/// Prints the schema, for editors that complete and check TOML files.
pub(crate) fn run() -> Result<(), Failure> {
    print(&format!("{:#}\n", settings::schema()))
}
