//! The program by which the kernel chooses the worker that gets a datagram.
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
//! The program decides nothing if the name is written otherwise (`i:`, `call-id:`), stands further back than
//! is searched, or something else looked like it. The kernel then hashes addresses, as it does without the
//! program. The worker that gets the datagram hands it over if necessary. The program's mistakes cost time,
//! nothing else.

use std::io;
use std::os::fd::AsFd;

use libc::sock_filter;
use sip_core::affinity::{MULTIPLIER, SEED, SHIFT, WORDS};

use crate::sys;

/// The name that is searched for.
const NAME: &[u8; 10] = b"\r\nCall-ID:";

/// Bytes between two words that are compared: one of them then lies inside [`NAME`].
const STRIDE: u32 = NAME.len() as u32 - 3;

/// Offset at which the search begins: a start line and a Via are at least that long together.
const FIRST: u32 = 63;

/// Words compared between two checks of the datagram's length.
const WORDS_PER_GROUP: u32 = 12;

/// Numbers of groups of words, which bound the search. The kernel limits a program's size (`optmem_max`, 20
/// KiB before Linux 6.8), so fewer groups are tried if it refuses the program.
const GROUPS: [u32; 4] = [14, 9, 5, 3];

/// Slots of the program's memory.
const HASH: u32 = 0;
const WORD: u32 = 1;
const POSITION: u32 = 2;

/// A result that is no index of a socket: the kernel then chooses by the addresses.
const UNDECIDED: u32 = u32::MAX;

/// Makes the kernel give each datagram to the worker of its call. `workers` sockets share the address of
/// `socket`, bound in the workers' order.
pub(crate) fn steer(socket: &impl AsFd, workers: u16) -> io::Result<()> {
    let mut result = Ok(());
    for groups in GROUPS {
        result = sys::attach_reuseport_program(socket.as_fd(), &program(workers, groups));
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
        self.alu(libc::BPF_MUL, MULTIPLIER);
        self.a_to_x();
        self.alu(libc::BPF_RSH, SHIFT);
        self.add(libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X, 0);
        self.store(HASH);
    }
}

fn word_of_name(at: usize) -> u32 {
    NAME[at..at + 4]
        .iter()
        .fold(0, |word, c| word << 8 | u32::from(*c))
}

/// The program for `workers` sockets that searches `groups` groups of words.
fn program(workers: u16, groups: u32) -> Vec<sock_filter> {
    let mut a = Assembler::default();
    let mut undecided = Vec::new();
    let found = search(&mut a, groups, &mut undecided);
    a.land_all(undecided);
    a.add(libc::BPF_RET | libc::BPF_K, UNDECIDED);
    a.land_all(found);
    compare(&mut a);
    hash(&mut a);
    a.recall(HASH);
    a.alu(libc::BPF_MOD, u32::from(workers.max(1)));
    a.add(libc::BPF_RET | libc::BPF_A, 0);
    a.0
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
fn compare(a: &mut Assembler) {
    a.a_to_x();
    let mut others = Vec::new();
    for (size, at, wanted) in [
        (libc::BPF_W, 0, word_of_name(0)),
        (libc::BPF_W, 4, word_of_name(4)),
        (libc::BPF_H, 8, u32::from(NAME[8]) << 8 | u32::from(NAME[9])),
    ] {
        a.load(size | libc::BPF_IND, at);
        others.push(a.unless(libc::BPF_JEQ, wanted));
    }
    let same = a.jump();
    a.land_all(others);
    a.add(libc::BPF_RET | libc::BPF_K, UNDECIDED);
    a.land(same);
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
