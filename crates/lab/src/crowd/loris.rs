//! Connections on which a message, or a handshake, begins and does not end. What the server cuts is
//! opened again, so that as many as asked for are always there.

use std::io::{self, ErrorKind, Read};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Outcome;
use super::arguments::Arguments;
use super::link::Link;
use super::said;
use super::speech::{endless, first_bytes};
use super::system::input_ended;
use super::target::Target;

/// Steps into which the time between two bytes is cut: in each, a share of the connections speaks.
const SLICES: usize = 30;

/// Sums over all threads.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) there: AtomicUsize,
    pub(crate) opened: AtomicUsize,
    pub(crate) refused: AtomicUsize,
    pub(crate) cut: AtomicUsize,
}

impl Counts {
    pub(crate) fn count(which: &AtomicUsize) {
        which.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn see(which: &AtomicUsize) -> usize {
        which.load(Ordering::Relaxed)
    }
}

/// A connection that is slow.
struct Slow {
    link: Link,
    /// What is still to be said, a byte each time.
    rest: std::vec::IntoIter<u8>,
    /// What is said after that; none: nothing.
    filler: Option<u8>,
}

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let target = Target::new(arguments)?;
    let count: usize = arguments.get("count", 100)?;
    let every: f64 = arguments.get("every", 3.0)?;
    let threads = arguments.get("threads", 4)?.clamp(1, count.clamp(1, 64));
    let (counts, ended) = (Counts::default(), input_ended());
    thread::scope(|scope| {
        for thread in 0..threads {
            let numbers: Vec<usize> = (thread..count).step_by(threads).collect();
            let (target, counts, ended) = (&target, &counts, &*ended);
            scope.spawn(move || bother(target, &numbers, every, counts, ended));
        }
        watch("loris", count, &counts, &ended)
    })
}

/// Says when all are there, every 5 s how many there are, and the sums at the end.
pub(crate) fn watch(mode: &str, count: usize, counts: &Counts, ended: &AtomicBool) -> Outcome {
    let began = Instant::now();
    let mut told = 0;
    let mut ready = false;
    while !ended.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(100));
        let there = Counts::see(&counts.there);
        if !ready && there >= count {
            ready = true;
            // A reader that has gone has ended our input, too.
            drop(said::ready(there));
        }
        let elapsed = began.elapsed().as_secs();
        if elapsed >= told + 5 {
            told = elapsed;
            let (refused, cut) = (Counts::see(&counts.refused), Counts::see(&counts.cut));
            eprintln!(
                "crowd {mode}: {elapsed} s, {there} of {count} there, {cut} were cut, {refused} refused"
            );
        }
    }
    said::row(&said::Attackers {
        asked: count,
        there: Counts::see(&counts.there),
        opened: Counts::see(&counts.opened),
        cut: Counts::see(&counts.cut),
        refused: Counts::see(&counts.refused),
    })
}

fn bother(target: &Target, numbers: &[usize], every: f64, counts: &Counts, ended: &AtomicBool) {
    let mut all: Vec<(usize, Option<Slow>)> = numbers.iter().map(|number| (*number, None)).collect();
    let slice = all.len().div_ceil(SLICES).max(1);
    let pause = Duration::from_secs_f64(every / SLICES as f64);
    let mut first = true;
    loop {
        for some in all.chunks_mut(slice) {
            for (number, slow) in some {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                turn(target, *number, slow, counts);
            }
            if !first {
                thread::sleep(pause);
            }
        }
        first = false; // the first time, all come as fast as they can
    }
}

/// One byte more, or a connection in the place of the one that was cut.
fn turn(target: &Target, number: usize, slow: &mut Option<Slow>, counts: &Counts) {
    if let Some(some) = slow {
        if some.goes_on() {
            return;
        }
        *slow = None;
        Counts::count(&counts.cut);
        counts.there.fetch_sub(1, Ordering::Relaxed);
    }
    match Slow::open(target, number) {
        Ok(some) => {
            *slow = Some(some);
            Counts::count(&counts.opened);
            Counts::count(&counts.there);
        }
        Err(_) => Counts::count(&counts.refused),
    }
}

impl Slow {
    /// Each second one is slow before the handshake, where there is one.
    fn open(target: &Target, number: usize) -> io::Result<Self> {
        let before = if number.is_multiple_of(2) {
            first_bytes(target)?
        } else {
            None
        };
        let mut link = Link::connect(target, number, None)?;
        let mut slow = match before {
            Some(mut hello) => {
                link.speech.out.clear();
                hello.pop(); // never whole
                let rest = hello.split_off(hello.len() / 4);
                link.speech.out = hello;
                Self {
                    link,
                    rest: rest.into_iter(),
                    filler: None,
                }
            }
            None => {
                link.shake_hands()?;
                let (head, filler) = endless(target, number);
                link.speech.write(&head)?;
                Self {
                    link,
                    rest: Vec::new().into_iter(),
                    filler: Some(filler),
                }
            }
        };
        slow.link.flush()?;
        slow.link.socket.set_nonblocking(true)?;
        Ok(slow)
    }

    /// Says a byte. False: the server has ended it.
    fn goes_on(&mut self) -> bool {
        let mut buffer = [0; 512];
        match self.link.socket.read(&mut buffer) {
            Ok(0) => return false,
            Ok(_) => {} // a refusal, of which the end follows
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
        let said = match (self.rest.next(), self.filler) {
            (Some(byte), _) => {
                self.link.speech.out.push(byte);
                Ok(())
            }
            (None, Some(filler)) => self.link.speech.write(&[filler]),
            (None, None) => return true,
        };
        said.and_then(|()| self.link.flush()).is_ok()
    }
}
