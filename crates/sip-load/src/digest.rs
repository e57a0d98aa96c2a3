//! The caller's side of digest authentication (RFC 3261 §22.3, RFC 7616 §3.4, RFC 8760).

use sip_core::auth::digest::{self, Input, QopAuth};
use sip_core::config::Algorithm;
use sip_message::header::AuthValue;
use sip_message::{HeaderName, Message};

use crate::text::{cat, digits};

/// A challenge of the server, with the number of its uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Challenge {
    /// Field of the credentials: Authorization or Proxy-Authorization.
    header: HeaderName,
    algorithm: Algorithm,
    /// Whether the challenge named the algorithm.
    named: bool,
    realm: Vec<u8>,
    nonce: Vec<u8>,
    opaque: Option<Vec<u8>>,
    qop: bool,
    /// Number of requests that used this nonce.
    count: u32,
}

impl Challenge {
    /// The first challenge of a 401 or 407 that [`Self::answer`] can answer.
    pub(crate) fn read(message: &Message<'_>, status: u16) -> Option<Self> {
        let (asks, header) = match status {
            401 => (HeaderName::WwwAuthenticate, HeaderName::Authorization),
            407 => (HeaderName::ProxyAuthenticate, HeaderName::ProxyAuthorization),
            _ => return None,
        };
        let values = message.fields_named(asks).map(|f| message.field_value(f));
        values.filter_map(AuthValue::parse).find_map(|value| {
            let parameter = |name: &[u8]| value.params.unquoted(name);
            let named = parameter(b"algorithm");
            let qops = parameter(b"qop");
            let takes_auth = |qops: &[u8]| {
                let mut all = qops.split(|c| *c == b',').map(<[u8]>::trim_ascii);
                all.any(|qop| qop.eq_ignore_ascii_case(b"auth"))
            };
            (value.is_digest() && qops.is_none_or(takes_auth)).then_some(())?;
            Some(Self {
                header,
                algorithm: named.map_or(Some(Algorithm::Md5), Algorithm::parse)?,
                named: named.is_some(),
                realm: parameter(b"realm")?.to_vec(),
                nonce: parameter(b"nonce")?.to_vec(),
                opaque: parameter(b"opaque").map(<[u8]>::to_vec),
                qop: qops.is_some(),
                count: 0,
            })
        })
    }

    /// Appends the field with credentials for one more request.
    pub(crate) fn answer(
        &mut self,
        out: &mut Vec<u8>,
        user: &[u8],
        password: &[u8],
        method: &[u8],
        uri: &[u8],
    ) {
        self.count += 1;
        let nc = digits(self.count);
        // Any value will do: the cnonce protects the client, and the generator needs no protection (RFC 7616
        // §5.11).
        const CNONCE: &[u8] = b"0a4f113b";
        let ha1 = digest::ha1(self.algorithm, user, &self.realm, password);
        let input = Input {
            algorithm: self.algorithm,
            nonce: &self.nonce,
            qop: self.qop.then_some(QopAuth {
                qop: b"auth",
                nc: &nc,
                cnonce: CNONCE,
            }),
            method,
            uri,
        };
        let response = digest::response(&input, ha1.as_bytes()).to_hex();
        let name = self.header.as_str().as_bytes();
        cat(
            out,
            &[name, b": Digest username=\"", user, b"\", realm=\"", &self.realm],
        );
        cat(out, &[b"\", nonce=\"", &self.nonce, b"\", uri=\"", uri]);
        cat(out, &[b"\", response=\"", response.as_bytes(), b"\""]);
        if self.named {
            cat(out, &[b", algorithm=", self.algorithm.name().as_bytes()]);
        }
        if let Some(opaque) = &self.opaque {
            cat(out, &[b", opaque=\"", opaque, b"\""]);
        }
        if self.qop {
            cat(out, &[b", qop=auth, nc=", &nc, b", cnonce=\"", CNONCE, b"\""]);
        }
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use sip_message::{HeaderIndex, parse};

    use super::*;

    fn challenge(status: u16, fields: &str) -> Option<Challenge> {
        let text = format!("SIP/2.0 {status} Who\r\n{fields}\r\n");
        let mut index = HeaderIndex::new();
        let message = parse(text.as_bytes(), &mut index, 64).unwrap();
        Challenge::read(&message, status)
    }

    /// The example of RFC 2617 §3.5, for algorithm MD5 of RFC 7616, with our own cnonce.
    #[test]
    fn the_answer_is_what_the_server_computes() {
        let fields = "WWW-Authenticate: Digest realm=\"r\", nonce=\"n\", qop=\"auth,auth-int\", algorithm=SHA-256, opaque=\"o\"\r\n";
        let mut challenge = challenge(401, fields).unwrap();
        for nc in ["00000001", "00000002"] {
            let mut out = Vec::new();
            challenge.answer(&mut out, b"u", b"p", b"INVITE", b"sip:a@b");
            let ha1 = digest::ha1(Algorithm::Sha256, b"u", b"r", b"p");
            let qop = QopAuth {
                qop: b"auth",
                nc: nc.as_bytes(),
                cnonce: b"0a4f113b",
            };
            let input = Input {
                algorithm: Algorithm::Sha256,
                nonce: b"n",
                qop: Some(qop),
                method: b"INVITE",
                uri: b"sip:a@b",
            };
            let response = digest::response(&input, ha1.as_bytes()).to_hex();
            let expected = format!(
                "Authorization: Digest username=\"u\", realm=\"r\", nonce=\"n\", uri=\"sip:a@b\", response=\"{}\", \
                 algorithm=SHA-256, opaque=\"o\", qop=auth, nc={nc}, cnonce=\"0a4f113b\"\r\n",
                response.as_str()
            );
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn the_first_that_can_be_answered_is() {
        let known = "Proxy-Authenticate: Digest realm=\"r\", nonce=\"n\"\r\n";
        for odd in [
            "Basic realm=\"r\"",
            "Digest realm=\"r\", nonce=\"m\", algorithm=MD9",
            "Digest realm=\"r\", nonce=\"m\", qop=\"auth-int\"",
        ] {
            let found = challenge(407, &format!("Proxy-Authenticate: {odd}\r\n{known}")).unwrap();
            assert_eq!(found.nonce, b"n");
            let mut out = Vec::new();
            found.clone().answer(&mut out, b"u", b"p", b"BYE", b"sip:x");
            assert!(out.starts_with(b"Proxy-Authorization: Digest username=\"u\""));
            assert!(!out.windows(4).any(|w| w == b"qop="), "as by RFC 2069");
        }
        assert_eq!(challenge(401, known), None, "of the other kind");
        assert_eq!(challenge(403, known), None);
    }
}
