//! The highest load that is carried, by search: geometric until it is bracketed, then by halves, then confirmed.

use serde::{Deserialize, Serialize};

/// What came of offering a load.
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

/// One look.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// Operations offered a second.
    pub rate: f64,
    /// What came of it.
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
    /// Factor between rates until the peak is bracketed; above 1.
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
    /// Whether the server may carry more: the generator, or the highest rate allowed, ended the search.
    pub at_least: bool,
    /// Whether a second run at this rate carried it, too.
    pub confirmed: bool,
    /// The lowest rate above it that was not carried.
    pub above: Option<f64>,
}

/// Searches. `look` offers a rate and tells what came of it. No peak: nothing that was offered was carried.
///
/// # Errors
/// Those of `look`.
pub fn search<E>(
    limits: &Limits,
    look: impl FnMut(f64) -> Result<Verdict, E>,
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

impl<E, F: FnMut(f64) -> Result<Verdict, E>> Search<F> {
    /// Looks left, `reserve` of them for later.
    fn has_left(&self, reserve: usize) -> bool {
        self.looks.len() + reserve < self.limits.looks
    }

    fn look(&mut self, rate: f64) -> Result<Verdict, E> {
        let verdict = (self.look)(rate)?;
        self.looks.push(Look { rate, verdict });
        Ok(verdict)
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
            first,
            least,
            most,
            grow,
            ..
        } = self.limits;
        let mut rate = first.clamp(least, most.max(least));
        let mut doubted = false;
        while self.has_left(1) {
            let verdict = self.look(rate)?;
            // The host may have stalled: what ends the way up is looked at once more.
            if verdict == Verdict::Failed && self.good.is_some() && !doubted && self.has_left(2) {
                doubted = true;
                continue;
            }
            doubted = false;
            self.note(rate, verdict);
            if self.good.is_some() && (self.over.is_some() || rate >= most) {
                break;
            }
            if self.good.is_none() && rate <= least {
                break;
            }
            rate = match verdict {
                Verdict::Carried => (rate * grow).min(most),
                Verdict::Failed | Verdict::GeneratorFull => (rate / grow).max(least),
            };
        }
        Ok(())
    }

    /// Halves the bracket, on a logarithmic scale.
    fn halve(&mut self) -> Result<(), E> {
        while let (Some(good), Some(over)) = (self.good, self.over) {
            if over <= good * (1.0 + self.limits.precision) || !self.has_left(1) {
                break;
            }
            let rate = (good * over).sqrt();
            let verdict = self.look(rate)?;
            self.note(rate, verdict);
        }
        Ok(())
    }

    /// A rate counts as confirmed when two runs carried it. One that fails is given up for one a little lower.
    fn confirm(&mut self) -> Result<bool, E> {
        let (Some(mut rate), mut carried) = (self.good, 1) else {
            return Ok(false);
        };
        while carried < 2 && self.has_left(0) {
            match self.look(rate)? {
                Verdict::Carried => carried += 1,
                verdict @ (Verdict::Failed | Verdict::GeneratorFull) => {
                    self.over = Some(rate);
                    self.full = verdict == Verdict::GeneratorFull;
                    rate = (rate / (1.0 + self.limits.precision)).max(self.limits.least);
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
        let found: Result<_, Infallible> = search(limits, |rate| Ok(server(rate)));
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
    fn one_stall_on_the_way_up_is_forgiven() {
        let mut count = 0;
        let (peak, _) = run(&LIMITS, |rate| {
            count += 1;
            if count == 2 {
                return Verdict::Failed;
            }
            with_capacity(20_000.0)(rate)
        });
        assert!(peak.unwrap().rate > 19_000.0);
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
                Ok(Verdict::Carried)
            }
        });
        assert_eq!(found, Err("gone"));
    }

    proptest! {
        /// Around its capacity a real server sometimes carries more and sometimes less.
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
            prop_assert!(peak.rate >= low && peak.rate <= capacity * (1.0 + noise), "{:?} of {}", peak, capacity);
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
