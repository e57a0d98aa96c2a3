//! The floor: a relay of datagrams that takes a server's place and reads no message.
//!
//! What comes from the target goes to the caller, all else to the target: up to 64 datagrams for each pair of system
//! calls, by the same parts as the server's own loop. What it costs is what any server that is a process of its own
//! and uses sockets costs at least.

use std::io;
use std::net::SocketAddr;

use sip_net::epoll::{Epoll, EventList, Interest};
use sip_net::udp::{Backlog, IcmpErrors, RecvBatch, SendBatch, UdpOptions, UdpSocket};

use crate::failure::Stop;

/// Datagrams for each system call.
const BATCH: usize = 64;
/// Bytes of socket buffers asked for, and of what may wait for room in one.
const BUFFER: usize = 4 << 20;
/// How often the wish to end is looked at when nothing comes, microseconds.
const LOOK_US: u64 = 200_000;
/// What takes the place of a request's first line.
const STATUS_LINE: &[u8] = b"SIP/2.0 200 OK";
/// What begins the line of To in what the generator sends, and what every answer has there (RFC 3261 §8.2.6.2).
const TO: &[u8] = b"\r\nTo: ";
const TAG: &[u8] = b";tag=floor";

/// What to relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where datagrams come in.
    pub listen: SocketAddr,
    /// Where they go; nowhere: each request goes back as its own 200.
    pub target: Option<SocketAddr>,
    /// Where those of the target go at first; later to the last other source that sent.
    pub caller: Option<SocketAddr>,
}

/// A relay that is ready.
#[derive(Debug)]
pub struct Floor {
    socket: UdpSocket,
    options: Options,
    relayed: u64,
}

impl Floor {
    /// Binds.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn bind(options: Options) -> io::Result<Self> {
        let socket = UdpSocket::bind(
            options.listen,
            UdpOptions {
                receive_buffer: BUFFER,
                send_buffer: BUFFER,
                share: false,
            },
        )?;
        Ok(Self {
            socket,
            options,
            relayed: 0,
        })
    }

    /// The address bound to.
    pub fn address(&self) -> SocketAddr {
        self.socket.local_address()
    }

    /// Relays until the end is asked for; how many datagrams were passed on.
    ///
    /// # Errors
    /// Those of epoll.
    pub fn run(mut self, stop: &Stop) -> io::Result<u64> {
        let epoll = Epoll::new()?;
        epoll.add(&self.socket, 0, Interest::Read)?;
        let mut events = EventList::new(4);
        let (mut received, mut send) = (RecvBatch::new(BATCH), SendBatch::new(BATCH));
        let (mut backlog, mut icmp) = (Backlog::new(BUFFER), IcmpErrors::new());
        let mut out = Out::default();
        while !stop.is_asked() {
            epoll.wait(&mut events, Some(LOOK_US))?;
            if events.get(0).is_some_and(|event| event.error) {
                icmp.drain(&self.socket, BATCH, |_, _| {})?;
            }
            // An error concerns a datagram that was sent earlier: nothing to stop for.
            let _ = received.receive(&self.socket);
            out.clear();
            for index in 0..received.len() {
                if let Some(datagram) = received.datagram(index) {
                    self.pass_on(datagram.source, datagram.bytes, &mut out);
                }
            }
            let message = |index| out.message(index);
            let report = send.send(&self.socket, &mut backlog, out.len(), message, |_| {});
            self.relayed += report.sent;
            if !backlog.is_empty() {
                self.relayed += send.flush(&self.socket, &mut backlog, |_, _| {}).sent;
            }
        }
        Ok(self.relayed)
    }

    fn pass_on(&mut self, source: SocketAddr, bytes: &[u8], out: &mut Out) {
        let Some(target) = self.options.target else {
            out.push(source, &ok(bytes));
            return;
        };
        if source == target {
            // An answer before any request goes nowhere.
            if let Some(caller) = self.options.caller {
                out.push(caller, &[bytes]);
            }
        } else {
            self.options.caller = Some(source);
            out.push(target, &[bytes]);
        }
    }
}

/// The 200 to a request without a body, in parts: the request itself with another first line, and a tag in To.
pub(crate) fn ok(request: &[u8]) -> [&[u8]; 4] {
    let rest = memchr::memchr(b'\r', request).and_then(|at| request.get(at..));
    let rest = rest.unwrap_or_default();
    let to = memchr::memmem::find(rest, TO).map(|at| at + TO.len());
    let end = to.and_then(|to| Some(to + memchr::memchr(b'\r', rest.get(to..)?)?));
    let (before, after) = rest.split_at(end.unwrap_or(0));
    let tag = end.map_or(&b""[..], |_| TAG);
    [STATUS_LINE, before, tag, after]
}

/// Datagrams to send, one after the other in one buffer.
#[derive(Debug, Default)]
struct Out {
    bytes: Vec<u8>,
    items: Vec<(SocketAddr, usize, usize)>,
}

impl Out {
    fn clear(&mut self) {
        self.bytes.clear();
        self.items.clear();
    }

    fn len(&self) -> usize {
        self.items.len()
    }

    fn push(&mut self, to: SocketAddr, parts: &[&[u8]]) {
        let from = self.bytes.len();
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.items.push((to, from, self.bytes.len()));
    }

    fn message(&self, index: usize) -> (SocketAddr, &[u8]) {
        let (to, from, end) =
            self.items
                .get(index)
                .copied()
                .unwrap_or((crate::process::ports::local(0), 0, 0));
        (to, self.bytes.get(from..end).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket as Plain;
    use std::time::Duration;

    use super::*;
    use crate::process::ports::local;

    fn socket() -> (Plain, SocketAddr) {
        let socket = Plain::bind(local(0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    }

    fn heard(socket: &Plain) -> String {
        let mut bytes = [0; 4096];
        let (length, _) = socket.recv_from(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// A floor that runs; its address, and what ends it and returns how many it passed on.
    fn running(target: Option<SocketAddr>) -> (SocketAddr, impl FnOnce() -> u64) {
        let floor = Floor::bind(Options {
            listen: local(0),
            target,
            caller: None,
        })
        .unwrap();
        let at = floor.address();
        let stop = Stop::default();
        let asked = stop.clone();
        let thread = std::thread::spawn(move || floor.run(&asked).unwrap());
        let end = move || {
            stop.ask();
            thread.join().unwrap()
        };
        (at, end)
    }

    #[test]
    fn datagrams_go_to_the_other_side() {
        let (caller, _) = socket();
        let (callee, target) = socket();
        let (at, end) = running(Some(target));
        callee.send_to(b"to nobody", at).unwrap();
        for text in ["one", "two"] {
            caller.send_to(text.as_bytes(), at).unwrap();
            assert_eq!(heard(&callee), text);
        }
        callee.send_to(b"back", at).unwrap();
        assert_eq!(heard(&caller), "back");
        assert_eq!(end(), 3);
    }

    #[test]
    fn requests_go_back_as_answers() {
        let (caller, _) = socket();
        let (at, end) = running(None);
        for (request, answer) in [
            (
                "REGISTER sip:bench SIP/2.0\r\nVia: x\r\n\r\n",
                "SIP/2.0 200 OK\r\nVia: x\r\n\r\n",
            ),
            (
                "REGISTER sip:bench SIP/2.0\r\nVia: x\r\nTo: <sip:a@bench>\r\nCSeq: 1 REGISTER\r\n\r\n",
                "SIP/2.0 200 OK\r\nVia: x\r\nTo: <sip:a@bench>;tag=floor\r\nCSeq: 1 REGISTER\r\n\r\n",
            ),
            (
                "REGISTER sip:bench SIP/2.0\r\nTo: cut",
                "SIP/2.0 200 OK\r\nTo: cut",
            ),
            ("nothing", "SIP/2.0 200 OK"),
        ] {
            caller.send_to(request.as_bytes(), at).unwrap();
            assert_eq!(heard(&caller), answer);
        }
        assert_eq!(end(), 4);
    }
}
