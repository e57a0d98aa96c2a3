//! How far off the delay is: round trips through a relay of 15 ms each way, beside direct ones.
//!
//! `cargo run --release -p delay-relay --example precision [ROUNDS] [CONNECTIONS]`
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measurement: prints what it found, ends where something is wrong"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use delay_relay::{Options, Relay};

const DELAY: Duration = Duration::from_millis(15);

fn serve(mut stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let mut buffer = [0; 256];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        stream.write_all(buffer.get(..count).unwrap()).unwrap();
    }
}

/// What each round trip took longer than `least`, µs, sorted.
fn measure(address: SocketAddr, rounds: usize, connections: usize, least: Duration) -> Vec<f64> {
    let ask = move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut answer = [0; 100];
        let mut over = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let asked = Instant::now();
            stream.write_all(&[1; 100]).unwrap();
            stream.read_exact(&mut answer).unwrap();
            over.push((asked.elapsed().as_secs_f64() - least.as_secs_f64()) * 1e6);
        }
        over
    };
    let clients: Vec<_> = (0..connections).map(|_| thread::spawn(ask)).collect();
    let mut all: Vec<f64> = clients.into_iter().flat_map(|c| c.join().unwrap()).collect();
    all.sort_by(f64::total_cmp);
    all
}

fn show(what: &str, over: &[f64]) {
    let at = |share: usize| over.get((over.len() - 1) * share / 100).copied().unwrap_or(0.0);
    println!(
        "{what}: least {:.0}, p50 {:.0}, p90 {:.0}, p99 {:.0}, most {:.0} µs",
        at(0),
        at(50),
        at(90),
        at(99),
        at(100)
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().unwrap());
    let rounds = arguments.next().unwrap_or(200);
    let connections = arguments.next().unwrap_or(1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            thread::spawn(move || serve(stream));
        }
    });
    let mut options = Options::new("127.0.0.1:0".parse().unwrap(), target);
    let direct = measure(target, rounds, connections, Duration::ZERO);
    show("direct, round trip", &direct);
    let relay = Relay::start(options.clone()).unwrap();
    let relayed = measure(relay.address(), rounds, connections, Duration::ZERO);
    show("relayed without delay, round trip", &relayed);
    (options.to_target, options.to_client) = (DELAY, DELAY);
    for spin in [0, 150] {
        options.spin = Duration::from_micros(spin);
        let relay = Relay::start(options.clone()).unwrap();
        let delayed = measure(relay.address(), rounds, connections, DELAY * 2);
        let what = format!("relayed with 15 ms each way, spinning {spin} µs, above 30 ms");
        show(&what, &delayed);
    }
}
