//! The verdict at the top of a report: whether the shapes hold, and the few figures that the experiment was made for.

use super::model::{Verdict, number, peak_cells};
use super::peers::{Scenario, scenarios};
use super::transport::cost;
use crate::case::{Case, Mode, Purpose, Server, Setup, State};
use crate::cpu::ratio;
use crate::load::Transport;
use crate::results::Results;
use crate::statistics::{Judgement, median};

pub(super) fn of(results: &Results) -> Verdict {
    let mut findings = match results.experiment.as_str() {
        "batching" => batching(results),
        "overload" => overload(results),
        "peers" => peers(results),
        "connections" => super::connections::findings(results),
        "memory" => super::memory::findings(results),
        "workers" => super::workers::findings(results),
        "split" => super::split::findings(results),
        "pings" => super::pings::findings(results),
        _ => transport(results),
    };
    findings.extend(early_end(results));
    let warnings = results.warnings().len();
    if warnings > 0 {
        let things = if warnings == 1 { "thing" } else { "things" };
        findings.push(format!(
            "{warnings} {things} to know before believing these figures: below, under \"What was not measured\"."
        ));
    }
    Verdict {
        judgement: results.checks.iter().map(|check| check.judgement).max(),
        headline: headline(results),
        findings,
    }
}

fn early_end(results: &Results) -> impl Iterator<Item = String> + '_ {
    let notes = results.notes.iter();
    notes.filter(|note| note.contains("ended early")).cloned()
}

/// A line on the shapes: how many hold, then the names of the others, the worst judgement first.
fn headline(results: &Results) -> String {
    let all = results.checks.len();
    let of = |judgement: Judgement| -> Vec<&str> {
        let checks = results.checks.iter();
        let found = checks.filter(|check| check.judgement == judgement);
        found.map(|check| check.name.as_str()).collect()
    };
    let held = of(Judgement::Held).len();
    let mut said = match all {
        0 => "No shape was checked.".to_owned(),
        _ if held == all => format!("All {all} shapes hold."),
        _ => format!("{held} of {all} shapes hold."),
    };
    for judgement in [Judgement::Lost, Judgement::Unmeasured, Judgement::Undecided] {
        let names = of(judgement);
        if !names.is_empty() {
            said.push_str(&format!(" {}: {}.", capital(judgement.word()), names.join("; ")));
        }
    }
    said
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// Cost and peak of the cheapest and of the dearest kind of call.
fn transport(results: &Results) -> Vec<String> {
    let ends = [
        ("A stateless call", State::Stateless, false),
        ("A stateful call with digest", State::Transaction, true),
    ];
    let mut found = Vec::new();
    for (what, state, auth) in ends {
        let setup = Setup::of(Server::Trapezoid, Case::call(state, auth, Transport::Udp));
        let Some((us, rate)) = cost(results, &setup) else {
            continue;
        };
        let [peak, ..] = peak_cells(results, &setup);
        let peak = results.peak(&setup).map_or_else(String::new, |_| {
            format!("; the most that one CPU carries is {peak} /s")
        });
        found.push(format!(
            "{what} over UDP takes {} µs of the server's CPU at {}/s{peak}.",
            number(us),
            number(rate)
        ));
    }
    found
}

/// The least and the greatest of some ratios, in words.
fn range(ratios: &[f64]) -> String {
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{least:.1} to {most:.1} times")
}

fn peers(results: &Results) -> Vec<String> {
    let scenarios = scenarios(results);
    let near: Vec<f64> = scenarios.iter().filter_map(Scenario::near_ratio).collect();
    let equal: Vec<f64> = scenarios.iter().filter_map(Scenario::equal_ratio).collect();
    let mut found = Vec::new();
    if !near.is_empty() {
        found.push(format!(
            "Near each one's own peak an operation takes {} as much CPU of Kamailio as of Trapezoid, in {} scenarios. \
             The peaks that this implies are in the same ratio.",
            range(&near),
            near.len()
        ));
    }
    if !equal.is_empty() {
        found.push(format!("At Kamailio's rate it takes {} as much.", range(&equal)));
    }
    found
}

/// The best setting of a mode, and its peak. If no peak was searched for, it is the rate carried in the runs in turn.
fn best(results: &Results, mode: Mode) -> Option<(String, String)> {
    let of_mode =
        |setup: &Setup| setup.server == Server::Trapezoid && setup.look_ups.is_some_and(|of| of.mode == mode);
    let mut setups: Vec<Setup> = results.setups(Purpose::Beyond);
    for found in &results.peaks {
        if !setups.contains(&found.setup) {
            setups.push(found.setup);
        }
    }
    let carried = |setup: &Setup| {
        let in_turn = results.of(setup, Purpose::Beyond);
        results
            .peak(setup)
            .or_else(|| Results::median(&in_turn, |row| row.load.goodput))
    };
    let all = setups.into_iter().filter(of_mode);
    let all = all.filter_map(|setup| Some((setup, carried(&setup)?)));
    let (setup, rate) = all.max_by(|a, b| a.1.total_cmp(&b.1))?;
    let [peak, ..] = peak_cells(results, &setup);
    let text = results.peak(&setup).map_or_else(|| number(rate), |_| peak);
    Some((setup.short(), text))
}

fn batching(results: &Results) -> Vec<String> {
    let modes = [
        ("single look-ups", Mode::Single),
        ("fixed batches", Mode::Fixed),
        ("adaptive batches", Mode::Adaptive),
    ];
    let each = modes.into_iter().filter_map(|(what, mode)| {
        let (setting, rate) = best(results, mode)?;
        Some(format!("{rate} calls/s with {what} ({setting})"))
    });
    let each: Vec<String> = each.collect();
    if each.is_empty() {
        return Vec::new();
    }
    vec![format!("The most that was carried: {}.", each.join(", "))]
}

/// For each setup, the share of its peak that it still completes at the highest load offered.
fn overload(results: &Results) -> Vec<String> {
    let mut found = Vec::new();
    for setup in results.setups(Purpose::Curve) {
        let Some(peak) = crate::experiments::overload::peak(results, &setup) else {
            continue;
        };
        let rows = results.of(&setup, Purpose::Curve);
        let most = rows.iter().map(|row| row.run.rate).fold(0.0, f64::max);
        let at_most = rows.iter().filter(|row| row.run.rate >= 0.999 * most);
        let goodput: Vec<f64> = at_most.map(|row| row.load.goodput).collect();
        let Some(goodput) = median(&goodput) else {
            continue;
        };
        found.push(format!(
            "{}: offered {:.1} times the peak of {}/s, the server still completes {:.0} % of that peak.",
            setup.text(),
            ratio(most, peak),
            number(peak),
            100.0 * ratio(goodput, peak)
        ));
    }
    found
}
