//! A cost that grows with the rows of a batch, and how it is found from measurements.

use std::fmt;

/// Largest value that a coefficient or a sample may have, so that no sum of them leaves what a number can hold.
pub const MAX_VALUE: f64 = 1e12;
/// Largest size of a batch that a sample may tell of.
pub const MAX_SIZE: f64 = 1e6;
/// Largest weight of a sample.
pub const MAX_WEIGHT: f64 = 1e15;

/// Sizes that are kept apart; where more were measured, neighbours are put together.
const MAX_SIZES: usize = 256;
/// Passes of the weighting by residuals. It has settled long before.
const PASSES: usize = 20;
/// Standard deviations up to which a size counts in full. Beyond it counts by the square of this part, so that the
/// further off it is, the less it pulls: the largest size pulls at a long lever.
const IN_FULL: f64 = 2.0;
/// Makes the median of absolute residuals the standard deviation of normal errors.
const MAD_TO_SIGMA: f64 = 1.4826;
/// A size within this part of the line never counts as an outlier.
const NO_OUTLIER: f64 = 0.01;

/// `fixed + per_row · rows`. Both coefficients are finite and not negative.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    fixed: f64,
    per_row: f64,
}

impl Line {
    /// The line with these coefficients; `None` unless both lie in 0 to [`MAX_VALUE`].
    #[must_use]
    pub fn new(fixed: f64, per_row: f64) -> Option<Self> {
        let fits = |value: f64| (0.0..=MAX_VALUE).contains(&value);
        (fits(fixed) && fits(per_row)).then_some(Self { fixed, per_row })
    }

    /// The line through `first` at one row and `second` at `more` rows more; for constants that grow.
    pub(super) const fn between(first: f64, second: f64, more: f64) -> Self {
        let per_row = (second - first) / more;
        Self {
            fixed: first - per_row,
            per_row,
        }
    }

    /// What a batch costs however small it is.
    #[must_use]
    pub fn fixed(self) -> f64 {
        self.fixed
    }

    /// What each row adds.
    #[must_use]
    pub fn per_row(self) -> f64 {
        self.per_row
    }

    /// What a batch of `rows` costs. Fractions are means over batches.
    #[must_use]
    pub fn at(self, rows: f64) -> f64 {
        self.fixed + self.per_row * rows
    }

    /// The same with `less` of the fixed part taken away, at most all of it.
    #[must_use]
    pub fn without_fixed(self, less: f64) -> Self {
        Self {
            fixed: (self.fixed - less.max(0.0)).max(0.0),
            per_row: self.per_row,
        }
    }
}

/// Something measured: `value` at batches of `size` rows, the mean of `weight` batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Rows of the batch: 1 to [`MAX_SIZE`].
    pub size: f64,
    /// What was measured: 0 to [`MAX_VALUE`].
    pub value: f64,
    /// Number of batches: above 0, at most [`MAX_WEIGHT`].
    pub weight: f64,
}

impl Point {
    fn is_sound(&self) -> bool {
        (1.0..=MAX_SIZE).contains(&self.size)
            && (0.0..=MAX_VALUE).contains(&self.value)
            && self.weight > 0.0
            && self.weight <= MAX_WEIGHT
    }
}

/// How a line and a measurement differ at one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// Rows of the batch.
    pub size: f64,
    /// Batches measured.
    pub weight: f64,
    /// The median of what was measured.
    pub measured: f64,
    /// What the line says.
    pub fitted: f64,
}

impl Residual {
    /// `fitted / measured − 1`. Where nothing was measured but 0: 0 if the line says so too, else 1.
    #[must_use]
    pub fn relative_error(&self) -> f64 {
        let difference = self.fitted - self.measured;
        if self.measured > f64::MIN_POSITIVE {
            (difference / self.measured).min(MAX_VALUE)
        } else if difference > 0.0 {
            1.0
        } else {
            0.0
        }
    }
}

/// A fitted line, and how well it fits.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// The line.
    pub line: Line,
    /// One for each size, in ascending order; at least two.
    pub residuals: Vec<Residual>,
}

impl Fit {
    /// The largest relative error of any size, without its sign.
    #[must_use]
    pub fn worst_error(&self) -> f64 {
        self.residuals
            .iter()
            .map(|r| r.relative_error().abs())
            .fold(0.0, f64::max)
    }

    /// The mean of the relative errors without their signs, each size counted once.
    #[must_use]
    pub fn mean_error(&self) -> f64 {
        let sum: f64 = self.residuals.iter().map(|r| r.relative_error().abs()).sum();
        sum / self.residuals.len().max(1) as f64
    }
}

/// Why there is no line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FitError {
    /// Nothing was measured.
    Empty,
    /// The sample at this index is out of range.
    OutOfRange(usize),
    /// All batches had this size, so that the fixed cost cannot be separated from that of each row.
    OneSize(f64),
}

impl fmt::Display for FitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("nothing was measured"),
            Self::OutOfRange(index) => write!(f, "sample {} is out of range", index + 1),
            Self::OneSize(size) => write!(
                f,
                "all batches had {size:.1} rows: what is fixed and what each row adds cannot be told apart"
            ),
        }
    }
}

impl std::error::Error for FitError {}

/// The line through what was measured, never with a negative coefficient.
///
/// Of samples of one size the median counts, with the sum of their weights. The line through these medians
/// starts as the median of the slopes of all pairs (Theil and Sen), which a quarter of the sizes cannot mislead;
/// then weighted least squares, in which a size far off the line counts less.
///
/// # Errors
/// No samples, one out of range, or all of one size.
pub fn fit(points: &[Point]) -> Result<Fit, FitError> {
    if let Some(index) = points.iter().position(|p| !p.is_sound()) {
        return Err(FitError::OutOfRange(index));
    }
    let sizes = by_size(points);
    let (Some(first), Some(last)) = (sizes.first(), sizes.last()) else {
        return Err(FitError::Empty);
    };
    if last.size - first.size < 1e-6 {
        return Err(FitError::OneSize(first.size));
    }
    let mut line = start(&sizes);
    for _ in 0..PASSES {
        line = pass(&sizes, line);
    }
    let residuals = sizes.iter().map(|p| Residual {
        size: p.size,
        weight: p.weight,
        measured: p.value,
        fitted: line.at(p.size),
    });
    Ok(Fit {
        line,
        residuals: residuals.collect(),
    })
}

/// One point for each size, in ascending order, [`MAX_SIZES`] at most.
fn by_size(points: &[Point]) -> Vec<Point> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| a.size.total_cmp(&b.size));
    let sizes: Vec<Point> = sorted
        .chunk_by(|a, b| a.size.total_cmp(&b.size).is_eq())
        .filter_map(|same| {
            let values = same.iter().map(|p| (p.value, p.weight)).collect();
            Some(Point {
                size: same.first()?.size,
                value: weighted_median(values),
                weight: same.iter().map(|p| p.weight).sum(),
            })
        })
        .collect();
    if sizes.len() <= MAX_SIZES {
        return sizes;
    }
    let each = sizes.len().div_ceil(MAX_SIZES);
    sizes.chunks(each).map(mean).collect()
}

/// The weighted mean of neighbours.
fn mean(points: &[Point]) -> Point {
    let weight: f64 = points.iter().map(|p| p.weight).sum();
    let of = |value: fn(&Point) -> f64| points.iter().map(|p| p.weight * value(p)).sum::<f64>() / weight;
    Point {
        size: of(|p| p.size),
        value: of(|p| p.value),
        weight,
    }
}

/// The value at which half of the weight is reached, the middle of two where that is between them; 0 of nothing.
fn weighted_median(mut values: Vec<(f64, f64)>) -> f64 {
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = values.iter().map(|v| v.1).sum::<f64>() / 2.0;
    let mut sum = 0.0;
    for (index, (value, weight)) in values.iter().enumerate() {
        sum += weight;
        if sum > half {
            return *value;
        }
        if sum >= half {
            return values
                .get(index + 1)
                .map_or(*value, |next| value / 2.0 + next.0 / 2.0);
        }
    }
    values.last().map_or(0.0, |v| v.0)
}

/// Each size counts once here: many batches of one size tell nothing about slopes.
fn start(sizes: &[Point]) -> Line {
    let pairs = sizes
        .iter()
        .enumerate()
        .flat_map(|(i, a)| sizes[i + 1..].iter().map(move |b| (a, b)));
    // Each pair counts once: by their distance, a wrong largest size would outvote all others.
    let slopes = pairs.map(|(a, b)| ((b.value - a.value) / (b.size - a.size), 1.0));
    let per_row = weighted_median(slopes.collect()).clamp(0.0, MAX_VALUE);
    let fixed = sizes.iter().map(|p| (p.value - per_row * p.size, 1.0)).collect();
    Line {
        fixed: weighted_median(fixed).clamp(0.0, MAX_VALUE),
        per_row,
    }
}

/// Weighted least squares in which what is far from `line` counts less.
fn pass(sizes: &[Point], line: Line) -> Line {
    let residual = |p: &Point| (p.value - line.at(p.size)).abs();
    let spread = MAD_TO_SIGMA * weighted_median(sizes.iter().map(|p| (residual(p), 1.0)).collect());
    let weighted = sizes.iter().map(|p| {
        let far = IN_FULL * spread.max(NO_OUTLIER * line.at(p.size));
        let residual = residual(p);
        let factor = if residual > far {
            (far / residual).powi(2)
        } else {
            1.0
        };
        Point {
            weight: p.weight * factor,
            ..*p
        }
    });
    least_squares(&weighted.collect::<Vec<_>>())
}

/// The line of least weighted squares among those without negative coefficients.
fn least_squares(points: &[Point]) -> Line {
    let middle = mean(points);
    let sum = |term: &dyn Fn(&Point) -> f64| points.iter().map(|p| p.weight * term(p)).sum::<f64>();
    let spread = sum(&|p| (p.size - middle.size).powi(2));
    let slope = if spread > 0.0 {
        sum(&|p| (p.size - middle.size) * (p.value - middle.value)) / spread
    } else {
        0.0
    };
    let fixed = middle.value - slope * middle.size;
    // Where the best line has a negative coefficient the best allowed one has 0 there: squares are convex.
    let (fixed, per_row) = if slope < 0.0 {
        (middle.value, 0.0)
    } else if fixed < 0.0 {
        (0.0, sum(&|p| p.size * p.value) / sum(&|p| p.size * p.size))
    } else {
        (fixed, slope)
    };
    Line {
        fixed: fixed.clamp(0.0, MAX_VALUE),
        per_row: per_row.clamp(0.0, MAX_VALUE),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    fn point(size: f64, value: f64, weight: f64) -> Point {
        Point { size, value, weight }
    }

    fn close(a: f64, b: f64, relative: f64) -> bool {
        (a - b).abs() <= relative * b.abs().max(1e-9)
    }

    #[test]
    fn a_line_is_found_again() {
        let line = Line::new(200.0, 8.0).expect("in range");
        let points: Vec<_> = (0..8)
            .map(|i| point(f64::from(1 << i), line.at(f64::from(1 << i)), 1.0))
            .collect();
        let found = fit(&points).expect("a line");
        assert!(close(found.line.fixed(), 200.0, 1e-9) && close(found.line.per_row(), 8.0, 1e-9));
        assert!(found.worst_error() < 1e-9 && found.residuals.len() == 8);
    }

    #[test]
    fn one_size_far_off_hardly_moves_it() {
        for wrong in 0..8 {
            let points: Vec<_> = (0..8)
                .map(|i| {
                    let size = f64::from(1 << i);
                    let value = (200.0 + 8.0 * size) * if i == wrong { 10.0 } else { 1.0 };
                    point(size, value, 100.0)
                })
                .collect();
            let found = fit(&points).expect("a line");
            assert!(
                close(found.line.fixed(), 200.0, 0.05),
                "{wrong}: {:?}",
                found.line
            );
            assert!(
                close(found.line.per_row(), 8.0, 0.05),
                "{wrong}: {:?}",
                found.line
            );
            let told: Vec<_> = found
                .residuals
                .iter()
                .filter(|r| r.relative_error().abs() > 0.5)
                .collect();
            assert_eq!(told.len(), 1, "the user sees which it is");
            assert_eq!(told[0].size, f64::from(1 << wrong));
        }
    }

    #[test]
    fn of_one_size_the_median_counts() {
        let mut points: Vec<_> = [1.0, 2.0, 64.0].map(|s| point(s, 100.0 + s, 1.0)).to_vec();
        points.extend([point(1.0, 101.0, 1.0), point(1.0, 90_000.0, 1.0)]);
        points.extend([point(64.0, 164.0, 1.0), point(64.0, 70_000.0, 1.0)]);
        let found = fit(&points).expect("a line");
        assert!(close(found.line.fixed(), 100.0, 1e-9) && close(found.line.per_row(), 1.0, 1e-9));
        assert_eq!(
            found.residuals.iter().map(|r| r.weight).collect::<Vec<_>>(),
            [3.0, 1.0, 3.0]
        );
    }

    #[test]
    fn more_batches_weigh_more() {
        // Three sizes that no line joins: the residual is smaller where more was measured.
        let at = |weight| {
            let points = [
                point(1.0, 100.0, 1.0),
                point(2.0, 130.0, weight),
                point(3.0, 140.0, 1.0),
            ];
            fit(&points).expect("a line").residuals[1].relative_error().abs()
        };
        assert!(at(1000.0) < at(1.0) / 2.0);
    }

    #[test]
    fn no_coefficient_is_negative() {
        let falling = [point(1.0, 100.0, 1.0), point(64.0, 50.0, 1.0)];
        let line = fit(&falling).expect("a line").line;
        assert!(
            line.per_row() == 0.0 && close(line.fixed(), 75.0, 1e-9),
            "{line:?}"
        );
        let convex = [
            point(1.0, 1.0, 1.0),
            point(32.0, 100.0, 1.0),
            point(64.0, 400.0, 1.0),
        ];
        let line = fit(&convex).expect("a line").line;
        assert!(
            line.fixed() == 0.0 && (3.0..7.0).contains(&line.per_row()),
            "{line:?}"
        );
    }

    #[test]
    fn what_cannot_be_fitted_says_why() {
        assert_eq!(fit(&[]), Err(FitError::Empty));
        assert_eq!(fit(&[point(1.0, 5.0, 1.0); 3]), Err(FitError::OneSize(1.0)));
        for bad in [
            point(0.5, 1.0, 1.0),
            point(1.0, -1.0, 1.0),
            point(1.0, f64::NAN, 1.0),
            point(1.0, f64::INFINITY, 1.0),
            point(1.0, 1.0, 0.0),
            point(f64::NAN, 1.0, 1.0),
        ] {
            assert_eq!(fit(&[point(2.0, 1.0, 1.0), bad]), Err(FitError::OutOfRange(1)));
        }
        assert!(Line::new(-1.0, 1.0).is_none() && Line::new(1.0, f64::NAN).is_none());
    }

    proptest! {
        #[test]
        fn every_fit_is_sound_and_lies_within_what_was_measured(
            samples in prop::collection::vec((1u32..2000, 0.0..1e9f64, 1u32..100_000), 2..600),
        ) {
            let points: Vec<_> =
                samples.iter().map(|(s, v, w)| point(f64::from(*s), *v, f64::from(*w))).collect();
            match fit(&points) {
                Ok(found) => {
                    prop_assert!(Line::new(found.line.fixed(), found.line.per_row()).is_some());
                    prop_assert!(found.worst_error().is_finite() && found.mean_error().is_finite());
                    prop_assert!(found.residuals.len() <= MAX_SIZES);
                    // A line of least squares meets its weighted mean, which lies between least and most.
                    let most = points.iter().map(|p| p.value).fold(0.0, f64::max);
                    let least_size = points.iter().map(|p| p.size).fold(f64::MAX, f64::min);
                    prop_assert!(found.line.at(least_size) <= most * (1.0 + 1e-9));
                }
                Err(error) => prop_assert!(matches!(error, FitError::OneSize(_))),
            }
        }
    }

    proptest! {
        // Noise that happens to put six of eight sizes on another line misleads the fit: each run of the test
        // has the same noise.
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

        #[test]
        fn noise_of_a_tenth_leaves_the_line_within_it(
            fixed in 50.0..5000.0f64,
            per_row in 1.0..100.0f64,
            noise in prop::collection::vec(-0.1..0.1f64, 8),
        ) {
            let line = Line::new(fixed, per_row).expect("in range");
            let points: Vec<_> = noise.iter().enumerate().map(|(i, noise)| {
                let size = f64::from(1u32 << i);
                point(size, line.at(size) * (1.0 + noise), 1.0)
            }).collect();
            let found = fit(&points).expect("a line").line;
            for size in [16.0, 32.0, 64.0] {
                prop_assert!(close(found.at(size), line.at(size), 0.2), "{found:?}");
            }
        }
    }
}
