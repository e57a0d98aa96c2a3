use std::collections::BTreeMap;

use sip_backend::ResultSink;
use sip_backend::location::{LocalSocket, LocationStore, Save};
use sip_backend::subscribers::CredentialCache;
use sip_core::id::QueryId;
use sip_core::query::Unavailable;
use sip_core::transport::Flow;
use tokio::runtime::Runtime;

use super::*;

/// A binding of a phone at 192.0.2.17.
pub(super) fn binding(user: &str, expires_unix_s: u64) -> Binding {
    let contact = format!("sip:{user}@192.0.2.17:5062").into_bytes();
    let received = Flow::udp("192.0.2.17:5062".parse().expect("an address"));
    Binding {
        call_id: b"843817637684230@998sdasdh09".as_slice().into(),
        cseq: 1_826,
        q_milli: 500,
        user_agent: b"Example Phone 2.1".as_slice().into(),
        ..Binding::plain(contact, received, expires_unix_s)
    }
}

/// A sink that delivers results to the waiting callers.
struct Sink(Arc<Waiting>);

impl ResultSink for Sink {
    fn deliver(&self, origin: u16, id: QueryId, result: QueryResult) {
        assert_eq!(origin, OPERATOR);
        self.0.deliver(id, result);
    }
}

/// Saves of a store: address-of-record, number of contacts, whether a result is wanted.
type Asked = Arc<Mutex<Vec<(String, usize, bool)>>>;

/// A store that accepts everything, or refuses it.
struct Store {
    sink: Sink,
    asked: Asked,
    result: Result<(), Unavailable>,
}

impl LocationStore for Store {
    fn save(&self, batch: Vec<Save>) {
        for save in batch {
            let contacts = RecordRef::new(&save.record).expect("a record").len();
            let aor = written(&save.aor);
            self.asked.lock().push((aor, contacts, save.id.is_some()));
            if let Some(id) = save.id {
                self.sink
                    .deliver(save.origin, id, QueryResult::Saved(self.result));
            }
        }
    }

    fn set_listeners(&self, _listeners: Vec<LocalSocket>) {}

    fn is_failing(&self) -> bool {
        self.result.is_err()
    }

    fn metrics(&self) -> Vec<Sample> {
        Vec::new()
    }

    fn shutdown(&self) {}
}

fn opened(durability: Durability, result: Result<(), Unavailable>) -> (Registrations, Asked) {
    let cache = CredentialCache::new(1, Duration::from_secs(60), Duration::from_secs(60));
    let shared = Arc::new(Shared::new((1, 2), 1_000, 1_000_000, Arc::new(cache)));
    let (waiting, asked) = (Arc::<Waiting>::default(), Asked::default());
    let store = Store {
        sink: Sink(Arc::clone(&waiting)),
        asked: Arc::clone(&asked),
        result,
    };
    let sink = Arc::new(Sink(Arc::clone(&waiting)));
    let backend = Arc::new(Backend::new(sink).with_location(store));
    let (hub, _) = Hub::new(1, &sip_net::settings::Settings::default()).expect("a mailbox");
    (
        Registrations::new(shared, backend, hub, waiting, durability),
        asked,
    )
}

/// Registers contacts of these users for an hour.
fn register(registrations: &Registrations, aor: &str, contacts: &[&str]) {
    let now_ms = unix_ms();
    registrations
        .0
        .shared
        .update_bindings(aor.as_bytes(), &mut |record: &mut AorRecord| {
            for contact in contacts.iter().rev() {
                record.put(binding(contact, now_ms / 1000 + 3_600));
            }
            record.changed(now_ms);
        });
}

/// `bob@example.com` with two contacts, `a@b@example.com` with one.
pub(crate) fn sample() -> Registrations {
    let (registrations, _) = opened(Durability::Commit, Ok(()));
    register(&registrations, "bob@example.com", &["bob", "desk"]);
    register(&registrations, "a@b@example.com", &["ab"]);
    registrations
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().build().expect("a runtime")
}

/// All rows that match the filter, by pages of `limit`: how many of each address-of-record, and of pages.
fn listed(
    registrations: &Registrations,
    filter: &Filter,
    limit: usize,
) -> (BTreeMap<String, usize>, usize, usize) {
    let runtime = runtime();
    let (mut all, mut pages, mut longest) = (BTreeMap::new(), 0, 0);
    let mut next = Some(Place::default());
    while let Some(from) = next {
        let page = runtime.block_on(registrations.list(filter, from, limit));
        pages += 1;
        longest = longest.max(page.rows.len());
        for row in page.rows {
            *all.entry(written(&row.aor)).or_insert(0) += 1;
        }
        assert_ne!(page.next, next, "it goes on");
        next = page.next;
    }
    (all, pages, longest)
}

#[test]
fn pages_have_whole_addresses_of_record_and_hold_to_the_limit() {
    let (registrations, _) = opened(Durability::Memory, Ok(()));
    for n in 0..500 {
        let contacts = ["a", "b", "c"];
        register(&registrations, &format!("u{n}@x"), &contacts[..1 + n % 3]);
    }
    let contacts = 500 / 3 * 6 + 1 + 2;
    for (limit, at_most) in [(1, 3), (2, 3), (10, 10), (1_000, 1_000), (usize::MAX, contacts)] {
        let (all, pages, longest) = listed(&registrations, &Filter::default(), limit);
        assert_eq!(
            (all.len(), all.values().sum::<usize>()),
            (500, contacts),
            "{limit}"
        );
        for (aor, count) in all {
            let n: usize = aor[1..].trim_end_matches("@x").parse().expect("a number");
            assert_eq!(count, 1 + n % 3, "{aor}");
        }
        assert!(longest <= at_most, "{longest} rows, {limit}");
        assert!(pages >= contacts / at_most, "{pages} pages, {limit}");
    }
    let one = Filter {
        user: Some(b"u7".to_vec()),
        ..Filter::default()
    };
    let (all, pages, _) = listed(&registrations, &one, 10);
    assert_eq!(
        (all.into_iter().collect::<Vec<_>>(), pages),
        (vec![("u7@x".to_owned(), 2)], 1)
    );
}

/// A page reads a bounded number of records, however few match the filter.
#[test]
fn a_page_ends_where_it_has_looked_at_enough() {
    let (registrations, _) = opened(Durability::Memory, Ok(()));
    let aors = 2 * LOOKS;
    for n in 0..aors {
        let record = AorRecord {
            bindings: vec![binding("a", u64::MAX)],
            ..AorRecord::default()
        };
        registrations.0.shared.load(format!("u{n}@x").as_bytes(), record);
    }
    let nobody = Filter {
        domain: Some(b"y".to_vec()),
        ..Filter::default()
    };
    let (all, pages, _) = listed(&registrations, &nobody, 10);
    assert!(all.is_empty() && pages >= 2, "{pages}");
}

#[test]
fn what_has_ended_is_not_shown() {
    let (registrations, _) = opened(Durability::Memory, Ok(()));
    registrations
        .0
        .shared
        .update_bindings(b"bob@x", &mut |record: &mut AorRecord| {
            record.put(binding("late", unix_ms() / 1000));
            record.put(binding("live", unix_ms() / 1000 + 600));
        });
    let contacts = |rows: Vec<Row>| {
        rows.into_iter()
            .map(|row| row.binding.contact)
            .collect::<Vec<_>>()
    };
    let live = [Box::from(&b"sip:live@192.0.2.17:5062"[..])];
    assert_eq!(contacts(registrations.of(b"bob@x")), live);
    let page = runtime().block_on(registrations.list(&Filter::default(), Place::default(), 10));
    assert_eq!(contacts(page.rows), live);
    assert!(registrations.of(b"carol@x").is_empty());
}

fn remove(registrations: &Registrations, aor: &str, contact: Option<&str>) -> Result<usize, NotRemoved> {
    let choice = Choice {
        contact: contact.map(|contact| contact.as_bytes().to_vec()),
        source: None,
    };
    runtime().block_on(registrations.remove(aor.as_bytes().into(), choice))
}

#[test]
fn a_removal_is_stored_as_the_configuration_says() {
    for (durability, asked) in [
        (Durability::Commit, vec![(1, true), (0, true)]),
        (Durability::Async, vec![(1, false), (0, false)]),
        (Durability::Memory, vec![]),
    ] {
        let (registrations, stored) = opened(durability, Ok(()));
        register(&registrations, "bob@x", &["a", "b", "c"]);
        assert_eq!(
            remove(&registrations, "carol@x", None),
            Err(NotRemoved::NotRegistered)
        );
        let other = Some("sip:z@192.0.2.17:5062");
        assert_eq!(
            remove(&registrations, "bob@x", other),
            Err(NotRemoved::NoSuchContact)
        );
        assert_eq!(registrations.of(b"bob@x").len(), 3);
        register(&registrations, "one@x", &["a", "b"]);
        let one = Some("sip:a@192.0.2.17:5062");
        assert_eq!(remove(&registrations, "one@x", one), Ok(1));
        assert_eq!(remove(&registrations, "bob@x", None), Ok(3));
        assert_eq!(
            remove(&registrations, "bob@x", None),
            Err(NotRemoved::NotRegistered)
        );
        assert_eq!(registrations.of(b"one@x").len(), 1);
        let stored: Vec<_> = stored.lock().iter().map(|(_, left, id)| (*left, *id)).collect();
        assert_eq!(stored, asked, "{durability:?}");
        assert_eq!(registrations.metrics().value, Value::Counter(4));
    }
}

#[test]
fn what_the_store_refuses_is_taken_back() {
    let (registrations, stored) = opened(Durability::Commit, Err(Unavailable));
    register(&registrations, "bob@x", &["a", "b"]);
    let before = registrations.of(b"bob@x");
    assert_eq!(remove(&registrations, "bob@x", None), Err(NotRemoved::NotSaved));
    assert_eq!(registrations.of(b"bob@x"), before);
    // The undoing is stored, because the store may have written the removal all the same.
    let expected = [("bob@x".to_owned(), 0, true), ("bob@x".to_owned(), 2, false)];
    assert_eq!(*stored.lock(), expected);
    assert_eq!(registrations.metrics().value, Value::Counter(0));
    // After a reload, removals do not wait for the store.
    registrations.set_durability(Durability::Async);
    assert_eq!(remove(&registrations, "bob@x", None), Ok(2));
}

/// Walks of several pages while contacts come, go and refresh: a contact that stays is listed once.
#[test]
fn a_list_while_registrations_change() {
    let (registrations, _) = opened(Durability::Memory, Ok(()));
    for n in 0..2_000 {
        register(&registrations, &format!("stays{n}@x"), &["a"]);
        register(&registrations, &format!("goes{n}@x"), &["a"]);
    }
    let runtime = runtime();
    let (mut met, mut next, mut turn) = (BTreeMap::new(), Some(Place::default()), 0);
    while let Some(from) = next {
        let page = runtime.block_on(registrations.list(&Filter::default(), from, 50));
        next = page.next;
        for row in page.rows {
            *met.entry(written(&row.aor)).or_insert(0) += 1;
        }
        for n in turn * 10..(turn + 1) * 10 {
            remove(&registrations, &format!("goes{n}@x"), None).expect("registered");
            register(&registrations, &format!("comes{n}@x"), &["a-longer-contact"]);
            let refreshed = format!("stays{}@x", n * 3 % 2_000);
            registrations
                .0
                .shared
                .update_bindings(refreshed.as_bytes(), &mut |record: &mut AorRecord| {
                    record.bindings[0].user_agent =
                        b"Another Phone 10.0, with a longer name".as_slice().into();
                    record.changed(unix_ms());
                });
        }
        turn += 1;
    }
    for n in 0..2_000 {
        assert_eq!(met.get(&format!("stays{n}@x")), Some(&1), "{n}");
    }
    assert!(turn >= 2_000 / 50, "{turn}");
}
