//! Two real phones, as their users would use them.

use conformance::{Baresip, Config, Scene, Server, Transport, over_udp_and_tcp, port};

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
    let Some((mut alice, mut bob)) = two_phones(&scene, transport) else {
        return;
    };
    alice.command("dial", "sip:bob@example.com");
    let ringing = bob.expect_event("CALL_INCOMING");
    assert_eq!(ringing["peeruri"], "sip:alice@example.com", "{ringing}");
    alice.expect_event("CALL_RINGING");
    bob.command("accept", "");
    alice.expect_event("CALL_ESTABLISHED");
    bob.expect_event("CALL_ESTABLISHED");
    bob.command("hangup", "");
    alice.expect_event("CALL_CLOSED");
    bob.expect_event("CALL_CLOSED");
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
