//! A listening stream socket.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use sip_core::id::ListenerId;
use sip_core::transport::Transport;
use socket2::{Domain, Protocol, Socket, Type};

use crate::sys;
use crate::udp::local_address;

/// Most unsent bytes that the kernel buffers for each connection.
const UNSENT_IN_KERNEL: i32 = 128 << 10;

/// Bounds the kernel's unsent bytes for a peer that does not read. Otherwise the kernel's buffer grows to
/// megabytes, which none of our bounds counts. Bytes in flight are not bounded, and so neither is the speed.
pub(super) fn bound_unsent(socket: &Socket) -> io::Result<()> {
    sys::set_option(
        socket.as_fd(),
        libc::IPPROTO_TCP,
        libc::TCP_NOTSENT_LOWAT,
        UNSENT_IN_KERNEL,
    )
}

/// Ends a connection if the peer acknowledges nothing of what we sent for this time. Otherwise the kernel
/// retries for a quarter of an hour, and takes what we send meanwhile.
pub(super) fn bound_unacknowledged(socket: &Socket, ms: u32) -> io::Result<()> {
    socket.set_tcp_user_timeout(Some(Duration::from_millis(ms.into())))
}

/// Options of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// Most connections that the kernel keeps waiting to be accepted.
    pub backlog: i32,
    /// Let other sockets of this user share the address (`SO_REUSEPORT`); the kernel then spreads
    /// connections over them.
    pub share: bool,
    /// Milliseconds within which a peer must acknowledge what we send.
    pub unacknowledged_ms: u32,
}

/// A bound, listening stream socket that never blocks.
#[derive(Debug)]
pub struct TcpListener {
    socket: Socket,
    transport: Transport,
    id: ListenerId,
    local: SocketAddr,
}

impl TcpListener {
    /// Listens at `address` (port 0: a free port). `transport` and `id` are those of the connections accepted
    /// here.
    pub fn bind(
        transport: Transport,
        id: ListenerId,
        address: SocketAddr,
        options: TcpOptions,
    ) -> io::Result<Self> {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
        // Without this, connections of an earlier process in TIME-WAIT would make the bind fail.
        socket.set_reuse_address(true)?;
        if options.share {
            socket.set_reuse_port(true)?;
        }
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        // Accepted connections inherit it. Delaying gains nothing: a turn's messages already leave in one
        // write.
        socket.set_tcp_nodelay(true)?;
        bound_unsent(&socket)?;
        bound_unacknowledged(&socket, options.unacknowledged_ms)?;
        socket.bind(&address.into())?;
        socket.listen(options.backlog)?;
        let local = local_address(&socket)?;
        Ok(Self {
            socket,
            transport,
            id,
            local,
        })
    }

    /// The bound address, with the chosen port.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Transport of the accepted connections.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// The listener's number in the configuration.
    pub fn id(&self) -> ListenerId {
        self.id
    }

    /// The next waiting connection, made non-blocking.
    pub(super) fn accept(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        match sys::accept(self.socket.as_fd()) {
            Ok((socket, remote)) => Ok(Some((socket.into(), remote))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
