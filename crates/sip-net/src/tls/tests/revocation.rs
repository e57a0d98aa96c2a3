//! Certificates that their authority has revoked.

use rcgen::{
    CertificateRevocationListParams, KeyIdMethod, RevocationReason, RevokedCertParams, SerialNumber,
    date_time_ymd,
};
use rustls::CertificateError;

use super::*;

const PARTNER: u64 = 4711;
const OTHER: u64 = 4712;

impl Authority {
    /// A certificate with this serial number.
    fn numbered(&self, domain: &str, serial: u64) -> IdentityFiles {
        self.issue(domain, Kind::P256, |params| {
            params.subject_alt_names = vec![dns(domain)];
            params.serial_number = Some(SerialNumber::from(serial));
        })
    }

    /// A list of certificates that this authority has revoked; the next one is promised for the first of that
    /// month.
    fn revoke(&self, serials: &[u64], (year, month): (i32, u8)) -> String {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2026, 1, 2),
            reason_code: Some(RevocationReason::KeyCompromise),
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 2),
            next_update: date_time_ymd(year, month, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }
}

fn revoked() -> Result<(), TlsError> {
    Err(TlsError::PeerCertificate(CertificateError::Revoked))
}

/// A listener that requires certificates of this authority and has its list.
fn listener(authority: &Authority, crl: &Path, tickets: Option<&Arc<TicketKeys>>) -> TlsServer {
    let settings = ServerSettings {
        name: "a listener".to_owned(),
        identities: vec![authority.for_domain("example.com", Kind::P256)],
        client_auth: ClientAuth::Required,
        client_ca: Some(authority.file.clone()),
        client_crl: Some(crl.to_owned()),
        ..ServerSettings::default()
    };
    server_with(settings, tickets, &Clock::today())
}

fn partner(authority: &Authority, identity: &IdentityFiles, versions: Versions) -> TlsClient {
    let settings = ClientSettings {
        identity: Some(identity.clone()),
        versions,
        ..trusting(&authority.file)
    };
    client_with(settings, &Clock::today())
}

#[test]
fn a_client_whose_certificate_is_revoked_is_refused() {
    let (authority, another) = (Authority::new("ca"), Authority::new("another"));
    let bad = authority.numbered("partner.com", PARTNER);
    let good = authority.numbered("other.com", OTHER);
    // A list of one authority does not affect certificates of another with the same number.
    let both = another.revoke(&[OTHER], (2030, 1)) + &authority.revoke(&[PARTNER], (2030, 1));
    let server = listener(&authority, &authority.write("crl.pem", &both), None);
    for versions in [Versions::Tls12, Versions::Tls13] {
        let client = partner(&authority, &bad, versions);
        let mut pair = Pair::new(&client, "example.com", &server);
        assert_eq!(pair.run().1, revoked(), "{versions:?}");
        let client = partner(&authority, &good, versions);
        Pair::new(&client, "example.com", &server).good();
    }
}

#[test]
fn a_server_whose_certificate_is_revoked_is_refused() {
    let authority = Authority::new("ca");
    let crl = authority.write("crl.pem", &authority.revoke(&[PARTNER], (2030, 1)));
    let settings = ClientSettings {
        crl: Some(crl),
        ..trusting(&authority.file)
    };
    let client = client_with(settings, &Clock::today());
    let bad = server(&[&authority.numbered("partner.com", PARTNER)]);
    let good = server(&[&authority.numbered("other.com", OTHER)]);
    assert_eq!(Pair::new(&client, "partner.com", &bad).run().0, revoked());
    assert!(!connect(&client, "other.com", &good));
}

/// If an intermediate authority is revoked, so are all certificates that it issued.
#[test]
fn a_chain_with_a_revoked_authority_is_refused() {
    let authority = Authority::new("ca");
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.distinguished_name.push(DnType::CommonName, "between");
    params.serial_number = Some(SerialNumber::from(PARTNER));
    let between = params.signed_by(&key, &authority.issuer).unwrap();
    let below = Authority {
        directory: tempfile::tempdir().unwrap(),
        issuer: Issuer::new(params, key),
        file: authority.file.clone(),
    };
    let files = below.numbered("partner.com", OTHER);
    let own = fs::read_to_string(&files.certificate).unwrap();
    fs::write(&files.certificate, own + &between.pem()).unwrap();
    for (serial, expected) in [(OTHER, Ok(())), (PARTNER, revoked())] {
        let list = authority.revoke(&[serial], (2030, 1));
        let settings = ClientSettings {
            crl: Some(authority.write("crl.pem", &list)),
            ..trusting(&authority.file)
        };
        let client = client_with(settings, &Clock::today());
        let mut pair = Pair::new(&client, "partner.com", &server(&[&files]));
        assert_eq!(pair.run().0, expected);
    }
}

/// An open session continues. A new connection is not resumed, because a resumption would not check the
/// certificate.
#[test]
fn a_new_revocation_list_counts_for_resumption() {
    let authority = Authority::new("ca");
    let path = authority.write("crl.pem", &authority.revoke(&[OTHER], (2030, 1)));
    let keys = authority.path("tickets.key");
    create_ticket_key_file(&keys, TODAY).unwrap();
    let clock = Clock::today();
    let keys = TicketKeys::load(&keys, TicketSettings::default(), clock, &mut Vec::new()).unwrap();
    let server = listener(&authority, &path, Some(&Arc::new(keys)));
    let identity = authority.numbered("partner.com", PARTNER);
    for versions in [Versions::Tls12, Versions::Tls13] {
        fs::write(&path, authority.revoke(&[OTHER], (2030, 1))).unwrap();
        server.reload().unwrap();
        let client = partner(&authority, &identity, versions);
        assert!(!connect(&client, "example.com", &server));
        let mut living = Pair::new(&client, "example.com", &server);
        living.good();
        assert!(living.resumed());
        fs::write(&path, authority.revoke(&[PARTNER], (2030, 1))).unwrap();
        assert_eq!(server.reload().unwrap(), vec![]);
        let mut pair = Pair::new(&client, "example.com", &server);
        assert_eq!(pair.run().1, revoked(), "{versions:?}");
        let piece = b"still there";
        living.client.write(piece, &mut living.to_server).unwrap();
        living.good();
        assert_eq!(living.at_server, piece);
    }
}

/// A list that its authority does not renew must neither end signalling nor readmit the clients that it
/// names.
#[test]
fn a_list_that_is_out_of_date_counts_and_is_warned_about() {
    let authority = Authority::new("ca");
    let crl = authority.write("crl.pem", &authority.revoke(&[PARTNER], (2026, 11)));
    let server = listener(&authority, &crl, None);
    let warnings = server.reload().unwrap();
    assert!(
        matches!(
            warnings.as_slice(),
            [TlsWarning::RevocationListOutOfDate { path, number: 1, ago_s: 1_728_000 }] if *path == crl
        ),
        "{warnings:?}"
    );
    let good = authority.numbered("other.com", OTHER);
    Pair::new(
        &partner(&authority, &good, Versions::Both),
        "example.com",
        &server,
    )
    .good();
    let bad = authority.numbered("partner.com", PARTNER);
    let client = partner(&authority, &bad, Versions::Both);
    assert_eq!(Pair::new(&client, "example.com", &server).run().1, revoked());
}

/// A forger's list in the authority's name has no effect.
#[test]
fn an_unsigned_revocation_list_refuses_all() {
    let (authority, forger) = (Authority::new("ca"), Authority::new("ca"));
    let crl = authority.write("crl.pem", &forger.revoke(&[OTHER], (2030, 1)));
    let server = listener(&authority, &crl, None);
    let client = partner(
        &authority,
        &authority.numbered("partner.com", PARTNER),
        Versions::Both,
    );
    let (_, error) = Pair::new(&client, "example.com", &server).run();
    let error = error.unwrap_err();
    assert!(error.to_string().contains("InvalidCrlSignature"), "{error}");
}

#[test]
fn a_bad_file_is_named_and_the_old_list_stays() {
    let authority = Authority::new("ca");
    let path = authority.write("crl.pem", &authority.revoke(&[PARTNER], (2030, 1)));
    let server = listener(&authority, &path, None);
    for (text, reason) in [
        ("", "no list of revoked certificates"),
        (
            "-----BEGIN X509 CRL-----\nMIIB\n-----END X509 CRL-----\n",
            "list 1 of revoked",
        ),
        ("-----BEGIN X509 CRL-----\nMIIB\n", "not PEM"),
    ] {
        fs::write(&path, text).unwrap();
        let error = server.reload().unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("crl.pem") && text.contains(reason) && error.path() == Some(&path),
            "{text}"
        );
    }
    let bad = authority.numbered("partner.com", PARTNER);
    let client = partner(&authority, &bad, Versions::Both);
    assert_eq!(Pair::new(&client, "example.com", &server).run().1, revoked());
}
