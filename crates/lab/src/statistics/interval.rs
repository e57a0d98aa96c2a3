//! Intervals of 95 %.

use serde::{Deserialize, Serialize};

use super::mean;

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
    /// Student's t distribution, of a mean: for few repetitions with about normal errors.
    StudentT,
    /// The same of logarithms: for ratios.
    StudentTOfLogarithms,
}

impl Method {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Self::StudentT => "t distribution",
            Self::StudentTOfLogarithms => "t distribution of the logarithms",
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

/// Of the geometric mean of some ratios, by the t distribution of their logarithms: a ratio and its inverse are
/// equally far from 1. `None` for fewer than two, or where one is not above 0.
pub fn ratio_interval(ratios: &[f64]) -> Option<Interval> {
    if ratios.iter().any(|ratio| !(*ratio > 0.0 && ratio.is_finite())) {
        return None;
    }
    let logarithms: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let of = mean_interval(&logarithms)?;
    Some(Interval {
        low: of.low.exp(),
        high: of.high.exp(),
        method: Method::StudentTOfLogarithms,
    })
}

/// SplitMix64: a well-mixed sequence from any seed.
#[cfg(test)]
pub(crate) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
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
    fn ratios_have_intervals() {
        // Logarithms ln 2 ± ln 1.1, 0: standard deviation 0.09531, t(2) = 4.303: ln 2 ± 0.2368.
        let found = ratio_interval(&[2.0, 2.2, 2.0 / 1.1]).unwrap();
        assert!(near(found.low, 1.578) && near(found.high, 2.534), "{found:?}");
        assert_eq!(found.method, Method::StudentTOfLogarithms);
        let inverse = ratio_interval(&[0.5, 1.0 / 2.2, 0.55]).unwrap();
        assert!(near(inverse.low * found.high, 1.0) && near(inverse.high * found.low, 1.0));
        for none in [
            &[1.0][..],
            &[1.0, 0.0],
            &[1.0, -2.0],
            &[1.0, f64::NAN],
            &[1.0, f64::INFINITY],
        ] {
            assert_eq!(ratio_interval(none), None);
        }
    }

    /// In 95 of 100 samples the interval holds the true mean: of a thousand, 925 to 975; with three repetitions,
    /// which is how often experiments are made, as with five.
    #[test]
    fn it_holds_the_mean_as_often_as_it_says() {
        let mut state = 7;
        let mut uniform = || (next(&mut state) >> 11) as f64 / (1_u64 << 53) as f64;
        for repeats in [3, 5] {
            let mut held = [0; 2];
            for _ in 0..1000 {
                // Sums of twelve uniform ones are about normal, of mean 6.
                let values: Vec<f64> = (0..repeats).map(|_| (0..12).map(|_| uniform()).sum()).collect();
                let ratios: Vec<f64> = values.iter().map(|value| (value / 10.0).exp()).collect();
                let holds =
                    |found: Option<Interval>, of: f64| found.is_some_and(|i| i.low <= of && of <= i.high);
                held[0] += u32::from(holds(mean_interval(&values), 6.0));
                held[1] += u32::from(holds(ratio_interval(&ratios), 0.6_f64.exp()));
            }
            assert!(
                held.iter().all(|held| (925..=975).contains(held)),
                "{repeats}: {held:?}"
            );
        }
    }
}
