//! The plan of a seed.

use super::{Phase, Plan};
use crate::clock::{MS, Micros, SECOND};
use crate::overload::rules;
use crate::rng::Rng;

/// A phase in multiples of what the server carries.
#[derive(Clone, Copy, Debug)]
struct Step {
    length: Micros,
    /// Hundredths of the calls that it carries.
    calls: u64,
    /// Hundredths of the REGISTERs that it carries.
    registers: u64,
    /// Hundredths of the stray responses that it carries.
    strays: u64,
    /// Times as slow as usual.
    slower: u32,
}

const CALM: Step = Step {
    length: 2 * SECOND,
    calls: 50,
    registers: 0,
    strays: 0,
    slower: 1,
};

impl Plan {
    /// The plan that a seed stands for.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x6f76_6572_6c6f_6164);
        let is_stateful = rng.chance(600);
        let slowness = rng.pick(&[600, 800, 1_000]);
        let steps = steps(&mut rng);
        let carried = |service: f64| 1e6 / (service * f64::from(slowness) / 100.0);
        let calls = carried(rules::service_of_call(is_stateful));
        let (registers, strays) = (
            carried(rules::SERVICE_OF_REGISTER),
            carried(rules::SERVICE_OF_STRAY),
        );
        let (mut phases, mut from) = (Vec::new(), 0);
        for step in steps {
            let part = |carried: f64, hundredths: u64| (carried * hundredths as f64 / 100.0) as u32;
            phases.push(Phase {
                from,
                calls: part(calls, step.calls),
                registers: part(registers, step.registers),
                strays: part(strays, step.strays),
                slowness: slowness * step.slower,
            });
            from += step.length;
        }
        Self {
            seed,
            is_stateful,
            has_queues: true,
            phases,
            length: from,
            // A CANCEL is no new work, and most of these are for an INVITE that was dropped: ten in a thousand take some
            // hundredths of a server that is offered ten times what it carries.
            cancelling: rng.pick(&[0, 5, 10]),
        }
    }
}

fn steps(rng: &mut Rng) -> Vec<Step> {
    let calls = |hundredths| Step {
        calls: hundredths,
        ..CALM
    };
    match rng.between(0, 5) {
        // One load, from below the peak to ten times.
        0 => vec![Step {
            length: 3 * SECOND,
            ..calls(rng.pick(&[50, 80, 120, 200, 300, 500, 1_000]))
        }],
        // More and less.
        1 => vec![CALM, calls(rng.between(150, 500)), calls(rng.between(120, 300))],
        // A server that becomes slower.
        2 => vec![
            calls(rng.between(70, 90)),
            Step {
                slower: 3,
                ..calls(rng.between(70, 90))
            },
        ],
        // Everybody registers.
        3 => vec![
            CALM,
            Step {
                registers: rng.between(200, 1_000),
                ..CALM
            },
        ],
        // A burst some time after too much.
        4 => vec![
            Step {
                length: SECOND,
                ..calls(rng.between(130, 160))
            },
            Step {
                length: 3 * SECOND,
                ..calls(20)
            },
            Step {
                length: 10 * MS,
                ..calls(1_500)
            },
            Step {
                length: SECOND,
                ..calls(20)
            },
        ],
        // What belongs to nothing fills the first queue.
        _ => vec![
            CALM,
            Step {
                strays: rng.between(200, 300),
                ..calls(100)
            },
        ],
    }
}
