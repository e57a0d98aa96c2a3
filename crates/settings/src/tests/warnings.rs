//! Tests of the warnings on settings that are allowed but may be a mistake.

use super::*;

/// Rules behind a domain `example.com`, with every warning on them.
const RULES: &[(&str, &[&str])] = &[
    (
        "[[route]]\ndo = { relay = \"request-uri\" }\nauth = false\n",
        &[
            "route[0] (rule 1): auth = false for every source relays for any source to anywhere (an open relay)",
        ],
    ),
    (
        "[[route]]\nwhen = { uri = '^sip:[0-9]+@', header = { \"X-Trunk\" = \"a\" } }\n\
         do = { relay = \"sip:192.0.2.20\" }\nauth = false\n",
        &[
            "route[0] (rule 1): auth = false for every source lets any source call by that next hop; a header is no \
           credential, as the caller writes it",
        ],
    ),
    (
        "[[route]]\nwhen = { source = [\"192.0.2.20\"] }\ndo = { relay = \"request-uri\" }\nauth = false\n\
         [[route]]\ndo = { relay = \"location\" }\nauth = false\n",
        &[],
    ),
    (
        "[[route]]\nwhen = { domain = \"elsewhere.example\" }\ndo = { reject = 403 }\n\
         [[route]]\nwhen = { domain = \"example.com\", uri = '^tel:' }\ndo = { reject = 403 }\n\
         [[route]]\nwhen = { domain = \"example.com\", uri = '@example\\.org$' }\ndo = { reject = 403 }\n\
         [[route]]\nwhen = { domain = \"example.com\", uri = '@example\\.com$' }\ndo = { reject = 403 }\n",
        &[
            "route[0] (rule 1): when.domain elsewhere.example is no domain of this server",
            "route[1] (rule 2): cannot match, as when.uri matches no Request-URI in when.domain example.com",
            "route[2] (rule 3): cannot match, as when.uri matches no Request-URI in when.domain example.com",
        ],
    ),
    (
        "auth = { methods = [\"REGISTER\"] }\n[[route]]\ndo = { relay = \"sip:192.0.2.20\" }\n",
        &["route[0] (rule 1): as no domain asks for credentials, it lets any source call by that next hop"],
    ),
    (
        "[[domain]]\nname = \"open.example\"\nauth = { methods = [\"REGISTER\"] }\n\
         [[route]]\nwhen = { uri = '^sip:0' }\ndo = { relay = \"sip:192.0.2.20\" }\n\
         [[route]]\nwhen = { uri = '^sip:1', domain = \"open.example\" }\ndo = { relay = \"sip:192.0.2.20\" }\n\
         [[route]]\nwhen = { uri = '^sip:2', source = [\"192.0.2.20\"] }\ndo = { relay = \"sip:192.0.2.20\" }\n\
         [[route]]\nwhen = { uri = '^sip:4', source = [\"0.0.0.0/0\"] }\ndo = { relay = \"sip:192.0.2.20\" }\n\
         [[route]]\nwhen = { uri = '^sip:3' }\nauth = true\ndo = { relay = \"sip:192.0.2.20\" }\n",
        &[
            "route[1] (rule 2): as open.example asks for no credentials, it lets any source call by that next hop",
            "route[3] (rule 4): as its source holds every address, it lets any source call by that next hop",
        ],
    ),
    (
        "[[route]]\nwhen = { uri = '^sip:1-900[0-9]*@' }\ndo = { reject = 403 }\n\
         [[route]]\nwhen = { uri = '^sip:1900[0-9]*@' }\ndo = { reject = 403 }\n\
         [[route]]\nwhen = { uri = '@\\[2001:db8::192\\.0\\.2\\.1\\]' }\ndo = { reject = 403 }\n\
         [[route]]\nwhen = { uri = '@\\[2001:db8::c000:201\\]' }\ndo = { reject = 403 }\n\
         [[route]]\nwhen = { uri = '@\\[::ffff:192\\.0\\.2\\.1\\]:5060' }\ndo = { reject = 403 }\n",
        &[
            "route[0] (rule 1): when.uri matches no Request-URI: its scheme and host are in lower case, an IPv6 \
             address is in its shortest form, the user part is without needless escapes, and a number without -.()",
            "route[2] (rule 3): when.uri matches no Request-URI: its scheme and host are in lower case, an IPv6 \
             address is in its shortest form, the user part is without needless escapes, and a number without -.()",
        ],
    ),
    (
        "[[route]]\nwhen = { method = [\"INVITE\", \"MESSAGE\"], source = [\"10.0.0.0/8\"] }\ndo = { reject = 403 }\n\
         [[route]]\nwhen = { method = [\"MESSAGE\"], source = [\"10.1.0.0/16\", \"10.2.0.1\"], uri = 'x' }\n\
         do = { relay = \"location\" }\n\
         [[route]]\nwhen = { method = [\"MESSAGE\"] }\ndo = { reject = 403 }\n\
         [[route]]\nwhen = { method = [\"MESSAGE\"], uri = 'y' }\ndo = { relay = \"location\" }\n\
         [[route]]\nwhen = { method = [\"OPTIONS\"], uri = '^sip:0' }\ndo = { relay = \"location\" }\n\
         [[route]]\nwhen = { method = [\"OPTIONS\"], uri = '^sip:00' }\ndo = { reject = 403 }\n",
        &[
            "route[1] (rule 2): is never reached: route[0] (rule 1) takes all that it would",
            "route[3] (rule 4): is never reached: route[2] (rule 3) takes all that it would",
            "route[5] (rule 6): is never reached: route[4] (rule 5) takes all that it would",
        ],
    ),
];

#[test]
fn warnings() {
    let loaded = valid(
        "[[listen]]\ntransport = \"udp\"\naddress = \"192.0.2.10:5060\"\npreloaded_route = true\n\
         [admin]\nlisten = \"0.0.0.0:8080\"\n[[domain]]\nname = \"a\"\nauth = { methods = [] }\n",
    );
    assert_eq!(
        loaded.warnings,
        [
            "admin.listen: any host that reaches 0.0.0.0:8080 can read the metrics",
            "listen.preloaded_route has no effect without trust.peers",
            "a: REGISTER is not in auth.methods, so any source may take any user's calls",
        ]
    );
    let loaded = valid(
        "[[listen]]\ntransport = \"udp\"\naddress = \"192.0.2.10:5060\"\npreloaded_route = true\n\
         [trust]\npeers = [\"san:a.example\"]\n",
    );
    assert_eq!(
        loaded.warnings,
        ["trust.peers: san: has no effect without a listener of tls"]
    );
}

/// Rules that admit strangers, that cannot match, and that no request reaches.
#[test]
fn rules_that_may_not_be_meant() {
    let domain = "[[domain]]\nname = \"example.com\"\n";
    for (rules, expected) in RULES {
        assert_eq!(valid(&format!("{domain}{rules}")).warnings, *expected, "{rules}");
    }
}

/// Warnings about trust and about the addresses of listeners.
#[test]
fn trust_and_addresses_that_may_not_be_meant() {
    let listen = |ip: &str| format!("[[listen]]\ntransport = \"udp\"\naddress = \"{ip}:5060\"\n");
    for (text, expected) in [
        (
            listen("192.0.2.10")
                + "preloaded_route = true\n[trust]\npeers = [\"0.0.0.0/0\", \"10.0.0.0/8\"]\n",
            &[
                "trust.peers: 0.0.0.0/0 trusts the identity that any caller claims",
                "listen.preloaded_route: with 0.0.0.0/0 in trust.peers this server relays for any source (an open relay)",
            ][..],
        ),
        (
            listen("192.0.2.10") + &listen("198.51.100.1") + &listen("127.0.0.2"),
            &["listen: this machine does not have the address 198.51.100.1"],
        ),
        (
            listen("192.0.2.10") + "[admin]\nlisten = \"198.51.100.2:8080\"\n",
            &[
                "admin.listen: any host that reaches 198.51.100.2:8080 can read the metrics",
                "admin.listen: this machine does not have the address 198.51.100.2",
            ],
        ),
        (listen("0.0.0.0"), &[]),
    ] {
        assert_eq!(valid(&text).warnings, expected, "{text}");
    }
}
