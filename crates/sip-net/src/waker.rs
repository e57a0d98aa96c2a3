//! The eventfd by which other threads wake a waiting worker.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::sys;

/// Wakes a thread that waits on the [`crate::epoll::Epoll`] to which the waker was added.
#[derive(Clone, Debug)]
pub struct Waker {
    fd: Arc<std::fs::File>,
}

impl Waker {
    /// A new waker.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            fd: Arc::new(std::fs::File::from(sys::eventfd()?)),
        })
    }

    /// Makes the waiting thread return, now or at its next wait.
    pub fn wake(&self) {
        // Writing fails only if the counter is full, and then the thread is being woken already.
        let _ = io::Write::write(&mut &*self.fd, &1u64.to_ne_bytes());
    }

    /// Clears the wake-up, so that the next wait waits.
    pub fn reset(&self) {
        // Reading fails only if there is no wake-up to clear.
        let _ = io::Read::read(&mut &*self.fd, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
