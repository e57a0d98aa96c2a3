//! Bindings by domain and transport, counted as they come and go: a reader of the counts walks no records.
//!
//! A refresh over the same transport changes no count, and looks nothing up.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use super::AorRecord;
use super::aor;
use crate::transport::Transport;

/// Every transport, in the order of [`ByTransport`].
pub const TRANSPORTS: [Transport; 5] = [
    Transport::Udp,
    Transport::Tcp,
    Transport::Tls,
    Transport::Ws,
    Transport::Wss,
];

/// A count for each of [`TRANSPORTS`].
pub type ByTransport = [u32; TRANSPORTS.len()];

/// The number of a record's bindings by transport.
pub(super) fn by_transport(record: &AorRecord) -> ByTransport {
    let mut counts = ByTransport::default();
    for binding in &record.bindings {
        for (count, transport) in counts.iter_mut().zip(TRANSPORTS) {
            *count += u32::from(binding.received.transport == transport);
        }
    }
    counts
}

/// The counts of one shard. Domains without a binding are not kept.
#[derive(Debug, Default)]
pub(super) struct Tally(BTreeMap<Box<[u8]>, ByTransport>);

impl Tally {
    /// A tally without counts.
    pub(super) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Counts a change of the record of `aor` from `before` to `after`.
    pub(super) fn change(&mut self, aor: &[u8], before: ByTransport, after: ByTransport) {
        if before == after {
            return;
        }
        let (_, domain) = aor::parts(aor);
        let mut counts = self.0.get(domain).copied().unwrap_or_default();
        for (count, (before, after)) in counts.iter_mut().zip(before.into_iter().zip(after)) {
            *count = count.saturating_add(after).saturating_sub(before);
        }
        if counts == ByTransport::default() {
            self.0.remove(domain);
        } else if let Some(held) = self.0.get_mut(domain) {
            *held = counts;
        } else {
            self.0.insert(domain.into(), counts);
        }
    }

    /// Each domain and its counts.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], ByTransport)> {
        self.0.iter().map(|(domain, counts)| (&**domain, *counts))
    }
}
