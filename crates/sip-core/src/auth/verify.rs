//! The check of credentials.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use sip_message::uri::is_same;
use zeroize::Zeroizing;

use super::challenge::{self, Credentials, Role};
use super::digest::{Input, response};
use super::nonce::{NonceCheck, NonceId, NonceSource};
use crate::config::AuthPolicy;
use crate::event::AuthFailure;
use crate::keys::{derive_key, derive_siphash_key};
use crate::query::Secrets;

/// The reason why credentials are refused before any secret is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The nonce is too old, from the future, or another node's: challenge, `stale=true`.
    Stale,
    /// The nonce was not made with our key: challenge, `stale=true` as well (see [`crate::auth`]);
    /// distinguished for the counters.
    Forged,
    /// `uri` is not the Request-URI: 400 (RFC 7616 §3.4.6).
    WrongUri,
}

/// Makes challenges and checks the credentials that come back: one per endpoint.
#[derive(Debug)]
pub struct Authenticator {
    nonces: NonceSource,
    /// HA1 of users that do not exist: the comparison must cost the same.
    dummy_ha1: Zeroizing<[u8; 32]>,
    request_key: (u64, u64),
}

impl Authenticator {
    /// See [`NonceSource::new`]. Workers that share nonce windows must share `domain_secret`.
    pub fn new(domain_secret: &[u8; 32], seed: &[u8; 32], node: u16) -> Self {
        Self {
            nonces: NonceSource::new(domain_secret, seed, node),
            dummy_ha1: Zeroizing::new(derive_key(domain_secret, "unknown user")),
            request_key: derive_siphash_key(domain_secret, "nonce use"),
        }
    }

    /// Appends the header lines of a challenge with a new nonce, to be sent to `source`.
    pub fn challenge(
        &mut self,
        out: &mut Vec<u8>,
        role: Role,
        policy: &AuthPolicy,
        now_unix_ms: u64,
        source: IpAddr,
        stale: bool,
    ) {
        let nonce = self.nonces.issue(now_unix_ms, &policy.realm, source);
        challenge::write(out, role, policy, &nonce, stale);
    }

    /// Whether credentials show that their sender receives messages at `source`: they are for a challenge
    /// that went there. The nonce of the credentials must have been found good.
    pub fn answers_from(&self, credentials: &Credentials<'_>, source: IpAddr) -> bool {
        self.nonces.issued_to(credentials.nonce, source)
    }

    /// Makes the checks that need no secret. Returns the nonce, which is to be noted as used once
    /// [`Authenticator::check`] has passed.
    ///
    /// `uri` must be `expected_uri`: the same bytes, or an equal URI by RFC 3261 §19.1.4.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn precheck(
        &self,
        policy: &AuthPolicy,
        credentials: &Credentials<'_>,
        expected_uri: &[u8],
        now_unix_ms: u64,
    ) -> Result<NonceId, Refusal> {
        let nonce = match self.nonces.check(
            now_unix_ms,
            credentials.nonce,
            &policy.realm,
            policy.nonce_lifetime_s,
        ) {
            NonceCheck::Good(id) => id,
            NonceCheck::Stale => return Err(Refusal::Stale),
            NonceCheck::Forged => return Err(Refusal::Forged),
        };
        if !is_same(credentials.uri, expected_uri) {
            return Err(Refusal::WrongUri);
        }
        Ok(nonce)
    }

    /// Compares the digest response with the right one. `secrets` are those of the user in the credentials;
    /// `None`: there is no such user. The comparison costs the same in that case, and the SIP response must
    /// be the same: a challenge without `stale`. The same holds if the row lacks a hash for the algorithm.
    ///
    /// # Errors
    /// [`AuthFailure::UnknownUser`] or [`AuthFailure::WrongPassword`], for our records only.
    pub fn check(
        &self,
        credentials: &Credentials<'_>,
        method: &[u8],
        secrets: Option<&Secrets>,
    ) -> Result<(), AuthFailure> {
        let algorithm = credentials.algorithm;
        let ha1 = secrets
            .and_then(|s| s.ha1(algorithm))
            .filter(|_| !credentials.userhash);
        let dummy = self.dummy_ha1.get(..algorithm.digest_len()).unwrap_or_default();
        let input = Input {
            algorithm,
            nonce: credentials.nonce,
            qop: credentials.qop,
            method,
            uri: credentials.uri,
        };
        let right = response(&input, ha1.unwrap_or(dummy)) == credentials.response;
        match (ha1.is_some(), right) {
            (true, true) => Ok(()),
            (true, false) => Err(AuthFailure::WrongPassword),
            (false, _) => Err(AuthFailure::UnknownUser),
        }
    }

    /// The identity of a request for [`crate::shared::SharedState::use_nonce`]: a hash of its source and of
    /// all bytes of `message`, none of which a retransmission changes. The digest covers little of a request
    /// (RFC 7616 §3.4.3: method and URI). Without this hash another Contact or body could be sent with an
    /// overheard count. All workers have the same key, since any of them may get the retransmission.
    pub fn request_hash(&self, message: &[u8], source: SocketAddr) -> u64 {
        let (seed, key) = self.request_key;
        let ip = match source.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        let state = fold_all(seed ^ u64::from(source.port()), key, &ip);
        fold_all(state, key, message)
    }
}

/// A hash that is compared with others of this process only. The hash is never visible outside, so it need
/// not withstand analysis, as SipHash does at four times the cost.
fn fold_all(mut state: u64, key: u64, text: &[u8]) -> u64 {
    let (rows, rest) = text.as_chunks::<16>();
    let mut last = [0; 16];
    if let Some(place) = last.get_mut(..rest.len()) {
        place.copy_from_slice(rest);
    }
    for row in rows.iter().chain([&last]) {
        let row = u128::from_le_bytes(*row);
        state = fold(row as u64 ^ state, (row >> 64) as u64 ^ key);
    }
    fold(state ^ text.len() as u64, key)
}

/// The two halves of a product, combined.
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::challenge::{Found, find};
    use crate::auth::digest::{self, QopAuth};
    use crate::config::Algorithm;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec;
    use sip_message::header::AuthValue;
    use sip_message::{HeaderIndex, Message};

    const HERE: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 1));
    const NOW: u64 = 1_800_000_000_000;

    fn policy(algorithm: Algorithm) -> AuthPolicy {
        AuthPolicy {
            realm: b"example.com".as_slice().into(),
            methods: vec![],
            algorithms: vec![algorithm],
            nonce_lifetime_s: 300,
            strict_uri: false,
        }
    }

    /// Credentials for a challenge line, as a user agent makes them; `with_qop: false` as one of RFC 2069
    /// does.
    fn answer(challenge: &[u8], user: &str, password: &str, uri: &str, with_qop: bool) -> String {
        let line = challenge
            .strip_prefix(b"WWW-Authenticate: ")
            .unwrap()
            .strip_suffix(b"\r\n")
            .unwrap();
        let value = AuthValue::parse(line).unwrap();
        let algorithm = Algorithm::parse(value.params.unquoted(b"algorithm").unwrap()).unwrap();
        let nonce = value.params.unquoted(b"nonce").unwrap();
        let qop = with_qop.then_some(QopAuth {
            qop: b"auth",
            nc: b"00000001",
            cnonce: b"abc",
        });
        let ha1 = digest::ha1(algorithm, user.as_bytes(), b"example.com", password.as_bytes());
        let input = Input {
            algorithm,
            nonce,
            qop,
            method: b"REGISTER",
            uri: uri.as_bytes(),
        };
        format!(
            "Digest username=\"{user}\", realm=\"example.com\", nonce=\"{}\", uri=\"{uri}\", response=\"{}\", \
             algorithm={}{}",
            core::str::from_utf8(nonce).unwrap(),
            response(&input, ha1.as_bytes()).to_hex().as_str(),
            algorithm.name(),
            if with_qop {
                ", qop=auth, nc=00000001, cnonce=\"abc\""
            } else {
                ""
            }
        )
    }

    fn with_credentials<T>(
        policy: &AuthPolicy,
        value: &str,
        f: impl FnOnce(Credentials<'_>, Message<'_>) -> T,
    ) -> T {
        let text = format!("REGISTER sip:example.com SIP/2.0\r\nAuthorization: {value}\r\n\r\n");
        let mut index = HeaderIndex::new();
        let message = sip_message::parse(text.as_bytes(), &mut index, 64).unwrap();
        match find(&message, Role::Server, policy) {
            Found::Credentials(c) => f(c, message),
            other @ (Found::None | Found::Malformed) => panic!("{other:?}"),
        }
    }

    fn authenticator() -> Authenticator {
        Authenticator::new(&[1; 32], &[2; 32], 1)
    }

    #[test]
    fn a_challenge_and_its_answer() {
        for algorithm in [Algorithm::Md5, Algorithm::Sha256, Algorithm::Sha512_256] {
            for with_qop in [true, false] {
                let (mut a, policy) = (authenticator(), policy(algorithm));
                let mut line = vec![];
                a.challenge(&mut line, Role::Server, &policy, NOW, HERE, false);
                let value = answer(&line, "alice", "secret", "sip:example.com", with_qop);
                let secrets = digest::secrets(b"alice", b"example.com", b"secret");
                let others = digest::secrets(b"alice", b"example.com", b"Secret");
                with_credentials(&policy, &value, |c, _| {
                    let nonce = a.precheck(&policy, &c, b"sip:example.com", NOW + 1_000).unwrap();
                    assert_eq!(nonce.issued_unix_ms, NOW);
                    assert_eq!(c.count, u32::from(with_qop));
                    assert_eq!(a.check(&c, b"REGISTER", Some(&secrets)), Ok(()));
                    assert_eq!(
                        a.check(&c, b"INVITE", Some(&secrets)),
                        Err(AuthFailure::WrongPassword)
                    );
                    assert_eq!(
                        a.check(&c, b"REGISTER", Some(&others)),
                        Err(AuthFailure::WrongPassword)
                    );
                    assert_eq!(a.check(&c, b"REGISTER", None), Err(AuthFailure::UnknownUser));
                    let bare = Secrets::default();
                    assert_eq!(
                        a.check(&c, b"REGISTER", Some(&bare)),
                        Err(AuthFailure::UnknownUser)
                    );
                    let hashed = Credentials {
                        userhash: true,
                        ..c.clone()
                    };
                    assert_eq!(
                        a.check(&hashed, b"REGISTER", Some(&secrets)),
                        Err(AuthFailure::UnknownUser)
                    );
                });
            }
        }
    }

    #[test]
    fn refusals_that_need_no_secret() {
        let (mut a, policy) = (authenticator(), policy(Algorithm::Md5));
        let mut line = vec![];
        a.challenge(&mut line, Role::Server, &policy, NOW, HERE, false);
        let value = answer(&line, "alice", "secret", "sip:example.com", true);
        with_credentials(&policy, &value, |c, _| {
            let precheck = |uri: &[u8], now| a.precheck(&policy, &c, uri, now);
            // RFC 3261 §19.1.4: the same URI in another spelling.
            assert!(precheck(b"SIP:EXAMPLE.com", NOW).is_ok());
            assert_eq!(precheck(b"sip:example.com:5060", NOW), Err(Refusal::WrongUri));
            assert_eq!(precheck(b"sip:bob@example.com", NOW), Err(Refusal::WrongUri));
            assert_eq!(
                precheck(b"sip:example.com;transport=tcp", NOW),
                Err(Refusal::WrongUri)
            );
            assert_eq!(precheck(b"sip:example.com", NOW + 301_000), Err(Refusal::Stale));
            let other = Authenticator::new(&[1; 32], &[2; 32], 2);
            assert_eq!(
                other.precheck(&policy, &c, b"sip:example.com", NOW),
                Err(Refusal::Stale)
            );
            let stranger = Authenticator::new(&[3; 32], &[2; 32], 1);
            assert_eq!(
                stranger.precheck(&policy, &c, b"sip:example.com", NOW),
                Err(Refusal::Forged)
            );
        });
    }

    #[test]
    fn two_requests_have_two_fingerprints() {
        let a = authenticator();
        let source = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let first = a.request_hash(b"REGISTER", source("192.0.2.1:5060"));
        // Another worker of the same process has another seed.
        let elsewhere = Authenticator::new(&[1; 32], &[9; 32], 1);
        assert_eq!(
            first,
            elsewhere.request_hash(b"REGISTER", source("192.0.2.1:5060"))
        );
        for (message, from) in [
            (&b"REGISTES"[..], "192.0.2.1:5060"),
            (b"REGISTER ", "192.0.2.1:5060"),
            (b"REGISTER", "192.0.2.1:5061"),
            (b"REGISTER", "192.0.2.2:5060"),
        ] {
            assert_ne!(first, a.request_hash(message, source(from)));
        }
    }
}
