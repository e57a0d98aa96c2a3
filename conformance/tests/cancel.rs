//! Callers that give up, and callees that never answer.

use std::time::{Duration, Instant};

use conformance::{Config, Scene, Server, Sipp, Transport, over_udp_and_tcp, port};

const CALLS: u32 = 3;

over_udp_and_tcp!(
    cancel_while_it_rings,
    cancel_while_it_rings_stateless,
    cancel_before_the_callee_has_said_anything,
    callee_never_answers,
);

fn callee_uri(scene: &Scene, transport: Transport) -> String {
    format!("sip:{};transport={}", scene.at(port::CALLEE), transport.name())
}

/// The callee's scenario accepts CANCEL only in its place, answers 487, and wants its ACK; the
/// caller gets 200 to the CANCEL and one 487.
fn cancelled(config: Config, caller: &'static str, callee: &'static str, transport: Transport) {
    let scene = Scene::new();
    let _server = Server::start(&scene, &config.invites_to(&callee_uri(&scene, transport), ""));
    let Some(callee) = Sipp::server(&scene, callee, transport, port::CALLEE)
        .calls(CALLS, 50)
        .start()
    else {
        return;
    };
    let caller = Sipp::client(&scene, caller, transport, port::CALLER, scene.at(port::SERVER))
        .calls(CALLS, 50)
        .start()
        .expect("SIPp, as above");
    caller.succeed(CALLS);
    callee.succeed_with_one_invite_each(CALLS);
}

fn cancel_while_it_rings(transport: Transport) {
    cancelled(Config::new(), "uac_cancel", "uas_cancelled", transport);
}

fn cancel_while_it_rings_stateless(transport: Transport) {
    // Two workers may relay two datagrams in either order, and the scenario wants the 200 before the 487.
    cancelled(
        Config::new().stateless().workers(1),
        "uac_cancel",
        "uas_cancelled",
        transport,
    );
}

/// RFC 3261 §9.1: a CANCEL waits for a provisional response. The caller has ours (100), the
/// server has none yet from the callee, and so holds the CANCEL back.
fn cancel_before_the_callee_has_said_anything(transport: Transport) {
    cancelled(Config::new(), "uac_cancel_early", "uas_cancelled_late", transport);
}

/// Timer B, 64 × T1, shortened by the configuration: the caller gets 408.
fn callee_never_answers(transport: Transport) {
    let scene = Scene::new();
    let config = Config::new()
        .invites_to(&callee_uri(&scene, transport), "")
        .table("[timers]", "t1_ms = 100");
    let _server = Server::start(&scene, &config);
    // Takes what is sent, says nothing.
    let _udp = std::net::UdpSocket::bind(scene.at(port::CALLEE)).expect("binding");
    let _tcp = std::net::TcpListener::bind(scene.at(port::CALLEE)).expect("binding");
    let began = Instant::now();
    let Some(caller) = Sipp::client(
        &scene,
        "uac_refused",
        transport,
        port::CALLER,
        scene.at(port::SERVER),
    )
    .set("code", "408")
    .start() else {
        return;
    };
    caller.succeed(1);
    assert!(
        began.elapsed() >= Duration::from_millis(6_400),
        "given up before 64 x T1: {:?}",
        began.elapsed()
    );
}
