//! `trapezoid user` on database servers, through the built binary.

use crate::common;

use std::net::TcpListener;
use std::path::Path;
use std::thread;

use test_databases::{Database, MariaDb, PostgreSql};

/// A directory with a configuration that has its subscribers at this URL.
fn at(url: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let text = format!("[subscribers]\nurl = \"{url}\"\n[[domain]]\nname = \"a.example\"\n");
    std::fs::write(dir.path().join("t.toml"), text).expect("writable");
    dir
}

/// Exit code, standard output, standard error of `trapezoid user …`.
fn user(dir: &Path, arguments: &[&str], input: &str) -> (i32, String, String) {
    common::run(
        dir,
        &[&["user"], arguments, &["--config", "t.toml"]].concat(),
        input,
    )
}

/// An exit code and a line on standard error, nothing on standard output.
fn said(code: i32, text: &str) -> (i32, String, String) {
    (code, String::new(), format!("{text}\n"))
}

fn subscribers_come_and_go(database: &Database) {
    let dir = at(&database.url());
    let listed = |text: &str| (0, text.to_owned(), String::new());
    let run = |arguments: &[&str], input| user(dir.path(), arguments, input);
    let add = |name, password| run(&["add", name, "--password-stdin"], password);
    let passwd = |name, password| run(&["passwd", name, "--password-stdin"], password);
    let ha1 = |name| {
        let sql = format!("SELECT ha1, ha1b, ha1_sha256, password FROM subscriber WHERE username = '{name}'");
        database.sql(&sql)
    };

    assert_eq!(
        add("alice@A.Example", "secret\n"),
        said(0, "added alice@a.example")
    );
    // `printf alice:a.example:secret | md5sum`, the same of alice@a.example, and of the first by sha256sum.
    assert_eq!(
        ha1("alice").trim_end_matches('\n'),
        "c1315c20fa629201948ae020615aea75\tf8f5eca901c3b75a0bd64c0f580666e5\t\
         2603cb3da10da0951f664a720417d0f0ef30d4948f684ba03af6f41eafcc06d3\t"
    );
    assert_eq!(add("bob", "secret"), said(0, "added bob@a.example"));
    assert_eq!(
        add("alice@a.example", "other\n"),
        said(1, "alice@a.example exists already")
    );
    let before = ha1("bob");
    assert_eq!(passwd("bob", "new\n"), said(0, "changed bob@a.example"));
    assert_ne!(ha1("bob"), before, "a new password");
    // What changes nothing is a change all the same.
    assert_eq!(passwd("bob", "new\n"), said(0, "changed bob@a.example"));
    assert_eq!(passwd("dave", "new\n"), said(1, "no subscriber dave@a.example"));
    assert_eq!(run(&["del", "dave"], ""), said(1, "no subscriber dave@a.example"));
    assert_eq!(run(&["list"], ""), listed("alice@a.example\nbob@a.example\n"));
    let (_, json, _) = run(&["list", "--json", "a.example"], "");
    let list: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let entry = |user| serde_json::json!({ "user": user, "domain": "a.example" });
    assert_eq!(list, serde_json::json!([entry("alice"), entry("bob")]));
    assert_eq!(run(&["del", "bob"], ""), said(0, "deleted bob@a.example"));
    assert_eq!(run(&["list"], ""), listed("alice@a.example\n"));
}

#[test]
fn subscribers_come_and_go_on_mariadb() {
    subscribers_come_and_go(&MariaDb::shared().fresh_database());
}

/// The server's database account may only read. The operator's is in a file that the server cannot read.
#[test]
fn an_operators_account_changes_what_the_servers_may_only_read() {
    let server = MariaDb::shared();
    let database = server.fresh_database();
    let writer = database.url();
    let reader = format!("reader{}", database.name());
    let run = |dir: &Path, arguments: &[&str]| user(dir, arguments, "secret\n");
    let with_table = at(&writer);
    assert_eq!(run(with_table.path(), &["add", "alice", "--password-stdin"]).0, 0);
    server.sql(&format!(
        "CREATE USER '{reader}'@'%' IDENTIFIED BY 'r'; GRANT SELECT ON {}.* TO '{reader}'@'%'",
        database.name()
    ));
    let address = format!("{}:{}/{}", database.host(), database.port(), database.name());
    let dir = at(&format!("mysql://{reader}:r@{address}"));
    let (code, _, text) = run(dir.path(), &["add", "bob", "--password-stdin"]);
    assert!(
        code == 1 && text.contains("denied") && text.contains("into subscribers.admin_url"),
        "{text}"
    );
    let config = dir.path().join("t.toml");
    let text = std::fs::read_to_string(&config).expect("there");
    let keyed = |key: &str| text.replace("[subscribers]\n", &format!("[subscribers]\n{key}\n"));
    std::fs::write(&config, keyed(&format!("admin_url = \"{writer}\""))).expect("writable");
    let added = run(dir.path(), &["add", "bob", "--password-stdin"]);
    assert_eq!(added, said(0, "added bob@a.example"));
    std::fs::write(&config, keyed("admin_url_file = \"writer\"")).expect("writable");
    let (code, _, text) = run(dir.path(), &["del", "bob"]);
    assert!(code == 2 && text.contains("cannot read"), "{text}");
    // The server does not need that file.
    assert_eq!(common::check(dir.path(), "t.toml").0, 0);
    std::fs::write(dir.path().join("writer"), format!("{writer}\n")).expect("writable");
    assert_eq!(run(dir.path(), &["del", "bob"]), said(0, "deleted bob@a.example"));
}

/// Exit code and standard error of `trapezoid check --connect`.
fn connect(dir: &Path) -> (i32, String) {
    let (code, stdout, stderr) = common::run(dir, &["check", "--connect", "--config", "t.toml"], "");
    (code, stdout + &stderr)
}

/// `trapezoid check --connect` reads the table with both accounts, and says of each what is wrong.
fn check_tries(database: &Database) {
    let names = common::empty_name_server();
    let text_of = |admin: &str| {
        let url = database.url();
        format!(
            "[[listen]]\ntransport = \"udp\"\naddress = \"127.0.0.1:5060\"\n[dns]\nnameservers = [\"{names}\"]\n\
             [subscribers]\nurl = \"{url}\"\n{admin}\n[[domain]]\nname = \"a.example\"\n"
        )
    };
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("t.toml");
    let write = |admin: &str| std::fs::write(&config, text_of(admin)).expect("writable");
    let place = shown(database);
    write("");
    let (code, text) = connect(dir.path());
    assert!(
        code == 1 && text.contains(&format!("failed: subscribers: {place}")),
        "{text}"
    );
    assert!(text.contains("1 of these failed"), "{text}");
    let adding = ["add", "alice", "--password-stdin"];
    assert_eq!(user(dir.path(), &adding, "secret\n").0, 0);
    let good = format!("ok: {place}: table subscriber responds, in ");
    let (code, text) = connect(dir.path());
    assert!(code == 0 && text.contains(&good), "{text}");
    assert!(
        !text.contains("as `trapezoid user`"),
        "the account is the same: {text}"
    );
    // The operator's account has another password than the database knows.
    let wrong = database
        .url()
        .replace(&format!(":{}@", database.password()), ":Wrong-One@");
    write(&format!("admin_url = \"{wrong}\""));
    let (code, text) = connect(dir.path());
    assert!(code == 1 && text.contains(&good), "{text}");
    let failed = format!("failed: subscribers, as `trapezoid user`: {place}");
    assert!(text.contains(&failed) && !text.contains("Wrong-One"), "{text}");
    write("admin_url_file = \"writer\"");
    let (code, text) = connect(dir.path());
    let unreadable = "failed: subscribers, as `trapezoid user`: cannot read ";
    assert!(code == 1 && text.contains(unreadable), "{text}");
    std::fs::write(dir.path().join("writer"), format!("{}\n", database.url())).expect("writable");
    assert_eq!(connect(dir.path()).0, 0);
}

#[test]
fn check_tries_a_mariadb() {
    check_tries(&MariaDb::shared().fresh_database());
}

#[test]
fn check_tries_a_postgresql() {
    check_tries(&PostgreSql::shared().fresh_database());
}

#[test]
fn subscribers_come_and_go_on_postgresql() {
    subscribers_come_and_go(&PostgreSql::shared().fresh_database());
}

/// Every command fails with code 1 and one line, which names the database and holds all of `words`
/// and none of `secrets`.
fn all_fail(url: &str, shown: &str, words: &[&str], secrets: &[&str]) {
    let dir = at(url);
    for arguments in [
        &["add", "alice", "--password-stdin"][..],
        &["passwd", "alice", "--password-stdin"],
        &["del", "alice"],
        &["list"],
    ] {
        let (code, stdout, stderr) = user(dir.path(), arguments, "Never-In-A-Message\n");
        assert_eq!((code, &*stdout), (1, ""), "{arguments:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
        assert!(stderr.contains(shown), "{arguments:?}: {stderr}");
        for word in words {
            assert!(stderr.contains(word), "{arguments:?}: {word} in {stderr}");
        }
        for secret in secrets.iter().chain(&["Never-In-A-Message"]) {
            assert!(!stderr.contains(secret), "{arguments:?}: {stderr}");
        }
    }
}

/// The URL without the password, as messages have it.
fn shown(database: &Database) -> String {
    database.url().replace(&format!(":{}@", database.password()), "@")
}

#[test]
fn a_wrong_password_for_the_database_is_one_clear_line() {
    let maria = MariaDb::shared().fresh_database();
    let postgres = PostgreSql::shared().fresh_database();
    for (database, words) in [
        (maria, ["Access denied", "tester"]),
        (postgres, ["password authentication failed", "tester"]),
    ] {
        let url = database.url().replace(database.password(), "Wrong-Password");
        all_fail(
            &url,
            &shown(&database),
            &words,
            &["Wrong-Password", database.password()],
        );
    }
}

#[test]
fn a_database_that_is_not_there_is_one_clear_line() {
    let place = common::Place::claim();
    let free = place.closed();
    for scheme in ["mysql", "postgres"] {
        let url = format!("{scheme}://someone:S3cret-Word@{free}/base");
        let shown = format!("{scheme}://someone@{free}/base");
        all_fail(&url, &shown, &["refused"], &["S3cret-Word"]);
    }
    let database = MariaDb::shared().fresh_database();
    let elsewhere = database.url().replace(database.name(), "nowhere");
    all_fail(&elsewhere, "/nowhere", &["denied"], &[database.password()]);
}

/// It does not wait for ever.
#[test]
fn a_database_that_says_nothing_is_one_clear_line() {
    let place = common::Place::claim();
    let silent = TcpListener::bind(place.at(0)).expect("a port");
    let address = silent.local_addr().expect("an address");
    thread::scope(|scope| {
        for scheme in ["mysql", "postgres"] {
            scope.spawn(move || {
                let dir = at(&format!("{scheme}://someone:S3cret-Word@{address}/base"));
                let line = format!("{scheme}://someone@{address}/base: no result in time");
                assert_eq!(user(dir.path(), &["list"], ""), said(1, &line));
            });
        }
    });
}
