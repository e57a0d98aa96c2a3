//! The lab's floor under the load generator: every message goes through it, and every operation succeeds.

use std::process::Command;

use conformance::generator::load;
use conformance::{Child, STARTING, Scene, binary, port, wait_until};

/// Runs the floor while `load` does; what that reports, and how many datagrams the floor says that it relayed.
fn through_the_floor(target: Option<u16>, words: &[&str]) -> (serde_json::Value, u64) {
    let scene = Scene::new();
    let at = scene.at(port::SERVER).to_string();
    let mut command = Command::new(binary());
    command.args(["lab-floor", "--listen", &at]);
    if let Some(target) = target {
        command.args(["--target", &scene.at(target).to_string()]);
    }
    let log = scene.path("floor.log");
    let mut floor = Child::start("floor", &mut command, &log);
    let said = |what: &str| {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().find(|line| line.contains(what)).map(str::to_owned)
    };
    wait_until("it listens", || said("relaying").is_some());
    let uas = scene.at(port::CALLEE).to_string();
    let mut all = vec![words[0], "--target", &at, "--rate", "50", "--duration", "2s"];
    all.extend(&words[1..]);
    if target.is_some() {
        all.extend(["--uas", &uas]);
    }
    let report = load(&scene, &all);
    floor.signal("TERM");
    assert!(floor.wait(STARTING).success());
    let relayed = said("relayed").expect("it tells");
    let count = relayed.split_whitespace().find_map(|word| word.parse().ok());
    (report, count.expect("a number"))
}

#[test]
fn all_messages_of_a_call_go_through_it() {
    let (report, relayed) = through_the_floor(Some(port::CALLEE), &["call", "--outbound"]);
    assert_eq!(
        (&report["offered"], &report["succeeded"]),
        (&100.into(), &100.into())
    );
    let again: u64 = conformance::generator::total(&report["retransmissions"]);
    // INVITE, 180, 200, ACK, BYE, 200; and what a machine that stalls has sent again.
    assert!(
        (600..=600 + 2 * again).contains(&relayed),
        "{relayed}, {again} sent again"
    );
}

#[test]
fn it_answers_registrations() {
    // As many as REGISTERs: of one user no two are under way.
    let (report, relayed) = through_the_floor(None, &["register", "--users", "user:100"]);
    assert_eq!(
        (&report["offered"], &report["succeeded"]),
        (&100.into(), &100.into())
    );
    assert!(relayed >= 100, "{relayed}");
}
