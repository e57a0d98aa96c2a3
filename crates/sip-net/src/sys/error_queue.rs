//! The socket error queue: ICMP errors with the datagram that caused them (`ip(7)`, `IP_RECVERR`).

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::check;
use super::control::{self, ControlMessages};
use crate::addr::RawAddr;

/// One entry of a socket's error queue, without the datagram's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketError {
    /// Destination of the datagram.
    pub(crate) destination: Option<SocketAddr>,
    /// `errno` to which the kernel mapped the error.
    pub(crate) errno: u32,
    /// `SO_EE_ORIGIN_*`.
    pub(crate) origin: u8,
    /// ICMP type.
    pub(crate) kind: u8,
    /// ICMP code.
    pub(crate) code: u8,
}

/// Control data, aligned as `cmsghdr` must be.
#[repr(C, align(8))]
struct Control([u8; 256]);

/// Buffers for reading error queues.
pub(crate) struct ErrorQueue {
    bytes: Box<[u8]>,
    control: Box<Control>,
}

impl ErrorQueue {
    /// Buffers with room for `capacity` bytes of the datagram. An ICMP error quotes no more than its own
    /// packet holds (576 bytes on IPv4, 1,280 on IPv6).
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            bytes: vec![0; capacity].into_boxed_slice(),
            control: Box::new(Control([0; 256])),
        }
    }

    /// Takes the oldest entry off the socket's error queue, with the quoted bytes of the datagram. `None` if
    /// the queue is empty.
    pub(crate) fn take(&mut self, socket: BorrowedFd<'_>) -> io::Result<Option<(SocketError, &[u8])>> {
        let mut name = RawAddr::EMPTY;
        let mut iovec = libc::iovec {
            iov_base: self.bytes.as_mut_ptr().cast(),
            iov_len: self.bytes.len(),
        };
        // SAFETY: all-zero bytes are a valid `msghdr`: null pointers and zero lengths.
        let mut header: libc::msghdr = unsafe { mem::zeroed() };
        header.msg_name = (&raw mut name).cast();
        header.msg_namelen = RawAddr::CAPACITY as libc::socklen_t;
        header.msg_iov = &raw mut iovec;
        header.msg_iovlen = 1;
        header.msg_control = self.control.0.as_mut_ptr().cast();
        header.msg_controllen = self.control.0.len() as _;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: name, iovec, bytes and control are live, exclusively ours, and as long as the
        // header says.
        let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
        let len = match check(libc::c_int::try_from(result).unwrap_or(libc::c_int::MAX)) {
            Ok(len) => len as usize,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut error = SocketError {
            destination: name.decode(header.msg_namelen as usize),
            errno: 0,
            origin: 0,
            kind: 0,
            code: 0,
        };
        // The field's type differs between C libraries.
        let written: usize = header.msg_controllen as _;
        let control = self.control.0.get(..written).unwrap_or_default();
        if let Some(extended) = extended_error(control) {
            error.errno = extended.ee_errno;
            error.origin = extended.ee_origin;
            error.kind = extended.ee_type;
            error.code = extended.ee_code;
        }
        Ok(Some((error, self.bytes.get(..len).unwrap_or_default())))
    }
}

impl std::fmt::Debug for ErrorQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ErrorQueue")
            .field("capacity", &self.bytes.len())
            .finish()
    }
}

/// The `sock_extended_err` among the control messages.
fn extended_error(control: &[u8]) -> Option<libc::sock_extended_err> {
    let ours = |level, kind| {
        matches!(
            (level, kind),
            (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
        )
    };
    ControlMessages::new(control)
        .filter(|(level, kind, _)| ours(*level, *kind))
        // SAFETY: integers only, of which any bits are a value.
        .find_map(|(_, _, data)| unsafe { control::read(data) })
}

#[cfg(test)]
mod tests {
    use super::control::tests::message;
    use super::*;
    use crate::udp::wait_for_delivery;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    /// errno 111, ICMP, type 3, code 3.
    const REFUSED: [u8; 16] = [111, 0, 0, 0, 2, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    fn found(bytes: &[u8]) -> Option<(u32, u8, u8, u8)> {
        let exact: Box<[u8]> = bytes.into();
        extended_error(&exact).map(|e| (e.ee_errno.to_le(), e.ee_origin, e.ee_type, e.ee_code))
    }

    #[test]
    fn the_error_is_found_among_other_messages() {
        let refused = Some((111, 2, 3, 3));
        let (v4, v6) = (
            (libc::SOL_IP, libc::IP_RECVERR),
            (libc::SOL_IPV6, libc::IPV6_RECVERR),
        );
        for (level, kind) in [v4, v6] {
            assert_eq!(found(&message(level, kind, &REFUSED, None)), refused);
            // The address of the ICMP message's sender follows the error.
            let long = [&REFUSED[..], &[0; 28]].concat();
            let other = message(libc::SOL_SOCKET, libc::SO_TIMESTAMP, &[9; 16], None);
            assert_eq!(
                found(&[other, message(level, kind, &long, None)].concat()),
                refused
            );
        }
    }

    #[test]
    fn what_is_no_error_or_half_of_one_is_none() {
        assert_eq!(found(&[]), None);
        for (level, kind) in [
            (libc::SOL_IP, libc::IPV6_RECVERR),
            (libc::SOL_IPV6, libc::IP_RECVERR),
            (libc::SOL_IP, libc::IP_TTL),
            (libc::SOL_SOCKET, libc::IP_RECVERR),
        ] {
            assert_eq!(
                found(&message(level, kind, &REFUSED, None)),
                None,
                "{level} {kind}"
            );
        }
        let ours = (libc::SOL_IP, libc::IP_RECVERR);
        for len in 0..REFUSED.len() {
            let short = message(ours.0, ours.1, &REFUSED[..len], None);
            assert_eq!(found(&short), None, "{len}");
            // A whole message may follow.
            let both = [short, message(ours.0, ours.1, &REFUSED, None)].concat();
            assert_eq!(found(&both), Some((111, 2, 3, 3)), "{len}");
        }
    }

    /// With the kernel: a refused datagram is quoted, even if only a part of it has room.
    #[test]
    fn a_refused_datagram_comes_back_with_what_has_room() {
        // A port that refuses datagrams: its socket stays open, but receives only from a peer that does not
        // exist.
        let held = UdpSocket::bind("127.0.0.1:0").unwrap();
        held.connect("127.0.0.1:1").unwrap();
        let nobody = held.local_addr().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        super::super::set_option(socket.as_fd(), libc::SOL_IP, libc::IP_RECVERR, 1).unwrap();
        for capacity in [0, 1, 5, 100] {
            let mut queue = ErrorQueue::new(capacity);
            assert_eq!(queue.take(socket.as_fd()).unwrap(), None);
            socket.send_to(b"12345", nobody).unwrap();
            wait_for_delivery();
            let (error, quoted) = queue.take(socket.as_fd()).unwrap().unwrap();
            assert_eq!(quoted, &b"12345"[..capacity.min(5)]);
            assert_eq!(error.destination, Some(nobody));
            assert_eq!((error.errno, error.origin), (libc::ECONNREFUSED as u32, 2));
            assert_eq!((error.kind, error.code), (3, 3));
        }
    }
}
