//! A scripted callee on raw sockets: it does with every call what its part says, and remembers all
//! that came. For what SIPp is clumsy at: several callees of one call, and the order of things.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::child::wait_until;
use crate::repeats::{Repeats, T1};
use crate::{DOMAIN, Message, Scene, Transport, digest, port};

/// Between looks at the sockets.
const PAUSE: Duration = Duration::from_millis(1);

/// What it does with an INVITE. Every other request is answered 200, except by a phone that refuses or is
/// silent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Rings, and answers after this time.
    Answer(Duration),
    /// Rings, and answers on its cue ([`Phone::cue`]).
    AnswerOnCue,
    /// Rings until it is cancelled.
    Ring,
    /// Says nothing until its cue, then rings until it is cancelled.
    RingOnCue,
    /// Gives this final answer to every request, after this time.
    Refuse(u16, Duration),
    /// Answers 302 with these values of Contact.
    Redirect(Vec<String>),
    /// Takes what comes and says nothing at all.
    Silent,
}

/// A message that came, and when.
#[derive(Debug, Clone)]
pub struct Heard {
    /// The message.
    pub message: Message,
    /// When it was read.
    pub at: Instant,
}

/// A running callee; it ends when dropped.
#[derive(Debug)]
pub struct Phone {
    shared: Arc<Shared>,
    local: SocketAddr,
    transport: Transport,
    server: SocketAddr,
    /// Of the phones of this test: behind several NATs, several may have one address.
    number: u32,
    cseq: AtomicU32,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    udp: UdpSocket,
    tcp: TcpListener,
    streams: Mutex<Vec<Stream>>,
    heard: Mutex<Vec<Heard>>,
    keep_alives: Mutex<Vec<Instant>>,
    cue: AtomicBool,
    mute: AtomicBool,
    end: AtomicBool,
}

#[derive(Debug)]
struct Stream {
    socket: TcpStream,
    pending: Vec<u8>,
}

/// Where an answer goes.
#[derive(Debug, Clone, Copy)]
enum Way {
    Datagram(SocketAddr),
    Stream(usize),
}

impl Way {
    fn is_reliable(self) -> bool {
        matches!(self, Self::Stream(_))
    }
}

/// When a response is sent.
#[derive(Debug, Clone, Copy)]
enum When {
    Now,
    After(Duration),
    OnCue,
}

/// A response that is sent later.
struct Later {
    /// `None`: on cue.
    at: Option<Instant>,
    text: String,
    way: Way,
    /// The branch of an INVITE; its CANCEL makes this go away.
    branch: String,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics with it")
}

impl Phone {
    /// Listens on this port of the scene's address, over UDP and TCP.
    ///
    /// # Panics
    /// When the port cannot be had.
    pub fn start(scene: &Scene, transport: Transport, number: u16, part: Part) -> Self {
        Self::start_at(scene.at(number), scene.at(port::SERVER), transport, part)
    }

    /// The same at another address than the scene's, for another server.
    ///
    /// # Panics
    /// When the port cannot be had.
    pub fn start_at(local: SocketAddr, server: SocketAddr, transport: Transport, part: Part) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(Shared {
            udp: UdpSocket::bind(local).expect("binding"),
            tcp: TcpListener::bind(local).expect("binding"),
            streams: Mutex::default(),
            heard: Mutex::default(),
            keep_alives: Mutex::default(),
            cue: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            end: AtomicBool::new(false),
        });
        shared.udp.set_nonblocking(true).expect("not to block");
        shared.tcp.set_nonblocking(true).expect("not to block");
        let inner = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            Life {
                shared: &inner,
                local,
                number,
                transport,
                part,
                later: Vec::new(),
                invites: BTreeMap::new(),
                repeats: Repeats::new(),
            }
            .run();
        });
        Self {
            shared,
            local,
            transport,
            server,
            number,
            cseq: AtomicU32::new(0),
            thread: Some(thread),
        }
    }

    /// Its URI, as a member of a group or a contact, for a user or none.
    pub fn uri(&self, user: &str) -> String {
        let at = if user.is_empty() { "" } else { "@" };
        format!("sip:{user}{at}{};transport={}", self.local, self.transport.name())
    }

    /// Registers itself as a contact of `user`, over a connection that stays open where it is TCP.
    ///
    /// # Panics
    /// When the answer is not 200.
    pub fn register(&self, user: &str, q: &str) {
        let answer = self.send_register(user, q, "");
        assert_eq!(answer.status(), 200, "{answer:?}");
    }

    /// The same with digest: 401, then 200.
    ///
    /// # Panics
    /// When the answers are others.
    pub fn register_with(&self, user: &str, password: &str, q: &str) {
        let challenge = self.send_register(user, q, "");
        assert_eq!(challenge.status(), 401, "{challenge:?}");
        let uri = format!("sip:{DOMAIN}");
        let credentials = digest::credentials("REGISTER", &uri, &challenge, user, password);
        let answer = self.send_register(user, q, &format!("Authorization: {credentials}\r\n"));
        assert_eq!(answer.status(), 200, "{answer:?}");
    }

    /// Sends a REGISTER with these further header lines; its final answer.
    #[track_caller]
    fn send_register(&self, user: &str, q: &str, more: &str) -> Message {
        let name = self.transport.name().to_uppercase();
        let (local, uri) = (self.local, self.uri(user));
        let (number, cseq) = (self.number, self.cseq.fetch_add(1, Ordering::Relaxed) + 1);
        let branch = format!("z9hG4bKreg{number}-{cseq}");
        let text = format!(
            "REGISTER sip:{DOMAIN} SIP/2.0\r\nVia: SIP/2.0/{name} {local};branch={branch};rport\r\n\
             Max-Forwards: 70\r\nFrom: <sip:{user}@{DOMAIN}>;tag=r{number}\r\nTo: <sip:{user}@{DOMAIN}>\r\n\
             Call-ID: register-{number}-{port}\r\nCSeq: {cseq} REGISTER\r\nContact: <{uri}>;q={q}\r\n\
             Expires: 600\r\n{more}Content-Length: 0\r\n\r\n",
            port = local.port(),
        );
        match self.transport {
            Transport::Udp => self.send_datagram(&text),
            Transport::Tls | Transport::Ws | Transport::Wss => {
                panic!("a callee over {name} is an Agent")
            }
            Transport::Tcp => {
                let mut socket = TcpStream::connect(self.server).expect("connecting");
                socket.write_all(text.as_bytes()).expect("sending");
                socket.set_nonblocking(true).expect("not to block");
                locked(&self.shared.streams).push(Stream {
                    socket,
                    pending: Vec::new(),
                });
            }
        }
        let (mut sent, mut answer) = (Instant::now(), None);
        wait_until("the answer to REGISTER", || {
            if self.transport == Transport::Udp && sent.elapsed() >= T1 {
                sent = Instant::now();
                self.send_datagram(&text);
            }
            let heard = self.heard().into_iter().map(|heard| heard.message);
            answer = heard
                .filter(|message| message.status() >= 200)
                .find(|message| message.branch() == branch);
            answer.is_some()
        });
        answer.expect("an answer, as above")
    }

    fn send_datagram(&self, text: &str) {
        let sent = self.shared.udp.send_to(text.as_bytes(), self.server);
        sent.expect("sending");
    }

    /// Has it do what its part leaves to a cue, for the INVITEs that have come and those that follow.
    pub fn cue(&self) {
        self.shared.cue.store(true, Ordering::Relaxed);
    }

    /// From now on it takes what comes and says nothing at all, or does so no more.
    pub fn set_mute(&self, is_mute: bool) {
        self.shared.mute.store(is_mute, Ordering::Relaxed);
    }

    /// When keep-alives came: datagrams of CRLF (RFC 5626 §4.4.1).
    pub fn keep_alives(&self) -> Vec<Instant> {
        locked(&self.shared.keep_alives).clone()
    }

    /// Everything that came so far.
    pub fn heard(&self) -> Vec<Heard> {
        locked(&self.shared.heard).clone()
    }

    /// Requests of this method, without copies.
    pub fn requests(&self, method: &str) -> Vec<Heard> {
        let mut branches = BTreeSet::new();
        let mut heard = self.heard();
        heard.retain(|heard| {
            let message = &heard.message;
            message.first_line.split(' ').next() == Some(method)
                && branches.insert(message.branch().to_owned())
        });
        heard
    }

    /// The number of [`Self::requests`].
    pub fn count(&self, method: &str) -> usize {
        self.requests(method).len()
    }

    /// Waits until a request of this method has come; the first of them.
    ///
    /// # Panics
    /// When none comes.
    #[track_caller]
    pub fn wait_for(&self, method: &str) -> Heard {
        let what = format!("{method} at {}", self.local);
        wait_until(&what, || self.count(method) > 0);
        self.requests(method).remove(0)
    }
}

impl Drop for Phone {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(ended.is_some_and(|ended| ended.is_ok()), "the callee panicked");
        }
    }
}

/// What its thread has.
struct Life<'a> {
    shared: &'a Shared,
    local: SocketAddr,
    number: u32,
    transport: Transport,
    part: Part,
    later: Vec<Later>,
    /// INVITEs by their branch.
    invites: BTreeMap<String, Message>,
    repeats: Repeats<Way>,
}

impl Life<'_> {
    fn run(mut self) {
        let mut buffer = vec![0; 65_536];
        while !self.shared.end.load(Ordering::Relaxed) {
            let mut idle = true;
            while let Ok((length, from)) = self.shared.udp.recv_from(&mut buffer) {
                idle = false;
                self.hear(buffer.get(..length).unwrap_or_default(), Way::Datagram(from));
            }
            if let Ok((socket, _)) = self.shared.tcp.accept() {
                socket.set_nonblocking(true).expect("not to block");
                let pending = Vec::new();
                locked(&self.shared.streams).push(Stream { socket, pending });
            }
            for (number, bytes) in self.read_streams(&mut buffer) {
                idle = false;
                self.hear(&bytes, Way::Stream(number));
            }
            self.say_what_is_due();
            if idle {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn say_what_is_due(&mut self) {
        let (now, has_cue) = (Instant::now(), self.shared.cue.load(Ordering::Relaxed));
        let is_due = |later: &Later| later.at.map_or(has_cue, |at| at <= now);
        let (due, later): (Vec<Later>, Vec<Later>) = self.later.drain(..).partition(is_due);
        self.later = later;
        for later in due {
            self.say(&later.text, later.way);
        }
        for (bytes, way) in self.repeats.due(now) {
            self.transmit(&bytes, way);
        }
    }

    /// Whole messages of all connections.
    fn read_streams(&self, buffer: &mut [u8]) -> Vec<(usize, Vec<u8>)> {
        let mut out = Vec::new();
        for (number, stream) in locked(&self.shared.streams).iter_mut().enumerate() {
            match stream.socket.read(buffer) {
                Ok(length) => stream
                    .pending
                    .extend_from_slice(buffer.get(..length).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => continue,
            }
            while let Some(message) = Message::take(&mut stream.pending) {
                out.push((number, message));
            }
        }
        out
    }

    fn hear(&mut self, bytes: &[u8], way: Way) {
        if bytes.iter().all(|byte| b"\r\n\0".contains(byte)) {
            locked(&self.shared.keep_alives).push(Instant::now());
            return;
        }
        let message = Message::parse(bytes);
        locked(&self.shared.heard).push(Heard {
            message: message.clone(),
            at: Instant::now(),
        });
        let again = self.repeats.heard(&message, way.is_reliable());
        if self.part == Part::Silent || self.shared.mute.load(Ordering::Relaxed) {
            return;
        }
        if let Some(again) = again {
            for (bytes, way) in again {
                self.transmit(&bytes, way);
            }
            return;
        }
        if message.status() > 0 {
            return;
        }
        match message.first_line.split(' ').next().unwrap_or_default() {
            "ACK" => {}
            "INVITE" => self.invited(&message, way),
            "CANCEL" => self.cancelled(&message, way),
            _ => {
                let code = match self.part {
                    Part::Refuse(code, _) => code,
                    Part::Answer(_)
                    | Part::AnswerOnCue
                    | Part::Ring
                    | Part::RingOnCue
                    | Part::Redirect(_)
                    | Part::Silent => 200,
                };
                self.answer(&message, code, "", When::Now, way);
            }
        }
    }

    fn invited(&mut self, message: &Message, way: Way) {
        let contact = format!("Contact: <{}>\r\n", Self::uri(self.local, self.transport));
        self.invites.insert(message.branch().to_owned(), message.clone());
        match self.part.clone() {
            Part::Answer(after) => {
                self.answer(message, 180, &contact, When::Now, way);
                self.answer(message, 200, &contact, When::After(after), way);
            }
            Part::AnswerOnCue => {
                self.answer(message, 180, &contact, When::Now, way);
                self.answer(message, 200, &contact, When::OnCue, way);
            }
            Part::Ring => self.answer(message, 180, &contact, When::Now, way),
            Part::RingOnCue => self.answer(message, 180, &contact, When::OnCue, way),
            Part::Refuse(code, after) => self.answer(message, code, "", When::After(after), way),
            Part::Redirect(contacts) => {
                let lines: String = contacts
                    .iter()
                    .map(|value| format!("Contact: {value}\r\n"))
                    .collect();
                self.answer(message, 302, &lines, When::Now, way);
            }
            Part::Silent => {}
        }
    }

    fn uri(local: SocketAddr, transport: Transport) -> String {
        format!("sip:callee@{local};transport={}", transport.name())
    }

    /// 200 to the CANCEL; 487 to its INVITE, unless that has its answer.
    fn cancelled(&mut self, cancel: &Message, way: Way) {
        self.answer(cancel, 200, "", When::Now, way);
        let waits = matches!(self.part, Part::Ring | Part::RingOnCue);
        let before = self.later.len();
        let cancelled = cancel.branch();
        self.later.retain(|later| later.branch != cancelled);
        let stops = waits || self.later.len() < before;
        if let Some(invite) = self.invites.get(cancelled).filter(|_| stops).cloned() {
            self.answer(&invite, 487, "", When::Now, way);
        }
    }

    fn answer(&mut self, request: &Message, code: u16, more: &str, when: When, way: Way) {
        let mut text = format!("SIP/2.0 {code} Scripted\r\n");
        for (name, value) in &request.headers {
            let copied = ["via", "from", "to", "call-id", "cseq", "record-route"].contains(&name.as_str());
            if copied {
                text.push_str(&format!("{name}: {value}"));
                if name == "to" && !value.contains(";tag=") {
                    text.push_str(&format!(";tag=callee{}-{}", self.number, self.local.port()));
                }
                text.push_str("\r\n");
            }
        }
        text.push_str(&format!("{more}Content-Length: 0\r\n\r\n"));
        let at = match when {
            When::Now => return self.say(&text, way),
            When::After(time) if time.is_zero() => return self.say(&text, way),
            When::After(time) => Some(Instant::now() + time),
            When::OnCue => None,
        };
        self.later.push(Later {
            at,
            text,
            way,
            branch: request.branch().to_owned(),
        });
    }

    fn say(&mut self, text: &str, way: Way) {
        self.repeats
            .sent(text.as_bytes(), way, way.is_reliable(), Instant::now());
        self.transmit(text.as_bytes(), way);
    }

    fn transmit(&self, bytes: &[u8], way: Way) {
        // A peer that is gone is the test's business.
        let _ = match way {
            Way::Datagram(to) => self.shared.udp.send_to(bytes, to).map(|_| ()),
            Way::Stream(number) => match locked(&self.shared.streams).get_mut(number) {
                Some(stream) => stream.socket.write_all(bytes),
                None => Ok(()),
            },
        };
    }
}
