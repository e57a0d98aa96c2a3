//! `/api/v1/registrations`: the contacts that have registered, and their removal.

use std::fmt::Debug;
use std::sync::Arc;

use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use sip_backend::shared::Place;
use sip_core::location::Binding;
use sip_core::location::reachability::Reach;

use super::api::{decoded, error};
use super::{Pages, json as page};
use crate::machine::unix_ms;
use crate::registrations::{Choice, Filter, NotRemoved, Origin, Registrations, Row, canonical, written};

/// Rows of a page, if the request does not say.
const LIMIT: usize = 100;
/// Most rows of a page.
pub(crate) const MAX_LIMIT: usize = 1_000;

/// The registrations, for these pages.
pub(crate) trait RegistrationPages: Debug + Send + Sync {
    /// The registrations; `None` while the server starts.
    fn registrations(&self) -> Option<Registrations>;
}

fn starting() -> Response {
    error(StatusCode::SERVICE_UNAVAILABLE, "the server has not started yet")
}

fn wrong(text: impl Into<String>) -> Response {
    error(StatusCode::BAD_REQUEST, text)
}

/// The parameters of a query, each at most once, decoded. Only `known` ones are allowed.
fn parameters(query: Option<&str>, known: &[&str]) -> Result<Vec<(String, String)>, String> {
    let mut found: Vec<(String, String)> = Vec::new();
    for part in query
        .unwrap_or_default()
        .split('&')
        .filter(|part| !part.is_empty())
    {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        if !known.contains(&name) {
            return Err(format!("no parameter {name:?}; there is {}", known.join(", ")));
        }
        if found.iter().any(|(other, _)| other == name) {
            return Err(format!("{name} is given twice"));
        }
        let value = decoded(value).ok_or_else(|| format!("{name} is not percent-encoded UTF-8"))?;
        if value.is_empty() {
            return Err(format!("{name} is empty"));
        }
        found.push((name.to_owned(), value));
    }
    Ok(found)
}

fn source(value: &str) -> Result<Origin, String> {
    let source = value.parse::<Origin>();
    source.map_err(|remedy| format!("{value:?} is no source: {remedy}"))
}

/// The contacts that a removal names.
fn choice(query: Option<&str>) -> Result<Choice, String> {
    let mut choice = Choice::default();
    for (name, value) in parameters(query, &["contact", "source"])? {
        match name.as_str() {
            "contact" => choice.contact = Some(value.into_bytes()),
            _ => choice.source = Some(source(&value)?),
        }
    }
    Ok(choice)
}

/// The parameters of a list.
#[derive(Debug)]
struct Wanted {
    filter: Filter,
    limit: usize,
    from: Place,
}

impl Wanted {
    fn read(query: Option<&str>, run: u32) -> Result<Self, String> {
        let mut wanted = Self {
            filter: Filter::default(),
            limit: LIMIT,
            from: Place::default(),
        };
        let known = [
            "user",
            "domain",
            "contact",
            "source",
            "user_agent",
            "limit",
            "cursor",
        ];
        for (name, value) in parameters(query, &known)? {
            let filter = &mut wanted.filter;
            match name.as_str() {
                "user" => {
                    let mut user = Vec::new();
                    sip_core::location::aor::unescape(value.as_bytes(), &mut user);
                    filter.user = Some(user);
                }
                "domain" => filter.domain = Some(value.to_ascii_lowercase().into_bytes()),
                "contact" => filter.contact = Some(value.into_bytes()),
                "user_agent" => filter.user_agent = Some(value.into_bytes()),
                "source" => filter.source = Some(source(&value)?),
                "limit" => {
                    let limit = value
                        .parse::<usize>()
                        .ok()
                        .filter(|limit| (1..=MAX_LIMIT).contains(limit));
                    wanted.limit = limit.ok_or_else(|| format!("limit is from 1 to {MAX_LIMIT}"))?;
                }
                _ => {
                    let remedy =
                        "take it from `next` of a list of this run of the server, or begin without one";
                    wanted.from =
                        place(&value, run).ok_or_else(|| format!("{value:?} is no cursor: {remedy}"))?;
                }
            }
        }
        Ok(wanted)
    }
}

fn cursor(place: Place, run: u32) -> String {
    format!("{run:x}.{:x}.{:x}", place.shard, place.slot)
}

/// The place of a cursor; `None` also for a cursor of another run.
fn place(cursor: &str, run: u32) -> Option<Place> {
    let mut numbers = cursor.split('.').map(|part| u32::from_str_radix(part, 16).ok());
    let mut number = || numbers.next().flatten();
    let (of_run, shard, slot) = (number()?, number()?, number()?);
    (of_run == run && numbers.next().is_none()).then_some(Place { shard, slot })
}

fn shown(row: &Row, now_unix_s: u64) -> Value {
    let Row { aor, binding, reach } = row;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let maybe = |bytes: &[u8]| (!bytes.is_empty()).then(|| text(bytes));
    json!({
        "address_of_record": written(aor),
        "contact": text(&binding.contact),
        "source": binding.received.remote.to_string(),
        "transport": binding.received.transport.uri_name(),
        "user_agent": maybe(&binding.user_agent),
        "expires_unix_s": binding.expires_unix_s,
        "left_s": binding.expires_unix_s.saturating_sub(now_unix_s),
        "call_id": text(&binding.call_id),
        "cseq": binding.cseq,
        "q": f64::from(binding.q_milli) / 1000.0,
        "instance": maybe(&binding.instance),
        "reg_id": (binding.reg_id != 0).then_some(binding.reg_id),
        "path": maybe(&binding.path),
        "ping": reach.map(|reach| match reach {
            Reach::Unanswered => "unanswered",
            Reach::Answered => "answered",
            Reach::Lost => "lost",
        }),
    })
}

fn all_shown(rows: &[Row]) -> Vec<Value> {
    let now_unix_s = unix_ms() / 1000;
    rows.iter().map(|row| shown(row, now_unix_s)).collect()
}

pub(super) async fn list(State(pages): State<Arc<Pages>>, RawQuery(query): RawQuery) -> Response {
    let Some(registrations) = pages.registrations.registrations() else {
        return starting();
    };
    let run = registrations.run();
    let wanted = match Wanted::read(query.as_deref(), run) {
        Ok(wanted) => wanted,
        Err(text) => return wrong(text),
    };
    let found = registrations
        .list(&wanted.filter, wanted.from, wanted.limit)
        .await;
    let body = json!({
        "registrations": all_shown(&found.rows),
        "next": found.next.map(|place| cursor(place, run)),
    });
    page(StatusCode::OK, &body).into_response()
}

fn no_address_of_record(text: &str) -> Response {
    wrong(format!(
        "{text:?} is no address-of-record: write USER@DOMAIN, as the list has it"
    ))
}

fn not_registered(aor: &[u8]) -> Response {
    error(
        StatusCode::NOT_FOUND,
        format!("{} is not registered", written(aor)),
    )
}

pub(super) async fn show(State(pages): State<Arc<Pages>>, Path(text): Path<String>) -> Response {
    let Some(registrations) = pages.registrations.registrations() else {
        return starting();
    };
    let Some(aor) = canonical(&text) else {
        return no_address_of_record(&text);
    };
    let rows = registrations.of(&aor);
    if rows.is_empty() {
        return not_registered(&aor);
    }
    let body = json!({ "address_of_record": written(&aor), "registrations": all_shown(&rows) });
    page(StatusCode::OK, &body).into_response()
}

pub(super) async fn remove(
    State(pages): State<Arc<Pages>>,
    Path(text): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    let Some(registrations) = pages.registrations.registrations() else {
        return starting();
    };
    let Some(aor) = canonical(&text) else {
        return no_address_of_record(&text);
    };
    let query = query.unwrap_or_default();
    let choice = match choice(Some(&query)) {
        Ok(choice) => choice,
        Err(text) => {
            return wrong(format!(
                "{text}; without ?contact=URI or ?source=ADDRESS all contacts are removed"
            ));
        }
    };
    match registrations.remove(aor.clone(), choice).await {
        Ok(removed) => {
            let aor = written(&aor);
            tracing::info!(aor, query, removed, "contacts removed by the operator");
            let body = json!({ "address_of_record": aor, "removed": removed });
            page(StatusCode::OK, &body).into_response()
        }
        Err(NotRemoved::NotRegistered) => not_registered(&aor),
        Err(NotRemoved::NoSuchContact) => {
            let rows = registrations.of(&aor);
            let there = rows.iter().map(|row| {
                let Binding {
                    contact, received, ..
                } = &row.binding;
                format!("{} from {}", String::from_utf8_lossy(contact), received.remote)
            });
            let there: Vec<_> = there.collect();
            let text = format!(
                "no contact of {} is meant by {query:?}; there is {}",
                written(&aor),
                there.join(", ")
            );
            error(StatusCode::NOT_FOUND, text)
        }
        Err(NotRemoved::NotSaved) => error(
            StatusCode::SERVICE_UNAVAILABLE,
            "the removal could not be written to disk, so the contacts stay",
        ),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::SocketAddr;

    use super::super::tests::{TOKEN, ask, start};
    use super::*;

    /// Registrations for tests.
    #[derive(Debug)]
    pub(in super::super) struct Sample(pub(in super::super) Registrations);

    impl RegistrationPages for Sample {
        fn registrations(&self) -> Option<Registrations> {
            Some(self.0.clone())
        }
    }

    #[track_caller]
    fn tell(address: SocketAddr, what: &str) -> (u16, Value) {
        let answer = ask(address, what, &format!("Authorization: Bearer {TOKEN}\r\n"), "");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
        let status = head
            .get(9..12)
            .and_then(|code| code.parse().ok())
            .expect("a status");
        (status, serde_json::from_str(body).expect("JSON"))
    }

    /// Contacts of a list or of one address-of-record, in their order.
    #[track_caller]
    fn contacts(body: &Value) -> Vec<&str> {
        let rows = body["registrations"].as_array().expect("a list");
        let uris = rows.iter().map(|row| row["contact"].as_str().expect("text"));
        let users = uris.map(|uri| uri.strip_prefix("sip:").and_then(|uri| uri.split('@').next()));
        users.map(|user| user.expect("a URI")).collect()
    }

    #[test]
    fn one_is_shown_in_full() {
        let (_runtime, address) = start(&Arc::default(), &[]);
        let (status, body) = tell(address, "GET /api/v1/registrations/bob%40EXAMPLE.com");
        assert_eq!(status, 200, "{body}");
        assert_eq!(body["address_of_record"], "bob@example.com");
        assert_eq!(contacts(&body), ["bob", "desk"]);
        let mut row = body["registrations"][0].clone();
        let row = row.as_object_mut().expect("an object");
        let end = row["expires_unix_s"].as_u64().expect("a time");
        let left = row["left_s"].as_u64().expect("seconds");
        let now = unix_ms() / 1000;
        assert!((3_000..=3_600).contains(&left) && end >= now + 3_000 && end <= now + 3_600);
        row.retain(|key, _| key != "expires_unix_s" && key != "left_s");
        let expected = json!({
            "address_of_record": "bob@example.com", "contact": "sip:bob@192.0.2.17:5062",
            "source": "192.0.2.17:5062", "transport": "udp", "user_agent": "Example Phone 2.1",
            "call_id": "843817637684230@998sdasdh09", "cseq": 1826, "q": 0.5,
            "instance": null, "reg_id": null, "path": null, "ping": null,
        });
        assert_eq!(Value::Object(row.clone()), expected);
    }

    #[test]
    fn a_list_has_filters_and_pages() {
        let (_runtime, address) = start(&Arc::default(), &[]);
        let list = |query: &str| tell(address, &format!("GET /api/v1/registrations{query}"));
        for (query, expected) in [
            ("", &["ab", "bob", "desk"][..]),
            ("?user=bob", &["bob", "desk"]),
            ("?user=a%40b&domain=EXAMPLE.com", &["ab"]),
            ("?user=a%2540b", &["ab"]),
            ("?user=bo", &[]),
            ("?domain=example.net", &[]),
            ("?contact=DESK@", &["desk"]),
            (
                "?source=192.0.2.16%2F31&user_agent=phone%202&user=bob",
                &["bob", "desk"],
            ),
            ("?source=192.0.2.18", &[]),
            ("?user_agent=other", &[]),
        ] {
            let (status, body) = list(query);
            assert_eq!(status, 200, "{query}: {body}");
            let mut found = contacts(&body);
            found.sort_unstable();
            assert_eq!(found, expected, "{query}");
            assert_eq!(body["next"], Value::Null, "{query}");
        }
        // Pages are read one by one; the contacts of one address-of-record stay together.
        let (mut pages, mut query) = (Vec::new(), "?limit=1".to_owned());
        loop {
            let (status, body) = list(&query);
            assert_eq!(status, 200, "{body}");
            pages.push(contacts(&body).join(" "));
            let Some(next) = body["next"].as_str() else { break };
            query = format!("?limit=1&cursor={next}");
        }
        pages.retain(|page| !page.is_empty());
        pages.sort_unstable();
        assert_eq!(pages, ["ab", "bob desk"]);
    }

    #[test]
    fn contacts_are_removed() {
        let (_runtime, address) = start(&Arc::default(), &[]);
        let bob = "/api/v1/registrations/bob@example.com";
        let removed = |n: usize| json!({ "address_of_record": "bob@example.com", "removed": n });
        let desk = format!("DELETE {bob}?contact=sip%3A%2564esk@192.0.2.17:5062");
        assert_eq!(tell(address, &desk), (200, removed(1)));
        let (status, body) = tell(address, &desk);
        let text = body["error"].as_str().unwrap_or_default();
        assert!(
            status == 404 && text.ends_with("; there is sip:bob@192.0.2.17:5062 from 192.0.2.17:5062"),
            "{body}"
        );
        assert_eq!(contacts(&tell(address, &format!("GET {bob}")).1), ["bob"]);
        let from_another = format!("DELETE {bob}?contact=sip:bob@192.0.2.17:5062&source=192.0.2.17:5063");
        assert_eq!(tell(address, &from_another).0, 404);
        let from_there = from_another.replace(":5063", ":5062");
        assert_eq!(tell(address, &from_there), (200, removed(1)));
        for method in ["GET", "DELETE"] {
            let (status, body) = tell(address, &format!("{method} {bob}"));
            assert_eq!(
                (status, body),
                (404, json!({ "error": "bob@example.com is not registered" }))
            );
        }
        assert_eq!(
            tell(address, "DELETE /api/v1/registrations/a%2540b@example.com").0,
            200
        );
        let all = tell(address, "GET /api/v1/registrations").1;
        assert_eq!(contacts(&all), [""; 0]);
    }

    #[test]
    fn errors_say_what_is_wrong_with_the_list() {
        let (_runtime, address) = start(&Arc::default(), &[]);
        let of_another_run = format!("cursor={:x}.0.0", !0_u32);
        let limits = "limit is from 1 to 1000";
        let there = "there is user, domain, contact, source, user_agent, limit, cursor";
        for (query, text) in [
            ("name=bob", format!("no parameter \"name\"; {there}").as_str()),
            ("user=a&user=b", "user is given twice"),
            ("user=", "user is empty"),
            ("contact", "contact is empty"),
            ("user=%ff", "user is not percent-encoded UTF-8"),
            (
                "source=example.com",
                "\"example.com\" is no source: write an address, a network",
            ),
            ("limit=0", limits),
            ("limit=1001", limits),
            ("limit=-1", limits),
            ("cursor=x", "\"x\" is no cursor: take it from `next`"),
            (&of_another_run, "is no cursor"),
        ] {
            let (got, said) = tell(address, &format!("GET /api/v1/registrations?{query}"));
            let error = said["error"].as_str().expect("text");
            assert!(got == 400 && error.contains(text), "{query}: {got} {error}");
        }
    }

    #[test]
    fn errors_say_what_is_wrong_with_the_request() {
        let (_runtime, address) = start(&Arc::default(), &[]);
        for (what, status, text) in [
            (
                "GET /api/v1/registrations/bob",
                400,
                "\"bob\" is no address-of-record: write USER@DOMAIN",
            ),
            (
                "DELETE /api/v1/registrations/@example.com",
                400,
                "is no address-of-record",
            ),
            (
                "DELETE /api/v1/registrations/bob@example.com?user=bob",
                400,
                "no parameter \"user\"; there is contact, source; without ?contact=URI or ?source=ADDRESS all",
            ),
            (
                "DELETE /api/v1/registrations/bob@example.com?source=home",
                400,
                "\"home\" is no source: write an address, a network",
            ),
            (
                "GET /api/v1/registrations/bob@example.net",
                404,
                "bob@example.net is not registered",
            ),
            ("POST /api/v1/registrations", 405, "DELETE forgets"),
            ("PUT /api/v1/registrations/bob@example.com", 405, "DELETE forgets"),
        ] {
            let (got, said) = tell(address, what);
            let error = said["error"].as_str().expect("text");
            assert!(got == status && error.contains(text), "{what}: {got} {error}");
        }
        assert_eq!(tell(address, "GET /api/v1/registrations/bob@example.com").0, 200);
    }
}
