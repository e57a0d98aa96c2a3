//! Memory of processes, and of the kernel for sockets.

use std::fs;

use crate::cpu::tree;
use crate::failure::{Failure, Outcome};
use crate::steps::Kernel;

/// Bytes of a process and its descendants: their proportional set size, in which a page that some share counts once.
pub(crate) fn resident(root: u32) -> u64 {
    let kibibytes = tree(root).into_iter().filter_map(|pid| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        kibibytes(&text, "Pss:")
    });
    1024 * kibibytes.sum::<u64>()
}

/// Bytes of the kernel that have to do with sockets, of the whole machine.
///
/// # Errors
/// The kernel does not say it.
pub(crate) fn kernel() -> Outcome<Kernel> {
    let read = |path: &str| fs::read_to_string(path).map_err(|error| Failure::failed(path, error));
    let slabs = kibibytes(&read("/proc/meminfo")?, "Slab:");
    let pages = pages(&read("/proc/net/sockstat")?);
    let page = i64::try_from(rustix::param::page_size()).unwrap_or(4096);
    let (slabs, pages) = slabs
        .zip(pages)
        .ok_or_else(|| Failure::Failed("/proc says nothing of the kernel's memory for sockets".to_owned()))?;
    Ok(Kernel {
        slabs: i64::try_from(1024 * slabs).unwrap_or(i64::MAX),
        buffers: pages * page,
    })
}

/// The value of a line `NAME 12345 kB`.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Pages in buffers of TCP: the word after `mem` of the line `TCP:`.
fn pages(text: &str) -> Option<i64> {
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:"))?;
    let mut words = line.split_whitespace().skip_while(|word| *word != "mem");
    words.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel() {
        let rollup =
            "5581 [rollup]\nRss:                2048 kB\nPss:                1024 kB\nPss_Dirty:    12 kB\n";
        assert_eq!(kibibytes(rollup, "Pss:"), Some(1024));
        assert_eq!(kibibytes(rollup, "Swap:"), None);
        let stat = "sockets: used 300\nTCP: inuse 12 orphan 0 tw 4 alloc 20 mem 37\nUDP: inuse 1 mem 9\n";
        assert_eq!(pages(stat), Some(37));
        assert_eq!(pages("TCP: inuse 1\n"), None);
    }

    #[test]
    fn this_process_has_memory() {
        assert!(resident(std::process::id()) > 100_000);
        assert!(kernel().unwrap().slabs > 0);
    }
}
