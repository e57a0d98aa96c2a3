//! What a seed stands for where calls fork.

use std::collections::BTreeMap;

use sip_core::dispatcher::Distribution;

use crate::clock::{MS, Micros, SECOND};
use crate::net::Link;
use crate::node::NodeId;
use crate::rng::Rng;
use crate::runner::Plan;
use crate::scenario::{ALICE, BOB, Behaviour, CallPlan, HangUp, ProxyPlan, Scenario, Worst, links};

/// The caller.
pub const CALLER: NodeId = 0;
/// The proxy.
pub const PROXY: NodeId = 1;
/// The first of the phones; the others follow.
pub const FIRST_PHONE: NodeId = 2;

/// How the proxy knows its targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Contacts of one user, with the q of each in thousandths.
    Location {
        /// By phone.
        q: Vec<u16>,
    },
    /// Members of a group; only 503 and silence lead to the next.
    Group {
        /// How calls are shared out.
        algorithm: Distribution,
        /// After this much silence the next is tried.
        reply_timeout: Micros,
    },
}

/// One call: what each phone does with it.
#[derive(Clone, Debug)]
pub struct ForkCall {
    /// What the caller does; its behaviour means nothing.
    pub plan: CallPlan,
    /// What each phone does.
    pub phones: Vec<CallPlan>,
}

/// Everything that a seed decides before the run.
#[derive(Clone, Debug)]
pub struct ForkScenario {
    /// The seed.
    pub seed: u64,
    /// Links by direction.
    pub links: BTreeMap<(NodeId, NodeId), Link>,
    /// When faults stop.
    pub heal_at: Micros,
    /// Number of phones or gateways.
    pub phones: usize,
    /// How the proxy knows them.
    pub kind: Kind,
    /// Timer C, milliseconds.
    pub c_ms: u32,
    /// The user agents ask for `rport`.
    pub rport: bool,
    /// In the order of their start.
    pub calls: Vec<ForkCall>,
}

impl ForkScenario {
    /// What `seed` stands for.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x666f_726b);
        let phones = rng.between(2, 5) as usize;
        let worst = Worst {
            loss: &[0, 0, 50, 100, 300],
            duplication: &[0, 20, 200],
        };
        let links = links(&mut rng, FIRST_PHONE + phones, &worst);
        let kind = if rng.chance(600) {
            let q = (0..phones).map(|_| rng.pick(&[1000, 1000, 500, 100])).collect();
            Kind::Location { q }
        } else {
            Kind::Group {
                algorithm: rng.pick(&[
                    Distribution::RoundRobin,
                    Distribution::Weighted,
                    Distribution::CallId,
                    Distribution::LeastLoad,
                    Distribution::Priority,
                ]),
                reply_timeout: rng.pick(&[2, 8]) * SECOND,
            }
        };
        let heal_at = rng.between(20, 60) * SECOND;
        let (faulty, healthy) = (rng.between(1, 8) as u32, rng.between(1, 2) as u32);
        let c_ms = rng.pick(&[180_000, 40_000, 10_000]);
        let rport = rng.chance(500);
        // Each of several targets may ring for as long as timer C, and one after the other.
        let quiet = heal_at + 1_500 * SECOND;
        let calls = (0..faulty + healthy)
            .map(|call| {
                let after_faults = call >= faulty;
                let start = match after_faults {
                    false => rng.between(0, heal_at),
                    true => quiet + rng.between(0, 5 * SECOND),
                };
                call_plan(&mut rng, call, start, phones, after_faults)
            })
            .collect();
        Self {
            seed,
            links,
            heal_at,
            phones,
            kind,
            c_ms,
            rport,
            calls,
        }
    }

    /// The caller's part, as the agents read it.
    pub(super) fn caller(&self) -> Scenario {
        self.part(self.calls.iter().map(|c| c.plan).collect())
    }

    /// The part of a phone.
    pub(super) fn phone(&self, phone: usize) -> Scenario {
        self.part(
            self.calls
                .iter()
                .filter_map(|c| c.phones.get(phone).copied())
                .collect(),
        )
    }

    fn part(&self, calls: Vec<CallPlan>) -> Scenario {
        let proxy = ProxyPlan {
            stateful: true,
            record_route: true,
            c_ms: self.c_ms,
            digest: None,
        };
        Scenario {
            seed: self.seed,
            links: BTreeMap::new(),
            heal_at: self.heal_at,
            proxies: [proxy.clone(), proxy],
            rport: self.rport,
            calls,
        }
    }
}

impl Plan for ForkScenario {
    fn summary(&self) -> String {
        format!(
            "seed {}: {:?}, {} phones, {} calls, C={} s, faults stop at {} s",
            self.seed,
            self.kind,
            self.phones,
            self.calls.len(),
            self.c_ms / 1000,
            self.heal_at / SECOND
        )
    }

    fn calls(&self, call: Option<u32>) -> Vec<String> {
        let wanted = self
            .calls
            .iter()
            .filter(|c| call.is_none_or(|n| n == c.plan.call));
        wanted.map(|c| format!("{c:?}")).collect()
    }
}

fn call_plan(rng: &mut Rng, call: u32, start: Micros, phones: usize, after_faults: bool) -> ForkCall {
    let latest = rng.pick(&[0, 300 * MS, 3 * SECOND, 25 * SECOND]);
    // Phones that do something at the same time.
    let common = rng.between(0, latest);
    let cancel_after = match rng.between(0, 9) {
        0 => rng.between(0, 300),
        1 => rng.between(0, latest + SECOND),
        2 => common + rng.between(0, 600 * MS),
        3 => 70 * SECOND,
        _ => 1_200 * SECOND,
    };
    let plan = CallPlan {
        call,
        from: ALICE,
        to: BOB,
        start,
        cancel_after,
        trying: false,
        ring_after: None,
        behaviour: Behaviour::Silent,
        hang_up: HangUp {
            by_caller: true,
            after: rng.between(0, 20 * SECOND),
        },
        after_faults,
    };
    let phones = (0..phones)
        .map(|_| {
            let decide = if rng.chance(300) {
                common
            } else {
                rng.between(0, latest)
            };
            phone_plan(rng, plan, decide)
        })
        .collect();
    ForkCall { plan, phones }
}

fn phone_plan(rng: &mut Rng, call: CallPlan, decide: Micros) -> CallPlan {
    let refusal = rng.pick(&[
        "486 Busy Here",
        "404 Not Found",
        "480 Temporarily Unavailable",
        "503 Service Unavailable",
        "503 Service Unavailable",
        "500 Server Internal Error",
        "302 Moved Temporarily",
        "401 Unauthorized",
        "603 Decline",
    ]);
    let behaviour = match rng.between(0, 9) {
        0..3 => Behaviour::Answer(decide),
        3..8 => Behaviour::Refuse(decide, refusal),
        8 => Behaviour::Ring,
        _ => Behaviour::Silent,
    };
    let speaks = behaviour != Behaviour::Silent;
    CallPlan {
        trying: speaks && rng.chance(300),
        ring_after: (speaks && rng.chance(800)).then(|| rng.between(0, 800 * MS)),
        behaviour,
        ..call
    }
}
