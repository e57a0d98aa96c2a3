//! Waiting for sockets by level-triggered epoll, and the eventfd ([`Waker`]) by which other threads wake a
//! worker.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::sys;
pub use crate::waker::Waker;

/// The events to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Something to read, the peer's end of sending, or an error.
    Read,
    /// As [`Interest::Read`], or room to write.
    ReadWrite,
    /// Room to write, the peer's end of sending, or an error. Bytes to read do not wake.
    Write,
    /// The peer's end of sending, or an error. Bytes to read do not wake.
    Hangup,
}

impl Interest {
    fn flags(self) -> u32 {
        let read = (libc::EPOLLIN | libc::EPOLLRDHUP) as u32;
        match self {
            Self::Read => read,
            Self::ReadWrite => read | libc::EPOLLOUT as u32,
            Self::Write => (libc::EPOLLOUT | libc::EPOLLRDHUP) as u32,
            Self::Hangup => libc::EPOLLRDHUP as u32,
        }
    }
}

/// The state of one file descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// The number with which the descriptor was registered.
    pub token: u64,
    /// There is something to read, or the peer closed.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
    /// There is an error to fetch (for datagrams: the error queue), or the peer hung up.
    pub error: bool,
}

/// A level-triggered epoll instance: a state that persists is reported again.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
}

impl Epoll {
    /// A new epoll instance.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            fd: sys::epoll_create()?,
        })
    }

    /// Adds `fd` to those waited for; its events carry `token`.
    pub fn add(&self, fd: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        sys::epoll_ctl(
            self.fd.as_fd(),
            libc::EPOLL_CTL_ADD,
            fd.as_fd(),
            interest.flags(),
            token,
        )
    }

    /// Changes the events for which `fd` is waited for.
    pub fn modify(&self, fd: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        sys::epoll_ctl(
            self.fd.as_fd(),
            libc::EPOLL_CTL_MOD,
            fd.as_fd(),
            interest.flags(),
            token,
        )
    }

    /// Removes `fd`. (Closing its last descriptor does so, too.)
    pub fn remove(&self, fd: &impl AsFd) -> io::Result<()> {
        sys::epoll_ctl(self.fd.as_fd(), libc::EPOLL_CTL_DEL, fd.as_fd(), 0, 0)
    }

    /// Waits for events, at most `timeout_us` microseconds (`Some(0)`: only looks; `None`: without end). An
    /// interrupted wait returns without events.
    pub fn wait(&self, events: &mut EventList, timeout_us: Option<u64>) -> io::Result<()> {
        sys::epoll_wait(self.fd.as_fd(), &mut events.0, timeout_us)
    }
}

/// Room for the events of one wait.
pub struct EventList(sys::Events);

impl EventList {
    /// Room for `capacity` events.
    pub fn new(capacity: usize) -> Self {
        Self(sys::Events::new(capacity))
    }

    /// Number of events of the last wait.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the last wait returned none.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Whether the list is full, so that more events may have happened.
    pub fn is_full(&self) -> bool {
        self.0.is_full()
    }

    /// Event `index` of the last wait.
    pub fn get(&self, index: usize) -> Option<Readiness> {
        let (flags, token) = self.0.get(index)?;
        let has = |mask: libc::c_int| flags & mask as u32 != 0;
        Some(Readiness {
            token,
            readable: has(libc::EPOLLIN | libc::EPOLLRDHUP),
            writable: has(libc::EPOLLOUT),
            error: has(libc::EPOLLERR | libc::EPOLLHUP),
        })
    }
}

impl std::fmt::Debug for EventList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventList").field("len", &self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_waker_ends_a_wait_until_it_is_reset() {
        let (epoll, waker) = (Epoll::new().unwrap(), Waker::new().unwrap());
        epoll.add(&waker, 7, Interest::Read).unwrap();
        let mut events = EventList::new(4);
        epoll.wait(&mut events, Some(0)).unwrap();
        assert!(events.is_empty());
        let from_afar = waker.clone();
        let thread = std::thread::spawn(move || from_afar.wake());
        epoll.wait(&mut events, None).unwrap();
        thread.join().unwrap();
        assert_eq!(events.len(), 1);
        assert_eq!(
            events.get(0).map(|event| (event.token, event.readable)),
            Some((7, true))
        );
        waker.reset();
        epoll.wait(&mut events, Some(0)).unwrap();
        assert!(events.is_empty());
    }

    #[test]
    fn a_wait_never_ends_before_its_time() {
        let epoll = Epoll::new().unwrap();
        let mut events = EventList::new(1);
        for us in [300, 1_500, 20_000] {
            let start = Instant::now();
            epoll.wait(&mut events, Some(us)).unwrap();
            assert!(start.elapsed() >= Duration::from_micros(us));
        }
    }
}
