//! Datagram sockets, and the errors that come back to them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{Domain, Protocol, Socket, Type};

use crate::sys::{self, ErrorQueue, SocketError};

/// Options of a datagram socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// Receive buffer requested, bytes.
    pub receive_buffer: usize,
    /// Send buffer requested, bytes.
    pub send_buffer: usize,
    /// Let other sockets of this user share the address (`SO_REUSEPORT`); the kernel then spreads
    /// sources over them.
    pub share: bool,
}

/// A bound datagram socket that never blocks.
#[derive(Debug)]
pub struct UdpSocket {
    socket: Socket,
    local: SocketAddr,
    receive_buffer: usize,
}

impl UdpSocket {
    /// Binds to `address` (port 0: a free port).
    pub fn bind(address: SocketAddr, options: UdpOptions) -> io::Result<Self> {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
        // For a shared socket the kernel may choose a port that another process of this user shares already
        // (not for TCP). So the kernel chooses a port for an unshared socket, which shares the port from then
        // on.
        let is_chosen = address.port() == 0;
        if options.share && !is_chosen {
            socket.set_reuse_port(true)?;
        }
        // ICMP errors are queued with the datagram that caused them.
        if address.is_ipv6() {
            // An IPv6 listener takes IPv6 only: IPv4 has its own listeners, and a mapped address would fit
            // neither Via nor the rules about networks.
            socket.set_only_v6(true)?;
            sys::set_option(socket.as_fd(), libc::SOL_IPV6, libc::IPV6_RECVERR, 1)?;
        } else {
            sys::set_option(socket.as_fd(), libc::SOL_IP, libc::IP_RECVERR, 1)?;
        }
        // The forced size needs CAP_NET_ADMIN; the unforced one is limited to net.core.{r,w}mem_max.
        if set_size(&socket, libc::SO_RCVBUFFORCE, options.receive_buffer).is_err() {
            socket.set_recv_buffer_size(options.receive_buffer)?;
        }
        if set_size(&socket, libc::SO_SNDBUFFORCE, options.send_buffer).is_err() {
            socket.set_send_buffer_size(options.send_buffer)?;
        }
        socket.bind(&address.into())?;
        if options.share && is_chosen {
            socket.set_reuse_port(true)?;
        }
        let local = local_address(&socket)?;
        // The kernel doubles the requested size, to account for its own overhead, and reports the double
        // (socket(7)).
        let receive_buffer = socket.recv_buffer_size()? / 2;
        Ok(Self {
            socket,
            local,
            receive_buffer,
        })
    }

    /// The bound address, with the chosen port.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Bytes of receive buffer granted.
    pub fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    /// Bytes that wait to be received, with the kernel's own structures. The kernel counts those that were received
    /// lately as well, up to a quarter of the buffer.
    pub(crate) fn waiting_bytes(&self) -> io::Result<usize> {
        Ok(sys::receive_memory(self.as_fd())?.waiting as usize)
    }

    /// Asks for another receive buffer. What waits stays, even if it is more.
    pub(crate) fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        match set_size(&self.socket, libc::SO_RCVBUFFORCE, bytes) {
            Ok(()) => Ok(()),
            Err(_) => self.socket.set_recv_buffer_size(bytes),
        }
    }

    /// Datagrams that the kernel dropped because the receive buffer was full. Wraps at 32 bits.
    pub fn receive_drops(&self) -> io::Result<u32> {
        Ok(sys::receive_memory(self.as_fd())?.drops)
    }
}

fn set_size(socket: &Socket, name: libc::c_int, size: usize) -> io::Result<()> {
    let size = libc::c_int::try_from(size).unwrap_or(libc::c_int::MAX);
    sys::set_option(socket.as_fd(), libc::SOL_SOCKET, name, size)
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

pub(crate) fn local_address(socket: &Socket) -> io::Result<SocketAddr> {
    socket
        .local_addr()?
        .as_socket()
        .ok_or_else(|| io::Error::other("not an internet address"))
}

/// Reads ICMP errors of datagram sockets.
#[derive(Debug)]
pub struct IcmpErrors {
    queue: ErrorQueue,
}

impl Default for IcmpErrors {
    fn default() -> Self {
        Self::new()
    }
}

impl IcmpErrors {
    /// An empty reader.
    pub fn new() -> Self {
        // An ICMPv6 error may quote as much as fits in 1,280 bytes (RFC 4443 §2.4); an error made
        // by the local host may quote the whole datagram.
        Self {
            queue: ErrorQueue::new(2048),
        }
    }

    /// Takes at most `limit` errors off `socket`. Returns how many were taken.
    ///
    /// `lost` is called for the errors that RFC 3261 §18.4 names: destination unreachable and parameter
    /// problem. `lost` gets the destination and the beginning of the datagram, as much as the error quotes.
    /// Other errors (time exceeded, a path MTU that a retransmission will respect) are only counted.
    pub fn drain(
        &mut self,
        socket: &impl AsFd,
        limit: usize,
        mut lost: impl FnMut(SocketAddr, &[u8]),
    ) -> io::Result<usize> {
        for taken in 0..limit {
            match self.queue.take(socket.as_fd())? {
                None => return Ok(taken),
                Some((error, bytes)) => {
                    if let Some(destination) = error.destination.filter(|_| means_undelivered(&error)) {
                        lost(destination, bytes);
                    }
                }
            }
        }
        Ok(limit)
    }
}

/// Whether the error means that the message was not delivered (RFC 3261 §18.4): host, network, port or
/// protocol unreachable, and parameter problems. Source quench and time exceeded do not.
fn means_undelivered(error: &SocketError) -> bool {
    const IPV4_UNREACHABLE: u8 = 3;
    const IPV4_FRAGMENTATION_NEEDED: u8 = 4;
    const IPV4_PARAMETER_PROBLEM: u8 = 12;
    const IPV6_UNREACHABLE: u8 = 1;
    const IPV6_PARAMETER_PROBLEM: u8 = 4;
    let v4 = error
        .destination
        .is_some_and(|to| matches!(to.ip(), IpAddr::V4(_)));
    match error.origin {
        libc::SO_EE_ORIGIN_ICMP if v4 => match error.kind {
            IPV4_UNREACHABLE => error.code != IPV4_FRAGMENTATION_NEEDED,
            kind => kind == IPV4_PARAMETER_PROBLEM,
        },
        libc::SO_EE_ORIGIN_ICMP6 => matches!(error.kind, IPV6_UNREACHABLE | IPV6_PARAMETER_PROBLEM),
        _ => false,
    }
}
