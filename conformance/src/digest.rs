//! What a client computes to answer a challenge (RFC 7616 §3.4).

use std::fmt::Write as _;

use md5::Md5;
use sha2::Sha256;
use sha2::digest::Digest;

use crate::Message;

/// `MD5` of a text, hexadecimal.
pub fn md5(text: &str) -> String {
    hex(&Md5::digest(text.as_bytes()))
}

/// `SHA-256` of a text, hexadecimal.
pub fn sha256(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    let mut hex = String::new();
    for byte in bytes {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// The credentials that answer the first challenge of a 401 or 407, with `qop=auth`.
///
/// # Panics
/// When its algorithm is neither MD5 nor SHA-256.
pub fn credentials(method: &str, uri: &str, challenge: &Message, user: &str, password: &str) -> String {
    let (realm, nonce) = (challenge.challenge("realm"), challenge.challenge("nonce"));
    let (algorithm, hash): (_, fn(&str) -> String) = match challenge.challenge_token("algorithm") {
        "" | "MD5" => ("MD5", md5),
        "SHA-256" => ("SHA-256", sha256),
        other => panic!("a challenge for {other}: {challenge:?}"),
    };
    let secret = hash(&format!("{user}:{realm}:{password}"));
    let request = hash(&format!("{method}:{uri}"));
    let response = hash(&format!("{secret}:{nonce}:00000001:c0ffee:auth:{request}"));
    format!(
        "Digest username=\"{user}\", realm=\"{realm}\", nonce=\"{nonce}\", uri=\"{uri}\", \
         response=\"{response}\", algorithm={algorithm}, qop=auth, nc=00000001, cnonce=\"c0ffee\""
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_written_as_hexadecimal() {
        assert_eq!(md5("abc"), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(
            sha256("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
