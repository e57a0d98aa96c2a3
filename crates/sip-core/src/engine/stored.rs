//! Changes of registrations, as far as they are the same for REGISTERs served here and relayed ones: the room for
//! them, and their way to the store.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Engine;
use crate::location::{AorRecord, codec};
use crate::query::{Query, QueryKind};
use crate::registrar::Rejection;

/// The longest address-of-record that may be registered, in bytes: twice the longest domain name.
pub(crate) const MAX_AOR: usize = 512;

/// The room left for registrations ([`crate::limits::Limits::location_bytes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Any change fits.
    Enough,
    /// No more contacts fit; existing ones may become longer.
    ForRefreshes,
    /// Nothing fits that adds contacts or bytes.
    None,
}

impl Room {
    /// The room if `held` bytes of `limit` are taken.
    const fn of(held: usize, limit: usize) -> Self {
        if held < limit {
            Self::Enough
        } else if held < limit.saturating_add(limit / 8) {
            Self::ForRefreshes
        } else {
            Self::None
        }
    }

    /// Whether there is room for a change.
    fn allows(self, before: &AorRecord, after: &AorRecord) -> bool {
        let is_more = after.bindings.len() > before.bindings.len();
        match self {
            Self::Enough => true,
            Self::ForRefreshes => !is_more,
            Self::None => !is_more && after.text_bytes() <= before.text_bytes(),
        }
    }

    /// Changes `record`, or leaves it as it is if there is no room for the change.
    ///
    /// # Errors
    /// That of `change`, or [`Rejection::Full`].
    pub(crate) fn change<T>(
        self,
        record: &mut AorRecord,
        change: impl FnOnce(&mut AorRecord) -> Result<T, Rejection>,
    ) -> Result<T, Rejection> {
        let before = (self != Self::Enough).then(|| record.clone());
        let changed = change(record);
        if let Some(before) = before
            && changed.is_ok()
            && !self.allows(&before, record)
        {
            *record = before;
            return Err(Rejection::Full);
        }
        changed
    }
}

/// A record as the store has it.
pub(crate) fn encoded(record: &AorRecord) -> Box<[u8]> {
    let mut bytes = Vec::new();
    codec::encode(record, &mut bytes);
    bytes.into_boxed_slice()
}

impl Engine {
    /// The room for registrations now.
    pub(crate) fn room_for_registrations(&self) -> Room {
        Room::of(self.shared.location_bytes(), self.config.limits.location_bytes)
    }

    /// Has a record written, without waiting for it.
    pub(crate) fn save_later(&mut self, aor: &[u8], record: Box<[u8]>, version: u64) {
        let kind = QueryKind::SaveBindings {
            aor: Box::from(aor),
            record,
            version,
        };
        self.queries.push_back(Query { id: None, kind });
        self.counters.queries_save += 1;
    }
}
