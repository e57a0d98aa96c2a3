//! `pings`: what keeping NATs open costs, with many registered contacts behind them.

use super::checks::{check, held, unmeasured};
use super::{Scale, Session, steps};
use crate::cpu::ratio;
use crate::failure::Outcome;
use crate::report::number;
use crate::results::{Check, Results};
use crate::statistics::{Judgement, median};
use crate::steps::{Measured, Phase, Ping, PingPlan, Pinged, Step};

/// How far pings a second may be from contacts / interval.
const RATE: f64 = 0.02;
/// Part of the datagrams that may be lost, and how far two counts of the same may differ.
const LOST: f64 = 0.01;
/// Seconds that the server's counters are old, at most.
const COUNTERS_S: f64 = 0.2;
/// Pings in the fullest 100 ms, beside the mean.
const EVEN: f64 = 3.0;
/// Part of the windows that a machine's stalls fill, at most. The other windows stay near the mean.
const STALLS: f64 = 0.05;
/// Part of the mean that the window in the middle has, if pings are spread and the machine stalls at times.
const MIDDLE: f64 = 0.5;

/// All steps, in order.
pub(crate) fn plan(scale: &Scale) -> Vec<Step> {
    // With pings, shorter intervals of fewer contacts must last long enough for counters that are some tenths of a
    // second old.
    let (contacts, interval_s, rounds, unanswered_rounds) = if scale.quick {
        (20_000, 2, 5, 3)
    } else {
        // Contacts are lost after three pings.
        (1_000_000, 25, 2, 4)
    };
    let plans = [
        (Ping::None, 0),
        (Ping::Options, unanswered_rounds),
        (Ping::Crlf, 0),
    ];
    let step = |(ping, unanswered_rounds)| {
        Step::Pings(PingPlan {
            ping,
            contacts,
            interval_s,
            rounds,
            unanswered_rounds,
        })
    };
    plans.map(step).to_vec()
}

/// Makes all steps that the results do not have yet.
pub(crate) fn run(session: &mut Session<'_>) -> Outcome<()> {
    let plan = plan(session.scale);
    steps::run(session, &plan)
}

/// One phase of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'a> {
    pub(crate) plan: PingPlan,
    pub(crate) phase: &'a Phase,
}

impl Found<'_> {
    /// In a word.
    pub(crate) fn name(&self) -> &'static str {
        match (self.plan.ping, self.phase.answered) {
            (Ping::None, _) => "none",
            (Ping::Options, true) => "options",
            (Ping::Options, false) => "unanswered",
            (Ping::Crlf, _) => "crlf",
        }
    }

    fn is_pinged(&self) -> bool {
        self.plan.ping != Ping::None
    }
}

/// Servers with their plans.
pub(crate) fn servers(measured: &[Measured]) -> Vec<(PingPlan, &Pinged)> {
    let mut found = Vec::new();
    for one in measured {
        if let (Step::Pings(plan), Some(pinged)) = (one.step, one.pinged()) {
            found.push((plan, pinged));
        }
    }
    found
}

/// All phases, in order.
pub(crate) fn phases(measured: &[Measured]) -> Vec<Found<'_>> {
    let mut found = Vec::new();
    for (plan, pinged) in servers(measured) {
        found.extend(pinged.phases.iter().map(|phase| Found { plan, phase }));
    }
    found
}

/// Microseconds of the server's CPU for each ping, without what a server with as many contacts takes that sends none.
pub(crate) fn us_each(phases: &[Found<'_>], of: &Found<'_>) -> Option<f64> {
    let quiet = phases.iter().find(|one| !one.is_pinged())?;
    let busy = of.phase.server.utilization() - quiet.phase.server.utilization();
    (of.is_pinged() && of.phase.rate() > 0.0).then(|| ratio(busy * 1e6, of.phase.rate()))
}

/// The shapes.
pub(crate) fn checks(results: &Results) -> Vec<Check> {
    let phases = phases(&results.steps);
    vec![
        registered(&servers(&results.steps)),
        quiet(&phases),
        rate(&phases),
        rounds(&phases),
        counters(&phases),
        lost(&phases),
        even(&phases),
        by_crlf(&phases),
    ]
}

/// A figure of some phases, each of which must keep to a bound by itself.
fn each<'a>(
    name: &str,
    phases: impl Iterator<Item = &'a Found<'a>>,
    figure: impl Fn(&Found<'_>) -> (Judgement, String),
) -> Check {
    let judged: Vec<(Judgement, String)> = phases
        .map(|found| {
            let (judgement, text) = figure(found);
            (judgement, format!("{} {text}", found.name()))
        })
        .collect();
    let Some(gravest) = judged.iter().map(|(judgement, _)| *judgement).max() else {
        return unmeasured(name);
    };
    let texts: Vec<&str> = judged.iter().map(|(_, text)| text.as_str()).collect();
    check(name, gravest, texts.join(", "))
}

/// How far a figure is from another, as a part of the other.
fn distance(one: f64, other: f64) -> f64 {
    ratio((one - other).abs(), other)
}

fn registered(servers: &[(PingPlan, &Pinged)]) -> Check {
    const NAME: &str = "all phones are registered";
    if servers.is_empty() {
        return unmeasured(NAME);
    }
    let each = servers.iter().map(|(plan, pinged)| {
        let (known, contacts) = (pinged.known, f64::from(plan.contacts));
        let text = format!("{} {} of {}", plan.ping.word(), number(known), number(contacts));
        (
            known >= contacts && pinged.phones.registered == plan.contacts,
            text,
        )
    });
    let (keeps, texts): (Vec<bool>, Vec<String>) = each.unzip();
    check(NAME, held(keeps.into_iter().all(|keeps| keeps)), texts.join(", "))
}

fn quiet(phases: &[Found<'_>]) -> Check {
    const NAME: &str = "without pings nothing is sent to phones";
    each(NAME, phases.iter().filter(|of| !of.is_pinged()), |of| {
        let heard = &of.phase.heard;
        let all = heard.total() + heard.others + of.phase.phone_drops;
        (held(all == 0), format!("{all} datagrams"))
    })
}

fn rate(phases: &[Found<'_>]) -> Check {
    const NAME: &str = "pings a second are contacts / interval, give or take 2 %";
    each(NAME, phases.iter().filter(|of| of.is_pinged()), |of| {
        let (rate, meant) = (of.phase.rate(), of.plan.rate());
        let text = format!("{} of {}", number(rate), number(meant));
        let windows = of.phase.heard.whole_windows().len();
        let stalled = ratio(of.phase.empty_windows() as f64, windows as f64);
        let judgement = match distance(rate, meant) {
            off if off <= RATE => Judgement::Held,
            // What is due in a stall at the end comes after the phase.
            off if off <= RATE + stalled && is_spread(of.phase) => Judgement::Undecided,
            _ => Judgement::Lost,
        };
        (judgement, text)
    })
}

/// Whether most windows are near the mean, whatever stalls do to some.
fn is_spread(phase: &Phase) -> bool {
    let windows = phase.heard.whole_windows().iter();
    let windows: Vec<f64> = windows.copied().map(f64::from).collect();
    median(&windows).is_some_and(|middle| middle >= MIDDLE * phase.mean_window())
}

/// By empty lines it does not show which contact is pinged.
fn rounds(phases: &[Found<'_>]) -> Check {
    const NAME: &str = "each contact is pinged once each interval";
    let of_options = phases.iter().filter(|of| of.plan.ping == Ping::Options);
    each(NAME, of_options, |of| {
        let (few, many) = of.phase.uneven_contacts();
        // A ping that was lost on the way was sent.
        let is_so = few <= of.phase.phone_drops && many == 0;
        (held(is_so), format!("{few} too rarely and {many} too often"))
    })
}

/// The server's counters beside those of the phones.
fn counters(phases: &[Found<'_>]) -> Check {
    const NAME: &str = "the server's counters are those of the phones, give or take 1 %";
    each(NAME, phases.iter().filter(|of| of.is_pinged()), |of| {
        let (phase, counted) = (of.phase, &of.phase.counted);
        let of_server = [counted.sent, counted.answered].map(|count| ratio(count, counted.seconds));
        let of_phones = [phase.rate(), phase.answer_rate()];
        let may = LOST + ratio(COUNTERS_S, counted.seconds);
        let pairs = of_server.into_iter().zip(of_phones);
        let is_so = pairs.clone().all(|(server, phones)| match phones > 0.0 {
            true => distance(server, phones) <= may,
            // What was answered before may still be counted.
            false => server <= may * phase.rate(),
        });
        let texts: Vec<String> = pairs
            .map(|(server, phones)| format!("{}/{}", number(server), number(phones)))
            .collect();
        (held(is_so), format!("{} a second", texts.join(" and ")))
    })
}

fn lost(phases: &[Found<'_>]) -> Check {
    const NAME: &str = "at most 1 % of the datagrams are lost";
    each(NAME, phases.iter().filter(|of| of.is_pinged()), |of| {
        let lost = of.phase.lost();
        (held(lost <= LOST), format!("{:.3} %", 100.0 * lost))
    })
}

/// A machine that stalls makes one window empty and the next one full.
fn even(phases: &[Found<'_>]) -> Check {
    const NAME: &str = "no 100 ms have more than three times the pings of the mean";
    each(NAME, phases.iter().filter(|of| of.is_pinged()), |of| {
        let (fuller, all) = of.phase.fuller_than(EVEN);
        let judgement = match fuller {
            _ if all == 0 => Judgement::Unmeasured,
            0 => Judgement::Held,
            _ if ratio(fuller as f64, all as f64) <= STALLS && is_spread(of.phase) => Judgement::Undecided,
            _ => Judgement::Lost,
        };
        let times = ratio(of.phase.fullest_window(), of.phase.mean_window());
        (judgement, format!("{times:.2} ×"))
    })
}

fn by_crlf(phases: &[Found<'_>]) -> Check {
    const NAME: &str = "contacts that have answered are pinged by empty lines, if so configured";
    let of_crlf = phases.iter().filter(|of| of.plan.ping == Ping::Crlf);
    each(NAME, of_crlf, |of| {
        let heard = &of.phase.heard;
        let part = ratio(heard.crlf as f64, heard.total() as f64);
        (held(part >= 1.0 - LOST), format!("{:.2} %", 100.0 * part))
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::synthetic::Synthetic;
    use super::super::tests::run_with;
    use super::*;
    use crate::cpu::Used;
    use crate::crowd::said;
    use crate::steps::{Counted, Figures};

    /// A ping takes 5 µs, and what else there is 1 % of a CPU.
    pub(crate) fn made_up(plan: &PingPlan) -> Pinged {
        let contacts = u64::from(plan.contacts);
        let phases = [(true, plan.rounds), (false, plan.unanswered_rounds)].into_iter();
        let phases = phases.filter(|(_, rounds)| *rounds > 0);
        Pinged {
            phones: said::Phones {
                asked: plan.contacts,
                registered: plan.contacts,
                seconds: 33.0,
                ..said::Phones::default()
            },
            known: contacts as f64,
            before: 20 << 20,
            registered: (20 << 20) + 300 * contacts,
            after: (21 << 20) + 300 * contacts,
            phases: phases
                .map(|(answered, rounds)| phase(plan, answered, rounds))
                .collect(),
        }
    }

    fn phase(plan: &PingPlan, answered: bool, rounds: u32) -> Phase {
        let seconds = f64::from(rounds * plan.interval_s);
        let pings = (plan.rate() * seconds) as u64;
        let (options, crlf) = match plan.ping {
            Ping::Crlf => (0, pings),
            Ping::None | Ping::Options => (pings, 0),
        };
        let answers = if answered { options } else { 0 };
        let mut contacts_by_pings = vec![0; rounds as usize + 1];
        if let Some(last) = contacts_by_pings.last_mut() {
            *last = u64::from(plan.contacts);
        }
        Phase {
            answered,
            rounds,
            server: Used {
                wall_s: seconds,
                total_s: 0.01 * seconds + 5e-6 * pings as f64,
                ..Used::default()
            },
            counted: Counted {
                seconds,
                sent: pings as f64,
                answered: answers as f64,
            },
            heard: said::Pings {
                seconds,
                options,
                crlf,
                answered: answers,
                others: 0,
                windows: vec![(plan.rate() / 10.0) as u32; 10 * seconds as usize + 1],
                contacts_by_pings,
            },
            components: [
                ("send".to_owned(), 3e-6 * pings as f64),
                ("wait".to_owned(), 0.01),
            ]
            .into(),
            ..Phase::default()
        }
    }

    fn seconds(scale: &Scale) -> f64 {
        let pace = steps::pace(scale);
        plan(scale).iter().map(|step| steps::expected(step, &pace)).sum()
    }

    #[test]
    fn the_plan_fits_into_its_time() {
        let full = seconds(&Scale::full());
        assert!((360.0..=480.0).contains(&full), "{full}");
        let quick = seconds(&Scale::quick());
        assert!(quick <= 60.0, "{quick}");
    }

    #[test]
    fn each_state_is_measured_for_at_least_two_rounds_and_each_is_one_of_few_words() {
        for scale in [Scale::full(), Scale::quick()] {
            let results = run_with("pings", &mut Synthetic::new(), &scale).unwrap();
            let phases = phases(&results.steps);
            let names: Vec<&str> = phases.iter().map(Found::name).collect();
            assert_eq!(names, ["none", "options", "unanswered", "crlf"]);
            assert!(phases.iter().all(|of| of.phase.rounds >= 2));
            let us: Vec<Option<f64>> = phases.iter().map(|of| us_each(&phases, of)).collect();
            assert_eq!(us[0], None);
            assert!(
                us[1..].iter().all(|us| (us.unwrap() - 5.0).abs() < 1e-6),
                "{us:?}"
            );
        }
    }

    /// The names of the checks that are not held after a change of the phases, with their judgements.
    fn changed(change: fn(&mut Phase)) -> Vec<(Judgement, String)> {
        let mut results = run_with("pings", &mut Synthetic::new(), &Scale::full()).unwrap();
        for measured in &mut results.steps {
            if let Figures::Pings(pinged) = &mut measured.figures {
                pinged.phases.iter_mut().for_each(change);
            }
        }
        let checks = checks(&results).into_iter();
        let others = checks.filter(|check| check.judgement != Judgement::Held);
        others.map(|check| (check.judgement, check.name)).collect()
    }

    #[track_caller]
    fn assert_lost(change: fn(&mut Phase), words: &[&str]) {
        let found = changed(change);
        assert_eq!(found.len(), words.len(), "{found:?}");
        for ((judgement, name), word) in found.iter().zip(words) {
            assert_eq!(*judgement, Judgement::Lost, "{name}");
            assert!(name.contains(word), "{name}: {word}");
        }
    }

    #[test]
    fn the_checks_hold_and_can_each_fail() {
        assert_lost(|_| {}, &[]);
        assert_lost(|phase| phase.heard.others = 1, &["without pings"]);
        // Fewer pings, as both ends count them.
        assert_lost(
            |phase| {
                phase.heard.options = phase.heard.options * 97 / 100;
                phase.heard.crlf = phase.heard.crlf * 97 / 100;
                phase.heard.answered = phase.heard.answered * 97 / 100;
                phase.counted.sent *= 0.97;
                phase.counted.answered *= 0.97;
            },
            &["give or take 2 %"],
        );
        assert_lost(
            |phase| {
                phase.heard.contacts_by_pings = vec![1, 0, 0, 0, 0];
            },
            &["once each interval"],
        );
        assert_lost(|phase| phase.counted.answered *= 0.98, &["the server's counters"]);
        assert_lost(
            |phase| {
                phase.counted.answered += if phase.answered { 0.0 } else { 1e6 };
            },
            &["the server's counters"],
        );
        assert_lost(|phase| phase.server_drops = 1_000_000, &["are lost"]);
        assert_lost(
            |phase| {
                for window in phase.heard.windows.iter_mut().step_by(10) {
                    *window *= 6;
                }
            },
            &["no 100 ms"],
        );
        assert_lost(
            |phase| {
                (phase.heard.options, phase.heard.crlf) = (phase.heard.total(), 0);
            },
            &["by empty lines"],
        );
        // All at once in each interval is no stall.
        assert_lost(
            |phase| {
                let all = phase.heard.windows.iter().sum();
                phase.heard.windows.fill(0);
                phase.heard.windows[3] = all;
            },
            &["no 100 ms"],
        );
        let stalled = changed(|phase| phase.heard.windows[3] *= 4);
        assert_eq!(stalled.len(), 1, "{stalled:?}");
        assert_eq!(stalled[0].0, Judgement::Undecided, "one stall decides nothing");
        let ended_in_a_stall = changed(|phase| {
            phase.heard.windows[10..30].fill(0);
            phase.heard.options = phase.heard.options * 97 / 100;
            phase.heard.crlf = phase.heard.crlf * 97 / 100;
            phase.heard.answered = phase.heard.answered * 97 / 100;
            phase.counted.sent *= 0.97;
            phase.counted.answered *= 0.97;
        });
        let judged: Vec<Judgement> = ended_in_a_stall.iter().map(|(judgement, _)| *judgement).collect();
        assert_eq!(judged, [Judgement::Undecided], "{ended_in_a_stall:?}");
    }

    #[test]
    fn what_makes_figures_doubtful_is_said() {
        let mut results = run_with("pings", &mut Synthetic::new(), &Scale::full()).unwrap();
        assert_eq!(steps::doubts(&results.steps), [""; 0]);
        if let Figures::Pings(pinged) = &mut results.steps[1].figures {
            pinged.phones.registered -= 1;
            pinged.phones.unanswered = 1;
            pinged.phases[0].server_drops = 7;
            pinged.phases[1].heard.windows[5] = 0;
        }
        let found = steps::doubts(&results.steps);
        let step = "options 1000000 contacts each 25 s: ";
        let said: Vec<&str> = found.iter().filter_map(|text| text.strip_prefix(step)).collect();
        assert_eq!(said.len(), 3, "{found:?}");
        assert!(
            said[0].starts_with("999999 of 1000000 phones registered: 1 got no response"),
            "{said:?}"
        );
        assert!(
            said[1].starts_with("7 datagrams overflowed the server's"),
            "{said:?}"
        );
        assert!(
            said[2].starts_with("no ping came in 1 of 1500 windows"),
            "{said:?}"
        );
    }

    #[test]
    fn phones_that_did_not_register_are_missed() {
        let mut results = run_with("pings", &mut Synthetic::new(), &Scale::quick()).unwrap();
        if let Figures::Pings(pinged) = &mut results.steps[1].figures {
            pinged.known -= 1.0;
        }
        let lost = &checks(&results)[0];
        assert_eq!(lost.judgement, Judgement::Lost);
        assert!(
            lost.figures.contains("options 19,999 of 20,000"),
            "{}",
            lost.figures
        );
        let none = checks(&Results::new("pings", true));
        assert!(none.iter().all(|check| check.judgement == Judgement::Unmeasured));
    }
}
