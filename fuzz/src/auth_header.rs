//! The value of an Authorization or Proxy-Authorization header: read, looked for in a request, checked.
//!
//! The first byte chooses whether a server or a proxy reads it, and which algorithms are offered; `@N` in the
//! rest stands for a nonce of ours, which no fuzzer can guess. What is taken for credentials is also taken
//! out of what goes on; a nonce is good only byte for byte and only in its time; and a response is right only
//! if it is the one that the password makes.

use std::net::{IpAddr, Ipv4Addr};

use sip_core::auth::challenge::{Credentials, Found, Role, find, own_credentials};
use sip_core::auth::digest::{Input, response, secrets};
use sip_core::auth::nonce::NonceSource;
use sip_core::auth::verify::{Authenticator, Refusal};
use sip_core::config::{Algorithm, AuthPolicy};
use sip_message::{HeaderIndex, Message};

use crate::message;

const REALM: &[u8] = b"example.com";
const SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10));
const URI: &[u8] = b"sip:example.com";
const ISSUED_UNIX_MS: u64 = 1_700_000_000_000;
const LIFETIME_S: u32 = 300;
const SECRET: [u8; 32] = [7; 32];
const SEED: [u8; 32] = [9; 32];

/// Bits of an input's first byte.
mod choice {
    pub(super) const PROXY: u8 = 1;
    pub(super) const SHA_FIRST: u8 = 2;
}

/// Takes one input.
pub fn run(bytes: &[u8]) {
    let Some((&bits, value)) = bytes.split_first() else {
        return;
    };
    message::auth(value);
    let nonce = NonceSource::new(&SECRET, &SEED, 1).issue(ISSUED_UNIX_MS, REALM, SOURCE);
    let role = if bits & choice::PROXY == 0 {
        Role::Server
    } else {
        Role::Proxy
    };
    let text = request(role, value, nonce.as_bytes());
    let mut index = HeaderIndex::new();
    let Ok(message) = sip_message::parse(&text, &mut index, 64) else {
        return;
    };
    // A broken message is refused before credentials are looked for.
    if message.defect().is_some() {
        return;
    }
    let policy = policy(bits);
    match find(&message, role, &policy) {
        Found::None => {}
        Found::Malformed => assert_is_taken_out(&message),
        Found::Credentials(credentials) => {
            assert_is_taken_out(&message);
            judge(&policy, &credentials, nonce.as_bytes());
            compare(&credentials, b"REGISTER");
        }
    }
}

fn policy(bits: u8) -> AuthPolicy {
    let mut algorithms = vec![Algorithm::Md5, Algorithm::Sha256, Algorithm::Sha512_256];
    if bits & choice::SHA_FIRST != 0 {
        algorithms.reverse();
    }
    AuthPolicy {
        realm: REALM.into(),
        methods: vec![],
        algorithms,
        nonce_lifetime_s: LIFETIME_S,
        strict_uri: false,
    }
}

/// The request that carries `value`, with the nonce where it says `@N`.
fn request(role: Role, mut value: &[u8], nonce: &[u8]) -> Vec<u8> {
    let mut out = b"REGISTER sip:example.com SIP/2.0\r\n".to_vec();
    out.extend_from_slice(role.credentials_header().as_str().as_bytes());
    out.extend_from_slice(b": ");
    while let Some(at) = value.windows(2).position(|pair| pair == b"@N") {
        out.extend_from_slice(&value[..at]);
        out.extend_from_slice(nonce);
        value = &value[at + 2..];
    }
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n\r\n");
    out
}

/// RFC 3261 §22.3: credentials that were for us must not reach another server.
fn assert_is_taken_out(message: &Message<'_>) {
    assert!(own_credentials(message, REALM).count() > 0, "used and passed on");
    for line in own_credentials(message, REALM) {
        assert!(message.text(line).ends_with(b"\n"), "whole lines");
    }
}

fn judge(policy: &AuthPolicy, credentials: &Credentials<'_>, nonce: &[u8]) {
    let authenticator = Authenticator::new(&SECRET, &SEED, 1);
    let precheck = |after_s: u64| {
        let now_unix_ms = ISSUED_UNIX_MS + after_s * 1000;
        authenticator.precheck(policy, credentials, URI, now_unix_ms)
    };
    let is_ours = credentials.nonce == nonce;
    match precheck(1) {
        Ok(id) => {
            assert!(is_ours, "a nonce that we did not issue");
            assert_eq!(id.issued_unix_ms, ISSUED_UNIX_MS);
        }
        Err(Refusal::WrongUri) => assert!(is_ours && credentials.uri != URI),
        Err(Refusal::Forged | Refusal::Stale) => assert!(!is_ours, "refused what we issued"),
    }
    if is_ours {
        assert!(authenticator.answers_from(credentials, SOURCE));
        assert_eq!(precheck(u64::from(LIFETIME_S) + 1), Err(Refusal::Stale));
    }
}

fn compare(credentials: &Credentials<'_>, method: &[u8]) {
    let authenticator = Authenticator::new(&SECRET, &SEED, 1);
    let secrets = secrets(credentials.username, REALM, b"secret");
    let input = Input {
        algorithm: credentials.algorithm,
        nonce: credentials.nonce,
        qop: credentials.qop,
        method,
        uri: credentials.uri,
    };
    let ha1 = secrets.ha1(credentials.algorithm).expect("every algorithm's");
    let right = Credentials {
        response: response(&input, ha1),
        ..credentials.clone()
    };
    let passes = |which: &Credentials<'_>| authenticator.check(which, method, Some(&secrets)).is_ok();
    assert_eq!(passes(&right), !credentials.userhash);
    assert_eq!(
        passes(credentials),
        right.response == credentials.response && !credentials.userhash
    );
    assert!(
        authenticator.check(&right, method, None).is_err(),
        "somebody who does not exist"
    );
}
