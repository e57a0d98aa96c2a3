//! Phones behind NATs: each registers by UDP from a source address of its own, with a private Contact, and answers the
//! pings that come to that address.
//!
//! All phones share one socket and its port. 127.0.0.0/8 belongs to the loopback device: a socket that is bound to no
//! address receives what comes to any of them, and the kernel sends from the one that a control message names.

mod counts;
mod line;
mod registering;
mod words;

use std::io::{self, BufRead};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::Instant;

use sip_net::epoll::{Epoll, EventList, Interest};
use sip_net::udp::{IcmpErrors, RecvBatch};

use super::Outcome;
use super::arguments::Arguments;
use super::said;
use super::target::Target;
use crate::floor;
use crate::steps::REGISTRATIONS;
use counts::Counts;
use line::Line;
use registering::Registering;

/// Datagrams for each system call.
const BATCH: usize = 64;
/// Batches that are received before anything else is looked at.
const BATCHES: usize = 16;
/// Microseconds of sleep at most, while phones register and later.
const REGISTERING_US: u64 = 1_000;
const REGISTERED_US: u64 = 20_000;
/// Orders that wait.
const ORDERS: usize = 4;

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let target = Target::new(arguments)?;
    let count: u32 = arguments.get("count", 1_000)?;
    if count > line::MOST {
        return Err(format!("--count: there are addresses for {} phones", line::MOST).into());
    }
    let rate = arguments.get("rate", REGISTRATIONS)?;
    let line = Line::bind(arguments.get("port", 0)?, target.address)?;
    let mut ears = Ears::new(&line)?;
    let mut phones = Phones::new(line, target.name, count, rate);
    while !phones.registering.is_over() {
        phones.register(Instant::now());
        ears.hear(&mut phones, REGISTERING_US)?;
    }
    let registered = phones.said();
    said::ready(registered.registered as usize)?;
    let orders = orders();
    loop {
        ears.hear(&mut phones, REGISTERED_US)?;
        match orders.try_recv() {
            Ok(order) => {
                phones.answers &= order != said::MUTE;
                said::row(&phones.counts.take(Instant::now()))?;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => break,
        }
    }
    said::row(&phones.said())
}

/// The lines of the standard input, until it ends.
fn orders() -> Receiver<String> {
    let (tell, orders) = sync_channel(ORDERS);
    thread::spawn(move || {
        let mut lines = io::stdin().lock().lines().map_while(Result::ok);
        // Whatever is left unread when the phones are gone is of no use.
        let _ = lines.try_for_each(|line| tell.send(line));
    });
    orders
}

/// All phones.
#[derive(Debug)]
struct Phones {
    line: Line,
    domain: String,
    registering: Registering,
    counts: Counts,
    /// Whether they answer pings.
    answers: bool,
    /// Datagrams that the kernel did not take.
    unsent: u64,
}

impl Phones {
    fn new(line: Line, domain: String, count: u32, rate: f64) -> Self {
        let now = Instant::now();
        Self {
            line,
            domain,
            registering: Registering::new(count, rate, now),
            counts: Counts::new(count, now),
            answers: true,
            unsent: 0,
        }
    }

    /// Sends each REGISTER that is due.
    fn register(&mut self, now: Instant) {
        while let Some(number) = self.registering.due(now) {
            let request = words::register(number, &self.domain);
            self.send(number, [&request, &[], &[], &[]]);
        }
    }

    /// Sends a datagram of a phone, in parts.
    fn send(&mut self, number: u32, parts: [&[u8]; 4]) -> bool {
        let is_sent = self.line.send(number, parts).is_ok();
        self.unsent += u64::from(!is_sent);
        is_sent
    }

    /// Takes a datagram.
    fn take(&mut self, source: SocketAddr, bytes: &[u8], now: Instant) {
        if source != self.line.server() {
            self.counts.other();
        } else if let Some(number) = words::number_of_ping(bytes) {
            self.counts.options(number, now);
            if self.answers && self.send(number, floor::ok(bytes)) {
                self.counts.answer();
            }
        } else if let Some((number, status)) = words::response(bytes) {
            self.registering.answered(number, status, now);
        } else if words::is_empty_line(bytes) {
            self.counts.crlf(now);
        } else {
            self.counts.other();
        }
    }

    fn said(&self) -> said::Phones {
        said::Phones {
            unsent: self.unsent,
            ..self.registering.said()
        }
    }
}

/// What receives for the phones.
#[derive(Debug)]
struct Ears {
    epoll: Epoll,
    events: EventList,
    batch: RecvBatch,
    icmp: IcmpErrors,
}

impl Ears {
    fn new(line: &Line) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(line.socket(), 0, Interest::Read)?;
        Ok(Self {
            epoll,
            events: EventList::new(4),
            batch: RecvBatch::new(BATCH),
            icmp: IcmpErrors::new(),
        })
    }

    /// Sleeps until something comes, `wait_us` at most, and gives it to the phones.
    fn hear(&mut self, phones: &mut Phones, wait_us: u64) -> io::Result<()> {
        self.epoll.wait(&mut self.events, Some(wait_us))?;
        if self.events.get(0).is_some_and(|event| event.error) {
            self.icmp.drain(phones.line.socket(), BATCH, |_, _| {})?;
        }
        for _ in 0..BATCHES {
            // An error concerns a datagram that was sent earlier: nothing to stop for.
            let _ = self.batch.receive(phones.line.socket());
            let now = Instant::now();
            for index in 0..self.batch.len() {
                if let Some(datagram) = self.batch.datagram(index) {
                    phones.take(datagram.source, datagram.bytes, now);
                }
            }
            if !self.batch.is_full() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, UdpSocket};
    use std::time::Duration;

    use super::*;
    use crate::process::ports::local;

    const PATIENCE: Duration = Duration::from_secs(30);
    const END: &str = "end";

    /// A server without a mind, and phones for it.
    fn pair(count: u32) -> (UdpSocket, Phones, Ears) {
        let server = UdpSocket::bind(local(0)).unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        let line = Line::bind(0, server.local_addr().unwrap()).unwrap();
        let ears = Ears::new(&line).unwrap();
        let phones = Phones::new(line, "bench".to_owned(), count, 1e6);
        (server, phones, ears)
    }

    fn heard(server: &UdpSocket) -> (String, SocketAddr) {
        let mut bytes = [0; 2048];
        let (length, from) = server.recv_from(&mut bytes).unwrap();
        (String::from_utf8_lossy(&bytes[..length]).into_owned(), from)
    }

    /// Until the phones have heard so much.
    fn listen(ears: &mut Ears, phones: &mut Phones, is_heard: impl Fn(&Phones) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_heard(phones) {
            assert!(Instant::now() < deadline, "{phones:?}");
            ears.hear(phones, 10_000).unwrap();
        }
    }

    /// Answers each REGISTER, if it comes from the phone's own address, until the word to end.
    fn register_all(server: &UdpSocket) {
        loop {
            let (request, from) = heard(server);
            if request == END {
                return;
            }
            let IpAddr::V4(source) = from.ip() else {
                panic!("{from}")
            };
            let number = source.to_bits() & 0xffff;
            assert!(
                request.contains(&format!("Contact: <sip:u{number}@")),
                "{from}: {request}"
            );
            let response = floor::ok(request.as_bytes()).concat();
            server.send_to(&response, from).unwrap();
        }
    }

    #[test]
    fn each_phone_registers_from_its_own_address_and_answers_there() {
        let (server, mut phones, mut ears) = pair(300);
        let stranger = UdpSocket::bind(local(0)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| register_all(&server));
            while !phones.registering.is_over() {
                phones.register(Instant::now());
                ears.hear(&mut phones, 10_000).unwrap();
            }
            stranger
                .send_to(END.as_bytes(), server.local_addr().unwrap())
                .unwrap();
        });
        assert_eq!((phones.said().registered, phones.said().unsent), (300, 0));

        let port = phones.line.socket().local_address().port();
        let last = SocketAddr::from(([127, 16, 1, 43], port));
        let ping =
            "OPTIONS sip:u299@192.168.1.50:5060 SIP/2.0\r\nTo: <sip:u299@bench>\r\nCSeq: 1 OPTIONS\r\n\r\n";
        for datagram in [ping, "\r\n\r\n", "what?"] {
            server.send_to(datagram.as_bytes(), last).unwrap();
        }
        stranger.send_to(ping.as_bytes(), last).unwrap();
        listen(&mut ears, &mut phones, |phones| phones.counts.heard() == 4);
        let (response, from) = heard(&server);
        assert_eq!(from, last);
        assert!(
            response.starts_with("SIP/2.0 200 OK\r\nTo: <sip:u299@bench>;tag="),
            "{response}"
        );
        let counts = phones.counts.take(Instant::now());
        assert_eq!((counts.options, counts.crlf, counts.others), (1, 1, 2));
        assert_eq!((counts.answered, counts.contacts_by_pings), (1, vec![299, 1]));

        phones.answers = false;
        server.send_to(ping.as_bytes(), last).unwrap();
        listen(&mut ears, &mut phones, |phones| phones.counts.heard() == 1);
        assert_eq!(phones.counts.take(Instant::now()).answered, 0);
    }
}
