//! One run: the nodes, the network between them and virtual time.

use std::net::SocketAddr;

use crate::agent::Agent;
use crate::checker;
use crate::clock::{Micros, Queue, SECOND};
use crate::net::Net;
use crate::node::{Node, NodeId, Outgoing};
use crate::proxy::Proxy;
use crate::report::CallReport;
use crate::rng::Rng;
use crate::runner::Outcome;
use crate::scenario::{PROXY_A, PROXY_B, Scenario};
use crate::trace::{Facts, Log, Sent, Station};

/// Nothing may go on for longer than this: the last call begins after some 13 minutes, and no
/// timer is longer than ten.
const LONGEST: Micros = 3_600 * SECOND;
/// Nor may a run send more than this.
const MOST_MESSAGES: usize = 200_000;
/// Nor may a node want to be woken at one instant more often than this.
const MOST_WAKES: u32 = 1_000;

/// A datagram on its way.
#[derive(Debug)]
struct Arrival {
    from: NodeId,
    to: NodeId,
    index: usize,
}

/// Changes a node before the run: how the mutants get in.
pub type Wrap<'a> = &'a dyn Fn(NodeId, Box<dyn Node>) -> Box<dyn Node>;

/// Runs `seed`.
pub fn run(seed: u64) -> Outcome<Scenario> {
    run_with(seed, &|_, node| node)
}

/// Runs `seed` with nodes changed by `wrap`.
pub fn run_with(seed: u64, wrap: Wrap<'_>) -> Outcome<Scenario> {
    let scenario = Scenario::of(seed);
    let mut world = World::new(&scenario, wrap);
    world.run(scenario.heal_at);
    world.end(scenario, |scenario, world, reports| {
        checker::check(scenario, &world.stations, &world.log, reports)
    })
}

/// Nodes at their places, at some time.
pub(crate) struct World {
    now: Micros,
    nodes: Vec<Box<dyn Node>>,
    stations: Vec<Station>,
    net: Net,
    arrivals: Queue<Arrival>,
    pub(crate) log: Log,
    violations: Vec<checker::Violation>,
}

/// Places in one network, by name and the address's last part.
pub(crate) fn stations(places: &[(&'static str, u8)]) -> Vec<Station> {
    places
        .iter()
        .map(|(name, host)| Station {
            name,
            address: SocketAddr::from(([192, 0, 2, *host], 5060)),
        })
        .collect()
}

impl World {
    fn new(scenario: &Scenario, wrap: Wrap<'_>) -> Self {
        let mut rng = Rng::new(scenario.seed);
        let stations = stations(&[("alice", 10), ("A", 1), ("B", 2), ("bob", 20)]);
        let at = |node: NodeId| stations[node].address;
        let net = Net::new(scenario.links.clone(), rng.fork());
        let [a, b] = &scenario.proxies;
        let nodes: Vec<Box<dyn Node>> = vec![
            Box::new(Agent::new("alice", at(0), at(PROXY_A), scenario, true)),
            Box::new(Proxy::new(a, at(PROXY_A), at(PROXY_B), rng.fork())),
            Box::new(Proxy::new(b, at(PROXY_B), at(3), rng.fork())),
            Box::new(Agent::new("bob", at(3), at(PROXY_B), scenario, false)),
        ];
        Self::of(nodes, stations, net, wrap)
    }

    /// These nodes at these places.
    pub(crate) fn of(nodes: Vec<Box<dyn Node>>, stations: Vec<Station>, net: Net, wrap: Wrap<'_>) -> Self {
        let nodes = nodes
            .into_iter()
            .enumerate()
            .map(|(id, node)| wrap(id, node))
            .collect();
        Self {
            now: 0,
            nodes,
            stations,
            net,
            arrivals: Queue::default(),
            log: Log::default(),
            violations: Vec::new(),
        }
    }

    /// What came of it, by the rules of `check` too.
    pub(crate) fn end<S>(
        self,
        scenario: S,
        check: impl FnOnce(&S, &Self, &[CallReport]) -> Vec<checker::Violation>,
    ) -> Outcome<S> {
        let reports: Vec<CallReport> = self.nodes.iter().flat_map(|n| n.reports()).collect();
        let found = check(&scenario, &self, &reports);
        let mut violations = self.violations;
        violations.extend(found);
        Outcome {
            scenario,
            stations: self.stations,
            log: self.log,
            reports,
            violations,
        }
    }

    /// Until nothing more happens; faults stop at `heal_at`. What is held then is a violation.
    pub(crate) fn run(&mut self, heal_at: Micros) {
        self.play(heal_at);
        let mut held = Vec::new();
        for (node, station) in self.nodes.iter().zip(&self.stations) {
            held.extend(
                node.leftovers()
                    .map(|held| format!("{} still holds something: {held}", station.name)),
            );
        }
        for what in held {
            self.violate("leftovers", what);
        }
    }

    fn play(&mut self, heal_at: Micros) {
        let mut wakes = 0;
        while let Some(next) = self.next_at() {
            if !self.net.is_healed() && next >= heal_at {
                self.net.heal();
                self.log.note(heal_at, "faults stop");
            }
            wakes = if next > self.now { 0 } else { wakes + 1 };
            self.now = self.now.max(next);
            let runaway = match () {
                () if self.now > LONGEST => "time",
                () if self.log.sent.len() > MOST_MESSAGES => "messages",
                () if wakes > MOST_WAKES => "wake-ups at one instant",
                () => "",
            };
            if !runaway.is_empty() {
                self.violate("never quiet", format!("too many or too much: {runaway}"));
                return;
            }
            self.step();
        }
    }

    fn violate(&mut self, rule: &'static str, what: String) {
        self.violations.push(checker::Violation::new(rule, None, what));
    }

    fn next_at(&self) -> Option<Micros> {
        let timers = self.nodes.iter().filter_map(|n| n.poll_timeout());
        timers.chain(self.arrivals.next_at()).min()
    }

    /// Everything that is due at this instant: timers first, in the order of the nodes.
    fn step(&mut self) {
        for id in 0..self.nodes.len() {
            if self.nodes[id].poll_timeout().is_some_and(|at| at <= self.now) {
                self.nodes[id].handle_timeout(self.now);
                self.take(id);
            }
        }
        while let Some(arrival) = self.arrivals.pop_due(self.now) {
            let from = self.stations[arrival.from].address;
            let text = &self.log.sent[arrival.index].text;
            self.nodes[arrival.to].handle_message(self.now, from, text);
            self.take(arrival.to);
        }
    }

    /// Puts on the network what a node sends.
    fn take(&mut self, from: NodeId) {
        while let Some(Outgoing { to: address, text }) = self.nodes[from].poll_transmit() {
            let to = self.stations.iter().position(|s| s.address == address);
            let facts = Facts::of(&text);
            let arrivals = to.map_or_else(Vec::new, |to| self.net.carry(self.now, from, to));
            let index = self.log.sent.len();
            for at in &arrivals {
                let to = to.unwrap_or_default();
                self.arrivals.put(*at, Arrival { from, to, index });
            }
            self.log.sent.push(Sent {
                at: self.now,
                from,
                to,
                text,
                arrivals,
                facts,
            });
        }
    }
}
