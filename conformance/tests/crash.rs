//! `durability = "commit"`: kill -9 under load, again and again, and every registration that was
//! answered is there afterwards.
//!
//! `CRASHES=N` says how often (10), `BINDINGS=N` how many registrations are on disk (5,000). With a
//! million and more, the server must be ready again within two seconds: that wants a release build
//! (`cargo xtask crash`).

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use conformance::{Config, PATIENCE, Scene, Server, port};

/// REGISTERs on their way at one time.
const WINDOW: usize = 128;
/// A REGISTER that is not answered within this time is sent again.
const AGAIN: Duration = Duration::from_millis(500);
/// With this many registrations on disk and more,
const MANY: u32 = 1_000_000;
/// the server must be ready within this time.
const READY_WITHIN: Duration = Duration::from_secs(2);
/// Users with registrations that change while the server is killed.
const CHANGING: u32 = 2_000;

fn number(name: &str, default: u32) -> u32 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// What is known of one user's registration. `q` encodes the CSeq of the REGISTER that made it.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The newest that was answered.
    answered: u32,
    /// The newest that was sent.
    sent: u32,
}

/// A client that registers many users.
struct Registrant {
    socket: UdpSocket,
    server: SocketAddr,
    users: Vec<Known>,
    /// REGISTERs without an answer, by their branch.
    under_way: BTreeMap<u64, UnderWay>,
    branch: u64,
}

/// A REGISTER on its way.
struct UnderWay {
    user: u32,
    cseq: u32,
    text: String,
    sent: Instant,
}

/// What a look at the socket brought.
enum Heard {
    /// A response: its user, its CSeq, and what it says.
    Answer(u32, u32, String),
    /// An answer to a REGISTER that had one, or that is not waited for any more.
    Copy,
    Nothing,
}

/// The q-value of a binding that this CSeq made, in thousandths.
const fn q_of(cseq: u32) -> u32 {
    cseq % 1_000
}

impl Registrant {
    fn new(scene: &Scene, users: u32) -> Self {
        let socket = UdpSocket::bind(scene.at(port::CALLER)).expect("a socket");
        socket
            .set_read_timeout(Some(Duration::from_millis(20)))
            .expect("a time-out");
        Self {
            socket,
            server: scene.at(port::SERVER),
            users: vec![Known::default(); users as usize],
            under_way: BTreeMap::new(),
            branch: 0,
        }
    }

    fn known(&mut self, user: u32) -> &mut Known {
        &mut self.users[user as usize]
    }

    fn send(&mut self, user: u32, cseq: u32, contact: &str) {
        self.branch += 1;
        let from = self.socket.local_addr().expect("an address");
        let text = format!(
            "REGISTER sip:example.com SIP/2.0\r\nVia: SIP/2.0/UDP {from};branch=z9hG4bK{branch}\r\n\
             Max-Forwards: 70\r\nFrom: <sip:u{user}@example.com>;tag=1\r\nTo: <sip:u{user}@example.com>\r\n\
             Call-ID: crash-{user}\r\nCSeq: {cseq} REGISTER\r\n{contact}Content-Length: 0\r\n\r\n",
            branch = self.branch,
        );
        self.transmit(&text);
        let sent = Instant::now();
        let register = UnderWay {
            user,
            cseq,
            text,
            sent,
        };
        self.under_way.insert(self.branch, register);
    }

    fn transmit(&self, text: &str) {
        // A server that was just killed refuses: that is an answer that does not come.
        let _ = self.socket.send_to(text.as_bytes(), self.server);
    }

    fn register(&mut self, user: u32) {
        let known = self.known(user);
        known.sent += 1;
        let cseq = known.sent;
        let from = self.socket.local_addr().expect("an address");
        let q = q_of(cseq);
        self.send(
            user,
            cseq,
            &format!("Contact: <sip:u{user}@{from}>;q=0.{q:03};expires=3600\r\n"),
        );
    }

    /// What comes next, within a moment.
    fn hear(&mut self) -> Heard {
        let mut buffer = [0; 4096];
        let length = match self.socket.recv(&mut buffer) {
            Ok(length) => length,
            Err(error) => {
                let may_be = [
                    ErrorKind::WouldBlock,
                    ErrorKind::TimedOut,
                    ErrorKind::ConnectionRefused,
                ];
                assert!(may_be.contains(&error.kind()), "{error}");
                return Heard::Nothing;
            }
        };
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let branch = text.split_once("branch=z9hG4bK").map_or("", |(_, rest)| rest);
        let digits: String = branch.chars().take_while(char::is_ascii_digit).collect();
        let branch = digits.parse::<u64>().ok();
        let register = branch.and_then(|branch| self.under_way.remove(&branch));
        match register {
            Some(UnderWay { user, cseq, .. }) => Heard::Answer(user, cseq, text),
            None => Heard::Copy,
        }
    }

    /// Notes what comes next; whether anything came.
    fn note(&mut self) -> bool {
        match self.hear() {
            Heard::Answer(user, cseq, text) => {
                if text.starts_with("SIP/2.0 200") {
                    let known = self.known(user);
                    known.answered = known.answered.max(cseq);
                }
                true
            }
            Heard::Copy => true,
            Heard::Nothing => false,
        }
    }

    /// Registers every user once.
    fn register_all(&mut self) {
        let mut users = 0..self.users.len() as u32;
        let mut answered = Instant::now();
        loop {
            while self.under_way.len() < WINDOW
                && let Some(user) = users.next()
            {
                self.register(user);
            }
            if self.under_way.is_empty() {
                return;
            }
            if self.note() {
                answered = Instant::now();
            } else {
                assert!(answered.elapsed() < PATIENCE, "REGISTERs were not answered");
                self.again();
            }
        }
    }

    /// Sends what has no answer once more, as it was.
    fn again(&mut self) {
        let (now, mut due) = (Instant::now(), Vec::new());
        for register in self.under_way.values_mut() {
            if now - register.sent > AGAIN {
                register.sent = now;
                due.push(register.text.clone());
            }
        }
        due.iter().for_each(|text| self.transmit(text));
    }

    /// Registers users in turn until `until`, and waits for nothing that does not come.
    fn load(&mut self, until: Instant) {
        let changing = CHANGING.min(self.users.len() as u32);
        let mut user = 0;
        while Instant::now() < until {
            while self.under_way.len() < WINDOW {
                self.register(user);
                user = (user + 1) % changing;
            }
            self.note();
        }
    }

    /// Asks for the registration of each of these users, and compares; users that are wrong.
    fn compare(&mut self, mut users: impl Iterator<Item = u32>) -> Vec<String> {
        let mut wrong = Vec::new();
        self.under_way.clear();
        let mut answered = Instant::now();
        loop {
            while self.under_way.len() < WINDOW
                && let Some(user) = users.next()
            {
                self.ask(user);
            }
            if self.under_way.is_empty() {
                return wrong;
            }
            match self.hear() {
                Heard::Answer(user, _, text) => {
                    answered = Instant::now();
                    wrong.extend(self.judge(user, &text));
                }
                Heard::Copy => {}
                Heard::Nothing => {
                    let left = self.under_way.values().map(|register| register.user);
                    let left: Vec<u32> = left.collect();
                    assert!(answered.elapsed() < PATIENCE, "no answer for {left:?}");
                    self.again();
                }
            }
        }
    }

    /// Fetches: a REGISTER without Contact.
    fn ask(&mut self, user: u32) {
        let known = self.known(user);
        known.sent += 1;
        let cseq = known.sent;
        self.send(user, cseq, "");
        // It makes no binding.
        self.known(user).sent = cseq;
    }

    fn judge(&mut self, user: u32, text: &str) -> Option<String> {
        let known = *self.known(user);
        let q = text
            .split_once(";q=0.")
            .and_then(|(_, rest)| rest.get(..3)?.parse::<u32>().ok());
        // Any that was sent after the newest that was answered may have come through as well.
        let may_be = |q: u32| (known.answered..=known.sent).any(|cseq| q_of(cseq) == q);
        let right = match q {
            Some(q) => may_be(q),
            None => known.answered == 0,
        };
        (!right).then(|| format!("u{user}: {known:?}, and the registrar has {q:?}"))
    }
}

#[test]
fn no_answered_registration_is_lost_when_the_server_is_killed() {
    let (crashes, bindings) = (number("CRASHES", 10), number("BINDINGS", 5_000));
    let scene = Scene::new();
    let mut server = Server::start(&scene, &Config::new());
    let mut registrant = Registrant::new(&scene, bindings.max(CHANGING));
    registrant.register_all();
    let mut longest = Duration::ZERO;
    for round in 0..crashes {
        // From a batch or two to some hundred.
        let pause = Duration::from_millis(50 + u64::from(round) * 397 % 1_450);
        registrant.load(Instant::now() + pause);
        server.kill();
        // What was answered before the end counts: all of that is here.
        while registrant.note() {}
        let began = Instant::now();
        server = Server::start_again(&scene);
        let ready = began.elapsed();
        longest = longest.max(ready);
        if bindings >= MANY {
            println!("round {round}: killed after {pause:?}, ready after {ready:?}");
        }
        let wrong = registrant.compare(0..CHANGING);
        assert!(
            wrong.is_empty(),
            "round {round}: {} of {CHANGING}: {wrong:#?}",
            wrong.len()
        );
    }
    // Those that did not change, at the end.
    let all = registrant.users.len() as u32;
    let step = (all / 20_000).max(1) as usize;
    let wrong = registrant.compare((CHANGING..all).step_by(step));
    assert!(wrong.is_empty(), "{} users: {wrong:#?}", wrong.len());
    println!("{crashes} crashes, {all} registrations: ready again within {longest:?}");
    if bindings >= MANY {
        assert!(
            longest <= READY_WITHIN,
            "ready after {longest:?}, and {READY_WITHIN:?} are allowed"
        );
    }
}
