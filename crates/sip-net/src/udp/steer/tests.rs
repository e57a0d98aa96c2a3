//! Tests of the program by an interpreter of classic BPF, and by the kernel.

use super::*;
use proptest::prelude::*;
use sip_core::affinity::worker_of;
use sip_core::id::WorkerId;

use crate::udp::{RecvBatch, UdpOptions, UdpSocket, wait_for_delivery};

/// Sockets of workers without new work.
fn plain(workers: u16) -> Sockets {
    Sockets {
        workers,
        new_work: false,
        is_v6: false,
    }
}

/// Sockets of workers with a queue of new work each.
fn two_queues(workers: u16) -> Sockets {
    Sockets {
        new_work: true,
        ..plain(workers)
    }
}

fn run(program: &[sock_filter], data: &[u8]) -> u32 {
    run_from(program, data, [192, 0, 2, 1], 5060)
}

/// The result that the kernel would return: bpf(4), for the instructions that are used here.
fn run_from(program: &[sock_filter], data: &[u8], source: [u8; 4], port: u16) -> u32 {
    let mut network = [0; 28];
    network[12..16].copy_from_slice(&source);
    network[20..22].copy_from_slice(&port.to_be_bytes());
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
                let (data, from) = match k.checked_sub(NETWORK_HEADER) {
                    Some(from) => (&network[..], from as usize),
                    None => (data, from),
                };
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
    let longest = program(plain(3), EXTENTS[0]);
    assert!(longest.len() <= 4096, "BPF_MAXINSNS");
    let with_new_work = program(two_queues(3), EXTENTS_WITH_NEW_WORK[0]);
    assert!(
        with_new_work.len() <= 4096,
        "BPF_MAXINSNS: {}",
        with_new_work.len()
    );
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
    let program = program(plain(256), extent(3, 0));
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
            assert_eq!(
                run(&program(plain(2), EXTENTS[0]), text.as_bytes()),
                UNDECIDED,
                "{text}"
            );
        }
    }
    for short in ["", "\r\n\r\n", "OPTIONS sip:a SIP/2.0\r\nCall-ID: a\r\n\r\n"] {
        assert_eq!(run(&program(plain(2), EXTENTS[0]), short.as_bytes()), UNDECIDED);
    }
}

/// The socket that the kernel would choose of two workers with two queues, by the longest and by the shortest
/// program: queue and worker.
fn chosen(text: &str) -> (&'static str, u32) {
    let [longest, .., shortest] = EXTENTS_WITH_NEW_WORK;
    let results = [longest, shortest].map(|extent| run(&program(two_queues(2), extent), text.as_bytes()));
    assert_eq!(results[0], results[1], "{text}");
    let result = results[0];
    let of_one = run(&program(two_queues(1), longest), text.as_bytes());
    assert_eq!(of_one, result / 2, "{text}");
    assert!(result < 4, "{text}");
    (["first", "new work"][result as usize / 2], result % 2)
}

/// Wherever it stands, a Route keeps an INVITE in the first queue.
#[test]
fn an_invite_without_route_is_new_work() {
    let call_id = "Call-ID: call@example.com\r\n";
    let WorkerId(worker) = worker_of(b"call@example.com", 2);
    let worker = u32::from(worker);
    for filler in 0..300 {
        let text = message(call_id, filler);
        assert_eq!(chosen(&text), ("new work", worker), "{text}");
        let route = "Route: <sip:192.0.2.5;lr>\r\n";
        let recorded = message(&format!("Record-{route}{call_id}Routes: 1\r\n"), filler);
        assert_eq!(
            chosen(&recorded.replace("\r\nRoutes", "\r\nX-Routes")).0,
            "new work"
        );
        for in_dialog in [
            message(&format!("{route}{call_id}"), filler),
            message(&format!("{call_id}Record-{route}{route}"), filler),
            message(&format!("{call_id}Contact: <sip:a@b>\r\n{route}"), filler),
            text.replacen("\r\n", &format!("\r\n{route}"), 1),
        ] {
            assert_eq!(chosen(&in_dialog), ("first", worker), "{in_dialog}");
        }
    }
}

/// The last header field of a request without a body is within the search, although the search ends before the
/// datagram does.
#[test]
fn a_route_at_the_end_is_seen() {
    let route = "Route: <sip:192.0.2.5;lr;tz=0123456789abcdef>\r\n\r\n";
    for filler in 0..100 {
        let text =
            message("Call-ID: call@example.com\r\n", filler).replace("Content-Length: 0\r\n\r\n", route);
        assert_eq!(chosen(&text).0, "first", "{text}");
    }
}

#[test]
fn everything_else_is_no_new_work() {
    let invite = message("Call-ID: call@example.com\r\n", 30);
    for (from, to) in [
        ("INVITE sip", "INVITES sip"),
        ("INVITE sip", "invite sip"),
        ("INVITE sip", "OPTIONS sip"),
        ("INVITE sip:bob@example.com", "INVITE urn:service:sos"),
        ("INVITE sip:bob@example.com SIP/2.0", "SIP/2.0 200 OK"),
        ("INVITE", "ACK"),
        ("INVITE", "BYE"),
        ("INVITE", "CANCEL"),
        ("INVITE", "REGISTER"),
    ] {
        let other = invite.replacen(from, to, 1);
        assert_ne!(other, invite);
        assert_eq!(chosen(&other).0, "first", "{other}");
    }
    for short in ["", "\r\n\r\n", "INVITE ", "INVITE sip:a SIP/2."] {
        assert_eq!(chosen(short).0, "first", "{short}");
    }
}

/// If there are second sockets, the program leaves nothing to the kernel: it goes by the source.
#[test]
fn with_two_queues_every_datagram_gets_a_worker() {
    let with_two = program(two_queues(3), EXTENTS_WITH_NEW_WORK[0]);
    for (line, queue) in [("i: a@b\r\n", 1), ("Route: <sip:a;lr>\r\ni: a@b\r\n", 0)] {
        let text = message(line, 0);
        let mut seen = [0; 6];
        for port in 1_024..2_024 {
            let socket = run_from(&with_two, text.as_bytes(), [192, 0, 2, 7], port);
            let again = run_from(&with_two, b"\r\n\r\n", [192, 0, 2, 7], port);
            assert_eq!((socket / 3, socket % 3), (queue, again), "one source, one worker");
            seen[socket as usize] += 1;
        }
        let of_queue = &seen[queue as usize * 3..][..3];
        assert!(of_queue.iter().all(|count| *count > 200), "{seen:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_end_at_a_worker_or_undecided(
        head in "[A-Za-z \r\n:-]{0,300}", id in proptest::collection::vec(any::<u8>(), 0..90),
    ) {
        let program = program(plain(5), extent(5, 0));
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

/// The sockets of a program at a free port of loopback, by IPv4 and IPv6. None if the kernel does not allow the
/// program: then nothing can be tested.
fn steered(of: Sockets) -> Vec<Vec<UdpSocket>> {
    let mut all = Vec::new();
    for any in ["127.0.0.1:0", "[::1]:0"] {
        if std::net::UdpSocket::bind(any).is_err() {
            // A machine without IPv6.
            continue;
        }
        let first = socket(any);
        let address = first.local_address();
        let of = Sockets {
            is_v6: address.is_ipv6(),
            ..of
        };
        let count = if of.new_work { 2 * of.workers } else { of.workers };
        let mut sockets = vec![first];
        sockets.extend((1..count).map(|_| socket(&address.to_string())));
        if let Err(error) = steer(&sockets[0], of) {
            assert!(
                error.raw_os_error() != Some(libc::EINVAL),
                "the program is refused: {error}"
            );
            continue;
        }
        all.push(sockets);
    }
    all
}

/// Sends these from one port, and returns what each socket got, in the order of arrival.
fn given(sockets: &[UdpSocket], texts: impl IntoIterator<Item = String>) -> Vec<Vec<Vec<u8>>> {
    let address = sockets[0].local_address();
    let client = std::net::UdpSocket::bind((address.ip(), 0)).unwrap();
    for text in texts {
        client.send_to(text.as_bytes(), address).unwrap();
    }
    wait_for_delivery();
    let mut batch = RecvBatch::new(64);
    let mut read = |socket| {
        let mut got = Vec::new();
        while batch.receive(socket).unwrap() > 0 {
            got.extend((0..batch.len()).map(|index| batch.datagram(index).unwrap().bytes.to_vec()));
        }
        got
    };
    sockets.iter().map(&mut read).collect()
}

/// Tests the kernel, from one source port.
#[test]
fn the_kernel_gives_each_call_to_its_worker() {
    for sockets in steered(plain(3)) {
        let texts = (0..300).map(|n| message(&format!("Call-ID: {n}@example.com\r\n"), n % 100));
        let got = given(&sockets, texts);
        for (got, worker) in got.iter().zip(0..) {
            let ids = got
                .iter()
                .map(|bytes| sip_core::affinity::call_id_of(bytes).unwrap());
            ids.for_each(|id| assert_eq!(worker_of(id, 3), WorkerId(worker)));
        }
        assert_eq!(got.iter().map(Vec::len).sum::<usize>(), 300);
        assert!(got.iter().all(|got| got.len() > 60));
    }
}

/// The same with two queues: of three calls' messages, one is new work.
#[test]
fn the_kernel_keeps_new_work_apart() {
    for workers in [1, 2] {
        for sockets in steered(two_queues(workers)) {
            let kinds = [
                ("INVITE", ""),
                ("BYE", ""),
                ("INVITE", "Route: <sip:192.0.2.5;lr>\r\n"),
            ];
            let texts = (0..300).map(|n| {
                let (method, route) = kinds[n % 3];
                let text = message(&format!("{route}Call-ID: {n}@example.com\r\n"), n % 100);
                text.replace("INVITE", method)
            });
            let got = given(&sockets, texts);
            let workers = usize::from(workers);
            assert_eq!(got.len(), 2 * workers);
            let (first, new_work) = got.split_at(workers);
            assert_eq!(first.iter().map(Vec::len).sum::<usize>(), 200);
            let new_work: Vec<_> = new_work.concat();
            assert_eq!(new_work.len(), 100);
            for bytes in new_work {
                let text = String::from_utf8(bytes).unwrap();
                assert!(text.starts_with("INVITE ") && !text.contains("Route"), "{text}");
            }
        }
    }
}

/// What is not plain goes to a first socket as well, by IPv4 and IPv6.
#[test]
fn the_kernel_gives_what_is_not_plain_to_a_first_socket() {
    for sockets in steered(two_queues(2)) {
        let texts = (0..50).flat_map(|n| {
            [
                "\r\n\r\n".to_owned(),
                message(&format!("i: {n}\r\n"), n).replace("INVITE", "BYE"),
            ]
        });
        let got = given(&sockets, texts);
        let counts: Vec<usize> = got.iter().map(Vec::len).collect();
        assert_eq!((counts[0] + counts[1], counts[2] + counts[3]), (100, 0));
        assert!(counts[..2].contains(&100), "one source, one worker: {counts:?}");
    }
}
