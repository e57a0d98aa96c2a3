//! One run: nodes, the network between them, troubles, and virtual time.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use super::check::Violation;
use super::fabric::{Carried, Fabric, Pipe};
use super::node::{Clocks, Input, Node, NodeId, Output, Wire};
use super::scenario::{Scenario, Trouble};
use crate::clock::{Micros, Queue, SECOND};
use crate::trace::{Facts, Log, Sent, Station};

/// The wall clock at the start of each run, milliseconds since 1970.
pub const EPOCH_UNIX_MS: u64 = 1_700_000_000_000;

/// Longest run.
const LONGEST: Micros = 3 * 3_600 * SECOND;
/// Most messages of a run.
const MOST_MESSAGES: usize = 400_000;
/// Most wake-ups of a node at one instant.
const MOST_WAKES: u32 = 10_000;
/// Time after which a connection attempt without a response is given up.
const CONNECT_TIMEOUT: Micros = 10 * SECOND;
/// First port of the connections that a node opens.
const FIRST_PORT: u16 = 20_000;

/// State of a node's process and machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Power {
    On,
    /// The process is not running, and the machine refuses by ICMP or reset.
    Killed,
    /// The machine is off and sends nothing.
    Off,
}

/// A future event.
#[derive(Debug)]
enum Event {
    Datagram {
        node: NodeId,
        from: SocketAddr,
        to: SocketAddr,
        bytes: Rc<[u8]>,
    },
    Unreachable {
        node: NodeId,
        to: SocketAddr,
        bytes: Rc<[u8]>,
    },
    /// A connection request reaches the other node.
    Asked(Wire),
    /// The opening node learns that its connection is open.
    Accepted(Wire),
    Piece {
        wire: Wire,
        side: usize,
        bytes: Rc<[u8]>,
    },
    /// An end learns that its connection is over.
    Ended {
        wire: Wire,
        side: usize,
    },
    Trouble(usize),
    Restart(NodeId),
}

/// A machine.
struct Host {
    node: Box<dyn Node>,
    ip: IpAddr,
    power: Power,
    wall_offset_ms: i64,
    next_port: u16,
}

/// State of the whole simulated world.
pub struct World<'s> {
    scenario: &'s Scenario,
    now: Micros,
    hosts: Vec<Host>,
    places: BTreeMap<IpAddr, NodeId>,
    fabric: Fabric,
    pipes: BTreeMap<Wire, Pipe>,
    events: Queue<Event>,
    pub(crate) stations: Vec<Station>,
    pub(crate) log: Log,
    pub(crate) violations: Vec<Violation>,
}

impl core::fmt::Debug for World<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("World")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl<'s> World<'s> {
    /// A world of these nodes with their stations, for the scenario.
    pub fn new(scenario: &'s Scenario, nodes: Vec<(Box<dyn Node>, Station)>) -> Self {
        let mut events = Queue::default();
        for (index, plan) in scenario.troubles.iter().enumerate() {
            events.put(plan.at, Event::Trouble(index));
        }
        let (nodes, stations): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
        let hosts: Vec<Host> = nodes
            .into_iter()
            .zip(&stations)
            .map(|(node, station)| Host {
                node,
                ip: station.address.ip(),
                power: Power::On,
                wall_offset_ms: 0,
                next_port: FIRST_PORT,
            })
            .collect();
        Self {
            scenario,
            now: 0,
            places: hosts.iter().enumerate().map(|(id, host)| (host.ip, id)).collect(),
            hosts,
            fabric: Fabric::new(scenario.seed, &scenario.links),
            pipes: BTreeMap::new(),
            events,
            stations,
            log: Log::default(),
            violations: Vec::new(),
        }
    }

    /// The nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &dyn Node> {
        self.hosts.iter().map(|host| &*host.node)
    }

    fn violate(&mut self, rule: &'static str, what: String) {
        self.violations.push(Violation::new(rule, None, what));
    }

    fn clocks(&self, node: NodeId) -> Clocks {
        let unix_ms = EPOCH_UNIX_MS + self.now / 1_000;
        Clocks {
            now: self.now,
            unix_ms: unix_ms.saturating_add_signed(self.hosts[node].wall_offset_ms),
        }
    }

    /// Runs until nothing more happens. State held then is a violation.
    pub fn run(&mut self) {
        for node in 0..self.hosts.len() {
            self.restart(node);
        }
        self.play();
        let held: Vec<String> = self
            .hosts
            .iter()
            .zip(&self.stations)
            .filter_map(|(host, station)| {
                let held = host.node.leftovers()?;
                Some(format!("{} still holds something: {held}", station.name))
            })
            .collect();
        for what in held {
            self.violate("leftovers", what);
        }
        let running = self.hosts.iter_mut().zip(&self.stations);
        let held: Vec<String> = running
            .filter(|(host, _)| host.power == Power::On)
            .filter_map(|(host, station)| Some(format!("{} {}", station.name, host.node.end()?)))
            .collect();
        for what in held {
            self.violate("bytes kept", what);
        }
    }

    fn play(&mut self) {
        let mut wakes = 0;
        while let Some(next) = self.next_at() {
            if !self.fabric.is_healed() && next >= self.scenario.heal_at {
                self.now = self.now.max(self.scenario.heal_at);
                self.heal();
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
                return self.violate("never quiet", format!("too many or too much: {runaway}"));
            }
            self.step();
        }
    }

    fn next_at(&self) -> Option<Micros> {
        let running = self.hosts.iter().filter(|host| host.power == Power::On);
        let timers = running.filter_map(|host| host.node.poll_timeout());
        timers.chain(self.events.next_at()).min()
    }

    fn heal(&mut self) {
        self.fabric.heal();
        self.log.note(self.now, "faults stop");
    }

    /// Handles everything that is due at this instant: timers first, in the order of the nodes.
    fn step(&mut self) {
        for node in 0..self.hosts.len() {
            let host = &self.hosts[node];
            let due = host.node.poll_timeout().is_some_and(|at| at <= self.now);
            if due && host.power == Power::On {
                self.give(node, Input::Timeout);
            }
        }
        while let Some(event) = self.events.pop_due(self.now) {
            self.happen(event);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Datagram {
                node,
                from,
                to,
                bytes,
            } => self.datagram_arrives(node, from, to, &bytes),
            Event::Unreachable { node, to, bytes } => {
                self.give(node, Input::Unreachable { to, bytes: &bytes });
            }
            Event::Asked(wire) => self.connection_arrives(wire),
            Event::Accepted(wire) => {
                if let Some(pipe) = self.pipes.get(&wire).filter(|pipe| !pipe.ends[0].closed) {
                    let [opener, asked] = pipe.ends;
                    let (peer, local) = (asked.address, opener.address);
                    self.give(opener.node, Input::Opened { wire, peer, local });
                }
            }
            Event::Piece { wire, side, bytes } => {
                let end = self.pipes.get(&wire).map(|pipe| pipe.ends[side]);
                if let Some(end) = end.filter(|end| !end.closed) {
                    self.give(end.node, Input::Bytes { wire, bytes: &bytes });
                }
            }
            Event::Ended { wire, side } => self.ended(wire, side),
            Event::Trouble(index) => self.trouble(index),
            Event::Restart(node) => self.restart(node),
        }
    }

    fn datagram_arrives(&mut self, node: NodeId, from: SocketAddr, to: SocketAddr, bytes: &Rc<[u8]>) {
        match self.hosts[node].power {
            Power::On => self.give(node, Input::Datagram { from, to, bytes }),
            Power::Off => {}
            Power::Killed => {
                // ICMP may be lost as well, and most hosts limit it.
                let Some(&sender) = self.places.get(&from.ip()) else {
                    return;
                };
                if let Some(at) = self.fabric.carry(self.now, node, sender).first() {
                    let bytes = bytes.clone();
                    let event = Event::Unreachable {
                        node: sender,
                        to,
                        bytes,
                    };
                    self.events.put(*at, event);
                }
            }
        }
    }

    fn connection_arrives(&mut self, wire: Wire) {
        let Some(pipe) = self.pipes.get(&wire).copied() else {
            return;
        };
        let [opener, asked] = pipe.ends;
        let hop = self.fabric.hop(asked.node, opener.node, wire, 0);
        match self.hosts[asked.node].power {
            _ if opener.closed => {}
            Power::On => {
                self.events.put(self.now + hop, Event::Accepted(wire));
                let (peer, local) = (opener.address, asked.address);
                self.give(asked.node, Input::Opened { wire, peer, local });
            }
            Power::Killed => self.events.put(self.now + hop, Event::Ended { wire, side: 0 }),
            Power::Off => self
                .events
                .put(self.now + CONNECT_TIMEOUT, Event::Ended { wire, side: 0 }),
        }
    }

    /// Informs an end that its connection is over, which closes that end.
    fn ended(&mut self, wire: Wire, side: usize) {
        let Some(pipe) = self.pipes.get_mut(&wire) else {
            return;
        };
        let end = &mut pipe.ends[side];
        if end.closed {
            return;
        }
        end.closed = true;
        let node = end.node;
        if pipe.is_over() {
            self.pipes.remove(&wire);
        }
        self.give(node, Input::Closed { wire });
    }

    fn trouble(&mut self, index: usize) {
        let plan = self.scenario.troubles[index].clone();
        let (node, heal_at) = (plan.node, self.scenario.heal_at);
        if node >= self.hosts.len() {
            return;
        }
        self.log.note(
            self.now,
            format!("{}: {:?}", self.stations[node].name, plan.trouble),
        );
        match &plan.trouble {
            Trouble::Crash { power, lasts } => {
                let back = (self.now + lasts).min(heal_at).max(self.now + 1);
                self.crash(node, *power, back);
            }
            Trouble::Partition { other, lasts } => {
                self.fabric.part((node, *other), (self.now + lasts).min(heal_at));
            }
            Trouble::Reset => {
                let wires: Vec<Wire> = self.wires_of(node).map(|(wire, _)| wire).collect();
                for wire in wires {
                    self.ended(wire, 0);
                    self.ended(wire, 1);
                }
            }
            Trouble::WallJump { ms } => self.hosts[node].wall_offset_ms += ms,
            Trouble::Slow { .. } | Trouble::Dead { .. } | Trouble::Failing { .. } | Trouble::Disk { .. } => {
                let clocks = self.clocks(node);
                self.hosts[node].node.trouble(clocks, &plan.trouble);
            }
        }
    }

    fn wires_of(&self, node: NodeId) -> impl Iterator<Item = (Wire, usize)> + '_ {
        self.pipes.iter().flat_map(move |(wire, pipe)| {
            let sides = (0..2).filter(move |side| pipe.ends[*side].node == node);
            sides.map(move |side| (*wire, side))
        })
    }

    fn crash(&mut self, node: NodeId, power: bool, back: Micros) {
        let clocks = self.clocks(node);
        let host = &mut self.hosts[node];
        if host.power != Power::On {
            return;
        }
        host.power = if power { Power::Off } else { Power::Killed };
        host.node.crash(clocks, power);
        // Output that the network had not taken yet is lost with the process.
        while host.node.poll_output().is_some() {}
        self.events.put(back, Event::Restart(node));
        let wires: Vec<(Wire, usize)> = self.wires_of(node).collect();
        for (wire, side) in wires {
            let Some(pipe) = self.pipes.get_mut(&wire) else {
                continue;
            };
            pipe.ends[side].closed = true;
            // A machine that is off sends nothing. Once it is back, it knows nothing of the connection.
            let from = if power { back } else { self.now };
            let at = self.fabric.close(from, wire, pipe, side);
            self.events.put(at, Event::Ended { wire, side: 1 - side });
        }
    }

    fn restart(&mut self, node: NodeId) {
        self.hosts[node].power = Power::On;
        if self.now > 0 {
            self.log
                .note(self.now, format!("{} is back", self.stations[node].name));
        }
        let clocks = self.clocks(node);
        self.hosts[node].node.restart(clocks);
        self.take(node);
    }

    fn give(&mut self, node: NodeId, input: Input<'_>) {
        if self.hosts[node].power != Power::On {
            return;
        }
        let clocks = self.clocks(node);
        self.hosts[node].node.handle(clocks, input);
        if let Some((rule, fault)) = self.hosts[node].node.fault() {
            let what = format!("{} at {} s: {fault}", self.stations[node].name, self.now / SECOND);
            self.violate(rule, what);
        }
        self.take(node);
    }

    /// Does the actions of a node.
    fn take(&mut self, node: NodeId) {
        while let Some(output) = self.hosts[node].node.poll_output() {
            match output {
                Output::Datagram { from, to, bytes } => self.send(node, from, to, bytes),
                Output::Open { wire, to } => self.open(node, wire, to),
                Output::Bytes { wire, bytes, message } => self.write(node, wire, &bytes, message),
                Output::Close { wire } => self.close(node, wire),
            }
        }
    }

    fn send(&mut self, node: NodeId, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        let target = self.places.get(&to.ip()).copied();
        let arrivals = target.map_or_else(Vec::new, |target| self.fabric.carry(self.now, node, target));
        let shared: Rc<[u8]> = bytes.as_slice().into();
        for at in &arrivals {
            let event = Event::Datagram {
                node: target.unwrap_or_default(),
                from,
                to,
                bytes: shared.clone(),
            };
            self.events.put(*at, event);
        }
        self.record(node, target, &bytes, arrivals);
        let to_server = target.is_some_and(|target| target < self.scenario.servers.len());
        if let Some(stranger) = self.scenario.stranger_node()
            && stranger != node
            && to_server
        {
            let bytes = &shared;
            self.give(stranger, Input::Overheard { from, to, bytes });
        }
    }

    fn record(&mut self, from: NodeId, to: Option<NodeId>, bytes: &[u8], arrivals: Vec<Micros>) {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let facts = Facts::of(&text);
        self.log.sent.push(Sent {
            at: self.now,
            from,
            to,
            text,
            arrivals,
            facts,
        });
    }

    fn open(&mut self, node: NodeId, wire: Wire, to: SocketAddr) {
        let host = &mut self.hosts[node];
        let local = SocketAddr::new(host.ip, host.next_port);
        host.next_port = host.next_port.checked_add(1).unwrap_or(FIRST_PORT);
        let asked = self.places.get(&to.ip()).copied();
        let pipe = Pipe::new([(node, local), (asked.unwrap_or(node), to)], self.now);
        self.pipes.insert(wire, pipe);
        match asked {
            Some(asked) if !self.fabric.is_parted(self.now, node, asked) => {
                let hop = self.fabric.hop(node, asked, wire, 0);
                self.events.put(self.now + hop, Event::Asked(wire));
            }
            // No node has that address, or nothing passes.
            Some(_) | None => {
                let at = self.now + CONNECT_TIMEOUT;
                if let Some(pipe) = self.pipes.get_mut(&wire) {
                    pipe.ends[1].closed = true;
                }
                self.events.put(at, Event::Ended { wire, side: 0 });
            }
        }
    }

    fn write(&mut self, node: NodeId, wire: Wire, bytes: &[u8], message: Vec<u8>) {
        let Some(pipe) = self.pipes.get_mut(&wire) else {
            return;
        };
        let side = pipe.side_of(node);
        if pipe.ends[side].closed {
            return;
        }
        let other = pipe.ends[1 - side];
        let mut arrivals = Vec::new();
        // A closed end responds with a reset. Its own close reports that anyway.
        if !other.closed {
            match self.fabric.pipe(self.now, wire, pipe, side, bytes.len()) {
                Carried::Pieces(pieces) => {
                    let mut rest = bytes;
                    for (at, len) in pieces {
                        let (piece, tail) = rest.split_at(len);
                        rest = tail;
                        let event = Event::Piece {
                            wire,
                            side: 1 - side,
                            bytes: piece.into(),
                        };
                        self.events.put(at, event);
                        arrivals = vec![at];
                    }
                }
                Carried::GivenUp(at) => {
                    self.events.put(at, Event::Ended { wire, side: 0 });
                    self.events.put(at, Event::Ended { wire, side: 1 });
                }
            }
        }
        if !message.is_empty() {
            self.record(node, Some(other.node), &message, arrivals);
        }
    }

    fn close(&mut self, node: NodeId, wire: Wire) {
        let Some(pipe) = self.pipes.get_mut(&wire) else {
            return;
        };
        let side = pipe.side_of(node);
        if pipe.ends[side].closed {
            return;
        }
        pipe.ends[side].closed = true;
        if pipe.is_over() {
            self.pipes.remove(&wire);
            return;
        }
        let at = self.fabric.close(self.now, wire, pipe, side);
        self.events.put(at, Event::Ended { wire, side: 1 - side });
    }
}
