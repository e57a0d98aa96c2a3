//! The highest load that is carried, by search: geometric until it is bracketed, then by halves, then confirmed.
//!
//! Machines that others use stall: whatever was not carried is offered once more before it counts, unless so little of
//! it was carried that no stall explains it.

use serde::{Deserialize, Serialize};

/// The outcome of offering a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It was carried.
    Carried,
    /// It was not.
    Failed,
    /// The generator, not the server, had no room left: what a server would carry beyond is not known.
    GeneratorFull,
}

/// The outcome of offering a load, and whether that is beyond doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The outcome.
    pub verdict: Verdict,
    /// No stall explains it.
    pub beyond_doubt: bool,
}

/// One look.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// Operations offered a second.
    pub rate: f64,
    /// The outcome.
    pub verdict: Verdict,
}

/// How to search.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// The first rate looked at.
    pub first: f64,
    /// Nothing below is looked at.
    pub least: f64,
    /// Nothing above is looked at.
    pub most: f64,
    /// Factor between the first two rates; above 1. It is squared with each further look in the same direction, up to
    /// doubling (or to itself, if it is more), until the peak is bracketed.
    pub grow: f64,
    /// The bracket ends when its upper end is at most this part above the lower.
    pub precision: f64,
    /// Looks in all, at most.
    pub looks: usize,
}

/// The highest load that was carried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peak {
    /// Operations a second.
    pub rate: f64,
    /// Whether the server may carry more: the generator was full, or no more could be offered or looked at.
    pub at_least: bool,
    /// Whether a second run at this rate carried it, too.
    pub confirmed: bool,
    /// The lowest rate above it that was not carried.
    pub above: Option<f64>,
}

/// Looks that are kept for confirming, at most.
const RESERVE: usize = 3;

/// Searches. `look` offers a rate and returns the outcome. No peak: nothing that was offered was carried.
///
/// # Errors
/// Those of `look`.
pub fn search<E>(
    limits: &Limits,
    look: impl FnMut(f64) -> Result<Seen, E>,
) -> Result<(Option<Peak>, Vec<Look>), E> {
    let mut search = Search {
        limits: *limits,
        look,
        looks: Vec::new(),
        good: None,
        over: None,
        full: false,
    };
    search.bracket()?;
    search.halve()?;
    let confirmed = search.confirm()?;
    if !confirmed {
        search.good = search.best_carried();
        let above = search.looks.iter().map(|look| look.rate);
        let above = above.filter(|rate| search.good.is_some_and(|good| *rate > good));
        search.over = above.min_by(f64::total_cmp);
    }
    let peak = search.good.map(|rate| Peak {
        rate,
        at_least: search.over.is_none() || search.full,
        confirmed,
        above: search.over.filter(|_| !search.full),
    });
    Ok((peak, search.looks))
}

struct Search<F> {
    limits: Limits,
    look: F,
    looks: Vec<Look>,
    /// The highest rate that was carried.
    good: Option<f64>,
    /// The lowest rate that was not.
    over: Option<f64>,
    /// Whether that was the generator's fault.
    full: bool,
}

impl<E, F: FnMut(f64) -> Result<Seen, E>> Search<F> {
    /// Looks left, `reserve` of them for later.
    fn has_left(&self, reserve: usize) -> bool {
        self.looks.len() + reserve < self.limits.looks
    }

    /// Whether there are looks left beyond those for confirming.
    fn has_more(&self) -> bool {
        self.has_left((self.limits.looks / 4).clamp(1, RESERVE))
    }

    fn look(&mut self, rate: f64) -> Result<Verdict, E> {
        Ok(self.see(rate)?.verdict)
    }

    fn see(&mut self, rate: f64) -> Result<Seen, E> {
        let seen = (self.look)(rate)?;
        let verdict = seen.verdict;
        self.looks.push(Look { rate, verdict });
        Ok(seen)
    }

    /// The same; one that was not carried is offered again where there are looks for it, and the second answer counts.
    fn look_twice(&mut self, rate: f64) -> Result<Verdict, E> {
        let seen = self.see(rate)?;
        if seen.verdict == Verdict::Carried || seen.beyond_doubt || !self.has_left(2) {
            return Ok(seen.verdict);
        }
        self.look(rate)
    }

    /// The highest rate that was carried at least as often as not.
    fn best_carried(&self) -> Option<f64> {
        let count = |rate: f64, carried: bool| {
            let of = |look: &&Look| look.rate == rate && (look.verdict == Verdict::Carried) == carried;
            self.looks.iter().filter(of).count()
        };
        let rates = self.looks.iter().map(|look| look.rate);
        let carried =
            rates.filter(|rate| count(*rate, true) > 0 && count(*rate, true) >= count(*rate, false));
        carried.max_by(f64::total_cmp)
    }

    fn note(&mut self, rate: f64, verdict: Verdict) {
        match verdict {
            Verdict::Carried => self.good = Some(self.good.map_or(rate, |good| good.max(rate))),
            Verdict::Failed | Verdict::GeneratorFull => {
                if self.over.is_none_or(|over| rate <= over) {
                    self.over = Some(rate);
                    self.full = verdict == Verdict::GeneratorFull;
                }
            }
        }
    }

    /// Up from a rate that is carried, or down from one that is not, until the other is met.
    fn bracket(&mut self) -> Result<(), E> {
        let Limits {
            first, least, most, ..
        } = self.limits;
        let mut rate = first.clamp(least, most.max(least));
        let mut grow = self.limits.grow;
        let most_growth = grow.max(2.0);
        while self.has_left(1) {
            // On the way down the next look shows as much as a second one here.
            let verdict = if self.good.is_some() {
                self.look_twice(rate)?
            } else {
                self.look(rate)?
            };
            self.note(rate, verdict);
            if self.good.is_none() && rate <= least {
                break;
            }
            rate = match (self.over, verdict) {
                (Some(over), Verdict::Carried) => match self.again(over)? {
                    true => over * self.limits.grow,
                    false => break,
                },
                (None, Verdict::Carried) if rate >= most => break,
                (None, Verdict::Carried) => rate * grow,
                _ if self.good.is_some() => break,
                _ => rate / grow,
            };
            rate = rate.clamp(least, most);
            grow = (grow * grow).min(most_growth);
        }
        Ok(())
    }

    /// Whether a rate that was not carried on the way down, and was the last of these, is carried now.
    fn again(&mut self, over: f64) -> Result<bool, E> {
        if !self.has_more() {
            return Ok(false);
        }
        let verdict = self.look(over)?;
        if verdict == Verdict::Carried {
            self.over = None;
            self.full = false;
        }
        self.note(over, verdict);
        Ok(verdict == Verdict::Carried)
    }

    /// Halves the bracket, on a logarithmic scale.
    fn halve(&mut self) -> Result<(), E> {
        while let (Some(good), Some(over)) = (self.good, self.over) {
            if over <= good * (1.0 + self.limits.precision) || !self.has_more() {
                break;
            }
            let rate = (good * over).sqrt();
            let verdict = self.look_twice(rate)?;
            self.note(rate, verdict);
        }
        Ok(())
    }

    /// A rate counts as confirmed when two runs carried it. One that fails is given up for one a little lower, the next
    /// for one lower by twice as much.
    fn confirm(&mut self) -> Result<bool, E> {
        let (Some(mut rate), mut carried) = (self.good, 1) else {
            return Ok(false);
        };
        let mut step = 1.0 + self.limits.precision;
        while carried < 2 && self.has_left(0) {
            match self.look(rate)? {
                Verdict::Carried => carried += 1,
                verdict @ (Verdict::Failed | Verdict::GeneratorFull) => {
                    self.over = Some(rate);
                    self.full = verdict == Verdict::GeneratorFull;
                    rate = (rate / step).max(self.limits.least);
                    step *= step;
                    carried = 0;
                }
            }
            self.good = Some(rate);
        }
        Ok(carried >= 2)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::super::interval::next;
    use super::*;

    const LIMITS: Limits = Limits {
        first: 1_000.0,
        least: 10.0,
        most: 1e6,
        grow: 2.0,
        precision: 0.03,
        looks: 24,
    };

    fn run(limits: &Limits, mut server: impl FnMut(f64) -> Verdict) -> (Option<Peak>, Vec<Look>) {
        let found: Result<_, Infallible> = search(limits, |rate| {
            Ok(Seen {
                verdict: server(rate),
                beyond_doubt: false,
            })
        });
        found.unwrap()
    }

    fn with_capacity(capacity: f64) -> impl FnMut(f64) -> Verdict {
        move |rate| {
            if rate <= capacity {
                Verdict::Carried
            } else {
                Verdict::Failed
            }
        }
    }

    #[test]
    fn a_peak_above_and_below_the_first_look() {
        for capacity in [37.0, 990.0, 1_000.0, 12_345.0, 400_000.0] {
            let (peak, looks) = run(&LIMITS, with_capacity(capacity));
            let peak = peak.unwrap();
            assert!(
                peak.rate <= capacity && peak.rate * 1.031 > capacity,
                "{capacity}: {peak:?}"
            );
            assert!(peak.confirmed && !peak.at_least, "{peak:?}");
            assert!(peak.above.unwrap() > capacity);
            assert!(looks.len() <= LIMITS.looks);
            let last = looks.last().unwrap();
            assert_eq!(
                (last.rate, last.verdict),
                (peak.rate, Verdict::Carried),
                "the second run"
            );
        }
    }

    #[test]
    fn a_server_that_carries_nothing_has_no_peak() {
        let (peak, looks) = run(&LIMITS, |_| Verdict::Failed);
        assert_eq!(peak, None);
        assert!(looks.last().unwrap().rate <= LIMITS.least * LIMITS.grow);
    }

    #[test]
    fn beyond_what_may_be_offered_it_is_at_least() {
        let limits = Limits {
            most: 5_000.0,
            ..LIMITS
        };
        let (peak, _) = run(&limits, with_capacity(1e9));
        let peak = peak.unwrap();
        assert!(peak.at_least && peak.confirmed && peak.above.is_none());
        assert_eq!(peak.rate, 5_000.0);
    }

    #[test]
    fn a_generator_that_gives_out_makes_it_at_least() {
        let (peak, _) = run(&LIMITS, |rate| {
            if rate > 9_000.0 {
                Verdict::GeneratorFull
            } else {
                Verdict::Carried
            }
        });
        let peak = peak.unwrap();
        assert!(
            peak.at_least && peak.rate > 8_700.0 && peak.rate <= 9_000.0,
            "{peak:?}"
        );
        assert_eq!(peak.above, None);
    }

    #[test]
    fn one_stall_is_forgiven_wherever_it_comes() {
        for stalled in 1..=12 {
            for stall in [Verdict::Failed, Verdict::GeneratorFull] {
                let mut count = 0;
                let (peak, _) = run(&LIMITS, |rate| {
                    count += 1;
                    if count == stalled {
                        return stall;
                    }
                    with_capacity(20_000.0)(rate)
                });
                let peak = peak.unwrap();
                // One that spoils the second run costs a step.
                assert!(peak.rate > 18_800.0 && !peak.at_least, "{stalled}: {peak:?}");
            }
        }
    }

    #[test]
    fn what_is_beyond_doubt_is_not_offered_twice() {
        let with = |beyond_doubt: bool| {
            let found: Result<_, Infallible> = search(&LIMITS, |rate| {
                Ok(Seen {
                    verdict: with_capacity(20_000.0)(rate),
                    beyond_doubt,
                })
            });
            found.unwrap()
        };
        let (sure, doubtful) = (with(true), with(false));
        assert_eq!(sure.0, doubtful.0);
        let failed = sure
            .1
            .iter()
            .filter(|look| look.verdict == Verdict::Failed)
            .count();
        assert_eq!(sure.1.len() + failed, doubtful.1.len());
    }

    #[test]
    fn what_is_far_from_the_first_look_is_still_found() {
        let limits = Limits {
            first: 1_000.0,
            grow: 1.07,
            precision: 0.07,
            looks: 14,
            ..LIMITS
        };
        for capacity in [250.0, 500.0, 800.0, 1_300.0, 2_500.0, 5_000.0] {
            let (peak, _) = run(&limits, with_capacity(capacity));
            let peak = peak.unwrap();
            assert!(
                peak.rate <= capacity && peak.rate > 0.9 * capacity && !peak.at_least,
                "{capacity}: {peak:?}"
            );
        }
    }

    #[test]
    fn without_looks_for_a_second_run_it_is_what_was_carried() {
        for looks in 2..12 {
            let limits = Limits { looks, ..LIMITS };
            let mut lucky = 2;
            let (peak, seen) = run(&limits, |rate| {
                if rate <= 10_000.0 || (rate < 12_000.0 && lucky > 0) {
                    lucky -= i32::from(rate > 10_000.0);
                    Verdict::Carried
                } else {
                    Verdict::Failed
                }
            });
            if let Some(peak) = peak {
                let carried = seen
                    .iter()
                    .filter(|l| l.rate == peak.rate && l.verdict == Verdict::Carried);
                assert!(carried.count() > 0, "{looks}: {peak:?} of {seen:?}");
            }
        }
    }

    #[test]
    fn a_lucky_look_is_not_confirmed() {
        // 12,000 is carried once, by luck; 10,000 always.
        let mut lucky = true;
        let (peak, _) = run(&LIMITS, |rate| {
            let carried = rate <= 10_000.0 || (rate < 12_000.0 && std::mem::take(&mut lucky));
            if carried {
                Verdict::Carried
            } else {
                Verdict::Failed
            }
        });
        let peak = peak.unwrap();
        assert!(
            peak.confirmed && peak.rate <= 10_000.0 && peak.rate > 9_000.0,
            "{peak:?}"
        );
    }

    #[test]
    fn too_few_looks_leave_it_unconfirmed() {
        let limits = Limits { looks: 1, ..LIMITS };
        let (peak, looks) = run(&limits, with_capacity(1e9));
        assert_eq!(
            looks.len(),
            0,
            "the only one is kept for the second run, of which there is none"
        );
        assert_eq!(peak, None);
        let limits = Limits { looks: 2, ..LIMITS };
        let (peak, looks) = run(&limits, with_capacity(1e9));
        assert_eq!(looks.len(), 2);
        assert!(peak.unwrap().confirmed);
    }

    #[test]
    fn an_error_ends_it() {
        let mut looks = 0;
        let found = search(&LIMITS, |_| {
            looks += 1;
            if looks == 3 {
                Err("gone")
            } else {
                Ok(Seen {
                    verdict: Verdict::Carried,
                    beyond_doubt: false,
                })
            }
        });
        assert_eq!(found, Err("gone"));
    }

    proptest! {
        /// Around its capacity a real server sometimes carries more and sometimes less. What is confirmed is
        /// near it; where luck at a high rate has cost too many looks, that is said, and what lies above
        /// is near it.
        #[test]
        fn a_noisy_server(capacity in 50.0_f64..200_000.0, seed: u64, noise in 0.0_f64..0.08) {
            let mut state = seed;
            let (peak, looks) = run(&LIMITS, |rate| {
                let unit = (next(&mut state) >> 11) as f64 / (1_u64 << 53) as f64;
                let now = capacity * (1.0 + noise * (2.0 * unit - 1.0));
                if rate <= now { Verdict::Carried } else { Verdict::Failed }
            });
            prop_assert!(looks.len() <= LIMITS.looks);
            let peak = peak.unwrap();
            let low = capacity * (1.0 - noise) / 1.03_f64.powi(5);
            prop_assert!(peak.rate <= capacity * (1.0 + noise), "{:?} of {}: {:?}", peak, capacity, looks);
            let is_near = match peak.confirmed {
                true => peak.rate >= low,
                false => looks.len() == LIMITS.looks && peak.above.is_some_and(|above| above >= low),
            };
            prop_assert!(is_near, "{:?} of {}: {:?}", peak, capacity, looks);
        }

        #[test]
        fn any_answers_end_within_the_looks(answers in prop::collection::vec(0_u8..3, 1..64), looks in 0_usize..30) {
            let mut answers = answers.into_iter().cycle();
            let limits = Limits { looks, ..LIMITS };
            let (peak, seen) = run(&limits, |rate| {
                assert!((LIMITS.least..=LIMITS.most).contains(&rate));
                match answers.next() {
                    Some(0) => Verdict::Carried,
                    Some(1) => Verdict::Failed,
                    _ => Verdict::GeneratorFull,
                }
            });
            prop_assert!(seen.len() <= looks);
            if let Some(peak) = peak.filter(|peak| peak.confirmed) {
                let carried = seen.iter().filter(|l| l.rate == peak.rate && l.verdict == Verdict::Carried);
                prop_assert!(carried.count() >= 2);
            }
        }
    }
}
