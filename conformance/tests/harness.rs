//! Our own scripted clients, tried at a server of another make before they judge ours.

use conformance::{
    Authority, Client, DOMAIN, Identity, Kamailio, Link, Name, SClient, Scene, Secured, TlsPeer, Transport,
};

/// A Kamailio that listens for every transport.
fn kamailio(scene: &Scene, authority: &Authority, identity: &Identity, mutual: bool) -> Option<Kamailio> {
    let listen = Transport::ALL.map(|transport| (transport, scene.at(transport.port())));
    let secured = Secured {
        identity,
        authority,
        mutual,
    };
    Kamailio::start_on(scene, &listen, "sip:nobody.invalid", Some(secured))
}

fn open(scene: &Scene, transport: Transport, tls: &TlsPeer) -> std::io::Result<Client> {
    Link::to_server(scene, transport, tls).map(Client::over)
}

/// OPTIONS is answered 200.
#[track_caller]
fn expect_answer(client: &mut Client, scene: &Scene) {
    let name = client.transport().via();
    let at = scene.at(client.transport().port());
    let answer = client.expect_options(&format!("sip:{at}"));
    assert!(
        answer.header("via").contains(&format!("SIP/2.0/{name} ")),
        "{answer:?}"
    );
}

#[test]
fn a_client_speaks_every_transport() {
    let scene = Scene::new();
    let authority = Authority::new(&scene, "authority");
    let identity = authority.issue("kamailio", &[Name::Dns("neighbour.example.com")]);
    let Some(_kamailio) = kamailio(&scene, &authority, &identity, false) else {
        return;
    };
    let tls = TlsPeer::trusting(&authority, "neighbour.example.com");
    for transport in Transport::ALL {
        let mut client = open(&scene, transport, &tls).expect("connecting");
        expect_answer(&mut client, &scene);
        expect_answer(&mut client, &scene);
    }
}

#[test]
fn a_client_refuses_strangers() {
    let scene = Scene::new();
    let [authority, unknown] = ["authority", "unknown"].map(|name| Authority::new(&scene, name));
    let identity = authority.issue_expired("kamailio", &[Name::Dns("neighbour.example.com")]);
    let other = Scene::new();
    let Some(_kamailio) = kamailio(&scene, &authority, &identity, false) else {
        return;
    };
    let good = authority.issue(
        "good",
        &[Name::Dns("neighbour.example.com"), Name::Ip(other.ip())],
    );
    let _other = kamailio(&other, &authority, &good, false);
    for transport in [Transport::Tls, Transport::Wss] {
        let says = |scene: &Scene, tls: &TlsPeer| match open(scene, transport, tls) {
            Ok(_) => "nothing".to_owned(),
            Err(error) => error.to_string(),
        };
        let expired = says(&scene, &TlsPeer::trusting(&authority, "neighbour.example.com"));
        assert!(expired.contains("expired"), "{expired}");
        let name = says(&other, &TlsPeer::trusting(&authority, "example.com"));
        assert!(name.contains("not valid for name"), "{name}");
        let issuer = says(&other, &TlsPeer::trusting(&unknown, "neighbour.example.com"));
        assert!(issuer.contains("UnknownIssuer"), "{issuer}");
        let address = TlsPeer::trusting(&authority, &other.ip().to_string());
        expect_answer(
            &mut open(&other, transport, &address).expect("connecting"),
            &other,
        );
    }
}

#[test]
fn a_client_shows_its_certificate() {
    let scene = Scene::new();
    let [authority, unknown] = ["authority", "unknown"].map(|name| Authority::new(&scene, name));
    let names = [Name::Dns("neighbour.example.com"), Name::Uri("sip:example.com")];
    let identity = authority.issue("kamailio", &names);
    let Some(_kamailio) = kamailio(&scene, &authority, &identity, true) else {
        return;
    };
    let ours = authority.issue("ours", &[Name::Dns("client.example.com")]);
    let theirs = unknown.issue("theirs", &[Name::Dns("client.example.com")]);
    let present = |identity| TlsPeer::presenting(&authority, "neighbour.example.com", identity);
    let mut client = open(&scene, Transport::Tls, &present(&ours)).expect("connecting");
    expect_answer(&mut client, &scene);
    for stranger in [
        present(&theirs),
        TlsPeer::trusting(&authority, "neighbour.example.com"),
    ] {
        assert!(is_refused(&scene, &stranger));
    }
}

/// With TLS 1.3 a client learns only by its first reading that it was refused.
fn is_refused(scene: &Scene, tls: &TlsPeer) -> bool {
    match Link::to_server(scene, Transport::Tls, tls) {
        Ok(mut link) => link.read() == conformance::Reading::Closed,
        Err(_) => true,
    }
}

#[test]
fn openssl_is_a_client_too() {
    let scene = Scene::new();
    let [authority, unknown] = ["authority", "unknown"].map(|name| Authority::new(&scene, name));
    let identity = authority.issue("kamailio", &[Name::Dns(DOMAIN)]);
    let Some(_kamailio) = kamailio(&scene, &authority, &identity, true) else {
        return;
    };
    let ours = authority.issue("ours", &[Name::Dns("client.example.com")]);
    for (option, version) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        let Some(client) = SClient::new(&scene, &authority) else {
            return;
        };
        client.clone().with(&[option]).run_refused();
        let said = client.with(&[option]).presenting(&ours).run();
        assert!(said.contains(&format!("New, {version}")), "{said}");
        let stranger = SClient::new(&scene, &unknown).expect("as above");
        let said = stranger.with(&[option]).presenting(&ours).run_refused();
        assert!(said.contains("certificate verify failed"), "{said}");
    }
}
