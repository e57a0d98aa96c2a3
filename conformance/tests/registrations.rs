//! Registrations as operators see and remove them, over HTTP and on the command line.

use std::collections::BTreeMap;
use std::time::Duration;

use conformance::{
    Client, Config, DOMAIN, Message, Part, Phone, Scene, Server, Transport, command, over_udp_and_tcp, port,
};
use serde_json::Value;

use crate::abuse::register;

over_udp_and_tcp!(removed_contacts_stay_away_until_they_register_again);

/// At once.
const NOW: Duration = Duration::ZERO;

/// So that neighbours in a list registered at different workers.
fn config() -> Config {
    Config::new().workers(3)
}

/// Sends a REGISTER of `user`, in its own Call-ID; the status of the answer.
fn registers(client: &mut Client, user: &str, cseq: u32, more: &str) -> u16 {
    // A copy that another transaction brings has a branch of its own.
    let text = register(user, &format!("reg-{user}"), cseq, more);
    client.send(&text, &format!("{user}-{cseq}-{}", more.len()));
    client.final_response().status()
}

/// Rows of an answer: the user of each address-of-record, and how often it comes.
fn users(rows: &Value) -> BTreeMap<String, usize> {
    let mut users = BTreeMap::new();
    for row in rows.as_array().expect("a list") {
        let aor = row["address_of_record"].as_str().expect("text");
        let user = aor.strip_suffix(&format!("@{DOMAIN}")).expect("of the domain");
        *users.entry(user.to_owned()).or_default() += 1;
    }
    users
}

fn list(server: &Server, query: &str) -> Value {
    server.api(&format!("GET /api/v1/registrations?{query}"), "")
}

/// The rows of `trapezoid registrations list --json`.
#[track_caller]
fn printed(scene: &Scene, words: &[&str]) -> Value {
    let (code, text) = command(scene, &[&["registrations", "list", "--json"], words].concat());
    assert_eq!(code, Some(0), "{text}");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn registrations_are_listed_by_each_filter_and_in_pages() {
    let (scene, elsewhere) = (Scene::new(), Scene::new());
    let server = Server::start(&scene, &config());
    let mut here = Client::new(&scene, Transport::Udp, port::CALLEE, scene.at(port::SERVER));
    let mut there = Client::new(&elsewhere, Transport::Tcp, 0, scene.at(port::SERVER));
    for n in (0..12).step_by(2) {
        // The first has two contacts.
        let more = match n {
            0 => "Contact: <sip:desk@192.0.2.10>\nUser-Agent: Alpha 1\n",
            _ => "User-Agent: Alpha 1\n",
        };
        assert_eq!(registers(&mut here, &format!("user{n}"), 1, more), 200);
        let odd = format!("user{}", n + 1);
        assert_eq!(registers(&mut there, &odd, 1, "User-Agent: Beta 2\n"), 200);
    }
    let (at, from) = (elsewhere.ip(), here.local());
    for (key, option, value, expected) in [
        ("user", "--user", "user3", &[3][..]),
        ("user", "--user", "USER3", &[]),
        (
            "domain",
            "--domain",
            "Example.COM",
            &[0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
        ),
        ("domain", "--domain", "example.net", &[]),
        ("contact", "--contact", "USER1", &[1, 10, 11]),
        ("contact", "--contact", "desk@", &[0]),
        ("source", "--source", &at.to_string(), &[1, 3, 5, 7, 9, 11]),
        ("source", "--source", &from.to_string(), &[0, 0, 2, 4, 6, 8, 10]),
        ("user_agent", "--user-agent", "beta", &[1, 3, 5, 7, 9, 11]),
    ] {
        let found = list(&server, &format!("{key}={value}"));
        let mut wanted = BTreeMap::new();
        for n in expected {
            *wanted.entry(format!("user{n}")).or_insert(0) += 1;
        }
        assert_eq!(users(&found["registrations"]), wanted, "{key} {value}");
        assert_eq!(
            users(&printed(&scene, &[option, value])),
            wanted,
            "{option} {value}"
        );
    }
    let both = list(&server, "user=user0&domain=example.com&contact=desk&limit=1");
    assert_eq!(
        (users(&both["registrations"])["user0"], &both["next"]),
        (1, &Value::Null)
    );
    // Pages.
    let (mut all, mut query) = (BTreeMap::new(), "limit=5".to_owned());
    loop {
        let page = list(&server, &query);
        let rows = users(&page["registrations"]);
        assert!(rows.values().sum::<usize>() <= 5, "{page}");
        for (user, count) in rows {
            assert!(all.insert(user.clone(), count).is_none(), "{user} twice");
        }
        let Some(next) = page["next"].as_str() else { break };
        query = format!("limit=5&cursor={next}");
    }
    assert_eq!((all.len(), all["user0"], all["user11"]), (12, 2, 1));
    let metric = |transport: &str| {
        let label = format!("domain=\"{DOMAIN}\",transport=\"{transport}\"");
        server.metric("trapezoid_registered_contacts", &label)
    };
    assert_eq!((metric("udp"), metric("tcp"), metric("tls")), (7.0, 6.0, 0.0));
}

#[test]
fn the_command_line_shows_what_is_there() {
    let scene = Scene::new();
    let server = Server::start(&scene, &config());
    let mut client = Client::new(&scene, Transport::Udp, port::CALLEE, scene.at(port::SERVER));
    for user in ["alice", "bob", "carol"] {
        let more = format!("Expires: 600\nUser-Agent: Phone of {user}\n");
        assert_eq!(registers(&mut client, user, 1, &more), 200);
    }
    let local = client.local();
    let run = |words: &[&str]| command(&scene, &[&["registrations"], words].concat());
    let (code, table) = run(&["list", "--user", "bob"]);
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!((code, lines.len()), (Some(0), 2), "{table}");
    let expected = ["bob@example.com", "sip:bob@192.0.2.9", "udp", &local.to_string()];
    assert_eq!(lines[1][..4], expected);
    assert_eq!(lines[1][5..], ["s", "Phone", "of", "bob"]);
    assert_eq!(
        printed(&scene, &["--limit", "2"]).as_array().map(Vec::len),
        Some(2)
    );
    let (code, text) = run(&["list", "--limit", "2"]);
    assert_eq!((code, text.lines().count()), (Some(0), 3), "{text}");
    let (code, text) = run(&["show", "bob@example.com"]);
    assert_eq!(code, Some(0), "{text}");
    for line in [
        "sip:bob@192.0.2.9",
        &format!("udp {local}"),
        "Phone of bob",
        "reg-bob",
    ] {
        assert!(text.lines().any(|l| l.ends_with(line)), "{line}: {text}");
    }
    let (code, text) = run(&["show", "bob@example.com", "--json"]);
    let mut shown: Value = serde_json::from_str(&text).expect("JSON");
    let mut told = server.api("GET /api/v1/registrations/bob@example.com", "");
    for body in [&mut shown, &mut told] {
        // It may be another second.
        let left = body["registrations"][0]["left_s"].take();
        assert!(left.as_u64().is_some_and(|left| left <= 600), "{left}");
    }
    assert_eq!((code, shown), (Some(0), told));
}

/// The command line asks for 500 contacts at a time.
#[test]
fn the_command_line_follows_the_cursor_to_the_end() {
    const USERS: usize = 60;
    let scene = Scene::new();
    let _server = Server::start(&scene, &config());
    let mut client = Client::new(&scene, Transport::Udp, port::CALLEE, scene.at(port::SERVER));
    // Ten for each, with the one that is there without.
    let others = (1..10).map(|n| format!("Contact: <sip:{n}@192.0.2.9>\n"));
    let others: String = others.collect();
    for n in 0..USERS {
        assert_eq!(registers(&mut client, &format!("user{n}"), 1, &others), 200);
    }
    let all = users(&printed(&scene, &[]));
    assert!(
        all.len() == USERS && all.values().all(|count| *count == 10),
        "{all:?}"
    );
    let limited = users(&printed(&scene, &["--limit", "555"]));
    assert_eq!(limited.values().sum::<usize>(), 555);
    let (code, text) = command(&scene, &["registrations", "list"]);
    assert_eq!((code, text.lines().count()), (Some(0), 1 + 10 * USERS));
}

/// What cannot be done is said, and changes nothing.
#[test]
fn the_command_line_says_what_is_wrong() {
    let scene = Scene::new();
    let server = Server::start(&scene, &config());
    let mut client = Client::new(&scene, Transport::Udp, port::CALLEE, scene.at(port::SERVER));
    assert_eq!(registers(&mut client, "bob", 1, ""), 200);
    let run = |words: &[&str]| command(&scene, &[&["registrations"], words].concat());
    for (words, expected, says) in [
        (
            &["show", "dave@example.com"][..],
            1,
            "dave@example.com is not registered",
        ),
        (
            &["remove", "dave@example.com"],
            1,
            "dave@example.com is not registered",
        ),
        (
            &["remove", "bob@example.com", "--contact", "sip:x"],
            1,
            "there is sip:bob@192.0.2.9",
        ),
        (&["show", "bob"], 2, "write USER@DOMAIN"),
        (&["list", "--source", "x"], 2, "write an address, a network"),
        (&["list", "--limit", "0"], 2, "--limit"),
    ] {
        let (code, text) = run(words);
        assert!(
            code == Some(expected) && text.contains(says),
            "{words:?}: {code:?} {text}"
        );
    }
    assert_eq!(contacts(&server, "bob").len(), 1);
}

/// The final answer to a call of `user`, by a caller of its own.
fn call(scene: &Scene, transport: Transport, user: &str, id: &str, number: u16) -> u16 {
    let to = scene.at(port::SERVER);
    let mut caller = Client::new(scene, transport, port::CALLER + number, to);
    let answers = caller.call(user, id);
    answers.last().map_or(0, Message::status)
}

/// The contacts of an address-of-record; none if it is not registered.
fn contacts(server: &Server, user: &str) -> Vec<String> {
    let rows = list(server, &format!("user={user}"));
    let rows = rows["registrations"].as_array().cloned().unwrap_or_default();
    let contact = |row: &Value| row["contact"].as_str().expect("text").to_owned();
    rows.iter().map(contact).collect()
}

fn removed_contacts_stay_away_until_they_register_again(transport: Transport) {
    let scene = Scene::new();
    let server = Server::start(&scene, &config());
    let phone = Phone::start(&scene, transport, port::CALLEE, Part::Answer(NOW));
    phone.register("bob", "1.0");
    assert_eq!(call(&scene, transport, "bob", "before", 0), 200);
    let mut wire = Client::new(&scene, Transport::Udp, port::CALLEE + 1, scene.at(port::SERVER));
    for user in ["bob", "carol", "dave"] {
        assert_eq!(registers(&mut wire, user, 1, ""), 200);
    }
    let by_hand = |user: &str| format!("sip:{user}@192.0.2.9");
    let (of_phone, of_wire) = (phone.uri("bob"), by_hand("bob"));
    assert_eq!(contacts(&server, "bob").len(), 2);

    // One, then the rest.
    let bob = format!("/api/v1/registrations/bob@{DOMAIN}");
    let done = server.api(&format!("DELETE {bob}?contact={of_wire}"), "");
    assert_eq!(done["removed"], 1);
    assert_eq!(contacts(&server, "bob"), [of_phone]);
    assert_eq!(call(&scene, transport, "bob", "one-left", 1), 200);
    let said = command(&scene, &["registrations", "remove", "bob@example.com"]);
    assert_eq!(
        said,
        (Some(0), "removed 1 contact of bob@example.com\n".to_owned())
    );
    assert!(contacts(&server, "bob").is_empty());
    assert_eq!(call(&scene, transport, "bob", "none-left", 2), 480);
    server.wait_for_log("contacts removed by the operator");
    if transport != Transport::Udp {
        let closed = "trapezoid_net_connections_closed_total";
        server.wait_for_metric(closed, "cause=\"registration-removed\"", |count| count == 1.0);
    }
    assert_eq!(server.metric("trapezoid_location_removed_total", ""), 2.0);
    assert_eq!(server.metric("trapezoid_location_bindings", ""), 2.0);

    // A copy of the REGISTER from before is late; the phone's next one registers again.
    server.api(&format!("DELETE /api/v1/registrations/carol@{DOMAIN}"), "");
    assert_eq!(registers(&mut wire, "carol", 1, "X-Copy: 1\n"), 500);
    assert!(contacts(&server, "carol").is_empty());
    assert_eq!(registers(&mut wire, "carol", 2, ""), 200);
    assert_eq!(contacts(&server, "carol"), [by_hand("carol")]);

    server.kill();
    let server = Server::start_again(&scene);
    for (user, contact) in [
        ("bob", vec![]),
        ("carol", vec![by_hand("carol")]),
        ("dave", vec![by_hand("dave")]),
    ] {
        assert_eq!(contacts(&server, user), contact, "{user}");
    }
    assert_eq!(call(&scene, transport, "bob", "after", 3), 480);
    assert_eq!(registers(&mut wire, "bob", 2, ""), 200);
    assert_eq!(contacts(&server, "bob"), [of_wire]);
}

#[test]
fn a_list_while_registrations_change() {
    const PHONES: usize = 40;
    let scene = Scene::new();
    let server = Server::start(&scene, &config());
    let mut client = Client::new(&scene, Transport::Udp, port::CALLEE, scene.at(port::SERVER));
    for n in 0..PHONES {
        assert_eq!(registers(&mut client, &format!("stays{n}"), 1, ""), 200);
        assert_eq!(registers(&mut client, &format!("goes{n}"), 1, ""), 200);
    }
    let (mut met, mut query, mut turn) = (BTreeMap::new(), "limit=3".to_owned(), 0);
    loop {
        let page = list(&server, &query);
        for (user, count) in users(&page["registrations"]) {
            *met.entry(user).or_insert(0) += count;
        }
        let Some(next) = page["next"].as_str() else { break };
        query = format!("limit=3&cursor={next}");
        if turn < PHONES {
            // One goes, one comes, one refreshes with another length.
            assert_eq!(
                registers(&mut client, &format!("goes{turn}"), 2, "Expires: 0\n"),
                200
            );
            assert_eq!(registers(&mut client, &format!("comes{turn}"), 1, ""), 200);
            let longer = "User-Agent: A phone with a long name\n";
            assert_eq!(registers(&mut client, &format!("stays{turn}"), 2, longer), 200);
            turn += 1;
        }
    }
    assert!(turn >= PHONES / 3, "{turn} pages");
    for n in 0..PHONES {
        assert_eq!(met.get(&format!("stays{n}")), Some(&1), "stays{n}");
    }
}
