//! TLS at the real server: the clients it serves, and certificates that change while connections stand.

use conformance::{
    Authority, Client, Config, DOMAIN, Identity, Link, Name, Scene, Server, TlsPeer, Transport,
};
use serde_json::json;

const SECURED: [Transport; 2] = [Transport::Tls, Transport::Wss];

/// OPTIONS is answered 200.
fn expect_answer(client: &mut Client) {
    client.expect_options(&format!("sip:{DOMAIN}"));
}

/// With TLS 1.3 a client learns only by its first reading that it was refused.
fn is_served(scene: &Scene, transport: Transport, tls: &TlsPeer) -> bool {
    let Ok(link) = Link::to_server(scene, transport, tls) else {
        return false;
    };
    let answer = Client::over(link).options_unless_closed(&format!("sip:{DOMAIN}"));
    answer.is_some()
}

/// `client_auth`: which clients are served.
fn served(mode: &str) -> [bool; 4] {
    let scene = Scene::new();
    let [authority, unknown] = ["authority", "unknown"].map(|name| Authority::new(&scene, name));
    let names = [Name::Dns("client.example.com")];
    let asks = format!(
        "client_auth = \"{mode}\", client_ca = \"{}\"",
        authority.file().display()
    );
    let keys = if mode == "none" { "" } else { &asks };
    let server = authority.issue("server", &[Name::Dns(DOMAIN)]);
    let mut config = Config::new();
    for transport in SECURED {
        config = config.listen(&scene, transport, &server, keys);
    }
    let _server = Server::start(&scene, &config);
    let good = authority.issue("good", &names);
    let expired = authority.issue_expired("expired", &names);
    let foreign = unknown.issue("foreign", &names);
    let present = |identity: &Identity| TlsPeer::presenting(&authority, DOMAIN, identity);
    let clients = [
        TlsPeer::trusting(&authority, DOMAIN),
        present(&good),
        present(&expired),
        present(&foreign),
    ];
    clients.map(|tls| {
        let [by_tls, by_websocket] = SECURED.map(|transport| is_served(&scene, transport, &tls));
        assert_eq!(by_tls, by_websocket);
        by_tls
    })
}

#[test]
fn where_certificates_are_required_only_good_ones_are_served() {
    assert_eq!(served("required"), [false, true, false, false]);
}

/// None will do; a bad one will not.
#[test]
fn where_certificates_are_optional_bad_ones_are_refused() {
    assert_eq!(served("optional"), [true, true, false, false]);
}

/// A client that may show one is not asked.
#[test]
fn where_certificates_are_not_asked_for_all_are_served() {
    assert_eq!(served("none"), [true, true, true, true]);
}

/// New connections see the new certificate; those that stand go on; a bad file changes nothing.
#[test]
fn certificates_are_read_again() {
    let scene = Scene::new();
    let [first, second] = ["first", "second"].map(|name| Authority::new(&scene, name));
    let names = [Name::Dns(DOMAIN)];
    let mut config = Config::new();
    let shown = first.issue("server", &names);
    for transport in SECURED {
        config = config.listen(&scene, transport, &shown, "");
    }
    let server = Server::start(&scene, &config);
    let [old, new] = [&first, &second].map(|authority| TlsPeer::trusting(authority, DOMAIN));
    let mut standing = SECURED.map(|transport| {
        let link = Link::to_server(&scene, transport, &old).expect("connecting");
        Client::over(link)
    });
    let sees = |wanted: &TlsPeer, other: &TlsPeer| {
        for transport in SECURED {
            let mut client = Client::over(Link::to_server(&scene, transport, wanted).expect("connecting"));
            expect_answer(&mut client);
            assert!(
                Link::to_server(&scene, transport, other).is_err(),
                "both certificates"
            );
        }
    };
    sees(&old, &new);
    // The same files, from another authority.
    second.issue("server", &names);
    let (status, said) = server.reload();
    assert_eq!((status, &said["result"]), (200, &json!("reloaded")), "{said}");
    sees(&new, &old);
    let key = std::fs::read(&shown.key).expect("the key");
    std::fs::write(&shown.key, "no key at all").expect("writing");
    let (status, said) = server.reload();
    assert_eq!((status, &said["result"]), (422, &json!("partly")), "{said}");
    assert!(said["errors"][0].to_string().contains("server.key"), "{said}");
    sees(&new, &old);
    std::fs::write(&shown.key, key).expect("writing");
    let (status, said) = server.reload();
    assert_eq!((status, &said["errors"]), (200, &json!([])), "{said}");
    sees(&new, &old);
    standing.iter_mut().for_each(expect_answer);
}

/// One listener, several domains: a client that asks for a name sees its certificate (RFC 6066 §3).
#[test]
fn each_domain_has_its_certificate() {
    let scene = Scene::new();
    let authority = Authority::new(&scene, "authority");
    let [main, other] = [DOMAIN, "other.example.net"].map(|name| {
        let file = name.split('.').next().unwrap_or_default();
        authority.issue(file, &[Name::Dns(name)])
    });
    let keys = format!("more = [ {{ {} }} ]", other.toml());
    let config = Config::new().listen(&scene, Transport::Tls, &main, &keys);
    let _server = Server::start(&scene, &config);
    for name in [DOMAIN, "other.example.net"] {
        let tls = TlsPeer::trusting(&authority, name);
        let link = Link::to_server(&scene, Transport::Tls, &tls).expect("connecting");
        expect_answer(&mut Client::over(link));
    }
    // A client that asks for neither gets the first.
    let tls = TlsPeer::trusting(&authority, "third.example.net");
    let refused = Link::to_server(&scene, Transport::Tls, &tls)
        .err()
        .map(|error| error.to_string());
    assert!(refused.is_some_and(|said| said.contains(DOMAIN)));
}
