//! The shell between a test program and its server.
//!
//! A server must end with its test program even when nothing is dropped: it is a static, or the
//! program was killed. So the server's parent is a shell that waits for orders on a pipe whose
//! other end only the test program holds. The kernel closes that however the program ends, and the
//! shell ends the server and removes its directory. (A parent-death signal would not do: it comes
//! when the *thread* that started the server ends.)

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use crate::system::{self, Owner};

/// Orders: `start`, `reap`, or a signal and the processes that get it. Each is answered by a line.
///
/// The shell ignores what a terminal, or the kernel when a process group is orphaned, may send,
/// and SIGPIPE of output that no process reads any more; its server does not.
const SCRIPT: &str = r#"
directory=$1
last=$2
shift 2
trap '' HUP INT QUIT TERM PIPE
server=
runs() {
    read -r _ _ state _ <"/proc/$server/stat" && [ "$state" != Z ]
}
while read -r order processes; do
    case $order in
    start)
        (trap - HUP INT QUIT TERM PIPE; exec "$@") </dev/null >>"$directory/log" 2>&1 &
        server=$!
        echo "$server"
        ;;
    reap)
        wait "$server"
        server=
        echo reaped
        ;;
    *)
        kill -s "$order" $processes
        echo sent
        ;;
    esac
done
if [ -n "$server" ]; then
    # More than once: it may have been so young that it did not yet know the signal.
    while runs; do
        kill -s "$last" "$server"
        kill -s CONT "$server"
        sleep 0.02
    done
    wait "$server"
fi
# A PostgreSQL that was killed has left this file, which names its shared memory: key and number.
sed -n 7p "$directory/data/postmaster.pid" | while read -r _ number; do
    ipcrm -m "$number"
done
rm -rf -- "$directory"
"#;

#[derive(Debug)]
pub(crate) struct Watchdog {
    shell: Child,
    /// `None` only while dropped.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    server: Option<u32>,
}

impl Watchdog {
    /// Over a server that `command` runs as `owner`, with `directory/log` for what it says.
    /// At the end it gets the signal `last`.
    pub(crate) fn new(
        directory: &Path,
        last: &'static str,
        owner: Option<Owner>,
        command: &[OsString],
    ) -> Self {
        let mut shell = system::command_of(owner, "/bin/sh")
            .args(["-c", SCRIPT, "watchdog"])
            .arg(directory)
            .arg(last)
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Not in the terminal's group: Control-C must not stop it before it has cleaned up.
            .process_group(0)
            .spawn()
            .expect("/bin/sh can be run");
        let answers = shell.stdout.take().expect("it is piped");
        Self {
            orders: shell.stdin.take(),
            answers: BufReader::new(answers),
            shell,
            server: None,
        }
    }

    fn order(&mut self, order: &str) -> String {
        let orders = self.orders.as_mut().expect("it is there until dropped");
        let mut answer = String::new();
        writeln!(orders, "{order}")
            .and_then(|()| self.answers.read_line(&mut answer))
            .expect("the watchdog lives");
        answer
    }

    /// Starts the server; its process.
    pub(crate) fn start(&mut self) -> u32 {
        debug_assert_eq!(self.server, None, "one at a time");
        let answer = self.order("start");
        let pid = answer.trim().parse().expect("a shell knows whom it has started");
        self.server = Some(pid);
        pid
    }

    /// The process that was started and not reaped; it may have ended.
    pub(crate) fn server(&self) -> Option<u32> {
        self.server
    }

    /// Sends a signal (its name without SIG). Processes that are gone are passed over.
    pub(crate) fn signal(&mut self, signal: &str, processes: &[u32]) {
        let mut order = signal.to_owned();
        for pid in processes {
            write!(order, " {pid}").expect("a string takes everything");
        }
        self.order(&order);
    }

    /// Waits until the server has ended, and forgets it.
    pub(crate) fn reap(&mut self) {
        if self.server.take().is_some() {
            self.order("reap");
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.orders = None;
        drop(self.shell.wait());
    }
}
