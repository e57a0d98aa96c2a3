//! All clients come back at once, as after a restart of the server. Each is a phone: an attempt that
//! takes too long is given up, and the next one waits longer.

use std::collections::BTreeMap;
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use sip_net::epoll::{Epoll, EventList, Interest};

use super::Outcome;
use super::arguments::Arguments;
use super::said;
use super::speech::{Speech, options};
use super::system::Dice;
use super::target::{Target, with_own_tickets};

/// How long an attempt may take, what is waited after it, when all is given up.
struct Patience {
    timeout: Duration,
    backoff: Duration,
    give_up: Duration,
}

/// A client.
struct Client {
    config: Arc<ClientConfig>,
    attempt: Option<Attempt>,
    /// Beginning and end of attempts: when the next thing is due.
    due: Instant,
    tries: u32,
    served: Option<Duration>,
    resumed: bool,
    dice: Dice,
}

/// What all clients have in common while they come back.
struct Storm<'a> {
    target: &'a Target,
    patience: &'a Patience,
    epoll: Epoll,
    /// Why attempts failed, and how often.
    failures: BTreeMap<String, usize>,
}

struct Attempt {
    socket: TcpStream,
    speech: Speech,
    asked: bool,
    /// Bytes of `speech.out` are waiting for room.
    blocked: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let target = Target::new(arguments)?;
    let count: usize = arguments.get("count", 1000)?;
    let seconds = |name, default| arguments.get(name, default).map(Duration::from_secs_f64);
    let patience = Patience {
        timeout: seconds("timeout", 4.0)?,
        backoff: seconds("backoff", 1.0)?,
        give_up: seconds("give-up", 120.0)?,
    };
    let tickets = !arguments.has("fresh");
    let mut clients: Vec<Client> = (0..count).map(|number| Client::new(&target, number)).collect();
    if tickets && target.transport.is_secure() {
        // Each gets its ticket, a few at a time.
        for some in clients.chunks_mut(64) {
            storm(&target, some, &patience)?;
        }
        let served = clients.iter().filter(|client| client.served.is_some()).count();
        said::ready(served)?;
    } else {
        said::ready(0)?;
    }
    // The server is restarted now; any line, or the end of the input, begins the storm.
    io::stdin().lock().read_line(&mut String::new())?;
    for client in &mut clients {
        client.again();
    }
    let began = Instant::now();
    let failures = storm(&target, &mut clients, &patience)?;
    report(&clients, began.elapsed(), &failures)
}

fn report(clients: &[Client], took: Duration, failures: &BTreeMap<String, usize>) -> Outcome {
    let mut times: Vec<f64> = clients
        .iter()
        .filter_map(|client| client.served.map(|time| time.as_secs_f64()))
        .collect();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let last = times.len().saturating_sub(1);
        times.get((last as f64 * share) as usize).copied().unwrap_or(0.0)
    };
    let tries: u32 = clients.iter().map(|client| client.tries).sum();
    let most = clients.iter().map(|client| client.tries).max().unwrap_or(0);
    let resumed = clients.iter().filter(|client| client.resumed).count();
    for (why, times) in failures {
        eprintln!("crowd storm: {times} attempts ended: {why}");
    }
    said::row(&said::Storm {
        asked: clients.len(),
        served: times.len(),
        resumed,
        tries,
        most_tries: most,
        all_s: at(1.0),
        median_s: at(0.5),
        p99_s: at(0.99),
        took_s: took.as_secs_f64(),
    })
}

/// Until all are served, or all is given up. Why attempts failed.
fn storm(target: &Target, clients: &mut [Client], patience: &Patience) -> Outcome<BTreeMap<String, usize>> {
    let mut events = EventList::new(512);
    let mut storm = Storm {
        target,
        patience,
        epoll: Epoll::new()?,
        failures: BTreeMap::new(),
    };
    let began = Instant::now();
    let mut looked = began;
    let mut left = clients.len();
    for (number, client) in clients.iter_mut().enumerate() {
        client.begin(number, &mut storm);
    }
    while left > 0 && began.elapsed() < patience.give_up {
        storm.epoll.wait(&mut events, Some(10_000))?;
        for event in (0..events.len()).filter_map(|index| events.get(index)) {
            let number = event.token as usize;
            let Some(client) = clients.get_mut(number) else {
                continue;
            };
            match client.turn(number, &storm) {
                Ok(false) => {}
                Ok(true) => {
                    client.served = Some(began.elapsed());
                    client.attempt = None;
                    left -= 1;
                }
                Err(error) => client.failed(error.to_string(), &mut storm),
            }
        }
        if looked.elapsed() > Duration::from_millis(20) {
            looked = Instant::now();
            for (number, client) in clients.iter_mut().enumerate() {
                client.look(number, &mut storm);
            }
        }
    }
    for client in clients {
        client.attempt = None;
    }
    Ok(storm.failures)
}

impl Client {
    fn new(target: &Target, number: usize) -> Self {
        Self {
            config: with_own_tickets(&target.tls).0,
            attempt: None,
            due: Instant::now(),
            tries: 0,
            served: None,
            resumed: false,
            dice: Dice::new(number as u64 + 1),
        }
    }

    /// Forgets what was, but for the tickets.
    fn again(&mut self) {
        (self.tries, self.served, self.resumed) = (0, None, false);
    }

    /// Begins an attempt.
    fn begin(&mut self, number: usize, storm: &mut Storm<'_>) {
        self.tries += 1;
        self.due = Instant::now() + storm.patience.timeout;
        match Attempt::new(storm.target, number, &self.config, &storm.epoll) {
            Ok(attempt) => self.attempt = Some(attempt),
            Err(error) => self.failed(error.to_string(), storm),
        }
    }

    fn failed(&mut self, why: String, storm: &mut Storm<'_>) {
        self.attempt = None;
        *storm.failures.entry(why).or_default() += 1;
        // RFC 5626 §4.5: from half of it to all of it.
        let factor = f64::from(1u32 << (self.tries - 1).min(6)) * (0.5 + self.dice.roll() / 2.0);
        self.due = Instant::now() + storm.patience.backoff.mul_f64(factor);
    }

    /// Whether something is overdue: the attempt, or the wait for the next.
    fn look(&mut self, number: usize, storm: &mut Storm<'_>) {
        if self.served.is_some() || Instant::now() < self.due {
            return;
        }
        if self.attempt.is_some() {
            self.failed("it took too long".to_owned(), storm);
        } else {
            self.begin(number, storm);
        }
    }

    /// Something has happened. Whether it is served.
    fn turn(&mut self, number: usize, storm: &Storm<'_>) -> io::Result<bool> {
        let Some(attempt) = &mut self.attempt else {
            return Ok(false);
        };
        let serial = self.tries as usize;
        let served = attempt.turn(storm.target, number, serial, &storm.epoll)?;
        if let Some(tls) = &attempt.speech.tls {
            self.resumed = tls.resumed() == Some(true);
        }
        Ok(served)
    }
}

impl Attempt {
    fn new(target: &Target, number: usize, config: &Arc<ClientConfig>, epoll: &Epoll) -> io::Result<Self> {
        let socket = target.socket(number)?;
        socket.set_nonblocking(true)?;
        if let Err(error) = socket.connect(&target.address.into())
            && error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error())
        {
            return Err(error);
        }
        let socket = TcpStream::from(socket);
        epoll.add(&socket, number as u64, Interest::ReadWrite)?;
        Ok(Self {
            socket,
            speech: Speech::new(target, Some(config))?,
            asked: false,
            blocked: true,
        })
    }

    /// Reads, thinks, writes. Whether the request was answered with success.
    fn turn(&mut self, target: &Target, number: usize, serial: usize, epoll: &Epoll) -> io::Result<bool> {
        let mut buffer = [0; 16 << 10];
        if let Some(error) = self.socket.take_error()? {
            return Err(error);
        }
        match self.socket.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.speech.feed(buffer.get_mut(..count).unwrap_or_default())?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if self.speech.is_open() && !self.asked {
            self.asked = true;
            let request = options(target, self.socket.local_addr()?, number, serial, 0);
            self.speech.say(&request)?;
        }
        if let Some(status) = self.speech.heard() {
            return match status {
                200 => Ok(true),
                other => Err(io::Error::other(format!("OPTIONS was answered with {other}"))),
            };
        }
        let mut blocked = false;
        while !self.speech.out.is_empty() && !blocked {
            match self.socket.write(&self.speech.out) {
                Ok(count) => drop(self.speech.out.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => blocked = true,
                Err(error) => return Err(error),
            }
        }
        if blocked != self.blocked {
            self.blocked = blocked;
            let interest = if blocked {
                Interest::ReadWrite
            } else {
                Interest::Read
            };
            epoll.modify(&self.socket, number as u64, interest)?;
        }
        Ok(false)
    }
}
