//! `batching`.

use super::model::{Kind, Page, Plot, SPREAD, Section, Series, Table, lines, number, or_dash, peak_cells};
use crate::case::{LookUps, Mode, Purpose, Server, Setup};
use crate::cpu::ratio;
use crate::paper::Paper;
use crate::results::{Results, Row};
use crate::statistics::{Verdict, median, ratio_interval};

pub(super) fn page(results: &Results, paper: Option<&Paper>) -> Page {
    let mut introduction = vec![
        "Authenticated calls a second with the subscribers in a MariaDB behind a relay that delays each direction. \
         Every call is challenged, its credentials are looked up (nothing is cached), and it is relayed with state. A \
         setting's peak is the highest rate of which less than 1 % fails and 99 % of the calls are answered within a \
         quarter of a second, before anything is sent again."
            .to_owned(),
    ];
    introduction.extend(paper.map(|paper| format!("{}: {}.", paper.title, paper.conditions)));
    let mut sections: Vec<Section> = all(results, paper).into_iter().collect();
    sections.extend(turns(results));
    sections.extend(singles(results, paper));
    sections.extend(batches(results, paper));
    sections.extend(grid(results));
    sections.extend(duel(results));
    sections.extend(bandwidth(results, paper));
    sections.extend(query_time(results, paper));
    sections.extend(cpu(results, paper));
    sections.extend(rare(results));
    Page {
        title: "Looking credentials up far away".to_owned(),
        verdict: super::Verdict::default(),
        introduction,
        sections,
    }
}

/// Settings that a peak was searched for, in order, and their look-ups.
fn settings(results: &Results) -> Vec<(Setup, LookUps)> {
    let mut found: Vec<(Setup, LookUps)> = Vec::new();
    for at in &results.peaks {
        if let Some(look_ups) = at.setup.look_ups
            && !found.iter().any(|(setup, _)| *setup == at.setup)
        {
            found.push((at.setup, look_ups));
        }
    }
    found
}

fn ours(results: &Results, of: impl Fn(&LookUps) -> bool) -> Vec<(Setup, LookUps)> {
    let all = settings(results).into_iter();
    all.filter(|(setup, look_ups)| setup.server == Server::Trapezoid && of(look_ups))
        .collect()
}

/// The run nearest its peak that was carried.
fn at_peak<'a>(results: &'a Results, setup: &Setup) -> Option<&'a Row> {
    let rows = results.rows.iter();
    rows.filter(|row| {
        row.setup == *setup && row.run.purpose == Purpose::Look && row.verdict == Verdict::Carried
    })
    .max_by(|a, b| a.run.rate.total_cmp(&b.run.rate))
}

fn planned(results: &Results, look_ups: &LookUps) -> Option<f64> {
    let mut all = results.predictions.iter();
    let found = all.find(|of| {
        of.look_ups.connections == look_ups.connections && of.look_ups.max_batch == look_ups.max_batch
    });
    found.map(|of| of.peak)
}

fn all(results: &Results, paper: Option<&Paper>) -> Option<Section> {
    let mut table = Table::new([
        "setting",
        "peak, calls/s",
        "least to greatest",
        "95 %",
        "plan",
        "paper",
        "look-ups in a batch",
        "batch, ms",
        "bytes on the wire a call",
        "µs of the server",
        "µs of the database",
    ]);
    let mut off = Vec::new();
    for (setup, look_ups) in settings(results) {
        let row = at_peak(results, &setup);
        let is_ours = setup.server == Server::Trapezoid;
        let plan = planned(results, &look_ups).filter(|_| is_ours && look_ups.mode != Mode::Adaptive);
        let claim = paper
            .and_then(|paper| paper.claim(&look_ups.text()))
            .filter(|_| is_ours);
        off.extend(
            results
                .peak(&setup)
                .zip(plan)
                .map(|(peak, plan)| 100.0 * (peak / plan - 1.0)),
        );
        let [peak, range, interval] = peak_cells(results, &setup);
        let wire = row.and_then(Row::wire_bytes_each);
        table.push([
            setup.text(),
            peak,
            range,
            interval,
            or_dash(plan),
            or_dash(claim.map(|claim| claim.value)),
            or_dash(row.and_then(Row::mean_batch)),
            or_dash(row.and_then(Row::batch_ms)),
            wire.map_or_else(|| "–".to_owned(), |(to, from)| format!("{to:.0} + {from:.0}")),
            or_dash(row.map(Row::server_us)),
            or_dash(row.and_then(Row::database_us)),
        ]);
    }
    let mut text = Vec::new();
    if let Some(middle) = median(&off) {
        let least = off.iter().copied().fold(f64::INFINITY, f64::min);
        let most = off.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let within = off.iter().filter(|part| part.abs() <= 15.0).count();
        text.push(format!(
            "Measured beside the plan: {least:+.0} % to {most:+.0} %, median {middle:+.0} %; {within} of {} settings \
             within 15 %.",
            off.len()
        ));
    }
    text.push(
        "The plan (trapezoid plan auth) was made before, from batches asked for one after the other. The paper's \
         figures are of its machines; its processes are our connections."
            .to_owned(),
    );
    text.push(SPREAD.to_owned());
    (!table.rows.is_empty()).then(|| Section {
        title: "All settings".to_owned(),
        text,
        plot: None,
        table,
    })
}

/// What settings complete when they are offered more than they carry, in turn.
fn turns(results: &Results) -> Option<Section> {
    let mut table = Table::new(["setting", "offered, calls/s", "median, calls/s", "rounds"]);
    for setup in results.setups(Purpose::Beyond) {
        let rows = results.of(&setup, Purpose::Beyond);
        let rounds: Vec<String> = rows.iter().map(|row| number(row.load.goodput)).collect();
        table.push([
            setup.text(),
            or_dash(rows.first().map(|row| row.run.rate)),
            or_dash(Results::median(&rows, |row| row.load.goodput)),
            rounds.join(", "),
        ]);
    }
    (!table.rows.is_empty()).then(|| Section {
        title: "What settings carry, in turn".to_owned(),
        text: vec![
            "Each is offered more than it carries, for a moment: what it completes meanwhile is what it carries. Settings \
             take turns, so that what is compared has seen the same minute."
                .to_owned(),
        ],
        plot: None,
        table,
    })
}

/// Peaks of settings against a number of theirs, with the plan and the paper.
fn against(
    results: &Results,
    paper: Option<&Paper>,
    settings: &[(Setup, LookUps)],
    (title, x): (&str, &str),
    of: impl Fn(&LookUps) -> u32,
) -> Option<Section> {
    let (mut here, mut plan, mut there) = (Vec::new(), Vec::new(), Vec::new());
    let mut table = Table::new([x, "peak, calls/s", "plan", "paper", "where"]);
    for (setup, look_ups) in settings {
        let at = f64::from(of(look_ups));
        let claim = paper.and_then(|paper| paper.claim(&look_ups.text()));
        let expected = planned(results, look_ups);
        here.extend(results.peak(setup).map(|peak| (at, peak)));
        plan.extend(expected.map(|peak| (at, peak)));
        there.extend(claim.map(|claim| (at, claim.value)));
        let [peak, ..] = peak_cells(results, setup);
        table.push([
            of(look_ups).to_string(),
            peak,
            or_dash(expected),
            or_dash(claim.map(|claim| claim.value)),
            claim.map_or_else(|| "–".to_owned(), |claim| claim.place.clone()),
        ]);
    }
    if settings.len() < 2 {
        return None;
    }
    let dashed = |name: &str, points| Series {
        dashed: true,
        ..Series::new(name, points)
    };
    let series = vec![
        Series::new("here", here),
        dashed("plan", plan),
        dashed("paper", there),
    ];
    Some(Section {
        title: title.to_owned(),
        text: Vec::new(),
        plot: lines(x, "calls/s", true, series),
        table,
    })
}

fn singles(results: &Results, paper: Option<&Paper>) -> Option<Section> {
    let settings = ours(results, |of| of.mode == Mode::Single);
    let title = ("Single look-ups on many connections (figure 4)", "connections");
    against(results, paper, &settings, title, |of| of.connections)
}

fn batches(results: &Results, paper: Option<&Paper>) -> Option<Section> {
    let settings = ours(results, |of| of.mode == Mode::Fixed && of.connections == 1);
    let title = ("Batches on one connection (figure 9)", "most in a batch");
    against(results, paper, &settings, title, |of| of.max_batch)
}

fn grid(results: &Results) -> Option<Section> {
    let settings = ours(results, |of| of.mode == Mode::Fixed && of.connections > 1);
    let sizes = |of: fn(&LookUps) -> u32| {
        let all = settings.iter().map(|(_, look_ups)| of(look_ups));
        all.collect::<std::collections::BTreeSet<u32>>()
    };
    let (connections, batches) = (sizes(|of| of.connections), sizes(|of| of.max_batch));
    let at = |p: u32, b: u32| {
        let mut found = settings
            .iter()
            .filter(|(_, of)| of.connections == p && of.max_batch == b);
        found.next().map(|(setup, _)| *setup)
    };
    let mut table = Table {
        head: vec!["connections \\ most in a batch".to_owned()],
        rows: Vec::new(),
    };
    table.head.extend(batches.iter().map(u32::to_string));
    let mut series = Vec::new();
    for p in &connections {
        let cells = batches
            .iter()
            .map(|b| at(*p, *b).map_or_else(|| "–".to_owned(), |s| peak_cells(results, &s)[0].clone()));
        table
            .rows
            .push(std::iter::once(p.to_string()).chain(cells).collect());
        let points = batches
            .iter()
            .filter_map(|b| Some((f64::from(*b), results.peak(&at(*p, *b)?)?)));
        series.push(Series::new(format!("{p} connections"), points.collect()));
    }
    (batches.len() > 1).then(|| Section {
        title: "Connections and batches (figure 13)".to_owned(),
        text: vec![
            "The paper's text gives one number of its 36: 12,100 calls/s for 32×16, the best.".to_owned(),
        ],
        plot: lines("most in a batch", "calls/s", true, series),
        table,
    })
}

/// Adaptive mode and the best fixed setting in turn.
fn duel(results: &Results) -> Option<Section> {
    let settings = settings(results);
    let rounds = |setup: &Setup| -> Vec<f64> {
        let found = results
            .peaks
            .iter()
            .filter(|found| found.setup == *setup && found.round > 1);
        found
            .map(|found| found.peak.as_ref().map_or(0.0, |peak| peak.rate))
            .collect()
    };
    let fought = |mode: Mode| {
        let mut all = settings.iter().filter(|(_, look_ups)| look_ups.mode == mode);
        all.find(|(setup, _)| !rounds(setup).is_empty())
            .map(|(setup, _)| *setup)
    };
    let (adaptive, fixed) = (fought(Mode::Adaptive)?, fought(Mode::Fixed)?);
    let (mine, theirs) = (rounds(&adaptive), rounds(&fixed));
    let ratios: Vec<f64> = mine
        .iter()
        .zip(&theirs)
        .map(|(mine, theirs)| ratio(*mine, *theirs))
        .collect();
    let mut table = Table::new(["setting", "median, calls/s", "rounds"]);
    for (setup, peaks) in [(&adaptive, &mine), (&fixed, &theirs)] {
        let all: Vec<String> = peaks.iter().map(|peak| number(*peak)).collect();
        table.push([setup.text(), or_dash(median(peaks)), all.join(", ")]);
    }
    let interval = ratio_interval(&ratios);
    let interval = interval.map_or_else(String::new, |of| {
        format!(
            " (95 %: {:.2} to {:.2}, {}, n = {})",
            of.low,
            of.high,
            of.method.text(),
            ratios.len()
        )
    });
    Some(Section {
        title: "Adaptive beside the best fixed setting, in turn".to_owned(),
        text: vec![format!(
            "Adaptive carries {:.0} % of what the best fixed setting carries, in the median of the rounds{interval}. \
             It does not know the load beforehand.",
            100.0 * median(&ratios).unwrap_or(0.0)
        )],
        plot: None,
        table,
    })
}

fn bandwidth(results: &Results, paper: Option<&Paper>) -> Option<Section> {
    let mut table = Table::new([
        "setting",
        "calls/s",
        "queries, kbit/s",
        "answers, kbit/s",
        "bytes a call",
        "paper: kbit/s",
        "paper: bytes a call",
        "where",
    ]);
    let (mut single, mut batched) = (Vec::new(), Vec::new());
    for (setup, look_ups) in ours(results, |_| true) {
        let Some((row, wire)) = at_peak(results, &setup).and_then(|row| Some((row, row.wire?))) else {
            continue;
        };
        let both = wire.queries.kbit_s() + wire.answers.kbit_s();
        let points = if look_ups.mode == Mode::Single {
            &mut single
        } else {
            &mut batched
        };
        points.push((row.load.goodput, both));
        let each = row.wire_bytes_each().map(|(to, from)| to + from);
        let there = paper.and_then(|paper| paper.bandwidths.iter().find(|of| of.name == look_ups.text()));
        table.push([
            setup.text(),
            number(row.load.goodput),
            number(wire.queries.kbit_s()),
            number(wire.answers.kbit_s()),
            or_dash(each),
            there.map_or_else(
                || "–".to_owned(),
                |of| format!("{} + {}", number(of.query_kbit_s), number(of.answer_kbit_s)),
            ),
            or_dash(there.map(crate::paper::Bandwidth::bytes_each)),
            there.map_or_else(|| "–".to_owned(), |of| of.place.clone()),
        ]);
    }
    for points in [&mut single, &mut batched] {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    (!table.rows.is_empty()).then(|| Section {
        title: "Bandwidth to and from the database (figures 8, 11, 14, table 1)".to_owned(),
        text: vec![
            "Counted by the relay, with headers of Ethernet, IP and TCP as it estimates them, at each setting's peak."
                .to_owned(),
        ],
        plot: lines(
            "calls/s",
            "kbit/s, both ways",
            true,
            vec![Series::new("single", single), Series::new("in batches", batched)],
        )
        // Each is a setting at its own peak.
        .map(|plot| Plot {
            kind: Kind::Points,
            ..plot
        }),
        table,
    })
}

fn query_time(results: &Results, paper: Option<&Paper>) -> Option<Section> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (setup, _) in ours(results, |of| of.mode == Mode::Fixed || of.connections <= 8) {
        points.extend(at_peak(results, &setup).and_then(|row| Some((row.mean_batch()?, row.batch_ms()?))));
    }
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut table = Table::new([
        "look-ups in a batch",
        "ms, round trip and all",
        "ms for each look-up",
        "from",
    ]);
    for (rows, ms) in &points {
        table.push([
            number(*rows),
            format!("{ms:.2}"),
            format!("{:.2}", ratio(*ms, *rows)),
            "here".to_owned(),
        ]);
    }
    let there: Vec<(f64, f64)> = paper.map_or_else(Vec::new, |paper| {
        paper.query_times.iter().map(|of| (of.rows, of.ms)).collect()
    });
    for of in paper.iter().flat_map(|paper| &paper.query_times) {
        let each = format!("{:.2}", ratio(of.ms, of.rows));
        table.push([
            number(of.rows),
            format!("{:.2}", of.ms),
            each,
            format!("the paper, {}", of.place),
        ]);
    }
    let paper_points = Series {
        dashed: true,
        ..Series::new("paper", there)
    };
    (!points.is_empty()).then(|| Section {
        title: "Time of a batch against its size (figure 10)".to_owned(),
        text: vec!["In the mean, by the server's counters, from sending to the answer.".to_owned()],
        plot: lines(
            "look-ups in a batch",
            "ms",
            true,
            vec![Series::new("here", points), paper_points],
        ),
        table,
    })
}

fn cpu(results: &Results, paper: Option<&Paper>) -> Option<Section> {
    let mut table = Table::new([
        "setting",
        "calls/s",
        "server, %",
        "database, %",
        "relay, %",
        "paper: proxy, %",
        "paper: database, %",
        "where",
    ]);
    for (setup, look_ups) in settings(results) {
        let Some(row) = at_peak(results, &setup) else {
            continue;
        };
        let percent = |used: Option<&crate::cpu::Used>| or_dash(used.map(|used| 100.0 * used.utilization()));
        let there = paper
            .and_then(|paper| paper.cpus.iter().find(|of| of.name == look_ups.text()))
            .filter(|_| setup.server == Server::Trapezoid);
        table.push([
            setup.text(),
            number(row.load.goodput),
            percent(Some(&row.server)),
            percent(row.database.as_ref()),
            percent(row.relay.as_ref()),
            or_dash(there.map(|of| of.proxy_percent)),
            or_dash(there.map(|of| of.database_percent)),
            there.map_or_else(|| "–".to_owned(), |of| of.place.clone()),
        ]);
    }
    (!table.rows.is_empty()).then(|| Section {
        title: "CPU at the peaks (figures 7, 15 and 16, table 1)".to_owned(),
        text: vec![
            "Of one CPU. Database, relay and generator share one; the paper's machines had two each."
                .to_owned(),
        ],
        plot: None,
        table,
    })
}

/// Times of calls that come one at a time: how much a look-up adds to each.
fn rare(results: &Results) -> Option<Section> {
    let mut table = Table::new(["setting", "calls/s", "p50 ms", "p99 ms"]);
    for setup in results.setups(Purpose::Rare) {
        for row in results.of(&setup, Purpose::Rare) {
            let times = row.load.response_ms.get(setup.case.operation.response());
            table.push([
                setup.text(),
                number(row.run.rate),
                times.map_or_else(|| "–".to_owned(), |times| format!("{:.2}", times.p50)),
                times.map_or_else(|| "–".to_owned(), |times| format!("{:.2}", times.p99)),
            ]);
        }
    }
    (!table.rows.is_empty()).then(|| Section {
        title: "Answers when calls are rare".to_owned(),
        text: vec![
            "From INVITE to 200, the challenge and the look-up in it: what a batch waits for company."
                .to_owned(),
        ],
        plot: None,
        table,
    })
}
