//! `recvmmsg` and `sendmmsg`.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use super::check;
use crate::addr::RawAddr;

/// Memory of one `T` per slot, reached by pointer only. The kernel's view of it (the pointers in `mmsghdr`
/// and `iovec`) stays valid when the owner moves, which a `Box` would not promise.
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
    /// The sender; `None` if it has no internet address.
    pub(crate) source: Option<SocketAddr>,
    /// The first bytes of the datagram.
    pub(crate) head: &'a [u8],
    /// The bytes beyond `head`.
    pub(crate) tail: &'a [u8],
    /// Whether the datagram was longer still.
    pub(crate) is_truncated: bool,
}

/// Slots for `recvmmsg`. Each takes a datagram's first bytes in a small hot area. The rest, if any, goes to a
/// large area, in which no page is touched until a datagram needs it.
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
    /// Makes `slots` slots of `head_len + tail_len` bytes each; all at least 1.
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

    /// Receives the waiting datagrams, at most `most` and one for each slot, without blocking.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>, most: usize) -> io::Result<usize> {
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
                self.slots.min(most) as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        })?;
        self.filled = received as usize;
        Ok(self.filled)
    }

    /// The datagram in slot `slot` of the last call; `None` beyond the last.
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

/// Bytes of the longest message sent in a run. Such a message fits every path without fragments. RFC 3261
/// §18.1.1 sends longer messages by another transport.
const RUN_MESSAGE: usize = 1300;
/// Most messages of a run (`UDP_MAX_SEGMENTS` of older kernels), and their most bytes: those of a datagram.
const RUN_MESSAGES: usize = 64;
const RUN_BYTES: usize = 60_000;
/// Bytes of a control message with the length of each part of a run.
// SAFETY: arithmetic on a length, without memory.
const CONTROL: usize = unsafe { libc::CMSG_SPACE(size_of::<u16>() as u32) } as usize;

/// Room for one control message, aligned as its header must be.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// A run of messages in one slot of `sendmmsg`: all to one address and equally long. The kernel takes them as one,
/// and cuts them apart when they are sent or, on loopback, received (UDP_SEGMENT, udp(7)). There a program that
/// chooses a socket sees the first one only. (The last one might be shorter, and would often be of another kind.)
#[derive(Clone, Copy)]
struct Run {
    to: SocketAddr,
    each: usize,
    bytes: usize,
    messages: usize,
}

impl Run {
    fn of(to: SocketAddr, each: usize) -> Self {
        Self {
            to,
            each,
            bytes: each,
            messages: 1,
        }
    }

    /// Adds a message, if it fits. Returns whether it does.
    fn take(&mut self, to: SocketAddr, length: usize) -> bool {
        let fits = length == self.each
            && (1..=RUN_MESSAGE).contains(&length)
            && self.to == to
            && self.messages < RUN_MESSAGES
            && self.bytes + length <= RUN_BYTES;
        if fits {
            self.bytes += length;
            self.messages += 1;
        }
        fits
    }
}

/// Whether the kernel supports runs. A kernel without such support would send a run as one datagram.
pub(crate) fn knows_runs(socket: BorrowedFd<'_>) -> bool {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`, and how many to `length`.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            ptr::from_mut(&mut value).cast(),
            &mut length,
        )
    };
    done == 0
}

/// Memory for the arguments of `sendmmsg`, reused from call to call.
pub(crate) struct SendSlots {
    headers: Vec<libc::mmsghdr>,
    iovecs: Vec<libc::iovec>,
    names: Vec<RawAddr>,
    controls: Vec<Control>,
    /// The runs of the last call, one for each header.
    runs: Vec<Run>,
}

// SAFETY: the raw pointers are written and used within one call of `send`; what is left of them
// between calls is never followed.
unsafe impl Send for SendSlots {}

impl SendSlots {
    /// Memory for `slots` messages a call; at least 1.
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
            controls: vec![Control([0; CONTROL]); slots],
            runs: Vec::with_capacity(slots),
        }
    }

    /// Sends the first messages of `messages`, as many as there are slots, without blocking. With `runs`,
    /// equally long ones to one address are sent together. Returns how many were sent, in order. An error is
    /// about their first run ([`Self::first_run`]).
    pub(crate) fn send<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        messages: impl Iterator<Item = (SocketAddr, &'a [u8])>,
        runs: bool,
    ) -> io::Result<usize> {
        self.runs.clear();
        for (iovec, (to, bytes)) in self.iovecs.iter_mut().zip(messages) {
            iovec.iov_base = bytes.as_ptr().cast_mut().cast();
            iovec.iov_len = bytes.len();
            let joined = runs && self.runs.last_mut().is_some_and(|run| run.take(to, bytes.len()));
            if !joined {
                self.runs.push(Run::of(to, bytes.len()));
            }
        }
        if self.runs.is_empty() {
            return Ok(0);
        }
        self.write_headers();
        // SAFETY: as many headers as there are runs were just filled: names, controls and iovecs are
        // in this value, the bytes are borrowed for `'a`, all outlive the call. The kernel reads names,
        // controls and bytes (so the cast from const is never written through) and writes `msg_len`
        // in the headers.
        let sent = check(unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.runs.len() as libc::c_uint,
                (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
            )
        })?;
        let sent = self.runs.iter().take(sent as usize);
        Ok(sent.map(|run| run.messages).sum())
    }

    /// Number of messages in the first run of the last call.
    pub(crate) fn first_run(&self) -> usize {
        self.runs.first().map_or(0, |run| run.messages)
    }

    fn write_headers(&mut self) {
        let mut first = 0;
        let slots = self
            .headers
            .iter_mut()
            .zip(&mut self.names)
            .zip(&mut self.controls);
        for (run, ((header, name), control)) in self.runs.iter().zip(slots) {
            let header = &mut header.msg_hdr;
            header.msg_namelen = name.encode(run.to) as libc::socklen_t;
            header.msg_name = ptr::from_mut(name).cast();
            let iovecs = &mut self.iovecs[first..first + run.messages];
            header.msg_iov = iovecs.as_mut_ptr();
            header.msg_iovlen = run.messages as _;
            first += run.messages;
            header.msg_control = ptr::null_mut();
            header.msg_controllen = 0;
            if run.messages > 1 {
                header.msg_control = ptr::from_mut(control).cast();
                header.msg_controllen = CONTROL as _;
                write_length(header, run.each as u16);
            }
        }
    }
}

/// Writes the control message with the length of each part.
fn write_length(header: &libc::msghdr, each: u16) {
    // SAFETY: `msg_control` is a `Control` of `msg_controllen` bytes, aligned for a header and with room for
    // it and a `u16`, and there is no other reference to it.
    unsafe {
        let control = libc::CMSG_FIRSTHDR(header);
        (*control).cmsg_level = libc::SOL_UDP;
        (*control).cmsg_type = libc::UDP_SEGMENT;
        (*control).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
        libc::CMSG_DATA(control).cast::<u16>().write_unaligned(each);
    }
}

impl std::fmt::Debug for SendSlots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendSlots")
            .field("slots", &self.headers.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::super::control::ControlMessages;
    use crate::udp::wait_for_delivery;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    fn to(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    /// Datagrams of each length around the two areas' ends, more of them than slots. The slots were filled by
    /// longer datagrams before and have moved since they were made.
    #[test]
    fn each_slot_gives_its_own_datagram_at_every_length() {
        let [from, at] = [(), ()].map(|()| UdpSocket::bind(to(0)).unwrap());
        let (source, target) = (from.local_addr().unwrap(), at.local_addr().unwrap());
        let mut moved = vec![RecvSlots::new(3, 4, 6)];
        moved.push(RecvSlots::new(1, 1, 1));
        let slots = &mut moved.swap_remove(0);
        assert!(slots.datagram(0).is_none());
        for round in 0..2u8 {
            let lengths = [11usize, 10, 9, 5, 4, 3, 1, 0];
            for (length, letter) in lengths.into_iter().zip(b'a'..) {
                from.send_to(&vec![letter + round; length], target).unwrap();
            }
            wait_for_delivery();
            let mut got = vec![];
            while let Ok(count) = slots.receive(at.as_fd(), usize::MAX) {
                assert!((1..=3).contains(&count));
                assert!(slots.datagram(count).is_none() && slots.datagram(usize::MAX).is_none());
                for slot in 0..count {
                    let datagram = slots.datagram(slot).unwrap();
                    assert_eq!(datagram.source, Some(source));
                    let bytes = [datagram.head, datagram.tail].concat();
                    assert!(datagram.head.len() == 4 || datagram.tail.is_empty());
                    got.push((bytes, datagram.is_truncated));
                }
            }
            let expected: Vec<_> = lengths
                .into_iter()
                .zip(b'a'..)
                .map(|(length, letter)| (vec![letter + round; length.min(10)], length > 10))
                .collect();
            assert_eq!(got, expected);
            assert!(slots.datagram(0).is_none(), "a failed call received nothing");
        }
    }

    #[test]
    fn a_source_that_is_no_internet_address_is_none() {
        let (from, at) = UnixDatagram::pair().unwrap();
        from.send(b"x").unwrap();
        let mut slots = RecvSlots::new(2, 2, 2);
        assert_eq!(slots.receive(at.as_fd(), usize::MAX).unwrap(), 1);
        let datagram = slots.datagram(0).unwrap();
        assert_eq!((datagram.source, datagram.head), (None, &b"x"[..]));
    }

    #[test]
    #[should_panic(expected = "slot out of range")]
    fn no_slot_is_beyond_the_last() {
        Slots::new(vec![0u8; 3]).at(3);
    }

    /// Runs in every slot, then in none: each header describes its own run, and nothing is left of earlier
    /// ones.
    #[test]
    fn headers_say_what_belongs_to_each_run() {
        let mut slots = SendSlots::new(4);
        for lengths in [[100, 100, 60, 50], [100, 99, 99, 98], [10, 20, 30, 40]] {
            slots.runs.clear();
            for (iovec, length) in slots.iovecs.iter_mut().zip(lengths) {
                iovec.iov_len = length;
                if !slots.runs.last_mut().is_some_and(|run| run.take(to(1), length)) {
                    slots.runs.push(Run::of(to(1), length));
                }
            }
            slots.write_headers();
            let mut first = 0;
            for (run, header) in slots.runs.iter().zip(&slots.headers) {
                let header = &header.msg_hdr;
                let length: usize = header.msg_controllen as _;
                let control = match length {
                    0 => &[][..],
                    // SAFETY: `write_headers` pointed it to a whole control message of this value.
                    len => unsafe { std::slice::from_raw_parts(header.msg_control.cast::<u8>(), len) },
                };
                let told: Vec<_> = ControlMessages::new(control).collect();
                let each = (run.each as u16).to_ne_bytes();
                let expected = (libc::SOL_UDP, libc::UDP_SEGMENT, &each[..]);
                assert_eq!(told, if run.messages > 1 { vec![expected] } else { vec![] });
                assert_eq!(header.msg_iov.cast_const(), &raw const slots.iovecs[first]);
                // The field's type differs between C libraries.
                let parts: usize = header.msg_iovlen as _;
                assert_eq!(parts, run.messages);
                first += run.messages;
            }
            assert_eq!(first, lengths.len());
        }
    }

    #[test]
    fn what_may_share_a_run() {
        let mut run = Run::of(to(1), 100);
        assert!(!run.take(to(2), 100), "another address");
        assert!(!run.take(to(1), 101) && !run.take(to(1), 0));
        assert!(run.take(to(1), 100) && !run.take(to(1), 99));
        assert_eq!((run.messages, run.bytes), (2, 200));
        let long = RUN_MESSAGE + 1;
        assert!(!Run::of(to(1), long).take(to(1), long));
        assert!(!Run::of(to(1), 0).take(to(1), 0));
        let mut many = Run::of(to(1), 10);
        assert_eq!(
            (0..100).filter(|_| many.take(to(1), 10)).count() + 1,
            RUN_MESSAGES
        );
        let mut large = Run::of(to(1), 1300);
        assert_eq!(
            (0..100).filter(|_| large.take(to(1), 1300)).count() + 1,
            RUN_BYTES / 1300
        );
    }
}
