//! Numbers with units, read from the command line and formatted as text.

use capacity::batching::{MAX_TIME_US, RATES};

use crate::cli::duration;

/// Reads a time such as `30ms`, `200us` or `1.5s`, in microseconds, 0 to 60 s.
pub(super) fn time(text: &str) -> Result<f64, String> {
    let wrong = || "write a time as 200us, 30ms or 1.5s, 60s at most".to_owned();
    let us = duration::parse(text).ok_or_else(wrong)?.as_secs_f64() * 1e6;
    (0.0..=MAX_TIME_US).contains(&us).then_some(us).ok_or_else(wrong)
}

/// Reads a rate a second.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    number(text, RATES.0, RATES.1)
}

/// Reads a multiple of the target, 1 to 100.
pub(super) fn headroom(text: &str) -> Result<f64, String> {
    number(text, 1.0, 100.0)
}

fn number(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|v| (least..=most).contains(v));
    value.ok_or_else(|| format!("must be a number from {least} to {}", thousands(most)))
}

/// Formats microseconds in a suitable unit.
pub(super) fn time_text(us: f64) -> String {
    if us < 1.0 && us > 0.0 {
        format!("{us:.2} µs")
    } else if us < 999.5 {
        format!("{} µs", short(us))
    } else if us < 999_500.0 {
        format!("{} ms", short(us / 1e3))
    } else {
        format!("{} s", short(us / 1e6))
    }
}

/// Formats three digits, if that many are significant.
fn short(value: f64) -> String {
    let digits = if value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Formats a rate: whole with commas, with fractions if it is small.
pub(super) fn thousands(value: f64) -> String {
    if value < 99.95 {
        return short(value);
    }
    let digits = format!("{value:.0}");
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_unit() {
        let all = [
            ("200us", 200.0),
            ("7µs", 7.0),
            ("30ms", 30_000.0),
            ("1.5s", 1.5e6),
            ("0ms", 0.0),
            ("60s", 60e6),
        ];
        for (text, us) in all {
            assert_eq!(time(text), Ok(us), "{text}");
        }
        for wrong in [
            "", "30", "ms", "30 ms", "-1ms", "1e3ms", "30m", "61s", "1.2.3s", "NaNs", "infs", ".s",
        ] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_are_within_bounds() {
        assert_eq!(rate("12000"), Ok(12_000.0));
        assert_eq!(rate("0.5"), Ok(0.5));
        for wrong in ["0", "-1", "NaN", "inf", "1e9", "x"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
        assert!(headroom("0.9").is_err() && headroom("1").is_ok());
        assert_eq!(headroom("x"), Err("must be a number from 1 to 100".to_owned()));
    }

    #[test]
    fn people_read_few_digits() {
        let times = [0.0, 0.25, 8.0, 76.8, 999.7, 30_208.0, 4_120.0, 2_500_000.0].map(time_text);
        assert_eq!(
            times,
            [
                "0 µs", "0.25 µs", "8 µs", "76.8 µs", "1 ms", "30.2 ms", "4.12 ms", "2.5 s"
            ]
        );
        let rates = [0.0, 33.1, 132.5, 999.6, 12_100.4, 1_234_567.0].map(thousands);
        assert_eq!(rates, ["0", "33.1", "132", "1,000", "12,100", "1,234,567"]);
    }
}
