//! Routers that close a port soon, phones that say nothing by themselves, and the pings of the server.

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use conformance::{Home, Mapping, Networks, PATIENCE, Part, Phone, in_networks, in_time, port, wait_until};

use super::stage::{ALICE, BOB, Place, Stage, config, expect_ringing, networks_closing_after};

/// What a server sends to keep a port open, as `nat.ping` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ping {
    Options,
    Crlf,
    None,
}

impl Ping {
    fn name(self) -> &'static str {
        match self {
            Self::Options => "options",
            Self::Crlf => "crlf",
            Self::None => "none",
        }
    }
}

/// The times of a test.
#[derive(Debug, Clone, Copy)]
struct Times {
    /// After this long without a datagram a router closes a port.
    timeout: Duration,
    ping_s: u32,
    /// How long bob's phones only answer. It is longer than `timeout`.
    silence: Duration,
}

/// A home with a phone of bob's, and a server of its own.
struct Line<'a> {
    ping: Ping,
    home: &'a Home,
    public: Place<'a>,
    stage: Stage,
    phone: Phone,
}

impl<'a> Line<'a> {
    /// The phone registers.
    fn new(networks: &'a Networks, number: u16, ping: Ping, times: &Times) -> Self {
        let home = networks.home(usize::from(number));
        let keys = format!("ping = \"{}\"\nping_s = {}\n", ping.name(), times.ping_s);
        let stage = Stage::at(networks, port::SERVER + number, config().table("[nat]", &keys));
        let phone = stage.phone(Place::Home(home), Part::Ring);
        phone.register_with(BOB.0, BOB.1, "1");
        Self {
            ping,
            home,
            public: Place::Public(networks.server()),
            stage,
            phone,
        }
    }

    /// Shows after the silence whether the phone can be called. `None`: the machine was late.
    fn judge(&self, times: &Times) -> Option<()> {
        match self.ping {
            Ping::None => self.expect_closed(),
            Ping::Options | Ping::Crlf => self.expect_open(times)?,
        }
        Some(())
    }

    /// A call reaches the phone by the port that its registration opened.
    fn expect_open(&self, times: &Times) -> Option<()> {
        let (options, crlf) = (self.phone.count("OPTIONS"), self.phone.keep_alives().len());
        assert!(options > 0, "{:?}: nothing came", self.ping);
        if self.longest_gap() >= times.timeout {
            return None;
        }
        match self.ping {
            Ping::Crlf => assert!(crlf > options, "{options} OPTIONS, {crlf} CRLF"),
            Ping::Options | Ping::None => assert_eq!(crlf, 0),
        }
        assert_eq!(self.stage.ping(self.home), "answered");
        expect_ringing(&mut self.stage.agent(self.public, ALICE), "open");
        Some(())
    }

    /// A call does not reach the phone: the router has no mapping for it any more. Once the phone has registered again, it
    /// is reached.
    fn expect_closed(&self) {
        assert_eq!(
            (self.phone.count("OPTIONS"), self.phone.keep_alives().len()),
            (0, 0)
        );
        let refused = self.home.refused();
        let mut alice = self.stage.agent(self.public, ALICE);
        alice.invite(BOB.0, "closed", "");
        wait_until("the router refuses an INVITE", || self.home.refused() > refused);
        // The port that this opens is another: copies of the INVITE are refused, too.
        self.phone.register_with(BOB.0, BOB.1, "1");
        assert_eq!(self.phone.count("INVITE"), 0);
        expect_ringing(&mut self.stage.agent(self.public, ALICE), "opened");
        assert_eq!(self.phone.count("INVITE"), 1);
    }

    /// The longest time between two datagrams that came to the phone, until now.
    fn longest_gap(&self) -> Duration {
        let heard = self.phone.heard().into_iter().map(|heard| heard.at);
        let mut times: Vec<Instant> = heard.chain(self.phone.keep_alives()).collect();
        times.push(Instant::now());
        times.sort();
        let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
        gaps.max().unwrap_or_default()
    }
}

/// Phones at servers that ping in these ways, after a silence.
fn survive_silence(pings: &[Ping], times: Times) {
    let timeout_s = u32::try_from(times.timeout.as_secs()).expect("seconds");
    // A port that is opened again is another.
    let networks = networks_closing_after(timeout_s, &vec![Mapping::Random; pings.len()]);
    in_time(|| {
        let lines = pings.iter().zip(0..);
        let lines: Vec<Line<'_>> = lines
            .map(|(ping, number)| Line::new(&networks, number, *ping, &times))
            .collect();
        thread::sleep(times.silence);
        lines.iter().try_for_each(|line| line.judge(&times))
    });
}

#[test]
fn pings_keep_the_port_of_a_silent_phone_open() {
    if in_networks("nat::silence::pings_keep_the_port_of_a_silent_phone_open") {
        let times = Times {
            timeout: Duration::from_secs(3),
            ping_s: 1,
            silence: Duration::from_secs(8),
        };
        survive_silence(&[Ping::Options, Ping::Crlf, Ping::None], times);
    }
}

#[test]
#[ignore = "five minutes of silence: `cargo xtask nat` runs it"]
fn pings_keep_the_port_of_a_silent_phone_open_for_five_minutes() {
    if in_networks("nat::silence::pings_keep_the_port_of_a_silent_phone_open_for_five_minutes") {
        let times = Times {
            timeout: Duration::from_secs(20),
            ping_s: 10,
            silence: Duration::from_secs(300),
        };
        survive_silence(&[Ping::Options, Ping::Crlf, Ping::None], times);
    }
}

/// What the other tests take for granted: a router counts its time-out from the last datagram, whichever way that went.
#[test]
fn a_router_closes_a_port_a_time_out_after_the_last_datagram() {
    if !in_networks("nat::silence::a_router_closes_a_port_a_time_out_after_the_last_datagram") {
        return;
    }
    let timeout = Duration::from_secs(2);
    let networks = networks_closing_after(2, &[Mapping::Random]);
    let home = networks.home(0);
    let socket = |at: SocketAddr| {
        let socket = UdpSocket::bind(at).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        socket
    };
    in_time(|| {
        let outside = socket(SocketAddr::new(networks.server(), 0));
        let inside = home.inside(|| socket(home.phone(0)));
        let (mut buffer, refused) = ([0; 8], home.refused());
        let mut last = Instant::now();
        let to = outside.local_addr().expect("an address");
        inside.send_to(b"out", to).expect("sending");
        let (_, port) = outside.recv_from(&mut buffer).expect("a datagram from inside");
        // More than a time-out after the datagram from inside, less after the one before.
        for _ in 0..3 {
            thread::sleep(timeout / 2);
            outside.send_to(b"in", port).expect("sending");
            if last.elapsed() >= timeout {
                return None;
            }
            last = Instant::now();
            inside.recv_from(&mut buffer).expect("a datagram from outside");
        }
        assert_eq!(home.refused(), refused);
        // Its time begins when the datagram has passed, which was before it was read.
        thread::sleep(timeout + timeout / 4);
        outside.send_to(b"late", port).expect("sending");
        wait_until("the router refuses it", || home.refused() > refused);
        Some(())
    });
}
