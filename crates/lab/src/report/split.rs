//! `split`.

use super::model::{Page, Section, Table, number};
use crate::experiments::split::{Found, splits};
use crate::results::Results;
use crate::statistics::{median, ratio_interval};
use crate::steps::SplitTime;

pub(super) fn page(results: &Results) -> Page {
    let splits = splits(&results.steps);
    Page {
        title: "What the split of CPU time says and costs".to_owned(),
        verdict: super::Verdict::default(),
        introduction: vec![
            "The server measures what the CPU time of its worker goes into, component by component, if it is asked to. \
             This page has what it says, whether the parts add up to what the kernel says of the thread, and what the \
             measurement itself takes."
                .to_owned(),
        ],
        sections: vec![costs(&splits), parts(&splits)],
    }
}

/// Per cent that the worker uses more with the split on than off, in the median of the turns.
fn cost(split: &SplitTime) -> Option<f64> {
    median(&split.ratios()).map(more)
}

fn more(ratio: f64) -> f64 {
    100.0 * (ratio - 1.0)
}

fn costs(splits: &[Found<'_>]) -> Section {
    let mut table = Table::new([
        "scenario",
        "calls/s",
        "completed",
        "worker, off",
        "on against off, median",
        "95 % of the mean",
        "turns",
        "parts / thread",
        "turns of the loop measured",
    ]);
    let dash = || "–".to_owned();
    for (scenario, rate, split) in splits {
        let interval = ratio_interval(&split.ratios());
        table.push([
            scenario.name().to_owned(),
            number(f64::from(*rate)),
            format!("{:.2} %", 100.0 * split.load.succeeded_part()),
            format!("{:.0} %", 100.0 * split.off()),
            cost(split).map_or_else(dash, |cost| format!("{cost:+.1} %")),
            interval.map_or_else(dash, |of| {
                format!("{:+.1} to {:+.1}", more(of.low), more(of.high))
            }),
            split.turns.len().to_string(),
            format!("{:.3}", split.accounted()),
            number(split.measured as f64),
        ]);
    }
    Section {
        title: "What it costs, and whether the parts add up".to_owned(),
        text: vec![
            "Under one steady load the split is off and on for half a second each, in turn. Off: the share of a CPU that \
             the worker uses then. On against off: per cent more, or less."
                .to_owned(),
            "Then the split is switched on from zero and stays on. Parts / thread is the sum of the components, divided \
             by the CPU time of the worker's thread, by the kernel. The parts lack the time since the last division."
                .to_owned(),
        ],
        plot: None,
        table,
    }
}

fn parts(splits: &[Found<'_>]) -> Section {
    let names: Vec<&str> = splits.first().map_or_else(Vec::new, |(_, _, split)| {
        split.shares().into_iter().map(|(name, _)| name).collect()
    });
    let scenarios = splits.iter().map(|(scenario, ..)| scenario.name().to_owned());
    let mut table = Table {
        head: std::iter::once("component".to_owned()).chain(scenarios).collect(),
        rows: Vec::new(),
    };
    for name in names {
        let share = |split: &SplitTime| {
            let mut all = split.shares().into_iter();
            all.find(|(other, _)| *other == name)
                .map_or(0.0, |(_, share)| share)
        };
        let cells = splits.iter().map(|(.., split)| format!("{:.1} %", share(split)));
        table
            .rows
            .push(std::iter::once(name.to_owned()).chain(cells).collect());
    }
    Section {
        title: "What the worker's CPU time goes into".to_owned(),
        text: vec![
            "Shares of the CPU time of the worker while the split stayed on. On loopback, sending includes the delivery \
             to the receiver's socket. Waiting is the kernel putting the worker to sleep and waking it: a worker that is \
             less busy waits more often."
                .to_owned(),
        ],
        plot: None,
        table,
    }
}

/// The main figures, a sentence each.
pub(super) fn findings(results: &Results) -> Vec<String> {
    let splits = splits(&results.steps);
    let found = splits.iter().filter_map(|(scenario, rate, split)| {
        let mut parts = split.shares();
        parts.sort_by(|a, b| b.1.total_cmp(&a.1));
        let (largest, share) = parts.first()?;
        Some(format!(
            "{}, {} calls/s: the split costs {:+.1} % of the worker's CPU, and accounts for {:.1} % of it; the largest part is \
             {largest}, {share:.0} %.",
            scenario.name(),
            number(f64::from(*rate)),
            cost(split)?,
            100.0 * split.accounted()
        ))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::super::page;
    use crate::experiments::Scale;
    use crate::experiments::synthetic::Synthetic;
    use crate::experiments::tests::run_with;

    #[test]
    fn each_scenario_and_each_component_has_its_row() {
        let results = run_with("split", &mut Synthetic::new(), &Scale::full()).unwrap();
        let page = page(&results).unwrap();
        assert_eq!(page.verdict.findings.len(), 5);
        let text = &page.verdict.findings[0];
        assert!(
            text.ends_with("accounts for 99.2 % of it; the largest part is send, 60 %."),
            "{text}"
        );
        let costs = &page.sections[1].table;
        assert_eq!(costs.rows.len(), 5);
        assert_eq!(
            costs.rows[0][..5],
            ["stateless", "9,000", "100.00 %", "50 %", "+1.0 %"]
        );
        assert_eq!(costs.rows[0][6..], ["40", "0.992", "5,000"]);
        let parts = &page.sections[2].table;
        assert_eq!(
            parts.head,
            ["component", "stateless", "transaction", "digest", "tcp", "tls"]
        );
        assert_eq!(parts.rows.len(), 3);
        assert_eq!(parts.rows[1][..2], ["send", "60.5 %"]);
    }
}
