//! More than the server has room for: new calls and registrations are dropped, and established calls go on.

use std::net::{SocketAddr, UdpSocket};

use conformance::{Agent, Client, Config, DOMAIN, Dialog, Link, Message, Scene, Server, Transport, port};

/// Datagrams of new work; the queues of the test have room for a hundred or so.
const FLOOD: usize = 2_000;

/// A request of a stranger, without a dialog.
fn new_work(method: &str, number: usize) -> String {
    format!(
        "{method} sip:flood@{DOMAIN} SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bKflood{method}{number}\r\n\
         Max-Forwards: 70\r\nFrom: <sip:a{number}@{DOMAIN}>;tag=1\r\nTo: <sip:flood@{DOMAIN}>\r\n\
         Call-ID: flood-{method}-{number}\r\nCSeq: 1 {method}\r\nContact: <sip:a@192.0.2.1>\r\nContent-Length: 0\r\n\r\n"
    )
}

/// A stranger that floods a server which stands still.
struct Flood<'a> {
    server: &'a Server,
    stranger: UdpSocket,
    to: SocketAddr,
    /// Times that it did.
    turns: usize,
}

impl Flood<'_> {
    fn send(&self, method: &str, part: usize) {
        let first = (2 * self.turns + part) * FLOOD;
        for number in first..first + FLOOD {
            let sent = self
                .stranger
                .send_to(new_work(method, number).as_bytes(), self.to);
            sent.expect("sent");
        }
    }

    /// A message comes behind two thirds of a flood and before one.
    fn around(&mut self, send: impl FnOnce()) {
        self.server.stopped(|| {
            self.send("INVITE", 0);
            self.send("REGISTER", 0);
            send();
            self.send("INVITE", 1);
        });
        self.turns += 1;
    }

    /// Nearly all of it was dropped, and nothing else.
    #[track_caller]
    fn was_dropped(&self) {
        let sent = (FLOOD * self.turns) as f64;
        // What a worker counts is published some time later.
        for (cause, least) in [
            ("call-queue-full", 1.5 * sent),
            ("request-queue-full", 0.5 * sent),
        ] {
            let label = format!("cause=\"{cause}\"");
            self.server
                .wait_for_metric("trapezoid_net_udp_dropped_total", &label, |n| n > least);
        }
        let others = "cause=\"receive-buffer-full\"";
        let others = self.server.metric("trapezoid_net_udp_dropped_total", others);
        assert!(others < 1.0, "{others}");
        self.server.wait_for_log("established calls go on");
    }
}

/// The next message that the callee gets: one of the call.
#[track_caller]
fn next(callee: &mut Agent, method: &str) -> Message {
    let message = callee.receive();
    let is_next = message.header("call-id") == "established" && message.cseq_method() == method;
    assert!(is_next, "{message:?}");
    message
}

/// Each message of a call comes while the server stands still, in a flood. None is sent twice.
fn a_call_in_a_flood(state: Config) {
    let scene = Scene::new();
    let config = state
        .workers(1)
        // Those of the flood are for a user who is not registered.
        .route(&format!(
            "when = {{ uri = \"^sip:bob@\" }}\ndo = {{ relay = \"sip:{}\" }}",
            scene.at(port::CALLEE)
        ))
        .table("[overload]", "new_work_queue_bytes = 65536");
    let server = Server::start(&scene, &config);
    if server.log().contains("have no queues of their own") {
        // A kernel before Linux 6.8.
        return;
    }
    let at = |port| Link::open(Transport::Udp, scene.at(port), scene.at(port::SERVER), None);
    let mut caller = Client::over(at(port::CALLER).expect("a socket")).sending_once();
    let mut callee = Agent::new(at(port::CALLEE).expect("a socket"), "bob", "builder");
    caller.invite("bob", "established");
    let invite = callee.expect_request("INVITE");
    let mut flood = Flood {
        server: &server,
        stranger: UdpSocket::bind((scene.ip(), 0)).expect("a socket"),
        to: scene.at(port::SERVER),
        turns: 0,
    };
    flood.around(|| callee.answer(&invite, 200, ""));
    let answer = caller.final_response();
    assert_eq!((answer.status(), answer.header("call-id")), (200, "established"));
    let dialog = Dialog::of_callee(&invite, &answer);
    flood.around(|| caller.acknowledge("bob", "established", &answer));
    next(&mut callee, "ACK");
    flood.around(|| callee.in_dialog("INVITE", &dialog));
    let re_invite = loop {
        let message = caller.receive();
        if message.first_line.starts_with("INVITE ") {
            break message;
        }
    };
    assert_eq!(re_invite.header("call-id"), "established");
    flood.around(|| caller.in_dialog("BYE", 2, "established", &answer));
    let bye = next(&mut callee, "BYE");
    flood.around(|| callee.answer(&bye, 200, ""));
    let done = caller.final_response();
    assert_eq!((done.status(), done.cseq_method()), (200, "BYE"));
    flood.was_dropped();
}

#[test]
fn a_call_with_state_goes_on_in_a_flood() {
    a_call_in_a_flood(Config::new());
}

#[test]
fn a_call_without_state_goes_on_in_a_flood() {
    a_call_in_a_flood(Config::new().stateless());
}
