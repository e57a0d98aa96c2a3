//! HTTP for operators. `/metrics`, `/health/live`, `/health/ready` and `/api/openapi.json` change nothing and
//! contain no secret, so they need no token. Everything below `/api/v1/` needs one.

mod api;
mod bans;
pub(crate) mod cpu_split;
pub(crate) mod credentials;
mod exposition;
pub(crate) mod health;
pub(crate) mod host;
mod listener;
pub(crate) mod metrics;
mod openapi;
mod process;
pub(crate) mod registrations;
pub(crate) mod token;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::IntoResponse;
use axum::routing::get;

use self::exposition::Format;
use self::health::Health;
use self::host::HostNames;
use self::listener::Bounded;
use self::metrics::Metrics;
use self::token::Token;
use crate::abuse::Abuse;
use crate::groups::Groups;
use crate::serve::reload::Reloads;

/// Sources and settings of the pages.
#[derive(Debug)]
pub(crate) struct Pages {
    /// `/health/*`.
    pub health: Arc<Health>,
    /// `/metrics`.
    pub metrics: Metrics,
    /// `/api/v1/groups`.
    pub groups: Arc<Groups>,
    /// `/api/v1/bans`.
    pub abuse: Abuse,
    /// `/api/v1/registrations`.
    pub registrations: Arc<dyn registrations::RegistrationPages>,
    /// `/api/v1/credentials`.
    pub credentials: Arc<dyn credentials::Credentials>,
    /// `/api/v1/cpu-split`.
    pub cpu: Arc<dyn cpu_split::CpuPages>,
    /// Names by which requests may address these pages.
    pub hosts: HostNames,
    /// The token for `/api/v1/`.
    pub token: Token,
    /// `/api/v1/reload`.
    pub reloads: Reloads,
    /// Number of worker threads.
    pub workers: u16,
    /// When the process started.
    pub started: Instant,
}

/// Binds the admin address now, so that a conflict is found before anything starts.
///
/// # Errors
/// The address cannot be bound.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves requests until the runtime ends.
///
/// # Errors
/// The listener cannot be registered with the runtime.
pub(crate) async fn serve(listener: TcpListener, pages: Pages) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    axum::serve(Bounded::new(listener), router(pages)).await
}

fn router(pages: Pages) -> Router {
    let check = axum::middleware::from_fn_with_state(pages.hosts.clone(), host::check);
    let pages = Arc::new(pages);
    Router::new()
        .nest("/api/v1", api::router(&pages))
        .route(
            "/api/openapi.json",
            get(async || json(StatusCode::OK, &openapi::document())),
        )
        .route("/metrics", get(metrics_page))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .with_state(pages)
        .layer(check)
}

async fn metrics_page(State(pages): State<Arc<Pages>>, uri: Uri, headers: HeaderMap) -> impl IntoResponse {
    let mut wishes = uri.query().unwrap_or_default().split('&');
    let by_worker = wishes.any(|wish| wish == "by=worker");
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let format = Format::wanted(accept);
    match pages.metrics.text(by_worker) {
        Ok(text) => (
            StatusCode::OK,
            [(header::CONTENT_TYPE, format.content_type())],
            format.page(text),
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

/// Responds that the process is alive.
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
    use std::net::{Ipv4Addr, TcpStream};

    use sip_core::dispatcher::Group;
    use tokio::runtime::Runtime;

    use super::metrics::{Reading, Source};
    use crate::cpu::CpuTime;
    use sip_backend::subscribers::Status;
    use sip_net::cpu::CpuSplit;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Token of the tests.
    pub(super) const TOKEN: &str = "0123456789abcdef";

    #[derive(Debug)]
    struct Nothing;

    impl Source for Nothing {
        fn read(&self) -> Reading {
            Reading::default()
        }
    }

    /// A store with one cached subscriber, `alice@example.com`.
    #[derive(Debug, Default)]
    pub(super) struct NoStore;

    impl credentials::Credentials for NoStore {
        fn status(&self) -> Option<Status> {
            Some(Status {
                store: "mysql://sip@db:3306/sip".to_owned(),
                connections: 7,
                connections_wanted: 8,
                breaker: "closed",
                queued: 1,
                under_way: 2,
                questions: 4,
                last_error: None,
            })
        }

        fn forget(&self, subscriber: Option<(&str, &str)>) -> Option<usize> {
            Some(match subscriber {
                None => 100,
                Some(("alice", "example.com")) => 1,
                Some(_) => 0,
            })
        }
    }

    /// Measurement of threads that do nothing.
    #[derive(Debug, Default)]
    struct Idle(AtomicBool);

    impl cpu_split::CpuPages for Idle {
        fn switch(&self, on: bool) -> bool {
            self.0.store(on, Ordering::Relaxed);
            true
        }

        fn cpu(&self) -> CpuTime {
            let on = self.0.load(Ordering::Relaxed);
            let split = CpuSplit {
                on,
                ..CpuSplit::default()
            };
            CpuTime {
                on,
                workers: vec![split; 3],
                ..CpuTime::default()
            }
        }
    }

    /// Sends a request with these header lines and this body. Returns the whole response.
    pub(super) fn ask(address: SocketAddr, what: &str, headers: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(address).expect("connects");
        let length = body.len();
        let request = format!(
            "{what} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("writes");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    fn get(address: SocketAddr, path: &str) -> String {
        ask(address, &format!("GET {path}"), "", "")
    }

    /// Serves HTTP while the runtime lives, without reloads.
    pub(super) fn start(health: &Arc<Health>, groups: &[Group]) -> (Runtime, SocketAddr) {
        start_with(health, groups, Reloads::new().0)
    }

    /// Serves HTTP while the runtime lives, with reloads.
    pub(super) fn start_with(
        health: &Arc<Health>,
        groups: &[Group],
        reloads: Reloads,
    ) -> (Runtime, SocketAddr) {
        start_at("127.0.0.1:0", health, groups, reloads)
    }

    /// Serves HTTP at this address, also under the name `sip.example.org`.
    fn start_at(
        listen: &str,
        health: &Arc<Health>,
        groups: &[Group],
        reloads: Reloads,
    ) -> (Runtime, SocketAddr) {
        let listener = bind(listen.parse().expect("address")).expect("binds");
        let address = listener.local_addr().expect("address");
        let hosts = HostNames::default();
        hosts.replace(&["sip.example.org".into()]);
        let pages = Pages {
            health: Arc::clone(health),
            metrics: Metrics::new(Arc::new(Nothing)),
            groups: Arc::new(Groups::new(groups)),
            abuse: bans::tests::abuse(),
            registrations: Arc::new(registrations::tests::Sample(crate::registrations::tests::sample())),
            credentials: Arc::new(NoStore),
            cpu: Arc::new(Idle::default()),
            hosts,
            token: Token::of(TOKEN),
            reloads,
            workers: 3,
            started: Instant::now(),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        runtime.spawn(serve(listener, pages));
        (runtime, address)
    }

    #[test]
    fn readiness_follows_the_life_of_the_process() {
        let health = Arc::new(Health::default());
        let (_runtime, address) = start(&health, &[]);

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
        let is_full = Arc::new(AtomicBool::new(false));
        let disk = Arc::clone(&is_full);
        health.watch_store(move || disk.load(Ordering::Relaxed));
        assert_eq!(ready().0, "200");
        is_full.store(true, Ordering::Relaxed);
        let unsaved = serde_json::json!(["registrations cannot be saved"]);
        assert_eq!(ready(), ("503".to_owned(), unsaved));
        is_full.store(false, Ordering::Relaxed);
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
                .contains("content-type: text/plain; version=0.0.4")
        );
        assert!(!metrics.contains("# EOF"));
    }

    /// DNS rebinding: a web page points its own host name to this address, to read the response as its own.
    #[test]
    fn a_host_that_is_not_ours_is_refused() {
        for listen in ["127.0.0.1:0", "0.0.0.0:0"] {
            let (_runtime, address) = start_at(listen, &Arc::new(Health::default()), &[], Reloads::new().0);
            let asked = |request: &str| {
                let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, address.port())).expect("connects");
                let request = format!("GET {request}\r\nConnection: close\r\n\r\n");
                stream.write_all(request.as_bytes()).expect("writes");
                let mut answer = String::new();
                stream.read_to_string(&mut answer).expect("an answer");
                answer
            };
            let asked_by = |host: &str| asked(&format!("/metrics HTTP/1.1\r\nHost: {host}"));
            let refused = asked_by("evil.example");
            assert!(refused.starts_with("HTTP/1.1 421"), "{listen}: {refused}");
            assert!(refused.contains("add the name to admin.hosts"), "{refused}");
            for (request, status) in [
                ("/metrics HTTP/1.1", "400"),
                (
                    "/metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example",
                    "400",
                ),
                (
                    "/metrics HTTP/1.1\r\nHost: evil.example\r\nHost: localhost",
                    "400",
                ),
                ("http://evil.example/metrics HTTP/1.1\r\nHost: localhost", "421"),
                ("http://localhost/metrics HTTP/1.1\r\nHost: evil.example", "421"),
                ("http://localhost/metrics HTTP/1.1\r\nHost: localhost", "200"),
                ("/metrics HTTP/1.0", "200"),
            ] {
                let answer = asked(request);
                assert_eq!(answer.split(' ').nth(1), Some(status), "{request}: {answer}");
            }
            for host in ["192.0.2.1:8080", "localhost", "sip.example.org:8080"] {
                let allowed = asked_by(host);
                assert!(allowed.starts_with("HTTP/1.1 200"), "{listen} {host}: {allowed}");
            }
        }
    }
}
