//! The program by which the kernel chooses the socket that gets a datagram.
//!
//! Sockets that share an address by `SO_REUSEPORT` get datagrams by a hash of the addresses, so that all
//! those of a busy peer go to one worker. This classic BPF program (bpf(4); no privilege is needed) computes
//! [`sip_core::affinity::worker_of`] instead. The messages of one call come to the worker that holds its
//! state, in the order of their arrival at the machine. The calls of one peer spread over all workers.
//!
//! Classic BPF has no loops, so the search for the Call-ID is written out: one word every [`STRIDE`] bytes,
//! compared with each word that `"\r\nCall-ID:"` may show there. A match is compared whole, then the value is
//! hashed up to the CR.
//!
//! Each worker may have two more sockets, for new work: one for new calls, one for registrations and other
//! requests outside of dialogs. While a worker has more than it can serve, new work waits there and is dropped
//! there, and the rest of each call waits behind nothing. [`METHODS`] says which methods go where. A request in
//! a dialog has the mark of our Record-Route in its Route (`;tz=`), and goes to the
//! first socket. So does an INVITE to a `urn:` (emergency calls, RFC 5031).
//!
//! "Route" is compared with its line end, so that Record-Route and other names are no match: a request that begins
//! a dialog may have the marks of other servers of ours there. Both words that show it, `"\r\nRo"` and
//! `"\nRou"`, are looked for at every second byte. The mark is then looked for at each byte from there on. A Route
//! in lower case, or a mark beyond what is searched, is not seen: that request is served later, as new work.
//!
//! If there are such sockets, the program decides about each datagram, because the kernel's own choice might be
//! one of them. If it finds no Call-ID, it goes by source address and port.
//!
//! Otherwise the program decides nothing if the name is written otherwise (`i:`, `call-id:`), stands further back
//! than is searched, or something else looked like it. The kernel then hashes addresses, as it does without the
//! program. The worker that gets the datagram hands it over if necessary. The program's mistakes cost time,
//! nothing else.

use std::io;
use std::os::fd::AsFd;

use libc::sock_filter;
use sip_core::affinity::{MULTIPLIER, SEED, SHIFT, WORDS};
use sip_core::overload::{MARK, METHODS, Queue, REGISTER, ROUTE, URN};

use crate::sys;

/// The name that is searched for.
const NAME: &[u8; 10] = b"\r\nCall-ID:";

/// Bytes between two words that are compared: one of them then lies inside [`NAME`].
const STRIDE: u32 = NAME.len() as u32 - 3;

/// Offset at which the search begins: a start line and a Via are at least that long together.
const FIRST: u32 = 63;

/// Words compared between two checks of the datagram's length.
const WORDS_PER_GROUP: u32 = 12;

/// How far a program searches. The kernel limits a program's size (`optmem_max`, 20 KiB before Linux 6.8), so
/// shorter searches are tried if it refuses the program.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// Groups of words compared with the name of Call-ID.
    call_id_groups: u32,
    /// Groups of words compared with that of Route; none without queues of new work.
    route_groups: u32,
}

const fn extent(call_id_groups: u32, route_groups: u32) -> Extent {
    Extent {
        call_id_groups,
        route_groups,
    }
}

const EXTENTS: [Extent; 4] = [extent(14, 0), extent(9, 0), extent(5, 0), extent(3, 0)];

/// The first one sees a Route within the first 1,100 bytes, the last one within 660. A kernel that takes none of
/// these gives each worker one queue.
const EXTENTS_WITH_NEW_WORK: [Extent; 4] = [extent(11, 34), extent(8, 30), extent(6, 25), extent(4, 20)];

/// Sockets of a worker, if new work has its own.
#[cfg(test)]
const QUEUES: u16 = 3;

/// Offset at which the search for a Route begins: no start line is shorter.
const FIRST_FOR_ROUTE: u32 = 20;

/// Words compared with Route between two checks of the datagram's length, one each two bytes.
const ROUTE_WORDS_PER_GROUP: u32 = 16;

/// Bytes at which the mark may begin, after the begin of the group in which the Route was found, and those between
/// two checks of the datagram's length. A mark has 32 digits, so a check fails only where none is.
const MARK_REACH: u32 = 160;
const MARK_BYTES_PER_GROUP: u32 = 32;

/// Slots of the program's memory.
const HASH: u32 = 0;
const WORD: u32 = 1;
const POSITION: u32 = 2;
/// Index of the first worker's socket of the queue: 0, or once or twice the number of workers.
const QUEUE: u32 = 3;
/// The value of [`QUEUE`] if the request is outside of dialogs.
const NEW_WORK_QUEUE: u32 = 4;

/// Begin of the area of addresses at which loads find the network header (`SKF_NET_OFF`).
const NETWORK_HEADER: u32 = -0x10_0000_i32 as u32;

/// A result that is no index of a socket: the kernel then chooses by the addresses.
const UNDECIDED: u32 = u32::MAX;

/// The sockets that share an address, in the order in which they were bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sockets {
    /// The number of workers. Their first sockets come first, in the workers' order.
    pub(crate) workers: u16,
    /// Whether as many sockets for new calls follow, in the same order, and then as many for other requests.
    pub(crate) new_work: bool,
    /// Whether the address is one of IPv6.
    pub(crate) is_v6: bool,
}

/// Makes the kernel give each datagram to the worker of its call. `socket` is one of those that share the
/// address.
pub(crate) fn steer(socket: &impl AsFd, sockets: Sockets) -> io::Result<()> {
    let extents = if sockets.new_work {
        EXTENTS_WITH_NEW_WORK
    } else {
        EXTENTS
    };
    let mut result = Ok(());
    for extent in extents {
        result = sys::attach_reuseport_program(socket.as_fd(), &program(sockets, extent));
        if !is_too_large(&result) {
            break;
        }
    }
    result
}

fn is_too_large(result: &io::Result<()>) -> bool {
    result
        .as_ref()
        .is_err_and(|error| error.raw_os_error() == Some(libc::ENOMEM))
}

/// The index of a jump whose target is not known yet.
type Jump = usize;

/// A program under construction. Jumps lead forward only, as BPF demands.
#[derive(Default)]
struct Assembler(Vec<sock_filter>);

impl Assembler {
    fn add(&mut self, code: u32, k: u32) -> Jump {
        self.0.push(sock_filter {
            code: code as u16,
            jt: 0,
            jf: 0,
            k,
        });
        self.0.len() - 1
    }

    /// A ← the datagram's bytes at `at`, beginning at X where `size` says `BPF_IND`.
    fn load(&mut self, size: u32, at: u32) {
        self.add(libc::BPF_LD | size, at);
    }

    /// A ← A `operation` `k`.
    fn alu(&mut self, operation: u32, k: u32) {
        self.add(libc::BPF_ALU | operation | libc::BPF_K, k);
    }

    fn recall(&mut self, place: u32) {
        self.add(libc::BPF_LD | libc::BPF_MEM, place);
    }

    fn recall_x(&mut self, place: u32) {
        self.add(libc::BPF_LDX | libc::BPF_MEM, place);
    }

    fn store(&mut self, place: u32) {
        self.add(libc::BPF_ST, place);
    }

    fn a_to_x(&mut self) {
        self.add(libc::BPF_MISC | libc::BPF_TAX, 0);
    }

    fn x_to_a(&mut self) {
        self.add(libc::BPF_MISC | libc::BPF_TXA, 0);
    }

    /// Continues only if `condition` holds for A and `k`; otherwise jumps.
    fn unless(&mut self, condition: u32, k: u32) -> Jump {
        let at = self.add(libc::BPF_JMP | condition | libc::BPF_K, k);
        self.0[at].jt = 1;
        self.jump()
    }

    fn jump(&mut self) -> Jump {
        self.add(libc::BPF_JMP | libc::BPF_JA, 0)
    }

    /// Makes a jump lead to the next instruction. A conditional one is taken if its condition holds.
    fn land(&mut self, jump: Jump) {
        let distance = self.0.len() - jump - 1;
        let instruction = &mut self.0[jump];
        if u32::from(instruction.code) == libc::BPF_JMP | libc::BPF_JA {
            instruction.k = distance as u32;
        } else {
            debug_assert!(distance < 256);
            instruction.jt = distance as u8;
        }
    }

    fn land_all(&mut self, jumps: Vec<Jump>) {
        for jump in jumps {
            self.land(jump);
        }
    }

    /// HASH ← the hash with the byte in A. X is lost.
    fn step(&mut self) {
        self.recall_x(HASH);
        self.add(libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X, 0);
        self.mix();
        self.store(HASH);
    }

    /// A ← A, each bit spread over others. X is lost.
    fn mix(&mut self) {
        self.alu(libc::BPF_MUL, MULTIPLIER);
        self.a_to_x();
        self.alu(libc::BPF_RSH, SHIFT);
        self.add(libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X, 0);
    }
}

/// The bytes as a number, in network order.
fn word(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |word, c| word << 8 | u32::from(*c))
}

fn word_of_name(at: usize) -> u32 {
    word(&NAME[at..at + 4])
}

/// The program for these sockets.
fn program(sockets: Sockets, extent: Extent) -> Vec<sock_filter> {
    let workers = u32::from(sockets.workers.max(1));
    let mut a = Assembler::default();
    if sockets.new_work {
        choose_queue(&mut a, workers, extent.route_groups);
    }
    if workers == 1 {
        a.add(libc::BPF_LD | libc::BPF_IMM, 0);
        choose_worker(&mut a, sockets);
        return a.0;
    }
    let mut undecided = Vec::new();
    let found = search(&mut a, extent.call_id_groups, &mut undecided);
    a.land_all(found);
    compare(&mut a, &mut undecided);
    hash(&mut a);
    a.recall(HASH);
    choose_worker(&mut a, sockets);
    a.land_all(undecided);
    if sockets.new_work {
        hash_source(&mut a, sockets.is_v6);
        choose_worker(&mut a, sockets);
    } else {
        a.add(libc::BPF_RET | libc::BPF_K, UNDECIDED);
    }
    a.0
}

/// Ends the program with the socket of the worker for the hash in A.
fn choose_worker(a: &mut Assembler, sockets: Sockets) {
    a.alu(libc::BPF_MOD, u32::from(sockets.workers.max(1)));
    if sockets.new_work {
        a.recall_x(QUEUE);
        a.add(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X, 0);
    }
    a.add(libc::BPF_RET | libc::BPF_A, 0);
}

/// QUEUE ← 0, or that of the method if the datagram is new work.
fn choose_queue(a: &mut Assembler, workers: u32, groups: u32) {
    a.add(libc::BPF_LD | libc::BPF_IMM, 0);
    a.store(QUEUE);
    let (mut others, mut new) = (Vec::new(), Vec::new());
    a.load(libc::BPF_W | libc::BPF_LEN, 0);
    others.push(a.unless(libc::BPF_JGE, FIRST_FOR_ROUTE));
    let may_be_in_dialog = compare_methods(a, workers, &mut others, &mut new);
    a.land_all(may_be_in_dialog);
    let found = search_route(a, groups, &mut new);
    a.land_all(found);
    search_mark(a, &mut others, &mut new);
    a.land_all(new);
    a.recall(NEW_WORK_QUEUE);
    a.store(QUEUE);
    a.land_all(others);
}

/// The number of a queue, in the order in which its sockets are bound.
const fn number_of(queue: Queue) -> u32 {
    match queue {
        Queue::Established => 0,
        Queue::Calls => 1,
        Queue::Requests => 2,
    }
}

/// NEW_WORK_QUEUE ← that of the method. The returned jumps are taken if the request may be one in a dialog; a REGISTER
/// is none.
fn compare_methods(
    a: &mut Assembler,
    workers: u32,
    others: &mut Vec<Jump>,
    new: &mut Vec<Jump>,
) -> Vec<Jump> {
    a.load(libc::BPF_W | libc::BPF_ABS, 0);
    let begins: Vec<Jump> = METHODS
        .iter()
        .map(|(name, _)| a.add(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, word(&name[..4])))
        .collect();
    others.push(a.jump());
    let mut may_be_in_dialog = Vec::new();
    for ((name, queue), begin) in METHODS.into_iter().zip(begins) {
        a.land(begin);
        let last = name.len() - 4;
        for at in (4..last).step_by(4).chain([last]) {
            a.load(libc::BPF_W | libc::BPF_ABS, at as u32);
            others.push(a.unless(libc::BPF_JEQ, word(&name[at..at + 4])));
        }
        if queue == Queue::Calls {
            a.load(libc::BPF_W | libc::BPF_ABS, name.len() as u32);
            let no_urn = a.unless(libc::BPF_JEQ, word(URN));
            others.push(a.jump());
            a.land(no_urn);
        }
        a.add(libc::BPF_LD | libc::BPF_IMM, number_of(queue) * workers);
        a.store(NEW_WORK_QUEUE);
        if name == REGISTER {
            new.push(a.jump());
        } else {
            may_be_in_dialog.push(a.jump());
        }
    }
    may_be_in_dialog
}

/// Looks for a Route. The returned jumps are taken with the begin of the group of words in X.
fn search_route(a: &mut Assembler, groups: u32, new: &mut Vec<Jump>) -> Vec<Jump> {
    let mut found = Vec::new();
    for group in 0..groups {
        let first = FIRST_FOR_ROUTE + group * ROUTE_WORDS_PER_GROUP * 2;
        let last = first + (ROUTE_WORDS_PER_GROUP - 1) * 2;
        a.load(libc::BPF_W | libc::BPF_LEN, 0);
        new.push(a.unless(libc::BPF_JGE, last + 4));
        let mut matches = Vec::new();
        for at in (first..=last).step_by(2) {
            a.load(libc::BPF_W | libc::BPF_ABS, at);
            for from in [0, 1] {
                let start = word(&ROUTE[from..from + 4]);
                matches.push(a.add(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, start));
            }
        }
        let next = a.jump();
        a.land_all(matches);
        a.add(libc::BPF_LDX | libc::BPF_IMM, first);
        found.push(a.jump());
        a.land(next);
    }
    new.push(a.jump());
    found
}

/// Looks for our mark from X on. With it, the request is in a dialog.
fn search_mark(a: &mut Assembler, others: &mut Vec<Jump>, new: &mut Vec<Jump>) {
    for first in (0..MARK_REACH).step_by(MARK_BYTES_PER_GROUP as usize) {
        let end = first + MARK_BYTES_PER_GROUP;
        a.load(libc::BPF_W | libc::BPF_LEN, 0);
        a.add(libc::BPF_ALU | libc::BPF_SUB | libc::BPF_X, 0);
        new.push(a.unless(libc::BPF_JGE, end + 3));
        let mut matches = Vec::new();
        for at in first..end {
            a.load(libc::BPF_W | libc::BPF_IND, at);
            matches.push(a.add(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, word(MARK)));
        }
        let next = a.jump();
        a.land_all(matches);
        others.push(a.jump());
        a.land(next);
    }
}

/// A ← a hash of the source's address and port. (With options or extension headers in between, other bytes of
/// the header take the place of the port: they are those of one sender as well.)
fn hash_source(a: &mut Assembler, is_v6: bool) {
    let (address, port) = if is_v6 { (20, 40) } else { (12, 20) };
    a.load(libc::BPF_H | libc::BPF_ABS, NETWORK_HEADER.wrapping_add(port));
    a.a_to_x();
    a.load(libc::BPF_W | libc::BPF_ABS, NETWORK_HEADER.wrapping_add(address));
    a.add(libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X, 0);
    a.mix();
}

/// Compares words. The returned jumps are taken with the place of the possible name in A.
fn search(a: &mut Assembler, groups: u32, undecided: &mut Vec<Jump>) -> Vec<Jump> {
    let mut found = Vec::new();
    for group in 0..groups {
        let first = FIRST + group * WORDS_PER_GROUP * STRIDE;
        let last = first + (WORDS_PER_GROUP - 1) * STRIDE;
        // A load from beyond the end would end the program with the first worker.
        a.load(libc::BPF_W | libc::BPF_LEN, 0);
        undecided.push(a.unless(libc::BPF_JGE, last + 4));
        let mut matches: [Vec<Jump>; STRIDE as usize] = Default::default();
        for at in (first..=last).step_by(STRIDE as usize) {
            a.add(libc::BPF_LDX | libc::BPF_IMM, at);
            a.load(libc::BPF_W | libc::BPF_ABS, at);
            for (offset, jumps) in matches.iter_mut().enumerate() {
                jumps.push(a.add(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, word_of_name(offset)));
            }
        }
        let next = a.jump();
        for (jumps, offset) in matches.into_iter().zip(0..) {
            a.land_all(jumps);
            a.x_to_a();
            a.alu(libc::BPF_SUB, offset);
            found.push(a.jump());
        }
        a.land(next);
    }
    undecided.push(a.jump());
    found
}

/// Compares the whole name at A; POSITION ← where the value begins.
fn compare(a: &mut Assembler, undecided: &mut Vec<Jump>) {
    a.a_to_x();
    for (size, at, wanted) in [
        (libc::BPF_W, 0, word_of_name(0)),
        (libc::BPF_W, 4, word_of_name(4)),
        (libc::BPF_H, 8, u32::from(NAME[8]) << 8 | u32::from(NAME[9])),
    ] {
        a.load(size | libc::BPF_IND, at);
        undecided.push(a.unless(libc::BPF_JEQ, wanted));
    }
    let name = NAME.len() as u32;
    a.load(libc::BPF_B | libc::BPF_IND, name);
    let no_space = a.unless(libc::BPF_JEQ, u32::from(b' '));
    a.x_to_a();
    a.alu(libc::BPF_ADD, name + 1);
    let go_on = a.jump();
    a.land(no_space);
    a.x_to_a();
    a.alu(libc::BPF_ADD, name);
    a.land(go_on);
    a.store(POSITION);
}

/// HASH ← [`sip_core::affinity`]'s hash of what is at POSITION, up to a CR.
fn hash(a: &mut Assembler) {
    a.add(libc::BPF_LD | libc::BPF_IMM, SEED);
    a.store(HASH);
    let mut at_end = Vec::new();
    for _ in 0..WORDS {
        a.recall_x(POSITION);
        a.load(libc::BPF_W | libc::BPF_IND, 0);
        a.store(WORD);
        a.alu(libc::BPF_XOR, 0x0d0d_0d0d);
        a.alu(libc::BPF_SUB, 0x0101_0101);
        a.alu(libc::BPF_AND, 0x8080_8080);
        at_end.push(a.unless(libc::BPF_JEQ, 0));
        a.recall(WORD);
        a.step();
        a.recall(POSITION);
        a.alu(libc::BPF_ADD, 4);
        a.store(POSITION);
    }
    let mut done = vec![a.jump()];
    a.land_all(at_end);
    for at in 0..3 {
        a.recall_x(POSITION);
        a.load(libc::BPF_B | libc::BPF_IND, at);
        done.push(a.add(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, u32::from(b'\r')));
        a.step();
    }
    a.land_all(done);
}

#[cfg(test)]
mod tests;
