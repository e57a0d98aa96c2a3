//! Whole networks: phones that register and call each other over UDP, TCP and WebSocket, and one or more
//! servers. Servers are homes of domains or lie in between. Each has workers, a name service, a subscriber
//! table and a disk. Everything can fail.
//!
//! [`scenario`] has the scenario of a seed, [`world`] plays it. [`server`] is the real core with a model of
//! the shell around it, [`phone`] the model user agent, and [`check`] has the rules. [`shrink`] makes a
//! scenario that breaks a rule smaller.

mod attacks;
pub mod check;
pub mod fabric;
mod forks;
mod gateways;
mod limits;
mod links;
mod lure;
pub mod node;
pub mod phone;
pub mod scenario;
pub mod server;
pub mod shrink;
pub mod stranger;
pub mod world;

use std::net::{IpAddr, SocketAddr};

use self::check::Violation;
use self::node::Node;
use self::phone::Phone;
use self::scenario::{DOMAINS, Scenario};
use self::server::Server;
use self::server::config::SIP_PORT;
use self::stranger::Stranger;
use self::world::World;
use crate::report::CallReport;
use crate::rng::Rng;
use crate::trace::{Log, Station};

/// The servers' network: address and prefix length.
pub const SERVER_NET: ([u8; 4], u8) = ([192, 0, 2, 0], 24);
/// The phones' network: address and prefix length.
pub const PHONE_NET: ([u8; 4], u8) = ([198, 51, 100, 0], 24);

/// Address of the stranger.
pub const STRANGER: [u8; 4] = [203, 0, 113, 66];

/// A gateway in a group of every server. No rule leads to that group, so nothing may come here.
pub const GATEWAY: [u8; 4] = [192, 0, 2, 200];

/// The stranger's account in each domain.
pub const ACCOUNTS: [&str; DOMAINS] = ["mallory@d0.example", "mallory@d1.example", "mallory@d2.example"];

/// Names of the servers in the ladder.
const SERVERS: [&str; 6] = ["S0", "S1", "S2", "S3", "S4", "S5"];

/// Address of a server.
pub fn server_ip(server: usize) -> IpAddr {
    IpAddr::from([192, 0, 2, 1 + server as u8])
}

/// Address of a phone, by its index in the scenario.
pub fn phone_ip(phone: usize) -> IpAddr {
    IpAddr::from([198, 51, 100, 10 + phone as u8])
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The played scenario.
    pub scenario: Scenario,
    /// Names and addresses of the nodes.
    pub stations: Vec<Station>,
    /// Log of everything sent.
    pub log: Log,
    /// Reports of the user agents.
    pub reports: Vec<CallReport>,
    /// Broken rules; empty if none.
    pub violations: Vec<Violation>,
}

/// Runs a scenario.
pub fn play(scenario: Scenario) -> Outcome {
    let mut world = World::new(&scenario, nodes(&scenario));
    world.run();
    let found = check::check(&scenario, &world);
    let mut violations = core::mem::take(&mut world.violations);
    violations.extend(found);
    let reports = world.nodes().flat_map(Node::calls).collect();
    let (stations, log) = (
        core::mem::take(&mut world.stations),
        core::mem::take(&mut world.log),
    );
    drop(world);
    Outcome {
        scenario,
        stations,
        log,
        reports,
        violations,
    }
}

fn nodes(scenario: &Scenario) -> Vec<(Box<dyn Node>, Station)> {
    let mut nodes: Vec<(Box<dyn Node>, Station)> = Vec::new();
    for (number, name) in SERVERS.into_iter().enumerate().take(scenario.servers.len()) {
        // The numbers drawn for one server do not depend on the number of servers.
        let rng = Rng::new(scenario.seed ^ (number as u64 + 1) << 48);
        let station = Station {
            name,
            address: SocketAddr::new(server_ip(number), SIP_PORT),
        };
        nodes.push((Box::new(Server::new(scenario, number, number, rng)), station));
    }
    for place in 0..scenario.phones.len() {
        let station = Station {
            name: scenario.name_of_phone(place),
            address: SocketAddr::new(phone_ip(place), SIP_PORT),
        };
        let node = scenario.node_of_phone(place);
        nodes.push((Box::new(Phone::new(scenario, place, node)), station));
    }
    if let Some(node) = scenario.stranger_node() {
        let station = Station {
            name: "stranger",
            address: SocketAddr::new(IpAddr::from(STRANGER), SIP_PORT),
        };
        let rng = Rng::new(scenario.seed ^ (node as u64) << 32);
        nodes.push((Box::new(Stranger::new(scenario, node, rng)), station));
    }
    nodes
}
