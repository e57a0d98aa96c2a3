//! `peers`.

use super::model::{Kind, Page, Plot, Section, Series, Table, Verdict, number, or_dash, spread};
use super::transport::below_saturation;
use crate::case::{Purpose, Server, Setup};
use crate::cpu::ratio;
use crate::experiments::peers::{NEAR, SCENARIOS};
use crate::results::{Results, Row};
use crate::statistics::{self, median, ratio_interval, summary};

/// Rates that differ by less are one.
const ONE_RATE: f64 = 0.03;

pub(super) fn page(results: &Results) -> Page {
    let scenarios = scenarios(results);
    let mut sections: Vec<Section> = near(&scenarios).into_iter().collect();
    sections.extend(equal(&scenarios));
    sections.extend(each(results, &scenarios));
    sections.extend(below_saturation(results));
    Page {
        title: "Beside Kamailio".to_owned(),
        verdict: Verdict::default(),
        introduction: vec![
            "What a call and a REGISTER cost Trapezoid, Kamailio as Debian ships it (with its fast allocator) and a bare \
             relay, on the same CPU, from the same generator, in turn; one worker each. A call is six relayed messages, \
             and a 100 for each INVITE where transactions are kept."
                .to_owned(),
        ],
        sections,
    }
}

/// What was measured of a scenario, without runs in which many calls failed or the server fell behind.
pub(super) struct Scenario<'a> {
    name: &'static str,
    theirs: Vec<&'a Row>,
    ours: Vec<&'a Row>,
    floor: Vec<&'a Row>,
    /// Ours at Kamailio's rate.
    equal: Vec<&'a Row>,
}

/// Those of which there are runs near a peak.
pub(super) fn scenarios(results: &Results) -> Vec<Scenario<'_>> {
    let each = SCENARIOS.iter().map(|scenario| {
        let of = |server: Server, purpose: Purpose| -> Vec<&Row> {
            let rows = results.of(&scenario.setup(server), purpose).into_iter();
            rows.filter(|row| row.keeps_up()).collect()
        };
        Scenario {
            name: scenario.name,
            theirs: of(Server::Kamailio, Purpose::Near),
            ours: of(Server::Trapezoid, Purpose::Near),
            floor: of(Server::BareRelay, Purpose::Near),
            equal: of(Server::Trapezoid, Purpose::Equal),
        }
    });
    each.filter(|scenario| !scenario.all().is_empty()).collect()
}

/// How many times as much CPU an operation takes in `theirs`, for each round of both.
fn ratios(theirs: &[&Row], ours: &[&Row]) -> Vec<f64> {
    let of_round = |row: &&&Row| {
        let mut partners = ours.iter().filter(|other| other.run.round == row.run.round);
        Some(ratio(row.server_us(), partners.next()?.server_us()))
    };
    theirs.iter().filter_map(|row| of_round(&row)).collect()
}

/// A ratio and its interval as cells.
fn ratio_cells(ratios: &[f64]) -> [String; 2] {
    let dash = || "–".to_owned();
    let interval = ratio_interval(ratios);
    [
        median(ratios).map_or_else(dash, |of| format!("{of:.2} ×")),
        interval.map_or_else(dash, |of| format!("{:.2} to {:.2}", of.low, of.high)),
    ]
}

fn parts(user: Option<f64>, system: Option<f64>) -> String {
    let both = user.zip(system);
    both.map_or_else(
        || "–".to_owned(),
        |(user, system)| format!("{} + {}", number(user), number(system)),
    )
}

fn us(rows: &[&Row]) -> Option<f64> {
    Results::median(rows, Row::server_us)
}

fn user_us(rows: &[&Row]) -> Option<f64> {
    Results::median(rows, Row::user_us)
}

fn system_us(rows: &[&Row]) -> Option<f64> {
    Results::median(rows, |row| row.server_us() - row.user_us())
}

fn filled(rows: &[&Row]) -> Option<f64> {
    Results::median(rows, |row| row.server.utilization())
}

fn rate(rows: &[&Row]) -> Option<f64> {
    rows.first().map(|row| row.run.rate)
}

fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| "–".to_owned(), |part| format!("{:.0} %", 100.0 * part))
}

impl<'a> Scenario<'a> {
    fn all(&self) -> Vec<&'a Row> {
        let servers = [&self.theirs, &self.ours, &self.floor, &self.equal];
        servers.into_iter().flatten().copied().collect()
    }

    /// Kamailio's cost divided by ours, each near its own peak.
    pub(super) fn near_ratio(&self) -> Option<f64> {
        median(&ratios(&self.theirs, &self.ours))
    }

    /// Kamailio's cost divided by ours, at Kamailio's rate.
    pub(super) fn equal_ratio(&self) -> Option<f64> {
        median(&ratios(&self.theirs, self.at_their_rate()))
    }

    /// Our runs at Kamailio's rate. If our own is the same, they are those near our peak.
    fn at_their_rate(&self) -> &[&'a Row] {
        let is_one = rate(&self.theirs)
            .zip(rate(&self.ours))
            .is_some_and(|(theirs, ours)| (theirs - ours).abs() <= ONE_RATE * theirs);
        if self.equal.is_empty() && is_one {
            &self.ours
        } else {
            &self.equal
        }
    }

    /// Servers that have runs near their peaks, and these.
    fn servers(&self) -> impl Iterator<Item = (Server, &[&'a Row])> {
        let all = [
            (Server::Kamailio, &self.theirs),
            (Server::Trapezoid, &self.ours),
            (Server::BareRelay, &self.floor),
        ];
        let all = all.into_iter().map(|(server, rows)| (server, rows.as_slice()));
        all.filter(|(_, rows)| !rows.is_empty())
    }
}

/// The comparison that the experiment is made for.
fn near(scenarios: &[Scenario<'_>]) -> Option<Section> {
    let mut table = Table::new([
        "scenario",
        "Kamailio, µs",
        "its user + system",
        "Trapezoid, µs",
        "our user + system",
        "the floor, µs",
        "Kamailio, implied peak /s",
        "Trapezoid, implied peak /s",
        "ratio",
        "95 % of the ratio",
    ]);
    for scenario in scenarios {
        let Scenario {
            name,
            theirs,
            ours,
            floor,
            ..
        } = scenario;
        let [times, interval] = ratio_cells(&ratios(theirs, ours));
        let peak = |rows: &[&Row]| or_dash(us(rows).map(|us| ratio(1e6, us)));
        table.push([
            (*name).to_owned(),
            or_dash(us(theirs)),
            parts(user_us(theirs), system_us(theirs)),
            or_dash(us(ours)),
            parts(user_us(ours), system_us(ours)),
            or_dash(us(floor)),
            peak(theirs),
            peak(ours),
            times,
            interval,
        ]);
    }
    (!table.rows.is_empty()).then(|| Section {
        title: "CPU for one operation near each one's own peak".to_owned(),
        text: vec![
            "µs is CPU time of the server, all of its processes and threads, for each completed operation; Kamailio's \
             database is not in it, ours is part of the server. Medians of the rounds."
                .to_owned(),
            "An implied peak is the rate divided by the used part of the CPU. It is a fair one if most of the CPU was \
             used; what is below that is said with the runs. The ratio is that of costs, and of implied peaks; its \
             interval is by the t distribution of its logarithms, over the pairs of the rounds."
                .to_owned(),
            "The floor is a relay in C that reads no message: what any process costs that passes the same datagrams or \
             bytes on. Of TLS it passes the encrypted bytes; for a REGISTER it sends the request back as its own 200."
                .to_owned(),
        ],
        plot: plot(scenarios),
        table,
    })
}

/// User and system time of each server in each scenario.
fn plot(scenarios: &[Scenario<'_>]) -> Option<Plot> {
    let bars: Vec<(String, f64, f64)> = scenarios
        .iter()
        .flat_map(|scenario| {
            scenario.servers().filter_map(|(server, rows)| {
                let label = format!("{}, {}", scenario.name, server.name());
                Some((label, user_us(rows)?, system_us(rows)?))
            })
        })
        .collect();
    let points = |figure: fn(&(String, f64, f64)) -> f64| {
        let all = bars.iter().enumerate();
        all.map(|(index, bar)| (index as f64, figure(bar))).collect()
    };
    (!bars.is_empty()).then(|| Plot {
        x: "scenario and server".to_owned(),
        y: "µs for each operation".to_owned(),
        x_log: false,
        kind: Kind::Stacked,
        labels: bars.iter().map(|(label, ..)| label.clone()).collect(),
        series: vec![
            Series::new("user", points(|bar| bar.1)),
            Series::new("system", points(|bar| bar.2)),
        ],
    })
}

/// Both at Kamailio's rate.
fn equal(scenarios: &[Scenario<'_>]) -> Option<Section> {
    let mut table = Table::new([
        "scenario",
        "operations/s",
        "Kamailio, µs",
        "Trapezoid, µs",
        "Trapezoid, of its CPU",
        "ratio",
        "95 % of the ratio",
    ]);
    for scenario in scenarios {
        let ours = scenario.at_their_rate();
        let [times, interval] = ratio_cells(&ratios(&scenario.theirs, ours));
        if ours.is_empty() || scenario.theirs.is_empty() {
            continue;
        }
        table.push([
            scenario.name.to_owned(),
            or_dash(rate(&scenario.theirs)),
            or_dash(us(&scenario.theirs)),
            or_dash(us(ours)),
            percent(filled(ours)),
            times,
            interval,
        ]);
    }
    (!table.rows.is_empty()).then(|| Section {
        title: "CPU for one operation at Kamailio's rate".to_owned(),
        text: vec![
            "A low rate costs more for each operation, since a wake-up serves fewer messages: this favours the server that \
             is nearer its peak."
                .to_owned(),
        ],
        plot: None,
        table,
    })
}

/// Each server's runs near its own peak.
fn each(results: &Results, scenarios: &[Scenario<'_>]) -> Option<Section> {
    let mut table = Table::new([
        "scenario",
        "server",
        "offered /s",
        "of its CPU",
        "µs",
        "user + system",
        "in its database, µs",
        "least to greatest",
        "95 %",
        "p99 ms",
        "failed",
        "runs",
    ]);
    let mut text = vec!["95 %: of the mean of the runs, by the t distribution.".to_owned()];
    for scenario in scenarios {
        for (server, rows) in scenario.servers() {
            let costs: Vec<f64> = rows.iter().map(|row| row.server_us()).collect();
            let [range, interval] =
                summary(&costs).map_or_else(|| ["–".to_owned(), "–".to_owned()], |of| spread(&of));
            let database: Vec<f64> = rows.iter().filter_map(|row| row.database_us()).collect();
            let p99 = rows.iter().filter_map(|row| {
                let response = row.setup.case.operation.response();
                Some(row.load.response_ms.get(response)?.p99)
            });
            let p99 = median(&p99.collect::<Vec<f64>>());
            let failed = Results::median(rows, |row| row.load.failed_part());
            table.push([
                scenario.name.to_owned(),
                server.name().to_owned(),
                or_dash(rate(rows)),
                percent(filled(rows)),
                or_dash(us(rows)),
                parts(user_us(rows), system_us(rows)),
                or_dash(median(&database)),
                range,
                interval,
                p99.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.2}")),
                failed.map_or_else(|| "–".to_owned(), |part| format!("{:.2} %", 100.0 * part)),
                rows.len().to_string(),
            ]);
            text.extend(doubts(scenario.name, server, rows));
        }
    }
    text.extend(left_out(results));
    (!table.rows.is_empty()).then(|| Section {
        title: "The runs near a peak".to_owned(),
        text,
        plot: None,
        table,
    })
}

/// Runs whose CPU for each operation means nothing.
fn left_out(results: &Results) -> Vec<String> {
    let setups = results.setups(Purpose::Near).into_iter();
    let counts = setups.map(|setup| {
        let rows = results.of(&setup, Purpose::Near);
        (setup, rows.iter().filter(|row| !row.keeps_up()).count())
    });
    let counts = counts.filter(|(_, count)| *count > 0);
    let text = |(setup, count): (Setup, usize)| {
        format!(
            "{}: runs left out, since 5 % failed or were not completed in time: {count}.",
            setup.text()
        )
    };
    counts.map(text).collect()
}

/// What a reader must know before believing a server's figures.
fn doubts(scenario: &str, server: Server, rows: &[&Row]) -> Vec<String> {
    let count = |is_so: fn(&Row) -> bool| rows.iter().filter(|row| is_so(row)).count();
    // The relay is offered our rate, which is not near its own peak.
    let is_low = |row: &Row| {
        let is_full = row.others_are_full() || row.setup.server.is_relay();
        !is_full && row.server.utilization() < NEAR
    };
    let all = [
        (
            count(|row| row.verdict != statistics::Verdict::Carried),
            "calls were lost",
        ),
        (count(Row::others_are_full), "the CPU of the generator was full"),
        (count(is_low), "less than 70 % of its CPU was used"),
        (
            count(|row| row.drops > 0),
            "datagrams overflowed its receive buffer",
        ),
    ];
    let said = all.into_iter().filter(|(count, _)| *count > 0);
    said.map(|(count, what)| {
        format!(
            "{}, {scenario}: {what} in {count} of {} runs.",
            server.name(),
            rows.len()
        )
    })
    .collect()
}
