//! Tests of the names by which a server is accepted (RFC 5922 §7), and of the choice of our certificate.

use rustls::CertificateError;

use super::*;

/// The result of connecting to `domain` at a server with the certificate that `change` makes.
fn verdict(domain: &str, change: impl FnOnce(&mut CertificateParams)) -> Result<(), TlsError> {
    let authority = Authority::new("ca");
    let server = server(&[&authority.issue("server", Kind::P256, change)]);
    let mut pair = Pair::new(&client(&authority.file), domain, &server);
    let (of_client, of_server) = pair.run();
    // The server gets an alert.
    assert_eq!(of_client.is_ok(), of_server.is_ok(), "{of_server:?}");
    of_client
}

#[test]
fn names_are_those_of_sip_and_not_those_of_https() {
    let cases: &[(&[SanType], &str, bool)] = &[
        (&[dns("example.com")], "example.com", true),
        (&[dns("example.com")], "EXAMPLE.com", true),
        (&[dns("example.com")], "sip.example.com", false),
        (&[dns("other.com"), dns("example.com")], "example.com", true),
        (&[dns("*.example.com")], "sip.example.com", false),
        (&[uri("sip:example.com")], "example.com", true),
        (&[uri("sip:Example.com")], "example.com", true),
        (&[uri("sips:example.com")], "example.com", false),
        (&[uri("sip:alice@example.com")], "example.com", false),
        (&[uri("https://example.com")], "example.com", false),
        // If a URI names a SIP domain, DNS names do not count.
        (
            &[uri("sip:example.com"), dns("host.example.com")],
            "example.com",
            true,
        ),
        (
            &[uri("sip:example.com"), dns("host.example.com")],
            "host.example.com",
            false,
        ),
        // If no URI does, they count.
        (
            &[uri("sip:alice@example.com"), dns("example.com")],
            "example.com",
            true,
        ),
        (&[uri("sip:192.0.2.1")], "192.0.2.1", true),
        (&[SanType::IpAddress([192, 0, 2, 1].into())], "192.0.2.1", true),
        (&[SanType::IpAddress([192, 0, 2, 1].into())], "192.0.2.2", false),
        // The common name is "server", and counts for nothing.
        (&[], "server", false),
    ];
    for (names, domain, good) in cases {
        let result = verdict(domain, |params| params.subject_alt_names = names.to_vec());
        let expected = match &result {
            Ok(()) => *good,
            Err(TlsError::PeerCertificate(CertificateError::NotValidForNameContext { .. })) => !good,
            Err(_) => false,
        };
        assert!(expected, "{names:?} for {domain}: {result:?}");
    }
}

#[test]
fn chains_that_do_not_hold_are_refused() {
    let expired = verdict("example.com", |params| {
        params.subject_alt_names = vec![dns("example.com")];
        params.not_after = rcgen::date_time_ymd(2026, 11, 20);
    });
    assert!(matches!(
        expired,
        Err(TlsError::PeerCertificate(CertificateError::ExpiredContext { .. }))
    ));
    let early = verdict("example.com", |params| {
        params.subject_alt_names = vec![dns("example.com")];
        params.not_before = rcgen::date_time_ymd(2026, 11, 22);
    });
    assert!(matches!(
        early,
        Err(TlsError::PeerCertificate(
            CertificateError::NotValidYetContext { .. }
        ))
    ));
    let (authority, other) = (Authority::new("ca"), Authority::new("other"));
    let server = server(&[&other.for_domain("example.com", Kind::P256)]);
    let mut pair = Pair::new(&client(&authority.file), "example.com", &server);
    assert_eq!(
        pair.run().0,
        Err(TlsError::PeerCertificate(CertificateError::UnknownIssuer))
    );
}

#[test]
fn a_certificate_for_sip_domains_alone_will_do_and_one_for_mail_will_not() {
    let with = |purpose| {
        verdict("example.com", |params| {
            params.subject_alt_names = vec![dns("example.com")];
            params.extended_key_usages = vec![purpose];
        })
    };
    // RFC 5924: id-kp-sipDomain.
    let sip_domain = ExtendedKeyUsagePurpose::Other(vec![1, 3, 6, 1, 5, 5, 7, 3, 20]);
    assert_eq!(with(sip_domain), Ok(()));
    let mail = with(ExtendedKeyUsagePurpose::EmailProtection);
    assert!(matches!(mail, Err(TlsError::PeerCertificate(_))), "{mail:?}");
}

#[test]
fn a_certificate_signed_by_itself_passes_where_it_is_trusted() {
    let key = Kind::P256.key();
    let mut params = CertificateParams::new(vec!["example.com".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "example.com");
    let directory = tempfile::tempdir().unwrap();
    let files = IdentityFiles {
        certificate: directory.path().join("cert.pem"),
        key: directory.path().join("key.pem"),
    };
    fs::write(&files.certificate, params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(&files.key, key.serialize_pem()).unwrap();
    assert!(!connect(
        &client(&files.certificate),
        "example.com",
        &server(&[&files])
    ));
}

#[test]
fn the_name_asked_for_chooses_the_certificate() {
    let authority = Authority::new("ca");
    let first = authority.for_domain("first.com", Kind::P256);
    let second = authority.for_domain("second.com", Kind::P256);
    let wild = authority.for_domain("*.second.com", Kind::P256);
    let both = authority.issue("both", Kind::P256, |params| {
        params.subject_alt_names = vec![uri("sip:third.com"), dns("host.third.com")];
    });
    let identities = server(&[&first, &second, &wild, &both]).identities();
    assert_eq!(identities.len(), 4);
    let schemes = [rustls::SignatureScheme::ECDSA_NISTP256_SHA256];
    let chosen = |name| {
        let key = identities.choose(name, &schemes).unwrap();
        let names = super::super::names::server_names(&key.cert[0]);
        names.first().cloned().unwrap_or_default()
    };
    for (name, expected) in [
        (Some("first.com"), "first.com"),
        (Some("SECOND.com"), "second.com"),
        (Some("a.second.com"), "*.second.com"),
        (Some("b.a.second.com"), "first.com"),
        (Some("third.com"), "host.third.com"),
        (Some("host.third.com"), "host.third.com"),
        (Some("unknown.com"), "first.com"),
        (None, "first.com"),
    ] {
        assert_eq!(chosen(name), expected, "{name:?}");
    }
}

#[test]
fn of_two_keys_for_a_name_the_client_gets_one_that_it_can_verify() {
    let authority = Authority::new("ca");
    let ecdsa = authority.for_domain("example.com", Kind::P256);
    let rsa = authority.issue("rsa", Kind::Rsa, |params| {
        params.subject_alt_names = vec![dns("example.com")];
    });
    let identities = server(&[&ecdsa, &rsa]).identities();
    let chosen = |schemes: &[rustls::SignatureScheme]| {
        let key = identities.choose(Some("example.com"), schemes).unwrap();
        key.key.algorithm()
    };
    use rustls::{SignatureAlgorithm, SignatureScheme};
    let both = [
        SignatureScheme::RSA_PSS_SHA256,
        SignatureScheme::ECDSA_NISTP256_SHA256,
    ];
    assert_eq!(chosen(&both), SignatureAlgorithm::ECDSA);
    assert_eq!(
        chosen(&[SignatureScheme::RSA_PSS_SHA256]),
        SignatureAlgorithm::RSA
    );
    assert_eq!(chosen(&[SignatureScheme::ED25519]), SignatureAlgorithm::ECDSA);
}

#[test]
fn a_listener_may_let_in_certain_domains_alone() {
    let authority = Authority::new("ca");
    let own = authority.for_domain("example.com", Kind::P256);
    let with = |names: &[&str]| {
        let settings = ServerSettings {
            name: "a listener".to_owned(),
            identities: vec![own.clone()],
            client_auth: ClientAuth::Required,
            client_ca: Some(authority.file.clone()),
            client_names: names.iter().map(|name| (*name).to_owned()).collect(),
            ..ServerSettings::default()
        };
        server_with(settings, None, &Clock::today())
    };
    let peer = authority.for_domain("Edge2.example.net", Kind::P256);
    let settings = ClientSettings {
        identity: Some(peer),
        ..trusting(&authority.file)
    };
    let client = client_with(settings, &Clock::today());
    for (names, served) in [
        (&[][..], true),
        (&["edge1.example.net", "edge2.example.net"], true),
        (&["edge1.example.net"], false),
        (&["example.net"], false),
    ] {
        let (_, at_server) = Pair::new(&client, "example.com", &with(names)).run();
        match at_server {
            Ok(()) => assert!(served, "{names:?}"),
            Err(TlsError::PeerCertificate(_)) => assert!(!served, "{names:?}"),
            Err(error) => panic!("{error}"),
        }
    }
}
