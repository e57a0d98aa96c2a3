//! Phones behind real NATs, each in a network namespace of its own, with one private address for all of them.

use std::net::SocketAddr;

use conformance::{
    Agent, Baresip, Config, DOMAIN, Dialog, Home, Link, Mapping, Message, Nat, Networks, Scene, Server,
    Transport, in_networks, port,
};

/// Longer than a test takes.
const LONG_S: u32 = 600;

/// The mappings of a test's homes, one after the other.
fn networks(mappings: &[Mapping]) -> Networks {
    let nat = |mapping: &Mapping| Nat {
        mapping: *mapping,
        timeout_s: LONG_S,
    };
    Networks::new(&mappings.iter().map(nat).collect::<Vec<_>>())
}

/// A server in the public network, which asks for credentials.
struct Stage {
    server: SocketAddr,
    // In the order of their end.
    running: Server,
    scene: Scene,
}

impl Stage {
    fn new(networks: &Networks, state: &str) -> Self {
        let scene = Scene::new();
        let server = SocketAddr::new(networks.server(), port::SERVER);
        let listen = format!("transport = \"udp\"\naddress = \"{server}\"\n");
        let mut config = Config::new()
            .auth(&["*"])
            .user("alice", "wonderland")
            .user("bob", "builder")
            .table("[[listen]]", &listen);
        if state == "stateless" {
            config = config.stateless();
        }
        Self {
            server,
            running: Server::start(&scene, &config),
            scene,
        }
    }

    /// A phone in a home.
    fn phone(&self, home: &Home, user: &'static str, password: &'static str) -> Agent {
        let (from, to) = (home.phone(5060), self.server);
        let link = home.inside(|| Link::open(Transport::Udp, from, to, None).expect("a socket"));
        Agent::new(link, user, password)
    }

    /// Alice's phone and bob's, which have registered, in these homes.
    fn phones(&self, alice: &Home, bob: &Home) -> (Agent, Agent) {
        let mut alice = self.phone(alice, "alice", "wonderland");
        let mut bob = self.phone(bob, "bob", "builder");
        alice.register(600);
        bob.register(600);
        assert_eq!(alice.contact().split('@').nth(1), bob.contact().split('@').nth(1));
        (alice, bob)
    }
}

/// A request of the dialog and its 200.
fn exchange(from: &mut Agent, dialog: &Dialog, to: &mut Agent, method: &str) {
    from.in_dialog(method, dialog);
    let request = to.expect_request(method);
    to.answer(&request, 200, "");
    from.expect_status(200);
    if method == "INVITE" {
        from.in_dialog("ACK", dialog);
        to.expect_request("ACK");
    }
}

/// A call that `caller` begins. It returns the dialog as both see it.
fn established(caller: &mut Agent, callee: &mut Agent, (user, call): (&str, &str)) -> (Dialog, Dialog) {
    caller.invite(user, call, "");
    let invite: Message = callee.expect_request("INVITE");
    callee.answer(&invite, 180, "");
    caller.expect_status(180);
    callee.answer(&invite, 200, "");
    let answer = caller.expect_status(200);
    let dialogs = (Dialog::of_caller(&answer), Dialog::of_callee(&invite, &answer));
    caller.in_dialog("ACK", &dialogs.0);
    callee.expect_request("ACK");
    dialogs
}

/// Calls in both directions, with every method of a dialog from either side; the one side ends the first call,
/// the other the second.
fn talk(alice: &mut Agent, bob: &mut Agent, call: &str) {
    let (of_alice, of_bob) = established(alice, bob, ("bob", &format!("{call}-1")));
    for method in ["INFO", "UPDATE", "MESSAGE", "NOTIFY", "INVITE"] {
        exchange(alice, &of_alice, bob, method);
        exchange(bob, &of_bob, alice, method);
    }
    exchange(alice, &of_alice, bob, "BYE");
    let (of_alice, of_bob) = established(alice, bob, ("bob", &format!("{call}-2")));
    exchange(alice, &of_alice, bob, "INVITE");
    exchange(bob, &of_bob, alice, "BYE");
    let (of_bob, of_alice) = established(bob, alice, ("alice", &format!("{call}-3")));
    exchange(alice, &of_alice, bob, "INVITE");
    exchange(bob, &of_bob, alice, "BYE");
}

#[test]
fn phones_behind_two_symmetric_nats_call_each_other() {
    if !in_networks("nat::phones_behind_two_symmetric_nats_call_each_other") {
        return;
    }
    let networks = networks(&[Mapping::Random, Mapping::Random]);
    for state in ["transaction", "stateless"] {
        let stage = Stage::new(&networks, state);
        let (mut alice, mut bob) = stage.phones(networks.home(0), networks.home(1));
        talk(&mut alice, &mut bob, state);
    }
}

#[test]
fn phones_behind_two_port_preserving_nats_call_each_other() {
    if !in_networks("nat::phones_behind_two_port_preserving_nats_call_each_other") {
        return;
    }
    let networks = networks(&[Mapping::PortPreserving, Mapping::PortPreserving]);
    let stage = Stage::new(&networks, "transaction");
    let (mut alice, mut bob) = stage.phones(networks.home(0), networks.home(1));
    talk(&mut alice, &mut bob, "p");
    // Both are one user's: two phones with one Contact, which both ring.
    drop(alice);
    let mut second = stage.phone(networks.home(0), "bob", "builder");
    second.register(600);
    let registrations = stage.running.api("GET /api/v1/registrations/bob@example.com", "");
    let found = registrations["registrations"].as_array().expect("a list");
    assert_eq!(found.len(), 2, "{registrations}");
}

/// Only the caller, then only the callee; the other is a host of the public network.
#[test]
fn a_phone_behind_a_nat_and_one_in_public_call_each_other() {
    if !in_networks("nat::a_phone_behind_a_nat_and_one_in_public_call_each_other") {
        return;
    }
    let networks = networks(&[Mapping::Random]);
    let stage = Stage::new(&networks, "transaction");
    let mut alice = stage.phone(networks.home(0), "alice", "wonderland");
    let from = SocketAddr::new(networks.server(), port::CALLEE);
    let link = Link::open(Transport::Udp, from, stage.server, None).expect("a socket");
    let mut bob = Agent::new(link, "bob", "builder");
    alice.register(600);
    bob.register(600);
    talk(&mut alice, &mut bob, "n");
    talk_back(&mut bob, &mut alice);
}

fn talk_back(public: &mut Agent, inside: &mut Agent) {
    let (of_public, of_inside) = established(public, inside, ("alice", "back"));
    exchange(public, &of_public, inside, "INVITE");
    exchange(inside, &of_inside, public, "INVITE");
    exchange(inside, &of_inside, public, "BYE");
}

#[test]
fn baresip_behind_two_symmetric_nats() {
    if !in_networks("nat::baresip_behind_two_symmetric_nats") {
        return;
    }
    let networks = networks(&[Mapping::Random, Mapping::Random]);
    let stage = Stage::new(&networks, "transaction");
    let start = |number: usize, user: &str, password: &str| {
        let home = networks.home(number);
        let (line, to) = ((1, home.phone(0).ip()), (Transport::Udp, stage.server));
        home.inside(|| Baresip::start_at(&stage.scene, line, user, password, to, None))
    };
    let Some(mut alice) = start(0, "alice", "wonderland") else {
        return;
    };
    let mut bob = start(1, "bob", "builder").expect("baresip, as above");
    alice.expect_registered();
    bob.expect_registered();
    for hangs_up in [true, false] {
        alice.command("dial", &format!("sip:bob@{DOMAIN}"));
        bob.expect_event("CALL_INCOMING");
        alice.expect_event("CALL_RINGING");
        bob.command("accept", "");
        alice.expect_event("CALL_ESTABLISHED");
        bob.expect_event("CALL_ESTABLISHED");
        let ends = if hangs_up { &mut alice } else { &mut bob };
        ends.command("hangup", "");
        alice.expect_event("CALL_CLOSED");
        bob.expect_event("CALL_CLOSED");
    }
}
