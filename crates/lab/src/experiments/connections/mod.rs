//! `connections`: what connections cost. Bytes of idle ones, work for each message beside many of them, attackers,
//! handshakes, a restart.

pub(crate) mod checks;
#[cfg(test)]
pub(crate) mod tests;

use super::{Scale, Session, steps};
use crate::case::Server;
use crate::failure::Outcome;
use crate::steps::{Key, Kind, Step};

/// Runs of what differs by little.
const ROUNDS: u32 = 5;
/// Idle connections, and the few that the many are compared with.
const CLIENTS: u32 = 19_000;
const FEW: u32 = 1_000;
/// Attackers.
const SLOW: u32 = 5_000;
const DEAF: u32 = 500;
/// Clients that come back at once.
const STORM: u32 = 5_000;

/// The connections that a server can hold with so many descriptors: it keeps a sixteenth for those that it opens, and
/// what else it has needs some, too.
pub(crate) fn most_clients(descriptors: u64) -> u32 {
    let most = descriptors.saturating_sub(1_000) * 15 / 16;
    u32::try_from(most.saturating_sub(100)).unwrap_or(u32::MAX).max(1)
}

/// All steps, in order. No server gets more than `most` connections.
pub(crate) fn plan(scale: &Scale, most: u32) -> Vec<Step> {
    if scale.quick {
        return quick(scale, most);
    }
    let both = [Server::Trapezoid, Server::Kamailio];
    let mut steps = Vec::new();
    for kind in Kind::ALL {
        for server in both {
            // Kamailio is asked for no WebSocket.
            if server == Server::Trapezoid || kind != Kind::Wss {
                steps.push(Step::Memory {
                    server,
                    kind,
                    clients: CLIENTS.min(most),
                });
            }
        }
    }
    steps.push(Step::Messages {
        few: FEW.min(most / 2),
        many: CLIENTS.min(most),
        rounds: ROUNDS,
    });
    steps.extend((1..=ROUNDS).map(|round| Step::Attackers {
        slow: SLOW.min(most / 2),
        deaf: DEAF.min(most / 8),
        round,
    }));
    steps.push(Step::InMemory);
    for round in 1..=scale.repeats {
        for server in both {
            for key in [None, Some(Key::P256), Some(Key::Rsa2048)] {
                steps.push(Step::Handshakes { server, key, round });
            }
        }
    }
    for round in 1..=scale.repeats {
        for server in both {
            let clients = STORM.min(most);
            steps.push(Step::Storm {
                server,
                clients,
                round,
            });
        }
    }
    steps
}

/// Small numbers, and this server alone.
fn quick(scale: &Scale, most: u32) -> Vec<Step> {
    let server = Server::Trapezoid;
    let mut steps: Vec<Step> = Kind::ALL
        .iter()
        .map(|kind| Step::Memory {
            server,
            kind: *kind,
            clients: 3_000.min(most),
        })
        .collect();
    steps.push(Step::Messages {
        few: 20,
        many: 400.min(most),
        rounds: 3,
    });
    let attackers = (1..=2).map(|round| Step::Attackers {
        slow: 200.min(most / 2),
        deaf: 20,
        round,
    });
    steps.extend(attackers);
    steps.push(Step::InMemory);
    for round in 1..=scale.repeats {
        for key in [None, Some(Key::P256)] {
            steps.push(Step::Handshakes { server, key, round });
        }
    }
    steps.push(Step::Storm {
        server,
        clients: 200.min(most),
        round: 1,
    });
    steps
}

/// Makes all steps that the results do not have yet.
pub(crate) fn run(session: &mut Session<'_>) -> Outcome<()> {
    let descriptors = crate::machine::descriptors().unwrap_or(1_024);
    let most = most_clients(descriptors);
    if most < CLIENTS && !session.scale.quick {
        let text =
            format!("a process may have {descriptors} descriptors here: {most} connections, not {CLIENTS}");
        steps::note(session.results, text);
    }
    let plan = plan(session.scale, most);
    steps::run(session, &plan)
}
