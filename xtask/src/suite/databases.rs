//! The database servers that all test programs share, kept by the program `test-databases`.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Servers that run as long as this value lives.
#[derive(Debug)]
pub(super) struct Databases {
    keeper: Child,
    /// What test programs need in their environment to use them.
    pub(super) variables: Vec<(String, String)>,
}

impl Databases {
    pub(super) fn start(program: &Path, environment: &[(String, String)]) -> Result<Self, String> {
        let of_program = |error: &dyn std::fmt::Display| format!("{}: {error}", program.display());
        let mut keeper = Command::new(program)
            .envs(environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| of_program(&error))?;
        let out = keeper.stdout.take().ok_or_else(|| of_program(&"no output"))?;
        let mut databases = Self {
            keeper,
            variables: Vec::new(),
        };
        for line in BufReader::new(out).lines() {
            let line = line.map_err(|error| of_program(&error))?;
            match line.split_once('=') {
                Some((name, value)) => databases.variables.push((name.to_owned(), value.to_owned())),
                None => return Ok(databases),
            }
        }
        Err(of_program(&"ended before its servers were up"))
    }
}

impl Drop for Databases {
    /// The keeper ends its servers when its input ends.
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}
