//! The result of a load as text.

use std::fmt::Write as _;

use sip_load::Report;

/// A summary of a few lines.
pub(super) fn summary(report: &Report) -> String {
    let mut text = String::new();
    let share = 100.0 * report.success_ratio();
    let _ = writeln!(
        text,
        "{} offered in {:.1} s, {} succeeded ({share:.2} %), {} failed; {:.1} a second succeeded",
        report.offered, report.duration_s, report.succeeded, report.failed, report.goodput
    );
    for (cause, count) in &report.failures {
        let _ = writeln!(text, "  {count:>9}  {cause}");
    }
    for (why, count) in &report.lost_connections {
        let _ = writeln!(text, "  {count:>9}  connections: {why}");
    }
    for (name, count) in &report.ignored {
        let _ = writeln!(text, "  {count:>9}  ignored: {name}");
    }
    if report.unacknowledged > 0 {
        let _ = writeln!(text, "  {:>9}  accepted without an ACK", report.unacknowledged);
    }
    if !report.retransmissions.is_empty() {
        let each = report
            .retransmissions
            .iter()
            .map(|(name, count)| format!("{count} {name}"));
        let _ = writeln!(text, "sent again: {}", each.collect::<Vec<_>>().join(", "));
    }
    if !report.response_ms.is_empty() {
        let _ = writeln!(
            text,
            "milliseconds       mean       p50       p90       p99     p99.9       max"
        );
    }
    for (name, q) in &report.response_ms {
        let _ = write!(text, "{name:<14}");
        for value in [q.mean, q.p50, q.p90, q.p99, q.p999, q.max] {
            let _ = write!(text, " {value:>9.2}");
        }
        text.push('\n');
    }
    let own = &report.generator;
    let _ = write!(
        text,
        "generator: {:.0} % of a core, calls began {:.2} ms late (99th percentile)",
        100.0 * own.utilization,
        own.lag_ms.p99
    );
    if let Some(why) = &own.why {
        let _ = write!(
            text,
            "\nTHE GENERATOR WAS AT ITS LIMIT: {why}. What was measured is not the server's limit."
        );
    }
    text
}
