//! Intervals of 95 %.

use serde::{Deserialize, Serialize};

use super::{mean, median};

/// Where something lies with 95 %.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// From.
    pub low: f64,
    /// To.
    pub high: f64,
    /// How it was computed.
    pub method: Method,
}

/// How an interval was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Student's t distribution, of a mean: for few repetitions whose errors are about normal.
    StudentT,
    /// Percentiles of resampled medians: for what is far from normal, such as ratios.
    Bootstrap,
    /// Wilson's, of a proportion: by the normal distribution.
    Wilson,
}

impl Method {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Self::StudentT => "t distribution",
            Self::Bootstrap => "bootstrap",
            Self::Wilson => "Wilson",
        }
    }
}

/// Two-sided 95 % points of Student's t, for 1 to 30 degrees of freedom.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// The same of the normal distribution.
const Z: f64 = 1.959_964;

fn t(degrees: usize) -> f64 {
    let table = degrees.checked_sub(1).and_then(|index| T.get(index));
    // Beyond the table, the first terms of the expansion in 1/n are good to three digits.
    table.copied().unwrap_or_else(|| {
        let n = degrees.max(1) as f64;
        Z + (Z.powi(3) + Z) / (4.0 * n)
    })
}

/// Of the mean of some measurements; `None` for fewer than two.
pub fn mean_interval(values: &[f64]) -> Option<Interval> {
    if values.len() < 2 {
        return None;
    }
    let (count, middle) = (values.len() as f64, mean(values));
    let squares: f64 = values.iter().map(|value| (value - middle).powi(2)).sum();
    let half = t(values.len() - 1) * (squares / (count - 1.0) / count).sqrt();
    Some(Interval {
        low: middle - half,
        high: middle + half,
        method: Method::StudentT,
    })
}

/// Resampled medians.
const RESAMPLES: usize = 2_000;

/// Of the median of some measurements; `None` for fewer than three. The same seed gives the same interval.
pub fn bootstrap_median(values: &[f64], seed: u64) -> Option<Interval> {
    if values.len() < 3 || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let mut state = seed;
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            let drawn: Vec<f64> = (0..values.len())
                .filter_map(|_| {
                    let index = next(&mut state) % values.len() as u64;
                    values.get(usize::try_from(index).ok()?).copied()
                })
                .collect();
            median(&drawn)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    Some(Interval {
        low: *medians.get(RESAMPLES / 40)?,
        high: *medians.get(RESAMPLES - 1 - RESAMPLES / 40)?,
        method: Method::Bootstrap,
    })
}

/// SplitMix64: a well-mixed sequence from any seed.
pub(crate) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Of a proportion, by Wilson's formula; `None` of nothing.
pub fn proportion(part: u64, whole: u64) -> Option<Interval> {
    if whole == 0 || part > whole {
        return None;
    }
    let (n, p) = (whole as f64, part as f64 / whole as f64);
    let scale = 1.0 + Z * Z / n;
    let middle = (p + Z * Z / (2.0 * n)) / scale;
    let half = Z / scale * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    Some(Interval {
        low: (middle - half).max(0.0),
        high: (middle + half).min(1.0),
        method: Method::Wilson,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 2e-3 * b.abs().max(1.0)
    }

    #[test]
    fn of_a_mean() {
        // Mean 12, standard deviation 1.5811, t(4) = 2.776: ± 1.963.
        let found = mean_interval(&[10.0, 11.0, 12.0, 13.0, 14.0]).unwrap();
        assert!(near(found.low, 10.037) && near(found.high, 13.963), "{found:?}");
        assert_eq!(found.method, Method::StudentT);
        assert_eq!(mean_interval(&[1.0]), None);
        let same = mean_interval(&[5.0, 5.0]).unwrap();
        assert_eq!((same.low, same.high), (5.0, 5.0));
    }

    #[test]
    fn t_beyond_its_table() {
        assert!(near(t(1), 12.706) && near(t(30), 2.042));
        assert!(near(t(60), 2.000), "{}", t(60));
        assert!(near(t(1_000_000), 1.96));
    }

    #[test]
    fn of_a_proportion() {
        // By hand: 8 of 10.
        let found = proportion(8, 10).unwrap();
        assert!(near(found.low, 0.490) && near(found.high, 0.943), "{found:?}");
        let all = proportion(100, 100).unwrap();
        assert!(all.low > 0.96 && all.low < 1.0 && all.high == 1.0, "{all:?}");
        assert_eq!(proportion(1, 0), None);
        assert_eq!(proportion(2, 1), None);
    }

    #[test]
    fn of_a_median() {
        let values = [1.0, 1.1, 0.9, 1.05, 0.95, 9.0, 1.02];
        let found = bootstrap_median(&values, 1).unwrap();
        assert!(found.low >= 0.9 && found.high <= 9.0 && found.low < found.high);
        assert!(found.low <= 1.02 && found.high >= 1.02, "{found:?}");
        assert_eq!(Some(&found), bootstrap_median(&values, 1).as_ref(), "by its seed");
        assert_eq!(bootstrap_median(&[1.0, 2.0], 1), None);
        assert_eq!(bootstrap_median(&[1.0, 2.0, f64::NAN], 1), None);
    }

    /// In 95 of 100 samples the interval holds the true mean: of a thousand, 925 to 975.
    #[test]
    fn it_holds_the_mean_as_often_as_it_says() {
        let mut state = 7;
        let mut uniform = || (next(&mut state) >> 11) as f64 / (1_u64 << 53) as f64;
        let held = (0..1000)
            .filter(|_| {
                // Sums of twelve uniform ones are about normal, of mean 6.
                let values: Vec<f64> = (0..5).map(|_| (0..12).map(|_| uniform()).sum()).collect();
                mean_interval(&values).is_some_and(|found| found.low <= 6.0 && 6.0 <= found.high)
            })
            .count();
        assert!((925..=975).contains(&held), "{held}");
    }

    proptest! {
        #[test]
        fn proportions_lie_within(whole in 1_u64..1_000_000, part in 0_u64..1_000_000) {
            let part = part.min(whole);
            let found = proportion(part, whole).unwrap();
            let p = part as f64 / whole as f64;
            prop_assert!(found.low <= p + 1e-9 && p <= found.high + 1e-9);
            prop_assert!(found.low >= 0.0 && found.high <= 1.0);
        }
    }
}
