//! One server under its watchdog, of whatever make.

use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::database::HOST;
use crate::system::{self, Owner};
use crate::template;
use crate::tls;
use crate::watchdog::Watchdog;

/// How long a server may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often to look whether it has.
const LOOK: Duration = Duration::from_millis(5);

/// Below the ports that Linux takes for outgoing connections (32768 and up), so that a server
/// that was killed gets its port again.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Another loopback address: a listener there at the number of a server's port says that the port is
/// taken, also while the server is down.
const CLAIMS: &str = "127.0.0.2";

/// What is to know of a make of servers.
pub(crate) struct Make {
    pub(crate) name: &'static str,
    /// The data directory that each starts with.
    pub(crate) template: PathBuf,
    pub(crate) owner: Option<Owner>,
    pub(crate) program: PathBuf,
    /// The program with its arguments, given the instance's directory (the data is in `data`),
    /// its port and, if it offers TLS, its certificates.
    pub(crate) command: fn(&Path, &Path, u16, Option<&tls::Files>) -> Vec<OsString>,
    pub(crate) with_tls: bool,
    /// Whether the process answers clients, given the instance's directory.
    pub(crate) ready: fn(&Path, u32) -> bool,
    /// The signal for an orderly end.
    pub(crate) orderly: &'static str,
    /// The signal for an end at once, of all its processes.
    pub(crate) at_once: &'static str,
}

#[derive(Debug)]
pub(crate) struct Instance {
    name: &'static str,
    ready: fn(&Path, u32) -> bool,
    orderly: &'static str,
    port: Port,
    tls: Option<tls::Files>,
    /// Above the directory: dropped before it.
    watchdog: Mutex<Watchdog>,
    directory: TempDir,
}

impl Instance {
    /// Starts one and waits until it answers.
    ///
    /// # Panics
    /// When it does not come up; shows its log.
    pub(crate) fn start(make: &Make) -> Self {
        for _ in 0..10 {
            let instance = Self::new(make, Port::claim());
            match instance.come_up() {
                Ok(()) => return instance,
                // Another program took the port since we looked.
                Err(log) if log.contains("ddress already in use") => {}
                Err(log) => panic!("{} does not start:\n{log}", make.name),
            }
        }
        panic!("{} finds no free port", make.name);
    }

    fn new(make: &Make, port: Port) -> Self {
        let directory = template::directory(make.name, make.owner);
        template::copy(&make.template, &directory.path().join("data"));
        let tls = make.with_tls.then(|| tls::Files::of(directory.path()));
        if let Some(files) = &tls {
            files.write(make.owner);
        }
        let command = (make.command)(&make.program, directory.path(), port.number, tls.as_ref());
        let watchdog = Watchdog::new(directory.path(), make.at_once, make.owner, &command);
        Self {
            name: make.name,
            ready: make.ready,
            orderly: make.orderly,
            port,
            tls,
            watchdog: Mutex::new(watchdog),
            directory,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.number
    }

    pub(crate) fn ca_file(&self) -> Option<&Path> {
        self.tls.as_ref().map(|files| &*files.authority)
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// What is in order as long as the pipe is: no state is left half changed by a panic.
    fn watchdog(&self) -> MutexGuard<'_, Watchdog> {
        self.watchdog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the process. The error is the log.
    fn come_up(&self) -> Result<(), String> {
        let mut watchdog = self.watchdog();
        let pid = watchdog.start();
        let deadline = Instant::now() + PATIENCE;
        while !(self.ready)(self.directory(), pid) {
            if !system::runs(pid) {
                watchdog.reap();
                return Err(self.log_tail());
            }
            if Instant::now() > deadline {
                let log = self.log_tail();
                return Err(format!("{log}\n(it has not answered for {PATIENCE:?})"));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// The end of what the server has said.
    fn log_tail(&self) -> String {
        let log = std::fs::read(self.directory().join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// The server's process.
    ///
    /// # Panics
    /// When it has been killed or shut down, or has died.
    #[track_caller]
    pub(crate) fn pid(&self) -> u32 {
        self.running(&self.watchdog())
    }

    #[track_caller]
    fn running(&self, watchdog: &Watchdog) -> u32 {
        match watchdog.server() {
            Some(pid) if system::runs(pid) => pid,
            Some(_) => panic!("{} has died:\n{}", self.name, self.log_tail()),
            None => panic!("{} is not running", self.name),
        }
    }

    /// Stops the server and its children, so that it makes no more of them; all of them.
    #[track_caller]
    fn freeze(&self, watchdog: &mut Watchdog) -> Vec<u32> {
        let pid = self.running(watchdog);
        watchdog.signal("STOP", &[pid]);
        let mut all = system::children(pid);
        watchdog.signal("STOP", &all);
        all.push(pid);
        all
    }

    #[track_caller]
    pub(crate) fn stop_answering(&self) {
        self.freeze(&mut self.watchdog());
    }

    #[track_caller]
    pub(crate) fn stop_child(&self, pid: u32) {
        let mut watchdog = self.watchdog();
        let children = system::children(self.running(&watchdog));
        assert!(children.contains(&pid), "{pid} is no process of {}", self.name);
        watchdog.signal("STOP", &[pid]);
    }

    #[track_caller]
    pub(crate) fn continue_answering(&self) {
        let mut watchdog = self.watchdog();
        let pid = self.running(&watchdog);
        let mut all = system::children(pid);
        all.push(pid);
        watchdog.signal("CONT", &all);
    }

    #[track_caller]
    pub(crate) fn kill(&self) {
        let mut watchdog = self.watchdog();
        let all = self.freeze(&mut watchdog);
        watchdog.signal("KILL", &all);
        self.wait_for_end(&mut watchdog, &all);
    }

    #[track_caller]
    pub(crate) fn shut_down(&self) {
        let mut watchdog = self.watchdog();
        let pid = self.running(&watchdog);
        let mut all = system::children(pid);
        all.push(pid);
        watchdog.signal("CONT", &all);
        watchdog.signal(self.orderly, &[pid]);
        self.wait_for_end(&mut watchdog, &all);
    }

    #[track_caller]
    fn wait_for_end(&self, watchdog: &mut Watchdog, processes: &[u32]) {
        let deadline = Instant::now() + PATIENCE;
        while processes.iter().any(|pid| system::runs(*pid)) {
            let late = Instant::now() > deadline;
            assert!(!late, "{} does not end:\n{}", self.name, self.log_tail());
            std::thread::sleep(LOOK);
        }
        watchdog.reap();
    }

    #[track_caller]
    pub(crate) fn restart(&self) {
        if self.watchdog().server().is_some() {
            self.shut_down();
        }
        if let Err(log) = self.come_up() {
            panic!("{} does not start again:\n{log}", self.name);
        }
    }
}

/// A port of [`HOST`] that is one server's as long as this lives.
#[derive(Debug)]
struct Port {
    number: u16,
    _claim: TcpListener,
}

impl Port {
    /// Claims one on which no program listens now.
    fn claim() -> Self {
        let random = || RandomState::new().build_hasher().finish();
        let span = u64::from(PORTS.end - PORTS.start);
        (0..1000)
            .map(|_| PORTS.start + u16::try_from(random() % span).expect("it is below a port's limit"))
            .find_map(|number| {
                let claim = TcpListener::bind((CLAIMS, number)).ok()?;
                TcpListener::bind((HOST, number)).ok()?;
                Some(Self {
                    number,
                    _claim: claim,
                })
            })
            .expect("one of a thousand ports is free")
    }
}
