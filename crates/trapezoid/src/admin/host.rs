//! Which names the admin address answers to. A page in a browser on this machine could else have its own name
//! lead to the loopback address, and read what is shown here as its own (DNS rebinding).

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// On the loopback: 421 (RFC 9110 §15.5.20) to what names neither an address nor `localhost`.
pub(super) async fn check(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST);
    let named = host.and_then(|value| value.to_str().ok());
    // HTTP/1.0 needs none, and no browser speaks that.
    if host.is_none() || named.is_some_and(is_own) {
        return next.run(request).await;
    }
    let text = "this address answers where Host is an address or localhost only; see admin.listen\n";
    (StatusCode::MISDIRECTED_REQUEST, text).into_response()
}

fn is_own(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|c| c.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    address.parse::<IpAddr>().is_ok() || name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_localhost_are_our_own() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "[::1]:8080",
            "[::1]",
            "localhost",
            "LocalHost.:8080",
            "a.localhost:1",
            "192.0.2.1:8080",
        ] {
            assert!(is_own(host), "{host}");
        }
        for host in [
            "example.com",
            "example.com:8080",
            "localhost.example.com",
            "127.0.0.1.example.com",
            "",
        ] {
            assert!(!is_own(host), "{host}");
        }
    }
}
