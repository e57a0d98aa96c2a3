//! `trapezoid check --connect`: tries the database, name service and next hops of the configuration.
//!
//! Each next hop is located as the server does it (RFC 3263), then each of its addresses is tried: by UDP with
//! OPTIONS, by TCP and TLS with a connection. No calls are made, and nothing is written.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use settings::Loaded;
use sip_backend::ResultSink;
use sip_backend::dns::{Dns, DnsOptions, DnsSetupError, system_servers};
use sip_backend::subscribers::{Source, SubscriberTable, TableOptions};
use sip_core::config::{Action, Config, RelayTarget};
use sip_core::id::QueryId;
use sip_core::query::{QueryResult, RecordKind, Records};
use sip_core::resolve::{Cache, Candidate, HostRef, Located, MAX_LOOKUPS, Question, Transports};
use sip_core::time;
use sip_core::transport::{HopHost, NextHop, Transport};
use tokio::runtime::Runtime;

use crate::cli::user::failure;
use crate::cli::{Failure, say};

/// Longest wait for a connection, or for the response to OPTIONS.
const PATIENCE: Duration = Duration::from_secs(2);
/// Number of OPTIONS sent to one address: a datagram may get lost.
const TRIES: u32 = 3;

/// The id of every query: one is open at a time.
const QUESTION: QueryId = QueryId {
    slot: 0,
    generation: 1,
};

/// Tries every server that the configuration names, and prints a line for each.
///
/// # Errors
/// A server does not respond.
pub(super) fn run(loaded: &Loaded) -> Result<(), Failure> {
    let mut report = Report::default();
    subscribers(loaded, &mut report);
    let runtime = Runtime::new().map_err(|error| Failure::failed("no runtime", error))?;
    name_servers(loaded, &runtime, &mut report);
    next_hops(loaded, &runtime, &mut report);
    match report.failed {
        0 => Ok(()),
        1 => Err(Failure::Failed("1 of these failed".to_owned())),
        more => Err(Failure::Failed(format!("{more} of these failed"))),
    }
}

#[derive(Default)]
struct Report {
    failed: u32,
}

impl Report {
    fn good(&mut self, text: &str) {
        say(&format!("ok: {text}"));
    }

    fn bad(&mut self, text: &str) {
        self.failed += 1;
        say(&format!("failed: {text}"));
    }

    /// Prints a warning: every server responds, but the result may be unintended.
    fn odd(&mut self, text: &str) {
        say(&format!("warning: {text}"));
    }
}

/// Reads the subscriber table with the server's own account, and with the operator's, if there is one.
fn subscribers(loaded: &Loaded, report: &mut Report) {
    let own = &loaded.shell.subscribers;
    match table(own) {
        Ok(text) => report.good(&text),
        Err(text) => report.bad(&format!("subscribers: {text}")),
    }
    let admin = loaded.shell.admin_table.open(own);
    if admin.as_ref() == Ok(own) {
        return;
    }
    match admin.and_then(|options| table(&options)) {
        Ok(text) => report.good(&format!("as `trapezoid user`: {text}")),
        Err(text) => report.bad(&format!("subscribers, as `trapezoid user`: {text}")),
    }
}

/// Reads the subscriber table with these options.
fn table(options: &TableOptions) -> Result<String, String> {
    let words = |failure| match failure {
        Failure::Failed(text) | Failure::Usage(text) => text,
    };
    if let Source::Sqlite(file) = &options.source
        && !file.exists()
    {
        return Ok(format!(
            "{}: not there yet; it is made when it is needed",
            file.display()
        ));
    }
    let began = Instant::now();
    let mut table = SubscriberTable::open(options.clone()).map_err(|error| words(failure(error)))?;
    let is_empty = table.is_empty().map_err(|error| words(failure(error)))?;
    let what = if is_empty { "has no subscriber" } else { "responds" };
    let took = began.elapsed().as_millis();
    Ok(format!(
        "{}: table {} {what}, in {took} ms",
        options.source, options.table
    ))
}

/// The next hops of the configuration, each with the group or rule that names it.
fn named(core: &Config) -> Vec<(String, &NextHop)> {
    let mut all: Vec<(String, &NextHop)> = Vec::new();
    for group in &core.groups {
        let name = String::from_utf8_lossy(&group.name);
        all.extend(
            group
                .members
                .iter()
                // A drained member may be switched off.
                .filter(|member| member.weight > 0)
                .map(|member| (format!("group {name}"), &member.hop)),
        );
    }
    for (number, rule) in (1..).zip(&core.routes) {
        if let Action::Relay(relay) = &rule.action
            && let RelayTarget::Uri(hop) = &relay.target
        {
            all.push((format!("rule {number}"), hop));
        }
    }
    let mut seen = BTreeSet::new();
    all.retain(|(_, hop)| seen.insert(hop.uri.clone()));
    all
}

/// Queries each name server that the server uses for the address of the first domain: contacts may have names
/// even if no next hop does. That there is no such address is a response, too.
fn name_servers(loaded: &Loaded, runtime: &Runtime, report: &mut Report) {
    let configured = &loaded.shell.nameservers;
    let (servers, of) = match configured.is_empty() {
        false => (configured.clone(), ""),
        true => match system_servers() {
            Ok(servers) => (servers, " of /etc/resolv.conf"),
            Err(error) => {
                report.bad(&format!("name servers of /etc/resolv.conf: {error}"));
                return;
            }
        },
    };
    // A resolver itself knows that these names are local, or nowhere (RFC 6761).
    let is_special = |name: &String| {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        ["localhost", "invalid"]
            .iter()
            .any(|last| name.rsplit('.').next() == Some(last))
    };
    let domain = Some(first_domain(loaded)).filter(|name| !is_special(name));
    let domain = domain.unwrap_or_else(|| "example.com".to_owned());
    for server in &servers {
        // `/etc/hosts` is not used: the machine may know the name itself, without a name server.
        let mut names = Names::new(loaded, runtime, &[*server], false);
        let began = Instant::now();
        match names.ask(&domain, RecordKind::A) {
            Some(_) => report.good(&format!(
                "name server {server}{of}: responds, in {} ms",
                began.elapsed().as_millis()
            )),
            None => report.bad(&format!("name server {server}{of}: gives no result for {domain}")),
        }
    }
}

fn next_hops(loaded: &Loaded, runtime: &Runtime, report: &mut Report) {
    let mut names = Names::new(loaded, runtime, &loaded.shell.nameservers, true);
    for (of, hop) in named(&loaded.core) {
        let uri = String::from_utf8_lossy(&hop.uri);
        let of = format!("{of}: {uri}");
        match names.locate(&loaded.core, hop) {
            Err(text) => report.bad(&format!("{of}: {text}")),
            Ok(candidates) if candidates.is_empty() && matches!(hop.host, HopHost::Name(_)) => {
                report.odd(&format!("{of}: its name has no address {REACHED}"));
            }
            Ok(candidates) if candidates.is_empty() => report.bad(&format!("{of}: no address {REACHED}")),
            Ok(candidates) => {
                for candidate in candidates {
                    let Candidate {
                        transport, address, ..
                    } = candidate;
                    let of = format!("{of}: {} {address}", transport.uri_name());
                    match try_address(loaded, transport, address) {
                        Ok(text) => report.good(&format!("{of}: {text}")),
                        Err(text) => report.bad(&format!("{of}: {text}")),
                    }
                }
            }
        }
    }
}

/// The addresses that count.
const REACHED: &str = "that a listener's transport and address family reaches";

/// Passes results of name service to this thread.
struct Answers(Mutex<Sender<QueryResult>>);

impl ResultSink for Answers {
    fn deliver(&self, _origin: u16, _id: QueryId, result: QueryResult) {
        // Fails only if the thread has stopped waiting.
        let _ = self.0.lock().send(result);
    }
}

/// Name service, used as by the server.
struct Names {
    dns: Result<Dns, DnsSetupError>,
    answers: Receiver<QueryResult>,
    cache: Cache,
    patience: Duration,
}

impl Names {
    fn new(loaded: &Loaded, runtime: &Runtime, servers: &[SocketAddr], hosts_file: bool) -> Self {
        let (sender, answers) = channel();
        let options = DnsOptions {
            servers: servers.to_vec(),
            hosts_file,
            timeout: loaded.shell.dns_timeout,
            ..DnsOptions::default()
        };
        let patience = options.timeout + Duration::from_secs(1);
        let sink = Arc::new(Answers(Mutex::new(sender)));
        Self {
            dns: Dns::new(runtime.handle().clone(), options, sink),
            answers,
            cache: Cache::new(1000),
            patience,
        }
    }

    /// Sends one query. `None` if there is no response within the configured time-out.
    fn ask(&mut self, name: &str, kind: RecordKind) -> Option<Records> {
        let dns = self.dns.as_ref().ok()?;
        dns.resolve(0, Some(QUESTION), name.as_bytes().into(), kind);
        match self.answers.recv_timeout(self.patience) {
            Ok(QueryResult::Resolved(answer)) => answer.ok(),
            Ok(_) | Err(_) => None,
        }
    }

    /// The addresses of a next hop. `Err` has the reason if they could not be found out.
    fn locate(&mut self, core: &Config, hop: &NextHop) -> Result<Vec<Candidate>, String> {
        let has = |v4: bool| {
            core.listeners
                .iter()
                .any(|listener| listener.address.is_ipv4() == v4)
        };
        // The other side opens a WebSocket (RFC 7118 §5).
        let is_opened_here = |transport: &Transport| !matches!(transport, Transport::Ws | Transport::Wss);
        let transports = core.listeners.iter().map(|listener| listener.transport);
        let transports: Transports = transports.filter(is_opened_here).collect();
        let question = Question {
            host: HostRef::from(&hop.host),
            port: hop.port,
            transport: hop.transport,
            secure: hop.secure,
            transports,
            ipv4: has(true),
            ipv6: has(false),
            dice: 0,
            stateless: false,
        };
        let now = time::Instant::from_micros(1_000_000);
        for _ in 0..=MAX_LOOKUPS {
            match self.cache.locate(now, &question) {
                Located::Done(found) => return Ok(found.to_vec()),
                Located::Unavailable => return Err("name service does not respond".to_owned()),
                Located::Ask { name, kind } => {
                    let dns = self.dns.as_ref().map_err(ToString::to_string)?;
                    dns.resolve(0, Some(QUESTION), name.clone(), kind);
                    let answer = match self.answers.recv_timeout(self.patience) {
                        Ok(QueryResult::Resolved(answer)) => answer,
                        Ok(_) | Err(_) => return Err("name service does not respond".to_owned()),
                    };
                    self.cache.store(now, &name, kind, answer);
                }
            }
        }
        Err("name service leads in circles".to_owned())
    }
}

fn first_domain(loaded: &Loaded) -> String {
    let domain = loaded.core.domains.first();
    let name = domain.map_or(&b"localhost"[..], |domain| &domain.name);
    String::from_utf8_lossy(name).into_owned()
}

/// Tries an address. `Ok` describes the response, `Err` why there was none.
fn try_address(loaded: &Loaded, transport: Transport, address: SocketAddr) -> Result<String, String> {
    match transport {
        Transport::Udp => options(loaded, address),
        Transport::Tcp | Transport::Tls | Transport::Ws | Transport::Wss => {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(_) if transport.is_secure() => {
                    Ok("connected (its certificate is not looked at)".to_owned())
                }
                Ok(_) => Ok("connected".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        }
    }
}

/// Sends OPTIONS to an address. Returns the status of the response.
fn options(loaded: &Loaded, address: SocketAddr) -> Result<String, String> {
    let words = |error: std::io::Error| error.to_string();
    let any: IpAddr = match address {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    // Sent from a free port: the running server may use that of the listener.
    let socket = UdpSocket::bind((any, 0)).map_err(words)?;
    socket.connect(address).map_err(words)?;
    socket.set_read_timeout(Some(PATIENCE / TRIES)).map_err(words)?;
    let own = socket.local_addr().map_err(words)?;
    let domain = first_domain(loaded);
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| error.to_string())?;
    let word = u64::from_le_bytes(random);
    let text = format!(
        "OPTIONS sip:{address} SIP/2.0\r\nVia: SIP/2.0/UDP {own};rport;branch=z9hG4bK{word:016x}\r\nMax-Forwards: 70\r\n\
         From: <sip:check@{domain}>;tag={word:016x}\r\nTo: <sip:{address}>\r\nCall-ID: {word:016x}\r\n\
         CSeq: 1 OPTIONS\r\nContact: <sip:check@{own}>\r\nContent-Length: 0\r\n\r\n"
    );
    let mut last = "no response".to_owned();
    for _ in 0..TRIES {
        socket.send(text.as_bytes()).map_err(words)?;
        let mut answer = [0; 2048];
        match socket.recv(&mut answer) {
            Ok(length) => {
                let answer = String::from_utf8_lossy(answer.get(..length).unwrap_or_default()).into_owned();
                let line = answer.lines().next().unwrap_or_default().to_owned();
                let status = line.strip_prefix("SIP/2.0 ").ok_or("the response is not SIP")?;
                return Ok(format!("responds {status}"));
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}
