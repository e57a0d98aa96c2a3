//! Credentials for challenges (RFC 3261 §22.3, RFC 7616). The hashes are the core's, which are tested with
//! the RFCs' vectors. All other values are read from the challenge here.

use sip_core::auth::digest::{Input, QopAuth, ha1, response};
use sip_core::config::Algorithm;

use crate::message::View;

/// The password of every user here.
pub const PASSWORD: &str = "open sesame";

/// A challenge with its count of uses, which goes up with each (RFC 7616 §3.3 `nc`).
#[derive(Clone, Debug)]
pub(crate) struct Challenge {
    algorithm: Algorithm,
    realm: String,
    nonce: String,
    count: u32,
}

impl Challenge {
    /// The first of `values` whose algorithm we support.
    pub(crate) fn first<'a>(mut values: impl Iterator<Item = &'a str>) -> Option<Self> {
        values.find_map(|value| {
            let algorithm = match value_of(value, "algorithm") {
                "" => Algorithm::Md5,
                name => Algorithm::parse(name.as_bytes())?,
            };
            Some(Self {
                algorithm,
                realm: value_of(value, "realm").to_owned(),
                nonce: value_of(value, "nonce").to_owned(),
                count: 0,
            })
        })
    }

    /// The value of an `Authorization` or `Proxy-Authorization` header.
    pub(crate) fn answer(&mut self, user: &str, method: &str, uri: &str) -> String {
        self.count += 1;
        let (cnonce, nc) = ("c1", format!("{:08x}", self.count));
        let input = Input {
            algorithm: self.algorithm,
            nonce: self.nonce.as_bytes(),
            qop: Some(QopAuth {
                qop: b"auth",
                nc: nc.as_bytes(),
                cnonce: cnonce.as_bytes(),
            }),
            method: method.as_bytes(),
            uri: uri.as_bytes(),
        };
        let secret = ha1(
            self.algorithm,
            user.as_bytes(),
            self.realm.as_bytes(),
            PASSWORD.as_bytes(),
        );
        let answer = response(&input, secret.as_bytes()).to_hex();
        format!(
            "Digest username=\"{user}\", realm=\"{}\", nonce=\"{}\", uri=\"{uri}\", response=\"{}\", \
             algorithm={}, cnonce=\"{cnonce}\", qop=auth, nc={nc}",
            self.realm,
            self.nonce,
            answer.as_str(),
            self.algorithm.name()
        )
    }
}

/// A `Proxy-Authorization` line for the first challenge that we support.
pub(crate) fn credentials(challenge: &View<'_>, user: &str, method: &str, uri: &str) -> Option<String> {
    let mut challenge = Challenge::first(challenge.all("Proxy-Authenticate"))?;
    let answer = challenge.answer(user, method, uri);
    Some(format!("Proxy-Authorization: {answer}\r\n"))
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
