//! Steps, measured: a server that listens for a crowd, the crowd, and calls beside it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::crowd::{Clients, Crowd, Ground};
use super::{MARGIN_S, Station};
use crate::case::Server;
use crate::cpu;
use crate::crowd::said;
use crate::failure::Outcome;
use crate::load::{Operation, Report, Request, Transport, USERS};
use crate::memory::{kernel, resident};
use crate::metrics;
use crate::process::{Child, ports};
use crate::servers::{Listener, Ports, Site, fresh, listen};
use crate::steps::{
    Beside, Calls, Figures, Handshake, Key, Kind, Measured, Memory, Messages, Pace, Siege, Step, Storm,
};

/// How long a crowd may take to come.
const COMING: Duration = Duration::from_secs(900);
/// How long a crowd may take to say what it did, beyond the time that it was given.
const SAYING: Duration = Duration::from_secs(60);
/// Connections that bring code and tables into memory; what they leave free for the others is little.
const FEW: u32 = 20;
/// Between looks at the memory of a server.
const LOOK: Duration = Duration::from_millis(500);
/// Seconds after which calls that have not ended are given up.
const DRAIN_S: f64 = 4.0;
/// Part of its CPU that the part `messages` wants a server to use.
const BUSY: f64 = 0.7;

/// A server that listens for a crowd.
#[derive(Debug)]
struct Host {
    child: Child,
    server: Server,
    directory: PathBuf,
    ports: Ports,
    /// Where the crowd goes.
    port: u16,
    kind: Kind,
    key: Key,
    has_much_to_wait: bool,
}

impl Host {
    fn target(&self, kind: Kind) -> Option<(Kind, u16)> {
        Some((kind, self.port))
    }

    /// Connections that the server says it has; Kamailio is not asked.
    fn known(&self) -> Option<f64> {
        let page = || metrics::read(ports::local(self.ports.admin)).ok();
        (self.server == Server::Trapezoid)
            .then(page)?
            .map(|page| page.total("trapezoid_connections"))
    }
}

pub(super) fn seconds(value: f64) -> Duration {
    Duration::from_secs_f64(value.max(0.0))
}

impl Station<'_> {
    /// Makes a step.
    pub(super) fn make(&mut self, step: &Step, pace: &Pace) -> Outcome<Measured> {
        self.stop.check()?;
        self.leave(0);
        if step.needs_certificates() {
            self.certify()?;
        }
        crate::machine::descriptors()
            .map_err(|error| crate::failure::Failure::failed("the limit of descriptors", error))?;
        let (at_s, probe_ms) = (self.began.elapsed().as_secs_f64(), cpu::probe(self.cpus.server));
        let figures = match *step {
            Step::Memory {
                server,
                kind,
                clients,
            } => Figures::Memory(self.memory(server, kind, clients, pace)?),
            Step::Messages { few, many, rounds } => {
                Figures::Messages(self.messages([few, many], rounds, pace)?)
            }
            Step::Attackers { slow, deaf, .. } => {
                Figures::Attackers(Box::new(self.attackers(slow, deaf, pace)?))
            }
            Step::InMemory => Figures::InMemory(self.in_memory(pace)?),
            Step::Handshakes { server, key, .. } => Figures::Handshakes(self.handshakes(server, key, pace)?),
            Step::Storm { server, clients, .. } => {
                Figures::Storm(Box::new(self.storm(server, clients, pace)?))
            }
            Step::Transactions {
                server,
                rate,
                seconds,
                quiet,
            } => Figures::Held(Box::new(self.transactions(server, rate, seconds, quiet)?)),
            Step::Ringing { server, calls, quiet } => {
                Figures::Held(Box::new(self.ringing(server, calls, quiet)?))
            }
            Step::Contacts { server, contacts } => {
                Figures::Held(Box::new(self.contacts(server, contacts, pace)?))
            }
            Step::Workers {
                scenario,
                workers,
                rate,
                ..
            } => Figures::Workers(Box::new(self.spread(scenario, workers, rate, pace)?)),
            Step::Split {
                scenario,
                rate,
                warm,
                turns,
                seconds,
            } => Figures::Split(Box::new(self.split(scenario, (rate, warm), (turns, seconds))?)),
            Step::Pings(plan) => Figures::Pings(Box::new(self.pings(&plan)?)),
        };
        Ok(Measured {
            step: *step,
            at_s,
            probe_ms,
            figures,
        })
    }

    /// Starts a server for a crowd, in an empty directory.
    fn host(
        &self,
        name: &str,
        server: Server,
        kind: Kind,
        key: Key,
        has_much_to_wait: bool,
    ) -> Outcome<Host> {
        let [sip, uas, admin, caller, port] = ports::free()?;
        let directory = self.directory(name);
        fresh(&directory)?;
        let ports = Ports {
            sip,
            uas,
            admin,
            caller,
        };
        let child = self.listening(server, &directory, ports, (kind, port, key, has_much_to_wait))?;
        Ok(Host {
            child,
            server,
            directory,
            ports,
            port,
            kind,
            key,
            has_much_to_wait,
        })
    }

    fn listening(
        &self,
        server: Server,
        directory: &std::path::Path,
        ports: Ports,
        (kind, port, key, has_much_to_wait): (Kind, u16, Key, bool),
    ) -> Outcome<Child> {
        let certificates = self.certificates.as_ref();
        let certificates = certificates
            .ok_or_else(|| crate::failure::Failure::Failed("there is no certificate".to_owned()))?;
        let listener = Listener {
            kind,
            port,
            key,
            certificates,
            has_much_to_wait,
        };
        let site = Site {
            launcher: &self.launcher,
            program: &self.program,
            directory: directory.to_owned(),
            ports,
            cpus: &[self.cpus.server],
            workers: 1,
            groups: &[],
            database: None,
            certificates: None,
        };
        listen(server, &listener, &site)
    }

    /// Ends a server and starts it again where it was.
    fn restart(&self, host: &mut Host) -> Outcome<()> {
        host.child.end();
        let what = (host.kind, host.port, host.key, host.has_much_to_wait);
        host.child = self.listening(host.server, &host.directory, host.ports, what)?;
        Ok(())
    }

    /// Starts clients, in a directory for their logs: that of their host, so that crowds of two hosts do not share one.
    fn crowd(&self, host: &Host, clients: &Clients<'_>) -> Outcome<Crowd> {
        let ground = Ground {
            launcher: &self.launcher,
            program: &self.program,
            directory: &host.directory,
            cpu: self.cpus.other,
        };
        Crowd::start(&ground, clients)
    }

    fn idle(&self, host: &Host, kind: Kind, count: u32) -> Outcome<Crowd> {
        let options = [("count", count.to_string())];
        self.crowd(host, &Clients::new("idle", host.target(kind), &options))
    }

    // ---------------------------------------------------------------- idle connections

    fn memory(&mut self, server: Server, kind: Kind, clients: u32, pace: &Pace) -> Outcome<Memory> {
        let host = self.host("host", server, kind, Key::P256, false)?;
        let settle = seconds(pace.settle_s);
        let mut few = self.idle(&host, kind, FEW)?;
        few.ready(COMING)?;
        few.row::<said::Idle>(SAYING)?;
        self.stop.sleep(settle)?;
        let (before, kernel_before) = (resident(host.child.pid()), kernel()?);
        let mut many = self.idle(&host, kind, clients)?;
        many.ready(COMING)?;
        self.stop.sleep(settle)?;
        let (most, kernel_after, known) = (resident(host.child.pid()), kernel()?, host.known());
        let crowd = many.row(SAYING)?;
        self.stop.sleep(settle)?;
        Ok(Memory {
            crowd,
            known,
            left: host.known(),
            before,
            most,
            after: resident(host.child.pid()),
            kernel: kernel_after.since(kernel_before),
        })
    }

    // ---------------------------------------------------------------- work for each message

    /// Both servers and both crowds stay, and take turns: forwards in one round and backwards in the next.
    fn messages(&mut self, [few, many]: [u32; 2], rounds: u32, pace: &Pace) -> Outcome<Messages> {
        let (hosts, rate) = {
            let first = self.host("few", Server::Trapezoid, Kind::Tls13, Key::P256, true)?;
            let rate = self.busy_rate(&first, pace)?;
            let second = self.host("many", Server::Trapezoid, Kind::Tls13, Key::P256, true)?;
            self.calls(&second, rate, 0.0, pace.warm_s)?;
            ([first, second], rate)
        };
        let mut crowds = Vec::new();
        for (host, count) in hosts.iter().zip([few, many]) {
            let mut crowd = self.idle(host, Kind::Tls13, count)?;
            crowd.ready(COMING)?;
            crowds.push(crowd);
        }
        self.stop.sleep(seconds(pace.settle_s))?;
        let mut found = Messages::default();
        for round in 1..=rounds {
            let mut turns: Vec<(&Host, u32)> = hosts.iter().zip([few, many]).collect();
            if round % 2 == 0 {
                turns.reverse();
            }
            for (host, idle) in turns {
                let calls = self.calls(host, rate, 0.1 * pace.run_s, pace.run_s)?;
                found.runs.push(Beside { idle, round, calls });
            }
        }
        for mut crowd in crowds {
            found.crowds.push(crowd.row(SAYING)?);
        }
        Ok(found)
    }

    /// Calls a second that keep a server busy for about [`BUSY`] of its CPU: a call costs less as the CPU fills.
    fn busy_rate(&mut self, host: &Host, pace: &Pace) -> Outcome<f64> {
        let mut rate = pace.rate;
        for _ in 0..pace.looks {
            let calls = self.calls(host, rate, 0.2, pace.run_s.min(3.0))?;
            let us = calls.server.us_each(calls.load.goodput);
            if us > 0.0 {
                rate = (BUSY * 1e6 / us).min(pace.most_rate);
            }
        }
        Ok(rate)
    }

    // ---------------------------------------------------------------- calls over one connection

    /// Starts calls by TCP to a server.
    fn offer(&mut self, host: &Host, rate: f64, warmup_s: f64, duration_s: f64) -> Outcome<(Child, PathBuf)> {
        self.runs += 1;
        let request = Request {
            operation: Operation::Call,
            target: ports::local(host.ports.sip),
            transport: Transport::Tcp,
            auth: false,
            rate,
            warmup_s,
            duration_s,
            drain_s: DRAIN_S,
            seed: self.seed.wrapping_add(u64::from(self.runs)),
            uas: Some(ports::local(host.ports.uas)),
            outbound: false,
            contact: None,
            local: None,
            tls: None,
            users: USERS,
            ring_s: 0.0,
        };
        self.start_load(&request)
    }

    /// Calls by TCP, with the CPU of the server meanwhile and the most memory that it had.
    fn calls(&mut self, host: &Host, rate: f64, warmup_s: f64, duration_s: f64) -> Outcome<Calls> {
        let (mut child, path) = self.offer(host, rate, warmup_s, duration_s)?;
        let began = Instant::now();
        let margin = MARGIN_S.min(duration_s / 4.0);
        self.stop.sleep_until(began + seconds(warmup_s + margin))?;
        let pid = host.child.pid();
        let before = cpu::sample(pid);
        let end = began + seconds(warmup_s + duration_s - margin);
        let (mut memory, mut buffers) = (0, 0);
        loop {
            self.stop.sleep_until((Instant::now() + LOOK).min(end))?;
            if Instant::now() >= end {
                break;
            }
            memory = memory.max(resident(pid));
            buffers = buffers.max(kernel()?.buffers);
        }
        let after = cpu::sample(pid);
        memory = memory.max(resident(pid));
        buffers = buffers.max(kernel()?.buffers);
        let load = self.finish(&mut child, &path, warmup_s + duration_s + DRAIN_S)?;
        Ok(Calls {
            rate,
            load: slim(load),
            server: cpu::used(&before, &after),
            memory,
            buffers,
        })
    }

    // ---------------------------------------------------------------- attackers

    fn attackers(&mut self, slow: u32, deaf: u32, pace: &Pace) -> Outcome<Siege> {
        let host = self.host("host", Server::Trapezoid, Kind::Tls13, Key::P256, false)?;
        self.calls(&host, pace.rate, 0.0, pace.warm_s)?;
        let (before, buffers) = (resident(host.child.pid()), kernel()?.buffers);
        let calm = self.calls(&host, pace.rate, 0.1 * pace.run_s, pace.run_s)?;
        let count = |count: u32| ("count", count.to_string());
        let rate = ("rate", pace.deaf_rate.to_string());
        let attackers = |mode: &'static str, options: &[(&'static str, String)]| Clients {
            idle_priority: true,
            ..Clients::new(mode, host.target(Kind::Tls13), options)
        };
        let mut slow = self.crowd(&host, &attackers("loris", &[count(slow)]))?;
        let mut deaf = self.crowd(&host, &attackers("deaf", &[count(deaf), rate]))?;
        slow.ready(COMING)?;
        deaf.ready(COMING)?;
        self.stop.sleep(seconds(pace.siege_s))?;
        let attacked = self.calls(&host, pace.rate, 0.1 * pace.run_s, pace.run_s)?;
        Ok(Siege {
            calm,
            attacked,
            slow: slow.row(SAYING)?,
            deaf: deaf.row(SAYING)?,
            before,
            buffers,
        })
    }

    // ---------------------------------------------------------------- handshakes

    fn in_memory(&mut self, pace: &Pace) -> Outcome<Vec<said::Crypto>> {
        let directory = self.directory("certificates");
        let options = [
            ("seconds", pace.alone_s.to_string()),
            ("certificates", directory.display().to_string()),
        ];
        let ground = Ground {
            launcher: &self.launcher,
            program: &self.program,
            directory: &directory,
            // Where servers are when they shake hands.
            cpu: self.cpus.server,
        };
        // Two keys, two versions, full and resumed, by two interfaces.
        let limit = SAYING + seconds(16.0 * pace.alone_s);
        Crowd::start(&ground, &Clients::new("crypto", None, &options))?.rows(limit)
    }

    fn handshakes(&mut self, server: Server, key: Option<Key>, pace: &Pace) -> Outcome<Vec<Handshake>> {
        let Some(key) = key else {
            let host = self.host("host", server, Kind::Tcp, Key::P256, false)?;
            return Ok(vec![self.shaken(&host, Kind::Tcp, false, pace)?]);
        };
        let host = self.host("host", server, Kind::Tls13, key, false)?;
        let mut found = Vec::new();
        for kind in [Kind::Tls13, Kind::Tls12] {
            for resumed in [false, true] {
                found.push(self.shaken(&host, kind, resumed, pace)?);
            }
        }
        Ok(found)
    }

    fn shaken(&mut self, host: &Host, kind: Kind, resumed: bool, pace: &Pace) -> Outcome<Handshake> {
        let shake = |station: &Self, time: f64| -> Outcome<said::Handshakes> {
            let mut options = vec![("seconds", time.to_string())];
            options.extend(resumed.then(|| ("resume", String::new())));
            let clients = Clients::new("handshakes", host.target(kind), &options);
            station.crowd(host, &clients)?.row(SAYING + seconds(time))
        };
        shake(self, pace.warm_s.min(1.0))?;
        let before = cpu::sample(host.child.pid());
        let crowd = shake(self, pace.shake_s)?;
        let after = cpu::sample(host.child.pid());
        Ok(Handshake {
            version: match kind {
                Kind::Tcp => "",
                Kind::Tls12 => "1.2",
                Kind::Tls13 | Kind::Wss => "1.3",
            }
            .to_owned(),
            resumed,
            crowd,
            server: cpu::used(&before, &after),
        })
    }

    // ---------------------------------------------------------------- all come back at once

    fn storm(&mut self, server: Server, clients: u32, pace: &Pace) -> Outcome<Storm> {
        let mut host = self.host("host", server, Kind::Tls13, Key::P256, false)?;
        let options = [
            ("count", clients.to_string()),
            ("give-up", pace.give_up_s.to_string()),
        ];
        let mut crowd = self.crowd(&host, &Clients::new("storm", host.target(Kind::Tls13), &options))?;
        let remembered = crowd.ready(COMING)?;
        self.restart(&mut host)?;
        // Of ours, calls beside. The crowd comes amid them.
        let calls = match server {
            Server::Trapezoid => {
                let load = self.offer(&host, pace.rate, 0.0, pace.run_s)?;
                self.stop.sleep(seconds(pace.run_s / 10.0))?;
                Some(load)
            }
            Server::Kamailio | Server::Floor | Server::BareRelay => None,
        };
        let before = cpu::sample(host.child.pid());
        crowd.go()?;
        let said = crowd.row(SAYING + seconds(pace.give_up_s))?;
        let after = cpu::sample(host.child.pid());
        let calls = match calls {
            Some((mut child, path)) => Some(slim(self.finish(&mut child, &path, pace.run_s + DRAIN_S)?)),
            None => None,
        };
        Ok(Storm {
            remembered,
            crowd: said,
            server: cpu::used(&before, &after),
            calls,
        })
    }
}

/// Distributions and seconds of each run are not kept.
pub(super) fn slim(mut load: Report) -> Report {
    load.series.clear();
    for times in load.response_ms.values_mut() {
        times.cdf.clear();
    }
    load
}
