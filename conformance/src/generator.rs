//! `trapezoid load` against a server.

use std::process::Command;

use crate::server::binary;
use crate::{Scene, Transport};

/// The generator's report, as JSON.
pub type Report = serde_json::Value;

/// Runs `trapezoid load` with these words to its end.
///
/// # Panics
/// If it fails; failed calls alone are no failure.
pub fn load(scene: &Scene, words: &[&str]) -> Report {
    let output = Command::new(binary())
        .arg("load")
        .args(words)
        .args(["--json", "-"])
        .current_dir(scene.dir())
        .output()
        .expect("the binary starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "trapezoid load {words:?}: {told}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Sum of the counts of a map of the report.
pub fn total(map: &serde_json::Value) -> u64 {
    let counts = map.as_object().into_iter().flat_map(|map| map.values());
    counts.filter_map(serde_json::Value::as_u64).sum()
}

/// `--target` of a listener of the scene.
pub fn target(scene: &Scene, transport: Transport) -> String {
    scene.at(transport.port()).to_string()
}
