//! Logs: levels, text or JSON lines on standard error, and a bound on the lines of one cause.
//!
//! A separate thread writes the lines, which reach it through a bounded queue. So no thread that logs waits
//! for a terminal or a pipe that is not read. Lines that do not fit are counted and reported later.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Filter, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

use settings::{Log, LogFormat, LogLevel};

/// Most lines that wait for standard error.
const QUEUE_LINES: usize = 4096;

/// The log of the process. When dropped, it writes the waiting lines.
pub(crate) struct Logs {
    level: reload::Handle<LevelFilter, Registry>,
    limit: Arc<Limit>,
    writer: Writer,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Logs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Logs(..)")
    }
}

impl Logs {
    /// Starts logging with the settings `log`. To be called once in a process.
    pub(crate) fn start(log: &Log) -> Self {
        let (writer, thread) = Writer::start(Box::new(io::stderr()));
        let (level, level_handle) = reload::Layer::new(level(log.level));
        let limit = Arc::new(Limit::default());
        limit.set(log);
        let lines = tracing_subscriber::fmt::layer().with_writer(writer.clone());
        let filter = Limited(Arc::clone(&limit));
        let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let layer = match log.format {
            LogFormat::Text => lines
                .with_ansi(colours)
                .with_target(false)
                .with_filter(filter)
                .boxed(),
            LogFormat::Json => lines
                .json()
                .flatten_event(true)
                .with_current_span(false)
                .with_span_list(false)
                .with_filter(filter)
                .boxed(),
        };
        if log.format == LogFormat::Json {
            std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
        }
        // A second subscriber is refused: the first remains, which happens in tests only.
        let _ = tracing_subscriber::registry().with(level).with(layer).try_init();
        Self {
            level: level_handle,
            limit,
            writer,
            thread,
        }
    }

    /// Uses new levels and limits; the format stays.
    pub(crate) fn set(&self, log: &Log) {
        // This fails only if the subscriber is gone.
        let _ = self.level.modify(|filter| *filter = level(log.level));
        self.limit.set(log);
    }

    /// Logs how many lines were suppressed since the last time; to be called about once a second.
    pub(crate) fn tell_left_out(&self) {
        self.tell_left_out_until(Instant::now());
    }

    fn tell_left_out_until(&self, now: Instant) {
        for left in self.limit.take_left_out(now) {
            tracing::info!(target: SUMMARY, cause = left.cause, lines = left.lines, "log lines left out");
        }
        let lost = self.writer.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            tracing::warn!(target: SUMMARY, lines = lost, "log lines lost: standard error is slow");
        }
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        // The lines suppressed in the current interval are reported, too.
        self.tell_left_out_until(Instant::now() + self.limit.interval());
        // The subscriber keeps its senders for ever, so the end is a message, not a closed queue. If standard
        // error is not read, that must not keep the process from ending.
        if self.writer.send(Line::End) {
            let ended = Instant::now();
            while self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
                && ended.elapsed() < Duration::from_secs(2)
            {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

/// Target of lines about suppressed lines. They have no limit, because each cause and interval has only one.
const SUMMARY: &str = "trapezoid::logs";
/// Target of lines that have a limit for each source instead: one source must not use up the limit of the
/// others.
pub(crate) const BOUNDED: &str = "trapezoid::requests";

fn level(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// Limit on the lines of each cause. A cause is a place in the program, so the number of causes is bounded.
/// Debug and trace have no limit: an operator that enables them wants all lines.
#[derive(Debug, Default)]
struct Limit {
    burst: AtomicU32,
    interval_ms: AtomicU64,
    causes: Mutex<HashMap<Identifier, Window>>,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    written: u32,
    left_out: u64,
    cause: &'static Metadata<'static>,
}

/// A cause with the number of its suppressed lines.
#[derive(Debug, PartialEq, Eq)]
struct LeftOut {
    cause: String,
    lines: u64,
}

impl Limit {
    fn set(&self, log: &Log) {
        self.burst.store(log.burst, Ordering::Relaxed);
        self.interval_ms
            .store(u64::from(log.interval_s) * 1000, Ordering::Relaxed);
    }

    fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms.load(Ordering::Relaxed))
    }

    /// Whether a line of this cause may be written now.
    fn allow(&self, cause: &'static Metadata<'static>, now: Instant) -> bool {
        if *cause.level() > Level::INFO || matches!(cause.target(), SUMMARY | BOUNDED) {
            return true;
        }
        let mut causes = self.causes.lock();
        let window = causes.entry(cause.callsite()).or_insert(Window {
            since: now,
            written: 0,
            left_out: 0,
            cause,
        });
        if now.saturating_duration_since(window.since) >= self.interval() {
            window.since = now;
            window.written = 0;
        }
        let allowed = window.written < self.burst.load(Ordering::Relaxed);
        if allowed {
            window.written += 1;
        } else {
            window.left_out += 1;
        }
        allowed
    }

    /// Lines suppressed in intervals that have ended.
    fn take_left_out(&self, now: Instant) -> Vec<LeftOut> {
        let interval = self.interval();
        let mut out = Vec::new();
        for window in self.causes.lock().values_mut() {
            if window.left_out > 0 && now.saturating_duration_since(window.since) >= interval {
                let lines = std::mem::take(&mut window.left_out);
                let line = window.cause.line().unwrap_or(0);
                out.push(LeftOut {
                    cause: format!("{}:{line}", window.cause.target()),
                    lines,
                });
            }
        }
        out.sort_by(|a, b| a.cause.cmp(&b.cause));
        out
    }
}

struct Limited(Arc<Limit>);

impl<S: Subscriber> Filter<S> for Limited {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        self.0.allow(event.metadata(), Instant::now())
    }
}

enum Line {
    Text(Vec<u8>),
    End,
}

/// Passes lines to the thread that writes them.
#[derive(Clone)]
struct Writer {
    lines: SyncSender<Line>,
    lost: Arc<AtomicU64>,
}

impl Writer {
    fn start(out: Box<dyn Write + Send>) -> (Self, Option<JoinHandle<()>>) {
        let (lines, queue) = sync_channel(QUEUE_LINES);
        let builder = std::thread::Builder::new().name("log".to_owned());
        // Without a thread every line counts as lost; a process that cannot start a thread has other
        // problems.
        let thread = builder.spawn(move || write_lines(&queue, out)).ok();
        (
            Self {
                lines,
                lost: Arc::default(),
            },
            thread,
        )
    }

    /// Queues a line. Returns whether it was accepted.
    fn send(&self, line: Line) -> bool {
        let taken = self.lines.try_send(line).is_ok();
        if !taken {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }
}

fn write_lines(queue: &Receiver<Line>, mut out: Box<dyn Write + Send>) {
    while let Ok(Line::Text(text)) = queue.recv() {
        // A failure cannot be reported: this is the place for reports.
        let _ = out.write_all(&text);
    }
    let _ = out.flush();
}

impl Write for Writer {
    /// Queues one line; the formatter writes each line in one call.
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.send(Line::Text(text.to_vec()));
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Writer {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One place in the program, at any level.
    fn metadata(level: Level) -> &'static Metadata<'static> {
        metadata_of("module", level)
    }

    fn metadata_of(target: &'static str, level: Level) -> &'static Metadata<'static> {
        use tracing::{Callsite, Metadata, metadata};
        struct Place(std::sync::OnceLock<Metadata<'static>>);
        impl Callsite for Place {
            fn set_interest(&self, _: tracing::subscriber::Interest) {}
            fn metadata(&self) -> &Metadata<'_> {
                self.0.get().expect("set")
            }
        }
        let place: &'static Place = Box::leak(Box::new(Place(std::sync::OnceLock::new())));
        let made = metadata! {
            name: "test", target: target, level: level, fields: &[], callsite: place,
            kind: tracing::metadata::Kind::EVENT
        };
        place.0.get_or_init(|| made)
    }

    #[test]
    fn a_cause_writes_its_burst_and_then_a_number() {
        let limit = Limit::default();
        limit.set(&Log {
            burst: 2,
            interval_s: 10,
            ..Log::default()
        });
        let (often, seldom) = (metadata(Level::WARN), metadata(Level::ERROR));
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let written = (0..5).filter(|_| limit.allow(often, at(0))).count();
        assert_eq!(written, 2);
        assert!(limit.allow(seldom, at(1)), "another cause has its own measure");
        assert_eq!(limit.take_left_out(at(9)), [], "the interval goes on");
        let left_out = limit.take_left_out(at(10));
        assert_eq!(left_out.iter().map(|left| left.lines).collect::<Vec<_>>(), [3]);
        assert_eq!(limit.take_left_out(at(11)), []);
        assert!(limit.allow(often, at(12)));
    }

    /// The failures of one source must not hide those of another.
    #[test]
    fn lines_with_a_limit_of_their_own_have_no_other() {
        let limit = Limit::default();
        limit.set(&Log {
            burst: 1,
            ..Log::default()
        });
        let refused = metadata_of(BOUNDED, Level::INFO);
        assert!((0..100).all(|_| limit.allow(refused, Instant::now())));
    }

    #[test]
    fn debug_lines_have_no_limit() {
        let limit = Limit::default();
        limit.set(&Log {
            burst: 1,
            ..Log::default()
        });
        let cause = metadata(Level::DEBUG);
        assert!((0..100).all(|_| limit.allow(cause, Instant::now())));
    }

    #[test]
    fn a_slow_reader_costs_lines_and_not_time() {
        struct Stuck(std::sync::mpsc::Receiver<()>);
        impl Write for Stuck {
            fn write(&mut self, text: &[u8]) -> io::Result<usize> {
                let _ = self.0.recv();
                Ok(text.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (release, stuck) = std::sync::mpsc::channel();
        let (mut writer, thread) = Writer::start(Box::new(Stuck(stuck)));
        for _ in 0..QUEUE_LINES + 10 {
            assert_eq!(writer.write(b"line").ok(), Some(4));
        }
        let lost = writer.lost.load(Ordering::Relaxed);
        assert!((9..=10).contains(&lost), "{lost}");
        drop(release);
        drop(writer);
        assert!(thread.is_some_and(|thread| thread.join().is_ok()));
    }
}
