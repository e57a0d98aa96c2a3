//! A user agent's side of digest.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use sip_core::auth::digest::{self, Input, QopAuth, response};
use sip_core::config::Algorithm;

use crate::common::Sent;

pub const PASSWORD: &str = "secret of alice";

/// The account and the parameters of digest credentials.
#[derive(Clone)]
pub struct Login {
    pub user: String,
    pub password: String,
    pub realm: String,
    pub uri: String,
    pub method: String,
    pub count: u32,
    pub algorithm: Algorithm,
    /// `false`: as by RFC 2069.
    pub qop: bool,
}

pub fn login(method: &str, uri: &str) -> Login {
    Login {
        user: "alice".into(),
        password: PASSWORD.into(),
        realm: "example.com".into(),
        uri: uri.into(),
        method: method.into(),
        count: 1,
        algorithm: Algorithm::Md5,
        qop: true,
    }
}

/// The nonce of a challenge.
pub fn nonce_of(challenge: &Sent) -> String {
    let value = match challenge.header("WWW-Authenticate") {
        "" => challenge.header("Proxy-Authenticate"),
        value => value,
    };
    value
        .split("nonce=\"")
        .nth(1)
        .and_then(|v| v.split('"').next())
        .unwrap_or_default()
        .to_string()
}

impl Login {
    /// The credentials, without the header's name.
    pub fn answer(&self, nonce: &str) -> String {
        let nc = format!("{:08x}", self.count);
        let qop = self.qop.then_some(QopAuth {
            qop: b"auth",
            nc: nc.as_bytes(),
            cnonce: b"abc",
        });
        let ha1 = digest::ha1(
            self.algorithm,
            self.user.as_bytes(),
            self.realm.as_bytes(),
            self.password.as_bytes(),
        );
        let input = Input {
            algorithm: self.algorithm,
            nonce: nonce.as_bytes(),
            qop,
            method: self.method.as_bytes(),
            uri: self.uri.as_bytes(),
        };
        let tail = if self.qop {
            format!(", qop=auth, nc={nc}, cnonce=\"abc\"")
        } else {
            String::new()
        };
        format!(
            "Digest username=\"{}\", realm=\"{}\", nonce=\"{nonce}\", uri=\"{}\", response=\"{}\", algorithm={}{tail}",
            self.user,
            self.realm,
            self.uri,
            response(&input, ha1.as_bytes()).to_hex().as_str(),
            self.algorithm.name(),
        )
    }

    /// As a header line of a request that a proxy challenged, or a registrar.
    pub fn line(&self, nonce: &str) -> String {
        let name = if self.method == "REGISTER" {
            "Authorization"
        } else {
            "Proxy-Authorization"
        };
        format!("{name}: {}\n", self.answer(nonce))
    }
}
