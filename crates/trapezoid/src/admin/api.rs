//! `/api/v1/`: the pages for operators with the token. Everything is JSON; a refusal is `{"error": "…"}`.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use serde::Deserialize;
use serde_json::{Value, json};
use sip_core::dispatcher::{Distribution, Group, Member, MemberState};

use super::{Pages, bans, cpu_split, credentials, json as page, registrations};
use crate::machine::unix_ms;
use crate::serve::reload::Verdict;

/// Most bytes of a request's body.
const MAX_BODY: usize = 16 * 1024;

/// The routes below `/api/v1`.
pub(super) fn router(pages: &Arc<Pages>) -> Router<Arc<Pages>> {
    Router::new()
        .route("/status", get(status))
        .route("/groups", get(groups))
        .route("/groups/{group}/drain", post(drain))
        .route("/groups/{group}/enable", post(enable))
        .route("/bans", get(bans::list).post(bans::add))
        .route("/bans/{source}", delete(bans::lift))
        .route("/registrations", get(registrations::list))
        .route(
            "/registrations/{aor}",
            get(registrations::show).delete(registrations::remove),
        )
        .route("/credentials", get(credentials::status))
        .route("/credentials/cache", delete(credentials::forget))
        .route("/cpu-split", get(cpu_split::show).put(cpu_split::put))
        .route("/reload", post(reload))
        .fallback(async || error(StatusCode::NOT_FOUND, "no such page below /api/v1"))
        .method_not_allowed_fallback(async || {
            error(
                StatusCode::METHOD_NOT_ALLOWED,
                "GET reads a page, POST does what its name says, PUT switches, DELETE forgets",
            )
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn_with_state(Arc::clone(pages), authorize))
}

pub(super) fn error(status: StatusCode, text: impl Into<String>) -> Response {
    page(status, &json!({ "error": text.into() })).into_response()
}

/// Admits a request that has the token (RFC 6750 §2.1).
async fn authorize(State(pages): State<Arc<Pages>>, request: Request, next: Next) -> Response {
    let value = request.headers().get(header::AUTHORIZATION);
    let given = value.and_then(|value| match value.as_bytes().split_at_checked(7)? {
        (scheme, token) if scheme.eq_ignore_ascii_case(b"Bearer ") => Some(token.trim_ascii()),
        _ => None,
    });
    if given.is_some_and(|given| pages.token.is(given)) {
        return next.run(request).await;
    }
    let text = match given {
        Some(_) => "that is not the token; it is in the file that [admin] token_file names",
        None => "this page needs the header Authorization: Bearer TOKEN",
    };
    let mut response = error(StatusCode::UNAUTHORIZED, text);
    let challenge = header::HeaderValue::from_static("Bearer realm=\"trapezoid\"");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    response
}

async fn status(State(pages): State<Arc<Pages>>) -> Response {
    let reasons = pages.health.reasons();
    let body = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_s": pages.started.elapsed().as_secs(),
        "workers": pages.workers,
        "ready": reasons.is_empty(),
        "draining": pages.health.is_draining(),
    });
    page(StatusCode::OK, &body).into_response()
}

/// Reads the configuration and its files again. If a part of it was refused, the response is an error, so
/// that a script notices.
async fn reload(State(pages): State<Arc<Pages>>) -> Response {
    let Some(outcome) = pages.reloads.ask().await else {
        return error(StatusCode::SERVICE_UNAVAILABLE, "the server is about to end");
    };
    let status = match outcome.result {
        Verdict::Reloaded => StatusCode::OK,
        Verdict::Partly | Verdict::Refused => StatusCode::UNPROCESSABLE_ENTITY,
    };
    match serde_json::to_value(&outcome) {
        Ok(body) => page(status, &body).into_response(),
        Err(cause) => error(StatusCode::INTERNAL_SERVER_ERROR, cause.to_string()),
    }
}

async fn groups(State(pages): State<Arc<Pages>>) -> Response {
    let now = unix_ms();
    let groups: Vec<Value> = pages
        .groups
        .current()
        .iter()
        .map(|group| shown(group, now))
        .collect();
    page(StatusCode::OK, &json!({ "groups": groups })).into_response()
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

fn shown(group: &Group, now_unix_ms: u64) -> Value {
    let algorithm = match group.algorithm {
        Distribution::RoundRobin => "round-robin",
        Distribution::Weighted => "weighted",
        Distribution::CallId => "call-id",
        Distribution::LeastLoad => "least-load",
        Distribution::Priority => "priority",
    };
    let members = group
        .members
        .iter()
        .map(|member| shown_member(member, now_unix_ms));
    json!({ "name": text(&group.name), "algorithm": algorithm, "members": members.collect::<Vec<_>>() })
}

fn shown_member(member: &Member, now_unix_ms: u64) -> Value {
    let state = match member.state(now_unix_ms) {
        MemberState::Up => "up",
        MemberState::Failed => "failed",
        MemberState::Drained => "drained",
    };
    json!({
        "uri": text(&member.hop.uri),
        "weight": member.weight,
        "priority": member.priority,
        "state": state,
        "failures": member.health.failures(),
    })
}

/// A request to change a member.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    member: String,
}

type Body = Result<Bytes, BytesRejection>;

async fn drain(State(pages): State<Arc<Pages>>, Path(group): Path<String>, uri: Uri, body: Body) -> Response {
    change(&pages, &group, &uri, body, true)
}

async fn enable(
    State(pages): State<Arc<Pages>>,
    Path(group): Path<String>,
    uri: Uri,
    body: Body,
) -> Response {
    change(&pages, &group, &uri, body, false)
}

/// Drains a member, or enables it again.
fn change(pages: &Pages, group: &str, uri: &Uri, body: Body, drained: bool) -> Response {
    let groups = pages.groups.current();
    let Some(found) = groups.iter().find(|other| *other.name == *group.as_bytes()) else {
        let names: Vec<_> = groups.iter().map(|group| text(&group.name)).collect();
        return error(
            StatusCode::NOT_FOUND,
            format!("no group {group:?}{}", listed(&names)),
        );
    };
    let name = match named(uri, body) {
        Ok(name) => name,
        Err((status, text)) => return error(status, text),
    };
    let Some(member) = found
        .members
        .iter()
        .find(|member| *member.hop.uri == *name.as_bytes())
    else {
        let uris: Vec<_> = found.members.iter().map(|member| text(&member.hop.uri)).collect();
        let what = format!("no member {name:?} in group {group:?}{}", listed(&uris));
        return error(StatusCode::NOT_FOUND, what);
    };
    if member.weight == 0 && !drained {
        let what = format!("member {name:?} has weight = 0 in the configuration; change that, and reload");
        return error(StatusCode::CONFLICT, what);
    }
    member.health.set_drained(drained);
    let done = if drained { "drained" } else { "enabled" };
    tracing::info!(group, member = name, "member {done} by the operator");
    let body = json!({ "group": group, "member": shown_member(member, unix_ms()) });
    page(StatusCode::OK, &body).into_response()
}

fn listed(names: &[std::borrow::Cow<'_, str>]) -> String {
    if names.is_empty() {
        "; there is none".to_owned()
    } else {
        format!("; there is {}", names.join(", "))
    }
}

/// The member that a request names, in its body or its query.
fn named(uri: &Uri, body: Body) -> Result<String, (StatusCode, String)> {
    let wrong = |text: &str| {
        let remedy = "write {\"member\": \"sip:gw1.example.net\"}, or ?member=sip:gw1.example.net";
        (StatusCode::BAD_REQUEST, format!("{text}; {remedy}"))
    };
    let body = body.map_err(|rejection| (rejection.status(), rejection.body_text()))?;
    if !body.is_empty() {
        let named: Named =
            serde_json::from_slice(&body).map_err(|error| wrong(&format!("the body: {error}")))?;
        return Ok(named.member);
    }
    let parts = uri.query().unwrap_or_default().split('&');
    let value = parts.filter_map(|part| part.strip_prefix("member=")).next();
    let value = value.ok_or_else(|| wrong("no member is named"))?;
    decoded(value).ok_or_else(|| wrong("the query has a broken escape"))
}

/// Text without percent escapes (RFC 3986 §2.1). `+` stands for itself: it occurs in telephone numbers.
pub(super) fn decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            if !digits.bytes().all(|c| c.is_ascii_hexdigit()) {
                return None;
            }
            out.push(u8::from_str_radix(digits, 16).ok()?);
            rest = tail.get(2..)?;
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use sip_core::dispatcher::{Local, MarkPolicy};
    use sip_core::transport::NextHop;

    use super::super::health::Health;
    use super::super::tests::{TOKEN, ask, start, start_with};
    use super::*;
    use crate::serve::reload::{Outcome, Reloads};

    #[track_caller]
    fn group() -> Group {
        let member =
            |uri: &str, weight| Member::new(NextHop::parse(uri.as_bytes()).expect("a URI"), weight, 0);
        Group {
            name: b"carriers"[..].into(),
            algorithm: Distribution::LeastLoad,
            members: vec![
                member("sip:gw1;transport=tcp", 2),
                member("sip:gw2", 1),
                member("sip:gw3", 0),
            ],
            probe_ms: None,
            marks: MarkPolicy {
                fail_after: 1,
                recover_after: 1,
                hold_ms: Some(60_000),
            },
            reply_timeout_ms: 2000,
            failover_on: vec![503],
            cursor: Local::default(),
        }
    }

    /// Status and body of the response to a request with the token.
    #[track_caller]
    fn tell(address: SocketAddr, what: &str, body: &str) -> (u16, Value) {
        let answer = ask(address, what, &format!("authorization: bearer {TOKEN}\r\n"), body);
        let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
        assert!(head.contains("application/json"), "{head}");
        let status = head.get(9..12).and_then(|code| code.parse().ok());
        (
            status.expect("a status"),
            serde_json::from_str(body).expect("JSON"),
        )
    }

    #[test]
    fn without_the_token_every_request_is_401() {
        let (_runtime, address) = start(&Arc::default(), &[group()]);
        let wrong = [
            String::new(),
            "Authorization: Bearer \r\n".to_owned(),
            "Authorization: Bearer 0123456789abcdeg\r\n".to_owned(),
            format!("Authorization: Basic {TOKEN}\r\n"),
            format!("Authorization: Bearer{TOKEN}\r\n"),
            "Authorization: Bearer é\r\n".to_owned(),
        ];
        for headers in wrong {
            for what in [
                "GET /api/v1/status",
                "GET /api/v1/groups",
                "POST /api/v1/groups/carriers/drain",
                "GET /api/v1/x",
            ] {
                let answer = ask(address, what, &headers, "{\"member\": \"sip:gw2\"}");
                assert!(answer.starts_with("HTTP/1.1 401"), "{what} {headers}: {answer}");
                assert!(
                    answer.to_lowercase().contains("www-authenticate: bearer realm="),
                    "{answer}"
                );
            }
        }
        let (_, body) = tell(address, "GET /api/v1/groups", "");
        assert_eq!(body["groups"][0]["members"][1]["state"], "up");
    }

    #[test]
    fn the_subscriber_store_is_shown_and_its_cache_forgotten() {
        let (_runtime, address) = start(&Arc::default(), &[]);
        let (code, body) = tell(address, "GET /api/v1/credentials", "");
        let expected = json!({
            "store": "mysql://sip@db:3306/sip", "connections": 7, "connections_wanted": 8, "breaker": "closed",
            "queued": 1, "in_flight": 2, "waiting": 4, "last_error": null,
        });
        assert_eq!((code, body), (200, expected));
        for (query, forgotten) in [
            ("", 100),
            ("?subscriber=alice@example.com", 1),
            ("?subscriber=%61lice%40EXAMPLE.com", 1),
            ("?subscriber=bob@example.com", 0),
        ] {
            let what = format!("DELETE /api/v1/credentials/cache{query}");
            assert_eq!(tell(address, &what, ""), (200, json!({ "forgotten": forgotten })));
        }
        for query in [
            "?subscriber=alice",
            "?subscriber=@x",
            "?subscriber=%ff@x",
            "?user=alice",
            "?subscriber=a@b&c",
        ] {
            let (code, body) = tell(address, &format!("DELETE /api/v1/credentials/cache{query}"), "");
            assert!(code == 400 && body["error"].is_string(), "{query}: {body}");
        }
        assert_eq!(tell(address, "POST /api/v1/credentials/cache", "").0, 405);
    }

    #[test]
    fn members_are_shown_drained_and_enabled() {
        let mut groups = [group()];
        let (_runtime, address) = start(&Arc::default(), &groups);
        let failing = &mut groups[0];
        failing.members[1].health.note_failure(unix_ms(), &failing.marks);
        let member = |uri, weight, state, failures| json!({ "uri": uri, "weight": weight, "priority": 0, "state": state, "failures": failures });
        let expected = |state| {
            let members = [
                member("sip:gw1;transport=tcp", 2, state, 0),
                member("sip:gw2", 1, "failed", 1),
                member("sip:gw3", 0, "drained", 0),
            ];
            json!({ "groups": [{ "name": "carriers", "algorithm": "least-load", "members": members }] })
        };
        assert_eq!(tell(address, "GET /api/v1/groups", ""), (200, expected("up")));

        let named = "{\"member\": \"sip:gw1;transport=tcp\"}";
        let done =
            |state| json!({ "group": "carriers", "member": member("sip:gw1;transport=tcp", 2, state, 0) });
        let drain = "POST /api/v1/groups/carriers/drain";
        assert_eq!(tell(address, drain, named), (200, done("drained")));
        assert_eq!(groups[0].members[0].health.state(unix_ms()), MemberState::Drained);
        assert_eq!(
            tell(address, "GET /api/v1/groups", ""),
            (200, expected("drained"))
        );
        let enable = "POST /api/v1/groups/carriers/enable?a=b&member=sip%3Agw1;transport=tcp";
        assert_eq!(tell(address, enable, ""), (200, done("up")));
        assert_eq!(groups[0].members[0].health.state(unix_ms()), MemberState::Up);
        // A member drained by its `weight` can be enabled in the configuration only.
        let (code, body) = tell(address, "POST /api/v1/groups/carriers/enable?member=sip:gw3", "");
        assert!(code == 409 && body["error"].is_string(), "{body}");
    }

    #[test]
    fn errors_say_what_is_wrong_with_the_request() {
        let (_runtime, address) = start(&Arc::default(), &[group()]);
        let long = format!("{{\"member\": \"{}\"}}", "x".repeat(MAX_BODY));
        let drain = "POST /api/v1/groups/carriers/drain";
        let cases = [
            (
                "POST /api/v1/groups/nobody/drain",
                "",
                404,
                "no group \"nobody\"; there is carriers",
            ),
            (
                drain,
                "{\"member\": \"sip:gw9\"}",
                404,
                "no member \"sip:gw9\" in group \"carriers\"; there is sip:gw1;transport=tcp, sip:gw2, sip:gw3",
            ),
            (drain, "", 400, "no member is named; write {"),
            (drain, "{", 400, "the body: EOF"),
            (
                drain,
                "{\"members\": \"sip:gw1\"}",
                400,
                "the body: unknown field `members`",
            ),
            (
                "POST /api/v1/groups/carriers/drain?member=%",
                "",
                400,
                "the query has a broken escape",
            ),
            (drain, &long, 413, ""),
            (
                "GET /api/v1/groups/carriers/drain",
                "",
                405,
                "POST does what its name says",
            ),
            ("POST /api/v1/status", "", 405, "GET reads a page"),
            ("GET /api/v1/nowhere", "", 404, "no such page"),
        ];
        for (what, body, status, text) in cases {
            let (got, said) = tell(address, what, body);
            let error = said["error"].as_str().expect("a string");
            assert!(
                got == status && error.contains(text),
                "{what} {body}: {got} {error}"
            );
        }
    }

    #[test]
    fn a_reload_is_answered_with_what_came_of_it() {
        let (reloads, mut asked) = Reloads::new();
        let (runtime, address) = start_with(&Arc::default(), &[], reloads);
        let outcome = |result| Outcome {
            result,
            taken: vec!["route".to_owned()],
            after_restart: vec!["listen".to_owned()],
            files: vec!["cert.pem".to_owned()],
            errors: vec!["f:1: bad".to_owned()],
            warnings: Vec::new(),
        };
        for (result, status, name) in [
            (Verdict::Reloaded, 200, "reloaded"),
            (Verdict::Partly, 422, "partly"),
            (Verdict::Refused, 422, "refused"),
        ] {
            let server = runtime.spawn(async move {
                let answer = asked.recv().await.expect("asked");
                answer.send(outcome(result)).expect("still there");
                asked
            });
            let body = json!({
                "result": name,
                "taken": ["route"],
                "after_restart": ["listen"],
                "files": ["cert.pem"],
                "errors": ["f:1: bad"],
                "warnings": [],
            });
            assert_eq!(tell(address, "POST /api/v1/reload", ""), (status, body));
            asked = runtime.block_on(server).expect("no panic");
        }
        assert_eq!(tell(address, "GET /api/v1/reload", "").0, 405);
        drop(asked);
        let (status, body) = tell(address, "POST /api/v1/reload", "");
        assert_eq!(
            (status, body["error"].as_str()),
            (503, Some("the server is about to end"))
        );
    }

    #[test]
    fn the_state_of_the_server() {
        let health = Arc::new(Health::default());
        let (_runtime, address) = start(&health, &[]);
        let state = || tell(address, "GET /api/v1/status", "").1;
        let before = state();
        assert_eq!(before["version"], env!("CARGO_PKG_VERSION"));
        assert!(before["uptime_s"].as_u64().is_some_and(|seconds| seconds < 60));
        assert_eq!(
            (&before["workers"], &before["ready"], &before["draining"]),
            (&json!(3), &json!(false), &json!(false))
        );
        health.set_loaded();
        health.set_listening();
        assert_eq!(state()["ready"], true);
        health.set_draining();
        assert_eq!(
            (&state()["ready"], &state()["draining"]),
            (&json!(false), &json!(true))
        );
        assert_eq!(tell(address, "GET /api/v1/groups", "").1, json!({ "groups": [] }));
    }

    #[test]
    fn escapes_are_undone_or_refused() {
        assert_eq!(
            decoded("sip%3Agw%2B1@a;x=%25+").as_deref(),
            Some("sip:gw+1@a;x=%+")
        );
        for wrong in ["%", "%4", "%zz", "%+1", "%ff"] {
            assert_eq!(decoded(wrong), None, "{wrong}");
        }
    }
}
