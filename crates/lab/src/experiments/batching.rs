//! `batching`: authenticated calls with the subscribers in a database some milliseconds away (Dacosta and others, 2009).

use super::{Scale, Session};
use crate::case::{Case, LookUps, Mode, Purpose, Run, Server, Setup, State};
use crate::failure::Outcome;
use crate::load::{Criterion, Transport};
use crate::results::{Prediction, Row};
use crate::station::PlanCosts;
use crate::statistics::{Limits, median};

/// Figures 4 to 8: single look-ups on so many connections.
const SINGLES: [u32; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
/// Figures 9 to 12: batches on one connection.
const BATCHES: [u32; 7] = [2, 4, 8, 16, 32, 64, 128];
/// Figure 13: connections and batches.
const GRID: [u32; 6] = [2, 4, 8, 16, 32, 64];
/// Connections in adaptive mode, and most in a batch of it.
const ADAPTIVE: [u32; 4] = [1, 2, 8, 32];
const ADAPTIVE_BATCH: u32 = 128;
/// Processes of Kamailio, which waits in each.
const KAMAILIO: [u32; 3] = [4, 32, 128];

/// Before any retransmission, and before a queue that grows could hide in a short run.
const IN_TIME: Criterion = Criterion {
    p99_ms: Some(250.0),
    ..Criterion::PAPERS
};
/// Calls a second that generator, relay and database leave room for on one CPU.
const MOST: f64 = 24_000.0;
/// Between rates around what is expected, at first.
const STEP: f64 = 1.07;
/// Looks for a peak, at most: most need half of them.
const LOOKS: usize = 12;
/// Settings that take turns are offered so many times what is expected of them: what they complete is what they carry.
const BEYOND: f64 = 1.25;
/// Rounds of these.
const ROUNDS: u32 = 3;
/// Milliseconds of a batch beyond the round trip, and of each row of it, until the plan is known.
const BATCH_MS: f64 = 0.7;
const ROW_MS: f64 = 0.012;

fn setup(server: Server, mode: Mode, connections: u32, max_batch: u32) -> Setup {
    Setup {
        look_ups: Some(LookUps {
            connections,
            mode,
            max_batch,
        }),
        ..Setup::of(server, Case::call(State::Transaction, true, Transport::Udp))
    }
}

fn ours(mode: Mode, connections: u32, max_batch: u32) -> Setup {
    setup(Server::Trapezoid, mode, connections, max_batch)
}

/// All settings, in the order in which they are measured.
pub(crate) fn settings() -> Vec<Setup> {
    let adaptive = ADAPTIVE.map(|p| ours(Mode::Adaptive, p, ADAPTIVE_BATCH));
    let singles = SINGLES.map(|p| ours(Mode::Single, p, 1));
    let batches = BATCHES.map(|b| ours(Mode::Fixed, 1, b));
    let grid = GRID.iter().flat_map(|p| GRID.map(|b| ours(Mode::Fixed, *p, b)));
    let kamailio = KAMAILIO.map(|p| setup(Server::Kamailio, Mode::Single, p, 1));
    let all = adaptive.into_iter().chain(singles).chain(batches).chain(grid);
    all.chain(kamailio).collect()
}

/// Measures everything.
pub(crate) fn run(session: &mut Session<'_>) -> Outcome<()> {
    if session.scale.quick {
        return quick(session);
    }
    let scale = session.scale;
    let wanted = scale.wanted(&settings(), Setup::text)?;
    let settings = session.present(&wanted);
    let looks = LOOKS;
    let duel = 2.0 * f64::from(scale.repeats);
    let seconds = scale.seconds(Purpose::Look) * looks as f64 / 2.0 * (settings.len() as f64 + duel);
    session.bench.progress().expect(seconds);
    if settings.iter().any(|setup| setup.server == Server::Trapezoid) {
        predict(session)?;
    }
    for setup in &settings {
        session.bench.progress().doing(&setup.text());
        session.peak(setup, 1, &around(session, setup, looks), IN_TIME)?;
    }
    if let Some((adaptive, fixed)) = pair(session) {
        duels(session, &[adaptive, fixed])?;
    }
    let twice = [8, 16].map(|max_batch| ours(Mode::Fixed, 2, max_batch));
    if twice.iter().all(|setup| settings.contains(setup)) {
        in_turn(session, &twice)?;
    }
    rare(session, &settings)
}

/// Looks around what is expected of a setting.
fn around(session: &Session<'_>, setup: &Setup, looks: usize) -> Limits {
    let expected = expected(session, setup);
    Limits {
        first: 0.97 * expected,
        least: 5.0,
        most: MOST,
        grow: STEP,
        precision: STEP - 1.0,
        looks,
    }
}

fn expected(session: &Session<'_>, setup: &Setup) -> f64 {
    let Some(look_ups) = setup.look_ups else {
        return MOST;
    };
    let known = session.results.predictions.iter();
    let known = known.filter(|_| setup.server == Server::Trapezoid).find(|known| {
        known.look_ups.connections == look_ups.connections && known.look_ups.max_batch == look_ups.max_batch
    });
    known
        .map_or_else(|| by_round_trips(session.scale, &look_ups), |known| known.peak)
        .min(MOST)
}

/// Connections times batches in each round trip; half of the most, so that no server is asked for too much at first.
fn by_round_trips(scale: &Scale, look_ups: &LookUps) -> f64 {
    let (p, b) = (f64::from(look_ups.connections), f64::from(look_ups.max_batch));
    (1e3 * p * b / (scale.rtt_ms + BATCH_MS + ROW_MS * b)).min(MOST / 2.0)
}

/// What the plan says, of batches that it asks for now; the CPU of a call and of a batch are those of two runs.
fn predict(session: &mut Session<'_>) -> Outcome<()> {
    let (single, adaptive) = (
        ours(Mode::Single, 128, 1),
        ours(Mode::Adaptive, 8, ADAPTIVE_BATCH),
    );
    let one = session.run(&single, &session.scale.run(Purpose::Fixed, 1, 1_000.0))?;
    let many = session.run(&adaptive, &session.scale.run(Purpose::Fixed, 1, 3_000.0))?;
    let Some(costs) = costs(&one, &many) else {
        let text = "the plan was not asked: batches were too small to tell what one costs".to_owned();
        session.results.notes.push(text);
        return Ok(());
    };
    if !session.results.predictions.is_empty() {
        // Those of the earlier run that this one goes on with: its searches followed from them.
        return Ok(());
    }
    let plan = session.bench.plan(&adaptive, &costs)?;
    session.results.predictions = predictions(&plan);
    Ok(())
}

/// The database's CPU for a batch is F + R·b: from a run of ones, and one of larger batches.
fn costs(one: &Row, many: &Row) -> Option<PlanCosts> {
    let (each_one, each_many) = (one.database_us()?, many.database_us()?);
    let size = many.mean_batch().filter(|size| *size > 1.2)?;
    let batch_us = ((each_one - each_many) * size / (size - 1.0)).max(1.0);
    Some(PlanCosts {
        per_call_us: many.server_us(),
        batch_us,
        row_us: (each_one - batch_us).max(1.0),
    })
}

/// The plan's grid.
fn predictions(plan: &serde_json::Value) -> Vec<Prediction> {
    let cells = plan["grid"].as_array().into_iter().flatten();
    cells
        .filter_map(|cell| {
            let number = |name: &str| u32::try_from(cell[name].as_u64()?).ok();
            let (connections, max_batch) = (number("connections")?, number("max_batch")?);
            let mode = if max_batch == 1 { Mode::Single } else { Mode::Fixed };
            Some(Prediction {
                look_ups: LookUps {
                    connections,
                    mode,
                    max_batch,
                },
                peak: cell["peak_per_s"].as_f64()?,
            })
        })
        .collect()
}

/// The adaptive setting that carries most, and the fixed one.
fn pair(session: &Session<'_>) -> Option<(Setup, Setup)> {
    let best = |mode: Mode| {
        let found = session.results.peaks.iter().filter_map(|found| {
            let is_of = found.setup.server == Server::Trapezoid && found.setup.look_ups?.mode == mode;
            is_of.then_some((found.setup, found.peak.as_ref()?.rate))
        });
        found.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(setup, _)| setup)
    };
    Some((best(Mode::Adaptive)?, best(Mode::Fixed)?))
}

/// Settings in turn, each from the same first rate: what is compared has seen the same hour.
fn duels(session: &mut Session<'_>, setups: &[Setup]) -> Outcome<()> {
    let known: Vec<f64> = setups
        .iter()
        .filter_map(|setup| session.results.peak(setup))
        .collect();
    let Some(first) = median(&known) else {
        return Ok(());
    };
    for round in 1..=session.scale.repeats {
        for setup in setups {
            let limits = Limits {
                first,
                ..around(session, setup, LOOKS)
            };
            // Round 1 was that of the search above.
            session.peak(setup, round + 1, &limits, IN_TIME)?;
        }
    }
    Ok(())
}

/// At one call a second: the time that look-ups add to a response when there is no other call.
fn rare(session: &mut Session<'_>, settings: &[Setup]) -> Outcome<()> {
    let of = |mode: Mode, connections: u32| {
        let mut found = settings.iter().filter(|setup| setup.server == Server::Trapezoid);
        found.find(|setup| {
            setup
                .look_ups
                .is_some_and(|l| l.mode == mode && l.connections == connections)
        })
    };
    let setups = [of(Mode::Adaptive, 8), of(Mode::Single, 8), of(Mode::Fixed, 8)];
    for setup in setups.into_iter().flatten() {
        let run = Run {
            duration_s: 20.0,
            ..session.scale.run(Purpose::Rare, 1, 1.0)
        };
        session.run(setup, &run)?;
    }
    Ok(())
}

/// Few connections, so that little load is enough to fill them.
fn quick(session: &mut Session<'_>) -> Outcome<()> {
    let single = ours(Mode::Single, 2, 1);
    let all = [
        ours(Mode::Fixed, 2, 8),
        ours(Mode::Fixed, 2, 16),
        ours(Mode::Adaptive, 2, 16),
    ];
    if session.present(&[single]).is_empty() {
        return Ok(());
    }
    let scale = session.scale;
    session.bench.progress().expect(scale.seconds(Purpose::Fixed));
    let rate = 0.7
        * by_round_trips(
            scale,
            &LookUps {
                connections: 2,
                mode: Mode::Single,
                max_batch: 1,
            },
        );
    session.run(&single, &scale.run(Purpose::Fixed, 1, rate))?;
    in_turn(session, &all)
}

/// What settings carry, in turn: forwards in one round and backwards in the next. All servers run meanwhile.
fn in_turn(session: &mut Session<'_>, settings: &[Setup]) -> Outcome<()> {
    let runs = f64::from(ROUNDS) * settings.len() as f64;
    let seconds = session.scale.seconds(Purpose::Beyond);
    session.bench.progress().expect(runs * seconds);
    session.bench.keep(settings.len());
    let mut turns = settings.to_vec();
    for round in 1..=ROUNDS {
        for setup in &turns {
            let rate = BEYOND * expected(session, setup);
            session.run(setup, &session.scale.run(Purpose::Beyond, round, rate))?;
        }
        turns.reverse();
    }
    session.bench.keep(1);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::row;
    use super::*;
    use crate::results::Batches;

    #[test]
    fn the_papers_settings_are_there() {
        let names: Vec<String> = settings().iter().map(Setup::text).collect();
        for name in ["single 512", "fixed 1×64", "fixed 32×16", "adaptive 8"] {
            assert!(names.contains(&format!("Trapezoid {name}")), "{name}");
        }
        assert!(names.contains(&"Kamailio single 128".to_owned()));
        assert_eq!(names.len(), 11 + 7 + 36 + 4 + 3);
    }

    #[test]
    fn what_a_batch_costs() {
        // 20 µs a batch and 10 a row: 30 for one, 12.5 for one of eight.
        let with = |us: f64, size: f64| {
            let mut row = row(1000.0, 50.0);
            let mut used = row.server.clone();
            used.total_s = us * 1e-6 * 1000.0 * used.wall_s;
            row.database = Some(used);
            row.batches = Some(Batches {
                count: 10.0,
                rows: 10.0 * size,
                busy_us: 0.0,
            });
            row
        };
        let found = costs(&with(30.0, 1.0), &with(12.5, 8.0)).unwrap();
        assert!(
            (found.batch_us - 20.0).abs() < 1e-6 && (found.row_us - 10.0).abs() < 1e-6,
            "{found:?}"
        );
        assert!(
            costs(&with(30.0, 1.0), &with(30.0, 1.0)).is_none(),
            "no batch to learn from"
        );
    }

    #[test]
    fn the_plans_grid_is_read() {
        let plan = serde_json::json!({ "grid": [
            { "connections": 8, "max_batch": 1, "peak_per_s": 250.5 },
            { "connections": 8, "max_batch": 16, "peak_per_s": 4000.0 },
            { "connections": 8 } ] });
        let found = predictions(&plan);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].look_ups.mode, found[0].peak), (Mode::Single, 250.5));
        assert_eq!(found[1].look_ups.text(), "fixed 8×16");
        assert_eq!(predictions(&serde_json::Value::Null), []);
    }
}
