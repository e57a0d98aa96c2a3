//! Registrations at a bounded rate. What gets no response is sent again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::said;

/// Until a REGISTER is sent again.
const AGAIN: Duration = Duration::from_millis(500);
/// How often it is sent at most.
const TRIES: u32 = 20;
/// Phones that wait for a response at most: their REGISTERs must find room in the server's buffer.
const WINDOW: u32 = 512;

/// A REGISTER that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    number: u32,
    at: Instant,
    tries: u32,
}

/// All registrations.
#[derive(Debug)]
pub(super) struct Registering {
    row: said::Phones,
    rate: f64,
    began: Instant,
    ended: Instant,
    /// The first phone without a REGISTER.
    next: u32,
    /// Phones that wait for a response.
    waiting: u32,
    /// Those, and others that have their response, the earliest first.
    sent: VecDeque<Sent>,
    /// By number: phones that wait for nothing any more.
    done: Vec<bool>,
}

impl Registering {
    /// Of so many phones, so many a second.
    pub(super) fn new(count: u32, rate: f64, now: Instant) -> Self {
        Self {
            row: said::Phones {
                asked: count,
                ..said::Phones::default()
            },
            rate,
            began: now,
            ended: now,
            next: 0,
            waiting: 0,
            sent: VecDeque::new(),
            done: vec![false; count as usize],
        }
    }

    /// Whether no phone waits, or will.
    pub(super) fn is_over(&self) -> bool {
        self.next == self.row.asked && self.waiting == 0
    }

    /// The next phone whose REGISTER is to be sent now.
    pub(super) fn due(&mut self, now: Instant) -> Option<u32> {
        self.overdue(now).or_else(|| self.first(now))
    }

    /// A phone that has waited for too long.
    fn overdue(&mut self, now: Instant) -> Option<u32> {
        while let Some(first) = self.sent.front().copied() {
            let is_done = self.done.get(first.number as usize) == Some(&true);
            if !is_done && now < first.at + AGAIN {
                return None;
            }
            self.sent.pop_front();
            if is_done {
                continue;
            }
            if first.tries < TRIES {
                self.row.resent += 1;
                self.sent.push_back(Sent {
                    at: now,
                    tries: first.tries + 1,
                    ..first
                });
                return Some(first.number);
            }
            self.row.unanswered += 1;
            self.end(first.number, now);
        }
        None
    }

    /// A phone that has sent nothing yet.
    fn first(&mut self, now: Instant) -> Option<u32> {
        let number = self.next;
        let allowed = now.saturating_duration_since(self.began).as_secs_f64() * self.rate;
        if number == self.row.asked || self.waiting >= WINDOW || f64::from(number) > allowed {
            return None;
        }
        self.next += 1;
        self.waiting += 1;
        self.sent.push_back(Sent {
            number,
            at: now,
            tries: 1,
        });
        Some(number)
    }

    /// A phone has its response.
    pub(super) fn answered(&mut self, number: u32, status: u16, now: Instant) {
        // Of several responses the first counts.
        if self.done.get(number as usize) != Some(&false) {
            return;
        }
        if status == 200 {
            self.row.registered += 1;
        } else {
            self.row.refused += 1;
            self.row.status = Some(status);
        }
        self.end(number, now);
    }

    fn end(&mut self, number: u32, now: Instant) {
        if let Some(done) = self.done.get_mut(number as usize) {
            *done = true;
        }
        self.waiting = self.waiting.saturating_sub(1);
        self.ended = now;
    }

    pub(super) fn said(&self) -> said::Phones {
        said::Phones {
            seconds: self.ended.saturating_duration_since(self.began).as_secs_f64(),
            ..self.row.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_due(registering: &mut Registering, now: Instant) -> Vec<u32> {
        std::iter::from_fn(|| registering.due(now)).collect()
    }

    #[test]
    fn phones_keep_to_the_rate_and_to_the_window() {
        let began = Instant::now();
        let mut registering = Registering::new(2_000, 1_000.0, began);
        let at = |ms: u64| began + Duration::from_millis(ms);
        assert_eq!(all_due(&mut registering, at(3)), [0, 1, 2, 3]);
        assert_eq!(all_due(&mut registering, at(4)), [4]);
        // Half a second later no more than the window waits, and the first are sent again.
        let due = all_due(&mut registering, at(499));
        assert_eq!(due.len(), 495);
        let mut registering = Registering::new(2_000, 1e6, began);
        assert_eq!(all_due(&mut registering, at(100)).len(), WINDOW as usize);
        registering.answered(7, 200, at(101));
        assert_eq!(all_due(&mut registering, at(101)), [WINDOW]);
    }

    #[test]
    fn what_gets_no_response_is_sent_again_and_given_up_at_last() {
        let began = Instant::now();
        let mut registering = Registering::new(3, 1e6, began);
        let mut now = began + Duration::from_millis(1);
        assert_eq!(all_due(&mut registering, now), [0, 1, 2]);
        registering.answered(0, 200, now);
        registering.answered(0, 200, now);
        registering.answered(1, 503, now);
        registering.answered(99, 200, now);
        assert!(!registering.is_over());
        for _ in 1..TRIES {
            now += AGAIN;
            assert_eq!(all_due(&mut registering, now), [2]);
        }
        now += AGAIN;
        assert_eq!(all_due(&mut registering, now), [0_u32; 0]);
        assert!(registering.is_over());
        registering.answered(2, 200, now);
        let said = registering.said();
        assert_eq!(
            (said.registered, said.refused, said.unanswered),
            (1, 1, 1),
            "too late"
        );
        assert_eq!((said.resent, said.status), (u64::from(TRIES) - 1, Some(503)));
        assert!((said.seconds - 10.001).abs() < 1e-6, "{said:?}");
    }
}
