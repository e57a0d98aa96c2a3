//! `/api/v1/credentials`: the state of the subscriber store, and the removal of cached entries.

use std::fmt::Debug;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use sip_backend::subscribers::Status;

use super::api::{decoded, error};
use super::{Pages, json as page};

/// The subscriber store, for these pages; `None` while the server starts.
pub(crate) trait Credentials: Debug + Send + Sync {
    /// State of the store.
    fn status(&self) -> Option<Status>;

    /// Forgets the cached entries of `user@domain`, or of all users without a name. Returns their number.
    fn forget(&self, subscriber: Option<(&str, &str)>) -> Option<usize>;
}

fn starting() -> Response {
    error(StatusCode::SERVICE_UNAVAILABLE, "the server has not started yet")
}

pub(super) async fn status(State(pages): State<Arc<Pages>>) -> Response {
    let Some(status) = pages.credentials.status() else {
        return starting();
    };
    let body = json!({
        "store": status.store,
        "connections": status.connections,
        "connections_wanted": status.connections_wanted,
        "breaker": status.breaker,
        "queued": status.queued,
        "in_flight": status.under_way,
        "waiting": status.questions,
        "last_error": status.last_error,
    });
    page(StatusCode::OK, &body).into_response()
}

/// Forgets one subscriber (`?subscriber=USER@DOMAIN`), or all: after a change that the database does not
/// report, or reports too late.
pub(super) async fn forget(State(pages): State<Arc<Pages>>, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let mut parts = query.split('&').filter(|part| !part.is_empty());
    let subscriber = match (parts.next(), parts.next()) {
        (None, _) => None,
        (Some(part), None) if part.starts_with("subscriber=") => part.strip_prefix("subscriber="),
        (Some(_), _) => {
            let text =
                "there is one parameter: ?subscriber=USER@DOMAIN; without it all subscribers are forgotten";
            return error(StatusCode::BAD_REQUEST, text);
        }
    };
    let name = subscriber.map(decoded);
    let name = match &name {
        None => None,
        Some(Some(text)) => match text.rsplit_once('@') {
            Some((user, domain)) if !user.is_empty() && !domain.is_empty() => {
                Some((user, domain.to_ascii_lowercase()))
            }
            _ => return error(StatusCode::BAD_REQUEST, "name the subscriber as USER@DOMAIN"),
        },
        Some(None) => {
            return error(
                StatusCode::BAD_REQUEST,
                "the subscriber is not percent-encoded UTF-8",
            );
        }
    };
    let name = name.as_ref().map(|(user, domain)| (*user, domain.as_str()));
    match pages.credentials.forget(name) {
        Some(forgotten) => page(StatusCode::OK, &json!({ "forgotten": forgotten })).into_response(),
        None => starting(),
    }
}
