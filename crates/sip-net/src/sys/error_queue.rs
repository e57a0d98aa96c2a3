//! The socket error queue: ICMP errors with the datagram that caused them (`ip(7)`, `IP_RECVERR`).

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::check;
use crate::addr::RawAddr;

/// One entry of a socket's error queue, without the datagram's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketError {
    /// Where the datagram had gone.
    pub(crate) destination: Option<SocketAddr>,
    /// `errno` that the kernel made of it.
    pub(crate) errno: u32,
    /// `SO_EE_ORIGIN_*`.
    pub(crate) origin: u8,
    /// ICMP type.
    pub(crate) kind: u8,
    /// ICMP code.
    pub(crate) code: u8,
}

/// Control data, aligned as `cmsghdr` must be.
#[repr(C, align(8))]
struct Control([u8; 256]);

/// Buffers to read error queues with.
pub(crate) struct ErrorQueue {
    bytes: Box<[u8]>,
    control: Box<Control>,
}

impl ErrorQueue {
    /// Room for `capacity` bytes of the datagram; an ICMP error quotes no more than its own
    /// packet holds (576 bytes on IPv4, 1,280 on IPv6).
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            bytes: vec![0; capacity].into_boxed_slice(),
            control: Box::new(Control([0; 256])),
        }
    }

    /// Takes the oldest entry off the socket's error queue, with what it quotes of the datagram.
    /// `None`: the queue is empty.
    pub(crate) fn take(&mut self, socket: BorrowedFd<'_>) -> io::Result<Option<(SocketError, &[u8])>> {
        let mut name = RawAddr::EMPTY;
        let mut iovec = libc::iovec {
            iov_base: self.bytes.as_mut_ptr().cast(),
            iov_len: self.bytes.len(),
        };
        // SAFETY: all-zero bytes are a valid `msghdr`: null pointers and zero lengths.
        let mut header: libc::msghdr = unsafe { mem::zeroed() };
        header.msg_name = (&raw mut name).cast();
        header.msg_namelen = RawAddr::CAPACITY as libc::socklen_t;
        header.msg_iov = &raw mut iovec;
        header.msg_iovlen = 1;
        header.msg_control = self.control.0.as_mut_ptr().cast();
        header.msg_controllen = self.control.0.len() as _;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: name, iovec, bytes and control are live, exclusively ours, and as long as the
        // header says.
        let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
        let len = match check(libc::c_int::try_from(result).unwrap_or(libc::c_int::MAX)) {
            Ok(len) => len as usize,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut error = SocketError {
            destination: name.decode(header.msg_namelen as usize),
            errno: 0,
            origin: 0,
            kind: 0,
            code: 0,
        };
        // SAFETY: the header is the one that the kernel filled; its control buffer is still ours.
        if let Some(extended) = unsafe { extended_error(&header) } {
            error.errno = extended.ee_errno;
            error.origin = extended.ee_origin;
            error.kind = extended.ee_type;
            error.code = extended.ee_code;
        }
        Ok(Some((error, self.bytes.get(..len).unwrap_or_default())))
    }
}

impl std::fmt::Debug for ErrorQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ErrorQueue")
            .field("capacity", &self.bytes.len())
            .finish()
    }
}

/// The `sock_extended_err` among the control messages.
///
/// # Safety
/// `msg_control` and `msg_controllen` of `header` must describe live, initialised memory, filled
/// by the kernel.
unsafe fn extended_error(header: &libc::msghdr) -> Option<libc::sock_extended_err> {
    // SAFETY: the caller vouches for the control buffer; the macros walk inside it.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !message.is_null() {
        // SAFETY: the macros returned a pointer to a whole `cmsghdr` inside the buffer.
        let (level, kind) = unsafe { ((*message).cmsg_level, (*message).cmsg_type) };
        // SAFETY: as above. The field's type differs between C libraries.
        let len: usize = unsafe { (*message).cmsg_len } as _;
        let ours = matches!(
            (level, kind),
            (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
        );
        // SAFETY: arithmetic on lengths only.
        let needed = unsafe { libc::CMSG_LEN(size_of::<libc::sock_extended_err>() as u32) } as usize;
        if ours && len >= needed {
            // SAFETY: the control message is long enough to hold the structure; it may not be
            // aligned for it, hence the unaligned read. Any bits are a valid value.
            return Some(unsafe { ptr::read_unaligned(libc::CMSG_DATA(message).cast()) });
        }
        // SAFETY: `message` is a header inside the buffer that `header` describes.
        message = unsafe { libc::CMSG_NXTHDR(header, message) };
    }
    None
}
