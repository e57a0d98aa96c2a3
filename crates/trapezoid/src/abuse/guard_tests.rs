use std::time::Duration;

use super::*;

const NOW: u64 = 1_800_000_000_000;

fn policy() -> BanPolicy {
    let seconds = Duration::from_secs;
    BanPolicy {
        failures: 5,
        window: seconds(60),
        first: seconds(300),
        longest: seconds(3_600),
        limit: 100,
    }
}

fn network(text: &str) -> Network {
    let (address, len) = text.split_once('/').expect("a network");
    Network {
        address: address.parse().expect("an address"),
        prefix_len: len.parse().expect("a length"),
    }
}

fn guard() -> Guard {
    Guard::new(
        policy(),
        vec![network("10.0.0.0/8"), network("2001:db8:5::9/128")],
    )
}

fn source(text: &str) -> Source {
    text.parse().expect("a source")
}

fn number(n: u32) -> Source {
    Source::of(std::net::Ipv4Addr::from_bits(0xc633_0000 + n).into())
}

/// Fails `times` times at `now`, each time as another user. Returns whether that banned the source.
fn fail(guard: &mut Guard, now: u64, who: Source, times: u64) -> bool {
    (0..times).fold(false, |banned, user| {
        banned | matches!(guard.fail(now, who, Some(user), false), Some(Ok(_)))
    })
}

#[test]
fn so_many_failures_in_time_end_in_a_ban() {
    let bad = source("192.0.2.66");
    // Times of failures, seconds, and the number of the failure that exceeds the limit.
    for (times, expected) in [
        (&[0, 0, 0, 0, 0, 0][..], Some(5)),
        (&[0, 10, 20, 30, 59], Some(5)),
        (&[0, 10, 20, 30], None),
        (&[0, 60, 120, 180, 240, 300, 360], None),
        // One failure every 16 s: never five in 60 s.
        (&[0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160], None),
        // Five failures around the end of a window.
        (&[0, 57, 58, 59, 61, 62], Some(6)),
    ] {
        let mut guard = guard();
        let banned = times
            .iter()
            .position(|s| guard.fail(NOW + s * 1000, bad, Some(1), false).is_some());
        assert_eq!(banned.map(|at| at + 1), expected, "{times:?}");
    }
}

#[test]
fn bans_double_up_to_the_longest_and_are_forgotten_after_it() {
    let (mut guard, bad) = (guard(), source("2001:db8:66::/64"));
    let mut now = NOW;
    let mut lengths = Vec::new();
    for _ in 0..6 {
        assert!(fail(&mut guard, now, bad, 5));
        assert!(guard.standing(now).banned.contains(bad));
        assert!(
            !fail(&mut guard, now, bad, 100),
            "what a banned source does counts for nothing"
        );
        let until = guard
            .bans()
            .next()
            .and_then(|(_, ban)| ban.until_ms)
            .expect("an end");
        lengths.push((until - now) / 1000);
        let (ended, _) = guard.pass(now, until - 1);
        assert!(ended.is_empty());
        let (ended, _) = guard.pass(until - 1, until);
        assert_eq!(ended, [bad]);
        assert!(guard.standing(until).banned.is_empty());
        now = until + 1_000;
    }
    assert_eq!(lengths, [300, 600, 1200, 2400, 3600, 3600]);
    let (ended, is_different) = guard.pass(now, now + 3_600_000);
    assert!(ended.is_empty() && is_different);
    assert!(fail(&mut guard, now + 3_600_000, bad, 5));
    let strikes: Vec<u32> = guard.bans().map(|(_, ban)| ban.strikes).collect();
    assert_eq!(strikes, [1], "a good while is enough");
    assert_eq!((guard.counts.made, guard.counts.ended), (7, 6));
}

#[test]
fn one_users_wrong_password_does_not_ban_the_office() {
    let (mut guard, office) = (guard(), source("192.0.2.7"));
    let shared = |guard: &mut Guard, user, times| {
        (0..times).any(|_| guard.fail(NOW, office, Some(user), true).is_some())
    };
    assert!(!shared(&mut guard, 1, 49), "a telephone that tries without end");
    assert!(shared(&mut guard, 1, 1), "and a search for its password");
    // Failures of several users are no mistake.
    let (mut guard, mut banned) = (self::guard(), Vec::new());
    for user in 1..=5 {
        banned.push(shared(&mut guard, user, 3));
    }
    assert_eq!(banned, [false, false, false, false, true]);
    // If no user has registered from there, each failure counts.
    let mut guard = self::guard();
    assert!(fail(&mut guard, NOW, office, 5));
    // A request of a scanner comes from no user's telephone.
    let mut guard = self::guard();
    assert!((0..5).any(|_| guard.fail(NOW, office, None, true).is_some()));
}

#[test]
fn a_scan_does_not_bring_an_offices_wrong_passwords_down_on_it() {
    let (mut guard, office) = (guard(), source("192.0.2.7"));
    // One telephone with a wrong password fails far more often than the limit elsewhere ...
    for _ in 0..40 {
        assert!(guard.fail(NOW, office, Some(1), true).is_none());
    }
    // ... and scans are counted by themselves.
    for number in 1..5 {
        assert!(guard.fail(NOW, office, None, true).is_none(), "scan {number}");
    }
    assert!(guard.fail(NOW, office, Some(1), true).is_none());
    let ban = guard.fail(NOW, office, None, true).and_then(Result::ok);
    assert_eq!(
        ban.map(|ban| ban.reason.as_str()),
        Some("41 failed authentications of one user, 5 requests of a scanner")
    );
    // Scans do not add to the count of users either.
    guard.lift(office);
    for user in 1..5 {
        assert!(guard.fail(NOW, office, None, true).is_none());
        assert!(guard.fail(NOW, office, Some(user), true).is_none());
    }
    assert!(guard.fail(NOW, office, Some(5), true).is_some());
    // If no user has registered from there, both add up, as a guesser does both.
    guard.lift(office);
    assert!(!fail(&mut guard, NOW, office, 4));
    let ban = guard.fail(NOW, office, None, false).and_then(Result::ok);
    assert_eq!(
        ban.map(|ban| ban.reason.as_str()),
        Some("4 failed authentications of 4 users, 1 request of a scanner")
    );
}

#[test]
fn what_is_kept_of_users_has_a_bound() {
    let many = BanPolicy {
        failures: 10_000,
        ..policy()
    };
    let (mut guard, office) = (Guard::new(many, Vec::new()), source("192.0.2.7"));
    for user in 0..9_999 {
        assert!(guard.fail(NOW, office, Some(user), true).is_none(), "{user}");
        let users = &guard.suspects.get(&office).expect("a suspect").users;
        assert!(users.known.capacity() <= USERS, "{user}");
    }
    assert!(guard.fail(NOW, office, Some(9_999), true).is_some());
    // Remembered users count once, however often they fail. Each failure of another user counts.
    let some = BanPolicy {
        failures: USERS as u32 + 10,
        ..policy()
    };
    let mut guard = Guard::new(some, Vec::new());
    for _ in 0..8 {
        for user in 0..USERS as u64 {
            assert!(guard.fail(NOW, office, Some(user), true).is_none());
        }
    }
    let beyond = (1..).find(|_| guard.fail(NOW, office, Some(999), true).is_some());
    assert_eq!(beyond, Some(10));
}

#[test]
fn the_trust_domain_is_never_banned() {
    let mut guard = guard();
    for trusted in ["10.1.2.3", "2001:db8:5::/64"] {
        let trusted = source(trusted);
        assert!(!fail(&mut guard, NOW, trusted, 1_000), "{trusted}");
        assert_eq!(
            guard.add(NOW, trusted, None, String::new()),
            Err(NotBanned::Trusted),
            "{trusted}"
        );
    }
    // A learnt peer counts as one of the configuration, and ends a ban.
    let late = source("192.0.2.99");
    assert!(fail(&mut guard, NOW, late, 5));
    assert_eq!(guard.meet(NOW, late.address()), (true, true));
    assert_eq!(guard.meet(NOW, late.address()), (false, false));
    assert!(!fail(&mut guard, NOW, late, 100));
    let standing = guard.standing(NOW);
    assert!(standing.banned.is_empty() && standing.peers.contains(late));
    // A trunk may be silent for a night, and name service be down.
    let (_, is_different) = guard.pass(NOW, NOW + 12 * 3_600_000);
    assert!(!is_different && guard.standing(NOW).peers.contains(late));
    let (_, is_different) = guard.pass(NOW, NOW + PEER_MS);
    assert!(is_different && guard.standing(NOW).peers.is_empty());
    // A reload also ends a ban.
    assert!(fail(&mut guard, NOW, late, 5));
    assert_eq!(
        guard.reconfigure(NOW, policy(), vec![network("192.0.2.0/24")]),
        [late]
    );
    assert_eq!(guard.bans().count(), 0);
}

#[test]
fn a_peer_that_the_configuration_does_not_name_any_more_is_soon_none() {
    let (mut guard, left, stays) = (guard(), source("192.0.2.98"), source("192.0.2.99"));
    for peer in [left, stays] {
        guard.meet(NOW, peer.address());
    }
    guard.reconfigure(NOW, policy(), Vec::new());
    let later = NOW + 600_000;
    assert_eq!(guard.meet(later, stays.address()), (false, false));
    let (_, is_different) = guard.pass(NOW, NOW + PEER_LEFT_MS);
    assert!(is_different);
    let peers = guard.standing(NOW + PEER_LEFT_MS).peers;
    assert!(!peers.contains(left) && peers.contains(stays));
}

#[test]
fn bans_are_made_and_lifted_by_hand() {
    let (mut guard, bad) = (guard(), source("192.0.2.66"));
    assert!(
        guard
            .add(NOW, bad, Some(NOW + 10_000), "noise".to_owned())
            .is_ok()
    );
    assert!(
        guard.add(NOW, bad, None, "more noise".to_owned()).is_ok(),
        "it replaces the other"
    );
    let (ended, is_different) = guard.pass(NOW, NOW + 10_000_000_000);
    assert!(ended.is_empty() && !is_different, "until it is lifted");
    assert!(guard.lift(bad) && !guard.lift(bad));
    assert!(guard.standing(NOW).banned.is_empty());
    // Lifting a ban also forgets the failures.
    assert!(!fail(&mut guard, NOW, bad, 4));
    guard.lift(bad);
    assert!(!fail(&mut guard, NOW, bad, 4));
    assert!(fail(&mut guard, NOW, bad, 1));
    guard.lift(bad);
    assert!(fail(&mut guard, NOW, bad, 5));
    assert!(guard.bans().all(|(_, ban)| ban.strikes == 1));
    // A ban by hand with an end is not remembered beyond it.
    assert!(guard.add(NOW, bad, Some(NOW + 1_000), String::new()).is_ok());
    let (ended, is_different) = guard.pass(NOW, NOW + 1_000);
    assert_eq!((ended, is_different, guard.bans().count()), (vec![bad], true, 0));
    assert!(guard.ends.is_empty());
}

#[test]
fn at_the_limit_those_that_are_over_go_then_those_that_end_soonest() {
    let mut guard = Guard::new(BanPolicy { limit: 3, ..policy() }, Vec::new());
    assert!(guard.add(NOW, number(0), None, String::new()).is_ok());
    assert!(fail(&mut guard, NOW, number(1), 5));
    assert!(fail(&mut guard, NOW + 200_000, number(2), 5));
    // The first of the two bans is over, and only remembered.
    let later = NOW + 400_000;
    guard.pass(NOW, later);
    assert_eq!(guard.bans().count(), 3);
    assert!(fail(&mut guard, later, number(3), 5));
    assert!(fail(&mut guard, later, number(4), 5));
    let held: Vec<Source> = guard.bans().map(|(source, _)| source).collect();
    assert_eq!(held, [number(0), number(3), number(4)]);
    assert_eq!(guard.counts.evicted, 2);
    // Bans made by an operator stay, and may fill the table.
    for n in [5, 6] {
        assert!(
            guard
                .add(later, number(n), Some(later + 1), String::new())
                .is_ok()
        );
    }
    assert_eq!(
        guard.add(later, number(7), None, String::new()),
        Err(NotBanned::Full)
    );
    assert_eq!(
        (0..5).find_map(|u| guard.fail(later, number(8), Some(u), false)?.err()),
        Some(NotBanned::Full)
    );
    assert_eq!((guard.counts.refused, guard.bans().count()), (2, 3));
    assert!(guard.ends.is_empty());
    // A lower limit takes effect at once.
    guard.pass(later, later + 1);
    assert!(fail(&mut guard, later, number(9), 5));
    guard.reconfigure(later, BanPolicy { limit: 1, ..policy() }, Vec::new());
    assert_eq!(guard.bans().map(|(s, _)| s).collect::<Vec<_>>(), [number(0)]);
}

#[test]
fn suspects_are_bounded_and_forgotten() {
    let mut guard = guard();
    let many = SUSPECTS as u32 + 10;
    for n in 0..many {
        assert!(guard.fail(NOW, number(n), Some(1), false).is_none());
    }
    assert_eq!(guard.watched().0, SUSPECTS);
    assert_eq!(guard.counts.suspects_evicted, 10);
    // Windows that begin again and again do not accumulate either.
    for round in 1..10 {
        for n in 10..2_000 {
            let _ = guard.fail(NOW + round * 61_000, number(n), Some(1), false);
        }
        assert!(guard.order.len() <= 2 * SUSPECTS);
    }
    guard.pass(NOW, NOW + 1_000_000);
    assert_eq!((guard.watched().0, guard.order.len()), (0, 0));
}

#[test]
fn what_a_file_had_is_taken_within_the_limit() {
    let ban = |until_ms, by| Ban {
        since_ms: NOW,
        until_ms,
        strikes: 2,
        by,
        reason: String::new(),
    };
    let mut guard = Guard::new(BanPolicy { limit: 2, ..policy() }, vec![network("10.0.0.0/8")]);
    guard.load(vec![
        (source("10.0.0.1"), ban(None, By::Hand)),
        (number(1), ban(Some(NOW + 5), By::Failures)),
        (number(2), ban(Some(NOW + 9), By::Failures)),
        (number(3), ban(None, By::Hand)),
    ]);
    assert_eq!(
        guard.bans().map(|(s, _)| s).collect::<Vec<_>>(),
        [number(2), number(3)]
    );
    assert!(guard.standing(NOW).banned.contains(number(2)));
    assert!(!guard.standing(NOW + 9).banned.contains(number(2)));
}
