//! `/api/v1/bans`: the bans in force, bans by hand, and their end.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use sip_core::admission::Source;

use super::api::error;
use super::{Pages, json as page};
use crate::abuse::{Ban, Failed, NotBanned, REASON};
use crate::machine::unix_ms;

/// Longest ban by hand with an end, seconds: a year. A ban without an end stays until it is lifted.
const LONGEST_S: u32 = 31_536_000;

/// A request to ban.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    source: String,
    seconds: Option<u32>,
    #[serde(default)]
    reason: String,
}

fn shown(source: Source, ban: &Ban, now_ms: u64) -> Value {
    json!({
        "source": source.to_string(),
        "since_unix_s": ban.since_ms / 1000,
        "until_unix_s": ban.until_ms.map(|until| until.div_ceil(1000)),
        "left_s": ban.until_ms.map(|until| until.saturating_sub(now_ms).div_ceil(1000)),
        "strikes": ban.strikes,
        "by": ban.by.name(),
        "reason": ban.reason,
    })
}

pub(super) async fn list(State(pages): State<Arc<Pages>>) -> Response {
    let now_ms = unix_ms();
    let (bans, limit) = pages.abuse.list(now_ms);
    let bans: Vec<Value> = bans
        .iter()
        .map(|(source, ban)| shown(*source, ban, now_ms))
        .collect();
    page(StatusCode::OK, &json!({ "bans": bans, "limit": limit })).into_response()
}

pub(super) async fn add(State(pages): State<Arc<Pages>>, body: Result<Bytes, BytesRejection>) -> Response {
    let remedy = "write {\"source\": \"192.0.2.66\", \"seconds\": 3600, \"reason\": \"…\"}; without seconds it holds until \
                  it is lifted";
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return error(rejection.status(), format!("{}; {remedy}", rejection.body_text())),
    };
    let wrong = |text: String| error(StatusCode::BAD_REQUEST, format!("{text}; {remedy}"));
    let wanted: Wanted = match serde_json::from_slice(&body) {
        Ok(wanted) => wanted,
        Err(cause) => return wrong(format!("the body: {cause}")),
    };
    let Ok(source) = wanted.source.parse::<Source>() else {
        return wrong(no_source(&wanted.source));
    };
    if wanted
        .seconds
        .is_some_and(|seconds| !(1..=LONGEST_S).contains(&seconds))
    {
        return wrong(format!("seconds are from 1 to {LONGEST_S}"));
    }
    if wanted.reason.chars().count() > REASON {
        return wrong(format!("a reason has {REASON} characters at most"));
    }
    match pages.abuse.add(source, wanted.seconds, &wanted.reason).await {
        Ok(ban) => {
            let body = json!({ "ban": shown(source, &ban, unix_ms()) });
            page(StatusCode::OK, &body).into_response()
        }
        Err(failed) => not_done(&failed),
    }
}

pub(super) async fn lift(State(pages): State<Arc<Pages>>, Path(text): Path<String>) -> Response {
    let Ok(source) = text.parse::<Source>() else {
        return error(StatusCode::BAD_REQUEST, no_source(&text));
    };
    match pages.abuse.lift(source).await {
        Ok(true) => page(StatusCode::OK, &json!({ "lifted": source.to_string() })).into_response(),
        Ok(false) => error(StatusCode::NOT_FOUND, format!("{source} is not banned")),
        Err(failed) => not_done(&failed),
    }
}

fn no_source(text: &str) -> String {
    format!("{text:?} is no source: that is an address of IPv4, or an address or network of 64 bits of IPv6")
}

fn not_done(failed: &Failed) -> Response {
    match failed {
        Failed::Refused(NotBanned::Trusted) => error(
            StatusCode::CONFLICT,
            "it is of the trust domain, which is never banned: see trust.peers, abuse.exempt, next hops and groups",
        ),
        Failed::Refused(NotBanned::Full) => error(
            StatusCode::CONFLICT,
            "as many bans are held as [abuse] bans allows, all made by hand; lift one, or raise it",
        ),
        Failed::NotSaved(why) => error(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("it holds now, but would be lost with a restart: {why}"),
        ),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::SocketAddr;

    use super::super::tests::{TOKEN, ask, start};
    use super::*;
    use crate::abuse::Abuse;

    /// Abuse control without bans; the trust domain is 10.0.0.0/8.
    pub(in super::super) fn abuse() -> Abuse {
        crate::abuse::tests::opened("bans = 2").0
    }

    #[track_caller]
    fn tell(address: SocketAddr, what: &str, body: &str) -> (u16, Value) {
        let answer = ask(address, what, &format!("Authorization: Bearer {TOKEN}\r\n"), body);
        let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
        let status = head
            .get(9..12)
            .and_then(|code| code.parse().ok())
            .expect("a status");
        (status, serde_json::from_str(body).expect("JSON"))
    }

    #[test]
    fn bans_are_listed_made_and_lifted() {
        let (_runtime, address) = start(&Arc::default(), &[]);
        let listed = || tell(address, "GET /api/v1/bans", "").1;
        assert_eq!(listed(), json!({ "bans": [], "limit": 2 }));
        let begin = std::time::Instant::now();
        let (status, body) = tell(
            address,
            "POST /api/v1/bans",
            "{\"source\": \"2001:db8::7\", \"seconds\": 60, \"reason\": \"noise\\n\"}",
        );
        assert_eq!(status, 200, "{body}");
        let ban = &body["ban"];
        assert_eq!(
            (&ban["source"], &ban["by"], &ban["strikes"], &ban["reason"]),
            (
                &json!("2001:db8::/64"),
                &json!("hand"),
                &json!(1),
                &json!("noise ")
            )
        );
        // The ban was written to disk in between. One more second is allowed for rounding of the clocks.
        let left_s = ban["left_s"].as_u64().expect("a number");
        let least = 59_u64.saturating_sub(begin.elapsed().as_secs());
        assert!((least..=60).contains(&left_s), "{left_s}");
        let (status, body) = tell(address, "POST /api/v1/bans", "{\"source\": \"192.0.2.66\"}");
        assert_eq!((status, &body["ban"]["until_unix_s"]), (200, &Value::Null));
        let sources = |list: &Value| {
            let list = list["bans"].as_array().expect("a list");
            list.iter().map(|ban| ban["source"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(sources(&listed()), ["2001:db8::/64", "192.0.2.66"]);
        let (status, body) = tell(address, "DELETE /api/v1/bans/2001:db8::%2F64", "");
        assert_eq!((status, body), (200, json!({ "lifted": "2001:db8::/64" })));
        assert_eq!(tell(address, "DELETE /api/v1/bans/2001:db8::9", "").0, 404);
        assert_eq!(sources(&listed()), ["192.0.2.66"]);
    }

    #[test]
    fn impossible_bans_are_refused() {
        let (_runtime, address) = start(&Arc::default(), &[]);
        let long = format!(
            "{{\"source\": \"192.0.2.1\", \"reason\": \"{}\"}}",
            "x".repeat(REASON + 1)
        );
        let add = "POST /api/v1/bans";
        for (what, body, status, text) in [
            (add, "", 400, "the body: EOF"),
            (add, "{}", 400, "missing field `source`"),
            (
                add,
                "{\"source\": \"example.com\"}",
                400,
                "\"example.com\" is no source",
            ),
            (
                add,
                "{\"source\": \"192.0.2.1\", \"seconds\": 0}",
                400,
                "seconds are from 1",
            ),
            (
                add,
                "{\"source\": \"192.0.2.1\", \"minutes\": 1}",
                400,
                "unknown field `minutes`",
            ),
            (add, &long, 400, "a reason has 200"),
            (add, "{\"source\": \"10.1.2.3\"}", 409, "is never banned"),
            ("DELETE /api/v1/bans/x", "", 400, "\"x\" is no source"),
            (
                "DELETE /api/v1/bans/192.0.2.1",
                "",
                404,
                "192.0.2.1 is not banned",
            ),
            ("PUT /api/v1/bans", "", 405, "POST does"),
        ] {
            let (got, said) = tell(address, what, body);
            let error = said["error"].as_str().expect("text");
            assert!(
                got == status && error.contains(text),
                "{what} {body}: {got} {error}"
            );
        }
        for last in [1, 2] {
            let body = format!("{{\"source\": \"192.0.2.{last}\"}}");
            assert_eq!(tell(address, add, &body).0, 200);
        }
        let (status, body) = tell(address, add, "{\"source\": \"192.0.2.3\"}");
        assert!(
            status == 409 && body["error"].as_str().is_some_and(|e| e.contains("lift one")),
            "{body}"
        );
    }
}
