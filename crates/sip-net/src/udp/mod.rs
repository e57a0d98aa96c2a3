//! Datagrams in batches.
//!
//! Each socket and turn needs one `recvmmsg` and (mostly) one `sendmmsg`, with memory that is allocated once.
//! ICMP errors come back with the bytes of the datagram that caused them.

mod recv;
mod send;
mod socket;
pub(crate) mod steer;

pub use recv::{Datagram, RecvBatch};
pub(crate) use send::NOWHERE;
pub use send::{Backlog, SendBatch, SendReport};
pub(crate) use socket::local_address;
pub use socket::{IcmpErrors, UdpOptions, UdpSocket};

/// Attaches the program that chooses among sockets of one address, for measurements of what it costs.
#[doc(hidden)]
pub fn steer_for_measuring(first: &UdpSocket, workers: u16, new_work: bool) -> std::io::Result<()> {
    let is_v6 = first.local_address().is_ipv6();
    let sockets = steer::Sockets {
        workers,
        new_work,
        is_v6,
    };
    steer::steer(first, sockets)
}

/// Errors that one call ignores as those of earlier datagrams. The kernel reports an ICMP error to the next
/// call (udp(7)); one error more counts as this call's.
const PENDING_ERRORS: u32 = 3;

/// Waits until the datagrams that this thread has sent to sockets of this machine have arrived. Mostly they
/// have arrived when sending returns, but the kernel may leave the rest to a thread of its own.
#[cfg(test)]
pub(crate) fn wait_for_delivery() {
    let [from, to] = [(), ()].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    let patience = std::time::Duration::from_secs(30);
    to.set_read_timeout(Some(patience)).unwrap();
    from.send_to(b"last", to.local_addr().unwrap()).unwrap();
    assert_eq!(to.recv(&mut [0; 8]).unwrap(), 4);
}
