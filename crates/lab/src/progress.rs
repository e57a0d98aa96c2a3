//! How far it is: a line for each run, and on a terminal a bar with the time that is left.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::results::Row;

/// Says how far an experiment is. Text for people goes to standard error.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// Whether standard error is a terminal, which shows the bar.
    on_terminal: bool,
    /// Whether nothing is written at all.
    silent: bool,
}

impl Progress {
    /// On standard error.
    pub fn new(name: &str) -> Self {
        let on_terminal = io::stderr().is_terminal();
        let bar = bar(if on_terminal {
            ProgressDrawTarget::stderr_with_hz(4)
        } else {
            ProgressDrawTarget::hidden()
        });
        bar.set_prefix(name.to_owned());
        if on_terminal {
            bar.enable_steady_tick(Duration::from_secs(1));
        }
        Self {
            bar,
            on_terminal,
            silent: false,
        }
    }

    /// One that says nothing, for tests.
    pub fn silent() -> Self {
        Self {
            bar: bar(ProgressDrawTarget::hidden()),
            on_terminal: false,
            silent: true,
        }
    }

    /// There are so many seconds more to do than was said before.
    pub fn expect(&mut self, seconds: f64) {
        let before = self.bar.length().unwrap_or(0);
        self.bar.set_length(before.saturating_add(milliseconds(seconds)));
    }

    /// So many of them are done.
    pub fn done(&mut self, seconds: f64) {
        self.bar.inc(milliseconds(seconds));
    }

    /// What is being done.
    pub fn doing(&mut self, what: &str) {
        self.bar.set_message(format!("{what},"));
    }

    /// A line that stays.
    pub fn say(&mut self, text: &str) {
        if self.silent {
            return;
        }
        if self.on_terminal {
            self.bar.println(text);
        } else {
            // Where standard error is closed there is no other place to say it.
            let _ = writeln!(io::stderr().lock(), "{text}");
        }
    }

    /// A run was made.
    pub fn ran(&mut self, row: &Row) {
        self.say(&line(row));
    }

    /// All is done, or given up.
    pub fn finish(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A bar that stands at 0 until the amount of work is known. Until then it has no length: with length 0 it would be
/// full.
fn bar(target: ProgressDrawTarget) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, target);
    let style = ProgressStyle::with_template("{prefix} [{bar:40}] {percent} %, {msg} {left}");
    if let Ok(style) = style {
        let left = |state: &ProgressState, out: &mut dyn fmt::Write| {
            // If the bar cannot be written, no reader misses it.
            let _ = out.write_str(&left(state.pos(), state.len(), state.elapsed()));
        };
        bar.set_style(style.progress_chars("=> ").with_key("left", left));
    }
    bar
}

/// The time that is left, for people: the planned time at the pace so far (starting servers takes time, too).
fn left(done_ms: u64, all_ms: Option<u64>, elapsed: Duration) -> String {
    let Some(all_ms) = all_ms else {
        return "counting what there is to do".to_owned();
    };
    let pace = match done_ms {
        0 => 1.0,
        _ => (elapsed.as_secs_f64() * 1e3 / done_ms as f64).max(1.0),
    };
    let left = Duration::from_secs_f64((all_ms.saturating_sub(done_ms) as f64 * pace / 1e3).round());
    format!("{} left", HumanDuration(left))
}

fn milliseconds(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1e3) as u64
}

fn line(row: &Row) -> String {
    let times = row.load.response_ms.get(row.setup.case.operation.response());
    let p99 = times.map_or_else(String::new, |times| format!(", p99 {:.2} ms", times.p99));
    let us = match row.database_us() {
        Some(database) => format!("{:.1} µs + {database:.1} in the database", row.server_us()),
        None => format!("{:.1} µs", row.server_us()),
    };
    let full = match row.saturated() {
        "none" => String::new(),
        what => format!(", {what} full"),
    };
    format!(
        "{:<44} {:>8.0}/s: {:>6.2} % completed, {us}, CPU {:.2} (generator {:.2}){p99}{full}",
        row.setup.text(),
        row.run.rate,
        100.0 * row.load.completed_part(),
        row.server.utilization(),
        row.load.generator.utilization,
    )
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::experiments::synthetic::row;

    #[test]
    fn a_run_is_one_line() {
        let mut row = row(1000.0, 25.0);
        let text = line(&row);
        assert!(text.contains("1000/s: 100.00 % completed, 25.0 µs"), "{text}");
        assert!(!text.contains('\n') && !text.contains("full"), "{text}");
        row.load.generator.saturated = true;
        assert!(line(&row).ends_with("generator full"));
    }

    #[test]
    fn the_time_left_is_known_from_the_beginning() {
        let seconds = Duration::from_secs;
        assert_eq!(left(0, None, seconds(0)), "counting what there is to do");
        assert_eq!(left(0, Some(600_000), seconds(3)), "10 minutes left");
        assert_eq!(left(300_000, Some(600_000), seconds(600)), "10 minutes left");
        assert_eq!(left(600_000, Some(600_000), seconds(600)), "0 seconds left");
    }

    /// A terminal that keeps the last text written to it.
    #[derive(Clone, Debug, Default)]
    struct Paper(Arc<Mutex<String>>);

    impl indicatif::TermLike for Paper {
        fn width(&self) -> u16 {
            120
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            self.0.lock().unwrap().clear();
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The text that a terminal shows.
    fn shown(progress: &Progress) -> String {
        let paper = Paper::default();
        let target = ProgressDrawTarget::term_like(Box::new(paper.clone()));
        progress.bar.set_draw_target(target);
        progress.bar.tick();
        paper.0.lock().unwrap().clone()
    }

    #[test]
    fn the_bar_begins_at_nothing() {
        let mut progress = Progress::silent();
        assert!(shown(&progress).contains("] 0 %"), "{}", shown(&progress));
        progress.expect(100.0);
        assert!(shown(&progress).contains("] 0 %"), "{}", shown(&progress));
        progress.done(25.0);
        assert!(shown(&progress).contains("] 25 %"), "{}", shown(&progress));
    }

    #[test]
    fn what_is_done_is_counted() {
        let mut progress = Progress::silent();
        progress.expect(10.0);
        progress.done(4.0);
        assert_eq!(
            (progress.bar.length(), progress.bar.position()),
            (Some(10_000), 4_000)
        );
        progress.say("nothing is heard");
        progress.finish();
    }
}
