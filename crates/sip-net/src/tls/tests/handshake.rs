//! Handshakes, data, endings, and how the stream is cut.

use rustls::{AlertDescription, CertificateError, ProtocolVersion};

use super::*;

fn versions() -> [(Versions, ProtocolVersion); 2] {
    [
        (Versions::Tls12, ProtocolVersion::TLSv1_2),
        (Versions::Tls13, ProtocolVersion::TLSv1_3),
    ]
}

fn speaking(authority: &Authority, versions: Versions) -> TlsClient {
    let settings = ClientSettings {
        versions,
        ..trusting(&authority.file)
    };
    client_with(settings, &Clock::today())
}

#[test]
fn both_versions_and_kinds_of_keys_carry_data_both_ways() {
    let authority = Authority::new("ca");
    for kind in [Kind::P256, Kind::Rsa] {
        let server = server(&[&authority.for_domain("example.com", kind)]);
        for (spoken, version) in versions() {
            let mut pair = Pair::new(&speaking(&authority, spoken), "example.com", &server);
            assert!(pair.client.is_handshaking());
            assert_eq!(
                pair.client.write(b"early", &mut pair.to_server),
                Err(TlsError::NotEstablished)
            );
            pair.good();
            assert_eq!(pair.server.agreed().version, Some(version), "{kind:?}");
            assert!(!pair.resumed());
            let long = vec![7; 100_000];
            pair.client
                .write(b"from the client", &mut pair.to_server)
                .unwrap();
            pair.client.write(&long, &mut pair.to_server).unwrap();
            pair.server
                .write(b"from the server", &mut pair.to_client)
                .unwrap();
            pair.good();
            assert_eq!(pair.at_client, b"from the server");
            assert_eq!(pair.at_server, [b"from the client".as_slice(), &long].concat());
            assert!(pair.client.peer_identities().contains("example.com"));
            assert!(pair.server.peer_identities().is_empty());
            assert_eq!((pair.client.buffered(), pair.server.buffered()), (0, 0));
        }
    }
}

#[test]
fn any_cut_of_the_stream_behaves_alike() {
    let authority = Authority::new("ca");
    let server = server(&[&authority.for_domain("example.com", Kind::P256)]);
    for (spoken, _) in versions() {
        let client = speaking(&authority, spoken);
        for piece in [1, 2, 3, 5, 6, 7, 64, 1000, 4096] {
            let mut pair = Pair::new(&client, "example.com", &server);
            pair.piece = piece;
            pair.good();
            for round in 0..3 {
                pair.client.write(&[round; 20_000], &mut pair.to_server).unwrap();
                pair.client.write(&[], &mut pair.to_server).unwrap();
                pair.server.write(&[round; 77], &mut pair.to_client).unwrap();
            }
            pair.good();
            assert_eq!((pair.at_server.len(), pair.at_client.len()), (60_000, 231));
            // Bytes before a cut are kept; nothing is kept at the end of a record.
            assert_eq!((pair.client.buffered(), pair.server.buffered()), (0, 0));
        }
    }
}

#[test]
fn a_write_amid_a_record_of_the_peer_harms_neither() {
    let authority = Authority::new("ca");
    let server = server(&[&authority.for_domain("example.com", Kind::P256)]);
    for (spoken, _) in versions() {
        let mut pair = Pair::new(&speaking(&authority, spoken), "example.com", &server);
        pair.good();
        let mut record = Vec::new();
        pair.client.write(b"request", &mut record).unwrap();
        let mut got = Vec::new();
        for byte in record.chunks_mut(1) {
            pair.server
                .feed(byte, &mut pair.to_client, |data| got.extend_from_slice(data))
                .unwrap();
            pair.server.write(b".", &mut pair.to_client).unwrap();
        }
        pair.good();
        assert_eq!(got, b"request");
        assert_eq!(pair.at_client.len(), record.len());
    }
}

#[test]
fn an_orderly_end_differs_from_a_cut() {
    let authority = Authority::new("ca");
    let server = server(&[&authority.for_domain("example.com", Kind::P256)]);
    for (spoken, _) in versions() {
        let mut pair = Pair::new(&speaking(&authority, spoken), "example.com", &server);
        pair.good();
        assert!(!pair.server.peer_closed());
        pair.client.write(b"bye", &mut pair.to_server).unwrap();
        pair.client.close(&mut pair.to_server);
        pair.client.close(&mut pair.to_server);
        assert_eq!(
            pair.client.write(b"more", &mut pair.to_server),
            Err(TlsError::Ended)
        );
        // Bytes that follow the end are ignored.
        pair.to_server.extend_from_slice(b"not TLS at all");
        pair.good();
        assert_eq!(pair.at_server, b"bye");
        assert!(pair.server.peer_closed());
        assert_eq!(pair.server.buffered(), 0);
        // The other direction may still carry data.
        pair.server.write(b"last words", &mut pair.to_client).unwrap();
        pair.server.close(&mut pair.to_client);
        pair.good();
        assert_eq!(pair.at_client, b"last words");
        assert!(pair.client.peer_closed());
    }
}

#[test]
fn what_is_no_tls_fails_with_an_alert() {
    let authority = Authority::new("ca");
    let server = server(&[&authority.for_domain("example.com", Kind::P256)]);
    let mut session = server.accept().unwrap();
    let mut out = Vec::new();
    let mut request = b"OPTIONS sip:example.com SIP/2.0\r\n\r\n".to_vec();
    let error = session.feed(&mut request, &mut out, |_| {}).unwrap_err();
    assert!(matches!(error, TlsError::Protocol(_)), "{error:?}");
    // An alert record: type 21, level fatal.
    assert_eq!((out.first(), out.get(5)), (Some(&21), Some(&2)));
    assert_eq!(session.feed(&mut [0; 10], &mut out, |_| {}), Err(TlsError::Ended));
    assert!(session.has_ended() && !session.is_handshaking());
}

#[test]
fn a_changed_record_is_found() {
    let authority = Authority::new("ca");
    let server = server(&[&authority.for_domain("example.com", Kind::P256)]);
    for (spoken, _) in versions() {
        let mut pair = Pair::new(&speaking(&authority, spoken), "example.com", &server);
        pair.good();
        pair.client.write(b"good", &mut pair.to_server).unwrap();
        let start = pair.to_server.len();
        pair.client.write(b"bad", &mut pair.to_server).unwrap();
        pair.to_server[start + 10] ^= 1;
        let (of_client, of_server) = pair.run();
        assert_eq!(of_server, Err(TlsError::Decrypt));
        assert_eq!(of_client, Err(TlsError::Alert(AlertDescription::BadRecordMac)));
        assert_eq!(pair.at_server, b"good");
    }
}

#[test]
fn an_endless_handshake_message_ends_at_the_bound() {
    let authority = Authority::new("ca");
    let server = server(&[&authority.for_domain("example.com", Kind::P256)]);
    let mut session = server.accept().unwrap();
    session.set_buffer_limit(0);
    // A ClientHello of 60,000 bytes in records of one byte each.
    let mut record = vec![22, 3, 1, 0, 4, 1, 0, 0xea, 0x60];
    record.extend([22, 3, 1, 0, 1, 0].repeat(20_000));
    let mut out = Vec::new();
    let mut most = 0;
    let mut fed = record
        .chunks_mut(1000)
        .map(|piece| {
            let result = session.feed(piece, &mut out, |_| {});
            most = most.max(session.buffered());
            result
        })
        .skip_while(Result::is_ok);
    assert!(matches!(fed.next(), Some(Err(TlsError::TooLarge(_)))));
    drop(fed);
    assert!(most <= 64 << 10, "{most}");
    assert_eq!(session.buffered(), 0);
}

#[test]
fn a_session_at_rest_is_small() {
    assert!(size_of::<TlsSession>() <= 64, "{}", size_of::<TlsSession>());
    let library = size_of::<rustls::server::UnbufferedServerConnection>();
    assert!(library <= 1536, "{library}");
}

fn asking(authority: &Authority, identity: &IdentityFiles, auth: ClientAuth) -> TlsServer {
    let settings = ServerSettings {
        identities: vec![identity.clone()],
        client_auth: auth,
        client_ca: Some(authority.file.clone()),
        ..ServerSettings::default()
    };
    server_with(settings, None, &Clock::today())
}

#[test]
fn clients_show_certificates_where_they_must() {
    let (authority, other) = (Authority::new("ca"), Authority::new("other"));
    let own = authority.for_domain("example.com", Kind::P256);
    let peer = authority.for_domain("peer.example.net", Kind::P256);
    let unknown = other.for_domain("peer.example.net", Kind::P256);
    let expired = authority.issue("expired", Kind::P256, |params| {
        params.subject_alt_names = vec![dns("peer.example.net")];
        params.not_after = rcgen::date_time_ymd(2026, 11, 20);
    });
    let refused = |error| Err(TlsError::PeerCertificate(error));
    for (spoken, _) in versions() {
        let run = |auth, identity: Option<&IdentityFiles>| {
            let settings = ClientSettings {
                identity: identity.cloned(),
                versions: spoken,
                ..trusting(&authority.file)
            };
            let client = client_with(settings, &Clock::today());
            let mut pair = Pair::new(&client, "example.com", &asking(&authority, &own, auth));
            let (of_client, of_server) = pair.run();
            assert_eq!(of_client.is_ok(), of_server.is_ok(), "{of_client:?}");
            of_server.map(|()| pair.server.peer_identities().iter().map(str::to_owned).collect())
        };
        let shown = Ok(vec!["peer.example.net".to_owned()]);
        assert_eq!(run(ClientAuth::None, Some(&peer)), Ok(vec![]));
        assert_eq!(run(ClientAuth::Optional, None), Ok(vec![]));
        assert_eq!(run(ClientAuth::Optional, Some(&peer)), shown);
        assert_eq!(run(ClientAuth::Required, Some(&peer)), shown);
        assert_eq!(run(ClientAuth::Required, None), Err(TlsError::NoPeerCertificate));
        for auth in [ClientAuth::Optional, ClientAuth::Required] {
            let unknown = run(auth, Some(&unknown));
            assert_eq!(unknown, refused(CertificateError::UnknownIssuer));
            let expired = run(auth, Some(&expired)).unwrap_err();
            assert!(
                matches!(
                    expired,
                    TlsError::PeerCertificate(CertificateError::ExpiredContext { .. })
                ),
                "{expired:?}"
            );
        }
    }
}
