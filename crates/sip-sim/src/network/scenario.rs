//! The scenario of a seed: servers and the ways between them, phones, calls, and troubles. It is plain data,
//! which can be printed, read back, and made smaller piece by piece.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::attacks::attacks;
pub use super::attacks::{Attack, AttackPlan};
pub use super::gateways::{GATEWAY_USER, GatewaysPlan, Sharing};
pub use super::links::LinkPlan;
use super::links::links;
use super::node::NodeId;
use super::{forks, gateways, limits};
use crate::agent::plan::{Behaviour, CallPlan, HangUp};
use crate::clock::{MS, Micros, SECOND};
use crate::rng::Rng;

/// Users that may have phones. User `n` is of domain `n % DOMAINS`.
pub const USERS: [&str; 12] = [
    "u0@d0.example",
    "u1@d1.example",
    "u2@d2.example",
    "u3@d0.example",
    "u4@d1.example",
    "u5@d2.example",
    "u6@d0.example",
    "u7@d1.example",
    "u8@d2.example",
    "u9@d0.example",
    "u10@d1.example",
    "u11@d2.example",
];

/// Names of the phones of each user.
const PHONES: [[&str; 3]; 12] = [
    ["u0", "u0b", "u0c"],
    ["u1", "u1b", "u1c"],
    ["u2", "u2b", "u2c"],
    ["u3", "u3b", "u3c"],
    ["u4", "u4b", "u4c"],
    ["u5", "u5b", "u5c"],
    ["u6", "u6b", "u6c"],
    ["u7", "u7b", "u7c"],
    ["u8", "u8b", "u8c"],
    ["u9", "u9b", "u9c"],
    ["u10", "u10b", "u10c"],
    ["u11", "u11b", "u11c"],
];

/// Names of the gateways.
const GATEWAYS: [&str; 5] = ["g1", "g2", "g3", "g4", "g5"];

/// The address-of-record of a user, or the number that leads to the gateways.
pub fn aor(user: usize) -> &'static str {
    USERS.get(user).copied().unwrap_or(gateways::NUMBER)
}

/// Number of domains; each has one server as its home.
pub const DOMAINS: usize = 3;

/// Quiet time after the faults, in which everything from before must end. The longest is timer C, with what
/// follows it.
const QUIET: Micros = 700 * SECOND;

/// A whole run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scenario {
    /// Seed of everything that is drawn during the run.
    pub seed: u64,
    /// Servers; the first nodes of the world.
    pub servers: Vec<ServerPlan>,
    /// Home of each domain: index of a server.
    pub homes: [usize; DOMAINS],
    /// Phones; the nodes after the servers.
    pub phones: Vec<PhonePlan>,
    /// Faults of links for datagrams; links without a plan lose nothing.
    pub links: Vec<LinkPlan>,
    /// Troubles in the order of time.
    pub troubles: Vec<TroublePlan>,
    /// Calls in the order of their start.
    pub calls: Vec<NetCall>,
    /// Reactions of phones to calls that name another phone of their user.
    #[serde(default)]
    pub branches: Vec<BranchPlan>,
    /// Attacks of the stranger in the order of time; if empty, there is no stranger.
    #[serde(default)]
    pub attacks: Vec<AttackPlan>,
    /// The group of gateways, if there is one. Its members are the phones of [`GATEWAY_USER`].
    #[serde(default)]
    pub gateways: Option<GatewaysPlan>,
    /// When the faults end.
    pub heal_at: Micros,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerPlan {
    /// Number of the process's workers.
    pub workers: u16,
    /// Whether the server keeps transactions; otherwise it is stateless.
    pub stateful: bool,
    /// Timer C, milliseconds.
    pub c_ms: u32,
    /// Methods that need credentials, if the server is a domain's home.
    pub auth: AuthPlan,
    /// When a REGISTER gets its response.
    pub durability: DurabilityPlan,
    /// The server to which calls for foreign domains go.
    pub next: Option<NextPlan>,
    /// Whether the server has small bounds.
    pub tight: bool,
    /// Longest usual time of the back-ends, microseconds.
    pub backend_us: Micros,
    /// Whether the server stays in the path of dialogs.
    #[serde(default = "yes")]
    pub record_route: bool,
    /// Algorithms of the server's challenges.
    #[serde(default)]
    pub challenges: Challenges,
    /// Limit on the messages of one source; without it any number is processed.
    #[serde(default)]
    pub limit: Option<SourceLimit>,
}

const fn yes() -> bool {
    true
}

/// Algorithms of a server's challenges, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Challenges {
    /// SHA-256, then MD5.
    #[default]
    Sha256AndMd5,
    /// MD5.
    Md5,
    /// SHA-256.
    Sha256,
    /// SHA-512/256, then MD5.
    Sha512AndMd5,
}

/// Limit on the messages that one source may send to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceLimit {
    /// Messages a second.
    pub rate: u32,
    /// Messages at once.
    pub burst: u32,
}

/// Methods that are challenged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuthPlan {
    /// None.
    Off,
    /// REGISTER and INVITE.
    Calls,
    /// REGISTER, INVITE and BYE.
    ByeToo,
}

/// Durability of registrations, as [`sip_core::config::Durability`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DurabilityPlan {
    /// On disk before the response.
    Commit,
    /// Written after the response.
    Async,
    /// Not written.
    Memory,
}

/// A way from server to server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextPlan {
    /// The next server.
    pub server: usize,
    /// Whether the way is over TCP; otherwise it is over UDP.
    pub tcp: bool,
    /// Whether the server is found by a name, which the name service must resolve.
    pub by_name: bool,
}

/// Transport of a phone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Speaks {
    /// UDP.
    Udp,
    /// TCP, on one connection.
    Tcp,
    /// WebSocket.
    Ws,
}

/// A phone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhonePlan {
    /// Index into [`USERS`].
    pub user: usize,
    /// The phone's transport.
    pub speaks: Speaks,
    /// Whether the phone asks for `rport` (RFC 3581).
    pub rport: bool,
    /// Seconds of registration that the phone requests.
    pub expires_s: u32,
    /// When the phone registers first; from then on it refreshes.
    pub start: Micros,
    /// When the phone leaves for a while, and when it returns.
    pub leaves: Vec<(Micros, Micros)>,
    /// Interval at which the phone fetches its bindings.
    pub fetch_every: Micros,
    /// When the phone leaves for good.
    pub end: Micros,
    /// Preference of the registered contact, in thousandths; `None`: no `q`.
    #[serde(default)]
    pub q: Option<u16>,
}

/// A trouble of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TroublePlan {
    /// When the trouble begins.
    pub at: Micros,
    /// The node.
    pub node: NodeId,
    /// Kind of the trouble.
    pub trouble: Trouble,
}

/// Kinds of trouble. A lasting one ends at [`Scenario::heal_at`] at the latest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trouble {
    /// The process is killed (or, with `power`, its machine is switched off), and starts again.
    Crash {
        /// Whether the machine is switched off, too.
        power: bool,
        /// How long the process is away.
        lasts: Micros,
    },
    /// Nothing passes between the node and another.
    Partition {
        /// The other node.
        other: NodeId,
        /// Duration.
        lasts: Micros,
    },
    /// All connections of the node are reset.
    Reset,
    /// The wall clock of the node is set by this many milliseconds.
    WallJump {
        /// Forward if positive, else back.
        ms: i64,
    },
    /// The node's back-ends of this kind take longer.
    Slow {
        /// The kind.
        backend: BackendKind,
        /// Time added to each result, microseconds.
        by: Micros,
        /// Duration.
        lasts: Micros,
    },
    /// The node's back-ends of this kind give no result at all.
    Dead {
        /// The kind.
        backend: BackendKind,
        /// Duration.
        lasts: Micros,
    },
    /// The node's disk has a fault.
    Disk {
        /// The fault.
        fault: DiskFault,
        /// Duration.
        lasts: Micros,
    },
    /// The node's back-ends of this kind give `Unavailable` as result.
    Failing {
        /// The kind.
        backend: BackendKind,
        /// Duration.
        lasts: Micros,
    },
}

/// Faults of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskFault {
    /// There is little free space.
    Full {
        /// Free bytes.
        room: u64,
    },
    /// Syncs fail, and dirty pages are lost.
    Syncs {
        /// Failing syncs, per thousand.
        per_mille: u32,
    },
    /// Operations of every kind fail.
    Everything {
        /// Failing operations, per thousand.
        per_mille: u32,
    },
}

/// Kinds of back-ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum BackendKind {
    /// Credentials of subscribers.
    Credentials,
    /// Name service.
    Names,
    /// The store of registrations.
    Store,
}

/// Reaction of a callee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reaction {
    /// Answers after this time.
    Answer(Micros),
    /// Is busy after this time.
    Busy(Micros),
    /// Rings for ever.
    Ring,
    /// Refuses with this status after this time.
    Refuse(Micros, u16),
    /// Sends no response at all.
    Silent,
}

impl Reaction {
    /// The reaction in the user agent's terms.
    const fn behaviour(self) -> Behaviour {
        match self {
            Self::Answer(after) => Behaviour::Answer(after),
            Self::Busy(after) => Behaviour::Busy(after),
            Self::Ring => Behaviour::Ring,
            Self::Refuse(after, status) => Behaviour::Refuse(after, status_line(status)),
            Self::Silent => Behaviour::Silent,
        }
    }
}

/// Status and reason phrase for the first line of a response.
const fn status_line(status: u16) -> &'static str {
    match status {
        302 => "302 Moved Temporarily",
        401 => "401 Unauthorized",
        404 => "404 Not Found",
        480 => "480 Temporarily Unavailable",
        500 => "500 Server Internal Error",
        503 => "503 Service Unavailable",
        603 => "603 Decline",
        _ => "486 Busy Here",
    }
}

/// Plan of one phone of the called user, other than the phone that the call names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchPlan {
    /// Number of the call.
    pub call: u32,
    /// Index of the phone.
    pub phone: usize,
    /// Whether the phone sends 100 at once.
    pub trying: bool,
    /// The phone rings after this time.
    pub ring_after: Option<Micros>,
    /// Reaction of the phone.
    pub reaction: Reaction,
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetCall {
    /// Number of the call.
    pub call: u32,
    /// The caller: index of a phone.
    pub from: usize,
    /// The callee: index of a phone. The call goes to the phone's user, whose other phones may be called too.
    pub to: usize,
    /// When the call begins.
    pub start: Micros,
    /// When, after that, the caller cancels.
    pub cancel_after: Micros,
    /// Whether the callee sends 100 at once.
    pub trying: bool,
    /// The callee rings after this time.
    pub ring_after: Option<Micros>,
    /// Reaction of the callee.
    pub reaction: Reaction,
    /// Whether the caller hangs up; otherwise the callee does.
    pub caller_hangs_up: bool,
    /// Talking time.
    pub talk: Micros,
    /// Whether the call begins after the faults are over.
    pub after_faults: bool,
}

impl Scenario {
    /// The scenario of `seed`.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x6e65_7477);
        let heal_at = rng.between(20, 60) * SECOND;
        let (servers, homes) = servers(&mut rng);
        let count = rng.between(2, rng.clone().pick(&[3, 6, 12])) as usize;
        let mut users: Vec<usize> = (0..USERS.len()).collect();
        let settled = heal_at + QUIET;
        let over = settled + 300 * SECOND;
        let phones: Vec<PhonePlan> = (0..count)
            .map(|_| {
                let user = users.remove(rng.between(0, users.len() as u64 - 1) as usize);
                phone(&mut rng, user, heal_at, over)
            })
            .collect();
        let (servers_count, nodes) = (servers.len(), servers.len() + phones.len());
        let links = links(&mut rng, nodes);
        let mut troubles = troubles(&mut rng, servers.len(), nodes, heal_at);
        disk_troubles(seed, servers.len(), heal_at, &mut troubles);
        let faulty = rng.between(1, 16) as u32;
        let healthy = rng.between(1, 3) as u32;
        let mut calls: Vec<NetCall> = (0..faulty)
            .map(|n| {
                let start = rng.between(SECOND, heal_at);
                call(&mut rng, n, phones.len(), start, false)
            })
            .collect();
        calls.extend((faulty..faulty + healthy).map(|n| {
            let start = settled + rng.between(0, 20 * SECOND);
            call(&mut rng, n, phones.len(), start, true)
        }));
        calls.sort_by_key(|c| c.start);
        let mut scenario = Self {
            seed,
            servers,
            homes,
            phones,
            links,
            troubles,
            calls,
            branches: Vec::new(),
            attacks: attacks(seed, servers_count, count, heal_at),
            gateways: None,
            heal_at,
        };
        forks::several_phones(&mut scenario, over);
        gateways::group(&mut scenario);
        variants(&mut scenario);
        limits::limits(&mut scenario);
        scenario
    }

    /// The server that is home to a user.
    pub fn home_of(&self, user: usize) -> usize {
        let group = self.gateways.filter(|_| user == GATEWAY_USER);
        group.map_or(self.homes[user % DOMAINS], |group| group.server)
    }

    /// Time from which on nothing excuses a failure.
    pub const fn settled_at(&self) -> Micros {
        self.heal_at + QUIET
    }

    /// The node of a phone.
    pub fn node_of_phone(&self, phone: usize) -> NodeId {
        self.servers.len() + phone
    }

    /// The node of the stranger, if there is one.
    pub fn stranger_node(&self) -> Option<NodeId> {
        (!self.attacks.is_empty()).then(|| self.servers.len() + self.phones.len())
    }

    /// Name of a phone: its user's name, with a letter for each further phone.
    pub fn name_of_phone(&self, place: usize) -> &'static str {
        let user = self.phones[place].user;
        let before = self.phones_of(user).filter(|other| *other < place).count();
        let names = PHONES.get(user).map_or(&GATEWAYS[..], |names| &names[..]);
        names[before.min(names.len() - 1)]
    }

    /// Plan of a phone for a call that comes to it.
    pub fn branch_plan(&self, call: &NetCall, phone: usize) -> BranchPlan {
        let named = BranchPlan {
            call: call.call,
            phone,
            trying: call.trying,
            ring_after: call.ring_after,
            reaction: call.reaction,
        };
        let is_it = |b: &&BranchPlan| b.call == call.call && b.phone == phone && phone != call.to;
        self.branches.iter().find(is_it).copied().unwrap_or(named)
    }

    /// The calls as plans for the user agent of this phone.
    pub fn call_plans(&self, phone: usize) -> Vec<CallPlan> {
        let user = |phone: usize| self.phones.get(phone).map_or(USERS[0], |p| aor(p.user));
        let plan = |c: &NetCall| {
            let branch = self.branch_plan(c, phone);
            CallPlan {
                call: c.call,
                from: user(c.from),
                to: user(c.to),
                start: c.start,
                cancel_after: c.cancel_after,
                trying: branch.trying,
                ring_after: branch.ring_after,
                behaviour: branch.reaction.behaviour(),
                hang_up: HangUp {
                    by_caller: c.caller_hangs_up,
                    after: c.talk,
                },
            }
        };
        self.calls.iter().map(plan).collect()
    }

    /// Whether the wall clock of this node is ever set.
    pub fn clock_jumps(&self, node: NodeId) -> bool {
        self.troubles
            .iter()
            .any(|t| t.node == node && matches!(t.trouble, Trouble::WallJump { .. }))
    }

    /// Times of this node's crashes.
    pub fn crashes(&self, node: NodeId) -> impl Iterator<Item = Micros> + '_ {
        self.troubles
            .iter()
            .filter(move |t| t.node == node && matches!(t.trouble, Trouble::Crash { .. }))
            .map(|t| t.at)
    }

    /// Whether a server challenges: it does so for its domains only, so a server that is no home admits all.
    pub fn challenges(&self, server: NodeId) -> bool {
        self.servers[server].auth != AuthPlan::Off && self.homes.contains(&server)
    }

    /// A summary in a few words.
    pub fn summary(&self) -> String {
        let server = |(n, s): (usize, &ServerPlan)| {
            let mode = if s.stateful { "stateful" } else { "stateless" };
            format!("S{n} {mode} {:?} {:?} ×{}", s.auth, s.durability, s.workers)
        };
        let servers: Vec<String> = self.servers.iter().enumerate().map(server).collect();
        let users: BTreeSet<usize> = self.phones.iter().map(|p| p.user).collect();
        format!(
            "seed {}: {}; homes {:?}; {} phones of {} users; {} calls; {} troubles; faults stop at {} s",
            self.seed,
            servers.join(", "),
            self.homes,
            self.phones.len(),
            users.len(),
            self.calls.len(),
            self.troubles.len(),
            self.heal_at / SECOND,
        )
    }
}

/// Draws the servers: first the homes, then those in between.
fn servers(rng: &mut Rng) -> (Vec<ServerPlan>, [usize; DOMAINS]) {
    let homes_count = rng.pick(&[1usize, 1, 2, 2, 3]);
    let between = rng.pick(&[0usize, 0, 0, 1, 2]);
    let homes: [usize; DOMAINS] = core::array::from_fn(|domain| domain % homes_count);
    let count = homes_count + if homes_count > 1 { between } else { 0 };
    let servers = (0..count)
        .map(|n| {
            // A home sends to the first server in between, if there is one; each of these sends to the next.
            let next = match (n < homes_count, count > homes_count) {
                (true, true) => Some(homes_count),
                (false, _) if n + 1 < count => Some(n + 1),
                (true, false) | (false, _) => None,
            };
            ServerPlan {
                workers: rng.pick(&[1, 1, 2, 3]),
                stateful: rng.chance(650),
                c_ms: rng.pick(&[180_000, 180_000, 40_000]),
                auth: rng.pick(&[AuthPlan::Off, AuthPlan::Off, AuthPlan::Calls, AuthPlan::ByeToo]),
                durability: rng.pick(&[
                    DurabilityPlan::Commit,
                    DurabilityPlan::Commit,
                    DurabilityPlan::Commit,
                    DurabilityPlan::Async,
                    DurabilityPlan::Memory,
                ]),
                next: next.map(|server| NextPlan {
                    server,
                    tcp: rng.chance(400),
                    by_name: rng.chance(400),
                }),
                tight: rng.chance(100),
                backend_us: rng.pick(&[0, 2, 50]) * MS,
                record_route: true,
                challenges: Challenges::default(),
                limit: None,
            }
        })
        .collect();
    (servers, homes)
}

/// Makes some servers' configurations unusual, from a random generator of their own.
fn variants(scenario: &mut Scenario) {
    let mut rng = Rng::new(scenario.seed ^ 0x7661_7279);
    // A phone that can be reached on its own connection only needs all servers in the path.
    let all_udp = scenario.phones.iter().all(|phone| phone.speaks == Speaks::Udp);
    for server in &mut scenario.servers {
        server.record_route = !all_udp || rng.chance(500);
        server.challenges = rng.pick(&[
            Challenges::Sha256AndMd5,
            Challenges::Md5,
            Challenges::Sha256,
            Challenges::Sha512AndMd5,
        ]);
        if rng.chance(100) {
            server.c_ms = 10_000;
        }
    }
}

pub(super) fn phone(rng: &mut Rng, user: usize, heal_at: Micros, over: Micros) -> PhonePlan {
    let mut leaves = Vec::new();
    if rng.chance(400) {
        let away = rng.between(5 * SECOND, heal_at);
        leaves.push((away, away + rng.between(SECOND / 10, 30 * SECOND)));
    }
    PhonePlan {
        user,
        speaks: rng.pick(&[Speaks::Udp, Speaks::Udp, Speaks::Udp, Speaks::Tcp, Speaks::Ws]),
        rport: rng.chance(700),
        expires_s: rng.pick(&[60, 90, 300, 3_600]),
        start: rng.between(0, SECOND / 2),
        leaves,
        fetch_every: rng.between(15, 120) * SECOND,
        end: over + rng.between(0, 10 * SECOND),
        q: None,
    }
}

fn troubles(rng: &mut Rng, servers: usize, nodes: usize, heal_at: Micros) -> Vec<TroublePlan> {
    let count = rng.pick(&[0, 0, 1, 2, 4, 8]);
    let mut troubles: Vec<TroublePlan> = (0..count)
        .map(|_| {
            let at = rng.between(SECOND, heal_at - SECOND);
            let lasts = rng.between(0, rng.clone().pick(&[1, 5, 40])) * SECOND + rng.between(1, SECOND);
            let server = rng.between(0, servers as u64 - 1) as usize;
            let any = rng.between(0, nodes as u64 - 1) as usize;
            let backend = rng.pick(&[BackendKind::Credentials, BackendKind::Names, BackendKind::Store]);
            let (node, trouble) = match rng.between(0, 9) {
                0..3 => {
                    let power = rng.chance(400);
                    (server, Trouble::Crash { power, lasts })
                }
                3 | 4 => (any, Trouble::Partition { other: server, lasts }),
                5 => (any, Trouble::Reset),
                6 => {
                    let ms = rng.pick(&[-3_600_000i64, -30_000, -500, 500, 30_000, 3_600_000]);
                    (server, Trouble::WallJump { ms })
                }
                7 => {
                    let by = rng.between(0, 6 * SECOND);
                    (server, Trouble::Slow { backend, by, lasts })
                }
                8 => (server, Trouble::Dead { backend, lasts }),
                _ => (server, Trouble::Failing { backend, lasts }),
            };
            TroublePlan { at, node, trouble }
        })
        .collect();
    troubles.sort_by_key(|t| t.at);
    troubles
}

/// Adds disks that fail, and often a crash during or after the fault. They have a random generator of their
/// own, so that the rest of the seed's scenario stays the same.
fn disk_troubles(seed: u64, servers: usize, heal_at: Micros, troubles: &mut Vec<TroublePlan>) {
    let mut rng = Rng::new(seed ^ 0x6469_736b);
    for _ in 0..rng.pick(&[0, 0, 1, 1, 2, 3]) {
        let node = rng.between(0, servers as u64 - 1) as usize;
        let at = rng.between(0, heal_at - SECOND);
        let lasts = rng.pick(&[SECOND / 5, SECOND, 10 * SECOND]);
        let per_mille = rng.pick(&[200, 500, 1_000]);
        let fault = match rng.between(0, 2) {
            0 => DiskFault::Full {
                room: rng.between(0, 2_000),
            },
            1 => DiskFault::Syncs { per_mille },
            _ => DiskFault::Everything { per_mille },
        };
        let trouble = Trouble::Disk { fault, lasts };
        troubles.push(TroublePlan { at, node, trouble });
        for _ in 0..rng.pick(&[0, 1, 2]) {
            let at = (at + rng.between(0, 3 * lasts)).min(heal_at - 1);
            let trouble = Trouble::Crash {
                power: rng.chance(600),
                lasts: rng.between(SECOND / 10, 3 * SECOND),
            };
            troubles.push(TroublePlan { at, node, trouble });
        }
    }
    troubles.sort_by_key(|t| t.at);
}

fn call(rng: &mut Rng, call: u32, phones: usize, start: Micros, after_faults: bool) -> NetCall {
    let from = rng.between(0, phones as u64 - 1) as usize;
    let to = (from + rng.between(1, phones as u64 - 1) as usize) % phones;
    let latest = rng.pick(&[0, 300 * MS, 3 * SECOND, 25 * SECOND]);
    let decide = rng.between(0, latest);
    let ring_after = rng.chance(800).then(|| rng.between(0, 800 * MS));
    NetCall {
        call,
        from,
        to,
        start,
        cancel_after: match rng.between(0, 9) {
            // Before any response can have come back.
            0 => rng.between(0, 300),
            // Somewhere while it rings.
            1 | 2 => rng.between(0, decide + SECOND),
            // Around the answer, so that CANCEL and 200 cross.
            3 => decide + rng.between(0, 600 * MS),
            4..7 => 70 * SECOND,
            _ => 200 * SECOND,
        },
        // §17.2.1: a phone that does not ring at once sends 100.
        trying: rng.chance(300) || ring_after.is_none(),
        ring_after,
        reaction: match rng.between(0, 9) {
            0..6 => Reaction::Answer(decide),
            6..8 => Reaction::Busy(decide),
            _ => Reaction::Ring,
        },
        caller_hangs_up: rng.chance(500),
        talk: rng.between(0, 20 * SECOND),
        after_faults,
    }
}
