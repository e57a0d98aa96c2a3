//! Sessions of TLS that a client of another make resumes: at the same server, at another node that
//! has the same keys for tickets, and after a restart; and what is not resumed (RFC 5077,
//! RFC 8446 §2.2).

use conformance::{
    Authority, Config, DOMAIN, Identity, Name, SClient, Scene, Server, Transport, make_ticket_keys,
};

/// The versions of TLS, as OpenSSL prints and takes them.
const VERSIONS: [(&str, &str); 2] = [("TLSv1.2", "-tls1_2"), ("TLSv1.3", "-tls1_3")];

/// An authority, a certificate, and a file of keys.
struct Cluster {
    home: Scene,
    authority: Authority,
    identity: Identity,
}

impl Cluster {
    fn new() -> Option<Self> {
        let home = Scene::new();
        let authority = Authority::new(&home, "authority");
        let identity = authority.issue("server", &[Name::Dns(DOMAIN)]);
        make_ticket_keys(&home.path("tickets.key"))?;
        Some(Self {
            home,
            authority,
            identity,
        })
    }

    /// A node with these further keys of `tls`.
    fn node(&self, scene: &Scene, more: &str) -> Server {
        let keys = self.home.path("tickets.key");
        let tls = format!("ticket_keys = \"{}\"{more}", keys.display());
        let config = Config::new().listen(scene, Transport::Tls, &self.identity, &tls);
        Server::start(scene, &config)
    }

    fn client<'a>(&self, scene: &'a Scene) -> SClient<'a> {
        SClient::new(scene, &self.authority).expect("OpenSSL made the keys")
    }

    fn session(&self, version: &str) -> String {
        self.home
            .path(&format!("{version}.session"))
            .display()
            .to_string()
    }

    /// Connects once for each version, and keeps the sessions.
    fn begin(&self, scene: &Scene) {
        for (version, option) in VERSIONS {
            let client = self.client(scene).with(&[option, "-sess_out"]);
            let said = client.with(&[&self.session(version)]).run();
            assert!(said.contains(&format!("New, {version}")), "{said}");
        }
    }

    /// Connects with each session again: all are resumed, or none.
    fn go_on(&self, scene: &Scene, resumed: bool) {
        for (version, option) in VERSIONS {
            let client = self.client(scene).with(&[option, "-sess_in"]);
            let said = client.with(&[&self.session(version)]).run();
            let word = if resumed { "Reused" } else { "New" };
            assert!(said.contains(&format!("{word}, {version}")), "{said}");
        }
    }
}

#[test]
fn openssl_resumes_at_every_reconnection() {
    let Some(cluster) = Cluster::new() else { return };
    let scene = Scene::new();
    let _server = cluster.node(&scene, "");
    let said = cluster.client(&scene).with(&["-tls1_2", "-reconnect"]).run();
    assert_eq!(said.matches("New, TLSv1.2").count(), 1, "{said}");
    assert_eq!(said.matches("Reused, TLSv1.2").count(), 5, "{said}");
    cluster.begin(&scene);
    cluster.go_on(&scene, true);
}

#[test]
fn openssl_resumes_without_a_file_of_keys() {
    let Some(cluster) = Cluster::new() else { return };
    let scene = Scene::new();
    let config = Config::new().listen(&scene, Transport::Tls, &cluster.identity, "");
    let _server = Server::start(&scene, &config);
    cluster.begin(&scene);
    cluster.go_on(&scene, true);
}

#[test]
fn openssl_resumes_at_another_node() {
    let Some(cluster) = Cluster::new() else { return };
    let [first, second] = [Scene::new(), Scene::new()];
    let _nodes = [cluster.node(&first, ""), cluster.node(&second, "")];
    cluster.begin(&first);
    cluster.go_on(&second, true);
}

#[test]
fn openssl_resumes_after_a_restart() {
    let Some(cluster) = Cluster::new() else { return };
    let scene = Scene::new();
    let server = cluster.node(&scene, "");
    cluster.begin(&scene);
    server.kill();
    let _server = Server::start_again(&scene);
    cluster.go_on(&scene, true);
}

/// A stranger's ticket means a full handshake, and no failure.
#[test]
fn other_keys_mean_a_full_handshake() {
    let Some(cluster) = Cluster::new() else { return };
    let [first, second] = [Scene::new(), Scene::new()];
    let _first = cluster.node(&first, "");
    cluster.begin(&first);
    make_ticket_keys(&cluster.home.path("tickets.key")).expect("as above");
    let _second = cluster.node(&second, "");
    cluster.go_on(&second, false);
}

/// A session keeps the certificate that was shown when it began; without one there is no session.
#[test]
fn openssl_resumes_what_it_began_with_a_certificate() {
    let Some(cluster) = Cluster::new() else { return };
    let scene = Scene::new();
    let ca = cluster.authority.file();
    let more = format!(", client_auth = \"required\", client_ca = \"{}\"", ca.display());
    let _server = cluster.node(&scene, &more);
    let ours = cluster
        .authority
        .issue("client", &[Name::Dns("client.example.com")]);
    for (version, option) in VERSIONS {
        let session = cluster.session(version);
        let client = || cluster.client(&scene).with(&[option]).presenting(&ours);
        let said = client().with(&["-sess_out", &session]).run();
        assert!(said.contains(&format!("New, {version}")), "{said}");
        let said = client().with(&["-sess_in", &session]).run();
        assert!(said.contains(&format!("Reused, {version}")), "{said}");
        cluster.client(&scene).with(&[option]).run_refused();
    }
}
