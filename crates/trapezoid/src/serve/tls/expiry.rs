//! Expiry of our certificates.

use std::path::PathBuf;

use sip_net::tls::rustls::pki_types::UnixTime;
use sip_net::tls::{Identities, IdentityFiles, SipIdentities, provider};

use crate::machine::unix_ms;

const DAY_S: u64 = 86_400;
/// Days before its expiry from which on a certificate is logged every day.
const SOON_DAYS: u64 = 14;
/// Days before its expiry from which on the certificate of the first start is logged: it is renewed only if
/// the operator is warned.
const FIRST_START_DAYS: u64 = 30;

/// Use of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// For clients that connect to this `[[listen]]`.
    Listener(String),
    /// For the server of this domain, to which we connect.
    Peer(String),
}

/// A certificate in force, with its expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateExpiry {
    /// The certificate's use.
    pub to: Use,
    /// The first SIP domain that the certificate names; empty if none.
    pub domain: String,
    /// The certificate's file.
    pub path: PathBuf,
    /// Expiry, seconds since 1970.
    pub at_s: u64,
    /// Whether the certificate was made at the first start.
    pub is_own: bool,
}

impl CertificateExpiry {
    /// Reads a certificate; `None` if its files are not good.
    pub(super) fn read(to: &Use, files: &IdentityFiles, is_own: bool) -> Option<Self> {
        let one = std::slice::from_ref(files);
        let found = Identities::load(one, &provider(), UnixTime::now(), &mut Vec::new()).ok()?;
        let key = found.choose(None, &[])?;
        let domains = SipIdentities::of(key.cert.first()?);
        Some(Self {
            to: to.clone(),
            domain: domains.iter().next().unwrap_or_default().to_owned(),
            path: files.certificate.clone(),
            at_s: found.expires()?,
            is_own,
        })
    }

    /// Expiry of the certificate, Unix seconds.
    pub(crate) const fn end_unix_s(&self) -> u64 {
        self.at_s
    }

    /// Seconds until the expiry; 0 if it has passed.
    pub(crate) fn left_s(&self) -> u64 {
        self.at_s.saturating_sub(unix_ms() / 1000)
    }

    /// The warning to log today, if any.
    pub(crate) fn today(&self) -> Option<String> {
        let days = self.left_s() / DAY_S;
        let path = self.path.display();
        match (self.left_s(), self.is_own) {
            (_, true) => self.of_first_start(),
            (0, false) => Some(format!(
                "{path}: the certificate has expired; renew it and reload"
            )),
            (_, false) if days < SOON_DAYS => Some(format!(
                "{path}: the certificate expires in {days} days; renew it and reload"
            )),
            (_, false) => None,
        }
    }

    /// The warning for the certificate of the first start. It is not renewed automatically, because phones
    /// trust this very certificate.
    pub(super) fn of_first_start(&self) -> Option<String> {
        let days = self.left_s() / DAY_S;
        (self.is_own && days < FIRST_START_DAYS).then(|| {
            format!(
                "{}: the certificate of the first start expires in {days} days; remove it and start again to get a new \
                 one. Phones must then trust that one. Or name one of your own in [[listen]] tls",
                self.path.display()
            )
        })
    }
}
