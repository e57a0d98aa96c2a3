//! `/api/v1/cpu-split`: the CPU time by component, and the switch of its measurement.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use sip_core::activity::Component;
use sip_net::cpu::CpuSplit;

use super::api::error;
use super::{Pages, json as page};
use crate::cpu::{CpuTime, WORKER};

/// Longest wait for a worker to obey: one at its limit has turns of milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval of checking whether the workers have taken the order.
const LOOK: Duration = Duration::from_millis(5);

/// The measurement of CPU time, for these pages.
pub(crate) trait CpuPages: Debug + Send + Sync {
    /// Switches the measurement. Returns whether all workers got the order.
    fn switch(&self, on: bool) -> bool;
    /// The CPU time measured so far.
    fn cpu(&self) -> CpuTime;
}

/// A request to switch the measurement.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    on: bool,
}

pub(super) async fn show(State(pages): State<Arc<Pages>>) -> Response {
    page(StatusCode::OK, &shown(&pages.cpu.cpu())).into_response()
}

/// Switches the measurement on or off, and responds with its present result: empty, or complete.
pub(super) async fn put(State(pages): State<Arc<Pages>>, body: Result<Bytes, BytesRejection>) -> Response {
    let remedy = "write {\"on\": true} or {\"on\": false}";
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return error(rejection.status(), format!("{}; {remedy}", rejection.body_text())),
    };
    let wanted: Wanted = match serde_json::from_slice(&body) {
        Ok(wanted) => wanted,
        Err(cause) => return error(StatusCode::BAD_REQUEST, format!("the body: {cause}; {remedy}")),
    };
    let told = pages.cpu.switch(wanted.on);
    let settled = tokio::time::timeout(PATIENCE, async {
        while !pages.cpu.cpu().is_settled() {
            tokio::time::sleep(LOOK).await;
        }
    });
    if !told || settled.await.is_err() {
        let text = "not all workers took the order in time; try again";
        return error(StatusCode::SERVICE_UNAVAILABLE, text);
    }
    page(StatusCode::OK, &shown(&pages.cpu.cpu())).into_response()
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

/// Percent of the whole, to two places.
#[expect(
    clippy::cast_precision_loss,
    reason = "a share need not be exact to the last digit"
)]
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    (part as f64 * 10_000.0 / whole as f64).round() / 100.0
}

fn shown(time: &CpuTime) -> Value {
    let whole: u64 = time.workers.iter().map(CpuSplit::total).sum();
    let components = Component::ALL.iter().map(|component| {
        let ns = time.workers.iter().map(|split| split.of(*component)).sum();
        json!({
            "component": component.label(),
            "meaning": component.meaning(),
            "cpu_seconds": seconds(ns),
            "share_percent": percent(ns, whole),
        })
    });
    let workers = time.workers.iter().enumerate().map(|(number, split)| {
        let parts = Component::ALL.iter();
        let parts = parts.map(|part| (part.label().to_owned(), json!(seconds(split.of(*part)))));
        json!({
            "thread": format!("{WORKER}{number}"),
            "cpu_seconds": seconds(split.total()),
            "turns_measured": split.turns,
            "components": Value::Object(parts.collect()),
        })
    });
    let threads = time.threads.iter().map(|thread| {
        json!({
            "thread": thread.name,
            "component": thread.component,
            "cpu_seconds": seconds(thread.ns),
        })
    });
    json!({
        "on": time.on,
        "elapsed_s": time.elapsed.as_secs_f64(),
        "workers_cpu_seconds": seconds(whole),
        "components": components.collect::<Vec<_>>(),
        "workers": workers.collect::<Vec<_>>(),
        "other_threads": threads.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{TOKEN, ask, start};
    use super::*;

    #[test]
    fn shares_are_those_of_all_workers() {
        let mut split = CpuSplit {
            turns: 3,
            ..CpuSplit::default()
        };
        split.ns[Component::Parse as usize] = 1_000_000_000;
        split.ns[Component::Send as usize] = 3_000_000_000;
        let mut other = CpuSplit::default();
        other.ns[Component::Send as usize] = 2_000_000_000;
        let shown = shown(&CpuTime {
            on: true,
            elapsed: Duration::from_millis(10_500),
            workers: vec![split, other],
            threads: vec![crate::cpu::ThreadTime {
                name: "subscribers".to_owned(),
                component: "store",
                ns: 500_000_000,
            }],
        });
        let components = shown["components"].as_array().expect("a list");
        assert_eq!(components.len(), Component::COUNT);
        let of = |label: &str| {
            let found = components
                .iter()
                .find(|part| part["component"] == label)
                .expect("there");
            (found["cpu_seconds"].clone(), found["share_percent"].clone())
        };
        assert_eq!(of("parse"), (json!(1.0), json!(16.67)));
        assert_eq!(of("send"), (json!(5.0), json!(83.33)));
        assert_eq!(of("tls"), (json!(0.0), json!(0.0)));
        assert_eq!(
            (&shown["workers_cpu_seconds"], &shown["elapsed_s"]),
            (&json!(6.0), &json!(10.5))
        );
        assert_eq!(shown["workers"][1]["components"]["send"], 2.0);
        assert_eq!(shown["workers"][0]["turns_measured"], 3);
        let thread = json!({ "thread": "subscribers", "component": "store", "cpu_seconds": 0.5 });
        assert_eq!(shown["other_threads"], json!([thread]));
        assert_eq!(percent(1, 0), 0.0);
    }

    #[test]
    fn it_is_switched_by_a_body_that_says_so() {
        let (_runtime, address) = start(&Arc::default(), &[]);
        let tell = |what: &str, body: &str| {
            let what = format!("{what} /api/v1/cpu-split");
            let answer = ask(
                address,
                &what,
                &format!("Authorization: Bearer {TOKEN}\r\n"),
                body,
            );
            let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
            let body: Value = serde_json::from_str(body).expect("JSON");
            (head.get(9..12).expect("a status").to_owned(), body)
        };
        let on = |(status, body): (String, Value)| (status, body["on"].clone());
        assert_eq!(on(tell("GET", "")), ("200".to_owned(), json!(false)));
        assert_eq!(on(tell("PUT", "{\"on\": true}")), ("200".to_owned(), json!(true)));
        assert_eq!(on(tell("GET", "")), ("200".to_owned(), json!(true)));
        for (body, said) in [
            ("", "the body: EOF"),
            ("{}", "missing field `on`"),
            ("{\"on\": 1}", "invalid type"),
            ("{\"on\": false, \"off\": true}", "unknown field `off`"),
        ] {
            let (status, answer) = tell("PUT", body);
            let error = answer["error"].as_str().expect("text");
            assert!(
                status == "400" && error.contains(said) && error.contains("write {\"on\": true}"),
                "{body}: {status} {error}"
            );
        }
        assert_eq!(tell("POST", "").0, "405");
        assert_eq!(
            on(tell("PUT", "{\"on\": false}")),
            ("200".to_owned(), json!(false))
        );
    }
}
