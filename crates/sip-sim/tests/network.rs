//! Fixed seeds of whole networks under faults. `make sim` runs any others, and explains.

use std::fs;
use std::path::Path;

use counting_allocator::{Counting, allocations};
use sip_sim::network::play;
use sip_sim::network::scenario::Scenario;

/// What servers hold when everything is over is counted to the byte.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Plays these seeds; the first one that breaks a rule is told with all it breaks.
fn hold(seeds: core::ops::Range<u64>) {
    let mut messages = 0;
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
    assert!(messages > 10_000, "the networks were idle: {messages} messages");
}

#[test]
fn seeds_0_to_250_hold() {
    hold(0..250);
}

#[test]
fn seeds_250_to_500_hold() {
    hold(250..500);
}

#[test]
fn seeds_500_to_750_hold() {
    hold(500..750);
}

#[test]
fn seeds_750_to_1000_hold() {
    hold(750..1_000);
}

/// A seed is all that a run depends on.
#[test]
fn a_seed_replays_byte_for_byte() {
    for seed in 0..20 {
        let run = || {
            let outcome = play(Scenario::of(seed));
            outcome.log.ladder(&outcome.stations, None)
        };
        assert_eq!(run(), run(), "seed {seed}");
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
    assert!(found >= 6, "{found} findings in {}", dir.display());
}
