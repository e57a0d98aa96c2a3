//! The two text formats of `/metrics`: OpenMetrics, if it is asked for, and otherwise Prometheus' own.

use std::collections::HashSet;
use std::fmt::Write as _;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Prometheus,
}

const OPEN_METRICS: &str = "application/openmetrics-text";

impl Format {
    /// The format that a request's `Accept` prefers; without one, Prometheus'.
    pub(super) fn wanted(accept: Option<&str>) -> Self {
        let mut open = 0.0_f32;
        let mut plain = 0.0_f32;
        for range in accept.unwrap_or("*/*").split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let q = parts.find_map(|part| part.strip_prefix("q=")?.trim().parse().ok());
            let q: f32 = q.unwrap_or(1.0);
            match kind.to_ascii_lowercase().as_str() {
                OPEN_METRICS => open = q.max(open),
                "text/plain" | "text/*" | "*/*" => plain = plain.max(q),
                _ => {}
            }
        }
        if open > 0.0 && open >= plain {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// Media type of the format.
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// A page of OpenMetrics in this format.
    pub(super) fn page(self, text: String) -> String {
        match self {
            Self::OpenMetrics => text,
            Self::Prometheus => to_prometheus(&text),
        }
    }
}

/// Converts OpenMetrics to Prometheus' format. The family of a counter gets the suffix of its series. One of
/// an `info` becomes a gauge with the suffix. Units and the end are left out.
fn to_prometheus(text: &str) -> String {
    let kinds = |kind: &'static str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let names = lines.filter_map(move |line| line.strip_suffix(kind)?.strip_suffix(' '));
        names.collect::<HashSet<&str>>()
    };
    let (counters, infos) = (kinds("counter"), kinds("info"));
    let family = |name: &str| match name {
        _ if counters.contains(name) => format!("{name}_total"),
        _ if infos.contains(name) => format!("{name}_info"),
        _ => name.to_owned(),
    };
    let mut page = String::with_capacity(text.len());
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        let head = (words.next(), words.next(), words.next(), words.next());
        let written = match head {
            (Some("#"), Some("EOF" | "UNIT"), _, _) => continue,
            (Some("#"), Some("TYPE"), Some(name), Some("info")) => {
                writeln!(page, "# TYPE {} gauge", family(name))
            }
            (Some("#"), Some(what @ ("TYPE" | "HELP")), Some(name), rest) => {
                writeln!(page, "# {what} {} {}", family(name), rest.unwrap_or_default())
            }
            _ => writeln!(page, "{line}"),
        };
        // Writing to a string does not fail.
        let _ = written;
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_served_if_asked_for() {
        use Format::{OpenMetrics, Prometheus};
        // Of Prometheus 2.5 and later, 3, curl, a browser.
        for (accept, expected) in [
            (
                Some(
                    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                     text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                ),
                OpenMetrics,
            ),
            (
                Some(
                    "application/openmetrics-text; version=1.0.0; q=0.6, text/plain;version=0.0.4;q=0.5, */*;q=0.2",
                ),
                OpenMetrics,
            ),
            (Some("application/openmetrics-text"), OpenMetrics),
            (Some("APPLICATION/OpenMetrics-Text, text/plain"), OpenMetrics),
            (Some("text/plain, application/openmetrics-text;q=0.9"), Prometheus),
            (Some("application/openmetrics-text;q=0"), Prometheus),
            (Some("text/html,application/xml;q=0.9,*/*;q=0.8"), Prometheus),
            (Some("*/*"), Prometheus),
            (None, Prometheus),
        ] {
            assert_eq!(Format::wanted(accept), expected, "{accept:?}");
        }
    }

    #[test]
    fn a_page_becomes_prometheus() {
        let open = "# HELP a Counted (a, b).\n# TYPE a counter\na_total{x=\"y z\"} 1\n\
                    # HELP b Now.\n# TYPE b gauge\n# UNIT b seconds\nb 2\n\
                    # HELP c Times.\n# TYPE c histogram\nc_sum 1\nc_count 1\nc_bucket{le=\"+Inf\"} 1\n\
                    # HELP build Version.\n# TYPE build info\nbuild_info{version=\"1\"} 1\n# EOF\n";
        let expected = "# HELP a_total Counted (a, b).\n# TYPE a_total counter\na_total{x=\"y z\"} 1\n\
                    # HELP b Now.\n# TYPE b gauge\nb 2\n\
                    # HELP c Times.\n# TYPE c histogram\nc_sum 1\nc_count 1\nc_bucket{le=\"+Inf\"} 1\n\
                    # HELP build_info Version.\n# TYPE build_info gauge\nbuild_info{version=\"1\"} 1\n";
        assert_eq!(Format::Prometheus.page(open.to_owned()), expected);
        assert_eq!(Format::OpenMetrics.page(open.to_owned()), open);
    }
}
