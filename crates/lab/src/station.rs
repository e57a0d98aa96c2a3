//! Where experiments measure: a server on one CPU, everything else on another.

mod crowd;
mod holding;
mod pings;
mod steps;
mod workers;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::case::{Purpose, Run, Server, Setup, State};
use crate::cgroup::{self, Group, Kind};
use crate::cpu::{self, Sample};
use crate::failure::{Failure, Outcome, Stop};
use crate::load::{Criterion, Operation, Report, Request, Transport, USERS};
use crate::metrics::{self, Page};
use crate::process::{Child, Launcher, Order, Output, ports, set_affinity};
use crate::programs;
use crate::progress::Progress;
use crate::results::{Absent, Batches, Direction, Row, Wire};
use crate::servers::{self, Certificates, DelayRelay, MariaDb, Ports, Site, fresh};
use crate::steps::{Measured, Pace, Step};

/// What experiments need: tests have one without servers.
pub trait Bench {
    /// One run on a server that is warm; it is started, or started anew, where that is needed.
    ///
    /// # Errors
    /// It could not be measured, or the end was asked for.
    fn measure(&mut self, setup: &Setup, run: &Run) -> Outcome<Row>;

    /// Why a setup cannot be measured here; `None`: it can.
    fn absent(&mut self, setup: &Setup) -> Option<Absent>;

    /// So many servers may run from now on, that which is measured among them: those that take turns are not
    /// started anew for each.
    fn keep(&mut self, servers: usize);

    /// Says how much there is to do, and how far it is.
    fn progress(&mut self) -> &mut Progress;

    /// What `trapezoid plan auth` says of settings of look-ups, of batches that the database is asked for now.
    ///
    /// # Errors
    /// It could not be asked.
    fn plan(&mut self, setup: &Setup, costs: &PlanCosts) -> Outcome<serde_json::Value>;

    /// A step, on a server of its own.
    ///
    /// # Errors
    /// It could not be measured, or the end was asked for.
    fn step(&mut self, step: &Step, pace: &Pace) -> Outcome<Measured>;

    /// Why a step cannot be made here; `None`: it can.
    fn absent_step(&mut self, step: &Step) -> Option<Absent>;
}

/// The costs that the plan needs and cannot know: microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanCosts {
    /// CPU of the server for a call.
    pub per_call_us: f64,
    /// CPU of the database for a batch, whatever its size.
    pub batch_us: f64,
    /// CPU of the database for each row.
    pub row_us: f64,
}

/// How servers are warmed up, and what is far away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Seconds of load on a fresh server before anything counts.
    pub warm_s: f64,
    /// Operations a second of that load.
    pub warm_rate: f64,
    /// Milliseconds to a database that is far away, there and back.
    pub rtt_ms: f64,
    /// What random choices follow from.
    pub seed: u64,
    /// Whether a fresh server is settled before its first run near a peak ([`settle_s`]).
    pub settles: bool,
}

/// Seconds of load on a fresh server, at the rate of its first run near a peak. A finished transaction is kept for up
/// to 32 s (RFC 3261 timers J, K, L, M). Until the first of them end, each call touches memory that was never touched
/// before, and costs more.
pub(crate) fn settle_s(setup: &Setup) -> f64 {
    match (setup.case.operation, setup.case.state) {
        (Operation::Call, State::Transaction) if !setup.server.is_relay() => 34.0,
        _ => 4.0,
    }
}

/// Two CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus {
    /// The server's.
    pub server: usize,
    /// All else's.
    pub other: usize,
}

impl Cpus {
    /// The first two that this process may use.
    ///
    /// # Errors
    /// There is only one.
    pub fn find() -> Outcome<Self> {
        match cpu::allowed().as_slice() {
            [server, other, ..] => Ok(Self {
                server: *server,
                other: *other,
            }),
            _ => Err(Failure::Usage(
                "the lab needs two CPUs: one for the server that is measured, one for the load".to_owned(),
            )),
        }
    }
}

/// The real one.
#[derive(Debug)]
pub struct Station<'a> {
    program: PathBuf,
    work: PathBuf,
    cpus: Cpus,
    conditions: Conditions,
    stop: Stop,
    began: Instant,
    progress: &'a mut Progress,
    quota: Result<Kind, String>,
    // Dropped in this order: the servers before the groups that they are in, and before their database.
    /// The last is the one that is measured; the others wait for their turn.
    running: Vec<Running>,
    /// So many of them may run.
    servers: usize,
    relay: Option<DelayRelay>,
    database: Option<MariaDb>,
    certificates: Option<Certificates>,
    launcher: Launcher,
    runs: u32,
    seed: u64,
}

#[derive(Debug)]
struct Running {
    setup: Setup,
    child: Child,
    directory: PathBuf,
    ports: Ports,
    /// Whether the last load was too much: what is left of it would be in the next run.
    dirty: bool,
    /// Whether it has been settled, where that is asked for.
    settled: bool,
    _group: Option<Group>,
}

/// Readings at one moment.
struct Reading {
    server: Sample,
    database: Option<Sample>,
    relay: Option<Sample>,
}

/// Readings around a run: counters are read outside the moments between which CPU is measured.
struct Around {
    before: Reading,
    after: Reading,
    pages: Option<(Page, Page)>,
    wire: Option<Wire>,
}

/// Seconds by which the measured time is shorter than the counted one, at each end: the generator takes a moment to
/// start.
const MARGIN_S: f64 = 0.15;
/// How long the generator may take beyond its load and its drain, on a machine that stalls.
const PATIENCE: Duration = Duration::from_secs(60);
/// Registrations a second that any disk or database takes.
const GENTLY: f64 = 1_000.0;
/// How long all connections to a database may take to come up.
const CONNECTING: Duration = Duration::from_secs(30);

impl<'a> Station<'a> {
    /// One that keeps logs and servers' files under `work`.
    ///
    /// # Errors
    /// There is only one CPU, or the directory cannot be made.
    pub fn new(
        program: PathBuf,
        work: PathBuf,
        conditions: Conditions,
        stop: Stop,
        progress: &'a mut Progress,
    ) -> Outcome<Self> {
        let cpus = Cpus::find()?;
        std::fs::create_dir_all(&work).map_err(|error| Failure::failed(work.display(), error))?;
        // Servers run in directories of their own.
        let work = work
            .canonicalize()
            .map_err(|error| Failure::failed(work.display(), error))?;
        // The lab itself looks on from where the load comes from.
        set_affinity(&[cpus.other]).map_err(|error| Failure::failed("cannot choose CPUs", error))?;
        Ok(Self {
            launcher: Launcher::new(program.clone(), stop.clone())?,
            program,
            work,
            cpus,
            conditions,
            stop,
            began: Instant::now(),
            progress,
            quota: cgroup::kind(),
            running: Vec::new(),
            servers: 1,
            relay: None,
            database: None,
            certificates: None,
            runs: 0,
            seed: conditions.seed,
        })
    }

    /// The two CPUs.
    pub fn cpus(&self) -> Cpus {
        self.cpus
    }

    /// Whether quotas of CPU can be given here: tried, and taken back.
    ///
    /// # Errors
    /// Why not.
    pub fn quota(&mut self) -> Result<(), String> {
        let kind = self.quota.clone()?;
        kind.attempt().inspect_err(|why| self.quota = Err(why.clone()))
    }

    /// How quotas of CPU are set here, or why not.
    pub fn quota_text(&self) -> String {
        match &self.quota {
            Ok(kind) => format!("by {}", kind.text()),
            Err(why) => format!("none: {why}"),
        }
    }

    /// Ends all servers.
    pub fn close(&mut self) {
        self.leave(0);
        self.relay = None;
        self.database = None;
    }

    /// Ends the servers that had their turn longest ago, until no more than so many are left.
    fn leave(&mut self, most: usize) {
        let surplus = self.running.len().saturating_sub(most);
        let mut ended: Vec<Running> = self.running.drain(..surplus).collect();
        // All at a time, before each is waited for.
        for running in &mut ended {
            running.child.ask_to_end();
        }
    }

    /// Ports that none of the servers has: the one of the called end is bound under load only.
    fn ports(&self) -> Outcome<Ports> {
        loop {
            let ports = Ports::free()?;
            if !self.running.iter().any(|running| running.ports.meets(ports)) {
                return Ok(ports);
            }
        }
    }

    /// A directory for a server, that none of those which run has.
    fn place(&self, server: Server) -> PathBuf {
        let name = server.name().to_lowercase().replace(' ', "-");
        let mut number = 1;
        loop {
            let directory = match number {
                1 => self.directory(&name),
                _ => self.directory(&format!("{name}-{number}")),
            };
            if self.running.iter().all(|running| running.directory != directory) {
                return directory;
            }
            number += 1;
        }
    }

    fn directory(&self, name: &str) -> PathBuf {
        self.work.join(name)
    }

    /// The port that a setup finds its database at; starts what is not there yet.
    fn database_port(&mut self, setup: &Setup) -> Outcome<Option<u16>> {
        if !servers::needs_database(setup) {
            return Ok(None);
        }
        let others = [self.cpus.other];
        if self.database.is_none() {
            let directory = self.directory("mariadb");
            self.database = Some(MariaDb::start(&self.launcher, &directory, &others)?);
        }
        let port = self.database.as_ref().map(MariaDb::port).unwrap_or_default();
        if setup.look_ups.is_none() {
            return Ok(Some(port));
        }
        if self.relay.is_none() {
            let directory = self.directory("relay");
            fresh(&directory)?;
            let place = (port, self.conditions.rtt_ms);
            self.relay = Some(DelayRelay::start(
                &self.launcher,
                &self.program,
                &directory,
                &others,
                place,
            )?);
        }
        Ok(self.relay.as_ref().map(DelayRelay::port))
    }

    /// Makes what TLS needs, once.
    fn certify(&mut self) -> Outcome<()> {
        if self.certificates.is_none() {
            self.certificates = Some(Certificates::make(&self.directory("certificates"))?);
        }
        Ok(())
    }

    /// What TLS needs, of a setup over TLS.
    fn certificates(&self, setup: &Setup) -> Option<&Certificates> {
        let is_secure = setup.case.transport == Transport::Tls;
        self.certificates.as_ref().filter(|_| is_secure)
    }

    /// Makes the server of this setup run, warm and without what an overload has left.
    fn ensure(&mut self, setup: &Setup) -> Outcome<()> {
        let known = self.running.iter().position(|running| running.setup == *setup);
        if let Some(at) = known {
            let mut running = self.running.remove(at);
            if !running.dirty && running.child.status().is_none() {
                self.running.push(running);
                return Ok(());
            }
        }
        self.leave(self.servers.saturating_sub(1));
        let database = self.database_port(setup)?;
        if setup.case.transport == Transport::Tls {
            self.certify()?;
        }
        let ports = self.ports()?;
        let group = match (setup.quota, &self.quota) {
            (Some(part), Ok(kind)) => Some(kind.group("server", part).map_err(Failure::Failed)?),
            _ => None,
        };
        let groups: Vec<PathBuf> = group.iter().map(Group::processes).collect();
        let directory = self.place(setup.server);
        fresh(&directory)?;
        let cpus = [self.cpus.server];
        let mut child = servers::start(
            setup,
            &Site {
                launcher: &self.launcher,
                program: &self.program,
                directory: directory.clone(),
                ports,
                cpus: &cpus,
                workers: 1,
                groups: &groups,
                database,
                certificates: self.certificates(setup),
            },
        )?;
        wait_for_connections(setup, ports, &mut child)?;
        self.running.push(Running {
            setup: *setup,
            child,
            directory,
            ports,
            dirty: false,
            settled: false,
            _group: group,
        });
        self.warm_up(setup)
    }

    /// First touches of memory; of REGISTER, the bindings that the rest refreshes. Gently: what a slow setup has not
    /// done by the end of it would be in what is measured.
    fn warm_up(&mut self, setup: &Setup) -> Outcome<()> {
        let Conditions {
            warm_s, warm_rate, ..
        } = self.conditions;
        let rate = warm_rate * setup.quota.unwrap_or(1.0);
        let users = f64::from(USERS);
        let (rate, seconds) = match (setup.case.operation, setup.look_ups) {
            // All users, so that what is measured are refreshes.
            (Operation::Register, _) if setup.case.durable || setup.case.auth => {
                (GENTLY, warm_s.max(users / GENTLY + 0.2))
            }
            (Operation::Register, _) => (5_000.0, warm_s.max(users / 5_000.0 + 0.2)),
            (Operation::Call | Operation::Redirect, Some(look_ups)) => {
                let carried = 1e3 * f64::from(look_ups.connections) / (self.conditions.rtt_ms + 1.0);
                (rate.min(carried / 2.0), warm_s)
            }
            (Operation::Call | Operation::Redirect, None) => (rate, warm_s),
        };
        if seconds < 0.05 {
            return Ok(());
        }
        let run = Run {
            purpose: Purpose::Look,
            round: 0,
            rate,
            warmup_s: 0.0,
            duration_s: seconds,
            drain_s: 10.0,
            criterion: Criterion::PAPERS,
        };
        let (mut child, path, _) = self.generate(setup, &run)?;
        let load = self.finish(&mut child, &path, seconds + run.drain_s)?;
        if load.succeeded > 0 || load.offered == 0 {
            return Ok(());
        }
        Err(Failure::Failed(format!(
            "{}: no operation of the warm-up succeeded: {}",
            setup.text(),
            load.causes()
        )))
    }

    /// Load at the rate of a run near a peak, before the first of them.
    fn settle(&mut self, setup: &Setup, run: &Run) -> Outcome<()> {
        let is_near = matches!(run.purpose, Purpose::Near | Purpose::Equal);
        let is_settled = self.running.last().is_none_or(|running| running.settled);
        if !self.conditions.settles || !is_near || is_settled {
            return Ok(());
        }
        let duration_s = settle_s(setup);
        let load = Run {
            warmup_s: 0.0,
            duration_s,
            drain_s: 4.0,
            ..*run
        };
        let (mut child, path, _) = self.generate(setup, &load)?;
        self.finish(&mut child, &path, duration_s + load.drain_s)?;
        if let Some(running) = self.running.last_mut() {
            running.settled = true;
        }
        self.progress.done(duration_s);
        Ok(())
    }

    /// Starts the generator; where its report will be, and its seed.
    fn generate(&mut self, setup: &Setup, run: &Run) -> Outcome<(Child, PathBuf, u64)> {
        let ports = self.running.last().map(|running| running.ports);
        let ports = ports.ok_or_else(|| Failure::Failed("no server runs".to_owned()))?;
        self.runs += 1;
        // The bare relay knows its caller by the port.
        let is_known = setup.server == Server::BareRelay && setup.case.transport == Transport::Udp;
        let request = Request {
            operation: setup.case.operation,
            target: ports::local(ports.sip),
            transport: setup.case.transport,
            // A relay challenges no request.
            auth: setup.case.auth && !setup.server.is_relay(),
            rate: run.rate,
            warmup_s: run.warmup_s,
            duration_s: run.duration_s,
            drain_s: run.drain_s,
            // Another for each run, and the same for the same experiment.
            seed: self.seed.wrapping_add(u64::from(self.runs)),
            uas: (setup.case.operation == Operation::Call).then(|| ports::local(ports.uas)),
            // A relay does not ask to stay in the way.
            outbound: setup.server.is_relay() && setup.case.operation == Operation::Call,
            contact: (setup.case.operation == Operation::Register).then(|| ports::local(ports.uas)),
            local: is_known.then(|| ports::local(ports.caller)),
            tls: self.certificates(setup).map(Certificates::generator),
            users: USERS,
            ring_s: 0.0,
        };
        let (child, path) = self.start_load(&request)?;
        Ok((child, path, request.seed))
    }

    /// Starts the generator on its CPU; where its report will be.
    fn start_load(&self, request: &Request) -> Outcome<(Child, PathBuf)> {
        self.start_load_on(&[self.cpus.other], request)
    }

    /// Starts the generator on some CPUs; where its report will be.
    fn start_load_on(&self, cpus: &[usize], request: &Request) -> Outcome<(Child, PathBuf)> {
        let directory = self.directory("load");
        std::fs::create_dir_all(&directory).map_err(|error| Failure::failed(directory.display(), error))?;
        let path = directory.join(format!("report-{}.json", self.runs));
        let mut words = vec![self.program.clone().into_os_string()];
        words.extend(request.words(&path));
        let child = self.launcher.start(&Order {
            name: "load",
            words,
            directory: &directory,
            cpus,
            groups: &[],
            output: Output::Log,
        })?;
        Ok((child, path))
    }

    /// Waits for the generator's end and reads its report.
    fn finish(&mut self, child: &mut Child, path: &Path, seconds: f64) -> Outcome<Report> {
        let limit = Duration::from_secs_f64(seconds) + PATIENCE;
        match child.wait(limit)? {
            Some(status) if status.success() => {}
            Some(status) => {
                let said = child.said();
                return Err(Failure::Failed(format!(
                    "the generator failed ({status}):\n{said}"
                )));
            }
            None => {
                let said = child.said();
                return Err(Failure::Failed(format!("the generator does not end:\n{said}")));
            }
        }
        let failed = |error: &dyn std::fmt::Display| Failure::failed("the generator's report", error);
        let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
        // What is wanted of it is in the row.
        drop(std::fs::remove_file(path));
        serde_json::from_str(&text).map_err(|error| failed(&error))
    }

    fn read(&self) -> Outcome<Reading> {
        let running = self.running.last();
        let running = running.ok_or_else(|| Failure::Failed("no server runs".to_owned()))?;
        let with_database = servers::needs_database(&running.setup);
        Ok(Reading {
            server: cpu::sample(running.child.pid()),
            database: self
                .database
                .as_ref()
                .filter(|_| with_database)
                .map(|database| cpu::sample(database.pid())),
            relay: self
                .relay
                .as_ref()
                .filter(|_| running.setup.look_ups.is_some())
                .map(|relay| cpu::sample(relay.pid())),
        })
    }

    fn page(&self, setup: &Setup) -> Option<Page> {
        let running = self.running.last()?;
        let address = ports::local(running.ports.admin);
        (setup.server == Server::Trapezoid).then(|| metrics::read(address).ok())?
    }

    /// Waits through a run that began at `began`, and reads what is to be read.
    fn watch(&mut self, setup: &Setup, run: &Run, began: Instant) -> Outcome<Around> {
        let at = |seconds: f64| began + Duration::from_secs_f64(seconds.max(0.0));
        let margin = MARGIN_S.min(run.duration_s / 4.0);
        self.stop.sleep_until(at(run.warmup_s + margin))?;
        let page = self.page(setup);
        let counters = self.counters(setup)?;
        let before = self.read()?;
        self.stop
            .sleep_until(at(run.warmup_s + run.duration_s - margin))?;
        let after = self.read()?;
        let wire = match (counters, self.counters(setup)?) {
            (Some((from, before)), Some((to, after))) => {
                let seconds = (to - from).as_secs_f64();
                let way = |before: servers::Passed, after: servers::Passed| Direction {
                    bytes: after.bytes.saturating_sub(before.bytes) as f64,
                    wire_bytes: after.wire_bytes.saturating_sub(before.wire_bytes) as f64,
                    seconds,
                };
                Some(Wire {
                    queries: way(before.to_target, after.to_target),
                    answers: way(before.to_client, after.to_client),
                })
            }
            _ => None,
        };
        Ok(Around {
            before,
            after,
            pages: page.zip(self.page(setup)),
            wire,
        })
    }

    fn counters(&mut self, setup: &Setup) -> Outcome<Option<(Instant, servers::Counters)>> {
        match &mut self.relay {
            Some(relay) if setup.look_ups.is_some() => Ok(Some((Instant::now(), relay.counters()?))),
            _ => Ok(None),
        }
    }

    fn drops(&self) -> u64 {
        self.running
            .last()
            .map_or(0, |running| ports::drops(running.ports.sip))
    }
}

/// Whether a load was too much, so that the server still works on it when the next run begins. Near a peak some loss
/// belongs to the load, and a server that was settled is worth keeping.
fn leaves_work(run: &Run, load: &Report, drops: u64) -> bool {
    match run.purpose {
        Purpose::Near | Purpose::Equal => load.failed_part() > 0.05,
        Purpose::Look | Purpose::Fixed | Purpose::Curve | Purpose::Duel | Purpose::Beyond | Purpose::Rare => {
            load.failed_part() > 0.005 || drops > 0
        }
    }
}

/// All connections to a database far away are up before anything is measured.
fn wait_for_connections(setup: &Setup, ports: Ports, child: &mut Child) -> Outcome<()> {
    let (Some(look_ups), Server::Trapezoid) = (setup.look_ups, setup.server) else {
        return Ok(());
    };
    let address = ports::local(ports.admin);
    child.wait_until(CONNECTING, || {
        metrics::read(address).is_ok_and(|page| {
            page.total("trapezoid_credential_connections") >= f64::from(look_ups.connections)
        })
    })
}

fn batches((before, after): &(Page, Page)) -> Batches {
    let grown = |name: &str| after.total(name) - before.total(name);
    Batches {
        count: grown("trapezoid_credential_batches_total"),
        rows: grown("trapezoid_credential_batch_rows_total"),
        busy_us: grown("trapezoid_credential_batch_busy_seconds_total") * 1e6,
    }
}

fn used(before: Option<&Sample>, after: Option<&Sample>) -> Option<cpu::Used> {
    before.zip(after).map(|(before, after)| cpu::used(before, after))
}

impl Bench for Station<'_> {
    fn measure(&mut self, setup: &Setup, run: &Run) -> Outcome<Row> {
        self.stop.check()?;
        self.ensure(setup)?;
        self.settle(setup, run)?;
        let probe_ms = cpu::probe(self.cpus.server);
        let (at_s, drops) = (self.began.elapsed().as_secs_f64(), self.drops());
        let (mut child, path, seed) = self.generate(setup, run)?;
        let around = self.watch(setup, run, Instant::now())?;
        let load = self.finish(&mut child, &path, run.warmup_s + run.duration_s + run.drain_s)?;
        let drops = self.drops().saturating_sub(drops);
        let verdict = load.judge(setup.case.operation, &run.criterion);
        if let Some(running) = self.running.last_mut() {
            running.dirty = leaves_work(run, &load, drops);
            if let Some(status) = running.child.status() {
                let said = running.child.said();
                return Err(Failure::Failed(format!(
                    "{} ended under load ({status}):\n{said}",
                    setup.text()
                )));
            }
        }
        let mut row = Row {
            setup: *setup,
            run: *run,
            seed,
            at_s,
            verdict,
            server: cpu::used(&around.before.server, &around.after.server),
            database: used(around.before.database.as_ref(), around.after.database.as_ref()),
            relay: used(around.before.relay.as_ref(), around.after.relay.as_ref()),
            wire: around.wire,
            batches: around
                .pages
                .as_ref()
                .filter(|_| setup.look_ups.is_some())
                .map(batches),
            components: around
                .pages
                .as_ref()
                .map_or_else(BTreeMap::new, |(before, after)| after.components_since(before)),
            counters_s: around
                .pages
                .as_ref()
                .map_or(0.0, |(before, after)| (after.at - before.at).as_secs_f64()),
            drops,
            probe_ms,
            load,
        };
        row.verdict = row.judged(row.verdict);
        self.progress.ran(&row);
        Ok(row)
    }

    fn absent(&mut self, setup: &Setup) -> Option<Absent> {
        servers::missing(setup).map(|why| Absent {
            what: setup.text(),
            why,
        })
    }

    fn keep(&mut self, servers: usize) {
        self.servers = servers;
    }

    fn progress(&mut self) -> &mut Progress {
        self.progress
    }

    fn plan(&mut self, setup: &Setup, costs: &PlanCosts) -> Outcome<serde_json::Value> {
        self.ensure(setup)?;
        let running = self.running.last();
        let running = running.ok_or_else(|| Failure::Failed("no server runs".to_owned()))?;
        let mut command = std::process::Command::new(&self.program);
        let us = |value: f64| format!("{value:.1}us");
        command
            .current_dir(&running.directory)
            .args(["plan", "auth", "--calibrate", "--json"]);
        for (option, value) in [
            ("--config", "trapezoid.toml".to_owned()),
            ("--rtt", format!("{}ms", self.conditions.rtt_ms)),
            ("--target", "100".to_owned()),
            ("--max-connections", "512".to_owned()),
            ("--max-batch", "128".to_owned()),
            ("--cpu-per-call", us(costs.per_call_us)),
            // What is late is the relay, not the database: how many batches it works on at once is no limit here.
            ("--db-cores", "64".to_owned()),
            ("--db-cpu-fixed", us(64.0 * costs.batch_us)),
            ("--db-cpu-per-row", us(64.0 * costs.row_us)),
        ] {
            command.args([option, &value]);
        }
        let text = programs::run(&mut command, "").map_err(Failure::Failed)?;
        serde_json::from_str(&text).map_err(|error| Failure::failed("the plan", error))
    }

    fn step(&mut self, step: &Step, pace: &Pace) -> Outcome<Measured> {
        self.make(step, pace)
    }

    fn absent_step(&mut self, step: &Step) -> Option<Absent> {
        servers::cannot_listen(step.server(), step.kind()).map(|why| Absent {
            what: format!("{} by {}", step.server().name(), step.kind().text()),
            why: why.to_owned(),
        })
    }
}
