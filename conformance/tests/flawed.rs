//! Responses with flaws from a callee on a connection: what the caller and the callee get, and what the log says.

use std::net::TcpListener;

use conformance::{Agent, Client, Config, DOMAIN, Link, Message, Scene, Server, Transport, port, wait_until};

/// A caller, and a callee that a rule leads to by TCP.
struct Stage {
    server: Server,
    caller: Client,
    listener: TcpListener,
    callee: Option<Agent>,
    scene: Scene,
}

impl Stage {
    fn new() -> Self {
        let scene = Scene::new();
        let at = scene.at(port::CALLEE);
        let listener = TcpListener::bind(at).expect("binding");
        listener.set_nonblocking(true).expect("not to block");
        // One worker logs in the order of what comes.
        let config = Config::new()
            .workers(1)
            .invites_to(&format!("sip:{at};transport=tcp"), "");
        Self {
            server: Server::start(&scene, &config),
            caller: Client::new(&scene, Transport::Tcp, port::CALLER, scene.at(port::SERVER)),
            listener,
            callee: None,
            scene,
        }
    }

    /// The callee on the server's next connection.
    fn accept(&self) -> Agent {
        let mut accepted = None;
        wait_until("a connection to the callee", || {
            accepted = self.listener.accept().ok();
            accepted.is_some()
        });
        let (socket, _) = accepted.expect("accepted, as above");
        Agent::new(Link::accepted(socket), "bob", "")
    }

    /// Calls bob, answered with this status and `by` in place of `what`. Returns the INVITE as it came to
    /// bob.
    fn call(&mut self, call: &str, status: u16, what: &str, by: &str) -> Message {
        self.caller.invite("bob", call);
        let mut callee = match self.callee.take() {
            Some(callee) => callee,
            None => self.accept(),
        };
        let invite = callee.expect_request("INVITE");
        let good = callee.response(&invite, status, "");
        let flawed = good.replacen(what, by, 1);
        assert_ne!(flawed, good, "{what:?}");
        callee.client().send_bytes(flawed.as_bytes());
        self.callee = Some(callee);
        invite
    }

    fn callee(&mut self) -> &mut Agent {
        self.callee.as_mut().expect("called before")
    }

    /// The call is answered with two tags, and goes on as any other.
    fn two_tags(&mut self, call: &str) {
        self.call(call, 200, ";tag=abob", ";tag=abob;tag=another");
        let ok = self.caller.final_response();
        let to = format!("<sip:bob@{DOMAIN}>;tag=abob");
        assert_eq!((ok.status(), ok.header("to")), (200, to.as_str()), "{ok:?}");
        self.caller.acknowledge("bob", call, &ok);
        assert_eq!(self.callee().expect_request("ACK").header("to"), to);
        self.caller.in_dialog("BYE", 2, call, &ok);
        let bye = self.callee().expect_request("BYE");
        self.callee().answer(&bye, 200, "");
        assert_eq!(self.caller.final_response().status(), 200);
    }

    /// The call is refused by a response that leaves a doubt.
    fn two_tos(&mut self, call: &str) {
        let invite = self.call(
            call,
            486,
            "Content-Length:",
            "To: <sip:eve@example.com>\r\nContent-Length:",
        );
        let refused = self.caller.final_response();
        assert_eq!(refused.status(), 502, "{refused:?}");
        assert!(!refused.header("to").contains("eve"), "{refused:?}");
        self.caller.acknowledge("bob", call, &refused);
        let ack = self.callee().expect_request("ACK");
        assert_eq!(ack.branch(), invite.branch());
    }
}

#[test]
fn flawed_responses_on_a_connection_go_on_mended_or_end_their_calls() {
    let mut stage = Stage::new();
    for call in ["two-tags-1", "two-tags-2"] {
        stage.two_tags(call);
    }
    for call in ["two-tos-1", "two-tos-2"] {
        stage.two_tos(call);
    }
    stage.call(
        "no-colon",
        486,
        "Content-Length:",
        "no colon here\r\nContent-Length:",
    );
    let refused = stage.caller.final_response();
    assert_eq!(refused.status(), 486, "{refused:?}");
    stage.caller.acknowledge("bob", "no-colon", &refused);
    // Each peer and flaw has one line. That of the last flaw comes after those of the others.
    let log = stage.server.wait_for_log("flaw=\"Malformed Header Line\"");
    let lines = log.lines().filter(|line| line.contains("responses of a peer"));
    let lines: Vec<&str> = lines.collect();
    let peer = format!(" peer={} ", stage.scene.at(port::CALLEE));
    let expected = [
        ("INFO", "they go on mended", "Malformed To", "two-tags-1"),
        (
            "WARN",
            "their requests fail",
            "Repeated Header Field",
            "two-tos-1",
        ),
        ("INFO", "they go on mended", "Malformed Header Line", "no-colon"),
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, (level, says, flaw, call)) in lines.into_iter().zip(expected) {
        let fields = format!("flaw=\"{flaw}\" call_id=\"{call}\" since=1");
        for part in [level, says, &peer, &fields] {
            assert!(line.contains(part), "{part:?} in {line}");
        }
    }
}

/// After a line end that is no CRLF the beginning of the next message is unknown.
#[test]
fn a_response_that_cannot_be_framed_ends_its_call_and_its_connection() {
    let mut stage = Stage::new();
    let invite = stage.call(
        "bare-lf",
        486,
        "Content-Length:",
        "Subject: a\n b\r\nContent-Length:",
    );
    let refused = stage.caller.final_response();
    assert_eq!(refused.status(), 502, "{refused:?}");
    stage.caller.acknowledge("bob", "bare-lf", &refused);
    assert_eq!(stage.callee().client().receive_unless_closed(), None);
    // Its ACK and the next call come on another connection.
    stage.callee = Some(stage.accept());
    let ack = stage.callee().expect_request("ACK");
    assert_eq!(ack.branch(), invite.branch());
    stage.server.wait_for_log("flaw=\"Line End Is Not CRLF\"");
    stage.two_tags("next");
}
