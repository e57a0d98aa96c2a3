//! `overload`.

use super::model::{Page, Section, Series, Table, lines, number};
use crate::case::{Case, Purpose, Setup};
use crate::cpu::ratio;
use crate::experiments::overload::{at, peak, rates};
use crate::results::{Results, Row};

pub(super) fn page(results: &Results) -> Page {
    let mut cases: Vec<Case> = results
        .setups(Purpose::Curve)
        .iter()
        .map(|setup| setup.case)
        .collect();
    cases.dedup();
    Page {
        title: "Overload".to_owned(),
        verdict: super::Verdict::default(),
        introduction: vec![
            "Completed calls when more is offered than is carried, to ten times the peak: callers do not slow down, and \
             user agents retransmit as RFC 3261 says. New calls wait in a queue of their own in the kernel; \"one queue\" is \
             the same server without that. Each server's load is a multiple of its own peak."
                .to_owned(),
            "The paper (Nahum and others, 2007) says of its figure 1 that \"throughput falls quickly after load exceeds \
             capacity\", and gives no number for how far."
                .to_owned(),
        ],
        sections: cases.iter().map(|case| curves(results, case)).collect(),
    }
}

fn curves(results: &Results, case: &Case) -> Section {
    let mut table = Table::new([
        "server",
        "offered /s",
        "× peak",
        "goodput /s, median",
        "× peak",
        "completed",
        "failed",
        "set up, median ms",
        "set up, p99 ms",
        "sent again, each call",
        "at its limit",
        "runs",
    ]);
    let mut series = Vec::new();
    let setups = results.setups(Purpose::Curve);
    for setup in setups.into_iter().filter(|setup| setup.case == *case) {
        let Some(peak) = peak(results, &setup) else {
            continue;
        };
        let rows = results.of(&setup, Purpose::Curve);
        let name = name(&setup);
        let mut points = Vec::new();
        for rate in rates(&rows) {
            let at = at(&rows, rate);
            let of = |figure: fn(&Row) -> f64| Results::median(&at, figure).unwrap_or(0.0);
            let (offered, goodput) = (of(|row| row.load.offered_rate()), of(|row| row.load.goodput));
            points.push((ratio(offered, peak), ratio(goodput, peak)));
            let again = of(|row| {
                let all: u64 = row.load.retransmissions.values().sum();
                ratio(all as f64, row.load.offered as f64)
            });
            table.push([
                name.clone(),
                number(offered),
                format!("{:.2}", ratio(offered, peak)),
                number(goodput),
                format!("{:.2}", ratio(goodput, peak)),
                format!("{:.1} %", 100.0 * of(|row| row.load.completed_part())),
                format!("{:.1} %", 100.0 * of(|row| row.load.failed_part())),
                number(of(|row| set_up(row).0)),
                number(of(|row| set_up(row).1)),
                format!("{again:.2}"),
                at.first().map_or("–", |row| row.saturated()).to_owned(),
                at.len().to_string(),
            ]);
        }
        series.push(Series::new(name, points));
    }
    let quota = results.rows.iter().find_map(|row| row.setup.quota);
    let quota = quota.map_or_else(
        || "The server has a whole CPU: where the generator gave out before ten times its peak, the row says so.".to_owned(),
        |part| {
            format!(
                "The server has {:.0} % of a CPU ({}), so that one generator can offer ten times what it carries.",
                100.0 * part,
                results.provenance.quota.as_deref().unwrap_or("by a control group")
            )
        },
    );
    Section {
        title: format!("Goodput against offered load: {}", case.text()),
        text: vec![quota, super::model::COMPLETED.to_owned()],
        plot: lines("offered, × peak", "goodput, × peak", false, series),
        table,
    }
}

/// The server's name, and what is special of it.
fn name(setup: &Setup) -> String {
    let queue = if setup.one_queue { ", one queue" } else { "" };
    format!("{}{queue}", setup.server.name())
}

/// Milliseconds from a caller's first INVITE to its 200, of those that got one: median, 99th percentile.
fn set_up(row: &Row) -> (f64, f64) {
    let times = row.load.response_ms.get(row.setup.case.operation.response());
    times.map_or((0.0, 0.0), |times| (times.p50, times.p99))
}
