//! A call from every transport to every other: two phones register with digest, one calls the
//! other, and each side sees only its own transport (RFC 3261 §16.6, RFC 5658, RFC 7118).

use conformance::torture::unmarked;
use conformance::{
    Agent, Authority, Config, DOMAIN, Dialog, Link, Message, Name, Scene, Server, TlsPeer, Transport,
};

const OFFER: &str =
    "v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\nm=audio 9 RTP/AVP 0\r\n";
const ANSWER: &str =
    "v=0\r\no=- 2 2 IN IP4 192.0.2.2\r\ns=-\r\nc=IN IP4 192.0.2.2\r\nt=0 0\r\nm=audio 9 RTP/AVP 0\r\n";

/// A server that listens for every transport, and its address.
struct Stage {
    server: Server,
    tls: TlsPeer,
    scene: Scene,
}

impl Stage {
    fn new() -> Self {
        let scene = Scene::new();
        let authority = Authority::new(&scene, "authority");
        let identity = authority.issue("server", &[Name::Dns(DOMAIN)]);
        let mut config = Config::new()
            .auth(&["REGISTER", "INVITE"])
            .user("alice", "wonderland")
            .user("bob", "builder");
        for transport in [Transport::Tls, Transport::Ws, Transport::Wss] {
            config = config.listen(&scene, transport, &identity, "");
        }
        Self {
            server: Server::start(&scene, &config),
            tls: TlsPeer::trusting(&authority, DOMAIN),
            scene,
        }
    }

    fn agent(&self, transport: Transport, user: &'static str, password: &'static str) -> Agent {
        let link = Link::to_server(&self.scene, transport, &self.tls);
        let agent = Agent::new(link.expect("connecting"), user, password);
        // The server may not connect to a client of TLS: it has no certificate (RFC 5626 §1).
        if transport == Transport::Tls {
            agent.outbound()
        } else {
            agent
        }
    }

    /// Whether a Record-Route or a Via names the server's end of this transport. The default port
    /// need not be named (RFC 3261 §19.1.2).
    fn is_ours(&self, value: &str, transport: Transport) -> bool {
        let port = value.split_once(&self.scene.ip().to_string()).map(|(_, rest)| {
            let port = rest.split([';', '>']).next();
            port.unwrap_or_default().to_owned()
        });
        let port = port.unwrap_or_else(|| panic!("{value} is not ours"));
        let may_lack = match transport {
            Transport::Udp | Transport::Tcp | Transport::Tls => port.is_empty(),
            Transport::Ws | Transport::Wss => false,
        };
        may_lack || port == format!(":{}", transport.port())
    }
}

/// What one call looks like at both ends.
struct Cell<'a> {
    stage: &'a Stage,
    from: Transport,
    to: Transport,
    alice: Agent,
    bob: Agent,
}

impl Cell<'_> {
    fn play(&mut self) {
        for agent in [&mut self.alice, &mut self.bob] {
            let answer = agent.register(600);
            let contact = agent.contact();
            assert!(
                answer.header("contact").contains(&contact),
                "{contact}: {answer:?}"
            );
        }
        let call = format!("{}-{}", self.from.via(), self.to.via());
        self.alice.invite("bob", &call, OFFER);
        let invite = self.bob.expect_request("INVITE");
        self.check_invite(&invite);
        self.bob.answer(&invite, 180, "");
        let ringing = self.alice.expect_status(180);
        self.bob.answer(&invite, 200, ANSWER);
        let answered = self.alice.expect_status(200);
        for response in [&ringing, &answered] {
            self.check_response(&invite, response);
        }
        assert_eq!(answered.body, ANSWER);
        let (callers, callees) = (
            Dialog::of_caller(&answered),
            Dialog::of_callee(&invite, &answered),
        );
        self.alice.in_dialog("ACK", &callers);
        let ack = self.bob.expect_request("ACK");
        self.check_in_dialog(&ack, &callers.target, self.to);
        // The way back works as well, and the connections are the same.
        self.bob.in_dialog("INFO", &callees);
        let info = self.alice.expect_request("INFO");
        self.check_in_dialog(&info, &callees.target, self.from);
        self.alice.answer(&info, 200, "");
        self.bob.expect_status(200);
        self.alice.in_dialog("BYE", &callers);
        let bye = self.bob.expect_request("BYE");
        self.check_in_dialog(&bye, &callers.target, self.to);
        self.bob.answer(&bye, 200, "");
        self.alice.expect_status(200);
        for agent in [&mut self.alice, &mut self.bob] {
            let answer = agent.register(0);
            assert_eq!(answer.header("contact"), "", "{answer:?}");
        }
    }

    /// The server's Via on top of the caller's; Record-Route for both sides, the callee's on top.
    fn check_invite(&self, invite: &Message) {
        let (stage, from, to) = (self.stage, self.from, self.to);
        let target = invite.first_line.split(' ').nth(1).unwrap_or_default();
        assert!(target.starts_with(&self.bob.contact()), "{invite:?}");
        let vias = invite.vias();
        assert_eq!(vias.len(), 2, "{invite:?}");
        assert!(vias[0].starts_with(&format!("SIP/2.0/{} ", to.via())), "{vias:?}");
        assert!(stage.is_ours(&vias[0], to), "{vias:?}");
        assert!(
            vias[1].starts_with(&format!("SIP/2.0/{} ", from.via())),
            "{vias:?}"
        );
        assert!(
            vias[1].contains(&format!("received={}", stage.scene.ip())),
            "{vias:?}"
        );
        let routes = invite.routes();
        // Within one transport there may be two as well: one for the way to each flow (RFC 5626 §5.2).
        let one = from == to && routes.len() == 1;
        let sides = if one { vec![to] } else { vec![to, from] };
        assert_eq!(routes.len(), sides.len(), "{routes:?}");
        for (route, side) in routes.iter().zip(sides) {
            assert!(route.contains(";lr"), "{route}");
            assert!(stage.is_ours(route, side), "{} in {routes:?}", side.via());
            let named = format!(";transport={}", side.name());
            assert!(side == Transport::Udp || route.contains(&named), "{routes:?}");
        }
        assert_eq!(invite.header("max-forwards"), "69");
        assert!(invite.header("proxy-authorization").is_empty(), "{invite:?}");
        assert!(
            invite.contact_uri().starts_with(&self.alice.contact()),
            "{invite:?}"
        );
        assert_eq!(invite.body, OFFER);
    }

    /// Only the caller's Via is left; the routes are those of the request, with the marks of the other side.
    fn check_response(&self, invite: &Message, response: &Message) {
        let vias = response.vias();
        assert_eq!(vias.len(), 1, "{response:?}");
        assert!(
            vias[0].starts_with(&format!("SIP/2.0/{} ", self.from.via())),
            "{vias:?}"
        );
        let routes = |message: &Message| unmarked(message.routes().join(", ").as_bytes());
        assert_eq!(routes(response), routes(invite));
        assert!(
            response.contact_uri().starts_with(&self.bob.contact()),
            "{response:?}"
        );
    }

    /// It came by its Route values, of which none is left, over the transport of this end.
    fn check_in_dialog(&self, request: &Message, target: &str, side: Transport) {
        let uri = request.first_line.split(' ').nth(1);
        assert_eq!(uri, Some(target), "{request:?}");
        assert!(request.all("route").is_empty(), "{request:?}");
        let vias = request.vias();
        assert_eq!(vias.len(), 2, "{request:?}");
        assert!(
            vias[0].starts_with(&format!("SIP/2.0/{} ", side.via())),
            "{vias:?}"
        );
        assert!(self.stage.is_ours(&vias[0], side), "{vias:?}");
    }
}

/// Calls from this transport to each.
fn calls_from(from: Transport) {
    let stage = Stage::new();
    for to in Transport::ALL {
        eprintln!("{} to {}", from.via(), to.via());
        Cell {
            stage: &stage,
            from,
            to,
            alice: stage.agent(from, "alice", "wonderland"),
            bob: stage.agent(to, "bob", "builder"),
        }
        .play();
    }
}

#[test]
fn from_udp_to_each() {
    calls_from(Transport::Udp);
}

#[test]
fn from_tcp_to_each() {
    calls_from(Transport::Tcp);
}

#[test]
fn from_tls_to_each() {
    calls_from(Transport::Tls);
}

#[test]
fn from_websocket_to_each() {
    calls_from(Transport::Ws);
}

#[test]
fn from_secured_websocket_to_each() {
    calls_from(Transport::Wss);
}

/// A registration that came over a connection ends with it: its user can be reached there no more, and the
/// caller gets a refusal at once (RFC 5626 §4.4).
#[test]
fn a_registration_ends_with_its_connection() {
    let stage = Stage::new();
    let lost = "trapezoid_registration_flows_lost_total";
    for (to, before) in [Transport::Tls, Transport::Ws, Transport::Wss]
        .into_iter()
        .zip(0u8..)
    {
        eprintln!("{}", to.via());
        let mut bob = stage.agent(to, "bob", "builder");
        bob.register(600);
        let mut alice = stage.agent(Transport::Tcp, "alice", "wonderland");
        let call = format!("before-{}", to.via());
        alice.invite("bob", &call, OFFER);
        let invite = bob.expect_request("INVITE");
        bob.answer(&invite, 486, "");
        let busy = alice.expect_status(486);
        alice.acknowledge_refusal("bob", &busy);
        assert_eq!(stage.server.metric(lost, ""), f64::from(before));
        drop(bob);
        // It is known before the next call: that nothing can be sent there would give the same answer.
        stage
            .server
            .wait_for_metric(lost, "", |n| n >= f64::from(before) + 1.0);
        let call = format!("after-{}", to.via());
        alice.invite("bob", &call, OFFER);
        let gone = alice.receive();
        assert!([430, 480].contains(&gone.status()), "{gone:?}");
        assert_eq!(stage.server.metric(lost, ""), f64::from(before) + 1.0);
    }
}
