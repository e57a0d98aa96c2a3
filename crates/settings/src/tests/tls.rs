//! Tests of TLS and WebSocket in `[[listen]]`, and of `[tls]`.

use sip_core::transport::Transport;
use sip_net::tcp::Sharing;
use sip_net::tls::{ClientAuth, Versions};

use super::*;

/// Input, with every line of the messages.
const WRONG: &[(&str, &[&str])] = &[
    (
        "[[listen]]\ntransport = \"tls\"\naddress = \"192.0.2.10:5061\"\n\
         [[listen]]\ntransport = \"wss\"\naddress = \"192.0.2.10:443\"\ntls = { certificate = \"c\", client_auth = \"yes\" }\n\
         [[listen]]\ntransport = \"udp\"\naddress = \"192.0.2.10:5060\"\ntls = { certificate = \"c\", key = \"k\" }\n\
         origins = [\"https://a\"]\nconnection = \"per-peer\"\n\
         [[listen]]\ntransport = \"ws\"\naddress = \"192.0.2.10:80\"\ntls = { certificate = \"c\", key = \"k\" }\n\
         origins = [\"phone.example.com\", \"https://a/b\", \"https://a\"]\nconnection = \"per-call\"\n",
        &[
            "f:1: listen[0].tls: missing; write tls = { certificate = \"cert.pem\", key = \"key.pem\" }",
            "f:7: listen[1].tls.client_auth: \"yes\" is not known; one of \"none\", \"optional\", \"required\"",
            "f:7: listen[1].tls.key: missing; write key = \"…\"",
            "f:11: listen[2].tls: udp has no TLS; remove it, or write transport = \"tls\"",
            "f:12: listen[2].origins: browsers do not speak udp; remove it",
            "f:13: listen[2].connection: no connection is opened from udp; remove it",
            "f:17: listen[3].tls: ws has no TLS; remove it, or write transport = \"wss\"",
            "f:18: listen[3].origins[0]: \"phone.example.com\" is not an origin; write it as \"https://phone.example.com\", with a port where it is not 443, and without a path",
            "f:18: listen[3].origins[1]: \"https://a/b\" is not an origin; write it as \"https://phone.example.com\", with a port where it is not 443, and without a path",
            "f:19: listen[3].connection: no connection is opened from ws; remove it",
        ],
    ),
    (
        "[[listen]]\ntransport = \"tls\"\naddress = \"192.0.2.10:5061\"\n[listen.tls]\ncertificate = \"\"\nkey = \"\"\n\
         more = [ { certificate = \"\", key = \"k\" }, { key = \"k\" } ]\nclient_ca = \"ca.pem\"\nclient_crl = \"\"\nclient_names = [\"a b\", \"a\"]\nticket_keys = \"\"\nversions = [\"1.1\"]\n",
        &[
            "f:5: listen[0].tls.certificate: empty; write the name of a file",
            "f:6: listen[0].tls.key: empty; write the name of a file",
            "f:7: listen[0].tls.more[1].certificate: missing; write certificate = \"…\"",
            "f:7: listen[0].tls.more[0].certificate: empty; write the name of a file",
            "f:8: listen[0].tls.client_ca: clients are not asked for a certificate; write client_auth = \"optional\" or \"required\", or remove it",
            "f:9: listen[0].tls.client_crl: empty; write the name of a file",
            "f:9: listen[0].tls.client_crl: clients are not asked for a certificate; write client_auth = \"optional\" or \"required\", or remove it",
            "f:10: listen[0].tls.client_names: clients are not asked for a certificate; write client_auth = \"optional\" or \"required\", or remove it",
            "f:10: listen[0].tls.client_names[0]: \"a b\" is not a domain; write the peer's SIP domain, as \"edge2.example.com\"",
            "f:11: listen[0].tls.ticket_keys: empty; write the name of a file",
            "f:12: listen[0].tls.versions[0]: \"1.1\" is not known; did you mean \"1.2\"? One of \"1.2\", \"1.3\"",
        ],
    ),
    (
        "[tls]\nca = \"\"\nticket_lifetime_s = 86400\nticket_rotation_s = 60\nremembered_peers = -1\n\
         [[tls.peer]]\ndomain = \"sip:a\"\nca = \"a\"\n[[tls.peer]]\ndomain = \"b.example\"\ncertificate = \"c\"\n\
         [[tls.peer]]\ndomain = \"B.example.\"\nkey = \"k\"\n[[tls.peer]]\ndomain = \"c\"\n[[tls.peer]]\nca = \"a\"\n",
        &[
            "f:2: tls.ca: empty; write the name of a file",
            "f:4: tls.ticket_rotation_s: ticket_rotation_s = 60 is less than a fourteenth of ticket_lifetime_s = 86400; make ticket_rotation_s at least 6172",
            "f:5: tls.remembered_peers: -1 is out of range; 0 to 1000000",
            "f:7: tls.peer[0].domain: \"sip:a\" is not a domain name; write it as \"example.com\", without \"sip:\" and port",
            "f:9: tls.peer[1].key: missing; write key = \"…\"",
            "f:12: tls.peer[2].certificate: missing; write certificate = \"…\"",
            "f:13: tls.peer[2].domain: \"b.example\" has an entry already; remove one of them",
            "f:15: tls.peer[3]: neither ca, crl nor certificate, so nothing is different for it; add one of them, or remove the peer",
            "f:17: tls.peer[4].domain: missing; write domain = \"…\"",
        ],
    ),
    // One port serves one kind of connection; datagrams have ports of their own.
    (
        "[[listen]]\ntransport = \"tcp\"\naddress = \"192.0.2.10:5060\"\n[[listen]]\ntransport = \"ws\"\naddress = \"192.0.2.10:5060\"\n\
         [[listen]]\ntransport = \"udp\"\naddress = \"192.0.2.10:5060\"\n[[listen]]\ntransport = \"ws\"\naddress = \"0.0.0.0:5060\"\n",
        &[
            "f:6: listen[1].address: listen[0] has this address and port, with tcp; name another port",
            "f:12: listen[3].address: 192.0.2.10:5060, which is among them, is listened on with tcp; name another port, or each address by itself",
        ],
    ),
    // TLS settings that are needed before anything can be sent by TLS.
    (
        "[[listen]]\ntransport = \"udp\"\naddress = \"192.0.2.10:5060\"\n[[route]]\ndo = { relay = \"sips:a\" }\n\
         [[route]]\ndo = { relay = \"sip:a;transport=tls\" }\n[[route]]\ndo = { relay = \"sip:a;transport=sctp\" }\n\
         [[route]]\ndo = { relay = \"sip:a;transport=tcp\" }\n[[route]]\ndo = { relay = \"sip:a;transport=udp\" }\n",
        &[
            "f:5: route[0].do.relay: no listener speaks TLS, from which it could be sent; add a [[listen]] with transport = \"tls\"",
            "f:7: route[1].do.relay: no listener speaks TLS, from which it could be sent; add a [[listen]] with transport = \"tls\"",
            "f:9: route[2].do.relay: transport=sctp is not known; use udp, tcp or tls",
            "f:11: route[3].do.relay: no listener speaks TCP, from which it could be sent; add a [[listen]] with transport = \"tcp\"",
        ],
    ),
    (
        "[[listen]]\ntransport = \"tcp\"\naddress = \"192.0.2.10:5060\"\n[[route]]\ndo = { relay = \"sip:a;transport=udp\" }\n\
         [[route]]\ndo = { relay = \"sip:a\" }\n",
        &[
            "f:5: route[0].do.relay: no listener speaks UDP, from which it could be sent; add a [[listen]] with transport = \"udp\"",
        ],
    ),
    (
        "[transport]\nhandshake_s = 0\nfirst_message_s = 3601\nws_ping_s = 3601\nper_call_idle_s = 0\nudp_mtu = 70000\n\
         [limits]\nhandshakes_per_turn = 0\n",
        &[
            "f:2: transport.handshake_s: 0 is out of range; 1 to 300",
            "f:3: transport.first_message_s: 3601 is out of range; 0 to 3600",
            "f:4: transport.ws_ping_s: 3601 is out of range; 0 to 3600",
            "f:5: transport.per_call_idle_s: 0 is out of range; 1 to 86400",
            "f:6: transport.udp_mtu: 70000 is out of range; 0 to 65535",
            "f:8: limits.handshakes_per_turn: 0 is out of range; 1 to 1024",
        ],
    ),
];

#[test]
fn wrong_files_and_what_is_said_of_them() {
    for (input, expected) in WRONG {
        let lines = read(input).map(|_| "valid").expect_err(input);
        assert_eq!(lines, *expected, "{input}");
    }
}

#[test]
fn a_whole_file_with_tls() {
    let loaded = valid(include_str!("../example.toml"));
    let shell = &loaded.shell;
    let transports: Vec<Transport> = loaded
        .core
        .listeners
        .iter()
        .map(|listener| listener.transport)
        .collect();
    use Transport::{Tcp, Tls, Udp, Wss};
    assert_eq!(transports, [Udp, Tcp, Tls, Wss]);
    let of: Vec<Option<usize>> = shell.services.iter().map(|service| service.tls).collect();
    assert_eq!(of, [None, None, Some(0), Some(1)]);
    assert_eq!(shell.services[2].sharing, Sharing::PerCall);
    assert_eq!(shell.services[1].sharing, Sharing::PerPeer);
    let origins = &shell.services[3].origins;
    assert!(origins.allows(Some(b"https://phone.example.com")) && origins.allows(None));
    assert!(!origins.allows(Some(b"https://example.com")));
    assert!(shell.services[0].origins.allows(Some(b"https://example.com")));

    let [tls, wss] = shell.tls.listeners.as_slice() else {
        panic!("two listeners")
    };
    assert_eq!(tls.place, "f:21: listen[2].tls");
    assert_eq!(tls.label, "tls 192.0.2.10:5061");
    let certificates: Vec<&Path> = tls
        .identities
        .iter()
        .map(|files| files.certificate.as_path())
        .collect();
    assert_eq!(
        certificates,
        [
            Path::new("/etc/trapezoid/tls/cert.pem"),
            Path::new("/etc/trapezoid/b.pem")
        ]
    );
    assert_eq!(tls.identities[1].key, Path::new("/etc/trapezoid/b.key"));
    assert_eq!(
        (tls.client_auth, tls.versions),
        (ClientAuth::Optional, Versions::Tls13)
    );
    assert_eq!(tls.client_ca.as_deref(), Some(Path::new("/etc/trapezoid/ca.pem")));
    assert_eq!(tls.ticket_keys.as_deref(), Some(Path::new("/srv/tickets.key")));
    assert!(tls.connects && !tls.is_own);
    assert_eq!(
        (wss.client_auth, wss.versions),
        (ClientAuth::None, Versions::Both)
    );
    assert!(wss.ticket_keys.is_none() && !wss.connects);
    assert_ne!(tls.ticket_name, wss.ticket_name);
}

#[test]
fn a_whole_file_with_what_listeners_have_in_common() {
    let loaded = valid(include_str!("../example.toml"));
    let shell = &loaded.shell;
    assert_eq!(shell.tls.ticket_keys, Path::new("/var/lib/trapezoid/tickets.key"));
    assert_eq!(
        (shell.tls.tickets.lifetime_s, shell.tls.tickets.rotation_s),
        (3600, 1800)
    );
    assert_eq!(
        shell.tls.ca.as_deref(),
        Some(Path::new("/etc/trapezoid/peers.pem"))
    );
    assert_eq!(shell.tls.remembered_peers, 10);
    let [peer] = shell.tls.peers.as_slice() else {
        panic!("one peer")
    };
    assert_eq!(
        (peer.domain.as_str(), peer.place.as_str()),
        ("carrier.example.net", "f:36: tls.peer[0]")
    );
    assert_eq!(peer.ca.as_deref(), Some(Path::new("/etc/trapezoid/carrier.pem")));
    assert_eq!(
        peer.identity.as_ref().map(|files| files.key.as_path()),
        Some(Path::new("/etc/trapezoid/us.key"))
    );

    let sockets = &shell.sockets;
    let times = (sockets.per_call_idle_ms, sockets.handshake_timeout_ms);
    assert_eq!(times, (5000, 4000));
    assert_eq!(
        (sockets.first_message_timeout_ms, sockets.ws_ping_ms),
        (0, 20_000)
    );
    assert_eq!(
        (sockets.connections_per_address, sockets.handshakes_per_turn),
        (7, 3)
    );
    assert_eq!(loaded.core.limits.udp_mtu, 1200);
}

/// Nodes of a cluster have different addresses, and clients resume at any of them. Two listeners of one node
/// have different names.
#[test]
fn tickets_are_bound_to_transport_port_and_order() {
    let listen = |address: &str| {
        let tls = "tls = { certificate = \"c\", key = \"k\" }";
        format!("[[listen]]\ntransport = \"tls\"\naddress = \"{address}\"\n{tls}\n")
    };
    let names = |addresses: &[&str]| -> Vec<String> {
        let text: String = addresses.iter().map(|address| listen(address)).collect();
        let listeners = valid(&text).shell.tls.listeners;
        listeners
            .into_iter()
            .map(|listener| listener.ticket_name)
            .collect()
    };
    assert_eq!(names(&["192.0.2.10:5061"]), ["tls 5061"]);
    assert_eq!(
        names(&["0.0.0.0:5061", "[2001:db8::10]:5061", "192.0.2.10:5071"]),
        ["tls 5061", "tls 5061 2", "tls 5071"]
    );
}

#[test]
fn a_wildcard_is_one_end_of_tls_for_all_its_addresses() {
    let loaded = valid(
        "[[listen]]\ntransport = \"tls\"\naddress = \"0.0.0.0:5061\"\ntls = { certificate = \"a\", key = \"a\" }\n\
         [[listen]]\ntransport = \"tls\"\naddress = \"192.0.2.10:5061\"\ntls = { certificate = \"b\", key = \"b\" }\n\
         connection = \"per-call\"\n",
    );
    let of: Vec<(String, Option<usize>, Sharing)> = loaded
        .core
        .listeners
        .iter()
        .zip(&loaded.shell.services)
        .map(|(listener, service)| (listener.address.to_string(), service.tls, service.sharing))
        .collect();
    assert_eq!(
        of,
        [
            ("192.0.2.10:5061".to_owned(), Some(1), Sharing::PerCall),
            ("127.0.0.1:5061".to_owned(), Some(0), Sharing::PerPeer),
        ]
    );
}

#[test]
fn the_built_in_listeners_have_the_certificate_of_the_first_start() {
    let loaded = valid("");
    let [own] = loaded.shell.tls.listeners.as_slice() else {
        panic!("one end of TLS for all addresses")
    };
    assert!(own.is_own && own.connects);
    assert_eq!(
        own.identities[0].certificate,
        Path::new("/etc/trapezoid/data/tls/cert.pem")
    );
    assert_eq!(
        own.identities[0].key,
        Path::new("/etc/trapezoid/data/tls/key.pem")
    );
    assert_eq!(loaded.core.listeners.len(), loaded.shell.services.len());
    for (listener, service) in loaded.core.listeners.iter().zip(&loaded.shell.services) {
        let expected = (listener.transport == Transport::Tls).then_some(0);
        assert_eq!(service.tls, expected, "{}", listener.address);
    }
    // With this listener, requests can be sent to sips: URIs.
    let routes = valid("[[route]]\ndo = { relay = \"sips:gw.example.net\" }\n")
        .core
        .routes;
    assert_eq!(routes.len(), 1);
    // If a file names its listeners, none is added.
    let none = valid("[[listen]]\ntransport = \"udp\"\naddress = \"192.0.2.10:5060\"\n")
        .shell
        .tls;
    assert!(none.listeners.is_empty());
}

#[test]
fn what_differs_is_seen() {
    let listen = "[[listen]]\ntransport = \"tls\"\naddress = \"192.0.2.10:5061\"\n";
    let tls = |more: &str, rest: &str| {
        valid(&format!(
            "{listen}tls = {{ certificate = \"c\", key = \"k\"{more} }}\n{rest}"
        ))
        .shell
        .tls
    };
    let plain = tls("", "");
    assert!(plain.is_same(&tls("", "[server]\nname = \"a\"\n")));
    // The same listener on another line of the file is no difference.
    let moved = valid(&format!(
        "\n\n{listen}tls = {{ certificate = \"c\", key = \"k\" }}\n"
    ))
    .shell
    .tls;
    assert!(plain.is_same(&moved));
    for (more, rest) in [
        (", client_auth = \"optional\"", ""),
        (", ticket_keys = \"t\"", ""),
        (", versions = [\"1.3\"]", ""),
        (", more = [ { certificate = \"d\", key = \"d\" } ]", ""),
        ("", "[tls]\nca = \"ca\"\n"),
        (", client_auth = \"optional\", client_crl = \"crl\"", ""),
        ("", "[tls]\ncrl = \"crl\"\n"),
        ("", "[tls]\nremembered_peers = 1\n"),
        ("", "[tls]\nticket_lifetime_s = 90000\n"),
        ("", "[[tls.peer]]\ndomain = \"a\"\nca = \"ca\"\n"),
        ("", "[[tls.peer]]\ndomain = \"a\"\ncrl = \"crl\"\n"),
    ] {
        assert!(!plain.is_same(&tls(more, rest)), "{more} {rest}");
    }
}

/// Warnings about certificates and pages that give more trust, or less, than may be intended.
#[test]
fn trust_by_certificates_and_pages() {
    let listen = |transport: &str, more: &str| {
        format!(
            "[[listen]]\ntransport = \"{transport}\"\naddress = \"192.0.2.10:5061\"\n\
             tls = {{ certificate = \"c\", key = \"k\"{more} }}\n"
        )
    };
    let udp = "[[listen]]\ntransport = \"udp\"\naddress = \"192.0.2.10:5060\"\n".to_owned();
    let by_name = "[trust]\npeers = [\"san:a.example\"]\n";
    let by_network = "[trust]\npeers = [\"10.0.0.0/8\"]\n";
    let by_rule = "[[domain]]\nname = \"a\"\n[[route]]\nwhen = { source = [\"10.0.0.1\"] }\nauth = false\n\
                   do = { relay = \"location\" }\n";
    let needs_tls = "trust.peers: san: has no effect without a listener of tls";
    let needs_asking =
        "trust.peers: san: has no effect without a listener that asks for certificates (client_auth)";
    let needs_origins = "listen.origins: without it trust.peers and a rule's source do not hold for WebSockets, as any \
                         web page may open one";
    let any_authority = "tls 192.0.2.10:5061: client_auth without client_ca: a certificate of any authority of the system is good";
    let asks = ", client_auth = \"required\"";
    let asks_ours = ", client_auth = \"optional\", client_ca = \"ca\"";
    for (listen, rest, expected) in [
        (udp.clone(), by_name, &[needs_tls][..]),
        (listen("wss", asks_ours), by_name, &[needs_tls]),
        (listen("tls", ""), by_name, &[needs_asking]),
        (listen("tls", asks_ours), by_name, &[]),
        (listen("tls", asks), by_name, &[any_authority]),
        (listen("tls", asks), "", &[any_authority]),
        (listen("tls", ""), "", &[]),
        (listen("wss", ""), "", &[]),
        (listen("wss", ""), by_network, &[needs_origins]),
        (listen("wss", ""), by_rule, &[needs_origins]),
        (listen("tls", ""), by_network, &[]),
        (
            listen("wss", "") + "origins = [\"https://a.example\"]\n",
            by_network,
            &[],
        ),
        (listen("wss", "") + "origins = []\n", by_rule, &[]),
    ] {
        let warnings = valid(&format!("{listen}{rest}")).warnings;
        let about_trust = |warning: &&String| {
            ["trust.peers", "listen.origins", "client_auth"]
                .iter()
                .any(|word| warning.contains(word))
        };
        let warnings: Vec<&String> = warnings.iter().filter(about_trust).collect();
        assert_eq!(warnings, expected, "{listen}{rest}");
    }
}

/// A web server in front of a WebSocket listener at the loopback address gives its own address to all
/// browsers.
#[test]
fn trust_in_the_address_of_a_web_server() {
    let listen = |transport: &str, address: &str, more: &str| {
        format!(
            "[[listen]]\ntransport = \"{transport}\"\naddress = \"{address}\"\n{more}\n[[domain]]\nname = \"a\"\n"
        )
    };
    let origins = "origins = [\"https://a.example\"]";
    let ws = || listen("ws", "127.0.0.1:5066", origins);
    let peers = |text: &str| format!("[trust]\npeers = [\"{text}\"]\n");
    let rule = |source: &str, auth: bool| {
        format!(
            "[[route]]\nwhen = {{ source = [\"{source}\"] }}\nauth = {auth}\ndo = {{ relay = \"location\" }}\n"
        )
    };
    let warning = |what: &str, listener: &str| {
        format!(
            "{what} does not hold for the clients of {listener}, as every client of a web server in front of it has that \
             address"
        )
    };
    let of_v4 = |what: &str| Some(warning(what, "ws 127.0.0.1:5066"));
    for (text, expected) in [
        (ws() + &peers("127.0.0.0/8"), of_v4("trust.peers: 127.0.0.0/8")),
        (ws() + &peers("127.0.0.2"), of_v4("trust.peers: 127.0.0.2/32")),
        (ws() + &peers("96.0.0.0/3"), of_v4("trust.peers: 96.0.0.0/3")),
        (
            ws() + &rule("127.0.0.1", false),
            of_v4("route[0] (rule 1): when.source: 127.0.0.1/32"),
        ),
        (ws() + &rule("127.0.0.1", true), None),
        (ws() + &peers("10.0.0.0/8"), None),
        (ws() + &rule("10.0.0.0/8", false), None),
        (ws() + &peers("::1"), None),
        (
            listen("ws", "[::1]:5066", origins) + &peers("::1"),
            Some(warning("trust.peers: ::1/128", "ws [::1]:5066")),
        ),
        (listen("ws", "[::1]:5066", origins) + &peers("127.0.0.1"), None),
        (
            listen("ws", "192.0.2.10:5066", origins) + &peers("127.0.0.1"),
            None,
        ),
        (listen("udp", "127.0.0.1:5066", "") + &peers("127.0.0.1"), None),
        // Another warning covers it.
        (listen("ws", "127.0.0.1:5066", "") + &peers("127.0.0.1"), None),
    ] {
        let warnings = valid(&text).warnings;
        let about_it: Vec<&String> = warnings.iter().filter(|w| w.contains("does not hold")).collect();
        assert_eq!(about_it, expected.iter().collect::<Vec<_>>(), "{text}");
    }
}
