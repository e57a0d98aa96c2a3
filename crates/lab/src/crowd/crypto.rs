//! What a handshake costs the server's end without sockets: both ends in memory, and CPU time of
//! this thread while it is the server's turn. Beside our own sessions, the library's buffered
//! interface with the same configuration.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig, ServerConnection};
use sip_net::tls::{
    IdentityFiles, ServerSettings, TicketKeys, TicketSettings, TlsServer, TlsSession, system_clock,
};

use super::Outcome;
use super::arguments::Arguments;
use super::said;
use super::system::thread_cpu_ns;
use super::target::{Target, Tickets, with_own_tickets};

/// Handshakes that are not counted, at the start of each case.
const WARM: usize = 20;

/// The server's end of a connection.
enum Server {
    Session(Box<TlsSession>),
    Buffered(Box<ServerConnection>),
}

/// A case: what is measured.
struct Case<'a> {
    version: &'a str,
    key: &'a str,
    resume: bool,
    buffered: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let time = Duration::from_secs_f64(arguments.get("seconds", 1.0)?);
    let certificates: &Path = arguments
        .text("certificates")
        .ok_or("--certificates DIRECTORY is needed")?
        .as_ref();
    for (key, name) in [("P-256", "p256"), ("RSA-2048", "rsa")] {
        let server = server(certificates, name)?;
        for version in ["1.3", "1.2"] {
            let target = target(version)?;
            for (resume, buffered) in [(false, false), (false, true), (true, false), (true, true)] {
                let case = Case {
                    version,
                    key,
                    resume,
                    buffered,
                };
                measure(&case, &server, &target, time)?;
            }
        }
    }
    Ok(())
}

/// A listener's end with one of the lab's certificates.
fn server(certificates: &Path, name: &str) -> Outcome<TlsServer> {
    let files = IdentityFiles {
        certificate: certificates.join(format!("{name}.pem")),
        key: certificates.join(format!("{name}.key")),
    };
    let settings = ServerSettings {
        name: "crowd".to_owned(),
        identities: vec![files],
        ..ServerSettings::default()
    };
    let tickets = TicketKeys::generate(TicketSettings::default(), system_clock())?;
    let server = TlsServer::load(settings, Some(Arc::new(tickets)), system_clock(), &mut Vec::new())?;
    Ok(server)
}

/// A client of one version; it goes nowhere.
fn target(version: &str) -> Outcome<Target> {
    let words = ["crypto", "--transport", "tls", "--target", "127.0.0.1:9"];
    let versions: &[&str] = if version == "1.2" { &["--tls12"] } else { &[] };
    let words: Vec<String> = words
        .iter()
        .chain(versions)
        .map(|word| (*word).to_owned())
        .collect();
    Target::new(&Arguments::parse(&words)?)
}

fn measure(case: &Case<'_>, server: &TlsServer, target: &Target, time: Duration) -> Outcome {
    let (own, tickets) = with_own_tickets(&target.tls);
    let client = if case.resume { &own } else { &target.tls };
    let name = target.server_name()?;
    for _ in 0..WARM {
        handshake(case, server, client, &name, &tickets)?;
    }
    let mut times: Vec<u64> = Vec::new();
    let until = Instant::now() + time;
    while Instant::now() < until {
        times.push(handshake(case, server, client, &name, &tickets)?);
    }
    times.sort_unstable();
    let mean = times.iter().sum::<u64>() as f64 / times.len().max(1) as f64;
    let median = times.get(times.len() / 2).copied().unwrap_or(0) as f64;
    said::row(&said::Crypto {
        version: case.version.to_owned(),
        key: case.key.to_owned(),
        resumed: case.resume,
        interface: if case.buffered { "buffered" } else { "ours" }.to_owned(),
        handshakes: times.len(),
        mean_us: mean / 1e3,
        median_us: median / 1e3,
    })
}

/// A handshake, two bytes of data, and the end, as the mode `handshakes` does them. Nanoseconds of the
/// server's end.
fn handshake(
    case: &Case<'_>,
    server: &TlsServer,
    client: &Arc<ClientConfig>,
    name: &ServerName<'static>,
    tickets: &Tickets,
) -> Outcome<u64> {
    let expected = case.resume && tickets.are_there();
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    let mut client = TlsSession::client(Arc::clone(client), name.clone(), &mut to_server)?;
    let before = thread_cpu_ns();
    let mut end = Server::new(server.config(), case.buffered)?;
    let mut spent = thread_cpu_ns() - before;
    let mut said = false;
    while !to_server.is_empty() || !to_client.is_empty() {
        let before = thread_cpu_ns();
        end.feed(&mut to_server, &mut to_client)?;
        spent += thread_cpu_ns() - before;
        to_server.clear();
        client.feed(&mut to_client, &mut to_server, |_| {})?;
        to_client.clear();
        // The end of a session with tickets is said when they have come.
        if !said && !client.is_handshaking() && (!case.resume || tickets.are_there()) {
            said = true;
            client.write(b"\r\n", &mut to_server)?;
            client.close(&mut to_server);
        }
    }
    if client.resumed() != Some(expected) || !said {
        return Err(format!("{} {}: resumed {:?}", case.version, case.key, client.resumed()).into());
    }
    let before = thread_cpu_ns();
    drop(end);
    Ok(spent + thread_cpu_ns() - before)
}

impl Server {
    fn new(config: Arc<ServerConfig>, buffered: bool) -> Outcome<Self> {
        Ok(if buffered {
            Self::Buffered(Box::new(ServerConnection::new(config)?))
        } else {
            Self::Session(Box::new(TlsSession::server(config)?))
        })
    }

    fn feed(&mut self, input: &mut [u8], out: &mut Vec<u8>) -> Outcome {
        match self {
            Self::Session(session) => {
                let fed = session.feed(input, out, |_| {})?;
                if fed.peer_closed {
                    session.close(out);
                }
            }
            Self::Buffered(connection) => {
                let mut rest = &*input;
                while !rest.is_empty() {
                    connection.read_tls(&mut rest)?;
                    let state = connection.process_new_packets()?;
                    let data = state.plaintext_bytes_to_read();
                    let closed = state.peer_has_closed();
                    io::copy(
                        &mut io::Read::take(connection.reader(), data as u64),
                        &mut io::sink(),
                    )?;
                    if closed {
                        connection.send_close_notify();
                    }
                }
                while connection.wants_write() {
                    connection.write_tls(out)?;
                }
            }
        }
        Ok(())
    }
}
