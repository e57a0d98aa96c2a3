//! `workers`.

use super::model::{Page, Section, Table, number};
use crate::cpu::ratio;
use crate::experiments::steps::percent;
use crate::experiments::workers::{Compared, compared};
use crate::results::Results;
use crate::statistics::{median, ratio_interval};
use crate::steps::{Spread, shares};

pub(super) fn page(results: &Results) -> Page {
    let compared = compared(&results.steps);
    Page {
        title: "Two workers beside one".to_owned(),
        verdict: super::Verdict::default(),
        introduction: vec![
            "CPU time for a call of a server with one worker and of one with two, at the same rate, in turn. All calls \
             come from one source port and go to one other."
                .to_owned(),
            "Two workers and a generator need more than one CPU: server and generator share both CPUs in either case. So \
             CPU time is what counts, not how long a call takes."
                .to_owned(),
        ],
        sections: vec![beside(&compared), runs(results)],
    }
}

/// What two workers do beside one, in each round.
fn gains(of: &Compared<'_>) -> Vec<f64> {
    of.pairs()
        .iter()
        .map(|(twice, two)| ratio(*twice, *two))
        .collect()
}

/// The median of a figure over runs, or a dash.
fn middle(runs: &[(u32, &Spread)], figure: fn(&Spread) -> f64) -> String {
    let values: Vec<f64> = runs.iter().map(|(_, spread)| figure(spread)).collect();
    median(&values).map_or_else(dash, |value| format!("{value:.1}"))
}

fn dash() -> String {
    "–".to_owned()
}

/// The median share of each worker over runs, or a dash.
fn middle_shares(runs: &[(u32, &Spread)], parts: impl Fn(&Spread) -> Vec<f64>) -> String {
    let all: Vec<Vec<f64>> = runs.iter().map(|(_, spread)| shares(&parts(spread))).collect();
    let workers = all.iter().map(Vec::len).min().unwrap_or(0);
    let of_worker = |worker: usize| {
        let values: Vec<f64> = all.iter().filter_map(|run| run.get(worker).copied()).collect();
        median(&values)
    };
    let medians: Vec<f64> = (0..workers).filter_map(of_worker).collect();
    if medians.is_empty() {
        dash()
    } else {
        percent(&medians)
    }
}

fn beside(all: &[Compared<'_>]) -> Section {
    let mut table = Table::new([
        "scenario",
        "calls/s",
        "one worker, µs",
        "two workers, µs",
        "work of two / one",
        "95 %",
        "rounds",
        "requests",
        "responses",
        "CPU of the workers",
    ]);
    for of in all {
        let gains = gains(of);
        let interval = ratio_interval(&gains);
        table.push([
            of.scenario.name().to_owned(),
            number(f64::from(of.rate)),
            middle(&of.one, Spread::us),
            middle(&of.two, Spread::us),
            median(&gains).map_or_else(dash, |gain| format!("{gain:.2} ×")),
            interval.map_or_else(dash, |of| format!("{:.2} to {:.2}", of.low, of.high)),
            gains.len().to_string(),
            middle_shares(&of.two, |run| run.requests.clone()),
            middle_shares(&of.two, |run| run.responses.clone()),
            middle_shares(&of.two, Spread::cpu),
        ]);
    }
    Section {
        title: "What a second worker brings".to_owned(),
        text: vec![
            "µs is CPU time of the server, all of its threads, for each completed call. Work of two / one is twice the µs \
             of one worker, divided by the µs of two in the same round. Two workers at the rate of one are half as busy \
             and wake up more often for fewer messages, which is in the figure."
                .to_owned(),
            "Requests and responses are the shares of the two workers, by the server's metrics; CPU those of their \
             threads' time. A message that one worker only hands to the other shows in the last and not in the others. A \
             share of 0/100 of the requests means that one source port cannot use the second worker."
                .to_owned(),
        ],
        plot: None,
        table,
    }
}

fn runs(results: &Results) -> Section {
    let mut table = Table::new([
        "run",
        "completed",
        "µs",
        "CPU of the server",
        "CPU of the generator",
        "requests",
        "CPU of the workers",
    ]);
    for one in &results.steps {
        let Some(spread) = one.spread() else { continue };
        table.push([
            one.step.text(),
            format!("{:.2} %", 100.0 * spread.completed()),
            format!("{:.1}", spread.us()),
            format!("{:.2}", spread.server.utilization()),
            format!("{:.2}", spread.load.generator.utilization),
            percent(&shares(&spread.requests)),
            percent(&shares(&spread.cpu())),
        ]);
    }
    Section {
        title: "The runs".to_owned(),
        text: vec!["CPU is a share of one core, of which there are two.".to_owned()],
        plot: None,
        table,
    }
}

/// The main figures, a sentence each.
pub(super) fn findings(results: &Results) -> Vec<String> {
    let compared = compared(&results.steps);
    let found = compared.iter().filter_map(|of| {
        let gain = median(&gains(of))?;
        Some(format!(
            "{}: at {} calls/s two workers do {gain:.2} times the work of one.",
            of.scenario.name(),
            number(f64::from(of.rate))
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
    fn each_scenario_and_each_run_has_its_row() {
        let results = run_with("workers", &mut Synthetic::new(), &Scale::full()).unwrap();
        let page = page(&results).unwrap();
        assert_eq!(
            page.verdict.findings,
            [
                "stateless: at 15,000 calls/s two workers do 1.94 times the work of one.",
                "transaction: at 11,500 calls/s two workers do 1.94 times the work of one."
            ]
        );
        let beside = &page.sections[1].table;
        assert_eq!(beside.rows.len(), 2);
        assert_eq!(
            beside.rows[0],
            [
                "stateless",
                "15,000",
                "60.4",
                "62.4",
                "1.94 ×",
                "1.94 to 1.94",
                "7",
                "50/50 %",
                "50/50 %",
                "50/50 %"
            ]
        );
        let runs = &page.sections[2].table;
        assert_eq!(runs.rows.len(), 28);
        assert_eq!(
            runs.rows[0][..3],
            ["stateless 15000 calls/s 1 worker round 1", "100.00 %", "60.1"]
        );
        assert_eq!(runs.rows[1][5], "50/50 %");
        let last = page.sections.last().unwrap();
        let cpus = last.table.rows.iter().find(|row| row[0] == "CPUs").unwrap();
        assert!(cpus[1].ends_with("which server and generator share"), "{cpus:?}");
    }
}
