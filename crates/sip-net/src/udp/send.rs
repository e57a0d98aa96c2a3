//! Sending of datagrams in batches.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use super::PENDING_ERRORS;
use crate::sys::{SendSlots, knows_runs};

/// Refused runs after which none is tried any more. A device that cannot cut one apart never will.
const RUNS_REFUSED: u32 = 8;

/// The results of one [`SendBatch::send`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendReport {
    /// Datagrams that the kernel accepted.
    pub sent: u64,
    /// Bytes of the accepted datagrams.
    pub bytes: u64,
    /// Datagrams that the kernel refused for good.
    pub errors: u64,
    /// Datagrams that wait for room in the socket's send buffer.
    pub delayed: u64,
    /// Datagrams dropped because too many wait already.
    pub dropped: u64,
}

/// Arguments of `sendmmsg`, reused from call to call. One serves any number of sockets.
#[derive(Debug)]
pub struct SendBatch {
    slots: SendSlots,
    /// Whether equally long messages are sent as runs; `None`: if the kernel supports runs.
    runs: Option<bool>,
    refused: u32,
}

impl SendBatch {
    /// A batch of at most `capacity` messages a system call.
    pub fn new(capacity: usize) -> Self {
        Self {
            slots: SendSlots::new(capacity),
            runs: Some(false),
            refused: 0,
        }
    }

    /// A batch that gives the kernel neighbouring messages of one length to one address as one. Up to 64 of
    /// them pass the network stack at once, which saves most of the cost of sending. If the kernel or the
    /// device refuses a run, its messages are sent one by one.
    pub fn with_runs(capacity: usize) -> Self {
        Self {
            runs: None,
            ..Self::new(capacity)
        }
    }

    /// Sends `count` messages on `socket`, in order; `message` returns the one of an index.
    ///
    /// While the socket's send buffer is full, messages wait in `backlog`, in order. Beyond its bound they
    /// are dropped, as a network would drop them. If the kernel refuses a message (no route, too long,
    /// forbidden), `failed` gets its index, and the rest are sent all the same.
    pub fn send<'a>(
        &mut self,
        socket: &impl AsFd,
        backlog: &mut Backlog,
        count: usize,
        message: impl Fn(usize) -> (SocketAddr, &'a [u8]),
        mut failed: impl FnMut(usize),
    ) -> SendReport {
        let mut report = SendReport::default();
        let mut next = 0;
        if backlog.is_empty() {
            next = self.send_until_full(socket, count, &message, &mut failed, &mut report);
        }
        for index in next..count {
            let (to, bytes) = message(index);
            if backlog.push(to, bytes) {
                report.delayed += 1
            } else {
                report.dropped += 1
            }
        }
        report
    }

    /// Sends waiting messages, as far as there is room. `failed` gets those that the kernel refuses.
    pub fn flush(
        &mut self,
        socket: &impl AsFd,
        backlog: &mut Backlog,
        mut failed: impl FnMut(SocketAddr, &[u8]),
    ) -> SendReport {
        let mut report = SendReport::default();
        let waiting = &backlog.messages;
        let mut refused = Vec::new();
        let done = self.send_until_full(
            socket,
            waiting.len(),
            &|index| {
                waiting
                    .get(index)
                    .map_or((NOWHERE, &[][..]), |(to, bytes)| (*to, &**bytes))
            },
            &mut |index| refused.push(index),
            &mut report,
        );
        for index in refused {
            if let Some((to, bytes)) = backlog.messages.get(index) {
                failed(*to, bytes);
            }
        }
        backlog.remove_first(done);
        report
    }

    /// Sends messages from the first on. Returns the index of the first one without room, or `count`.
    fn send_until_full<'a>(
        &mut self,
        socket: &impl AsFd,
        count: usize,
        message: &impl Fn(usize) -> (SocketAddr, &'a [u8]),
        failed: &mut impl FnMut(usize),
        report: &mut SendReport,
    ) -> usize {
        let runs = *self.runs.get_or_insert_with(|| knows_runs(socket.as_fd()));
        let mut next = 0;
        let mut tries = 0;
        // Messages before this one are sent one by one.
        let mut runs_from = 0;
        while next < count {
            let together = runs && next >= runs_from;
            let messages = (next..count).map(message);
            match self.slots.send(socket.as_fd(), messages, together) {
                Ok(sent) => {
                    let sent = sent.clamp(1, count - next);
                    report.sent += sent as u64;
                    report.bytes += (next..next + sent)
                        .map(|index| message(index).1.len() as u64)
                        .sum::<u64>();
                    next += sent;
                    tries = 0;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_full(&error) => return next,
                // A waiting ICMP error is reported once, by the next call of any kind (udp(7)). The error is
                // no verdict on this message.
                Err(_) if tries < PENDING_ERRORS => tries += 1,
                Err(_) if self.slots.first_run() > 1 => {
                    runs_from = next + self.slots.first_run();
                    self.refused += 1;
                    self.runs = Some(self.refused < RUNS_REFUSED);
                    tries = 0;
                }
                Err(_) => {
                    report.errors += 1;
                    failed(next);
                    next += 1;
                    tries = 0;
                }
            }
        }
        next
    }
}

pub(crate) const NOWHERE: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// Whether the error means that there is no room: in the socket's buffer, or in the kernel's memory.
fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

/// Datagrams that wait for room in a socket's send buffer, bounded in bytes.
#[derive(Debug)]
pub struct Backlog {
    messages: VecDeque<(SocketAddr, Box<[u8]>)>,
    bytes: usize,
    limit: usize,
}

impl Backlog {
    /// A backlog of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            messages: VecDeque::new(),
            bytes: 0,
            limit,
        }
    }

    /// Whether no datagram waits.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Number of datagrams that wait.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    fn push(&mut self, to: SocketAddr, bytes: &[u8]) -> bool {
        if self.bytes + bytes.len() > self.limit {
            return false;
        }
        self.bytes += bytes.len();
        self.messages.push_back((to, bytes.into()));
        true
    }

    fn remove_first(&mut self, count: usize) {
        for (_, bytes) in self.messages.drain(..count) {
            self.bytes -= bytes.len();
        }
        if self.messages.is_empty() {
            // Congestion is rare, so the memory is not kept.
            self.messages = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::{RecvBatch, UdpOptions, UdpSocket, wait_for_delivery};

    fn socket() -> UdpSocket {
        let options = UdpOptions {
            receive_buffer: 1 << 20,
            send_buffer: 1 << 20,
            share: false,
        };
        UdpSocket::bind("127.0.0.1:0".parse().unwrap(), options).unwrap()
    }

    /// Loopback never fills a send buffer, so the backlog is filled by hand.
    #[test]
    fn what_waits_goes_first_and_the_bound_drops_the_last() {
        let (from, to) = (socket(), socket());
        let address = to.local_address();
        let mut backlog = Backlog::new(9);
        assert!(backlog.push(address, b"one"));
        let mut batch = SendBatch::new(2);
        let messages: [&[u8]; 3] = [b"two", b"three", b"four"];
        let report = batch.send(
            &from,
            &mut backlog,
            3,
            |index| (address, messages[index]),
            |_| unreachable!("no message is refused"),
        );
        assert_eq!(
            report,
            SendReport {
                delayed: 1,
                dropped: 2,
                ..SendReport::default()
            }
        );
        let report = batch.flush(&from, &mut backlog, |_, _| unreachable!("no message is refused"));
        assert_eq!(
            report,
            SendReport {
                sent: 2,
                bytes: 6,
                ..SendReport::default()
            }
        );
        assert!(backlog.is_empty());
        wait_for_delivery();
        let mut received = RecvBatch::new(8);
        assert_eq!(received.receive(&to).unwrap(), 2);
        assert_eq!(received.datagram(0).unwrap().bytes, b"one");
        assert_eq!(received.datagram(1).unwrap().bytes, b"two");
    }

    #[test]
    fn a_refused_message_of_the_backlog_does_not_hold_up_the_rest() {
        let (from, to) = (socket(), socket());
        let address = to.local_address();
        let mut backlog = Backlog::new(1 << 20);
        let too_long = vec![0; 65_508];
        for bytes in [&b"a"[..], &too_long, b"b"] {
            assert!(backlog.push(address, bytes));
        }
        let mut refused = Vec::new();
        let report =
            SendBatch::new(4).flush(&from, &mut backlog, |to, bytes| refused.push((to, bytes.len())));
        assert_eq!((report.sent, report.errors), (2, 1));
        assert_eq!(refused, [(address, 65_508)]);
        assert!(backlog.is_empty());
    }

    /// Sends messages of these lengths, to two sockets by turns if `turns`. Returns what each received, in
    /// order.
    fn exchange(
        batch: &mut SendBatch,
        from: &UdpSocket,
        lengths: &[usize],
        turns: bool,
    ) -> [Vec<Vec<u8>>; 2] {
        let sockets = [socket(), socket()];
        let messages: Vec<Vec<u8>> = lengths
            .iter()
            .enumerate()
            .map(|(index, length)| vec![index as u8; *length])
            .collect();
        let to = |index: usize| sockets[if turns { index % 2 } else { 0 }].local_address();
        let mut backlog = Backlog::new(1 << 20);
        let message = |index: usize| (to(index), &*messages[index]);
        let report = batch.send(from, &mut backlog, lengths.len(), message, |_| {
            unreachable!("no message is refused")
        });
        assert_eq!(report.sent, lengths.len() as u64);
        assert_eq!(report.bytes, lengths.iter().sum::<usize>() as u64);
        wait_for_delivery();
        sockets.map(|socket| {
            let mut received = RecvBatch::new(256);
            let count = received.receive(&socket).unwrap();
            let datagram = |index| received.datagram(index).unwrap().bytes.to_vec();
            (0..count).map(datagram).collect()
        })
    }

    fn expected(lengths: &[usize]) -> Vec<Vec<u8>> {
        let each = lengths.iter().enumerate();
        each.map(|(index, length)| vec![index as u8; *length]).collect()
    }

    #[test]
    fn what_is_sent_in_runs_arrives_one_by_one_and_in_order() {
        let mut lengths = vec![400; 100];
        lengths.extend([300, 400, 400, 399, 398, 0, 1400, 1400, 1400, 500, 500]);
        for mut batch in [
            SendBatch::with_runs(128),
            SendBatch::with_runs(7),
            SendBatch::new(128),
        ] {
            let [all, none] = exchange(&mut batch, &socket(), &lengths, false);
            assert_eq!((all, none), (expected(&lengths), vec![]));
        }
        let mut batch = SendBatch::with_runs(64);
        let [even, odd] = exchange(&mut batch, &socket(), &lengths, true);
        let all = expected(&lengths);
        assert!(even.iter().eq(all.iter().step_by(2)) && odd.iter().eq(all.iter().skip(1).step_by(2)));
        assert_eq!(
            (batch.runs, batch.refused),
            (Some(true), 0),
            "this kernel knows them"
        );
    }

    /// The socket has no checksums, so the kernel refuses to cut its runs.
    #[test]
    fn runs_that_are_refused_go_one_by_one_and_are_given_up_in_the_end() {
        let from = socket();
        crate::sys::set_option(from.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        let mut batch = SendBatch::with_runs(16);
        for round in 1..=RUNS_REFUSED + 2 {
            let [all, _] = exchange(&mut batch, &from, &[200; 16], false);
            assert_eq!(all, expected(&[200; 16]));
            assert_eq!(batch.refused, round.min(RUNS_REFUSED));
        }
        assert_eq!(batch.runs, Some(false));
    }
}
