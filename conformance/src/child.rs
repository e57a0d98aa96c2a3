//! A program that ends with its handle.

use std::fs::File;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A running program whose output goes to a log file; killed when dropped.
#[derive(Debug)]
pub struct Child {
    name: String,
    inner: std::process::Child,
}

impl Child {
    /// Starts it. Standard input is empty; output and errors go to `log`.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Self {
        let out = File::create(log).expect("a log file");
        let err = out.try_clone().expect("a log file");
        let inner = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: cannot start {:?}: {error}", command.get_program()));
        Self {
            name: name.to_owned(),
            inner,
        }
    }

    /// Sends a signal, named as `kill` names it.
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("sh")
            .args(["-c", &format!("kill -{signal} {}", self.inner.id())])
            .stderr(Stdio::null())
            .status();
        assert!(sent.is_ok(), "no shell to send signals with");
    }

    /// Its status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.inner.try_wait().expect("a child can be asked")
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// After `limit`.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "{} still runs after {limit:?}",
                self.name
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.inner.kill();
        let _ = self.inner.wait();
    }
}

/// Asks `ready` until it says yes.
///
/// # Panics
/// After `limit`, naming `what`.
pub(crate) fn wait_until(what: &str, limit: Duration, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !ready() {
        assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
