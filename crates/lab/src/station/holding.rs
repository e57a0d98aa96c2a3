//! Memory of what a server holds: transactions that come and go, calls that ring, contacts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::Station;
use super::steps::{seconds, slim};
use crate::case::{Case, Server, Setup, State};
use crate::failure::Outcome;
use crate::load::{Operation, Request, Transport, USERS};
use crate::memory::resident;
use crate::metrics::{self, Page};
use crate::process::{Child, ports};
use crate::servers::{self, Ports, Site, fresh};
use crate::steps::{Held, Pace};

/// Between looks at the memory of a server.
const LOOK: Duration = Duration::from_secs(1);
/// Seconds after which calls that have not ended are given up.
const DRAIN_S: f64 = 10.0;
/// Calls and registrations a second that no server finds too much.
const CALLS: f64 = 3_000.0;
const REGISTRATIONS: f64 = 5_000.0;
/// Users that have registered before memory is looked at first.
const FEW: u32 = 100;
/// Seconds that calls ring on after the last has begun.
const RING_ON_S: f64 = 5.0;
/// Gauges of what a server holds of calls.
const GAUGES: [&str; 4] = [
    "trapezoid_server_transactions",
    "trapezoid_client_transactions",
    "trapezoid_timers",
    "trapezoid_parked_requests",
];

/// A server of one step, and where it is.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) child: Child,
    pub(super) setup: Setup,
    pub(super) ports: Ports,
    pub(super) directory: PathBuf,
}

impl Holder {
    fn memory(&self) -> u64 {
        resident(self.child.pid())
    }

    /// What the server says of itself; Kamailio is not asked.
    fn page(&self) -> Option<Page> {
        let page = || metrics::read(ports::local(self.ports.admin)).ok();
        (self.setup.server == Server::Trapezoid).then(page)?
    }

    /// Transactions of both kinds.
    fn transactions(&self) -> Option<f64> {
        let page = self.page()?;
        let [servers, clients, ..] = GAUGES;
        Some(page.total(servers) + page.total(clients))
    }

    /// Gauges that are not 0.
    fn left(&self) -> Option<BTreeMap<String, f64>> {
        let page = self.page()?;
        let each = GAUGES.iter().map(|name| ((*name).to_owned(), page.total(name)));
        Some(each.filter(|(_, value)| *value > 0.0).collect())
    }
}

impl Station<'_> {
    fn holder(&self, server: Server, case: Case) -> Outcome<Holder> {
        self.holder_on(&[self.cpus.server], Setup::of(server, case), 1)
    }

    /// Starts a server with so many workers on some CPUs, in an empty directory.
    pub(super) fn holder_on(&self, cpus: &[usize], setup: Setup, workers: u32) -> Outcome<Holder> {
        let directory = self.directory("holder");
        fresh(&directory)?;
        let ports = Ports::free()?;
        let site = Site {
            launcher: &self.launcher,
            program: &self.program,
            directory: directory.clone(),
            ports,
            cpus,
            workers,
            groups: &[],
            database: None,
            certificates: self.certificates(&setup),
        };
        let child = servers::start(&setup, &site)?;
        Ok(Holder {
            child,
            setup,
            ports,
            directory,
        })
    }

    /// Starts calls or registrations by so many users.
    fn hold(
        &mut self,
        holder: &Holder,
        (rate, duration_s): (f64, f64),
        users: u32,
        ring_s: f64,
    ) -> Outcome<(Child, PathBuf)> {
        self.runs += 1;
        let operation = holder.setup.case.operation;
        let uas = ports::local(holder.ports.uas);
        let request = Request {
            operation,
            target: ports::local(holder.ports.sip),
            transport: Transport::Udp,
            auth: false,
            rate,
            warmup_s: 0.0,
            duration_s,
            drain_s: DRAIN_S + ring_s,
            seed: self.seed.wrapping_add(u64::from(self.runs)),
            uas: (operation == Operation::Call).then_some(uas),
            outbound: false,
            contact: (operation == Operation::Register).then_some(uas),
            local: None,
            tls: None,
            users,
            ring_s,
        };
        self.start_load(&request)
    }

    /// Calls that come and go: at the end nearly all transactions are finished ones that wait for timers.
    pub(super) fn transactions(&mut self, server: Server, rate: u32, time: u32, quiet: u32) -> Outcome<Held> {
        let holder = self.holder(server, Case::call(State::Transaction, false, Transport::Udp))?;
        let (mut first, path) = self.hold(&holder, (100.0, 1.0), USERS, 0.0)?;
        self.finish(&mut first, &path, 1.0 + DRAIN_S)?;
        let before = holder.memory();
        let (mut most, mut things) = (before, holder.transactions());
        let time = f64::from(time);
        let (mut child, path) = self.hold(&holder, (f64::from(rate), time), USERS, 0.0)?;
        let end = Instant::now() + seconds(time);
        while Instant::now() < end {
            self.stop.sleep_until((Instant::now() + LOOK).min(end))?;
            let now = holder.memory();
            if now >= most {
                (most, things) = (now, holder.transactions());
            }
        }
        let load = self.finish(&mut child, &path, time + DRAIN_S)?;
        self.stop.sleep(seconds(f64::from(quiet)))?;
        Ok(Held {
            load: slim(load),
            before,
            most,
            after: holder.memory(),
            things,
            left: holder.left(),
        })
    }

    /// Calls that all ring at once: two transactions each that still hold their messages.
    pub(super) fn ringing(&mut self, server: Server, calls: u32, quiet: u32) -> Outcome<Held> {
        let holder = self.holder(server, Case::call(State::Transaction, false, Transport::Udp))?;
        let before = holder.memory();
        let time = f64::from(calls) / CALLS;
        let (mut child, path) = self.hold(&holder, (CALLS, time), USERS, time + RING_ON_S)?;
        self.stop.sleep(seconds(time + RING_ON_S / 2.0))?;
        let (most, things) = (holder.memory(), holder.transactions());
        let load = self.finish(&mut child, &path, 2.0 * time + RING_ON_S + DRAIN_S)?;
        self.stop.sleep(seconds(f64::from(quiet)))?;
        Ok(Held {
            load: slim(load),
            before,
            most,
            after: holder.memory(),
            things,
            left: if quiet > 0 { holder.left() } else { None },
        })
    }

    /// Registrations in memory. Ours keeps no state, so that no transaction is in the figure.
    pub(super) fn contacts(&mut self, server: Server, contacts: u32, pace: &Pace) -> Outcome<Held> {
        let case = Case {
            state: State::Stateless,
            ..Case::register(false, false)
        };
        let holder = self.holder(server, case)?;
        let (mut first, path) = self.hold(&holder, (f64::from(FEW), 1.2), FEW, 0.0)?;
        self.finish(&mut first, &path, 1.2 + DRAIN_S)?;
        let before = holder.memory();
        // One round over all users, and a little more, because arrivals are random.
        let time = 1.05 * f64::from(contacts) / REGISTRATIONS + 0.5;
        let (mut child, path) = self.hold(&holder, (REGISTRATIONS, time), contacts, 0.0)?;
        let load = self.finish(&mut child, &path, time + DRAIN_S)?;
        let most = holder.memory();
        self.stop.sleep(seconds(pace.settle_s))?;
        Ok(Held {
            load: slim(load),
            before,
            most,
            after: holder.memory(),
            things: Some(f64::from(contacts.saturating_sub(FEW))),
            left: None,
        })
    }
}
