//! A call through us and through a proxy of another make: two Record-Routes, two digests' worth
//! of Via, one dialog.

use conformance::{Config, Kamailio, Scene, Server, Sipp, Transport, over_udp_and_tcp, port};

over_udp_and_tcp!(through_kamailio_to_the_callee);

fn through_kamailio_to_the_callee(transport: Transport) {
    const CALLS: u32 = 5;
    let scene = Scene::new();
    let next_hop = format!("sip:{};transport={}", scene.at(port::NEXT_HOP), transport.name());
    let config = Config::new()
        .auth(&["REGISTER", "INVITE"])
        .user("alice", "wonderland")
        .invites_to(&next_hop, "");
    let _server = Server::start(&scene, &config);
    let Some(_kamailio) = Kamailio::start(
        &scene,
        transport,
        scene.at(port::NEXT_HOP),
        scene.at(port::CALLEE),
    ) else {
        return;
    };
    let Some(callee) = Sipp::server(&scene, "uas_call", transport, port::CALLEE)
        .calls(CALLS, 20)
        .start()
    else {
        return;
    };
    let caller = Sipp::client(
        &scene,
        "uac_call_auth",
        transport,
        port::CALLER,
        scene.at(port::SERVER),
    )
    .calls(CALLS, 20)
    .expect_header("Record-Route", &port::NEXT_HOP.to_string())
    // Kamailio's workers may let a BYE overtake its ACK: no call fails of that, but its ACK is not seen.
    .set("hold_ms", "200")
    .start()
    .expect("SIPp, as above");
    caller.succeed(CALLS);
    callee.succeed(CALLS);
}
