//! Phones in web pages: Chromium with JsSIP, over WebSocket and over secured WebSocket (RFC 7118),
//! with media between them (RFC 8834).

use conformance::{
    Authority, Browser, Config, DOMAIN, Identity, Name, Scene, Server, Sipp, Tab, Transport, port,
};
use serde_json::json;

/// A server that asks for credentials, and the certificate that it shows.
fn serve(scene: &Scene, config: Config) -> (Server, Identity) {
    let authority = Authority::new(scene, "authority");
    let identity = authority.issue("server", &[Name::Dns(DOMAIN), Name::Ip(scene.ip())]);
    let mut config = config
        .auth(&["REGISTER", "INVITE"])
        .user("alice", "wonderland")
        .user("bob", "builder");
    for transport in [Transport::Ws, Transport::Wss] {
        config = config.listen(scene, transport, &identity, "");
    }
    (Server::start(scene, &config), identity)
}

fn url(scene: &Scene, transport: Transport) -> String {
    let scheme = if transport == Transport::Wss { "wss" } else { "ws" };
    format!("{scheme}://{}/", scene.at(transport.port()))
}

/// A call that one end makes, the other takes and the first ends, with media both ways.
fn talk(caller: &Tab<'_>, callee: &Tab<'_>, name: &str) {
    caller.call(name);
    callee.expect("call", &json!("ringing"));
    caller.expect("call", &json!("ringing"));
    callee.answer();
    for phone in [caller, callee] {
        phone.expect("call", &json!("established"));
    }
    for phone in [caller, callee] {
        phone.expect_that("received", |packets| packets.as_u64() > Some(10));
        let state = phone.expect_that("sent", |packets| packets.as_u64() > Some(10));
        assert_eq!(state["trouble"], json!([]), "{state}");
    }
    caller.hang_up();
    let state = callee.expect("call", &json!("ended"));
    assert_eq!(
        (&state["by"], &state["cause"]),
        (&json!("remote"), &json!("Terminated"))
    );
    let state = caller.expect("call", &json!("ended"));
    assert_eq!(state["by"], json!("local"));
}

/// One is connected by a plain WebSocket, the other by a secured one; each calls the other.
#[test]
fn two_browsers_talk() {
    let scene = Scene::new();
    let (_server, identity) = serve(&scene, Config::new());
    let Some(browser) = Browser::start(&scene, Some(&identity)) else {
        return;
    };
    let alice = browser.phone(&url(&scene, Transport::Ws), "alice", "wonderland");
    let bob = browser.phone(&url(&scene, Transport::Wss), "bob", "builder");
    talk(&alice, &bob, "bob");
    talk(&bob, &alice, "alice");
}

/// The callee answers with SDP as another browser would write it; no media follows.
#[test]
fn a_browser_calls_sipp_over_udp() {
    let scene = Scene::new();
    let to = format!("sip:{};transport=udp", scene.at(port::CALLEE));
    let (_server, identity) = serve(&scene, Config::new().invites_to(&to, ""));
    let Some(callee) = Sipp::server(&scene, "uas_webrtc", Transport::Udp, port::CALLEE)
        .expect_header("Via", "SIP/2.0/UDP")
        .start()
    else {
        return;
    };
    let Some(browser) = Browser::start(&scene, Some(&identity)) else {
        return;
    };
    let alice = browser.phone(&url(&scene, Transport::Wss), "alice", "wonderland");
    alice.call("sipp");
    let state = alice.expect("call", &json!("established"));
    assert_eq!(state["trouble"], json!([]), "{state}");
    alice.hang_up();
    alice.expect("call", &json!("ended"));
    callee.succeed(1);
}
