//! HTTP for operators: `/metrics`, `/health/live`, `/health/ready`. None of them changes anything or
//! tells a secret, so none asks for a token.

pub(crate) mod health;
mod listener;
pub(crate) mod metrics;
mod process;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;

use self::health::Health;
use self::listener::Bounded;
use self::metrics::Metrics;

/// What the pages show.
#[derive(Debug)]
pub(crate) struct Pages {
    /// `/health/*`.
    pub health: Arc<Health>,
    /// `/metrics`.
    pub metrics: Metrics,
}

/// Binds the admin address now, so that its being in use is known before anything starts.
///
/// # Errors
/// The address cannot be had.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Answers requests until the runtime ends.
///
/// # Errors
/// The listener cannot be watched.
pub(crate) async fn serve(listener: TcpListener, pages: Pages) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    axum::serve(Bounded::new(listener), router(pages)).await
}

fn router(pages: Pages) -> Router {
    Router::new()
        .route("/metrics", get(metrics_page))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .with_state(Arc::new(pages))
}

async fn metrics_page(State(pages): State<Arc<Pages>>) -> impl IntoResponse {
    match pages.metrics.text() {
        Ok(text) => (
            StatusCode::OK,
            [(header::CONTENT_TYPE, metrics::CONTENT_TYPE)],
            text,
        ),
        Err(error) => {
            let text = format!("{error}\n");
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                [(header::CONTENT_TYPE, "text/plain")],
                text,
            )
        }
    }
}

/// The process answers, so it lives.
async fn live() -> impl IntoResponse {
    json(StatusCode::OK, &serde_json::json!({ "status": "live" }))
}

async fn ready(State(pages): State<Arc<Pages>>) -> impl IntoResponse {
    let reasons = pages.health.reasons();
    if reasons.is_empty() {
        json(StatusCode::OK, &serde_json::json!({ "status": "ready" }))
    } else {
        json(
            StatusCode::SERVICE_UNAVAILABLE,
            &serde_json::json!({ "status": "not ready", "reasons": reasons }),
        )
    }
}

fn json(status: StatusCode, body: &serde_json::Value) -> impl IntoResponse + use<> {
    (
        status,
        [(header::CONTENT_TYPE, "application/json")],
        format!("{body}\n"),
    )
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::metrics::{Reading, Source};
    use super::*;

    #[derive(Debug)]
    struct Nothing;

    impl Source for Nothing {
        fn read(&self) -> Reading {
            Reading::default()
        }
    }

    fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).expect("connects");
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
        )
        .expect("writes");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    #[test]
    fn readiness_follows_the_life_of_the_process() {
        let listener = bind("127.0.0.1:0".parse().expect("address")).expect("binds");
        let address = listener.local_addr().expect("address");
        let health = Arc::new(Health::default());
        let pages = Pages {
            health: Arc::clone(&health),
            metrics: Metrics::new(Arc::new(Nothing)),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        runtime.spawn(serve(listener, pages));

        let ready = || {
            let answer = get(address, "/health/ready");
            let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
            let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
            assert!(head.contains("application/json"), "{head}");
            (
                head.get(9..12).expect("a status").to_owned(),
                body["reasons"].clone(),
            )
        };
        let both = serde_json::json!(["registrations are not loaded", "listeners are not bound"]);
        assert_eq!(ready(), ("503".to_owned(), both));
        health.set_listening();
        health.set_loaded();
        assert_eq!(ready(), ("200".to_owned(), serde_json::Value::Null));
        health.set_draining();
        assert_eq!(ready(), ("503".to_owned(), serde_json::json!(["draining"])));
        assert!(
            get(address, "/health/live").starts_with("HTTP/1.1 200"),
            "alive while draining"
        );
        assert!(get(address, "/nowhere").starts_with("HTTP/1.1 404"));
        let metrics = get(address, "/metrics");
        assert!(metrics.starts_with("HTTP/1.1 200"));
        assert!(
            metrics
                .to_lowercase()
                .contains("content-type: application/openmetrics-text")
        );
        assert!(metrics.ends_with("# EOF\n"));
    }
}
