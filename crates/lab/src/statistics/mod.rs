//! Figures of repeated measurements. Pure.

mod interval;
mod judgement;
mod peak;

use serde::{Deserialize, Serialize};

pub use interval::{Interval, Method, mean_interval, ratio_interval};
pub use judgement::{Bound, Judged, Judgement, judge};
pub use peak::{Limits, Look, Peak, Seen, Verdict, search};

/// What repeated measurements of one thing say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many.
    pub count: usize,
    /// The middle one.
    pub median: f64,
    /// Their mean.
    pub mean: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// Median of the distances from the median.
    pub mad: f64,
    /// Where their mean lies with 95 %; absent for one.
    pub interval: Option<Interval>,
}

/// Of these; `None` for none of them, or where one is no number.
pub fn summary(values: &[f64]) -> Option<Summary> {
    if values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let middle = median(values)?;
    let distances: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    Some(Summary {
        count: values.len(),
        median: middle,
        mean: mean(values),
        min: values.iter().copied().min_by(f64::total_cmp)?,
        max: values.iter().copied().max_by(f64::total_cmp)?,
        mad: median(&distances)?,
        interval: mean_interval(values),
    })
}

/// The middle one, or the mean of the two in the middle; `None` for none.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *sorted.get(sorted.len() / 2 - 1)?;
    Some(lower + (upper - lower) / 2.0)
}

/// 0 for none.
pub fn mean(values: &[f64]) -> f64 {
    crate::cpu::ratio(values.iter().sum(), values.len() as f64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn summaries_have_mean_and_deviation() {
        let of = summary(&[3.0, 1.0, 2.0, 10.0]).unwrap();
        assert_eq!(
            (of.median, of.mean, of.min, of.max, of.count),
            (2.5, 4.0, 1.0, 10.0, 4)
        );
        assert_eq!(of.mad, 1.0, "of 1.5, 0.5, 0.5, 7.5");
        assert_eq!(summary(&[]), None);
        assert_eq!(summary(&[1.0, f64::NAN]), None);
        assert_eq!(summary(&[7.0]).unwrap().interval, None);
    }

    proptest! {
        #[test]
        fn a_median_has_half_on_each_side(values in prop::collection::vec(-1e6_f64..1e6, 1..40)) {
            let of = summary(&values).unwrap();
            let below = values.iter().filter(|value| **value <= of.median).count();
            let above = values.iter().filter(|value| **value >= of.median).count();
            prop_assert!(2 * below >= values.len() && 2 * above >= values.len());
            prop_assert!(of.min <= of.median && of.median <= of.max);
            prop_assert!(of.mad >= 0.0 && of.mad <= of.max - of.min);
        }

        #[test]
        fn order_means_nothing(mut values in prop::collection::vec(-1e6_f64..1e6, 1..20)) {
            let before = median(&values);
            values.reverse();
            prop_assert_eq!(before, median(&values));
        }
    }
}
