//! SIPp as caller and callee: our own scenarios, its exit code and its statistics.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use crate::child::{Child, wait_until, wait_within};
use crate::{STARTING, Scene, Transport, tool};

/// SIPp's own time-out, for what is stuck; it then counts its open calls as failed and exits with an
/// error.
const TIMEOUT_S: u64 = 120;
/// How long after that it may take to end.
const GRACE: Duration = Duration::from_secs(20);

/// What SIPp asks of the system for the buffers of its sockets: what comes while it does not run finds
/// room there.
const BUFFER_BYTES: &str = "1000000";

/// One SIPp to be started.
#[derive(Debug, Clone)]
pub struct Sipp<'a> {
    scene: &'a Scene,
    scenario: &'static str,
    transport: Transport,
    ip: IpAddr,
    port: u16,
    remote: Option<SocketAddr>,
    calls: u32,
    rate: u32,
    lost_percent: u8,
    bounded: bool,
    connection_per_call: bool,
    values: BTreeMap<&'static str, String>,
}

impl<'a> Sipp<'a> {
    /// A caller (or registering phone): `port` is its own, `remote` the server.
    pub fn client(
        scene: &'a Scene,
        scenario: &'static str,
        transport: Transport,
        port: u16,
        remote: SocketAddr,
    ) -> Self {
        Self {
            remote: Some(remote),
            ..Self::server(scene, scenario, transport, port)
        }
    }

    /// A callee.
    pub fn server(scene: &'a Scene, scenario: &'static str, transport: Transport, port: u16) -> Self {
        let values = [
            ("uri", "sip:bob@example.com".to_owned()),
            ("from", "sip:alice@example.com".to_owned()),
            ("to", "sip:bob@example.com".to_owned()),
            ("user", "alice".to_owned()),
            ("password", "wonderland".to_owned()),
            ("registrar", "sip:example.com".to_owned()),
            ("contact", String::new()),
            ("extra", String::new()),
            ("max_forwards", "70".to_owned()),
            ("check", String::new()),
            ("hold_ms", "0".to_owned()),
            ("linger_ms", "0".to_owned()),
            ("or_code", "699".to_owned()),
            ("cseq", "1".to_owned()),
            ("cseq_again", "2".to_owned()),
            // Longer than RFC 3261's T1: on a busy machine nothing is sent again that was not lost.
            ("retrans", "2000".to_owned()),
            ("rport", String::new()),
            ("end", "hangs_up".to_owned()),
        ];
        Self {
            scene,
            scenario,
            transport,
            ip: scene.ip(),
            port,
            remote: None,
            calls: 1,
            rate: 50,
            lost_percent: 0,
            bounded: true,
            connection_per_call: false,
            values: values.into_iter().collect(),
        }
    }

    /// At another address than the scene's.
    pub fn at(mut self, ip: IpAddr) -> Self {
        self.ip = ip;
        self
    }

    /// Fills in a word of the scenario. A line that holds only that word goes away where the
    /// value is empty.
    pub fn set(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.values.insert(name, value.into());
        self
    }

    /// Adds an action on the answer (or, for a callee, on the INVITE): `header` must match the
    /// extended regular expression.
    pub fn expect_header(self, header: &str, pattern: &str) -> Self {
        self.action(header, pattern, "check_it=\"true\"")
    }

    /// The opposite.
    pub fn refuse_header(self, header: &str, pattern: &str) -> Self {
        self.action(header, pattern, "check_it_inverse=\"true\"")
    }

    fn action(mut self, header: &str, pattern: &str, check: &str) -> Self {
        let so_far = self.values.remove("check").unwrap_or_default();
        let variable = format!("found{}", so_far.matches("<ereg").count());
        let pattern = pattern
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('"', "&quot;");
        let action = format!(
            "{so_far}<ereg regexp=\"{pattern}\" search_in=\"hdr\" header=\"{header}:\" {check} \
             assign_to=\"{variable}\"/><log message=\"{header} [${variable}]\"/>"
        );
        self.values.insert("check", action);
        self
    }

    /// How many calls (1), and how many of them a second (50).
    pub fn calls(mut self, calls: u32, rate: u32) -> Self {
        (self.calls, self.rate) = (calls, rate);
        self
    }

    /// SIPp loses this share of what it sends and receives, itself.
    pub fn lost_percent(mut self, percent: u8) -> Self {
        self.lost_percent = percent;
        self
    }

    /// A caller opens a connection for each call, not one for all.
    pub fn connection_per_call(mut self) -> Self {
        self.connection_per_call = true;
        self
    }

    /// Runs until [`Running::stop`].
    pub fn unbounded(mut self) -> Self {
        self.bounded = false;
        self
    }

    /// Starts it; `None` where SIPp is missing and may be. A callee listens when this returns.
    #[track_caller]
    pub fn start(self) -> Option<Running> {
        static CONTROL: AtomicU16 = AtomicU16::new(20_000);
        let sipp = tool("sipp")?;
        let number = CONTROL.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{}", self.scenario, number - 20_000);
        let file = |suffix: &str| self.scene.path(&format!("{name}.{suffix}"));
        std::fs::write(file("xml"), self.render()).expect("writing the scenario");
        let ip = self.ip.to_string();
        let mut command = Command::new(sipp);
        command.current_dir(self.scene.dir()).arg("-sf").arg(file("xml"));
        command.args(["-i", &ip, "-mi", &ip, "-ci", &ip, "-bind_local", "-nostdin"]);
        command.args(["-p", &self.port.to_string(), "-cp", &number.to_string()]);
        command.args(["-t", self.sockets()]);
        command.args(["-trace_stat", "-fd", "1", "-stf"]).arg(file("csv"));
        command
            .args(["-trace_err", "-error_file"])
            .arg(file("errors.log"));
        command
            .args(["-trace_msg", "-message_file"])
            .arg(file("messages.log"));
        command
            .args(["-trace_logs", "-log_file"])
            .arg(file("actions.log"));
        command.args([
            "-timeout",
            &TIMEOUT_S.to_string(),
            "-timeout_error",
            "-skip_rlimit",
        ]);
        // SIPp's own choice is its peer's address; RFC 7616 §3.4.6 wants the Request-URI.
        command.args(["-auth_uri", self.auth_uri()]);
        command.args(["-buff_size", BUFFER_BYTES]);
        if self.bounded {
            command.args(["-m", &self.calls.to_string()]);
        }
        if self.lost_percent > 0 {
            command.args(["-lost", &self.lost_percent.to_string()]);
            // SIPp's own choice of 5 is too few where one of five is lost on its way.
            command.args(["-max_retrans", "20", "-max_invite_retrans", "9"]);
            command.args(["-max_non_invite_retrans", "20"]);
            // A copy may come between any two steps; it is sent again, and then there is a step for it.
            command.args(["-default_behaviors", "all,-abortunexp"]);
        }
        if let Some(remote) = self.remote {
            command.args(["-r", &self.rate.to_string(), &remote.to_string()]);
        }
        let mut child = Child::start(&name, &mut command, &file("screen.log"));
        if self.remote.is_none() {
            let local = SocketAddr::new(self.ip, self.port);
            wait_within(&format!("{name} listens"), STARTING, || {
                assert!(child.ended().is_none(), "{name} ended at its start");
                is_bound(local, self.transport)
            });
        }
        Some(Running {
            child,
            name: name.clone(),
            stats: file("csv"),
            messages: file("messages.log"),
        })
    }

    /// What digest credentials name; SIPp puts `sip:` before it.
    fn auth_uri(&self) -> &str {
        let register = self.scenario.starts_with("register");
        let uri = &self.values[if register { "registrar" } else { "uri" }];
        uri.trim_start_matches("sip:")
    }

    /// SIPp's word for its transport and its sockets.
    #[track_caller]
    fn sockets(&self) -> &'static str {
        match (self.transport, self.connection_per_call) {
            (Transport::Udp, false) => "u1",
            (Transport::Udp, true) => "un",
            (Transport::Tcp, false) => "t1",
            (Transport::Tcp, true) => "tn",
            (Transport::Tls | Transport::Ws | Transport::Wss, _) => {
                panic!("Debian's SIPp speaks UDP and TCP")
            }
        }
    }

    #[track_caller]
    fn render(&self) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("sipp")
            .join(format!("{}.xml", self.scenario));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut out = String::new();
        for line in text.lines() {
            let mut filled = line.to_owned();
            for (name, value) in &self.values {
                filled = filled.replace(&format!("{{{{{name}}}}}"), value);
            }
            if line.trim().is_empty() || !filled.trim().is_empty() {
                out.push_str(&filled);
                out.push('\n');
            }
        }
        out
    }
}

/// Whether a socket is bound to this address, and for connections listens there, as the kernel has it in the network of
/// this thread: to bind one by way of trial would keep SIPp from it.
#[track_caller]
fn is_bound(address: SocketAddr, transport: Transport) -> bool {
    let std::net::IpAddr::V4(ip) = address.ip() else {
        panic!("SIPp runs at an IPv4 address");
    };
    let (table, state) = match transport {
        Transport::Udp => ("/proc/thread-self/net/udp", None),
        Transport::Tcp | Transport::Tls | Transport::Ws | Transport::Wss => {
            ("/proc/thread-self/net/tcp", Some("0A"))
        }
    };
    let text = std::fs::read_to_string(table).unwrap_or_default();
    // The address as the kernel has it in memory.
    let wanted = format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port());
    text.lines().skip(1).any(|line| {
        // Number, local address, remote address, state.
        let mut words = line.split_whitespace().skip(1);
        words.next() == Some(wanted.as_str()) && (state.is_none() || words.nth(1) == state)
    })
}

/// A SIPp that runs.
#[derive(Debug)]
pub struct Running {
    child: Child,
    name: String,
    stats: PathBuf,
    messages: PathBuf,
}

impl Running {
    /// Waits for its end: exit code 0, no failed call, no message that the scenario does not know.
    #[track_caller]
    pub fn finish(self) -> Stats {
        let name = self.name.clone();
        let (code, stats) = self.end();
        assert_eq!(code, Some(0), "{name}: exit code, with {stats:?}");
        assert_eq!(stats.failed(), 0, "{name}: failed calls, of {stats:?}");
        stats
    }

    /// The same, and so many calls went through the whole scenario.
    #[track_caller]
    pub fn succeed(self, calls: u32) -> Stats {
        let name = self.name.clone();
        let stats = self.finish();
        assert_eq!(stats.successful(), u64::from(calls), "{name}: {stats:?}");
        stats
    }

    /// The same, and no INVITE came as new twice: each call had one, and copies of it the same branch.
    #[track_caller]
    pub fn succeed_with_one_invite_each(self, calls: u32) -> Stats {
        let (name, messages) = (self.name.clone(), self.messages.clone());
        let stats = self.succeed(calls);
        assert_eq!(stats.incoming(), u64::from(calls), "{name}: {stats:?}");
        let branches = invites_in(&messages);
        assert_eq!(branches.len(), calls as usize, "{name}: {branches:?}");
        assert!(
            branches.values().all(|b| b.len() == 1),
            "{name}: an INVITE came twice: {branches:?}"
        );
        stats
    }

    /// Waits for its end, whatever it is.
    pub fn end(mut self) -> (Option<i32>, Stats) {
        let status = self.child.wait(Duration::from_secs(TIMEOUT_S) + GRACE);
        (status.code(), Stats::read(&self.stats))
    }

    /// Ends it once it has counted so many calls that came in, whatever calls are open: none has failed so far.
    #[track_caller]
    pub fn stop(self, calls: u32) -> Stats {
        let mut stats = Stats::default();
        // Statistics are written once a second.
        wait_until(&format!("{} counts {calls} calls", self.name), || {
            stats = Stats::read(&self.stats);
            stats
                .0
                .get("IncomingCall")
                .is_some_and(|n| *n >= u64::from(calls))
        });
        assert_eq!(stats.failed(), 0, "{}: failed calls, of {stats:?}", self.name);
        stats
    }

    /// Call-IDs of the INVITEs that it received, each with the branches that they came with.
    pub fn invites_received(&self) -> BTreeMap<String, BTreeSet<String>> {
        invites_in(&self.messages)
    }
}

/// [`Running::invites_received`], from its log of messages.
fn invites_in(messages: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let log = String::from_utf8_lossy(&std::fs::read(messages).unwrap_or_default()).into_owned();
    let mut calls: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for message in log.split("message received").skip(1) {
        let message = message.split("message sent").next().unwrap_or_default();
        let Some(start) = message.find("INVITE sip:") else {
            continue;
        };
        if message[..start].contains("SIP/2.0") {
            continue;
        }
        let header = |name: &str| {
            let line = message.lines().find(|l| l.to_ascii_lowercase().starts_with(name));
            line.and_then(|l| l.split_once(':'))
                .map(|(_, v)| v.trim().to_owned())
                .unwrap_or_default()
        };
        let branch = header("via:")
            .split(";branch=")
            .nth(1)
            .unwrap_or_default()
            .to_owned();
        let branch = branch.split([';', ',']).next().unwrap_or_default().to_owned();
        calls.entry(header("call-id:")).or_default().insert(branch);
    }
    calls
}

/// The last row of SIPp's statistics: totals by column name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats(BTreeMap<String, u64>);

impl Stats {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        // While SIPp runs the last row may be half written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let mut rows = whole.lines();
        let names = rows.next().unwrap_or_default().split(';');
        let values = rows.next_back().unwrap_or_default().split(';');
        let totals = names.zip(values).filter(|(name, _)| name.ends_with("(C)"));
        Self(
            totals
                .filter_map(|(n, v)| Some((n.trim_end_matches("(C)").to_owned(), v.parse().ok()?)))
                .collect(),
        )
    }

    #[track_caller]
    fn total(&self, name: &str) -> u64 {
        *self
            .0
            .get(name)
            .unwrap_or_else(|| panic!("SIPp's statistics have no column {name}: {self:?}"))
    }

    /// Calls that went through the whole scenario.
    pub fn successful(&self) -> u64 {
        self.total("SuccessfulCall")
    }

    /// Calls that did not.
    pub fn failed(&self) -> u64 {
        self.total("FailedCall")
    }

    /// Calls that came in.
    pub fn incoming(&self) -> u64 {
        self.total("IncomingCall")
    }

    /// Messages sent again.
    pub fn retransmissions(&self) -> u64 {
        self.total("Retransmissions")
    }
}
