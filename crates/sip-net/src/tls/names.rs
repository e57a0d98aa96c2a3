//! The SIP domains that a certificate names (RFC 5922 §7).

use std::net::IpAddr;

use rustls::pki_types::{CertificateDer, ServerName};
use webpki::EndEntityCert;

/// The SIP domains that a certificate is for (RFC 5922 §7.1): the hosts of its `sip` subjectAltNames of type
/// URI without a user part. If it has none, its DNS names. The common name never counts: RFC 9525 §2 and the
/// verifiers of today have given it up.
///
/// Lower case, without a final dot, in the order of the certificate. Names with a wildcard are
/// left out: they match nothing (§7.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SipIdentities {
    domains: Vec<String>,
}

impl SipIdentities {
    /// The identities of this certificate; none if it cannot be read. The certificate's
    /// validity is verified elsewhere.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let Ok(certificate) = EndEntityCert::try_from(certificate) else {
            return Self::default();
        };
        let mut domains: Vec<String> = certificate.valid_uri_names().filter_map(sip_uri_host).collect();
        if domains.is_empty() {
            domains = certificate.valid_dns_names().filter_map(domain).collect();
        }
        Self { domains }
    }

    /// Whether the certificate names exactly this domain. Whole names are compared, without regard to case.
    /// Neither suffixes nor wildcards match (RFC 5922 §7.2).
    pub fn contains(&self, domain: &str) -> bool {
        let wanted = domain.strip_suffix('.').unwrap_or(domain);
        self.domains.iter().any(|own| own.eq_ignore_ascii_case(wanted))
    }

    /// All domains.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.domains.iter().map(String::as_str)
    }

    /// Whether there is no domain.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }
}

/// Whether `certificate` names `name`, which is a SIP domain, or the address of a peer without a name. An
/// address matches a `sip` URI with it, or a subjectAltName of type iPAddress. RFC 5922 does not cover these;
/// the whole address is compared.
pub(super) fn speaks_for(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> bool {
    let identities = SipIdentities::of(certificate);
    match name {
        ServerName::DnsName(name) => identities.contains(name.as_ref()),
        ServerName::IpAddress(address) => {
            let address = IpAddr::from(*address);
            let is_it = |host: &str| {
                let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
                bare.unwrap_or(host).parse() == Ok(address)
            };
            identities.iter().any(is_it)
                || EndEntityCert::try_from(certificate)
                    .is_ok_and(|certificate| certificate.verify_is_valid_for_subject_name(name).is_ok())
        }
        // The enum may get more kinds; none of them is a SIP domain.
        _ => false,
    }
}

/// All names under which a certificate of ours is found by SNI: its domains, its other DNS names, and
/// wildcards, because clients that are no SIP servers accept those.
pub(super) fn server_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else {
        return Vec::new();
    };
    let mut names: Vec<String> = certificate.valid_uri_names().filter_map(sip_uri_host).collect();
    names.extend(certificate.valid_dns_names().map(normal));
    names.sort_unstable();
    names.dedup();
    names
}

fn normal(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn domain(name: &str) -> Option<String> {
    (!name.is_empty() && !name.contains('*')).then(|| normal(name))
}

/// The host of a `sip` URI without user part.
fn sip_uri_host(uri: &str) -> Option<String> {
    let (scheme, rest) = uri.split_once(':')?;
    if !scheme.eq_ignore_ascii_case("sip") || rest.contains('@') {
        return None;
    }
    let host_and_port = rest.split([';', '?']).next()?;
    let host = if host_and_port.starts_with('[') {
        let end = host_and_port.find(']')?;
        host_and_port.get(..=end)?
    } else {
        host_and_port.split(':').next()?
    };
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte);
    domain(host).filter(|host| host.bytes().all(is_host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sip_uris_without_user_name_a_domain() {
        let cases = [
            ("sip:example.com", Some("example.com")),
            ("SIP:Example.COM.", Some("example.com")),
            ("sip:example.com:5061;transport=tls", Some("example.com")),
            ("sip:[2001:db8::1]:5061", Some("[2001:db8::1]")),
            ("sip:192.0.2.1?a=b", Some("192.0.2.1")),
            ("sips:example.com", None),
            ("sip:alice@example.com", None),
            ("sip:example.com;maddr=a@b", None),
            ("sip:*.example.com", None),
            ("sip:", None),
            ("sip:[2001:db8::1", None),
            ("sip:exa mple.com", None),
            ("https://example.com", None),
            ("example.com", None),
        ];
        for (uri, host) in cases {
            assert_eq!(sip_uri_host(uri).as_deref(), host, "{uri}");
        }
    }

    #[test]
    fn domains_are_compared_whole() {
        let identities = SipIdentities {
            domains: vec!["example.com".to_owned()],
        };
        for (name, matches) in [
            ("example.com", true),
            ("EXAMPLE.com", true),
            ("example.com.", true),
            ("sip.example.com", false),
            ("ample.com", false),
            ("com", false),
            ("", false),
        ] {
            assert_eq!(identities.contains(name), matches, "{name}");
        }
    }
}
