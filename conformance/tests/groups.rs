//! Groups of next hops: shares, members that do not work, drains.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use conformance::{
    Client, Config, Part, Phone, Scene, Server, Sipp, Transport, command, in_time, over_udp_and_tcp, port,
    wait_until,
};

over_udp_and_tcp!(
    round_robin_gives_each_a_third,
    no_call_is_lost_to_members_that_do_not_work,
    a_drained_member_keeps_its_calls_and_gets_no_new_ones,
    the_command_line_drains_a_member_and_enables_it,
    a_member_that_rings_too_late_is_cancelled,
    copies_of_a_stateless_request_go_to_one_member,
    without_a_member_that_is_up_the_answer_is_500,
);

/// At once.
const NOW: Duration = Duration::ZERO;
/// Without probes, and no member is left for a slow one: not where that is no part of the test.
const PATIENT: &str = "probe_s = 0\nreply_timeout_ms = 32000";

fn uri(scene: &Scene, number: u16, transport: Transport) -> String {
    format!("sip:{};transport={}", scene.at(number), transport.name())
}

/// All INVITEs go to a group of these members.
fn group(config: Config, keys: &str, members: &[String]) -> Config {
    let members: Vec<String> = members
        .iter()
        .map(|uri| format!("{{ uri = \"{uri}\" }}"))
        .collect();
    config.invites_to("group:callees", "").table(
        "[[group]]",
        &format!("name = \"callees\"\n{keys}\nmembers = [ {} ]", members.join(", ")),
    )
}

fn wait_for_state(server: &Server, member: &str, state: &str) {
    wait_until(&format!("{member} is {state}"), || {
        server.member_state("callees", member) == state
    });
}

/// A port for each caller of a scene.
fn caller(scene: &Scene, transport: Transport, number: u16) -> Client {
    Client::new(scene, transport, port::CALLER + number, scene.at(port::SERVER))
}

/// The state of a member as `trapezoid groups list` shows it. The other member is up.
#[track_caller]
fn listed_state(scene: &Scene, member: &str) -> String {
    let (code, text) = command(scene, &["groups", "list"]);
    assert_eq!(code, Some(0), "{text}");
    let rows = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut rows: Vec<Vec<&str>> = rows.filter(|row| row.first() == Some(&"callees")).collect();
    assert_eq!(rows.len(), 2, "{text}");
    // GROUP, ALGORITHM, MEMBER, STATE
    rows.sort_by_key(|row| row[2] != member);
    assert_eq!((rows[0][2], rows[1][3]), (member, "up"), "{text}");
    rows[0][3].to_owned()
}

/// The final answer to a call.
fn call(caller: &mut Client, id: &str) -> u16 {
    let answers = caller.call("bob", id);
    answers.last().map_or(0, conformance::Message::status)
}

fn round_robin_gives_each_a_third(transport: Transport) {
    const EACH: u32 = 10;
    let scene = Scene::new();
    let ports = [port::CALLEE, port::CALLEE + 1, port::CALLEE + 2];
    let members = ports.map(|number| uri(&scene, number, transport));
    // Every worker counts its own turns.
    let config = group(Config::new().workers(1), PATIENT, &members);
    let _server = Server::start(&scene, &config);
    let mut callees = Vec::new();
    for number in ports {
        let callee = Sipp::server(&scene, "uas_call", transport, number).calls(EACH, 50);
        let Some(callee) = callee.start() else { return };
        callees.push(callee);
    }
    let caller = Sipp::client(
        &scene,
        "uac_call",
        transport,
        port::CALLER,
        scene.at(port::SERVER),
    )
    .calls(3 * EACH, 50)
    .start()
    .expect("SIPp, as above");
    caller.succeed(3 * EACH);
    for callee in callees {
        let called = callee.finish();
        assert_eq!((called.incoming(), called.successful()), (10, 10), "{called:?}");
    }
}

/// Of four members one is not there, one answers 503, one is silent. SIPp knows no answer but a 200.
fn no_call_is_lost_to_members_that_do_not_work(transport: Transport) {
    const CALLS: u32 = 24;
    let scene = Scene::new();
    let ports = [port::CALLEE, port::CALLEE + 1, port::CALLEE + 2, port::CALLEE + 3];
    let members = ports.map(|number| uri(&scene, number, transport));
    let [works, refuses, is_silent, is_dead] = &members;
    // The time to answer holds for those that work, too.
    let keys = "probe_s = 1\nfail_after = 2\nrecover_after = 1\nreply_timeout_ms = 2000";
    let working = Phone::start(&scene, transport, ports[0], Part::Answer(NOW));
    let _refusing = Phone::start(&scene, transport, ports[1], Part::Refuse(503, NOW));
    let _silent = Phone::start(&scene, transport, ports[2], Part::Silent);
    let server = Server::start(&scene, &group(Config::new(), keys, &members));
    let Some(caller) = Sipp::client(
        &scene,
        "uac_call",
        transport,
        port::CALLER,
        scene.at(port::SERVER),
    )
    .calls(CALLS, 20)
    .start() else {
        return;
    };
    caller.succeed(CALLS);
    assert_eq!(
        working.count("INVITE"),
        CALLS as usize,
        "each call went to it once"
    );
    for failed in [refuses, is_silent, is_dead] {
        wait_for_state(&server, failed, "failed");
    }
    assert_eq!(server.member_state("callees", works), "up");
    server.wait_for_log("member failed");
    let failures = server.metric("trapezoid_group_member_failures_total", is_dead);
    assert!(failures >= 2.0, "{failures}");
    assert_eq!(server.metric("trapezoid_group_member_up", is_dead), 0.0);

    // It is there again: a probe finds it, and it gets calls.
    let back = Phone::start(&scene, transport, ports[3], Part::Answer(NOW));
    back.wait_for("OPTIONS");
    wait_for_state(&server, is_dead, "up");
    let mut caller = self::caller(&scene, transport, 1);
    for n in 0..8 {
        assert_eq!(call(&mut caller, &format!("again-{n}")), 200);
    }
    assert!(back.count("INVITE") >= 1);
    // Those that are marked get none.
    for failed in [refuses, is_silent] {
        assert_eq!(server.member_state("callees", failed), "failed");
    }
}

fn a_drained_member_keeps_its_calls_and_gets_no_new_ones(transport: Transport) {
    drains_and_enables(transport, |_, server, what, member| {
        let body = format!("{{\"member\": \"{member}\"}}");
        server.api(&format!("POST /api/v1/groups/callees/{what}"), &body);
    });
}

fn the_command_line_drains_a_member_and_enables_it(transport: Transport) {
    drains_and_enables(transport, |scene, server, what, member| {
        let (before, state) = match what {
            "drain" => ("up", "drained"),
            _ => ("drained", "up"),
        };
        assert_eq!(listed_state(scene, member), before);
        let (code, text) = command(scene, &["groups", what, "callees", member]);
        assert_eq!(
            (code, text),
            (Some(0), format!("{member} of group callees is {state}\n"))
        );
        assert_eq!(listed_state(scene, member), state);
        assert_eq!(server.member_state("callees", member), state);
    });
}

/// A call goes to one of two members, which is drained by `change` during the call and enabled after it.
fn drains_and_enables(transport: Transport, change: impl Fn(&Scene, &Server, &str, &str)) {
    let scene = Scene::new();
    let phones = [port::CALLEE, port::CALLEE + 1]
        .map(|number| Phone::start(&scene, transport, number, Part::Answer(NOW)));
    let members = [phones[0].uri(""), phones[1].uri("")];
    let server = Server::start(&scene, &group(Config::new(), PATIENT, &members));
    let mut caller = caller(&scene, transport, 0);
    let answers = caller.call("bob", "under-way");
    let answer = answers.last().expect("an answer").clone();
    assert_eq!(answer.status(), 200);
    let busy = usize::from(phones[1].count("INVITE") == 1);

    change(&scene, &server, "drain", &members[busy]);
    assert_eq!(server.member_state("callees", &members[busy]), "drained");
    for n in 0..6 {
        assert_eq!(call(&mut caller, &format!("new-{n}")), 200);
    }
    assert_eq!(phones[busy].count("INVITE"), 1, "no new call");
    assert_eq!(phones[1 - busy].count("INVITE"), 6);

    caller.in_dialog("BYE", 2, "under-way", &answer);
    assert_eq!(caller.final_response().status(), 200);
    assert_eq!(phones[busy].count("BYE"), 1, "the call under way ends as ever");

    change(&scene, &server, "enable", &members[busy]);
    for n in 0..6 {
        assert_eq!(call(&mut caller, &format!("more-{n}")), 200);
    }
    assert!(phones[busy].count("INVITE") >= 2);
}

fn a_member_that_rings_too_late_is_cancelled(transport: Transport) {
    in_time(|| rings_too_late(transport));
}

/// `None` if the member that is in time was late, too.
fn rings_too_late(transport: Transport) -> Option<()> {
    // Long enough for the one that is in time.
    const TIME: Duration = Duration::from_secs(2);
    let scene = Scene::new();
    let late = Phone::start(&scene, transport, port::CALLEE, Part::RingOnCue);
    let good = Phone::start(&scene, transport, port::CALLEE + 1, Part::AnswerOnCue);
    let members = format!(
        "members = [ {{ uri = \"{}\" }}, {{ uri = \"{}\", priority = 1 }} ]",
        late.uri(""),
        good.uri("")
    );
    let keys = format!(
        "name = \"callees\"\nalgorithm = \"priority\"\nprobe_s = 0\nreply_timeout_ms = {}\n{members}",
        TIME.as_millis()
    );
    let config = Config::new()
        .invites_to("group:callees", "")
        .table("[[group]]", &keys);
    let _server = Server::start(&scene, &config);
    // From the caller's side: a phone may see its request late, and the wait shorter than it was.
    let began = Instant::now();
    let mut caller = caller(&scene, transport, 0);
    caller.invite("bob", "late");
    let mut answer = caller.receive();
    while answer.status() < 180 {
        answer = caller.receive();
    }
    // The time of the second began when that of the first was over, at the earliest.
    if answer.status() != 180 && began.elapsed() >= 2 * TIME {
        return None;
    }
    assert_eq!(answer.status(), 180, "{answer:?}");
    let waited = good.wait_for("INVITE").at - began;
    assert!(waited >= TIME, "{waited:?}");
    // The other is left by now, and has said nothing.
    late.wait_for("INVITE");
    assert_eq!(
        late.count("CANCEL"),
        0,
        "a CANCEL before anything came (RFC 3261 §9.1)"
    );
    late.cue();
    late.wait_for("CANCEL");
    late.wait_for("ACK");
    good.cue();
    let answer = caller.final_response();
    assert_eq!(answer.status(), 200, "{answer:?}");
    caller.acknowledge("bob", "late", &answer);
    good.wait_for("ACK");
    assert_eq!((late.count("INVITE"), good.count("INVITE")), (1, 1));
    Some(())
}

fn copies_of_a_stateless_request_go_to_one_member(transport: Transport) {
    const CALLS: usize = 12;
    let scene = Scene::new();
    let phones = [0, 1, 2].map(|n| Phone::start(&scene, transport, port::CALLEE + n, Part::Silent));
    let members: Vec<String> = phones.iter().map(|phone| phone.uri("")).collect();
    let config = group(Config::new().stateless(), PATIENT, &members);
    let _server = Server::start(&scene, &config);
    let mut caller = caller(&scene, transport, 0);
    let calls: Vec<String> = (0..CALLS).map(|n| format!("copy-{n}")).collect();
    for call in &calls {
        for _ in 0..2 {
            caller.invite("bob", call);
        }
    }
    // How many copies of each call came.
    let copies = || {
        let mut copies: BTreeMap<String, usize> = BTreeMap::new();
        for heard in phones.iter().flat_map(Phone::heard) {
            *copies
                .entry(heard.message.header("call-id").to_owned())
                .or_default() += 1;
        }
        copies
    };
    let mut sent = Instant::now();
    wait_until("two copies of each call", || {
        let came = copies();
        let lacks = |call: &&String| came.get(*call).is_none_or(|n| *n < 2);
        let lacking: Vec<&String> = calls.iter().filter(lacks).collect();
        // A datagram may be lost.
        if transport == Transport::Udp && sent.elapsed() >= Duration::from_secs(1) {
            sent = Instant::now();
            lacking.iter().for_each(|call| caller.invite("bob", call));
        }
        lacking.is_empty()
    });
    let first: usize = phones.iter().map(|phone| phone.count("INVITE")).sum();
    assert_eq!(first, CALLS, "both copies of a call went the same way");
    assert!(
        phones.iter().filter(|phone| phone.count("INVITE") > 0).count() > 1,
        "one got all"
    );
}

fn without_a_member_that_is_up_the_answer_is_500(transport: Transport) {
    let scene = Scene::new();
    let phone = Phone::start(&scene, transport, port::CALLEE, Part::Answer(NOW));
    let member = phone.uri("");
    let server = Server::start(
        &scene,
        &group(Config::new(), PATIENT, std::slice::from_ref(&member)),
    );
    let drain = format!("{{\"member\": \"{member}\"}}");
    server.api("POST /api/v1/groups/callees/drain", &drain);
    assert_eq!(call(&mut caller(&scene, transport, 0), "nobody"), 500);
    assert_eq!(phone.count("INVITE"), 0);
}

/// What cannot be done is said, and is no success.
#[test]
fn the_command_line_says_what_is_wrong() {
    let scene = Scene::new();
    let (up, off) = (
        uri(&scene, port::CALLEE, Transport::Udp),
        uri(&scene, port::CALLEE + 1, Transport::Udp),
    );
    let keys = format!(
        "name = \"callees\"\n{PATIENT}\nmembers = [ {{ uri = \"{up}\" }}, {{ uri = \"{off}\", weight = 0 }} ]"
    );
    let config = Config::new()
        .invites_to("group:callees", "")
        .table("[[group]]", &keys);
    let server = Server::start(&scene, &config);
    let nobody = "sip:nobody.example.net";
    for (words, says) in [
        (["drain", "others", &up], "no group \"others\""),
        (["enable", "others", &up], "no group \"others\""),
        (["drain", "call/ees", &up], "no group \"call/ees\""),
        (
            ["drain", "callees", nobody],
            "no member \"sip:nobody.example.net\"",
        ),
        (
            ["enable", "callees", nobody],
            "no member \"sip:nobody.example.net\"",
        ),
        (["enable", "callees", &off], "has weight = 0"),
    ] {
        let (code, text) = command(&scene, &[&["groups"], &words[..]].concat());
        assert!(
            code == Some(1) && text.contains(says),
            "{words:?}: {code:?} {text}"
        );
    }
    assert_eq!(server.member_state("callees", &up), "up");
    assert_eq!(server.member_state("callees", &off), "drained");
    drop(server);
    let admin = scene.at(port::ADMIN);
    for words in [
        &["list"][..],
        &["drain", "callees", &up],
        &["enable", "callees", &up],
    ] {
        let (code, text) = command(&scene, &[&["groups"], words].concat());
        let says = format!("no server responds at {admin}: ");
        assert!(
            code == Some(1) && text.contains(&says),
            "{words:?}: {code:?} {text}"
        );
    }
}
