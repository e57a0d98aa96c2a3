//! Planned times of the calls. Open loop: they do not depend on the server.

use std::time::Duration;

use crate::Micros;

/// Growth of the rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ramp {
    /// Calls per second that each step adds.
    pub step: f64,
    /// Time between steps.
    pub every: Duration,
}

/// Number of calls, and their distribution in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offered {
    /// Rate at the start, calls per second; more than 0.
    pub rate: f64,
    /// Growth of the rate; `None` if it is constant.
    pub ramp: Option<Ramp>,
    /// Whether times between calls are exponential (a Poisson process) instead of equal.
    pub poisson: bool,
    /// Seed of the random times: equal seeds give equal times.
    pub seed: u64,
}

impl Offered {
    /// Rate at this time after the start, calls per second.
    pub fn rate_at(&self, us: Micros) -> f64 {
        let Some(ramp) = self.ramp else {
            return self.rate;
        };
        let every = (ramp.every.as_micros() as u64).max(1);
        ramp.step.mul_add((us / every) as f64, self.rate).max(0.0)
    }
}

/// Planned times of calls, in order.
#[derive(Debug)]
pub(crate) struct Schedule {
    offered: Offered,
    /// Planned time of the next call, microseconds since the start.
    at: f64,
    random: u64,
}

impl Schedule {
    pub(crate) fn new(offered: Offered) -> Self {
        let mut schedule = Self {
            offered,
            at: 0.0,
            random: offered.seed,
        };
        if offered.poisson {
            schedule.advance();
        }
        schedule
    }

    /// When the next call is meant to begin.
    pub(crate) fn next(&self) -> Micros {
        self.at as Micros
    }

    /// Moves on to the call after the one that has begun.
    pub(crate) fn advance(&mut self) {
        let rate = self.offered.rate_at(self.at as Micros);
        let mean_us = 1e6 / rate.max(1e-6);
        self.at += if self.offered.poisson {
            // 1 - u is in (0, 1]: the logarithm is finite.
            -mean_us * (1.0 - self.uniform()).ln()
        } else {
            mean_us
        };
    }

    /// A random number in [0, 1): the upper 53 bits of `SplitMix64` (Steele, Lea and Flood 2014).
    fn uniform(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(offered: Offered, until: Micros) -> Vec<Micros> {
        let mut schedule = Schedule::new(offered);
        let next = || {
            let at = schedule.next();
            schedule.advance();
            Some(at)
        };
        std::iter::from_fn(next).take_while(|at| *at < until).collect()
    }

    const EVEN: Offered = Offered {
        rate: 1000.0,
        ramp: None,
        poisson: false,
        seed: 1,
    };

    #[test]
    fn an_even_rate_is_kept_without_drift() {
        let times = times(Offered { rate: 3000.0, ..EVEN }, 10_000_000);
        assert!((30_000..=30_001).contains(&times.len()), "{}", times.len());
        assert_eq!(times[0], 0);
        assert!(times.windows(2).all(|w| (333..=334).contains(&(w[1] - w[0]))));
    }

    #[test]
    fn a_poisson_process_has_the_mean_the_variance_and_the_seed() {
        let offered = Offered {
            poisson: true,
            ..EVEN
        };
        let all = times(offered, 100_000_000);
        // 100,000 expected, standard deviation 316.
        assert!(all.len().abs_diff(100_000) < 1_500, "{}", all.len());
        let gaps: Vec<f64> = all.windows(2).map(|w| (w[1] - w[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // In an exponential distribution the standard deviation is the mean.
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.03);
        assert_eq!(all, times(offered, 100_000_000));
        assert_ne!(all, times(Offered { seed: 2, ..offered }, 100_000_000));
    }

    #[test]
    fn a_ramp_goes_up_in_steps() {
        let ramp = Ramp {
            step: 100.0,
            every: Duration::from_secs(5),
        };
        let offered = Offered {
            rate: 200.0,
            ramp: Some(ramp),
            ..EVEN
        };
        let all = times(offered, 15_000_000);
        let in_second = |s: u64| all.iter().filter(|at| **at / 1_000_000 == s).count();
        for (second, rate) in [(1, 200), (4, 200), (6, 300), (12, 400)] {
            assert!(
                in_second(second).abs_diff(rate) <= 1,
                "{second}: {}",
                in_second(second)
            );
        }
        // The rate falls to 0, and not below.
        let ramp = Ramp { step: -300.0, ..ramp };
        let down = Offered {
            ramp: Some(ramp),
            ..offered
        };
        assert!(times(down, 60_000_000).iter().all(|at| *at <= 5_100_000));
    }
}
