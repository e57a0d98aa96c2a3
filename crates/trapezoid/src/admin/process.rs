//! Metrics of the process from Linux, as every Prometheus client library has them.

use std::fs;

/// Clock ticks a second in `/proc`: the kernel's interface has this value on every architecture that this
/// program is built for.
const TICKS: f64 = 100.0;
/// Bytes of a page in `/proc/self/statm`.
const PAGE_BYTES: f64 = 4096.0;

/// A reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    Counter(f64),
    Gauge(f64),
}

/// Name, help and value of each readable metric.
pub(super) fn read() -> Vec<(&'static str, &'static str, Value)> {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let field = |number: usize| stat_field(&stat, number);
    let cpu = field(14)
        .zip(field(15))
        .map(|(user, system)| (user + system) / TICKS);
    let start = field(22)
        .zip(boot_time())
        .map(|(ticks, boot)| boot + ticks / TICKS);
    let fds = fs::read_dir("/proc/self/fd")
        .ok()
        .map(|entries| f64::from(u32::try_from(entries.count()).unwrap_or(u32::MAX)));
    let readings = [
        (
            "process_cpu_seconds",
            "Processor time used, user and system",
            cpu.map(Value::Counter),
        ),
        (
            "process_resident_memory_bytes",
            "Memory in use",
            resident().map(Value::Gauge),
        ),
        (
            "process_start_time_seconds",
            "When the process started, since 1970",
            start.map(Value::Gauge),
        ),
        ("process_open_fds", "Open file descriptors", fds.map(Value::Gauge)),
        (
            "process_max_fds",
            "Most file descriptors that may be open",
            max_fds().map(Value::Gauge),
        ),
        ("process_threads", "Threads", field(20).map(Value::Gauge)),
    ];
    readings
        .into_iter()
        .filter_map(|(name, help, value)| Some((name, help, value?)))
        .collect()
}

/// A field of `/proc/self/stat` by its number in proc(5), from 3: the fields behind the name, which may
/// contain blanks.
fn stat_field(stat: &str, number: usize) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields
        .split_ascii_whitespace()
        .nth(number.checked_sub(3)?)?
        .parse()
        .ok()
}

fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines()
        .find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

fn resident() -> Option<f64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages * PAGE_BYTES)
}

fn max_fds() -> Option<f64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    line.split_ascii_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_brackets_does_not_shift_the_fields() {
        let stat = "1 (a ) b) S 2 3 4 5 6 7 8 9 10 11 700 300";
        assert_eq!(stat_field(stat, 14), Some(700.0));
        assert_eq!(stat_field(stat, 15), Some(300.0));
        assert_eq!(stat_field(stat, 22), None);
    }
}
