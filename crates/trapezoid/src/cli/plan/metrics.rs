//! The batches of a running server, read from the Prometheus text of its metrics page.
//!
//! Counters for each class of sizes; the label `size` is the largest size of the class, a power of two:
//! ```text
//! trapezoid_credential_batches_total{size="8"} 1520                     batches
//! trapezoid_credential_batch_rows_total{size="8"} 9731                  rows asked for in them
//! trapezoid_credential_batch_busy_seconds_total{size="8"} 46.231887     from sending to the answer
//! trapezoid_credential_batch_bytes_total{direction="out",size="8"} …    payload; "in": of answers (optional)
//! ```
//! Series of one class with other labels (several databases, several servers in one file) are added up.

use std::collections::BTreeMap;

use capacity::batching::{BatchSample, BytesSample, MAX_SIZE};

/// Most classes that a page may have.
const MAX_CLASSES: usize = 4096;

/// Measurements of batches, from any source.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Measured {
    /// Times from sending to the result, which include the round trip.
    pub batches: Vec<BatchSample>,
    /// Payloads; empty if they were not measured.
    pub bytes: Vec<BytesSample>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Class {
    batches: f64,
    rows: f64,
    busy_us: f64,
    out: Option<f64>,
    back: Option<f64>,
}

/// Reads a page.
///
/// # Errors
/// The line that is wrong, or that no batch was counted.
pub(super) fn read(page: &str) -> Result<Measured, String> {
    let mut classes: BTreeMap<u32, Class> = BTreeMap::new();
    for (index, line) in page.lines().enumerate() {
        let told = |what: &str| format!("line {}: {what}", index + 1);
        let Some(series) = series(line).map_err(|what| told(&what))? else {
            continue;
        };
        if !classes.contains_key(&series.size) && classes.len() >= MAX_CLASSES {
            return Err(told("too many sizes"));
        }
        let class = classes.entry(series.size).or_default();
        match series.kind {
            Kind::Batches => class.batches += series.value,
            Kind::Rows => class.rows += series.value,
            Kind::Busy => class.busy_us += series.value * 1e6,
            Kind::Out => *class.out.get_or_insert(0.0) += series.value,
            Kind::In => *class.back.get_or_insert(0.0) += series.value,
        }
    }
    let mut measured = Measured::default();
    for (size, class) in classes.iter().filter(|(_, class)| class.batches > 0.0) {
        let sample = BatchSample::summed(class.batches, class.rows, class.busy_us)
            .filter(|sample| sample.rows <= MAX_SIZE)
            .ok_or_else(|| {
                let Class { batches, rows, .. } = class;
                format!("size {size}: {batches} batches with {rows} rows cannot be")
            })?;
        measured.batches.push(sample);
        if let (Some(out), Some(back)) = (class.out, class.back) {
            measured.bytes.push(BytesSample {
                rows: sample.rows,
                out: out / class.batches,
                back: back / class.batches,
                batches: class.batches,
            });
        }
    }
    if measured.batches.is_empty() {
        return Err("no batch is counted there (trapezoid_credential_batches_total)".to_owned());
    }
    Ok(measured)
}

enum Kind {
    Batches,
    Rows,
    Busy,
    Out,
    In,
}

struct Series {
    kind: Kind,
    size: u32,
    value: f64,
}

/// One of our series; `None` for every other line.
fn series(line: &str) -> Result<Option<Series>, String> {
    let Some(rest) = line.trim().strip_prefix("trapezoid_credential_batch") else {
        return Ok(None);
    };
    let Some((name, rest)) = rest.split_once('{') else {
        return Ok(None);
    };
    if !matches!(
        name,
        "es_total" | "_rows_total" | "_busy_seconds_total" | "_bytes_total"
    ) {
        return Ok(None);
    }
    let (mut size, mut direction) = (None, None);
    let rest = labels(rest, |name, value| match name {
        "size" => size = value.parse::<u32>().ok(),
        "direction" => direction = Some(value),
        _ => {}
    })
    .ok_or("labels that do not end")?;
    let size = size.ok_or("a label size=\"…\" with a number is missing")?;
    let kind = match (name, direction.as_deref()) {
        ("es_total", _) => Kind::Batches,
        ("_rows_total", _) => Kind::Rows,
        ("_busy_seconds_total", _) => Kind::Busy,
        (_, Some("out")) => Kind::Out,
        (_, Some("in")) => Kind::In,
        _ => return Err("direction must be \"out\" or \"in\"".to_owned()),
    };
    let value = rest
        .split_ascii_whitespace()
        .next()
        .and_then(|text| text.parse::<f64>().ok())
        .filter(|value| value.is_finite() && *value >= 0.0)
        .ok_or("the value is no number from 0")?;
    Ok(Some(Series { kind, size, value }))
}

/// Calls `each` with every label. Returns the text after the closing brace.
fn labels(text: &str, mut each: impl FnMut(&str, String)) -> Option<&str> {
    let mut rest = text.trim_start();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Some(after);
        }
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at + 1,
                (_, '\\') => match characters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        each(name.trim(), value);
        rest = after.get(end..)?.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn classes_are_added_up_over_other_labels() {
        let page = "# HELP trapezoid_credential_batches Batches.\n\
            trapezoid_credential_batches_total{size=\"1\"} 10\n\
            trapezoid_credential_batches_total{size=\"8\",store=\"a}\\\"\"} 3 1700000000\n\
            trapezoid_credential_batches_total{ store=\"b\" , size=\"8\", } 1\n\
            trapezoid_credential_batches_total{size=\"16\"} 0\n\
            trapezoid_credential_batch_rows_total{size=\"1\"} 10\n\
            trapezoid_credential_batch_rows_total{size=\"8\"} 24\n\
            trapezoid_credential_batch_busy_seconds_total{size=\"1\"} 0.302\n\
            trapezoid_credential_batch_busy_seconds_total{size=\"8\"} 1.22e-1\n\
            trapezoid_credential_batch_bytes_total{direction=\"out\",size=\"8\"} 1000\n\
            trapezoid_credential_batch_bytes_total{direction=\"in\",size=\"8\"} 2000\n\
            trapezoid_credential_batch_size_bucket{le=\"1.0\"} 7\n\
            trapezoid_credential_queue 3\n# EOF\n";
        let measured = read(page).expect("a page");
        let one = BatchSample {
            rows: 1.0,
            time_us: 30_200.0,
            batches: 10.0,
        };
        let eight = BatchSample {
            rows: 6.0,
            time_us: 30_500.0,
            batches: 4.0,
        };
        assert_eq!(measured.batches, [one, eight]);
        let bytes = BytesSample {
            rows: 6.0,
            out: 250.0,
            back: 500.0,
            batches: 4.0,
        };
        assert_eq!(measured.bytes, [bytes]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (page, why) in [
            ("", "no batch is counted"),
            (
                "trapezoid_credential_batches_total{size=\"1\"} 0",
                "no batch is counted",
            ),
            (
                "\ntrapezoid_credential_batches_total{size=\"x\"} 1",
                "line 2: a label size",
            ),
            (
                "trapezoid_credential_batches_total{size=\"1} 1",
                "labels that do not end",
            ),
            (
                "trapezoid_credential_batches_total{size=\"1\"} NaN",
                "line 1: the value",
            ),
            ("trapezoid_credential_batches_total{size=\"1\"}", "the value"),
            (
                "trapezoid_credential_batch_bytes_total{size=\"1\"} 1",
                "direction",
            ),
            (
                "trapezoid_credential_batches_total{size=\"4\"} 5",
                "5 batches with 0 rows cannot be",
            ),
        ] {
            let error = read(page).expect_err(page);
            assert!(error.contains(why), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_page_is_too_strange(lines in prop::collection::vec(
            "(trapezoid_credential_batch(es|_rows|_busy_seconds|_bytes)_total)?\\{?(size=\"?[0-9]{0,11}\"?)?.{0,20}", 0..10,
        )) {
            let _ = read(&lines.join("\n"));
        }
    }
}
