//! Properties of the machine, as the program needs them.

mod memory;

use std::path::Path;
use std::sync::LazyLock;
use std::time::Instant;

use parking_lot::Mutex;
use sip_net::clock::Clock;

use crate::cli::Failure;
use settings::Machine;

/// The clock of everything here except the workers, which have clocks of their own that run like it.
static CLOCK: LazyLock<Mutex<Clock>> = LazyLock::new(|| Mutex::new(Clock::new(Instant::now())));

/// Reads the properties.
pub(crate) fn read() -> Result<Machine, Failure> {
    Ok(Machine {
        addresses: addresses()
            .map_err(|error| Failure::failed("cannot list the network interfaces", error))?,
        host_name: host_name(),
        processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        memory_bytes: memory::bytes(Path::new("/proc"), Path::new("/sys/fs/cgroup")),
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

fn host_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(text.trim().to_owned()).filter(|name| !name.is_empty())
}
