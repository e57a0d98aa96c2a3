//! Tests of resumption: at another node, after a restart, and refused if something has changed.

use super::*;

/// A listener of a separate node, which reads its files itself.
struct Site {
    authority: Authority,
    identity: IdentityFiles,
    clock: Arc<Clock>,
}

impl Site {
    fn new() -> Self {
        let authority = Authority::new("ca");
        let identity = authority.issue("server", Kind::P256, |params| {
            params.subject_alt_names = vec![dns("example.com"), dns("example.net")];
        });
        let site = Self {
            authority,
            identity,
            clock: Clock::today(),
        };
        create_ticket_key_file(&site.keys(), TODAY).unwrap();
        site
    }

    fn keys(&self) -> PathBuf {
        self.authority.path("tickets.key")
    }

    fn settings(&self) -> ServerSettings {
        ServerSettings {
            name: "tls:5061".to_owned(),
            identities: vec![self.identity.clone()],
            ..ServerSettings::default()
        }
    }

    fn load_keys(&self) -> Arc<TicketKeys> {
        let clock = Arc::clone(&self.clock) as Arc<_>;
        let keys = TicketKeys::load(&self.keys(), TicketSettings::default(), clock, &mut Vec::new());
        Arc::new(keys.unwrap())
    }

    /// A node that starts now.
    fn node(&self) -> TlsServer {
        self.node_with(self.settings())
    }

    fn node_with(&self, settings: ServerSettings) -> TlsServer {
        server_with(settings, Some(&self.load_keys()), &self.clock)
    }

    fn client(&self, versions: Versions) -> TlsClient {
        self.client_with(versions, None)
    }

    fn client_with(&self, versions: Versions, identity: Option<&IdentityFiles>) -> TlsClient {
        let settings = ClientSettings {
            identity: identity.cloned(),
            versions,
            ..trusting(&self.authority.file)
        };
        client_with(settings, &self.clock)
    }
}

const BOTH: [Versions; 2] = [Versions::Tls12, Versions::Tls13];

#[test]
fn a_session_goes_on_here_at_another_node_and_after_a_restart() {
    let site = Site::new();
    for versions in BOTH {
        let client = site.client(versions);
        let node = site.node();
        assert!(!connect(&client, "example.com", &node));
        assert!(connect(&client, "example.com", &node));
        drop(node);
        for _ in 0..3 {
            assert!(connect(&client, "example.com", &site.node()), "{versions:?}");
        }
        // Under another name nothing is resumed.
        assert!(!connect(&client, "example.net", &site.node()));
    }
}

#[test]
fn without_keys_or_memory_no_session_goes_on() {
    let site = Site::new();
    for versions in BOTH {
        let client = site.client(versions);
        let node = server_with(site.settings(), None, &site.clock);
        for _ in 0..2 {
            assert!(!connect(&client, "example.com", &node));
        }
        let settings = ClientSettings {
            versions,
            remembered_peers: 0,
            ..trusting(&site.authority.file)
        };
        let client = client_with(settings, &site.clock);
        for _ in 0..2 {
            assert!(!connect(&client, "example.com", &site.node()));
        }
    }
}

#[test]
fn keys_of_one_process_serve_that_process() {
    let site = Site::new();
    let own = || {
        let clock = Arc::clone(&site.clock) as Arc<_>;
        let keys = TicketKeys::generate(TicketSettings::default(), clock).unwrap();
        server_with(site.settings(), Some(&Arc::new(keys)), &site.clock)
    };
    for versions in BOTH {
        let client = site.client(versions);
        let node = own();
        assert!(!connect(&client, "example.com", &node));
        assert!(connect(&client, "example.com", &node));
        assert!(!connect(&client, "example.com", &own()));
    }
}

#[test]
fn a_key_that_is_no_longer_the_first_still_decrypts_and_a_removed_one_does_not() {
    let site = Site::new();
    let old = fs::read_to_string(site.keys()).unwrap();
    let new = new_ticket_key(TODAY + 60).unwrap();
    for versions in BOTH {
        fs::write(site.keys(), &old).unwrap();
        let keys = site.load_keys();
        let node = server_with(site.settings(), Some(&keys), &site.clock);
        let client = site.client(versions);
        assert!(!connect(&client, "example.com", &node));

        fs::write(site.keys(), format!("# the next\n{new}\n{old}")).unwrap();
        keys.reload().unwrap();
        assert!(connect(&client, "example.com", &node));
        // The new key's time has not come: nodes without it can read a ticket made now.
        fs::write(site.keys(), &old).unwrap();
        assert!(connect(&client, "example.com", &site.node()));

        fs::write(site.keys(), &new).unwrap();
        keys.reload().unwrap();
        assert!(!connect(&client, "example.com", &node));
        assert!(connect(&client, "example.com", &node));
    }
    // The new key's time has come, so it encrypts.
    fs::write(site.keys(), format!("{old}{new}")).unwrap();
    site.clock.advance(61);
    let client = site.client(Versions::Tls13);
    assert!(!connect(&client, "example.com", &site.node()));
    fs::write(site.keys(), &new).unwrap();
    assert!(connect(&client, "example.com", &site.node()));
}

#[test]
fn keys_change_by_time_and_nodes_agree() {
    let site = Site::new();
    let node = site.node();
    let client = site.client(Versions::Tls12);
    assert!(!connect(&client, "example.com", &node));
    // Twelve hours later another period has begun; this ticket is a day old at the end.
    site.clock.advance(43_200);
    assert!(connect(&client, "example.com", &node));
    assert!(connect(&client, "example.com", &site.node()));
    // A node with a clock a period ahead makes a ticket that the others can read.
    site.clock.advance(43_200);
    let client = site.client(Versions::Tls13);
    assert!(!connect(&client, "example.com", &site.node()));
    site.clock.0.store(TODAY + 43_200, Ordering::Relaxed);
    assert!(connect(&client, "example.com", &node));
}

#[test]
fn a_ticket_ends_with_its_lifetime() {
    let site = Site::new();
    let node = site.node();
    for (later, resumed) in [(86_399, true), (86_400, false)] {
        site.clock.0.store(TODAY, Ordering::Relaxed);
        let keys = site.load_keys();
        let ticketer = super::super::tickets::Ticketer::new(keys, [0; 32]);
        use rustls::server::ProducesTickets;
        // A state of TLS 1.2 without name or certificates.
        let state = [[0, 3, 3, 0xc0, 0x2f, 1, 9, 1, 0, 0].as_slice(), &[0; 14]].concat();
        let ticket = ticketer.encrypt(&state).unwrap();
        site.clock.advance(later);
        assert_eq!(ticketer.decrypt(&ticket), resumed.then_some(state), "{later}");
    }
    drop(node);
}

#[test]
fn tickets_are_bound_to_listener_and_authorities() {
    let site = Site::new();
    let peer = site.authority.for_domain("peer.example.net", Kind::P256);
    let more = Authority::new("more");
    let ca = site.authority.path("clients.pem");
    let original = fs::read_to_string(&site.authority.file).unwrap();
    let extended = original.clone() + &fs::read_to_string(&more.file).unwrap();
    let asking = |auth| ServerSettings {
        client_auth: auth,
        client_ca: Some(ca.clone()),
        ..site.settings()
    };
    for versions in BOTH {
        fs::write(&ca, &original).unwrap();
        let client = site.client_with(versions, Some(&peer));
        let node = site.node_with(asking(ClientAuth::Required));
        assert!(!connect(&client, "example.com", &node));
        let mut pair = Pair::new(&client, "example.com", &node);
        pair.good();
        // The client's identity is in the ticket.
        assert!(pair.resumed() && pair.server.peer_identities().contains("peer.example.net"));

        let other = ServerSettings {
            name: "tls:5062".to_owned(),
            ..asking(ClientAuth::Required)
        };
        assert!(!connect(&client, "example.com", &site.node_with(other)));
        let optional = asking(ClientAuth::Optional);
        assert!(!connect(&client, "example.com", &site.node_with(optional)));
        // Under other authorities: a reload voids older tickets.
        assert!(!connect(&client, "example.com", &node));
        assert!(connect(&client, "example.com", &node));
        fs::write(&ca, &extended).unwrap();
        node.reload().unwrap();
        assert!(!connect(&client, "example.com", &node));
        // The same authorities make no difference.
        node.reload().unwrap();
        assert!(connect(&client, "example.com", &node));
    }
}

#[test]
fn a_client_whose_certificate_has_expired_is_not_resumed() {
    let site = Site::new();
    let peer = site.authority.issue("peer", Kind::P256, |params| {
        params.subject_alt_names = vec![dns("peer.example.net")];
        params.not_after = rcgen::date_time_ymd(2026, 11, 22);
    });
    let settings = || ServerSettings {
        client_auth: ClientAuth::Required,
        client_ca: Some(site.authority.file.clone()),
        ..site.settings()
    };
    let day = rcgen::date_time_ymd(2026, 11, 22).unix_timestamp() as u64;
    for versions in BOTH {
        site.clock.0.store(day - 100, Ordering::Relaxed);
        let client = site.client_with(versions, Some(&peer));
        let node = site.node_with(settings());
        assert!(!connect(&client, "example.com", &node));
        assert!(connect(&client, "example.com", &node));
        site.clock.advance(101);
        let mut pair = Pair::new(&client, "example.com", &node);
        let (_, of_server) = pair.run();
        assert!(
            matches!(of_server, Err(TlsError::PeerCertificate(_))),
            "{of_server:?}"
        );
    }
}

#[test]
fn a_server_whose_certificate_has_expired_is_not_gone_on_with() {
    let site = Site::new();
    let identity = site.authority.issue("short", Kind::P256, |params| {
        params.subject_alt_names = vec![dns("example.com")];
        params.not_after = rcgen::date_time_ymd(2026, 11, 22);
    });
    let day = rcgen::date_time_ymd(2026, 11, 22).unix_timestamp() as u64;
    for versions in BOTH {
        site.clock.0.store(day - 100, Ordering::Relaxed);
        let node = site.node_with(ServerSettings {
            identities: vec![identity.clone()],
            ..site.settings()
        });
        let client = site.client(versions);
        assert!(!connect(&client, "example.com", &node));
        assert!(connect(&client, "example.com", &node));
        site.clock.advance(101);
        let mut pair = Pair::new(&client, "example.com", &node);
        assert_eq!(pair.run().0, Err(TlsError::ResumedExpired));
        assert!(pair.client.has_ended() && pair.client.write(b"x", &mut Vec::new()).is_err());
        // Nothing is left to resume, so the certificate itself is refused.
        let mut pair = Pair::new(&client, "example.com", &node);
        let (of_client, _) = pair.run();
        assert!(
            matches!(of_client, Err(TlsError::PeerCertificate(_))),
            "{of_client:?}"
        );
    }
}

#[test]
fn changed_tickets_are_not_accepted() {
    use rustls::server::ProducesTickets;

    let site = Site::new();
    let ticketer = |context| super::super::tickets::Ticketer::new(site.load_keys(), context);
    let state = [[0, 3, 3, 0xc0, 0x2f, 1, 9, 1, 0, 0].as_slice(), &[0; 14]].concat();
    let ticket = ticketer([1; 32]).encrypt(&state).unwrap();
    assert_ne!(ticketer([1; 32]).encrypt(&state).unwrap(), ticket);
    assert_eq!(ticketer([1; 32]).decrypt(&ticket), Some(state));
    assert_eq!(ticketer([2; 32]).decrypt(&ticket), None);
    for index in 0..ticket.len() {
        let mut changed = ticket.clone();
        changed[index] ^= 1;
        assert_eq!(ticketer([1; 32]).decrypt(&changed), None, "{index}");
        assert_eq!(ticketer([1; 32]).decrypt(&ticket[..index]), None, "{index}");
    }
    // A state that is not understood is not put into a ticket.
    for bad in [b"".as_slice(), &[2; 40], &[0, 3, 3, 0, 0, 1, 9, 1, 1, 0, 0, 9]] {
        assert_eq!(ticketer([1; 32]).encrypt(bad), None);
    }
}

#[test]
fn a_bad_file_of_keys_keeps_the_old_ones_and_says_so() {
    let site = Site::new();
    let keys = site.load_keys();
    let node = server_with(site.settings(), Some(&keys), &site.clock);
    let client = site.client(Versions::Tls13);
    assert!(!connect(&client, "example.com", &node));
    let line = || new_ticket_key(7).unwrap();
    let twice = line().repeat(2);
    let many: String = (0..9).map(|_| line()).collect();
    for (text, place, reason) in [
        ("", 1, "no key"),
        ("# nothing\n", 1, "no key"),
        ("\n1795219200\n", 2, "two words"),
        ("soon QUJD\n", 1, "number of seconds"),
        ("1 QUJD\n", 1, "48 bytes"),
        ("1 ???\n", 1, "base64"),
        (twice.as_str(), 2, "twice"),
        (many.as_str(), 9, "more than 8"),
    ] {
        fs::write(site.keys(), text).unwrap();
        let error = keys.reload().unwrap_err().to_string();
        let at = format!("tickets.key:{place}:");
        assert!(error.contains(&at) && error.contains(reason), "{error}");
        assert!(connect(&client, "example.com", &node));
    }
    fs::remove_file(site.keys()).unwrap();
    assert!(matches!(keys.reload(), Err(TlsFileError::Read { .. })));
    create_ticket_key_file(&site.keys(), 1).unwrap();
    assert!(create_ticket_key_file(&site.keys(), 1).is_err());
    keys.reload().unwrap();
    assert!(!connect(&client, "example.com", &node));
}
