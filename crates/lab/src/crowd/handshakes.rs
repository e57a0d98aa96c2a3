//! Handshakes, one after the other, as many as both ends are able to. Over plain TCP, connections
//! alone: what the same costs without TLS.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Outcome;
use super::arguments::Arguments;
use super::link::Link;
use super::said;
use super::target::{Target, Tickets, with_own_tickets};

#[derive(Debug, Default)]
struct Counts {
    done: AtomicUsize,
    resumed: AtomicUsize,
    failed: AtomicUsize,
}

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let target = Target::new(arguments)?;
    let seconds: f64 = arguments.get("seconds", 5.0)?;
    let threads = arguments.get("threads", 4)?.clamp(1, 64);
    let resume = arguments.has("resume");
    let counts = Counts::default();
    let began = Instant::now();
    let until = began + Duration::from_secs_f64(seconds);
    let agreed = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (target, counts) = (&target, &counts);
                scope.spawn(move || shake(target, thread, resume, until, counts))
            })
            .collect();
        let agreed = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_default());
        agreed.last().unwrap_or_default()
    });
    let took = began.elapsed().as_secs_f64();
    let [done, resumed, failed] =
        [&counts.done, &counts.resumed, &counts.failed].map(|count| count.load(Ordering::Relaxed));
    said::row(&said::Handshakes {
        done,
        resumed,
        failed,
        seconds: took,
        per_second: crate::cpu::ratio(done as f64, took),
        agreed,
    })
}

/// What was agreed on, as text.
fn shake(target: &Target, thread: usize, resume: bool, until: Instant, counts: &Counts) -> String {
    let (config, tickets) = with_own_tickets(&target.tls);
    let mut agreed = String::new();
    let mut number = thread;
    while Instant::now() < until {
        number += 1;
        let config = if resume { &config } else { &target.tls };
        let result = Link::open(target, number, Some(config)).and_then(|mut link| {
            if let Some(tls) = &link.speech.tls {
                agreed =
                    format!("{:?} {:?}", tls.agreed().version, tls.agreed().suite).replace(['(', ')'], " ");
                if tls.resumed() == Some(true) {
                    counts.resumed.fetch_add(1, Ordering::Relaxed);
                }
            }
            end(&mut link, resume.then_some(&*tickets))
        });
        match result {
            Ok(()) => counts.done.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                if counts.failed.fetch_add(1, Ordering::Relaxed) == 0 {
                    eprintln!("crowd: a handshake failed: {error}");
                }
                thread::sleep(Duration::from_millis(1));
                continue;
            }
        };
    }
    agreed
}

/// A keep-alive, so that the server reads something; with tickets, also waits for the next one.
fn end(link: &mut Link, tickets: Option<&Tickets>) -> io::Result<()> {
    if !link.speech.is_secured() {
        return Err(io::Error::other("the handshake did not end"));
    }
    if let Some(tickets) = tickets {
        while !tickets.are_there() {
            link.step()?;
        }
    }
    link.speech.write(b"\r\n")?;
    link.close()
}
