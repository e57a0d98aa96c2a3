//! TLS without sockets: all types are values that are fed with bytes.
//!
//! - [`TlsSession`]: one connection.
//! - [`TlsServer`], [`TlsClient`]: the configuration of a listener, or of our client; reloaded while
//!   connections are open.
//! - [`TlsClients`]: our clients, by the domains of peers.
//! - [`Identities`]: our certificates, found by the name that a client asks for.
//! - [`TicketKeys`]: keys with which sessions are resumed at another node, and after a restart.
//! - [`SipIdentities`]: the SIP domains that a peer's certificate names (RFC 5922).
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
