//! `trapezoid plan auth`, through the built binary.

use crate::common;

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Exit code, standard output, standard error.
fn plan(arguments: &str) -> (i32, String, String) {
    let arguments: Vec<&str> = arguments.split_ascii_whitespace().collect();
    common::run(Path::new("."), &[&["plan", "auth"], &arguments[..]].concat(), "")
}

fn json(arguments: &str) -> Value {
    let (code, stdout, stderr) = plan(&format!("{arguments} --json"));
    assert_eq!((code, stderr.as_str()), (0, ""), "{arguments}");
    serde_json::from_str(&stdout).expect("JSON")
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn close(a: &Value, b: f64, relative: f64) -> bool {
    (number(a) - b).abs() <= relative * b.abs()
}

const GIVEN: &str = "--rtt 30ms --batch-fixed 200us --batch-per-row 8us";

/// The metrics of a server after batches that took `fixed_us + per_row_us · rows`, round trip and all.
fn page(fixed_us: u64, per_row_us: u64, sizes: &[u64], bytes: bool) -> String {
    let mut page = String::from("# TYPE trapezoid_credential_batches counter\n");
    for size in sizes {
        let (batches, rows) = (1000 / size + 1, (1000 / size + 1) * size);
        let busy = (batches * fixed_us + rows * per_row_us) as f64 / 1e6;
        let name = "trapezoid_credential_batch";
        let _ = write!(
            page,
            "{name}es_total{{size=\"{size}\"}} {batches}\n{name}_rows_total{{size=\"{size}\"}} {rows}\n\
             {name}_busy_seconds_total{{size=\"{size}\"}} {busy}\n"
        );
        if bytes {
            let (out, back) = (50 * batches + 30 * rows, 100 * batches + 60 * rows);
            let _ = write!(
                page,
                "{name}_bytes_total{{direction=\"out\",size=\"{size}\"}} {out}\n\
                 {name}_bytes_total{{direction=\"in\",size=\"{size}\"}} {back}\n"
            );
        }
    }
    page + "# EOF\n"
}

fn file(dir: &Path, page: &str) -> PathBuf {
    let path = dir.join("metrics.txt");
    std::fs::write(&path, page).expect("writable");
    path
}

#[test]
fn people_get_lines_for_the_configuration() {
    let (code, stdout, stderr) = plan(&format!("{GIVEN} --target 12000 --cpu-per-call 60us --curve"));
    assert_eq!((code, stderr.as_str()), (0, ""));
    let toml = stdout
        .split_once("[credentials]")
        .and_then(|(_, rest)| rest.split_once("\n\n"));
    let lines: Vec<&str> = toml.expect("a table").0.trim().lines().collect();
    assert_eq!(lines, ["connections = 7", "max_batch = 64"], "{stdout}");
    for text in [
        "A batch of b rows takes 200 µs + 8 µs · b of the database and 30 ms of the network (given).",
        "bytes on the wire were not measured",
        "Peak: 14,587/s, limited by the connections",
        "At 12,000/s:",
        "16,667p",
        "By load, adaptive mode:",
        "By load, fixed mode, 5 ms at most:",
    ] {
        assert!(stdout.contains(text), "no {text:?} in:\n{stdout}");
    }
    assert_eq!(
        stdout,
        plan(&format!("{GIVEN} --target 12000 --cpu-per-call 60us --curve")).1
    );
    let (_, short, _) = plan(&format!("{GIVEN} --target 12000"));
    assert!(!short.contains("By load") && !short.contains("16,667p"));
}

#[test]
fn machines_get_the_same() {
    let plan = json(&format!("{GIVEN} --target 12000 --at 100 --curve"));
    assert_eq!(plan["choice"]["connections"], 7);
    assert_eq!(plan["choice"]["max_batch"], 64);
    assert_eq!(plan["choice"]["limited_by"], "connections");
    // 7 · 64 / (30 ms + 200 µs + 64 · 8 µs).
    assert!(close(&plan["choice"]["peak_per_s"], 448.0 / 0.030_712, 1e-9));
    assert_eq!(plan["batch"]["source"], "given");
    assert_eq!(plan["bytes"]["source"], "paper");
    // At 100 calls a second, connections are mostly idle, while a fixed batch waits for its timer.
    assert!(number(&plan["at"]["adaptive"]["mean_wait_us"]) < 1_000.0);
    assert!(number(&plan["at"]["fixed"]["mean_wait_us"]) > 4_000.0);
    let grid = plan["grid"].as_array().expect("a list");
    assert_eq!(grid.len(), 7 * 8);
    let alternatives = plan["alternatives"].as_array().expect("a list");
    for alternative in alternatives {
        assert!(number(&alternative["peak_per_s"]) >= 14_400.0);
    }
    let kbit = |at: &Value| number(&at["out_kbit_per_s"]) + number(&at["in_kbit_per_s"]);
    let first = &alternatives[0]["at_target"];
    assert!(
        kbit(first) > 1.5 * kbit(&plan["choice"]["at_target"]),
        "batching saves"
    );
    let curve = plan["curve"]["adaptive"].as_array().expect("a list");
    assert_eq!(
        curve.len(),
        plan["curve"]["fixed"].as_array().expect("a list").len()
    );
    let last = curve.last().expect("points");
    assert_eq!(last["saturated"], true);
    assert_eq!(last["mean_wait_us"], Value::Null);
    assert!(close(&last["carried_per_s"], 448.0 / 0.030_712, 0.02));
}

#[test]
fn times_are_taken_from_what_a_server_measured() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = file(dir.path(), &page(30_200, 8, &[1, 2, 4, 8, 64], true));
    let metrics = format!("--metrics {} --target 12000", path.display());

    let found = json(&format!("{metrics} --rtt 30ms"));
    assert_eq!(found["batch"]["source"], "metrics");
    assert!(close(&found["batch"]["fixed_us"], 200.0, 1e-6));
    assert!(close(&found["batch"]["per_row_us"], 8.0, 1e-6));
    assert!(close(&found["batch"]["fitted_fixed_us"], 30_200.0, 1e-6));
    assert!(number(&found["batch"]["worst_error"]) < 1e-6);
    assert_eq!(found["batch"]["sizes"].as_array().expect("a list").len(), 5);
    assert_eq!(found["bytes"]["source"], "metrics");
    assert!(close(&found["bytes"]["out"]["per_row"], 30.0, 1e-6));
    assert!(close(&found["bytes"]["in"]["fixed"], 100.0, 1e-6));
    // These rows are longer than the paper's, so that larger batches save more than a percent.
    assert_eq!(found["choice"]["connections"], 4);
    assert_eq!(found["notes"], serde_json::json!([]));

    // Without a round trip all that is fixed is taken for it, and that is said.
    let found = json(&metrics);
    assert!(close(&found["rtt_us"], 30_200.0, 1e-6) && close(&found["batch"]["fixed_us"], 0.0, 0.0));
    let note = found["notes"][0].as_str().expect("a note");
    assert!(
        note.contains("without --rtt the whole fixed part") && note.contains("30.2 ms"),
        "{note}"
    );

    // Measured near, planned for far.
    let path = file(dir.path(), &page(300, 8, &[1, 16], false));
    let metrics = format!("--metrics {} --target 12000 --rtt 30ms", path.display());
    let found = json(&format!("{metrics} --metrics-rtt 100us"));
    assert!(close(&found["batch"]["fixed_us"], 200.0, 1e-6) && close(&found["rtt_us"], 30_000.0, 1e-9));
    assert_eq!(found["bytes"]["source"], "paper");
    let (code, _, stderr) = plan(&metrics);
    assert_eq!(code, 2);
    assert!(stderr.contains("less than the round trip of 30 ms") && stderr.contains("--metrics-rtt"));

    // What was given goes first.
    let found = json(&format!("{metrics} --batch-fixed 1ms --batch-per-row 1us"));
    assert_eq!(found["batch"]["source"], "given");

    let (_, stdout, _) = plan(&format!("{metrics} --metrics-rtt 100us"));
    let told = "Measured, with the round trip: 300 µs + 8 µs · b; off by 0.0 % in the mean, 0.0 % at worst:";
    assert!(stdout.contains(told), "{stdout}");
}

#[test]
fn the_page_of_a_running_server_is_read() {
    let place = common::Place::claim();
    let listener = TcpListener::bind(place.at(0)).expect("binds");
    let url = format!("http://{}/metrics", listener.local_addr().expect("an address"));
    let server = std::thread::spawn(move || {
        for status in ["200 OK", "503 Service Unavailable"] {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut asked = Vec::new();
            let mut part = [0; 1024];
            while !asked.ends_with(b"\r\n\r\n") {
                let length = stream.read(&mut part).expect("a request");
                asked.extend_from_slice(&part[..length]);
            }
            let page = page(30_200, 8, &[1, 8], false);
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{page}",
                page.len()
            );
            stream.write_all(answer.as_bytes()).expect("writes");
            assert!(asked.starts_with(b"GET /metrics HTTP/1.0\r\n"));
        }
    });
    let found = json(&format!("--metrics {url} --rtt 30ms --target 5000"));
    assert!(close(&found["batch"]["fixed_us"], 200.0, 1e-6));
    let (code, stdout, stderr) = plan(&format!("--metrics {url} --rtt 30ms --target 5000"));
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("503 Service Unavailable"), "{stderr}");
    server.join().expect("it was asked twice");
}

#[test]
fn pages_that_tell_too_little_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    for (page, code, why) in [
        (
            page(30_200, 8, &[1], false),
            2,
            "measure under a load that fills batches",
        ),
        ("# EOF\n".to_owned(), 1, "no batch is counted there"),
        (
            "trapezoid_credential_batches_total{size=\"x\"} 1\n".to_owned(),
            1,
            "line 1: a label size",
        ),
    ] {
        let path = file(dir.path(), &page);
        let (got, stdout, stderr) = plan(&format!("--metrics {} --rtt 30ms --target 5", path.display()));
        assert_eq!((got, stdout.as_str()), (code, ""), "{stderr}");
        assert!(stderr.contains(why), "{stderr}");
    }
    let missing = dir.path().join("missing");
    let (code, _, stderr) = plan(&format!("--metrics {} --rtt 30ms --target 5", missing.display()));
    assert_eq!(code, 1);
    assert!(stderr.contains("missing: "), "{stderr}");
}

#[test]
fn targets_out_of_reach_name_the_limit_and_the_most() {
    for (more, texts) in [
        (
            "--target 5000 --max-connections 2 --max-batch 16",
            [
                "6,000/s, out of reach: the most is 1,055/s",
                "raise --max-connections",
            ],
        ),
        (
            "--target 200000",
            [
                "the most is 104,575/s",
                "the batches that the database works on at once",
            ],
        ),
        (
            "--target 16000 --cpu-per-call 60us",
            ["the most is 16,667/s", "the CPU of the proxy; more workers"],
        ),
        (
            "--target 16000 --db-cpu-fixed 100us --db-cpu-per-row 100us",
            ["the most is 9,922/s", "the CPU of the database"],
        ),
    ] {
        let (code, stdout, stderr) = plan(&format!("{GIVEN} {more}"));
        assert_eq!((code, stdout.as_str()), (2, ""), "{more}");
        assert!(texts.iter().all(|text| stderr.contains(text)), "{stderr}");
    }
}

#[test]
fn wrong_command_lines_say_what_is_missing() {
    for (arguments, why) in [
        ("", "--target"),
        ("--target 5 --rtt 30ms", "--metrics"),
        ("--target 5 --batch-fixed 1us --batch-per-row 1us", "--rtt"),
        ("--target 5 --rtt 30ms --batch-fixed 1us", "--batch-per-row"),
        (
            "--target 5 --rtt 30ms --metrics-rtt 1ms --batch-fixed 1us --batch-per-row 1us",
            "--metrics",
        ),
        ("--target 0 --rtt 30ms --metrics x", "must be a number from 0.001"),
        ("--target 5 --rtt 30 --metrics x", "write a time as 200us, 30ms"),
        (
            "--target 5 --rtt 30ms --metrics x --headroom 0.5",
            "must be a number from 1 to 100",
        ),
        ("--target 5 --rtt 30ms --metrics x --max-batch 0", "1..=4096"),
        (
            "--target 5 --rtt 30ms --metrics x --max-connections 5000",
            "1..=4096",
        ),
        ("--target 5 --rtt 30ms --metrics x --db-cores 0", "1..=1024"),
        (
            "--target 5 --metrics /nowhere --batch-fixed 1us --batch-per-row 1us",
            "/nowhere",
        ),
    ] {
        let (code, stdout, stderr) = plan(arguments);
        let expected = if arguments.contains("nowhere") { 1 } else { 2 };
        assert_eq!((code, stdout.as_str()), (expected, ""), "{arguments}: {stderr}");
        assert!(stderr.contains(why), "{arguments}: {stderr}");
    }
}
