//! The relay between real sockets, and every command that it takes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use delay_relay::{Control, Counters, MAX_DELAY, MAX_SPIN, MIN_PIPE_BYTES, Options, Refusal, Relay};
use socket2::{Domain, Socket, Type};
use test_address::Place;

/// Longest that anything here may take.
const PATIENCE: Duration = Duration::from_secs(30);

thread_local! {
    static OWN: Place = Place::claim();
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Any port of the test's own address.
fn any() -> SocketAddr {
    OWN.with(Place::any)
}

#[track_caller]
fn listener() -> TcpListener {
    TcpListener::bind(any()).expect("a port")
}

/// An echo server for any number of clients, each until it ends.
fn echo() -> SocketAddr {
    let listener = listener();
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            stream.set_nodelay(true).expect("an option");
            thread::spawn(move || {
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..count]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[track_caller]
fn start(target: SocketAddr, change: impl FnOnce(&mut Options)) -> Relay {
    let mut options = Options::new(any(), target);
    change(&mut options);
    Relay::start(options).expect("it starts")
}

#[track_caller]
fn connect(relay: &Relay) -> TcpStream {
    patient(TcpStream::connect(relay.address()).expect("it accepts"))
}

#[track_caller]
fn patient(stream: TcpStream) -> TcpStream {
    stream.set_nodelay(true).expect("an option");
    stream.set_read_timeout(Some(PATIENCE)).expect("an option");
    stream.set_write_timeout(Some(PATIENCE)).expect("an option");
    stream
}

/// A relay to a target of its own, a client of it, and the target's end.
#[track_caller]
fn pair(change: impl FnOnce(&mut Options)) -> (Relay, TcpStream, TcpStream) {
    let target = listener();
    let relay = start(target.local_addr().expect("an address"), change);
    let client = connect(&relay);
    let (server, _) = target.accept().expect("a connection");
    (relay, client, patient(server))
}

#[track_caller]
fn say(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).expect("it takes bytes");
}

#[track_caller]
fn hear(stream: &mut TcpStream, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    stream.read_exact(&mut got).expect("bytes come");
    assert_eq!(got, bytes);
}

#[track_caller]
fn hear_end(stream: &mut TcpStream) {
    assert_eq!(stream.read(&mut [0; 16]).expect("an end"), 0);
}

#[track_caller]
fn hear_reset(stream: &mut TcpStream) {
    let error = stream.read(&mut [0; 16]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// A new connection is reset at once: perhaps before this thread knows that it was connected.
#[track_caller]
fn hear_refusal(relay: &Relay) {
    match TcpStream::connect(relay.address()) {
        Ok(stream) => hear_reset(&mut patient(stream)),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

/// The relay does what follows from all that has happened until now: it does that before each command.
#[track_caller]
fn catch_up(control: &Control) {
    for _ in 0..3 {
        // A command that changes nothing: no test that comes here counts on cuts to come.
        control.reset_after(0, 0).expect("done");
    }
}

/// Nothing has been passed on, although the relay has seen what happened until now.
#[track_caller]
fn hear_nothing(control: &Control, stream: &mut TcpStream) {
    catch_up(control);
    stream.set_nonblocking(true).expect("an option");
    let outcome = stream.read(&mut [0; 16]);
    assert_eq!(outcome.expect_err("nothing").kind(), ErrorKind::WouldBlock);
    stream.set_nonblocking(false).expect("an option");
}

#[track_caller]
fn wait_until(control: &Control, what: impl Fn(&Counters) -> bool) -> Counters {
    let until = Instant::now() + PATIENCE;
    loop {
        let counters = control.counters();
        if what(&counters) {
            return counters;
        }
        assert!(Instant::now() < until, "never so: {counters:?}");
        thread::sleep(ms(1));
    }
}

/// Bytes without a period that a buffer could hide.
fn noise(count: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn an_answer_takes_both_delays_and_is_counted() {
    let relay = start(echo(), |options| {
        options.to_target = ms(15);
        options.to_client = ms(10);
    });
    let mut client = connect(&relay);
    for _ in 0..10 {
        let asked = Instant::now();
        say(&mut client, b"question");
        hear(&mut client, b"question");
        assert!(asked.elapsed() >= ms(25), "{:?}", asked.elapsed());
    }
    // The last answer is counted when it has been written.
    let counters = wait_until(&relay.control(), |counters| counters.to_client.passed == 80);
    assert_eq!((counters.opened, counters.open, counters.refused), (1, 1, 0));
    for flow in [counters.to_target, counters.to_client] {
        assert_eq!((flow.bytes, flow.passed, flow.lost), (80, 80, 0));
        assert_eq!((flow.chunks, flow.segments), (10, 10));
        assert_eq!((flow.wire_bytes(), flow.on_the_way()), (80 + 660, 0));
    }
    drop(client);
    let counters = wait_until(&relay.control(), |counters| counters.open == 0);
    assert_eq!(counters.opened, 1);
}

#[test]
fn bytes_on_their_way_do_not_wait_for_each_other() {
    // All 20 questions are taken before the first answer is read; what is checked is that none arrives
    // before its time.
    let relay = start(echo(), |options| options.to_target = ms(40));
    let control = relay.control();
    let mut client = connect(&relay);
    let asked: Vec<Instant> = (0..20_u8)
        .map(|n| {
            let now = Instant::now();
            say(&mut client, &[n]);
            wait_until(&control, |counters| counters.to_target.bytes == u64::from(n) + 1);
            now
        })
        .collect();
    let passed = relay.counters().to_target.passed;
    let due = asked.iter().filter(|asked| asked.elapsed() >= ms(40)).count();
    assert!(passed <= due as u64, "{passed} passed on, {due} due");
    for (n, asked) in asked.into_iter().enumerate() {
        hear(&mut client, &[u8::try_from(n).expect("small")]);
        assert!(asked.elapsed() >= ms(40));
    }
}

#[test]
fn the_delay_changes_for_what_comes_next() {
    let relay = start(echo(), |_| {});
    let control = relay.control();
    let mut client = connect(&relay);
    say(&mut client, b"fast");
    hear(&mut client, b"fast");
    control.set_delay(ms(20), ms(30)).expect("done");
    let asked = Instant::now();
    say(&mut client, b"slow");
    hear(&mut client, b"slow");
    assert!(asked.elapsed() >= ms(50));
    let error = control.set_delay(MAX_DELAY * 2, ms(0)).expect_err("too long");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn many_connections_at_once_are_each_delayed_and_served() {
    let relay = start(echo(), |options| {
        (options.to_target, options.to_client) = (ms(15), ms(15));
        // A thread that looks early must not pass anything on early.
        options.spin = MAX_SPIN;
    });
    let mut clients: Vec<TcpStream> = (0..200).map(|_| connect(&relay)).collect();
    for round in 0..3 {
        let asked = Instant::now();
        for (n, client) in clients.iter_mut().enumerate() {
            say(client, format!("{round} of {n}").as_bytes());
        }
        for (n, client) in clients.iter_mut().enumerate() {
            hear(client, format!("{round} of {n}").as_bytes());
        }
        assert!(asked.elapsed() >= ms(30));
    }
    assert_eq!(relay.counters().open, 200);
    drop(clients);
    let counters = wait_until(&relay.control(), |counters| counters.open == 0);
    assert_eq!((counters.opened, counters.unreachable), (200, 0));
    assert_eq!(counters.to_target.bytes, counters.to_client.bytes);
}

#[test]
fn fifty_megabytes_pass_unchanged_in_both_directions() {
    let (relay, client, server) = pair(|options| {
        (options.to_target, options.to_client) = (ms(3), ms(5));
        // So small that it is full again and again.
        options.pipe_bytes = 1 << 20;
    });
    let forth = noise(50_000_000, 1);
    let back = noise(50_000_000, 77);
    let send = |stream: &TcpStream, bytes: &[u8]| {
        (&*stream).write_all(bytes).expect("it takes all");
        stream.shutdown(Shutdown::Write).expect("an end");
    };
    let receive = |stream: &TcpStream| {
        let mut got = Vec::new();
        (&*stream).read_to_end(&mut got).expect("it ends");
        got
    };
    thread::scope(|scope| {
        scope.spawn(|| send(&client, &forth));
        scope.spawn(|| send(&server, &back));
        let at_server = scope.spawn(|| receive(&server));
        assert!(receive(&client) == back, "the answer has changed");
        assert!(
            at_server.join().expect("no panic") == forth,
            "the question has changed"
        );
    });
    let counters = wait_until(&relay.control(), |counters| counters.open == 0);
    for flow in [counters.to_target, counters.to_client] {
        assert_eq!((flow.bytes, flow.passed, flow.lost), (50_000_000, 50_000_000, 0));
        assert!(flow.segments >= 50_000_000 / 1_448);
    }
}

#[test]
fn a_slow_reader_holds_the_sender_back() {
    const BOUND: usize = 256 * 1024;
    let (relay, client, mut server) = pair(|options| options.pipe_bytes = BOUND);
    client.set_nonblocking(true).expect("an option");
    let block = noise(64 * 1024, 5);
    // The client writes until nothing is taken any more: kernel buffers and the relay are full. Then no byte
    // moves, whatever the relay does.
    let control = relay.control();
    let mut sent = 0;
    let mut before = relay.counters().to_target;
    let until = Instant::now() + PATIENCE;
    let flow = loop {
        let sent_before = sent;
        let full = loop {
            match (&client).write(&block[sent % block.len()..]) {
                Ok(count) => sent += count,
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        catch_up(&control);
        let flow = relay.counters().to_target;
        if (sent, flow) == (sent_before, before) && flow.pauses > 0 {
            break flow;
        }
        assert!(Instant::now() < until, "never full: {flow:?}");
        before = flow;
    };
    let held = usize::try_from(flow.on_the_way()).expect("small");
    assert!(held > 0 && held <= BOUND, "{flow:?}");
    client.shutdown(Shutdown::Write).expect("an end");
    let mut got = Vec::new();
    server.read_to_end(&mut got).expect("it ends");
    assert_eq!(got.len(), sent);
    let unchanged = got
        .chunks(block.len())
        .all(|piece| piece == &block[..piece.len()]);
    assert!(unchanged, "every byte arrived where it belongs");
}

#[test]
fn a_stall_holds_everything_and_loses_nothing() {
    let target = listener();
    let relay = start(target.local_addr().expect("an address"), |_| {});
    let control = relay.control();
    let mut client = connect(&relay);
    let mut server = patient(target.accept().expect("a connection").0);
    say(&mut client, b"before");
    hear(&mut server, b"before");
    control.stall().expect("done");
    say(&mut client, b"while ");
    say(&mut server, b"answer");
    // New ones are accepted and hear nothing either.
    let mut second = connect(&relay);
    say(&mut second, b"second");
    let mut server_of_second = patient(target.accept().expect("a connection").0);
    hear_nothing(&control, &mut server);
    hear_nothing(&control, &mut client);
    hear_nothing(&control, &mut server_of_second);
    assert_eq!(relay.counters().to_target.bytes, 6);
    say(&mut client, b"stalled");
    client.shutdown(Shutdown::Write).expect("an end");
    hear_nothing(&control, &mut server);
    control.resume().expect("done");
    hear(&mut server, b"while stalled");
    hear_end(&mut server);
    hear(&mut client, b"answer");
    hear(&mut server_of_second, b"second");
}

#[test]
fn what_is_on_its_way_waits_out_a_stall() {
    let (relay, mut client, mut server) = pair(|options| options.to_target = ms(40));
    let control = relay.control();
    let begun = Instant::now();
    for already in 1.. {
        say(&mut client, b"x");
        control.stall().expect("done");
        if relay.counters().to_target.passed < already {
            break;
        }
        // The relay came to the stall when the byte was due, and passed it on before: another one.
        assert!(
            begun.elapsed() < PATIENCE,
            "each byte is passed on before the stall"
        );
        hear(&mut server, b"x");
        control.resume().expect("done");
    }
    // It was taken before that, and is due.
    thread::sleep(ms(40));
    hear_nothing(&control, &mut server);
    control.resume().expect("done");
    hear(&mut server, b"x");
}

#[test]
fn swallowed_bytes_never_arrive() {
    let (relay, mut client, mut server) = pair(|options| options.to_client = ms(30));
    let control = relay.control();
    say(&mut server, b"on its way");
    control.drop_bytes().expect("done");
    say(&mut client, b"into the hole");
    say(&mut server, b"this too");
    hear(&mut client, b"on its way");
    let counters = wait_until(&control, |counters| {
        (counters.to_target.lost, counters.to_client.lost) == (13, 8)
    });
    hear_nothing(&control, &mut server);
    hear_nothing(&control, &mut client);
    assert_eq!((counters.to_target.bytes, counters.to_client.bytes), (13, 18));
    control.resume().expect("done");
    say(&mut client, b"again");
    hear(&mut server, b"again");
}

#[test]
fn an_end_in_the_hole_arrives_when_it_resumes() {
    let (relay, client, mut server) = pair(|_| {});
    let control = relay.control();
    control.drop_bytes().expect("done");
    drop(client);
    hear_nothing(&control, &mut server);
    control.resume().expect("done");
    hear_end(&mut server);
}

#[test]
fn half_of_a_connection_ends_after_its_delay() {
    let (relay, mut client, mut server) = pair(|options| options.to_target = ms(30));
    let ended = Instant::now();
    say(&mut client, b"last");
    client.shutdown(Shutdown::Write).expect("an end");
    hear(&mut server, b"last");
    hear_end(&mut server);
    assert!(ended.elapsed() >= ms(30));
    // The other half goes on.
    say(&mut server, b"answer");
    hear(&mut client, b"answer");
    assert_eq!(relay.counters().open, 1);
    drop(server);
    hear_end(&mut client);
    wait_until(&relay.control(), |counters| counters.open == 0);
}

#[test]
fn a_reset_is_passed_on_behind_what_came_before() {
    let (relay, mut client, mut server) = pair(|options| options.to_client = ms(30));
    let asked = Instant::now();
    say(&mut server, b"last words");
    wait_until(&relay.control(), |counters| counters.to_client.bytes == 10);
    // Closed with something unread, a socket resets.
    say(&mut client, b"unread");
    wait_until(&relay.control(), |counters| counters.to_target.passed == 6);
    assert_eq!(server.peek(&mut [0]).expect("it comes"), 1);
    drop(server);
    hear(&mut client, b"last words");
    hear_reset(&mut client);
    assert!(asked.elapsed() >= ms(30));
    wait_until(&relay.control(), |counters| counters.open == 0);
}

#[test]
fn all_connections_are_closed_in_order() {
    let (relay, mut client, mut server) = pair(|options| options.to_client = ms(30));
    let control = relay.control();
    say(&mut server, b"on its way");
    wait_until(&control, |counters| counters.to_client.bytes == 10);
    control.close_all().expect("done");
    // What is said after that goes nowhere, and makes no reset of the end.
    say(&mut client, b"too late");
    hear(&mut client, b"on its way");
    hear_end(&mut client);
    hear_end(&mut server);
    wait_until(&control, |counters| counters.to_target.lost == 8);
    assert_eq!(relay.counters().open, 1);
    drop((client, server));
    wait_until(&control, |counters| counters.open == 0);
    assert_eq!(relay.counters().reset, 0);
}

#[test]
fn a_stalled_connection_can_be_closed() {
    let (relay, mut client, mut server) = pair(|_| {});
    let control = relay.control();
    control.stall().expect("done");
    say(&mut server, b"held");
    control.close_all().expect("done");
    hear_end(&mut client);
    hear_end(&mut server);
}

#[test]
fn all_connections_are_reset() {
    let (relay, mut client, mut server) = pair(|options| options.to_client = MAX_DELAY);
    let control = relay.control();
    say(&mut server, b"on its way");
    control.reset_all().expect("done");
    hear_reset(&mut client);
    hear_reset(&mut server);
    let counters = relay.counters();
    assert_eq!((counters.open, counters.reset), (0, 1));
    assert_eq!((counters.to_client.passed, counters.to_client.lost), (0, 10));
}

#[test]
fn the_next_connections_are_cut_in_the_middle_of_an_answer() {
    let relay = start(echo(), |options| options.to_client = ms(5));
    let control = relay.control();
    let mut before = connect(&relay);
    say(&mut before, b"not me");
    hear(&mut before, b"not me");
    control.reset_after(1_000, 2).expect("done");
    for _ in 0..2 {
        let mut client = connect(&relay);
        let bytes = noise(3_000, 9);
        say(&mut client, &bytes[..600]);
        hear(&mut client, &bytes[..600]);
        say(&mut client, &bytes[600..]);
        hear(&mut client, &bytes[600..1_000]);
        hear_reset(&mut client);
    }
    for client in [&mut before, &mut connect(&relay)] {
        let bytes = noise(3_000, 9);
        say(client, &bytes);
        hear(client, &bytes);
    }
    let counters = wait_until(&control, |counters| counters.open == 1);
    assert_eq!(counters.reset, 2);
}

#[test]
fn open_connections_are_cut_too_even_before_the_first_byte() {
    let relay = start(echo(), |_| {});
    let control = relay.control();
    let mut client = connect(&relay);
    say(&mut client, b"whole");
    hear(&mut client, b"whole");
    control.reset_open_after(3).expect("done");
    say(&mut client, b"broken");
    hear(&mut client, b"bro");
    hear_reset(&mut client);
    let mut client = connect(&relay);
    say(&mut client, b"whole");
    hear(&mut client, b"whole");
    control.reset_open_after(0).expect("done");
    say(&mut client, b"nothing");
    hear_reset(&mut client);
}

#[test]
fn new_connections_are_refused_by_reset_and_accepted_again() {
    let relay = start(echo(), |_| {});
    let control = relay.control();
    let mut open = connect(&relay);
    say(&mut open, b"x");
    hear(&mut open, b"x");
    control.refuse(Refusal::Reset).expect("done");
    hear_refusal(&relay);
    say(&mut open, b"still");
    hear(&mut open, b"still");
    control.accept().expect("done");
    let mut client = connect(&relay);
    say(&mut client, b"y");
    hear(&mut client, b"y");
    let counters = relay.counters();
    assert_eq!((counters.opened, counters.refused), (2, 1));
}

#[test]
fn a_closed_port_refuses_and_opens_again() {
    let relay = start(echo(), |_| {});
    let control = relay.control();
    let mut open = connect(&relay);
    for _ in 0..3 {
        control.refuse(Refusal::Closed).expect("done");
        control.refuse(Refusal::Closed).expect("twice is once");
        let error = TcpStream::connect(relay.address()).expect_err("closed");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        // The port stays the relay's.
        assert!(TcpListener::bind(relay.address()).is_err());
        say(&mut open, b"still");
        hear(&mut open, b"still");
        control.accept().expect("done");
        let mut client = connect(&relay);
        say(&mut client, b"y");
        hear(&mut client, b"y");
    }
    control.refuse(Refusal::Closed).expect("done");
    control.refuse(Refusal::Reset).expect("done");
    hear_refusal(&relay);
}

#[test]
fn a_target_that_refuses_resets_the_client() {
    // It holds the port, and does not listen.
    let held = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    held.bind(&any().into()).expect("a port");
    let nobody = held.local_addr().expect("an address").as_socket();
    let relay = start(nobody.expect("of the internet"), |_| {});
    hear_refusal(&relay);
    wait_until(&relay.control(), |counters| {
        (counters.unreachable, counters.open, counters.opened) == (1, 0, 1)
    });
    // Another target for those that come next.
    relay.control().set_target(echo()).expect("done");
    let mut client = connect(&relay);
    say(&mut client, b"found");
    hear(&mut client, b"found");
}

#[test]
fn more_connections_than_allowed_are_reset() {
    let relay = start(echo(), |options| options.connections = 2);
    let mut clients = [connect(&relay), connect(&relay)];
    for client in &mut clients {
        say(client, b"x");
        hear(client, b"x");
    }
    hear_refusal(&relay);
    assert_eq!(relay.counters().refused, 1);
    drop(clients);
    wait_until(&relay.control(), |counters| counters.open == 0);
    let mut client = connect(&relay);
    say(&mut client, b"y");
    hear(&mut client, b"y");
}

#[test]
fn a_dropped_relay_closes_everything() {
    let (relay, mut client, mut server) = pair(|_| {});
    let (control, address) = (relay.control(), relay.address());
    drop(relay);
    hear_end(&mut client);
    hear_end(&mut server);
    assert_eq!(control.counters().open, 0);
    let error = control.stall().expect_err("it has ended");
    assert_eq!(error.kind(), ErrorKind::NotConnected);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn wrong_options_are_refused() {
    let kind = |change: fn(&mut Options)| {
        let mut options = Options::new(any(), any());
        change(&mut options);
        Relay::start(options).map(drop).expect_err("refused").kind()
    };
    let taken = listener();
    assert_eq!(
        kind(|options| options.to_client = MAX_DELAY * 2),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        kind(|options| options.pipe_bytes = MIN_PIPE_BYTES - 1),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        kind(|options| options.spin = MAX_SPIN * 2),
        ErrorKind::InvalidInput
    );
    let options = Options::new(taken.local_addr().expect("an address"), any());
    let error = Relay::start(options).expect_err("taken");
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
}
