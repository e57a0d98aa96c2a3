//! The `subscriber` table on MariaDB and PostgreSQL: the same battery as in a file, and what only
//! servers do.

use crate::battery;

use std::sync::Arc;
use std::time::{Duration, Instant};

use battery::subscribers::{Harness, answer, are_of, cache, lookups, query, rename};
use battery::{Answers, PATIENCE};
use sip_backend::metrics::Value;
use sip_backend::subscribers::{
    CredentialCache, CredentialStore as _, LookupOptions, Mode, Pipeline, Server, Source, SubscriberError,
    SubscriberTable, TableOptions,
};
use sip_core::query::Unavailable;
use test_databases::{Database, MariaDb, PostgreSql};

struct OnServer {
    database: Database,
    calculate_ha1: bool,
    renamed: bool,
    mode: Mode,
}

fn source(url: &str) -> Source {
    Source::Server(Server::parse(url).unwrap())
}

impl OnServer {
    fn new(database: Database) -> Self {
        Self {
            database,
            calculate_ha1: false,
            renamed: false,
            mode: Mode::Adaptive,
        }
    }
}

impl Harness for OnServer {
    type Store = Pipeline;

    fn open(&mut self, cache: Arc<CredentialCache>, answers: Arc<Answers>) -> Pipeline {
        // Only adding a subscriber makes the server's table.
        let mut table = self.table();
        table.add("first", "made.the.table", "r", b"x").ok();
        let options = LookupOptions {
            mode: self.mode,
            connections: 3,
            max_batch: 32,
            ..lookups()
        };
        Pipeline::open(self.options(), options, cache, answers).unwrap()
    }

    fn options(&self) -> TableOptions {
        let mut options = TableOptions::new(source(&self.database.url()));
        options.calculate_ha1 = self.calculate_ha1;
        if self.renamed {
            rename(&mut options);
        }
        options
    }

    fn sql(&self, statement: &str) {
        self.database.sql(statement);
    }
}

fn mariadb() -> OnServer {
    OnServer::new(MariaDb::shared().fresh_database())
}

fn postgres() -> OnServer {
    OnServer::new(PostgreSql::shared().fresh_database())
}

/// As the tables of Kamailio's and OpenSIPS' scripts are: another character set, and names that are
/// compared without regard to case.
fn latin1() -> OnServer {
    let on = mariadb();
    on.database.sql(
        "CREATE TABLE subscriber (id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY NOT NULL, \
         username VARCHAR(64) DEFAULT '' NOT NULL, domain VARCHAR(64) DEFAULT '' NOT NULL, \
         password VARCHAR(64) DEFAULT '' NOT NULL, ha1 VARCHAR(128) DEFAULT '' NOT NULL, \
         ha1b VARCHAR(128) DEFAULT '' NOT NULL, ha1_sha256 VARCHAR(64) DEFAULT '' NOT NULL, \
         ha1_sha512t256 VARCHAR(64) DEFAULT '' NOT NULL, CONSTRAINT account_idx UNIQUE (username, domain)) \
         ENGINE=InnoDB DEFAULT CHARACTER SET latin1",
    );
    on
}

mod mariadb_hashed {
    crate::subscriber_battery!(super::mariadb());
}

mod mariadb_plain {
    crate::subscriber_battery!(super::OnServer {
        calculate_ha1: true,
        ..super::mariadb()
    });
}

mod mariadb_renamed_fixed {
    crate::subscriber_battery!(super::OnServer {
        renamed: true,
        mode: sip_backend::subscribers::Mode::Fixed,
        ..super::mariadb()
    });
}

mod mariadb_latin1 {
    crate::subscriber_battery!(super::latin1());
}

mod mariadb_single {
    crate::subscriber_battery!(super::OnServer {
        mode: sip_backend::subscribers::Mode::Single,
        ..super::mariadb()
    });
}

mod postgres_hashed {
    crate::subscriber_battery!(super::postgres());
}

mod postgres_plain {
    crate::subscriber_battery!(super::OnServer {
        calculate_ha1: true,
        ..super::postgres()
    });
}

mod postgres_renamed_fixed {
    crate::subscriber_battery!(super::OnServer {
        renamed: true,
        mode: sip_backend::subscribers::Mode::Fixed,
        ..super::postgres()
    });
}

/// A store over an existing table, and its answers.
fn opened(table: TableOptions, options: LookupOptions) -> (Pipeline, Arc<Answers>) {
    let answers = Arc::new(Answers::default());
    let store = Pipeline::open(table, options, cache(), answers.clone()).unwrap();
    (store, answers)
}

#[test]
fn a_table_is_made_by_commands_and_never_by_look_ups() {
    for on in [mariadb(), postgres()] {
        let (store, answers) = opened(on.options(), lookups());
        store.ask(vec![query(0, b"alice", "example.com", "r")]);
        assert_eq!(answer(&answers, 0).unwrap_err(), Unavailable);
        let why = store.status().last_error.unwrap();
        assert_eq!(
            why,
            "there is no table \"subscriber\"; `trapezoid user add` makes it"
        );
        let error = on.table().list(None, &mut |_, _| ()).unwrap_err().to_string();
        assert!(error.contains("there is no table"), "{error}");
        assert!(on.database.try_sql("SELECT count(*) FROM subscriber").is_err());
        on.table().add("alice", "example.com", "r", b"x").unwrap();
        // The store goes on by itself.
        let deadline = Instant::now() + PATIENCE;
        let mut slot = 1;
        loop {
            store.ask(vec![query(slot, b"alice", "example.com", "r")]);
            if answer(&answers, slot).is_ok_and(|found| are_of(found.as_ref(), "alice", "r", "x")) {
                break;
            }
            assert!(Instant::now() < deadline, "the table was never seen");
            slot += 1;
            std::thread::sleep(Duration::from_millis(50));
        }
        let version = on
            .database
            .sql("SELECT table_version FROM version WHERE table_name = 'subscriber'");
        assert_eq!(version.trim(), "7");
    }
}

#[test]
fn commands_say_what_is_wrong_as_in_a_file() {
    for on in [mariadb(), postgres(), latin1()] {
        let mut table = on.table();
        table.add("bob", "Example.COM", "r", b"x").unwrap();
        table.add("alice", "example.org", "r", b"x").unwrap();
        let again = table.add("bob", "example.com", "r", b"y").unwrap_err();
        assert_eq!(again.to_string(), "bob@example.com exists already");
        for nobody in [
            table.set_password("eve", "example.com", "r", b"y"),
            table.delete("eve", "example.com"),
            // Where the database takes them for equal, too.
            table.delete("BOB", "example.com"),
            table.set_password("BOB", "example.com", "r", b"y"),
        ] {
            assert!(matches!(nobody.unwrap_err(), SubscriberError::NotFound { .. }));
        }
        let mut names = Vec::new();
        table
            .list(None, &mut |user, domain| names.push(format!("{user}@{domain}")))
            .unwrap();
        assert_eq!(names, ["bob@example.com", "alice@example.org"]);
        names.clear();
        table
            .list(Some("EXAMPLE.org"), &mut |user, _| names.push(user.to_owned()))
            .unwrap();
        assert_eq!(names, ["alice"]);
        let mut plain = on.options();
        plain.columns.password = "secret".into();
        plain.calculate_ha1 = true;
        let error = SubscriberTable::open(plain).unwrap_err().to_string();
        assert!(
            error.contains("table \"subscriber\" has no column \"secret\"")
                && !error.contains(on.database.password()),
            "{error}"
        );
    }
}

/// A name given with its domain is checked against `ha1b`, the hash of the name in this form.
#[test]
fn names_with_their_domain_use_the_column_for_them() {
    for on in [mariadb(), postgres()] {
        on.table().add("alice", "example.com", "r", b"x").unwrap();
        let (store, answers) = opened(on.options(), lookups());
        let full = sip_backend::subscribers::CredentialQuery {
            user_len: 5,
            ..query(1, b"alice@example.com", "example.com", "r")
        };
        // Both at once: one row for two questions.
        store.ask(vec![query(0, b"alice", "example.com", "r"), full]);
        assert!(are_of(answer(&answers, 0).unwrap().as_ref(), "alice", "r", "x"));
        let found = answer(&answers, 1).unwrap().unwrap();
        let expected = sip_core::auth::digest::secrets(b"alice@example.com", b"r", b"x");
        assert_eq!(found.ha1_md5, expected.ha1_md5);
        assert!(found.ha1_sha256.is_none());
    }
}

/// 1,000 subscribers by every mode, with sizes around the powers of two.
#[test]
fn batches_of_every_size_find_everybody() {
    for make in [mariadb as fn() -> OnServer, postgres, latin1] {
        let on = make();
        on.table().add("first", "example.com", "r", b"x").unwrap();
        let rows: Vec<String> = (0..1000)
            .map(|n| format!("('u{n}', 'example.com', '{:032x}')", n + 1))
            .collect();
        on.database.sql(&format!(
            "INSERT INTO subscriber (username, domain, ha1) VALUES {}",
            rows.join(", ")
        ));
        for mode in [Mode::Single, Mode::Fixed, Mode::Adaptive] {
            let options = LookupOptions {
                mode,
                connections: 2,
                max_batch: 100,
                ..lookups()
            };
            let (store, answers) = opened(on.options(), options);
            let mut slot = 0;
            for size in [1, 2, 3, 63, 64, 65, 100, 101, 601] {
                let first = slot;
                store.ask(
                    (0..size)
                        .map(|n| {
                            query(
                                first + n,
                                format!("u{}", first + n).as_bytes(),
                                "example.com",
                                "r",
                            )
                        })
                        .collect(),
                );
                slot += size;
            }
            assert_eq!(slot, 1000);
            for n in 0..slot {
                let found = answer(&answers, n).unwrap().unwrap().ha1_md5.unwrap();
                assert_eq!(u128::from_be_bytes(*found), u128::from(n) + 1);
            }
        }
    }
}

/// In one batch of eight: nothing goes before all have been asked for.
#[test]
fn a_broken_row_spoils_no_other_of_its_batch() {
    for on in [mariadb(), postgres()] {
        for n in 0..6 {
            on.table()
                .add(&format!("good{n}"), "example.com", "r", b"x")
                .unwrap();
        }
        on.table().add("broken", "example.com", "r", b"x").unwrap();
        on.database
            .sql("UPDATE subscriber SET ha1 = concat('not a hash', ha1) WHERE username = 'broken'");
        let options = LookupOptions {
            connections: 1,
            mode: Mode::Fixed,
            max_batch: 8,
            max_wait: PATIENCE,
            ..lookups()
        };
        let (store, answers) = opened(on.options(), options);
        let names: Vec<String> = (0..6).map(|n| format!("good{n}")).collect();
        let others = ["broken", "unknown"].map(str::to_owned);
        let ask = |(name, slot): (&String, u32)| query(slot, name.as_bytes(), "example.com", "r");
        store.ask(names.iter().chain(&others).zip(0..).map(ask).collect());
        for (name, slot) in names.iter().zip(0..) {
            let found = answer(&answers, slot).unwrap();
            assert!(are_of(found.as_ref(), name, "r", "x"), "{name}");
        }
        assert!(answer(&answers, 6).unwrap().unwrap().ha1_md5.is_none());
        assert!(answer(&answers, 7).unwrap().is_none());
        let count = |name: &str, labels: &str| {
            let found = store.metrics().into_iter();
            let mut found = found.filter(|s| s.name == name && s.labels.contains(labels));
            let Value::Counter(count) = found.next().unwrap().value else {
                panic!("{name} is a counter")
            };
            count
        };
        assert_eq!(count("credential_batches", "size=\"8\""), 1);
        assert_eq!(count("credential_broken_hashes", ""), 1);
    }
}

#[test]
fn encrypted_connections_verify_the_server() {
    let maria = MariaDb::start_with_tls();
    let postgres = PostgreSql::start_with_tls();
    let cases = [
        (maria.fresh_database(), maria.ca_file().unwrap()),
        (postgres.fresh_database(), postgres.ca_file().unwrap()),
    ];
    for (database, ca) in cases {
        let with = |tls: &str| TableOptions::new(source(&format!("{}?{tls}", database.url())));
        let verified = format!("tls=on&ca={}", ca.display());
        for tls in [verified.as_str(), "tls=unverified"] {
            let mut table = SubscriberTable::open(with(tls)).unwrap();
            let _ = table.delete("alice", "example.com");
            table.add("alice", "example.com", "r", b"x").unwrap();
            let (store, answers) = opened(with(tls), lookups());
            store.ask(vec![query(0, b"alice", "example.com", "r")]);
            assert!(
                are_of(answer(&answers, 0).unwrap().as_ref(), "alice", "r", "x"),
                "{tls}"
            );
        }
        // Not by an authority that we know; and for another address than the certificate's.
        let target = std::net::SocketAddr::from(([127, 0, 0, 1], database.port()));
        let elsewhere = delay_relay::Options::new(([127, 0, 0, 2], 0).into(), target);
        let relay = delay_relay::Relay::start(elsewhere).unwrap();
        let url = database.url().replace(
            &format!("127.0.0.1:{}", database.port()),
            &relay.address().to_string(),
        );
        let other = TableOptions::new(source(&format!("{url}?{verified}")));
        for (options, why) in [(with("tls=on"), "UnknownIssuer"), (other, "not valid for")] {
            let error = SubscriberTable::open(options).unwrap_err().to_string();
            assert!(
                error.contains(why) && !error.contains(database.password()),
                "{error}"
            );
        }
        let unverified = TableOptions::new(source(&format!("{url}?tls=unverified")));
        SubscriberTable::open(unverified).unwrap();
    }
}
