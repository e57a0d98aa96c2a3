//! An edge before a registrar: Kamailio's, and another server of ours. The phones are behind the edge, and some behind
//! a NAT before it.

use std::net::SocketAddr;

use conformance::{
    Agent, Client, Config, DOMAIN, Kamailio, Link, Mapping, Message, Scene, Server, Transport, in_networks,
    port,
};

use crate::nat::{established, exchange, networks, talk};

const USERS: [(&str, &str); 2] = [("alice", "wonderland"), ("bob", "builder")];

/// The registrar behind the edge; its end is that of the test.
enum Registrar {
    Kamailio { _running: Kamailio },
    Ours { _running: Server },
}

/// An edge and its registrar, each at an address of its own.
struct Stage {
    // In the order of their end.
    edge: Option<Server>,
    _registrar: Registrar,
    scene: Scene,
    _behind: Scene,
}

impl Stage {
    /// `None` if Kamailio is missing and may be. `more` has further tables of the edge.
    fn before_kamailio(more: impl FnOnce(Config) -> Config) -> Option<Self> {
        let (scene, behind) = (Scene::new(), Scene::new());
        let local = behind.at(port::SERVER);
        let running = Kamailio::start_registrar(&behind, local, &USERS)?;
        let config = more(Config::edge_before(local));
        Some(Self {
            edge: Some(Server::start(&scene, &config)),
            _registrar: Registrar::Kamailio { _running: running },
            scene,
            _behind: behind,
        })
    }

    fn before_ours() -> Self {
        let (scene, behind) = (Scene::new(), Scene::new());
        let trust = format!("peers = [\"{}\"]", scene.ip());
        let users = USERS.iter();
        let config = users.fold(Config::new().auth(&["*"]), |config, (user, password)| {
            config.user(user, password)
        });
        let running = Server::start(&behind, &config.table("[trust]", &trust));
        let config = Config::edge_before(behind.at(port::SERVER));
        Self {
            edge: Some(Server::start(&scene, &config)),
            _registrar: Registrar::Ours { _running: running },
            scene,
            _behind: behind,
        }
    }

    fn edge(&self) -> &Server {
        self.edge.as_ref().expect("it runs")
    }

    /// Stops the edge and starts it again.
    fn restart(&mut self) {
        self.edge = None;
        self.edge = Some(Server::start_again(&self.scene));
    }

    /// Phones of alice and bob, which have registered through the edge; bob's 200.
    fn phones(&self, transport: Transport) -> (Agent, Agent, Message) {
        let phone = |number: u16, (user, password): (&'static str, &'static str)| {
            // A connection begins at a port of its own.
            let number = if transport == Transport::Udp { number } else { 0 };
            let (from, to) = (self.scene.at(number), self.scene.at(port::SERVER));
            let link = Link::open(transport, from, to, None).expect("a way");
            Agent::new(link, user, password)
        };
        let mut alice = phone(port::CALLER, USERS[0]);
        let mut bob = phone(port::CALLEE, USERS[1]);
        alice.register(600);
        let ok = bob.register(600);
        (alice, bob, ok)
    }

    /// What the edge keeps of bob: the sources of his phones.
    fn sources(&self) -> Vec<String> {
        let what = format!("GET /api/v1/registrations?user=bob&domain={DOMAIN}");
        let answer = self.edge().api(&what, "");
        let found = answer["registrations"].as_array().into_iter().flatten();
        found
            .map(|one| one["source"].as_str().unwrap_or_default().to_owned())
            .collect()
    }
}

/// Calls in both directions, over each transport; also after a restart of the edge, if there is no connection that it
/// would close.
fn calls(stage: &mut Stage, transport: Transport) {
    let (mut alice, mut bob, ok) = stage.phones(transport);
    let path = ok.header("path").to_owned();
    assert!(path.starts_with("<sip:path."), "{ok:?}");
    let sources = stage.sources();
    let from = format!("{}:", stage.scene.ip());
    assert!(sources.len() == 1 && sources[0].starts_with(&from), "{sources:?}");
    let kept = "trapezoid_relayed_registrations_total";
    stage
        .edge()
        .wait_for_metric(kept, "result=\"kept\"", |count| count >= 2.0);
    talk(&mut alice, &mut bob, transport.name());
    if transport == Transport::Udp {
        stage.restart();
        assert_eq!(stage.sources(), sources);
        talk(&mut alice, &mut bob, "again");
    }
    alice.register(0);
    bob.register(0);
    assert!(stage.sources().is_empty());
}

/// A request of a stranger along bob's Path: the status.
fn by_path(stage: &Stage, path: &str) -> u16 {
    let stranger = Scene::new();
    let mut client = Client::new(
        &stranger,
        Transport::Udp,
        port::CALLER,
        stage.scene.at(port::SERVER),
    );
    let text = format!(
        "MESSAGE sip:bob@{} SIP/2.0\nMax-Forwards: 70\nRoute: {path}\nTo: <sip:bob@{DOMAIN}>\n\
         From: <sip:x@{DOMAIN}>;tag=s\nCall-ID: stranger\nCSeq: 1 MESSAGE",
        stage.scene.at(port::CALLEE)
    );
    client.send(&text, "stranger");
    client.final_response().status()
}

#[test]
fn an_edge_before_kamailio() {
    let Some(mut stage) = Stage::before_kamailio(|config| config) else {
        return;
    };
    calls(&mut stage, Transport::Udp);
}

#[test]
fn an_edge_before_kamailio_for_phones_by_tcp() {
    let Some(mut stage) = Stage::before_kamailio(|config| config) else {
        return;
    };
    calls(&mut stage, Transport::Tcp);
}

#[test]
fn an_edge_without_state_before_kamailio() {
    let Some(mut stage) = Stage::before_kamailio(Config::stateless) else {
        return;
    };
    calls(&mut stage, Transport::Udp);
}

#[test]
fn an_edge_before_a_registrar_of_ours() {
    let mut stage = Stage::before_ours();
    calls(&mut stage, Transport::Udp);
    calls(&mut stage, Transport::Tcp);
}

/// The Path is for the registrar; a Service-Route for its phones.
#[test]
fn strangers_have_no_use_for_a_path() {
    let Some(stage) = Stage::before_kamailio(|config| config) else {
        return;
    };
    let (mut alice, _bob, ok) = stage.phones(Transport::Udp);
    assert_eq!(by_path(&stage, ok.header("path")), 403);
    let service = ok.header("service-route").to_owned();
    assert!(service.ends_with(";lr>"), "{ok:?}");
    let mut message = |route: &str, number: u32| {
        let uri = format!("sip:bob@{DOMAIN}");
        let aor = alice.aor();
        let text = format!("To: <{uri}>\nFrom: <{aor}>;tag=m\nCall-ID: message-{number}\nRoute: {route}");
        alice.request("MESSAGE", &uri, &text, "").status()
    };
    // Kamailio asks for credentials.
    assert_eq!(message(&service, 1), 407);
    let elsewhere = format!("<sip:{};lr>", stage.scene.at(port::NEXT_HOP));
    assert_eq!(message(&elsewhere, 2), 403);
}

/// The phones have one private address, each behind a NAT of its own.
#[test]
fn phones_behind_nats_behind_an_edge() {
    if !in_networks("edge::phones_behind_nats_behind_an_edge") {
        return;
    }
    let networks = networks(&[Mapping::Random, Mapping::Random]);
    let server = SocketAddr::new(networks.server(), port::SERVER);
    let listen = format!("transport = \"udp\"\naddress = \"{server}\"\n");
    let Some(stage) = Stage::before_kamailio(|config| config.table("[[listen]]", &listen)) else {
        return;
    };
    let phone = |number: usize, (user, password): (&'static str, &'static str)| {
        let home = networks.home(number);
        let from = home.phone(5060);
        let link = home.inside(|| Link::open(Transport::Udp, from, server, None).expect("a socket"));
        Agent::new(link, user, password)
    };
    let (mut alice, mut bob) = (phone(0, USERS[0]), phone(1, USERS[1]));
    alice.register(600);
    bob.register(600);
    let sources = stage.sources();
    let public = networks.home(1).public().to_string();
    assert!(
        sources.len() == 1 && sources[0].starts_with(&public),
        "{sources:?}"
    );
    talk(&mut alice, &mut bob, "nats");
    let (of_alice, of_bob) = established(&mut alice, &mut bob, "nats-4");
    exchange(&mut bob, &of_bob, &mut alice, "INVITE");
    exchange(&mut alice, &of_alice, &mut bob, "BYE");
}
