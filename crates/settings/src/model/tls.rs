//! `[tls]`, and `tls` of `[[listen]]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// TLS of a listener: `tls` and `wss` need it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListenTls {
    /// File of our certificate (PEM): first our own, then those that lead from it to an authority. Shown to a
    /// client that asks for none of the names in `more`.
    #[schemars(length(min = 1))]
    pub certificate: String,
    /// File of its private key (PEM, without a password; mode 0600).
    #[schemars(length(min = 1))]
    pub key: String,
    /// More certificates, chosen by the name that a client asks for (SNI).
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub more: Vec<Identity>,
    /// Whether clients show a certificate: `none`, they are not asked; `optional`, they are asked; `required`, none
    /// gets in without. One that is shown must hold in any case.
    #[serde(default)]
    pub client_auth: ClientAuth,
    /// File of the authorities of clients' certificates (PEM).
    #[serde(default)]
    #[schemars(extend("x-default" = "those of the system"), length(min = 1))]
    pub client_ca: Option<String>,
    /// File of the lists of what these authorities have revoked (PEM, one list or several, read again at each
    /// reload). An authority without a list there has revoked nothing; a list that is out of date still counts.
    #[serde(default)]
    #[schemars(extend("x-default" = "nothing is revoked"), length(min = 1))]
    pub client_crl: Option<String>,
    /// SIP domains of which a client's certificate must name one (RFC 5922 §7.1); others of the same
    /// authority are not served. Empty: any.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    pub client_names: Vec<String>,
    /// File of the keys of session tickets; nodes that share it resume each other's sessions. See
    /// [tls.md](tls.md#tickets).
    #[serde(default)]
    #[schemars(extend("x-default" = "`tickets.key` in `server.data_dir`, made at the first start"), length(min = 1))]
    pub ticket_keys: Option<String>,
    /// Versions of TLS that are spoken.
    #[serde(default = "versions")]
    #[schemars(length(min = 1, max = 2))]
    pub versions: Vec<TlsVersion>,
}

fn versions() -> Vec<TlsVersion> {
    vec![TlsVersion::V12, TlsVersion::V13]
}

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Identity {
    /// As `certificate` of the listener.
    #[schemars(length(min = 1))]
    pub certificate: String,
    /// As `key` of the listener.
    #[schemars(length(min = 1))]
    pub key: String,
}

/// Whether clients show a certificate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ClientAuth {
    #[default]
    None,
    Optional,
    Required,
}

/// Versions of TLS; older ones are withdrawn (RFC 8996).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) enum TlsVersion {
    #[serde(rename = "1.2")]
    V12,
    #[serde(rename = "1.3")]
    V13,
}

/// How connections that we open are shared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Connection {
    #[default]
    PerPeer,
    PerCall,
}

/// TLS towards the peers to which we connect, and what all listeners have in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Tls {
    /// File of the authorities of the servers to which we connect (PEM). Their certificates must also name the SIP
    /// domain that is meant (RFC 5922).
    #[schemars(extend("x-default" = "those of the system"), length(min = 1))]
    pub ca: Option<String>,
    /// File of the lists of what these authorities have revoked (PEM), as `client_crl` of a listener.
    #[schemars(extend("x-default" = "nothing is revoked"), length(min = 1))]
    pub crl: Option<String>,
    /// How long a client may resume a session without a full handshake.
    #[schemars(range(min = 60, max = 604_800))]
    pub ticket_lifetime_s: u32,
    /// How often the key that encrypts tickets changes; a fourteenth of `ticket_lifetime_s` or more.
    #[schemars(range(min = 60, max = 604_800))]
    pub ticket_rotation_s: u32,
    /// Servers whose sessions are remembered, so that we resume them; 0: none. At the limit the oldest leaves.
    #[schemars(range(max = 1_000_000))]
    pub remembered_peers: usize,
    /// Servers with which something else is agreed.
    #[schemars(length(max = 1000))]
    pub peer: Vec<TlsPeer>,
}

impl Default for Tls {
    fn default() -> Self {
        let tickets = sip_net::tls::TicketSettings::default();
        Self {
            ca: None,
            crl: None,
            ticket_lifetime_s: tickets.lifetime_s,
            ticket_rotation_s: tickets.rotation_s,
            remembered_peers: 10_000,
            peer: Vec::new(),
        }
    }
}

/// A server with which something else is agreed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TlsPeer {
    /// Its SIP domain: the host of the URI by which we send to it, before any resolution.
    pub domain: String,
    /// File of the authorities of its certificate (PEM).
    #[serde(default)]
    #[schemars(extend("x-default" = "`tls.ca`"), length(min = 1))]
    pub ca: Option<String>,
    /// File of the lists of what they have revoked (PEM).
    #[serde(default)]
    #[schemars(extend("x-default" = "`tls.crl`"), length(min = 1))]
    pub crl: Option<String>,
    /// File of the certificate that we show it (PEM), with `key`.
    #[serde(default)]
    #[schemars(extend("x-default" = "that of the listener from which we connect"), length(min = 1))]
    pub certificate: Option<String>,
    /// File of its private key (PEM).
    #[serde(default)]
    #[schemars(extend("x-default" = "that of the listener from which we connect"), length(min = 1))]
    pub key: Option<String>,
}
