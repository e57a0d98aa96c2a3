//! Attacks of the stranger ([`super::stranger`]): their kinds, and those of a seed.

use serde::{Deserialize, Serialize};

use super::scenario::{DOMAINS, USERS};
use crate::clock::{MS, Micros, SECOND};
use crate::rng::Rng;

/// An attack of the stranger, a host with an address of its own. The stranger overhears what phones send by
/// UDP, and can send from any forged address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttackPlan {
    /// When the attack begins.
    pub at: Micros,
    /// The attacked server. An overheard message goes to its own destination instead.
    pub server: usize,
    /// Kind of the attack.
    pub attack: Attack,
}

/// Kinds of attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attack {
    /// A request of the stranger's own to this user: an index into [`USERS`].
    Probe {
        /// Kind of the request.
        kind: u8,
        /// The called user.
        user: usize,
    },
    /// The same request from the forged address of a phone, to which the server then responds.
    Spoof {
        /// Kind of the request.
        kind: u8,
        /// The called user.
        user: usize,
        /// The phone whose address is forged.
        phone: usize,
    },
    /// A request to this phone that seems to be in a dialog of the server's.
    ForgedRoute {
        /// The phone's index.
        phone: usize,
    },
    /// A copy of the next overheard request with credentials, sent `after` it from the stranger's own
    /// address.
    Borrow {
        /// Delay of the copy.
        after: Micros,
    },
    /// A copy of the next overheard request with credentials, sent from its sender's forged address as
    /// another request.
    Replay {
        /// Delay of the copy.
        after: Micros,
    },
    /// A request of the other side of the next dialog that the stranger hears, sent `after` it: with the tags exchanged
    /// and the same Route. It is a call to `user`, or a message to no domain.
    Exchange {
        /// The called user, an index into [`USERS`]; absent: a message.
        user: Option<usize>,
        /// Delay of the request.
        after: Micros,
    },
    /// A CANCEL for the next INVITE that the stranger hears, sent `after` it from the stranger's own address.
    Cancel {
        /// Delay of the CANCEL.
        after: Micros,
    },
    /// The next request of a phone with credentials, sent `after` it with the same count of the nonce and another
    /// Call-ID, Contact, To and body.
    Change {
        /// Whether the copy has its sender's forged address and branch; otherwise the stranger's address and
        /// another branch.
        forged: bool,
        /// Delay of the copy.
        after: Micros,
    },
    /// A call to the stranger's account in a domain. All contacts of the account lead where no call may go.
    Lure {
        /// Index of the domain.
        domain: usize,
        /// Whether the contacts lead to the gateway; otherwise back to the server.
        gateway: bool,
    },
    /// A call to `user` in the name of the server, with a Via on top as the server itself writes it.
    SelfSent {
        /// The called user, an index into [`USERS`].
        user: usize,
        /// Hash in the branch of that Via.
        hash: u64,
    },
    /// This many requests at once, each with a response of its own.
    Flood {
        /// Number of requests.
        count: u32,
        /// The server whose address is forged; absent: the stranger's own address.
        named: Option<usize>,
    },
    /// A copy of the last REGISTER that bound a phone, sent this long after the next REGISTER by which a
    /// phone unbinds. The copy is unchanged, like a delayed datagram.
    LateCopy {
        /// Delay of the copy.
        after: Micros,
    },
}

/// The attacks of a seed, from a random generator of their own, so that a scenario without them is otherwise
/// the same.
pub(super) fn attacks(seed: u64, servers: usize, phones: usize, heal_at: Micros) -> Vec<AttackPlan> {
    let mut rng = Rng::new(seed ^ 0x6576_696c);
    let count = rng.pick(&[0, 0, 4, 12, 24]);
    let mut attacks: Vec<AttackPlan> = (0..count)
        .map(|_| {
            // Soon, or about when a nonce expires ([`super::server::config`]).
            let latest = rng.pick(&[0, 500 * MS, 20 * SECOND]);
            let late = rng.chance(300).then(|| rng.between(58 * SECOND, 63 * SECOND));
            let after = late.unwrap_or_else(|| rng.between(0, latest));
            let attack = match rng.between(0, 9) {
                0..3 => Attack::Probe {
                    kind: rng.between(0, 6) as u8,
                    user: rng.between(0, USERS.len() as u64 - 1) as usize,
                },
                3 | 4 => Attack::ForgedRoute {
                    phone: rng.between(0, phones as u64 - 1) as usize,
                },
                5 | 6 => Attack::Borrow { after },
                7 | 8 => Attack::Replay { after },
                _ => Attack::LateCopy {
                    after: after % (25 * SECOND),
                },
            };
            AttackPlan {
                at: rng.between(0, heal_at + 30 * SECOND),
                server: rng.between(0, servers as u64 - 1) as usize,
                attack,
            }
        })
        .collect();
    // All other attacks remain as they would be without these.
    for _ in 0..count / 4 {
        attacks.push(AttackPlan {
            at: rng.between(0, heal_at + 30 * SECOND),
            server: rng.between(0, servers as u64 - 1) as usize,
            attack: Attack::Spoof {
                kind: rng.pick(&[0, 0, 1, 1, 3, 5]),
                user: rng.between(0, USERS.len() as u64 - 1) as usize,
                phone: rng.between(0, phones as u64 - 1) as usize,
            },
        });
    }
    attacks.extend(dialog_attacks(seed, servers, heal_at, count / 4));
    attacks.extend(trust_attacks(seed, servers, heal_at, count / 4));
    attacks.sort_by_key(|attack| attack.at);
    attacks
}

/// Attacks on dialogs and calls of other parties, and probes whose refusal lists much. They have a random
/// generator of their own, so that a seed still makes the same other attacks.
fn dialog_attacks(seed: u64, servers: usize, heal_at: Micros, count: usize) -> Vec<AttackPlan> {
    let mut rng = Rng::new(seed ^ 0x6d61_726b);
    let user = |rng: &mut Rng| rng.between(0, USERS.len() as u64 - 1) as usize;
    let attack = |rng: &mut Rng| match rng.between(0, 9) {
        0..4 => Attack::Exchange {
            user: rng.chance(500).then(|| user(rng)),
            after: rng.between(0, rng.clone().pick(&[0, 500 * MS, 20 * SECOND])),
        },
        4..8 => Attack::Cancel {
            after: rng.between(0, rng.clone().pick(&[20 * MS, 500 * MS, 3 * SECOND])),
        },
        _ => Attack::Probe {
            kind: rng.pick(&[7, 8]),
            user: user(rng),
        },
    };
    let plans = (0..count).map(|_| AttackPlan {
        attack: attack(&mut rng),
        at: rng.between(0, heal_at + 30 * SECOND),
        server: rng.between(0, servers as u64 - 1) as usize,
    });
    plans.collect()
}

/// Attacks on what a server trusts: counts of nonces, contacts of its users, and the server itself. They have
/// a random generator of their own, too.
fn trust_attacks(seed: u64, servers: usize, heal_at: Micros, count: usize) -> Vec<AttackPlan> {
    let mut rng = Rng::new(seed ^ 0x7472_7573);
    let attack = |rng: &mut Rng| match rng.between(0, 9) {
        0..5 => Attack::Change {
            forged: rng.chance(700),
            after: rng.between(0, rng.clone().pick(&[20 * MS, 3 * SECOND, 50 * SECOND])),
        },
        5..8 => Attack::Lure {
            domain: rng.between(0, DOMAINS as u64 - 1) as usize,
            gateway: rng.chance(500),
        },
        _ => Attack::SelfSent {
            user: rng.between(0, USERS.len() as u64 - 1) as usize,
            hash: rng.next_u64(),
        },
    };
    let plans = (0..count).map(|_| AttackPlan {
        attack: attack(&mut rng),
        at: rng.between(0, heal_at + 30 * SECOND),
        server: rng.between(0, servers as u64 - 1) as usize,
    });
    plans.collect()
}
