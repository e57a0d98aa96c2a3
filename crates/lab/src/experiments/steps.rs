//! Experiments in steps: what is left of a plan is made, step by step, and each is kept.

use super::{Scale, Session};
use crate::case::Server;
use crate::failure::Outcome;
use crate::load::Report;
use crate::report::or_dash;
use crate::results::Results;
use crate::statistics::{Judgement, median};
use crate::steps::{
    Figures, Handshake, Measured, Memory, Messages, Pace, Phase, Pinged, Siege, SplitTime, Spread, Step,
    Storm, shares, split_load_s,
};

/// Part of the calls that are completed where all of them should be.
pub(crate) const COMPLETED: f64 = 0.99;

/// Of these steps, those that are not measured yet.
pub(crate) fn left(steps: Vec<Step>, measured: &[Measured]) -> Vec<Step> {
    let is_left = |step: &Step| measured.iter().all(|one| one.step != *step);
    steps.into_iter().filter(is_left).collect()
}

/// How long everything takes.
pub(crate) fn pace(scale: &Scale) -> Pace {
    if scale.quick {
        return Pace {
            run_s: scale.run_s / 2.0,
            shake_s: scale.run_s / 4.0,
            warm_s: 0.3,
            settle_s: 0.4,
            siege_s: 1.0,
            alone_s: 0.1,
            give_up_s: 20.0,
            looks: 0,
            rate: 1_000.0,
            most_rate: 1_000.0,
            deaf_rate: 200.0,
        };
    }
    Pace {
        run_s: scale.run_s,
        shake_s: scale.run_s,
        warm_s: 2.0,
        settle_s: 3.0,
        // Until the kernel's buffers, megabytes for each deaf client, are full, and ours have to hold the rest.
        siege_s: 35.0,
        alone_s: 1.0,
        give_up_s: 120.0,
        looks: 3,
        rate: 2_000.0,
        most_rate: 30_000.0,
        deaf_rate: 2_000.0,
    }
}

/// Seconds that a step takes, about.
pub(crate) fn expected(step: &Step, pace: &Pace) -> f64 {
    /// Of a server.
    const START: f64 = 0.5;
    /// Of the generator, and its end.
    const AROUND: f64 = 0.6;
    // Handshakes of both ends, on a modest machine.
    let opening = |clients: u32| 0.2 + f64::from(clients) / 2_500.0;
    let run = 1.1 * pace.run_s + AROUND;
    match *step {
        Step::Memory { clients, .. } => START + opening(20) + opening(clients) + 3.0 * pace.settle_s + 0.5,
        Step::Messages { few, many, rounds } => {
            let looks = f64::from(pace.looks) * (pace.run_s.min(3.0) + AROUND);
            let warm = pace.warm_s + AROUND + pace.settle_s;
            2.0 * START + looks + warm + opening(few) + opening(many) + 2.0 * f64::from(rounds) * run
        }
        Step::Attackers { slow, deaf, .. } => {
            START + pace.warm_s + AROUND + 2.0 * run + opening(slow + deaf) + pace.siege_s
        }
        Step::InMemory => 16.0 * pace.alone_s + 0.5,
        Step::Handshakes { key, .. } => {
            let cases = if key.is_some() { 4.0 } else { 1.0 };
            START + cases * (pace.warm_s.min(1.0) + pace.shake_s + 0.2)
        }
        Step::Storm { server, clients, .. } => {
            // All but ours need several attempts.
            let storm = match server {
                Server::Trapezoid => pace.run_s + AROUND,
                Server::Kamailio | Server::Floor | Server::BareRelay => 12.0,
            };
            3.0 * START + 1.0 + opening(clients) + storm
        }
        Step::Transactions { seconds, quiet, .. } => {
            START + 1.0 + AROUND + f64::from(seconds + quiet) + AROUND
        }
        Step::Ringing { calls, quiet, .. } => {
            START + 2.0 * f64::from(calls) / 3_000.0 + 5.0 + AROUND + f64::from(quiet)
        }
        Step::Contacts { contacts, .. } => {
            START + 2.0 + f64::from(contacts) / 4_500.0 + AROUND + pace.settle_s
        }
        Step::Workers { .. } => START + 2.0 * pace.warm_s + pace.run_s + AROUND,
        Step::Split {
            warm, turns, seconds, ..
        } => START + f64::from(warm) + split_load_s(turns, seconds) + AROUND,
        Step::Pings(plan) => START + plan.seconds(),
    }
}

/// Makes all steps of a plan that the results do not have yet.
pub(crate) fn run(session: &mut Session<'_>, plan: &[Step]) -> Outcome<()> {
    let pace = &pace(session.scale);
    let all = session.scale.wanted(plan, Step::text)?;
    go_on(session, &all, pace);
    let not_measured = left(all, &session.results.steps);
    let steps = present(session, not_measured);
    let seconds: f64 = steps.iter().map(|step| expected(step, pace)).sum();
    let progress = session.bench.progress();
    progress.expect(seconds);
    progress.say(&beforehand(steps.len(), seconds));
    for step in steps {
        session.bench.progress().doing(&step.text());
        let measured = session.bench.step(&step, pace)?;
        let progress = session.bench.progress();
        progress.say(&line(&measured));
        progress.done(expected(&step, pace));
        session.results.steps.push(measured);
        session.save()?;
    }
    Ok(())
}

/// Takes over the steps of an experiment that ended early: those of this plan, if they took as long. A step depends on
/// no other, unlike a run, so that their order does not matter.
fn go_on(session: &mut Session<'_>, plan: &[Step], pace: &Pace) {
    let (earlier, of_earlier) = std::mem::take(&mut session.earlier_steps);
    session.results.pace = Some(*pace);
    // All else of it follows from the length of runs. It has been through a file.
    let is_same = of_earlier.is_some_and(|of| (of.run_s - pace.run_s).abs() < 1e-9);
    let is_used = |one: &Measured| is_same && plan.contains(&one.step);
    let (used, unused): (Vec<Measured>, Vec<Measured>) = earlier.into_iter().partition(is_used);
    session.results.steps = used;
    if !unused.is_empty() {
        let text = format!(
            "{} earlier steps were not used: they were made with other settings",
            unused.len()
        );
        session.bench.progress().say(&text);
        session.results.notes.push(text);
    }
}

/// How much there is to do.
pub(crate) fn beforehand(steps: usize, seconds: f64) -> String {
    let time = if seconds < 90.0 {
        format!("{seconds:.0} seconds")
    } else {
        format!("{:.0} minutes", (seconds / 60.0).ceil())
    };
    format!("{steps} steps, about {time}")
}

pub(crate) fn note(results: &mut Results, text: String) {
    if !results.notes.contains(&text) {
        results.notes.push(text);
    }
}

/// Of these, those that can be made here. What cannot is noted once.
fn present(session: &mut Session<'_>, steps: Vec<Step>) -> Vec<Step> {
    let mut found = Vec::new();
    for step in steps {
        match session.bench.absent_step(&step) {
            None => found.push(step),
            Some(absent) if session.results.absent.contains(&absent) => {}
            Some(absent) => {
                let text = format!("{}: left out: {}", absent.what, absent.why);
                session.bench.progress().say(&text);
                session.results.absent.push(absent);
            }
        }
    }
    found
}

/// A step in one line, for people.
pub(crate) fn line(measured: &Measured) -> String {
    let figures = match &measured.figures {
        Figures::Memory(memory) => format!(
            "{} there, {:.0} bytes each",
            memory.crowd.opened,
            memory.bytes_each()
        ),
        Figures::Messages(messages) => {
            let mut each: Vec<String> = Vec::new();
            for idle in messages.runs.iter().take(2).map(|run| run.idle) {
                let of = messages.runs.iter().filter(|run| run.idle == idle);
                let us: Vec<f64> = of.map(|run| run.calls.us_each()).collect();
                each.push(format!("{:.2} µs beside {idle}", median(&us).unwrap_or(0.0)));
            }
            format!("a message takes {}", each.join(", "))
        }
        Figures::Attackers(siege) => format!(
            "p99 {:.2} ms without, {:.2} with them; memory grew by {:.0} MiB",
            siege.calm.p99_ms(),
            siege.attacked.p99_ms(),
            siege.growth() / f64::from(1 << 20)
        ),
        Figures::InMemory(cases) => format!("{} cases", cases.len()),
        Figures::Handshakes(handshakes) => {
            let each = handshakes.iter().map(|one| format!("{:.1}", one.us()));
            format!("{} µs each", each.collect::<Vec<_>>().join(", "))
        }
        Figures::Storm(storm) => format!(
            "{} of {} served, the last after {:.2} s, {} resumed",
            storm.crowd.served, storm.crowd.asked, storm.crowd.all_s, storm.crowd.resumed
        ),
        Figures::Held(held) => format!(
            "{:.1} MiB at most, {} bytes each",
            held.most as f64 / f64::from(1 << 20),
            or_dash(held.bytes_each())
        ),
        Figures::Workers(spread) => line_of_spread(spread),
        Figures::Split(split) => line_of_split(split),
        Figures::Pings(pinged) => line_of_pings(pinged),
    };
    format!("{:<52} {figures}", measured.step.text())
}

fn line_of_spread(spread: &Spread) -> String {
    format!(
        "{:.1} µs for a call, requests {}",
        spread.us(),
        percent(&shares(&spread.requests))
    )
}

fn line_of_split(split: &SplitTime) -> String {
    format!(
        "the split takes {:+.1} % of the worker's CPU, parts / thread {:.3}",
        100.0 * (median(&split.ratios()).unwrap_or(1.0) - 1.0),
        split.accounted()
    )
}

fn line_of_pings(pinged: &Pinged) -> String {
    let each = pinged.phases.iter().map(|phase| {
        let (cpu, rate) = (100.0 * phase.server.utilization(), phase.rate());
        format!("{cpu:.1} % CPU at {rate:.0} pings/s")
    });
    each.collect::<Vec<_>>().join(", ")
}

/// Shares of workers in one cell: `52/48 %`.
pub(crate) fn percent(shares: &[f64]) -> String {
    let each: Vec<String> = shares.iter().map(|share| format!("{share:.0}")).collect();
    format!("{} %", each.join("/"))
}

/// Bytes by which the memory of a process varies, whatever it holds: the allocator takes and gives back in pieces.
const VARIES: f64 = 4.0 * 1024.0 * 1024.0;

/// Judges bytes of each of so many things, and says how far they may be off. They are counted, not timed: one
/// measurement decides, if what memory varies by does not.
pub(crate) fn counted(each: f64, things: f64, goal: f64) -> (Judgement, f64) {
    let doubt = crate::cpu::ratio(VARIES, things);
    let judgement = if each + doubt <= goal {
        Judgement::Held
    } else if each - doubt > goal {
        Judgement::Lost
    } else {
        Judgement::Undecided
    };
    (judgement, doubt)
}

/// Why figures of idle connections mean nothing.
pub(crate) fn flaws(memory: &Memory) -> impl Iterator<Item = String> {
    let crowd = &memory.crowd;
    let known = memory.known.filter(|known| *known < crowd.opened as f64);
    let few = memory.bytes_each() <= 0.0;
    [
        (crowd.closed > 0).then(|| format!("the server ended {} connections meanwhile", crowd.closed)),
        known.map(|known| format!("the server knows of {known:.0} connections")),
        few.then(|| "memory did not grow: more connections would show".to_owned()),
    ]
    .into_iter()
    .flatten()
}

/// What a reader must know before believing the figures, from the figures themselves.
pub(crate) fn doubts(measured: &[Measured]) -> Vec<String> {
    let mut found = Vec::new();
    for one in measured {
        let texts: Vec<String> = match &one.figures {
            Figures::Memory(memory) => of_memory(memory),
            Figures::Messages(messages) => of_messages(messages),
            Figures::Attackers(siege) => of_siege(siege),
            Figures::InMemory(_) => Vec::new(),
            Figures::Handshakes(all) => all.iter().filter_map(of_handshake).collect(),
            Figures::Storm(storm) => of_storm(storm),
            Figures::Held(held) => short_of(&held.load).into_iter().collect(),
            Figures::Workers(spread) => of_calls(&spread.load),
            Figures::Split(split) => of_calls(&split.load),
            Figures::Pings(pinged) => of_pings(pinged),
        };
        found.extend(
            texts
                .into_iter()
                .map(|text| format!("{}: {text}", one.step.text())),
        );
    }
    found
}

fn of_memory(memory: &Memory) -> Vec<String> {
    let crowd = &memory.crowd;
    let mut texts: Vec<String> = flaws(memory).collect();
    if crowd.opened < crowd.asked {
        texts.push(format!("{} of {} could be opened", crowd.opened, crowd.asked));
    }
    let left = memory.left.filter(|left| *left > 0.0);
    texts.extend(left.map(|left| format!("{left:.0} connections are left after all have ended")));
    texts
}

fn of_messages(messages: &Messages) -> Vec<String> {
    let mut texts = Vec::new();
    for crowd in &messages.crowds {
        if crowd.opened < crowd.asked || crowd.closed > 0 {
            texts.push(format!(
                "of {} idle connections {} were opened, and {} ended early",
                crowd.asked, crowd.opened, crowd.closed
            ));
        }
    }
    let failed = messages.runs.iter().filter(|run| run.calls.succeeded() < 0.999);
    let failed = failed.count();
    if failed > 0 {
        texts.push(format!(
            "calls failed in {failed} of {} runs",
            messages.runs.len()
        ));
    }
    texts
}

fn of_siege(siege: &Siege) -> Vec<String> {
    let mut texts = Vec::new();
    for (what, calls) in [("without", &siege.calm), ("with", &siege.attacked)] {
        if calls.succeeded() < 0.999 {
            texts.push(format!(
                "{what} attackers {} of {} calls were completed",
                calls.load.succeeded, calls.load.offered
            ));
        }
    }
    if siege.slow.there + siege.deaf.there == 0 {
        texts.push("no attacker was there".to_owned());
    }
    texts
}

fn of_handshake(one: &Handshake) -> Option<String> {
    let crowd = &one.crowd;
    let is_as_meant = if one.resumed {
        crowd.resumed as f64 >= 0.95 * crowd.done as f64
    } else {
        crowd.resumed == 0
    };
    let is_good = crowd.done > 0 && crowd.failed == 0 && is_as_meant;
    (!is_good).then(|| {
        format!(
            "{} done, {} resumed, {} failed",
            crowd.done, crowd.resumed, crowd.failed
        )
    })
}

/// Whether too little was completed, in words.
fn short_of(load: &Report) -> Option<String> {
    let is_short = (load.succeeded as f64) < COMPLETED * load.offered as f64;
    is_short.then(|| format!("{} of {} were completed", load.succeeded, load.offered))
}

fn of_calls(load: &Report) -> Vec<String> {
    let full = load
        .generator
        .saturated
        .then(|| "the generator was full".to_owned());
    short_of(load).into_iter().chain(full).collect()
}

fn of_pings(pinged: &Pinged) -> Vec<String> {
    let phones = &pinged.phones;
    let mut texts = Vec::new();
    if phones.registered < phones.asked {
        texts.push(format!(
            "{} of {} phones registered: {} got no response, {} another one (the last {})",
            phones.registered,
            phones.asked,
            phones.unanswered,
            phones.refused,
            phones.status.unwrap_or_default()
        ));
    }
    let dropped = |drops: fn(&Phase) -> u64| pinged.phases.iter().map(drops).sum::<u64>();
    let (server, own) = (
        dropped(|phase| phase.server_drops),
        dropped(|phase| phase.phone_drops),
    );
    if server + own > 0 {
        texts.push(format!(
            "{server} datagrams overflowed the server's receive buffer, {own} that of the phones"
        ));
    }
    let windows = |phase: &Phase| phase.heard.whole_windows().len();
    let all: usize = pinged.phases.iter().map(windows).sum();
    let empty: usize = pinged.phases.iter().map(Phase::empty_windows).sum();
    if empty > 0 {
        texts.push(format!(
            "no ping came in {empty} of {all} windows of 100 ms: something else had the CPU, or the server stood still"
        ));
    }
    texts
}

fn of_storm(storm: &Storm) -> Vec<String> {
    let crowd = &storm.crowd;
    let is_short = storm.remembered < crowd.asked;
    is_short
        .then(|| format!("only {} of {} had a ticket", storm.remembered, crowd.asked))
        .into_iter()
        .collect()
}
