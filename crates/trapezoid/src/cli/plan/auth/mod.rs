//! `trapezoid plan auth`: connections and batches for a rate of authenticated requests.

mod calibration;
mod report;

use std::path::Path;

use capacity::batching::{
    BatchCost, BytesCost, Candidate, Fit, FitError, Goal, Limit, Line, LoadPoint, MAX_BATCH, MAX_CONNECTIONS,
    MAX_CORES, Mode, Model, Parameters, Plan, Run, Unreachable, at_load, curve, search,
};

use self::report::Report;
use super::metrics;
use super::metrics::Measured;
use super::units::{headroom, rate, thousands, time, time_text};
use crate::cli::http;
use crate::cli::{ConfigOption, Failure, print};

/// Look-ups in the simulation of one load.
const ARRIVALS: u32 = 100_000;
/// Look-ups in each simulation, if there are many loads or shapes.
const FEW_ARRIVALS: u32 = 30_000;
/// Seed of the simulations: the same parameters give the same result.
const SEED: u64 = 1;
/// Factor by which a given round trip may exceed the measured time.
const RTT_TOLERANCE: f64 = 1.05;
/// Largest page of metrics in a file, bytes.
const MAX_PAGE: u64 = 16 << 20;

/// Work out how many connections to a credential database, and which batches on each, carry a rate of
/// authenticated requests with the least bandwidth.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Authenticated requests a second that must ask the database (those that the cache answers do not count).
    #[arg(long, value_name = "RATE", value_parser = rate)]
    target: f64,
    /// Round trip to the database, such as 30ms. Without it, with --metrics, the whole fixed part of what was
    /// measured is taken for it.
    #[arg(long, value_name = "TIME", value_parser = time, required_unless_present_any = ["metrics", "calibrate"])]
    rtt: Option<f64>,
    /// What must be carried at the peak, in parts of the target.
    #[arg(long, value_name = "FACTOR", default_value = "1.2", value_parser = headroom)]
    headroom: f64,
    /// Most connections.
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CONNECTIONS)))]
    max_connections: u32,
    /// Largest batch; powers of two up to it are tried.
    #[arg(long, value_name = "N", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_BATCH)))]
    max_batch: u32,
    /// Batches that the database works on at the same time.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CORES)))]
    db_cores: u32,
    /// CPU time of the database for a batch, whatever its size; less than --batch-fixed, which also holds what the
    /// database waits for.
    #[arg(long, value_name = "TIME", value_parser = time, requires = "db_cpu_per_row")]
    db_cpu_fixed: Option<f64>,
    /// CPU time of the database for each row.
    #[arg(long, value_name = "TIME", value_parser = time, requires = "db_cpu_fixed")]
    db_cpu_per_row: Option<f64>,
    /// CPU time of the proxy for an authenticated call, such as 60us, divided by its workers.
    #[arg(long, value_name = "TIME", value_parser = time)]
    cpu_per_call: Option<f64>,
    /// Time of the database for a batch, whatever its size and without the round trip, such as 200us.
    #[arg(long, value_name = "TIME", value_parser = time, requires = "batch_per_row")]
    batch_fixed: Option<f64>,
    /// Time of the database for each row of a batch, such as 8us.
    #[arg(long, value_name = "TIME", value_parser = time, requires = "batch_fixed")]
    batch_per_row: Option<f64>,
    /// Where the times of batches were measured: the metrics page of a running server
    /// (http://127.0.0.1:8080/metrics), or a file with a copy of it.
    #[arg(long, value_name = "FILE|URL", required_unless_present_any = ["batch_fixed", "calibrate"])]
    metrics: Option<String>,
    /// Measure now: ask the database of the configuration for batches of every size, on one connection.
    #[arg(long, conflicts_with_all = ["metrics", "batch_fixed"])]
    calibrate: bool,
    /// Batches of each size that are asked for.
    #[arg(long, value_name = "N", default_value_t = 100, requires = "calibrate",
          value_parser = clap::value_parser!(u16).range(3..=10_000))]
    rounds: u16,
    #[command(flatten)]
    config: ConfigOption,
    /// Round trip that the measurements had, if it was another than --rtt.
    #[arg(long, value_name = "TIME", value_parser = time, requires = "rtt", conflicts_with = "batch_fixed")]
    metrics_rtt: Option<f64>,
    /// Longest wait for a full batch in fixed mode, which is shown beside adaptive mode.
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = time)]
    max_wait: f64,
    /// Load for which waits are reported; default: the target.
    #[arg(long, value_name = "RATE", value_parser = rate)]
    at: Option<f64>,
    /// Add what happens from nearly no load to more than the peak.
    #[arg(long)]
    curve: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Source of `t_batch`.
#[derive(Debug)]
enum Origin {
    /// The command line.
    Given,
    /// Fitted to measurements: the line includes the round trip.
    Fitted(Fit),
}

/// The known parameters, with their sources.
#[derive(Debug)]
struct Known {
    rtt_us: f64,
    cost: BatchCost,
    origin: Origin,
    /// Cost in bytes; `None` if it was not measured.
    bytes: Option<BytesCost>,
    /// Notes about the limits of the result, for the reader.
    notes: Vec<String>,
}

/// Computes the plan and prints it.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let measured = match &args.metrics {
        Some(place) => Some(read(place)?),
        None if args.calibrate => Some(calibration::measure(args)?),
        None => None,
    };
    let known = known(args, measured.as_ref())?;
    let db_cpu = args.db_cpu_fixed.zip(args.db_cpu_per_row);
    let model = Model::new(Parameters {
        rtt_us: known.rtt_us,
        batch: known.cost,
        db_cores: args.db_cores,
        db_cpu: db_cpu.and_then(|(fixed, per_row)| Line::new(fixed, per_row)),
        cpu_per_call_us: args.cpu_per_call,
        bytes: known.bytes.unwrap_or(BytesCost::OF_THE_PAPER),
    })
    .map_err(|error| Failure::Usage(error.to_string()))?;
    let goal = Goal {
        target_per_s: args.target,
        headroom: args.headroom,
        max_connections: args.max_connections,
        max_batch: args.max_batch,
    };
    let plan = search(&model, &goal).map_err(|none| Failure::Usage(out_of_reach(args, &none)))?;
    let report = report(args, model, goal, known, &plan);
    print(&if args.json { report.json() } else { report.text() })
}

fn report(args: &Args, model: Model, goal: Goal, known: Known, plan: &Plan) -> Report {
    let shape = plan.choice.shape;
    let at = args.at.unwrap_or(args.target);
    let fixed = Mode::Fixed {
        max_wait_us: args.max_wait,
    };
    // The server's adaptive mode.
    let adaptive = Mode::Spaced {
        max_gap_us: args.max_wait,
    };
    let simulated = |shape, mode, offered_per_s, arrivals| {
        let run = Run {
            mode,
            offered_per_s,
            arrivals,
            seed: SEED,
        };
        at_load(&model, shape, run)
    };
    let at_target = |candidate: &Candidate| {
        let point = simulated(candidate.shape, adaptive, args.target, FEW_ARRIVALS);
        (*candidate, point)
    };
    let of = |mode| curve(&model, shape, mode, FEW_ARRIVALS, SEED);
    Report {
        adaptive: simulated(shape, adaptive, at, ARRIVALS),
        fixed: simulated(shape, fixed, at, ARRIVALS),
        choice: at_target(&plan.choice),
        alternatives: plan.alternatives.iter().map(at_target).collect(),
        curves: args.curve.then(|| (of(adaptive), of(fixed))),
        max_wait_us: args.max_wait,
        model,
        goal,
        known,
    }
}

/// Reads the page at `place`.
fn read(place: &str) -> Result<Measured, Failure> {
    let failed = |error: String| Failure::failed(place, error);
    let page = if place.contains("://") {
        http::get(place).map_err(failed)?
    } else {
        page_in_file(Path::new(place)).map_err(failed)?
    };
    metrics::read(&page).map_err(failed)
}

fn page_in_file(path: &Path) -> Result<String, String> {
    use std::io::Read;

    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let mut page = String::new();
    let length = file.take(MAX_PAGE + 1).read_to_string(&mut page);
    match length.map_err(|error| error.to_string())? as u64 {
        0..=MAX_PAGE => Ok(page),
        _ => Err(format!("longer than {} MiB", MAX_PAGE >> 20)),
    }
}

/// Combines given and measured parameters; given ones take precedence.
fn known(args: &Args, measured: Option<&Measured>) -> Result<Known, Failure> {
    let mut notes = Vec::new();
    let bytes = measured.and_then(|measured| BytesCost::fit(&measured.bytes).ok());
    if bytes.is_none() {
        notes.push(
            "bytes on the wire were not measured: those of the batching paper's packets are assumed"
                .to_owned(),
        );
    }
    let given = args.batch_fixed.zip(args.batch_per_row);
    if let (Some(line), Some(rtt_us)) = (given.and_then(|(fixed, row)| Line::new(fixed, row)), args.rtt) {
        return Ok(Known {
            rtt_us,
            cost: BatchCost::new(line),
            origin: Origin::Given,
            bytes,
            notes,
        });
    }
    let Some(measured) = measured.filter(|_| given.is_none()) else {
        return Err(Failure::Usage(
            "--batch-fixed and --batch-per-row are without the round trip: give --rtt, too".to_owned(),
        ));
    };
    let fit = BatchCost::fit(&measured.batches).map_err(|error| Failure::Usage(not_fitted(error)))?;
    let (rtt_us, line) = match (args.metrics_rtt.or(args.rtt), args.rtt) {
        (Some(had), Some(rtt)) => {
            if had > fit.line.fixed().max(1.0) * RTT_TOLERANCE {
                return Err(Failure::Usage(longer_than_measured(had, &fit)));
            }
            (rtt, fit.line.without_fixed(had))
        }
        (None, _) | (_, None) => {
            let fixed = fit.line.fixed();
            notes.push(format!(
                "without --rtt the whole fixed part of what was measured, {}, is taken for the round trip: the \
                 database then has only its time for rows, and its limit is too high",
                time_text(fixed)
            ));
            (fixed, fit.line.without_fixed(fixed))
        }
    };
    if fit.worst_error() > 0.25 {
        notes.push(format!(
            "the worst size is {:.0} % off the line: measure more, or believe less",
            fit.worst_error() * 100.0
        ));
    }
    Ok(Known {
        rtt_us,
        cost: BatchCost::new(line),
        origin: Origin::Fitted(fit),
        bytes,
        notes,
    })
}

fn not_fitted(error: FitError) -> String {
    match error {
        FitError::OneSize(_) => format!(
            "{error}; measure under a load that fills batches, or give --batch-fixed and --batch-per-row"
        ),
        FitError::Empty | FitError::OutOfRange(_) => error.to_string(),
    }
}

fn longer_than_measured(rtt_us: f64, fit: &Fit) -> String {
    format!(
        "a batch was measured to take {} + {} a row, round trip and all: less than the round trip of {}; say with \
         --metrics-rtt which round trip the measurements had",
        time_text(fit.line.fixed()),
        time_text(fit.line.per_row()),
        time_text(rtt_us)
    )
}

fn out_of_reach(args: &Args, none: &Unreachable) -> String {
    let Candidate { shape, peak, .. } = none.best;
    format!(
        "{}/s with a headroom of {} are {}/s, out of reach: the most is {}/s, with {} connections and batches of {}, \
         limited by {}; {}",
        thousands(args.target),
        args.headroom,
        thousands(none.needed_per_s),
        thousands(peak.per_s),
        shape.connections(),
        shape.max_batch(),
        limit_text(peak.limit),
        match peak.limit {
            Limit::Connections => "raise --max-connections or --max-batch",
            Limit::DatabaseBatches =>
                "larger batches, a faster database or more cores (--db-cores) carry more",
            Limit::DatabaseCpu => "larger batches, a faster database or more cores (--db-cores) carry more",
            Limit::ProxyCpu => "more workers or more proxies carry more",
        }
    )
}

fn limit_text(limit: Limit) -> &'static str {
    match limit {
        Limit::Connections => "the connections, which all wait for results",
        Limit::DatabaseBatches => "the batches that the database works on at once",
        Limit::DatabaseCpu => "the CPU of the database",
        Limit::ProxyCpu => "the CPU of the proxy",
    }
}

/// Whether the wait is meaningful: past the peak it depends only on the length of the simulation.
fn settled(point: &LoadPoint) -> bool {
    !point.outcome.saturated
}
