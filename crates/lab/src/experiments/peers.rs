//! `peers`: what a call and a REGISTER cost Kamailio, Trapezoid and a bare relay, near each one's own peak and at one
//! rate.

use super::transport::{FAST, ROUNDS};
use super::{Scale, Session, Turn};
use crate::case::{CallScenario, Case, Purpose, Server, Setup};
use crate::failure::Outcome;
use crate::results::{Absent, Row};
use crate::station::settle_s;
use crate::statistics::Verdict;

/// A case under the name by which it is asked for, and the rates between which a server's own is looked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) case: Case,
    /// Operations a second of the first look: any machine carries that.
    first: f64,
    /// What is offered at most.
    most: f64,
}

impl Scenario {
    const fn new(name: &'static str, case: Case, (first, most): (f64, f64)) -> Self {
        Self {
            name,
            case,
            first,
            most,
        }
    }

    const fn of_calls(scenario: CallScenario, rates: (f64, f64)) -> Self {
        Self::new(scenario.name(), scenario.case(), rates)
    }

    /// A server in this scenario.
    pub(crate) fn setup(&self, server: Server) -> Setup {
        Setup::of(server, self.case)
    }
}

const STATELESS: Case = CallScenario::Stateless.case();
const TRANSACTION: Case = CallScenario::Transaction.case();

/// All scenarios, in the order in which they are measured.
pub(crate) const SCENARIOS: [Scenario; 7] = [
    Scenario::of_calls(CallScenario::Stateless, (4_000.0, 100_000.0)),
    Scenario::of_calls(CallScenario::Transaction, (3_000.0, 100_000.0)),
    Scenario::of_calls(CallScenario::Digest, (800.0, 100_000.0)),
    Scenario::of_calls(CallScenario::Tcp, (3_000.0, 150_000.0)),
    Scenario::of_calls(CallScenario::Tls, (3_000.0, 150_000.0)),
    Scenario::new(
        "register-memory",
        Case::register(false, false),
        (10_000.0, 300_000.0),
    ),
    Scenario::new("register-disk", Case::register(false, true), (500.0, 300_000.0)),
];

/// The order of servers in a round; the next round is the other way round.
const SERVERS: [Server; 3] = [Server::Kamailio, Server::Trapezoid, Server::BareRelay];

/// Part of its CPU that a server is to be busy for, and from which on a rate counts as near its peak. Well below all of
/// it: queues that grow are no cost of a call.
const AIM: f64 = 0.78;
pub(crate) const NEAR: f64 = 0.70;
/// A look that filled no more than this needs no other.
const ENOUGH: f64 = 0.72;
/// Looks for a rate, at most.
const LOOKS: usize = 6;
/// Rates that differ by less are one.
const ONE_RATE: f64 = 0.02;
/// Calls a second at which Kamailio and Trapezoid are compared for the shapes: a modest machine carries that on both.
const SLOW: f64 = 2_500.0;
/// Seconds to start three servers and to warm them up, beside what is settled; and to start a database.
const STARTS_S: f64 = 12.0;
const DATABASE_S: f64 = 10.0;

/// Measures everything.
pub(crate) fn run(session: &mut Session<'_>) -> Outcome<()> {
    let scale = session.scale;
    let scenarios = scale.wanted(&SCENARIOS, |scenario| scenario.name.to_owned())?;
    let setups: Vec<Setup> = turns(&scenarios).iter().map(|(setup, ..)| *setup).collect();
    let present = session.present(&setups);
    let turns: Vec<Turn> = turns(&scenarios)
        .into_iter()
        .filter(|(setup, ..)| present.contains(setup))
        .collect();
    let seconds = expected(&scenarios, &turns, scale);
    let progress = session.bench.progress();
    progress.expect(seconds);
    progress.say(&beforehand(&scenarios, seconds, scale));
    if !scale.quick {
        for scenario in &scenarios {
            session.bench.progress().doing(scenario.name);
            one(session, scenario)?;
        }
    }
    session.bench.progress().doing("shapes");
    session.in_turn(&turns)
}

/// What is said before anything is measured.
fn beforehand(scenarios: &[Scenario], seconds: f64, scale: &Scale) -> String {
    if scale.quick {
        return format!("shapes only: about {} s", seconds.ceil());
    }
    format!(
        "{} of {} s each in {}: about {} minutes",
        several(scale.rounds as usize, "round"),
        scale.run_s,
        several(scenarios.len(), "scenario"),
        (seconds / 60.0).ceil()
    )
}

fn several(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// Seconds of all of it, about.
fn expected(scenarios: &[Scenario], turns: &[Turn], scale: &Scale) -> f64 {
    let in_turn = scale.seconds_in_turn(turns) + turns.len() as f64;
    if scale.quick {
        return in_turn;
    }
    let each = |scenario: &Scenario| {
        let settled: f64 = SERVERS
            .iter()
            .map(|server| settle_s(&scenario.setup(*server)))
            .sum();
        // Most searches need two thirds of the looks that they may make.
        let looks = 2.0 * 0.66 * LOOKS as f64 * scale.seconds(Purpose::Look);
        // Three servers near their peaks, and one at another's rate.
        let rounds = 4.0 * f64::from(scale.rounds) * scale.seconds(Purpose::Near);
        STARTS_S + settled + looks + rounds
    };
    in_turn + DATABASE_S + scenarios.iter().map(each).sum::<f64>()
}

/// One scenario: the rates, then rounds of all servers.
fn one(session: &mut Session<'_>, scenario: &Scenario) -> Outcome<()> {
    let setups = SERVERS.map(|server| scenario.setup(server));
    let present = session.present(&setups);
    session.bench.keep(present.len());
    let mut rate_of = |server: Server| match present.iter().find(|setup| setup.server == server) {
        Some(setup) => near_peak(session, scenario, setup),
        None => Ok(None),
    };
    let (theirs, ours) = (rate_of(Server::Kamailio)?, rate_of(Server::Trapezoid)?);
    let mut order = order(scenario, theirs, ours);
    order.retain(|(setup, ..)| present.contains(setup));
    for round in 1..=session.scale.rounds {
        for (setup, purpose, rate) in &order {
            session.run(setup, &session.scale.run(*purpose, round, *rate))?;
        }
        order.reverse();
    }
    session.bench.keep(1);
    Ok(())
}

/// What takes turns in a round: each server near its own peak, the relay at our rate, and we at Kamailio's, if that is
/// another.
fn order(scenario: &Scenario, theirs: Option<f64>, ours: Option<f64>) -> Vec<(Setup, Purpose, f64)> {
    let at =
        |server: Server, purpose: Purpose, rate: Option<f64>| Some((scenario.setup(server), purpose, rate?));
    let another = theirs.filter(|theirs| ours.is_none_or(|ours| (ours - theirs).abs() > ONE_RATE * theirs));
    let all = [
        at(Server::Kamailio, Purpose::Near, theirs),
        at(Server::Trapezoid, Purpose::Near, ours),
        at(Server::BareRelay, Purpose::Near, ours.or(theirs)),
        at(Server::Trapezoid, Purpose::Equal, another),
    ];
    all.into_iter().flatten().collect()
}

/// The rate at which a server is busy for about [`AIM`] of its CPU.
fn near_peak(session: &mut Session<'_>, scenario: &Scenario, setup: &Setup) -> Outcome<Option<f64>> {
    let mut search = Search::new(scenario);
    let mut made = 0_usize;
    while let Some(rate) = search.next.filter(|_| made < LOOKS) {
        made += 1;
        let row = session.run(setup, &session.scale.run(Purpose::Look, 1, rate))?;
        search.see(&row);
    }
    let left = (0.66 * LOOKS as f64 - made as f64).max(0.0);
    let seconds = session.scale.seconds(Purpose::Look);
    session.bench.progress().done(left * seconds);
    let found = search.found.or(search.good);
    let text = match found {
        Some(rate) => format!("{}: near its peak at {rate:.0}/s", setup.text()),
        None => format!("{}: nothing that was offered was carried", setup.text()),
    };
    session.bench.progress().say(&text);
    if found.is_none() {
        session.results.absent.push(Absent {
            what: setup.text(),
            why: "nothing that was offered was carried".to_owned(),
        });
    }
    Ok(found)
}

/// The search for a rate that nearly fills a server. What a call costs falls as its CPU fills, so that each look says
/// where to look next. Less is found if the generator gives out first, or if the server loses calls although its CPU has
/// room, since it waits for a database.
#[derive(Debug)]
struct Search {
    /// The next rate to look at; absent: the search is over.
    next: Option<f64>,
    /// The rate that was looked for.
    found: Option<f64>,
    /// The highest rate that was carried, and the lowest that was not.
    good: Option<f64>,
    bad: Option<f64>,
    /// A rate that was offered again, since the machine may have stalled.
    doubted: Option<f64>,
    most: f64,
}

impl Search {
    fn new(scenario: &Scenario) -> Self {
        Self {
            next: Some(scenario.first),
            found: None,
            good: None,
            bad: None,
            doubted: None,
            most: scenario.most,
        }
    }

    /// Takes the outcome of the last look.
    fn see(&mut self, row: &Row) {
        let (rate, filled) = (row.run.rate, row.server.utilization());
        match row.verdict {
            Verdict::Carried => self.carried(rate, filled, row),
            Verdict::Failed | Verdict::GeneratorFull if filled < NEAR && self.doubted != Some(rate) => {
                self.doubted = Some(rate);
            }
            Verdict::Failed | Verdict::GeneratorFull => {
                self.bad = Some(rate);
                self.next = Some(self.good.map_or(rate / 2.0, |good| f64::midpoint(good, rate)));
            }
        }
    }

    fn carried(&mut self, rate: f64, filled: f64, row: &Row) {
        self.good = Some(self.good.map_or(rate, |good| good.max(rate)));
        if filled >= ENOUGH || row.others_are_full() || rate >= self.most {
            self.found = Some(rate * (AIM / filled.max(AIM)));
            self.next = None;
            return;
        }
        // What the generator has left, what the server has left, and not too far at once.
        let room = 0.97 / row.others_utilization().max(0.05);
        let next = rate * room.min(AIM / filled.max(0.01)).min(4.0);
        let next = self.bad.map_or(next, |bad| next.min(f64::midpoint(rate, bad)));
        let next = next.min(self.most);
        self.next = (next >= 1.05 * rate).then_some(next);
    }
}

/// What the shapes are judged by, in turn: a stateless call, a stateful one and the relay at a rate at which little of
/// the CPU goes into waking up; Kamailio and Trapezoid at one that both carry.
fn turns(scenarios: &[Scenario]) -> Vec<Turn> {
    let all = [
        (Setup::of(Server::Trapezoid, STATELESS), ROUNDS, FAST),
        (Setup::of(Server::BareRelay, STATELESS), ROUNDS, FAST),
        (Setup::of(Server::Trapezoid, TRANSACTION), ROUNDS, FAST),
        (Setup::of(Server::Trapezoid, TRANSACTION), ROUNDS, SLOW),
        (Setup::of(Server::Kamailio, TRANSACTION), ROUNDS, SLOW),
    ];
    let is_wanted = |setup: &Setup| scenarios.iter().any(|scenario| scenario.case == setup.case);
    all.into_iter().filter(|(setup, ..)| is_wanted(setup)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::row;
    use super::*;

    fn scenario(name: &str) -> Scenario {
        *SCENARIOS.iter().find(|scenario| scenario.name == name).unwrap()
    }

    /// A look at a server for which a call costs so many microseconds.
    fn look(rate: f64, us: f64, verdict: Verdict) -> Row {
        let mut row = row(rate, us);
        row.verdict = verdict;
        row.load.generator.utilization = rate / 50_000.0;
        row
    }

    /// The rate found for a server, and the looks that it took.
    fn found(mut server: impl FnMut(f64) -> Row) -> (Option<f64>, Vec<f64>) {
        let mut search = Search::new(&scenario("stateless"));
        let mut looks = Vec::new();
        while let Some(rate) = search.next.filter(|_| looks.len() < LOOKS) {
            looks.push(rate);
            search.see(&server(rate));
        }
        (search.found.or(search.good), looks)
    }

    #[test]
    fn a_server_is_nearly_filled() {
        // 50 µs at the peak, twice as much at low rates.
        let (rate, looks) = found(|rate| look(rate, 50.0 + 50.0 * (-rate / 4_000.0).exp(), Verdict::Carried));
        let filled = rate.unwrap() * 50e-6;
        assert!((0.70..0.80).contains(&filled), "{filled} after {looks:?}");
        assert!(looks.len() < LOOKS && looks[0] == 4_000.0, "{looks:?}");
    }

    #[test]
    fn a_look_that_filled_it_too_far_is_taken_back() {
        let (rate, looks) = found(|rate| look(rate, 240.0, Verdict::Carried));
        assert_eq!(looks, [4_000.0]);
        assert!((rate.unwrap() * 240e-6 - AIM).abs() < 1e-9, "{rate:?}");
    }

    #[test]
    fn the_generator_gives_out_first() {
        let (rate, looks) = found(|rate| look(rate, 5.0, Verdict::Carried));
        assert!(
            rate.unwrap() > 0.9 * 50_000.0 && rate.unwrap() < 50_000.0,
            "{looks:?}"
        );
    }

    #[test]
    fn a_server_that_waits_is_halved_after_a_second_look() {
        // It carries 700, and is hardly busy.
        let (rate, looks) = found(|rate| {
            let verdict = if rate > 700.0 {
                Verdict::Failed
            } else {
                Verdict::Carried
            };
            look(rate, 100.0, verdict)
        });
        assert_eq!(looks[..4], [4_000.0, 4_000.0, 2_000.0, 2_000.0]);
        assert!(rate.is_none_or(|rate| rate <= 700.0), "{rate:?} of {looks:?}");
        let (none, looks) = found(|rate| look(rate, 1_000.0, Verdict::Failed));
        assert_eq!((none, looks.len()), (None, LOOKS));
    }

    #[test]
    fn a_round_has_each_server_and_the_relay_at_our_rate() {
        let tcp = scenario("tcp");
        let names = |order: &[(Setup, Purpose, f64)]| -> Vec<(Server, Purpose, f64)> {
            order
                .iter()
                .map(|(setup, purpose, rate)| (setup.server, *purpose, *rate))
                .collect()
        };
        use Purpose::{Equal, Near};
        use Server::{BareRelay, Kamailio, Trapezoid};
        assert_eq!(
            names(&order(&tcp, Some(5_000.0), Some(20_000.0))),
            [
                (Kamailio, Near, 5_000.0),
                (Trapezoid, Near, 20_000.0),
                (BareRelay, Near, 20_000.0),
                (Trapezoid, Equal, 5_000.0),
            ]
        );
        // At one rate there is no other, and a server that is missing takes none away.
        assert_eq!(order(&tcp, Some(5_000.0), Some(5_050.0)).len(), 3);
        assert_eq!(
            names(&order(&tcp, None, Some(9.0))),
            [(Trapezoid, Near, 9.0), (BareRelay, Near, 9.0)]
        );
    }

    #[test]
    fn it_takes_no_longer_than_it_may() {
        let turns = turns(&SCENARIOS);
        let full = expected(&SCENARIOS, &turns, &Scale::full());
        assert!(
            (30.0 * 60.0..50.0 * 60.0).contains(&full),
            "{} minutes",
            full / 60.0
        );
        let quick = expected(&SCENARIOS, &turns, &Scale::quick());
        assert!(quick < 45.0, "{quick} s");
        let text = beforehand(&SCENARIOS, full, &Scale::full());
        assert!(
            text.starts_with("5 rounds of 8 s each in 7 scenarios: about "),
            "{text}"
        );
        let text = beforehand(&SCENARIOS[..1], 61.0, &Scale::full());
        assert!(text.ends_with(" in 1 scenario: about 2 minutes"), "{text}");
        assert!(beforehand(&SCENARIOS, quick, &Scale::quick()).starts_with("shapes only: about "));
    }
}
