//! Faults of a database under load.

use std::time::{Duration, Instant};

use conformance::{Class, Outcome, Server, wait_until};
use delay_relay::Control;
use test_databases::{Database, MariaDb, PostgreSql, Server as DatabaseServer};

use crate::credentials::stage::{Fault, Setting, Stage, password};

fn killed(what: &str, server: &DatabaseServer) {
    let stage = Stage::set(server.fresh_database(), Setting::default());
    let fault = stage.during(|| server.kill(), || server.restart());
    let recovered = stage.recovered();
    stage.server.wait_for_log("subscriber database responds again");
    let told = stage.finish(fault, recovered);
    told.is_undisturbed(what);
    told.new_users_were_refused(what);
}

#[test]
fn a_mariadb_that_is_killed_and_comes_back() {
    killed("MariaDB killed", &MariaDb::start());
}

#[test]
fn a_postgresql_that_is_killed_and_comes_back() {
    killed("PostgreSQL killed", &PostgreSql::start());
}

#[test]
fn a_database_that_accepts_and_never_answers() {
    let what = "stalled";
    let setting = Setting {
        credentials: "deadline_ms = 5000\non_unavailable = \"504\"",
        deadline: Duration::from_secs(5),
        unavailable: 504,
        ..Setting::default()
    };
    let stage = Stage::set(MariaDb::shared().fresh_database(), setting);
    let control = stage.relay.control();
    let fault = stage.during(
        || control.stall().expect("stalled"),
        || control.resume().expect("resumed"),
    );
    let recovered = stage.recovered();
    let told = stage.finish(fault, recovered);
    told.is_undisturbed(what);
    told.new_users_were_refused(what);
    let (overtaken, waited) = told.overtaken();
    assert!(overtaken > 10, "{what}: {overtaken} of {waited} overtaken");
}

#[test]
fn a_database_whose_processes_are_stopped() {
    let what = "stopped";
    let maria = MariaDb::start();
    let setting = Setting {
        credentials: "deadline_ms = 5000",
        deadline: Duration::from_secs(5),
        ..Setting::default()
    };
    let stage = Stage::set(maria.fresh_database(), setting);
    let fault = stage.during(|| maria.stop_answering(), || maria.continue_answering());
    let recovered = stage.recovered();
    let told = stage.finish(fault, recovered);
    told.is_undisturbed(what);
    told.new_users_were_refused(what);
    let (overtaken, waited) = told.overtaken();
    assert!(overtaken > 10, "{what}: {overtaken} of {waited} overtaken");
}

/// A connection that is dead without a word costs no call while others are up: what it carries is asked once more.
#[test]
fn one_connection_that_says_nothing() {
    let what = "one connection stopped";
    let postgres = PostgreSql::start();
    // It is asked again after a quarter of the deadline, but not sooner than after four usual round trips: on a busy
    // machine two seconds.
    let stage = Stage::set(postgres.fresh_database(), Setting::default());
    let metric = |name: &str| {
        let name = format!("trapezoid_credential_{name}_total");
        stage.server.metric(&name, "")
    };
    let stop = || {
        let sessions = postgres.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'trapezoid'");
        let sessions = sessions.lines().map(|pid| pid.trim().parse().expect("a process"));
        let again = metric("asked_again");
        // If it is the one that looks for changes of the table, that look may be what fails, and nothing is asked
        // again: another one, then. Most stay up.
        for pid in sessions.take(3) {
            let errors = metric("store_errors");
            postgres.stop_process(pid);
            wait_until("the server has met it", || {
                metric("asked_again") > again || metric("store_errors") > errors
            });
            if metric("asked_again") > again {
                return;
            }
        }
        panic!("{what}: nothing was asked again");
    };
    let fault = stage.during(stop, || postgres.continue_answering());
    let recovered = stage.recovered();
    let told = stage.finish(fault, recovered);
    told.is_undisturbed(what);
    told.new_users_succeed(what);
}

#[test]
fn a_slow_database() {
    let what = "slow";
    let stage = Stage::set(MariaDb::shared().fresh_database(), Setting::default());
    let control = stage.relay.control();
    let half = Duration::from_millis(500);
    let fault = stage.during(
        || control.set_delay(half, half).expect("slower"),
        || {
            control
                .set_delay(Duration::ZERO, Duration::ZERO)
                .expect("as before")
        },
    );
    let recovered = stage.recovered();
    let told = stage.finish(fault, recovered);
    told.is_undisturbed(what);
    told.new_users_succeed(what);
    let waited = told.of(Class::New, fault.struck, fault.over);
    let waited = waited.iter().filter(|o| o.took >= 2 * half).count();
    assert!(waited > 20, "{what}: {waited} waited: was it slow?");
}

#[test]
fn a_database_that_is_restarted() {
    let what = "restarted";
    let maria = MariaDb::start();
    let stage = Stage::set(maria.fresh_database(), Setting::default());
    let fault = Instant::now();
    maria.restart();
    let over = Instant::now();
    let recovered = stage.recovered();
    let told = stage.finish(Fault::between(fault, over), recovered);
    told.is_undisturbed(what);
}

#[test]
fn a_database_that_takes_the_password_no_more() {
    let what = "password";
    let maria = MariaDb::shared();
    let stage = Stage::set(maria.fresh_database(), Setting::default());
    let user = stage.database.user().to_owned();
    let set = |password: &str| {
        maria.sql(&format!("ALTER USER {user}@'%' IDENTIFIED BY '{password}'"));
    };
    let control = stage.relay.control();
    let fault = stage.during(
        || {
            set("another");
            control.reset_all().expect("cut");
        },
        || set(stage.database.password()),
    );
    let recovered = stage.recovered();
    let told = stage.finish(fault, recovered);
    told.is_undisturbed(what);
    told.new_users_were_refused(what);
    assert!(told.log.contains("Access denied"), "the log tells why");
}

#[test]
fn a_database_without_its_table_for_a_while() {
    let what = "renamed";
    let stage = Stage::set(MariaDb::shared().fresh_database(), Setting::default());
    let database = stage.database.clone();
    let fault = stage.during(
        || drop(database.sql("RENAME TABLE subscriber TO elsewhere")),
        || drop(database.sql("RENAME TABLE elsewhere TO subscriber")),
    );
    let recovered = stage.recovered();
    let told = stage.finish(fault, recovered);
    told.is_undisturbed(what);
    told.new_users_were_refused(what);
    assert!(told.log.contains("there is no table"), "the log tells why");
}

/// A wrong password, then no table, put right one after the other while the server runs.
#[test]
fn a_database_that_is_not_ready_when_the_server_starts() {
    let what = "unready";
    let maria = MariaDb::shared();
    let database = maria.fresh_database();
    let set = |password: &str| {
        let user = database.user();
        maria.sql(&format!("ALTER USER {user}@'%' IDENTIFIED BY '{password}'"));
    };
    set("another");
    let setting = Setting {
        filled: false,
        ..Setting::default()
    };
    let stage = Stage::set(database.clone(), setting);
    let fault = Instant::now();
    stage.server.wait_for_log("Access denied");
    set(database.password());
    stage.server.wait_for_log("there is no table");
    // Enough of them.
    stage.wait_for_some(fault);
    // From here on the table may be there, and soon its users, however long the commands take to end.
    let over = Instant::now();
    Server::add_user(&stage.scene, "first", &password("first"));
    Stage::fill(&database);
    let recovered = stage.recovered();
    // Users that were not in the table yet are known once the change is seen.
    stage.recovered_all();
    let mut told = stage.finish(Fault::between(fault, over), recovered);
    let unknown = |o: &Outcome| matches!(o.status, 401 | 407) && o.ended >= over;
    told.outcomes.retain(|o| !unknown(o));
    told.class_succeeds(Class::Open, fault, what);
    told.class_succeeds(Class::New, recovered, what);
    told.is_answered_in_time(what);
    told.new_users_were_refused(what);
    assert!(told.log.contains("Access denied"), "the log tells why");
    assert!(told.log.contains("there is no table"), "the log tells why");
}

/// A connection takes many round trips to be ready; their number is no reason to give it up.
#[test]
fn a_database_that_is_far_away() {
    let what = "far";
    let setting = Setting {
        credentials: "deadline_ms = 3000\nconnections = 2",
        deadline: Duration::from_secs(3),
        filled: false,
        delay: Duration::from_millis(250),
        ..Setting::default()
    };
    let database = MariaDb::shared().fresh_database();
    let stage = Stage::set(database, setting);
    let fault = Instant::now();
    Server::add_user(&stage.scene, "first", &password("first"));
    Stage::fill(&stage.database);
    let over = Instant::now();
    let recovered = stage.recovered();
    let mut told = stage.finish(Fault::between(fault, over), recovered);
    told.outcomes.retain(|o| !matches!(o.status, 401 | 407));
    told.class_succeeds(Class::Open, fault, what);
    told.class_succeeds(Class::New, recovered, what);
    told.is_answered_in_time(what);
}

/// Cuts connections now and then while the database is well, until some look-ups were lost by that: whatever was
/// under way is asked once more.
fn cut(what: &str, database: Database, cut: impl Fn(&Control, u32)) {
    /// Batches that are to be lost, and after how many turns none was lost by chance.
    const LOST: f64 = 3.0;
    const TURNS: u32 = 30;
    // None is to be refused, however long a busy machine takes to connect and ask again.
    let stage = Stage::set(database, Setting::default());
    let control = stage.relay.control();
    // Far enough for some look-ups to be under way at any time.
    let half = Duration::from_millis(20);
    control.set_delay(half, half).expect("slower");
    let lost = || stage.server.metric("trapezoid_credential_batches_lost", "");
    let (fault, before) = (Instant::now(), lost());
    let mut turn = 0;
    while turn < 3 || lost() < before + LOST {
        assert!(turn < TURNS, "{what}: was anything cut?");
        cut(&control, turn);
        // The connections are back, and what was asked once more has its answer.
        stage.recovered();
        stage.wait_for_answers();
        turn += 1;
    }
    let lost = lost() - before;
    let over = Instant::now();
    let told = stage.finish(Fault::between(fault, over), over);
    eprintln!("{what}: {lost} batches lost in {turn} turns");
    told.is_undisturbed(what);
    told.new_users_succeed(what);
}

/// Cuts them within an answer.
fn in_an_answer(control: &Control, turn: u32) {
    control
        .reset_open_after(u64::from(10 + 90 * (turn % 3)))
        .expect("cut");
}

#[test]
fn connections_that_are_reset_in_the_middle_of_an_answer() {
    cut(
        "cut in an answer",
        MariaDb::shared().fresh_database(),
        in_an_answer,
    );
}

#[test]
fn connections_with_several_batches_that_are_reset_in_the_middle_of_an_answer() {
    let database = PostgreSql::shared().fresh_database();
    cut("PostgreSQL cut in an answer", database, in_an_answer);
}

#[test]
fn connections_that_are_all_reset_at_once() {
    cut("cut at once", MariaDb::shared().fresh_database(), |control, _| {
        control.reset_all().expect("cut");
    });
}

#[test]
fn connections_that_are_all_closed_at_once() {
    cut(
        "closed at once",
        MariaDb::shared().fresh_database(),
        |control, _| {
            control.close_all().expect("closed");
        },
    );
}
