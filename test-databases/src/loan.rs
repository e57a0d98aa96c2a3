//! A server that one program starts and others use: `cargo xtask test` starts one of each make for
//! all test programs, since the runner gives each test a process of its own.

use std::fmt;
use std::path::PathBuf;

/// Where a lent server is, as the value of an environment variable: `PORT DIRECTORY`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loan {
    pub(crate) port: u16,
    /// Of the server's Unix socket.
    pub(crate) directory: PathBuf,
}

impl Loan {
    /// The server that the variable names. `None`: there is no such variable.
    ///
    /// # Panics
    /// If its value is not of that form.
    pub(crate) fn of(variable: &str) -> Option<Self> {
        let value = std::env::var(variable).ok()?;
        let loan = Self::parse(&value);
        assert!(loan.is_some(), "{variable}: `{value}` is not `PORT DIRECTORY`");
        loan
    }

    fn parse(value: &str) -> Option<Self> {
        let (port, directory) = value.split_once(' ')?;
        Some(Self {
            port: port.parse().ok()?,
            directory: directory.into(),
        })
    }
}

impl fmt::Display for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.port, self.directory.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loan_is_read_as_it_is_written() {
        let loan = Loan {
            port: 20_001,
            directory: "/tmp/a b".into(),
        };
        assert_eq!(Loan::parse(&loan.to_string()), Some(loan));
        for wrong in ["", "1", "x /tmp", "70000 /tmp"] {
            assert_eq!(Loan::parse(wrong), None, "{wrong}");
        }
    }
}
