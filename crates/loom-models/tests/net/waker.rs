//! Stands for `sip-net`'s eventfd: the kernel's counter as a flag under a lock, since a worker only
//! asks whether it is zero. An eventfd has a lock of its own, which orders what happens around it in
//! the same way.

use std::io;
use std::sync::Arc;

use loom::sync::{Condvar, Mutex};

/// Stands for the eventfd.
#[derive(Clone, Debug)]
pub struct Waker {
    fd: Arc<(Mutex<bool>, Condvar)>,
}

impl Waker {
    /// A new waker.
    pub fn new() -> io::Result<Self> {
        let fd = Arc::new((Mutex::new(false), Condvar::new()));
        Ok(Self { fd })
    }

    /// Makes the waiting thread return, now or at its next wait.
    pub fn wake(&self) {
        *self.fd.0.lock().expect("no model has failed") = true;
        self.fd.1.notify_one();
    }

    /// Takes the waking back, so that the next wait waits.
    pub fn reset(&self) {
        *self.fd.0.lock().expect("no model has failed") = false;
    }

    /// What epoll does with a descriptor that is not ready: returns once it is.
    pub(crate) fn wait(&self) {
        let mut is_ready = self.fd.0.lock().expect("no model has failed");
        while !*is_ready {
            is_ready = self.fd.1.wait(is_ready).expect("no model has failed");
        }
    }

    /// What epoll does with a time-out of zero.
    pub(crate) fn is_ready(&self) -> bool {
        *self.fd.0.lock().expect("no model has failed")
    }
}
