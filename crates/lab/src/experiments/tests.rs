//! The experiments on made-up servers: what they find, and that every check can fail.

use super::synthetic::{Synthetic, capacity};
use super::*;
use crate::case::{Case, LookUps, Mode, Server, State};
use crate::failure::Failure;
use crate::load::{Operation, Transport};
use crate::results::Check;
use crate::statistics::Judgement;

pub(crate) fn run_with(name: &str, bench: &mut Synthetic, scale: &Scale) -> Outcome<Results> {
    let mut results = Results::new(name, scale.quick);
    run_in(name, &mut Session::new(bench, &mut results, scale))?;
    results.checks = checks::of(&results);
    Ok(results)
}

fn run_in(name: &str, session: &mut Session<'_>) -> Outcome<()> {
    match name {
        "transport" => transport::run(session),
        "peers" => peers::run(session),
        "overload" => overload::run(session, Some(overload::QUOTA)),
        "batching" => batching::run(session),
        "connections" => connections::run(session),
        "memory" => memory::run(session),
        "workers" => workers::run(session),
        "split" => split::run(session),
        "pings" => pings::run(session),
        other => panic!("no experiment {other}"),
    }
}

fn run(name: &str, scale: &Scale) -> Results {
    run_with(name, &mut Synthetic::new(), scale).unwrap()
}

/// The checks of a quick run with costs distorted.
fn distorted(name: &str, distort: fn(&Setup) -> f64) -> Vec<Check> {
    let mut bench = Synthetic {
        distort,
        ..Synthetic::new()
    };
    run_with(name, &mut bench, &Scale::quick()).unwrap().checks
}

fn judged(checks: &[Check], judgement: Judgement) -> Vec<&str> {
    let found = checks.iter().filter(|check| check.judgement == judgement);
    found.map(|check| check.name.as_str()).collect()
}

fn lost(checks: &[Check]) -> Vec<&str> {
    judged(checks, Judgement::Lost)
}

#[track_caller]
fn assert_all_hold(checks: &[Check]) {
    let held = judged(checks, Judgement::Held);
    assert_eq!(held.len(), checks.len(), "{checks:?}");
}

fn call(state: State, auth: bool, transport: Transport) -> Case {
    Case::call(state, auth, transport)
}

#[test]
fn transport_finds_what_each_case_carries() {
    let results = run("transport", &Scale::full());
    for case in transport::CASES {
        let setup = Setup::of(Server::Trapezoid, case);
        let peaks = results.peaks_of(&setup);
        assert_eq!(peaks.len(), 3, "{}", setup.text());
        let truth = capacity(&setup);
        for peak in peaks {
            // A load counts as carried when nearly all of it is.
            let (low, high) = (truth.min(super::synthetic::GENERATOR) / 1.1, 1.01 * truth);
            assert!(peak <= high && peak >= low, "{}: {peak} of {truth}", setup.text());
        }
        assert_eq!(results.of(&setup, Purpose::Curve).len(), 7);
        assert_eq!(results.of(&setup, Purpose::Fixed).len(), 9);
    }
    let registrations = Setup::of(Server::Trapezoid, Case::register(false, false));
    assert!(
        results.is_at_least(&registrations),
        "the generator gives out before"
    );
    assert_all_hold(&results.checks);
    let floor = results
        .rows
        .iter()
        .filter(|row| row.setup.server == Server::Floor);
    assert!(floor.count() > 0);
}

/// The runs of a scenario that took turns, in their order.
fn turns_of<'a>(results: &'a Results, scenario: &peers::Scenario) -> Vec<&'a Row> {
    let rows = results.rows.iter().filter(|row| row.setup.case == scenario.case);
    rows.filter(|row| matches!(row.run.purpose, Purpose::Near | Purpose::Equal))
        .collect()
}

#[test]
fn peers_alternates_in_each_scenario() {
    use Server::{BareRelay, Kamailio, Trapezoid};
    let results = run("peers", &Scale::full());
    for scenario in &peers::SCENARIOS {
        let rows = turns_of(&results, scenario);
        let order: Vec<(u32, Server)> = rows.iter().map(|row| (row.run.round, row.setup.server)).collect();
        // Neither registrar is filled before the generator: both have one rate, and there is no other.
        let has_one_rate = scenario.case.operation == Operation::Register;
        let forwards = [Kamailio, Trapezoid, BareRelay, Trapezoid];
        let forwards = &forwards[..if has_one_rate { 3 } else { 4 }];
        let mut expected = Vec::new();
        for round in 1..=5 {
            let mut of_round: Vec<(u32, Server)> = forwards.iter().map(|server| (round, *server)).collect();
            if round % 2 == 0 {
                of_round.reverse();
            }
            expected.extend(of_round);
        }
        assert_eq!(order, expected, "{}", scenario.name);
        let near: Vec<&&Row> = rows
            .iter()
            .filter(|row| row.run.purpose == Purpose::Near && row.setup.server == Kamailio)
            .collect();
        assert!(
            near.iter()
                .all(|row| row.server.utilization() > peers::NEAR || row.others_are_full()),
            "{}: {}",
            scenario.name,
            near[0].server.utilization()
        );
    }
    assert_all_hold(&results.checks);
    assert_eq!(results.checks.len(), 4);
}

#[test]
fn peers_leaves_out_what_is_not_installed() {
    for (missing, checks) in [(Server::Kamailio, 3), (Server::BareRelay, 3)] {
        for scale in [Scale::quick(), Scale::full()] {
            let mut bench = Synthetic {
                missing: Some(missing),
                ..Synthetic::new()
            };
            let results = run_with("peers", &mut bench, &scale).unwrap();
            assert!(!results.servers().contains(&missing));
            assert!(results.absent[0].what.starts_with(missing.name()));
            assert_eq!(results.checks.len(), checks, "{:?}", results.checks);
            assert_all_hold(&results.checks);
        }
    }
}

#[test]
fn the_quick_checks_of_peers_hold_and_can_each_fail() {
    let results = run("peers", &Scale::quick());
    assert_eq!(results.checks.len(), 4);
    assert_all_hold(&results.checks);
    assert_eq!(
        results.servers(),
        [Server::Trapezoid, Server::BareRelay, Server::Kamailio]
    );
    let stateless = distorted("peers", |setup| {
        let is_one = setup.case.state == State::Stateless && setup.server == Server::Trapezoid;
        if is_one { 2.0 } else { 1.0 }
    });
    assert_eq!(
        lost(&stateless),
        ["a stateless call costs less than a stateful one"]
    );
    let theirs = distorted("peers", |setup| {
        if setup.server == Server::Kamailio {
            0.2
        } else {
            1.0
        }
    });
    assert_eq!(
        lost(&theirs),
        ["a stateful call costs Trapezoid less than Kamailio"]
    );
    let relay = distorted("peers", |setup| {
        if setup.server == Server::BareRelay {
            3.0
        } else {
            1.0
        }
    });
    assert_eq!(lost(&relay), ["the floor takes less user time than any proxy"]);
    // Whatever should have taken turns and did not is no missing program.
    let mut results = results;
    results.rows.retain(|row| row.setup.server != Server::Kamailio);
    let checks = checks::of(&results);
    assert_eq!(
        judged(&checks, Judgement::Unmeasured),
        ["a stateful call costs Trapezoid less than Kamailio"]
    );
}

/// An experiment that ended early goes on where it ended, and finds what it would have found.
#[test]
fn what_ended_early_goes_on() {
    for name in ["peers", "transport", "overload", "batching"] {
        let whole = run(name, &Scale::full());
        let made = whole.rows.len() as u32;
        for after in [1, made / 2, made - 1] {
            let mut bench = Synthetic {
                left: after,
                ..Synthetic::new()
            };
            let (mut results, scale) = (Results::new(name, false), Scale::full());
            let ended = run_in(name, &mut Session::new(&mut bench, &mut results, &scale));
            assert!(matches!(ended, Err(Failure::Interrupted)), "{name}");
            assert_eq!(results.rows.len() as u32, after, "{name}");
            // Through a file, as after the end of the program.
            let text = serde_json::to_string(&results).unwrap();
            let earlier: Results = serde_json::from_str(&text).unwrap();
            let mut again = Results::new(name, false);
            let mut bench = Synthetic {
                left: made - after,
                ..Synthetic::new()
            };
            let mut session = Session::new(&mut bench, &mut again, &scale);
            session.go_on(earlier);
            run_in(name, &mut session).unwrap();
            assert_eq!(bench.left, 0, "{name}: no run is made twice");
            assert_eq!(
                again.notes.len(),
                whole.notes.len() + 1,
                "{name}: {:?}",
                again.notes
            );
            let runs = |results: &Results| -> Vec<(Setup, Run)> {
                let rows = results.rows.iter();
                rows.map(|row| (row.setup, row.run)).collect()
            };
            for (one, other) in runs(&again).into_iter().zip(runs(&whole)) {
                assert!(
                    one.0 == other.0 && is_same(&one.1, &other.1),
                    "{one:?}, {other:?}"
                );
            }
            assert_eq!(again.rows.len(), whole.rows.len(), "{name}");
            assert_eq!(checks::of(&again).len(), whole.checks.len());
        }
    }
}

#[test]
fn runs_of_other_settings_are_made_again() {
    let (mut bench, mut results, scale) = (Synthetic::new(), Results::new("peers", true), Scale::quick());
    let mut session = Session::new(&mut bench, &mut results, &scale);
    let longer = Scale {
        run_s: 3.0,
        ..Scale::quick()
    };
    session.go_on(run("peers", &longer));
    run_in("peers", &mut session).unwrap();
    let made = run("peers", &Scale::quick()).rows.len();
    assert_eq!(results.rows.len(), made);
    assert_eq!(
        results.notes[1..],
        [format!(
            "{made} earlier runs were not used: they were made with other settings"
        )]
    );
    assert!(results.rows.iter().all(|row| row.run.duration_s < 0.6));
}

#[test]
fn only_what_is_asked_for_is_measured() {
    let scale = Scale {
        only: vec!["redirection".to_owned()],
        ..Scale::full()
    };
    let results = run("transport", &scale);
    assert!(
        results
            .rows
            .iter()
            .all(|row| row.setup.case.text().starts_with("redirection"))
    );
    assert!(!results.rows.is_empty());
}

#[test]
fn an_end_that_is_asked_for_ends_it() {
    let mut bench = Synthetic {
        left: 7,
        ..Synthetic::new()
    };
    let ended = run_with("transport", &mut bench, &Scale::full());
    assert!(matches!(ended, Err(Failure::Interrupted)));
}

#[test]
fn the_quick_checks_of_transport_hold_and_can_each_fail() {
    let checks = run("transport", &Scale::quick()).checks;
    assert_eq!(checks.len(), 5);
    assert_all_hold(&checks);
    assert!(checks.iter().all(|check| !check.figures.is_empty()));
    let stateless = distorted("transport", |setup| {
        if setup.case.state == State::Stateless && setup.server == Server::Trapezoid {
            2.0
        } else {
            1.0
        }
    });
    assert_eq!(
        lost(&stateless),
        ["a stateless call costs less than a stateful one"]
    );
    let tcp = distorted("transport", |setup| {
        if setup.case.transport == Transport::Tcp {
            4.0
        } else {
            1.0
        }
    });
    assert_eq!(
        lost(&tcp),
        ["TCP on one connection costs at most twice what UDP does"]
    );
    let digest = distorted("transport", |setup| if setup.case.auth { 0.5 } else { 1.0 });
    assert_eq!(lost(&digest), ["no authentication costs less than digest"]);
    let floor = distorted(
        "transport",
        |setup| if setup.server == Server::Floor { 3.0 } else { 1.0 },
    );
    assert_eq!(lost(&floor), ["the floor takes less user time than any proxy"]);
    let mut bench = Synthetic {
        loss: 0.02,
        ..Synthetic::new()
    };
    let lossy = run_with("transport", &mut bench, &Scale::quick()).unwrap().checks;
    assert_eq!(
        lost(&lossy),
        ["below the peak at least 99 % of the operations succeed"]
    );
}

#[test]
fn what_was_not_measured_is_no_shape() {
    for name in [
        "transport",
        "batching",
        "overload",
        "peers",
        "connections",
        "memory",
        "workers",
        "split",
        "pings",
    ] {
        let checks = checks::of(&Results::new(name, true));
        assert!(
            !checks.is_empty() && checks.len() == judged(&checks, Judgement::Unmeasured).len(),
            "{name}"
        );
    }
}

/// A stateless call takes turns with a stateful one, each round on a machine that others slow down by chance.
fn with_noise(noise: [(f64, f64); 5]) -> Vec<Check> {
    let mut results = run("transport", &Scale::quick());
    for row in &mut results.rows {
        let round = row.run.round as usize - 1;
        if row.run.purpose == Purpose::Duel && row.setup.server == Server::Trapezoid && round < noise.len() {
            let stateful = row.setup.case.state == State::Transaction;
            row.server.total_s *= if stateful { noise[round].1 } else { noise[round].0 };
        }
    }
    checks::of(&results)
}

#[test]
fn a_shape_is_not_lost_by_chance() {
    const NAME: &str = "a stateless call costs less than a stateful one";
    let of = |checks: Vec<Check>| {
        let mut found = checks.into_iter().filter(|check| check.name == NAME);
        found.next().unwrap().judgement
    };
    // A call costs 25 µs and 35.
    assert_eq!(of(with_noise([(1.0, 1.0); 5])), Judgement::Held);
    let common = [(1.0, 1.0), (1.6, 1.6), (1.1, 1.1), (2.0, 2.0), (1.0, 1.0)];
    assert_eq!(
        of(with_noise(common)),
        Judgement::Held,
        "a slow minute slows both"
    );
    let lucky = [(1.2, 1.0), (1.3, 1.1), (1.4, 0.8), (1.2, 1.0), (1.25, 0.85)];
    assert_eq!(of(with_noise(lucky)), Judgement::Undecided);
    assert_eq!(of(with_noise([(1.8, 1.0); 5])), Judgement::Lost);
}

#[test]
fn one_run_in_which_calls_fail_loses_nothing() {
    const NAME: &str = "below the peak at least 99 % of the operations succeed";
    let mut results = run("transport", &Scale::quick());
    let of = |results: &Results| judged(&checks::of(results), Judgement::Undecided).contains(&NAME);
    assert!(!of(&results));
    let run = results
        .rows
        .iter_mut()
        .find(|row| row.setup.server == Server::Trapezoid);
    let load = &mut run.unwrap().load;
    (load.succeeded, load.failed) = (0, load.offered);
    assert!(of(&results));
    assert_eq!(lost(&checks::of(&results)), [""; 0]);
}

#[test]
fn what_never_took_turns_was_not_measured() {
    let mut results = run("transport", &Scale::full());
    results.rows.retain(|row| row.run.purpose != Purpose::Duel);
    let checks = checks::of(&results);
    assert_eq!(judged(&checks, Judgement::Unmeasured).len(), 3, "{checks:?}");
}

#[test]
fn turns_go_forwards_and_backwards() {
    let results = run("transport", &Scale::quick());
    let of = |round: u32| -> Vec<(Setup, f64)> {
        let rows = results.rows.iter().filter(|row| row.run.round == round);
        rows.map(|row| (row.setup, row.run.rate)).collect()
    };
    let (first, mut second) = (of(1), of(2));
    second.reverse();
    assert_eq!(first, second);
    assert_eq!((first.len(), of(3).len(), of(5).len()), (7, 6, 3));
}

#[test]
fn the_quick_checks_of_batching_hold_and_can_each_fail() {
    let checks = run("batching", &Scale::quick()).checks;
    assert_eq!(checks.len(), 3);
    assert_all_hold(&checks);
    let adaptive = distorted("batching", |setup| {
        let slow = setup.look_ups.is_some_and(|l| l.mode == Mode::Adaptive);
        if slow { 1.2 } else { 1.0 }
    });
    assert!(
        lost(&adaptive).contains(&"adaptive mode carries at least 90 % of the best fixed setting"),
        "{adaptive:?}"
    );
    let large = distorted("batching", |setup| {
        let slow = setup
            .look_ups
            .is_some_and(|l| l.mode == Mode::Fixed && l.max_batch == 16);
        if slow { 2.0 } else { 1.0 }
    });
    assert!(
        lost(&large).contains(&"on the same connections twice the batch carries more"),
        "{large:?}"
    );
    let mut results = run("batching", &Scale::quick());
    for row in &mut results.rows {
        if let (Some(wire), Some(look_ups)) = (&mut row.wire, row.setup.look_ups)
            && look_ups.mode == Mode::Adaptive
        {
            wire.answers.wire_bytes *= 10.0;
        }
    }
    let checks = checks::of(&results);
    assert_eq!(
        lost(&checks),
        ["a call takes fewer bytes to and from the database in batches than single"]
    );
}

#[test]
fn batching_finds_what_the_model_says() {
    let results = run("batching", &Scale::full());
    for (connections, max_batch) in [(1, 64), (8, 16), (16, 8)] {
        let look_ups = LookUps {
            connections,
            mode: Mode::Fixed,
            max_batch,
        };
        let setup = Setup {
            look_ups: Some(look_ups),
            ..Setup::of(Server::Trapezoid, call(State::Transaction, true, Transport::Udp))
        };
        let (peak, truth) = (results.peak(&setup).unwrap(), capacity(&setup));
        assert!(
            peak <= 1.01 * truth && peak > 0.93 * truth,
            "{}: {peak} of {truth}",
            setup.text()
        );
    }
    assert_eq!(
        results.predictions.len(),
        11 + 7 + 36 + 3,
        "Kamailio's processes are settings, too"
    );
    assert!(results.rows.iter().any(|row| row.run.purpose == Purpose::Rare));
    let rounds = results.peaks.iter().map(|found| found.round).max();
    assert_eq!(rounds, Some(4), "a duel in three rounds");
}

#[test]
fn overload_goes_to_ten_times_the_peak() {
    let results = run("overload", &Scale::full());
    let setups = results.setups(Purpose::Curve);
    assert_eq!(setups.len(), 9, "three cases, each of three servers");
    for setup in setups {
        assert_eq!(setup.quota, Some(overload::QUOTA));
        let peak = overload::peak(&results, &setup).unwrap();
        let rows = results.of(&setup, Purpose::Curve);
        let most = rows.iter().map(|row| row.run.rate).fold(0.0, f64::max);
        assert!((most / peak - 10.0).abs() < 0.01);
        let rounds = if setup.server == Server::Kamailio { 1 } else { 2 };
        assert_eq!(rows.len(), 6 * rounds);
    }
    assert_all_hold(&results.checks);
    assert_eq!(results.checks.len(), 9);
}

#[test]
fn overload_says_what_is_lost() {
    let mut bench = Synthetic {
        loss: 0.009,
        ..Synthetic::new()
    };
    let results = run_with("overload", &mut bench, &Scale::quick()).unwrap();
    assert_all_hold(&results.checks);
    let lost_if = |change: fn(&mut Row)| {
        let mut results = results.clone();
        results.rows.iter_mut().for_each(change);
        lost(&checks::of(&results))
            .iter()
            .map(|name| name.split(": ").nth(1).unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let below = "below the peak what is offered is carried";
    let beyond = "beyond the peak at least nine tenths of it are completed";
    let more = "beyond the peak more is completed than with one queue";
    assert_eq!(lost_if(|row| row.load.goodput *= 0.97), [below]);
    assert_eq!(lost_if(|row| row.load.goodput *= 0.8), [below, beyond]);
    let as_with_one = |row: &mut Row| {
        if row.setup.one_queue {
            row.load.goodput = capacity(&row.setup);
        }
    };
    assert_eq!(lost_if(as_with_one), [more]);
    // What a full generator offered shows nothing.
    let mut full = results.clone();
    full.rows
        .iter_mut()
        .for_each(|row| row.load.generator.saturated = true);
    assert_eq!(judged(&checks::of(&full), Judgement::Unmeasured).len(), 3);
}
