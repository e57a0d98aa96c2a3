//! A steady stream of requests from one socket, many under way at a time: the outcome of each, and how long
//! it took. A request without a response is sent again as any client does (RFC 3261 §17.1.2.2), for a
//! datagram may find no room. One that the server has taken and lost is seen all the same, since its
//! transaction absorbs the copies.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::child::wait_until;
use crate::repeats::Repeats;
use crate::{DOMAIN, Message, PATIENCE, Scene, digest, port};

/// Between looks at the clock, where nothing comes.
const PAUSE: Duration = Duration::from_millis(2);

/// The kind of sender of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A stranger that calls a domain without authentication: OPTIONS, MESSAGE, INVITE.
    Open,
    /// One of a few users of [`DOMAIN`], by turns: MESSAGE, REGISTER, INVITE, with credentials.
    Regular,
    /// The same, of a user that was never seen before.
    New,
}

/// What it sends, and how often.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The domain without authentication.
    pub open_domain: &'static str,
    /// The users of [`Class::Regular`].
    pub regulars: Vec<String>,
    /// The users of [`Class::New`]; when all have had their turn no more of them are sent.
    pub new: Vec<String>,
    /// The password of each user.
    pub password: fn(&str) -> String,
    /// Requests of each class in a second; 0: none.
    pub rate: [u32; 3],
}

/// The outcome of a request.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its sender.
    pub class: Class,
    /// What it was.
    pub method: &'static str,
    /// The user; empty for [`Class::Open`].
    pub user: String,
    /// When it was sent, at first without credentials.
    pub begun: Instant,
    /// When its final answer came.
    pub ended: Instant,
    /// From the request that was answered last to its answer.
    pub took: Duration,
    /// The status of its final answer; 0: none came.
    pub status: u16,
    /// That answer's Retry-After; empty: it had none.
    pub retry_after: String,
}

/// The stream. It ends when dropped.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    outcomes: Mutex<Vec<Outcome>>,
    progress: Mutex<Progress>,
    end: AtomicBool,
}

/// What is under way. Requests are begun under its lock.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    /// Whether nothing more is begun.
    rests: bool,
    /// When the oldest request without a final answer was begun.
    oldest: Option<Instant>,
}

impl Shared {
    fn outcomes(&self) -> MutexGuard<'_, Vec<Outcome>> {
        self.outcomes.lock().expect("no thread panics with it")
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().expect("no thread panics with it")
    }
}

impl Load {
    /// A stream from the scene's address to its server, at rest until [`Self::go_on`].
    ///
    /// # Panics
    /// When the caller's port cannot be had.
    pub fn start(scene: &Scene, plan: Plan) -> Self {
        let socket = UdpSocket::bind(scene.at(port::CALLER)).expect("binding");
        socket.connect(scene.at(port::SERVER)).expect("connecting");
        socket.set_read_timeout(Some(PAUSE)).expect("a time-out");
        let shared = Arc::new(Shared::default());
        shared.progress().rests = true;
        let sender = Sender {
            local: scene.at(port::CALLER),
            contact: scene.at(port::CALLEE),
            socket,
            plan,
            open: HashMap::new(),
            sent: [0; 3],
            repeats: Repeats::new(),
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::spawn(move || sender.run());
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// The outcomes of requests that were answered so far.
    pub fn outcomes(&self) -> Vec<Outcome> {
        self.shared.outcomes().clone()
    }

    /// Begins nothing more, and waits until all that is under way has its final answer.
    ///
    /// # Panics
    /// When that does not come.
    #[track_caller]
    pub fn rest(&self) {
        self.shared.progress().rests = true;
        wait_until("the load is at rest", || self.shared.progress().oldest.is_none());
    }

    /// Ends [`Self::rest`].
    pub fn go_on(&self) {
        self.shared.progress().rests = false;
    }

    /// Waits until every request that was begun before `at` has its final answer.
    ///
    /// # Panics
    /// When that does not come.
    #[track_caller]
    pub fn wait_for_answers(&self, at: Instant) {
        wait_until("the answers to what was begun before", || {
            let oldest = self.shared.progress().oldest;
            oldest.is_none_or(|oldest| oldest > at)
        });
    }

    /// Waits until so many requests of a class that were begun from `at` on have their final answers.
    ///
    /// # Panics
    /// When these do not come.
    #[track_caller]
    pub fn wait_for(&self, class: Class, n: usize, at: Instant) {
        wait_until(&format!("{n} answers to {class:?} requests"), || {
            let outcomes = self.shared.outcomes();
            let of_class = outcomes.iter().filter(|o| o.class == class && o.begun >= at);
            of_class.count() >= n
        });
    }

    /// Waits until a request of this user that was begun from `at` on has ended with this status.
    ///
    /// # Panics
    /// When none does.
    #[track_caller]
    pub fn wait_for_status(&self, user: &str, status: u16, at: Instant) {
        wait_until(&format!("{user} gets {status}"), || {
            let outcomes = self.shared.outcomes();
            let mut of_user = outcomes.iter().filter(|o| o.user == user && o.begun >= at);
            of_user.any(|o| o.status == status)
        });
    }

    /// Waits until the last `n` requests of a class that were begun, from now on, have succeeded, and none
    /// begun after the first of these has failed; when that was begun.
    ///
    /// # Panics
    /// When they do not succeed.
    #[track_caller]
    pub fn wait_for_success(&self, class: Class, n: usize) -> Instant {
        let start = Instant::now();
        let mut first = None;
        wait_until(&format!("{n} {class:?} requests succeed"), || {
            let mut of_class = self.outcomes();
            of_class.retain(|o| o.class == class && o.begun >= start);
            let failed = of_class.iter().filter(|o| o.status != 200).map(|o| o.begun).max();
            of_class.retain(|o| failed.is_none_or(|failed| o.begun > failed));
            first = of_class.iter().map(|o| o.begun).min();
            of_class.len() >= n
        });
        first.expect("there were some")
    }

    /// Sends no more, waits for the responses that are to come, and returns all outcomes.
    ///
    /// # Panics
    /// When its thread did.
    pub fn finish(mut self) -> Vec<Outcome> {
        self.shared.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the load did not panic");
        }
        self.outcomes()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::Relaxed);
    }
}

/// The least of `times` that this share of them, 0 to 100, does not exceed; 0 of none.
pub fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    let at = (times.len() * percent).div_ceil(100).max(1) - 1;
    times.get(at).copied().unwrap_or_default()
}

/// A request under way.
#[derive(Debug)]
struct Job {
    class: Class,
    method: &'static str,
    user: String,
    begun: Instant,
    sent: Instant,
    /// Of the request sent last, 1 or 2.
    cseq: u32,
}

struct Sender {
    local: SocketAddr,
    contact: SocketAddr,
    socket: UdpSocket,
    plan: Plan,
    /// By Call-ID.
    open: HashMap<String, Job>,
    /// Of each class.
    sent: [u32; 3],
    repeats: Repeats<()>,
    shared: Arc<Shared>,
}

impl Sender {
    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        // Time that it was not at rest.
        let (mut active, mut last) = (Duration::ZERO, Instant::now());
        let mut buffer = vec![0; 65_536];
        let mut until = None;
        loop {
            let now = Instant::now();
            let is_over = shared.end.load(Ordering::Relaxed);
            let mut progress = shared.progress();
            if !progress.rests && !is_over {
                active += now - last;
                self.send_due(active);
            }
            last = now;
            progress.oldest = self.open.values().map(|job| job.begun).min();
            drop(progress);
            if is_over && (self.open.is_empty() || now >= *until.get_or_insert(now + PATIENCE)) {
                break;
            }
            for (bytes, ()) in self.repeats.due(now) {
                self.transmit(&bytes);
            }
            match self.socket.recv(&mut buffer) {
                Ok(length) => self.hear(&buffer[..length]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                // Nothing listens there: what is open stays so.
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
        for job in std::mem::take(&mut self.open).into_values() {
            self.record(job, 0, "");
        }
    }

    fn send_due(&mut self, elapsed: Duration) {
        for (at, class) in [Class::Open, Class::Regular, Class::New].into_iter().enumerate() {
            let due = elapsed.as_millis() * u128::from(self.plan.rate[at]) / 1000;
            while u128::from(self.sent[at]) < due {
                let number = self.sent[at];
                self.sent[at] += 1;
                self.begin(class, number);
            }
        }
    }

    fn begin(&mut self, class: Class, number: u32) {
        let turn = number as usize;
        let user = match class {
            Class::Open => String::new(),
            Class::Regular => self.plan.regulars[turn % self.plan.regulars.len()].clone(),
            Class::New => match self.plan.new.get(turn) {
                Some(user) => user.clone(),
                None => return,
            },
        };
        let methods = match class {
            Class::Open => ["OPTIONS", "MESSAGE", "INVITE"],
            Class::Regular | Class::New => ["MESSAGE", "REGISTER", "INVITE"],
        };
        let mut method = methods[turn % methods.len()];
        // RFC 3261 §10.2: no user registers anew before the response has come.
        let mut open = self.open.values();
        if method == "REGISTER" && open.any(|job| job.method == method && job.user == user) {
            method = methods[0];
        }
        let now = Instant::now();
        let job = Job {
            class,
            method,
            user,
            begun: now,
            sent: now,
            cseq: 1,
        };
        let call = format!("{class:?}-{number}");
        self.send(&call, &job, "");
        self.open.insert(call, job);
    }

    fn uri(&self, job: &Job) -> String {
        match job.method {
            "REGISTER" => format!("sip:{DOMAIN}"),
            _ => format!("sip:callee@{}", self.plan.open_domain),
        }
    }

    fn from(&self, job: &Job) -> String {
        match job.class {
            Class::Open => format!("sip:stranger@{}", self.plan.open_domain),
            Class::Regular | Class::New => format!("sip:{}@{DOMAIN}", job.user),
        }
    }

    fn send(&mut self, call: &str, job: &Job, more: &str) {
        let (method, uri, from) = (job.method, self.uri(job), self.from(job));
        let to = if method == "REGISTER" { &from } else { &uri };
        let branch = format!("{call}-{}", job.cseq);
        let mut text = self.head(method, &uri, &branch, call, job.cseq);
        let _ = write!(text, "From: <{from}>;tag=f\r\nTo: <{to}>\r\n{more}");
        if matches!(method, "INVITE" | "REGISTER") {
            let _ = write!(text, "Contact: <sip:{}@{}>\r\n", job.user, self.contact);
        }
        text.push_str("Content-Length: 0\r\n\r\n");
        self.send_bytes(&text);
    }

    fn head(&self, method: &str, uri: &str, branch: &str, call: &str, cseq: u32) -> String {
        format!(
            "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/UDP {};branch=z9hG4bK{branch};rport\r\nMax-Forwards: 70\r\n\
             Call-ID: {call}\r\nCSeq: {cseq} {method}\r\n",
            self.local,
        )
    }

    fn send_bytes(&mut self, text: &str) {
        self.repeats.sent(text.as_bytes(), (), false, Instant::now());
        self.transmit(text.as_bytes());
    }

    fn transmit(&self, bytes: &[u8]) {
        // A server that is not there is the test's business.
        let _ = self.socket.send(bytes);
    }

    fn hear(&mut self, bytes: &[u8]) {
        let message = Message::parse(bytes);
        if let Some(again) = self.repeats.heard(&message, false) {
            for (bytes, ()) in again {
                self.transmit(&bytes);
            }
            return;
        }
        let status = message.status();
        let call = message.header("call-id").to_owned();
        let cseq = message.header("cseq");
        if status < 200 {
            return;
        }
        if cseq.ends_with(" INVITE") {
            self.acknowledge(&call, &message);
        }
        // An answer to the request without credentials is the end of that only.
        let number = cseq.split(' ').next().and_then(|n| n.parse().ok());
        let Some(mut job) = self.open.remove(&call) else {
            return;
        };
        if number != Some(job.cseq) {
            self.open.insert(call, job);
        } else if matches!(status, 401 | 407) && job.class != Class::Open && job.cseq == 1 {
            job.cseq = 2;
            job.sent = Instant::now();
            let password = (self.plan.password)(&job.user);
            let credentials =
                digest::credentials(job.method, &self.uri(&job), &message, &job.user, &password);
            let name = if status == 401 { "" } else { "Proxy-" };
            self.send(&call, &job, &format!("{name}Authorization: {credentials}\r\n"));
            self.open.insert(call, job);
        } else {
            self.record(job, status, message.header("retry-after"));
        }
    }

    /// RFC 3261 §17.1.1.3: in its transaction; §13.2.2.4: a 2xx in its dialog.
    fn acknowledge(&mut self, call: &str, answer: &Message) {
        let number = answer.header("cseq").split(' ').next().unwrap_or_default();
        let cseq = number.parse().unwrap_or(1);
        let branch = format!("{call}-{cseq}");
        let mut text = if answer.status() < 300 {
            let branch = format!("{branch}-ack");
            let mut text = self.head("ACK", &answer.contact_uri(), &branch, call, cseq);
            for route in answer.routes().iter().rev() {
                let _ = write!(text, "Route: {route}\r\n");
            }
            text
        } else {
            let uri = format!("sip:callee@{}", self.plan.open_domain);
            self.head("ACK", &uri, &branch, call, cseq)
        };
        let _ = write!(
            text,
            "From: {}\r\nTo: {}\r\nContent-Length: 0\r\n\r\n",
            answer.header("from"),
            answer.header("to")
        );
        self.send_bytes(&text);
    }

    fn record(&self, job: Job, status: u16, retry_after: &str) {
        let ended = Instant::now();
        self.shared.outcomes().push(Outcome {
            class: job.class,
            method: job.method,
            user: job.user,
            begun: job.begun,
            ended,
            took: ended - job.sent,
            status,
            retry_after: retry_after.to_owned(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_there_is() {
        let ms = Duration::from_millis;
        let mut times: Vec<Duration> = (1..=200).rev().map(ms).collect();
        assert_eq!(percentile(&mut times, 99), ms(198));
        assert_eq!(percentile(&mut times, 100), ms(200));
        assert_eq!(percentile(&mut [ms(7)], 99), ms(7));
        assert_eq!(percentile(&mut [], 99), Duration::ZERO);
    }
}
