//! The plan, going on with it, and the shapes, on made-up figures.

use std::collections::BTreeMap;

use super::super::steps::{beforehand, doubts, expected, left, line, pace};
use super::super::synthetic::{Synthetic, steps};
use super::super::tests::run_with;
use super::*;
use crate::cpu::Used;
use crate::crowd::said;
use crate::failure::Failure;
use crate::load::{Report, Times};
use crate::results::{Check, Results};
use crate::statistics::Judgement;
use crate::steps::{
    Beside, Calls, Figures, Handshake, Held, Kernel, Measured, Memory, Messages, Pace, Siege, Storm,
};

fn calls(us_each: f64, p99: f64) -> Calls {
    let load = Report {
        duration_s: 1.0,
        offered: 1_000,
        succeeded: 1_000,
        goodput: 1_000.0,
        response_ms: [(
            "INVITE 200".to_owned(),
            Times {
                count: 1_000,
                p99,
                ..Times::default()
            },
        )]
        .into(),
        ..Report::default()
    };
    Calls {
        rate: 1_000.0,
        load,
        server: Used {
            wall_s: 1.0,
            total_s: 6.0 * us_each / 1e3,
            ..Used::default()
        },
        memory: 30 << 20,
        buffers: 60 << 20,
    }
}

fn idle(count: u32) -> said::Idle {
    said::Idle {
        asked: count as usize,
        opened: count as usize,
        closed: 0,
        seconds: 4.0,
    }
}

fn attackers(count: u32) -> said::Attackers {
    said::Attackers {
        asked: count as usize,
        there: count as usize,
        opened: 2 * count as usize,
        cut: count as usize,
        refused: 3,
    }
}

fn handshake(version: &str, resumed: bool, us: f64) -> Handshake {
    Handshake {
        version: version.to_owned(),
        resumed,
        crowd: said::Handshakes {
            done: 1_000,
            resumed: if resumed { 999 } else { 0 },
            failed: 0,
            seconds: 1.0,
            per_second: 1_000.0,
            agreed: version.to_owned(),
        },
        server: Used {
            wall_s: 1.0,
            total_s: us / 1e3,
            user_s: 0.6 * us / 1e3,
            system_s: 0.4 * us / 1e3,
            ..Used::default()
        },
    }
}

fn of_memory(server: Server, kind: Kind, clients: u32) -> Memory {
    let ours = match kind {
        Kind::Tcp => 600,
        Kind::Tls13 | Kind::Tls12 | Kind::Wss => 5_000,
    };
    let each = if server == Server::Trapezoid {
        ours
    } else {
        8 * ours
    };
    let is_ours = server == Server::Trapezoid;
    Memory {
        crowd: idle(clients),
        known: is_ours.then_some(f64::from(clients)),
        left: is_ours.then_some(0.0),
        before: 20 << 20,
        most: (20 << 20) + each * u64::from(clients),
        after: 21 << 20,
        kernel: Kernel {
            slabs: 4_000 * i64::from(clients),
            buffers: 0,
        },
    }
}

fn of_messages(few: u32, many: u32, rounds: u32) -> Messages {
    let run = |round: u32, idle: u32, us: f64| Beside {
        idle,
        round,
        // A machine that becomes faster.
        calls: calls(us - 0.01 * f64::from(round), 1.0),
    };
    Messages {
        crowds: vec![idle(few), idle(many)],
        runs: (1..=rounds)
            .flat_map(|round| [run(round, few, 7.0), run(round, many, 7.1)])
            .collect(),
    }
}

/// Figures of a step as they might be.
pub(crate) fn made_up(step: &Step) -> Measured {
    let figures = match *step {
        Step::Memory {
            server,
            kind,
            clients,
        } => Figures::Memory(of_memory(server, kind, clients)),
        Step::Messages { few, many, rounds } => Figures::Messages(of_messages(few, many, rounds)),
        Step::Attackers { slow, deaf, round } => Figures::Attackers(Box::new(Siege {
            calm: calls(8.0, 4.0 + 0.01 * f64::from(round)),
            attacked: calls(9.0, 5.0),
            slow: attackers(slow),
            deaf: attackers(deaf),
            before: 20 << 20,
            buffers: 10 << 20,
        })),
        Step::InMemory => Figures::InMemory(in_memory()),
        Step::Handshakes { server, key, round } => {
            let times = if server == Server::Trapezoid { 1.0 } else { 3.0 };
            let us = |us: f64| times * us + 0.1 * f64::from(round);
            Figures::Handshakes(match key {
                None => vec![handshake("", false, us(50.0))],
                Some(_) => vec![
                    handshake("1.3", false, us(260.0)),
                    handshake("1.3", true, us(265.0)),
                    handshake("1.2", false, us(250.0)),
                    handshake("1.2", true, us(150.0)),
                ],
            })
        }
        Step::Storm { server, clients, .. } => Figures::Storm(Box::new(Storm {
            remembered: clients as usize,
            crowd: said::Storm {
                asked: clients as usize,
                served: clients as usize,
                resumed: clients as usize,
                tries: clients,
                most_tries: 1,
                all_s: 1.8,
                median_s: 0.9,
                p99_s: 1.75,
                took_s: 1.81,
            },
            server: Used::default(),
            calls: (server == Server::Trapezoid).then(|| calls(8.0, 17.0).load),
        })),
        Step::Transactions { server, .. } | Step::Ringing { server, .. } => {
            let is_ours = server == Server::Trapezoid;
            Figures::Held(Box::new(held(
                is_ours.then_some(10_000.0),
                is_ours.then(BTreeMap::new),
            )))
        }
        Step::Contacts { .. } => Figures::Held(Box::new(held(Some(100_000.0), None))),
        Step::Workers { workers, round, .. } => {
            Figures::Workers(Box::new(super::super::workers::tests::made_up(workers, round)))
        }
        Step::Split { turns, seconds, .. } => {
            Figures::Split(Box::new(super::super::split::tests::made_up(turns, seconds)))
        }
        Step::Pings(plan) => Figures::Pings(Box::new(super::super::pings::tests::made_up(&plan))),
    };
    Measured {
        step: *step,
        at_s: 1.0,
        probe_ms: Some(2.0),
        figures,
    }
}

fn held(things: Option<f64>, left: Option<BTreeMap<String, f64>>) -> Held {
    Held {
        load: calls(8.0, 1.0).load,
        before: 20 << 20,
        most: (20 << 20) + 3_000_000,
        after: 21 << 20,
        things,
        left,
    }
}

fn in_memory() -> Vec<said::Crypto> {
    let mut cases = Vec::new();
    for key in [Key::P256, Key::Rsa2048] {
        for (version, resumed) in [("1.3", false), ("1.3", true), ("1.2", false), ("1.2", true)] {
            for (interface, us) in [("ours", 140.0), ("buffered", 150.0)] {
                cases.push(said::Crypto {
                    version: version.to_owned(),
                    key: key.text().to_owned(),
                    resumed,
                    interface: interface.to_owned(),
                    handshakes: 1_000,
                    mean_us: us,
                    median_us: us,
                });
            }
        }
    }
    cases
}

fn seconds(scale: &Scale) -> f64 {
    let pace = pace(scale);
    plan(scale, 19_000).iter().map(|step| expected(step, &pace)).sum()
}

#[test]
fn the_plan_fits_into_its_time() {
    let full = seconds(&Scale::full());
    assert!((600.0..3_000.0).contains(&full), "{full}");
    let quick = seconds(&Scale::quick());
    assert!(quick < 60.0, "{quick}");
}

#[test]
fn the_plan_has_each_part_once_for_each_round() {
    let steps = plan(&Scale::full(), 19_000);
    for (index, step) in steps.iter().enumerate() {
        assert!(!steps[..index].contains(step), "{} twice", step.text());
    }
    let of = |part: &str| steps.iter().filter(|step| step.text().starts_with(part)).count();
    assert_eq!((of("memory"), of("messages"), of("attackers")), (7, 1, 5));
    assert_eq!((of("handshakes"), of("storm")), (19, 6));
    let quick = plan(&Scale::quick(), 19_000);
    assert!(quick.iter().all(|step| step.server() == Server::Trapezoid));
}

#[test]
fn no_server_gets_more_than_its_descriptors_carry() {
    assert_eq!(most_clients(20_000), 17_712);
    assert_eq!(most_clients(1_048_576), 982_002);
    assert_eq!(most_clients(0), 1);
    let steps = plan(&Scale::full(), 3_000);
    for step in steps {
        match step {
            Step::Memory { clients, .. } | Step::Storm { clients, .. } => assert!(clients <= 3_000),
            Step::Messages { few, many, .. } => assert!(few < many && many <= 3_000),
            Step::Attackers { slow, deaf, .. } => assert!(slow + deaf <= 3_000),
            Step::InMemory
            | Step::Handshakes { .. }
            | Step::Transactions { .. }
            | Step::Ringing { .. }
            | Step::Contacts { .. }
            | Step::Workers { .. }
            | Step::Split { .. }
            | Step::Pings(_) => {}
        }
    }
}

fn results(quick: bool) -> Results {
    let mut results = Results::new("connections", quick);
    results.steps = steps(quick);
    results
}

#[test]
fn what_is_measured_is_not_measured_again() {
    for (run_s, used) in [(8.0, 9), (4.0, 0)] {
        goes_on(run_s, used);
    }
}

/// Goes on after nine steps whose runs took so long.
fn goes_on(run_s: f64, used: usize) {
    let scale = Scale::full();
    // As many clients as `run` plans for on this machine.
    let most = most_clients(crate::machine::descriptors().unwrap());
    let steps = plan(&scale, most);
    let all = steps.len();
    let mut earlier = Results::new("connections", false);
    earlier.steps = steps.iter().take(9).map(made_up).collect();
    earlier.pace = Some(Pace {
        run_s,
        ..pace(&scale)
    });
    let mut results = Results::new("connections", false);
    let mut bench = Synthetic::new();
    bench.left = (all - used) as u32;
    let mut session = Session::new(&mut bench, &mut results, &scale);
    session.go_on(earlier);
    // One step more would be one too many.
    run(&mut session).unwrap();
    assert_eq!(results.steps.len(), all);
    assert!(left(steps, &results.steps).is_empty());
    let notes = &results.notes;
    assert!(notes[0].starts_with("9 steps are those of "), "{notes:?}");
    let is_unused = |note: &String| note.starts_with("9 earlier steps were not used");
    assert_eq!(notes.iter().any(is_unused), used == 0, "{notes:?}");
}

#[test]
fn what_was_measured_before_the_end_is_kept() {
    let scale = Scale::quick();
    let mut bench = Synthetic::new();
    bench.left = 2;
    let mut results = Results::new("connections", true);
    let mut session = Session::new(&mut bench, &mut results, &scale);
    assert!(matches!(run(&mut session), Err(Failure::Interrupted)));
    assert_eq!(results.steps.len(), 2);
}

#[test]
fn only_peers_that_are_asked_for_and_installed_run() {
    let scale = Scale {
        only: vec!["storm".to_owned()],
        ..Scale::full()
    };
    let mut bench = Synthetic::new();
    bench.missing = Some(Server::Kamailio);
    let results = run_with("connections", &mut bench, &scale).unwrap();
    assert_eq!(results.steps.len(), 3);
    assert_eq!(results.absent.len(), 1, "{:?}", results.absent);
    let none = Scale {
        only: vec!["nothing like it".to_owned()],
        ..Scale::full()
    };
    assert!(matches!(
        run_with("connections", &mut Synthetic::new(), &none),
        Err(Failure::Usage(_))
    ));
}

fn judged(checks: &[Check], judgement: Judgement) -> Vec<&str> {
    let found = checks.iter().filter(|check| check.judgement == judgement);
    found.map(|check| check.name.as_str()).collect()
}

/// The checks that are lost after a change of the figures.
fn lost(change: fn(&mut Figures)) -> Vec<String> {
    let mut results = results(false);
    for measured in &mut results.steps {
        change(&mut measured.figures);
    }
    let checks = checks::of(&results);
    judged(&checks, Judgement::Lost)
        .into_iter()
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_checks_hold_and_can_each_fail() {
    for quick in [true, false] {
        let checks = checks::of(&results(quick));
        assert_eq!(checks.len(), 12);
        assert_eq!(judged(&checks, Judgement::Held).len(), 12, "{checks:?}");
    }
    let fat = lost(|figures| {
        if let Figures::Memory(memory) = figures {
            memory.most += 25_000 * memory.crowd.opened as u64;
        }
    });
    assert_eq!(fat.len(), 4, "{fat:?}");
    // Of few connections, what the process varies by is as much as they hold.
    let few = lost(|figures| {
        if let Figures::Memory(memory) = figures {
            memory.crowd.opened = 500;
            memory.most = memory.before + 500 * 6_000;
        }
    });
    assert_eq!(few, [""; 0]);
    let scanning = lost(|figures| {
        if let Figures::Messages(messages) = figures {
            for run in messages.runs.iter_mut().filter(|run| run.idle > 1_000) {
                run.calls.server.total_s *= 1.5;
            }
        }
    });
    assert_eq!(
        scanning,
        ["a message costs at most 1.05 times as much beside many idle connections"]
    );
    let attacked = lost(|figures| {
        if let Figures::Attackers(siege) = figures {
            siege.attacked = calls(9.0, 12.0);
            siege.attacked.memory = 2_000 << 20;
        }
    });
    assert_eq!(
        attacked,
        [
            "slow and deaf clients at most double the p99 of others' calls",
            "under attack memory grows by no more than connections may hold"
        ]
    );
    let dear = lost(|figures| {
        if let Figures::Handshakes(all) = figures {
            for one in all.iter_mut().filter(|one| one.version.is_empty() || one.resumed) {
                one.server.total_s *= 10.0;
            }
        }
    });
    assert_eq!(
        dear,
        [
            "a connection by TCP alone costs less than one with a handshake",
            "a resumed handshake of TLS 1.2 costs less than a full one"
        ]
    );
    let forgotten = lost(|figures| {
        if let Figures::Storm(storm) = figures {
            (storm.crowd.served, storm.crowd.resumed) = (10, 0);
            if let Some(load) = &mut storm.calls {
                load.succeeded -= 100;
            }
        }
    });
    assert_eq!(forgotten.len(), 3, "{forgotten:?}");
}

#[test]
fn figures_that_mean_nothing_are_named() {
    let mut results = results(false);
    assert_eq!(doubts(&results.steps), [""; 0]);
    for measured in &mut results.steps {
        match &mut measured.figures {
            Figures::Memory(memory) => memory.crowd.closed = 3,
            Figures::Messages(messages) => messages.crowds[1].opened -= 1,
            Figures::Attackers(siege) => (siege.slow.there, siege.deaf.there) = (0, 0),
            Figures::Handshakes(all) => all[0].crowd.failed = 1,
            Figures::Storm(storm) => storm.remembered -= 1,
            Figures::InMemory(_)
            | Figures::Held(_)
            | Figures::Workers(_)
            | Figures::Split(_)
            | Figures::Pings(_) => {}
        }
    }
    let found = doubts(&results.steps);
    assert_eq!(found.len(), results.steps.len() - 1, "{found:?}");
    assert!(
        results
            .warnings()
            .iter()
            .any(|text| text.contains("had a ticket"))
    );
    let undecided = checks::of(&results);
    assert_eq!(judged(&undecided, Judgement::Undecided).len(), 4);
}

#[test]
fn each_step_is_one_line() {
    for measured in steps(false) {
        let text = line(&measured);
        assert!(!text.contains('\n') && text.len() > 53, "{text}");
    }
    assert_eq!(beforehand(3, 45.2), "3 steps, about 45 seconds");
    assert_eq!(beforehand(40, 1_141.0), "40 steps, about 20 minutes");
}
