//! A datagram socket of one end, read and written in batches.

use std::io;
use std::net::SocketAddr;

use sip_net::epoll::{Epoll, Interest};
use sip_net::udp::{Backlog, IcmpErrors, RecvBatch, SendBatch, UdpOptions, UdpSocket};

use crate::outbox::{Outbox, To};

/// Most messages of one system call.
const BATCH: usize = 64;
/// Most full batches that are read before other work is done.
const ROUNDS: usize = 4;
/// Size of the socket buffers that is asked for, bytes; the default of 256 KiB overflows in a stall of a few
/// milliseconds.
const BUFFER: usize = 8 << 20;
/// Most bytes that wait for room in the socket.
const BACKLOG: usize = 16 << 20;

#[derive(Debug)]
pub(crate) struct Datagrams {
    socket: UdpSocket,
    incoming: RecvBatch,
    outgoing: SendBatch,
    backlog: Backlog,
    errors: IcmpErrors,
}

impl Datagrams {
    pub(crate) fn bind(address: SocketAddr, epoll: &Epoll, token: u64) -> io::Result<Self> {
        let options = UdpOptions {
            receive_buffer: BUFFER,
            send_buffer: BUFFER,
            share: false,
        };
        let socket = UdpSocket::bind(address, options)?;
        epoll.add(&socket, token, Interest::Read)?;
        Ok(Self {
            socket,
            incoming: RecvBatch::new(BATCH),
            outgoing: SendBatch::with_runs(ROUNDS * BATCH),
            backlog: Backlog::new(BACKLOG),
            errors: IcmpErrors::new(),
        })
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.socket.local_address()
    }

    /// Number of datagrams that the kernel dropped because the receive buffer was full.
    pub(crate) fn drops(&self) -> u32 {
        self.socket.receive_drops().unwrap_or(0)
    }

    /// Gives the received datagrams to `each`, in batches.
    pub(crate) fn receive(&mut self, mut each: impl FnMut(To, &[u8])) -> io::Result<()> {
        for _ in 0..ROUNDS {
            let count = self.incoming.receive(&self.socket)?;
            for index in 0..count {
                if let Some(datagram) = self.incoming.datagram(index) {
                    each(To::Address(datagram.source), datagram.bytes);
                }
            }
            if !self.incoming.is_full() {
                break;
            }
        }
        Ok(())
    }

    /// Gives the beginnings of datagrams that could not be delivered to `each`.
    pub(crate) fn undelivered(&mut self, mut each: impl FnMut(&[u8])) {
        // If reading the error queue fails, there is nothing to report.
        let _ = self.errors.drain(&self.socket, BATCH, |_, bytes| each(bytes));
    }

    /// Sends the outbox's messages for addresses; `failed` gets those that the kernel refuses.
    pub(crate) fn send(&mut self, outbox: &mut Outbox, mut failed: impl FnMut(&[u8])) {
        if !self.backlog.is_empty() {
            self.outgoing
                .flush(&self.socket, &mut self.backlog, |_, bytes| failed(bytes));
        }
        outbox.gather();
        let outbox = &*outbox;
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let message = |index| match outbox.get(index) {
            Some((To::Address(to), bytes)) => (to, bytes),
            _ => (nowhere, &[][..]),
        };
        let refused = |index| failed(message(index).1);
        self.outgoing
            .send(&self.socket, &mut self.backlog, outbox.len(), message, refused);
    }
}
