//! Stores of registrations.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sip_backend::location::{LocalSocket, LocationError, LocationStore, Save};
use sip_core::id::{ConnId, ListenerId, WorkerId};
use sip_core::location::{AorRecord, Binding, codec};
use sip_core::query::{QueryResult, Unavailable};
use sip_core::transport::{Flow, Transport};

use super::{Answers, PATIENCE, id};

/// Records by address-of-record.
pub type Records = BTreeMap<Vec<u8>, AorRecord>;

/// How a store is opened, again and again over the same data.
pub trait Harness {
    /// The store.
    type Store: LocationStore;

    /// Opens the store for these listeners and returns what it held. The store opened before has
    /// been shut down.
    fn open(&mut self, listeners: &[LocalSocket], answers: Arc<Answers>) -> (Self::Store, Records);
}

/// Opens a store, again and again while it is locked: a child that another test starts holds, from its
/// `fork` to its `exec`, every lock of this process.
pub fn unlocked<T>(mut open: impl FnMut() -> Result<T, LocationError>) -> Result<T, LocationError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match open() {
            Ok(opened) => return Ok(opened),
            Err(LocationError::Locked { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Far in the future, seconds.
pub const LATER: u64 = 4_000_000_000;

/// Two listeners.
#[track_caller]
pub fn listeners() -> Vec<LocalSocket> {
    vec![
        (Transport::Udp, "192.0.2.1:5060".parse().unwrap()),
        (Transport::Tcp, "[2001:db8::1]:5060".parse().unwrap()),
    ]
}

/// A plain binding.
#[track_caller]
pub fn binding(contact: &str, expires_unix_s: u64) -> Binding {
    let received = Flow::udp("198.51.100.7:40404".parse().unwrap());
    Binding {
        call_id: b"4711@198.51.100.7"[..].into(),
        user_agent: b"phone/1.0"[..].into(),
        ..Binding::plain(contact.as_bytes(), received, expires_unix_s)
    }
}

/// A record with one binding that has the version as its CSeq.
#[track_caller]
pub fn record(version: u64) -> AorRecord {
    let mut only = binding("sip:a@198.51.100.7", LATER);
    only.cseq = u32::try_from(version % 1_000_000).unwrap();
    AorRecord {
        bindings: vec![only],
        version,
        ..AorRecord::default()
    }
}

/// A save as the core asks for it.
pub fn save(slot: Option<u32>, aor: &[u8], record: &AorRecord) -> Save {
    let mut bytes = Vec::new();
    codec::encode(record, &mut bytes);
    Save {
        origin: 3,
        id: slot.map(id),
        aor: aor.into(),
        record: bytes.into(),
        version: record.version,
    }
}

#[track_caller]
fn saved(answers: &Answers, slot: u32) -> Result<(), Unavailable> {
    match answers.wait(3, slot) {
        QueryResult::Saved(result) => result,
        other @ (QueryResult::Credentials(_) | QueryResult::Resolved(_)) => panic!("{other:?}"),
    }
}

#[track_caller]
fn put(store: &impl LocationStore, answers: &Answers, aor: &[u8], record: &AorRecord) {
    store.save(vec![save(Some(0), aor, record)]);
    saved(answers, 0).unwrap();
}

fn reopen<H: Harness>(harness: &mut H, store: H::Store) -> (H::Store, Records, Arc<Answers>) {
    store.shutdown();
    drop(store);
    let answers = Arc::new(Answers::default());
    let (store, records) = harness.open(&listeners(), answers.clone());
    (store, records, answers)
}

#[track_caller]
fn open<H: Harness>(harness: &mut H) -> (H::Store, Arc<Answers>) {
    let answers = Arc::new(Answers::default());
    let (store, records) = harness.open(&listeners(), answers.clone());
    assert!(records.is_empty());
    (store, answers)
}

/// Every field, more than one binding, odd bytes.
pub fn records_come_back_as_saved<H: Harness>(mut harness: H) {
    let (store, answers) = open(&mut harness);
    let mut full = binding("sip:alice@[2001:db8::9]:5070;transport=tcp;x=\"y\"", LATER);
    full.received.transport = Transport::Tcp;
    full.received.listener = ListenerId(1);
    full.received.remote = SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 9], 5070));
    full.path = b"<sip:edge1.example.com;lr>,<sip:edge2.example.com;lr>"[..].into();
    full.instance = b"urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6"[..].into();
    full.reg_id = 2;
    full.cseq = u32::MAX;
    full.user_agent = b"phone \xff\xfe\x00 odd"[..].into();
    let mut second = binding("sip:alice@192.0.2.9", LATER + 1);
    second.q_milli = 333;
    // The second was registered later.
    (full.updated, second.updated) = (1_790_000_000_001, 1_790_000_000_123);
    let alice = AorRecord {
        bindings: vec![full, second],
        version: 1_790_000_000_123,
        ..AorRecord::default()
    };
    let mut expected = Records::new();
    for aor in [
        &b"alice@example.com"[..],
        b"o'hara@example.com",
        b"\xff\xfe@example.com",
        b"a@b@c",
        b"example.org",
    ] {
        put(&store, &answers, aor, &alice);
        expected.insert(aor.to_vec(), alice.clone());
    }
    let (store, records, _) = reopen(&mut harness, store);
    assert_eq!(records, expected);
    let (store, again, _) = reopen(&mut harness, store);
    assert_eq!(again, expected);
    store.shutdown();
}

/// Refreshes, fewer bindings than before, deletion.
pub fn the_newest_version_wins_and_an_empty_one_deletes<H: Harness>(mut harness: H) {
    let (store, answers) = open(&mut harness);
    let two = AorRecord {
        bindings: vec![binding("sip:1@x", LATER), binding("sip:2@x", LATER)],
        version: 10,
        ..AorRecord::default()
    };
    put(&store, &answers, b"shrinks@x", &two);
    put(&store, &answers, b"shrinks@x", &record(11));
    put(&store, &answers, b"late@x", &record(21));
    put(&store, &answers, b"late@x", &record(20));
    put(&store, &answers, b"gone@x", &record(30));
    put(
        &store,
        &answers,
        b"gone@x",
        &AorRecord {
            bindings: vec![],
            version: 31,
            ..AorRecord::default()
        },
    );
    put(
        &store,
        &answers,
        b"back@x",
        &AorRecord {
            bindings: vec![],
            version: 41,
            ..AorRecord::default()
        },
    );
    put(&store, &answers, b"back@x", &record(42));
    let expected: Records = [
        (b"back@x".to_vec(), record(42)),
        (b"late@x".to_vec(), record(21)),
        (b"shrinks@x".to_vec(), record(11)),
    ]
    .into();
    let (store, records, answers) = reopen(&mut harness, store);
    assert_eq!(records, expected);
    // What comes late, after a restart even, changes nothing.
    put(&store, &answers, b"late@x", &record(19));
    put(&store, &answers, b"shrinks@x", &two);
    put(&store, &answers, b"gone@x", &record(29));
    let (store, records, answers) = reopen(&mut harness, store);
    assert_eq!(records, expected);
    put(&store, &answers, b"gone@x", &record(32));
    let (store, records, _) = reopen(&mut harness, store);
    assert_eq!(records.get(&b"gone@x"[..]), Some(&record(32)));
    store.shutdown();
}

/// Connections and expired bindings stay behind.
pub fn what_ended_is_not_loaded<H: Harness>(mut harness: H) {
    let (store, answers) = open(&mut harness);
    let mut with_conn = binding("sip:c@x", LATER);
    with_conn.received.transport = Transport::Tcp;
    with_conn.received.listener = ListenerId(1);
    with_conn.received.conn = Some(ConnId {
        worker: WorkerId(1),
        slot: 7,
        generation: 9,
    });
    let mut without_conn = with_conn.clone();
    without_conn.received.conn = None;
    let mixed = AorRecord {
        bindings: vec![binding("sip:old@x", 1_000_000), with_conn],
        version: 5,
        ..AorRecord::default()
    };
    put(&store, &answers, b"mixed@x", &mixed);
    put(
        &store,
        &answers,
        b"over@x",
        &AorRecord {
            bindings: vec![binding("sip:old@x", 1_000_000)],
            version: 6,
            ..AorRecord::default()
        },
    );
    let (store, records, _) = reopen(&mut harness, store);
    let expected: Records = [(
        b"mixed@x".to_vec(),
        AorRecord {
            bindings: vec![without_conn],
            version: 5,
            ..AorRecord::default()
        },
    )]
    .into();
    assert_eq!(records, expected);
    store.shutdown();
}

/// Listener ids follow their sockets; a socket that is gone takes its bindings along, until it is
/// back.
pub fn listeners_are_found_by_address<H: Harness>(mut harness: H) {
    let (store, answers) = open(&mut harness);
    let mut on_tcp = record(1);
    on_tcp.bindings[0].received.listener = ListenerId(1);
    on_tcp.bindings[0].received.transport = Transport::Tcp;
    put(&store, &answers, b"udp@x", &record(1));
    put(&store, &answers, b"tcp@x", &on_tcp);
    let mut turned = listeners();
    turned.reverse();
    store.set_listeners(turned.clone());
    put(&store, &answers, b"turned@x", &on_tcp);
    store.shutdown();
    drop(store);

    let (store, records) = harness.open(&turned, Arc::new(Answers::default()));
    let listener = |aor: &str| records[aor.as_bytes()].bindings[0].received.listener;
    assert_eq!(
        (listener("udp@x"), listener("tcp@x"), listener("turned@x")),
        (ListenerId(1), ListenerId(0), ListenerId(1))
    );
    store.shutdown();
    drop(store);

    let (store, records) = harness.open(&listeners()[..1], Arc::new(Answers::default()));
    assert_eq!(
        records.keys().collect::<Vec<_>>(),
        [b"turned@x", b"udp@x".as_slice()]
    );
    let (store, records, _) = reopen(&mut harness, store);
    assert_eq!(records.len(), 3);
    store.shutdown();
}

/// Every question has its answer, also those that come too late or are too long.
pub fn every_question_is_answered<H: Harness>(mut harness: H) {
    let (store, answers) = open(&mut harness);
    let batch = (0..1000).map(|slot| {
        save(
            Some(slot),
            format!("u{}@x", slot % 100).as_bytes(),
            &record(u64::from(slot) + 1),
        )
    });
    store.save(batch.collect());
    store.save(vec![save(None, b"quiet@x", &record(9))]);
    let long = vec![b'a'; 70_000];
    store.save(vec![save(Some(5000), &long, &record(1))]);
    for slot in 0..1000 {
        assert_eq!(saved(&answers, slot), Ok(()));
    }
    assert_eq!(saved(&answers, 5000), Err(Unavailable));
    store.shutdown();
    assert_eq!(answers.len(), 0, "no answer where none was asked for");
    store.save(vec![save(Some(6000), b"late@x", &record(1))]);
    assert_eq!(saved(&answers, 6000), Err(Unavailable));
    let (store, records, _) = reopen(&mut harness, store);
    assert_eq!(records.len(), 101);
    for n in 0..100u64 {
        assert_eq!(records[format!("u{n}@x").as_bytes()].version, 901 + n);
    }
    assert!(records.contains_key(&b"quiet@x"[..]));
    store.shutdown();
}

/// Many small changes and restarts, beside a map that does the same.
pub fn a_long_history_matches_a_map<H: Harness>(mut harness: H) {
    let (mut store, mut answers) = open(&mut harness);
    let mut model = Records::new();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for version in 1..=3000u64 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let aor = format!("user{}@example.com", random % 40).into_bytes();
        let mut new = AorRecord {
            bindings: vec![],
            version,
            ..AorRecord::default()
        };
        for n in 0..(random >> 32) % 4 {
            new.bindings
                .push(binding(&format!("sip:{n}@{version}"), LATER + version));
        }
        store.save(vec![save((version % 64 == 0).then_some(0), &aor, &new)]);
        if version % 64 == 0 {
            saved(&answers, 0).unwrap();
        }
        if new.bindings.is_empty() {
            model.remove(&aor);
        } else {
            model.insert(aor, new);
        }
        if version % 500 == 0 {
            let (reopened, records, fresh) = reopen(&mut harness, store);
            assert_eq!(records, model, "after version {version}");
            (store, answers) = (reopened, fresh);
        }
    }
    store.shutdown();
}

/// One test for each of the above; `$make` makes a harness over an empty store.
#[macro_export]
macro_rules! location_battery {
    ($make:expr => $($test:ident),+ $(,)?) => {
        $(#[test] fn $test() { $crate::battery::location::$test($make); })+
    };
    ($make:expr) => {
        $crate::location_battery!($make =>
            records_come_back_as_saved,
            the_newest_version_wins_and_an_empty_one_deletes,
            what_ended_is_not_loaded,
            listeners_are_found_by_address,
            every_question_is_answered,
            a_long_history_matches_a_map,
        );
    };
}
