//! `memory`.

use super::model::{Page, Section, Table, number, or_dash};
use crate::case::Server;
use crate::results::Results;
use crate::steps::{Held, Measured, Step};

pub(super) fn page(results: &Results) -> Page {
    Page {
        title: "Memory".to_owned(),
        verdict: super::Verdict::default(),
        introduction: vec![
            "Bytes of what a server with one worker holds, by the proportional set size of its processes: pages that \
             processes share count once."
                .to_owned(),
        ],
        sections: vec![all(results)],
    }
}

pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// What is still held after the quiet, in words.
fn left(held: &Held) -> String {
    held.left.as_ref().map_or_else(
        || "–".to_owned(),
        |left| {
            let each = left.iter().map(|(name, value)| format!("{value:.0} {name}"));
            let text = each.collect::<Vec<_>>().join(", ");
            if text.is_empty() {
                "nothing".to_owned()
            } else {
                text
            }
        },
    )
}

fn all(results: &Results) -> Section {
    let mut table = Table::new([
        "what",
        "completed",
        "MiB before",
        "MiB at most",
        "MiB after",
        "held at most",
        "bytes each",
        "left after the quiet",
    ]);
    for one in &results.steps {
        let Some(held) = one.held() else { continue };
        table.push([
            one.step.text(),
            format!("{} of {}", held.load.succeeded, held.load.offered),
            mebibytes(held.before),
            mebibytes(held.most),
            mebibytes(held.after),
            or_dash(held.things),
            or_dash(held.bytes_each()),
            left(held),
        ]);
    }
    Section {
        title: "What is held".to_owned(),
        text: vec![
            "Transactions: stateful calls over UDP. At the end of the load nearly all are finished ones that wait for \
             timers I, J, K, L or M. Bytes each is what memory grew by, divided by the transactions of both kinds that \
             the server shows, all tables, timers and buffers included."
                .to_owned(),
            "Ringing: calls that all ring at once, two transactions each that still hold their messages. Contacts: \
             registrations in memory."
                .to_owned(),
            "In the quiet every timer of RFC 3261 fires. The allocator keeps what was freed for the next peak, so that \
             resident memory falls little; what is left is what the gauges of transactions, timers and parked requests \
             show."
                .to_owned(),
        ],
        plot: None,
        table,
    }
}

/// The main figures, a sentence each.
pub(super) fn findings(results: &Results) -> Vec<String> {
    let of = |one: &Measured| {
        let each = number(one.held()?.bytes_each()?);
        let what = match one.step {
            Step::Transactions { .. } => "A finished transaction holds",
            Step::Ringing { .. } => "A transaction of a call that rings holds",
            Step::Contacts { .. } => "A registered contact holds",
            Step::Memory { .. }
            | Step::Messages { .. }
            | Step::Attackers { .. }
            | Step::InMemory
            | Step::Handshakes { .. }
            | Step::Storm { .. }
            | Step::Workers { .. }
            | Step::Split { .. }
            | Step::Pings(_) => return None,
        };
        Some(format!("{what} {each} bytes."))
    };
    let steps = results.steps.iter();
    let ours = steps.filter(|one| one.step.server() == Server::Trapezoid);
    ours.filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::super::page;
    use crate::experiments::Scale;
    use crate::experiments::synthetic::Synthetic;
    use crate::experiments::tests::run_with;

    #[test]
    fn each_step_has_its_row() {
        let results = run_with("memory", &mut Synthetic::new(), &Scale::full()).unwrap();
        let page = page(&results).unwrap();
        assert_eq!(page.verdict.findings.len(), 3, "{:?}", page.verdict.findings);
        let table = &page.sections[1].table;
        assert_eq!(table.rows.len(), 6);
        assert_eq!(table.rows[0][0], "transactions Trapezoid 12000 calls/s for 40 s");
        assert_eq!(table.rows[0][5..], ["10,000", "300", "nothing"]);
        assert_eq!(table.rows[3][5..], ["–", "–", "–"], "Kamailio is not asked");
    }
}
