//! `overload`: goodput against offered load, to ten times the peak, as it is.

use super::Session;
use crate::case::{Case, Purpose, Server, Setup, State};
use crate::failure::Outcome;
use crate::load::{Criterion, Transport};
use crate::statistics::Limits;

/// Part of a CPU that the server gets, so that one generator can offer ten times what it carries.
pub(crate) const QUOTA: f64 = 0.15;
/// Multiples of the peak.
const PARTS: [f64; 10] = [0.5, 0.8, 0.95, 1.1, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0];
/// Those of the quick form.
const QUICK_PARTS: [f64; 2] = [0.5, 2.0];

const CASES: [Case; 2] = [
    Case::call(State::Stateless, false, Transport::Udp),
    Case::call(State::Transaction, false, Transport::Udp),
];

/// Measures both, with a quota where one can be given.
pub(crate) fn run(session: &mut Session<'_>, quota: Option<f64>) -> Outcome<()> {
    let scale = session.scale;
    let parts: &[f64] = if scale.quick { &QUICK_PARTS } else { &PARTS };
    let cases = scale.wanted(&CASES, Case::text)?;
    let each = scale.seconds(Purpose::Look) * scale.looks as f64
        + scale.seconds(Purpose::Curve) * parts.len() as f64 * f64::from(scale.repeats);
    session.bench.progress().expect(each * cases.len() as f64);
    for case in cases {
        session.bench.progress().doing(&case.text());
        let setup = Setup {
            quota,
            ..Setup::of(Server::Trapezoid, case)
        };
        let limits = Limits {
            first: 8_000.0 * quota.unwrap_or(1.0),
            least: 20.0,
            most: 150_000.0,
            grow: 2.0,
            precision: 0.05,
            looks: if scale.quick { 6 } else { scale.looks },
        };
        let Some(peak) = session.peak(&setup, 1, &limits, Criterion::PAPERS)? else {
            continue;
        };
        for round in 1..=scale.repeats {
            for part in parts {
                session.run(&setup, &scale.run(Purpose::Curve, round, part * peak))?;
            }
        }
    }
    Ok(())
}
