//! Tests of configuration files and their exact messages.

use std::path::Path;

use sip_backend::subscribers::Source;
use sip_core::config::{Action, Durability, Redirect, RelayTarget, StateMode};
use sip_core::transport::NextHop;

use super::*;

mod abuse;
mod destinations;
mod edge;
mod groups;
mod tls;
mod warnings;

fn machine() -> Machine {
    let ip = |text: &str| text.parse().expect("test address");
    Machine {
        addresses: vec![
            (ip("127.0.0.1"), 8),
            (ip("192.0.2.10"), 24),
            (ip("::1"), 128),
            (ip("2001:db8::10"), 64),
            (ip("fe80::1"), 64),
        ],
        host_name: Some("Bench".to_owned()),
        processors: 3,
        variable: |name| match name {
            "REALM" => Some("from the environment".to_owned()),
            "PASSWORD" => Some("hunter2".to_owned()),
            _ => None,
        },
        ..Machine::default()
    }
}

fn read(text: &str) -> Result<Loaded, Vec<String>> {
    read_text(text, "f", Some(Path::new("/etc/trapezoid/f")), &machine()).map_err(|problems| problems.lines())
}

fn valid(text: &str) -> Loaded {
    match read(text) {
        Ok(loaded) => loaded,
        Err(lines) => panic!("{text}\n{}", lines.join("\n")),
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// Input, with every line of the messages.
const WRONG: &[(&str, &[&str])] = &[
    // Syntax: one error, one message.
    (
        "[server\n",
        &["f:1: unclosed table, expected `]`; see https://toml.io for the syntax"],
    ),
    (
        "[server]\nworkers = 1\nworkers = 2\n",
        &["f:3: duplicate key; see https://toml.io for the syntax"],
    ),
    (
        "[[route]]\nwhen = { uri = 'x'\ndo = { relay = \"location\" }\n[server]\nnmae = 1\n[log]\nlevel = \"info\"\n",
        &["f:3: missing comma between key-value pairs, expected `,`; see https://toml.io for the syntax"],
    ),
    // Unknown keys, with the probably intended one.
    (
        "[server]\nnmae = \"a\"\ndrain = 5\nfoo = 1\n[servers]\n",
        &[
            "f:2: server.nmae: unknown key; did you mean \"name\"?",
            "f:3: server.drain: unknown key; did you mean \"drain_s\"?",
            "f:4: server.foo: unknown key; known here: name, workers, data_dir, drain_s, drain_min_s",
            "f:5: servers: unknown key; did you mean \"server\"?",
        ],
    ),
    // Types.
    (
        "server = 3\nlisten = []\n[limits]\nheaders = \"many\"\n[log]\nlevel = 3\n[dns]\nnameservers = \"192.0.2.1\"\n",
        &[
            "f:1: server: 3 is not a table; write { key = value }",
            "f:4: limits.headers: \"many\" is not a whole number; write a number from 16 to 4096",
            "f:6: log.level: 3 is not a string; write one of \"error\", \"warn\", \"info\", \"debug\", \"trace\"",
            "f:8: dns.nameservers: \"192.0.2.1\" is not an array; write [\"192.0.2.1\"]",
        ],
    ),
    (
        "[domain]\nname = \"a\"\n[[server]]\n[subscribers]\ncalculate_ha1 = \"yes\"\nurl = 2026-01-01\n",
        &[
            "f:1: domain: one table where a list of tables belongs; write [[domain]]",
            "f:3: server: a list of tables where one table belongs; write [server]",
            "f:5: subscribers.calculate_ha1: \"yes\" is not true or false; write true or false, without quotes",
            "f:6: subscribers.url: the date is not a string; write text in quotes",
        ],
    ),
    // Ranges, choices.
    (
        "[server]\nworkers = -1\ndrain_s = 99999999999999999999\n[log]\nlevel = \"warning\"\nformat = \"xml\"\n",
        &[
            "f:2: server.workers: -1 is out of range; 0 to 256",
            "f:3: server.drain_s: the number is out of range; 0 to 3600",
            "f:5: log.level: \"warning\" is not known; did you mean \"warn\"? One of \"error\", \"warn\", \"info\", \"debug\", \"trace\"",
            "f:6: log.format: \"xml\" is not known; one of \"text\", \"json\"",
        ],
    ),
    // Values of later versions.
    (
        "[state]\nmode = \"distributed\"\n[credentials]\nmode = \"sometimes\"\non_unavailable = \"backup\"\n\
         [subscribers]\nurl = \"mysql://u:${PASSWORD}@h\"\n[location]\nurl = \"redis://h\"\n\
         [[domain]]\nname = \"a\"\nauth = { schemes = [\"proxychain\"] }\n[trust]\npeers = [\"san:*.a\", \"x\", \"san:a.example\"]\n",
        &[
            "f:2: state.mode: \"distributed\" is not supported by this version; use \"transaction\" or \"stateless\"",
            "f:4: credentials.mode: \"sometimes\" is not known; one of \"single\", \"fixed\", \"adaptive\"",
            "f:5: credentials.on_unavailable: \"backup\" is not supported by this version; use \"503\" or \"504\"",
            "f:7: subscribers.url: names no database; write \"mysql://USER:PASSWORD@HOST/DATABASE\" or \"postgres://…\"",
            "f:9: location.url: redis: is not supported by this version; use \"sqlite:location.db\" or \"memory:\"",
            "f:12: domain[0].auth.schemes[0]: \"proxychain\" is not supported by this version; use \"digest\"",
            "f:14: trust.peers[1]: \"x\" is neither a network nor a name in a certificate; write it as \"10.0.0.0/24\" or \"san:edge2.example.com\"",
            "f:14: trust.peers[0]: \"*.a\" is not a domain; write the peer's SIP domain, as \"san:edge2.example.com\"",
        ],
    ),
    // Missing keys.
    (
        "[[listen]]\n[[domain]]\n[[route]]\n",
        &[
            "f:1: listen[0].transport: missing; write transport = \"udp\" or \"tcp\" or \"tls\" or \"ws\" or \"wss\"",
            "f:1: listen[0].address: missing; write address = \"…\"",
            "f:2: domain[0].name: missing; write name = \"…\"",
            "f:3: route[0].do: missing; write do = { … }",
        ],
    ),
    // Variables.
    (
        "[server]\nname = \"${NOT_SET}\"\n[[domain]]\nname = \"${1}\"\n[[domain]]\nname = \"a${\"\n",
        &[
            "f:2: server.name: the environment variable NOT_SET is not set; set it before the start, or write the value here",
            "f:4: domain[0].name: \"${\" begins the name of an environment variable, and none follows; write \"${NAME}\", or \"$${\" for the characters themselves",
            "f:6: domain[1].name: \"${\" begins the name of an environment variable, and none follows; write \"${NAME}\", or \"$${\" for the characters themselves",
        ],
    ),
    (
        "[server]\nname = \"${PASSWORD} ${PASSWORD}\"\n[admin]\nlisten = \"${PASSWORD}\"\n",
        &[
            "f:2: server.name: the value is not a host name; write a name as \"sip.example.com\", without a port",
            "f:4: admin.listen: the value is not an address and port; write it as \"127.0.0.1:8080\", or \"off\"",
        ],
    ),
    (
        "[log]\nlevel = \"${PASSWORD}\"\n",
        &[
            "f:2: log.level: the string is not known; one of \"error\", \"warn\", \"info\", \"debug\", \"trace\"",
        ],
    ),
    // A name is the default of the realm: a value that one key hides must not be shown by another.
    (
        "[[domain]]\nname = 'a\"${PASSWORD}'\n",
        &[
            "f:1: domain[0].auth.realm: \"a\\\"…\" cannot be a realm; write 1 to 255 characters without quotes and backslashes",
            "f:2: domain[0].name: the value is not a domain name; write it as \"example.com\", without \"sip:\" and port",
        ],
    ),
    (
        "[admin]\nhosts = [\"http://metrics\", \"metrics\", \"metrics:9090\"]\n",
        &[
            "f:2: admin.hosts[0]: \"http://metrics\" is not a host name; write it as \"metrics.example.com\", without \"http://\" and port",
            "f:2: admin.hosts[2]: \"metrics:9090\" is not a host name; write it as \"metrics.example.com\", without \"http://\" and port",
        ],
    ),
    // Text of the file is shown without its control characters.
    (
        "[[group]]\nname = \"a\\u0085b\"\nmembers = [{ uri = \"sip:192.0.2.1\" }]\n[[route]]\ndo = { relay = \"group:far\" }\n",
        &[
            "f:2: group[0].name: \"a\\u{85}b\" is not the name of a group; use letters, digits and -_.",
            "f:5: route[0].do.relay: there is no [[group]] \"far\"; add it, or name one of a\\u{85}b",
        ],
    ),
    // Listeners.
    (
        "[server]\nname = \"a:5060\"\n[[listen]]\ntransport = \"udp\"\naddress = \"10.0.0.1\"\n\
         [[listen]]\ntransport = \"udp\"\naddress = \"10.0.0.1:0\"\n\
         [[listen]]\ntransport = \"udp\"\naddress = \"localhost:5060\"\nadvertise = \"sip:a\"\n\
         [[listen]]\ntransport = \"udp\"\naddress = \"10.0.0.1:5060\"\nadvertise = \"2001:db8::1\"\n\
         [[listen]]\ntransport = \"udp\"\naddress = \"10.0.0.1:5060\"\n",
        &[
            "f:2: server.name: \"a:5060\" is not a host name; write a name as \"sip.example.com\", without a port",
            "f:5: listen[0].address: \"10.0.0.1\" is not an address and port; add the port: \"10.0.0.1:5060\"",
            "f:8: listen[1].address: port 0 would be another port at each start; write a port from 1 to 65535",
            "f:11: listen[2].address: \"localhost:5060\" is not an address and port; write it as \"192.0.2.1:5060\" or \"[2001:db8::1]:5060\"",
            "f:16: listen[3].advertise: \"2001:db8::1\" is not a host with or without a port; write it as \"sip.example.com\", \"203.0.113.5:5060\" or \"[2001:db8::1]:5060\"",
            "f:19: listen[4].address: the same transport and address as listen[3]; remove one of them",
        ],
    ),
    // An element that was left out does not shift the numbers of the others.
    (
        "[[listen]]\ntransport = \"sctp\"\naddress = \"0.0.0.0:80\"\n[[listen]]\ntransport = \"udp\"\naddress = \"x\"\n",
        &[
            "f:2: listen[0].transport: \"sctp\" is not known; one of \"udp\", \"tcp\", \"tls\", \"ws\", \"wss\"",
            "f:6: listen[1].address: \"x\" is not an address and port; write it as \"192.0.2.1:5060\" or \"[2001:db8::1]:5060\"",
        ],
    ),
    // Domains.
    (
        "[[domain]]\nname = \"sip:a\"\n[[domain]]\nname = \"B\"\naliases = [\"c\", \"b\"]\nown_hosts = true\n\
         [[domain]]\nname = \"C\"\nown_hosts = true\n[domain.auth]\nrealm = 'a\"b'\nalgorithms = [\"MD5\", \"MD5\"]\n\
         methods = [\"invite\", \"ACK\", \"A B\", \"FOO\"]\n",
        &[
            "f:2: domain[0].name: \"sip:a\" is not a domain name; write it as \"example.com\", without \"sip:\" and port",
            "f:5: domain[1].aliases[1]: \"b\" is already domain[1].name; remove one of them",
            "f:8: domain[2].name: \"C\" is already domain[1].aliases[0]; remove one of them",
            "f:9: domain[2].own_hosts: domain[1] has them already; set it for one domain",
            "f:11: domain[2].auth.realm: \"a\\\"b\" cannot be a realm; write 1 to 255 characters without quotes and backslashes",
            "f:12: domain[2].auth.algorithms[1]: named twice; remove it",
            "f:13: domain[2].auth.methods[0]: \"invite\" is not a method; write \"INVITE\"",
            "f:13: domain[2].auth.methods[1]: ACK cannot be challenged; remove it",
            "f:13: domain[2].auth.methods[2]: \"A B\" is not a method; write a name as \"INVITE\"",
        ],
    ),
    (
        "[[domain]]\nname = \"a\"\nauth = { algorithms = [] }\n",
        &[
            "f:3: domain[0].auth.algorithms: empty; write at least one of \"SHA-512-256\", \"SHA-256\", \"MD5\"",
        ],
    ),
    (
        "[[domain]]\nname = \"a\"\nauth = { algorithms = [\"SHA-1\"] }\n",
        &[
            "f:3: domain[0].auth.algorithms[0]: \"SHA-1\" is not known; one of \"SHA-512-256\", \"SHA-256\", \"MD5\"",
        ],
    ),
    // Stores.
    (
        "[subscribers]\nurl = \"file.db\"\nurl_file = \"x\"\ncolumns = { ha1 = \"a b\", ha1b = \"HA1_SHA256\" }\n\
         [location]\nurl = \"memory:\"\ndurability = \"commit\"\nmin_expires_s = 4000\n",
        &[
            "f:3: subscribers.url_file: both url and url_file; keep one of them",
            "f:4: subscribers.columns.ha1: \"a b\" is not the name of a column; use letters, digits and underscores, 64 at most",
            "f:4: subscribers.columns.ha1_sha256: the same column as ha1b; name another column",
            "f:7: location.durability: a memory: store writes nothing to disk; remove it, or name a sqlite: store",
            "f:8: location.min_expires_s: min_expires_s = 4000, default_expires_s = 3600, max_expires_s = 7200 are not in this order; let none be smaller than the one before it",
        ],
    ),
    (
        "[subscribers]\nurl = \"sqlite:a.db\"\n[location]\nurl = \"sqlite:a.db\"\n",
        &["f:4: location.url: the same file as subscribers.url; name another file"],
    ),
    (
        "[subscribers]\nurl_file = \"nowhere\"\n",
        &[
            "f:2: subscribers.url_file: cannot read /etc/trapezoid/nowhere: No such file or directory (os error 2); name a readable file",
        ],
    ),
    (
        "[subscribers]\nadmin_url = \"file.db\"\nurl = \"mysql://a@b/c\"\n",
        &[
            "f:2: subscribers.admin_url: not the URL of a subscriber store; write \"sqlite:subscribers.db\", \"mysql://…\" or \"postgres://…\"",
        ],
    ),
    (
        "[subscribers]\nadmin_url = \"mysql://a@b/c\"\nadmin_url_file = \"x\"\n",
        &["f:3: subscribers.admin_url_file: both admin_url and admin_url_file; keep one of them"],
    ),
    // Routes.
    (
        "[[route]]\ndo = {}\n[[route]]\ndo = { relay = \"location\", reject = 403 }\n\
         [[route]]\ndo = { relay = \"sips:a;transport=udp\" }\n[[route]]\ndo = { relay = \"tel:1\" }\n\
         [[route]]\ndo = { relay = \"sip:a;transport=ws\" }\n[[route]]\ndo = { reject = 200 }\n\
         [[route]]\ndo = { reject = 403, strip = 1, timeout_s = 3 }\n\
         [[route]]\ndo = { relay = \"location\", rewrite_host = true, prefix = \"a@\", reason = \"x\" }\n",
        &[
            "f:2: route[0].do: none of relay, redirect and reject; write { relay = \"sip:192.0.2.1\" }, { relay = \"location\" }, { redirect = \"location\" } or { reject = 403 }",
            "f:4: route[1].do: relay and reject; keep one of them",
            "f:6: route[2].do.relay: sips: and transport=udp exclude each other; remove one of them",
            "f:8: route[3].do.relay: \"tel:1\" is not a SIP URI; write \"location\", \"request-uri\", \"group:NAME\" or a URI as \"sip:192.0.2.1:5060;transport=tcp\"",
            "f:10: route[4].do.relay: transport=ws: a WebSocket is opened by the other side (RFC 7118 §5); use udp, tcp or tls",
            "f:12: route[5].do.reject: 200 is out of range; 300 to 699",
            "f:12: route[5].do: none of relay, redirect and reject; write { relay = \"sip:192.0.2.1\" }, { relay = \"location\" }, { redirect = \"location\" } or { reject = 403 }",
            "f:14: route[6].do.strip: belongs to relay; remove it",
            "f:14: route[6].do.timeout_s: belongs to relay; remove it",
            "f:16: route[7].do.reason: belongs to reject; remove it",
            "f:16: route[7].do.rewrite_host: there is no host to take; remove it, or relay to a URI or a group",
            "f:16: route[7].do.prefix: \"a@\" cannot stand in the user part of a URI; use letters, digits and -_.!~*'()&=+$,;?/",
        ],
    ),
    (
        "[[route]]\ndo = { reject = 403 }\n[route.when]\nuri = '^sip:(+'\nmethod = [\"CANCEL\", \"ACK\"]\n\
         domain = \"a b\"\nsource = [\"10.0.0.0/33\"]\nheader = { \"X Y\" = \"a\", \"X.Z\" = \" a\" }\n\
         [[route]]\ndo = { reject = 403 }\nwhen = { uri = 'a{1000}{1000}' }\n",
        &[
            "f:4: route[0].when.uri: not a regular expression: repetition operator missing expression; in TOML write patterns in 'single quotes'",
            "f:5: route[0].when.method[0]: CANCEL takes the path of its INVITE; remove it",
            "f:5: route[0].when.method[1]: ACK takes the path of its INVITE; remove it",
            "f:6: route[0].when.domain: \"a b\" is not a domain name; write it as \"example.com\"",
            "f:7: route[0].when.source[0]: \"10.0.0.0/33\" is not a network; write it as \"10.0.0.0/8\"",
            "f:8: route[0].when.header.\"X Y\": not the name of a header field; write it as \"X-Trunk\"",
            "f:8: route[0].when.header.\"X.Z\": no header field has this value; remove line ends and outer blanks",
            "f:11: route[1].when.uri: the pattern compiles to more than 1 MiB; lower its repetition counts",
        ],
    ),
    // Other tables.
    (
        "[trust]\npeers = [\"x\"]\n[timers]\nt1_ms = 5000\n[dns]\nnameservers = [\"dns.example.com\"]\n[admin]\nlisten = \"127.0.0.1\"\n[server]\ndata_dir = \"\"\n",
        &[
            "f:2: trust.peers[0]: \"x\" is neither a network nor a name in a certificate; write it as \"10.0.0.0/24\" or \"san:edge2.example.com\"",
            "f:4: timers.t1_ms: t2_ms = 4000 is less than t1_ms = 5000; make t2_ms at least t1_ms",
            "f:6: dns.nameservers[0]: \"dns.example.com\" is not the address of a name server; write it as \"192.0.2.53\"",
            "f:8: admin.listen: \"127.0.0.1\" is not an address and port; add the port: \"127.0.0.1:8080\"",
            "f:10: server.data_dir: empty; write the name of a directory",
        ],
    ),
];

#[test]
fn wrong_files_and_what_is_said_of_them() {
    let mut differences = Vec::new();
    for (input, expected) in WRONG {
        let lines = read(input).map(|_| "valid").expect_err(input);
        if lines != *expected {
            differences.push(format!(
                "{input}\nsaid:\n{}\nexpected:\n{}\n",
                lines.join("\n"),
                expected.join("\n")
            ));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn the_empty_file_is_the_built_in_configuration() {
    let from_file = valid("");
    let Ok(built_in) = load(None, &machine()) else {
        panic!("the built-in configuration is wrong")
    };
    assert_eq!(format!("{:?}", from_file.core), format!("{:?}", built_in.core));
    assert_eq!(built_in.shell.data_dir, Path::new("data"));
    assert_eq!(from_file.shell.data_dir, Path::new("/etc/trapezoid/data"));
    assert_eq!(built_in.shell.admin_token, Path::new("data/admin.token"));
    assert_eq!(
        built_in.shell.location.as_deref(),
        Some(Path::new("data/location.db"))
    );
    let source = Source::Sqlite("data/subscribers.db".into());
    assert_eq!(built_in.shell.subscribers.source, source);
    assert_eq!(built_in.core.workers, 3);
    let listeners: Vec<String> = built_in
        .core
        .listeners
        .iter()
        .map(|l| {
            format!(
                "{} {}/{} {}",
                l.transport.uri_name(),
                l.address,
                l.prefix_len,
                text(&l.sent_by)
            )
        })
        .collect();
    // Link-local addresses are left out, and the default port is not written.
    let expected = [
        "udp 127.0.0.1:5060/8 127.0.0.1",
        "udp 192.0.2.10:5060/24 192.0.2.10",
        "udp [::1]:5060/128 [::1]",
        "udp [2001:db8::10]:5060/64 [2001:db8::10]",
        "tcp 127.0.0.1:5060/8 127.0.0.1",
        "tcp 192.0.2.10:5060/24 192.0.2.10",
        "tcp [::1]:5060/128 [::1]",
        "tcp [2001:db8::10]:5060/64 [2001:db8::10]",
        "tls 127.0.0.1:5061/8 127.0.0.1",
        "tls 192.0.2.10:5061/24 192.0.2.10",
        "tls [::1]:5061/128 [::1]",
        "tls [2001:db8::10]:5061/64 [2001:db8::10]",
        "ws 127.0.0.1:5066/8 127.0.0.1:5066",
        "ws 192.0.2.10:5066/24 192.0.2.10:5066",
        "ws [::1]:5066/128 [::1]:5066",
        "ws [2001:db8::10]:5066/64 [2001:db8::10]:5066",
    ];
    assert_eq!(listeners, expected);
    let [domain] = built_in.core.domains.as_slice() else {
        panic!("one domain")
    };
    assert_eq!(text(&domain.name), "trapezoid");
    assert_eq!(text(&domain.auth.realm), "trapezoid");
    assert!(domain.auth.methods.iter().any(|method| text(method) == "INVITE"));
    let aliases: Vec<&str> = domain.aliases.iter().map(|alias| text(alias)).collect();
    assert_eq!(
        aliases,
        [
            "127.0.0.1",
            "192.0.2.10",
            "2001:db8::10",
            "::1",
            "bench",
            "bench.local",
            "localhost"
        ]
    );
}

#[test]
fn a_machine_without_ipv6_listens_on_ipv4_only() {
    let mut machine = machine();
    machine.addresses.retain(|(ip, _)| ip.is_ipv4());
    let loaded = read_text("", "f", None, &machine).expect("valid");
    assert_eq!(loaded.core.listeners.len(), 8);
    let asked = "[[listen]]\ntransport = \"udp\"\naddress = \"[::]:5060\"\n";
    let lines = read_text(asked, "f", None, &machine)
        .map(|_| ())
        .expect_err("no IPv6")
        .lines();
    assert_eq!(
        lines,
        ["f:3: listen[0].address: this machine has no address of that family; name an address that it has"]
    );
}

#[test]
fn names_in_via() {
    let sent_by = |input: &str| -> Vec<String> {
        valid(input)
            .core
            .listeners
            .iter()
            .map(|listener| text(&listener.sent_by).to_owned())
            .collect()
    };
    let udp = |address: &str| format!("[[listen]]\ntransport = \"udp\"\naddress = \"{address}\"\n");
    assert_eq!(sent_by(&udp("192.0.2.10:5070")), ["192.0.2.10:5070"]);
    assert_eq!(sent_by(&udp("[::1]:5070")), ["[::1]:5070"]);
    let named = |name: &str| format!("{}[server]\nname = \"{name}\"\n", udp("192.0.2.10:5060"));
    assert_eq!(sent_by(&named("Sip.Example.com.")), ["sip.example.com:5060"]);
    assert_eq!(sent_by(&named("[2001:DB8::1]")), ["[2001:db8::1]:5060"]);
    let advertised = format!(
        "{}advertise = \"Gw.example.com\"\n[server]\nname = \"n\"\n",
        udp("0.0.0.0:5060")
    );
    assert_eq!(sent_by(&advertised), ["Gw.example.com", "Gw.example.com"]);
    let core = valid(&advertised).core;
    let own: Vec<(&str, Option<u16>)> = core
        .own_hosts
        .iter()
        .map(|own| (text(&own.host), own.port))
        .collect();
    assert_eq!(own, [("n", None), ("gw.example.com", None)]);
}

#[test]
fn a_concrete_address_goes_before_the_wildcard_that_covers_it() {
    let core = valid(
        "[[listen]]\ntransport = \"udp\"\naddress = \"0.0.0.0:5060\"\n\
         [[listen]]\ntransport = \"udp\"\naddress = \"192.0.2.10:5060\"\nadvertise = \"203.0.113.5\"\n",
    )
    .core;
    let listeners: Vec<(String, &str)> = core
        .listeners
        .iter()
        .map(|l| (l.address.to_string(), text(&l.sent_by)))
        .collect();
    assert_eq!(
        listeners,
        [
            ("192.0.2.10:5060".to_owned(), "203.0.113.5"),
            ("127.0.0.1:5060".to_owned(), "127.0.0.1")
        ]
    );
}

#[test]
fn a_whole_file() {
    let loaded = valid(include_str!("example.toml"));
    let core = &loaded.core;
    assert_eq!(core.workers, 2);
    assert_eq!(core.state, StateMode::Stateless);
    assert_eq!(core.timers.c_ms, 200_000);
    assert_eq!(core.credentials_unavailable, 504);
    assert_eq!(core.registrar.durability, Durability::Async);
    assert_eq!(core.limits.contacts_per_aor, 5);
    assert_eq!(core.limits.header_bytes, 32_768);
    assert_eq!(core.limits.location_bytes, 3_000_000);
    assert_eq!(core.limits.branches, 16);
    assert_eq!(core.trust.len(), 2);
    let [domain] = core.domains.as_slice() else {
        panic!("one domain")
    };
    assert_eq!(text(&domain.auth.realm), "from the environment");
    assert_eq!(
        domain.aliases.len(),
        1,
        "own hosts are aliases only where asked for"
    );
    let [trunk, carriers, moved, deny] = core.routes.as_slice() else {
        panic!("four routes")
    };
    assert!(
        trunk
            .when
            .uri
            .as_ref()
            .is_some_and(|uri| uri.is_match(b"sip:+4930123@example.com"))
    );
    assert_eq!(
        trunk.when.headers,
        [(b"x-trunk".as_slice().into(), b"a".as_slice().into())]
    );
    assert_eq!(trunk.auth, Some(false));
    assert_eq!(trunk.state, Some(StateMode::Transaction));
    assert!(!trunk.record_route);
    let Action::Relay(relay) = &trunk.action else {
        panic!("relay")
    };
    let hop = NextHop::parse(b"sip:127.0.0.1:5070").expect("a URI");
    assert_eq!(relay.target, RelayTarget::Uri(hop));
    assert_eq!((relay.strip, relay.timeout_s), (1, Some(30)));
    let Action::Relay(relay) = &carriers.action else {
        panic!("relay")
    };
    assert_eq!(relay.target, RelayTarget::Group(0));
    assert!(relay.recurse && relay.rewrite_host);
    assert_eq!(moved.action, Action::Redirect(Redirect::Location));
    assert_eq!(
        deny.action,
        Action::Reject {
            status: 403,
            reason: b"No ${thanks}".as_slice().into()
        }
    );
    assert!(deny.record_route);
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
}

#[test]
fn the_shell_of_a_whole_file() {
    let shell = valid(include_str!("example.toml")).shell;
    assert_eq!(shell.data_dir, Path::new("/var/lib/trapezoid"));
    assert_eq!(
        shell.subscribers.source,
        Source::Sqlite("/etc/trapezoid/subscribers.db".into())
    );
    assert_eq!(shell.nameservers, ["192.0.2.53:53".parse().expect("address")]);
    assert_eq!(shell.admin, None);
    let hosts: Vec<&str> = shell.admin_hosts.iter().map(|host| &**host).collect();
    assert_eq!(hosts, ["sip.example.com", "metrics.example.com"]);
    assert_eq!(shell.admin_token, Path::new("/etc/trapezoid/token"));
}

/// Names by which requests may address the admin pages, besides the names that are always allowed.
#[test]
fn names_of_the_admin_address() {
    let names = |text: &str| -> Vec<String> {
        let hosts = valid(text).shell.admin_hosts;
        hosts.into_iter().map(String::from).collect()
    };
    let listed = "[admin]\nhosts = [\"Metrics.example.com.\", \"[2001:db8::1]\", \"prometheus\"]\n";
    assert_eq!(names(listed), ["metrics.example.com", "prometheus"]);
    let with_name = format!("[server]\nname = \"SIP.example.com\"\n{listed}");
    assert_eq!(
        names(&with_name),
        ["sip.example.com", "metrics.example.com", "prometheus"]
    );
    assert!(names("").is_empty());
}

#[test]
fn unreadable_files_are_errors() {
    let lines = load(Some(Path::new("/nonexistent/f.toml")), &machine())
        .map(|_| ())
        .expect_err("none")
        .lines();
    assert_eq!(
        lines,
        [
            "/nonexistent/f.toml: No such file or directory (os error 2); name a readable TOML file with --config"
        ]
    );
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("f.toml");
    std::fs::write(&file, b"[server]\n# Caf\xe9\n").expect("written");
    let lines = load(Some(&file), &machine())
        .map(|_| ())
        .expect_err("not UTF-8")
        .lines();
    let expected = format!(
        "{}:2: a byte here is not UTF-8; save the file as UTF-8",
        file.display()
    );
    assert_eq!(lines, [expected]);
}

proptest::proptest! {
    #[test]
    fn no_text_is_too_strange(text in "(\\PC|\n){0,200}") {
        let _ = read(&text);
    }

    /// Parts of real files in any order, so that the deeper checks are reached too.
    #[test]
    fn no_file_is_too_strange(lines in proptest::collection::vec(
        proptest::sample::select(include_str!("example.toml").lines().collect::<Vec<_>>()), 0..40,
    )) {
        let _ = read(&lines.join("\n"));
    }
}

#[test]
fn limits_in_bytes_follow_the_machines_memory() {
    let limits = |memory_bytes, text: &str| {
        let machine = Machine {
            memory_bytes,
            ..machine()
        };
        let loaded = read_text(text, "f", None, &machine).unwrap_or_else(|problems| panic!("{problems}"));
        let (core, net) = (&loaded.core.limits, &loaded.shell.sockets);
        let bytes = [
            core.location_bytes,
            core.transaction_bytes,
            net.stream_bytes,
            core.parked_bytes,
            net.mailbox_bytes,
        ];
        bytes.map(|bytes| bytes >> 20)
    };
    let four = "[server]\nworkers = 4\n";
    let written = "[server]\nworkers = 4\n[limits]\ntransaction_bytes = 4194304\nlocation_bytes = 8388608\n\
                   parked_bytes = 3145728\n[transport]\nconnection_bytes = 5242880\nhandover_bytes = 6291456\n";
    for (memory, text, expected) in [
        (None, four, [2048, 2048, 256, 64, 32]),
        (Some(1 << 30), four, [256, 64, 32, 8, 4]),
        (Some(1 << 40), four, [2048, 2048, 256, 64, 32]),
        (Some(1 << 20), four, [2; 5]),
        (Some(1 << 30), written, [8, 4, 5, 3, 6]),
    ] {
        assert_eq!(limits(memory, text), expected, "{memory:?}");
    }
}

/// The default limits of all workers together fit into the machine, unless the machine is so small that a
/// largest message for each is more.
#[test]
fn the_limits_in_bytes_fit_together() {
    for (workers, memory) in [(1, 1_u64 << 29), (2, 1 << 29), (16, 1 << 32), (64, 1 << 34)] {
        let machine = Machine {
            memory_bytes: Some(memory),
            ..machine()
        };
        let text = format!("[server]\nworkers = {workers}\n");
        let loaded = read_text(&text, "f", None, &machine).unwrap_or_else(|problems| panic!("{problems}"));
        let (core, net) = (&loaded.core.limits, &loaded.shell.sockets);
        let each = core.transaction_bytes + core.parked_bytes + net.stream_bytes + net.mailbox_bytes;
        let all = u64::try_from(core.location_bytes + workers * each).expect("bytes");
        let largest = core.header_bytes + core.body_bytes;
        assert!(net.mailbox_bytes > largest && core.parked_bytes > largest && net.stream_bytes > largest);
        assert!(all * 10 <= memory * 7, "{workers} workers: {all} of {memory}");
    }
}

/// A reason phrase is written into responses and logs.
#[test]
fn reasons_have_no_control_characters() {
    for reason in [r"\u0007", r"a\nb", r"a\r\nVia: b", r"\u007f"] {
        let text = format!("[[route]]\ndo = {{ reject = 403, reason = \"{reason}\" }}\n");
        let problems = read(&text).expect_err("a control character").join("\n");
        assert!(
            problems.contains("route[0].do.reason: has control characters; write one line of text"),
            "{problems}"
        );
    }
    assert!(read("[[route]]\ndo = { reject = 403, reason = \"Not today\" }\n").is_ok());
}
