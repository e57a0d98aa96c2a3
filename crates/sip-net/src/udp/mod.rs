//! Datagrams in batches.
//!
//! One `recvmmsg` and (mostly) one `sendmmsg` for each socket and turn, into and out of memory
//! that is made once. ICMP errors come back with the bytes of the datagram that caused them.

mod recv;
mod send;
mod socket;
pub(crate) mod steer;

pub use recv::{Datagram, RecvBatch};
pub(crate) use send::NOWHERE;
pub use send::{Backlog, SendBatch, SendReport};
pub(crate) use socket::local_address;
pub use socket::{IcmpErrors, UdpOptions, UdpSocket};

/// Errors of earlier datagrams that one call puts up with before it believes that an error is its
/// own (udp(7): the kernel reports an ICMP error to whatever call comes next).
const PENDING_ERRORS: u32 = 3;
