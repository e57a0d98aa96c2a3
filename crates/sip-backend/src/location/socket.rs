//! Names of local sockets. Listener ids are indexes of one configuration and mean nothing to the next, so the
//! disk has `transport:address` instead.

use std::collections::HashMap;
use std::net::SocketAddr;

use sip_core::id::ListenerId;
use sip_core::transport::Transport;

/// A local socket, for which a listener id stands in the running configuration.
pub type LocalSocket = (Transport, SocketAddr);

/// The name of a socket, such as `udp:192.0.2.1:5060` or `tls:[2001:db8::1]:5061`.
pub(crate) fn write(socket: LocalSocket) -> String {
    format!("{}:{}", socket.0.uri_name(), socket.1)
}

/// Reads a name of [`write()`].
pub(crate) fn parse(text: &[u8]) -> Option<LocalSocket> {
    let (transport, address) = std::str::from_utf8(text).ok()?.split_once(':')?;
    Some((Transport::parse(transport.as_bytes())?, address.parse().ok()?))
}

/// Finds the present listeners of stored sockets. The program is called once for each name.
pub struct Mapper<'a> {
    map: &'a (dyn Fn(Transport, SocketAddr) -> Option<ListenerId> + Sync),
    known: HashMap<Box<[u8]>, Option<ListenerId>>,
}

impl std::fmt::Debug for Mapper<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mapper")
            .field("known", &self.known.len())
            .finish_non_exhaustive()
    }
}

impl<'a> Mapper<'a> {
    pub(crate) fn new(map: &'a (dyn Fn(Transport, SocketAddr) -> Option<ListenerId> + Sync)) -> Self {
        Self {
            map,
            known: HashMap::new(),
        }
    }

    /// The present listener of the socket `name`.
    pub fn listener(&mut self, name: &[u8]) -> Option<ListenerId> {
        if let Some(known) = self.known.get(name) {
            return *known;
        }
        let found = parse(name).and_then(|(transport, address)| (self.map)(transport, address));
        self.known.insert(name.into(), found);
        found
    }
}

/// The source of a request as in the column `received`, such as `sip:198.51.100.7:40404;transport=udp`.
pub(crate) fn write_received(transport: Transport, remote: SocketAddr) -> String {
    format!("sip:{remote};transport={}", transport.uri_name())
}

/// Reads a value of [`write_received`].
pub(crate) fn parse_received(text: &[u8]) -> Option<LocalSocket> {
    let text = std::str::from_utf8(text).ok()?.strip_prefix("sip:")?;
    let (remote, transport) = text.split_once(';')?;
    let transport = transport.strip_prefix("transport=")?;
    Some((Transport::parse(transport.as_bytes())?, remote.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_come_back_as_they_were() {
        for text in [
            "udp:192.0.2.1:5060",
            "tls:[2001:db8::1]:5061",
            "wss:[fe80::1%3]:443",
        ] {
            let socket = parse(text.as_bytes()).unwrap();
            assert_eq!(write(socket), text);
            assert_eq!(
                parse_received(write_received(socket.0, socket.1).as_bytes()),
                Some(socket)
            );
        }
        for bad in [
            "",
            "udp",
            "udp:",
            "sctp:192.0.2.1:5060",
            "udp:192.0.2.1",
            "udp:\u{fffd}",
        ] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
            assert_eq!(parse_received(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn the_program_is_asked_once_for_each_socket() {
        let asked = std::sync::atomic::AtomicU32::new(0);
        let map = |transport, _address| {
            asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            (transport == Transport::Udp).then_some(ListenerId(4))
        };
        let mut mapper = Mapper::new(&map);
        for _ in 0..3 {
            assert_eq!(mapper.listener(b"udp:192.0.2.1:5060"), Some(ListenerId(4)));
            assert_eq!(mapper.listener(b"tcp:192.0.2.1:5060"), None);
        }
        assert_eq!(asked.into_inner(), 2);
    }
}
