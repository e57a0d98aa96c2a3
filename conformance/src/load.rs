//! A steady stream of requests from one socket, many under way at a time: what becomes of each, and
//! how long it took. Nothing is ever sent twice, so that whatever is lost is seen.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{DOMAIN, Message, Scene, digest, port};

/// How long after the last request answers are waited for.
const PATIENCE: Duration = Duration::from_secs(8);
/// Between looks at the clock, where nothing comes.
const PAUSE: Duration = Duration::from_millis(2);

/// Who sends a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A stranger who calls a domain that asks nobody for credentials: OPTIONS, MESSAGE, INVITE.
    Open,
    /// One of a few users of [`DOMAIN`], by turns: MESSAGE, REGISTER, INVITE, with credentials.
    Regular,
    /// The same, of a user who was never heard of before.
    New,
}

/// What it sends, and how often.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The domain that asks nobody.
    pub open_domain: &'static str,
    /// The users of [`Class::Regular`].
    pub regulars: Vec<String>,
    /// The users of [`Class::New`]; when all have had their turn no more of them are sent.
    pub new: Vec<String>,
    /// Everybody's password.
    pub password: fn(&str) -> String,
    /// Requests of each class in a second; 0: none.
    pub rate: [u32; 3],
}

/// What became of a request.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Who sent it.
    pub class: Class,
    /// What it was.
    pub method: &'static str,
    /// Of whom; empty for [`Class::Open`].
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
    end: AtomicBool,
}

impl Shared {
    fn outcomes(&self) -> MutexGuard<'_, Vec<Outcome>> {
        self.outcomes.lock().expect("nobody panics with it")
    }
}

impl Load {
    /// Begins to send from the scene's address to its server.
    ///
    /// # Panics
    /// When the caller's port cannot be had.
    pub fn start(scene: &Scene, plan: Plan) -> Self {
        let socket = UdpSocket::bind(scene.at(port::CALLER)).expect("binding");
        socket.connect(scene.at(port::SERVER)).expect("connecting");
        socket.set_read_timeout(Some(PAUSE)).expect("a time-out");
        let shared = Arc::new(Shared::default());
        let sender = Sender {
            local: scene.at(port::CALLER),
            contact: scene.at(port::CALLEE),
            socket,
            plan,
            open: HashMap::new(),
            sent: [0; 3],
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::spawn(move || sender.run());
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// What has become of those that were answered so far.
    pub fn outcomes(&self) -> Vec<Outcome> {
        self.shared.outcomes().clone()
    }

    /// Waits until `n` requests of a class in a row, begun from now on, have succeeded; when the
    /// first of them was begun.
    ///
    /// # Panics
    /// After `limit`.
    pub fn wait_for_success(&self, class: Class, n: usize, limit: Duration) -> Instant {
        let start = Instant::now();
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let mut of_class = self.outcomes();
            of_class.retain(|o| o.class == class && o.begun >= start);
            let last = of_class.iter().rev().take_while(|o| o.status == 200);
            let last: Vec<&Outcome> = last.collect();
            if let Some(first) = last.iter().map(|o| o.begun).min().filter(|_| last.len() >= n) {
                return first;
            }
            assert!(
                start.elapsed() < limit,
                "{class:?} requests do not succeed within {limit:?}: {:?}",
                of_class.iter().map(|o| o.status).collect::<Vec<_>>()
            );
        }
    }

    /// Sends no more, waits for the answers that are to come, and tells all.
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
    shared: Arc<Shared>,
}

impl Sender {
    fn run(mut self) {
        let start = Instant::now();
        let mut buffer = vec![0; 65_536];
        let mut until = None;
        loop {
            let now = Instant::now();
            if self.shared.end.load(Ordering::Relaxed) {
                let until = *until.get_or_insert(now + PATIENCE);
                if self.open.is_empty() || now >= until {
                    break;
                }
            } else {
                self.send_due(now - start);
            }
            match self.socket.recv(&mut buffer) {
                Ok(length) => self.hear(&buffer[..length]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                // Nobody listens: what is open stays so.
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
        // RFC 3261 §10.2: nobody registers anew before the answer has come.
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

    fn send(&self, call: &str, job: &Job, more: &str) {
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

    fn send_bytes(&self, text: &str) {
        // A server that is not there is the test's business.
        let _ = self.socket.send(text.as_bytes());
    }

    fn hear(&mut self, bytes: &[u8]) {
        let message = Message::parse(bytes);
        let status = message.status();
        let call = message.header("call-id").to_owned();
        let cseq = message.header("cseq");
        if status < 200 {
            return;
        }
        if cseq.ends_with(" INVITE") {
            self.acknowledge(&call, &message);
        }
        // Copies come late.
        let Some(job) = self.open.get_mut(&call).filter(|job| {
            let number = cseq.split(' ').next();
            number.and_then(|n| n.parse().ok()) == Some(job.cseq)
        }) else {
            return;
        };
        if matches!(status, 401 | 407) && job.class != Class::Open && job.cseq == 1 {
            job.cseq = 2;
            job.sent = Instant::now();
            let Some(job) = self.open.get(&call) else { return };
            let password = (self.plan.password)(&job.user);
            let credentials = digest::credentials(job.method, &self.uri(job), &message, &job.user, &password);
            let name = if status == 401 { "" } else { "Proxy-" };
            self.send(&call, job, &format!("{name}Authorization: {credentials}\r\n"));
        } else if let Some(job) = self.open.remove(&call) {
            self.record(job, status, message.header("retry-after"));
        }
    }

    /// RFC 3261 §17.1.1.3: in its transaction; §13.2.2.4: a 2xx in its dialog.
    fn acknowledge(&self, call: &str, answer: &Message) {
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
