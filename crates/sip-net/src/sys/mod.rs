//! System calls that no safe library offers in the form needed here: messages in batches, the socket error
//! queue, epoll with microsecond time-outs, interface addresses.
//!
//! All `unsafe` code of the workspace is in this module. Each function is safe to call: it owns
//! or borrows every buffer that the kernel writes to, and passes that buffer's own length.
#![expect(
    unsafe_code,
    reason = "system calls take raw pointers; each block says why it is sound"
)]

mod control;
mod epoll;
mod error_queue;
mod interfaces;
mod message;

pub(crate) use epoll::{Events, epoll_create, epoll_ctl, epoll_wait, eventfd};
pub(crate) use error_queue::{ErrorQueue, SocketError};
pub(crate) use interfaces::{RawInterface, interface_addresses};
pub(crate) use message::{RawDatagram, RecvSlots, SendSlots, knows_runs};

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use socket2::SockAddr;

/// The result of a system call that returns -1 and sets `errno` on failure.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Sets a socket option that has a C `int` as its value.
pub(crate) fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the pointer is to a live `int` on this stack frame and the length is its size; the
    // kernel only reads it. The descriptor is open for as long as it is borrowed.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    })
    .map(|_| ())
}

/// The next waiting connection of a listening socket, made non-blocking in the same call.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<(OwnedFd, SocketAddr)> {
    // SAFETY: the kernel writes an address of at most the length that `try_init` passes, where it passes it;
    // on success the descriptor has no other owner.
    let (socket, address) = unsafe {
        SockAddr::try_init(|storage, len| {
            let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            let fd = check(libc::accept4(listener.as_raw_fd(), storage.cast(), len, flags))?;
            Ok(OwnedFd::from_raw_fd(fd))
        })
    }?;
    let address = address.as_socket();
    let address = address.ok_or_else(|| io::Error::other("not an internet address"))?;
    Ok((socket, address))
}

/// Attaches a classic BPF program to the sockets that share an address with `socket`
/// (`SO_ATTACH_REUSEPORT_CBPF`, since Linux 4.5). The result of the program is the index, in the order of
/// binding, of the socket that gets a datagram.
pub(crate) fn attach_reuseport_program(
    socket: BorrowedFd<'_>,
    program: &[libc::sock_filter],
) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies `len` instructions from `filter`, which is that long and borrowed
    // for this call, and never writes there; it checks each instruction itself.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    })
    .map(|_| ())
}

/// What the kernel counts of a datagram socket's receive buffer (`SO_MEMINFO`, since Linux 4.12).
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveMemory {
    /// Bytes that wait, with the kernel's own structures.
    pub(crate) waiting: u32,
    /// Datagrams dropped because the buffer was full. Wraps at 32 bits.
    pub(crate) drops: u32,
}

/// The state of a datagram socket's receive buffer.
pub(crate) fn receive_memory(socket: BorrowedFd<'_>) -> io::Result<ReceiveMemory> {
    // `SK_MEMINFO_RMEM_ALLOC` and `SK_MEMINFO_DROPS` of <linux/sock_diag.h>; the kernel fills as many values as fit.
    const WAITING: usize = 0;
    const DROPS: usize = 8;
    let mut values = [0u32; DROPS + 1];
    let mut length = size_of_val(&values) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `values`, and the length to `length`;
    // both live on this stack frame.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            values.as_mut_ptr().cast(),
            &raw mut length,
        )
    })?;
    Ok(ReceiveMemory {
        waiting: values[WAITING],
        drops: values[DROPS],
    })
}

/// Raises the limit on this process's open files as far as the process may. Returns the new limit.
pub(crate) fn raise_open_files() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes one `rlimit`, which lives on this stack frame.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the kernel reads one `rlimit`, which lives on this stack frame.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    Ok(limit.rlim_cur as _)
}

/// Makes the allocator return pages that this thread no longer uses to the system.
pub(crate) fn collect_memory() {
    // SAFETY: it takes no pointer, and concerns the calling thread's pages that hold nothing.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

/// CPU time that the calling thread has used, in user mode and in the kernel, nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one `timespec`, which lives on this stack frame. Every Linux has this
    // clock; where the call failed nothing would have been written.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + nanoseconds
}
