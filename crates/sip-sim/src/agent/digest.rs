//! Answers to challenges (RFC 3261 §22.3, RFC 7616). The hashes are the core's, which has the
//! RFCs' vectors for them; the rest is read from the challenge here.

use sip_core::auth::digest::{Input, QopAuth, ha1, response};
use sip_core::config::Algorithm;

use crate::message::View;

/// The password of every user here.
pub const PASSWORD: &str = "open sesame";

/// A `Proxy-Authorization` line for the first challenge that we can answer.
pub(crate) fn credentials(challenge: &View<'_>, user: &str, method: &str, uri: &str) -> Option<String> {
    challenge.all("Proxy-Authenticate").find_map(|value| {
        let algorithm = match value_of(value, "algorithm") {
            "" => Algorithm::Md5,
            name => Algorithm::parse(name.as_bytes())?,
        };
        let (realm, nonce) = (value_of(value, "realm"), value_of(value, "nonce"));
        let cnonce = "c1";
        let input = Input {
            algorithm,
            nonce: nonce.as_bytes(),
            qop: Some(QopAuth {
                qop: b"auth",
                nc: b"00000001",
                cnonce: cnonce.as_bytes(),
            }),
            method: method.as_bytes(),
            uri: uri.as_bytes(),
        };
        let secret = ha1(algorithm, user.as_bytes(), realm.as_bytes(), PASSWORD.as_bytes());
        let answer = response(&input, secret.as_bytes()).to_hex();
        Some(format!(
            "Proxy-Authorization: Digest username=\"{user}\", realm=\"{realm}\", nonce=\"{nonce}\", \
             uri=\"{uri}\", response=\"{}\", algorithm={}, cnonce=\"{cnonce}\", qop=auth, nc=00000001\r\n",
            answer.as_str(),
            algorithm.name()
        ))
    })
}

/// A parameter of a challenge, without quotes.
fn value_of<'a>(challenge: &'a str, name: &str) -> &'a str {
    let params = challenge.strip_prefix("Digest ").unwrap_or_default();
    params
        .split(',')
        .filter_map(|p| p.split_once('='))
        .find(|(found, _)| found.trim().eq_ignore_ascii_case(name))
        .map_or("", |(_, v)| v.trim().trim_matches('"'))
}
