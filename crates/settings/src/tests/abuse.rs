//! Tests of `[abuse]`.

use super::*;

#[test]
fn abuse_control_is_on_until_it_is_switched_off() {
    let loaded = valid("");
    let abuse = &loaded.core.abuse;
    assert_eq!((abuse.rate, abuse.burst, abuse.bans), (2000, 5000, true));
    assert!(abuse.scanners.is_empty());
    let is_exempt = |ip: &str| {
        let ip = ip.parse().expect("an address");
        abuse.exempt.iter().any(|network| network.contains(ip))
    };
    assert!(is_exempt("127.0.0.1") && is_exempt("::1") && !is_exempt("192.0.2.1"));
    assert_eq!(loaded.shell.bans.failures, 200);
    let off = valid("[abuse]\nrate = 0\nfailures = 0\nexempt = []\n");
    assert!(off.core.abuse.rate == 0 && !off.core.abuse.bans && off.core.abuse.exempt.is_empty());
    assert_eq!(off.shell.bans.failures, 0);
    let loaded = valid(
        "[abuse]\nrate = 50\nburst = 200\nsources = 1000\nfailures = 10\nfailures_s = 30\nban_s = 60\nban_max_s = 600\n\
         bans = 5\nexempt = [\"10.0.0.0/8\", \"2001:db8::1\"]\n\
         [abuse.scanners]\nuser_agent = ['friendly-scanner', '^sip(vicious|cli)']\nuri_user = ['^[0-9]{20,}$']\n",
    );
    let abuse = &loaded.core.abuse;
    assert_eq!(
        (abuse.rate, abuse.burst, abuse.sources, abuse.bans),
        (50, 200, 1000, true)
    );
    assert_eq!(abuse.exempt.len(), 2);
    let scanners = &abuse.scanners;
    let agent = scanners.user_agent.as_ref().expect("patterns");
    for (name, is) in [
        (&b"Friendly-Scanner"[..], true),
        (b"SIPVicious 0.3", true),
        (b"not sipcli", false),
        (b"phone", false),
    ] {
        assert_eq!(agent.is_match(name), is, "{}", text(name));
    }
    assert!(scanners.uri_user.is_some() && scanners.from_user.is_none() && scanners.to_user.is_none());
    let seconds = Duration::from_secs;
    assert_eq!(
        loaded.shell.bans,
        BanPolicy {
            failures: 10,
            window: seconds(30),
            first: seconds(60),
            longest: seconds(600),
            limit: 5,
        }
    );
}

#[test]
fn errors_name_what_is_wrong_with_a_limit() {
    for (config, expected) in [
        (
            "[abuse]\nexempt = [\"10.0.0.0/8\", \"office\"]\n",
            "f:2: abuse.exempt[1]: \"office\" is not a network; write it as \"10.0.0.0/24\" or \"192.0.2.1\"",
        ),
        (
            "[abuse]\nban_s = 600\nban_max_s = 60\n",
            "f:3: abuse.ban_max_s: ban_max_s = 60 is less than ban_s = 600; make ban_max_s at least ban_s",
        ),
        (
            "[abuse]\nban_s = 100000\n",
            "f:2: abuse.ban_s: ban_max_s = 86400 is less than ban_s = 100000; make ban_max_s at least ban_s",
        ),
        (
            "[abuse.scanners]\nuser_agent = ['sip', '(']\n",
            "f:2: abuse.scanners.user_agent[1]: not a regular expression: unclosed group; in TOML write patterns in \
             'single quotes'",
        ),
        (
            "[abuse.scanners]\nto_user = ['']\n",
            "f:2: abuse.scanners.to_user[0]: \"\" is found in everything; write what only scanners have",
        ),
        (
            "[abuse]\nburst = 0\n",
            "f:2: abuse.burst: 0 is out of range; 1 to 1000000",
        ),
    ] {
        let lines = read(config).expect_err(config);
        assert_eq!(lines, [expected], "{config}");
    }
}
