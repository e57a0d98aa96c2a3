//! One battery for both makes of servers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use test_databases::{Database, MariaDb, PostgreSql, Server};

/// Bytes after which each make speaks, of a client that has just connected: MariaDB's greets
/// unasked; PostgreSQL's answers a request for TLS (length 8, code 80877103).
const MARIADB_ASKS: &[u8] = &[];
const POSTGRESQL_ASKS: &[u8] = &[0, 0, 0, 8, 4, 210, 22, 47];

/// Whether a client that connects hears anything within a time.
fn answers(server: &Server, asks: &[u8], within: Duration) -> bool {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream.set_read_timeout(Some(within)).unwrap();
    stream.write_all(asks).unwrap();
    match stream.read(&mut [0; 1]) {
        Ok(length) => length == 1,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            false
        }
    }
}

const LONG: Duration = Duration::from_secs(60);

fn filled(server: &Server) -> Database {
    let database = server.fresh_database();
    database.sql("CREATE TABLE t (a INT, b VARCHAR(9)); INSERT INTO t VALUES (7, 'x'), (8, NULL);");
    database
}

fn databases_are_apart(server: &Server, null: &str) {
    let (one, other) = (filled(server), server.fresh_database());
    assert_eq!(
        one.sql("SELECT a, b FROM t ORDER BY a"),
        format!("7\tx\n8\t{null}\n")
    );
    assert_ne!(one.name(), other.name());
    assert_ne!(one.password(), other.password());
    assert!(other.try_sql("SELECT a FROM t").is_err());
    let error = one.try_sql("SELEKT 1").unwrap_err();
    assert!(error.contains("SELEKT"), "{error}");
    let url = one.url();
    let expected = format!(
        "://{}:{}@127.0.0.1:{}/{}",
        one.user(),
        one.password(),
        server.port(),
        one.name()
    );
    assert!(url.ends_with(&expected), "{url}");
}

/// A process and when it began: numbers of processes come again.
fn life(process: u32) -> (u32, String) {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // After the name, which may hold anything: state, and 18 more before the time.
    let (_, rest) = stat.rsplit_once(')').unwrap();
    (process, rest.split_ascii_whitespace().nth(19).unwrap().to_owned())
}

fn data_outlives_ends(server: &Server, asks: &[u8]) {
    let database = filled(server);
    let port = server.port();
    for end in [Server::kill, Server::shut_down, |_: &Server| ()] {
        let before = life(server.pid());
        end(server);
        if std::fs::metadata(format!("/proc/{}", before.0)).is_err() {
            TcpStream::connect(("127.0.0.1", port)).unwrap_err();
            assert!(database.try_sql("SELECT 1").is_err());
        }
        server.restart();
        assert_ne!(life(server.pid()), before);
        assert_eq!(server.port(), port);
        assert!(answers(server, asks, LONG));
        assert_eq!(database.sql("SELECT COUNT(*) FROM t"), "2\n");
    }
}

fn stops_and_goes_on(server: &Server, asks: &[u8]) {
    let mut before = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    // Connections are accepted in order.
    assert!(answers(server, asks, LONG));
    server.stop_answering();
    assert!(!answers(server, asks, Duration::from_millis(300)));
    if !asks.is_empty() {
        // Nor does a process that was there before.
        before.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        before.write_all(asks).unwrap();
        assert_eq!(
            before.read(&mut [0; 1]).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
    }
    server.continue_answering();
    assert!(answers(server, asks, LONG));
    before.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(before.read(&mut [0; 1]).unwrap(), 1);
    // One that is stopped can be ended in order, and killed.
    for end in [Server::shut_down, Server::kill] {
        server.stop_answering();
        end(server);
        server.restart();
    }
}

#[test]
fn mariadb_databases_are_apart() {
    databases_are_apart(MariaDb::shared(), "NULL");
}

#[test]
fn postgresql_databases_are_apart() {
    databases_are_apart(PostgreSql::shared(), "");
}

#[test]
fn mariadb_data_outlives_ends() {
    data_outlives_ends(&MariaDb::start(), MARIADB_ASKS);
}

#[test]
fn postgresql_data_outlives_ends() {
    data_outlives_ends(&PostgreSql::start(), POSTGRESQL_ASKS);
}

#[test]
fn mariadb_stops_and_goes_on() {
    stops_and_goes_on(&MariaDb::start(), MARIADB_ASKS);
}

#[test]
fn postgresql_stops_and_goes_on() {
    stops_and_goes_on(&PostgreSql::start(), POSTGRESQL_ASKS);
}

#[test]
fn many_databases_at_once() {
    let names = |server: &'static Server| {
        std::thread::scope(|scope| {
            let made: Vec<_> = (0..8).map(|_| scope.spawn(|| server.fresh_database())).collect();
            let mut names: Vec<_> = made
                .into_iter()
                .map(|thread| thread.join().unwrap().name().to_owned())
                .collect();
            names.sort_unstable();
            names.dedup();
            names.len()
        })
    };
    assert_eq!(names(MariaDb::shared()), 8);
    assert_eq!(names(PostgreSql::shared()), 8);
}

#[test]
fn there_is_room_for_many_connections() {
    // MariaDB lowers its own limit where files are short.
    assert_eq!(MariaDb::shared().sql("SELECT @@max_connections"), "1200\n");
    assert_eq!(PostgreSql::shared().sql("SHOW max_connections"), "600\n");
}

/// Logs in by TCP with a password, as a client outside would; not with what this user's home has.
fn logs_in(client: &mut Command) -> Result<String, String> {
    let output = client.env("HOME", "/nonexistent").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

fn mariadb(database: &Database, user: &str, password: &str, more: &[&str]) -> Result<String, String> {
    logs_in(
        Command::new("mariadb")
            .args(["--no-defaults", "--batch", "--skip-column-names"])
            .args(["--protocol=tcp", "--host=127.0.0.1"])
            .arg(format!("--port={}", database.port()))
            .arg(format!("--user={user}"))
            .arg(format!("--password={password}"))
            .args(more),
    )
}

fn postgresql(database: &Database, user: &str, password: &str, mode: &str) -> Result<String, String> {
    let (port, name) = (database.port(), database.name());
    logs_in(
        Command::new("psql")
            .env("PGPASSWORD", password)
            .args(["--no-psqlrc", "--tuples-only", "--no-align", "--no-password"])
            .arg(format!(
                "host=127.0.0.1 port={port} user={user} dbname={name} {mode}"
            ))
            .args(["-c", "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"]),
    )
}

#[test]
fn mariadb_wants_the_password() {
    let database = MariaDb::shared().fresh_database();
    let (user, password) = (database.user(), database.password());
    let ask = ["--execute=SHOW TABLES", database.name()];
    assert_eq!(mariadb(&database, user, password, &ask), Ok(String::new()));
    assert!(
        mariadb(&database, user, "wrong", &ask)
            .unwrap_err()
            .contains("denied")
    );
    assert!(
        mariadb(&database, "root", "", &ask)
            .unwrap_err()
            .contains("denied")
    );
    let theirs = ["--execute=SELECT user FROM mysql.global_priv"];
    assert!(
        mariadb(&database, user, password, &theirs)
            .unwrap_err()
            .contains("denied")
    );
}

#[test]
fn postgresql_wants_the_password() {
    let database = PostgreSql::shared().fresh_database();
    let (user, password) = (database.user(), database.password());
    assert_eq!(postgresql(&database, user, password, "").unwrap(), "f\n");
    let denied = postgresql(&database, user, "wrong", "").unwrap_err();
    assert!(denied.contains("password authentication failed"), "{denied}");
    assert!(postgresql(&database, "postgres", "", "").is_err());
}

#[test]
fn mariadb_offers_tls() {
    let server = MariaDb::start_with_tls();
    let database = server.fresh_database();
    let ca = format!("--ssl-ca={}", server.ca_file().unwrap().display());
    let ask = [
        "--ssl-verify-server-cert",
        &ca,
        "--execute=SHOW STATUS LIKE 'Ssl_version'",
    ];
    let version = mariadb(&database, database.user(), database.password(), &ask).unwrap();
    assert_eq!(version, "Ssl_version\tTLSv1.3\n");
}

#[test]
fn postgresql_offers_tls() {
    let server = PostgreSql::start_with_tls();
    let database = server.fresh_database();
    let mode = format!(
        "sslmode=verify-full sslrootcert={}",
        server.ca_file().unwrap().display()
    );
    let answer = postgresql(&database, database.user(), database.password(), &mode);
    assert_eq!(answer.unwrap(), "t\n");
}

#[test]
#[should_panic(expected = "is not running")]
fn what_was_killed_cannot_be_stopped() {
    let server = PostgreSql::start();
    server.kill();
    server.stop_answering();
}

#[test]
fn postgresql_that_was_killed_leaves_no_shared_memory() {
    let server = PostgreSql::start();
    // It works in its data directory. Key and number of the segment are in line 7 of its file.
    let data = std::fs::read_link(format!("/proc/{}/cwd", server.pid())).unwrap();
    server.kill();
    let file = std::fs::read_to_string(data.join("postmaster.pid")).unwrap();
    let number = file
        .lines()
        .nth(6)
        .unwrap()
        .split_ascii_whitespace()
        .nth(1)
        .unwrap();
    let segments = || {
        let list = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
        list.lines()
            .filter(|line| line.split_ascii_whitespace().nth(1) == Some(number))
            .count()
    };
    assert_eq!(segments(), 1);
    drop(server);
    assert_eq!(segments(), 0);
    assert!(!data.exists());
}
