//! `[tls]`, and the keys of `[[listen]]` beyond transport and address: which files to read, and for what use.
//! Nothing is read here. The files may change while the server runs, so the program (`serve::tls`) reads them
//! each time.

use std::path::{Path, PathBuf};

use sip_core::transport::websocket::AllowedOrigins;
use sip_net::tcp::Sharing;
use sip_net::tls::{self, IdentityFiles, TicketSettings, Versions};

use super::context::Context;
use super::hosts::domain;
use super::model::{self, Connection, Listen, ListenTls, ListenTransport, Settings, TlsVersion};

/// Shortest rotation of ticket keys, as a fraction of their lifetime: each period has a key in memory.
const PERIODS: u32 = 14;

/// All settings of TLS.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    /// The `[[listen]]`s with TLS, in the order of [`Service::tls`].
    pub listeners: Vec<TlsListener>,
    /// Lifetime of tickets, for which sessions can be resumed.
    pub tickets: TicketSettings,
    /// Keys of tickets of listeners without their own.
    pub ticket_keys: PathBuf,
    /// Authorities of the servers to which we connect; `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// Place of `ca` for messages: `FILE:LINE: key`.
    pub ca_place: String,
    /// Revocation lists of these authorities.
    pub crl: Option<PathBuf>,
    /// Place of `crl` for messages: `FILE:LINE: key`.
    pub crl_place: String,
    /// Number of servers with remembered sessions.
    pub remembered_peers: usize,
    /// Servers with settings of their own.
    pub peers: Vec<TlsPeer>,
}

/// TLS of one `[[listen]]`.
#[derive(Debug, Clone)]
pub struct TlsListener {
    /// Place for messages about the listener's files: `FILE:LINE: key`.
    pub place: String,
    /// The listener as configured, such as `tls 0.0.0.0:5061`.
    pub label: String,
    /// Name to which the listener's tickets are bound, the same at nodes with the same `[[listen]]`s.
    pub ticket_name: String,
    /// Our certificates. The first is for a client that asks for no other.
    pub identities: Vec<IdentityFiles>,
    /// Whether the certificate is that of the first start, which is made if it is absent.
    pub is_own: bool,
    /// Whether clients present a certificate.
    pub client_auth: tls::ClientAuth,
    /// Authorities of clients; `None`: those of the system.
    pub client_ca: Option<PathBuf>,
    /// Revocation lists of these authorities.
    pub client_crl: Option<PathBuf>,
    /// SIP domains of which a client's certificate must name one, lower case; empty: any.
    pub client_names: Vec<String>,
    /// Keys of tickets; `None`: [`Tls::ticket_keys`].
    pub ticket_keys: Option<PathBuf>,
    /// Supported versions.
    pub versions: Versions,
    /// Whether connections are opened from here too.
    pub connects: bool,
}

/// A server with settings of its own.
#[derive(Debug, Clone)]
pub struct TlsPeer {
    /// Place for messages about the peer's files: `FILE:LINE: key`.
    pub place: String,
    /// The peer's SIP domain, lower case.
    pub domain: String,
    /// Authorities of the peer; `None`: [`Tls::ca`].
    pub ca: Option<PathBuf>,
    /// Revocation lists of these authorities; `None`: [`Tls::crl`].
    pub crl: Option<PathBuf>,
    /// Our certificate for the peer; `None`: the listener's.
    pub identity: Option<IdentityFiles>,
}

/// Settings of the connections of one listener of the core, besides TCP.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Service {
    /// Index in [`Tls::listeners`].
    pub tls: Option<usize>,
    /// The origins of pages that may open a WebSocket.
    pub origins: AllowedOrigins,
    /// How connections that we open from here are shared by messages.
    pub sharing: Sharing,
}

impl Tls {
    /// Whether both read the same files for the same purposes.
    pub fn is_same(&self, other: &Self) -> bool {
        let listener = |of: &TlsListener| {
            let files = (
                of.identities.clone(),
                of.client_ca.clone(),
                of.client_crl.clone(),
                of.ticket_keys.clone(),
            );
            let names = of.client_names.clone();
            let rules = (of.is_own, of.client_auth, names, of.versions, of.connects);
            (of.label.clone(), of.ticket_name.clone(), files, rules)
        };
        let peer = |of: &TlsPeer| {
            let trust = (of.ca.clone(), of.crl.clone());
            (of.domain.clone(), trust, of.identity.clone())
        };
        let all = |tls: &Self| {
            let listeners: Vec<_> = tls.listeners.iter().map(listener).collect();
            let peers: Vec<_> = tls.peers.iter().map(peer).collect();
            let common = (
                tls.tickets,
                tls.ticket_keys.clone(),
                tls.ca.clone(),
                tls.crl.clone(),
                tls.remembered_peers,
            );
            (listeners, peers, common)
        };
        all(self) == all(other)
    }
}

/// The settings of `[tls]`; listeners are added later.
pub(super) fn tls(settings: &Settings, data_dir: &Path, cx: &mut Context<'_>) -> Tls {
    let entry = &settings.tls;
    let shortest = entry.ticket_lifetime_s.div_ceil(PERIODS);
    if entry.ticket_rotation_s < shortest {
        let key = if cx.has("tls", "ticket_rotation_s") {
            "ticket_rotation_s"
        } else {
            "ticket_lifetime_s"
        };
        let what = format!(
            "ticket_rotation_s = {} is less than a fourteenth of ticket_lifetime_s = {}",
            entry.ticket_rotation_s, entry.ticket_lifetime_s
        );
        cx.problem(
            &format!("tls.{key}"),
            what,
            format!("make ticket_rotation_s at least {shortest}"),
        );
    }
    let mut peers: Vec<TlsPeer> = Vec::new();
    for (i, peer) in entry.peer.iter().enumerate() {
        if let Some(peer) = self::peer(i, peer, &peers, cx) {
            peers.push(peer);
        }
    }
    Tls {
        listeners: Vec::new(),
        tickets: TicketSettings {
            lifetime_s: entry.ticket_lifetime_s,
            rotation_s: entry.ticket_rotation_s,
        },
        ticket_keys: data_dir.join("tickets.key"),
        ca: optional_file("tls.ca", entry.ca.as_deref(), cx),
        ca_place: place("tls.ca", entry.ca.is_some(), cx),
        crl: optional_file("tls.crl", entry.crl.as_deref(), cx),
        crl_place: place("tls.crl", entry.crl.is_some(), cx),
        remembered_peers: entry.remembered_peers,
        peers,
    }
}

fn place(key: &str, is_there: bool, cx: &Context<'_>) -> String {
    if is_there {
        cx.place_text(key)
    } else {
        key.to_owned()
    }
}

fn peer(i: usize, entry: &model::TlsPeer, others: &[TlsPeer], cx: &mut Context<'_>) -> Option<TlsPeer> {
    let path = format!("tls.peer[{i}]");
    let identity = match (&entry.certificate, &entry.key) {
        (Some(certificate), Some(key)) => identity(&path, certificate, key, cx),
        (None, None) => None,
        (Some(_), None) => {
            cx.problem(&format!("{path}.key"), "missing", "write key = \"…\"");
            None
        }
        (None, Some(_)) => {
            let remedy = "write certificate = \"…\"";
            cx.problem(&format!("{path}.certificate"), "missing", remedy);
            None
        }
    };
    let named = [&entry.ca, &entry.crl, &entry.certificate, &entry.key];
    if named.iter().all(|file| file.is_none()) {
        let what = "neither ca, crl nor certificate, so nothing is different for it";
        cx.problem(&path, what, "add one of them, or remove the peer");
    }
    let ca = optional_file(&format!("{path}.ca"), entry.ca.as_deref(), cx);
    let crl = optional_file(&format!("{path}.crl"), entry.crl.as_deref(), cx);
    let Some(name) = domain(&entry.domain) else {
        let what = format!("{:?} is not a domain name", entry.domain);
        let remedy = "write it as \"example.com\", without \"sip:\" and port";
        cx.problem(&format!("{path}.domain"), what, remedy);
        return None;
    };
    let domain = String::from_utf8_lossy(&name).into_owned();
    if others.iter().any(|other| other.domain == domain) {
        let what = format!("{domain:?} has an entry already");
        cx.problem(&format!("{path}.domain"), what, "remove one of them");
        return None;
    }
    Some(TlsPeer {
        place: cx.place_text(&path),
        domain,
        ca,
        crl,
        identity,
    })
}

fn optional_file(path: &str, file: Option<&str>, cx: &mut Context<'_>) -> Option<PathBuf> {
    file.and_then(|file| self::file(path, file, cx))
}

fn file(path: &str, file: &str, cx: &mut Context<'_>) -> Option<PathBuf> {
    if file.is_empty() {
        cx.problem(path, "empty", "write the name of a file");
        return None;
    }
    Some(cx.path(file))
}

fn identity(path: &str, certificate: &str, key: &str, cx: &mut Context<'_>) -> Option<IdentityFiles> {
    let certificate = file(&format!("{path}.certificate"), certificate, cx);
    let key = file(&format!("{path}.key"), key, cx);
    Some(IdentityFiles {
        certificate: certificate?,
        key: key?,
    })
}

/// The settings of the connections of `[[listen]]` number `i`. TLS is added to `tls`.
pub(super) fn service(i: usize, entry: &Listen, tls: &mut Tls, cx: &mut Context<'_>) -> Service {
    let path = format!("listen[{i}]");
    let transport = entry.transport;
    let speaks_tls = matches!(transport, ListenTransport::Tls | ListenTransport::Wss);
    let index = match &entry.tls {
        Some(own) if speaks_tls => listener(&path, entry, own, tls, cx),
        Some(_) => {
            let what = format!("{} has no TLS", transport.name());
            let remedy = match transport {
                ListenTransport::Ws => "remove it, or write transport = \"wss\"",
                ListenTransport::Udp | ListenTransport::Tcp | ListenTransport::Tls | ListenTransport::Wss => {
                    "remove it, or write transport = \"tls\""
                }
            };
            cx.problem(&format!("{path}.tls"), what, remedy);
            None
        }
        // A problem of `tls` is already reported.
        None if speaks_tls && !cx.is_told(&format!("{path}.tls")) => {
            let remedy = "write tls = { certificate = \"cert.pem\", key = \"key.pem\" }";
            cx.problem(&format!("{path}.tls"), "missing", remedy);
            None
        }
        None => None,
    };
    if entry.connection.is_some() && !matches!(transport, ListenTransport::Tcp | ListenTransport::Tls) {
        let what = format!("no connection is opened from {}", transport.name());
        cx.problem(&format!("{path}.connection"), what, "remove it");
    }
    Service {
        tls: index,
        origins: origins(&path, entry, cx),
        sharing: match entry.connection.unwrap_or_default() {
            Connection::PerPeer => Sharing::PerPeer,
            Connection::PerCall => Sharing::PerCall,
        },
    }
}

fn origins(path: &str, entry: &Listen, cx: &mut Context<'_>) -> AllowedOrigins {
    let Some(origins) = &entry.origins else {
        return AllowedOrigins::any();
    };
    if !matches!(entry.transport, ListenTransport::Ws | ListenTransport::Wss) {
        let what = format!("browsers do not speak {}", entry.transport.name());
        cx.problem(&format!("{path}.origins"), what, "remove it");
        return AllowedOrigins::any();
    }
    let mut good = Vec::new();
    for (j, origin) in origins.iter().enumerate() {
        match AllowedOrigins::only([origin.as_str()]) {
            Ok(_) => good.push(origin.as_str()),
            Err(_) => cx.problem(
                &format!("{path}.origins[{j}]"),
                format!("{origin:?} is not an origin"),
                "write it as \"https://phone.example.com\", with a port where it is not 443, and without a path",
            ),
        }
    }
    AllowedOrigins::only(good).unwrap_or_default()
}

fn listener(
    path: &str,
    entry: &Listen,
    own: &ListenTls,
    tls: &mut Tls,
    cx: &mut Context<'_>,
) -> Option<usize> {
    let at = format!("{path}.tls");
    let mut identities = Vec::with_capacity(1 + own.more.len());
    identities.extend(identity(&at, &own.certificate, &own.key, cx));
    for (j, more) in own.more.iter().enumerate() {
        identities.extend(identity(
            &format!("{at}.more[{j}]"),
            &more.certificate,
            &more.key,
            cx,
        ));
    }
    let client_ca = optional_file(&format!("{at}.client_ca"), own.client_ca.as_deref(), cx);
    let client_crl = optional_file(&format!("{at}.client_crl"), own.client_crl.as_deref(), cx);
    for (key, is_there) in [
        ("client_ca", own.client_ca.is_some()),
        ("client_crl", own.client_crl.is_some()),
        ("client_names", !own.client_names.is_empty()),
    ] {
        if is_there && own.client_auth == model::ClientAuth::None {
            let what = "clients are not asked for a certificate";
            let remedy = "write client_auth = \"optional\" or \"required\", or remove it";
            cx.problem(&format!("{at}.{key}"), what, remedy);
        }
    }
    let client_names = client_names(&at, own, cx);
    let has = |version| own.versions.contains(&version);
    let versions = match (has(TlsVersion::V12), has(TlsVersion::V13)) {
        (true, false) => Versions::Tls12,
        (false, true) => Versions::Tls13,
        (true, true) | (false, false) => Versions::Both,
    };
    let ticket_keys = optional_file(&format!("{at}.ticket_keys"), own.ticket_keys.as_deref(), cx);
    let label = format!("{} {}", entry.transport.name(), entry.address);
    let ticket_name = ticket_name(entry, tls);
    tls.listeners.push(TlsListener {
        place: cx.place_text(&at),
        label,
        ticket_name,
        identities,
        is_own: false,
        client_auth: match own.client_auth {
            model::ClientAuth::None => tls::ClientAuth::None,
            model::ClientAuth::Optional => tls::ClientAuth::Optional,
            model::ClientAuth::Required => tls::ClientAuth::Required,
        },
        client_ca,
        client_crl,
        client_names,
        ticket_keys,
        versions,
        connects: entry.transport == ListenTransport::Tls,
    });
    Some(tls.listeners.len() - 1)
}

/// The domains of which a client must prove one.
fn client_names(at: &str, own: &ListenTls, cx: &mut Context<'_>) -> Vec<String> {
    let mut out = Vec::new();
    for (i, text) in own.client_names.iter().enumerate() {
        match domain(text).map(|name| String::from_utf8_lossy(&name).into_owned()) {
            Some(name) => out.push(name),
            None => {
                let what = format!("{text:?} is not a domain");
                let remedy = "write the peer's SIP domain, as \"edge2.example.com\"";
                cx.problem(&format!("{at}.client_names[{i}]"), what, remedy);
            }
        }
    }
    out
}

/// Transport and port, which are the same at all nodes of a cluster, unlike their addresses. A number is
/// added if several listeners of this node have the same.
fn ticket_name(entry: &Listen, tls: &Tls) -> String {
    let port = entry.address.rsplit_once(':').map_or("", |(_, port)| port);
    let name = format!("{} {port}", entry.transport.name());
    let is_taken = |name: &String| tls.listeners.iter().any(|other| other.ticket_name == *name);
    let numbered = (2..).map(|number| format!("{name} {number}"));
    std::iter::once(name.clone())
        .chain(numbered)
        .find(|name| !is_taken(name))
        .unwrap_or(name)
}

/// TLS of the built-in listeners, with the certificate of the first start.
pub(super) fn built_in(data_dir: &Path, tls: &mut Tls) -> Service {
    let directory = data_dir.join("tls");
    tls.listeners.push(TlsListener {
        place: "the built-in listener".to_owned(),
        label: "tls *:5061".to_owned(),
        ticket_name: "tls 5061".to_owned(),
        identities: vec![IdentityFiles {
            certificate: directory.join("cert.pem"),
            key: directory.join("key.pem"),
        }],
        is_own: true,
        client_auth: tls::ClientAuth::None,
        client_ca: None,
        client_crl: None,
        client_names: Vec::new(),
        ticket_keys: None,
        versions: Versions::Both,
        connects: true,
    });
    Service {
        tls: Some(tls.listeners.len() - 1),
        ..Service::default()
    }
}
