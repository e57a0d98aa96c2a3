//! Starts one server of each make that is installed, and lends them: prints a line `VARIABLE=VALUE`
//! for each, then an empty one, and ends them when its standard input ends.

use std::io::{Read as _, Write as _};

use test_databases::{MariaDb, PostgreSql};

fn main() {
    let maria = MariaDb::is_installed().then(MariaDb::start);
    let postgres = PostgreSql::is_installed().then(PostgreSql::start);
    let mut lines = String::new();
    for (variable, loan) in [
        (MariaDb::VARIABLE, maria.as_ref().map(|server| server.loan())),
        (
            PostgreSql::VARIABLE,
            postgres.as_ref().map(|server| server.loan()),
        ),
    ] {
        lines.extend(loan.map(|loan| format!("{variable}={loan}\n")));
    }
    lines.push('\n');
    let mut out = std::io::stdout();
    // A borrower that has gone needs no servers.
    if out.write_all(lines.as_bytes()).and_then(|()| out.flush()).is_ok() {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
    }
}
