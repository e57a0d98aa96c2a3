//! End-to-end tests: a real server process, real peers, real sockets, one loopback address for
//! each test so that all of them run side by side.
//!
//! A test makes a [`Scene`], starts a [`Server`] in it, then the peers. Whatever is left running
//! is ended when its handle is dropped; a test that panics prints every log of its scene.

mod baresip;
mod child;
mod kamailio;
mod phone;
mod scene;
mod server;
mod sipp;
pub mod torture;
mod wire;

pub use baresip::Baresip;
pub use child::Child;
pub use kamailio::Kamailio;
pub use phone::{Heard, Part, Phone};
pub use scene::{Scene, tool};
pub use server::{Config, DOMAIN, Server};
pub use sipp::{Running, Sipp, Stats};
pub use wire::{Client, Message};

/// Ports on the scene's address: who listens where.
pub mod port {
    /// The server under test.
    pub const SERVER: u16 = 5060;
    /// The callee.
    pub const CALLEE: u16 = 5070;
    /// The caller.
    pub const CALLER: u16 = 5090;
    /// A second proxy.
    pub const NEXT_HOP: u16 = 5080;
    /// The server's admin address.
    pub const ADMIN: u16 = 8080;
}

/// The transports over which each scenario runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Datagrams.
    Udp,
    /// One connection.
    Tcp,
}

impl Transport {
    /// As a URI's `transport` parameter has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
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
