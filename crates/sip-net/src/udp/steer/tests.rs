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

/// Sockets of workers with queues of new work.
fn with_new_work(workers: u16) -> Sockets {
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
    let with_new_work = program(with_new_work(3), EXTENTS_WITH_NEW_WORK[0]);
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

/// The socket that the kernel would choose of two workers' sockets, by the longest and by the shortest program: queue
/// and worker.
fn chosen(text: &str) -> (&'static str, u32) {
    let [longest, .., shortest] = EXTENTS_WITH_NEW_WORK;
    let results = [longest, shortest].map(|extent| run(&program(with_new_work(2), extent), text.as_bytes()));
    assert_eq!(results[0], results[1], "{text}");
    let result = results[0];
    let of_one = run(&program(with_new_work(1), longest), text.as_bytes());
    assert_eq!(of_one, result / 2, "{text}");
    assert!(result < 6, "{text}");
    (["first", "calls", "requests"][result as usize / 2], result % 2)
}

const CALL_ID: &str = "Call-ID: call@example.com\r\n";
const MARKED: &str = "Route: <sip:192.0.2.5:5060;lr;tz=0123456789abcdef0123456789abcdef>\r\n";
const UNMARKED: &str = "Route: <sip:192.0.2.5:5060;lr>\r\n";

/// Wherever it stands, a Route with our mark keeps a request in the first queue.
#[test]
fn a_request_without_our_mark_is_new_work() {
    let WorkerId(worker) = worker_of(b"call@example.com", 2);
    let worker = u32::from(worker);
    for filler in 0..150 {
        let text = message(CALL_ID, filler);
        for new in [
            text.clone(),
            message(&format!("Record-{MARKED}{CALL_ID}"), filler),
            message(&format!("{CALL_ID}X-Routes: 1;tz=0\r\n"), filler),
            message(&format!("Record-{MARKED}{UNMARKED}{CALL_ID}"), filler),
            message(&format!("{UNMARKED}Max-Forwards: 70\r\n{CALL_ID}"), filler),
            text.replacen("\r\n", &format!("\r\n{UNMARKED}"), 1),
        ] {
            assert_eq!(chosen(&new), ("calls", worker), "{new}");
        }
        for in_dialog in [
            message(&format!("{MARKED}{CALL_ID}"), filler),
            message(&format!("{CALL_ID}Record-{UNMARKED}{MARKED}"), filler),
            message(&format!("Record-{MARKED}{MARKED}{CALL_ID}"), filler),
            message(&format!("{CALL_ID}Contact: <sip:a@b>\r\n{MARKED}"), filler),
            text.replacen("\r\n", &format!("\r\n{MARKED}"), 1),
            message(
                &format!("{}{CALL_ID}", MARKED.replace(";lr", ";transport=tcp;lr;r2=on")),
                filler,
            ),
            message(
                &format!(
                    "{}{CALL_ID}",
                    MARKED.replace("192", &format!("{}@192", "A".repeat(64)))
                ),
                filler,
            ),
        ] {
            assert_eq!(chosen(&in_dialog), ("first", worker), "{in_dialog}");
        }
    }
}

/// The last header field of a request without a body is within the search, although the search ends before the
/// datagram does.
#[test]
fn a_route_at_the_end_is_seen() {
    for filler in 0..100 {
        let text = message(CALL_ID, filler);
        let marked = text.replace("Content-Length: 0\r\n\r\n", &format!("{MARKED}\r\n"));
        assert_eq!(chosen(&marked).0, "first", "{marked}");
        let unmarked = text.replace("Content-Length: 0\r\n\r\n", &format!("{UNMARKED}\r\n"));
        assert_eq!(chosen(&unmarked), ("calls", chosen(&text).1), "{unmarked}");
    }
}

#[test]
fn each_method_has_its_queue() {
    let invite = message(CALL_ID, 30);
    let in_dialog = message(&format!("{MARKED}{CALL_ID}"), 30);
    for (start, queue, queue_in_dialog) in [
        ("INVITE sip:bob@example.com SIP/2.0", "calls", "first"),
        ("REGISTER sip:example.com SIP/2.0", "requests", "requests"),
        ("OPTIONS sip:bob@example.com SIP/2.0", "requests", "first"),
        ("SUBSCRIBE sip:bob@example.com SIP/2.0", "requests", "first"),
        ("MESSAGE sip:bob@example.com SIP/2.0", "requests", "first"),
        ("PUBLISH sip:bob@example.com SIP/2.0", "requests", "first"),
        ("INVITE urn:service:sos SIP/2.0", "first", "first"),
        ("INVITES sip:bob@example.com SIP/2.0", "first", "first"),
        ("INVITER", "first", "first"),
        ("REGISTRY sip:bob@example.com SIP/2.0", "first", "first"),
        ("OPTIONAL sip:bob@example.com SIP/2.0", "first", "first"),
        ("SUBSCRIPT sip:bob@example.com SIP/2.0", "first", "first"),
        ("invite sip:bob@example.com SIP/2.0", "first", "first"),
        ("SIP/2.0 200 OK", "first", "first"),
        ("ACK sip:bob@example.com SIP/2.0", "first", "first"),
        ("BYE sip:bob@example.com SIP/2.0", "first", "first"),
        ("CANCEL sip:bob@example.com SIP/2.0", "first", "first"),
        ("PRACK sip:bob@example.com SIP/2.0", "first", "first"),
        ("NOTIFY sip:bob@example.com SIP/2.0", "first", "first"),
    ] {
        for (text, queue) in [(&invite, queue), (&in_dialog, queue_in_dialog)] {
            let text = text.replacen("INVITE sip:bob@example.com SIP/2.0", start, 1);
            assert_eq!(chosen(&text).0, queue, "{text}");
        }
    }
    for short in ["", "\r\n\r\n", "INVITE ", "INVITE sip:a SIP/2."] {
        assert_eq!(chosen(short).0, "first", "{short}");
    }
}

/// If there are queues of new work, the program leaves nothing to the kernel: it goes by the source.
#[test]
fn with_new_work_every_datagram_gets_a_worker() {
    let all = program(with_new_work(3), EXTENTS_WITH_NEW_WORK[0]);
    for (line, queue) in [("i: a@b\r\n".to_owned(), 1), (format!("{MARKED}i: a@b\r\n"), 0)] {
        let text = message(&line, 0);
        let mut seen = [0; 9];
        for port in 1_024..2_024 {
            let socket = run_from(&all, text.as_bytes(), [192, 0, 2, 7], port);
            let again = run_from(&all, b"\r\n\r\n", [192, 0, 2, 7], port);
            assert_eq!((socket / 3, socket % 3), (queue, again), "one source, one worker");
            seen[socket as usize] += 1;
        }
        let of_queue = &seen[queue as usize * 3..][..3];
        assert!(of_queue.iter().all(|count| *count > 200), "{seen:?}");
    }
}

/// The number of the queue that the engine would choose.
fn queue_of(text: &str) -> u32 {
    number_of(sip_core::overload::queue_of(text.as_bytes()))
}

proptest! {
    /// Header lines in any order, with the mark where it belongs and elsewhere.
    #[test]
    fn a_request_is_in_the_queue_that_its_lines_say(
        start in prop::sample::select(vec![
            "INVITE sip:b@example.com SIP/2.0", "INVITE urn:service:sos SIP/2.0", "REGISTER sip:example.com SIP/2.0",
            "OPTIONS sip:example.com SIP/2.0", "BYE sip:b@example.com SIP/2.0", "SIP/2.0 180 Ringing",
        ]),
        mut lines in prop::collection::vec(
            prop::sample::select(vec![
                "Via: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK1", "Max-Forwards: 70", "From: <sip:a@b>;tag=1",
                "Record-Route: <sip:192.0.2.9;lr;tz=0123456789abcdef0123456789abcdef>", "X-Route: 1", "P-Route: <sip:a>",
            ]),
            0..8,
        ),
        route in prop::option::of((any::<prop::sample::Index>(), any::<bool>())),
        id in "[a-z]{1,20}",
    ) {
        if let Some((at, is_marked)) = route {
            let route = if is_marked { MARKED } else { UNMARKED };
            let at = at.index(lines.len() + 1);
            lines.insert(at, route.trim_end());
            // What follows an unmarked Route within reach may have a mark: that mistake is known.
            if !is_marked {
                lines.retain(|line| !line.starts_with("Record-Route"));
            }
        }
        let text = format!("{start}\r\n{}\r\nCall-ID: {id}\r\nContent-Length: 0\r\n\r\n", lines.join("\r\n"));
        let text = text.replace("\r\n\r\nCall", "\r\nCall");
        for extent in EXTENTS_WITH_NEW_WORK {
            let result = run(&program(with_new_work(5), extent), text.as_bytes());
            prop_assert_eq!(result / 5, queue_of(&text), "{}", text);
        }
    }

    #[test]
    fn any_bytes_end_at_a_socket_with_new_work(
        start in "(INVITE |REGISTER |OPTIONS )?[A-Za-z \r\n:;=-]{0,300}", bytes in prop::collection::vec(any::<u8>(), 0..1500),
    ) {
        let program = program(with_new_work(5), EXTENTS_WITH_NEW_WORK[0]);
        let mut all = start.into_bytes();
        all.extend_from_slice(&bytes);
        prop_assert!(run(&program, &all) < 15);
    }

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

/// Whether the kernel takes no program, for a reason that it may have: before Linux 6.8 it has no room for the longer
/// one, and a sandbox may allow none.
#[track_caller]
fn is_refused(of: Sockets, result: &io::Result<()>) -> bool {
    let Err(error) = result else { return false };
    let most = std::fs::read_to_string("/proc/sys/net/core/optmem_max").unwrap_or_default();
    let is_small = of.new_work && most.trim().parse().unwrap_or(0) < 131_072;
    let known = match error.raw_os_error() {
        Some(libc::ENOMEM) => is_small,
        other => other == Some(libc::EPERM),
    };
    assert!(known, "the program is refused: {error}");
    eprintln!("not tested: {error}");
    true
}

/// The kernel has room for the longest search, whatever the number of workers.
#[test]
fn the_kernel_takes_the_longest_program() {
    for workers in [1, 2, 64] {
        let of = with_new_work(workers);
        let first = socket("127.0.0.1:0");
        let _second = socket(&first.local_address().to_string());
        let longest = program(of, EXTENTS_WITH_NEW_WORK[0]);
        is_refused(of, &sys::attach_reuseport_program(first.as_fd(), &longest));
    }
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
        let count = if of.new_work {
            QUEUES * of.workers
        } else {
            of.workers
        };
        let mut sockets = vec![first];
        sockets.extend((1..count).map(|_| socket(&address.to_string())));
        if is_refused(of, &steer(&sockets[0], of)) {
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

/// The same with queues of new work.
#[test]
fn the_kernel_keeps_new_work_apart() {
    for workers in [1, 2] {
        for sockets in steered(with_new_work(workers)) {
            let kinds = [
                ("INVITE", ""),
                ("BYE", ""),
                ("INVITE", MARKED),
                ("REGISTER", ""),
                ("OPTIONS", UNMARKED),
                ("OPTIONS", MARKED),
            ];
            let texts = (0..300).map(|n| {
                let (method, route) = kinds[n % kinds.len()];
                let text = message(&format!("{route}Call-ID: {n}@example.com\r\n"), n % 100);
                text.replace("INVITE", method)
            });
            let got = given(&sockets, texts);
            let queues: Vec<Vec<String>> = got
                .chunks(usize::from(workers))
                .map(|queue| {
                    queue
                        .concat()
                        .into_iter()
                        .map(|bytes| String::from_utf8(bytes).unwrap())
                        .collect()
                })
                .collect();
            assert_eq!(queues.iter().map(Vec::len).collect::<Vec<_>>(), [150, 50, 100]);
            for (queue, number) in queues.iter().zip(0..) {
                assert!(queue.iter().all(|text| queue_of(text) == number), "{queue:?}");
            }
        }
    }
}

/// What is not plain goes by its source, by IPv4 and IPv6: to one worker from one port, and to all workers from many.
#[test]
fn the_kernel_spreads_what_is_not_plain_by_its_source() {
    for sockets in steered(with_new_work(2)) {
        let mut seen = [0; 6];
        for _ in 0..64 {
            let kinds = ["BYE", "INVITE", "REGISTER"];
            let texts = kinds.map(|method| message("i: a@b\r\n", 0).replace("INVITE", method));
            let got = given(&sockets, texts.into_iter().chain(["\r\n\r\n".to_owned()]));
            let counts: Vec<usize> = got.iter().map(Vec::len).collect();
            let of_worker = |worker: usize| [0, 2, 4].map(|queue| counts[queue + worker]);
            assert!(
                [of_worker(0), of_worker(1)] == [[2, 1, 1], [0; 3]]
                    || [of_worker(0), of_worker(1)] == [[0; 3], [2, 1, 1]],
                "one source, one worker: {counts:?}"
            );
            seen.iter_mut()
                .zip(&counts)
                .for_each(|(seen, count)| *seen += count);
        }
        // By chance, all 64 come to one worker once in 2^63 runs.
        assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    }
}
