//! Stores of secrets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sip_backend::subscribers::{
    CredentialCache, CredentialQuery, CredentialStore, LookupOptions, SubscriberTable, TableOptions,
};
use sip_core::auth::digest;
use sip_core::query::{QueryResult, Secrets, Unavailable};

use super::{Answers, PATIENCE, id};

/// How a store and its table are made.
pub trait Harness {
    /// The store.
    type Store: CredentialStore;

    /// Opens the store for look-ups; the table exists afterwards.
    fn open(&mut self, cache: Arc<CredentialCache>, answers: Arc<Answers>) -> Self::Store;
    /// The table.
    fn options(&self) -> TableOptions;

    /// Runs a statement, as an operator does with an SQL client.
    fn sql(&self, statement: &str);

    /// As `trapezoid user` sees it.
    fn table(&self) -> SubscriberTable {
        SubscriberTable::open(self.options()).unwrap()
    }

    /// As `trapezoid user add` does.
    #[track_caller]
    fn add(&self, user: &str, domain: &str, realm: &str, password: &str) {
        self.table()
            .add(user, domain, realm, password.as_bytes())
            .unwrap();
    }

    /// As `trapezoid user passwd` does.
    fn set_password(&self, user: &str, domain: &str, realm: &str, password: &str) {
        self.table()
            .set_password(user, domain, realm, password.as_bytes())
            .unwrap();
    }

    /// As `trapezoid user del` does.
    #[track_caller]
    fn delete(&self, user: &str, domain: &str) {
        self.table().delete(user, domain).unwrap();
    }

    /// Puts `value` into a column of one row.
    fn put(&self, user: &str, domain: &str, column: &str, value: &str) {
        let TableOptions { table, columns, .. } = self.options();
        let name = columns.user;
        self.sql(&format!(
            "UPDATE {table} SET {column} = '{value}' WHERE {name} = '{user}' AND domain = '{domain}'"
        ));
    }

    /// Whether HA1 is calculated for the realm that is asked.
    fn calculates(&self) -> bool {
        self.options().calculate_ha1
    }
}

/// The table and its columns by other names than the usual ones.
pub fn rename(options: &mut TableOptions) {
    options.table = "accounts".into();
    options.columns.user = "login".into();
    options.columns.ha1_sha256 = "sha256".into();
}

/// A cache that keeps for an hour.
pub fn cache() -> Arc<CredentialCache> {
    let hour = Duration::from_secs(3600);
    Arc::new(CredentialCache::new(10_000, hour, hour))
}

/// The defaults, with a deadline that a busy machine keeps to.
pub fn lookups() -> LookupOptions {
    LookupOptions {
        deadline: PATIENCE,
        ..LookupOptions::default()
    }
}

/// A question.
pub fn query(slot: u32, user: &[u8], domain: &str, realm: &str) -> CredentialQuery {
    CredentialQuery {
        origin: 2,
        id: Some(id(slot)),
        username: user.into(),
        user_len: user.len(),
        domain: domain.as_bytes().into(),
        realm: realm.as_bytes().into(),
    }
}

/// The answer to question `slot`.
#[track_caller]
pub fn answer(answers: &Answers, slot: u32) -> Result<Option<Secrets>, Unavailable> {
    match answers.wait(2, slot) {
        QueryResult::Credentials(result) => result,
        other @ (QueryResult::Saved(_) | QueryResult::Resolved(_)) => panic!("{other:?}"),
    }
}

#[track_caller]
fn ask(
    store: &impl CredentialStore,
    answers: &Answers,
    user: &str,
    domain: &str,
    realm: &str,
) -> Option<Secrets> {
    store.ask(vec![query(0, user.as_bytes(), domain, realm)]);
    answer(answers, 0).unwrap()
}

/// Whether these are the secrets of this password.
pub fn are_of(secrets: Option<&Secrets>, user: &str, realm: &str, password: &str) -> bool {
    let expected = digest::secrets(user.as_bytes(), realm.as_bytes(), password.as_bytes());
    secrets.is_some_and(|found| {
        found.ha1_md5 == expected.ha1_md5
            && found.ha1_sha256 == expected.ha1_sha256
            && found.ha1_sha512_256 == expected.ha1_sha512_256
    })
}

/// Name and domain together name a subscriber.
pub fn subscribers_are_found_by_user_and_domain<H: Harness>(mut harness: H) {
    let answers = Arc::new(Answers::default());
    let store = harness.open(cache(), answers.clone());
    harness.add("alice", "example.com", "example.com", "secret");
    harness.add("alice", "example.org", "the realm", "other");
    harness.add("o'hara;DROP", "EXAMPLE.com", "example.com", "x\u{e9}\u{1f511}");
    let found = |user: &str, domain: &str, realm: &str| ask(&store, &answers, user, domain, realm);
    assert!(are_of(
        found("alice", "example.com", "example.com").as_ref(),
        "alice",
        "example.com",
        "secret"
    ));
    assert!(are_of(
        found("alice", "example.org", "the realm").as_ref(),
        "alice",
        "the realm",
        "other"
    ));
    let odd = found("o'hara;DROP", "example.com", "example.com");
    assert!(are_of(
        odd.as_ref(),
        "o'hara;DROP",
        "example.com",
        "x\u{e9}\u{1f511}"
    ));
    for (user, domain) in [
        ("bob", "example.com"),
        ("alice", "example.net"),
        ("ALICE", "example.com"),
        ("", ""),
    ] {
        assert!(found(user, domain, "example.com").is_none(), "{user}@{domain}");
    }
    store.ask(vec![query(7, b"\xff\xfe\x00", "example.com", "r")]);
    assert!(answer(&answers, 7).unwrap().is_none());
    store.shutdown();
}

/// Stored hashes are of one realm; calculated ones of any.
pub fn the_realm_matters_only_where_hashes_are_calculated<H: Harness>(mut harness: H) {
    let answers = Arc::new(Answers::default());
    let store = harness.open(cache(), answers.clone());
    harness.add("alice", "example.com", "first", "secret");
    let other = ask(&store, &answers, "alice", "example.com", "second");
    let made_for = if harness.calculates() { "second" } else { "first" };
    assert!(are_of(other.as_ref(), "alice", made_for, "secret"));
    store.shutdown();
}

/// Every question of a batch is answered, equal ones too, and none is after the end.
pub fn every_question_of_a_batch_is_answered<H: Harness>(mut harness: H) {
    let answers = Arc::new(Answers::default());
    let cache = cache();
    let store = harness.open(cache.clone(), answers.clone());
    for n in 0..20 {
        harness.add(&format!("user{n}"), "example.com", "r", &format!("pass{n}"));
    }
    let name = |slot: u32| format!("user{}", slot % 25);
    store.ask(
        (0..500)
            .map(|slot| query(slot, name(slot).as_bytes(), "example.com", "r"))
            .collect(),
    );
    for slot in 0..500 {
        let found = answer(&answers, slot).unwrap();
        if slot % 25 < 20 {
            assert!(are_of(
                found.as_ref(),
                &name(slot),
                "r",
                &format!("pass{}", slot % 25)
            ));
        } else {
            assert!(found.is_none());
        }
    }
    assert_eq!(cache.len(), 25);
    store.shutdown();
    store.ask(vec![query(900, b"user1", "example.com", "r")]);
    assert_eq!(answer(&answers, 900).unwrap_err(), Unavailable);
}

/// Changes of the table by others are seen within a second, with a cache or without.
pub fn changes_by_others_take_effect<H: Harness>(mut harness: H) {
    let answers = Arc::new(Answers::default());
    let cache = cache();
    let store = harness.open(cache.clone(), answers.clone());
    let found = || {
        if let Some(known) = cache.get(b"alice", b"example.com", b"r") {
            return known;
        }
        ask(&store, &answers, "alice", "example.com", "r")
    };
    let until = |good: &dyn Fn(Option<&Secrets>) -> bool| {
        let deadline = Instant::now() + PATIENCE;
        while !good(found().as_ref()) {
            assert!(Instant::now() < deadline, "the change was never seen");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // Absence is remembered; a change that was just made may empty the cache once more.
    until(&|secrets| secrets.is_none() && cache.get(b"alice", b"example.com", b"r").is_some());
    harness.add("alice", "example.com", "r", "one");
    until(&|secrets| are_of(secrets, "alice", "r", "one"));
    harness.set_password("alice", "example.com", "r", "two");
    until(&|secrets| are_of(secrets, "alice", "r", "two"));
    harness.delete("alice", "example.com");
    until(&|secrets| secrets.is_none());
    store.shutdown();
}

/// Columns with anything but a hash count as empty.
pub fn broken_hashes_count_as_absent<H: Harness>(mut harness: H) {
    let answers = Arc::new(Answers::default());
    let store = harness.open(cache(), answers.clone());
    for (n, bad) in [
        "nothex",
        "0123",
        &"g".repeat(32),
        &"a".repeat(33),
        &"a".repeat(128),
    ]
    .iter()
    .enumerate()
    {
        let user = format!("user{n}");
        harness.add(&user, "example.com", "r", "secret");
        if harness.calculates() {
            harness.put(&user, "example.com", "password", "");
        } else {
            harness.put(&user, "example.com", "ha1", bad);
            harness.put(&user, "example.com", "ha1_sha512t256", "");
        }
        let found = ask(&store, &answers, &user, "example.com", "r").unwrap();
        assert!(found.ha1_md5.is_none() && found.ha1_sha512_256.is_none(), "{bad}");
        assert_eq!(found.ha1_sha256.is_some(), !harness.calculates());
    }
    store.shutdown();
}

/// One test for each of the above; `$make` makes a harness over an empty store.
#[macro_export]
macro_rules! subscriber_battery {
    ($make:expr => $($test:ident),+ $(,)?) => {
        $(#[test] fn $test() { $crate::battery::subscribers::$test($make); })+
    };
    ($make:expr) => {
        $crate::subscriber_battery!($make =>
            subscribers_are_found_by_user_and_domain,
            the_realm_matters_only_where_hashes_are_calculated,
            every_question_of_a_batch_is_answered,
            changes_by_others_take_effect,
            broken_hashes_count_as_absent,
        );
    };
}
