//! Check of the host that a request to the admin address names. Without it, a web page could point its own
//! name to that address, and read the pages there as its own (DNS rebinding). The browser then writes the
//! page's name in `Host`.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use parking_lot::RwLock;

/// `server.name` and `admin.hosts`. Clones share one list, which a reload replaces.
#[derive(Debug, Default, Clone)]
pub(crate) struct HostNames(Arc<RwLock<Vec<Box<str>>>>);

impl HostNames {
    /// Replaces the names by these, which are in lower case and have no final dot.
    pub(crate) fn replace(&self, names: &[Box<str>]) {
        *self.0.write() = names.to_vec();
    }

    /// Whether `host`, with or without a port, is an address, `localhost` or one of the names. Unlike a name,
    /// an address leads to itself only.
    fn allows(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|c| c.is_ascii_digit()) => name,
            _ => host,
        };
        let address = name.trim_start_matches('[').trim_end_matches(']');
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        address.parse::<IpAddr>().is_ok()
            || name == "localhost"
            || name.ends_with(".localhost")
            || self.0.read().iter().any(|known| **known == *name)
    }
}

/// Responds 421 (RFC 9110 §15.5.20) to a request with another host, and 400 (RFC 9112 §3.2) to one without or with
/// several.
pub(super) async fn check(State(names): State<HostNames>, request: Request, next: Next) -> Response {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let is_one = match (hosts.next(), hosts.next()) {
        (Some(_), None) => true,
        // HTTP/1.0 needs no `Host`, and no browser uses it.
        (None, _) => request.version() < Version::HTTP_11,
        (Some(_), Some(_)) => false,
    };
    if !is_one {
        return (StatusCode::BAD_REQUEST, "write one Host\n").into_response();
    }
    let host = request
        .headers()
        .get(header::HOST)
        .map(|value| value.to_str().unwrap_or_default());
    // A request line may name the host, too.
    let in_line = request.uri().authority().map(Authority::as_str);
    if [host, in_line]
        .into_iter()
        .flatten()
        .all(|host| names.allows(host))
    {
        return next.run(request).await;
    }
    let text = "Host must be an IP address, localhost, server.name or one of admin.hosts; \
                to ask this address by another name, add the name to admin.hosts and reload\n";
    (StatusCode::MISDIRECTED_REQUEST, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_listed_names_are_our_own() {
        let names = HostNames::default();
        names.replace(&["sip.example.org".into(), "metrics".into()]);
        let is_own = |host: &str| names.allows(host);
        for host in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "[::1]:8080",
            "[::1]",
            "localhost",
            "LocalHost.:8080",
            "a.localhost:1",
            "192.0.2.1:8080",
            "sip.example.org",
            "SIP.example.org.:8080",
            "metrics:9090",
        ] {
            assert!(is_own(host), "{host}");
        }
        for host in [
            "example.com",
            "example.com:8080",
            "localhost.example.com",
            "127.0.0.1.example.com",
            "example.org",
            "a.sip.example.org",
            "sip.example.org.evil.example",
            "",
        ] {
            assert!(!is_own(host), "{host}");
        }
        names.replace(&["other".into()]);
        assert!(is_own("other") && !is_own("metrics"));
    }
}
