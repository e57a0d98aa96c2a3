//! The server. It makes its parts in the order of their dependencies, runs until it is to stop, and ends the
//! parts in reverse order.
//!
//! Nothing made before the sockets are bound leaves a trace. So a second server on the same address reports
//! the conflict and ends without having touched the first one's files.

mod away;
mod backends;
pub(crate) mod data_dir;
mod files;
mod first_start;
mod flaws;
mod overload;
pub(crate) mod reload;
mod secret;
mod sinks;
pub(crate) mod tls;
mod workers;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sip_net::bind::WorkerSockets;
use sip_net::clock::Clock;
use sip_net::hub::Hub;
use sip_net::mailbox::{Control, MailboxReceiver};
use sip_net::worker::{Ended, Published, Snapshot};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, unbounded_channel};
use zeroize::Zeroizing;

use self::backends::Backends;
use self::overload::{Dropped, Overload};
use self::reload::{Asked, Counts, Outcome, Reloads};
use self::tls::{CertificateExpiry, Findings, TlsFiles};
use self::workers::{Common, WorkerExit};
use crate::abuse::{Abuse, Reports};
use crate::admin::cpu_split::CpuPages;
use crate::admin::credentials::Credentials;
use crate::admin::health::Health;
use crate::admin::host::HostNames;
use crate::admin::metrics::{Metrics, Reading, Source};
use crate::admin::registrations::RegistrationPages;
use crate::admin::token::{self, Token};
use crate::admin::{self, Pages};
use crate::cli::Failure;
use crate::cpu::{CpuTime, Switch};
use crate::groups::Groups;
use crate::logs::Logs;
use crate::machine;
use crate::registrations::Registrations;
use settings::{Loaded, LogFormat, Shell, load, lookup_deadline};
use sip_backend::subscribers::Status;

/// Time after the first signal in which a second one counts as the same, delivered twice.
const IMPATIENT_AFTER: Duration = Duration::from_secs(1);

/// Time beyond the drain time for a worker to end; then the process ends without it.
const GRACE: Duration = Duration::from_secs(2);

const DAY: Duration = Duration::from_secs(86_400);

/// Runs the server until a signal ends it. If the log has JSON lines, the reason of a failure is one of them.
pub(crate) fn run(loaded: Loaded) -> Result<(), Failure> {
    let logs = Logs::start(&loaded.shell.log);
    let is_json = loaded.shell.log.format == LogFormat::Json;
    serve(loaded, &logs).map_err(|failure| match failure {
        Failure::Failed(text) if is_json => {
            tracing::error!("{text}");
            Failure::Failed(String::new())
        }
        Failure::Usage(text) if is_json => {
            tracing::error!("{text}");
            Failure::Usage(String::new())
        }
        failure @ (Failure::Failed(_) | Failure::Usage(_)) => failure,
    })
}

fn serve(loaded: Loaded, logs: &Logs) -> Result<(), Failure> {
    let clock = Clock::new(Instant::now());
    let settings = files::fit_connections(&loaded);
    let sockets = bind(&loaded)?;
    let admin = loaded.shell.admin.map(bind_admin).transpose()?;
    data_dir::create(&loaded.shell.data_dir)?;
    let domain_secret = data_dir::domain_key(&loaded.shell.data_dir)?;
    let (tls, findings) = read_tls(&loaded)?;
    let (admin, new_token) = with_token(admin, &loaded.shell)?;
    let runtime = control_runtime()?;
    // From here on no signal is lost, whatever is being made.
    let signals = runtime.block_on(async { Signals::new() })?;
    let (hub, mailboxes) = Hub::new(loaded.core.workers, &loaded.shell.sockets)
        .map_err(|error| Failure::failed("cannot make the workers' mailboxes", error))?;

    let groups = Arc::new(Groups::new(&loaded.core.groups));
    let (abuse, reports) = Abuse::open(&loaded, &hub);
    let readings = Readings::new(abuse.clone(), Arc::clone(&groups), Arc::clone(&tls), hub.clone());
    let (metrics, health) = (Arc::new(readings), Arc::new(Health::default()));
    let (reloads, asked) = Reloads::new();
    let admin_address = serve_admin(&runtime, admin, &loaded, &health, &metrics, reloads)?;
    let backends = Backends::open(&loaded, &hub, runtime.handle())?;
    *metrics.backends.lock() = Some(backends.clone());
    start_abuse(&abuse, reports, &backends, &runtime);
    health.set_loaded();
    let store = backends.clone();
    health.watch_store(move || store.cannot_save());
    let is_seen = secret::is_seen(&loaded.shell);
    let welcome = first_start::prepare(&loaded.core, &loaded.shell, |welcome| {
        secret::keep(&loaded.shell, is_seen, welcome)
    })?;

    let buffers = tell_of_sockets(&sockets);
    let common = Common {
        loaded: &loaded,
        settings,
        hub: &hub,
        domain_secret: &domain_secret,
        shared: backends.shared(),
        watch: abuse.watch(),
        flaws: flaws::Flaws::default(),
        away: away::Away::default(),
        clock,
        services: &tls.services(&loaded.shell.services),
    };
    let ends = start_workers(&common, sockets, mailboxes, &backends, &metrics)?;
    health.set_listening();
    announce(&loaded, &findings, admin_address, buffers);
    secret::show(&loaded.shell, is_seen, welcome, new_token);

    let mut server = Server {
        loaded,
        hub,
        health,
        groups,
        logs,
        backends: backends.clone(),
        ends,
        signals,
        tls,
        asked,
        readings: metrics,
        told: Instant::now(),
        overload: Overload::default(),
    };
    let outcome = runtime.block_on(server.until_ended());
    backends.shutdown();
    runtime.shutdown_timeout(Duration::from_millis(500));
    outcome
}

/// Judges the workers' reports from now on. Sources with a registration at the start count as known.
fn start_abuse(abuse: &Abuse, reports: Reports, backends: &Backends, runtime: &Runtime) {
    if abuse.is_watching() {
        backends.for_each_source(|ip| abuse.note_registered(ip));
    }
    runtime.spawn(abuse.clone().run(reports));
}

/// Logs what the kernel refused to the datagram sockets. Returns what it granted.
fn tell_of_sockets(sockets: &[WorkerSockets]) -> Buffers {
    if let Some(error) = sockets.iter().find_map(WorkerSockets::steering_error) {
        tracing::warn!(
            error = error.to_string(),
            "the kernel takes no program that spreads datagrams by call (SO_ATTACH_REUSEPORT_CBPF), so \
             it spreads them by source, and workers hand over what is not theirs"
        );
    }
    if let Some(error) = sockets.iter().find_map(WorkerSockets::new_work_error) {
        tracing::warn!(
            error = error.to_string(),
            "new calls and registrations by UDP have no queues of their own, so under overload they displace established calls"
        );
    }
    Buffers::of(sockets)
}

/// Makes the TLS files of the first start, and reads all TLS files.
fn read_tls(loaded: &Loaded) -> Result<(Arc<TlsFiles>, Findings), Failure> {
    let host_name = machine::read()?.host_name;
    tls::own::prepare(loaded, host_name.as_deref())?;
    let (files, findings) = TlsFiles::load(&loaded.shell);
    if findings.errors.is_empty() {
        Ok((Arc::new(files), findings))
    } else {
        Err(Failure::Usage(findings.errors.join("\n")))
    }
}

/// Binds all sockets of all workers.
fn bind(loaded: &Loaded) -> Result<Vec<WorkerSockets>, Failure> {
    let core = &loaded.core;
    if core.listeners.is_empty() {
        return Err(Failure::Usage(
            "this machine has no address to listen on; bring up a network interface".to_owned(),
        ));
    }
    sip_net::bind::bind_all(core, &loaded.shell.sockets, core.workers).map_err(|error| {
        let kind = error.source.kind();
        let remedy = if kind == std::io::ErrorKind::AddrInUse {
            "end it, or name other addresses in [[listen]]"
        } else if kind == std::io::ErrorKind::PermissionDenied {
            "give it, or name ports from 1024 up in [[listen]]"
        } else {
            "name other addresses in [[listen]]"
        };
        Failure::Usage(format!("{error}: {remedy}"))
    })
}

fn bind_admin(address: SocketAddr) -> Result<TcpListener, Failure> {
    admin::bind(address).map_err(|error| {
        let remedy = "name another address in [admin] listen, or \"off\"";
        Failure::Usage(format!("cannot listen at {address} for HTTP: {error}; {remedy}"))
    })
}

/// Reads the token of the admin address, or makes it. The second value is the token if it is new.
fn with_token(
    admin: Option<TcpListener>,
    shell: &Shell,
) -> Result<(Option<Admin>, Option<Zeroizing<String>>), Failure> {
    let Some(listener) = admin else {
        return Ok((None, None));
    };
    let (token, made) = token::read_or_make(&shell.admin_token)?;
    let new = made.then(|| Zeroizing::new(token.text().to_owned()));
    Ok((Some(Admin { listener, token }), new))
}

/// The parts of HTTP that are made before everything else.
struct Admin {
    listener: TcpListener,
    token: Token,
}

/// The runtime for databases, name resolution and HTTP; it never handles a SIP message.
fn control_runtime() -> Result<Runtime, Failure> {
    let built = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(8)
        .thread_name("control")
        .enable_all()
        .build();
    built.map_err(|error| Failure::failed("cannot start the control threads", error))
}

/// Starts serving HTTP. Returns the address.
fn serve_admin(
    runtime: &Runtime,
    admin: Option<Admin>,
    loaded: &Loaded,
    health: &Arc<Health>,
    readings: &Arc<Readings>,
    reloads: Reloads,
) -> Result<Option<SocketAddr>, Failure> {
    let Some(Admin { listener, token }) = admin else {
        return Ok(None);
    };
    let address = listener
        .local_addr()
        .map_err(|error| Failure::failed("the admin address", error))?;
    readings.admin_hosts.replace(&loaded.shell.admin_hosts);
    let pages = Pages {
        health: Arc::clone(health),
        metrics: Metrics::new(Arc::<Readings>::clone(readings)),
        groups: Arc::clone(&readings.groups),
        abuse: readings.abuse.clone(),
        registrations: Arc::<Readings>::clone(readings),
        credentials: Arc::<Readings>::clone(readings),
        cpu: Arc::<Readings>::clone(readings),
        hosts: readings.admin_hosts.clone(),
        token,
        reloads,
        workers: loaded.core.workers,
        started: Instant::now(),
    };
    runtime.spawn(async move {
        if let Err(error) = admin::serve(listener, pages).await {
            tracing::error!(error = error.to_string(), "HTTP ended");
        }
    });
    Ok(Some(address))
}

fn start_workers(
    common: &Common<'_>,
    sockets: Vec<WorkerSockets>,
    mailboxes: Vec<MailboxReceiver>,
    backends: &Backends,
    readings: &Readings,
) -> Result<UnboundedReceiver<(u16, WorkerExit)>, Failure> {
    let (ends, received) = unbounded_channel();
    let parts = sockets.into_iter().zip(mailboxes);
    for (number, (sockets, mailbox)) in (0..common.loaded.core.workers).zip(parts) {
        let queries = backends.queries();
        let published = workers::start(number, common, sockets, mailbox, queries, ends.clone())?;
        readings.workers.lock().push(published);
    }
    if common.loaded.shell.cpu_split {
        readings.cpu.set(true);
    }
    Ok(received)
}

/// The smallest receive buffers that the kernel granted to datagram sockets, bytes.
#[derive(Clone, Copy)]
struct Buffers {
    established: Option<usize>,
    new_work: Option<usize>,
}

impl Buffers {
    fn of(sockets: &[WorkerSockets]) -> Self {
        Self {
            established: sockets.iter().filter_map(WorkerSockets::receive_buffer).min(),
            new_work: sockets.iter().filter_map(WorkerSockets::new_work_buffer).min(),
        }
    }
}

/// Logs the warnings, and the settings of the running server.
fn announce(loaded: &Loaded, findings: &Findings, admin: Option<SocketAddr>, buffers: Buffers) {
    let exposed = data_dir::exposed(&loaded.shell.data_dir);
    for warning in loaded.warnings.iter().chain(&findings.warnings).chain(&exposed) {
        tracing::warn!("{warning}");
    }
    let sockets = &loaded.shell.sockets;
    for (key, wanted, granted) in [
        (
            "transport.udp_receive_buffer_bytes",
            sockets.udp_receive_buffer,
            buffers.established,
        ),
        (
            "overload.new_work_queue_bytes",
            sockets.new_work_buffer,
            buffers.new_work,
        ),
    ] {
        if let Some(granted) = granted.filter(|granted| *granted < wanted) {
            tracing::warn!(
                key,
                granted,
                wanted,
                "the kernel gives a smaller receive buffer than asked for, so datagrams are lost sooner; \
                 raise the sysctl net.core.rmem_max"
            );
        }
    }
    let workers = loaded.core.workers;
    tracing::info!(
        listening = listening(loaded),
        workers,
        "trapezoid {} is ready",
        env!("CARGO_PKG_VERSION")
    );
    if let Some(address) = admin {
        tracing::info!("metrics at http://{address}/metrics, health at http://{address}/health/ready");
    }
}

/// The listeners as text, such as `udp+tcp 192.0.2.1:5060, …`.
fn listening(loaded: &Loaded) -> String {
    let mut places: Vec<(SocketAddr, String)> = Vec::new();
    for listener in &loaded.core.listeners {
        let transport = listener.transport.uri_name();
        match places
            .iter_mut()
            .find(|(address, _)| *address == listener.address)
        {
            Some((_, transports)) => {
                transports.push('+');
                transports.push_str(transport);
            }
            None => places.push((listener.address, transport.to_owned())),
        }
    }
    let places: Vec<String> = places
        .iter()
        .map(|(address, transports)| format!("{transports} {address}"))
        .collect();
    places.join(", ")
}

/// The source of `/metrics`.
#[derive(Debug)]
struct Readings {
    workers: Mutex<Vec<Published>>,
    backends: Mutex<Option<Backends>>,
    abuse: Abuse,
    groups: Arc<Groups>,
    tls: Arc<TlsFiles>,
    reloads: Arc<Counts>,
    cpu: Switch,
    admin_hosts: HostNames,
}

impl Readings {
    /// New work that the workers' queues had no room for.
    fn dropped(&self) -> Dropped {
        Dropped::of(self.workers.lock().iter().map(|worker| worker.get().net))
    }

    fn new(abuse: Abuse, groups: Arc<Groups>, tls: Arc<TlsFiles>, hub: Hub) -> Self {
        Self {
            workers: Mutex::default(),
            backends: Mutex::default(),
            abuse,
            groups,
            tls,
            reloads: Arc::default(),
            cpu: Switch::new(hub),
            admin_hosts: HostNames::default(),
        }
    }
}

impl Source for Readings {
    fn read(&self) -> Reading {
        let workers: Vec<Snapshot> = self.workers.lock().iter().map(Published::get).collect();
        let backends = self.backends.lock().clone();
        let registered = backends.as_ref().map(Backends::registered).unwrap_or_default();
        let mut samples = backends.map(|backends| backends.metrics()).unwrap_or_default();
        samples.extend(self.reloads.metrics());
        samples.extend(self.abuse.metrics());
        let cpu = self.cpu.read(workers.iter().map(|worker| worker.cpu).collect());
        Reading {
            workers,
            cpu,
            samples,
            registered,
            groups: self.groups.current(),
            certificates: self.tls.ends(),
        }
    }
}

/// The signals that the server handles.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::failed("cannot listen for signals", error));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// The next signal.
    async fn next(&mut self) -> Woken {
        tokio::select! {
            _ = self.terminate.recv() => Woken::Terminate,
            _ = self.interrupt.recv() => Woken::Terminate,
            _ = self.hang_up.recv() => Woken::Reload,
        }
    }

    /// Waits for the next signal to end.
    async fn end(&mut self) {
        while !matches!(self.next().await, Woken::Terminate) {}
    }
}

/// The running server.
struct Server<'a> {
    loaded: Loaded,
    hub: Hub,
    health: Arc<Health>,
    groups: Arc<Groups>,
    logs: &'a Logs,
    backends: Backends,
    ends: UnboundedReceiver<(u16, WorkerExit)>,
    signals: Signals,
    tls: Arc<TlsFiles>,
    /// Requests for a reload by HTTP.
    asked: Receiver<Asked>,
    readings: Arc<Readings>,
    /// When expiring certificates were last logged.
    told: Instant,
    overload: Overload,
}

/// The event that woke the server.
enum Woken {
    Terminate,
    Reload,
    Asked(Asked),
    Worker(u16, WorkerExit),
    Second,
}

impl Server<'_> {
    /// Serves, reloads, drains.
    async fn until_ended(&mut self) -> Result<(), Failure> {
        let mut seconds = tokio::time::interval(Duration::from_secs(1));
        loop {
            let woken = tokio::select! {
                woken = self.signals.next() => woken,
                Some((number, end)) = self.ends.recv() => Woken::Worker(number, end),
                Some(asked) = self.asked.recv() => Woken::Asked(asked),
                _ = seconds.tick() => Woken::Second,
            };
            match woken {
                Woken::Second => self.each_second(),
                Woken::Reload => drop(self.reload()),
                Woken::Asked(asked) => {
                    // The caller may have gone.
                    let _ = asked.send(self.reload());
                }
                Woken::Terminate => {
                    let failed = self.linger().await;
                    return self.drain(failed).await;
                }
                Woken::Worker(number, end) => {
                    let why = describe(number, &end);
                    tracing::error!("{why}; the others end too");
                    return self.drain(Some(why)).await;
                }
            }
        }
    }

    /// Logs expiring certificates, once a day.
    fn tell_of_certificates(&mut self) {
        if self.told.elapsed() >= DAY {
            self.told = Instant::now();
            for line in self.tls.ends().iter().filter_map(CertificateExpiry::today) {
                tracing::warn!("{line}");
            }
        }
    }

    /// Reads the configuration and its files again. A wrong configuration changes nothing. Of the files, each
    /// good one is used.
    fn reload(&mut self) -> Outcome {
        let outcome = match self.read_again() {
            Ok(new) => self.take(&new),
            Err(lines) => {
                let problems = lines.join("\n");
                tracing::error!(problems, "the configuration is wrong; the old one stays");
                Outcome::refused(lines)
            }
        };
        self.readings.reloads.note(outcome.result);
        outcome
    }

    fn read_again(&self) -> Result<Loaded, Vec<String>> {
        match machine::read() {
            Ok(machine) => {
                let file = self.loaded.shell.file.as_deref();
                load(file, &machine).map_err(|problems| problems.lines())
            }
            Err(Failure::Failed(text) | Failure::Usage(text)) => Err(vec![text]),
        }
    }

    fn take(&mut self, new: &Loaded) -> Outcome {
        let merged = reload::merge(&self.loaded, new);
        let findings = self.tls.reload();
        let outcome = Outcome::taken(&self.loaded, new, &merged.kept, self.tls.paths(), findings);
        if !merged.kept.is_empty() {
            tracing::warn!(
                keys = merged.kept.join(", "),
                "these changes hold after a restart only"
            );
        }
        for line in &outcome.errors {
            tracing::error!("{line}: what was read before stays");
        }
        for warning in &outcome.warnings {
            tracing::warn!("{warning}");
        }
        self.groups.replace(&merged.core.groups);
        self.backends
            .set_lookup_deadline(lookup_deadline(merged.core.credentials_deadline_ms));
        self.backends.set_durability(merged.core.registrar.durability);
        self.readings.admin_hosts.replace(&new.shell.admin_hosts);
        self.readings.abuse.reconfigure(new.shell.bans, &merged.core);
        let taken = self.hub.order(&Control::Reconfigure(Arc::clone(&merged.core)));
        self.logs.set(&new.shell.log);
        // A changed value of the file takes effect; otherwise the state ordered by HTTP remains.
        if new.shell.cpu_split != self.loaded.shell.cpu_split {
            self.loaded.shell.cpu_split = new.shell.cpu_split;
            self.readings.cpu.set(new.shell.cpu_split);
        }
        self.loaded.core = (*merged.core).clone();
        self.loaded.shell.drain = new.shell.drain;
        self.loaded.shell.drain_min = new.shell.drain_min;
        self.loaded.shell.bans = new.shell.bans;
        self.loaded.keys = reload::in_force(&self.loaded.keys, &new.keys, &merged.kept);
        tracing::info!(
            workers = taken,
            files = outcome.files.len(),
            "configuration reloaded"
        );
        outcome
    }

    /// Continues to serve for `server.drain_min_s`, while `/health/ready` responds 503, so that a balancer
    /// notices before requests are refused. A second signal ends the wait. So does a worker that fails: the
    /// result has the reason.
    async fn linger(&mut self) -> Option<String> {
        let least = self.loaded.shell.drain_min;
        if least.is_zero() {
            return None;
        }
        self.health.set_draining();
        self.refuse_reloads();
        tracing::info!(
            for_s = least.as_secs(),
            "ready no more; still serving for this long, then draining"
        );
        let began = Instant::now();
        let mut seconds = tokio::time::interval(Duration::from_secs(1));
        while began.elapsed() < least {
            tokio::select! {
                woken = self.signals.next() => match woken {
                    Woken::Reload => {
                        tracing::warn!("the configuration is not read again, as the server is about to end");
                    }
                    Woken::Terminate | Woken::Asked(_) | Woken::Worker(..) | Woken::Second => {
                        if began.elapsed() >= IMPATIENT_AFTER {
                            return None;
                        }
                    }
                },
                Some((number, end)) = self.ends.recv() => {
                    let why = describe(number, &end);
                    tracing::error!("{why}; the others end too");
                    return Some(why);
                }
                _ = seconds.tick() => self.each_second(),
            }
        }
        None
    }

    fn each_second(&mut self) {
        self.logs.tell_left_out();
        self.backends.sweep();
        self.tell_of_certificates();
        let dropped = self.readings.dropped();
        self.overload.see(dropped, Instant::now());
    }

    /// Stops reloading; waiting requests for a reload are refused.
    fn refuse_reloads(&mut self) {
        self.asked.close();
        while self.asked.try_recv().is_ok() {}
    }

    /// Refuses new work and waits until the rest has ended. A second signal ends the server at once.
    async fn drain(&mut self, failed: Option<String>) -> Result<(), Failure> {
        self.health.set_draining();
        self.refuse_reloads();
        let drain = if failed.is_some() {
            Duration::ZERO
        } else {
            self.loaded.shell.drain
        };
        tracing::info!(
            at_most_s = drain.as_secs(),
            "draining; a second signal ends at once"
        );
        let deadline_ms = u32::try_from(drain.as_millis()).unwrap_or(u32::MAX);
        self.hub.order(&Control::Drain { deadline_ms });
        let waited = tokio::time::sleep(drain + GRACE);
        tokio::pin!(waited);
        // One signal often arrives twice: from a terminal to the whole group, and passed on by a parent. Only
        // a later one counts as a second.
        let began = Instant::now();
        let mut left = self.loaded.core.workers - u16::from(failed.is_some());
        while left > 0 {
            tokio::select! {
                () = self.signals.end() => {
                    if began.elapsed() < IMPATIENT_AFTER {
                        continue;
                    }
                    return Err(Failure::Failed("ended at once by a second signal".to_owned()));
                }
                () = &mut waited => {
                    return Err(Failure::Failed(format!("{left} workers did not end in time")));
                }
                Some((number, end)) = self.ends.recv() => {
                    left -= 1;
                    tracing::info!("{}", describe(number, &end));
                }
            }
        }
        match failed {
            None => {
                tracing::info!("ended");
                Ok(())
            }
            Some(why) => Err(Failure::Failed(why)),
        }
    }
}

fn describe(number: u16, end: &WorkerExit) -> String {
    match end {
        WorkerExit::Asked(Ended::Drained) => format!("worker {number} ended, with nothing left to do"),
        WorkerExit::Asked(Ended::Deadline) => {
            format!("worker {number} ended at the deadline, with work left")
        }
        WorkerExit::Asked(Ended::Stopped) => format!("worker {number} stopped"),
        WorkerExit::Failed(error) => format!("worker {number} failed: {error}"),
        WorkerExit::Panicked => format!("worker {number} panicked, which is a bug"),
    }
}

impl CpuPages for Readings {
    fn switch(&self, on: bool) -> bool {
        self.cpu.set(on)
    }

    fn cpu(&self) -> CpuTime {
        let workers = self.workers.lock();
        self.cpu
            .read(workers.iter().map(|worker| worker.get().cpu).collect())
    }
}

impl RegistrationPages for Readings {
    fn registrations(&self) -> Option<Registrations> {
        self.backends.lock().as_ref().map(Backends::registrations)
    }
}

impl Credentials for Readings {
    fn status(&self) -> Option<Status> {
        self.backends.lock().as_ref().map(Backends::credentials)
    }

    fn forget(&self, subscriber: Option<(&str, &str)>) -> Option<usize> {
        let backends = self.backends.lock();
        backends.as_ref().map(|backends| backends.forget(subscriber))
    }
}
