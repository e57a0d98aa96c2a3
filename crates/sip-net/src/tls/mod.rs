//! TLS without sockets: everything is a value that is fed with bytes.
//!
//! - [`TlsSession`]: one connection.
//! - [`TlsServer`], [`TlsClient`]: the configuration of a listener, or of our end towards peers; reloaded
//!   while connections go on.
//! - [`TlsClients`]: our ends towards peers, by their domains.
//! - [`Identities`]: our certificates, found by the name that a client asks for.
//! - [`TicketKeys`]: sessions that go on at another node, and after a restart.
//! - [`SipIdentities`]: for which SIP domains a peer's certificate speaks (RFC 5922).
//!
//! The protocol and the cryptography are those of rustls on AWS-LC, which is named in every
//! configuration: there is no provider of the whole process.

mod clients;
mod config;
mod error;
mod files;
mod identity;
mod names;
mod session;
mod tickets;
mod trust;
mod verify;

#[cfg(test)]
mod tests;

pub use clients::TlsClients;
pub use config::{ClientSettings, ServerSettings, TlsClient, TlsServer, Versions, provider, system_clock};
pub use error::{TlsError, TlsFileError, TlsWarning};
pub use identity::{Identities, IdentityFiles};
pub use names::SipIdentities;
pub use rustls;
pub use session::{Agreed, DEFAULT_BUFFER_LIMIT, Fed, TlsSession};
pub use tickets::{
    MAX_TICKET_KEYS, MAX_TICKET_LIFETIME_S, TicketKeys, TicketSettings, create_ticket_key_file,
    new_ticket_key,
};
pub use verify::ClientAuth;
