//! How long the database takes for a batch.

use super::line::{Fit, FitError, Line, Point, fit};

/// Batches of one size, and how long they took.
///
/// For a batch measured by itself the weight is 1; for a sum over many, their number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchSample {
    /// Mean number of rows asked for.
    pub rows: f64,
    /// Mean time, microseconds.
    pub time_us: f64,
    /// Number of batches.
    pub batches: f64,
}

impl BatchSample {
    /// One batch of `rows` that took `time_us`.
    #[must_use]
    pub fn one(rows: u32, time_us: f64) -> Self {
        Self {
            rows: f64::from(rows),
            time_us,
            batches: 1.0,
        }
    }

    /// `batches` that together asked for `rows` and took `time_us`; `None` where there were none, or fewer
    /// rows than batches.
    #[must_use]
    pub fn summed(batches: f64, rows: f64, time_us: f64) -> Option<Self> {
        (batches >= 1.0 && rows >= batches).then(|| Self {
            rows: rows / batches,
            time_us: time_us / batches,
            batches,
        })
    }
}

/// `t_batch(b)`: the time of the database for a batch of `b` rows, without the round trip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchCost(Line);

impl BatchCost {
    /// No database answers a batch in less, microseconds: keeps every rate finite.
    pub const LEAST_US: f64 = 1.0;

    /// The cost with this line, in microseconds.
    #[must_use]
    pub fn new(line: Line) -> Self {
        Self(line)
    }

    /// Its line, in microseconds.
    #[must_use]
    pub fn line(self) -> Line {
        self.0
    }

    /// Time for a batch of `rows`, microseconds; at least [`Self::LEAST_US`].
    #[must_use]
    pub fn time_us(self, rows: f64) -> f64 {
        self.0.at(rows).max(Self::LEAST_US)
    }

    /// Fits the line to what was measured; see [`fit`]. Where the samples include the round trip, so does the
    /// line's fixed part: [`Line::without_fixed`] takes it away.
    ///
    /// # Errors
    /// As [`fit`].
    pub fn fit(samples: &[BatchSample]) -> Result<Fit, FitError> {
        let points = samples.iter().map(|s| Point {
            size: s.rows,
            value: s.time_us,
            weight: s.batches,
        });
        fit(&points.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_single_batches_give_the_same_line() {
        let time = |rows: u32| 300.0 + 7.0 * f64::from(rows);
        let singles: Vec<_> = [1, 1, 1, 4, 4, 32]
            .map(|rows| BatchSample::one(rows, time(rows)))
            .to_vec();
        let summed: Vec<_> = [
            (3.0, 3.0, 3.0 * time(1)),
            (2.0, 8.0, 2.0 * time(4)),
            (1.0, 32.0, time(32)),
        ]
        .iter()
        .filter_map(|(batches, rows, us)| BatchSample::summed(*batches, *rows, *us))
        .collect();
        let (a, b) = (
            BatchCost::fit(&singles).expect("fits"),
            BatchCost::fit(&summed).expect("fits"),
        );
        assert_eq!(a, b);
        assert!((a.line.fixed() - 300.0).abs() < 1e-6 && (a.line.per_row() - 7.0).abs() < 1e-6);
        let whole = BatchCost::new(a.line);
        assert!((whole.time_us(10.0) - 370.0).abs() < 1e-6);
        assert!((BatchCost::new(a.line.without_fixed(250.0)).time_us(10.0) - 120.0).abs() < 1e-6);
    }

    #[test]
    fn sums_that_make_no_sense_are_none() {
        assert_eq!(BatchSample::summed(0.0, 0.0, 0.0), None);
        assert_eq!(BatchSample::summed(5.0, 4.0, 1.0), None);
        assert_eq!(BatchSample::summed(f64::NAN, 4.0, 1.0), None);
        assert_eq!(
            BatchSample::summed(2.0, 4.0, 10.0),
            Some(BatchSample {
                rows: 2.0,
                time_us: 5.0,
                batches: 2.0
            })
        );
    }

    #[test]
    fn no_batch_takes_no_time() {
        let nothing = BatchCost::new(Line::new(0.0, 0.0).expect("in range"));
        assert!((nothing.time_us(1.0) - BatchCost::LEAST_US).abs() < 1e-12);
    }
}
