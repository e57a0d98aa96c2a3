//! TLS through the built binary: the first start's certificate, a reload, files that are wrong.

use crate::common;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use common::{PATIENCE, Place, Server, ask, check, get};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use sip_net::tls::rustls::pki_types::ServerName;
use sip_net::tls::rustls::{ClientConnection, HandshakeKind, StreamOwned};
use sip_net::tls::{ClientSettings, IdentityFiles, TlsClient, system_clock};

/// An authority that writes its files into a directory.
struct Authority<'a> {
    directory: &'a Path,
    issuer: Issuer<'static, KeyPair>,
}

impl<'a> Authority<'a> {
    /// Its certificate is `NAME.pem`.
    fn new(directory: &'a Path, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let own = params.self_signed(&key).expect("a certificate");
        fs::write(directory.join(format!("{name}.pem")), own.pem()).expect("writable");
        Self {
            directory,
            issuer: Issuer::new(params, key),
        }
    }

    /// `NAME.pem` and `NAME.key` for this domain.
    fn issue(&self, name: &str, domain: &str) -> IdentityFiles {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![domain.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let files = IdentityFiles {
            certificate: self.directory.join(format!("{name}.pem")),
            key: self.directory.join(format!("{name}.key")),
        };
        fs::write(&files.certificate, certificate.pem()).expect("writable");
        fs::write(&files.key, key.serialize_pem()).expect("writable");
        fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).expect("ours");
        files
    }
}

fn trusting(ca: &Path, identity: Option<&IdentityFiles>) -> TlsClient {
    let settings = ClientSettings {
        identity: identity.cloned(),
        ca: Some(ca.to_owned()),
        remembered_peers: 4,
        ..ClientSettings::default()
    };
    TlsClient::load(settings, system_clock(), &mut Vec::new()).expect("good files")
}

/// A connection that can be written and read.
struct Secure(StreamOwned<ClientConnection, TcpStream>);

impl Secure {
    fn open(client: &TlsClient, domain: &str, server: SocketAddr) -> std::io::Result<Self> {
        let name = ServerName::try_from(domain.to_owned()).expect("a name");
        let session = ClientConnection::new(client.config(), name).expect("a session");
        let stream = TcpStream::connect(server)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut open = Self(StreamOwned::new(session, stream));
        while open.0.conn.is_handshaking() {
            open.0.conn.complete_io(&mut open.0.sock)?;
        }
        Ok(open)
    }

    /// Sends OPTIONS to the server itself; the answer's first line.
    fn options(&mut self, server: SocketAddr, branch: &str) -> std::io::Result<String> {
        let own = self.0.sock.local_addr()?;
        let request = format!(
            "OPTIONS sip:{server};transport=tls SIP/2.0\r\nVia: SIP/2.0/TLS {own};branch=z9hG4bK{branch}\r\n\
             Max-Forwards: 70\r\nTo: <sip:{server}>\r\nFrom: <sip:test@{own}>;tag=1\r\nCall-ID: {branch}\r\n\
             CSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n"
        );
        self.0.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
            let mut piece = [0; 2000];
            let length = self.0.read(&mut piece)?;
            if length == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            answer.extend_from_slice(&piece[..length]);
        }
        let text = String::from_utf8_lossy(&answer);
        Ok(text.lines().next().unwrap_or_default().to_owned())
    }

    fn shown(&self) -> Vec<u8> {
        let shown = self.0.conn.peer_certificates().expect("a certificate");
        shown.first().expect("its own").to_vec()
    }

    fn resumed(&self) -> bool {
        self.0.conn.handshake_kind() == Some(HandshakeKind::Resumed)
    }
}

fn configuration(tls: SocketAddr, admin: SocketAddr, more: &str) -> String {
    format!(
        "[server]\nworkers = 2\ndrain_s = 1\n[admin]\nlisten = \"{admin}\"\n[tls]\nca = \"ca.pem\"\n\
         [[listen]]\ntransport = \"tls\"\naddress = \"{tls}\"\n\
         tls = {{ certificate = \"own.pem\", key = \"own.key\"{more} }}\n"
    )
}

/// Asks for a reload; status and answer.
fn reload(admin: SocketAddr, headers: &str) -> (u16, serde_json::Value) {
    let (status, body) = ask(admin, "POST /api/v1/reload", headers);
    (status, serde_json::from_str(&body).expect("JSON"))
}

/// After one reload of each other kind.
fn refused_and_counted(dir: &Path, tls: SocketAddr, admin: SocketAddr, headers: &str) {
    // A wrong configuration is refused as a whole.
    fs::write(dir.join("t.toml"), "[server]\nworkrs = 3\n").expect("writable");
    let (status, body) = reload(admin, headers);
    assert_eq!((status, &body["result"]), (422, &"refused".into()), "{body}");
    assert!(
        body["errors"][0]
            .as_str()
            .is_some_and(|text| text.contains("t.toml:2: server.workrs")),
        "{body}"
    );
    let page = get(admin, "/metrics").1;
    for (result, count) in [("reloaded", 1), ("partly", 1), ("refused", 1)] {
        let line = format!("trapezoid_reloads_total{{result=\"{result}\"}} {count}");
        assert!(page.contains(&line), "{line} in {page}");
    }
    let labels = format!("listener=\"tls {tls}\",domain=\"example.com\"");
    let line = format!("trapezoid_tls_certificate_expiry_timestamp_seconds{{{labels}}} ");
    assert!(page.contains(&line), "{page}");
}

#[test]
fn certificates_change_under_living_connections() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = Place::claim();
    let (tls, admin) = (place.at(5061), place.at(8080));
    let authority = Authority::new(dir.path(), "ca");
    let own = authority.issue("own", "example.com");
    fs::write(dir.path().join("t.toml"), configuration(tls, admin, "")).expect("writable");
    let mut server = Server::start(dir.path());
    let ready = server.wait_for("is ready");
    assert!(ready.contains(&format!("tls {tls}")), "{ready}");
    let token = fs::read_to_string(dir.path().join("data/admin.token")).expect("made");
    let headers = format!("Authorization: Bearer {}\r\n", token.trim());

    let client = trusting(&dir.path().join("ca.pem"), None);
    let open = || Secure::open(&client, "example.com", tls).expect("a session");
    let mut living = open();
    assert_eq!(living.options(tls, "a").expect("an answer"), "SIP/2.0 200 OK");
    let old = living.shown();

    authority.issue("own", "example.com");
    let (status, body) = reload(admin, &headers);
    assert_eq!((status, &body["result"]), (200, &"reloaded".into()), "{body}");
    assert_eq!(body["files"].as_array().map(Vec::len), Some(4), "{body}");
    server.wait_for("configuration reloaded");
    // A client that resumes its session is shown no certificate.
    let fresh = trusting(&dir.path().join("ca.pem"), None);
    let mut second = Secure::open(&fresh, "example.com", tls).expect("a session");
    assert_ne!(second.shown(), old, "the new one");
    assert_eq!(second.options(tls, "b").expect("an answer"), "SIP/2.0 200 OK");
    assert_eq!(living.options(tls, "c").expect("still there"), "SIP/2.0 200 OK");

    // A key that does not fit keeps what was there; the answer and the log say which, and what would be right.
    let new = second.shown();
    fs::copy(dir.path().join("ca.pem"), &own.certificate).expect("writable");
    let (status, body) = reload(admin, &headers);
    assert_eq!((status, &body["result"]), (422, &"partly".into()), "{body}");
    let error = body["errors"][0].as_str().expect("an error");
    assert!(
        error.starts_with("t.toml:11: listen[0].tls: ")
            && error.contains("own.key: not the private key of the first certificate in")
            && error.ends_with("; name the key that the certificate was issued for"),
        "{error}"
    );
    let line = server.wait_for("what was read before stays");
    assert!(line.contains("own.key"), "{line}");
    let fresh = trusting(&dir.path().join("ca.pem"), None);
    let third = Secure::open(&fresh, "example.com", tls).expect("a session");
    assert_eq!(third.shown(), new, "the old one");
    assert_eq!(living.options(tls, "d").expect("still there"), "SIP/2.0 200 OK");

    refused_and_counted(dir.path(), tls, admin, &headers);
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn sessions_are_resumed_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = Place::claim();
    let (tls, admin) = (place.at(5061), place.at(8080));
    Authority::new(dir.path(), "ca").issue("own", "example.com");
    fs::write(dir.path().join("t.toml"), configuration(tls, admin, "")).expect("writable");
    let client = trusting(&dir.path().join("ca.pem"), None);
    let mut resumed = Vec::new();
    for start in 0..2 {
        let mut server = Server::start(dir.path());
        server.wait_for("is ready");
        let mut open = Secure::open(&client, "example.com", tls).expect("a session");
        // The tickets come with the first data.
        let answer = open.options(tls, &format!("r{start}"));
        assert_eq!(answer.expect("an answer"), "SIP/2.0 200 OK");
        resumed.push(open.resumed());
        server.signal("TERM");
        assert_eq!(server.exit_code(), Some(0));
    }
    assert_eq!(resumed, [false, true]);
    let mode = fs::metadata(dir.path().join("data/tickets.key"))
        .expect("made")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn where_a_certificate_is_required_only_a_good_one_is_let_in() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = Place::claim();
    let (tls, admin) = (place.at(5061), place.at(8080));
    let (authority, other) = (
        Authority::new(dir.path(), "ca"),
        Authority::new(dir.path(), "other"),
    );
    authority.issue("own", "example.com");
    let known = authority.issue("known", "peer.example.net");
    let unknown = other.issue("unknown", "peer.example.net");
    let more = ", client_auth = \"required\", client_ca = \"ca.pem\"";
    fs::write(dir.path().join("t.toml"), configuration(tls, admin, more)).expect("writable");
    let mut server = Server::start(dir.path());
    server.wait_for("is ready");
    let ca = dir.path().join("ca.pem");
    let asked = |identity: Option<&IdentityFiles>, branch: &str| {
        let client = Arc::new(trusting(&ca, identity));
        Secure::open(&client, "example.com", tls).and_then(|mut open| open.options(tls, branch))
    };
    assert_eq!(asked(Some(&known), "k").expect("let in"), "SIP/2.0 200 OK");
    assert!(asked(Some(&unknown), "u").is_err());
    assert!(asked(None, "n").is_err());
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_bad_file_is_an_error_of_check_and_at_the_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = Place::claim();
    let (tls, admin) = (place.at(5061), place.at(8080));
    let authority = Authority::new(dir.path(), "ca");
    let own = authority.issue("own", "example.com");
    fs::write(dir.path().join("t.toml"), configuration(tls, admin, "")).expect("writable");
    assert_eq!(
        check(dir.path(), "t.toml"),
        (
            0,
            "t.toml: valid; 1 listener, 1 domain, 0 routes, 0 groups\n".to_owned()
        )
    );
    assert!(!dir.path().join("data").exists(), "nothing was made");

    fs::write(&own.key, "").expect("writable");
    let expected = "t.toml:11: listen[0].tls: own.key: no private key; expected `-----BEGIN PRIVATE KEY-----` \
                    (or RSA, or EC) without a password\n";
    assert_eq!(check(dir.path(), "t.toml"), (2, expected.to_owned()));
    let mut server = Server::start(dir.path());
    server.wait_for(expected.trim_end());
    assert_eq!(server.exit_code(), Some(2));
}

/// The configurations that the documentation shows, with files of the names that they give.
#[test]
fn the_examples_are_valid() {
    let dir = tempfile::tempdir().expect("a directory");
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples");
    let authority = Authority::new(dir.path(), "partners-ca");
    let carrier = Authority::new(dir.path(), "carrier-ca");
    authority.issue("example.com", "example.com");
    authority.issue("example.net", "example.net");
    carrier.issue("carrier-client", "example.com");
    let key = sip_net::tls::new_ticket_key(0).expect("randomness");
    fs::write(dir.path().join("tickets.key"), key).expect("writable");
    fs::set_permissions(dir.path().join("tickets.key"), fs::Permissions::from_mode(0o600)).expect("ours");
    let mut seen = 0;
    for entry in fs::read_dir(examples).expect("examples") {
        let path = entry.expect("an example").path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name")
            .to_owned();
        fs::copy(&path, dir.path().join(&name)).expect("writable");
        let (code, said) = check(dir.path(), &name);
        // Where the system has no authorities, a warning goes before.
        assert!(
            code == 0 && said.contains(&format!("{name}: valid;")),
            "{name}: {said}"
        );
        seen += 1;
    }
    assert!(seen >= 3);
}
