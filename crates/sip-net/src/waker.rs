//! How other threads wake a worker that waits: an eventfd, or in models what stands for one.

use std::io;

#[cfg(not(loom))]
pub use self::eventfd::Waker;
#[cfg(loom)]
#[expect(unreachable_pub, reason = "`epoll`, which gives it to others, is not there")]
pub use self::model::Waker;

#[cfg(not(loom))]
mod eventfd {
    use std::os::fd::{AsFd, BorrowedFd};
    use std::sync::Arc;

    use super::io;
    use crate::sys;

    /// Wakes a thread that waits on an [`crate::epoll::Epoll`] which the waker was added to.
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
            // It fails only when the counter is full, and then the thread is being woken already.
            let _ = io::Write::write(&mut &*self.fd, &1u64.to_ne_bytes());
        }

        /// Takes the waking back, so that the next wait waits.
        pub fn reset(&self) {
            // It fails only when there is nothing to take back.
            let _ = io::Read::read(&mut &*self.fd, &mut [0; 8]);
        }
    }

    impl AsFd for Waker {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.fd.as_fd()
        }
    }
}

/// The kernel's counter as a flag under a lock, since a worker only asks whether it is zero. An
/// eventfd has a lock of its own, which orders what happens around it in the same way.
#[cfg(loom)]
mod model {
    use std::sync::Arc;

    use loom::sync::{Condvar, Mutex};

    use super::io;

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
}
