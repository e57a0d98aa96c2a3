//! `[[group]]`.

use sip_core::config::{Action, RelayTarget, Route};
use sip_core::dispatcher::{self, Distribution, Local, MarkPolicy};
use sip_core::transport::{HopHost, NextHop, Transport};

use super::context::Context;
use super::model::{Group, GroupAlgorithm, Member, Settings, hold_s};
use super::routes::next_hop;

/// The groups in order: rules refer to them by their number.
pub(super) fn groups(settings: &Settings, cx: &mut Context<'_>) -> Vec<dispatcher::Group> {
    let groups = settings.group.iter().enumerate();
    groups
        .map(|(i, group)| {
            let before = settings.group.iter().take(i);
            name(i, group, before, cx);
            core_group(i, group, cx)
        })
        .collect()
}

/// The number of the group with this name, or the problem and its remedy.
pub(super) fn find(groups: &[Group], name: &str) -> Result<usize, (String, String)> {
    if let Some(i) = groups.iter().position(|group| group.name == name) {
        return Ok(i);
    }
    let names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
    let remedy = match super::shape::closest(name, &names) {
        Some(near) => format!("did you mean \"group:{near}\"?"),
        None if names.is_empty() => format!("add a [[group]] with name = {name:?}"),
        None => format!("add it, or name one of {}", names.join(", ")),
    };
    Err((format!("there is no [[group]] {name:?}"), remedy))
}

fn name<'a>(i: usize, group: &Group, mut before: impl Iterator<Item = &'a Group>, cx: &mut Context<'_>) {
    let path = format!("group[{i}].name");
    let name = &group.name;
    // The name occurs in rules, in paths of HTTP and in labels of metrics.
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || !name.chars().all(fits) {
        let what = format!("{name:?} is not the name of a group");
        cx.problem(&path, what, "use letters, digits and -_.");
    } else if before.any(|other| other.name == *name) {
        let what = format!("a group before this one is called {name:?} too");
        cx.problem(&path, what, "name it otherwise, or remove one of them");
    }
}

fn core_group(i: usize, group: &Group, cx: &mut Context<'_>) -> dispatcher::Group {
    let probe_ms = (group.probe_s > 0).then(|| group.probe_s.saturating_mul(1000));
    dispatcher::Group {
        name: group.name.as_bytes().into(),
        algorithm: match group.algorithm {
            GroupAlgorithm::RoundRobin => Distribution::RoundRobin,
            GroupAlgorithm::Weighted => Distribution::Weighted,
            GroupAlgorithm::CallId => Distribution::CallId,
            GroupAlgorithm::LeastLoad => Distribution::LeastLoad,
            GroupAlgorithm::Priority => Distribution::Priority,
        },
        members: members(i, group, cx),
        probe_ms,
        marks: MarkPolicy {
            fail_after: group.fail_after,
            recover_after: group.recover_after,
            hold_ms: probe_ms.is_none().then(|| group.hold_s.saturating_mul(1000)),
        },
        reply_timeout_ms: group.reply_timeout_ms,
        failover_on: failover(i, group, cx),
        cursor: Local::default(),
    }
}

fn failover(i: usize, group: &Group, cx: &mut Context<'_>) -> Vec<u16> {
    for (j, code) in group.failover.iter().enumerate() {
        let path = format!("group[{i}].failover[{j}]");
        if group.failover.iter().take(j).any(|other| other == code) {
            cx.problem(&path, "named twice", "remove it");
        } else if [401, 407].contains(code) {
            let what = format!("{code} asks the caller for credentials");
            cx.problem(&path, what, "remove it");
        } else if *code == 487 {
            cx.problem(&path, "487 follows the caller's own CANCEL", "remove it");
        }
    }
    group.failover.clone()
}

fn members(i: usize, group: &Group, cx: &mut Context<'_>) -> Vec<dispatcher::Member> {
    let path = format!("group[{i}].members");
    if group.members.is_empty() && !cx.is_told(&path) {
        let remedy = "write members = [ { uri = \"sip:gw1.example.net\" } ]";
        cx.problem(&path, "it has no member", remedy);
    }
    let mut out: Vec<dispatcher::Member> = Vec::new();
    for (j, member) in group.members.iter().enumerate() {
        let path = format!("{path}[{j}].uri");
        let Some(hop) = hop(&path, member, cx) else {
            continue;
        };
        if let Some(first) = out.iter().find(|other| place(&other.hop) == place(&hop)) {
            let what = format!("the same place as {:?}", String::from_utf8_lossy(&first.hop.uri));
            cx.problem(&path, what, "remove one of them, and give the other more weight");
        }
        out.push(dispatcher::Member::new(hop, member.weight, member.priority));
    }
    out
}

fn hop(path: &str, member: &Member, cx: &mut Context<'_>) -> Option<NextHop> {
    let remedy = "write a URI as \"sip:gw1.example.net\" or \"sip:192.0.2.1:5060;transport=tcp\"";
    match next_hop(&member.uri, remedy, cx) {
        Ok(hop) => Some(hop),
        Err((what, remedy)) => {
            cx.problem(path, what, remedy);
            None
        }
    }
}

/// The destination of requests to a next hop. A name without a port is not the same as with 5060 (RFC 3263
/// §4.2).
fn place(hop: &NextHop) -> (HopHost, Option<u16>, Option<Transport>) {
    let transport = if hop.secure {
        Some(Transport::Tls)
    } else {
        hop.transport
    };
    match &hop.host {
        HopHost::Name(name) => (
            HopHost::Name(name.to_ascii_lowercase().into()),
            hop.port,
            transport,
        ),
        HopHost::Ip(ip) => {
            let transport = transport.or(Some(Transport::Udp));
            let port = hop.port.or(transport.map(Transport::default_port));
            (HopHost::Ip(*ip), port, transport)
        }
    }
}

/// Warnings about groups that are allowed but may be a mistake.
pub(super) fn warnings(groups: &[Group], routes: &[Route], out: &mut Vec<String>) {
    for (i, group) in groups.iter().enumerate() {
        let path = format!("group[{i}] ({})", group.name);
        let is_used =
            |route: &Route| matches!(&route.action, Action::Relay(r) if r.target == RelayTarget::Group(i));
        if !routes.iter().any(is_used) {
            out.push(format!("{path}: no rule relays to it"));
        }
        if group.probe_s > 0 && group.hold_s != hold_s() {
            out.push(format!("{path}: hold_s has no effect while probe_s is not 0"));
        }
        if !group.members.is_empty() && group.members.iter().all(|member| member.weight == 0) {
            out.push(format!(
                "{path}: all members are drained (weight = 0), so that calls to it are refused"
            ));
        }
        let by_priority = group.algorithm == GroupAlgorithm::Priority;
        if !by_priority && group.members.iter().any(|member| member.priority != 0) {
            out.push(format!(
                "{path}: priority has no effect without algorithm = \"priority\""
            ));
        }
    }
}
