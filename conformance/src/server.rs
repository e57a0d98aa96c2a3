//! The server under test: its configuration, its users, its life.

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::child::{Child, wait_until, wait_within};
use crate::{Identity, PATIENCE, STARTING, Scene, Transport, port};

/// The domain that the server serves in every test.
pub const DOMAIN: &str = "example.com";

/// The configuration file in a scene's directory.
const CONFIGURATION: &str = "trapezoid.toml";

/// Between two looks at what it counts.
const LOOK: Duration = Duration::from_millis(20);

/// How long a connection to the admin address may take to open.
const CONNECT: Duration = Duration::from_secs(10);

/// A configuration file in the making: one domain without authentication, bindings and
/// subscribers in SQLite, UDP and TCP on the scene's address.
#[derive(Debug, Clone)]
pub struct Config {
    domain: &'static str,
    state: &'static str,
    methods: Vec<&'static str>,
    auth: String,
    subscribers: String,
    location: String,
    workers: u16,
    users: Vec<(String, String)>,
    rest: String,
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}

impl Config {
    /// `state.mode = "transaction"`, nothing asks for credentials, two workers, no route.
    pub fn new() -> Self {
        Self {
            domain: DOMAIN,
            state: "transaction",
            methods: vec![],
            auth: String::new(),
            subscribers: "url = \"sqlite:subscribers.db\"".to_owned(),
            location: "location.db".to_owned(),
            workers: 2,
            users: vec![],
            rest: String::new(),
        }
    }

    /// An edge before the registrar of [`DOMAIN`]: it serves no user itself.
    pub fn edge_before(registrar: SocketAddr) -> Self {
        let mut config = Self::new();
        config.domain = "edge.example.net";
        let to = format!("do = {{ relay = \"sip:{registrar}\" }}");
        config
            .route(&format!(
                "when = {{ method = [\"REGISTER\"], domain = \"{DOMAIN}\" }}\n{to}"
            ))
            .route(&format!("when = {{ domain = \"{DOMAIN}\" }}\n{to}\nauth = false"))
    }

    /// How many workers.
    pub fn workers(mut self, workers: u16) -> Self {
        self.workers = workers;
        self
    }

    /// Relays without state.
    pub fn stateless(mut self) -> Self {
        self.state = "stateless";
        self
    }

    /// Methods that need credentials.
    pub fn auth(mut self, methods: &[&'static str]) -> Self {
        self.methods = methods.to_vec();
        self
    }

    /// Further keys of the table `[domain.auth]` of [`DOMAIN`].
    pub fn auth_keys(mut self, keys: &str) -> Self {
        keys.clone_into(&mut self.auth);
        self
    }

    /// Where the subscribers are, as the keys of the table `[subscribers]`.
    pub fn subscribers(mut self, keys: &str) -> Self {
        keys.clone_into(&mut self.subscribers);
        self
    }

    /// The file of the registrations, relative to the scene's directory.
    pub fn location(mut self, file: &str) -> Self {
        file.clone_into(&mut self.location);
        self
    }

    /// A subscriber of [`DOMAIN`], added by the command line before the server starts.
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.users.push((name.to_owned(), password.to_owned()));
        self
    }

    /// A rule, as the keys of a `[[route]]` table.
    pub fn route(self, keys: &str) -> Self {
        self.table("[[route]]", keys)
    }

    /// INVITEs that are new go to this URI; `more` holds further keys of the rule.
    pub fn invites_to(self, uri: &str, more: &str) -> Self {
        self.route(&format!(
            "when = {{ method = [\"INVITE\"] }}\ndo = {{ relay = \"{uri}\" }}\n{more}"
        ))
    }

    /// Any other table.
    #[track_caller]
    pub fn table(mut self, header: &str, keys: &str) -> Self {
        let written = writeln!(self.rest, "\n{header}\n{keys}");
        assert!(written.is_ok(), "writing to a string");
        self
    }

    /// Another listener, at the transport's own port of the scene; `tls` holds further keys of its
    /// table of that name.
    pub fn listen(self, scene: &Scene, transport: Transport, identity: &Identity, tls: &str) -> Self {
        let keys = Self::listen_keys(scene, transport, identity, tls);
        self.table("[[listen]]", &keys)
    }

    /// The keys of such a table.
    #[track_caller]
    pub fn listen_keys(scene: &Scene, transport: Transport, identity: &Identity, tls: &str) -> String {
        let (name, secured) = match transport {
            Transport::Udp => ("udp", false),
            Transport::Tcp => ("tcp", false),
            Transport::Tls => ("tls", true),
            Transport::Ws => ("ws", false),
            Transport::Wss => ("wss", true),
        };
        let at = scene.at(transport.port());
        let mut keys = format!("transport = \"{name}\"\naddress = \"{at}\"\n");
        if secured {
            let comma = if tls.is_empty() { "" } else { ", " };
            let written = writeln!(keys, "tls = {{ {}{comma}{tls} }}", identity.toml());
            assert!(written.is_ok(), "writing to a string");
        }
        keys
    }

    fn render(&self, scene: &Scene) -> String {
        let methods: Vec<String> = self.methods.iter().map(|m| format!("\"{m}\"")).collect();
        format!(
            "[server]\nworkers = {workers}\ndata_dir = \"data\"\ndrain_s = 1\n\n\
             [[listen]]\ntransport = \"udp\"\naddress = \"{sip}\"\n\n\
             [[listen]]\ntransport = \"tcp\"\naddress = \"{sip}\"\n\n\
             [subscribers]\n{subscribers}\n\n\
             [location]\nurl = \"sqlite:{location}\"\ndurability = \"commit\"\nmin_expires_s = 10\n\n\
             [[domain]]\nname = \"{domain}\"\n[domain.auth]\nmethods = [{methods}]\n{auth}\n\n\
             [state]\nmode = \"{state}\"\n\n\
             [admin]\nlisten = \"{admin}\"\n{rest}",
            domain = self.domain,
            workers = self.workers,
            sip = scene.at(port::SERVER),
            methods = methods.join(", "),
            auth = self.auth,
            subscribers = self.subscribers,
            location = self.location,
            state = self.state,
            admin = scene.at(port::ADMIN),
            rest = self.rest,
        )
    }
}

/// A running server. Dropping it sends SIGTERM, after which it must end with exit code 0.
#[derive(Debug)]
pub struct Server {
    child: Child,
    admin: SocketAddr,
    token: PathBuf,
    log: PathBuf,
}

impl Server {
    /// Writes the configuration, checks it, adds the users, starts the server and waits until
    /// it is ready.
    ///
    /// # Panics
    /// When any of that fails.
    pub fn start(scene: &Scene, config: &Config) -> Self {
        Self::prepare(scene, config);
        Self::start_again(scene)
    }

    /// The same, but another program becomes the server: its last arguments are the server's program and
    /// arguments, and it executes them as the same process.
    ///
    /// # Panics
    /// When any of that fails.
    pub fn start_by(scene: &Scene, config: &Config, mut launcher: Command) -> Self {
        Self::prepare(scene, config);
        launcher.arg(binary());
        Self::launch(scene, launcher)
    }

    #[track_caller]
    fn prepare(scene: &Scene, config: &Config) {
        std::fs::write(scene.path(CONFIGURATION), config.render(scene)).expect("writing the configuration");
        run_to_end(scene, &["check"], None);
        for (name, password) in &config.users {
            Self::add_user(scene, name, password);
        }
    }

    /// Adds a subscriber of [`DOMAIN`] by the command line, while a server of this scene runs.
    ///
    /// # Panics
    /// When that fails.
    pub fn add_user(scene: &Scene, name: &str, password: &str) {
        run_to_end(
            scene,
            &["user", "add", &format!("{name}@{DOMAIN}"), "--password-stdin"],
            Some(password),
        );
    }

    /// Starts a server on what an earlier one of the same scene left.
    pub fn start_again(scene: &Scene) -> Self {
        Self::launch(scene, Command::new(binary()))
    }

    #[track_caller]
    fn launch(scene: &Scene, mut command: Command) -> Self {
        let log = scene.path("server.log");
        command
            .args(["serve", "--config"])
            .arg(scene.path(CONFIGURATION))
            .current_dir(scene.dir());
        let mut child = Child::start("trapezoid serve", &mut command, &log);
        let admin = scene.at(port::ADMIN);
        wait_within("/health/ready answers 200", STARTING, || {
            if let Some(status) = child.ended() {
                panic!("the server ended at its start: {status}");
            }
            get(admin, "/health/ready").is_some_and(|(status, _)| status == 200)
        });
        let token = scene.path("data/admin.token");
        Self {
            child,
            admin,
            token,
            log,
        }
    }

    /// Status and body of `/health/ready`.
    ///
    /// # Panics
    /// When it does not answer.
    #[track_caller]
    pub fn ready(&self) -> (u16, String) {
        get(self.admin, "/health/ready").expect("/health/ready answers")
    }

    /// A file as the server sees it, where that has file systems of its own.
    #[track_caller]
    pub fn sees(&self, path: &Path) -> PathBuf {
        let inner = path.strip_prefix("/").expect("an absolute path");
        PathBuf::from(format!("/proc/{}/root", self.child.id())).join(inner)
    }

    /// The sum of a counter over its labels that contain `label`.
    ///
    /// # Panics
    /// When `/metrics` does not answer.
    #[track_caller]
    pub fn metric(&self, name: &str, label: &str) -> f64 {
        let (status, body) = get(self.admin, "/metrics?by=worker").expect("/metrics answers");
        assert_eq!(status, 200, "/metrics");
        let ours = body.lines().filter(|l| l.starts_with(name) && l.contains(label));
        ours.filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    /// Waits until [`Self::metric`] is as wanted; what it is then. Workers publish what they count a few
    /// times a second.
    ///
    /// # Panics
    /// When it does not become so.
    #[track_caller]
    pub fn wait_for_metric(&self, name: &str, label: &str, wanted: impl Fn(f64) -> bool) -> f64 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let value = self.metric(name, label);
            if wanted(value) {
                return value;
            }
            assert!(Instant::now() < deadline, "{name} {label} stays at {value}");
            std::thread::sleep(LOOK);
        }
    }

    /// Asks `/api/v1` with the server's token, with a body or an empty one.
    ///
    /// # Panics
    /// When it does not answer 200.
    #[track_caller]
    pub fn api(&self, what: &str, body: &str) -> serde_json::Value {
        let (status, answer) = self.ask(what, body);
        assert_eq!(status, 200, "{what}: {answer}");
        serde_json::from_str(&answer).expect("JSON")
    }

    /// The same; again where the answer is 503, which says so.
    ///
    /// # Panics
    /// When it does not answer 200.
    #[track_caller]
    pub fn api_when_ready(&self, what: &str, body: &str) -> serde_json::Value {
        let mut answer = (503, String::new());
        wait_until(what, || {
            answer = self.ask(what, body);
            answer.0 != 503
        });
        assert_eq!(answer.0, 200, "{what}: {}", answer.1);
        serde_json::from_str(&answer.1).expect("JSON")
    }

    #[track_caller]
    fn ask(&self, what: &str, body: &str) -> (u16, String) {
        let token = std::fs::read_to_string(&self.token).expect("a token file");
        let headers = format!("Authorization: Bearer {}\r\n", token.trim());
        ask(self.admin, what, &headers, body).expect("/api/v1 answers")
    }

    /// The state of a member of a group: `up`, `failed` or `drained`.
    ///
    /// # Panics
    /// When there is no such member.
    #[track_caller]
    pub fn member_state(&self, group: &str, uri: &str) -> String {
        let all = self.api("GET /api/v1/groups", "");
        let of = |list: &serde_json::Value, key: &str, value: &str| {
            let found = list
                .as_array()
                .into_iter()
                .flatten()
                .find(|item| item[key] == value);
            found
                .cloned()
                .unwrap_or_else(|| panic!("no {key} {value} in {all}"))
        };
        let group = of(&all["groups"], "name", group);
        let member = of(&group["members"], "uri", uri);
        member["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Has it read its files again: status and answer.
    ///
    /// # Panics
    /// When there is no answer.
    #[track_caller]
    pub fn reload(&self) -> (u16, serde_json::Value) {
        let (status, answer) = self.ask("POST /api/v1/reload", "");
        let answer = serde_json::from_str(&answer).unwrap_or_else(|e| panic!("{e}: {answer}"));
        (status, answer)
    }

    /// What it has logged so far. A thread of its own writes that, some time after the event.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has logged this; what it has logged so far.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn wait_for_log(&self, text: &str) -> String {
        let mut log = String::new();
        wait_until(&format!("{text:?} in the log"), || {
            log = self.log();
            log.contains(text)
        });
        log
    }

    /// Does something while the process stands still: what comes meanwhile waits in the kernel.
    ///
    /// # Panics
    /// When the process does not stop.
    pub fn stopped<T>(&self, act: impl FnOnce() -> T) -> T {
        /// Goes on, whatever comes of it.
        struct GoesOn<'a>(&'a Child);
        impl Drop for GoesOn<'_> {
            fn drop(&mut self) {
                self.0.signal("CONT");
            }
        }
        let _goes_on = GoesOn(&self.child);
        self.child.signal("STOP");
        let status = format!("/proc/{}/stat", self.child.id());
        wait_until("the server stands still", || {
            let text = std::fs::read_to_string(&status).unwrap_or_default();
            text.rsplit(')')
                .next()
                .is_some_and(|rest| rest.trim_start().starts_with('T'))
        });
        act()
    }

    /// Ends it without a warning, by SIGKILL. What it had written is there, on disk or not: the kernel lives on,
    /// so that this shows nothing of a power failure.
    pub fn kill(mut self) {
        self.child.signal("KILL");
        self.child.wait(STARTING);
    }

    #[track_caller]
    fn finish(&mut self) {
        if let Some(status) = self.child.ended() {
            use std::os::unix::process::ExitStatusExt;
            assert_eq!(status.signal(), Some(9), "the server ended by itself: {status}");
            return;
        }
        self.child.signal("TERM");
        let status = self.child.wait(STARTING);
        assert!(status.success(), "after SIGTERM the server ended with {status}");
        assert!(!self.log().contains("panicked at"), "the server panicked");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.finish();
        }
    }
}

/// Runs one of the server's other commands; it must succeed.
#[track_caller]
fn run_to_end(scene: &Scene, arguments: &[&str], input: Option<&str>) {
    let out = output(scene, arguments, input);
    let (stdout, stderr) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    assert!(
        out.status.success(),
        "trapezoid {arguments:?}: {}\n{stdout}{stderr}",
        out.status
    );
}

/// Runs one of the server's other commands with the configuration of a scene: its exit code, and what it printed, errors
/// after the rest. A signal is no exit code.
///
/// # Panics
/// When it cannot be started.
pub fn command(scene: &Scene, arguments: &[&str]) -> (Option<i32>, String) {
    let out = output(scene, arguments, None);
    let all = [out.stdout, out.stderr].concat();
    (out.status.code(), String::from_utf8_lossy(&all).into_owned())
}

#[track_caller]
fn output(scene: &Scene, arguments: &[&str], input: Option<&str>) -> Output {
    let mut child = Command::new(binary())
        .args(arguments)
        .arg("--config")
        .arg(scene.path(CONFIGURATION))
        .current_dir(scene.dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starting the server's command");
    if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
        writeln!(stdin, "{text}").expect("writing its input");
    }
    child.wait_with_output().expect("its output")
}

/// The server's binary: `TRAPEZOID_BIN`, or what cargo builds now (it says so where that is done).
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("TRAPEZOID_BIN") {
        Some(path) => PathBuf::from(path),
        None => build(),
    })
}

#[track_caller]
fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .args(["build", "--package", "trapezoid", "--message-format", "json"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit())
        .output()
        .expect("running cargo");
    assert!(out.status.success(), "the server does not build");
    let messages = String::from_utf8_lossy(&out.stdout);
    let built = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let executable = built
        .filter_map(|m| m["executable"].as_str().map(PathBuf::from))
        .next_back();
    executable.expect("cargo names the executable")
}

/// Status and body of a GET; `None` if nothing listens yet.
fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    ask(address, &format!("GET {path}"), "", "")
}

/// Status and body of the answer to a request with these header lines and this body.
fn ask(address: SocketAddr, what: &str, headers: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, CONNECT).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(
        stream,
        "{what} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
    .ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Some((status, body.to_owned()))
}
