//! Calls to and from a Kamailio over mutual TLS, and neighbours that are refused: either end wants a
//! certificate of the other (RFC 5922).

use std::time::Duration;

use conformance::{
    Authority, Client, Config, DOMAIN, Identity, Kamailio, Link, Name, NameServer, Part, Phone, Scene,
    Secured, Server, Sipp, TlsPeer, Transport, port, wait_until,
};

const CALLS: u32 = 5;

/// The domain for which the neighbour's certificate must speak.
const NEIGHBOUR: &str = "gateway.example.net";

/// Two authorities, of which the server and its neighbour trust the first.
struct World {
    scene: Scene,
    trusted: Authority,
    unknown: Authority,
    _names: NameServer,
    dns: String,
}

impl World {
    fn new() -> Self {
        let scene = Scene::new();
        let names = NameServer::start(&scene, &[NEIGHBOUR]);
        Self {
            trusted: Authority::new(&scene, "trusted"),
            unknown: Authority::new(&scene, "unknown"),
            dns: names.toml(),
            _names: names,
            scene,
        }
    }

    /// A certificate for the neighbour, also for its address, which its Record-Route names.
    fn neighbour(&self, authority: &Authority) -> Identity {
        authority.issue("kamailio", &[Name::Dns(NEIGHBOUR), Name::Ip(self.scene.ip())])
    }

    fn ours(&self, authority: &Authority) -> Identity {
        authority.issue("ours", &[Name::Dns(DOMAIN)])
    }

    /// New INVITEs go to the neighbour over TLS, by a rule with these further keys; it is shown what
    /// we show where we listen.
    fn towards_neighbour(&self, ours: &Identity, more: &str) -> Config {
        self.towards_neighbour_by(ours, more, "")
    }

    /// The same with more keys of our own listener's TLS.
    fn towards_neighbour_by(&self, ours: &Identity, more: &str, tls: &str) -> Config {
        let uri = format!("sip:{NEIGHBOUR}:{};transport=tls", port::NEXT_HOP);
        let ca = format!("ca = \"{}\"", self.trusted.file().display());
        Config::new()
            .table("[dns]", &self.dns)
            .table("[tls]", &ca)
            .listen(&self.scene, Transport::Tls, ours, tls)
            .route(&format!(
                "when = {{ method = [\"INVITE\"] }}\ndo = {{ relay = \"{uri}\"{more} }}"
            ))
    }

    /// Where a callee without TLS is.
    fn callee(&self) -> String {
        format!("sip:{};transport=udp", self.scene.at(port::CALLEE))
    }

    /// INVITEs go to the callee; clients that connect must show a certificate.
    fn behind_neighbour(&self) -> Config {
        let ca = self.trusted.file();
        let tls = format!("client_auth = \"required\", client_ca = \"{}\"", ca.display());
        let ours = self.ours(&self.trusted);
        let config = Config::new().invites_to(&self.callee(), "");
        config.listen(&self.scene, Transport::Tls, &ours, &tls)
    }

    /// The neighbour, on UDP, TCP and TLS, which trusts the first authority and wants certificates of it.
    fn kamailio(&self, identity: &Identity, target: &str) -> Option<Kamailio> {
        let secured = Secured {
            identity,
            authority: &self.trusted,
            mutual: true,
        };
        let at = self.scene.at(port::NEXT_HOP);
        let tcp = self.scene.at(port::NEXT_HOP_TCP);
        let listen = [(Transport::Tls, at), (Transport::Udp, at), (Transport::Tcp, tcp)];
        Kamailio::start_on(&self.scene, &listen, target, Some(secured))
    }

    /// The neighbour, in front of our server.
    fn kamailio_before_us(&self, identity: &Identity) -> Option<Kamailio> {
        let us = format!("sip:{};transport=tls", self.scene.at(port::TLS));
        self.kamailio(identity, &us)
    }
}

fn sipp_talks_to_sipp(scene: &Scene, first: u16, callee: Transport) {
    let Some(callee) = Sipp::server(scene, "uas_call", callee, port::CALLEE)
        .calls(CALLS, 20)
        .start()
    else {
        return;
    };
    let caller = Sipp::client(scene, "uac_call", Transport::Tcp, port::CALLER, scene.at(first))
        .calls(CALLS, 20)
        .expect_header("Record-Route", "transport=tls")
        // Kamailio's workers may let a BYE overtake its ACK: no call fails of that, but its ACK is not seen.
        .set("hold_ms", "200")
        .start()
        .expect("SIPp, as above");
    caller.succeed(CALLS);
    callee.succeed(CALLS);
}

#[test]
fn calls_to_kamailio() {
    let world = World::new();
    let config = world.towards_neighbour(&world.ours(&world.trusted), "");
    let _server = Server::start(&world.scene, &config);
    let theirs = world.neighbour(&world.trusted);
    let callee = world.callee().replace("udp", "tcp");
    let Some(_kamailio) = world.kamailio(&theirs, &callee) else {
        return;
    };
    sipp_talks_to_sipp(&world.scene, port::SERVER, Transport::Tcp);
}

#[test]
fn calls_from_kamailio() {
    let world = World::new();
    let _server = Server::start(&world.scene, &world.behind_neighbour());
    let theirs = world.neighbour(&world.trusted);
    let Some(_kamailio) = world.kamailio_before_us(&theirs) else {
        return;
    };
    sipp_talks_to_sipp(&world.scene, port::NEXT_HOP_TCP, Transport::Udp);
}

/// Calls by the way of `first`; whether the call was taken. Where not, the callee heard nothing.
fn is_taken(world: &World, first: u16, transport: Transport) -> bool {
    let scene = &world.scene;
    let callee = Phone::start(scene, Transport::Udp, port::CALLEE, Part::Answer(Duration::ZERO));
    let mut caller = Client::new(scene, transport, port::CALLER, scene.at(first));
    // An ACK would go to the address in Kamailio's Record-Route, for which not each of its certificates is valid.
    let answers = caller.call_without_ack("bob", "a-call");
    let status = answers.last().map_or(0, conformance::Message::status);
    assert!(status == 200 || status >= 400, "{answers:?}");
    let heard = callee.count("INVITE");
    assert_eq!(heard, usize::from(status == 200), "{answers:?}");
    status == 200
}

/// Kamailio shows this certificate when we connect to it, and is shown `ours`. Where it is not called,
/// that is because of TLS, and nothing else.
fn is_called(world: &World, theirs: &Identity, ours: &Identity, more: &str) -> Option<bool> {
    let server = Server::start(&world.scene, &world.towards_neighbour(ours, more));
    let _kamailio = world.kamailio(theirs, &world.callee())?;
    let is_taken = is_taken(world, port::SERVER, Transport::Tcp);
    if !is_taken {
        wait_until("the refusal is one of TLS", || has_tls_failed(&server));
    }
    assert!(!is_taken || !has_tls_failed(&server), "both");
    Some(is_taken)
}

/// Whether TLS ended a connection.
fn has_tls_failed(server: &Server) -> bool {
    server.metric("trapezoid_net_connections_closed", "cause=\"tls\"") > 0.0
}

/// RFC 5922 §7: the authority, the time, and exactly the name by which the neighbour is called.
#[test]
fn a_neighbour_is_called_only_for_the_names_of_its_certificate() {
    let other = "other.example.net";
    let (dns, uri) = ("*.example.net", format!("sip:{other}"));
    let names: [(&str, &[Name<'_>], bool); 6] = [
        ("its name", &[Name::Dns(NEIGHBOUR)], true),
        ("its URI", &[Name::Uri("sip:gateway.example.net")], true),
        ("another name", &[Name::Dns(other)], false),
        ("a wildcard", &[Name::Dns(dns)], false),
        (
            "the URI of another, before which its name does not count",
            &[Name::Uri(&uri), Name::Dns(NEIGHBOUR)],
            false,
        ),
        ("no name", &[], false),
    ];
    for (what, names, expected) in names {
        eprintln!("{what}");
        let world = World::new();
        let theirs = world.trusted.issue("kamailio", names);
        let Some(called) = is_called(&world, &theirs, &world.ours(&world.trusted), "") else {
            return;
        };
        assert_eq!(called, expected, "{what}");
    }
}

#[test]
fn no_neighbour_with_a_bad_certificate_is_called() {
    for what in ["of another authority", "expired"] {
        let world = World::new();
        let names = [Name::Dns(NEIGHBOUR)];
        let theirs = match what {
            "expired" => world.trusted.issue_expired("kamailio", &names),
            _ => world.unknown.issue("kamailio", &names),
        };
        let called = is_called(&world, &theirs, &world.ours(&world.trusted), "");
        assert_ne!(called, Some(true), "{what}");
    }
}

/// The neighbour wants our certificate as well. With TLS 1.3 it refuses ours after we have begun to send, so
/// that the request is lost and runs into its time-out.
#[test]
fn a_neighbour_that_does_not_trust_us_is_not_called() {
    let world = World::new();
    let theirs = world.neighbour(&world.trusted);
    let called = is_called(&world, &theirs, &world.ours(&world.unknown), ", timeout_s = 2");
    assert_ne!(called, Some(true));
}

/// Kamailio connects to us and shows a certificate of this kind: it is served, or its connection is
/// closed. (It does not tell the caller of that.)
fn may_call_us(theirs: impl Fn(&World) -> Identity) -> Option<bool> {
    let world = World::new();
    let scene = &world.scene;
    let server = Server::start(scene, &world.behind_neighbour());
    let _kamailio = world.kamailio_before_us(&theirs(&world))?;
    let callee = Phone::start(scene, Transport::Udp, port::CALLEE, Part::Answer(Duration::ZERO));
    let next_hop = scene.at(port::NEXT_HOP_TCP);
    let mut caller = Client::new(scene, Transport::Tcp, port::CALLER, next_hop);
    caller.invite("bob", "a-call");
    let (mut heard, mut refused) = (0, false);
    wait_until("the call comes, or is refused", || {
        refused = has_tls_failed(&server);
        heard = callee.count("INVITE");
        heard > 0 || refused
    });
    assert!(heard == 0 || !refused, "both");
    Some(heard > 0)
}

#[test]
fn only_neighbours_with_a_good_certificate_may_call_us() {
    let names = [Name::Dns(NEIGHBOUR)];
    let good = may_call_us(|world| world.trusted.issue("kamailio", &names));
    assert_ne!(good, Some(false), "a good one");
    let unknown = may_call_us(|world| world.unknown.issue("kamailio", &names));
    assert_ne!(unknown, Some(true), "one of another authority");
    let expired = may_call_us(|world| world.trusted.issue_expired("kamailio", &names));
    assert_ne!(expired, Some(true), "an expired one");
}

/// Calls the neighbour, which does not listen. A client has connected to us, with this certificate, and
/// offers that connection: the call comes there and is declined, or is lost.
fn offered(world: &World, identity: Option<&Identity>, comes: bool) {
    let scene = &world.scene;
    let ca = world.trusted.file();
    let tls = format!("client_auth = \"optional\", client_ca = \"{}\"", ca.display());
    let config = world.towards_neighbour_by(&world.ours(&world.trusted), "", &tls);
    let _server = Server::start(scene, &config);
    let peer = match identity {
        Some(identity) => TlsPeer::presenting(&world.trusted, DOMAIN, identity),
        None => TlsPeer::trusting(&world.trusted, DOMAIN),
    };
    let from = std::net::SocketAddr::new(scene.ip(), 0);
    let link = Link::open(Transport::Tls, from, scene.at(port::TLS), Some(&peer)).expect("connecting");
    let mut neighbour = Client::over(link);
    let options = format!(
        "OPTIONS sip:{DOMAIN} SIP/2.0\r\nVia: SIP/2.0/TLS {NEIGHBOUR}:{};branch=z9hG4bKoffer;alias\r\n\
         Max-Forwards: 70\r\nFrom: <sip:{NEIGHBOUR}>;tag=a\r\nTo: <sip:{DOMAIN}>\r\nCall-ID: offer\r\n\
         CSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n",
        port::NEXT_HOP
    );
    neighbour.send_bytes(options.as_bytes());
    assert_eq!(neighbour.receive().status(), 200);
    let mut caller = Client::new(scene, Transport::Udp, port::CALLER, scene.at(port::SERVER));
    caller.invite("bob", "offered");
    if comes {
        let invite = neighbour.receive();
        assert!(invite.first_line.starts_with("INVITE "), "{invite:?}");
        let headers: String = ["via", "from", "to", "call-id", "cseq"]
            .iter()
            .flat_map(|name| {
                invite
                    .all(name)
                    .into_iter()
                    .map(move |value| format!("{name}: {value}\r\n"))
            })
            .collect();
        neighbour.send_bytes(format!("SIP/2.0 603 Decline\r\n{headers}Content-Length: 0\r\n\r\n").as_bytes());
    }
    let expected = if comes { 603 } else { 500 };
    assert_eq!(caller.final_response().status(), expected);
}

/// RFC 5923 §8: only a peer that has proved its domain by a certificate.
#[test]
fn a_neighbour_that_offers_its_connection_is_called_on_it() {
    let world = World::new();
    let neighbour = world.trusted.issue("neighbour", &[Name::Dns(NEIGHBOUR)]);
    offered(&world, Some(&neighbour), true);
    let world = World::new();
    let other = world.trusted.issue("other", &[Name::Dns("other.example.net")]);
    offered(&world, Some(&other), false);
    let world = World::new();
    offered(&world, None, false);
}
