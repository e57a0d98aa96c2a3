//! Questions of all kinds through the one front.

use crate::battery;

use std::sync::Arc;

use battery::location::{listeners, record, save, unlocked};
use battery::subscribers::{are_of, cache, lookups};
use battery::{Answers, id};
use parking_lot::Mutex;
use sip_backend::Backend;
use sip_backend::location::{DiskStore, Options};
use sip_backend::subscribers::{Pipeline, SubscriberTable, TableOptions};
use sip_core::id::ListenerId;
use sip_core::query::{Query, QueryKind, QueryResult, RecordKind, Unavailable};

fn save_query(slot: Option<u32>, aor: &[u8], version: u64) -> Query {
    let save = save(slot, aor, &record(version));
    Query {
        id: save.id,
        kind: QueryKind::SaveBindings {
            aor: save.aor,
            record: save.record,
            version,
        },
    }
}

fn credentials(slot: u32, user: &[u8]) -> Query {
    let kind = QueryKind::Credentials {
        username: user.into(),
        user_len: user.len(),
        domain: b"example.com"[..].into(),
        realm: b"example.com"[..].into(),
    };
    Query {
        id: Some(id(slot)),
        kind,
    }
}

fn resolve(slot: u32) -> Query {
    let kind = QueryKind::Resolve {
        name: b"gw.test"[..].into(),
        kind: RecordKind::A,
    };
    Query {
        id: Some(id(slot)),
        kind,
    }
}

fn all_is_counted(backend: &Backend) {
    let metrics = backend.metrics();
    for name in [
        "location_saves",
        "location_queue",
        "credential_lookups",
        "credential_queue",
        "queries_unrouted",
    ] {
        assert!(
            metrics
                .iter()
                .any(|sample| sample.name == name && !sample.help.is_empty()),
            "{name}"
        );
    }
}

#[test]
fn each_question_goes_to_its_store_and_its_answer_to_the_worker() {
    let dir = tempfile::tempdir().unwrap();
    let answers = Arc::new(Answers::default());
    let table = TableOptions::sqlite(dir.path().join("subscribers.db"));
    SubscriberTable::open(table.clone())
        .unwrap()
        .add("alice", "example.com", "example.com", b"x")
        .unwrap();
    let options = Options::new(dir.path().join("location.db"), listeners());
    let find = |_, _| Some(ListenerId(0));
    let (location, _) = DiskStore::open(options.clone(), answers.clone(), &find, &|_, _| {}).unwrap();
    let credential_store = Pipeline::open(table, lookups(), cache(), answers.clone()).unwrap();
    let backend = Backend::new(answers.clone())
        .with_location(location)
        .with_credentials(credential_store);

    backend.submit(
        1,
        [
            save_query(Some(0), b"alice@example.com", 5),
            credentials(1, b"alice"),
            resolve(2),
        ],
    );
    backend.submit(
        7,
        [credentials(0, b"nobody"), save_query(None, b"bob@example.com", 6)],
    );
    assert!(matches!(answers.wait(1, 0), QueryResult::Saved(Ok(()))));
    let got = answers.wait(1, 1);
    let QueryResult::Credentials(Ok(secrets)) = got else {
        panic!("{got:?}")
    };
    assert!(are_of(secrets.as_ref(), "alice", "example.com", "x"));
    assert!(
        matches!(answers.wait(1, 2), QueryResult::Resolved(Err(Unavailable))),
        "there is no resolver here"
    );
    assert!(matches!(answers.wait(7, 0), QueryResult::Credentials(Ok(None))));

    backend.shutdown();
    backend.submit(
        1,
        [
            save_query(Some(10), b"late@example.com", 9),
            credentials(11, b"alice"),
        ],
    );
    assert!(matches!(
        answers.wait(1, 10),
        QueryResult::Saved(Err(Unavailable))
    ));
    assert!(matches!(
        answers.wait(1, 11),
        QueryResult::Credentials(Err(Unavailable))
    ));
    all_is_counted(&backend);
    drop(backend);

    let loaded = Mutex::new(Vec::new());
    let load = |aor: Box<[u8]>, _| loaded.lock().push(aor);
    let (_store, _) = unlocked(|| DiskStore::open(options.clone(), answers.clone(), &find, &load)).unwrap();
    let mut loaded = loaded.into_inner();
    loaded.sort();
    assert_eq!(
        loaded,
        [Box::from(&b"alice@example.com"[..]), (*b"bob@example.com").into()]
    );
}

#[test]
fn without_a_location_store_a_save_is_done_at_once() {
    let answers = Arc::new(Answers::default());
    let backend = Backend::new(answers.clone());
    backend.submit(
        2,
        [
            save_query(Some(0), b"a@x", 1),
            credentials(1, b"a"),
            save_query(None, b"b@x", 1),
        ],
    );
    assert_eq!(answers.len(), 2);
    assert!(matches!(answers.wait(2, 0), QueryResult::Saved(Ok(()))));
    assert!(matches!(
        answers.wait(2, 1),
        QueryResult::Credentials(Err(Unavailable))
    ));
}
