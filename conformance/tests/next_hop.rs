//! A call through us and through a proxy of another make: two Record-Routes, two digests' worth
//! of Via, one dialog.

use std::net::UdpSocket;
use std::time::Instant;

use conformance::{
    Client, Config, DOMAIN, Kamailio, NameServer, PATIENCE, Scene, Server, Sipp, Transport, binary,
    namespaces, over_udp_and_tcp, port, wait_until,
};

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

/// A call by a name that cannot be looked up fails at once. The log has one line on it, and one when it is over.
#[test]
fn the_loss_and_return_of_name_servers_are_logged() {
    const GATEWAY: &str = "gateway.example.net";
    let scene = Scene::new();
    let names = NameServer::start(&scene, &[GATEWAY]);
    let config = Config::new()
        .table("[dns]", &format!("{}\ntimeout_ms = 100", names.toml()))
        .invites_to(&format!("sip:{GATEWAY}:{}", port::NEXT_HOP), "");
    // The name server is replaced by a socket that never answers.
    drop(names);
    let silent = UdpSocket::bind(NameServer::address(&scene)).expect("the name server's port");
    let server = Server::start(&scene, &config);
    let mut client = Client::new(&scene, Transport::Udp, port::CALLER, scene.at(port::SERVER));
    let invite = |number: u32| {
        format!(
            "INVITE sip:100@{DOMAIN} SIP/2.0\nMax-Forwards: 70\nFrom: <sip:a@{DOMAIN}>;tag={number}\nTo: <sip:100@{DOMAIN}>\n\
             Call-ID: away{number}\nCSeq: 1 INVITE\nContact: <sip:a@192.0.2.9>\n"
        )
    };
    client.send(&invite(1), "away1");
    let refused = client.final_response();
    assert!(refused.status() >= 400, "{refused:?}");
    server.wait_for_log("name servers do not respond");
    drop(silent);
    let _names = NameServer::start(&scene, &[GATEWAY]);
    let responds_again = || server.log().contains("name servers respond again");
    let timed_out = || server.metric("trapezoid_dns_lookups", "result=\"timed-out\"");
    // On a busy machine an answer may come after the time-out of 100 ms: then the next call asks again.
    let begun = Instant::now();
    for number in 2.. {
        let before = timed_out();
        client.send(&invite(number), &format!("away{number}"));
        wait_until("the look-up is over", || responds_again() || timed_out() > before);
        if responds_again() {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "the return is never logged");
    }
}

/// What `trapezoid check --connect` says on a machine with this `/etc/resolv.conf` and no network: whether it is
/// content, and its lines. `None`: see [`namespaces`].
fn checked_with(scene: &Scene, resolv: &str) -> Option<(bool, String)> {
    let mut command = namespaces(&["--mount", "--net"])?;
    std::fs::write(scene.path("resolv.conf"), resolv).expect("writable");
    let config = "[[listen]]\ntransport = \"udp\"\naddress = \"127.0.0.1:5060\"\n[dns]\ntimeout_ms = 200\n";
    std::fs::write(scene.path("system.toml"), config).expect("writable");
    let output = command
        .args([
            "sh",
            "-c",
            "mount --bind resolv.conf /etc/resolv.conf && exec \"$0\" \"$@\"",
        ])
        .arg(binary())
        .args(["check", "--connect", "--config", "system.toml"])
        .current_dir(scene.dir())
        .output()
        .expect("unshare runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Some((output.status.success(), text))
}

/// Without `dns.nameservers` the server asks those of the system, so they are tried, each by itself.
#[test]
fn check_connect_tries_the_name_servers_of_the_system() {
    let scene = Scene::new();
    let Some((content, text)) = checked_with(&scene, "nameserver 192.0.2.53\nnameserver 192.0.2.54\n") else {
        return;
    };
    assert!(!content, "{text}");
    for server in ["192.0.2.53:53", "192.0.2.54:53"] {
        let line = format!("failed: name server {server} of /etc/resolv.conf: gives no result for ");
        assert_eq!(text.matches(&line).count(), 1, "{text}");
    }
    assert!(text.contains("2 of these failed"), "{text}");
    // The server starts without name service; that it has none is a failure here.
    let (content, text) = checked_with(&scene, "# none\n").expect("as above");
    assert!(
        !content && text.contains("failed: name servers of /etc/resolv.conf: "),
        "{text}"
    );
    assert!(text.contains("1 of these failed"), "{text}");
}
