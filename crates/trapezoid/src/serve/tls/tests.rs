//! Tests of files that become wrong, and right again.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use sip_net::tls::rustls::pki_types::ServerName;
use sip_net::tls::rustls::{ClientConnection, ServerConnection};

use super::*;
use settings::{Loaded, Machine, read_text};

/// A directory with an authority, its certificates and a configuration.
struct Site {
    directory: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Site {
    #[track_caller]
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let directory = tempfile::tempdir().expect("a directory");
        let ca = params.self_signed(&key).expect("a certificate");
        fs::write(directory.path().join("ca.pem"), ca.pem()).expect("writable");
        Self {
            directory,
            issuer: Issuer::new(params, key),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    #[track_caller]
    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("writable");
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(self.path(name), mode).expect("ours");
    }

    /// Makes certificate and key of `domain`, as `NAME.pem` and `NAME.key`, which expire in this many days.
    #[track_caller]
    fn issue(&self, name: &str, domain: &str, days: u64) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![domain.to_owned()]).expect("a name");
        let now = std::time::SystemTime::now();
        params.not_before = (now - std::time::Duration::from_secs(3600)).into();
        params.not_after = (now + std::time::Duration::from_secs(days * 86_400 + 60)).into();
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    #[track_caller]
    fn read(&self, text: &str) -> Loaded {
        let machine = Machine {
            addresses: vec![
                ("127.0.0.1".parse().expect("address"), 8),
                ("192.0.2.7".parse().expect("address"), 24),
            ],
            host_name: Some("Box".to_owned()),
            ..Machine::default()
        };
        let loaded = read_text(text, "f", Some(&self.path("f")), &machine);
        loaded.unwrap_or_else(|problems| panic!("{problems}"))
    }

    /// A listener with the certificate `NAME`, and `more` in its `tls`.
    fn listener(name: &str, port: u16, more: &str) -> String {
        format!(
            "[[listen]]\ntransport = \"tls\"\naddress = \"127.0.0.1:{port}\"\n\
             tls = {{ certificate = \"{name}.pem\", key = \"{name}.key\"{more} }}\n"
        )
    }
}

#[track_caller]
fn load(loaded: &Loaded) -> TlsFiles {
    let made = crate::serve::data_dir::create(&loaded.shell.data_dir);
    made.unwrap_or_else(|failure| panic!("{failure:?}"));
    own::prepare(loaded, Some("Box")).unwrap_or_else(|failure| panic!("{failure:?}"));
    let (files, findings) = TlsFiles::load(&loaded.shell);
    assert_eq!(findings.errors, [""; 0]);
    files
}

/// Does a handshake with one listener by a client that trusts the site's authority, or `ca`. Returns whether
/// it was resumed, and the server's certificate. `None` if the client refuses that.
fn connect(service: &StreamService, client: &TlsClient, domain: &str) -> Option<(bool, Vec<u8>)> {
    let server = service.server.as_ref().expect("an end of TLS");
    let name = ServerName::try_from(domain.to_owned()).expect("a name");
    let mut client = ClientConnection::new(client.config(), name).expect("a client");
    let mut server = ServerConnection::new(server.config()).expect("a server");
    let mut bytes = Vec::new();
    while client.is_handshaking() || server.is_handshaking() || client.wants_write() || server.wants_write() {
        bytes.clear();
        while client.wants_write() {
            client.write_tls(&mut bytes).expect("memory");
        }
        server.read_tls(&mut bytes.as_slice()).expect("memory");
        server.process_new_packets().ok()?;
        bytes.clear();
        while server.wants_write() {
            server.write_tls(&mut bytes).expect("memory");
        }
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            client.read_tls(&mut rest).expect("memory");
            client.process_new_packets().ok()?;
        }
    }
    // Tickets of TLS 1.3 arrive with the first data.
    server.writer().write_all(b"x").expect("memory");
    bytes.clear();
    server.write_tls(&mut bytes).expect("memory");
    client.read_tls(&mut bytes.as_slice()).expect("memory");
    client.process_new_packets().expect("data");
    client.reader().read_exact(&mut [0]).expect("data");
    let resumed = client.handshake_kind() == Some(sip_net::tls::rustls::HandshakeKind::Resumed);
    let shown = client
        .peer_certificates()
        .expect("a certificate")
        .first()
        .expect("its own");
    Some((resumed, shown.to_vec()))
}

#[track_caller]
fn trusting(ca: PathBuf) -> TlsClient {
    let settings = ClientSettings {
        ca: Some(ca),
        remembered_peers: 4,
        ..ClientSettings::default()
    };
    TlsClient::load(settings, system_clock(), &mut Vec::new()).expect("an authority")
}

#[test]
fn the_error_of_every_bad_file_has_its_place_and_a_remedy() {
    let site = Site::new();
    site.issue("a", "a.example", 100);
    site.issue("b", "b.example", 100);
    site.write("empty.pem", "");
    site.write("t.keys", "1 x\n");
    site.write("empty.crl", "");
    let text = [
        Site::listener(
            "a",
            5061,
            ", client_auth = \"required\", client_ca = \"ca.pem\", client_crl = \"empty.crl\"",
        ),
        Site::listener("a", 5062, ", ticket_keys = \"t.keys\""),
        Site::listener("nobody", 5063, ""),
        "[[listen]]\ntransport = \"wss\"\naddress = \"127.0.0.1:443\"\n\
         tls = { certificate = \"a.pem\", key = \"b.key\" }\n"
            .to_owned(),
        "[tls]\nca = \"empty.pem\"\n[[tls.peer]]\ndomain = \"c.example\"\nca = \"no.pem\"\n\
         [[tls.peer]]\ndomain = \"d.example\"\nca = \"ca.pem\"\ncrl = \"empty.crl\"\n"
            .to_owned(),
    ]
    .concat();
    let loaded = site.read(&text);
    let (_, findings) = TlsFiles::load(&loaded.shell);
    let directory = site.directory.path().display();
    let name = |name: &str| format!("{directory}/{name}");
    assert_eq!(
        findings.errors,
        [
            format!(
                "f:18: tls.ca: {}: no certificate; expected `-----BEGIN CERTIFICATE-----`, the server's own first",
                name("empty.pem")
            ),
            format!(
                "f:19: tls.peer[0]: {}: No such file or directory (os error 2); name a file that the server can read",
                name("no.pem")
            ),
            format!(
                "f:22: tls.peer[1]: {}: no list of revoked certificates; expected `-----BEGIN X509 CRL-----`",
                name("empty.crl")
            ),
            format!(
                "f:4: listen[0].tls: {}: no list of revoked certificates; expected `-----BEGIN X509 CRL-----`",
                name("empty.crl")
            ),
            format!(
                "f:8: listen[1].tls: {}:1: the key is not base64; expected `SECONDS-SINCE-1970 BASE64-OF-48-BYTES`",
                name("t.keys")
            ),
            format!(
                "f:12: listen[2].tls: {}: No such file or directory (os error 2); name a file that the server can read",
                name("nobody.pem")
            ),
            format!(
                "f:16: listen[3].tls: {}: not the private key of the first certificate in {}; name the key that the certificate was issued for",
                name("b.key"),
                name("a.pem")
            ),
        ]
    );
    assert!(!site.path("data").exists(), "only looked at");
}

#[test]
fn a_reload_is_taken_by_each_listener_whose_files_are_good() {
    let site = Site::new();
    site.issue("a", "a.example", 100);
    site.issue("b", "b.example", 100);
    site.issue("c", "c.example", 100);
    let more = ", more = [ { certificate = \"c.pem\", key = \"c.key\" } ]";
    let text = Site::listener("a", 5061, "") + &Site::listener("b", 5062, more) + "[tls]\nca = \"ca.pem\"\n";
    let loaded = site.read(&text);
    let files = load(&loaded);
    let services = files.services(&loaded.shell.services);
    // A new client each time: one that resumes a session gets no certificate.
    let shown = |index: usize, domain: &str| {
        let client = trusting(site.path("ca.pem"));
        connect(&services[index], &client, domain).map(|(_, shown)| shown)
    };
    let before = (shown(0, "a.example"), shown(1, "b.example"));
    assert!(before.0.is_some() && before.1.is_some());

    site.issue("a", "a.example", 200);
    // One of a listener's certificates is bad, so the listener keeps all old ones.
    site.issue("b", "b.example", 200);
    site.write("c.key", "no key");
    let findings = files.reload();
    let place = site.path("c.key").display().to_string();
    assert_eq!(
        findings.errors,
        [format!(
            "f:8: listen[1].tls: {place}: no private key; expected `-----BEGIN PRIVATE KEY-----` (or RSA, or EC) without a password"
        )]
    );
    assert_ne!(shown(0, "a.example"), before.0, "the new one");
    assert_eq!(shown(1, "b.example"), before.1, "the old one");
    let days = |files: &TlsFiles| -> Vec<(String, u64)> {
        let ends = files.ends();
        ends.iter()
            .map(|ends| (ends.domain.clone(), ends.left_s() / 86_400))
            .collect()
    };
    let of = |domain: &str, days: u64| (domain.to_owned(), days);
    assert_eq!(
        days(&files),
        [of("a.example", 200), of("b.example", 100), of("c.example", 100)]
    );

    site.issue("c", "c.example", 300);
    assert_eq!(files.reload(), Findings::default());
    assert!(shown(1, "b.example").is_some_and(|shown| Some(shown) != before.1));
    assert_eq!(
        days(&files),
        [of("a.example", 200), of("b.example", 200), of("c.example", 300)]
    );
    let names: Vec<String> = files.paths();
    let names: Vec<&str> = names.iter().filter_map(|path| path.rsplit('/').next()).collect();
    assert_eq!(
        names,
        [
            "a.pem",
            "a.key",
            "b.pem",
            "b.key",
            "c.pem",
            "c.key",
            "tickets.key",
            "ca.pem"
        ]
    );
}

/// The verification of peers depends on files too. The entry that names a bad file is reported.
#[test]
fn peers_have_files_of_their_own() {
    let site = Site::new();
    site.issue("a", "a.example", 100);
    site.issue("guest", "guest.example", 10);
    let text = Site::listener("a", 5061, "")
        + "[tls]\nca = \"ca.pem\"\n[[tls.peer]]\ndomain = \"c.example\"\ncertificate = \"guest.pem\"\nkey = \"guest.key\"\n";
    let loaded = site.read(&text);
    let (files, findings) = TlsFiles::load(&loaded.shell);
    assert_eq!(findings.errors, [""; 0]);
    let guest = site.path("guest.pem");
    assert!(
        findings.warnings.len() == 1
            && findings.warnings[0].starts_with(&format!(
                "f:7: tls.peer[0]: {}: the certificate expires",
                guest.display()
            ))
            && findings.warnings[0].ends_with("; renew it and reload"),
        "{:?}",
        findings.warnings
    );
    let ends = files.ends();
    assert_eq!(ends[1].to, Use::Peer("c.example".to_owned()));
    assert_eq!(
        ends[1].today(),
        Some(format!(
            "{}: the certificate expires in 10 days; renew it and reload",
            guest.display()
        ))
    );
    assert_eq!(ends[0].today(), None);
    let services = files.services(&loaded.shell.services);
    let clients = services[0].clients.as_ref().expect("connections can be opened");
    assert!(!Arc::ptr_eq(
        clients.for_domain("c.example"),
        clients.for_domain("d.example")
    ));

    site.write("guest.pem", "");
    let findings = files.reload();
    assert_eq!(findings.errors.len(), 1, "{:?}", findings.errors);
    assert!(
        findings.errors[0].starts_with("f:7: tls.peer[0]: "),
        "{:?}",
        findings.errors
    );
}

#[test]
fn the_first_start_makes_a_certificate_and_keeps_it() {
    let site = Site::new();
    let loaded = site.read("[server]\nname = \"sip.example.com\"\n[tls]\nca = \"ca.pem\"\n");
    let (before, findings) = TlsFiles::load(&loaded.shell);
    assert!(
        before
            .services(&loaded.shell.services)
            .iter()
            .all(|service| service.server.is_none())
    );
    assert_eq!(findings, Findings::default(), "`check` before the first start");

    let files = load(&loaded);
    let own = &loaded.shell.tls.listeners[0].identities[0];
    for path in [&own.certificate, &own.key, &loaded.shell.tls.ticket_keys] {
        let mode = fs::metadata(path).expect("made").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
    let services = files.services(&loaded.shell.services);
    let of_tls: Vec<&StreamService> = services
        .iter()
        .filter(|service| service.server.is_some())
        .collect();
    let [first, second] = of_tls.as_slice() else {
        panic!("one for each address")
    };
    let same = |a: &StreamService, b: &StreamService| {
        Arc::ptr_eq(
            a.server.as_ref().expect("there"),
            b.server.as_ref().expect("there"),
        )
    };
    assert!(same(first, second), "all addresses of a wildcard are one");
    // A client that trusts the certificate finds every name and address of the machine in it.
    let client = trusting(own.certificate.clone());
    for name in [
        "sip.example.com",
        "box",
        "localhost",
        "trapezoid",
        "127.0.0.1",
        "192.0.2.7",
    ] {
        assert!(connect(first, &client, name).is_some(), "{name}");
    }
    assert!(connect(first, &client, "example.org").is_none());
    let days = files.ends()[0].left_s() / 86_400;
    assert!((824..=825).contains(&days), "{days}");
    assert!(files.ends()[0].today().is_none());

    // The certificate is kept. If only the key exists, the new certificate is for the same key.
    let (certificate, key) = (
        fs::read(&own.certificate).expect("there"),
        fs::read(&own.key).expect("there"),
    );
    load(&loaded);
    assert_eq!(fs::read(&own.certificate).expect("there"), certificate);
    fs::remove_file(&own.certificate).expect("there");
    load(&loaded);
    assert_ne!(fs::read(&own.certificate).expect("made"), certificate);
    assert_eq!(fs::read(&own.key).expect("there"), key);

    let mut ending = files.ends()[0].clone();
    ending.at_s -= 800 * 86_400;
    let line = ending.today().expect("within 30 days");
    assert!(
        line.contains("expires in 2") && line.contains("remove it and start again"),
        "{line}"
    );
}

#[test]
fn a_key_that_is_none_is_not_replaced() {
    let site = Site::new();
    let loaded = site.read("");
    let own = &loaded.shell.tls.listeners[0].identities[0];
    let (own, data_dir) = (own.clone(), &loaded.shell.data_dir);
    let made = crate::serve::data_dir::create(data_dir);
    made.unwrap_or_else(|failure| panic!("{failure:?}"));
    fs::create_dir_all(own.key.parent().expect("a directory")).expect("writable");
    fs::write(&own.key, "rubbish").expect("writable");
    let Err(crate::cli::Failure::Usage(text)) = own::prepare(&loaded, None) else {
        panic!("taken")
    };
    assert!(
        text.contains("key.pem") && text.contains("remove it to have a new one made"),
        "{text}"
    );
    assert_eq!(fs::read_to_string(&own.key).expect("there"), "rubbish");
}

/// Keys of tickets are kept, so that clients resume after a restart. Listeners that name one file share the
/// keys, but not the sessions.
#[test]
fn clients_resume_after_a_restart() {
    let site = Site::new();
    site.issue("a", "a.example", 100);
    let text = Site::listener("a", 5061, "") + &Site::listener("a", 5062, "") + "[tls]\nca = \"ca.pem\"\n";
    let loaded = site.read(&text);
    let client = trusting(site.path("ca.pem"));
    let resumed = |files: &TlsFiles, index: usize| {
        let services = files.services(&loaded.shell.services);
        connect(&services[index], &client, "a.example")
            .expect("trusted")
            .0
    };
    let files = load(&loaded);
    assert_eq!(files.tickets.len(), 1);
    assert!(!resumed(&files, 0));
    assert!(resumed(&files, 0));
    assert!(!resumed(&files, 1), "another listener");
    assert!(resumed(&load(&loaded), 1), "another process");

    // Without the keys no earlier session is resumed.
    fs::remove_file(&loaded.shell.tls.ticket_keys).expect("there");
    assert!(!resumed(&load(&loaded), 1));
}

#[test]
fn errors_of_revocation_lists_name_their_own_key() {
    let site = Site::new();
    site.issue("a", "a.example", 100);
    site.write("crl.pem", "");
    let text = Site::listener("a", 5061, "") + "[tls]\nca = \"ca.pem\"\ncrl = \"crl.pem\"\n";
    let loaded = site.read(&text);
    let (files, findings) = TlsFiles::load(&loaded.shell);
    assert_eq!(
        findings.errors,
        [format!(
            "f:7: tls.crl: {}: no list of revoked certificates; expected `-----BEGIN X509 CRL-----`",
            site.path("crl.pem").display()
        )]
    );
    assert!(files.paths().iter().any(|path| path.ends_with("/crl.pem")));
}
