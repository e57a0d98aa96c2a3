//! Requests that the server answers itself.

use std::net::{TcpListener, UdpSocket};

use conformance::{Client, Config, Scene, Server, Sipp, Transport, over_udp_and_tcp, port};

over_udp_and_tcp!(
    options_to_the_server,
    too_many_hops,
    unknown_extension,
    no_route,
    forged_loose_route_is_no_open_relay,
    caller_in_anothers_name,
    wrong_password_of_a_caller,
    malformed_requests_leave_the_server_alive,
);

fn client<'a>(scene: &'a Scene, scenario: &'static str, transport: Transport) -> Sipp<'a> {
    Sipp::client(scene, scenario, transport, port::CALLER, scene.at(port::SERVER))
}

/// Whether SIPp is there; it succeeds then.
fn once(sipp: Sipp<'_>) -> bool {
    let Some(running) = sipp.start() else {
        return false;
    };
    running.succeed(1);
    true
}

/// A server, and the place to which requests would go that it does not refuse: nothing may arrive there.
struct Guarded {
    server: Server,
    udp: UdpSocket,
    tcp: TcpListener,
}

fn guarded(scene: &Scene, config: Config) -> Guarded {
    let server = Server::start(scene, &config);
    let udp = UdpSocket::bind(scene.at(port::CALLEE)).expect("binding");
    let tcp = TcpListener::bind(scene.at(port::CALLEE)).expect("binding");
    udp.set_nonblocking(true).expect("not to block");
    tcp.set_nonblocking(true).expect("not to block");
    Guarded { server, udp, tcp }
}

impl Guarded {
    /// Nothing has arrived, now that the server has counted so many final answers of its own, and so has
    /// published what it did before these.
    #[track_caller]
    fn assert_nothing_arrived(&self, answers: u32) {
        let made = |n: f64| n >= f64::from(answers);
        self.server
            .wait_for_metric("trapezoid_responses_made_total", "class=\"4xx\"", made);
        let relayed = self.server.metric("trapezoid_requests_relayed_total", "");
        assert_eq!(relayed, 0.0, "relayed");
        let mut buffer = [0; 2048];
        let datagram = self.udp.recv(&mut buffer);
        let datagram = datagram.map(|n| String::from_utf8_lossy(&buffer[..n]).into_owned());
        assert!(datagram.is_err(), "relayed: {datagram:?}");
        assert!(
            self.tcp.accept().is_err(),
            "a connection was opened towards the callee"
        );
    }
}

fn options_to_the_server(transport: Transport) {
    let scene = Scene::new();
    let _server = Server::start(&scene, &Config::new());
    let uri = format!("sip:{}", scene.at(port::SERVER));
    let options = client(&scene, "options", transport)
        .set("to", uri.clone())
        .set("uri", uri);
    once(options.expect_header("Accept-Encoding", "identity"));
}

fn too_many_hops(transport: Transport) {
    let scene = Scene::new();
    let guarded = guarded(
        &scene,
        Config::new().invites_to(&format!("sip:{}", scene.at(port::CALLEE)), ""),
    );
    let invite = client(&scene, "uac_refused", transport)
        .set("max_forwards", "0")
        .set("code", "483");
    if once(invite) {
        guarded.assert_nothing_arrived(1);
    }
}

fn unknown_extension(transport: Transport) {
    let scene = Scene::new();
    let guarded = guarded(
        &scene,
        Config::new().invites_to(&format!("sip:{}", scene.at(port::CALLEE)), ""),
    );
    let invite = client(&scene, "uac_refused", transport)
        .set("extra", "Proxy-Require: foo")
        .set("code", "420");
    if once(invite.expect_header("Unsupported", "foo")) {
        guarded.assert_nothing_arrived(1);
    }
}

fn no_route(transport: Transport) {
    let scene = Scene::new();
    let _server = Server::start(&scene, &Config::new());
    let invite = client(&scene, "uac_refused", transport)
        .set("uri", "sip:someone@elsewhere.example")
        .set("to", "sip:someone@elsewhere.example")
        .set("from", "sip:someone@another.example");
    once(invite.set("code", "403"));
    // A user of ours without a registration: RFC 3261 §16.5 has an empty target set.
    let mut wire = Client::new(&scene, transport, port::CALLER + 1, scene.at(port::SERVER));
    wire.send(
        "INVITE sip:bob@example.com SIP/2.0\nMax-Forwards: 70\nFrom: <sip:alice@example.com>;tag=1\n\
         To: <sip:bob@example.com>\nCall-ID: absent\nCSeq: 1 INVITE\nContact: <sip:alice@192.0.2.1>\n",
        "absent",
    );
    let answer = wire.final_response();
    assert!([404, 480].contains(&answer.status()), "{answer:?}");
}

/// A To tag and a Route with our address, but not one that we issued: the request counts as new,
/// and no rule lets it go where it wants.
fn forged_loose_route_is_no_open_relay(transport: Transport) {
    let scene = Scene::new();
    let guarded = guarded(&scene, Config::new());
    let mut wire = Client::new(&scene, transport, port::CALLER, scene.at(port::SERVER));
    let routes = [
        format!("Route: <sip:{};lr>", scene.at(port::SERVER)),
        format!("Route: <sip:{};lr;m=AAAAAAAAAAAA>", scene.at(port::SERVER)),
        format!(
            "Route: <sip:{};lr>, <sip:{};lr>",
            scene.at(port::SERVER),
            scene.at(port::CALLEE)
        ),
    ];
    for (number, route) in routes.iter().enumerate() {
        for method in ["BYE", "INVITE"] {
            let request = format!(
                "{method} sip:victim@{} SIP/2.0\nMax-Forwards: 70\n{route}\nFrom: <sip:eve@another.example>;tag=e\n\
                 To: <sip:victim@another.example>;tag=v\nCall-ID: forged-{number}-{method}\nCSeq: 2 {method}\n\
                 Contact: <sip:eve@{}>\n",
                scene.at(port::CALLEE),
                wire.local(),
            );
            wire.send(&request, &format!("forged{number}{method}"));
            let answer = wire.final_response();
            assert_eq!(answer.status(), 403, "{method} with {route}: {answer:?}");
        }
    }
    guarded.assert_nothing_arrived(6);
}

/// Good credentials of alice, From of another user of the domain.
fn caller_in_anothers_name(transport: Transport) {
    let scene = Scene::new();
    let config = Config::new()
        .auth(&["INVITE"])
        .user("alice", "wonderland")
        .user("bob", "builder");
    let target = format!("sip:{}", scene.at(port::CALLEE));
    let guarded = guarded(&scene, config.invites_to(&target, ""));
    let invite = client(&scene, "uac_refused_auth", transport)
        .set("from", "sip:bob@example.com")
        .set("code", "403");
    if once(invite) {
        guarded.assert_nothing_arrived(2);
    }
}

fn wrong_password_of_a_caller(transport: Transport) {
    let scene = Scene::new();
    let config = Config::new().auth(&["INVITE"]).user("alice", "wonderland");
    let target = format!("sip:{}", scene.at(port::CALLEE));
    let guarded = guarded(&scene, config.invites_to(&target, ""));
    let invite = client(&scene, "uac_refused_auth", transport)
        .set("password", "looking-glass")
        .set("code", "407")
        .set("or_code", "403");
    if once(invite) {
        guarded.assert_nothing_arrived(2);
    }
}

/// Each on a connection of its own, for a stream may be closed after it; then OPTIONS still works.
fn malformed_requests_leave_the_server_alive(transport: Transport) {
    let scene = Scene::new();
    let _server = Server::start(&scene, &Config::new());
    let samples: [&[u8]; 6] = [
        b"INVITE\r\n\r\n",
        b"INVITE sip:a@b SIP/2.0\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"INVITE sip:a@b SIP/2.0\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
        b"\x00\xff\xfe\r\n\r\n",
        b"SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP\r\nCSeq: 99999999999 INVITE\r\n\r\n",
        b"REGISTER sip:example.com SIP/2.0\r\nVia: ;;;\r\nTo: <\r\nFrom: \"\r\nContact: *\r\n\r\n",
    ];
    for (number, sample) in (0u16..).zip(samples) {
        let mut wire = Client::new(&scene, transport, 5200 + number, scene.at(port::SERVER));
        wire.send_bytes(sample);
    }
    let uri = format!("sip:{}", scene.at(port::SERVER));
    once(
        client(&scene, "options", transport)
            .set("to", uri.clone())
            .set("uri", uri),
    );
}
