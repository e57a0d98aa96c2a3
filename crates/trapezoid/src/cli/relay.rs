//! `trapezoid relay`: a TCP relay with a delay, for tests and experiments.

use std::fmt::Write as _;
use std::io::{self, BufRead, Read};
use std::net::SocketAddr;
use std::time::Duration;

use delay_relay::{Control, Counters, Flow, Options, Refusal, Relay};
use tokio::signal::unix::{SignalKind, signal};

use super::{Failure, duration, print, say};

/// Longest line of standard input, bytes.
const MAX_LINE: u64 = 1024;

/// Open files besides the two of each connection.
const OTHER_FILES: u64 = 32;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where clients connect; with port 0 the system chooses one, which is printed when it is ready.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Where connections go.
    #[arg(long, value_name = "ADDRESS:PORT")]
    target: SocketAddr,
    /// Delay of each direction, with its unit (us, ms, s); 0 passes everything on at once.
    #[arg(long, value_name = "TIME", value_parser = delay)]
    delay: Option<Duration>,
    /// Delay of what clients say; default: --delay.
    #[arg(long, value_name = "TIME", value_parser = delay)]
    delay_to_target: Option<Duration>,
    /// Delay of what the target says; default: --delay.
    #[arg(long, value_name = "TIME", value_parser = delay)]
    delay_to_client: Option<Duration>,
    /// Stop sleeping so long before something is due, at the cost of CPU: a machine that sleeps wakes late (150us).
    #[arg(long, value_name = "TIME", value_parser = delay, default_value = "0")]
    spin: Duration,
    /// Listen on an address that others can reach, too. The relay asks for no credentials.
    #[arg(long)]
    any_address: bool,
    /// Print the counters at the end, as a JSON object in a line.
    #[arg(long)]
    json: bool,
}

/// Output of `help`.
const HELP: &str = "\
delay TIME [TIME]            of both directions, or to the target and to the client (15ms)
stall                        hold everything, accept connections
drop                         swallow what comes
resume                       end of stall and drop
close                        close all open connections in order
reset                        reset all open connections
reset-after BYTES [COUNT]    reset each of the next COUNT connections (1) after so many bytes to the client
reset-open-after BYTES       the same for those that are open
refuse [reset|closed]        refuse new connections: accepted and reset (default), or by a closed port
accept                       accept them again
target ADDRESS:PORT          where new connections go
stats                        the counters, as a JSON object in a line
help                         this";

/// Relays until a signal ends the process.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if !args.any_address && !args.listen.ip().is_loopback() {
        let text = "others can reach that address, and the relay asks for no credentials";
        let remedy = "give a loopback address, or --any-address";
        return Err(Failure::Usage(format!("{}: {text}; {remedy}", args.listen)));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(|error| Failure::failed("cannot listen for signals", error))?;
    runtime.block_on(async {
        let listen = |kind| signal(kind).map_err(|error| Failure::failed("cannot listen for signals", error));
        let mut terminate = listen(SignalKind::terminate())?;
        let mut interrupt = listen(SignalKind::interrupt())?;
        let relay = start(args)?;
        // The thread reads until its input or the process ends.
        let control = relay.control();
        std::thread::spawn(move || obey(&control, io::stdin().lock()));
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        let control = relay.control();
        drop(relay);
        if args.json {
            print(&told(&control.counters()))?;
        }
        Ok(())
    })
}

fn start(args: &Args) -> Result<Relay, Failure> {
    let both = args.delay.unwrap_or_default();
    let mut options = Options::new(args.listen, args.target);
    options.to_target = args.delay_to_target.unwrap_or(both);
    options.to_client = args.delay_to_client.unwrap_or(both);
    options.spin = args.spin;
    if let Ok(files) = sip_net::bind::raise_open_files() {
        let most = usize::try_from(files.saturating_sub(OTHER_FILES) / 2).unwrap_or(usize::MAX);
        options.connections = options.connections.min(most);
    }
    let relay = Relay::start(options).map_err(|error| {
        let text = format!("cannot relay from {}: {error}", args.listen);
        if error.kind() == io::ErrorKind::InvalidInput {
            Failure::Usage(text)
        } else {
            Failure::Failed(text)
        }
    })?;
    say(&format!("relaying {} to {}", relay.address(), args.target));
    Ok(relay)
}

/// Runs the command of each line of `input`; results go to standard error.
fn obey(control: &Control, mut input: impl BufRead) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut input).take(MAX_LINE + 1).read_until(b'\n', &mut line) {
            Ok(0) => return,
            Ok(_) if line.len() as u64 > MAX_LINE => {
                say(&format!(
                    "a line has {MAX_LINE} bytes at most; the rest of it is left out"
                ));
                if input.skip_until(b'\n').is_err() {
                    return;
                }
            }
            Ok(_) => match answer(control, &String::from_utf8_lossy(&line)) {
                Ok(text) | Err(text) if text.is_empty() => {}
                Ok(text) | Err(text) => say(&text),
            },
            Err(error) => return say(&format!("cannot read commands any more: {error}")),
        }
    }
}

/// Runs the command of one line. Returns what was done, or the error.
fn answer(control: &Control, line: &str) -> Result<String, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let done = match words.as_slice() {
        [] => return Ok(String::new()),
        ["help"] => return Ok(HELP.to_owned()),
        ["stats"] => {
            return print(&told(&control.counters()))
                .map(|()| String::new())
                .map_err(|_| "cannot write to standard output".to_owned());
        }
        ["delay", both] => {
            let both = delay(both)?;
            control.set_delay(both, both)
        }
        ["delay", to_target, to_client] => control.set_delay(delay(to_target)?, delay(to_client)?),
        ["stall"] => control.stall(),
        ["drop"] => control.drop_bytes(),
        ["resume"] => control.resume(),
        ["close"] => control.close_all(),
        ["reset"] => control.reset_all(),
        ["reset-after", bytes] => control.reset_after(number(bytes)?, 1),
        ["reset-after", bytes, count] => control.reset_after(number(bytes)?, number(count)?),
        ["reset-open-after", bytes] => control.reset_open_after(number(bytes)?),
        ["refuse"] | ["refuse", "reset"] => control.refuse(Refusal::Reset),
        ["refuse", "closed"] => control.refuse(Refusal::Closed),
        ["accept"] => control.accept(),
        ["target", address] => control.set_target(
            address
                .parse()
                .map_err(|_| format!("{address} is no address and port, as in 127.0.0.1:3306"))?,
        ),
        [first, ..] => return Err(wrong(first)),
    };
    let line = words.join(" ");
    match done {
        Ok(()) => Ok(format!("done: {line}")),
        Err(error) => Err(format!("{line}: {error}")),
    }
}

/// The right forms of a command that begins with this word.
fn wrong(first: &str) -> String {
    let forms = HELP.lines().filter(|form| {
        let word = form.split(' ').next();
        word == Some(first)
    });
    let mut text = String::new();
    for form in forms {
        let _ = write!(text, "write it as: {form}");
    }
    if text.is_empty() {
        text = format!("{first} is no command; `help` lists them");
    }
    text
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{text} is no number, or too large"))
}

/// Reads a time with its unit.
fn delay(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text} is no delay: write a number and its unit (us, ms, s), as in 15ms");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let delay = duration::parse(text).ok_or_else(wrong)?;
    if delay > delay_relay::MAX_DELAY {
        let most = delay_relay::MAX_DELAY.as_secs();
        return Err(format!("{text} is too long: {most}s at most"));
    }
    Ok(delay)
}

/// The counters as a line of JSON.
fn told(counters: &Counters) -> String {
    let flow = |flow: &Flow| {
        serde_json::json!({
            "bytes": flow.bytes,
            "chunks": flow.chunks,
            "segments": flow.segments,
            "wire_bytes": flow.wire_bytes(),
            "passed": flow.passed,
            "lost": flow.lost,
            "on_the_way": flow.on_the_way(),
            "pauses": flow.pauses,
        })
    };
    let all = serde_json::json!({
        "opened": counters.opened,
        "open": counters.open,
        "refused": counters.refused,
        "unreachable": counters.unreachable,
        "reset": counters.reset,
        "accept_failures": counters.accept_failures,
        "to_target": flow(&counters.to_target),
        "to_client": flow(&counters.to_client),
    });
    format!("{all}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_have_a_unit() {
        let us = Duration::from_micros;
        assert_eq!(delay("0"), Ok(us(0)));
        assert_eq!(delay("15ms"), Ok(us(15_000)));
        assert_eq!(delay("1.5ms"), Ok(us(1_500)));
        assert_eq!(delay("200us"), Ok(us(200)));
        assert_eq!(delay("2s"), Ok(us(2_000_000)));
        for text in ["", "15", "ms", "-1ms", "1e3ms", "1.2.3ms", "15 ms", "infs", "1m"] {
            let error = delay(text).expect_err(text);
            assert!(error.contains("as in 15ms"), "{error}");
        }
        assert_eq!(delay("3600s"), Ok(delay_relay::MAX_DELAY));
        assert_eq!(delay("3601s"), Err("3601s is too long: 3600s at most".to_owned()));
        assert!(delay("99999999999999999999999999s").is_err());
    }

    #[test]
    fn each_command_that_help_lists_is_one_and_bad_ones_are_explained() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let relay = Relay::start(Options::new(any, any)).expect("it starts");
        let control = relay.control();
        let say = |line: &str| answer(&control, line);
        for line in HELP.lines().filter(|line| !line.starts_with("stats")) {
            let form = line.split("  ").next().expect("a form");
            let form = form.replace("BYTES", "7").replace("TIME", "3ms");
            let form = form.replace("COUNT", "2").replace("ADDRESS:PORT", "127.0.0.1:9");
            // The form with its optional parts, and without them.
            let long = form.replace(['[', ']'], "").replace("reset|", "");
            let short = form.split('[').next().expect("a start");
            for line in [short, &long] {
                assert!(say(line).is_ok(), "{line}: {:?}", say(line));
            }
        }
        assert_eq!(say(" \n"), Ok(String::new()));
        assert_eq!(say("delay 1ms 2ms\n"), Ok("done: delay 1ms 2ms".to_owned()));
        assert_eq!(
            say("explode"),
            Err("explode is no command; `help` lists them".to_owned())
        );
        let error = say("refuse politely").expect_err("no such way");
        assert!(error.starts_with("write it as: refuse [reset|closed]"), "{error}");
        let error = say("delay fast").expect_err("no time");
        assert!(error.contains("as in 15ms"), "{error}");
        let error = say("target database").expect_err("no address");
        assert!(error.contains("as in 127.0.0.1:3306"), "{error}");
        let error = say("reset-after -1").expect_err("no number");
        assert_eq!(error, "-1 is no number, or too large");
        drop(relay);
        assert_eq!(say("stall"), Err("stall: the relay has ended".to_owned()));
    }

    #[test]
    fn lines_that_never_end_are_left_out() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let target = std::net::TcpListener::bind(any).expect("a port");
        let address = target.local_addr().expect("an address");
        let relay = Relay::start(Options::new(any, address)).expect("it starts");
        let input = format!("stall{}\nrefuse reset", " ".repeat(5_000));
        obey(&relay.control(), input.as_bytes());
        // The connection may be refused before this thread knows that it was connected.
        let client = std::net::TcpStream::connect(relay.address());
        let refused = client.and_then(|mut client| client.read(&mut [0]));
        assert_eq!(
            refused.expect_err("refused").kind(),
            io::ErrorKind::ConnectionReset
        );
        assert_eq!(relay.counters().refused, 1);
    }
}
