//! `pings`.

use std::collections::BTreeMap;

use super::memory::mebibytes;
use super::model::{Kind, Page, Plot, Section, Series, Table, number, or_dash};
use crate::cpu::ratio;
use crate::experiments::pings::{Found, phases, servers, us_each};
use crate::results::Results;
use crate::steps::{PingPlan, Pinged, WINDOW_S};

pub(super) fn page(results: &Results) -> Page {
    let (servers, phases) = (servers(&results.steps), phases(&results.steps));
    Page {
        title: "What NAT keep-alive costs".to_owned(),
        verdict: super::Verdict::default(),
        introduction: vec![
            "CPU and memory of a server with one worker that keeps the NATs before its registered contacts open. Each \
             contact has a private address and a source address of its own, all on the loopback. The server pings each at \
             its source once in an interval, statelessly."
                .to_owned(),
            "None: no pings. Options: each ping is answered by a 200. Unanswered: from the beginning of the phase no phone \
             answers, so that contacts are lost after some pings. Crlf: contacts that have answered one OPTIONS get empty \
             lines, which have no answer."
                .to_owned(),
        ],
        sections: vec![costs(&phases), evenness(&phases), memory(&servers), parts(&phases)],
    }
}

fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

fn costs(phases: &[Found<'_>]) -> Section {
    let mut table = Table::new([
        "pings",
        "contacts",
        "pings/s",
        "answers/s",
        "CPU of the server",
        "in user mode",
        "µs for each ping",
        "pings/s by the server's counter",
        "answers/s by it",
        "datagrams lost",
    ]);
    for found in phases {
        let (phase, counted) = (found.phase, &found.phase.counted);
        table.push([
            found.name().to_owned(),
            number(f64::from(found.plan.contacts)),
            number(phase.rate()),
            number(phase.answer_rate()),
            percent(phase.server.utilization()),
            percent(phase.server.user_share()),
            us_each(phases, found).map_or_else(|| "–".to_owned(), |us| format!("{us:.2}")),
            number(ratio(counted.sent, counted.seconds)),
            number(ratio(counted.answered, counted.seconds)),
            format!("{:.3} %", 100.0 * phase.lost()),
        ]);
    }
    Section {
        title: "What pings cost".to_owned(),
        text: vec![
            "CPU is a share of one core, of all threads of the server. µs for each ping is what is more of it than without \
             pings, divided by the pings; the response to the ping is in it. On loopback, sending a ping includes the \
             delivery to the phones' socket."
                .to_owned(),
            "Pings and answers are those that the phones count. Lost is what found no room at the server's or the \
             phones' socket, as a share of the datagrams of both ways."
                .to_owned(),
        ],
        plot: None,
        table,
    }
}

fn evenness(phases: &[Found<'_>]) -> Section {
    let pinged: Vec<&Found<'_>> = phases.iter().filter(|of| of.phase.heard.total() > 0).collect();
    let mut table = Table::new([
        "pings",
        "pings in 100 ms, mean",
        "most",
        "most / mean",
        "windows",
        "contacts pinged too rarely",
        "too often",
    ]);
    for found in &pinged {
        let phase = found.phase;
        let (mean, most) = (phase.mean_window(), phase.fullest_window());
        // An empty line does not show which contact it is for.
        let uneven = (phase.heard.options > 0).then(|| phase.uneven_contacts());
        let cell = |contacts: Option<u64>| contacts.map_or_else(|| "–".to_owned(), |count| count.to_string());
        table.push([
            found.name().to_owned(),
            number(mean),
            number(most),
            format!("{:.2} ×", ratio(most, mean)),
            phase.heard.whole_windows().len().to_string(),
            cell(uneven.map(|(few, _)| few)),
            cell(uneven.map(|(_, many)| many)),
        ]);
    }
    let series = pinged.iter().map(|found| {
        let windows = found.phase.heard.whole_windows().iter().enumerate();
        let points = windows.map(|(index, pings)| (index as f64 * WINDOW_S, f64::from(*pings)));
        Series::new(found.name(), points.collect())
    });
    let series: Vec<Series> = series.collect();
    Section {
        title: "How evenly they are spread".to_owned(),
        text: vec![
            "Pings that came to the phones in each 100 ms, from the beginning of the phase. A machine that stalls makes \
             one window empty and the next one full."
                .to_owned(),
            "Too rarely: a contact without a ping in one of its intervals; too often: with two in one.".to_owned(),
        ],
        plot: (!series.is_empty()).then(|| Plot {
            x: "seconds".to_owned(),
            y: "pings in 100 ms".to_owned(),
            x_log: false,
            kind: Kind::Lines,
            labels: Vec::new(),
            series,
        }),
        table,
    }
}

fn memory(servers: &[(PingPlan, &Pinged)]) -> Section {
    let mut table = Table::new([
        "pings",
        "contacts",
        "registered in s",
        "REGISTERs sent again",
        "MiB before",
        "MiB registered",
        "MiB after",
        "bytes for each contact",
    ]);
    for (plan, pinged) in servers {
        table.push([
            plan.ping.word().to_owned(),
            number(pinged.known),
            number(pinged.phones.seconds),
            pinged.phones.resent.to_string(),
            mebibytes(pinged.before),
            mebibytes(pinged.registered),
            mebibytes(pinged.after),
            number(pinged.bytes_each()),
        ]);
    }
    Section {
        title: "What is held".to_owned(),
        text: vec![
            "Proportional set size of the server: before the first registration, when all phones have registered and each \
             was pinged once, and at the end."
                .to_owned(),
        ],
        plot: None,
        table,
    }
}

/// Shares of the server's measured CPU time, the largest component of all phases first.
fn parts(phases: &[Found<'_>]) -> Section {
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, seconds) in phases.iter().flat_map(|of| &of.phase.components) {
        *sums.entry(name).or_default() += seconds;
    }
    let mut names: Vec<(&str, f64)> = sums.into_iter().collect();
    names.sort_by(|a, b| b.1.total_cmp(&a.1));
    let head = std::iter::once("component").chain(phases.iter().map(Found::name));
    let mut table = Table {
        head: head.map(str::to_owned).collect(),
        rows: Vec::new(),
    };
    for (name, _) in names {
        let cells = phases.iter().map(|of| {
            let seconds = of.phase.components.get(name).copied();
            or_dash(seconds.map(|seconds| ratio(1e3 * seconds, of.phase.counted.seconds)))
        });
        table
            .rows
            .push(std::iter::once(name.to_owned()).chain(cells).collect());
    }
    Section {
        title: "What the worker's CPU time goes into".to_owned(),
        text: vec!["Milliseconds of CPU a second, by the server's own counters.".to_owned()],
        plot: None,
        table,
    }
}

/// The main figures, a sentence each.
pub(super) fn findings(results: &Results) -> Vec<String> {
    let phases = phases(&results.steps);
    let each = phases.iter().filter_map(|found| {
        let us = us_each(&phases, found)?;
        let state = match found.name() {
            "options" => "OPTIONS that are all answered",
            "unanswered" => "OPTIONS that no phone answers",
            _ => "empty lines",
        };
        Some(format!(
            "{} contacts, pinged each {} s by {state}: {} pings/s take {} of one core, {us:.2} µs for each ping beyond what \
             the server takes without them.",
            number(f64::from(found.plan.contacts)),
            found.plan.interval_s,
            number(found.phase.rate()),
            percent(found.phase.server.utilization()),
        ))
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::super::page;
    use crate::experiments::Scale;
    use crate::experiments::synthetic::Synthetic;
    use crate::experiments::tests::run_with;

    #[test]
    fn each_phase_has_its_row() {
        let results = run_with("pings", &mut Synthetic::new(), &Scale::full()).unwrap();
        let page = page(&results).unwrap();
        assert_eq!(page.verdict.findings.len(), 3, "{:?}", page.verdict.findings);
        assert_eq!(
            page.verdict.findings[0],
            "1,000,000 contacts, pinged each 25 s by OPTIONS that are all answered: 40,000 pings/s take 21.0 % of one \
             core, 5.00 µs for each ping beyond what the server takes without them."
        );
        let costs = &page.sections[1].table;
        let names: Vec<&str> = costs.rows.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(names, ["none", "options", "unanswered", "crlf"]);
        assert_eq!(costs.rows[0][2..5], ["0.0", "0.0", "1.0 %"]);
        assert_eq!(costs.rows[1][2..5], ["40,000", "40,000", "21.0 %"]);
        let even = &page.sections[2];
        assert_eq!(even.table.rows.len(), 3);
        assert_eq!(
            even.table.rows[0],
            ["options", "4,000", "4,000", "1.00 ×", "500", "0", "0"]
        );
        assert_eq!(even.plot.as_ref().unwrap().series.len(), 3);
        let memory = &page.sections[3].table;
        assert_eq!(memory.rows.len(), 3);
        assert_eq!(memory.rows[0][7], "300");
        let parts = &page.sections[4].table;
        assert_eq!(parts.head, ["component", "none", "options", "unanswered", "crlf"]);
        assert_eq!(parts.rows[0], ["send", "0.0", "120", "120", "120"]);
    }
}
