//! Waiting: epoll, each edge reported once, with a timer of nanoseconds.
//!
//! The timer is a timerfd: the time-out of epoll itself counts milliseconds, or has the slack of
//! the thread's timers.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// Events taken at once; more wait in the kernel.
pub(crate) const BATCH: usize = 256;
/// Key of the timer; its events say only that the wait has ended.
pub(crate) const TIMER: u64 = u64::MAX;
/// Key of what other threads ring.
pub(crate) const BELL: u64 = u64::MAX - 1;

const ZERO: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// What other threads ring to end a wait.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Ends a wait, or the next one.
    pub(crate) fn ring(&self) {
        // It fails only where 2^64 - 2 rings have not been heard.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// That something changed for `key`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    pub(crate) key: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

impl Ready {
    fn new(event: &epoll::Event) -> Self {
        let flags = event.flags;
        // An error shows by the next read or write.
        let both = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        Self {
            key: event.data.u64(),
            readable: both || flags.intersects(EventFlags::IN | EventFlags::RDHUP),
            writable: both || flags.contains(EventFlags::OUT),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Poll {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// It sleeps so much less than until its deadline.
    spin: Duration,
    /// The deadline that the timer is set for.
    armed: Option<Instant>,
    /// What the last wait found.
    found: Vec<Ready>,
}

impl Poll {
    pub(crate) fn new(bell: &Bell, spin: Duration) -> io::Result<Self> {
        let poll = Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            timer: timerfd_create(
                TimerfdClockId::Monotonic,
                TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
            )?,
            spin,
            armed: None,
            found: Vec::with_capacity(BATCH),
        };
        // Neither is ever read: each ring and each expiry is an edge of its own.
        poll.add_with(&poll.timer, TIMER, EventFlags::IN)?;
        poll.add_with(&bell.0, BELL, EventFlags::IN)?;
        Ok(poll)
    }

    /// Reports changes of `source` with `key` from here on. Closing it ends that.
    pub(crate) fn add(&self, source: impl AsFd, key: u64) -> io::Result<()> {
        self.add_with(source, key, EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP)
    }

    fn add_with(&self, source: impl AsFd, key: u64, flags: EventFlags) -> io::Result<()> {
        let flags = flags | EventFlags::ET;
        Ok(epoll::add(&self.epoll, source, EventData::new_u64(key), flags)?)
    }

    /// Waits for a change or until `deadline`, or less by the time that it is to spin; not at all
    /// where that has passed.
    pub(crate) fn wait(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        self.found.clear();
        // What is left when it looks again and again instead of sleeping.
        let sleep = |deadline: Instant| {
            let left = deadline.saturating_duration_since(Instant::now());
            left.saturating_sub(self.spin)
        };
        let left = deadline.map(sleep);
        let at_once = left.is_some_and(|left| left.is_zero());
        if let Some(left) = left
            && !at_once
            && self.armed != deadline
        {
            let value = Itimerspec {
                it_interval: ZERO,
                it_value: Timespec::try_from(left).map_err(|_| Errno::INVAL)?,
            };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value)?;
            self.armed = deadline;
        }
        // Where there is no deadline a timer that is still set wakes once for nothing.
        let timeout = at_once.then_some(&ZERO);
        let mut events = [const { MaybeUninit::uninit() }; BATCH];
        match epoll::wait(&self.epoll, &mut events[..], timeout) {
            Ok((events, _)) => {
                self.found.extend(events.iter().map(Ready::new));
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// What the last wait found; empty where only its deadline came.
    pub(crate) fn found(&self) -> &[Ready] {
        &self.found
    }
}
