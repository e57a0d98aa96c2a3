//! `overload`.

use super::model::{Page, Section, Series, Table, lines, number};
use crate::case::Purpose;
use crate::cpu::ratio;
use crate::results::{Results, Row};

pub(super) fn page(results: &Results) -> Page {
    Page {
        title: "Overload".to_owned(),
        verdict: super::Verdict::default(),
        introduction: vec![
            "Completed calls when more is offered than is carried, to ten times the peak: callers do not slow down, and \
             user agents retransmit as RFC 3261 says. No overload control is on: this is the curve as it is."
                .to_owned(),
            "The paper (Nahum and others, 2007) says of its figure 1 that \"throughput falls quickly after load exceeds \
             capacity\", and gives no number for how far."
                .to_owned(),
        ],
        sections: vec![curve(results)],
    }
}

fn curve(results: &Results) -> Section {
    let mut table = Table::new([
        "setup",
        "offered /s",
        "× peak",
        "goodput /s, median",
        "× peak",
        "completed",
        "failed",
        "sent again, each call",
        "at its limit",
        "runs",
    ]);
    let mut series = Vec::new();
    for setup in results.setups(Purpose::Curve) {
        let Some(peak) = results.peak(&setup) else {
            continue;
        };
        let rows = results.of(&setup, Purpose::Curve);
        let mut rates: Vec<f64> = rows.iter().map(|row| row.run.rate).collect();
        rates.sort_by(f64::total_cmp);
        rates.dedup();
        let mut points = Vec::new();
        for rate in rates {
            let at: Vec<&Row> = rows
                .iter()
                .filter(|row| row.run.rate.total_cmp(&rate).is_eq())
                .copied()
                .collect();
            let of = |figure: fn(&Row) -> f64| Results::median(&at, figure).unwrap_or(0.0);
            let (offered, goodput) = (of(|row| row.load.offered_rate()), of(|row| row.load.goodput));
            points.push((ratio(offered, peak), ratio(goodput, peak)));
            let again = of(|row| {
                let all: u64 = row.load.retransmissions.values().sum();
                ratio(all as f64, row.load.offered as f64)
            });
            table.push([
                setup.case.text(),
                number(offered),
                format!("{:.2}", ratio(offered, peak)),
                number(goodput),
                format!("{:.2}", ratio(goodput, peak)),
                format!("{:.1} %", 100.0 * of(|row| row.load.completed_part())),
                format!("{:.1} %", 100.0 * of(|row| row.load.failed_part())),
                format!("{again:.2}"),
                at.first().map_or("–", |row| row.saturated()).to_owned(),
                at.len().to_string(),
            ]);
        }
        series.push(Series::new(setup.case.text(), points));
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
        title: "Goodput against offered load".to_owned(),
        text: vec![quota, super::model::COMPLETED.to_owned()],
        plot: lines("offered, × peak", "goodput, × peak", false, series),
        table,
    }
}
