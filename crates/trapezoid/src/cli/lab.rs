//! `trapezoid lab`: the experiments of the papers, one command each.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use lab::experiments::Scale;
use lab::failure::{Failure as LabFailure, Stop};
use lab::floor::{Floor, Options as FloorOptions};
use lab::process::{Trampoline, guard};
use tokio::signal::unix::{SignalKind, signal};

use super::{Failure, say};

/// Run experiments on this machine: servers, database, relays and load are started, pinned, measured and ended, all on
/// loopback. It needs two CPUs, and takes both.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    again: Option<Again>,
    /// Which experiment.
    #[arg(required = true)]
    name: Option<Name>,
    /// Check shapes only, within a minute each; exit code 1 when one is lost.
    #[arg(long)]
    quick: bool,
    /// Where results.json, report.html and logs go; each experiment of `all` in a directory of its own there.
    #[arg(long, value_name = "DIR", default_value = "lab", value_hint = clap::ValueHint::DirPath)]
    out: PathBuf,
    /// Go on with an experiment that ended early, with the same options: DIR is its --out. Runs and steps that its
    /// results.json has are not made again.
    #[arg(long, value_name = "DIR", conflicts_with = "out", value_hint = clap::ValueHint::DirPath)]
    resume: Option<PathBuf>,
    /// Only cases or settings with one of these in their names, such as "stateless" or "adaptive 8".
    #[arg(long, value_name = "WORD", value_delimiter = ',')]
    only: Vec<String>,
    /// Seconds of each run that is not a look for a peak.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<f64>,
    /// Repetitions of peaks and of runs at equal rates; rounds of `peers` and of `workers`.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: Option<u32>,
    /// Round trip to the database of `batching`, milliseconds.
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    rtt: Option<f64>,
    /// What the random times of all loads follow from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Subcommand)]
enum Again {
    /// Write report.html again from the results.json beside it.
    Report {
        /// The directory of both.
        directory: PathBuf,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    /// What each way of handling a call carries and costs: state, authentication, transport; registration, redirection.
    Transport,
    /// Completed calls when more is offered than is carried, to ten times the peak.
    Overload,
    /// Credentials in a database 30 ms away: single look-ups, batches, both, adaptive.
    Batching,
    /// What a call and a REGISTER cost Kamailio, us and a bare relay, in turn.
    Peers,
    /// What connections cost: bytes of idle ones, work for each message, attackers, handshakes, a restart.
    Connections,
    /// Bytes of transactions that come and go, of calls that ring, of registered contacts.
    Memory,
    /// What a second worker brings, and how the calls of one source port spread over both.
    Workers,
    /// What the split of CPU time says, whether its parts add up, and what it costs.
    Split,
    /// What keep-alive pings to a million contacts behind NATs cost, answered or not, by OPTIONS and by empty lines.
    Pings,
    /// All of them.
    All,
}

/// What the lab starts its children by; for the lab alone.
#[derive(Debug, clap::Args)]
pub(crate) struct ChildArgs {
    #[arg(long)]
    parent: u32,
    #[arg(long = "cpu")]
    cpus: Vec<usize>,
    #[arg(long = "group")]
    groups: Vec<PathBuf>,
    #[arg(last = true, required = true)]
    words: Vec<OsString>,
}

/// Clients of `connections` and phones of `pings`; for the lab alone.
#[derive(Debug, clap::Args)]
pub(crate) struct CrowdArgs {
    /// A mode, then its options: `help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// A relay of datagrams that reads no message: what a server would cost if SIP cost nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct FloorArgs {
    /// Where datagrams come in.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Where they go; what it says goes back. Without it, each request goes back as its own 200.
    #[arg(long, value_name = "ADDRESS:PORT")]
    target: Option<SocketAddr>,
    /// Where that goes back to; without it, to the other source that sent last.
    #[arg(long, value_name = "ADDRESS:PORT", requires = "target")]
    caller: Option<SocketAddr>,
    /// Listen on an address that others can reach, too. The relay asks for no credentials.
    #[arg(long)]
    any_address: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text, 1.0, 3_600.0)
}

fn milliseconds(text: &str) -> Result<f64, String> {
    number(text, 0.0, 10_000.0)
}

fn number(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let value = text
        .parse::<f64>()
        .ok()
        .filter(|value| (least..=most).contains(value));
    value.ok_or_else(|| format!("write a number from {least} to {most}"))
}

/// Runs experiments.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(Again::Report { directory }) = &args.again {
        return lab::rewrite(directory).map_err(failure);
    }
    let names = match args.name {
        Some(Name::Transport) => vec![lab::Name::Transport],
        Some(Name::Overload) => vec![lab::Name::Overload],
        Some(Name::Batching) => vec![lab::Name::Batching],
        Some(Name::Peers) => vec![lab::Name::Peers],
        Some(Name::Connections) => vec![lab::Name::Connections],
        Some(Name::Memory) => vec![lab::Name::Memory],
        Some(Name::Workers) => vec![lab::Name::Workers],
        Some(Name::Split) => vec![lab::Name::Split],
        Some(Name::Pings) => vec![lab::Name::Pings],
        Some(Name::All) => lab::Name::ALL.to_vec(),
        None => return Err(Failure::Usage("name an experiment".to_owned())),
    };
    let program =
        std::env::current_exe().map_err(|error| Failure::failed("cannot find this program", error))?;
    let options = lab::Options {
        scale: scale(args),
        out: args.resume.as_ref().unwrap_or(&args.out).clone(),
        resume: args.resume.is_some(),
        program,
        version: env!("CARGO_PKG_VERSION"),
        commit: option_env!("TRAPEZOID_COMMIT"),
        command_line: std::env::args().collect(),
        seed: args.seed,
        stop: stop_on_signals()?,
    };
    lab::run(&names, &options).map_err(failure)
}

fn scale(args: &Args) -> Scale {
    let mut scale = if args.quick { Scale::quick() } else { Scale::full() };
    scale.run_s = args.seconds.unwrap_or(scale.run_s);
    scale.repeats = args.repeats.unwrap_or(scale.repeats);
    scale.rounds = args.repeats.unwrap_or(scale.rounds);
    scale.worker_rounds = args.repeats.unwrap_or(scale.worker_rounds);
    scale.rtt_ms = args.rtt.unwrap_or(scale.rtt_ms);
    scale.only.clone_from(&args.only);
    scale
}

fn failure(error: LabFailure) -> Failure {
    match error {
        LabFailure::Usage(text) => Failure::Usage(text),
        other @ (LabFailure::Interrupted | LabFailure::Failed(_) | LabFailure::Shape(_)) => {
            Failure::Failed(other.to_string())
        }
    }
}

/// A wish to end that SIGINT and SIGTERM utter.
fn stop_on_signals() -> Result<Stop, Failure> {
    let failed = |error: io::Error| Failure::failed("cannot listen for signals", error);
    let stop = Stop::default();
    let asked = stop.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(failed)?;
    let signals = {
        let _inside = runtime.enter();
        [SignalKind::terminate(), SignalKind::interrupt()].map(signal)
    };
    let [terminate, interrupt] = signals;
    let (mut terminate, mut interrupt) = (terminate.map_err(failed)?, interrupt.map_err(failed)?);
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        asked.ask();
        // A second order has to wait: the runtime keeps the signals.
        loop {
            std::thread::park();
        }
    });
    Ok(stop)
}

/// Becomes a child's program.
pub(crate) fn child(args: &ChildArgs) -> Result<(), Failure> {
    let trampoline = Trampoline {
        parent: args.parent,
        cpus: args.cpus.clone(),
        groups: args.groups.clone(),
        words: args.words.clone(),
    };
    let program = args.words.first().map(|word| word.to_string_lossy().into_owned());
    Err(Failure::failed(
        &format!("cannot run {}", program.unwrap_or_default()),
        trampoline.jump(),
    ))
}

/// Is clients, until they have done what they are to do or the input ends.
pub(crate) fn crowd(args: &CrowdArgs) -> Result<(), Failure> {
    lab::crowd::run(&args.words).map_err(|error| Failure::Failed(format!("crowd: {error}")))
}

/// Kills the lab's children when it is gone.
pub(crate) fn watch() -> Result<(), Failure> {
    // A terminal that closes must not end it before its work is done.
    let _stop = stop_on_signals()?;
    guard(io::stdin().lock()).map_err(|error| Failure::failed("cannot read orders", error))
}

/// Relays until a signal ends it.
pub(crate) fn floor(args: &FloorArgs) -> Result<(), Failure> {
    if !args.any_address && !args.listen.ip().is_loopback() {
        let text = "others can reach that address, and the relay asks for no credentials";
        let remedy = "give a loopback address, or --any-address";
        return Err(Failure::Usage(format!("{}: {text}; {remedy}", args.listen)));
    }
    let stop = stop_on_signals()?;
    let floor = Floor::bind(FloorOptions {
        listen: args.listen,
        target: args.target,
        caller: args.caller,
    })
    .map_err(|error| Failure::failed(&format!("cannot listen on {}", args.listen), error))?;
    say(&format!("relaying datagrams at {}", floor.address()));
    let relayed = floor
        .run(&stop)
        .map_err(|error| Failure::failed("cannot relay", error))?;
    say(&format!("relayed {relayed} datagrams"));
    Ok(())
}
