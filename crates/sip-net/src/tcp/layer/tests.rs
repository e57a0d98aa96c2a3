//! Tests of the layers without sockets: what is sent, and what is received however the stream is cut.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::OnceLock;

use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustls::ClientConnection;
use sip_core::id::{ConnId, ListenerId, WorkerId};

use super::*;
use crate::tls::{
    ClientSettings, IdentityFiles, ServerSettings, TlsClient, TlsServer, Versions, system_clock,
};

/// Both ends of TLS.
struct Ends {
    server: TlsServer,
    clients: [TlsClient; 2],
}

fn ends() -> &'static Ends {
    static ENDS: OnceLock<Ends> = OnceLock::new();
    ENDS.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: String| -> PathBuf {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let ca = file("ca.pem", params.self_signed(&key).unwrap().pem());
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.subject_alt_names = vec![SanType::DnsName("server.example".try_into().unwrap())];
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let settings = ServerSettings {
            identities: vec![IdentityFiles {
                certificate: file("server.pem", certificate.pem()),
                key: file("server.key", key.serialize_pem()),
            }],
            ..ServerSettings::default()
        };
        let clients = [Versions::Tls12, Versions::Tls13].map(|versions| {
            let settings = ClientSettings {
                ca: Some(ca.clone()),
                versions,
                ..ClientSettings::default()
            };
            TlsClient::load(settings, system_clock(), &mut Vec::new()).unwrap()
        });
        Ends {
            server: TlsServer::load(settings, None, system_clock(), &mut Vec::new()).unwrap(),
            clients,
        }
    })
}

/// A TLS server that has just accepted, and a client that has sent nothing yet.
fn beginning(version: usize) -> (Secured, ClientConnection) {
    let ends = ends();
    let secured = Secured::new(ends.server.accept().unwrap(), Vec::new());
    let name = "server.example".try_into().unwrap();
    let client = ClientConnection::new(ends.clients[version].config(), name).unwrap();
    (secured, client)
}

/// Both ends with the handshake done.
fn established(version: usize) -> (Secured, ClientConnection) {
    let (mut secured, mut client) = beginning(version);
    while client.is_handshaking() || client.wants_write() {
        let mut flight = flight(&mut client);
        secured.feed(&mut flight, |_| panic!("no data yet")).unwrap();
        let done = give(&mut secured, &mut client, &[], usize::MAX, &mut Vec::new());
        assert_eq!(done, 0, "no message was sent");
    }
    assert!(!secured.session.is_handshaking());
    (secured, client)
}

/// The records that the client has to send.
fn flight(client: &mut ClientConnection) -> Vec<u8> {
    let mut flight = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut flight).unwrap();
    }
    flight
}

/// Writes at most `room` bytes to the client, which reads them. Returns the bytes that may leave the queue.
fn give(
    secured: &mut Secured,
    client: &mut ClientConnection,
    waiting: &[u8],
    room: usize,
    arrived: &mut Vec<u8>,
) -> usize {
    let mut scratch = Vec::new();
    let records = secured.records(waiting, &mut scratch).unwrap();
    let count = records.len().min(room);
    let written = records[..count].to_vec();
    let mut rest = &written[..];
    while !rest.is_empty() {
        client.read_tls(&mut rest).unwrap();
        client.process_new_packets().unwrap();
        // Reading ends with "would block".
        let _ = client.reader().read_to_end(arrived);
    }
    secured.written(count, &scratch)
}

/// The results of feeding a stream.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    messages: Vec<Vec<u8>>,
    faults: usize,
    pings: u64,
    upgraded: bool,
    end: Option<CloseReason>,
}

/// The worker's end of one connection.
struct Connection {
    secured: Option<Secured>,
    decoder: Decoder,
    limits: Limits,
    outcome: Outcome,
    replies: Vec<u8>,
}

impl Connection {
    fn new(transport: Transport, secured: Option<Secured>) -> Self {
        let limits = Limits {
            body_bytes: 70_000,
            ..Limits::default()
        };
        Self {
            secured,
            decoder: Decoder::new(transport, &limits),
            limits,
            outcome: Outcome::default(),
            replies: Vec::new(),
        }
    }

    /// Handles bytes as a connection does those read from its socket.
    fn take(&mut self, bytes: &mut [u8]) {
        let flow = Flow {
            transport: Transport::Wss,
            listener: ListenerId(0),
            remote: ([127, 0, 0, 1], 9).into(),
            conn: Some(ConnId {
                worker: WorkerId(0),
                slot: 0,
                generation: 0,
            }),
            proof: sip_core::transport::Proof::None,
        };
        let (decoder, outcome) = (&mut self.decoder, &mut self.outcome);
        let mut context = Context {
            limits: &self.limits,
            origins: &AllowedOrigins::any(),
            trusted: &[],
            activity: &Activity::default(),
            replies: &mut self.replies,
        };
        let mut data = |data: &[u8]| {
            if outcome.end.is_some() {
                return;
            }
            let mut taken = Taken::default();
            let (messages, faults) = (&mut outcome.messages, &mut outcome.faults);
            decoder.take(flow, data, &mut context, &mut taken, &mut |_, arrival| {
                match arrival {
                    Arrival::Message(message) => messages.push(message.to_vec()),
                    Arrival::Fault(_) => *faults += 1,
                }
                Verdict::Keep
            });
            outcome.pings += taken.pings;
            outcome.upgraded |= taken.upgraded;
            outcome.end = taken.end;
        };
        match &mut self.secured {
            None => data(bytes),
            Some(secured) => {
                secured.feed(bytes, data).unwrap();
            }
        }
    }

    /// Feeds a client's whole stream, in pieces of these lengths, again and again.
    fn run(mut self, mut client: Option<ClientConnection>, stream: &[u8], pieces: &[usize]) -> Outcome {
        let mut lengths = pieces.iter().copied().cycle();
        let mut send = |connection: &mut Self, bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            let mut rest = &mut bytes[..];
            while !rest.is_empty() {
                let length = lengths.next().unwrap().min(rest.len());
                let (piece, more) = rest.split_at_mut(length);
                connection.take(piece);
                rest = more;
            }
        };
        let Some(client) = &mut client else {
            send(&mut self, stream);
            return self.outcome;
        };
        for data in stream.chunks(30_000) {
            client.writer().write_all(data).unwrap();
            while client.wants_write() {
                let flight = flight(client);
                send(&mut self, &flight);
                let secured = self.secured.as_mut().unwrap();
                give(secured, client, &[], usize::MAX, &mut Vec::new());
            }
        }
        self.outcome
    }
}

/// A message or keep-alive that a client sends.
#[derive(Clone, Debug)]
enum Sent {
    Message(usize),
    Ping,
    Fragments(usize, usize),
}

#[test]
fn a_handshake_goes_first_a_few_times_once_it_has_begun() {
    let (mut secured, mut client) = beginning(1);
    assert!(!secured.goes_first());
    secured.feed(&mut flight(&mut client), |_| {}).unwrap();
    let first = (0..20).filter(|_| secured.goes_first()).count();
    assert_eq!(first, usize::from(GOES_FIRST));
}

fn message(length: usize) -> Vec<u8> {
    let mut message = format!("OPTIONS sip:a SIP/2.0\r\nContent-Length: {length}\r\n\r\n").into_bytes();
    message.extend((0..length).map(|n| b'a' + (n % 26) as u8));
    message
}

fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let key = [7, 99, 200, 3];
    let mut frame = vec![first, 0x80 | 127];
    match payload.len() {
        short @ 0..126 => {
            frame[1] = 0x80 | short as u8;
        }
        medium @ 126..65_536 => {
            frame[1] = 0x80 | 126;
            frame.extend((medium as u16).to_be_bytes());
        }
        long => frame.extend((long as u64).to_be_bytes()),
    }
    frame.extend(key);
    frame.extend(
        payload
            .iter()
            .zip(key.iter().cycle())
            .map(|(byte, key)| byte ^ key),
    );
    frame
}

const UPGRADE: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Protocol: sip\r\n\r\n";

impl Sent {
    fn on_stream(&self) -> Vec<u8> {
        match self {
            Self::Message(length) | Self::Fragments(length, _) => message(*length),
            Self::Ping => b"\r\n\r\n".to_vec(),
        }
    }

    fn in_frames(&self) -> Vec<u8> {
        match self {
            Self::Message(length) => frame(0x81, &message(*length)),
            Self::Ping => [frame(0x81, b"\r\n\r\n"), frame(0x89, b"well?")].concat(),
            Self::Fragments(length, at) => {
                let message = message(*length);
                let (first, last) = message.split_at(*at.min(&message.len()));
                [frame(0x01, first), frame(0x89, b""), frame(0x80, last)].concat()
            }
        }
    }
}

fn sent() -> impl Strategy<Value = Vec<Sent>> {
    let one = prop_oneof![
        (0usize..600).prop_map(Sent::Message),
        (60_000usize..70_000).prop_map(Sent::Message),
        Just(Sent::Ping),
        (0usize..40_000, 0usize..40_000).prop_map(|(length, at)| Sent::Fragments(length, at)),
    ];
    prop::collection::vec(one, 1..8)
}

/// The stream of one transport, with its end: nothing, a fault, or a close.
fn stream(transport: Transport, sent: &[Sent], end: usize) -> Vec<u8> {
    let framed = is_websocket(transport);
    let mut stream = if framed { UPGRADE.to_vec() } else { Vec::new() };
    for sent in sent {
        stream.extend(if framed {
            sent.in_frames()
        } else {
            sent.on_stream()
        });
    }
    stream.extend_from_slice(match (end, framed) {
        (0, _) => b"",
        (1, false) => b"OPTIONS sip:a SIP/2.0\r\n\r\n",
        (1, true) => &[0x81, 5],
        (_, false) => b"\r\nmore",
        (_, true) => &[0x88, 0x82, 0, 0, 0, 0, 3, 0xe8, 1, 2, 3],
    });
    stream
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any room in the socket, the bytes that leave the queue are those that the peer can read. Fewer
    /// would arrive twice, more would be lost with the connection.
    #[test]
    fn what_leaves_the_queue_is_what_the_peer_can_read(
        version in 0usize..2,
        length in 1usize..100_000,
        rooms in prop::collection::vec(1usize..40_000, 1..20),
    ) {
        let (mut secured, mut client) = established(version);
        let queue: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
        let (mut done, mut arrived) = (0, Vec::new());
        for room in rooms {
            done += give(&mut secured, &mut client, &queue[done..], room, &mut arrived);
            prop_assert_eq!(arrived.len(), done);
        }
        while done < queue.len() {
            done += give(&mut secured, &mut client, &queue[done..], usize::MAX, &mut arrived);
        }
        prop_assert!(arrived == queue);
        prop_assert_eq!(secured.cipher.capacity(), 0, "nothing is kept for what was written");
    }

    /// A client's bytes yield the same messages however they are cut, from the first of the handshake on.
    #[test]
    fn any_split_of_a_stream_yields_the_same(
        sent in sent(),
        end in 0usize..3,
        version in 0usize..2,
        pieces in prop_oneof![
            prop::collection::vec(1usize..4, 1..4),
            prop::collection::vec(1usize..3_000, 1..30),
            prop::collection::vec(1usize..40_000, 1..30),
        ],
    ) {
        for transport in [Transport::Tcp, Transport::Tls, Transport::Ws, Transport::Wss] {
            let stream = stream(transport, &sent, end);
            let run = |pieces: &[usize]| {
                let (secured, client) = match transport {
                    Transport::Tls | Transport::Wss => {
                        let (secured, client) = beginning(version);
                        (Some(secured), Some(client))
                    }
                    Transport::Udp | Transport::Tcp | Transport::Ws => (None, None),
                };
                Connection::new(transport, secured).run(client, &stream, pieces)
            };
            let whole = run(&[usize::MAX]);
            let messages = sent.iter().filter(|sent| !matches!(sent, Sent::Ping)).count();
            prop_assert_eq!(whole.messages.len(), messages);
            prop_assert_eq!(whole.end.is_some(), end == 1 || (end == 2 && is_websocket(transport)));
            prop_assert!(run(&pieces) == whole, "{:?} in pieces of {:?}", transport, pieces);
        }
    }
}
