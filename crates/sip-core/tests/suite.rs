//! The core from outside, a message at a time: a module for each subject.

mod abuse;
mod affinity;
#[path = "common/digest.rs"]
mod agent;
mod auth;
#[path = "common/behind.rs"]
mod behind;
mod cancel;
mod common;
mod edge;
mod edge_paths;
mod flawed;
mod fork_properties;
mod forked_requests;
mod forking;
#[path = "common/forks.rs"]
mod forks;
mod forwarding;
mod groups;
mod nat;
mod pings;
mod proxy;
mod redirect;
mod refusals;
mod registrar;
mod reloads;
mod resolve;
mod rfc3261_requests;
mod rfc3261_responses;
mod rfc3261_transport;
mod rfc5626_flows;
mod rfc5630;
mod rfc5922;
mod routing;
mod sanity;
mod streams;
mod torture;
mod transactions;
mod udp_mtu;
mod workers;
