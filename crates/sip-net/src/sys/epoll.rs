//! `epoll` and `eventfd`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::check;

/// Events that a wait returned.
pub(crate) struct Events {
    list: Vec<libc::epoll_event>,
    count: usize,
}

impl Events {
    /// Room for `capacity` events (at least 1).
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            list: vec![libc::epoll_event { events: 0, u64: 0 }; capacity.max(1)],
            count: 0,
        }
    }

    /// Number of events of the last wait.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Whether the list is full, so that there may be more events.
    pub(crate) fn is_full(&self) -> bool {
        self.count == self.list.len()
    }

    /// Event `index` as (flags, data).
    pub(crate) fn get(&self, index: usize) -> Option<(u32, u64)> {
        self.list
            .get(..self.count)?
            .get(index)
            .map(|event| (event.events, event.u64))
    }
}

pub(crate) fn epoll_create() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    // SAFETY: the kernel just gave us this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Adds, changes or removes a descriptor. `operation` is one of `EPOLL_CTL_*`; `flags` of `EPOLL*`.
pub(crate) fn epoll_ctl(
    epoll: BorrowedFd<'_>,
    operation: libc::c_int,
    fd: BorrowedFd<'_>,
    flags: u32,
    data: u64,
) -> io::Result<()> {
    let mut event = libc::epoll_event {
        events: flags,
        u64: data,
    };
    // SAFETY: the kernel reads the event, which lives on this stack frame; both descriptors are
    // open while borrowed.
    check(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event) })
        .map(|_| ())
}

/// The kernel's 64-bit `timespec`; that of the C library may have 32 bits.
#[repr(C)]
struct KernelTimespec {
    seconds: i64,
    nanoseconds: i64,
}

/// Whether `epoll_pwait2` (Linux 5.11) was found missing, or refused by a sandbox.
static NO_PWAIT2: AtomicBool = AtomicBool::new(false);

/// Waits for events, at most `timeout_us` microseconds (`None`: without end). Rounded up to
/// milliseconds on kernels without `epoll_pwait2`. An interrupted wait returns no events.
pub(crate) fn epoll_wait(
    epoll: BorrowedFd<'_>,
    events: &mut Events,
    timeout_us: Option<u64>,
) -> io::Result<()> {
    events.count = 0;
    let capacity = libc::c_int::try_from(events.list.len()).unwrap_or(libc::c_int::MAX);
    let precise = timeout_us.is_some_and(|us| us > 0);
    let result = if precise && !NO_PWAIT2.load(Ordering::Relaxed) {
        let us = timeout_us.unwrap_or(0);
        let timeout = KernelTimespec {
            seconds: i64::try_from(us / 1_000_000).unwrap_or(i64::MAX),
            nanoseconds: ((us % 1_000_000) * 1000) as i64,
        };
        // SAFETY: the kernel writes at most `capacity` events to the list, which is that long,
        // and reads the time-out, which lives on this stack frame; the signal mask is absent.
        let result = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                epoll.as_raw_fd(),
                events.list.as_mut_ptr(),
                capacity,
                &raw const timeout,
                ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        check(result as libc::c_int)
    } else {
        let timeout_ms = timeout_us.map_or(-1, |us| i32::try_from(us.div_ceil(1000)).unwrap_or(i32::MAX));
        // SAFETY: as above, the list is `capacity` long.
        check(unsafe { libc::epoll_wait(epoll.as_raw_fd(), events.list.as_mut_ptr(), capacity, timeout_ms) })
    };
    match result {
        Ok(count) => {
            events.count = count as usize;
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        Err(error) if precise && matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            // The caller waits again at once, and takes the other branch.
            if NO_PWAIT2.swap(true, Ordering::Relaxed) {
                Err(error)
            } else {
                Ok(())
            }
        }
        Err(error) => Err(error),
    }
}

pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    // SAFETY: the kernel just gave us this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::time::Duration;

    /// If more is ready than the list has room for, no event is beyond the list and none is of an earlier
    /// wait.
    #[test]
    fn events_stay_within_their_list() {
        let epoll = epoll_create().unwrap();
        let ready: Vec<OwnedFd> = (0..5).map(|_| eventfd().unwrap()).collect();
        for (fd, data) in ready.iter().zip(10..) {
            let (operation, flags) = (libc::EPOLL_CTL_ADD, libc::EPOLLOUT as u32);
            epoll_ctl(epoll.as_fd(), operation, fd.as_fd(), flags, data).unwrap();
        }
        for (room, expected) in [(0, 1), (1, 1), (3, 3), (5, 5), (8, 5)] {
            let mut events = Events::new(room);
            assert_eq!((events.len(), events.get(0)), (0, None));
            epoll_wait(epoll.as_fd(), &mut events, Some(0)).unwrap();
            assert_eq!((events.len(), events.is_full()), (expected, room <= 5));
            let seen = (0..expected).filter_map(|index| events.get(index)).count();
            assert_eq!(
                (seen, events.get(expected), events.get(usize::MAX)),
                (expected, None, None)
            );
        }
        let mut events = Events::new(8);
        epoll_wait(epoll.as_fd(), &mut events, Some(1)).unwrap();
        assert_eq!(events.len(), 5);
        for fd in &ready {
            epoll_ctl(epoll.as_fd(), libc::EPOLL_CTL_DEL, fd.as_fd(), 0, 0).unwrap();
        }
        epoll_wait(
            epoll.as_fd(),
            &mut events,
            Some(Duration::from_millis(1).as_micros() as u64),
        )
        .unwrap();
        assert_eq!((events.len(), events.get(0)), (0, None));
    }
}
