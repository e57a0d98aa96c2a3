//! Whether a shape holds: figures of two setups that took turns, and a bound of their ratio. Pure.
//!
//! Two figures from different moments of a shared machine differ by what else it did then. Neighbouring runs
//! have that in common, so pairs of them are compared. Their interval of 95 % separates chance from a
//! difference: a shape is lost only if that interval excludes it.

use serde::{Deserialize, Serialize};

use super::{Interval, mean_interval, median, ratio_interval};

/// What measurements say of a shape. In ascending order of gravity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    /// They support it.
    Held,
    /// They agree with it and with its contrary: too few, or too different from each other.
    #[default]
    Undecided,
    /// There are too few measurements. The quick form fails on it: else a check that measures nothing could not fail.
    Unmeasured,
    /// They exclude it.
    Lost,
}

impl Judgement {
    /// For people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Held => "holds",
            Self::Undecided => "undecided",
            Self::Unmeasured => "not measured",
            Self::Lost => "lost",
        }
    }

    /// Whether the quick form fails because of it.
    pub fn fails(self) -> bool {
        matches!(self, Self::Unmeasured | Self::Lost)
    }

    /// Of repeated runs, each of which keeps to a bound or does not. One that does not may have met a stall: the
    /// shape is lost if most runs do not, and at least two.
    pub fn of_runs(keeps: impl IntoIterator<Item = bool>) -> Self {
        let (mut kept, mut missed) = (0_usize, 0_usize);
        for keeps in keeps {
            if keeps {
                kept += 1;
            } else {
                missed += 1;
            }
        }
        match (kept, missed) {
            (1.., 0) => Self::Held,
            (_, 2..) if missed > kept => Self::Lost,
            _ => Self::Undecided,
        }
    }
}

/// Where the ratio of a first figure to a second must lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Below this.
    Below(f64),
    /// Above this.
    Above(f64),
}

impl Bound {
    fn ratio(self) -> f64 {
        match self {
            Self::Below(ratio) | Self::Above(ratio) => ratio,
        }
    }

    /// What an interval of something says that must lie below or above `edge`.
    fn judge(self, interval: &Interval, edge: f64) -> Judgement {
        let (below, above) = (interval.high < edge, interval.low > edge);
        match self {
            Self::Below(_) if below => Judgement::Held,
            Self::Below(_) if above => Judgement::Lost,
            Self::Above(_) if above => Judgement::Held,
            Self::Above(_) if below => Judgement::Lost,
            Self::Below(_) | Self::Above(_) => Judgement::Undecided,
        }
    }
}

/// A judgement, and what it follows from.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The judgement.
    pub judgement: Judgement,
    /// The ratio with its interval, for people.
    pub text: String,
}

/// Judges pairs of figures, each of two runs that were made one soon after the other: by the interval of their
/// ratios; where a figure is 0, so that there is no ratio or its logarithm, by that of the differences between the
/// first and as many times the second as the bound says.
pub fn judge(pairs: &[(f64, f64)], bound: Bound) -> Judged {
    let ratios: Vec<f64> = pairs.iter().map(|(first, second)| first / second).collect();
    if let Some(interval) = ratio_interval(&ratios) {
        return Judged {
            judgement: bound.judge(&interval, bound.ratio()),
            text: format!(
                "{:.2} × (95 %: {:.2} to {:.2}, {}, n = {})",
                median(&ratios).unwrap_or(0.0),
                interval.low,
                interval.high,
                interval.method.text(),
                ratios.len()
            ),
        };
    }
    let differences: Vec<f64> = pairs
        .iter()
        .map(|(first, second)| first - bound.ratio() * second)
        .collect();
    match mean_interval(&differences) {
        Some(interval) => Judged {
            judgement: bound.judge(&interval, 0.0),
            text: format!(
                "off the bound by {:.1} to {:.1} (95 %, {}, n = {})",
                interval.low,
                interval.high,
                interval.method.text(),
                differences.len()
            ),
        },
        None => Judged {
            judgement: Judgement::Undecided,
            text: "fewer than two pairs of runs".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::interval::next;
    use super::*;

    fn judged(pairs: &[(f64, f64)], bound: Bound) -> Judgement {
        judge(pairs, bound).judgement
    }

    fn turned(pairs: &[(f64, f64)]) -> Vec<(f64, f64)> {
        pairs.iter().map(|(first, second)| (*second, *first)).collect()
    }

    /// The machine was slower by a half in the fourth round, and that is in both figures.
    const STEADY: [(f64, f64); 5] = [
        (66.1, 78.0),
        (63.8, 74.9),
        (65.9, 79.2),
        (90.2, 105.5),
        (64.4, 77.1),
    ];

    #[test]
    fn what_the_interval_supports_is_held_and_what_it_excludes_is_lost() {
        let held = judge(&STEADY, Bound::Below(1.0));
        assert_eq!(held.judgement, Judgement::Held);
        assert_eq!(
            held.text,
            "0.85 × (95 %: 0.83 to 0.86, t distribution of the logarithms, n = 5)"
        );
        assert_eq!(judged(&turned(&STEADY), Bound::Below(1.0)), Judgement::Lost);
        assert_eq!(judged(&turned(&STEADY), Bound::Below(2.0)), Judgement::Held);
        assert_eq!(judged(&turned(&STEADY), Bound::Below(1.18)), Judgement::Undecided);
    }

    #[test]
    fn a_bound_from_below() {
        let near = [(1003.0, 1007.0), (998.0, 1010.0), (1011.0, 1002.0)];
        let far = [(840.0, 1007.0), (845.0, 1010.0), (838.0, 1002.0)];
        let disturbed = [(1003.0, 1007.0), (700.0, 1010.0), (1011.0, 1002.0)];
        assert_eq!(judged(&near, Bound::Above(0.9)), Judgement::Held);
        assert_eq!(judged(&far, Bound::Above(0.9)), Judgement::Lost);
        assert_eq!(judged(&disturbed, Bound::Above(0.9)), Judgement::Undecided);
        assert_eq!(judged(&turned(&near), Bound::Above(1.2)), Judgement::Lost);
    }

    /// Stateless calls cost less in four pairs of five. The least of all runs, by which the lab once judged, is
    /// that of a stateful call which met a quick moment.
    #[test]
    fn one_lucky_run_loses_nothing() {
        let pairs = [
            (112.0, 119.0),
            (118.0, 126.0),
            (110.0, 101.0),
            (121.0, 128.0),
            (109.0, 117.0),
        ];
        let least = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).fold(f64::INFINITY, f64::min);
        assert!(
            least(|pair| pair.0) > 1.05 * least(|pair| pair.1),
            "lost by the least of each"
        );
        assert_eq!(judged(&pairs, Bound::Below(1.0)), Judgement::Undecided);
    }

    #[test]
    fn one_stall_loses_nothing() {
        let mut pairs = STEADY;
        pairs[2].0 = 165.9;
        assert_eq!(judged(&pairs, Bound::Below(1.0)), Judgement::Undecided);
    }

    #[test]
    fn zeros_are_figures() {
        let pairs = [(0.0, 22.0), (0.0, 13.0), (6.5, 27.0), (0.0, 20.0)];
        let held = judge(&pairs, Bound::Below(1.0));
        assert_eq!(held.judgement, Judgement::Held);
        assert_eq!(
            held.text,
            "off the bound by -25.3 to -12.5 (95 %, t distribution, n = 4)"
        );
        assert_eq!(judged(&turned(&pairs), Bound::Below(1.0)), Judgement::Lost);
        assert_eq!(judged(&[(0.0, 0.0); 4], Bound::Below(1.0)), Judgement::Undecided);
    }

    #[test]
    fn what_is_too_little_decides_nothing() {
        assert_eq!(judged(&[], Bound::Below(1.0)), Judgement::Undecided);
        let one = judge(&[(1.0, 100.0)], Bound::Below(1.0));
        assert_eq!(
            (one.judgement, one.text.as_str()),
            (Judgement::Undecided, "fewer than two pairs of runs")
        );
        let no_number = [(f64::NAN, 1.0), (1.0, 1.0), (1.0, 1.0)];
        assert_eq!(judged(&no_number, Bound::Below(1.0)), Judgement::Undecided);
        assert_eq!(judged(&[(5.0, 5.0); 3], Bound::Below(1.0)), Judgement::Undecided);
    }

    /// Of setups that cost the same, one in forty series is taken for each of the two differences; of setups that
    /// differ as state does, hardly one for the wrong one.
    #[test]
    fn chance_decides_as_rarely_as_it_says() {
        let mut state = 11;
        let mut noise = || {
            let mut uniform = || (next(&mut state) >> 11) as f64 / (1_u64 << 53) as f64;
            // About normal, with a standard deviation of a tenth.
            0.1 * ((0..12).map(|_| uniform()).sum::<f64>() - 6.0)
        };
        let mut series = |ratio: f64| {
            let mut found = [0; 4];
            for _ in 0..1000 {
                let pairs: Vec<(f64, f64)> = (0..5)
                    .map(|_| (100.0 * ratio * noise().exp(), 100.0 * noise().exp()))
                    .collect();
                found[judged(&pairs, Bound::Below(1.0)) as usize] += 1;
            }
            found
        };
        let [held, _, _, lost] = series(1.0);
        assert!(
            (5..50).contains(&held) && (5..50).contains(&lost),
            "{held} {lost}"
        );
        let [held, _, _, lost] = series(0.85);
        assert!(held > 200 && lost < 5, "{held} {lost}");
    }

    #[test]
    fn one_run_of_several_decides_nothing() {
        use Judgement::{Held, Lost, Undecided};
        for (keeps, expected) in [
            (&[][..], Undecided),
            (&[true], Held),
            (&[true, true, true], Held),
            (&[false], Undecided),
            (&[true, false], Undecided),
            (&[true, true, false], Undecided),
            (&[true, false, false], Lost),
            (&[false, false], Lost),
        ] {
            assert_eq!(Judgement::of_runs(keeps.iter().copied()), expected, "{keeps:?}");
        }
        assert_eq!([Held, Lost, Undecided].into_iter().max(), Some(Lost));
    }
}
