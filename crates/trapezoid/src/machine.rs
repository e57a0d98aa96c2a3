//! What the program needs to know of the machine that it runs on.

use std::sync::LazyLock;
use std::time::Instant;

use parking_lot::Mutex;
use sip_net::clock::Clock;

use crate::cli::Failure;
use settings::Machine;

/// The clock of everything here but the workers, which have one each that goes like it.
static CLOCK: LazyLock<Mutex<Clock>> = LazyLock::new(|| Mutex::new(Clock::new(Instant::now())));

/// Reads it.
pub(crate) fn read() -> Result<Machine, Failure> {
    Ok(Machine {
        addresses: addresses()
            .map_err(|error| Failure::failed("cannot list the network interfaces", error))?,
        host_name: host_name(),
        processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        memory_bytes: memory_bytes(),
        variable: |name| std::env::var(name).ok(),
    })
}

/// The wall clock, milliseconds since 1970, as the workers see it: it never jumps
/// ([`sip_core::time::SteadyWall`]).
pub(crate) fn unix_ms() -> u64 {
    CLOCK.lock().read().unix_ms
}

fn addresses() -> std::io::Result<Vec<(std::net::IpAddr, u8)>> {
    let found = sip_net::interfaces::addresses()?;
    Ok(found
        .into_iter()
        .map(|interface| (interface.address, interface.prefix_len))
        .collect())
}

/// Bytes of memory of the machine, or the limit of this process's control group, if that is less.
fn memory_bytes() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let of_machine = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kibibytes * 1024)
    });
    let of_group = read("/proc/self/cgroup").and_then(|text| {
        let path = text.lines().find_map(|line| line.strip_prefix("0::"))?.to_owned();
        read(&format!("/sys/fs/cgroup{path}/memory.max"))?
            .trim()
            .parse()
            .ok()
    });
    of_machine.into_iter().chain(of_group).min()
}

fn host_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(text.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_machine_is_known() {
        let bytes = memory_bytes().expect("Linux says it");
        assert!(bytes > 16 << 20, "{bytes}");
    }
}
