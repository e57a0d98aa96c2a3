//! What the standard library has not: limits, CPU time, and the end of the input.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// As many descriptors as the system lets us have.
#[expect(unsafe_code, reason = "two calls of libc with a value of ours")]
pub(crate) fn raise_descriptor_limit() -> io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` outlives both calls, which touch nothing else.
    let result = unsafe {
        match libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) {
            0 => {
                limit.rlim_cur = limit.rlim_max;
                libc::setrlimit(libc::RLIMIT_NOFILE, &limit)
            }
            failed => failed,
        }
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Nanoseconds that this thread has spent on a CPU.
#[expect(unsafe_code, reason = "a call of libc with a value of ours")]
pub(crate) fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` outlives the call, which writes it and nothing else.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Lets a socket have its port only when it connects, so that the same one serves many targets.
#[expect(unsafe_code, reason = "a call of libc with a value of ours")]
pub(crate) fn choose_port_late(socket: &socket2::Socket) {
    use std::os::fd::AsRawFd;
    let on: libc::c_int = 1;
    // SAFETY: the option's value is `on`, of the size that is said. A kernel without the option
    // refuses, and then ports are used up sooner.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        );
    }
}

/// Becomes true when stdin ends.
pub(crate) fn input_ended() -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&ended);
    thread::spawn(move || {
        // An unreadable input is one that has ended.
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        tell.store(true, Ordering::Relaxed);
    });
    ended
}

/// Numbers that look random, the same in each run.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// From 0 to 1.
    pub(crate) fn roll(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}
