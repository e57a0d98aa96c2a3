//! Tests of the program by an interpreter of classic BPF, and by the kernel.

use super::*;
use proptest::prelude::*;
use sip_core::affinity::worker_of;
use sip_core::id::WorkerId;

use crate::udp::{RecvBatch, UdpOptions, UdpSocket, wait_for_delivery};

/// The result that the kernel would return: bpf(4), for the instructions that are used here.
fn run(program: &[sock_filter], data: &[u8]) -> u32 {
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; 16]);
    let mut at = 0;
    loop {
        let instruction = &program[at];
        let (code, k) = (u32::from(instruction.code), instruction.k);
        at += 1;
        let operand = if code & libc::BPF_X != 0 { x } else { k };
        match code & 7 {
            libc::BPF_LD if code & 0xe0 == libc::BPF_LEN => a = data.len() as u32,
            libc::BPF_LD if code & 0xe0 == libc::BPF_IMM => a = k,
            libc::BPF_LD if code & 0xe0 == libc::BPF_MEM => a = memory[k as usize],
            libc::BPF_LD => {
                let from = k.wrapping_add(if code & 0xe0 == libc::BPF_IND { x } else { 0 }) as usize;
                let size = match code & 0x18 {
                    libc::BPF_W => 4,
                    libc::BPF_H => 2,
                    _ => 1,
                };
                let Some(bytes) = data.get(from..from + size) else {
                    return 0;
                };
                a = bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
            }
            libc::BPF_LDX if code & 0xe0 == libc::BPF_MEM => x = memory[k as usize],
            libc::BPF_LDX => x = k,
            libc::BPF_ST => memory[k as usize] = a,
            libc::BPF_ALU => {
                a = match code & 0xf0 {
                    libc::BPF_ADD => a.wrapping_add(operand),
                    libc::BPF_SUB => a.wrapping_sub(operand),
                    libc::BPF_MUL => a.wrapping_mul(operand),
                    libc::BPF_AND => a & operand,
                    libc::BPF_XOR => a ^ operand,
                    libc::BPF_RSH => a >> operand,
                    libc::BPF_MOD => a % operand,
                    other => panic!("operation {other:#x}"),
                }
            }
            libc::BPF_JMP => {
                let taken = match code & 0xf0 {
                    libc::BPF_JA => {
                        at += k as usize;
                        continue;
                    }
                    libc::BPF_JEQ => a == k,
                    libc::BPF_JGE => a >= k,
                    other => panic!("condition {other:#x}"),
                };
                at += usize::from(if taken { instruction.jt } else { instruction.jf });
            }
            libc::BPF_RET if code & 0x18 == libc::BPF_A => return a,
            libc::BPF_RET => return k,
            libc::BPF_MISC if code & 0xf8 == libc::BPF_TXA => a = x,
            libc::BPF_MISC => x = a,
            other => panic!("class {other:#x}"),
        }
    }
}

/// A message with the Call-ID line `line`, moved back by `filler` bytes.
fn message(line: &str, filler: usize) -> String {
    let via = "x".repeat(filler);
    format!(
        "INVITE sip:bob@example.com SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK{via}\r\n{line}\
         From: <sip:alice@example.com>;tag=1\r\nTo: <sip:bob@example.com>\r\nCSeq: 1 INVITE\r\n\
         Contact: <sip:alice@192.0.2.1>\r\nContent-Length: 0\r\n\r\n"
    )
}

#[test]
fn the_program_finds_a_call_id_wherever_it_stands() {
    let longest = program(3, GROUPS[0]);
    assert!(longest.len() <= 4096, "BPF_MAXINSNS");
    for filler in 0..1_000 {
        let id = format!("call-{filler}@example.com");
        let text = message(&format!("Call-ID: {id}\r\n"), filler);
        assert_eq!(
            WorkerId(run(&longest, text.as_bytes()) as u16),
            worker_of(id.as_bytes(), 3),
            "{text}"
        );
    }
}

#[test]
fn every_length_of_a_call_id_is_hashed_alike() {
    let program = program(256, 3);
    for len in 1..100 {
        let id: String = ('!'..='~').cycle().take(len).collect();
        for line in [format!("Call-ID: {id}\r\n"), format!("Call-ID:{id}\r\n")] {
            let text = message(&line, len);
            assert_eq!(
                WorkerId(run(&program, text.as_bytes()) as u16),
                worker_of(id.as_bytes(), 256)
            );
        }
    }
}

#[test]
fn what_is_not_plain_is_left_undecided() {
    for line in [
        "i: a@b\r\n",
        "call-id: a@b\r\n",
        "X-Call-ID: a@b\r\n",
        "Call-Info: <http://a>\r\n",
        "",
    ] {
        for filler in 0..STRIDE as usize {
            let text = message(line, filler);
            assert_eq!(run(&program(2, GROUPS[0]), text.as_bytes()), UNDECIDED, "{text}");
        }
    }
    for short in ["", "\r\n\r\n", "OPTIONS sip:a SIP/2.0\r\nCall-ID: a\r\n\r\n"] {
        assert_eq!(run(&program(2, GROUPS[0]), short.as_bytes()), UNDECIDED);
    }
}

proptest! {
    #[test]
    fn any_bytes_end_at_a_worker_or_undecided(
        head in "[A-Za-z \r\n:-]{0,300}", id in proptest::collection::vec(any::<u8>(), 0..90),
    ) {
        let program = program(5, 5);
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(b"\r\nCall-ID: ");
        bytes.extend_from_slice(&id);
        for stop in [bytes.len(), bytes.len() / 2] {
            let result = run(&program, &bytes[..stop]);
            prop_assert!(result == UNDECIDED || result < 5);
        }
        // The value up to a CR is a Call-ID, whatever its bytes.
        let before = message("", 0).len() - 2;
        prop_assume!(!id.contains(&b'\r') && id.first().is_some_and(|c| *c != b' '));
        let mut text = message("", 0).into_bytes();
        text.truncate(before);
        text.extend_from_slice(b"Call-ID: ");
        text.extend_from_slice(&id);
        text.extend_from_slice(b"\r\n\r\n");
        let result = run(&program, &text);
        prop_assert!(result == UNDECIDED || result == u32::from(worker_of(&id, 5).0));
    }
}

fn socket(address: &str) -> UdpSocket {
    let options = UdpOptions {
        receive_buffer: 1 << 20,
        send_buffer: 1 << 20,
        share: true,
    };
    UdpSocket::bind(address.parse().unwrap(), options).unwrap()
}

/// Tests the kernel, from one source port. If it does not allow programs, nothing can be tested.
#[test]
fn the_kernel_gives_each_call_to_its_worker() {
    for any in ["127.0.0.1:0", "[::1]:0"] {
        if std::net::UdpSocket::bind(any).is_err() {
            // A machine without IPv6.
            continue;
        }
        let first = socket(any);
        let address = first.local_address();
        let mut sockets = vec![first];
        sockets.extend((1..3).map(|_| socket(&address.to_string())));
        if let Err(error) = steer(&sockets[0], 3) {
            assert!(
                error.raw_os_error() != Some(libc::EINVAL),
                "the program is refused: {error}"
            );
            continue;
        }
        let client = std::net::UdpSocket::bind(any).unwrap();
        for n in 0..300 {
            let text = message(&format!("Call-ID: {n}@example.com\r\n"), n % 100);
            client.send_to(text.as_bytes(), address).unwrap();
        }
        wait_for_delivery();
        let (mut batch, mut seen) = (RecvBatch::new(64), [0; 3]);
        for (socket, worker) in sockets.iter().zip(0..) {
            while batch.receive(socket).unwrap() > 0 {
                for index in 0..batch.len() {
                    let bytes = batch.datagram(index).unwrap().bytes;
                    let id = sip_core::affinity::call_id_of(bytes).unwrap();
                    assert_eq!(worker_of(id, 3), WorkerId(worker));
                    seen[usize::from(worker)] += 1;
                }
            }
        }
        assert_eq!(seen.iter().sum::<i32>(), 300);
        assert!(seen.iter().all(|n| *n > 60), "{seen:?}");
    }
}
