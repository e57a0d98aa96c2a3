//! End-to-end tests: a real server process, real peers, real sockets, one loopback address for
//! each test so that all of them run side by side.
//!
//! A test makes a [`Scene`], starts a [`Server`] in it, then the peers. Whatever is left running
//! is ended when its handle is dropped; a test that panics prints every log of its scene.
//!
//! No test counts on the machine's speed. It waits for events ([`wait_until`]) and never for a time in which
//! something will have happened; a least time is taken from before what starts it.

mod agent;
mod baresip;
mod browser;
mod certificates;
mod child;
pub mod digest;
mod dns;
pub mod generator;
mod kamailio;
mod link;
mod load;
mod networks;
mod openssl;
mod phone;
mod repeats;
mod scene;
mod server;
mod sipp;
pub mod torture;
mod wire;

pub use agent::{Agent, Dialog};
pub use baresip::Baresip;
pub use browser::{Browser, Tab};
pub use certificates::{Authority, Identity, Name};
pub use child::{Child, in_time, wait_until};
pub use dns::NameServer;
pub use kamailio::{Kamailio, Secured};
pub use link::{Link, Reading, TlsPeer};
pub use load::{Class, Load, Outcome, Plan, percentile};
pub use networks::{Home, Mapping, Nat, Networks, in_networks};
pub use openssl::{SClient, make_ticket_keys};
pub use phone::{Heard, Part, Phone};
pub use scene::{Scene, namespaces, tool};
pub use server::{Config, DOMAIN, Server, binary, command};
pub use sipp::{Running, Sipp, Stats};
pub use wire::{Client, Message};

use std::time::Duration;

/// How long a test waits for what must come. It is a bound for what is stuck: a wait ends with its event.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The same, where a program is to start or to end.
pub const STARTING: Duration = Duration::from_secs(60);

/// Ports on the scene's address, by listener.
pub mod port {
    /// The server under test.
    pub const SERVER: u16 = 5060;
    /// The same over TLS.
    pub const TLS: u16 = 5061;
    /// The same over WebSocket.
    pub const WS: u16 = 5066;
    /// The same over WebSocket on TLS.
    pub const WSS: u16 = 5067;
    /// The callee.
    pub const CALLEE: u16 = 5070;
    /// The caller.
    pub const CALLER: u16 = 5090;
    /// A second proxy.
    pub const NEXT_HOP: u16 = 5080;
    /// The same over TCP, where it also speaks TLS.
    pub const NEXT_HOP_TCP: u16 = 5082;
    /// The server's admin address.
    pub const ADMIN: u16 = 8080;
}

/// The transports over which scenarios run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Datagrams.
    Udp,
    /// One connection.
    Tcp,
    /// One connection, secured.
    Tls,
    /// Messages of a WebSocket (RFC 7118).
    Ws,
    /// The same, secured.
    Wss,
}

impl Transport {
    /// Every transport.
    pub const ALL: [Self; 5] = [Self::Udp, Self::Tcp, Self::Tls, Self::Ws, Self::Wss];

    /// As a URI's `transport` parameter has it. That of a secured WebSocket is `ws` too
    /// (RFC 7118 §5.2).
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Ws | Self::Wss => "ws",
        }
    }

    /// As Via has it.
    pub fn via(self) -> &'static str {
        match self {
            Self::Udp => "UDP",
            Self::Tcp => "TCP",
            Self::Tls => "TLS",
            Self::Ws => "WS",
            Self::Wss => "WSS",
        }
    }

    /// Where the server listens for it.
    pub fn port(self) -> u16 {
        match self {
            Self::Udp | Self::Tcp => port::SERVER,
            Self::Tls => port::TLS,
            Self::Ws => port::WS,
            Self::Wss => port::WSS,
        }
    }

    /// Whether messages follow each other without bounds but their own.
    pub fn is_stream(self) -> bool {
        matches!(self, Self::Tcp | Self::Tls)
    }

    /// Whether its clients have no address to connect to.
    pub fn is_websocket(self) -> bool {
        matches!(self, Self::Ws | Self::Wss)
    }
}

/// Makes of each `fn name(transport: Transport)` the tests `name::udp` and `name::tcp`.
#[macro_export]
macro_rules! over_udp_and_tcp {
    ($($name:ident),+ $(,)?) => { $(
        mod $name {
            #[test]
            fn udp() {
                super::$name($crate::Transport::Udp);
            }
            #[test]
            fn tcp() {
                super::$name($crate::Transport::Tcp);
            }
        }
    )+ };
}
