//! Tests of exchanging certificates under open sessions, and of wrong files.

use super::*;

/// Replaces the files of `to` by those of `from`.
fn replace(to: &IdentityFiles, from: &IdentityFiles) {
    fs::copy(&from.certificate, &to.certificate).unwrap();
    fs::copy(&from.key, &to.key).unwrap();
}

#[test]
fn a_reload_is_for_new_sessions_alone_and_a_bad_file_for_none() {
    let authority = Authority::new("ca");
    let files = authority.for_domain("old.com", Kind::P256);
    let server = server(&[&files]);
    let client = client(&authority.file);
    let mut living = Pair::new(&client, "old.com", &server);
    living.good();
    let mut begun = Pair::new(&client, "old.com", &server);

    replace(&files, &authority.for_domain("new.com", Kind::P256));
    assert_eq!(server.reload().unwrap(), vec![]);
    assert!(!connect(&client, "new.com", &server));
    assert!(Pair::new(&client, "old.com", &server).run().0.is_err());
    // A session that began before continues with its configuration.
    begun.good();
    living
        .client
        .write(b"still there", &mut living.to_server)
        .unwrap();
    living.good();
    assert_eq!(living.at_server, b"still there");

    fs::write(&files.key, "no key").unwrap();
    let error = server.reload().unwrap_err();
    assert!(
        matches!(&error, TlsFileError::NoKey { path } if *path == files.key),
        "{error}"
    );
    assert!(!connect(&client, "new.com", &server));
}

#[test]
fn a_new_authority_counts_for_new_sessions() {
    let (authority, other) = (Authority::new("ca"), Authority::new("other"));
    let ca = authority.path("trusted.pem");
    fs::copy(&authority.file, &ca).unwrap();
    let client = client(&ca);
    let server = server(&[&other.for_domain("example.com", Kind::P256)]);
    assert!(Pair::new(&client, "example.com", &server).run().0.is_err());
    fs::write(&ca, "rubbish").unwrap();
    assert!(matches!(client.reload(), Err(TlsFileError::NoCertificate { .. })));
    fs::copy(&other.file, &ca).unwrap();
    client.reload().unwrap();
    assert!(!connect(&client, "example.com", &server));
}

#[test]
fn errors_name_the_file_and_what_would_be_right() {
    let authority = Authority::new("ca");
    let good = authority.for_domain("example.com", Kind::P256);
    let other = authority.for_domain("other.com", Kind::P256);
    let write = |name: &str, text: &str| {
        let path = authority.path(name);
        fs::write(&path, text).unwrap();
        path
    };
    let load = |certificate: &Path, key: &Path| {
        let settings = ServerSettings {
            identities: vec![IdentityFiles {
                certificate: certificate.to_owned(),
                key: key.to_owned(),
            }],
            ..ServerSettings::default()
        };
        let clock = Clock::today();
        TlsServer::load(settings, None, clock, &mut Vec::new())
            .map(drop)
            .unwrap_err()
            .to_string()
    };
    let empty = write("empty.pem", "");
    let torn = write("torn.pem", "-----BEGIN CERTIFICATE-----\nMIIB\n");
    let der = write(
        "der.pem",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
    );
    let locked = write(
        "locked.key",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    let odd = write(
        "odd.key",
        "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n",
    );
    let missing = authority.path("missing.pem");
    let cases = [
        (&missing, &good.key, "missing.pem", "No such file"),
        (&good.certificate, &missing, "missing.pem", "No such file"),
        (&empty, &good.key, "empty.pem", "no certificate"),
        (&good.key, &good.key, "example.com.key", "no certificate"),
        (&torn, &good.key, "torn.pem", "not PEM"),
        (&der, &good.key, "der.pem", "certificate 1"),
        (&good.certificate, &empty, "empty.pem", "no private key"),
        (
            &good.certificate,
            &good.certificate,
            "example.com.pem",
            "no private key",
        ),
        (&good.certificate, &locked, "locked.key", "without a password"),
        (&good.certificate, &odd, "odd.key", "RSA"),
        (
            &good.certificate,
            &other.key,
            "other.com.key",
            "not the private key",
        ),
    ];
    for (certificate, key, file, reason) in cases {
        let text = load(certificate, key);
        assert!(text.contains(file) && text.contains(reason), "{text}");
    }
    let none = TlsServer::load(ServerSettings::default(), None, Clock::today(), &mut Vec::new());
    assert!(matches!(none, Err(TlsFileError::NoIdentity)));
}

#[test]
fn what_works_but_should_not_stay_is_warned_about() {
    use std::os::unix::fs::PermissionsExt;

    let authority = Authority::new("ca");
    let warnings = |until: (i32, u8, u8), names: Vec<SanType>, mode: u32| {
        let files = authority.issue("server", Kind::P256, |params| {
            params.subject_alt_names = names;
            params.not_after = rcgen::date_time_ymd(until.0, until.1, until.2);
        });
        fs::set_permissions(&files.key, fs::Permissions::from_mode(mode)).unwrap();
        let settings = ServerSettings {
            identities: vec![files],
            ..ServerSettings::default()
        };
        let mut warnings = Vec::new();
        TlsServer::load(settings, None, Clock::today(), &mut warnings).unwrap();
        warnings
    };
    let name = || vec![dns("example.com")];
    assert_eq!(warnings((2030, 1, 1), name(), 0o640), vec![]);
    let expired = warnings((2026, 11, 20), name(), 0o600);
    assert!(
        matches!(expired.as_slice(), [TlsWarning::Expired { ago_s, .. }] if *ago_s > 40_000),
        "{expired:?}"
    );
    let soon = warnings((2026, 12, 1), name(), 0o600);
    assert!(matches!(soon.as_slice(), [TlsWarning::ExpiresSoon { .. }]));
    let wild = warnings((2030, 1, 1), vec![dns("*.example.com")], 0o600);
    assert!(matches!(wild.as_slice(), [TlsWarning::NoSipDomain { .. }]));
    let open = warnings((2030, 1, 1), name(), 0o644);
    assert!(matches!(open.as_slice(), [TlsWarning::ReadableByOthers { .. }]));
}
