//! Two real phones, as their users would use them.

use conformance::{
    Authority, Baresip, Config, DOMAIN, Name, Scene, Server, Transport, over_udp_and_tcp, port,
};

over_udp_and_tcp!(
    one_calls_the_other_who_answers_and_hangs_up,
    one_calls_the_other_who_declines
);

fn two_phones(scene: &Scene, transport: Transport) -> Option<(Baresip, Baresip)> {
    let server = scene.at(port::SERVER);
    let mut alice = Baresip::start(scene, 1, "alice", "wonderland", transport, server)?;
    let mut bob = Baresip::start(scene, 2, "bob", "builder", transport, server)?;
    alice.expect_registered();
    bob.expect_registered();
    Some((alice, bob))
}

fn config() -> Config {
    let methods = ["REGISTER", "INVITE", "MESSAGE", "SUBSCRIBE", "PUBLISH", "REFER"];
    Config::new()
        .auth(&methods)
        .user("alice", "wonderland")
        .user("bob", "builder")
}

fn one_calls_the_other_who_answers_and_hangs_up(transport: Transport) {
    let scene = Scene::new();
    let _server = Server::start(&scene, &config());
    if let Some((mut alice, mut bob)) = two_phones(&scene, transport) {
        talk(&mut alice, &mut bob);
    }
}

/// Alice calls, bob answers and hangs up.
fn talk(caller: &mut Baresip, callee: &mut Baresip) {
    let of = |phone: &Baresip| format!("sip:{}@{DOMAIN}", phone.user());
    caller.command("dial", &of(callee));
    let ringing = callee.expect_event("CALL_INCOMING");
    assert_eq!(ringing["peeruri"], of(caller).as_str(), "{ringing}");
    caller.expect_event("CALL_RINGING");
    callee.command("accept", "");
    caller.expect_event("CALL_ESTABLISHED");
    callee.expect_event("CALL_ESTABLISHED");
    callee.command("hangup", "");
    caller.expect_event("CALL_CLOSED");
    callee.expect_event("CALL_CLOSED");
}

fn one_calls_the_other_who_declines(transport: Transport) {
    let scene = Scene::new();
    let _server = Server::start(&scene, &config());
    let Some((mut alice, mut bob)) = two_phones(&scene, transport) else {
        return;
    };
    bob.command("dial", "sip:alice@example.com");
    alice.expect_event("CALL_INCOMING");
    alice.command("hangup", "");
    let closed = bob.expect_event("CALL_CLOSED");
    let reason = closed["param"].as_str().unwrap_or_default();
    assert!(
        reason.contains("486") || reason.contains("603") || reason.contains("Busy"),
        "{closed}"
    );
}

/// Over TLS; each is called over the connection by which it has registered, since it has no certificate to
/// show to a server that would connect to it. (Debian's baresip takes any certificate of a server, with an
/// authority to verify it by or without.)
#[test]
fn phones_call_each_other_over_tls() {
    let scene = Scene::new();
    let authority = Authority::new(&scene, "authority");
    let identity = authority.issue("server", &[Name::Dns(DOMAIN), Name::Ip(scene.ip())]);
    let config = config().listen(&scene, Transport::Tls, &identity, "");
    let _server = Server::start(&scene, &config);
    let to = (Transport::Tls, scene.at(port::TLS));
    let start =
        |line, user, password| Baresip::start_trusting(&scene, line, user, password, to, Some(&authority));
    let Some(mut alice) = start(1, "alice", "wonderland") else {
        return;
    };
    let mut bob = start(2, "bob", "builder").expect("baresip, as above");
    alice.expect_registered();
    bob.expect_registered();
    talk(&mut alice, &mut bob);
    talk(&mut bob, &mut alice);
}
