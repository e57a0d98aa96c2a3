//! TLS configuration of a listener, and of our clients: certificates, authorities, tickets. All of it can be
//! exchanged while connections are open.
//!
//! A reload reads and checks every file, and only then replaces the old configuration as a whole. Connections
//! keep the configuration with which they began. A bad file changes nothing.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use rustls::client::{ClientSessionMemoryCache, ClientSessionStore, Resumption, Tls12Resumption};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::sign::SingleCertAndKey;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion};

use super::error::{TlsError, TlsFileError, TlsWarning};
use super::files::sha256;
use super::identity::{Identities, IdentityFiles, load_key};
use super::session::{Resumed, TlsSession};
use super::tickets::{TicketKeys, Ticketer};
use super::trust::Trust;
use super::verify::{ClientAuth, SipServerVerifier, client_verifier};

/// Tickets after a full handshake of TLS 1.3. Each can be used once (RFC 8446 §C.4), and a client that opens
/// two connections at once needs two.
const TICKETS: usize = 2;
/// Tickets that the library keeps for each server.
const TICKETS_PER_SERVER: usize = 8;

/// The one provider of cryptography: AWS-LC, with the suites that RFC 9325 recommends. Our order of suites
/// counts. AES-128 with SHA-256 comes first, because its handshake costs less than that with SHA-384, for
/// which processors have no instructions.
pub fn provider() -> Arc<CryptoProvider> {
    use aws_lc_rs::cipher_suite as suite;
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let make = || {
        Arc::new(CryptoProvider {
            cipher_suites: vec![
                suite::TLS13_AES_128_GCM_SHA256,
                suite::TLS13_CHACHA20_POLY1305_SHA256,
                suite::TLS13_AES_256_GCM_SHA384,
                suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
                suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
                suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
                suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
                suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
                suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            ],
            ..aws_lc_rs::default_provider()
        })
    };
    Arc::clone(PROVIDER.get_or_init(make))
}

/// The clock of the system.
pub fn system_clock() -> Arc<dyn TimeProvider> {
    Arc::new(DefaultTimeProvider)
}

/// The supported versions of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Versions {
    /// 1.2 and 1.3.
    #[default]
    Both,
    /// 1.2 only; for comparisons.
    Tls12,
    /// 1.3 only.
    Tls13,
}

impl Versions {
    fn list(self) -> &'static [&'static SupportedProtocolVersion] {
        static BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
        static ONLY_12: &[&SupportedProtocolVersion] = &[&TLS12];
        static ONLY_13: &[&SupportedProtocolVersion] = &[&TLS13];
        match self {
            Self::Both => BOTH,
            Self::Tls12 => ONLY_12,
            Self::Tls13 => ONLY_13,
        }
    }
}

/// TLS settings of a listener.
#[derive(Clone, Debug, Default)]
pub struct ServerSettings {
    /// Name to which tickets are bound. Nodes at which a client may resume a session give the same name to
    /// the same listener. Different listeners have different names.
    pub name: String,
    /// Our certificates, at least one. The first is for clients that name no server, or an unknown one.
    pub identities: Vec<IdentityFiles>,
    /// Whether clients must present a certificate.
    pub client_auth: ClientAuth,
    /// The authorities of clients' certificates, PEM. `None`: those of the system.
    pub client_ca: Option<PathBuf>,
    /// Revocation lists of these authorities, PEM. `None`: no certificate counts as revoked.
    pub client_crl: Option<PathBuf>,
    /// SIP domains of which a client's certificate must name one (RFC 5922 §7.1). Empty: any certificate is
    /// accepted.
    pub client_names: Vec<String>,
    /// The supported versions.
    pub versions: Versions,
}

/// The TLS server of a listener.
pub struct TlsServer {
    settings: ServerSettings,
    tickets: Option<Arc<TicketKeys>>,
    clock: Arc<dyn TimeProvider>,
    current: ArcSwap<ServerState>,
}

struct ServerState {
    config: Arc<ServerConfig>,
    identities: Arc<Identities>,
}

impl TlsServer {
    /// Reads and checks all files. If `tickets` is `None`, no session is ever resumed.
    ///
    /// # Errors
    /// A file is missing or wrong.
    pub fn load(
        settings: ServerSettings,
        tickets: Option<Arc<TicketKeys>>,
        clock: Arc<dyn TimeProvider>,
        warnings: &mut Vec<TlsWarning>,
    ) -> Result<Self, TlsFileError> {
        let state = server_state(&settings, tickets.as_ref(), &clock, warnings)?;
        Ok(Self {
            settings,
            tickets,
            clock,
            current: ArcSwap::from_pointee(state),
        })
    }

    /// Reads all files again, except the keys of tickets ([`TicketKeys::reload`]). Open connections keep
    /// their configuration.
    ///
    /// # Errors
    /// A file is missing or wrong; the configuration then remains as it was.
    pub fn reload(&self) -> Result<Vec<TlsWarning>, TlsFileError> {
        let mut warnings = Vec::new();
        let state = server_state(&self.settings, self.tickets.as_ref(), &self.clock, &mut warnings)?;
        self.current.store(Arc::new(state));
        Ok(warnings)
    }

    /// The server's side of an accepted connection.
    ///
    /// # Errors
    /// An error of our own configuration, never of the peer.
    pub fn accept(&self) -> Result<TlsSession, TlsError> {
        TlsSession::server(Arc::clone(&self.current.load().config))
    }

    /// The library's present configuration.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.load().config)
    }

    /// The present certificates.
    pub fn identities(&self) -> Arc<Identities> {
        Arc::clone(&self.current.load().identities)
    }
}

fn server_state(
    settings: &ServerSettings,
    tickets: Option<&Arc<TicketKeys>>,
    clock: &Arc<dyn TimeProvider>,
    warnings: &mut Vec<TlsWarning>,
) -> Result<ServerState, TlsFileError> {
    let provider = provider();
    let now = now(clock)?;
    let identities = Arc::new(Identities::load(&settings.identities, &provider, now, warnings)?);
    let trust = match settings.client_auth {
        ClientAuth::None => Trust::none(),
        ClientAuth::Optional | ClientAuth::Required => {
            let (ca, crl) = (settings.client_ca.as_ref(), settings.client_crl.as_ref());
            Trust::load(ca, crl, now, warnings)?
        }
    };
    let context = context(settings, &trust);
    let verifier = client_verifier(settings.client_auth, trust, &settings.client_names, &provider)?;
    let mut config = ServerConfig::builder_with_details(provider, Arc::clone(clock))
        .with_protocol_versions(settings.versions.list())
        .map_err(|error| TlsFileError::Config(error.to_string()))?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::clone(&identities) as Arc<_>);
    config.ignore_client_order = true;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    config.send_tls13_tickets = 0;
    if let Some(keys) = tickets {
        config.send_tls13_tickets = TICKETS;
        config.ticketer = Arc::new(Ticketer::new(Arc::clone(keys), context));
    }
    Ok(ServerState {
        config: Arc::new(config),
        identities,
    })
}

/// The digest to which the tickets of a listener are bound.
fn context(settings: &ServerSettings, trust: &Trust) -> [u8; 32] {
    let auth: &[u8] = match settings.client_auth {
        ClientAuth::None => b"none",
        ClientAuth::Optional => b"optional",
        ClientAuth::Required => b"required",
    };
    let names = settings.client_names.join("\n");
    sha256(&[settings.name.as_bytes(), auth, names.as_bytes(), &trust.digest])
}

fn now(clock: &Arc<dyn TimeProvider>) -> Result<UnixTime, TlsFileError> {
    clock
        .current_time()
        .ok_or_else(|| TlsFileError::Config("the system's clock cannot be read".to_owned()))
}

/// TLS settings of our client.
#[derive(Clone, Debug, Default)]
pub struct ClientSettings {
    /// Our certificate, for peers that ask for one.
    pub identity: Option<IdentityFiles>,
    /// The authorities of peers' certificates, PEM. `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// Revocation lists of these authorities, PEM. `None`: no certificate counts as revoked.
    pub crl: Option<PathBuf>,
    /// Number of peers with sessions remembered for resumption; a new one replaces the oldest. 0: no session
    /// is resumed.
    pub remembered_peers: usize,
    /// The supported versions.
    pub versions: Versions,
}

/// Our TLS client.
pub struct TlsClient {
    settings: ClientSettings,
    clock: Arc<dyn TimeProvider>,
    current: ArcSwap<ClientState>,
}

struct ClientState {
    config: Arc<ClientConfig>,
    /// Sessions that can be resumed.
    sessions: Option<Arc<dyn ClientSessionStore>>,
}

impl TlsClient {
    /// Reads and checks all files.
    ///
    /// # Errors
    /// A file is missing or wrong, or the system has no authorities where none are named.
    pub fn load(
        settings: ClientSettings,
        clock: Arc<dyn TimeProvider>,
        warnings: &mut Vec<TlsWarning>,
    ) -> Result<Self, TlsFileError> {
        let state = client_state(&settings, &clock, warnings)?;
        Ok(Self {
            settings,
            clock,
            current: ArcSwap::from_pointee(state),
        })
    }

    /// Reads all files again, and forgets the sessions, so that a server that the new authorities do not
    /// verify cannot be resumed either.
    ///
    /// # Errors
    /// A file is missing or wrong; the configuration then remains as it was.
    pub fn reload(&self) -> Result<Vec<TlsWarning>, TlsFileError> {
        let mut warnings = Vec::new();
        let state = client_state(&self.settings, &self.clock, &mut warnings)?;
        self.current.store(Arc::new(state));
        Ok(warnings)
    }

    /// The client's side of a connection to a server. `domain` is the SIP domain that the server's
    /// certificate must name, the host of the URI before any resolution (RFC 5922 §4), or an address. The
    /// first bytes to send are appended to `out`.
    ///
    /// # Errors
    /// `domain` is no valid name, or our own configuration is wrong.
    pub fn connect(&self, domain: &str, out: &mut Vec<u8>) -> Result<TlsSession, TlsError> {
        let bare = domain
            .strip_prefix('[')
            .and_then(|domain| domain.strip_suffix(']'))
            .unwrap_or(domain);
        let bare = bare.strip_suffix('.').unwrap_or(bare);
        let name = ServerName::try_from(bare).map_err(|_| TlsError::Name(domain.to_owned()))?;
        let state = self.current.load();
        let name = name.to_owned();
        let mut session = TlsSession::client(Arc::clone(&state.config), name.clone(), out)?;
        if let Some(sessions) = &state.sessions {
            session.check_resumption(Resumed {
                sessions: Arc::clone(sessions),
                name,
                clock: Arc::clone(&self.clock),
            });
        }
        Ok(session)
    }

    /// The library's present configuration.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.current.load().config)
    }
}

fn client_state(
    settings: &ClientSettings,
    clock: &Arc<dyn TimeProvider>,
    warnings: &mut Vec<TlsWarning>,
) -> Result<ClientState, TlsFileError> {
    let provider = provider();
    let now = now(clock)?;
    let trust = Trust::load(settings.ca.as_ref(), settings.crl.as_ref(), now, warnings)?;
    let identity = match &settings.identity {
        Some(files) => Some(load_key(files, &provider, now, warnings)?),
        None => None,
    };
    let verifier = Arc::new(SipServerVerifier::new(trust, &provider));
    let builder = ClientConfig::builder_with_details(provider, Arc::clone(clock))
        .with_protocol_versions(settings.versions.list())
        .map_err(|error| TlsFileError::Config(error.to_string()))?
        // `dangerous` is the library's word for any verifier but its own.
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        Some(key) => {
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::unwrap_or_clone(key))))
        }
        None => builder.with_no_client_auth(),
    };
    let sessions = (settings.remembered_peers > 0).then(|| {
        let entries = settings.remembered_peers.saturating_mul(TICKETS_PER_SERVER);
        Arc::new(ClientSessionMemoryCache::new(entries)) as Arc<dyn ClientSessionStore>
    });
    config.resumption = match &sessions {
        Some(sessions) => {
            Resumption::store(Arc::clone(sessions)).tls12_resumption(Tls12Resumption::SessionIdOrTickets)
        }
        None => Resumption::disabled(),
    };
    config.enable_early_data = false;
    Ok(ClientState {
        config: Arc::new(config),
        sessions,
    })
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsServer")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
