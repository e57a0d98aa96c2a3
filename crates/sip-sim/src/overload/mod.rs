//! One server that is offered more than it carries, under virtual time: each message takes time, kernel queues are
//! bounded, and user agents send again.
//!
//! The core is the real one, and so are the decisions about new work ([`sip_core::overload`]). The loop around them, the
//! callers and the callee are models. A [`Plan`] says what is offered and how slow the server is; [`rules`] say what
//! must hold whatever is offered.

mod callee;
mod callers;
mod plan;
pub mod rules;
mod server;

use std::net::SocketAddr;

use self::callee::Callee;
use self::callers::{Callers, Timer};
use self::server::Server;
use crate::clock::{MS, Micros, Queue, SECOND};
use crate::rng::Rng;

pub use self::callers::{Call, Stage};

/// The server's address.
pub const SERVER: ([u8; 4], u16) = ([192, 0, 2, 1], 5060);
/// The address of all callers, as of a gateway.
pub const CALLERS: ([u8; 4], u16) = ([198, 51, 100, 1], 5060);
/// The callee's address.
pub const CALLEE: ([u8; 4], u16) = ([192, 0, 2, 99], 5060);

/// Time of a datagram on its way.
const LINK: Micros = MS;
/// Time after the load in which what is under way may end.
const AFTER: Micros = 2 * SECOND;

/// What is offered from a moment on, each a second and at random moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// When it begins.
    pub from: Micros,
    /// New calls.
    pub calls: u32,
    /// REGISTERs.
    pub registers: u32,
    /// Responses that belong to nothing.
    pub strays: u32,
    /// How long the server takes for each message, per cent.
    pub slowness: u32,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed of all that is random.
    pub seed: u64,
    /// Whether the server keeps transactions.
    pub is_stateful: bool,
    /// Whether new work has queues of its own.
    pub has_queues: bool,
    /// The phases, in order; the first begins at 0.
    pub phases: Vec<Phase>,
    /// When the load ends.
    pub length: Micros,
    /// Callers, of a thousand, that cancel their call at once.
    pub cancelling: u32,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The calls, in the order of their begin.
    pub calls: Vec<Call>,
    /// When each call was completed, in order.
    pub completed: Vec<Micros>,
    /// When each REGISTER was answered, in order.
    pub registered: Vec<Micros>,
    /// Final responses that the callee had to repeat.
    pub repeated: u64,
    /// Calls that the callee was asked for and that were cancelled, and rang on.
    pub ringing_on: Vec<u32>,
    /// When datagrams found their queue full: that of established calls, of calls, of requests.
    pub dropped: [Vec<Micros>; 3],
    /// For each datagram of the queue of calls, when it was read and how long it had waited.
    pub waited: Vec<(Micros, Micros)>,
    /// Time that the server was busy.
    pub busy: Micros,
}

impl Outcome {
    /// Calls completed in a stretch of time, a second.
    pub fn goodput(&self, from: Micros, to: Micros) -> f64 {
        let within = self.completed.iter().filter(|at| (from..to).contains(*at));
        within.count() as f64 * SECOND as f64 / (to - from) as f64
    }
}

/// What is offered.
#[derive(Clone, Copy, Debug)]
enum Arrival {
    Call,
    Register,
    Stray,
}

#[derive(Debug)]
enum Event {
    Arrival(Arrival),
    ToServer { from: SocketAddr, bytes: Vec<u8> },
    ToCallers(Vec<u8>),
    ToCallee(Vec<u8>),
    Turn,
    CallTimer(u32, Timer),
    CalleeTimer(u32, u32),
}

/// What user agents send, and when they are to be asked again: of which call, by which timer.
#[derive(Debug)]
struct Wants<T> {
    sends: Vec<String>,
    timers: Vec<(Micros, u32, T)>,
}

impl<T> Default for Wants<T> {
    fn default() -> Self {
        Self {
            sends: Vec::new(),
            timers: Vec::new(),
        }
    }
}

struct World<'a> {
    plan: &'a Plan,
    now: Micros,
    events: Queue<Event>,
    rng: Rng,
    server: Server,
    callers: Callers,
    callee: Callee,
}

/// Runs a plan.
pub fn play(plan: &Plan) -> Outcome {
    let mut rng = Rng::new(plan.seed);
    let mut world = World {
        plan,
        now: 0,
        events: Queue::default(),
        server: Server::new(plan, &mut rng),
        callers: Callers::default(),
        callee: Callee::default(),
        rng,
    };
    for arrival in [Arrival::Call, Arrival::Register, Arrival::Stray] {
        world.next_arrival(arrival);
    }
    let end = plan.length + AFTER;
    while let Some(at) = world.events.next_at().filter(|at| *at <= end) {
        world.now = at;
        while let Some(event) = world.events.pop_due(at) {
            world.handle(event);
        }
    }
    world.outcome()
}

impl World<'_> {
    fn outcome(self) -> Outcome {
        let ringing_on = self.callee.ringing_on(&self.callers);
        Outcome {
            calls: self.callers.calls,
            completed: self.callers.completed,
            registered: self.callers.registered,
            repeated: self.callee.repeated,
            ringing_on,
            dropped: self.server.dropped,
            waited: self.server.waited,
            busy: self.server.busy,
        }
    }

    fn phase(&self) -> Phase {
        let phases = self.plan.phases.iter();
        phases
            .rev()
            .find(|phase| phase.from <= self.now)
            .copied()
            .unwrap_or(Phase {
                from: 0,
                calls: 0,
                registers: 0,
                strays: 0,
                slowness: 100,
            })
    }

    /// Puts the next arrival of this kind, after the exponential pause of its rate. Without a rate, it looks again in
    /// the next phase.
    fn next_arrival(&mut self, arrival: Arrival) {
        let phase = self.phase();
        let rate = match arrival {
            Arrival::Call => phase.calls,
            Arrival::Register => phase.registers,
            Arrival::Stray => phase.strays,
        };
        let next_phase = self
            .plan
            .phases
            .iter()
            .map(|phase| phase.from)
            .find(|from| *from > self.now);
        let at = if rate == 0 {
            next_phase
        } else {
            let uniform = (self.rng.between(1, 1 << 53) as f64) / (1u64 << 53) as f64;
            let pause = -uniform.ln() * SECOND as f64 / f64::from(rate);
            let at = self.now + (pause as Micros).max(1);
            // The rate of the next phase holds from its begin.
            Some(next_phase.map_or(at, |from| at.min(from)))
        };
        if let Some(at) = at.filter(|at| *at < self.plan.length) {
            self.events.put(at, Event::Arrival(arrival));
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Arrival(arrival) => {
                // What comes at the begin of a phase only looks at its rate.
                let is_begin = self.plan.phases.iter().any(|phase| phase.from == now && now > 0);
                if !is_begin {
                    self.arrive(arrival);
                }
                self.next_arrival(arrival);
            }
            Event::ToServer { from, bytes } => {
                if let Some(at) = self.server.arrive(now, from, bytes) {
                    self.events.put(at, Event::Turn);
                }
            }
            Event::ToCallers(bytes) => {
                let wants = self.callers.receive(now, &String::from_utf8_lossy(&bytes));
                self.act(wants);
            }
            Event::ToCallee(bytes) => {
                let wants = self.callee.receive(now, &String::from_utf8_lossy(&bytes));
                self.answer(wants);
            }
            Event::CalleeTimer(call, number) => {
                let wants = self.callee.timer(now, call, number);
                self.answer(wants);
            }
            Event::CallTimer(call, timer) => {
                let wants = self.callers.timer(now, call, timer);
                self.act(wants);
            }
            Event::Turn => self.turn(),
        }
    }

    fn arrive(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Call => {
                let is_cancelled = self.rng.chance(self.plan.cancelling);
                let is_changed = self.rng.chance(300);
                let wants = self.callers.begin(self.now, is_cancelled, is_changed);
                self.act(wants);
            }
            Arrival::Register => {
                let wants = self.callers.register(self.now);
                self.act(wants);
            }
            Arrival::Stray => {
                let bytes = callers::stray(self.rng.next_u64()).into_bytes();
                self.send(CALLEE.into(), bytes);
            }
        }
    }

    fn turn(&mut self) {
        let slowness = self.phase().slowness;
        let Some(turn) = self.server.turn(self.now, slowness) else {
            return;
        };
        let ends = self.now + turn.took;
        for (to, bytes) in turn.sent {
            let event = if to == CALLEE.into() {
                Event::ToCallee(bytes)
            } else {
                Event::ToCallers(bytes)
            };
            self.events.put(ends + LINK, event);
        }
        if let Some(at) = turn.next {
            self.events.put(at, Event::Turn);
        }
    }

    fn send(&mut self, from: SocketAddr, bytes: Vec<u8>) {
        self.events.put(self.now + LINK, Event::ToServer { from, bytes });
    }

    fn act(&mut self, wants: Wants<Timer>) {
        for text in wants.sends {
            self.send(CALLERS.into(), text.into_bytes());
        }
        for (at, call, timer) in wants.timers {
            self.events.put(at, Event::CallTimer(call, timer));
        }
    }

    fn answer(&mut self, wants: Wants<u32>) {
        for text in wants.sends {
            self.send(CALLEE.into(), text.into_bytes());
        }
        for (at, call, number) in wants.timers {
            self.events.put(at, Event::CalleeTimer(call, number));
        }
    }
}
