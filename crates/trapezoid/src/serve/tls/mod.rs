//! The files of TLS: read at the start and at each reload, and watched for their expiry.
//!
//! A reload affects new connections only: open ones keep their configuration. If a file is bad, the parts
//! that depend on it stay as they were. The error is reported with its place in the configuration and a
//! remedy.

mod expiry;
pub(crate) mod own;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use sip_net::tcp::StreamService;
use sip_net::tls::{
    ClientSettings, ServerSettings, TicketKeys, TlsClient, TlsClients, TlsFileError, TlsServer, TlsWarning,
    system_clock,
};

pub(crate) use self::expiry::{CertificateExpiry, Use};
use settings::{Service, Shell, Tls, TlsListener};

/// Errors and warnings about the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// Errors; the parts that depend on the files were left as they were.
    pub errors: Vec<String>,
    /// Findings that do not prevent use, but need attention.
    pub warnings: Vec<String>,
}

impl Findings {
    fn error(&mut self, place: &str, error: &TlsFileError) {
        push(&mut self.errors, format!("{place}: {error}{}", remedy(error)));
    }

    fn warn(&mut self, place: &str, warnings: &[TlsWarning]) {
        for warning in warnings {
            let remedy = remedy_of_warning(warning);
            push(&mut self.warnings, format!("{place}: {warning}{remedy}"));
        }
    }
}

/// Adds a line once: several listeners may have the same file.
fn push(list: &mut Vec<String>, line: String) {
    if !list.contains(&line) {
        list.push(line);
    }
}

/// The remedy that the error does not name itself.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "there may be more; most say themselves what would be right"
)]
fn remedy(error: &TlsFileError) -> &'static str {
    match error {
        TlsFileError::Read { .. } => "; name a file that the server can read",
        TlsFileError::Certificate { .. } => "; put a certificate of X.509 version 3 there",
        TlsFileError::KeyMismatch { .. } => "; name the key that the certificate was issued for",
        _ => "",
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "there may be more; the others say themselves what would be right"
)]
fn remedy_of_warning(warning: &TlsWarning) -> &'static str {
    match warning {
        TlsWarning::Expired { .. } | TlsWarning::ExpiresSoon { .. } => "; renew it and reload",
        TlsWarning::NotYetValid { .. } => "; look at the clock of this machine",
        TlsWarning::RevocationListOutOfDate { .. } => "; fetch the authority's new one and reload",
        TlsWarning::NoSipDomain { .. } => "; have one issued for the domain itself",
        TlsWarning::SystemRootsSkipped { .. } => "; update the package ca-certificates",
        _ => "",
    }
}

/// All TLS files in force.
#[derive(Debug)]
pub(crate) struct TlsFiles {
    /// In the order of [`Tls::listeners`]; `None` if the certificate of the first start is not made yet.
    listeners: Vec<Option<Listening>>,
    tickets: Vec<Tickets>,
    /// Certificates of each listener and peer.
    ends: Mutex<Vec<CertificateExpiry>>,
    settings: Tls,
}

/// TLS of one `[[listen]]`, whatever number of addresses it stands for.
#[derive(Debug)]
struct Listening {
    server: Arc<TlsServer>,
    clients: Option<Arc<TlsClients>>,
}

/// A file of ticket keys, with its keys, shared by all listeners that name the file.
struct Tickets {
    place: String,
    path: std::path::PathBuf,
    keys: Arc<TicketKeys>,
}

impl std::fmt::Debug for Tickets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tickets")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl TlsFiles {
    /// Reads and checks all files that the configuration names. Files made at the first start are read only
    /// if they exist. All errors are reported, not only the first.
    pub(crate) fn load(shell: &Shell) -> (Self, Findings) {
        let mut findings = Findings::default();
        let tls = &shell.tls;
        let mut files = Self {
            listeners: Vec::new(),
            tickets: Vec::new(),
            ends: Mutex::default(),
            settings: tls.clone(),
        };
        let can_connect = check_peers(tls, &mut findings);
        for listener in &tls.listeners {
            let listening = files.listener(listener, can_connect, &mut findings);
            files.listeners.push(listening);
        }
        files.look_at_ends(&[]);
        let ends = files.ends.lock();
        let soon = ends.iter().flat_map(|ends| ends.of_first_start());
        soon.for_each(|line| push(&mut findings.warnings, line));
        drop(ends);
        (files, findings)
    }

    fn listener(
        &mut self,
        listener: &TlsListener,
        can_connect: bool,
        findings: &mut Findings,
    ) -> Option<Listening> {
        let is_made = |path: &Path| path.exists();
        if listener.is_own
            && !listener
                .identities
                .iter()
                .any(|files| is_made(&files.certificate))
        {
            return None;
        }
        let tickets = self.tickets(listener, findings);
        let mut warnings = Vec::new();
        let server = TlsServer::load(server_settings(listener), tickets, system_clock(), &mut warnings);
        let server = match server {
            Ok(server) => Arc::new(server),
            Err(error) => {
                findings.error(&listener.place, &error);
                return None;
            }
        };
        findings.warn(&listener.place, &warnings);
        let clients = if can_connect && listener.connects {
            match clients(&self.settings, listener) {
                Ok(clients) => Some(Arc::new(clients)),
                Err(error) => {
                    findings.error(&listener.place, &error);
                    None
                }
            }
        } else {
            None
        };
        Some(Listening { server, clients })
    }

    /// The keys of a listener's tickets; `None` if the file is wrong, which is reported, or not made yet.
    fn tickets(&mut self, listener: &TlsListener, findings: &mut Findings) -> Option<Arc<TicketKeys>> {
        let path = listener
            .ticket_keys
            .as_ref()
            .unwrap_or(&self.settings.ticket_keys);
        if listener.ticket_keys.is_none() && !path.exists() {
            return None;
        }
        if let Some(known) = self.tickets.iter().find(|known| known.path == *path) {
            return Some(Arc::clone(&known.keys));
        }
        let mut warnings = Vec::new();
        match TicketKeys::load(path, self.settings.tickets, system_clock(), &mut warnings) {
            Ok(keys) => {
                findings.warn(&listener.place, &warnings);
                let keys = Arc::new(keys);
                self.tickets.push(Tickets {
                    place: listener.place.clone(),
                    path: path.clone(),
                    keys: Arc::clone(&keys),
                });
                Some(keys)
            }
            Err(error) => {
                findings.error(&listener.place, &error);
                None
            }
        }
    }

    /// The streams' settings for the workers, one for each listener of the core. `services` are those of the
    /// configuration. Listeners of one `[[listen]]` share its TLS server.
    pub(crate) fn services(&self, services: &[Service]) -> Vec<StreamService> {
        let of = |service: &Service| {
            let listening = service.tls.and_then(|index| self.listeners.get(index)?.as_ref());
            StreamService {
                server: listening.map(|listening| Arc::clone(&listening.server)),
                clients: listening.and_then(|listening| listening.clients.clone()),
                origins: service.origins.clone(),
                sharing: service.sharing,
            }
        };
        services.iter().map(of).collect()
    }

    /// Reads all files again. Each listener uses its own if they are good, whatever those of others are.
    pub(crate) fn reload(&self) -> Findings {
        let mut findings = Findings::default();
        for tickets in &self.tickets {
            if let Err(error) = tickets.keys.reload() {
                findings.error(&tickets.place, &error);
            }
        }
        let mut stays = Vec::new();
        let listeners = self.settings.listeners.iter().zip(&self.listeners);
        for (listener, listening) in listeners {
            let Some(listening) = listening else { continue };
            match listening.server.reload() {
                Ok(warnings) => findings.warn(&listener.place, &warnings),
                Err(error) => {
                    // Our client uses the same certificate, so it keeps the old one, too.
                    findings.error(&listener.place, &error);
                    stays.push(Use::Listener(listener.label.clone()));
                    continue;
                }
            }
            if let Some(clients) = &listening.clients
                && let Err(error) = clients.reload()
            {
                findings.error(&self.place_of(&error, listener), &error);
                let peers = self.settings.peers.iter();
                stays.extend(peers.map(|peer| Use::Peer(peer.domain.clone())));
            }
        }
        self.look_at_ends(&stays);
        let soon: Vec<String> = self
            .ends
            .lock()
            .iter()
            .flat_map(CertificateExpiry::of_first_start)
            .collect();
        soon.into_iter()
            .for_each(|line| push(&mut findings.warnings, line));
        findings
    }

    /// The place in the configuration that names the file with the error.
    fn place_of(&self, error: &TlsFileError, listener: &TlsListener) -> String {
        let names = |path: &Path| error.path() == Some(path);
        let peers = self.settings.peers.iter();
        let mut peer = peers
            .filter(|peer| {
                let identity = peer.identity.iter();
                let files = identity.flat_map(|files| [&files.certificate, &files.key]);
                files.chain(&peer.ca).chain(&peer.crl).any(|path| names(path))
            })
            .map(|peer| peer.place.clone());
        let tls = &self.settings;
        let common = || {
            let ca = tls.ca.iter().map(|path| (path, &tls.ca_place));
            let mut all = ca.chain(tls.crl.iter().map(|path| (path, &tls.crl_place)));
            all.find(|(path, _)| names(path)).map(|(_, place)| place.clone())
        };
        peer.next()
            .or_else(common)
            .unwrap_or_else(|| listener.place.clone())
    }

    /// Every file that a reload reads again, each once.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        let tls = &self.settings;
        let listeners = tls.listeners.iter().zip(&self.listeners);
        for (listener, _) in listeners.filter(|(_, listening)| listening.is_some()) {
            for files in &listener.identities {
                push(&mut out, files.certificate.display().to_string());
                push(&mut out, files.key.display().to_string());
            }
            let trust = listener.client_ca.iter().chain(&listener.client_crl);
            trust.for_each(|path| push(&mut out, path.display().to_string()));
        }
        let tickets = self.tickets.iter().map(|tickets| &tickets.path);
        let peers = tls.peers.iter();
        let of_peers = peers.flat_map(|peer| {
            let identity = peer.identity.iter();
            let files = identity.flat_map(|files| [&files.certificate, &files.key]);
            peer.ca.iter().chain(&peer.crl).chain(files)
        });
        for path in tickets.chain(&tls.ca).chain(&tls.crl).chain(of_peers) {
            push(&mut out, path.display().to_string());
        }
        out
    }

    /// The expiry of the certificates in force.
    pub(crate) fn ends(&self) -> Vec<CertificateExpiry> {
        self.ends.lock().clone()
    }

    /// Reads the expiries anew, except for certificates in `stays`, which are the old ones.
    fn look_at_ends(&self, stays: &[Use]) {
        let mut found = Vec::new();
        let listeners = self.settings.listeners.iter().zip(&self.listeners);
        for (listener, _) in listeners.filter(|(_, listening)| listening.is_some()) {
            let to = Use::Listener(listener.label.clone());
            found.extend(
                listener
                    .identities
                    .iter()
                    .map(|files| (to.clone(), files, listener.is_own)),
            );
        }
        for peer in &self.settings.peers {
            let to = Use::Peer(peer.domain.clone());
            found.extend(peer.identity.iter().map(|files| (to.clone(), files, false)));
        }
        let mut ends = self.ends.lock();
        let kept = ends.iter().filter(|ends| stays.contains(&ends.to)).cloned();
        let new = found
            .into_iter()
            .filter(|(to, ..)| !stays.contains(to))
            .filter_map(|(to, files, is_own)| CertificateExpiry::read(&to, files, is_own));
        *ends = new.chain(kept).collect();
    }
}

fn server_settings(listener: &TlsListener) -> ServerSettings {
    ServerSettings {
        name: listener.ticket_name.clone(),
        identities: listener.identities.clone(),
        client_auth: listener.client_auth,
        client_ca: listener.client_ca.clone(),
        client_crl: listener.client_crl.clone(),
        client_names: listener.client_names.clone(),
        versions: listener.versions,
    }
}

/// Our TLS clients for peers to which we connect from `listener`.
fn clients(tls: &Tls, listener: &TlsListener) -> Result<TlsClients, TlsFileError> {
    // No peer has an authority for the certificate of the first start. If a peer asks for a certificate
    // without requiring one, presenting this one would only end the connection.
    let first = listener.identities.first().filter(|_| !listener.is_own);
    let others = ClientSettings {
        identity: first.cloned(),
        ca: tls.ca.clone(),
        crl: tls.crl.clone(),
        remembered_peers: tls.remembered_peers,
        versions: listener.versions,
    };
    let peers = tls.peers.iter().map(|peer| {
        let settings = ClientSettings {
            identity: peer.identity.clone().or_else(|| others.identity.clone()),
            ca: peer.ca.clone().or_else(|| tls.ca.clone()),
            crl: peer.crl.clone().or_else(|| tls.crl.clone()),
            // The peer is a single one.
            remembered_peers: tls.remembered_peers.min(1),
            versions: listener.versions,
        };
        (peer.domain.clone(), settings)
    });
    let peers: Vec<_> = peers.collect();
    TlsClients::load(others, peers, system_clock(), &mut Vec::new())
}

/// Checks the files that listeners have in common. Returns whether TLS connections can be opened at all.
fn check_peers(tls: &Tls, findings: &mut Findings) -> bool {
    if !tls.listeners.iter().any(|listener| listener.connects) {
        return false;
    }
    let common = (&tls.ca_place, &tls.crl_place, &tls.ca, &tls.crl, None);
    let peers = tls.peers.iter();
    let peers = peers.map(|peer| {
        let ca = if peer.ca.is_some() { &peer.ca } else { &tls.ca };
        let crl = if peer.crl.is_some() { &peer.crl } else { &tls.crl };
        (&peer.place, &peer.place, ca, crl, peer.identity.clone())
    });
    let mut good = true;
    for (place, crl_place, ca, crl, identity) in std::iter::once(common).chain(peers) {
        let settings = ClientSettings {
            identity,
            ca: ca.clone(),
            crl: crl.clone(),
            ..ClientSettings::default()
        };
        let mut warnings = Vec::new();
        match TlsClient::load(settings, system_clock(), &mut warnings) {
            Ok(_) => {
                let is_of_crl =
                    |warning: &TlsWarning| matches!(warning, TlsWarning::RevocationListOutOfDate { .. });
                let (of_crl, others): (Vec<_>, Vec<_>) = warnings.into_iter().partition(is_of_crl);
                findings.warn(place, &others);
                findings.warn(crl_place, &of_crl);
            }
            // A registrar without neighbours does not need authorities.
            Err(error @ TlsFileError::NoSystemRoots) => {
                good = false;
                let line = format!("{place}: {error}; until then no connection by TLS is opened from here");
                push(&mut findings.warnings, line);
            }
            Err(error) => {
                good = false;
                let is_of_crl = crl.is_some() && error.path() == crl.as_deref();
                findings.error(if is_of_crl { crl_place } else { place }, &error);
            }
        }
    }
    good
}
