//! The configuration of a server of the simulated network.

use std::net::{IpAddr, SocketAddr};

use sip_core::config::{
    Abuse, Action, Algorithm, AuthPolicy, Config, Destinations, Domain, Durability, Listener, Nat, Network,
    RegistrarPolicy, Relay, RelayTarget, Route, StateMode, Timers, When,
};
use sip_core::dispatcher::{Distribution, Group, Local, MarkPolicy, Member};
use sip_core::limits::Limits;
use sip_core::transport::{NextHop, Transport};

use super::super::node::NodeId;
use super::super::scenario::{
    AuthPlan, Challenges, DOMAINS, DurabilityPlan, GATEWAY_USER, NextPlan, Scenario, ServerPlan, Sharing,
};
use super::super::{GATEWAY, SERVER_NET, gateways, phone_ip, server_ip};
use crate::clock::MS;

/// Port of SIP over UDP and TCP.
pub const SIP_PORT: u16 = 5060;
/// Port of SIP over WebSocket.
pub const WS_PORT: u16 = 8080;

/// Shortest and longest registration that a registrar grants, seconds.
pub const GRANTS_S: (u32, u32) = (60, 600);

/// Listeners, by their index in [`Config::listeners`].
pub const LISTENERS: [(Transport, u16); 3] = [
    (Transport::Udp, SIP_PORT),
    (Transport::Tcp, SIP_PORT),
    (Transport::Ws, WS_PORT),
];

/// Name of a domain.
pub fn domain_name(domain: usize) -> String {
    format!("d{domain}.example")
}

/// Name by which a server is found in name service.
pub fn server_name(server: usize) -> String {
    format!("s{server}.servers.example")
}

fn text(text: String) -> Box<[u8]> {
    text.into_bytes().into_boxed_slice()
}

/// The configuration of `server`.
pub fn config(scenario: &Scenario, server: usize) -> Config {
    let plan = &scenario.servers[server];
    let ip = server_ip(server);
    Config {
        destinations: Destinations::default(),
        abuse: plan.limit.map_or_else(Abuse::default, |limit| Abuse {
            rate: limit.rate,
            burst: limit.burst,
            sources: 64,
            ..Abuse::default()
        }),
        server_header: Box::default(),
        listeners: LISTENERS
            .iter()
            .map(|(transport, port)| listener(*transport, ip, *port))
            .collect(),
        own_hosts: vec![],
        domains: (0..DOMAINS)
            .filter(|domain| scenario.homes[*domain] == server)
            .map(|number| domain(plan, number))
            .collect(),
        routes: routes(scenario, server),
        groups: groups(scenario, server),
        state: if plan.stateful {
            StateMode::Transaction
        } else {
            StateMode::Stateless
        },
        timers: Timers {
            c_ms: plan.c_ms,
            ..Timers::default()
        },
        limits: limits(plan),
        registrar: RegistrarPolicy {
            min_expires_s: GRANTS_S.0,
            default_expires_s: 300,
            max_expires_s: GRANTS_S.1,
            durability: match plan.durability {
                DurabilityPlan::Commit => Durability::Commit,
                DurabilityPlan::Async => Durability::Async,
                DurabilityPlan::Memory => Durability::Memory,
            },
        },
        pings: None,
        trust: vec![network(SERVER_NET)],
        trust_names: vec![],
        credentials_deadline_ms: 3000,
        credentials_unavailable: 503,
        workers: plan.workers,
        node_id: server as u16 + 1,
    }
}

fn listener(transport: Transport, ip: IpAddr, port: u16) -> Listener {
    let address = SocketAddr::new(ip, port);
    Listener {
        transport,
        address,
        prefix_len: 24,
        sent_by: text(address.to_string()),
        preloaded_route: false,
        any_page: false,
        nat: Nat::Auto,
    }
}

fn domain(plan: &ServerPlan, number: usize) -> Domain {
    let methods: &[&[u8]] = match plan.auth {
        AuthPlan::Off => &[],
        AuthPlan::Calls => &[b"REGISTER", b"INVITE"],
        AuthPlan::ByeToo => &[b"REGISTER", b"INVITE", b"BYE"],
    };
    Domain {
        name: text(domain_name(number)),
        aliases: vec![],
        auth: AuthPolicy {
            realm: text(domain_name(number)),
            methods: methods.iter().map(|method| Box::from(*method)).collect(),
            algorithms: match plan.challenges {
                Challenges::Sha256AndMd5 => vec![Algorithm::Sha256, Algorithm::Md5],
                Challenges::Md5 => vec![Algorithm::Md5],
                Challenges::Sha256 => vec![Algorithm::Sha256],
                Challenges::Sha512AndMd5 => vec![Algorithm::Sha512_256, Algorithm::Md5],
            },
            nonce_lifetime_s: 60,
            strict_uri: false,
        },
    }
}

fn network((address, prefix_len): ([u8; 4], u8)) -> Network {
    Network {
        address: IpAddr::from(address),
        prefix_len,
    }
}

/// Two rules for each domain. One is for calls from other servers, which have already challenged them if they
/// do so. The other is for calls from phones.
fn routes(scenario: &Scenario, server: usize) -> Vec<Route> {
    let mut homes: Vec<(String, NodeId, RelayTarget)> = (0..DOMAINS)
        .map(|domain| (domain_name(domain), scenario.homes[domain], RelayTarget::Location))
        .collect();
    let group = scenario.gateways;
    homes.extend(group.map(|group| (gateways::DOMAIN.to_owned(), group.server, RelayTarget::Group(1))));
    let mut routes = Vec::with_capacity(2 * homes.len());
    for (domain, home, here) in homes {
        let target = if home == server {
            here
        } else {
            let direct = NextPlan {
                server: home,
                tcp: false,
                by_name: false,
            };
            let next = scenario.servers[server].next.unwrap_or(direct);
            RelayTarget::Uri(next_hop(next))
        };
        // Calls from elsewhere may have any address: an address proves nothing.
        let from_servers = vec![network(SERVER_NET)];
        for (source, auth) in [(from_servers, Some(false)), (vec![], None)] {
            routes.push(Route {
                when: When {
                    domain: Some(text(domain.clone())),
                    source,
                    ..When::default()
                },
                action: Action::Relay(Relay::to(target.clone())),
                auth,
                state: None,
                record_route: scenario.servers[server].record_route,
            });
        }
    }
    routes
}

/// The groups: one to which no rule leads, and the scenario's group if this server has it.
fn groups(scenario: &Scenario, server: usize) -> Vec<Group> {
    let mut groups = vec![group("forbidden", [IpAddr::from(GATEWAY)])];
    if let Some(plan) = scenario.gateways.filter(|plan| plan.server == server) {
        let members = scenario.phones_of(GATEWAY_USER).map(phone_ip);
        groups.push(Group {
            algorithm: match plan.sharing {
                Sharing::RoundRobin => Distribution::RoundRobin,
                Sharing::Weighted => Distribution::Weighted,
                Sharing::CallId => Distribution::CallId,
                Sharing::LeastLoad => Distribution::LeastLoad,
                Sharing::Priority => Distribution::Priority,
            },
            reply_timeout_ms: u32::try_from(plan.reply_timeout / MS).unwrap_or(u32::MAX),
            failover_on: vec![503],
            ..group("gateways", members)
        });
    }
    groups
}

/// A group whose members never count as failed, so that every call tries them all.
fn group(name: &str, members: impl IntoIterator<Item = IpAddr>) -> Group {
    let member = |ip: IpAddr| {
        let address = SocketAddr::new(ip, SIP_PORT);
        let hop = NextHop::parse(format!("sip:{address}").as_bytes()).expect("an address is a next hop");
        Member::new(hop, 1, 0)
    };
    Group {
        name: text(name.to_owned()),
        algorithm: Distribution::Priority,
        members: members.into_iter().map(member).collect(),
        probe_ms: None,
        marks: MarkPolicy {
            fail_after: u32::MAX,
            recover_after: 1,
            hold_ms: Some(1),
        },
        reply_timeout_ms: u32::MAX,
        failover_on: vec![],
        cursor: Local::default(),
    }
}

fn next_hop(next: NextPlan) -> NextHop {
    let host = if next.by_name {
        server_name(next.server)
    } else {
        server_ip(next.server).to_string()
    };
    let transport = if next.tcp { "tcp" } else { "udp" };
    let uri = format!("sip:{host}:{SIP_PORT};transport={transport}");
    NextHop::parse(uri.as_bytes()).expect("a next hop of the simulated network is one")
}

fn limits(plan: &ServerPlan) -> Limits {
    let ample = Limits {
        nonces: 1_000,
        ..Limits::default()
    };
    if !plan.tight {
        return ample;
    }
    // The bytes of transactions bind only if their number does not bind first.
    let (held_transactions, transaction_bytes) = match plan.c_ms {
        ..60_000 => (16, 2_600),
        60_000.. => (8, ample.transaction_bytes),
    };
    Limits {
        transactions: 2,
        held_transactions,
        transaction_bytes,
        parked_requests: 2,
        parked_bytes: 2_000,
        dns_entries: 2,
        flows: 3,
        registrations_per_connection: 1,
        location_bytes: 300,
        nonces: 2,
        ..ample
    }
}
