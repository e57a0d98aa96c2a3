//! What reports are made of, and the sections that all have.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::case::{Purpose, Setup};
use crate::metrics::component;
use crate::results::{Results, Row};
use crate::statistics::{Summary, summary};

/// A page.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Page {
    /// Its title.
    pub title: String,
    /// What it is about, a paragraph each.
    pub introduction: Vec<String>,
    /// Its parts.
    pub sections: Vec<Section>,
}

/// A part of a page: text, a plot, and the same figures as a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Section {
    /// Its heading.
    pub title: String,
    /// Paragraphs.
    pub text: Vec<String>,
    /// A plot of what is in the table.
    pub plot: Option<Plot>,
    /// The figures.
    pub table: Table,
}

/// A plot.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plot {
    /// Below the x axis, with the unit.
    pub x: String,
    /// Beside the y axis, with the unit.
    pub y: String,
    /// Whether the x axis is logarithmic.
    pub x_log: bool,
    /// How it is drawn.
    pub kind: Kind,
    /// Names of the places on the x axis, where they are no numbers: those of 0, 1, 2, ….
    pub labels: Vec<String>,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// How a plot is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Points joined by lines.
    Lines,
    /// Bars, each series on top of those before it.
    Stacked,
}

/// One line, or one part of the bars.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Drawn dashed: what was not measured here.
    pub dashed: bool,
    /// x and y.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    pub(crate) fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.into(),
            dashed: false,
            points,
        }
    }
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Table {
    /// Headings.
    pub head: Vec<String>,
    /// Rows, as long as the headings.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(head: [&str; N]) -> Self {
        Self {
            head: head.map(str::to_owned).to_vec(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn push<const N: usize>(&mut self, row: [String; N]) {
        debug_assert_eq!(N, self.head.len(), "{row:?}");
        self.rows.push(row.to_vec());
    }
}

/// A plot of lines.
pub(crate) fn lines(x: &str, y: &str, x_log: bool, series: Vec<Series>) -> Option<Plot> {
    let series: Vec<Series> = series.into_iter().filter(|one| !one.points.is_empty()).collect();
    (!series.is_empty()).then(|| Plot {
        x: x.to_owned(),
        y: y.to_owned(),
        x_log,
        kind: Kind::Lines,
        labels: Vec::new(),
        series,
    })
}

/// With thousands apart.
pub(crate) fn number(value: f64) -> String {
    if value.abs() < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

/// A figure, or a dash.
pub(crate) fn or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), number)
}

/// Least and greatest, and where the mean lies.
pub(crate) fn spread(of: &Summary) -> String {
    if of.count < 2 {
        return "one run".to_owned();
    }
    let interval = of.interval.as_ref().map_or_else(String::new, |interval| {
        format!(
            "; 95 %: {} to {} ({}, n = {})",
            number(interval.low),
            number(interval.high),
            interval.method.text(),
            of.count
        )
    });
    format!(
        "{} to {}, MAD {}{interval}",
        number(of.min),
        number(of.max),
        number(of.mad)
    )
}

/// The peak of a setup: median, marked where it is only a lower bound, and its spread.
pub(crate) fn peak_cells(results: &Results, setup: &Setup) -> (String, String) {
    let Some(of) = summary(&results.peaks_of(setup)) else {
        return ("nothing offered was carried".to_owned(), "–".to_owned());
    };
    let bound = if results.is_at_least(setup) { "≥ " } else { "" };
    let found = results.peaks.iter().filter(|found| found.setup == *setup);
    let all = found
        .filter_map(|found| found.peak.as_ref())
        .all(|peak| peak.confirmed);
    let doubt = if all { "" } else { " (not confirmed)" };
    (format!("{bound}{}{doubt}", number(of.median)), spread(&of))
}

/// Where the server's CPU goes, by its own counters; nothing where it has none.
pub(crate) fn components(results: &Results) -> Option<Section> {
    let rows: Vec<&Row> = results.rows.iter().filter(|row| shows_components(row)).collect();
    let mut setups: Vec<Setup> = Vec::new();
    for row in &rows {
        if !setups.contains(&row.setup) {
            setups.push(row.setup);
        }
    }
    let each: Vec<(Setup, BTreeMap<String, f64>)> = setups
        .into_iter()
        .map(|setup| (setup, shares(&rows, &setup)))
        .collect();
    let names: Vec<String> = {
        let all = each.iter().flat_map(|(_, parts)| parts.keys().cloned());
        all.collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect()
    };
    if names.is_empty() {
        return None;
    }
    let mut table = Table {
        head: std::iter::once("setup".to_owned())
            .chain(names.iter().cloned())
            .collect(),
        rows: Vec::new(),
    };
    for (setup, parts) in &each {
        let cells = names.iter().map(|name| or_dash(parts.get(name).copied()));
        table
            .rows
            .push(std::iter::once(setup.text()).chain(cells).collect());
    }
    let series = names.iter().map(|name| {
        let at = each.iter().enumerate();
        let points = at.map(|(index, (_, parts))| (index as f64, parts.get(name).copied().unwrap_or(0.0)));
        Series::new(name.clone(), points.collect())
    });
    Some(Section {
        title: "Where the server's CPU goes".to_owned(),
        text: vec![
            "Microseconds for each operation, by the server's own counters, over its runs up to its peak."
                .to_owned(),
        ],
        plot: Some(Plot {
            x: String::new(),
            y: "µs for each operation".to_owned(),
            x_log: false,
            kind: Kind::Stacked,
            labels: each.iter().map(|(setup, _)| setup.text()).collect(),
            series: series.collect(),
        }),
        table,
    })
}

fn shows_components(row: &Row) -> bool {
    let below_the_peak = matches!(row.run.purpose, Purpose::Fixed | Purpose::Look | Purpose::Duel);
    below_the_peak && row.load.failed_part() < 0.01 && !row.components.is_empty() && row.counters_s > 0.0
}

/// Microseconds for each operation of each component, in the mean over the runs of a setup.
fn shares(rows: &[&Row], setup: &Setup) -> BTreeMap<String, f64> {
    let mine: Vec<&&Row> = rows.iter().filter(|row| row.setup == *setup).collect();
    let mut parts: BTreeMap<String, f64> = BTreeMap::new();
    for row in &mine {
        for (name, seconds) in &row.components {
            let each = crate::cpu::ratio(seconds / row.counters_s * 1e6, row.load.goodput);
            *parts.entry(component(name)).or_default() += each / mine.len() as f64;
        }
    }
    parts
}

/// What was checked.
pub(crate) fn checks(results: &Results) -> Section {
    let mut table = Table::new(["check", "judgement", "figures"]);
    for check in &results.checks {
        let judgement = check.judgement.word().to_owned();
        table.push([check.name.clone(), judgement, check.figures.clone()]);
    }
    Section {
        title: "Shapes that must hold".to_owned(),
        text: vec![
            "Ratios of runs that were made in turn, each with the interval that it is judged by: a shape is lost only if \
             the interval excludes it, and the quick form fails only when one is lost. Undecided: the interval agrees \
             with the shape and with its contrary."
                .to_owned(),
        ],
        plot: None,
        table,
    }
}

/// What could not be done, and what a reader must know.
pub(crate) fn absent(results: &Results) -> Option<Section> {
    let text: Vec<String> = results.notes.iter().cloned().chain(results.warnings()).collect();
    if results.absent.is_empty() && text.is_empty() {
        return None;
    }
    let mut table = Table::new(["not measured", "because"]);
    for absent in &results.absent {
        table.push([absent.what.clone(), absent.why.clone()]);
    }
    Some(Section {
        title: "What was not measured, and what to know before believing the rest".to_owned(),
        text,
        plot: None,
        table,
    })
}

/// Each run.
pub(crate) fn runs(results: &Results) -> Section {
    let mut table = Table::new([
        "setup",
        "why",
        "offered/s",
        "s",
        "done",
        "µs",
        "user share",
        "CPU",
        "generator",
        "p50 ms",
        "p99 ms",
        "sent again",
        "failures",
        "full",
    ]);
    for row in &results.rows {
        let times = row.load.response_ms.get(row.setup.case.operation.response());
        let again: u64 = row.load.retransmissions.values().sum();
        table.push([
            row.setup.text(),
            format!("{:?}", row.run.purpose).to_lowercase(),
            number(row.run.rate),
            number(row.run.duration_s),
            format!("{:.2} %", 100.0 * (1.0 - row.load.failed_part())),
            format!("{:.1}", row.server_us()),
            format!("{:.0} %", 100.0 * row.server.user_share()),
            format!("{:.2}", row.server.utilization()),
            format!("{:.2}", row.load.generator.utilization),
            times.map_or_else(|| "–".to_owned(), |times| format!("{:.2}", times.p50)),
            times.map_or_else(|| "–".to_owned(), |times| format!("{:.2}", times.p99)),
            again.to_string(),
            row.load.causes(),
            row.saturated().to_owned(),
        ]);
    }
    Section {
        title: "All runs".to_owned(),
        text: vec![
            "µs is CPU time of the server, all of its threads, for each completed operation; CPU and generator are \
             shares of one core; full says who had no room left."
                .to_owned(),
        ],
        plot: None,
        table,
    }
}

/// Where, with what and when.
pub(crate) fn provenance(results: &Results) -> Section {
    let of = &results.provenance;
    let mut table = Table::new(["what", "value"]);
    let mut say = |what: &str, value: String| table.push([what.to_owned(), value]);
    say(
        "program",
        format!("trapezoid {}, commit {}", of.version, of.commit),
    );
    say("called as", of.command_line.join(" "));
    say("time", format!("{} to {}", of.began, of.ended));
    let machine = &of.machine;
    let kind = if machine.virtual_machine {
        "a virtual machine"
    } else {
        "no virtual machine that tells"
    };
    say(
        "machine",
        format!("{}, {} CPUs, {kind}", machine.cpu, machine.cpus),
    );
    say(
        "memory",
        format!("{:.1} GiB", machine.memory as f64 / f64::from(1 << 30)),
    );
    say(
        "system",
        format!(
            "{}, {}, clock {}",
            machine.distribution, machine.kernel, machine.clock_source
        ),
    );
    for program in &of.programs {
        say(&program.name, program.version.clone());
    }
    say(
        "CPUs",
        format!(
            "{} for the server, {} for everything else",
            of.server_cpu, of.other_cpu
        ),
    );
    say(
        "quota",
        of.quota.clone().unwrap_or_else(|| "none asked for".to_owned()),
    );
    say(
        "speed of the server's CPU",
        format!(
            "{:.2} ms before, {:.2} ms after, for MD5 of 1 MiB",
            of.probe_before_ms, of.probe_after_ms
        ),
    );
    say("seed", of.seed.to_string());
    Section {
        title: "Where, with what and when".to_owned(),
        text: Vec::new(),
        plot: None,
        table,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(number(0.0), "0.0");
        assert_eq!(number(99.94), "99.9");
        assert_eq!(number(1234.6), "1,235");
        assert_eq!(number(-1_234_567.0), "-1,234,567");
        assert_eq!(number(100.0), "100");
        assert_eq!(or_dash(None), "–");
    }

    #[test]
    fn a_spread_says_how_it_was_computed() {
        let text = spread(&summary(&[100.0, 110.0, 120.0]).unwrap());
        assert!(
            text.starts_with("100 to 120, MAD 10.0; 95 %: ") && text.contains("t distribution, n = 3"),
            "{text}"
        );
        assert_eq!(spread(&summary(&[1.0]).unwrap()), "one run");
    }
}
