//! Binding of all sockets of all workers, before any thread starts. A failure is reported with its listener
//! and cause, and nothing half-started has to be undone.

use std::io;
use std::net::SocketAddr;

use sip_core::config::{Config, Listener};
use sip_core::id::ListenerId;
use sip_core::transport::Transport;

use crate::settings::Settings;
use crate::sys;
use crate::tcp::{TcpListener, TcpOptions};
use crate::udp::steer::steer;
use crate::udp::{UdpOptions, UdpSocket};

/// The sockets of one worker.
#[derive(Debug)]
pub struct WorkerSockets {
    pub(crate) udp: Vec<(ListenerId, UdpSocket)>,
    pub(crate) tcp: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    steering: io::Result<()>,
}

impl WorkerSockets {
    /// The address of each listener of the configuration, in order. If port 0 was asked for, it has the
    /// chosen port. The same for all workers.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The sockets that listen for connections.
    pub fn listening(&self) -> &[TcpListener] {
        &self.tcp
    }

    /// The smallest receive buffer that the kernel granted to a datagram socket, bytes; `None` if there are
    /// none.
    pub fn receive_buffer(&self) -> Option<usize> {
        self.udp.iter().map(|(_, socket)| socket.receive_buffer()).min()
    }

    /// The error of steering, if there are several workers and the kernel refused to give each datagram to
    /// the worker that holds its call's state. The kernel then spreads datagrams by their source, and the
    /// workers hand them over. That is slower, and all calls without state of one peer come to one worker.
    /// Only the first worker has the error.
    pub fn steering_error(&self) -> Option<&io::Error> {
        self.steering.as_ref().err()
    }
}

/// A listener that cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {address} ({transport}): {}", remedy(.source))]
pub struct BindError {
    /// The listener.
    pub listener: ListenerId,
    /// The listener's transport.
    pub transport: Transport,
    /// The listener's address.
    pub address: SocketAddr,
    /// The error of the system call.
    pub source: io::Error,
}

fn remedy(error: &io::Error) -> String {
    let hint = match error.raw_os_error() {
        Some(libc::EADDRINUSE) => "; another process listens there",
        Some(libc::EADDRNOTAVAIL) => "; no interface of this machine has that address",
        Some(libc::EACCES) => "; ports below 1024 need the capability CAP_NET_BIND_SERVICE",
        _ => "",
    };
    format!("{error}{hint}")
}

/// Raises the limit on this process's open files (sockets among them) from the soft to the hard limit.
/// Returns the new limit. Many systems start processes with 1,024.
pub fn raise_open_files() -> io::Result<u64> {
    sys::raise_open_files()
}

/// Binds every listener of `config` once for each of `workers` workers (at least one). The sockets of a
/// listener share its address by `SO_REUSEPORT`, also if the kernel chose the port. If the kernel can steer
/// datagrams ([`WorkerSockets::steering_error`]), each worker gets those of its own calls. The kernel spreads
/// connections by their addresses.
pub fn bind_all(config: &Config, settings: &Settings, workers: u16) -> Result<Vec<WorkerSockets>, BindError> {
    let mut addresses = Vec::with_capacity(config.listeners.len());
    let mut all: Vec<WorkerSockets> = (0..workers.max(1))
        .map(|_| WorkerSockets {
            udp: Vec::new(),
            tcp: Vec::new(),
            addresses: Vec::new(),
            steering: Ok(()),
        })
        .collect();
    for (listener, number) in config.listeners.iter().zip(0..=u16::MAX) {
        let id = ListenerId(number);
        let mut address = listener.address;
        bind_listener(listener, id, settings, &mut all, &mut address).map_err(|source| BindError {
            listener: id,
            transport: listener.transport,
            address: listener.address,
            source,
        })?;
        addresses.push(address);
    }
    for sockets in &mut all {
        sockets.addresses.clone_from(&addresses);
    }
    Ok(all)
}

fn bind_listener(
    listener: &Listener,
    id: ListenerId,
    settings: &Settings,
    all: &mut [WorkerSockets],
    address: &mut SocketAddr,
) -> io::Result<()> {
    // `bind_all` made no more than `u16::MAX` workers.
    let workers = all.len() as u16;
    if settings.exclusive && address.port() != 0 {
        // Sharing an address with ourselves also shares it with any other process of this user, say a
        // forgotten instance, which would get half of the messages. Binding a socket that does not share
        // reveals such a process.
        bind_one(listener.transport, id, *address, settings, false)?;
    }
    for sockets in &mut *all {
        match bind_one(listener.transport, id, *address, settings, true)? {
            Bound::Udp(socket) => {
                *address = socket.local_address();
                sockets.udp.push((id, socket));
            }
            Bound::Tcp(socket) => {
                *address = socket.local_address();
                sockets.tcp.push(socket);
            }
        }
    }
    if let [first, _, ..] = all
        && let Some((_, socket)) = first.udp.last().filter(|(of, _)| *of == id)
        && let Err(error) = steer(socket, workers)
    {
        first.steering = Err(error);
    }
    Ok(())
}

/// A bound socket: for datagrams, or for connections.
enum Bound {
    Udp(UdpSocket),
    Tcp(TcpListener),
}

fn bind_one(
    transport: Transport,
    id: ListenerId,
    address: SocketAddr,
    settings: &Settings,
    share: bool,
) -> io::Result<Bound> {
    match transport {
        Transport::Udp => {
            let options = UdpOptions {
                receive_buffer: settings.udp_receive_buffer,
                send_buffer: settings.udp_send_buffer,
                share,
            };
            UdpSocket::bind(address, options).map(Bound::Udp)
        }
        Transport::Tcp | Transport::Tls | Transport::Ws | Transport::Wss => {
            let options = TcpOptions {
                backlog: settings.accept_backlog,
                share,
                unacknowledged_ms: settings.write_timeout_ms,
            };
            TcpListener::bind(transport, id, address, options).map(Bound::Tcp)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_only_rises() {
        let first = raise_open_files().unwrap();
        assert!(first >= 256);
        assert_eq!(raise_open_files().unwrap(), first);
    }
}
