//! Which of our crates may depend on which.

use super::Violation;

/// Crate and what it may name, in `[dependencies]`; everything else is an edge that the
/// architecture does not have.
const EDGES: &[(&str, &[&str])] = &[
    ("sip-message", &[]),
    ("sip-core", &["sip-message"]),
    ("sip-backend", &["sip-core"]),
    ("sip-net", &["sip-core"]),
    ("sip-sim", &["sip-core", "sip-backend", "counting-allocator"]),
    ("delay-relay", &[]),
    ("loom-models", &[]),
    ("counting-allocator", &[]),
    ("sip-load", &["sip-message", "sip-core", "sip-net"]),
    ("settings", &["sip-message", "sip-core", "sip-backend", "sip-net"]),
    (
        "trapezoid",
        &[
            "settings",
            "sip-core",
            "sip-backend",
            "sip-net",
            "sip-load",
            "delay-relay",
            "capacity",
            "lab",
        ],
    ),
    ("capacity", &[]),
    ("lab", &["sip-net"]),
    ("conformance", &["sip-message", "delay-relay", "test-address"]),
    ("instructions", &["sip-core", "sip-message"]),
    ("fuzz", &["sip-message", "sip-core", "sip-backend", "settings"]),
    ("test-address", &[]),
    ("test-databases", &[]),
    ("xtask", &[]),
];

/// More edges for tests and benchmarks.
const DEV_EDGES: &[(&str, &[&str])] = &[
    ("sip-message", &["counting-allocator"]),
    ("sip-core", &["counting-allocator"]),
    ("sip-net", &["test-address"]),
    ("delay-relay", &["test-address"]),
    ("sip-load", &["test-address"]),
    ("sip-backend", &["test-databases", "delay-relay"]),
    ("trapezoid", &["test-address", "test-databases"]),
    ("conformance", &["test-databases"]),
    ("loom-models", &["sip-core"]),
];

/// Crates that must stay pure, and the outside crates that they may name: each works without
/// an operating system, none brings a clock, a socket or randomness.
const PURE: &[(&str, &[&str])] = &[
    ("sip-message", &["memchr", "wide"]),
    (
        "sip-core",
        &[
            "memchr",
            "hashbrown",
            "smallvec",
            "siphasher",
            "sha1",
            "base64ct",
            "md-5",
            "sha2",
            "subtle",
            "zeroize",
            "regex",
        ],
    ),
    // Not `no_std`, since it needs logarithms, but as pure.
    ("capacity", &[]),
];

/// The model checker, and the only crate that may name it.
const MODELS: (&str, &str) = ("loom", "loom-models");

fn allowed(table: &'static [(&str, &[&str])], name: &str) -> Option<&'static [&'static str]> {
    table
        .iter()
        .find(|(crate_name, _)| *crate_name == name)
        .map(|(_, edges)| *edges)
}

/// Checks `cargo metadata --no-deps`.
pub(super) fn check(metadata: &serde_json::Value) -> Vec<Violation> {
    let packages: Vec<_> = metadata["packages"].as_array().into_iter().flatten().collect();
    let ours: Vec<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    let mut violations = Vec::new();
    for package in &packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(edges) = allowed(EDGES, name) else {
            let message = "this crate is not in the graph of xtask/src/tidy/graph.rs: add it with its edges";
            violations.push(Violation::new(name, message));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = dependency["name"].as_str().unwrap_or_default();
            let dev = dependency["kind"] == "dev";
            let dev_edge = dev && allowed(DEV_EDGES, name).is_some_and(|more| more.contains(&to));
            if ours.contains(&to) && !edges.contains(&to) && !dev_edge {
                violations.push(Violation::new(
                    name,
                    format!("must not depend on {to}: not an edge of the crate graph"),
                ));
            }
            if to == MODELS.0 && name != MODELS.1 {
                violations.push(Violation::new(name, format!("must leave {to} to {}", MODELS.1)));
            }
            let outside = !dev && !ours.contains(&to);
            if outside && allowed(PURE, name).is_some_and(|list| !list.contains(&to)) {
                violations.push(Violation::new(
                    name,
                    format!("must not depend on {to}: only crates named in xtask/src/tidy/graph.rs"),
                ));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> serde_json::Value {
        let dependencies: Vec<_> = dependencies
            .iter()
            .map(|(n, kind)| json!({ "name": n, "kind": kind }))
            .collect();
        json!({ "name": name, "dependencies": dependencies })
    }

    #[test]
    fn the_architectures_edges_pass() {
        let metadata = json!({ "packages": [
            package("sip-message", &[("memchr", None), ("proptest", Some("dev"))]),
            package("sip-core", &[("sip-message", None)]),
            package("sip-sim", &[("sip-core", None)]),
            package("capacity", &[("proptest", Some("dev"))]),
            package("trapezoid", &[("sip-core", None), ("capacity", None), ("tokio", None)]),
            package("sip-load", &[("test-address", Some("dev"))]),
        ] });
        assert_eq!(check(&metadata), []);
    }

    #[test]
    fn the_model_checker_is_in_no_other_build() {
        let naming = |name: &str| json!({ "packages": [package(name, &[("loom", None)])] });
        assert_eq!(check(&naming("loom-models")), []);
        assert_eq!(check(&naming("sip-net")).len(), 1);
    }

    #[test]
    fn edges_outside_the_graph_fail() {
        let metadata = json!({ "packages": [
            package("sip-message", &[("sip-core", None)]),
            package("sip-core", &[("tokio", None)]),
            package("sip-sim", &[]),
            package("sip-backend", &[("sip-net", Some("dev"))]),
            package("sip-net", &[]),
            package("capacity", &[("sip-core", None), ("libc", None)]),
            package("newcomer", &[]),
        ] });
        let places: Vec<_> = check(&metadata).into_iter().map(|v| v.place).collect();
        assert_eq!(
            places,
            [
                "sip-message",
                "sip-core",
                "sip-backend",
                "capacity",
                "capacity",
                "newcomer"
            ]
        );
    }
}
