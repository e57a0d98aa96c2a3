//! Users with several phones, groups of gateways, and a short way to say what left.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use sip_core::config::{Action, Config, Redirect, Relay, RelayTarget, Route};
use sip_core::dispatcher::{Distribution, Group, Local, MarkPolicy, Member};
use sip_core::location::Binding;
use sip_core::shared::SharedState;
use sip_core::transport::Flow;

use super::common::*;

pub const BOB: &str = "sip:bob@example.com";

/// Phone `n` at 192.0.2.3`n`, registered over UDP.
pub fn phone(n: u8) -> Binding {
    let contact = format!("sip:bob@192.0.2.3{n}").into_bytes();
    Binding {
        call_id: format!("r{n}").into_bytes().into(),
        updated: u64::from(n),
        ..Binding::plain(contact, phone_flow(n), 1_700_003_600)
    }
}

pub fn phone_flow(n: u8) -> Flow {
    udp_flow(&format!("192.0.2.3{n}:5060"))
}

/// The same with this q, in thousandths.
pub fn with_q(n: u8, q_milli: u16) -> Binding {
    Binding { q_milli, ..phone(n) }
}

/// A flow of the user agent instance `instance`.
pub fn outbound(n: u8, instance: &str, reg_id: u32) -> Binding {
    Binding {
        instance: instance.as_bytes().into(),
        reg_id,
        ..phone(n)
    }
}

/// Phone `n` with this contact.
pub fn with_contact(n: u8, contact: &str) -> Binding {
    Binding {
        contact: contact.as_bytes().into(),
        ..phone(n)
    }
}

/// A configuration that sends everything where bob registered.
pub fn location() -> Config {
    routed(Action::Relay(Relay::to(RelayTarget::Location)))
}

/// The same with edits of the rule.
pub fn location_with(edit: impl FnOnce(&mut Relay)) -> Config {
    let mut relay = Relay::to(RelayTarget::Location);
    edit(&mut relay);
    routed(Action::Relay(relay))
}

pub fn redirect(to: Redirect) -> Config {
    routed(Action::Redirect(to))
}

pub fn routed(action: Action) -> Config {
    let mut config = config();
    config.routes = vec![Route {
        action,
        ..relay("sip:192.0.2.20")
    }];
    config
}

/// A bench at which bob has these phones, in this order.
pub fn registered(config: &Config, phones: &[Binding]) -> Bench {
    let b = Bench::new(config);
    register(&b, "bob@example.com", phones);
    b
}

pub fn register(b: &Bench, aor: &str, phones: &[Binding]) {
    b.shared.update_bindings(aor.as_bytes(), &mut |record| {
        record.bindings = phones.to_vec();
        record.changed(1);
    });
}

/// Gateways at 198.51.100.1 and so on, `count` of them, each of weight 1.
pub fn group(algorithm: Distribution, count: u8) -> Group {
    Group {
        name: b"carriers"[..].into(),
        algorithm,
        members: (1..=count)
            .map(|n| member(&format!("sip:198.51.100.{n}")))
            .collect(),
        probe_ms: None,
        marks: MarkPolicy {
            fail_after: 2,
            recover_after: 2,
            hold_ms: Some(30_000),
        },
        reply_timeout_ms: 2000,
        failover_on: vec![503],
        cursor: Local::default(),
    }
}

pub fn member(uri: &str) -> Member {
    Member::new(hop(uri), 1, 0)
}

/// Everything to `group`.
pub fn grouped(group: Group) -> Config {
    grouped_with(group, |_| {})
}

pub fn grouped_with(group: Group, edit: impl FnOnce(&mut Relay)) -> Config {
    let mut relay = Relay::to(RelayTarget::Group(0));
    edit(&mut relay);
    let mut config = routed(Action::Relay(relay));
    config.groups = vec![group];
    config
}

/// The party that a message goes to: `caller`, phone `1`, gateway `g1`.
pub fn who(sent: &Sent) -> String {
    let address = sent.address();
    if address == CALLER {
        return "caller".into();
    }
    let short = |prefix: &str, name: &str| {
        let n = address.strip_prefix(prefix)?.strip_suffix(":5060")?;
        Some(format!("{name}{n}"))
    };
    short("192.0.2.3", "")
        .or_else(|| short("198.51.100.", "g"))
        .unwrap_or(address.clone())
}

/// The party that each message goes to, and its method or status: `1 INVITE`, `caller 180`.
pub fn brief(sent: &[Sent]) -> Vec<String> {
    sent.iter()
        .map(|s| {
            let mut words = s.first_line().split(' ');
            let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let what = if first == "SIP/2.0" { second } else { first };
            format!("{} {what}", who(s))
        })
        .collect()
}

/// The same in the order of the alphabet, where the order of sending does not matter.
pub fn sorted(sent: &[Sent]) -> Vec<String> {
    let mut brief = brief(sent);
    brief.sort();
    brief
}

/// The request for `to` among what left.
#[track_caller]
pub fn to(sent: &[Sent], to: &str) -> Sent {
    let found = sent.iter().find(|s| who(s) == to);
    found
        .unwrap_or_else(|| panic!("nothing for {to}: {:?}", brief(sent)))
        .clone()
}

/// The user agent that got `request` responds; each has a tag of its own.
pub fn answer(b: &mut Bench, request: &Sent, status: &str) -> Vec<Sent> {
    answer_with(b, request, status, "")
}

pub fn answer_with(b: &mut Bench, request: &Sent, status: &str, extra: &str) -> Vec<Sent> {
    b.receive(request.to, &response_of(request, status, extra))
}

/// The response of the user agent that got `request`.
pub fn response_of(request: &Sent, status: &str, extra: &str) -> String {
    response(request, status, extra).replace(";tag=t1", &format!(";tag=t{}", who(request)))
}

pub fn invite() -> String {
    request("INVITE", BOB, "a1", "")
}

pub fn cancel() -> String {
    request("CANCEL", BOB, "a1", "")
}

/// Sends an INVITE; what left beside the 100.
#[track_caller]
pub fn call(b: &mut Bench) -> Vec<Sent> {
    call_with(b, &invite())
}

#[track_caller]
pub fn call_with(b: &mut Bench, invite: &str) -> Vec<Sent> {
    let mut out = b.udp(CALLER, invite);
    assert_eq!(brief(&out[..1]), ["caller 100"]);
    out.remove(0);
    out
}

/// The caller acknowledges a failure.
#[track_caller]
pub fn ack(b: &mut Bench, answer: &Sent) {
    let text = request("ACK", BOB, "a1", "").replace(
        "To: <sip:bob@example.com>",
        &format!("To: {}", answer.header("To")),
    );
    assert!(b.udp(CALLER, &text).is_empty());
}

/// Enough time for everything to end; nothing is left over then.
#[track_caller]
pub fn end(b: &mut Bench) -> Vec<Sent> {
    let out = b.pass(500_000);
    b.assert_idle();
    out
}
