//! `transport`.

use super::model::{
    COMPLETED, Page, SPREAD, Section, Series, Table, Verdict, lines, number, or_dash, peak_cells,
};
use crate::case::{Case, Purpose, Server, Setup, State};
use crate::cpu::ratio;
use crate::experiments::transport::CASES;
use crate::load::{Operation, Transport};
use crate::paper::Paper;
use crate::results::{Results, Row};

pub(super) fn page(results: &Results, paper: Option<&Paper>) -> Page {
    let mut introduction = vec![
        "What each way of handling a call carries and costs, one worker on one CPU, over loopback: after the paper, \
         with registration and redirection."
            .to_owned(),
    ];
    // A quick run searches for no peak, so no figure of the paper stands beside its figures.
    let paper = paper.filter(|_| !results.quick);
    introduction.extend(paper.map(|paper| format!("{}: {}.", paper.title, paper.conditions)));
    let mut sections = vec![peaks(results)];
    sections.extend(paper.and_then(|paper| beside(results, paper)));
    sections.extend(GROUPS.iter().filter_map(|group| throughput(results, group)));
    sections.extend(below_saturation(results));
    sections.extend(times(results));
    Page {
        title: "Transport, state and authentication".to_owned(),
        verdict: Verdict::default(),
        introduction,
        sections,
    }
}

/// Setups with a case of the experiment, in its order.
fn setups(results: &Results) -> Vec<Setup> {
    let servers = results.servers();
    let has = |setup: &Setup| {
        results.rows.iter().any(|row| row.setup == *setup)
            || results.peaks.iter().any(|found| found.setup == *setup)
    };
    let all = CASES
        .iter()
        .flat_map(|case| servers.iter().map(|server| Setup::of(*server, *case)));
    all.filter(has).collect()
}

/// Runs at the highest of the equal rates.
fn at_highest<'a>(results: &'a Results, setup: &Setup) -> Vec<&'a Row> {
    let rows = results.steady(setup);
    let most = rows.iter().map(|row| row.run.rate).fold(0.0, f64::max);
    rows.into_iter()
        .filter(|row| row.run.rate >= 0.999 * most && row.is_sound())
        .collect()
}

/// Microseconds of the server's CPU for each operation at the highest of the equal rates, and that rate.
pub(super) fn cost(results: &Results, setup: &Setup) -> Option<(f64, f64)> {
    let rows = at_highest(results, setup);
    Some((Results::median(&rows, Row::server_us)?, rows.first()?.run.rate))
}

fn cost_us(results: &Results, setup: &Setup) -> Option<f64> {
    cost(results, setup).map(|(us, _)| us)
}

/// Cases that share a chart: operations of one kind over one transport. A chart of all cases would be unreadable.
struct Group {
    name: &'static str,
    has: fn(&Case) -> bool,
}

const GROUPS: [Group; 3] = [
    Group {
        name: "calls over UDP",
        has: |case| case.operation == Operation::Call && case.transport == Transport::Udp,
    },
    Group {
        name: "calls over TCP",
        has: |case| case.operation == Operation::Call && case.transport == Transport::Tcp,
    },
    Group {
        name: "registration and redirection",
        has: |case| case.operation != Operation::Call,
    },
];

/// The floor of a case, and its rate: it was measured beside the case without state and credentials.
fn floor(results: &Results, case: &Case) -> Option<String> {
    let of = match case.operation {
        Operation::Call => Case::call(State::Stateless, false, case.transport),
        Operation::Register => Case::register(false, false),
        Operation::Redirect => return None,
    };
    let (us, rate) = cost(results, &Setup::of(Server::Floor, of))?;
    Some(format!("{} at {}/s", number(us), number(rate)))
}

fn peaks(results: &Results) -> Section {
    let mut table = Table::new([
        "setup",
        "peak, /s",
        "least to greatest",
        "95 %",
        "µs for each",
        "in user mode",
        "at /s",
        "the floor, µs",
    ]);
    for setup in setups(results)
        .iter()
        .filter(|setup| setup.server != Server::Floor)
    {
        let rows = at_highest(results, setup);
        let [peak, range, interval] = peak_cells(results, setup);
        let user = Results::median(&rows, |row| row.server.user_share());
        table.push([
            setup.text(),
            peak,
            range,
            interval,
            or_dash(cost_us(results, setup)),
            user.map_or_else(|| "–".to_owned(), |share| format!("{:.0} %", 100.0 * share)),
            or_dash(rows.first().map(|row| row.run.rate)),
            floor(results, &setup.case).unwrap_or_else(|| "–".to_owned()),
        ]);
    }
    let mut text = vec![
        "µs is CPU time of the server for each operation, at the highest of the steady rates below its peak that it was \
         offered (at /s). The floor is a relay that reads no message."
            .to_owned(),
    ];
    let title = if results.peaks.is_empty() {
        "CPU for each operation"
    } else {
        text.push(
            "A peak is the highest load of which less than 1 % fails and at least 98 % is completed as fast as it is \
             offered, found by search and confirmed by a second run. \"≥\": the server may carry more, since the generator \
             was full or no more was offered."
                .to_owned(),
        );
        text.push(SPREAD.to_owned());
        "Peaks, and CPU for each operation"
    };
    Section {
        title: title.to_owned(),
        text,
        plot: None,
        table,
    }
}

/// What the paper says takes a part of the peak, and the setups without and with it.
fn features() -> [(&'static str, Setup, Setup); 6] {
    let of = |state, auth, transport| Setup::of(Server::Trapezoid, Case::call(state, auth, transport));
    use State::{Stateless, Transaction};
    use Transport::{Tcp, Udp};
    [
        (
            "authentication takes, UDP stateless",
            of(Stateless, false, Udp),
            of(Stateless, true, Udp),
        ),
        (
            "authentication takes, TCP stateful",
            of(Transaction, false, Tcp),
            of(Transaction, true, Tcp),
        ),
        (
            "TCP takes, stateful with authentication",
            of(Transaction, true, Udp),
            of(Transaction, true, Tcp),
        ),
        (
            "TCP takes, stateless without authentication",
            of(Stateless, false, Udp),
            of(Stateless, false, Tcp),
        ),
        (
            "state takes, UDP without authentication",
            of(Stateless, false, Udp),
            of(Transaction, false, Udp),
        ),
        (
            "state takes, TCP with authentication",
            of(Stateless, true, Tcp),
            of(Transaction, true, Tcp),
        ),
    ]
}

/// What the paper says of peaks, and ours.
fn beside(results: &Results, paper: &Paper) -> Option<Section> {
    let mut table = Table::new([
        "",
        "the paper, % of the peak",
        "here, % of the peak",
        "here, % by CPU for each call",
        "where",
    ]);
    for (name, from, to) in features() {
        let claim = paper.claim(name)?;
        let taken = |from: Option<f64>, to: Option<f64>| {
            from.zip(to).map(|(from, to)| 100.0 * (1.0 - ratio(to, from)))
        };
        let peaks = taken(results.peak(&from), results.peak(&to));
        // What is carried by a CPU that is full is the inverse of what each call costs.
        let costs = taken(cost_us(results, &to), cost_us(results, &from));
        // If the peak without the feature is a lower bound, so is what the feature takes.
        let bound = if results.is_at_least(&from) { "≥ " } else { "" };
        table.push([
            name.to_owned(),
            number(claim.value),
            format!("{bound}{}", or_dash(peaks)),
            or_dash(costs),
            claim.place.clone(),
        ]);
    }
    Some(Section {
        title: "Beside the paper: what each feature takes".to_owned(),
        text: vec![
            "The paper gives its peaks as figures only; its text gives these parts. Credentials lie in an embedded \
             file with a cache here, in a MySQL server without one there. Less than nothing: it carries more."
                .to_owned(),
        ],
        plot: None,
        table,
    })
}

/// Completed against offered.
fn throughput(results: &Results, group: &Group) -> Option<Section> {
    let mut table = Table::new([
        "setup",
        "offered /s",
        "completed /s",
        "completed",
        "failed",
        "CPU of the server",
        "at its limit",
    ]);
    let mut series = Vec::new();
    let setups = results.setups(Purpose::Curve);
    for setup in setups.iter().filter(|setup| (group.has)(&setup.case)) {
        let mut rows = results.of(setup, Purpose::Curve);
        rows.sort_by(|a, b| a.run.rate.total_cmp(&b.run.rate));
        let points = rows.iter().map(|row| (row.load.offered_rate(), row.load.goodput));
        series.push(Series::new(setup.text(), points.collect()));
        for row in rows {
            table.push([
                setup.text(),
                number(row.load.offered_rate()),
                number(row.load.goodput),
                format!("{:.2} %", 100.0 * row.load.completed_part()),
                format!("{:.2} %", 100.0 * row.load.failed_part()),
                format!("{:.2}", row.server.utilization()),
                row.saturated().to_owned(),
            ]);
        }
    }
    (!series.is_empty()).then(|| Section {
        title: format!(
            "Throughput against offered load: {} (the paper's figure 1)",
            group.name
        ),
        text: vec![COMPLETED.to_owned()],
        plot: lines("offered, operations/s", "completed, operations/s", false, series),
        table,
    })
}

/// CPU for each operation against the rate, in groups.
pub(super) fn below_saturation(results: &Results) -> Vec<Section> {
    let groups = GROUPS.iter();
    groups.filter_map(|group| costs(results, group)).collect()
}

/// CPU for each operation against the rate.
fn costs(results: &Results, group: &Group) -> Option<Section> {
    let mut table = Table::new(["setup", "operations/s", "µs, median", "least to greatest", "runs"]);
    let mut series = Vec::new();
    let mut setups = results.setups(Purpose::Fixed);
    for setup in results.setups(Purpose::Duel) {
        if !setups.contains(&setup) {
            setups.push(setup);
        }
    }
    for setup in setups.iter().filter(|setup| (group.has)(&setup.case)) {
        let rows = results.steady(setup);
        let mut rates: Vec<f64> = rows.iter().map(|row| row.run.rate).collect();
        rates.sort_by(f64::total_cmp);
        rates.dedup();
        let mut points = Vec::new();
        for rate in rates {
            let values: Vec<f64> = rows
                .iter()
                .filter(|row| row.run.rate.total_cmp(&rate).is_eq() && row.is_sound())
                .map(|row| row.server_us())
                .collect();
            let Some(of) = crate::statistics::summary(&values) else {
                continue;
            };
            points.push((rate, of.median));
            table.push([
                setup.text(),
                number(rate),
                number(of.median),
                format!("{} to {}", number(of.min), number(of.max)),
                of.count.to_string(),
            ]);
        }
        series.push(Series::new(setup.text(), points));
    }
    (!series.is_empty()).then(|| Section {
        title: format!("CPU for each operation below saturation: {}", group.name),
        text: vec!["Low rates cost more for each operation: a wake-up serves fewer messages.".to_owned()],
        plot: lines("operations/s", "µs of the server's CPU", false, series),
        table,
    })
}

/// Distributions of response times, of the case that the paper shows, else of the first there is.
fn times(results: &Results) -> Option<Section> {
    let setups = results.setups(Purpose::Curve);
    let ours = |setup: &&Setup| setup.server == Server::Trapezoid;
    let wanted = Case::call(State::Transaction, true, Transport::Udp);
    let setup = setups
        .iter()
        .filter(ours)
        .find(|setup| setup.case == wanted)
        .or_else(|| setups.iter().find(ours))?;
    let peak = results.peak(setup)?;
    let mut table = Table::new([
        "load, × peak",
        "offered /s",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "max ms",
    ]);
    let mut series = Vec::new();
    let mut rows = results.of(setup, Purpose::Curve);
    rows.sort_by(|a, b| a.run.rate.total_cmp(&b.run.rate));
    for row in rows {
        let Some(times) = row.load.response_ms.get(setup.case.operation.response()) else {
            continue;
        };
        let name = format!("{:.2} × peak", ratio(row.run.rate, peak));
        let points = times
            .cdf
            .iter()
            .filter(|(ms, _)| *ms > 0.0)
            .map(|(ms, part)| (*ms, 100.0 * part));
        series.push(Series::new(name.clone(), points.collect()));
        table.push([
            name,
            number(row.load.offered_rate()),
            format!("{:.2}", times.p50),
            format!("{:.2}", times.p90),
            format!("{:.2}", times.p99),
            format!("{:.1}", times.max),
        ]);
    }
    (!series.is_empty()).then(|| Section {
        title: format!("Response times below and above capacity: {} (the paper's figure 4)", setup.case.text()),
        text: vec![
            "From the moment at which the caller meant to send. The paper sees two groups of curves, below and above \
             capacity, and above it jumps at 500, 1000, 2000 ms: timer A's retransmissions. Its text names the gap \
             between 700 and 800 calls/s, and no other number."
                .to_owned(),
        ],
        plot: lines("response time, ms", "responses, %", true, series),
        table,
    })
}
