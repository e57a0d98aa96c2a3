//! Marks of dialogs in responses: the callee's becomes the caller's on its way back, that of this dialog only, and
//! however the callee writes it.

use sip_core::config::StateMode;
use sip_core::transport::Transport;

use crate::common::{Bench, CALLER, Sent, one, relay, request, response};
use crate::forks::{phone, register};
use crate::marks::{Call, GATEWAY, PHONE, guarded, outcome};

/// A peer may write white space in a parameter (RFC 3261 §25.1, EQUAL), share a line, and put parameters behind ours.
#[test]
fn marks_are_turned_however_a_peer_writes_them() {
    let edits: [fn(String) -> String; 4] = [
        |text| text.replace(";tag=t1", ";tag= t1"),
        |text| text.replace(";tag=t1", " ; tag=t1;x=\"a;tag=b\""),
        |text| {
            text.replace(";lr;tz=", ";tz=")
                .replace(">\r\nFrom", ";lr;x=y>\r\nFrom")
        },
        |text| text.replace("Record-Route: ", "Record-Route: <sip:203.0.113.1;lr>, "),
    ];
    for (number, edit) in edits.into_iter().enumerate() {
        for status in ["200 OK", "486 Busy Here"] {
            let mut bench = Bench::new(&guarded(StateMode::Transaction));
            register(&bench, "bob@example.com", &[phone(1)]);
            let sent = bench.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""));
            let invite = sent.iter().find(|s| s.address() == PHONE).expect("it goes on");
            let answer = edit(response(invite, status, ""));
            let back = bench.udp(PHONE, &answer);
            let back = back.iter().find(|s| s.address() == CALLER).expect("it goes on");
            let route = back
                .header("Record-Route")
                .rsplit(", ")
                .next()
                .unwrap_or_default();
            let bye = request("BYE", "sip:x@203.0.113.9", "a2", &format!("Route: {route}\n"))
                .replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1");
            assert_eq!(
                outcome(bench.udp(CALLER, &bye), "203.0.113.9:5060"),
                None,
                "{number} {status}: {answer}"
            );
        }
    }
}

/// Each early dialog has its own mark, and so has each copy of a 2xx from another fork.
#[test]
fn each_early_dialog_has_its_own_mark() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut bench = Bench::new(&guarded(state));
        register(&bench, "bob@example.com", &[phone(1)]);
        let sent = bench.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""));
        let invite = sent
            .iter()
            .find(|s| s.address() == PHONE)
            .expect("it goes on")
            .clone();
        let mut answer = |status: &str, tag: &str| {
            let text = response(&invite, status, "").replace("tag=t1", &format!("tag={tag}"));
            one(bench.udp(PHONE, &text)).header("Record-Route").to_owned()
        };
        let early = [answer("183 Progress", "t1"), answer("180 Ringing", "t2")];
        let late = [
            answer("200 OK", "t2"),
            answer("200 OK", "t3"),
            answer("200 OK", "t1"),
        ];
        assert_eq!((&late[0], &late[2]), (&early[1], &early[0]), "it does not change");
        let of = [("t1", &early[0]), ("t2", &late[0]), ("t3", &late[1])];
        for (number, (tag, _)) in of.iter().enumerate() {
            for (other, route) in &of {
                let text = request(
                    "PRACK",
                    "sip:x@203.0.113.9",
                    &format!("p{tag}{other}"),
                    &format!("Route: {route}\n"),
                )
                .replace(
                    "To: <sip:bob@example.com>",
                    &format!("To: <sip:bob@example.com>;tag={tag}"),
                )
                .replace("CSeq: 1", &format!("CSeq: {}", number + 2));
                let expected = (tag != other).then(|| "403".to_owned());
                let sent = bench.udp(CALLER, &text);
                assert_eq!(outcome(sent, "203.0.113.9:5060"), expected, "{tag} {other}");
            }
        }
    }
}

/// In a call the dialog exists before a NOTIFY comes. If that carried the caller's mark, the callee would have both.
#[test]
fn a_notify_in_a_call_gives_no_mark_away() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut config = guarded(state);
        config.routes.clear();
        let mut bench = Bench::new(&config);
        let call = Call::to_phone(&mut bench);
        for (branch, target) in [
            ("n1", format!("sip:me@{PHONE}")),
            ("n2", "sip:alice@192.0.2.10".to_owned()),
        ] {
            let text = call.request(false, "NOTIFY", &target, branch, "\nEvent: refer");
            let sent = one(call.send(&mut bench, false, &text));
            assert!(sent.first_line().starts_with("NOTIFY"), "{}", sent.text);
            assert!(sent.headers("Record-Route").is_empty(), "{}", sent.text);
        }
    }
}

/// A callee that calls itself with the Call-ID and tags of a call from a gateway gets no caller's mark of that one: a
/// response turns what its own request was given, also where a Via of ours is made up of two.
#[test]
fn a_response_turns_the_marks_of_its_own_request_only() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut bench = Bench::new(&guarded(state));
        register(&bench, "bob@example.com", &[phone(1)]);
        let invite = |branch: &str| {
            request("INVITE", "sip:bob@example.com", branch, "")
                .replace("alice@example.com", "x@carrier.example")
        };
        let mut to_phone = |source: &str, branch: &str| {
            let sent = bench.udp(source, &invite(branch));
            sent.into_iter()
                .find(|s| s.address() == PHONE)
                .expect("it goes on")
        };
        let (theirs, own) = (to_phone(GATEWAY, "a1"), to_phone(CALLER, "a2"));
        let [stolen, given] = [&theirs, &own].map(|sent| sent.header("Record-Route").to_owned());
        assert_ne!(stolen, given);
        let seed = |sent: &Sent| {
            sent.header("Via")
                .split_once(";tz=")
                .map(|(_, token)| token.to_owned())
        };
        let answer = response(&own, "180 Ringing", "").replace(&given, &stolen);
        let mixed = match (seed(&own), seed(&theirs)) {
            (Some(own), Some(theirs)) => answer.replacen(&own, &theirs, 1),
            _ => answer.clone(),
        };
        for answer in [answer, mixed] {
            let back = one(bench.udp(PHONE, &answer));
            assert_eq!(back.header("Record-Route"), stolen, "{state:?}");
        }
        let both = response(&own, "200 OK", "").replace(&given, &format!("{stolen}, {given}"));
        let back = one(bench.udp(PHONE, &both));
        let routes: Vec<&str> = back.header("Record-Route").split(", ").collect();
        assert_eq!((routes.len(), routes[0]), (2, stolen.as_str()));
        for (number, (route, expected)) in [(stolen.as_str(), Some("403")), (routes[1], None)]
            .into_iter()
            .enumerate()
        {
            let bye = request(
                "BYE",
                "sip:x@203.0.113.9",
                &format!("b{number}"),
                &format!("Route: {route}\n"),
            )
            .replace("alice@example.com", "x@carrier.example")
            .replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1");
            let sent = bench.udp(CALLER, &bye);
            assert_eq!(
                outcome(sent, "203.0.113.9:5060").as_deref(),
                expected,
                "{state:?} {route}"
            );
        }
    }
}

/// Whether a BYE of the caller, which is at `from`, goes on by this route, and is not refused.
fn takes_bye(bench: &mut Bench, from: &str, branch: &str, route: &str) -> bool {
    let bye = request("BYE", "sip:x@203.0.113.9", branch, &format!("Route: {route}\n"))
        .replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1");
    let refused = outcome(bench.udp(from, &bye), "203.0.113.9:5060");
    assert!(
        refused.as_deref().is_none_or(|status| status == "403"),
        "{refused:?}"
    );
    refused.is_none()
}

/// A response with these Record-Route values in place of its own.
fn with_record_route(response: &str, values: &str) -> String {
    let is_other = |line: &&str| !line.starts_with("Record-Route: ");
    let lines: String = response.split_inclusive("\r\n").filter(is_other).collect();
    lines.replacen("From: ", &format!("Record-Route: {values}\r\nFrom: "), 1)
}

const UPSTREAM: &str = "<sip:198.51.100.9;lr>";
const EVIL: &str = "203.0.113.66";

/// What the request had in Record-Route, what the callee writes, and whether the caller gets a mark of its own by that.
const WRITTEN: [(Option<&str>, &str, bool); 17] = [
    (None, "OURS", true),
    (None, "EVIL, OURS", true),
    (None, "OURS, EVIL", false),
    (None, "OURS, EVIL, OURS", true),
    (None, "OURS, OURS", true),
    (None, "EVIL", false),
    (None, "DETOUR", false),
    (Some(UPSTREAM), "OURS, UPSTREAM", true),
    (Some(UPSTREAM), "EVIL, OURS, UPSTREAM", true),
    (Some(UPSTREAM), "OURS, EVIL", false),
    (Some(UPSTREAM), "OURS, EVIL, UPSTREAM", false),
    (Some(UPSTREAM), "OURS, UPSTREAM, EVIL", false),
    (Some(UPSTREAM), "OURS", false),
    (Some(UPSTREAM), "OURS, DETOUR OF UPSTREAM", false),
    (Some(UPSTREAM), "OURS, TOKEN OF UPSTREAM", false),
    (None, "BARE", false),
    (Some(UPSTREAM), "OURS, UPSTREAM WITH ITS PORT", true),
];

/// A callee may write what it likes into the Record-Route of its response, and so get the caller's ACK before or after
/// this server does. No mark that it sees there is the caller's: that one would outlive the callee's own account. What
/// proxies behind this server put above its value, as they may, changes nothing.
#[test]
fn a_callee_gets_no_callers_mark_by_hosts_of_its_own() {
    let states = [StateMode::Stateless, StateMode::Transaction];
    for (state, (upstream, written, has_mark)) in states
        .into_iter()
        .flat_map(|state| WRITTEN.map(|case| (state, case)))
    {
        let mut bench = Bench::new(&guarded(state));
        register(&bench, "bob@example.com", &[phone(1)]);
        let line = upstream.map_or(String::new(), |value| format!("Record-Route: {value}\n"));
        let sent = bench.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", &line));
        let invite = sent
            .into_iter()
            .find(|s| s.address() == PHONE)
            .expect("it goes on");
        let ours = invite.headers("Record-Route")[0].to_owned();
        let (_, mark) = ours.split_once(";tz=").expect("it has a mark");
        let value = |name: &str| match name {
            "OURS" => ours.clone(),
            "EVIL" => format!("<sip:{EVIL};lr;tz={mark}"),
            "DETOUR OF UPSTREAM" => UPSTREAM.replace(";lr", &format!(";maddr={EVIL};lr")),
            "TOKEN OF UPSTREAM" => UPSTREAM.replace("sip:", &format!("sip:{EVIL}@")),
            // Its parameters are the header's, and another reader may take them for the URI's.
            "BARE" => {
                let uri = ours
                    .trim_matches(['<', '>'])
                    .replace(";lr;", &format!(";maddr={EVIL};lr;"));
                format!("{uri};x=\"<\"")
            }
            "UPSTREAM WITH ITS PORT" => UPSTREAM.replace(";lr", ":5060;lr"),
            "DETOUR" => ours.replace(";lr;", &format!(";maddr={EVIL};lr;")),
            _ => UPSTREAM.to_owned(),
        };
        let routes: Vec<String> = written.split(", ").map(value).collect();
        let text = with_record_route(&response(&invite, "200 OK", ""), &routes.join(", "));
        let back = one(bench.udp(PHONE, &text));
        assert_eq!(back.address(), CALLER, "{state:?} {written}");
        let back = back.headers("Record-Route").join(", ");
        // The caller's route set is in reverse order (RFC 3261 §12.1.2). A host that gets a request sees what is left of it.
        let mut is_seen_by_callee = false;
        let mut good = 0;
        for (number, route) in back.rsplit(", ").enumerate() {
            is_seen_by_callee |= route.contains(EVIL);
            let Some((_, digits)) = route.split_once(";tz=") else {
                continue;
            };
            let route = ours.replace(&mark[..32], digits.get(..32).unwrap_or_default());
            let is_good = takes_bye(&mut bench, CALLER, &format!("b{number}"), &route);
            assert!(!(is_good && is_seen_by_callee), "{state:?} {written}: {back}");
            good += u32::from(is_good);
        }
        assert_eq!(good > 0, has_mark, "{state:?} {written}: {back}");
    }
}

/// A request that passes here twice has two values of ours: each time that a response passes back, that of the
/// request at hand becomes the caller's, and what is the caller's stays so.
#[test]
fn in_a_spiral_all_marks_are_turned_once() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut config = guarded(state);
        config.routes = vec![relay("sip:192.0.2.20:5060")];
        let mut bench = Bench::new(&config);
        let callee = "192.0.2.20:5060";
        let onward = |sent: Vec<Sent>| {
            sent.into_iter()
                .find(|s| s.text.starts_with("INVITE"))
                .expect("it goes on")
        };
        let first = onward(bench.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", "")));
        let via = "Via: SIP/2.0/UDP 192.0.2.20:5060;branch=z9hG4bKspiral\r\n";
        let again = first.text.replace("INVITE sip:bob@", "INVITE sip:carol@");
        let second = onward(bench.udp(callee, &again.replacen("Via:", &format!("{via}Via:"), 1)));
        let answer = one(bench.udp(callee, &response(&second, "200 OK", "")));
        let back = one(bench.udp(callee, &answer.text.replace(via, "")));
        assert_eq!(back.address(), CALLER);
        let marks = back.headers("Record-Route");
        let before = second.headers("Record-Route");
        assert_eq!(marks.len(), 2);
        assert_eq!(answer.headers("Record-Route"), [marks[0], before[1]]);
        assert!(marks[0] != before[0] && marks[1] != before[1]);
        // By either alone, so that none is left as it was.
        for (number, mark) in marks.iter().enumerate() {
            assert!(
                takes_bye(&mut bench, CALLER, &format!("b{number}"), mark),
                "{mark}"
            );
        }
    }
}

/// So it is where another host stands between the two values, and the call comes from and goes to the same place both
/// times: the marks of the two passes are equal then.
#[test]
fn in_a_spiral_through_another_proxy_all_marks_are_turned_once() {
    for state in [StateMode::Stateless, StateMode::Transaction] {
        let mut config = guarded(state);
        config.routes = vec![relay("sip:192.0.2.20:5060")];
        let mut bench = Bench::new(&config);
        let proxy = "192.0.2.20:5060";
        let onward = |sent: Vec<Sent>| {
            sent.into_iter()
                .find(|s| s.text.starts_with("INVITE"))
                .expect("it goes on")
        };
        let first = onward(bench.udp(proxy, &request("INVITE", "sip:bob@example.com", "a1", "")));
        let via = "Via: SIP/2.0/UDP 192.0.2.20:5060;branch=z9hG4bKspiral\r\n";
        let line = "Record-Route: <sip:198.51.100.9;lr>\r\n";
        let again = first.text.replace("INVITE sip:bob@", "INVITE sip:carol@");
        let again = again.replacen("Via:", &format!("{via}Via:"), 1);
        let again = again.replacen("Record-Route:", &format!("{line}Record-Route:"), 1);
        let second = onward(bench.udp(proxy, &again));
        let before = second.headers("Record-Route");
        assert_eq!(before[0], before[2], "equal marks");
        let answer = one(bench.udp(proxy, &response(&second, "200 OK", "")));
        let back = one(bench.udp(proxy, &answer.text.replace(via, "")));
        let marks = back.headers("Record-Route");
        for (number, mark) in [marks[0], marks[2]].into_iter().enumerate() {
            assert!(
                takes_bye(&mut bench, proxy, &format!("b{number}"), mark),
                "{state:?}: {marks:?}"
            );
        }
    }
}

/// In a row of our nodes each knows its own mark again; those of another domain's nodes stay as they are.
#[test]
fn in_a_row_of_nodes_each_knows_its_own() {
    let mut first = guarded(StateMode::Stateless);
    first.routes = vec![relay("sip:192.0.2.2:5060")];
    let mut second = guarded(StateMode::Transaction);
    second.listeners = vec![crate::common::listener(Transport::Udp, "192.0.2.2:5060")];
    second.own_hosts.clear();
    second.routes = vec![relay("sip:192.0.2.20:5060")];
    second.node_id = 2;
    let (mut first, mut second) = (Bench::new(&first), Bench::new(&second));
    let a = one(first.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", "")));
    let b = second.udp("192.0.2.1:5060", &a.text);
    let b = b
        .iter()
        .find(|s| s.address() == "192.0.2.20:5060")
        .expect("it goes on");
    let foreign = "<sip:203.0.113.1;lr;tz=4cdb000123456789abcdef0123456789>";
    let text = response(b, "200 OK", "").replacen(
        "Record-Route",
        &format!("Record-Route: {foreign}\r\nRecord-Route"),
        1,
    );
    let back = one(second.udp("192.0.2.20:5060", &text));
    let back = one(first.udp("192.0.2.2:5060", &back.text));
    let lines = back.headers("Record-Route");
    assert_eq!((lines.len(), lines[0]), (3, foreign));
    let route = format!("Route: {}, {}\n", lines[2], lines[1]);
    let bye = request("BYE", "sip:bob@203.0.113.9", "a2", &route)
        .replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1");
    let bye = one(first.udp(CALLER, &bye));
    assert_eq!(bye.address(), "192.0.2.2:5060");
    let bye = one(second.udp("192.0.2.1:5060", &bye.text));
    assert_eq!(bye.address(), "203.0.113.9:5060");
}
