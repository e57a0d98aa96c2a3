//! A bench without servers, for tests: what each setup costs, and so what it carries, is made up.

use std::collections::BTreeMap;

use super::Scale;
use crate::case::{Case, Mode, Purpose, Run, Server, Setup, State};
use crate::cpu::Used;
use crate::failure::{Failure, Outcome};
use crate::load::{Criterion, Generator, Operation, Report, Times, Transport};
use crate::progress::Progress;
use crate::results::{Absent, Batches, Direction, Row, Wire};
use crate::station::{Bench, PlanCosts};
use crate::statistics::Verdict;
use crate::steps::{Measured, Pace, Step};

/// Operations a second beyond which the generator is full.
pub(crate) const GENERATOR: f64 = 40_000.0;

#[derive(Debug)]
pub(crate) struct Synthetic {
    pub(crate) progress: Progress,
    /// Factor on the cost of a setup: what a test distorts.
    pub(crate) distort: fn(&Setup) -> f64,
    /// Part of the operations that fail below the peak.
    pub(crate) loss: f64,
    /// The server that is not installed.
    pub(crate) missing: Option<Server>,
    /// Runs until the end is asked for.
    pub(crate) left: u32,
}

impl Synthetic {
    pub(crate) fn new() -> Self {
        Self {
            progress: Progress::silent(),
            distort: |_| 1.0,
            loss: 0.0,
            missing: None,
            left: u32::MAX,
        }
    }
}

/// Microseconds of CPU.
fn cost(setup: &Setup) -> f64 {
    let case = &setup.case;
    let base = match (case.operation, setup.server) {
        (Operation::Register | Operation::Redirect, Server::BareRelay) => 4.0,
        (_, Server::Floor | Server::BareRelay) => 15.0,
        (Operation::Register | Operation::Redirect, _) => 8.0,
        (Operation::Call, _) if case.state == State::Stateless => 25.0,
        (Operation::Call, _) => 35.0,
    };
    let tcp = match case.transport {
        Transport::Udp => 1.0,
        Transport::Tcp => 1.5,
        Transport::Tls => 1.8,
    };
    let auth = if case.auth && !setup.server.is_relay() {
        20.0
    } else {
        0.0
    };
    let peer = if setup.server == Server::Kamailio {
        2.0
    } else {
        1.0
    };
    peer * (base * tcp + auth)
}

/// Operations a second.
pub(crate) fn capacity(setup: &Setup) -> f64 {
    let by_cpu = setup.quota.unwrap_or(1.0) * 1e6 / cost(setup);
    let by_round_trips = setup.look_ups.map_or(f64::INFINITY, |look_ups| {
        let b = f64::from(look_ups.max_batch);
        1e3 * f64::from(look_ups.connections) * b / (30.0 + 0.7 + 0.012 * b)
    });
    by_cpu.min(by_round_trips)
}

/// A run of a stateless call server that carried everything.
pub(crate) fn row(rate: f64, us: f64) -> Row {
    let setup = Setup::of(
        Server::Trapezoid,
        Case::call(State::Stateless, false, Transport::Udp),
    );
    let run = Run {
        purpose: Purpose::Fixed,
        round: 1,
        rate,
        warmup_s: 1.0,
        duration_s: 10.0,
        drain_s: 10.0,
        criterion: Criterion::PAPERS,
    };
    row_of(&setup, &run, us, rate)
}

fn times(count: u64) -> Times {
    Times {
        count,
        p50: 0.5,
        p99: 2.0,
        cdf: vec![(0.1, 0.0), (0.5, 0.5), (2.0, 0.99), (500.0, 1.0)],
        ..Times::default()
    }
}

fn row_of(setup: &Setup, run: &Run, us: f64, goodput: f64) -> Row {
    let used = |us: f64| Used {
        wall_s: 10.0,
        total_s: us * goodput * 1e-5,
        user_s: us * goodput * 0.4e-5,
        system_s: us * goodput * 0.6e-5,
        threads: BTreeMap::new(),
    };
    let offered = (run.rate * run.duration_s).round() as u64;
    let succeeded = ((goodput * run.duration_s).round() as u64).min(offered);
    let batch = setup.look_ups.map_or(1.0, |look_ups| match look_ups.mode {
        Mode::Single => 1.0,
        Mode::Fixed | Mode::Adaptive => f64::from(look_ups.max_batch) / 2.0,
    });
    let way = |each: f64| Direction {
        bytes: goodput * 10.0 * each / 2.0,
        wire_bytes: goodput * 10.0 * each,
        seconds: 10.0,
    };
    Row {
        setup: *setup,
        run: *run,
        seed: 1,
        at_s: 0.0,
        verdict: Verdict::Failed,
        load: Report {
            duration_s: run.duration_s,
            offered,
            succeeded,
            failed: offered - succeeded,
            goodput,
            response_ms: BTreeMap::from([(setup.case.operation.response().to_owned(), times(succeeded))]),
            generator: Generator {
                utilization: (run.rate / GENERATOR).min(1.0),
                saturated: run.rate > GENERATOR,
                ..Generator::default()
            },
            ..Report::default()
        },
        server: used(us),
        database: setup.look_ups.map(|_| used(10.0 + 20.0 / batch)),
        relay: setup.look_ups.map(|_| used(5.0)),
        wire: setup.look_ups.map(|_| Wire {
            queries: way(126.0 / batch + 20.0),
            answers: way(247.0 / batch + 50.0),
        }),
        batches: setup.look_ups.map(|_| Batches {
            count: 10.0 * goodput / batch,
            rows: 10.0 * goodput,
            busy_us: 10.0 * goodput / batch * (30_200.0 + 12.0 * batch),
        }),
        components: BTreeMap::from([
            (
                "trapezoid_cpu_seconds_total{component=\"parse\",worker=\"0\"}".to_owned(),
                0.2,
            ),
            (
                "trapezoid_cpu_seconds_total{component=\"kernel\",worker=\"0\"}".to_owned(),
                0.6,
            ),
        ]),
        counters_s: 10.0,
        drops: 0,
        probe_ms: Some(2.0),
    }
}

impl Bench for Synthetic {
    fn measure(&mut self, setup: &Setup, run: &Run) -> Outcome<Row> {
        self.left = self.left.checked_sub(1).ok_or(Failure::Interrupted)?;
        let factor = (self.distort)(setup);
        let capacity = capacity(setup) / factor;
        let carried = if run.rate <= capacity {
            run.rate * (1.0 - self.loss)
        } else if setup.quota.is_some() && setup.server == Server::Trapezoid && !setup.one_queue {
            // Where a peak is searched, too: what is offered is not all carried.
            0.95 * capacity
        } else {
            // A server collapses as far as it is asked for too much.
            capacity * (capacity / run.rate).powi(2)
        };
        let us = cost(setup) * factor;
        let mut row = row_of(setup, run, us, carried);
        row.verdict = row.load.judge(setup.case.operation, &run.criterion);
        Ok(row)
    }

    fn absent(&mut self, setup: &Setup) -> Option<Absent> {
        (self.missing == Some(setup.server)).then(|| Absent {
            what: setup.text(),
            why: "it is not installed".to_owned(),
        })
    }

    fn keep(&mut self, _: usize) {}

    fn progress(&mut self) -> &mut Progress {
        &mut self.progress
    }

    fn plan(&mut self, _: &Setup, _: &PlanCosts) -> Outcome<serde_json::Value> {
        let cells = super::batching::settings().into_iter().filter_map(|setup| {
            let look_ups = setup.look_ups?;
            let cell = serde_json::json!({
                "connections": look_ups.connections, "max_batch": look_ups.max_batch, "peak_per_s": capacity(&setup),
            });
            (look_ups.mode != Mode::Adaptive).then_some(cell)
        });
        Ok(serde_json::json!({ "grid": cells.collect::<Vec<_>>() }))
    }

    fn step(&mut self, step: &Step, _: &Pace) -> Outcome<Measured> {
        self.left = self.left.checked_sub(1).ok_or(Failure::Interrupted)?;
        Ok(super::connections::tests::made_up(step))
    }

    fn absent_step(&mut self, step: &Step) -> Option<Absent> {
        (self.missing == Some(step.server())).then(|| Absent {
            what: step.server().name().to_owned(),
            why: "it is not installed".to_owned(),
        })
    }
}

/// Made-up figures of all steps of `connections`.
pub(crate) fn steps(quick: bool) -> Vec<Measured> {
    let scale = if quick { Scale::quick() } else { Scale::full() };
    let steps = super::connections::plan(&scale, 19_000);
    steps.iter().map(super::connections::tests::made_up).collect()
}
