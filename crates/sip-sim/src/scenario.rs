//! What a seed stands for: the network's faults, the proxies' configuration, the calls.

use std::collections::BTreeMap;

use crate::clock::{MS, Micros, SECOND};
use crate::net::Link;
use crate::node::NodeId;
use crate::rng::Rng;
use crate::runner::Plan;

/// Address-of-record of the caller.
pub const ALICE: &str = "alice@example.com";
/// That of the callee.
pub const BOB: &str = "bob@example.com";

/// The caller.
pub const CALLER: NodeId = 0;
/// The first proxy.
pub const PROXY_A: NodeId = 1;
/// The second proxy.
pub const PROXY_B: NodeId = 2;
/// The callee.
pub const CALLEE: NodeId = 3;
/// How many they are.
const NODES: usize = 4;

/// What is configured at one proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyPlan {
    /// Transactions are kept (else: stateless).
    pub stateful: bool,
    /// It stays in the path of dialogs.
    pub record_route: bool,
    /// Timer C, milliseconds.
    pub c_ms: u32,
    /// Who calls must authenticate.
    pub digest: Option<DigestPlan>,
}

/// How a proxy authenticates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestPlan {
    /// In-dialog BYE as well.
    pub bye_too: bool,
    /// Names of algorithms, in the order of the challenges.
    pub algorithms: Vec<sip_core::config::Algorithm>,
    /// Where credentials come from.
    pub store: Store,
}

/// Where credentials come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// They are known at once.
    Cached,
    /// A store that answers after between these times.
    Slow(Micros, Micros),
    /// A store that never answers.
    Dead,
}

/// What the callee does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// 200 after this time.
    Answer(Micros),
    /// 486 after this time.
    Busy(Micros),
    /// This answer after this time.
    Refuse(Micros, &'static str),
    /// Rings, for ever.
    Ring,
    /// Is there, and says nothing.
    Silent,
}

/// Who hangs up, and when after the call was answered (acknowledged, at the callee).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HangUp {
    /// The caller; else the callee.
    pub by_caller: bool,
    /// Talking time.
    pub after: Micros,
}

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallPlan {
    /// Its number.
    pub call: u32,
    /// Address-of-record of the caller.
    pub from: &'static str,
    /// That of the callee.
    pub to: &'static str,
    /// When the INVITE is sent.
    pub start: Micros,
    /// When, after that, the caller wants no more: CANCEL follows as soon as it may be sent.
    pub cancel_after: Micros,
    /// The callee says 100 at once.
    pub trying: bool,
    /// The callee rings after this time; `None`: no 180.
    pub ring_after: Option<Micros>,
    /// What the callee does.
    pub behaviour: Behaviour,
    /// How it ends.
    pub hang_up: HangUp,
    /// It begins after the faults are over: nothing excuses its failure.
    pub after_faults: bool,
}

/// Everything that a seed decides before the run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// Links by direction.
    pub links: BTreeMap<(NodeId, NodeId), Link>,
    /// When faults stop.
    pub heal_at: Micros,
    /// Proxies A and B.
    pub proxies: [ProxyPlan; 2],
    /// The user agents ask for `rport` (RFC 3581).
    pub rport: bool,
    /// Calls in the order of their start.
    pub calls: Vec<CallPlan>,
}

impl Scenario {
    /// What `seed` stands for.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x7472_6170);
        let worst = Worst {
            loss: &[0, 50, 100, 200, 300, 300],
            duplication: &[0, 20, 100, 200],
        };
        let links = links(&mut rng, NODES, &worst);
        let proxies = [proxy(&mut rng, true), proxy(&mut rng, false)];
        let heal_at = rng.between(20, 60) * SECOND;
        let faulty = rng.between(1, 20) as u32;
        let healthy = rng.between(1, 2) as u32;
        let rport = rng.chance(500);
        let mut calls: Vec<CallPlan> = (0..faulty)
            .map(|call| {
                let start = rng.between(0, heal_at);
                call_plan(&mut rng, call, start, false)
            })
            .collect();
        // What was sent before the faults stopped may still be on its way; nothing lasts longer
        // than this.
        let quiet = heal_at + 700 * SECOND;
        calls.extend((faulty..faulty + healthy).map(|call| {
            let start = quiet + rng.between(0, 5 * SECOND);
            call_plan(&mut rng, call, start, true)
        }));
        Self {
            seed,
            links,
            heal_at,
            proxies,
            rport,
            calls,
        }
    }

    /// The plan of a proxy; `None`: a user agent.
    pub fn proxy(&self, node: NodeId) -> Option<&ProxyPlan> {
        match node {
            PROXY_A => self.proxies.first(),
            PROXY_B => self.proxies.get(1),
            _ => None,
        }
    }

    /// Whether this proxy holds a transaction for a request of `method` that it relays: by its
    /// configuration, or because the request had to wait for credentials.
    pub fn keeps_state(&self, node: NodeId, method: &str) -> bool {
        self.proxy(node).is_some_and(|p| {
            let waits = p.digest.as_ref().is_some_and(|d| {
                d.store != Store::Cached && (method == "INVITE" || (method == "BYE" && d.bye_too))
            });
            p.stateful || waits
        })
    }
}

impl Plan for Scenario {
    fn summary(&self) -> String {
        let link = |from, to| {
            self.links
                .get(&(from, to))
                .map_or_else(String::new, |l: &Link| format!("{}/{}", l.loss, l.duplication))
        };
        let proxy = |p: &ProxyPlan| {
            let mode = if p.stateful { "stateful" } else { "stateless" };
            let route = if p.record_route { "+rr" } else { "" };
            let digest = p
                .digest
                .as_ref()
                .map_or_else(String::new, |d| format!("+digest({:?})", d.store));
            format!("{mode}{route}{digest} C={}s", p.c_ms / 1000)
        };
        format!(
            "seed {}: A {}; B {}; {} calls; loss/dup per mille up {} {} {} down {} {} {}; faults stop at {} s",
            self.seed,
            proxy(&self.proxies[0]),
            proxy(&self.proxies[1]),
            self.calls.len(),
            link(CALLER, PROXY_A),
            link(PROXY_A, PROXY_B),
            link(PROXY_B, CALLEE),
            link(PROXY_A, CALLER),
            link(PROXY_B, PROXY_A),
            link(CALLEE, PROXY_B),
            self.heal_at / SECOND,
        )
    }

    fn calls(&self, call: Option<u32>) -> Vec<String> {
        let wanted = self.calls.iter().filter(|c| call.is_none_or(|n| n == c.call));
        wanted.map(|c| format!("{c:?}")).collect()
    }
}

/// The worst that a link of a network does; a network's seed picks one of each.
pub(crate) struct Worst<'a> {
    /// Loss, per mille.
    pub(crate) loss: &'a [u64],
    /// Duplication, per mille.
    pub(crate) duplication: &'a [u64],
}

/// Links between all of `nodes` nodes, in both directions. Some seeds have gentle networks, so that
/// rare paths are not all hidden behind loss.
pub(crate) fn links(rng: &mut Rng, nodes: usize, worst: &Worst<'_>) -> BTreeMap<(NodeId, NodeId), Link> {
    let most_loss = rng.pick(worst.loss);
    let most_duplication = rng.pick(worst.duplication);
    let longest = rng.pick(&[0, 10, 50, 300]) * MS;
    let mut links = BTreeMap::new();
    for from in 0..nodes {
        for to in 0..nodes {
            let link = Link {
                loss: rng.between(0, most_loss) as u32,
                duplication: rng.between(0, most_duplication) as u32,
                delay: (100, 100 + rng.between(0, longest)),
                reorder: rng.chance(700),
            };
            links.insert((from, to), link);
        }
    }
    links
}

fn proxy(rng: &mut Rng, first: bool) -> ProxyPlan {
    use sip_core::config::Algorithm::{Md5, Sha256, Sha512_256};
    let digest = (first && rng.chance(350)).then(|| DigestPlan {
        bye_too: rng.chance(300),
        algorithms: match rng.between(0, 3) {
            0 => vec![Md5],
            1 => vec![Sha256],
            2 => vec![Sha512_256, Md5],
            _ => vec![Sha256, Md5],
        },
        store: match rng.between(0, 9) {
            0..3 => Store::Cached,
            3..8 => Store::Slow(0, rng.pick(&[5, 100, 2_900]) * MS),
            _ => Store::Dead,
        },
    });
    ProxyPlan {
        stateful: rng.chance(600),
        record_route: rng.chance(600),
        c_ms: rng.pick(&[180_000, 180_000, 40_000]),
        digest,
    }
}

fn call_plan(rng: &mut Rng, call: u32, start: Micros, after_faults: bool) -> CallPlan {
    // Answers come at once, soon, or late.
    let latest = rng.pick(&[0, 300 * MS, 3 * SECOND, 25 * SECOND]);
    let decide = rng.between(0, latest);
    let behaviour = match rng.between(0, 9) {
        0..6 => Behaviour::Answer(decide),
        6..8 => Behaviour::Busy(decide),
        _ => Behaviour::Ring,
    };
    let cancel_after = match rng.between(0, 9) {
        // Before anything can have come back.
        0 => rng.between(0, 300),
        // Somewhere while it rings.
        1 | 2 => rng.between(0, decide + SECOND),
        // Around the answer, so that CANCEL and 200 cross.
        3 => decide + rng.between(0, 600 * MS),
        // Never, as far as an answered call goes: a user's patience, or longer than timer C.
        4..7 => 70 * SECOND,
        _ => 200 * SECOND,
    };
    CallPlan {
        call,
        from: ALICE,
        to: BOB,
        start,
        cancel_after,
        trying: rng.chance(300),
        ring_after: rng.chance(800).then(|| rng.between(0, 800 * MS)),
        behaviour,
        hang_up: HangUp {
            by_caller: rng.chance(500),
            after: rng.between(0, 20 * SECOND),
        },
        after_faults,
    }
}
