//! Connections that ask and never read an answer, until neither end's buffers have room. What the
//! server cuts is opened again.

use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Outcome;
use super::arguments::Arguments;
use super::link::{Link, dial};
use super::loris::{Counts, watch};
use super::speech::{Speech, options};
use super::system::input_ended;
use super::target::Target;

/// The receive buffer that is asked for: small, so that it is the server that has to wait.
const RECEIVE: usize = 4096;
/// Bytes by which requests, and so responses, are longer than they need be: the kernel lets a
/// server's socket take megabytes before anything waits.
const PADDING: usize = 32 << 10;

struct Deaf {
    link: Link,
    serial: usize,
}

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let target = Target::new(arguments)?;
    let count: usize = arguments.get("count", 100)?;
    let rate: f64 = arguments.get("rate", 2000.0)?;
    let threads = arguments.get("threads", 2)?.clamp(1, count.clamp(1, 64));
    let (counts, ended) = (Counts::default(), input_ended());
    thread::scope(|scope| {
        for thread in 0..threads {
            let numbers: Vec<usize> = (thread..count).step_by(threads).collect();
            let pause = Duration::from_secs_f64(threads as f64 / rate.max(1.0));
            let (target, counts, ended) = (&target, &counts, &*ended);
            scope.spawn(move || talk(target, &numbers, pause, counts, ended));
        }
        watch("deaf", count, &counts, &ended)
    })
}

/// All are opened; then each in turn asks once more, at an even pace.
fn talk(target: &Target, numbers: &[usize], pause: Duration, counts: &Counts, ended: &AtomicBool) {
    let mut all: Vec<(usize, Option<Deaf>)> = numbers.iter().map(|number| (*number, None)).collect();
    let mut due = Instant::now();
    let mut first = true;
    loop {
        for (number, deaf) in &mut all {
            if ended.load(Ordering::Relaxed) {
                return;
            }
            if let Some(some) = deaf {
                if some.ask(target, *number) {
                    wait_until(&mut due, pause);
                    continue;
                }
                *deaf = None;
                Counts::count(&counts.cut);
                counts.there.fetch_sub(1, Ordering::Relaxed);
            }
            match Deaf::open(target, *number) {
                Ok(some) => {
                    *deaf = Some(some);
                    Counts::count(&counts.opened);
                    Counts::count(&counts.there);
                }
                Err(_) => Counts::count(&counts.refused),
            }
            if !first {
                wait_until(&mut due, pause);
            }
        }
        first = false;
    }
}

/// Keeps the pace; what was missed is not made up for.
fn wait_until(due: &mut Instant, pause: Duration) {
    let now = Instant::now();
    *due = (*due + pause).max(now.checked_sub(pause).unwrap_or(now));
    if let Some(left) = due.checked_duration_since(now) {
        thread::sleep(left);
    }
}

impl Deaf {
    fn open(target: &Target, number: usize) -> std::io::Result<Self> {
        let socket = dial(target, number, Some(RECEIVE))?;
        let mut link = Link {
            local: socket.local_addr()?,
            socket,
            speech: Speech::new(target, None)?,
        };
        link.shake_hands()?;
        link.socket.set_nonblocking(true)?;
        Ok(Self { link, serial: 0 })
    }

    /// Sends as much as there is room for of what was begun, else asks again. False: the server has
    /// ended it, which shows in that nothing can be sent.
    fn ask(&mut self, target: &Target, number: usize) -> bool {
        let speech = &mut self.link.speech;
        if speech.out.is_empty() {
            self.serial += 1;
            let request = options(target, self.link.local, number, self.serial, PADDING);
            if speech.say(&request).is_err() {
                return false;
            }
        }
        match self.link.socket.write(&speech.out) {
            Ok(count) => {
                speech.out.drain(..count);
                true
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }
}
