//! Any text as the configuration file: read, checked, converted.
//!
//! Problems and warnings are single lines, without control characters, that show no value of an environment
//! variable. A problem points into the file; a file without one has listeners, domains and workers.

use std::net::{IpAddr, Ipv4Addr};

use settings::{Machine, read_text};

/// What the variable `SECRET` holds; no input contains it by chance.
const SECRET: &str = "s3cr3t-0f-the-env1ronment";

fn variable(name: &str) -> Option<String> {
    match name {
        "SECRET" => Some(SECRET.to_owned()),
        "PORT" => Some("5070".to_owned()),
        _ => None,
    }
}

/// Takes one input.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    // Files of secrets are opened; a device is none that a fuzzer should open.
    if text.contains("/dev") || text.contains("/proc") || text.contains(SECRET) {
        return;
    }
    let machine = Machine {
        addresses: vec![(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 24)],
        host_name: Some("sip.example.com".to_owned()),
        processors: 4,
        variable,
        ..Machine::default()
    };
    match read_text(&text, "f", None, &machine) {
        Ok(loaded) => {
            assert!(!loaded.core.listeners.is_empty() && !loaded.core.domains.is_empty());
            assert_eq!(loaded.core.listeners.len(), loaded.shell.services.len());
            assert!(loaded.core.workers > 0);
            for warning in &loaded.warnings {
                assert_is_a_line(warning);
            }
        }
        Err(problems) => {
            let lines = text.matches('\n').count() + 1;
            assert!(!problems.list().is_empty(), "refused without a reason");
            assert!(problems.list().is_sorted_by_key(|problem| problem.line));
            for problem in problems.list() {
                assert!(problem.line <= lines, "{problem:?} is beyond line {lines}");
                assert!(!problem.what.is_empty());
            }
            for line in problems.lines() {
                assert_is_a_line(&line);
            }
        }
    }
}

/// One line of text, which does nothing to a terminal and shows no secret.
fn assert_is_a_line(line: &str) {
    assert!(!line.contains(char::is_control), "{line:?}");
    assert!(!line.contains(SECRET), "{line:?}");
}
