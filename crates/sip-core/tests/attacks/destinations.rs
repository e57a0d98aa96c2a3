//! Contacts, redirects and dialogs that lead to denied destinations: past the rules to a gateway, to a service on this
//! machine, to a stranger's address.

use sip_core::config::{Action, Config, Destinations, Durability, Network, Relay, RelayTarget, StateMode};
use sip_core::dispatcher::Distribution;
use sip_core::location::Binding;
use sip_core::query::Record;
use sip_core::transport::{Flow, Transport};

use crate::agent::{PASSWORD, login, nonce_of};
use crate::common::{
    Bench, CALLER, Sent, address, all_transports, config, one, over, relay, request, response,
    route_of_caller, tcp_flow, udp_flow,
};
use crate::forks::{
    answer, answer_with, brief, group, invite, location, location_with, phone, register, registered, routed,
    to, with_contact,
};

pub(crate) const STRANGER: &str = "192.0.2.66:40000";
/// A member of the group.
pub(crate) const GATEWAY: &str = "198.51.100.1";

/// A registration with a closed connection, so that requests go to the host of its contact.
pub(crate) fn lost(n: u8, contact: &str, from: &str) -> Binding {
    Binding {
        received: Flow {
            conn: None,
            ..tcp_flow(from, 1)
        },
        ..with_contact(n, contact)
    }
}

/// With a group that no rule leads to.
fn guarded(mut config: Config) -> Config {
    config.groups = vec![group(Distribution::RoundRobin, 2)];
    config
}

fn network(text: &str, prefix_len: u8) -> Network {
    Network {
        address: text.parse().unwrap(),
        prefix_len,
    }
}

/// The records of name service.
pub(crate) fn names() -> [(&'static str, Vec<Record>); 4] {
    [
        ("inside.example A", vec![address("127.0.0.1")]),
        ("gateway.example A", vec![address(GATEWAY)]),
        ("both.example A", vec![address(GATEWAY), address("192.0.2.77")]),
        ("proxy.example A", vec![address("192.0.2.1")]),
    ]
}

pub(crate) fn called(bench: &mut Bench) -> Vec<Sent> {
    let mut sent = bench.udp(CALLER, &invite());
    sent.extend(bench.serve(&names()).1);
    sent
}

pub(crate) fn reached(sent: &[Sent]) -> Vec<String> {
    let invites = sent.iter().filter(|s| s.first_line().starts_with("INVITE "));
    invites.map(Sent::address).collect()
}

/// Contacts that are denied to a stranger.
const DENIED: [&str; 9] = [
    "sip:x@127.0.0.1:8080",
    "sip:x@127.9.9.9;transport=tcp",
    "sip:x@192.0.2.70;maddr=127.0.0.1",
    "sip:+1900@198.51.100.1",
    "sip:+1900@198.51.100.2:5070;transport=tcp",
    "sip:+1900@192.0.2.70;maddr=198.51.100.2",
    "sip:x@inside.example:5060",
    "sip:+1900@gateway.example:5060",
    "sip:x@proxy.example:5060",
];

#[test]
fn a_contact_leads_to_no_denied_destination() {
    for contact in DENIED {
        let config = guarded(location());
        let mut bench = registered(&config, &[lost(1, contact, STRANGER)]);
        let sent = called(&mut bench);
        assert!(reached(&sent).is_empty(), "{contact}");
        let last = sent.last().map(Sent::first_line);
        assert_eq!(last, Some("SIP/2.0 480 Contact Denied"), "{contact}");
        assert_eq!(bench.counters().destinations_denied, 1, "{contact}");
        // Next to a phone, it is a branch that fails.
        let mut bench = registered(&config, &[lost(1, contact, STRANGER), phone(2)]);
        let sent = called(&mut bench);
        assert_eq!(reached(&sent), ["192.0.2.32:5060"], "{contact}");
        let busy = answer(&mut bench, &to(&sent, "2"), "486 Busy Here");
        assert!(brief(&busy).contains(&"caller 486".to_owned()), "{contact}");
        // If nothing is denied, the request goes there. (This server's own address, as such, is never a target.)
        let mut open = config.clone();
        open.destinations = Destinations {
            loopback: false,
            own: false,
            groups: false,
            ..Destinations::default()
        };
        let mut bench = registered(&open, &[lost(1, contact, STRANGER)]);
        assert_eq!(reached(&called(&mut bench)).len(), 1, "{contact}");
    }
}

/// A name with an allowed and a denied address leads to the allowed one.
#[test]
fn a_name_leads_to_those_of_its_addresses_that_are_allowed() {
    let mut bench = registered(
        &guarded(location()),
        &[lost(1, "sip:x@both.example:5060", STRANGER)],
    );
    assert_eq!(reached(&called(&mut bench)), ["192.0.2.77:5060"]);
    assert_eq!(bench.counters().destinations_denied, 1);
}

#[test]
fn what_registers_from_there_is_reached_there() {
    for (contact, from, there) in [
        // A PBX on this machine, and a second phone on it.
        ("sip:x@127.0.0.1:5080", "127.0.0.1:40000", "127.0.0.1:5080"),
        ("sip:x@127.0.0.2:5080", "127.0.0.1:40000", "127.0.0.2:5080"),
        (
            "sip:x@198.51.100.1:5070",
            "198.51.100.1:40000",
            "198.51.100.1:5070",
        ),
        ("sip:x@203.0.113.5", "203.0.113.5:40000", "203.0.113.5:5060"),
        // A denied address for another source, an allowed one, and a gateway's for another gateway.
        ("sip:x@203.0.113.5", STRANGER, ""),
        ("sip:x@203.0.113.77", STRANGER, "203.0.113.77:5060"),
        ("sip:x@198.51.100.1", "198.51.100.2:40000", ""),
    ] {
        let mut config = guarded(location());
        config.destinations.deny = vec![network("203.0.113.0", 24)];
        config.destinations.allow = vec![network("203.0.113.64", 26)];
        let mut bench = registered(&config, &[lost(1, contact, from)]);
        let sent = called(&mut bench);
        let expected: &[&str] = if there.is_empty() { &[] } else { &[there] };
        assert_eq!(reached(&sent), expected, "{contact} from {from}");
    }
}

pub(crate) fn moved(bench: &mut Bench, contacts: &str) -> Vec<Sent> {
    let sent = called(bench);
    let mut out = answer_with(bench, &to(&sent, "1"), "302 Moved Temporarily", contacts);
    out.extend(bench.serve(&names()).1);
    out
}

#[test]
fn a_redirect_leads_to_no_denied_destination() {
    for contact in DENIED {
        let config = guarded(location_with(|relay| relay.recurse = true));
        let mut bench = registered(&config, &[phone(1)]);
        let sent = moved(&mut bench, &format!("Contact: <{contact}>\n"));
        assert!(reached(&sent).is_empty(), "{contact}: {sent:?}");
        let last = sent.last().map(Sent::first_line);
        assert_eq!(last, Some("SIP/2.0 480 Contact Denied"), "{contact}");
        let mut bench = registered(&config, &[phone(1)]);
        let both = format!("Contact: <{contact}>, <sip:y@192.0.2.34>\n");
        let sent = moved(&mut bench, &both);
        assert_eq!(reached(&sent), ["192.0.2.34:5060"], "{contact}");
    }
}

/// A WebSocket from the loopback may be a browser behind a proxy on this machine. So its redirects lead to this machine
/// no more than those of other sources.
#[test]
fn a_browser_behind_a_proxy_is_not_of_this_machine() {
    let browser = over(Transport::Ws, "127.0.0.1:40000", 4);
    let mut config = guarded(location_with(|relay| relay.recurse = true));
    config.listeners = all_transports().listeners;
    let binding = Binding {
        received: browser,
        ..with_contact(1, "sip:x@abc.invalid;transport=ws")
    };
    for (contact, passes) in [
        ("sip:x@127.0.0.1:8085;transport=tcp", false),
        ("sip:x@127.0.0.2", false),
        ("sip:x@192.0.2.77", true),
    ] {
        let mut bench = registered(&config, std::slice::from_ref(&binding));
        let sent = bench.udp(CALLER, &invite());
        let invited = sent
            .iter()
            .find(|s| s.to.conn == browser.conn)
            .expect("by its connection");
        let moved = format!("Contact: <{contact}>\n");
        let sent = bench.receive(browser, &response(invited, "302 Moved Temporarily", &moved));
        assert_eq!(reached(&sent).len(), usize::from(passes), "{contact}: {sent:?}");
    }
}

/// Sockets of this process besides its listeners, such as that of the admin pages.
#[test]
fn other_sockets_of_this_process_are_denied() {
    for (socket, contact, passes) in [
        ("192.0.2.1:18080", "sip:x@192.0.2.1:18080;transport=tcp", false),
        ("0.0.0.0:18080", "sip:x@192.0.2.1:18080;transport=tcp", false),
        ("0.0.0.0:18080", "sip:x@192.0.2.77:18080;transport=tcp", true),
        ("192.0.2.1:18080", "sip:x@192.0.2.1:18081;transport=tcp", true),
    ] {
        let mut config = location();
        config.destinations.own_sockets = vec![socket.parse().unwrap()];
        let mut bench = registered(&config, &[lost(1, contact, STRANGER)]);
        let sent = called(&mut bench);
        assert_eq!(reached(&sent).len(), usize::from(passes), "{socket}: {contact}");
    }
}

/// Of this machine only the loopback and the sockets of this process are denied without being named.
#[test]
fn a_service_on_this_machine_is_denied_by_its_address() {
    for is_named in [false, true] {
        let mut config = location();
        let named = is_named.then(|| network("192.0.2.1", 32));
        config.destinations.deny.extend(named);
        let contact = "sip:x@192.0.2.1:18081;transport=tcp";
        let mut bench = registered(&config, &[lost(1, contact, STRANGER)]);
        let sent = called(&mut bench);
        assert_eq!(reached(&sent).is_empty(), is_named, "{sent:?}");
    }
}

/// Without a limit one response could make this server call two hundred addresses.
#[test]
fn a_redirect_leads_to_no_more_than_a_user_may_register() {
    let mut config = location_with(|relay| relay.recurse = true);
    config.limits.contacts_per_aor = 3;
    let mut bench = registered(&config, &[phone(1)]);
    let many = |from: u8| -> String {
        let contact = |n: u8| format!("Contact: <sip:y@192.0.2.1{n:02}>\n");
        (from..from + 50).map(contact).collect()
    };
    let sent = moved(&mut bench, &many(0));
    assert_eq!(reached(&sent).len(), 3);
    // Redirects one after the other lead to no more either.
    let first = sent
        .iter()
        .find(|s| s.first_line().starts_with("INVITE "))
        .unwrap();
    let sent = answer_with(&mut bench, first, "302 Moved Temporarily", &many(50));
    assert_eq!(reached(&sent).len(), 0);
}

/// Calls bob, is sent on to `host`, and returns which addresses got the call then; each of them is busy.
fn sent_on(bench: &mut Bench, call: u32, from: &str, host: &str) -> Vec<String> {
    let sent = bench.udp(
        CALLER,
        &request("INVITE", "sip:bob@example.com", &format!("a{call}"), ""),
    );
    let first = sent.iter().find(|s| s.address() == from).expect("an INVITE");
    let moved = format!("Contact: <sip:y@{host}>\n");
    let sent = bench.udp(from, &response(first, "302 Moved Temporarily", &moved));
    let went = reached(&sent);
    if went.is_empty() {
        // The caller may go there by itself.
        let last = sent.iter().rfind(|s| s.address() == CALLER).expect("an answer");
        assert_eq!(last.first_line(), "SIP/2.0 302 Moved Temporarily");
        assert_eq!(last.header("Contact"), format!("<sip:y@{host}>"));
    }
    for invite in sent.iter().filter(|s| s.first_line().starts_with("INVITE ")) {
        bench.udp(&invite.address(), &response(invite, "486 Busy Here", ""));
    }
    bench.pass(1_000);
    went
}

/// A phone that sends each call on to another address would make this server call address after address.
#[test]
fn the_redirects_of_a_user_lead_to_so_many_new_addresses_within_an_hour() {
    const PHONE: &str = "192.0.2.31:5060";
    let mut config = location_with(|relay| relay.recurse = true);
    config.destinations.new_per_hour = 10;
    config.limits.contacts_per_aor = 10;
    let mut bench = registered(&config, &[phone(1)]);
    let mut calls = 0;
    let mut leads = |bench: &mut Bench, host: &str| {
        calls += 1;
        !sent_on(bench, calls, PHONE, host).is_empty()
    };
    for n in 0..10 {
        let host = format!("192.0.2.1{n:02}");
        assert!(leads(&mut bench, &host), "{host}");
        // It forwards its calls there.
        assert!(leads(&mut bench, &format!("{host}:5070")), "{host} again");
    }
    assert!(!leads(&mut bench, "192.0.2.110"));
    assert_eq!(bench.counters().destinations_denied, 1);
    for host in ["192.0.2.100", "192.0.2.109", "192.0.2.31:5090"] {
        assert!(leads(&mut bench, host), "{host}");
    }
    bench.pass(360_000);
    assert!(leads(&mut bench, "192.0.2.110"));
    assert!(!leads(&mut bench, "192.0.2.111"));
}

/// A redirect server that a rule leads to is the operator's, and so is one of the trust domain.
#[test]
fn a_redirect_server_leads_where_it_likes() {
    const SERVER: &str = "192.0.2.20:5060";
    let mut to_server = relay("sip:192.0.2.20");
    if let Action::Relay(relay) = &mut to_server.action {
        relay.recurse = true;
    }
    let mut config = config();
    config.routes = vec![to_server];
    config.destinations.new_per_hour = 1;
    config.limits.contacts_per_aor = 1;
    let mut bench = Bench::new(&config);
    for n in 0..5 {
        let host = format!("192.0.2.10{n}");
        assert_eq!(sent_on(&mut bench, n, SERVER, &host).len(), 1, "{host}");
    }
    let mut config = location_with(|relay| relay.recurse = true);
    config.destinations.new_per_hour = 1;
    config.limits.contacts_per_aor = 1;
    config.trust = vec![network("192.0.2.31", 32)];
    let mut bench = registered(&config, &[phone(1)]);
    for n in 0..5 {
        let host = format!("192.0.2.10{n}");
        assert_eq!(
            sent_on(&mut bench, n, "192.0.2.31:5060", &host).len(),
            1,
            "{host}"
        );
    }
}

/// A contact of a 3xx that is a user of ours is looked up here, and goes to no gateway.
#[test]
fn a_redirect_to_a_user_of_ours_is_looked_up_in_place() {
    let config = guarded(location_with(|relay| relay.recurse = true));
    for (contact, expected) in [
        ("sip:carol@example.com", vec!["192.0.2.33:5060"]),
        ("sip:carol@192.0.2.1", vec![]),
        // A SIPS URI leads to no contact that cannot be reached by TLS.
        ("sips:carol@example.com", vec![]),
        ("sip:0019005550100@example.com", vec![]),
        ("sip:example.com", vec![]),
        ("sip:bob@example.com", vec![]),
    ] {
        let mut bench = registered(&config, &[phone(1)]);
        register(&bench, "carol@example.com", &[phone(3)]);
        let sent = moved(&mut bench, &format!("Contact: <{contact}>\n"));
        assert_eq!(reached(&sent), expected, "{contact}");
        let caller = sent.iter().find(|s| s.address() == CALLER).map(Sent::first_line);
        let passed = expected.is_empty().then_some("SIP/2.0 302 Moved Temporarily");
        assert_eq!(caller, passed, "{contact}");
    }
}

/// Two flows of one user agent are two ways to one phone.
#[test]
fn a_redirect_to_a_user_of_ours_rings_each_phone_once() {
    let config = location_with(|relay| relay.recurse = true);
    let of_phone = |n, instance: &str| Binding {
        instance: instance.as_bytes().into(),
        ..phone(n)
    };
    let mut bench = registered(&config, &[phone(1)]);
    let flows = [of_phone(2, "a"), of_phone(3, "a"), of_phone(4, "b")];
    register(&bench, "carol@example.com", &flows);
    let sent = moved(&mut bench, "Contact: <sip:carol@example.com>\n");
    assert_eq!(reached(&sent), ["192.0.2.32:5060", "192.0.2.34:5060"]);
}

/// Sends a request of a dialog, from either side. Returns the address that it reaches, or the status of the response.
fn in_dialog(bench: &mut Bench, from: Flow, route: &str, method: &str, uri: &str, tags: [&str; 2]) -> String {
    let text = request(
        method,
        uri,
        &format!("{method}{}{}", uri.len(), from.remote.port()),
        &format!("Route: {route}\n"),
    )
    .replace("tag=f1", &format!("tag={}", tags[0]))
    .replace(
        "To: <sip:bob@example.com>",
        &format!("To: <sip:bob@example.com>;tag={}", tags[1]),
    );
    let sent = bench.receive(from, &text);
    let sent: Vec<_> = sent
        .iter()
        .filter(|s| !s.first_line().contains(" 100 "))
        .collect();
    match sent.as_slice() {
        [] => "nothing".to_owned(),
        [sent] if sent.first_line().starts_with("SIP/2.0 ") => sent.first_line()[8..11].to_owned(),
        [sent] => sent.address(),
        more => panic!("{more:?}"),
    }
}

#[test]
fn a_dialog_leads_to_no_denied_destination() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut config = guarded(location());
        config.state = state;
        config.destinations.deny = vec![network("203.0.113.0", 24)];
        config.destinations.own_sockets = vec!["192.0.2.1:18080".parse().unwrap()];
        let mut bench = registered(&config, &[phone(1)]);
        let sent = bench.udp(CALLER, &invite());
        let route = route_of_caller(&mut bench, phone(1).received, &to(&sent, "1")).join(", ");
        let mut send = |method: &str, uri: &str, more: &str| {
            in_dialog(
                &mut bench,
                udp_flow(CALLER),
                &format!("{route}{more}"),
                method,
                uri,
                ["f1", "t1"],
            )
        };
        for uri in [
            "sip:x@127.0.0.1:8080",
            "sip:x@203.0.113.5",
            "sip:x@224.0.0.1",
            "sip:x@0.0.0.0",
            "sip:x@255.255.255.255",
        ] {
            for method in ["BYE", "INFO", "NOTIFY", "UPDATE", "PRACK"] {
                assert_eq!(send(method, uri, ""), "403", "{method} {uri}");
                let route = format!(", <{uri};lr>");
                assert_eq!(send(method, "sip:x@192.0.2.99", &route), "403", "{method} {uri}");
            }
            // An INVITE goes by the rules as a new request: to registered users, which this URI is not.
            assert_eq!(send("INVITE", uri, ""), "480", "{uri}");
            assert_eq!(send("ACK", uri, ""), "nothing", "{uri}");
        }
        // The admin pages.
        let admin = "sip:x@192.0.2.1:18080;transport=tcp";
        for method in ["BYE", "INFO", "INVITE"] {
            assert_eq!(send(method, admin, ""), "403", "{method}");
            let route = format!(", <{admin};lr>");
            assert_eq!(send(method, "sip:x@192.0.2.99", &route), "403", "{method}");
        }
        assert_eq!(send("BYE", "sip:x@192.0.2.99", ""), "192.0.2.99:5060");
    }
}

/// Calls between a PBX on the loopback and a phone on another machine.
#[test]
fn a_dialog_with_what_is_there_goes_on() {
    let pbx = udp_flow("127.0.0.1:5080");
    let phone_there = Binding {
        received: pbx,
        ..with_contact(1, "sip:x@127.0.0.1:5080")
    };
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut config = guarded(location());
        config.state = state;
        let mut bench = registered(&config, std::slice::from_ref(&phone_there));
        let sent = bench.udp(CALLER, &invite());
        let there = sent
            .iter()
            .find(|s| s.address() == "127.0.0.1:5080")
            .expect("it goes there");
        let callee = there.headers("Record-Route").join(", ");
        let caller = route_of_caller(&mut bench, pbx, there).join(", ");
        for method in ["ACK", "INFO", "INVITE", "BYE"] {
            let uri = "sip:x@127.0.0.1:5080";
            let to = in_dialog(&mut bench, udp_flow(CALLER), &caller, method, uri, ["f1", "t1"]);
            assert_eq!(to, "127.0.0.1:5080", "{method}");
            let back = in_dialog(&mut bench, pbx, &callee, method, "sip:a@192.0.2.10", ["t1", "f1"]);
            assert_eq!(back, CALLER, "{method}");
        }
    }
}

/// The connection of a registration ends while its contact is called.
#[test]
fn a_contact_whose_connection_ends_leads_to_no_denied_destination() {
    for (contact, caller) in [
        ("sip:+1900@198.51.100.1", CALLER),
        // A contact does not lead to the loopback because the caller is on it.
        ("sip:x@127.0.0.1:8080", "127.0.0.1:5070"),
    ] {
        let live = tcp_flow(STRANGER, 4);
        let binding = Binding {
            received: live,
            ..with_contact(1, contact)
        };
        let mut bench = registered(&guarded(location()), &[binding]);
        let sent = bench.udp(caller, &invite());
        let invited = sent
            .iter()
            .find(|s| s.to.conn == live.conn)
            .expect("by its connection");
        let after = bench.undelivered(invited);
        assert!(reached(&after).is_empty(), "{contact}: {after:?}");
        let last = after.last().map(Sent::first_line);
        assert_eq!(last, Some("SIP/2.0 480 Contact Denied"), "{contact}");
    }
    // A contact that was registered from the loopback is reached there.
    let binding = Binding {
        received: tcp_flow("127.0.0.1:40000", 4),
        ..with_contact(1, "sip:x@127.0.0.1:5080")
    };
    let mut bench = registered(&guarded(location()), &[binding]);
    let sent = bench.udp(CALLER, &invite());
    let invited = sent
        .iter()
        .find(|s| s.to.conn.is_some())
        .expect("by its connection");
    assert_eq!(reached(&bench.undelivered(invited)), ["127.0.0.1:5080"]);
}

/// If an older registration of a phone is denied, its current one is called.
#[test]
fn a_denied_contact_gives_way_to_another_of_its_phone() {
    let of_phone = |binding: Binding| Binding {
        instance: b"urn:uuid:1"[..].into(),
        ..binding
    };
    let old = of_phone(lost(1, "sip:x@127.0.0.1:8080", STRANGER));
    let now = of_phone(phone(2));
    let mut bench = registered(&guarded(location()), &[old, now]);
    assert_eq!(reached(&called(&mut bench)), ["192.0.2.32:5060"]);
}

/// A phone behind a NAT, with an address in a denied network, is still reached by its flow.
#[test]
fn a_denied_network_behind_a_nat_is_left_alone() {
    let live = tcp_flow("203.0.113.9:40000", 4);
    let binding = Binding {
        received: live,
        ..with_contact(1, "sip:x@192.168.1.5;transport=tcp")
    };
    let mut config = guarded(location());
    config.destinations.deny = vec![network("192.168.0.0", 16)];
    let mut bench = registered(&config, &[binding]);
    let sent = bench.udp(CALLER, &invite());
    let there = sent
        .iter()
        .find(|s| s.to.conn == live.conn)
        .expect("by its connection")
        .clone();
    let route = route_of_caller(&mut bench, live, &there).join(", ");
    for method in ["INVITE", "REFER", "MESSAGE", "BYE"] {
        let uri = "sip:x@192.168.1.5;transport=tcp";
        let to = in_dialog(&mut bench, udp_flow(CALLER), &route, method, uri, ["f1", "t1"]);
        assert_eq!(to, "203.0.113.9:40000", "{method}");
    }
}

/// A rule that relays by the Request-URI is the operator's wish: it leads to denied destinations, too.
#[test]
fn a_rule_leads_where_it_says() {
    let to_uri = Action::Relay(Relay::to(RelayTarget::RequestUri));
    let mut config = guarded(routed(to_uri));
    config.routes[0].auth = Some(false);
    let mut bench = Bench::new(&config);
    let sent = bench.udp(CALLER, &request("INVITE", "sip:x@127.0.0.1:5080", "a", ""));
    assert_eq!(reached(&sent), ["127.0.0.1:5080"]);
}

pub(crate) const CONTACT: &str = "Contact: <sip:alice@192.0.2.70>\n";

pub(crate) fn registrar(asks: bool) -> Bench {
    let mut config = guarded(config());
    config.registrar.durability = Durability::Memory;
    if asks {
        config.domains[0].auth.methods = vec![b"REGISTER"[..].into()];
    }
    let bench = Bench::new(&config);
    let secrets = sip_core::auth::digest::secrets(b"alice", b"example.com", PASSWORD.as_bytes());
    let key = (b"alice".to_vec(), b"example.com".to_vec());
    bench.shared.cached.lock().unwrap().insert(key, Some(secrets));
    bench
}

pub(crate) fn register_request(branch: &str, call_id: &str, contact: &str) -> String {
    request("REGISTER", "sip:example.com", branch, contact)
        .replace("bob@example.com", "alice@example.com")
        .replace("c1@", call_id)
}

/// A REGISTER with a gateway's address as its spoofed source would have calls sent there past the rules.
#[test]
fn a_forged_source_registers_no_gateway() {
    let gateway = format!("{GATEWAY}:5060");
    let refused = "SIP/2.0 403 Source Not Proved";
    for (from, status) in [
        (udp_flow(&gateway), refused),
        (udp_flow("198.51.100.2:9"), refused),
        (udp_flow(CALLER), "SIP/2.0 200 OK"),
        (udp_flow("127.0.0.1:5080"), "SIP/2.0 200 OK"),
        (tcp_flow(&gateway, 3), "SIP/2.0 200 OK"),
    ] {
        let mut bench = registrar(false);
        let sent = one(bench.receive(from, &register_request("a", "c1@", CONTACT)));
        assert_eq!(sent.first_line(), status, "{from:?}");
        assert_eq!(bench.counters().contacts_unproved, u64::from(status == refused));
    }
    // A REGISTER with the nonce of a challenge has proved its source.
    let mut bench = registrar(true);
    let nonce = nonce_of(&one(bench.udp(&gateway, &register_request("a", "c1@", CONTACT))));
    let line = login("REGISTER", "sip:example.com").line(&nonce);
    let text = register_request("b", "c1@", &format!("{CONTACT}{line}"));
    assert_eq!(one(bench.udp(&gateway, &text)).first_line(), "SIP/2.0 200 OK");
}

/// Without a limit a user could have calls sent to any number of addresses that never asked for them.
#[test]
fn a_user_registers_so_many_new_addresses_within_an_hour() {
    let mut bench = registrar(false);
    let mut slot = 0;
    let mut try_it = |bench: &mut Bench, user: &str, host: &str, from: &str, expires: u32| {
        slot += 1;
        let contact = format!("Contact: <sip:{user}@{host}>;expires={expires}\n");
        let text = register_request(&format!("b{slot}"), &format!("c{slot}@"), &contact)
            .replace("alice@example.com", &format!("{user}@example.com"));
        let flow = match from {
            "" => udp_flow(CALLER),
            from => tcp_flow(from, slot),
        };
        let sent = bench.receive(flow, &text);
        sent.last().unwrap().first_line()[8..11].to_owned()
    };
    let most = Destinations::default().new_per_hour;
    // Refused contacts (here more than a user may have) do not count.
    for n in 0..most {
        let many: String = (0..11)
            .map(|k| format!("Contact: <sip:dave@203.0.{n}.{k}>\n"))
            .collect();
        let text = register_request(&format!("d{n}"), &format!("d{n}@"), &many).replace("alice@", "dave@");
        let sent = bench.receive(tcp_flow(STRANGER, 900 + n), &text);
        assert!(
            sent.last()
                .unwrap()
                .first_line()
                .starts_with("SIP/2.0 403 Too Many Contacts")
        );
    }
    assert_eq!(try_it(&mut bench, "dave", "203.0.113.1", STRANGER, 600), "200");
    for n in 0..most {
        let host = format!("203.0.113.{n}");
        assert_eq!(try_it(&mut bench, "alice", &host, STRANGER, 600), "200", "{n}");
        // Not new: a known address, the source itself, a removal, and contacts registered by UDP.
        for (host, from, expires) in [
            (host.as_str(), STRANGER, 600),
            ("192.0.2.66", STRANGER, 600),
            ("203.0.113.222", STRANGER, 0),
            ("203.0.113.223", "", 600),
            ("203.0.113.223", "", 0),
            (host.as_str(), STRANGER, 0),
        ] {
            assert_eq!(
                try_it(&mut bench, "alice", host, from, expires),
                "200",
                "{n} {host}"
            );
        }
    }
    assert_eq!(try_it(&mut bench, "alice", "203.0.113.200", STRANGER, 600), "403");
    let by_maddr = "192.0.2.66;maddr=203.0.113.201";
    assert_eq!(try_it(&mut bench, "alice", by_maddr, STRANGER, 600), "403");
    let by_flow = "203.0.113.202;ob";
    assert_eq!(try_it(&mut bench, "alice", by_flow, STRANGER, 600), "200");
    assert_eq!(try_it(&mut bench, "carol", "203.0.113.200", STRANGER, 600), "200");
    assert_eq!(try_it(&mut bench, "alice", "192.0.2.66", STRANGER, 600), "200");
    bench.pass(3_600_000 / u64::from(most));
    assert_eq!(try_it(&mut bench, "alice", "203.0.113.200", STRANGER, 600), "200");
    assert_eq!(try_it(&mut bench, "alice", "203.0.113.201", STRANGER, 600), "403");
}

/// A contact that wants TLS does not go back by the datagram that registered it.
#[test]
fn a_sips_contact_by_udp_is_a_new_address() {
    let mut bench = registrar(false);
    let most = Destinations::default().new_per_hour;
    let mut registers = |n: u32, scheme: &str| {
        let contact = format!("Contact: <{scheme}:alice@203.0.113.{n}>;expires=600\n");
        let text = register_request(&format!("b{n}{scheme}"), &format!("c{n}{scheme}@"), &contact);
        let taken = bench.receive(udp_flow(CALLER), &text);
        let gone = contact.replace("=600", "=0");
        let text = register_request(&format!("g{n}{scheme}"), &format!("g{n}{scheme}@"), &gone);
        bench.receive(udp_flow(CALLER), &text);
        taken.last().unwrap().first_line()[8..11].to_owned()
    };
    for n in 0..most {
        assert_eq!(registers(n, "sips"), "200", "{n}");
    }
    assert_eq!(registers(most, "sips"), "403");
    assert_eq!(registers(most, "sip"), "200");
}
