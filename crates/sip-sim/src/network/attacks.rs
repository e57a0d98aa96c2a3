//! What the stranger ([`super::stranger`]) does: kinds of attacks, and those that a seed stands for.

use serde::{Deserialize, Serialize};

use super::scenario::{DOMAINS, USERS};
use crate::clock::{MS, Micros, SECOND};
use crate::rng::Rng;

/// An attack of the stranger: somebody with an address of his own who hears what phones send by UDP,
/// and can send in the name of any address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttackPlan {
    /// When.
    pub at: Micros,
    /// To which server; what was overheard goes where it went.
    pub server: usize,
    /// What.
    pub attack: Attack,
}

/// Kinds of attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attack {
    /// A request of his own, of this kind, to this user: an index into [`USERS`].
    Probe {
        /// Which kind.
        kind: u8,
        /// To whom.
        user: usize,
    },
    /// The same in the name of a phone, for the server to answer it.
    Spoof {
        /// Which kind.
        kind: u8,
        /// To whom.
        user: usize,
        /// Whose address he writes.
        phone: usize,
    },
    /// A request that seems to be in a dialog of the server's, to the phone with this place.
    ForgedRoute {
        /// Which phone.
        phone: usize,
    },
    /// The next request with credentials that he hears, this much later from his own address.
    Borrow {
        /// How much.
        after: Micros,
    },
    /// The same in the name of its sender, as another request.
    Replay {
        /// How much.
        after: Micros,
    },
    /// A request of the other side of the next dialog that the stranger hears, sent `after` it: with the tags exchanged
    /// and the same Route. It is a call to `user`, or a message to no domain.
    Exchange {
        /// The called user, an index into [`USERS`]; absent: a message.
        user: Option<usize>,
        /// How much later.
        after: Micros,
    },
    /// A CANCEL for the next INVITE that the stranger hears, sent `after` it from the stranger's own address.
    Cancel {
        /// How much later.
        after: Micros,
    },
    /// The next request of a phone with credentials, sent `after` it with the same count of the nonce and another
    /// Call-ID, Contact, To and body.
    Change {
        /// In the name of its sender and with its branch; else from the stranger's own address, with another branch.
        forged: bool,
        /// How much later.
        after: Micros,
    },
    /// A call to the stranger's account in a domain. All contacts of the account lead where no call may go.
    Lure {
        /// Which domain.
        domain: usize,
        /// They lead to the gateway, else back to the server.
        gateway: bool,
    },
    /// A call to `user` in the name of the server, with a Via on top as the server itself writes it.
    SelfSent {
        /// The called user, an index into [`USERS`].
        user: usize,
        /// Hash in the branch of that Via.
        hash: u64,
    },
    /// So many requests at once, each with a response of its own.
    Flood {
        /// How many.
        count: u32,
        /// The server in whose name they come; absent: the stranger's own.
        named: Option<usize>,
    },
    /// This long after the next REGISTER by which somebody leaves the last one by which he came, as it
    /// was: a datagram that was held up.
    LateCopy {
        /// How much.
        after: Micros,
    },
}

/// From a generator of their own: whoever takes them out changes nothing else.
pub(super) fn attacks(seed: u64, servers: usize, phones: usize, heal_at: Micros) -> Vec<AttackPlan> {
    let mut rng = Rng::new(seed ^ 0x6576_696c);
    let count = rng.pick(&[0, 0, 4, 12, 24]);
    let mut attacks: Vec<AttackPlan> = (0..count)
        .map(|_| {
            // Soon, or about when a nonce ends ([`super::server::config`]).
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
    // What others do stays as it would be without these.
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

/// The stranger's attacks on others' dialogs and calls, and probes whose refusal lists much. They have a random
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

/// The stranger's attacks on what a server trusts: counts of nonces, contacts of its users, and itself. They have a
/// random generator of their own as well.
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
