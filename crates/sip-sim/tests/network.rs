//! Fixed seeds of whole networks under faults. `make sim` runs any others, and explains.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use counting_allocator::{Counting, allocations};
use sip_sim::network::play;
use sip_sim::network::scenario::{Attack, AttackPlan, NetCall, Scenario};
use sip_sim::network::stranger::{flood, is_changed_copy};
use sip_sim::report::{CallReport, RequestEnd, Side};
use sip_sim::trace::Sent;

/// What servers hold when everything is over is counted to the byte.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Plays these seeds; the first one that breaks a rule is reported with all rules that it breaks.
fn hold(seeds: core::ops::Range<u64>) {
    let (mut messages, least) = (0, 40 * seeds.clone().count());
    for seed in seeds {
        let outcome = play(Scenario::of(seed));
        messages += outcome.log.sent.len();
        let broken: Vec<String> = outcome.violations.iter().map(ToString::to_string).collect();
        assert!(
            broken.is_empty(),
            "{}\n{}\nits ladder: make sim SEED={seed}",
            outcome.scenario.summary(),
            broken.join("\n")
        );
    }
    assert!(allocations() > 0, "bytes are counted");
    assert!(messages > least, "the networks were idle: {messages} messages");
}

/// Several tests, so that they run side by side.
macro_rules! hold {
    ($($name:ident: $seeds:expr),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                hold($seeds);
            }
        )+
    };
}

hold!(
    seeds_0_to_50_hold: 0..50,
    seeds_50_to_100_hold: 50..100,
    seeds_100_to_150_hold: 100..150,
    seeds_150_to_200_hold: 150..200,
    seeds_200_to_250_hold: 200..250,
    seeds_250_to_300_hold: 250..300,
    seeds_300_to_350_hold: 300..350,
    seeds_350_to_400_hold: 350..400,
    seeds_400_to_450_hold: 400..450,
    seeds_450_to_500_hold: 450..500,
    seeds_500_to_550_hold: 500..550,
    seeds_550_to_600_hold: 550..600,
    seeds_600_to_650_hold: 600..650,
    seeds_650_to_700_hold: 650..700,
    seeds_700_to_750_hold: 700..750,
    seeds_750_to_800_hold: 750..800,
    seeds_800_to_850_hold: 800..850,
    seeds_850_to_900_hold: 850..900,
    seeds_900_to_950_hold: 900..950,
    seeds_950_to_1000_hold: 950..1_000,
);

/// How calls of fixed seeds end that came to more than one node.
#[derive(Debug, Default)]
struct Ends {
    calls: u32,
    nodes: usize,
    /// Final responses that callers got.
    told: BTreeMap<u16, u32>,
    /// Calls with several 2xx.
    crossed: u32,
}

/// The ends of those calls that `counts` wants.
fn ends_of(scenarios: impl Iterator<Item = Scenario>, counts: fn(&Scenario, &NetCall) -> bool) -> Ends {
    let mut ends = Ends::default();
    for scenario in scenarios {
        let outcome = play(scenario);
        let scenario = &outcome.scenario;
        let mut sent_of: BTreeMap<_, Vec<&Sent>> = BTreeMap::new();
        for sent in &outcome.log.sent {
            sent_of.entry(sent.facts.call).or_default().push(sent);
        }
        for call in scenario.calls.iter().filter(|call| counts(scenario, call)) {
            let phones: Vec<usize> = scenario
                .callees(call)
                .map(|phone| scenario.node_of_phone(phone))
                .collect();
            let sent = || sent_of.get(&Some(call.call)).into_iter().flatten();
            let rings = |node: &&usize| sent().any(|s| s.to == Some(**node) && s.facts.is_request("INVITE"));
            let count = phones.iter().filter(rings).count();
            if count < 2 {
                continue;
            }
            (ends.calls, ends.nodes) = (ends.calls + 1, ends.nodes + count);
            let caller = Some(scenario.node_of_phone(call.from));
            let told: BTreeSet<(u16, &str)> = sent()
                .filter(|s| s.to == caller && s.facts.is_final_to("INVITE"))
                .map(|s| (s.facts.status.unwrap_or(0), s.facts.to_tag.as_str()))
                .collect();
            ends.crossed += u32::from(told.iter().filter(|(status, _)| *status == 200).count() > 1);
            for (status, _) in told {
                *ends.told.entry(status).or_default() += 1;
            }
        }
    }
    ends
}

/// A change of the scenarios that loses a path is seen.
#[test]
fn calls_to_several_phones_end_in_every_way() {
    let scenarios = (0..400).map(Scenario::of).filter(|s| !s.branches.is_empty());
    let ends = ends_of(scenarios, |scenario, call| !scenario.is_to_group(call));
    println!("{ends:?}");
    for status in [200, 302, 401, 404, 408, 480, 486, 487, 500, 603] {
        assert!(
            ends.told.contains_key(&status),
            "no call ends in {status}: {ends:?}"
        );
    }
    assert!(ends.calls > 100 && ends.crossed > 10, "{ends:?}");
}

#[test]
fn calls_to_a_group_end_in_every_way() {
    let scenarios = (0..400).map(Scenario::of).filter(|s| s.gateways.is_some());
    let ends = ends_of(scenarios, Scenario::is_to_group);
    println!("{ends:?}");
    for status in [200, 302, 401, 404, 408, 480, 486, 487, 500, 603] {
        assert!(
            ends.told.contains_key(&status),
            "no call ends in {status}: {ends:?}"
        );
    }
    assert!(ends.calls > 100, "{ends:?}");
}

/// So it is with calls to one phone.
#[test]
fn calls_to_one_phone_end_in_every_way() {
    let mut ends: BTreeMap<u16, u32> = BTreeMap::new();
    let (mut cancelled, mut crossed, mut unacknowledged) = (0, 0, 0);
    for outcome in (0..200).map(Scenario::of).map(play) {
        let is_single = |report: &&CallReport| {
            let scenario = &outcome.scenario;
            let mut calls = scenario.calls.iter().filter(|call| call.call == report.call);
            calls.any(|call| scenario.callees(call).count() == 1)
        };
        for report in outcome.reports.iter().filter(is_single) {
            if report.side == Side::Callee {
                unacknowledged += u32::from(report.acknowledged == Some(false));
                continue;
            }
            let end = match report.invite {
                RequestEnd::Answered(status) => status,
                RequestEnd::TimedOut(_) => 0,
                RequestEnd::NotSent | RequestEnd::Pending => panic!("{report:?}"),
            };
            *ends.entry(end).or_default() += 1;
            cancelled += u32::from(report.cancel != RequestEnd::NotSent);
            crossed += u32::from(report.cancel != RequestEnd::NotSent && end == 200);
        }
    }
    println!("{ends:?} cancelled {cancelled} crossed {crossed} unacknowledged {unacknowledged}");
    for status in [0, 200, 407, 408, 480, 486, 487, 503] {
        assert!(ends.contains_key(&status), "no call ends in {status}: {ends:?}");
    }
    assert!(cancelled > 50 && crossed > 3 && unacknowledged > 3);
}

/// Floods reach servers with a limit, and are more than it.
#[test]
fn floods_are_more_than_a_server_hears() {
    let (mut own, mut named) = (0, 0);
    let is_flood = |plan: &AttackPlan| matches!(plan.attack, Attack::Flood { .. });
    let scenarios = (0..100).map(Scenario::of);
    for outcome in scenarios.filter(|s| s.attacks.iter().any(is_flood)).map(play) {
        let mut heard: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for sent in &outcome.log.sent {
            let (asked, answered) = heard.entry(&sent.facts.branch).or_default();
            if sent.facts.status.is_some() {
                *answered += 1;
            } else {
                *asked += sent.arrivals.len();
            }
        }
        for (branch, (asked, answered)) in heard {
            own += usize::from(flood(branch) == Some(false) && answered < asked);
            named += usize::from(flood(branch) == Some(true) && answered > 0);
        }
    }
    println!("{own} unheard, {named} heard in the name of a server");
    assert!(own > 1_000 && named > 100);
}

/// The stranger's attacks on what a server trusts are refused in fixed seeds: a change of the scenarios that loses one
/// is seen.
#[test]
fn attacks_on_what_a_server_trusts_are_refused() {
    let is_one = |attack: Attack| {
        matches!(
            attack,
            Attack::Change { .. } | Attack::Lure { .. } | Attack::SelfSent { .. }
        )
    };
    let mut refused: BTreeMap<(&str, String), u32> = BTreeMap::new();
    let scenarios = (0..100).map(Scenario::of);
    for scenario in scenarios.filter(|s| s.attacks.iter().any(|plan| is_one(plan.attack))) {
        let outcome = play(scenario);
        let servers = outcome.scenario.servers.len();
        let is_response = |sent: &&Sent| sent.from < servers && sent.facts.status.is_some();
        for sent in outcome.log.sent.iter().filter(is_response) {
            let is_of_account = sent.text.contains("Call-ID: evil-lure-") && sent.facts.method == "INVITE";
            let attack = match () {
                () if is_changed_copy(&sent.text) => "changed copy",
                () if is_of_account => "account",
                () if sent.to == Some(sent.from) => "self-sent",
                () => continue,
            };
            let status = sent.text.lines().next().unwrap_or_default().to_owned();
            *refused.entry((attack, status)).or_default() += 1;
        }
    }
    println!("{refused:?}");
    for (attack, status) in [
        ("changed copy", "401 Unauthorized"),
        ("changed copy", "407 Proxy Authentication Required"),
        ("account", "480 Temporarily Unavailable"),
        ("account", "480 Contact Denied"),
        ("self-sent", "407 Proxy Authentication Required"),
    ] {
        let key = (attack, format!("SIP/2.0 {status}"));
        assert!(refused.contains_key(&key), "no {key:?}: {refused:?}");
    }
}

/// A seed is all that a run depends on: each message, when it was sent and when it came, to the
/// microsecond and to the byte, and what became of the calls.
#[test]
fn a_seed_replays_byte_for_byte() {
    for seed in 0..20 {
        let (one, other) = (play(Scenario::of(seed)), play(Scenario::of(seed)));
        for (n, (a, b)) in one.log.sent.iter().zip(&other.log.sent).enumerate() {
            let all = |s: &Sent| (s.at, s.from, s.to, s.arrivals.clone(), s.text.clone());
            assert_eq!(all(a), all(b), "seed {seed}, message {n}");
        }
        assert_eq!(one.log.sent.len(), other.log.sent.len(), "seed {seed}");
        assert_eq!(one.log.notes, other.log.notes, "seed {seed}");
        assert_eq!(one.reports, other.reports, "seed {seed}");
    }
}

/// What found something once: scenarios as they were then, whatever seeds stand for today. What was
/// wrong is told by the name of the file, and in its commit.
#[test]
fn kept_findings_hold() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/findings");
    let mut found = 0;
    for entry in fs::read_dir(&dir).expect("the folder of findings") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("a finding");
        let scenario: Scenario = serde_json::from_str(&text).expect("a scenario");
        let outcome = play(scenario);
        assert!(
            outcome.violations.is_empty(),
            "{}: {:?}\nits ladder: make sim SCENARIO={0}",
            path.display(),
            outcome.violations
        );
        found += 1;
    }
    assert!(found >= 14, "{found} findings in {}", dir.display());
}

/// Without state a call goes to one phone. One whose credentials had to be asked for went to all, and
/// to the one that a copy had reached by another branch.
#[test]
fn without_state_one_phone_is_called_though_the_request_waited() {
    [64, 256, 563, 670, 744].into_iter().for_each(|seed| {
        let outcome = play(Scenario::of(seed));
        assert!(outcome.violations.is_empty(), "{:?}", outcome.violations);
    });
}
