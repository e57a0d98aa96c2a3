//! Registrations while the server runs: listing and removal by operators.
//!
//! The threads of the control plane read and change the bindings that the workers share, as a worker does:
//! with the lock of one shard of many, for some tens of microseconds at a time. A list reads [`SLICE`]
//! records under a lock, and then yields. No worker takes part.

mod filter;
mod waiting;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sip_backend::Backend;
use sip_backend::metrics::{Counter, Sample, Value};
use sip_backend::shared::{Place, SLICE, Shared};
use sip_core::config::Durability;
use sip_core::location::codec::{self, RecordRef};
use sip_core::location::reachability::Reach;
use sip_core::location::{AorRecord, Binding, Removal};
use sip_core::query::{Query, QueryKind, QueryResult};
use sip_core::shared::SharedState as _;
use sip_core::transport::Transport;
use sip_net::hub::Hub;
use sip_net::mailbox::{Control, Item};

pub(crate) use self::filter::{Choice, Filter, Origin, canonical, written};
pub(crate) use self::waiting::{OPERATOR, Waiting};
use crate::machine::unix_ms;

/// Most records read for one page. A page that ends there may have few rows, or none.
const LOOKS: usize = 65_536;

/// Most bytes of the texts on one page. The page ends before the address-of-record that would exceed them.
const PAGE_BYTES: usize = 2 << 20;

/// Longest wait for the store to write a removal. It is longer than for a REGISTER, because an operator waits
/// and a phone retransmits. It is shorter than the command line waits.
const SAVE_DEADLINE: Duration = Duration::from_secs(12);

/// One binding, with its address-of-record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// `user@domain`, canonical.
    pub aor: Box<[u8]>,
    /// The binding at the time of reading.
    pub binding: Binding,
    /// Whether its phone answers pings; `None`: it is not pinged.
    pub reach: Option<Reach>,
}

impl Row {
    fn bytes(&self) -> usize {
        let Binding {
            contact,
            path,
            instance,
            call_id,
            user_agent,
            ..
        } = &self.binding;
        let texts = [&self.aor, contact, path, instance, call_id, user_agent];
        texts.map(|text| text.len()).iter().sum()
    }
}

/// A part of a list.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Rows; the contacts of an address-of-record follow each other.
    pub rows: Vec<Row>,
    /// Where the next page begins; `None` on the last page.
    pub next: Option<Place>,
}

/// Why a removal failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotRemoved {
    /// The address-of-record has no contact.
    NotRegistered,
    /// The address-of-record has other contacts only.
    NoSuchContact,
    /// The store did not save the removal, so it was undone.
    NotSaved,
}

/// The registrations of a running server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Registrations(Arc<Parts>);

struct Parts {
    shared: Arc<Shared>,
    backend: Arc<Backend>,
    hub: Hub,
    waiting: Arc<Waiting>,
    durability: Mutex<Durability>,
    removed: Counter,
}

impl fmt::Debug for Registrations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.shared.fmt(f)
    }
}

impl Registrations {
    /// The registrations in `shared`, stored by `backend`, of the workers of `hub`. The sink of `backend` passes the results of [`OPERATOR`] to
    /// `waiting`.
    pub(crate) fn new(
        shared: Arc<Shared>,
        backend: Arc<Backend>,
        hub: Hub,
        waiting: Arc<Waiting>,
        durability: Durability,
    ) -> Self {
        Self(Arc::new(Parts {
            shared,
            backend,
            hub,
            waiting,
            durability: Mutex::new(durability),
            removed: Counter::default(),
        }))
    }

    /// Sets when removals get their result, from now on.
    pub(crate) fn set_durability(&self, durability: Durability) {
        *self.0.durability.lock() = durability;
    }

    /// The metric of removals.
    pub(crate) fn metrics(&self) -> Sample {
        Sample {
            name: "location_removed",
            help: "Bindings that the operator removed.",
            labels: "",
            value: Value::Counter(self.0.removed.get()),
        }
    }

    /// A number of this run of the server: a place where a page begins is valid in this run only.
    pub(crate) fn run(&self) -> u32 {
        self.0.shared.run()
    }

    /// The contacts that match `filter`, from a place on. A page has whole addresses-of-record, with `limit`
    /// contacts at most, or one address-of-record with more.
    pub(crate) async fn list(&self, filter: &Filter, from: Place, limit: usize) -> Page {
        if let Some(aor) = filter.address_of_record() {
            // One address-of-record can match, so nothing is searched for.
            return Page {
                rows: self.of_filtered(&aor, filter),
                next: None,
            };
        }
        let now_unix_s = unix_ms() / 1000;
        let mut rows = Rows::default();
        let mut next = Some(from);
        for _ in 0..LOOKS / SLICE {
            let Some(place) = next else { break };
            next = self.0.shared.walk(place, |aor, record| {
                rows.take(filter, aor, record, limit, now_unix_s)
            });
            if rows.is_full {
                break;
            }
            tokio::task::yield_now().await;
        }
        Page {
            rows: self.with_reach(rows.rows),
            next,
        }
    }

    /// The contacts of one address-of-record, best first.
    pub(crate) fn of(&self, aor: &[u8]) -> Vec<Row> {
        self.of_filtered(aor, &Filter::default())
    }

    fn of_filtered(&self, aor: &[u8], filter: &Filter) -> Vec<Row> {
        let now_unix_s = unix_ms() / 1000;
        let mut rows = Rows::default();
        self.0.shared.read_bindings(aor, &mut |record| {
            rows.take(filter, aor, record, usize::MAX, now_unix_s);
        });
        self.with_reach(rows.rows)
    }

    fn with_reach(&self, mut rows: Vec<Row>) -> Vec<Row> {
        for row in &mut rows {
            row.reach = match row.binding.received.transport {
                Transport::Udp => self.0.shared.reach(&row.binding.received),
                Transport::Tcp | Transport::Tls | Transport::Ws | Transport::Wss => None,
            };
        }
        rows
    }

    /// Removes the chosen contacts of an address-of-record. Returns how many. The change is in force at once,
    /// and as durable as a REGISTER with a response. It is completed even if the caller stops waiting.
    ///
    /// # Errors
    /// [`NotRemoved`]; the contacts are then as they were.
    pub(crate) async fn remove(&self, aor: Box<[u8]>, choice: Choice) -> Result<usize, NotRemoved> {
        let this = self.clone();
        let done = tokio::spawn(async move { this.unregister(&aor, &choice).await });
        done.await.unwrap_or(Err(NotRemoved::NotSaved))
    }

    async fn unregister(&self, aor: &[u8], choice: &Choice) -> Result<usize, NotRemoved> {
        let Parts {
            shared,
            backend,
            hub,
            durability,
            removed,
            ..
        } = &*self.0;
        let durability = *durability.lock();
        let now_ms = unix_ms();
        let mut change = None;
        let mut why = NotRemoved::NotRegistered;
        shared.update_bindings(aor, &mut |record: &mut AorRecord| {
            if record.live(now_ms / 1000).next().is_some() {
                why = NotRemoved::NoSuchContact;
            }
            let from = |binding: &Binding| choice.is_from(binding.received.remote);
            let removal = record.unregister(choice.contact.as_deref(), from, now_ms);
            change = removal.map(|removal| (removal, save_of(aor, record)));
        });
        let (removal, save) = change.ok_or(why)?;
        match durability {
            Durability::Memory => {}
            Durability::Async => backend.submit(OPERATOR, [Query { id: None, kind: save }]),
            Durability::Commit => {
                if !self.is_saved(save).await {
                    self.roll_back(aor, &removal);
                    return Err(NotRemoved::NotSaved);
                }
            }
        }
        for conn in removal.flows() {
            // A worker that cannot take the order has more to do than to close a connection.
            let mailbox = hub.mailbox(conn.worker);
            let _ = mailbox.map(|mailbox| mailbox.post(Item::Control(Control::EndFlow(conn))));
        }
        let count = removal.live(now_ms / 1000);
        removed.add(count as u64);
        Ok(count)
    }

    /// Whether the store has written this in time.
    async fn is_saved(&self, save: QueryKind) -> bool {
        let Some((id, result)) = self.0.waiting.open() else {
            return false;
        };
        let query = Query {
            id: Some(id),
            kind: save,
        };
        self.0.backend.submit(OPERATOR, [query]);
        let result = tokio::time::timeout(SAVE_DEADLINE, result).await;
        self.0.waiting.close(id);
        matches!(result, Ok(Ok(QueryResult::Saved(Ok(())))))
    }

    /// Undoes a removal that could not be stored. The undoing is stored too: if the write of the removal was
    /// only late, it must not outlive its refusal.
    fn roll_back(&self, aor: &[u8], removal: &Removal) {
        let mut save = None;
        self.0.shared.update_bindings(aor, &mut |record: &mut AorRecord| {
            if record.restore(removal, unix_ms()) {
                save = Some(save_of(aor, record));
            }
        });
        if let Some(kind) = save {
            self.0.backend.submit(OPERATOR, [Query { id: None, kind }]);
        }
    }
}

fn save_of(aor: &[u8], record: &AorRecord) -> QueryKind {
    let mut bytes = Vec::new();
    codec::encode(record, &mut bytes);
    QueryKind::SaveBindings {
        aor: aor.into(),
        record: bytes.into(),
        version: record.version,
    }
}

/// The rows of an unfinished page.
#[derive(Debug, Default)]
struct Rows {
    rows: Vec<Row>,
    bytes: usize,
    is_full: bool,
}

impl Rows {
    /// Adds the matching bindings of a record. Returns `false` if they do not fit on this page.
    fn take(
        &mut self,
        filter: &Filter,
        aor: &[u8],
        record: RecordRef<'_>,
        limit: usize,
        now_unix_s: u64,
    ) -> bool {
        if !filter.names(aor) {
            return true;
        }
        let before = self.rows.len();
        let live = record
            .bindings()
            .filter_map(Result::ok)
            .filter(|binding| binding.expires_unix_s > now_unix_s);
        let wanted = live.filter(|binding| filter.wants(binding));
        self.rows.extend(wanted.map(|binding| Row {
            aor: aor.into(),
            binding: binding.to_owned(),
            reach: None,
        }));
        let new = self.rows.get(before..).unwrap_or_default();
        let bytes = self.bytes + new.iter().map(Row::bytes).sum::<usize>();
        let exceeds = self.rows.len() > limit || bytes > PAGE_BYTES;
        if exceeds && before > 0 && !new.is_empty() {
            self.rows.truncate(before);
            self.is_full = true;
            return false;
        }
        self.bytes = bytes;
        self.is_full = self.rows.len() >= limit;
        true
    }
}

#[cfg(test)]
pub(crate) mod tests;
