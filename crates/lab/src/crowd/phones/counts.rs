//! What came to the phones since the last time that they were asked.

use std::time::Instant;

use super::said;
use crate::steps::WINDOW_S;

/// Windows that are kept: those of an hour.
const WINDOWS: usize = 36_000;
/// Numbers of pings that are told apart.
const NUMBERS: usize = 16;

/// Counts of pings.
#[derive(Debug)]
pub(super) struct Counts {
    began: Instant,
    row: said::Pings,
    /// OPTIONS of each phone.
    each: Vec<u8>,
}

impl Counts {
    /// Of so many phones.
    pub(super) fn new(count: u32, now: Instant) -> Self {
        Self {
            began: now,
            row: said::Pings::default(),
            each: vec![0; count as usize],
        }
    }

    pub(super) fn options(&mut self, number: u32, now: Instant) {
        let Some(each) = self.each.get_mut(number as usize) else {
            self.row.others += 1;
            return;
        };
        *each = each.saturating_add(1);
        self.row.options += 1;
        self.count_in_window(now);
    }

    pub(super) fn crlf(&mut self, now: Instant) {
        self.row.crlf += 1;
        self.count_in_window(now);
    }

    pub(super) fn answer(&mut self) {
        self.row.answered += 1;
    }

    pub(super) fn other(&mut self) {
        self.row.others += 1;
    }

    fn count_in_window(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.began).as_secs_f64();
        let index = (seconds / WINDOW_S) as usize;
        if index >= WINDOWS {
            return;
        }
        let windows = &mut self.row.windows;
        if windows.len() <= index {
            windows.resize(index + 1, 0);
        }
        if let Some(window) = windows.get_mut(index) {
            *window += 1;
        }
    }

    /// Takes the counts, and begins anew.
    pub(super) fn take(&mut self, now: Instant) -> said::Pings {
        let mut row = std::mem::take(&mut self.row);
        row.seconds = now.saturating_duration_since(self.began).as_secs_f64();
        self.began = now;
        let mut by_pings = vec![0; NUMBERS];
        for pings in &mut self.each {
            if let Some(contacts) = by_pings.get_mut(usize::from(*pings).min(NUMBERS - 1)) {
                *contacts += 1;
            }
            *pings = 0;
        }
        let used = by_pings.iter().rposition(|contacts| *contacts > 0);
        by_pings.truncate(used.map_or(0, |last| last + 1));
        row.contacts_by_pings = by_pings;
        row
    }

    #[cfg(test)]
    pub(super) fn heard(&self) -> u64 {
        self.row.total() + self.row.others
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn pings_are_counted_by_window_and_by_phone() {
        let began = Instant::now();
        let at = |ms: u64| began + Duration::from_millis(ms);
        let mut counts = Counts::new(4, began);
        for (number, ms) in [(0, 0), (1, 99), (1, 310), (3, 350), (9, 351)] {
            counts.options(number, at(ms));
        }
        counts.crlf(at(420));
        counts.answer();
        assert_eq!(counts.heard(), 6);
        let row = counts.take(at(500));
        assert_eq!((row.options, row.crlf, row.answered, row.others), (4, 1, 1, 1));
        assert_eq!(row.windows, [2, 0, 0, 2, 1]);
        assert_eq!(row.contacts_by_pings, [1, 2, 1]);
        assert!((row.seconds - 0.5).abs() < 1e-9);
        let row = counts.take(at(700));
        assert_eq!((row.total(), row.windows.len()), (0, 0));
        assert_eq!(row.contacts_by_pings, [4]);
        for _ in 0..300 {
            counts.options(2, at(700));
        }
        let row = counts.take(at(800));
        assert_eq!(
            (row.contacts_by_pings.len(), row.contacts_by_pings[15]),
            (NUMBERS, 1)
        );
    }
}
