//! The socket that all phones share, and their addresses.

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr};

use sip_net::udp::{UdpOptions, UdpSocket};
use socket2::{MsgHdr, SockAddr, SockRef};

/// The address of the first phone.
const FIRST: Ipv4Addr = Ipv4Addr::new(127, 16, 0, 0);
/// So many phones have an address: up to 127.239.255.255.
pub(super) const MOST: u32 = 224 << 16;
/// Bytes of socket buffers asked for: answers must not be lost while this process waits for its CPU.
const RECEIVE_BUFFER: usize = 64 << 20;
const SEND_BUFFER: usize = 4 << 20;
/// The device that all phones are on.
const DEVICE: &[u8] = b"lo";

/// Bytes of a control message's head: its length, level and type (cmsg(3)).
const HEAD: usize = size_of::<usize>() + 8;
/// Bytes of `struct in_pktinfo`.
const INFO: usize = 12;
/// Bytes of both, aligned as the kernel wants the next message.
const CONTROL: usize = (HEAD + INFO).next_multiple_of(size_of::<usize>());
/// `IPPROTO_IP` and `IP_PKTINFO` (ip(7)).
const LEVEL: i32 = 0;
const KIND: i32 = 8;

/// The address of a phone, below [`MOST`].
pub(super) fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST.to_bits().saturating_add(number))
}

/// The control message by which the kernel sends from an address of ours: `IP_PKTINFO` with `ipi_spec_dst`.
fn send_from(source: Ipv4Addr) -> [u8; CONTROL] {
    const ANY_INTERFACE: i32 = 0;
    let fields = (HEAD + INFO).to_ne_bytes().into_iter();
    let fields = fields
        .chain(LEVEL.to_ne_bytes())
        .chain(KIND.to_ne_bytes())
        .chain(ANY_INTERFACE.to_ne_bytes())
        .chain(source.octets());
    let mut control = [0; CONTROL];
    for (place, byte) in control.iter_mut().zip(fields) {
        *place = byte;
    }
    control
}

/// The phones' socket.
#[derive(Debug)]
pub(super) struct Line {
    socket: UdpSocket,
    server: SocketAddr,
    to: SockAddr,
}

impl Line {
    /// Binds a port (0: any) of all loopback addresses, to talk to one server.
    pub(super) fn bind(port: u16, server: SocketAddr) -> io::Result<Self> {
        let options = UdpOptions {
            receive_buffer: RECEIVE_BUFFER,
            send_buffer: SEND_BUFFER,
            share: false,
        };
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port).into(), options)?;
        // A kernel without the right for it refuses. What comes from others than the server is ignored in any case.
        drop(SockRef::from(&socket).bind_device(Some(DEVICE)));
        Ok(Self {
            socket,
            server,
            to: server.into(),
        })
    }

    pub(super) fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    pub(super) fn server(&self) -> SocketAddr {
        self.server
    }

    /// Sends a datagram, in parts, from the address of a phone.
    pub(super) fn send(&self, number: u32, parts: [&[u8]; 4]) -> io::Result<()> {
        let buffers = parts.map(IoSlice::new);
        let control = send_from(address(number));
        let message = MsgHdr::new()
            .with_addr(&self.to)
            .with_buffers(&buffers)
            .with_control(&control);
        SockRef::from(&self.socket).sendmsg(&message, 0).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phone_has_an_address_on_the_loopback() {
        assert_eq!(address(0), FIRST);
        assert_eq!(address(1_000_000), Ipv4Addr::new(127, 31, 66, 64));
        assert_eq!(address(MOST - 1), Ipv4Addr::new(127, 239, 255, 255));
    }
}
