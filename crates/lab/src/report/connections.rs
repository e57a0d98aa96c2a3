//! `connections`.

use super::model::{Page, Section, Table, number, or_dash};
use crate::case::Server;
use crate::crowd::said;
use crate::experiments::connections::checks::{message_pairs, sieges, storms};
use crate::results::Results;
use crate::statistics::{median, ratio_interval};
use crate::steps::{Calls, Handshake, Key, Kind, Measured, Memory, Storm};

const BOTH: [Server; 2] = [Server::Trapezoid, Server::Kamailio];

pub(super) fn page(results: &Results) -> Page {
    let all = &results.steps;
    let sections = [
        idle(all),
        messages(all),
        attackers(all),
        handshakes(all),
        storm(all),
    ];
    Page {
        title: "Connections".to_owned(),
        verdict: super::Verdict::default(),
        introduction: vec![
            "What connections cost a server with one worker: bytes of idle ones, work for each message beside many of \
             them, attackers, handshakes, and a restart. Clients come from sixteen addresses. Kamailio answers OPTIONS, \
             and no more."
                .to_owned(),
        ],
        sections: sections.into_iter().flatten().collect(),
    }
}

fn section(title: &str, text: &[&str], table: Table) -> Option<Section> {
    (!table.rows.is_empty()).then(|| Section {
        title: title.to_owned(),
        text: text.iter().map(|text| (*text).to_owned()).collect(),
        plot: None,
        table,
    })
}

/// A number of things.
fn whole(count: usize) -> String {
    if count < 100 {
        count.to_string()
    } else {
        number(count as f64)
    }
}

fn mebibytes(bytes: f64) -> String {
    format!("{:.1}", bytes / f64::from(1 << 20))
}

fn idle(all: &[Measured]) -> Option<Section> {
    let mut table = Table::new([
        "connection",
        "server",
        "there",
        "bytes each",
        "goal",
        "slabs of the kernel, bytes each",
        "buffers of the kernel, bytes each",
        "MiB before",
        "MiB at most",
        "MiB after",
        "opened in, s",
    ]);
    for (server, kind, memory) in memories(all) {
        let (slabs, buffers) = memory.kernel_each();
        let goal = (server == Server::Trapezoid).then(|| kind.goal());
        table.push([
            kind.text().to_owned(),
            server.name().to_owned(),
            whole(memory.crowd.opened),
            number(memory.bytes_each()),
            or_dash(goal),
            number(slabs),
            number(buffers),
            mebibytes(memory.before as f64),
            mebibytes(memory.most as f64),
            mebibytes(memory.after as f64),
            number(memory.crowd.seconds),
        ]);
    }
    section(
        "Idle connections",
        &[
            "Each client has sent an OPTIONS and received its 200. Bytes each: what the proportional set size of the \
             server's processes grew by, divided by the connections. The goal is for that.",
            "The kernel's memory is counted separately: that of the whole machine, which has both ends.",
        ],
        table,
    )
}

fn memories(all: &[Measured]) -> Vec<(Server, Kind, &Memory)> {
    let found = all.iter();
    found
        .filter_map(|one| Some((one.step.server(), one.step.kind(), one.memory()?)))
        .collect()
}

fn messages(all: &[Measured]) -> Option<Section> {
    let found = all.iter().find_map(Measured::messages)?;
    let mut table = Table::new([
        "idle TLS connections",
        "calls/s",
        "µs for each message, median",
        "rounds",
        "CPU of the server",
        "CPU of the generator",
        "beside the few",
        "95 %",
    ]);
    let ratios: Vec<f64> = message_pairs(found)
        .iter()
        .map(|(many, few)| crate::cpu::ratio(*many, *few))
        .collect();
    let mut counts: Vec<u32> = found.runs.iter().map(|run| run.idle).collect();
    counts.sort_unstable();
    counts.dedup();
    for (index, count) in counts.iter().enumerate() {
        let runs = found.runs.iter().filter(|run| run.idle == *count);
        let runs: Vec<_> = runs.map(|run| &run.calls).collect();
        let of = |figure: fn(&Calls) -> f64| {
            median(&runs.iter().map(|calls| figure(calls)).collect::<Vec<_>>()).unwrap_or(0.0)
        };
        let each: Vec<String> = runs
            .iter()
            .map(|calls| format!("{:.2}", calls.us_each()))
            .collect();
        let many = index > 0;
        let interval = ratio_interval(&ratios).filter(|_| many);
        let ratio = median(&ratios).filter(|_| many);
        table.push([
            whole(*count as usize),
            number(of(|calls| calls.rate)),
            format!("{:.2}", of(Calls::us_each)),
            each.join(", "),
            format!("{:.2}", of(|calls| calls.server.utilization())),
            format!("{:.2}", of(|calls| calls.load.generator.utilization)),
            ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3} ×")),
            interval.map_or_else(
                || "–".to_owned(),
                |interval| format!("{:.3} to {:.3}", interval.low, interval.high),
            ),
        ]);
    }
    section(
        "A message beside idle connections",
        &[
            "Stateful calls over one TCP connection; each relays six messages. Two servers of one kind, one with few and \
             one with many idle TLS connections, take turns. CPU time of the server, the kernel's included.",
        ],
        table,
    )
}

/// How many were there at the end, how many the server cut, how many could not connect.
fn crowd(of: &said::Attackers) -> String {
    format!("{}, {}, {}", of.there, of.cut, of.refused)
}

fn attackers(all: &[Measured]) -> Option<Section> {
    let mut table = Table::new([
        "round",
        "p99 without, ms",
        "p99 with, ms",
        "ratio",
        "memory grew by, MiB",
        "bound, MiB",
        "buffers of the kernel grew by, MiB",
        "slow: there, cut, refused",
        "deaf: there, cut, refused",
    ]);
    for (round, siege) in sieges(all) {
        let (calm, attacked) = (siege.calm.p99_ms(), siege.attacked.p99_ms());
        table.push([
            round.to_string(),
            format!("{calm:.2}"),
            format!("{attacked:.2}"),
            format!("{:.2} ×", crate::cpu::ratio(attacked, calm)),
            mebibytes(siege.growth()),
            mebibytes(siege.bound()),
            mebibytes(siege.kernel()),
            crowd(&siege.slow),
            crowd(&siege.deaf),
        ]);
    }
    section(
        "Attackers",
        &[
            "p99 is from INVITE to 200, of calls by TCP on another listener of the same worker. Half of the slow clients \
             begin a handshake, the others a message, and all send a byte each three seconds. The deaf ask for responses \
             of 33 kB and never read one. A client that is cut comes again at once.",
            "The attackers run at idle priority, so that the generator does not wait for its CPU: they do what that \
             leaves them. The bound is what all connections together may hold (transport.connection_bytes), and 24 kB for \
             each attacker. The kernel's buffers are those of both ends.",
        ],
        table,
    )
}

/// Connections of a server, one after the other, of all rounds; with the key of its certificate.
fn shaken(all: &[Measured], server: Server) -> Vec<(Option<Key>, &Handshake)> {
    let mut found = Vec::new();
    for one in all.iter().filter(|one| one.step.server() == server) {
        let handshakes = one.handshakes().into_iter().flatten();
        found.extend(handshakes.map(|handshake| (one.step.key(), handshake)));
    }
    found
}

/// The median of a figure over the rounds of one case.
fn of_case(
    shaken: &[(Option<Key>, &Handshake)],
    (key, version, resumed): (Option<Key>, &str, bool),
    figure: fn(&Handshake) -> f64,
) -> Option<f64> {
    let case = shaken
        .iter()
        .filter(|(of, handshake)| *of == key && handshake.version == version && handshake.resumed == resumed);
    median(&case.map(|(_, handshake)| figure(handshake)).collect::<Vec<_>>())
}

/// Cases in the order in which they are shown.
fn cases() -> Vec<(Option<Key>, &'static str, bool)> {
    let mut cases = vec![(None, "", false)];
    for key in [Key::P256, Key::Rsa2048] {
        for version in ["1.3", "1.2"] {
            cases.extend([false, true].map(|resumed| (Some(key), version, resumed)));
        }
    }
    cases
}

/// Microseconds in memory: by our sessions, and by the library's buffered interface.
fn alone(all: &[Measured], key: Key, version: &str, resumed: bool) -> [Option<f64>; 2] {
    let rows = all.iter().find_map(Measured::in_memory);
    ["ours", "buffered"].map(|interface| {
        let mut rows = rows.into_iter().flatten();
        let row = rows.find(|row| {
            row.key == key.text()
                && row.version == version
                && row.resumed == resumed
                && row.interface == interface
        });
        row.map(|row| row.mean_us)
    })
}

fn handshakes(all: &[Measured]) -> Option<Section> {
    let mut table = Table::new([
        "connection",
        "server",
        "µs of its CPU",
        "of which in the kernel",
        "each second on one core",
        "µs without what TCP costs",
        "µs in memory: ours",
        "µs in memory: the library's buffered",
        "beside memory",
        "without TCP, beside memory",
    ]);
    for case in cases() {
        let (key, version, resumed) = case;
        let [ours, buffered] = key.map_or([None; 2], |key| alone(all, key, version, resumed));
        for server in BOTH {
            let shaken = shaken(all, server);
            let Some(us) = of_case(&shaken, case, Handshake::us) else {
                continue;
            };
            let tcp = of_case(&shaken, (None, "", false), Handshake::us).filter(|_| key.is_some());
            let net = tcp.map(|tcp| us - tcp);
            let beside = |us: Option<f64>| {
                let ratio = us.zip(ours).map(|(us, ours)| crate::cpu::ratio(us, ours));
                ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2} ×"))
            };
            let kind = if resumed { "resumed" } else { "full" };
            table.push([
                key.map_or_else(
                    || "TCP alone".to_owned(),
                    |key| format!("TLS {version}, {}, {kind}", key.text()),
                ),
                server.name().to_owned(),
                number(us),
                or_dash(of_case(&shaken, case, Handshake::system_us)),
                number(crate::cpu::ratio(1e6, us)),
                or_dash(net),
                or_dash(ours),
                or_dash(buffered),
                beside(Some(us)),
                beside(net),
            ]);
        }
    }
    section(
        "Handshakes",
        &[
            "CPU of the server for each connection: accepted, handshake, two bytes, closed by both; the median of the \
             rounds. In memory: CPU of the server's end for the same bytes without a socket, on the server's CPU.",
            "Clients verify nothing, so that theirs is the shorter part. A session of TLS 1.3 is resumed with a \
             Diffie-Hellman exchange, one of 1.2 without: so that one costs much less.",
        ],
        table,
    )
}

fn storm(all: &[Measured]) -> Option<Section> {
    let mut table = Table::new([
        "server",
        "round",
        "clients",
        "served",
        "resumed",
        "all served after, s",
        "median, s",
        "p99, s",
        "attempts",
        "most of one client",
        "CPU of the server, s",
        "calls beside",
        "their p99, ms",
    ]);
    for server in BOTH {
        for (index, storm) in storms(all, server).into_iter().enumerate() {
            let said = &storm.crowd;
            table.push([
                server.name().to_owned(),
                (index + 1).to_string(),
                whole(said.asked),
                whole(said.served),
                whole(said.resumed),
                format!("{:.2}", said.all_s),
                format!("{:.2}", said.median_s),
                format!("{:.2}", said.p99_s),
                said.tries.to_string(),
                said.most_tries.to_string(),
                format!("{:.2}", storm.server.total_s),
                calls(storm),
                storm
                    .p99_ms()
                    .map_or_else(|| "–".to_owned(), |ms| format!("{ms:.2}")),
            ]);
        }
    }
    section(
        "All come back at once",
        &[
            "Clients that hold a ticket each. The server is restarted with the same directory, so the same ticket keys; \
             then all connect at once. An attempt is given up after 4 s, and the next comes after 1, 2, 4… s, of which a \
             random part up to a half is taken off. Served: its OPTIONS has a 200.",
            "Beside ours calls go by TCP: the storm breaks when a tenth of them have gone, and the p99 is that of all. The \
             server's CPU is for both.",
        ],
        table,
    )
}

fn calls(storm: &Storm) -> String {
    storm.calls.as_ref().map_or_else(
        || "–".to_owned(),
        |load| format!("{} of {}", load.succeeded, load.offered),
    )
}

/// The main figures, a sentence each.
pub(super) fn findings(results: &Results) -> Vec<String> {
    let all = &results.steps;
    let mut found = Vec::new();
    let idle: Vec<String> = memories(all)
        .into_iter()
        .filter(|(server, ..)| *server == Server::Trapezoid)
        .map(|(_, kind, memory)| format!("{} bytes by {}", number(memory.bytes_each()), kind.text()))
        .collect();
    if !idle.is_empty() {
        found.push(format!("An idle connection holds {}.", idle.join(", ")));
    }
    let shaken = shaken(all, Server::Trapezoid);
    let full = of_case(&shaken, (Some(Key::P256), "1.3", false), Handshake::us);
    let resumed = of_case(&shaken, (Some(Key::P256), "1.2", true), Handshake::us);
    if let Some((full, resumed)) = full.zip(resumed) {
        found.push(format!(
            "A connection with a full handshake of TLS 1.3 takes {} µs of the server's CPU (P-256); one that resumes a \
             session of TLS 1.2 takes {}.",
            number(full),
            number(resumed)
        ));
    }
    let storms = storms(all, Server::Trapezoid);
    let after: Vec<f64> = storms.iter().map(|storm| storm.crowd.all_s).collect();
    if let (Some(first), Some(after)) = (storms.first(), median(&after)) {
        found.push(format!(
            "{} clients that come back at once after a restart are all served after {after:.1} s (median of {}).",
            number(first.crowd.asked as f64),
            storms.len()
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::page;
    use super::*;
    use crate::experiments::checks;
    use crate::experiments::synthetic::steps;

    fn results(quick: bool) -> Results {
        let mut results = Results::new("connections", quick);
        results.steps = steps(quick);
        results.checks = checks::of(&results);
        results
    }

    #[test]
    fn each_part_has_its_table() {
        let page = page(&results(false)).unwrap();
        let titles: Vec<&str> = page
            .sections
            .iter()
            .map(|section| section.title.as_str())
            .collect();
        assert_eq!(
            titles,
            [
                "Shapes that must hold",
                "Idle connections",
                "A message beside idle connections",
                "Attackers",
                "Handshakes",
                "All come back at once",
                "Where, with what and when",
            ]
        );
        let rows: Vec<usize> = page
            .sections
            .iter()
            .map(|section| section.table.rows.len())
            .collect();
        assert_eq!(rows[1..6], [7, 2, 5, 18, 6]);
        for section in &page.sections {
            for row in &section.table.rows {
                assert_eq!(row.len(), section.table.head.len(), "{}: {row:?}", section.title);
            }
        }
        assert_eq!(page.verdict.headline, "All 12 shapes hold.");
        assert_eq!(page.verdict.findings.len(), 3, "{:?}", page.verdict.findings);
    }

    #[test]
    fn figures_stand_where_they_belong() {
        let page = page(&results(false)).unwrap();
        let idle = &page.sections[1].table;
        assert_eq!(idle.rows[0][..5], ["TCP", "Trapezoid", "19,000", "600", "4,000"]);
        assert_eq!(idle.rows[1][..5], ["TCP", "Kamailio", "19,000", "4,800", "–"]);
        let messages = &page.sections[2].table;
        assert_eq!(messages.rows[0][..3], ["1,000", "1,000", "6.97"]);
        assert_eq!(messages.rows[1][6], "1.014 ×");
        let handshakes = &page.sections[4].table;
        assert_eq!(handshakes.rows[0][..2], ["TCP alone", "Trapezoid"]);
        let full = &handshakes.rows[2];
        assert_eq!(full[..3], ["TLS 1.3, P-256, full", "Trapezoid", "260"]);
        assert_eq!(full[5], "210", "without what TCP costs");
        assert_eq!(full[8..], ["1.86 ×", "1.50 ×"]);
        let storm = &page.sections[5].table;
        assert_eq!(storm.rows[0][11..], ["1000 of 1000", "17.00"]);
        assert_eq!(storm.rows[3][11], "–", "Kamailio has no calls beside");
        assert_eq!([whole(0), whole(20), whole(17_712)], ["0", "20", "17,712"]);
    }

    #[test]
    fn the_quick_form_shows_only_what_it_measured() {
        let results = results(true);
        let page = page(&results).unwrap();
        for section in &page.sections {
            for (column, head) in section.table.head.iter().enumerate().skip(1) {
                let is_empty = section.table.rows.iter().all(|row| row[column] == "–");
                assert!(
                    section.table.rows.is_empty() || !is_empty,
                    "{}: {head}",
                    section.title
                );
            }
        }
        let html = super::super::html(&results).unwrap();
        assert!(html.contains("quick form: shapes, not figures") && !html.contains("Kamailio</td>"));
    }
}
