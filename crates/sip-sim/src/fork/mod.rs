//! Calls that fork: one caller, one proxy, a user with several phones or a group of gateways.
//!
//! [`scenario`] says what a seed stands for, [`run`] plays it with the agents, the network and the
//! core of the other simulation, [`check`] holds the rules of RFC 3261 §16.7 to §16.10 against
//! what the network saw, and [`mutant`] has proxies that break them.

pub mod check;
pub mod mutant;
pub mod scenario;

use std::net::SocketAddr;

use sip_core::config::{Action, Relay, RelayTarget};
use sip_core::dispatcher::{Distribution, Group, Local, MarkPolicy, Member};
use sip_core::id::ListenerId;
use sip_core::location::Binding;
use sip_core::transport::{Flow, NextHop, Proof, Transport};

use crate::agent::Agent;
use crate::clock::Micros;
use crate::net::Net;
use crate::node::{Node, NodeId};
use crate::proxy::Proxy;
use crate::rng::Rng;
use crate::runner::Outcome;
use crate::trace::Station;
use crate::world::{World, Wrap, stations};

use scenario::{FIRST_PHONE, ForkScenario, Kind, PROXY};

/// Names of the phones in the ladder.
const PHONES: [&str; 5] = ["p1", "p2", "p3", "p4", "p5"];

/// Runs `seed`.
pub fn run(seed: u64) -> Outcome<ForkScenario> {
    run_with(seed, &|_, node| node)
}

/// Runs `seed` with nodes changed by `wrap`.
pub fn run_with(seed: u64, wrap: Wrap<'_>) -> Outcome<ForkScenario> {
    let scenario = ForkScenario::of(seed);
    let mut rng = Rng::new(seed);
    let mut places = vec![("alice", 10), ("A", 1)];
    places.extend(PHONES.iter().copied().zip(31..).take(scenario.phones));
    let stations = stations(&places);
    let at = |node: NodeId| stations[node].address;
    let net = Net::new(scenario.links.clone(), rng.fork());
    let proxy = proxy(&scenario, &stations, rng.fork());
    let mut nodes: Vec<Box<dyn Node>> = vec![
        Box::new(Agent::new("alice", at(0), at(PROXY), &scenario.caller(), true)),
        Box::new(proxy),
    ];
    for (phone, name) in PHONES.iter().copied().enumerate().take(scenario.phones) {
        let plan = scenario.phone(phone);
        nodes.push(Box::new(Agent::new(
            name,
            at(FIRST_PHONE + phone),
            at(PROXY),
            &plan,
            false,
        )));
    }
    let mut world = World::of(nodes, stations, net, wrap);
    world.run(scenario.heal_at);
    world.end(scenario, |scenario, world, reports| {
        check::check(scenario, &world.log, reports)
    })
}

fn proxy(scenario: &ForkScenario, stations: &[Station], rng: Rng) -> Proxy {
    let phones: Vec<SocketAddr> = stations.iter().skip(FIRST_PHONE).map(|s| s.address).collect();
    let target = match &scenario.kind {
        Kind::Location { .. } => RelayTarget::Location,
        Kind::Group { .. } => RelayTarget::Group(0),
    };
    let action = Action::Relay(Relay::to(target));
    let (groups, contacts) = match &scenario.kind {
        Kind::Location { q } => {
            let mut contacts: Vec<Binding> = phones.iter().zip(q).map(|(at, q)| binding(*at, *q)).collect();
            contacts.sort_by_key(|c| std::cmp::Reverse(c.q_milli));
            (vec![], contacts)
        }
        Kind::Group {
            algorithm,
            reply_timeout,
        } => (vec![group(&phones, *algorithm, *reply_timeout)], vec![]),
    };
    Proxy::forking(
        scenario.c_ms,
        stations[PROXY].address,
        action,
        groups,
        &contacts,
        rng,
    )
}

fn binding(at: SocketAddr, q_milli: u16) -> Binding {
    Binding {
        contact: format!("sip:bob@{at}").into_bytes().into(),
        received: Flow {
            transport: Transport::Udp,
            listener: ListenerId(0),
            remote: at,
            conn: None,
            proof: Proof::None,
        },
        path: Box::default(),
        instance: Box::default(),
        reg_id: 0,
        call_id: Box::default(),
        cseq: 1,
        q_milli,
        expires_unix_s: u64::from(u32::MAX),
        updated: 0,
        user_agent: Box::default(),
    }
}

fn group(phones: &[SocketAddr], algorithm: Distribution, reply_timeout: Micros) -> Group {
    let member = |at: &SocketAddr| {
        let hop = NextHop::parse(format!("sip:{at}").as_bytes()).expect("an address is a next hop");
        Member::new(hop, 1, 0)
    };
    Group {
        name: b"gateways"[..].into(),
        algorithm,
        members: phones.iter().map(member).collect(),
        probe_ms: None,
        // Every call tries them all: marks would hide them from the rules.
        marks: MarkPolicy {
            fail_after: u32::MAX,
            recover_after: 1,
            hold_ms: Some(1),
        },
        reply_timeout_ms: u32::try_from(reply_timeout / 1000).unwrap_or(u32::MAX),
        failover_on: vec![503],
        cursor: Local::default(),
    }
}
