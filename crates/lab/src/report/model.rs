//! What reports are made of, and the sections that all have.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::case::{Purpose, Setup};
use crate::metrics::component;
use crate::results::{Results, Row};
use crate::statistics::{Judgement, Summary, summary};

/// A page.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Page {
    /// Its title.
    pub title: String,
    /// The result of the experiment, at the top of the page.
    pub verdict: Verdict,
    /// What it is about, a paragraph each.
    pub introduction: Vec<String>,
    /// Its parts.
    pub sections: Vec<Section>,
}

/// The result of an experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verdict {
    /// The gravest judgement; absent: nothing was checked.
    pub judgement: Option<Judgement>,
    /// One line on the shapes.
    pub headline: String,
    /// The figures that the experiment was made for, a sentence each.
    pub findings: Vec<String>,
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

impl Plot {
    /// Whether the plot shows more than its table does: two points are no curve.
    pub(crate) fn shows_a_shape(&self) -> bool {
        self.kind == Kind::Stacked || self.series.iter().any(|series| series.points.len() > 2)
    }
}

/// How a plot is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Points joined by lines.
    Lines,
    /// Points alone: each is a thing of its own, and between two of them there is none.
    Points,
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

    /// The table without the columns in which nothing was measured. The first column names the rows, and stays.
    pub(crate) fn measured(self) -> Self {
        let is_empty = |column: usize| {
            self.rows
                .iter()
                .all(|row| row.get(column).is_none_or(|cell| cell == "–"))
        };
        let kept: Vec<usize> = (0..self.head.len())
            .filter(|column| *column == 0 || self.rows.is_empty() || !is_empty(*column))
            .collect();
        let of = |row: &Vec<String>| {
            kept.iter()
                .filter_map(|column| row.get(*column).cloned())
                .collect()
        };
        Self {
            head: of(&self.head),
            rows: self.rows.iter().map(of).collect(),
        }
    }

    /// Which columns hold numbers: those with a number in most of the cells that are not empty.
    pub(crate) fn numeric(&self) -> Vec<bool> {
        let numbers = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let cells: Vec<&String> = cells.filter(|cell| *cell != "–").collect();
            let count = cells
                .iter()
                .filter(|cell| is_number(cell) || is_range(cell))
                .count();
            count > 0 && 2 * count > cells.len()
        };
        (0..self.head.len()).map(numbers).collect()
    }
}

/// Whether a cell is two numbers: a range, or a sum of two parts.
fn is_range(cell: &str) -> bool {
    let ends = cell.split_once(" to ").or_else(|| cell.split_once(" + "));
    ends.is_some_and(|(low, high)| is_number(low) && is_number(high))
}

/// Whether a cell is a number. It may be a lower bound or not confirmed, and may have a unit.
fn is_number(cell: &str) -> bool {
    let cell = cell.strip_prefix("≥ ").unwrap_or(cell);
    let mut words = cell.splitn(2, ' ');
    let first = words.next().unwrap_or_default().replace(',', "");
    let rest = words.next().unwrap_or_default();
    first.parse::<f64>().is_ok() && matches!(rest, "" | "%" | "×" | "(not confirmed)")
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

/// The least and the greatest of several values, and the 95 % interval of their mean; dashes for a single value.
pub(crate) fn spread(of: &Summary) -> [String; 2] {
    if of.count < 2 {
        return ["–".to_owned(), "–".to_owned()];
    }
    let interval = of.interval.as_ref();
    let interval = interval.map(|interval| format!("{} to {}", number(interval.low), number(interval.high)));
    [
        format!("{} to {}", number(of.min), number(of.max)),
        interval.unwrap_or_else(|| "–".to_owned()),
    ]
}

/// Explains the columns of [`spread`] in the text above them.
pub(crate) const SPREAD: &str = "95 %: of the mean of the searches, by the t distribution.";

/// The peak of a setup: median, marked where it is only a lower bound, and its [`spread`].
pub(crate) fn peak_cells(results: &Results, setup: &Setup) -> [String; 3] {
    let dash = || "–".to_owned();
    let searches = results.peaks.iter().filter(|found| found.setup == *setup);
    let Some(of) = summary(&results.peaks_of(setup)) else {
        let peak = match searches.count() {
            0 => dash(),
            _ => "nothing offered was carried".to_owned(),
        };
        return [peak, dash(), dash()];
    };
    let bound = if results.is_at_least(setup) { "≥ " } else { "" };
    let all = searches
        .filter_map(|found| found.peak.as_ref())
        .all(|peak| peak.confirmed);
    let doubt = if all { "" } else { " (not confirmed)" };
    let [range, interval] = spread(&of);
    [format!("{bound}{}{doubt}", number(of.median)), range, interval]
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
    let names = largest_first(&each);
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
            x: "setup".to_owned(),
            y: "µs for each operation".to_owned(),
            x_log: false,
            kind: Kind::Stacked,
            labels: each.iter().map(|(setup, _)| setup.short()).collect(),
            series: series.collect(),
        }),
        table,
    })
}

/// The names of the components, the one that takes most time first: it gets the first colour.
fn largest_first(each: &[(Setup, BTreeMap<String, f64>)]) -> Vec<String> {
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, us) in each.iter().flat_map(|(_, parts)| parts) {
        *sums.entry(name).or_default() += us;
    }
    let mut names: Vec<(&str, f64)> = sums.into_iter().collect();
    names.sort_by(|a, b| b.1.total_cmp(&a.1));
    names.into_iter().map(|(name, _)| name.to_owned()).collect()
}

fn shows_components(row: &Row) -> bool {
    let below_the_peak = matches!(
        row.run.purpose,
        Purpose::Fixed | Purpose::Look | Purpose::Duel | Purpose::Near | Purpose::Equal
    );
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
             the interval excludes it, and undecided if the interval agrees with the shape and with its contrary. The \
             quick form fails only by shapes that are lost or were not measured."
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

/// Explains the columns "completed" and "failed", which need not add up to all.
pub(crate) const COMPLETED: &str = "Completed is the share of what was offered in a second that was completed in that second. \
     Failed is the share that never succeeded. What is in neither succeeded late, after the load had ended: past a peak, \
     callers that send again are still answered then. Together they may be a little more than all, since what is completed \
     in a second may have begun before it.";

/// Each run.
pub(crate) fn runs(results: &Results) -> Section {
    let mut table = Table::new([
        "setup",
        "purpose",
        "offered /s",
        "seconds",
        "completed",
        "failed",
        "µs",
        "in user mode",
        "CPU",
        "CPU of the generator",
        "p50 ms",
        "p99 ms",
        "sent again",
        "why it failed",
        "at its limit",
    ]);
    for row in &results.rows {
        let times = row.load.response_ms.get(row.setup.case.operation.response());
        let again: u64 = row.load.retransmissions.values().sum();
        table.push([
            row.setup.text(),
            format!("{:?}", row.run.purpose).to_lowercase(),
            number(row.run.rate),
            number(row.run.duration_s),
            format!("{:.2} %", 100.0 * row.load.completed_part()),
            format!("{:.2} %", 100.0 * row.load.failed_part()),
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
            "µs is CPU time of the server, all of its threads, for each completed operation. CPU is a share of one core. \
             At its limit: what had no room left."
                .to_owned(),
            COMPLETED.to_owned(),
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
    let (server, other) = (of.server_cpu, of.other_cpu);
    say(
        "CPUs",
        if results.experiment == "workers" {
            format!("{server} and {other}, which server and generator share")
        } else {
            format!("{server} for the server, {other} for everything else")
        },
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
    fn a_spread_is_of_several() {
        let [range, interval] = spread(&summary(&[100.0, 110.0, 120.0]).unwrap());
        assert_eq!(range, "100 to 120");
        assert_eq!(interval, "85.2 to 135");
        assert_eq!(spread(&summary(&[1.0]).unwrap()), ["–", "–"]);
    }

    #[test]
    fn columns_without_a_figure_go() {
        let mut table = Table::new(["setup", "peak", "µs"]);
        for (setup, us) in [("a", "1.0"), ("b", "–")] {
            table.push([setup.to_owned(), "–".to_owned(), us.to_owned()]);
        }
        let table = table.measured();
        assert_eq!(table.head, ["setup", "µs"]);
        assert_eq!(table.rows, [["a", "1.0"], ["b", "–"]]);
        let empty = Table::new(["a", "b"]).measured();
        assert_eq!(empty.head, ["a", "b"]);
    }

    #[test]
    fn numbers_are_distinguished_from_text() {
        let mut table = Table::new(["1", "2", "3", "4", "5"]);
        table.push(["UDP", "1,234", "≥ 12.5 %", "3 to 4", "–"].map(str::to_owned));
        table.push(["4", "–", "24,675 (not confirmed)", "–", "–"].map(str::to_owned));
        table.push(["TCP", "-0.3 ×", "nothing", "7 to 9", "–"].map(str::to_owned));
        assert_eq!(table.numeric(), [false, true, true, true, false]);
    }
}
