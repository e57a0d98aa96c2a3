//! Connections that say nothing any more.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use sip_net::epoll::{Epoll, EventList, Interest};

use super::Outcome;
use super::arguments::Arguments;
use super::link::Link;
use super::said;
use super::speech::options;
use super::system::input_ended;
use super::target::Target;

/// Failures in a row after which no more is tried.
const FAILURES: usize = 5;

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let target = Target::new(arguments)?;
    let count: usize = arguments.get("count", 100)?;
    let threads = arguments.get("threads", 4)?.clamp(1, 64);
    let ended = input_ended();
    let began = Instant::now();
    let shares: Vec<Vec<io::Result<Link>>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let numbers = (thread..count).step_by(threads);
                let target = &target;
                scope.spawn(move || open(target, numbers))
            })
            .collect();
        workers
            .into_iter()
            .filter_map(|worker| worker.join().ok())
            .collect()
    });
    let seconds = began.elapsed().as_secs_f64();
    let mut failures: BTreeMap<String, usize> = BTreeMap::new();
    let mut links = Vec::with_capacity(count);
    for result in shares.into_iter().flatten() {
        match result {
            Ok(link) => links.push(link),
            Err(error) => *failures.entry(error.to_string()).or_default() += 1,
        }
    }
    for (why, times) in &failures {
        eprintln!("crowd: {times} could not: {why}");
    }
    let opened = links.len();
    said::ready(opened)?;
    let closed = hold(links, &ended)?;
    said::row(&said::Idle {
        asked: count,
        opened,
        closed,
        seconds,
    })
}

/// Opens all, unless the server does not want any.
fn open(target: &Target, numbers: impl Iterator<Item = usize>) -> Vec<io::Result<Link>> {
    let mut results = Vec::new();
    let mut failed = 0;
    for number in numbers {
        let result = one(target, number);
        failed = if result.is_ok() { 0 } else { failed + 1 };
        results.push(result);
        if failed == FAILURES {
            break;
        }
    }
    results
}

/// A connection on which a request was answered.
fn one(target: &Target, number: usize) -> io::Result<Link> {
    let mut link = Link::open(target, number, None)?;
    let request = options(target, link.local, number, 0, 0);
    link.say(&request)?;
    match link.hear()? {
        200 => Ok(link),
        status => Err(io::Error::other(format!("OPTIONS was answered with {status}"))),
    }
}

/// Keeps them, and answers pings, until the input ends. How many the server has ended.
fn hold(mut links: Vec<Link>, ended: &AtomicBool) -> Outcome<usize> {
    let epoll = Epoll::new()?;
    for (token, link) in links.iter().enumerate() {
        link.socket.set_nonblocking(true)?;
        epoll.add(link, token as u64, Interest::Read)?;
    }
    let mut events = EventList::new(256);
    let mut closed = 0;
    while !ended.load(Ordering::Relaxed) {
        epoll.wait(&mut events, Some(200_000))?;
        for event in (0..events.len()).filter_map(|index| events.get(index)) {
            if let Some(link) = links.get_mut(event.token as usize)
                && !link.pump()
            {
                epoll.remove(&*link)?;
                closed += 1;
            }
        }
    }
    Ok(closed)
}
