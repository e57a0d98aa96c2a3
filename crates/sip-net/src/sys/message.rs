//! `recvmmsg` and `sendmmsg`.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use super::check;
use crate::addr::RawAddr;

/// Memory of one `T` per slot, reached by pointer only: the kernel's view of it (the pointers in
/// `mmsghdr` and `iovec`) stays valid when the owner moves, which a `Box` would not promise.
struct Slots<T>(NonNull<[T]>);

impl<T> Slots<T> {
    fn new(values: Vec<T>) -> Self {
        Self(NonNull::from(Box::leak(values.into_boxed_slice())))
    }

    fn at(&self, index: usize) -> *mut T {
        assert!(index < self.0.len(), "slot out of range");
        // SAFETY: the index was checked against the length of the one allocation.
        unsafe { self.0.as_ptr().cast::<T>().add(index) }
    }
}

impl<T> Drop for Slots<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Box::leak` in `new` and is given back once, here.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// One received datagram.
#[derive(Debug)]
pub(crate) struct RawDatagram<'a> {
    /// `None`: not an internet address.
    pub(crate) source: Option<SocketAddr>,
    /// Its first bytes.
    pub(crate) head: &'a [u8],
    /// The bytes beyond those.
    pub(crate) tail: &'a [u8],
    /// Whether it was longer still.
    pub(crate) is_truncated: bool,
}

/// Slots for `recvmmsg`: each takes a datagram's first bytes in a small hot area and the rest, if
/// any, in a large area whose pages are never touched until a datagram needs them.
pub(crate) struct RecvSlots {
    headers: Slots<libc::mmsghdr>,
    // Pointed to by `headers`, two for each slot.
    _iovecs: Slots<libc::iovec>,
    names: Slots<RawAddr>,
    head: Slots<u8>,
    tail: Slots<u8>,
    slots: usize,
    head_len: usize,
    tail_len: usize,
    /// Slots that the kernel wrote to in the last call.
    filled: usize,
}

// SAFETY: the raw pointers lead only to memory that this value owns.
unsafe impl Send for RecvSlots {}

impl RecvSlots {
    /// `slots` slots of `head_len + tail_len` bytes each; all at least 1.
    pub(crate) fn new(slots: usize, head_len: usize, tail_len: usize) -> Self {
        let (slots, head_len, tail_len) = (slots.max(1), head_len.max(1), tail_len.max(1));
        let names = Slots::new(vec![RawAddr::EMPTY; slots]);
        let head = Slots::new(vec![0u8; slots * head_len]);
        let tail = Slots::new(vec![0u8; slots * tail_len]);
        let iovecs = Slots::new(
            (0..slots)
                .flat_map(|slot| {
                    [
                        libc::iovec {
                            iov_base: head.at(slot * head_len).cast(),
                            iov_len: head_len,
                        },
                        libc::iovec {
                            iov_base: tail.at(slot * tail_len).cast(),
                            iov_len: tail_len,
                        },
                    ]
                })
                .collect(),
        );
        let headers = Slots::new(
            (0..slots)
                .map(|slot| {
                    // SAFETY: all-zero bytes are a valid `mmsghdr`: null pointers and zero lengths.
                    let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
                    header.msg_hdr.msg_name = names.at(slot).cast();
                    header.msg_hdr.msg_namelen = RawAddr::CAPACITY as libc::socklen_t;
                    header.msg_hdr.msg_iov = iovecs.at(slot * 2);
                    header.msg_hdr.msg_iovlen = 2;
                    header
                })
                .collect(),
        );
        Self {
            headers,
            _iovecs: iovecs,
            names,
            head,
            tail,
            slots,
            head_len,
            tail_len,
            filled: 0,
        }
    }

    /// Receives what is there, at most one datagram for each slot, without waiting.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        for slot in 0..self.filled {
            // SAFETY: `at` points to an initialised header that only this value reaches.
            unsafe { (*self.headers.at(slot)).msg_hdr.msg_namelen = RawAddr::CAPACITY as libc::socklen_t };
        }
        self.filled = 0;
        // SAFETY: the headers, and the names, iovecs and buffers that they point to, are owned by
        // this value, exclusively borrowed here and as long as the lengths in them say.
        let received = check(unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.at(0),
                self.slots as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        })?;
        self.filled = received as usize;
        Ok(self.filled)
    }

    /// What slot `slot` received in the last call; `None` beyond the last.
    pub(crate) fn datagram(&self, slot: usize) -> Option<RawDatagram<'_>> {
        if slot >= self.filled {
            return None;
        }
        // SAFETY: header and name were initialised in `new`, and are written only by the kernel
        // in `receive`, which needs the exclusive borrow that this shared one excludes.
        let (header, name) = unsafe { (&*self.headers.at(slot), &*self.names.at(slot)) };
        let len = header.msg_len as usize;
        let head_len = len.min(self.head_len);
        let tail_len = len.saturating_sub(self.head_len).min(self.tail_len);
        // SAFETY: each slot's areas are `head_len` and `tail_len` long from the pointers taken
        // here, the lengths are bounded by those, and all bytes were initialised in `new`.
        let (head, tail) = unsafe {
            (
                std::slice::from_raw_parts(self.head.at(slot * self.head_len), head_len),
                std::slice::from_raw_parts(self.tail.at(slot * self.tail_len), tail_len),
            )
        };
        Some(RawDatagram {
            source: name.decode(header.msg_hdr.msg_namelen as usize),
            head,
            tail,
            is_truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        })
    }
}

impl std::fmt::Debug for RecvSlots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecvSlots")
            .field("slots", &self.slots)
            .field("filled", &self.filled)
            .finish()
    }
}

/// Memory for the arguments of `sendmmsg`, reused from call to call.
pub(crate) struct SendSlots {
    headers: Vec<libc::mmsghdr>,
    iovecs: Vec<libc::iovec>,
    names: Vec<RawAddr>,
}

// SAFETY: the raw pointers are written and used within one call of `send`; what is left of them
// between calls is never followed.
unsafe impl Send for SendSlots {}

impl SendSlots {
    /// Room for `slots` messages a call; at least 1.
    pub(crate) fn new(slots: usize) -> Self {
        let slots = slots.max(1);
        // SAFETY: all-zero bytes are a valid `mmsghdr`: null pointers and zero lengths.
        let header: libc::mmsghdr = unsafe { mem::zeroed() };
        Self {
            headers: vec![header; slots],
            iovecs: vec![
                libc::iovec {
                    iov_base: ptr::null_mut(),
                    iov_len: 0
                };
                slots
            ],
            names: vec![RawAddr::EMPTY; slots],
        }
    }

    /// Sends the first messages of `messages`, as many as there are slots, without waiting.
    /// Returns how many were sent, in order; an error is about the first of them.
    pub(crate) fn send<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        messages: impl Iterator<Item = (SocketAddr, &'a [u8])>,
    ) -> io::Result<usize> {
        let mut count = 0;
        let slots = self
            .headers
            .iter_mut()
            .zip(self.iovecs.iter_mut())
            .zip(self.names.iter_mut());
        for (((header, iovec), name), (to, bytes)) in slots.zip(messages) {
            let name_len = name.encode(to);
            iovec.iov_base = bytes.as_ptr().cast_mut().cast();
            iovec.iov_len = bytes.len();
            header.msg_hdr.msg_name = ptr::from_mut(name).cast();
            header.msg_hdr.msg_namelen = name_len as libc::socklen_t;
            header.msg_hdr.msg_iov = iovec;
            header.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        if count == 0 {
            return Ok(0);
        }
        // SAFETY: the first `count` headers were just filled: names and iovecs are in this value,
        // the bytes are borrowed for `'a`, all outlive the call. The kernel reads names and bytes
        // (so the cast from const is never written through) and writes `msg_len` in the headers.
        check(unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count as libc::c_uint,
                (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
            )
        })
        .map(|sent| sent as usize)
    }
}

impl std::fmt::Debug for SendSlots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendSlots")
            .field("slots", &self.headers.len())
            .finish()
    }
}
