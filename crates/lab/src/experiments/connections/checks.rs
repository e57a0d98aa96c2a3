//! The shapes of `connections`. Pure.

use super::super::checks::{check, compared, unmeasured};
use super::super::steps::{counted, flaws};
use crate::case::Server;
use crate::report::number;
use crate::results::{Check, Results};
use crate::statistics::{Bound, Judgement};
use crate::steps::{Key, Kind, Measured, Memory, Messages, Siege, Storm};

/// Work for a message beside many connections, in that beside few.
const SAME: f64 = 1.05;
/// p99 with attackers, in that without.
const TWICE: f64 = 2.0;
/// Clients that resume their session after a restart.
const RESUMED: f64 = 0.99;
/// Calls that succeed beside a storm.
const SUCCESS: f64 = 0.999;

/// All checks.
pub(crate) fn of(results: &Results) -> Vec<Check> {
    let measured = &results.steps;
    let mut checks: Vec<Check> = Kind::ALL.iter().map(|kind| idle(measured, *kind)).collect();
    checks.push(beside(measured));
    checks.push(others(measured));
    checks.push(bounded(measured));
    checks.push(tcp(measured));
    checks.push(resumption(measured));
    checks.extend(storm(measured));
    checks
}

/// Our idle connections of a kind.
fn memory(measured: &[Measured], kind: Kind) -> Option<&Memory> {
    let mut all = measured
        .iter()
        .filter(|one| one.step.server() == Server::Trapezoid);
    all.find_map(|one| one.memory().filter(|_| one.step.kind() == kind))
}

/// Bytes are counted, not timed: one measurement decides, if what memory varies by does not.
fn idle(measured: &[Measured], kind: Kind) -> Check {
    let goal = kind.goal();
    let name = format!(
        "an idle connection by {} holds at most {} bytes",
        kind.text(),
        number(goal)
    );
    let Some(memory) = memory(measured, kind) else {
        return unmeasured(&name);
    };
    let each = memory.bytes_each();
    let (judged, doubt) = counted(each, memory.crowd.opened as f64, goal);
    let judgement = if flaws(memory).next().is_some() {
        Judgement::Undecided
    } else {
        judged
    };
    let figures = format!(
        "{} bytes, give or take {}, {} connections",
        number(each),
        number(doubt),
        memory.crowd.opened
    );
    check(&name, judgement, figures)
}

fn messages(measured: &[Measured]) -> Option<&Messages> {
    measured.iter().find_map(Measured::messages)
}

/// Microseconds for each message beside many and beside few, of each round in which calls succeeded.
pub(crate) fn message_pairs(messages: &Messages) -> Vec<(f64, f64)> {
    let few = messages.runs.iter().map(|run| run.idle).min();
    let (less, more): (Vec<_>, Vec<_>) = messages.runs.iter().partition(|run| Some(run.idle) == few);
    let pair = more.into_iter().filter_map(|many| {
        let few = less.iter().find(|few| few.round == many.round)?;
        let is_sound = many.calls.succeeded() > 0.95 && few.calls.succeeded() > 0.95;
        is_sound.then(|| (many.calls.us_each(), few.calls.us_each()))
    });
    pair.collect()
}

fn beside(measured: &[Measured]) -> Check {
    const NAME: &str = "a message costs at most 1.05 times as much beside many idle connections";
    match messages(measured) {
        Some(messages) => compared(
            NAME,
            &message_pairs(messages),
            Bound::Below(SAME),
            "µs for each message",
        ),
        None => unmeasured(NAME),
    }
}

/// The attacks.
pub(crate) fn sieges(measured: &[Measured]) -> Vec<(u32, &Siege)> {
    let found = measured.iter();
    found
        .filter_map(|one| Some((one.step.round(), one.siege()?)))
        .collect()
}

fn others(measured: &[Measured]) -> Check {
    const NAME: &str = "slow and deaf clients at most double the p99 of others' calls";
    let pairs = sieges(measured).into_iter();
    let pairs: Vec<(f64, f64)> = pairs
        .map(|(_, siege)| (siege.attacked.p99_ms(), siege.calm.p99_ms()))
        .collect();
    if pairs.is_empty() {
        return unmeasured(NAME);
    }
    compared(NAME, &pairs, Bound::Below(TWICE), "ms")
}

fn bounded(measured: &[Measured]) -> Check {
    const NAME: &str = "under attack memory grows by no more than connections may hold";
    let sieges = sieges(measured);
    let Some(most) = sieges
        .iter()
        .map(|(_, siege)| siege.growth())
        .max_by(f64::total_cmp)
    else {
        return unmeasured(NAME);
    };
    let bound = sieges.first().map_or(0.0, |(_, siege)| siege.bound());
    let keeps = sieges.iter().map(|(_, siege)| siege.growth() <= siege.bound());
    let mebibytes = |bytes: f64| bytes / f64::from(1 << 20);
    let figures = format!(
        "at most {:.0} MiB in {} attacks, bound {:.0} MiB",
        mebibytes(most),
        sieges.len(),
        mebibytes(bound)
    );
    check(NAME, Judgement::of_runs(keeps), figures)
}

/// Microseconds of our CPU for a connection, by round.
fn shaken(measured: &[Measured], key: Option<Key>, version: &str, resumed: bool) -> Vec<(u32, f64)> {
    let steps = measured.iter();
    let steps = steps.filter(|one| one.step.server() == Server::Trapezoid && one.step.key() == key);
    let of_step = |one: &Measured| {
        let mut all = one.handshakes()?.iter();
        let found = all.find(|one| one.version == version && one.resumed == resumed)?;
        (found.crowd.done > 0).then(|| (one.step.round(), found.us()))
    };
    steps.filter_map(of_step).collect()
}

fn cheaper(name: &str, less: &[(u32, f64)], more: &[(u32, f64)]) -> Check {
    if less.is_empty() || more.is_empty() {
        return unmeasured(name);
    }
    let pair = |(round, us): &(u32, f64)| {
        let partner = more.iter().find(|(other, _)| other == round);
        partner.map(|(_, other)| (*us, *other))
    };
    let pairs: Vec<(f64, f64)> = less.iter().filter_map(pair).collect();
    compared(name, &pairs, Bound::Below(1.0), "µs for each connection")
}

fn tcp(measured: &[Measured]) -> Check {
    cheaper(
        "a connection by TCP alone costs less than one with a handshake",
        &shaken(measured, None, "", false),
        &shaken(measured, Some(Key::P256), "1.3", false),
    )
}

fn resumption(measured: &[Measured]) -> Check {
    cheaper(
        "a resumed handshake of TLS 1.2 costs less than a full one",
        &shaken(measured, Some(Key::P256), "1.2", true),
        &shaken(measured, Some(Key::P256), "1.2", false),
    )
}

/// The storms of a server.
pub(crate) fn storms(measured: &[Measured], server: Server) -> Vec<&Storm> {
    let steps = measured.iter().filter(|one| one.step.server() == server);
    steps.filter_map(Measured::storm).collect()
}

fn storm(measured: &[Measured]) -> [Check; 3] {
    const SERVED: &str = "after a restart all clients are served";
    const TICKETS: &str = "after a restart 99 % of the clients resume their session";
    const CALLS: &str = "99.9 % of the calls beside the clients that come back are completed";
    let storms = storms(measured, Server::Trapezoid);
    let of = |name: &str, part: fn(&Storm) -> (f64, f64), least: f64| {
        let parts: Vec<(f64, f64)> = storms.iter().map(|storm| part(storm)).collect();
        if parts.is_empty() {
            return unmeasured(name);
        }
        let keeps = parts.iter().map(|(part, all)| *all > 0.0 && *part >= least * all);
        let texts = parts.iter().map(|(part, all)| format!("{part:.0} of {all:.0}"));
        let figures = texts.collect::<Vec<_>>().join(", ");
        check(name, Judgement::of_runs(keeps), figures)
    };
    [
        of(
            SERVED,
            |storm| (storm.crowd.served as f64, storm.crowd.asked as f64),
            1.0,
        ),
        of(
            TICKETS,
            |storm| (storm.crowd.resumed as f64, storm.crowd.asked as f64),
            RESUMED,
        ),
        of(CALLS, calls, SUCCESS),
    ]
}

fn calls(storm: &Storm) -> (f64, f64) {
    storm
        .calls
        .as_ref()
        .map_or((0.0, 0.0), |load| (load.succeeded as f64, load.offered as f64))
}
