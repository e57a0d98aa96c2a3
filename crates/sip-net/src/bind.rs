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
use crate::udp::steer::{Sockets, steer};
use crate::udp::{UdpOptions, UdpSocket};

/// The sockets of one worker.
#[derive(Debug)]
pub struct WorkerSockets {
    pub(crate) udp: Vec<DatagramSockets>,
    pub(crate) tcp: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    steering: io::Result<()>,
    new_work: Result<(), NewWorkError>,
}

/// A worker's sockets of one listener.
#[derive(Debug)]
pub(crate) struct DatagramSockets {
    pub(crate) listener: ListenerId,
    /// By this socket messages are sent, and all but new work is received.
    pub(crate) first: UdpSocket,
    /// The queues of new calls and of other new work ([`crate::udp::steer`]), if there are any.
    pub(crate) new_work: Option<[UdpSocket; 2]>,
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
        self.udp.iter().map(|udp| udp.first.receive_buffer()).min()
    }

    /// The smallest receive buffer that the kernel granted to a queue of new work, bytes; `None` if there are none.
    pub fn new_work_buffer(&self) -> Option<usize> {
        let queues = self.udp.iter().filter_map(|udp| udp.new_work.as_ref()).flatten();
        queues.map(UdpSocket::receive_buffer).min()
    }

    /// The error of steering, if there are several workers and the kernel refused to give each datagram to
    /// the worker that holds its call's state. The kernel then spreads datagrams by their source, and the
    /// workers hand them over. That is slower, and all calls without state of one peer come to one worker.
    /// Only the first worker has the error.
    pub fn steering_error(&self) -> Option<&io::Error> {
        self.steering.as_ref().err()
    }

    /// The error because of which new work has no queues of its own, if [`Settings::new_work_buffer`] asks for them.
    /// New work then waits in one queue with everything else, and may displace it. Only the first worker has
    /// the error.
    pub fn new_work_error(&self) -> Option<&NewWorkError> {
        self.new_work.as_ref().err()
    }
}

/// The reason why new work has no queues of its own.
#[derive(Debug, thiserror::Error)]
pub enum NewWorkError {
    /// The kernel does not take the program.
    #[error("the kernel does not take the program that chooses the queue (SO_ATTACH_REUSEPORT_CBPF): {0}{hint}", hint = remedy_of_program(.0))]
    Program(io::Error),
    /// A further socket of the address cannot be made.
    #[error("a further socket of the address cannot be made: {0}")]
    Socket(io::Error),
}

fn remedy_of_program(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            "; before Linux 6.8, `sysctl -w net.core.optmem_max=131072` before the start helps"
        }
        _ => "",
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
            new_work: Ok(()),
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
            Bound::Udp(first) => {
                *address = first.local_address();
                sockets.udp.push(DatagramSockets {
                    listener: id,
                    first,
                    new_work: None,
                });
            }
            Bound::Tcp(socket) => {
                *address = socket.local_address();
                sockets.tcp.push(socket);
            }
        }
    }
    if listener.transport == Transport::Udp {
        let new_work = add_new_work(all, settings, workers);
        let Some(first) = all.first_mut() else {
            return Ok(());
        };
        if !matches!(new_work, Ok(true))
            && let Err(error) = steer_first(first, workers)
        {
            first.steering = Err(error);
        }
        if let Err(error) = new_work {
            first.new_work = Err(error);
        }
    }
    Ok(())
}

/// Makes the kernel choose among the first sockets of the listener bound last. One worker needs no choice.
fn steer_first(first: &WorkerSockets, workers: u16) -> io::Result<()> {
    match first.udp.last() {
        Some(udp) if workers > 1 => steer(
            &udp.first,
            Sockets {
                workers,
                new_work: false,
                is_v6: udp.first.local_address().is_ipv6(),
            },
        ),
        _ => Ok(()),
    }
}

/// Gives each worker the sockets of new work for the listener bound last. `false`: none are wanted.
fn add_new_work(all: &mut [WorkerSockets], settings: &Settings, workers: u16) -> Result<bool, NewWorkError> {
    let Some(udp) = all.first().and_then(|first| first.udp.last()) else {
        return Ok(false);
    };
    // A program would choose among the sockets of another process as well, if that shares the address.
    if settings.new_work_buffer == 0 || !settings.exclusive {
        return Ok(false);
    }
    let address = udp.first.local_address();
    let sockets = Sockets {
        workers,
        new_work: true,
        is_v6: address.is_ipv6(),
    };
    let options = UdpOptions {
        receive_buffer: settings.new_work_buffer,
        // Nothing is sent by it.
        send_buffer: 0,
        share: true,
    };
    // Before there is such a socket its number is no choice, and the kernel takes another one. So nothing comes to a
    // socket that is closed again because the kernel does not take the program. But a lone socket is in no group
    // (EINVAL) if the kernel chose its port: nothing is sent there yet.
    let is_first = match steer(&udp.first, sockets) {
        Ok(()) => true,
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => false,
        Err(error) => return Err(NewWorkError::Program(error)),
    };
    let bind = |_: &WorkerSockets| UdpSocket::bind(address, options);
    let bind_all = || all.iter().map(bind).collect::<io::Result<Vec<_>>>();
    let [calls, requests] = [
        bind_all().map_err(NewWorkError::Socket)?,
        bind_all().map_err(NewWorkError::Socket)?,
    ];
    if !is_first {
        steer(&udp.first, sockets).map_err(NewWorkError::Program)?;
    }
    for (sockets, queues) in all.iter_mut().zip(calls.into_iter().zip(requests)) {
        if let Some(udp) = sockets.udp.last_mut() {
            udp.new_work = Some(queues.into());
        }
    }
    Ok(true)
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
