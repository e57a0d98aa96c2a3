//! How far it is: a line for each run, and on a terminal a bar with the time that is left.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::results::Row;

/// Says how far an experiment is. Text for people goes to standard error.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// Whether somebody sees the bar.
    on_terminal: bool,
    /// Whether anybody is told anything.
    silent: bool,
}

impl Progress {
    /// On standard error.
    pub fn new(name: &str) -> Self {
        let on_terminal = io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(
            Some(0),
            if on_terminal {
                ProgressDrawTarget::stderr_with_hz(4)
            } else {
                ProgressDrawTarget::hidden()
            },
        );
        if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:40}] {percent} %, {msg} {eta} left") {
            bar.set_style(style.progress_chars("=> "));
        }
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
            bar: ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden()),
            on_terminal: false,
            silent: true,
        }
    }

    /// There are so many seconds more to do than was said before.
    pub fn expect(&mut self, seconds: f64) {
        self.bar.inc_length(milliseconds(seconds));
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
            // Nobody can be told that standard error is closed.
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
        "nobody" => String::new(),
        who => format!(", {who} full"),
    };
    format!(
        "{:<44} {:>8.0}/s: {:>6.2} % done, {us}, CPU {:.2} (generator {:.2}){p99}{full}",
        row.setup.text(),
        row.run.rate,
        100.0 * (1.0 - row.load.failed_part()),
        row.server.utilization(),
        row.load.generator.utilization,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::synthetic::row;

    #[test]
    fn a_run_is_one_line() {
        let mut row = row(1000.0, 25.0);
        let text = line(&row);
        assert!(text.contains("1000/s: 100.00 % done, 25.0 µs"), "{text}");
        assert!(!text.contains('\n') && !text.contains("full"), "{text}");
        row.load.generator.saturated = true;
        assert!(line(&row).ends_with("generator full"));
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
