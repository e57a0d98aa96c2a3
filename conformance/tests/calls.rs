//! Calls between SIPp and SIPp through the server.

use conformance::{Config, Running, Scene, Server, Sipp, Transport, over_udp_and_tcp, port};

const CALLS: u32 = 5;

over_udp_and_tcp!(
    stateless_by_static_route,
    stateful_by_static_route,
    stateful_with_digest,
    stateless_with_digest,
    without_record_route,
    by_location_of_a_registered_phone,
    busy,
    busy_stateless,
);

fn caller<'a>(scene: &'a Scene, scenario: &'static str, transport: Transport) -> Sipp<'a> {
    Sipp::client(scene, scenario, transport, port::CALLER, scene.at(port::SERVER)).calls(CALLS, 50)
}

fn callee<'a>(scene: &'a Scene, scenario: &'static str, transport: Transport) -> Sipp<'a> {
    Sipp::server(scene, scenario, transport, port::CALLEE).calls(CALLS, 50)
}

fn callee_uri(scene: &Scene, transport: Transport) -> String {
    format!("sip:{};transport={}", scene.at(port::CALLEE), transport.name())
}

/// Both ends: every call went through, none was doubled.
fn expect_all(caller: Running, callee: Running) {
    caller.succeed(CALLS);
    callee.succeed_with_one_invite_each(CALLS);
}

/// A call over the configured static route; the 200 names our Record-Route.
fn call_by_static_route(config: Config, scenario: &'static str, transport: Transport) {
    let scene = Scene::new();
    let config = config.invites_to(&callee_uri(&scene, transport), "");
    let _server = Server::start(&scene, &config);
    let Some(callee) = callee(&scene, "uas_call", transport)
        .expect_header("Record-Route", ";lr")
        .start()
    else {
        return;
    };
    let caller = caller(&scene, scenario, transport)
        .expect_header("Record-Route", &scene.ip().to_string())
        .start()
        .expect("SIPp, as above");
    expect_all(caller, callee);
}

fn stateless_by_static_route(transport: Transport) {
    call_by_static_route(Config::new().stateless(), "uac_call", transport);
}

fn stateful_by_static_route(transport: Transport) {
    call_by_static_route(Config::new(), "uac_call", transport);
}

fn stateful_with_digest(transport: Transport) {
    let config = Config::new()
        .auth(&["REGISTER", "INVITE"])
        .user("alice", "wonderland");
    call_by_static_route(config, "uac_call_auth", transport);
}

fn stateless_with_digest(transport: Transport) {
    let config = Config::new()
        .stateless()
        .auth(&["REGISTER", "INVITE"])
        .user("alice", "wonderland");
    call_by_static_route(config, "uac_call_auth", transport);
}

/// Out of the path of the dialog: ACK and BYE reach us only because this caller sends them here;
/// a rule lets them go on to where they say.
fn without_record_route(transport: Transport) {
    let scene = Scene::new();
    let config = Config::new()
        .invites_to(&callee_uri(&scene, transport), "record_route = false")
        .route("when = { method = [\"BYE\"] }\ndo = { relay = \"request-uri\" }\nrecord_route = false");
    let _server = Server::start(&scene, &config);
    let Some(callee) = callee(&scene, "uas_call", transport)
        .refuse_header("Record-Route", ".")
        .start()
    else {
        return;
    };
    let caller = caller(&scene, "uac_call", transport)
        .refuse_header("Record-Route", ".")
        .start();
    expect_all(caller.expect("SIPp, as above"), callee);
}

fn by_location_of_a_registered_phone(transport: Transport) {
    let scene = Scene::new();
    let config = Config::new()
        .auth(&["REGISTER", "INVITE"])
        .user("alice", "wonderland")
        .user("bob", "builder");
    let server = Server::start(&scene, &config);
    let contact = format!(
        "Contact: <sip:bob@{};transport={}>",
        scene.at(port::CALLEE),
        transport.name()
    );
    let Some(register) = Sipp::client(
        &scene,
        "register_auth",
        transport,
        port::CALLEE,
        scene.at(port::SERVER),
    )
    .set("from", "sip:bob@example.com")
    .set("user", "bob")
    .set("password", "builder")
    .set("contact", contact)
    .expect_header("Contact", "sip:bob@")
    .start() else {
        return;
    };
    register.succeed(1);
    // The phone's socket is bound anew: over TCP its old connection has gone.
    if transport == Transport::Tcp {
        server.wait_for_metric("trapezoid_net_connections_closed_total", "", |n| n >= 1.0);
    }
    let callee = callee(&scene, "uas_call", transport)
        .start()
        .expect("SIPp, as above");
    let caller = caller(&scene, "uac_call_auth", transport)
        .start()
        .expect("SIPp, as above");
    expect_all(caller, callee);
}

fn refused_with_486(config: Config, transport: Transport) {
    let scene = Scene::new();
    let config = config.invites_to(&callee_uri(&scene, transport), "");
    let _server = Server::start(&scene, &config);
    let Some(callee) = callee(&scene, "uas_refuse", transport).set("code", "486").start() else {
        return;
    };
    let caller = caller(&scene, "uac_refused", transport)
        .set("code", "486")
        .start();
    expect_all(caller.expect("SIPp, as above"), callee);
}

fn busy(transport: Transport) {
    refused_with_486(Config::new(), transport);
}

fn busy_stateless(transport: Transport) {
    refused_with_486(Config::new().stateless(), transport);
}

/// Callers with a connection for each call, many of them at once, and one callee that the server reaches by a
/// single connection.
fn over_a_connection_for_each_call(config: Config) {
    const MANY: u32 = 40;
    let scene = Scene::new();
    let to = callee_uri(&scene, Transport::Tcp);
    let server = Server::start(&scene, &config.invites_to(&to, ""));
    let Some(callee) = callee(&scene, "uas_call", Transport::Tcp)
        .calls(MANY, 200)
        .start()
    else {
        return;
    };
    let caller = caller(&scene, "uac_call", Transport::Tcp)
        .calls(MANY, 200)
        .set("hold_ms", "200")
        .connection_per_call()
        .start()
        .expect("SIPp, as above");
    caller.succeed(MANY);
    callee.succeed(MANY);
    let name = "trapezoid_net_connections_total";
    let opened = server.wait_for_metric(name, "\"peer\"", |n| n >= f64::from(MANY));
    assert!((opened - f64::from(MANY)).abs() < 0.5, "{opened}");
    // Each worker has its own.
    let to_callee = server.wait_for_metric(name, "\"server\"", |n| n >= 1.0);
    assert!(to_callee <= 2.0, "{to_callee}");
}

#[test]
fn a_connection_for_each_call() {
    over_a_connection_for_each_call(Config::new());
}

#[test]
fn a_connection_for_each_call_stateless() {
    over_a_connection_for_each_call(Config::new().stateless());
}

/// SIPp drops a tenth of what it sends and of what it gets, at both ends: the retransmissions of
/// callers, server and callees bring every call through, and no callee sees an INVITE as new twice.
fn call_under_loss(config: Config) {
    const MANY: u32 = 100;
    let scene = Scene::new();
    let _server = Server::start(
        &scene,
        &config.invites_to(&callee_uri(&scene, Transport::Udp), ""),
    );
    let callee = callee(&scene, "uas_call_lossy", Transport::Udp)
        .lost_percent(10)
        .unbounded();
    let Some(callee) = callee.start() else { return };
    // What is lost is soon sent again, so that it is often enough before SIPp gives up.
    let caller = caller(&scene, "uac_call_lossy", Transport::Udp)
        .calls(MANY, 50)
        .lost_percent(10)
        .set("retrans", "200");
    let caller = caller.start().expect("SIPp, as above");
    let calling = caller.succeed(MANY);
    let branches = callee.invites_received();
    let called = callee.stop(MANY);
    assert_eq!(called.incoming(), u64::from(MANY), "{called:?}");
    assert_eq!(branches.len(), MANY as usize, "calls at the callee");
    let doubled: Vec<_> = branches.iter().filter(|(_, b)| b.len() != 1).collect();
    assert!(doubled.is_empty(), "INVITEs that came as new twice: {doubled:?}");
    assert!(calling.retransmissions() > 0, "nothing was lost: {calling:?}");
}

#[test]
fn no_call_is_lost_at_ten_percent_loss() {
    call_under_loss(Config::new());
}

#[test]
fn no_call_is_lost_at_ten_percent_loss_stateless() {
    call_under_loss(Config::new().stateless());
}
