//! The `subscriber` table in SQLite.

use crate::battery;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use battery::subscribers::{Harness, answer, are_of, cache, lookups, query, rename};
use battery::{Answers, PATIENCE};
use rusqlite::Connection;
use sip_backend::metrics::Value;
use sip_backend::subscribers::{
    CredentialCache, CredentialStore as _, LookupOptions, Pipeline, SubscriberError, SubscriberTable,
    TableOptions,
};
use sip_core::query::Unavailable;

struct OnDisk {
    dir: tempfile::TempDir,
    calculate_ha1: bool,
    renamed: bool,
}

fn on_disk(calculate_ha1: bool, renamed: bool) -> OnDisk {
    OnDisk {
        dir: tempfile::tempdir().unwrap(),
        calculate_ha1,
        renamed,
    }
}

impl OnDisk {
    fn path(&self) -> PathBuf {
        self.dir.path().join("subscribers.db")
    }
}

impl Harness for OnDisk {
    type Store = Pipeline;

    fn open(&mut self, cache: Arc<CredentialCache>, answers: Arc<Answers>) -> Pipeline {
        Pipeline::open(self.options(), lookups(), cache, answers).unwrap()
    }

    fn options(&self) -> TableOptions {
        let mut options = TableOptions::sqlite(self.path());
        options.calculate_ha1 = self.calculate_ha1;
        if self.renamed {
            rename(&mut options);
        }
        options
    }

    fn sql(&self, statement: &str) {
        let changed = Connection::open(self.path())
            .unwrap()
            .execute(statement, [])
            .unwrap();
        assert_eq!(changed, 1);
    }
}

mod hashed {
    crate::subscriber_battery!(super::on_disk(false, false));
}

mod plain {
    crate::subscriber_battery!(super::on_disk(true, false));
}

mod renamed {
    crate::subscriber_battery!(super::on_disk(false, true));
}

#[test]
fn commands_say_what_is_wrong() {
    let disk = on_disk(false, false);
    let mut table = disk.table();
    assert!(table.is_empty().unwrap());
    table.add("bob", "Example.COM", "r", b"x").unwrap();
    table.add("alice", "example.com", "r", b"x").unwrap();
    table.add("alice", "example.org", "r", b"x").unwrap();
    let again = table.add("bob", "example.com", "r", b"y").unwrap_err();
    assert!(matches!(again, SubscriberError::Exists { .. }));
    assert_eq!(again.to_string(), "bob@example.com exists already");
    for nobody in [
        table.set_password("eve", "example.com", "r", b"y"),
        table.delete("eve", "example.com"),
    ] {
        assert!(matches!(nobody.unwrap_err(), SubscriberError::NotFound { .. }));
    }
    for (user, domain) in [
        ("", "x"),
        ("a:b", "x"),
        ("a b", "x"),
        ("a\"", "x"),
        ("a", ""),
        ("a", "x\n"),
    ] {
        let bad = table.add(user, domain, "r", b"y").unwrap_err();
        assert!(
            matches!(bad, SubscriberError::BadName { .. }),
            "{user:?}@{domain:?}"
        );
    }
    let mut list = |domain| {
        let mut names = Vec::new();
        table
            .list(domain, &mut |user, domain| names.push(format!("{user}@{domain}")))
            .unwrap();
        names
    };
    assert_eq!(
        list(None),
        ["alice@example.com", "bob@example.com", "alice@example.org"]
    );
    assert_eq!(list(Some("EXAMPLE.org")), ["alice@example.org"]);
    assert!(!table.is_empty().unwrap());
}

/// RFC 7616 §3.9.1 has the user, realm and password, and so the hashes that go into the table.
#[test]
fn the_row_is_what_other_servers_expect() {
    let disk = on_disk(false, false);
    disk.table()
        .add(
            "Mufasa",
            "example.org",
            "http-auth@example.org",
            b"Circle of Life",
        )
        .unwrap();
    let db = Connection::open(disk.path()).unwrap();
    let row: [String; 5] = db
        .query_row(
            "SELECT password, ha1, ha1b, ha1_sha256, ha1_sha512t256 FROM subscriber",
            [],
            |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?]),
        )
        .unwrap();
    let [password, ha1, ha1b, sha256, sha512t256] = row;
    assert_eq!(password, "", "the plain password is nowhere");
    assert_eq!(ha1, "3d78807defe7de2157e2b0b6573a855f");
    assert_eq!(
        sha256,
        "7987c64c30e25f1b74be53f966b49b90f2808aa92faf9a00262392d7b4794232"
    );
    assert_eq!((ha1b.len(), sha512t256.len()), (32, 64));
    let version: i64 = db
        .query_row(
            "SELECT table_version FROM version WHERE table_name='subscriber'",
            [],
            |r| r.get(0),
        )
        .unwrap();
    assert_eq!(version, 7);
    let mode = fs::metadata(disk.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_foreign_table_is_used_as_it_is_or_refused() {
    let disk = on_disk(false, false);
    let db = Connection::open(disk.path()).unwrap();
    db.execute_batch("CREATE TABLE subscriber (username TEXT, domain TEXT, ha1 TEXT, extra TEXT)")
        .unwrap();
    let before: String = schema(&db);
    disk.table().add("alice", "example.com", "r", b"x").unwrap();
    assert_eq!(schema(&db), before, "never altered");
    let answers = Arc::new(Answers::default());
    let store = Pipeline::open(disk.options(), lookups(), cache(), answers.clone()).unwrap();
    store.ask(vec![query(0, b"alice", "example.com", "r")]);
    let found = answer(&answers, 0).unwrap().unwrap();
    assert!(found.ha1_md5.is_some() && found.ha1_sha256.is_none() && found.ha1_sha512_256.is_none());
    store.shutdown();

    let mut options = disk.options();
    options.calculate_ha1 = true;
    let error = SubscriberTable::open(options).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("table \"subscriber\" has no column \"password\""),
        "{error}"
    );
    // The table has a hash by another column, but not by the one that the configuration names.
    let mut options = disk.options();
    options.columns.ha1b = "secret".into();
    let error = SubscriberTable::open(options).unwrap_err().to_string();
    assert!(
        error.contains("table \"subscriber\" has no column \"secret\""),
        "{error}"
    );
    let mut options = disk.options();
    options.columns.ha1 = "ha1\"; DROP TABLE subscriber; --".into();
    assert!(matches!(
        SubscriberTable::open(options).unwrap_err(),
        SubscriberError::BadColumn { .. }
    ));
}

fn schema(db: &Connection) -> String {
    db.query_row("SELECT group_concat(sql) FROM sqlite_master", [], |row| {
        row.get(0)
    })
    .unwrap()
}

#[test]
fn a_database_that_goes_and_comes_back_is_used_again() {
    let disk = on_disk(false, false);
    disk.table().add("alice", "example.com", "r", b"one").unwrap();
    let answers = Arc::new(Answers::default());
    let cache = cache();
    let store = Pipeline::open(disk.options(), lookups(), cache.clone(), answers.clone()).unwrap();
    store.ask(vec![query(0, b"alice", "example.com", "r")]);
    assert!(are_of(answer(&answers, 0).unwrap().as_ref(), "alice", "r", "one"));
    // A backup is put in its place.
    let other = on_disk(false, false);
    other.table().add("alice", "example.com", "r", b"two").unwrap();
    fs::rename(disk.path(), disk.dir.path().join("away.db")).unwrap();
    for leftover in ["subscribers.db-wal", "subscribers.db-shm"] {
        let _ = fs::remove_file(disk.dir.path().join(leftover));
    }
    let ask = |slot: u32, user: &str| {
        store.ask(vec![query(slot, user.as_bytes(), "example.com", "r")]);
        answer(&answers, slot)
    };
    let deadline = Instant::now() + PATIENCE;
    let mut slot = 1;
    while ask(slot, &format!("bob{slot}")).is_ok() {
        assert!(Instant::now() < deadline, "its absence was never seen");
        slot += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(
        are_of(ask(slot + 1, "alice").unwrap().as_ref(), "alice", "r", "one"),
        "who is known goes on meanwhile"
    );
    fs::copy(other.path(), disk.path()).unwrap();
    while !ask(slot + 1, "alice").is_ok_and(|found| are_of(found.as_ref(), "alice", "r", "two")) {
        assert!(Instant::now() < deadline, "the new file was never opened");
        slot += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_full_queue_and_a_question_too_old_are_unavailable() {
    let disk = on_disk(false, false);
    let answers = Arc::new(Answers::default());
    let options = LookupOptions {
        queue_items: 4,
        ..lookups()
    };
    let store = Pipeline::open(disk.options(), options, cache(), answers.clone()).unwrap();
    store.ask(
        (0..20)
            .map(|slot| query(slot, b"alice", "example.com", "r"))
            .collect(),
    );
    let refused = (0..20).filter(|slot| answer(&answers, *slot).is_err()).count();
    assert_eq!(refused, 16);
    store.shutdown();

    let options = LookupOptions {
        deadline: Duration::ZERO,
        ..LookupOptions::default()
    };
    let store = Pipeline::open(disk.options(), options, cache(), answers.clone()).unwrap();
    store.ask(vec![query(30, b"alice", "example.com", "r")]);
    assert_eq!(answer(&answers, 30).unwrap_err(), Unavailable);
    let unavailable = store
        .metrics()
        .into_iter()
        .find(|s| s.labels == "result=\"unavailable\"")
        .unwrap();
    assert_eq!(unavailable.value, Value::Counter(1));
}

/// A store ends on `shutdown`, also before its thread has begun and without a server to connect to.
#[test]
fn a_store_ends_at_once() {
    let server = sip_backend::subscribers::Server::parse("mysql://sip:x@127.0.0.1:1/sip").unwrap();
    let options = TableOptions::new(sip_backend::subscribers::Source::Server(server));
    for _ in 0..50 {
        let answers = Arc::new(Answers::default());
        let store = Pipeline::open(
            options.clone(),
            LookupOptions::default(),
            cache(),
            answers.clone(),
        )
        .unwrap();
        store.ask(vec![query(0, b"alice", "example.com", "r")]);
        store.shutdown();
        assert_eq!(answer(&answers, 0).unwrap_err(), Unavailable);
    }
}

/// Such a name is in no table. If it went to the database, a batch of such names would count as a result of one that
/// gives none.
#[test]
fn a_name_that_is_no_text_needs_no_database() {
    let server = sip_backend::subscribers::Server::parse("mysql://sip:x@127.0.0.1:1/sip").unwrap();
    let options = TableOptions::new(sip_backend::subscribers::Source::Server(server));
    let answers = Arc::new(Answers::default());
    let store = Pipeline::open(options, lookups(), cache(), answers.clone()).unwrap();
    store.ask(vec![
        query(0, b"al\xffice", "example.com", "r"),
        query(1, b"alice", "example.com", "r"),
    ]);
    assert!(answer(&answers, 0).unwrap().is_none());
    assert_eq!(answer(&answers, 1).unwrap_err(), Unavailable);
    store.shutdown();
}
