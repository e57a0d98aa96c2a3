//! Calls on the workers of one server: how they spread, and what the workers' CPU time goes into.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use serde::Deserialize;

use super::holding::Holder;
use super::steps::{seconds, slim};
use super::{MARGIN_S, Station};
use crate::admin;
use crate::case::{CallScenario, Server, Setup};
use crate::cpu;
use crate::failure::{Failure, Outcome};
use crate::load::{Operation, Request, USERS};
use crate::metrics::{self, Page};
use crate::process::{Child, ports};
use crate::servers::Certificates;
use crate::steps::{Pace, Part, SPLIT_TURN_S, SplitTime, Spread, WORKER, split_load_s};

/// Seconds after which calls that have not ended are given up.
const DRAIN_S: f64 = 10.0;
/// What each worker has received.
const REQUESTS: &str = "trapezoid_requests_received_total";
const RESPONSES: &str = "trapezoid_responses_received_total";
/// Where the split of CPU time is switched and said.
const SPLIT: &str = "/api/v1/cpu-split";
/// How often the split is switched before that counts as impossible: on a machine that stalls not all workers obey in
/// time.
const TRIES: usize = 5;

/// Calls, all from one port.
#[derive(Clone, Copy, Debug)]
struct Offer {
    rate: f64,
    warmup_s: f64,
    duration_s: f64,
}

/// The switch of the split in a running server.
#[derive(Debug)]
struct Switch {
    address: SocketAddr,
    token: String,
}

/// What the server says of its CPU time, as far as it is wanted.
#[derive(Debug, Deserialize)]
struct Said {
    components: Vec<Part>,
    workers: Vec<SaidWorker>,
}

#[derive(Debug, Deserialize)]
struct SaidWorker {
    turns_measured: u64,
}

impl Switch {
    fn of(holder: &Holder) -> Outcome<Self> {
        let path = holder.directory.join("data/admin.token");
        let token = fs::read_to_string(&path).map_err(|error| Failure::failed(path.display(), error))?;
        Ok(Self {
            address: ports::local(holder.ports.admin),
            token: token.trim().to_owned(),
        })
    }

    fn ask(&self, method: &str, body: &str) -> Outcome<String> {
        let what = format!("{method} {SPLIT}");
        let mut tries = 1;
        loop {
            match admin::ask(self.address, &what, Some(&self.token), body) {
                Ok(page) => return Ok(page),
                Err(_) if tries < TRIES => tries += 1,
                Err(error) => return Err(Failure::failed("the split of CPU time", error)),
            }
        }
    }

    fn set(&self, on: bool) -> Outcome<()> {
        self.ask("PUT", &format!("{{\"on\": {on}}}")).map(drop)
    }

    fn said(&self) -> Outcome<Said> {
        let page = self.ask("GET", "")?;
        serde_json::from_str(&page).map_err(|error| Failure::failed("the split of CPU time", error))
    }
}

/// Seconds on a CPU of the workers of a server.
fn of_workers(holder: &Holder) -> f64 {
    let threads = cpu::threads(holder.child.pid()).into_iter();
    let workers = threads.filter(|(name, _)| name.starts_with(WORKER));
    workers.map(|(_, seconds)| seconds).sum()
}

fn page(holder: &Holder) -> Outcome<Page> {
    let page = metrics::read_by_worker(ports::local(holder.ports.admin));
    page.map_err(|error| Failure::failed("the server's metrics", error))
}

/// What a metric of each worker has grown by.
fn grown(before: &Page, after: &Page, name: &str) -> Vec<f64> {
    let pairs = after.by_worker(name).into_iter().zip(before.by_worker(name));
    pairs.map(|(after, before)| after - before).collect()
}

impl Station<'_> {
    /// Starts calls, by a generator on some CPUs.
    fn call(&mut self, holder: &Holder, offer: &Offer, cpus: &[usize]) -> Outcome<(Child, PathBuf)> {
        self.runs += 1;
        let case = holder.setup.case;
        let request = Request {
            operation: Operation::Call,
            target: ports::local(holder.ports.sip),
            transport: case.transport,
            auth: case.auth,
            rate: offer.rate,
            warmup_s: offer.warmup_s,
            duration_s: offer.duration_s,
            drain_s: DRAIN_S,
            seed: self.seed.wrapping_add(u64::from(self.runs)),
            uas: Some(ports::local(holder.ports.uas)),
            outbound: false,
            contact: None,
            local: None,
            tls: self.certificates(&holder.setup).map(Certificates::generator),
            users: USERS,
            ring_s: 0.0,
        };
        self.start_load_on(cpus, &request)
    }

    /// Calls on a server with so many workers. Two workers and a generator need more than one CPU: in either case all
    /// of them may use both.
    pub(super) fn spread(
        &mut self,
        scenario: CallScenario,
        workers: u32,
        rate: u32,
        pace: &Pace,
    ) -> Outcome<Spread> {
        let cpus = [self.cpus.server, self.cpus.other];
        let setup = Setup::of(Server::Trapezoid, scenario.case());
        let holder = self.holder_on(&cpus, setup, workers)?;
        let offer = Offer {
            rate: f64::from(rate),
            warmup_s: 2.0 * pace.warm_s,
            duration_s: pace.run_s,
        };
        let (mut child, path) = self.call(&holder, &offer, &cpus)?;
        let (began, margin) = (Instant::now(), MARGIN_S.min(offer.duration_s / 4.0));
        self.stop.sleep_until(began + seconds(offer.warmup_s + margin))?;
        let page_before = page(&holder)?;
        let before = cpu::sample(holder.child.pid());
        let end = offer.warmup_s + offer.duration_s;
        self.stop.sleep_until(began + seconds(end - margin))?;
        let after = cpu::sample(holder.child.pid());
        let page_after = page(&holder)?;
        let load = self.finish(&mut child, &path, end + DRAIN_S)?;
        Ok(Spread {
            load: slim(load),
            server: cpu::used(&before, &after),
            requests: grown(&page_before, &page_after, REQUESTS),
            responses: grown(&page_before, &page_after, RESPONSES),
        })
    }

    /// Share of a CPU that the worker uses with the split on or off.
    fn busy(&self, holder: &Holder, switch: &Switch, on: bool) -> Outcome<f64> {
        switch.set(on)?;
        let (began, before) = (Instant::now(), of_workers(holder));
        self.stop.sleep(seconds(SPLIT_TURN_S))?;
        let (took, after) = (began.elapsed(), of_workers(holder));
        Ok(cpu::ratio(after - before, took.as_secs_f64()))
    }

    /// The split off and on in turn under one steady load, then on for `time` seconds. Whatever else the machine does
    /// falls on both of a turn alike.
    pub(super) fn split(
        &mut self,
        scenario: CallScenario,
        (rate, warm): (u32, u32),
        (turns, time): (u32, u32),
    ) -> Outcome<SplitTime> {
        let cpus = self.cpus;
        let setup = Setup::of(Server::Trapezoid, scenario.case());
        let holder = self.holder_on(&[cpus.server], setup, 1)?;
        let switch = Switch::of(&holder)?;
        let offer = Offer {
            rate: f64::from(rate),
            warmup_s: f64::from(warm),
            duration_s: split_load_s(turns, time),
        };
        let (mut child, path) = self.call(&holder, &offer, &[cpus.other])?;
        self.stop.sleep(seconds(offer.warmup_s + 2.0 * MARGIN_S))?;
        let mut found = SplitTime::default();
        for turn in 0..turns {
            // Off and on, then on and off.
            let begins_on = turn % 2 == 1;
            let first = self.busy(&holder, &switch, begins_on)?;
            let second = self.busy(&holder, &switch, !begins_on)?;
            let (off, on) = if begins_on {
                (second, first)
            } else {
                (first, second)
            };
            found.turns.push((off, on));
        }
        // From zero.
        switch.set(false)?;
        switch.set(true)?;
        let before = of_workers(&holder);
        self.stop.sleep(seconds(f64::from(time)))?;
        let said = switch.said()?;
        found.thread_s = of_workers(&holder) - before;
        found.parts = said.components;
        found.measured = said.workers.iter().map(|worker| worker.turns_measured).sum();
        if child.status().is_some() {
            let text = "the load ended before the split was measured: the machine stalls";
            return Err(Failure::Failed(text.to_owned()));
        }
        found.load = slim(self.finish(&mut child, &path, offer.duration_s + DRAIN_S)?);
        Ok(found)
    }
}
