//! `trapezoid load`: an open-loop load generator.

mod output;
mod peer;
mod told;

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use sip_core::transport::Transport;
use sip_load::plan::{Callee, Connections, Kind, Plan, TlsPlan, Users};
use sip_load::{LoadError, Offered, Progress, Ramp};

use output::Output;
use peer::Peer;

use super::{Failure, duration, say};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// INVITE, 180, 200, ACK, BYE, 200.
    Call,
    /// INVITE that is answered with a redirection.
    Redirect,
    /// REGISTER of one user after the other.
    Register,
    /// OPTIONS to the server.
    Options,
    /// MESSAGE from one user to the next.
    Message,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Wire {
    Udp,
    Tcp,
    Tls,
    Ws,
    Wss,
}

impl From<Wire> for Transport {
    fn from(wire: Wire) -> Self {
        match wire {
            Wire::Udp => Self::Udp,
            Wire::Tcp => Self::Tcp,
            Wire::Tls => Self::Tls,
            Wire::Ws => Self::Ws,
            Wire::Wss => Self::Wss,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Auth {
    /// A challenge is a failure.
    None,
    /// Credentials follow a challenge, with the user's password.
    Digest,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What is offered.
    what: What,
    /// The server.
    #[arg(long, value_name = "HOST:PORT", value_parser = Peer::parse)]
    target: Peer,
    /// Address of the callers, and their port over UDP or on a single connection; default: the system's choice.
    #[arg(long, value_name = "ADDRESS:PORT")]
    local: Option<SocketAddr>,
    /// From the callers to the server.
    #[arg(long, default_value = "udp")]
    transport: Wire,
    /// Calls a second, whatever the server does.
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: f64,
    /// Add so many calls a second after each such time, as in 100/5s.
    #[arg(long, value_name = "N/TIME", value_parser = ramp, allow_hyphen_values = true)]
    ramp: Option<Ramp>,
    /// How long calls count.
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10s")]
    duration: Duration,
    /// How long calls are offered before they count.
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0s")]
    warmup: Duration,
    /// How long calls may go on after that; default: until each has ended or timed out.
    #[arg(long, value_name = "TIME", value_parser = time)]
    drain: Option<Duration>,
    /// Times between calls are random (exponential) instead of equal.
    #[arg(long)]
    poisson: bool,
    /// Of the random times.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// What callers make of challenges.
    #[arg(long, default_value = "none")]
    auth: Auth,
    /// Use a nonce again, counting, instead of waiting for a challenge each time.
    #[arg(long)]
    reuse_nonce: bool,
    /// Users as PREFIX:COUNT (user:10000 are user00000 to user09999), or a file with a name and a password on each line.
    #[arg(long, value_name = "FILE|PREFIX:COUNT", default_value = "user:10000", value_parser = Source::parse)]
    users: Source,
    /// Password of each user of PREFIX:COUNT. An n in braces becomes the digits of the user's name, {user} the whole name.
    ///
    /// With the default, user00042 has the password pass00042. With secret-{user} it has secret-user00042. Without
    /// either, all users have the same password. A FILE has passwords of its own.
    #[arg(long, value_name = "TEXT", default_value = "pass{n}")]
    password: String,
    /// Domain of all users; default: the target's host.
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,
    /// Connections that the callers share, or one for each call.
    #[arg(long, value_name = "N|per-call", default_value = "1", value_parser = connections)]
    connections: Connections,
    /// Accept calls there, too.
    #[arg(long, value_name = "ADDRESS:PORT")]
    uas: Option<SocketAddr>,
    /// The transport of --uas (udp, tcp or tls); default: that of the callers, udp for WebSockets.
    #[arg(long, value_name = "TRANSPORT")]
    uas_transport: Option<Wire>,
    /// How long --uas rings before it accepts.
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0s")]
    ring: Duration,
    /// How long a callee may ring before callers cancel.
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "60s")]
    answer_within: Duration,
    /// From ACK to BYE.
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0s")]
    hold: Duration,
    /// Send ACK and BYE to --target, too, although it does not ask for that (Record-Route).
    #[arg(long)]
    outbound: bool,
    /// The address that `register` registers; default: that of --uas, or else the caller's own.
    #[arg(long, value_name = "HOST:PORT", value_parser = Peer::parse)]
    contact: Option<Peer>,
    /// Seconds that `register` asks for.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    expires: u32,
    /// Bytes of text in each `message`.
    #[arg(long, value_name = "BYTES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=65_000))]
    text: u32,
    /// Timer T1; calls without any response are given up after 64 times as long.
    #[arg(long, value_name = "TIME", value_parser = timer_t1, default_value = "500ms")]
    t1: Duration,
    /// Calls at a time; more fail here.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    max_calls: u32,
    /// Authorities of the server's certificate, PEM; default: those of the system.
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// The name that the server's certificate must have; default: the domain.
    #[arg(long, value_name = "NAME")]
    tls_name: Option<String>,
    /// Our certificate, PEM: shown to servers that ask, and by --uas.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its key, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Resume TLS sessions.
    #[arg(long)]
    tls_resume: bool,
    /// Path of the WebSocket.
    #[arg(long, value_name = "PATH", default_value = "/")]
    path: String,
    /// Write the whole result there as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Source of the users.
#[derive(Clone, Debug)]
enum Source {
    Numbered(String, u32),
    File(PathBuf),
}

impl Source {
    fn parse(text: &str) -> Result<Self, String> {
        match text.rsplit_once(':') {
            Some((prefix, count)) if count.bytes().all(|c| c.is_ascii_digit()) && !count.is_empty() => {
                let count: u32 = count.parse().map_err(|_| format!("{count} users are too many"))?;
                if count == 0 {
                    return Err("at least one user is needed".to_owned());
                }
                Ok(Self::Numbered(prefix.to_owned(), count))
            }
            _ => Ok(Self::File(PathBuf::from(text))),
        }
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|rate| (0.001..=10_000_000.0).contains(rate));
    number.ok_or_else(|| "write a number of calls a second, 0.001 to 10000000".to_owned())
}

fn time(text: &str) -> Result<Duration, String> {
    const MOST: Duration = Duration::from_secs(7 * 24 * 3600);
    let parsed = duration::parse(text).filter(|time| *time <= MOST);
    parsed.ok_or_else(|| "write a time as 500ms or 30s, a week at most".to_owned())
}

fn timer_t1(text: &str) -> Result<Duration, String> {
    let (least, most) = (Duration::from_millis(1), Duration::from_secs(10));
    let parsed = duration::parse(text).filter(|t1| (least..=most).contains(t1));
    parsed.ok_or_else(|| "write a time as 500ms, 1ms to 10s".to_owned())
}

fn ramp(text: &str) -> Result<Ramp, String> {
    let parsed = text.split_once('/').and_then(|(step, every)| {
        let step: f64 = step.parse().ok().filter(|step: &f64| step.is_finite())?;
        let every = duration::parse(every).filter(|every| *every >= Duration::from_millis(1))?;
        Some(Ramp { step, every })
    });
    parsed.ok_or_else(|| "write calls a second and a time, as in 100/5s".to_owned())
}

fn connections(text: &str) -> Result<Connections, String> {
    match text {
        "per-call" => Ok(Connections::PerCall),
        number => match number.parse() {
            Ok(count @ 1..=1_000_000) => Ok(Connections::Shared(count)),
            _ => Err("write a number from 1 to 1000000, or per-call".to_owned()),
        },
    }
}

/// Offers the load, and prints the result.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let plan = plan(args)?;
    // If this fails, the limit stays as it was; connections then report errors.
    let _ = sip_net::bind::raise_open_files();
    let stop = Arc::new(AtomicBool::new(false));
    stop_on_signal(&stop)?;
    let output = args.json.as_deref().map(Output::open).transpose()?;
    let terminal = std::io::stderr().is_terminal();
    let mut last = 0;
    let report = sip_load::run(plan, &stop, |progress| {
        let second = progress.seconds as u64;
        if terminal && second > last {
            last = second;
            told_so_far(progress);
        }
    });
    if terminal {
        say("");
    }
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            if let Some(output) = output {
                output.discard();
            }
            return Err(failure(&error));
        }
    };
    say(&told::summary(&report));
    let Some(output) = output else {
        return Ok(());
    };
    let json = serde_json::to_string(&report).map_err(|error| Failure::failed("cannot write JSON", error))?;
    output.write(&json)
}

fn failure(error: &LoadError) -> Failure {
    match error {
        LoadError::Plan(text) => Failure::Usage(text.clone()),
        LoadError::Socket { .. } | LoadError::Tls(_) => Failure::Failed(error.to_string()),
    }
}

fn told_so_far(progress: Progress) {
    let Progress {
        seconds,
        begun,
        succeeded,
        failed,
        under_way,
    } = progress;
    let _ = write!(
        std::io::stderr().lock(),
        "\r{seconds:>6.0} s  {begun} begun, {succeeded} succeeded, {failed} failed, {under_way} under way   "
    );
}

/// The first signal ends the load and prints its report; the second ends the process.
fn stop_on_signal(stop: &Arc<AtomicBool>) -> Result<(), Failure> {
    let cannot = |error| Failure::failed("cannot listen for signals", error);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(cannot)?;
    let stop = Arc::clone(stop);
    let waiting = move || {
        runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let (Ok(mut terminate), Ok(mut interrupt)) =
                (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
            else {
                return;
            };
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                if stop.swap(true, Ordering::Relaxed) {
                    std::process::exit(1);
                }
            }
        });
    };
    let named = std::thread::Builder::new().name("signals".to_owned());
    named.spawn(waiting).map(|_| ()).map_err(cannot)
}

fn plan(args: &Args) -> Result<Plan, Failure> {
    let transport = Transport::from(args.transport);
    let callee = match args.uas {
        None => None,
        Some(listen) => {
            let transport = match args.uas_transport.unwrap_or(args.transport) {
                Wire::Ws | Wire::Wss if args.uas_transport.is_some() => {
                    return Err(Failure::Usage("--uas-transport: udp, tcp or tls".to_owned()));
                }
                Wire::Ws | Wire::Wss => Transport::Udp,
                wire @ (Wire::Udp | Wire::Tcp | Wire::Tls) => wire.into(),
            };
            let ring = args.ring;
            Some(Callee {
                listen,
                transport,
                ring,
            })
        }
    };
    let contact = args.contact.as_ref().map(|contact| contact.resolve("--contact"));
    let contact = contact.transpose()?;
    let mut run = [0; 4];
    getrandom::fill(&mut run).map_err(|error| Failure::failed("no randomness", error))?;
    Ok(Plan {
        kind: match args.what {
            What::Call => Kind::Call,
            What::Redirect => Kind::Redirect,
            What::Register => Kind::Register,
            What::Options => Kind::Options,
            What::Message => Kind::Message,
        },
        transport,
        target: args.target.resolve("--target")?,
        local: args.local,
        domain: args.domain.clone().unwrap_or_else(|| args.target.host()),
        // An address without its port may be that of another server, or of none.
        server: args.domain.clone().unwrap_or_else(|| args.target.host_and_port()),
        users: users(args)?,
        digest: args.auth == Auth::Digest,
        reuse_nonce: args.reuse_nonce,
        offered: Offered {
            rate: args.rate,
            ramp: args.ramp,
            poisson: args.poisson,
            seed: args.seed,
        },
        warmup: args.warmup,
        duration: args.duration,
        drain: args.drain,
        hold: args.hold,
        t1: args.t1,
        answer_within: args.answer_within,
        connections: args.connections,
        text_len: args.text as usize,
        contact,
        outbound: args.outbound,
        expires_s: args.expires,
        callee,
        max_calls: args.max_calls,
        tls: TlsPlan {
            ca: args.tls_ca.clone(),
            name: args.tls_name.clone(),
            identity: args.tls_cert.clone().zip(args.tls_key.clone()),
            resume: args.tls_resume,
        },
        path: args.path.clone(),
        run: u32::from_ne_bytes(run),
    })
}

fn users(args: &Args) -> Result<Users, Failure> {
    match &args.users {
        Source::Numbered(prefix, count) => Ok(Users::Numbered {
            prefix: prefix.clone(),
            count: *count,
            password: args.password.clone(),
        }),
        Source::File(path) => {
            let cannot = |error| Failure::Usage(format!("--users: cannot read {}: {error}", path.display()));
            let text = std::fs::read_to_string(path).map_err(cannot)?;
            listed(&text).map_err(|problem| Failure::Usage(format!("--users: {}: {problem}", path.display())))
        }
    }
}

/// Users from lines with a name and a password; empty lines and those that begin with `#` are left out.
fn listed(text: &str) -> Result<Users, String> {
    let lines = text.lines().zip(1..).map(|(line, number)| (line.trim(), number));
    let users = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    let users: Result<Vec<_>, String> = users
        .map(|(line, number)| match line.split_once(char::is_whitespace) {
            Some((name, password)) => Ok((name.to_owned(), password.trim().to_owned())),
            None => Err(format!(
                "line {number} has no password: write a name, a space and a password"
            )),
        })
        .collect();
    match users? {
        none if none.is_empty() => Err("it names no user".to_owned()),
        users => Ok(Users::Listed(users)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_command_line() {
        assert!(matches!(Source::parse("user:10000"), Ok(Source::Numbered(p, 10_000)) if p == "user"));
        assert!(matches!(Source::parse("users.txt"), Ok(Source::File(_))));
        assert!(matches!(Source::parse("a:b"), Ok(Source::File(_))));
        assert!(Source::parse("user:0").is_err() && Source::parse("user:99999999999").is_err());
        let ramp_100 = Ramp {
            step: 100.0,
            every: Duration::from_secs(5),
        };
        assert_eq!(ramp("100/5s"), Ok(ramp_100));
        for wrong in ["100", "100/5", "x/5s", "100/0s", "inf/5s"] {
            assert!(ramp(wrong).is_err(), "{wrong}");
        }
        assert_eq!(connections("per-call"), Ok(Connections::PerCall));
        assert_eq!(connections("7"), Ok(Connections::Shared(7)));
        assert!(connections("0").is_err() && connections("many").is_err());
        assert!(rate("0").is_err() && rate("NaN").is_err() && rate("0.5") == Ok(0.5));
    }

    /// Clap takes an n in braces in a help text for a line end, so only the default shows it.
    #[test]
    fn the_help_has_an_example_of_a_password() {
        let mut command = <Args as clap::Args>::augment_args(clap::Command::new("load"));
        let help = command.render_long_help().to_string();
        let password = help
            .split("--password")
            .nth(1)
            .and_then(|rest| rest.split("\n      --").next());
        let password = password.expect("the option");
        for part in [
            "user00042 has the password pass00042.",
            "has secret-user00042.",
            "[default: pass{n}]",
        ] {
            assert!(password.contains(part), "{part}: {password}");
        }
    }

    #[test]
    fn a_file_of_users() {
        let users = listed("# ours\nalice secret\n\n bob\t two words \n");
        let expected = vec![
            ("alice".to_owned(), "secret".to_owned()),
            ("bob".to_owned(), "two words".to_owned()),
        ];
        assert_eq!(users, Ok(Users::Listed(expected)));
        assert!(listed("alice\n").is_err_and(|e| e.starts_with("line 1 has no password")));
        assert_eq!(listed("\n# none\n"), Err("it names no user".to_owned()));
    }
}
