//! The maps that workers share: a nonce count is fresh once; of the changes to a record the one with
//! the highest version is what is held.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use loom_models::explore;
use sip_core::auth::nonce::NonceId;
use sip_core::auth::window::NonceUse;
use sip_core::id::{ConnId, WorkerId};
use sip_core::location::{AorRecord, Binding};
use sip_core::query::QueryKind;
use sip_core::shared::SharedState;
use sip_core::transport::{Flow, Transport};

use crate::shared::Shared;
use crate::subscribers::CredentialCache;

const START_MS: u64 = 100_000;
const AOR: &[u8] = b"alice@example.com";

fn shared() -> Arc<Shared> {
    let cache = CredentialCache::new(0, Duration::ZERO, Duration::ZERO);
    Arc::new(Shared::new((1, 2), 1, START_MS, Arc::new(cache)))
}

fn nonce(id: u64) -> NonceId {
    NonceId {
        id,
        issued_unix_ms: START_MS + id,
        expires_unix_s: 2_000,
    }
}

/// Two requests at two workers.
fn both(shared: &Arc<Shared>, uses: [(u64, u32, u64); 2]) -> [NonceUse; 2] {
    uses.map(|(id, count, request)| {
        let shared = Arc::clone(shared);
        thread::spawn(move || shared.use_nonce(START_MS + 1_000, nonce(id), count, request))
    })
    .map(|worker| worker.join().expect("it ran to its end"))
}

fn count(uses: [NonceUse; 2], what: NonceUse) -> usize {
    uses.into_iter().filter(|found| *found == what).count()
}

#[test]
fn one_of_two_requests_with_the_same_count_is_fresh() {
    explore(|| {
        let shared = shared();
        let uses = both(&shared, [(1, 1, 11), (1, 1, 12)]);
        assert_eq!(count(uses, NonceUse::Fresh), 1);
        assert_eq!(count(uses, NonceUse::Replay), 1);
        // The window is there now: the same for the next count.
        let uses = both(&shared, [(1, 2, 21), (1, 2, 22)]);
        assert_eq!(count(uses, NonceUse::Fresh), 1);
        assert_eq!(count(uses, NonceUse::Replay), 1);
    });
}

#[test]
fn two_counts_are_both_fresh_and_a_copy_is_known_as_one() {
    explore(|| {
        let shared = shared();
        let uses = both(&shared, [(1, 1, 11), (1, 2, 12)]);
        assert_eq!(count(uses, NonceUse::Fresh), 2);
        let uses = both(&shared, [(1, 3, 31), (1, 3, 31)]);
        assert_eq!(count(uses, NonceUse::Fresh), 1);
        assert_eq!(count(uses, NonceUse::Retransmission), 1);
    });
}

/// There is room for one nonce: whichever leaves, neither is fresh again.
#[test]
fn a_nonce_that_made_room_is_not_fresh_again() {
    explore(|| {
        let shared = shared();
        let uses = both(&shared, [(1, 1, 11), (2, 1, 12)]);
        assert!(count(uses, NonceUse::Fresh) >= 1);
        for (id, first) in [(1, uses[0]), (2, uses[1])] {
            let again = shared.use_nonce(START_MS + 1_000, nonce(id), 1, 99);
            assert!(
                first != NonceUse::Fresh || !again.is_accepted(),
                "{id}: {again:?}"
            );
        }
    });
}

fn binding(contact: &[u8], conn: Option<ConnId>, expires_unix_s: u64, updated: u64) -> Binding {
    let received = Flow {
        transport: Transport::Tcp,
        conn,
        ..Flow::udp(([192, 0, 2, 1], 5060).into())
    };
    Binding {
        updated,
        ..Binding::plain(contact, received, expires_unix_s)
    }
}

/// What a change left: what goes to the store with it.
type Saved = (u64, Vec<(Box<[u8]>, u64)>);

fn saved(record: &AorRecord) -> Saved {
    let of = |b: &Binding| (b.contact.clone(), b.expires_unix_s);
    (record.version, record.bindings.iter().map(of).collect())
}

/// A REGISTER as the registrar applies it.
fn register(shared: &Shared, contact: &[u8], now_ms: u64) -> Saved {
    let mut result = None;
    shared.update_bindings(AOR, &mut |record| {
        record.bindings.retain(|b| *b.contact != *contact);
        let version = record.next_version(now_ms);
        record.put(binding(contact, None, now_ms / 1000 + 60, version));
        record.changed(now_ms);
        result = Some(saved(record));
    });
    result.expect("it was called")
}

fn held(shared: &Shared) -> AorRecord {
    let mut held = AorRecord::default();
    shared.update_bindings(AOR, &mut |record| held.clone_from(record));
    held
}

#[test]
fn the_highest_version_of_what_was_saved_is_what_is_held() {
    explore(|| {
        let shared = shared();
        let gone = ConnId {
            worker: WorkerId(0),
            slot: 1,
            generation: 1,
        };
        let first = AorRecord {
            bindings: vec![binding(b"old", Some(gone), 101, 100_000)],
            version: 100_000,
            ..AorRecord::default()
        };
        shared.load(AOR, first);
        let now_ms = 102_000;
        let registers = [b"old", b"new"].map(|contact| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || register(&shared, contact, now_ms))
        });
        let closing = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let mut lost = 0;
                shared.update_bindings(AOR, &mut |record| lost += record.forget_conn(gone));
                lost
            }
        });
        let mut queries = vec![];
        let swept = shared.sweep_saves(now_ms, 8, &mut queries);
        let mut saves: Vec<Saved> = registers
            .map(|worker| worker.join().expect("it ran to its end"))
            .into();
        assert!(closing.join().expect("it ran to its end") <= 1);
        assert_eq!(
            swept.bindings,
            queries.len(),
            "the old one, unless it was refreshed"
        );
        for query in queries {
            let QueryKind::SaveBindings { record, version, .. } = query.kind else {
                panic!("{:?}", query.kind)
            };
            let record = sip_core::location::codec::RecordRef::new(&record).expect("ours");
            let of = |b: sip_core::location::codec::BindingRef<'_>| (b.contact.into(), b.expires_unix_s);
            let bindings = record.bindings().map(|b| of(b.expect("ours"))).collect();
            saves.push((version, bindings));
        }
        saves.sort();
        assert!(saves.windows(2).all(|two| two[0].0 < two[1].0), "{saves:?}");
        let held = held(&shared);
        assert_eq!(saves.last(), Some(&saved(&held)));
        assert_eq!(held.bindings.len(), 2, "no registration is lost");
        assert!(held.bindings.iter().all(|b| b.received.conn.is_none()));
        assert_eq!(shared.held(), (1, 2));
    });
}
