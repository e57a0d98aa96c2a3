//! Tests of `[[group]]`, and of rules that name groups.

use sip_core::config::Route;
use sip_core::dispatcher::{Distribution, MAX_MEMBERS, MarkPolicy};

use super::*;

/// Input, with every line of the messages.
const WRONG: &[(&str, &[&str])] = &[
    // Names, and rules with unknown names.
    (
        "[[group]]\nname = \"carriers\"\nmembers = [ { uri = \"sip:a\" } ]\n\
         [[group]]\nname = \"carriers\"\nmembers = [ { uri = \"sip:b\" } ]\n\
         [[group]]\nname = \"a b\"\nmembers = [ { uri = \"sip:c\" } ]\n\
         [[route]]\ndo = { relay = \"group:cariers\" }\n[[route]]\ndo = { relay = \"group:x\" }\n",
        &[
            "f:5: group[1].name: a group before this one is called \"carriers\" too; name it otherwise, or remove one of them",
            "f:8: group[2].name: \"a b\" is not the name of a group; use letters, digits and -_.",
            "f:11: route[0].do.relay: there is no [[group]] \"cariers\"; did you mean \"group:carriers\"?",
            "f:13: route[1].do.relay: there is no [[group]] \"x\"; add it, or name one of carriers, carriers, a b",
        ],
    ),
    (
        "[[route]]\ndo = { relay = \"group:carriers\" }\n[[group]]\n[[group]]\nname = \"a\"\nmembers = [ {} ]\n",
        &[
            "f:2: route[0].do.relay: there is no [[group]] \"carriers\"; add it, or name one of a",
            "f:3: group[0].name: missing; write name = \"…\"",
            "f:6: group[1].members[0].uri: missing; write uri = \"…\"",
        ],
    ),
    (
        "[[route]]\ndo = { relay = \"group:carriers\" }\n",
        &[
            "f:2: route[0].do.relay: there is no [[group]] \"carriers\"; add a [[group]] with name = \"carriers\"",
        ],
    ),
    // Members.
    (
        "[[group]]\nname = \"a\"\n[[group]]\nname = \"b\"\nmembers = [\n{ uri = \"sips:a;transport=udp\" },\n{ uri = \"tel:1\" },\n\
         { uri = \"sip:a;transport=ws\" },\n{ weight = 2 },\n{ uri = \"sip:a\", weight = 1001, wieght = 1 },\n\
         { uri = \"sip:192.0.2.1\" },\n{ uri = \"sip:gw@192.0.2.1:5060;transport=udp\" },\n\
         { uri = \"sip:GW.example\" },\n{ uri = \"sip:gw.example\" },\n{ uri = \"sip:gw.example:5060\" },\n]\n",
        &[
            "f:1: group[0].members: it has no member; write members = [ { uri = \"sip:gw1.example.net\" } ]",
            "f:6: group[1].members[0].uri: sips: and transport=udp exclude each other; remove one of them",
            "f:7: group[1].members[1].uri: \"tel:1\" is not a SIP URI; write a URI as \"sip:gw1.example.net\" or \"sip:192.0.2.1:5060;transport=tcp\"",
            "f:8: group[1].members[2].uri: transport=ws: a WebSocket is opened by the other side (RFC 7118 §5); use udp, tcp or tls",
            "f:9: group[1].members[3].uri: missing; write uri = \"…\"",
            "f:10: group[1].members[4].weight: 1001 is out of range; 0 to 1000",
            "f:10: group[1].members[4].wieght: unknown key; did you mean \"weight\"?",
            "f:12: group[1].members[6].uri: the same place as \"sip:192.0.2.1\"; remove one of them, and give the other more weight",
            "f:14: group[1].members[8].uri: the same place as \"sip:GW.example\"; remove one of them, and give the other more weight",
        ],
    ),
    // Numbers and words.
    (
        "[[group]]\nname = \"a\"\nalgorithm = \"roundrobin\"\nprobe_s = 3601\nfail_after = 0\nrecover_after = 0\n\
         hold_s = 0\nreply_timeout_ms = 99\nfailover = [503, 503, 600, 407, 487]\nmember = []\n\
         members = [ { uri = \"sip:a\" } ]\n[limits]\nbranches = 256\n",
        &[
            "f:3: group[0].algorithm: \"roundrobin\" is not known; did you mean \"round-robin\"? One of \"round-robin\", \"weighted\", \"call-id\", \"least-load\", \"priority\"",
            "f:4: group[0].probe_s: 3601 is out of range; 0 to 3600",
            "f:5: group[0].fail_after: 0 is out of range; 1 to 1000",
            "f:6: group[0].recover_after: 0 is out of range; 1 to 1000",
            "f:7: group[0].hold_s: 0 is out of range; 1 to 86400",
            "f:8: group[0].reply_timeout_ms: 99 is out of range; 100 to 32000",
            "f:9: group[0].failover[2]: 600 is out of range; 400 to 599",
            "f:9: group[0].failover[1]: named twice; remove it",
            "f:9: group[0].failover[3]: 407 asks the caller for credentials; remove it",
            "f:9: group[0].failover[4]: 487 follows the caller's own CANCEL; remove it",
            "f:10: group[0].member: unknown key; did you mean \"members\"?",
            "f:13: limits.branches: 256 is out of range; 1 to 255",
        ],
    ),
    // Redirects and recursion.
    (
        "[[route]]\ndo = { redirect = \"group:a\" }\n[[route]]\ndo = { redirect = \"location\", strip = 1, recurse = true }\n\
         [[route]]\ndo = { redirect = \"request-uri\" }\n[[route]]\ndo = { redirect = \"sip:a\", relay = \"location\" }\n\
         [[route]]\ndo = { redirect = \"tel:1\" }\n[[route]]\ndo = { relay = \"request-uri\", recurse = true }\n\
         [[route]]\nstate = \"stateless\"\ndo = { relay = \"location\", recurse = true }\n",
        &[
            "f:2: route[0].do.redirect: \"group:a\" is not a SIP URI; write \"location\" or a URI as \"sip:gw1.example.net\"",
            "f:4: route[1].do.strip: belongs to relay; remove it",
            "f:4: route[1].do.recurse: belongs to relay; remove it",
            "f:6: route[2].do.redirect: \"request-uri\" is not a SIP URI: no scheme; write \"location\" or a URI as \"sip:gw1.example.net\"",
            "f:8: route[3].do: relay and redirect; keep one of them",
            "f:10: route[4].do.redirect: \"tel:1\" is not a SIP URI; write \"location\" or a URI as \"sip:gw1.example.net\"",
            "f:12: route[5].do.recurse: the next hop that is asked speaks for no domain of ours; remove it, or relay to \"location\", a URI or a group",
            "f:15: route[6].do.recurse: without state nothing is known of the request when the 3xx comes; write state = \"transaction\" in this rule, or remove it",
        ],
    ),
    (
        "[state]\nmode = \"stateless\"\n[[route]]\ndo = { relay = \"location\", recurse = true }\n",
        &[
            "f:4: route[0].do.recurse: without state nothing is known of the request when the 3xx comes; write state = \"transaction\" in this rule, or remove it",
        ],
    ),
];

#[test]
fn wrong_groups_and_what_is_said_of_them() {
    let mut differences = Vec::new();
    for (input, expected) in WRONG {
        let lines = read(input).map(|_| "valid").expect_err(input);
        if lines != *expected {
            let (said, expected) = (lines.join("\n"), expected.join("\n"));
            differences.push(format!("{input}\nsaid:\n{said}\nexpected:\n{expected}\n"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn too_many_members_are_refused() {
    let members: Vec<String> = (0..=MAX_MEMBERS)
        .map(|n| format!("{{ uri = \"sip:gw{n}\" }}"))
        .collect();
    let input = format!("[[group]]\nname = \"a\"\nmembers = [{}]\n", members.join(", "));
    let lines = read(&input).map(|_| "valid").expect_err("65");
    assert_eq!(lines, ["f:3: group[0].members: 65 elements; 64 at most"]);
}

#[test]
fn groups_as_the_core_has_them() {
    let core = valid(
        "[[group]]\nname = \"plain\"\nmembers = [ { uri = \"sip:a\" } ]\n\
         [[group]]\nname = \"full\"\nalgorithm = \"priority\"\nprobe_s = 0\nfail_after = 1\nrecover_after = 4\nhold_s = 5\n\
         reply_timeout_ms = 300\nfailover = []\n\
         members = [ { uri = \"sip:192.0.2.1:5070;transport=tcp\", weight = 7, priority = 2 } ]\n\
         [[route]]\ndo = { relay = \"group:full\", rewrite_host = true, strip = 1 }\n\
         [[route]]\ndo = { redirect = \"sip:gw.example.net;transport=tls\" }\n",
    )
    .core;
    let [plain, full] = core.groups.as_slice() else {
        panic!("two groups")
    };
    assert_eq!(
        (plain.algorithm, plain.probe_ms),
        (Distribution::RoundRobin, Some(10_000))
    );
    let marks = MarkPolicy {
        fail_after: 3,
        recover_after: 2,
        hold_ms: None,
    };
    assert_eq!(plain.marks, marks);
    assert_eq!(
        (plain.reply_timeout_ms, plain.failover_on.as_slice()),
        (2000, [503].as_slice())
    );

    assert_eq!((full.algorithm, full.probe_ms), (Distribution::Priority, None));
    let marks = MarkPolicy {
        fail_after: 1,
        recover_after: 4,
        hold_ms: Some(5000),
    };
    assert_eq!(full.marks, marks);
    assert!(full.failover_on.is_empty());
    let member = &full.members[0];
    assert_eq!(&*member.hop.authority, b"192.0.2.1:5070");
    assert_eq!((member.weight, member.priority), (7, 2));
    let actions: Vec<&Action> = core.routes.iter().map(|Route { action, .. }| action).collect();
    let [Action::Relay(relay), Action::Redirect(redirect)] = actions.as_slice() else {
        panic!("{actions:?}")
    };
    assert_eq!((&relay.target, relay.strip), (&RelayTarget::Group(1), 1));
    assert!(relay.rewrite_host && !relay.recurse);
    assert_eq!(
        *redirect,
        Redirect::Uri(b"sip:gw.example.net;transport=tls"[..].into())
    );
}

#[test]
fn groups_that_may_not_be_meant() {
    let loaded = valid(
        "[[group]]\nname = \"a\"\nhold_s = 60\nmembers = [ { uri = \"sip:a\", priority = 1 } ]\n\
         [[group]]\nname = \"b\"\nalgorithm = \"priority\"\nprobe_s = 0\nhold_s = 60\nmembers = [ { uri = \"sip:a\", priority = 1 } ]\n\
         [[group]]\nname = \"c\"\nmembers = [ { uri = \"sip:a\", weight = 0 }, { uri = \"sip:b\", weight = 0 } ]\n\
         [[route]]\nwhen = { uri = '^sip:0' }\ndo = { relay = \"group:c\" }\n\
         [[route]]\ndo = { relay = \"group:b\" }\n",
    );
    assert_eq!(
        loaded.warnings,
        [
            "group[0] (a): no rule relays to it",
            "group[0] (a): hold_s has no effect while probe_s is not 0",
            "group[0] (a): priority has no effect without algorithm = \"priority\"",
            "group[2] (c): all members are drained (weight = 0), so that calls to it are refused",
        ]
    );
}
