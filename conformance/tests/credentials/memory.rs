//! What is kept in memory, while the database is away.

use std::time::{Duration, Instant};

use conformance::Class;
use delay_relay::Refusal;
use test_databases::{Database, MariaDb};

use crate::credentials::stage::{Fault, Setting, Stage, Told, regulars};

/// `cache_ttl_s` where it is set here.
const TTL: Duration = Duration::from_secs(1);

/// The database cannot be reached.
fn take_away(stage: &Stage) {
    let control = stage.relay.control();
    control.refuse(Refusal::Closed).expect("refusing");
    control.reset_all().expect("cut");
}

fn give_back(stage: &Stage) {
    stage.relay.control().accept().expect("accepting");
}

fn delete(database: &Database, user: &str) {
    let deleted = format!("DELETE FROM subscriber WHERE username = '{user}'; SELECT ROW_COUNT()");
    assert_eq!(database.sql(&deleted).trim(), "1", "{user} was there");
}

/// The statuses that a regular user got for requests begun from then on.
fn statuses(told: &Told, user: &str, from: Instant) -> Vec<u16> {
    let his = told.outcomes.iter().filter(|o| o.user == user && o.begun >= from);
    let statuses: Vec<u16> = his.map(|o| o.status).collect();
    assert!(statuses.len() > 3, "{user} did something: {statuses:?}");
    statuses
}

/// Their time is over soon after the database is gone; they serve all the same.
#[test]
fn old_secrets_serve_while_the_database_is_away() {
    let what = "stale";
    let setting = Setting {
        credentials: "deadline_ms = 5000\ncache_ttl_s = 1\ncache_stale_s = 3600",
        deadline: Duration::from_secs(5),
        ..Setting::default()
    };
    let stage = Stage::set(MariaDb::shared().fresh_database(), setting);
    let control = stage.relay.control();
    let fault = stage.during(
        || control.stall().expect("stalled"),
        || control.resume().expect("resumed"),
    );
    let recovered = stage.recovered();
    let stale = stage.server.metric("trapezoid_credential_stale_answers", "");
    let told = stage.finish(fault, recovered);
    told.is_undisturbed(what);
    told.new_users_were_refused(what);
    assert!(stale > 20.0, "{stale} answers from entries whose time was over");
}

#[test]
fn old_secrets_do_not_serve_where_the_configuration_says_so() {
    let what = "not stale";
    let setting = Setting {
        credentials: "deadline_ms = 5000\ncache_ttl_s = 1\ncache_stale_s = 0",
        deadline: Duration::from_secs(5),
        ..Setting::default()
    };
    let stage = Stage::set(MariaDb::shared().fresh_database(), setting);
    let fault = Instant::now();
    take_away(&stage);
    // One is refused: the time of the others is over soon, also of what came from the database at the last moment.
    stage.wait_for_status("regular0", 503);
    std::thread::sleep(2 * TTL);
    let outdated = Instant::now();
    stage.wait_for_some(outdated);
    let over = Instant::now();
    give_back(&stage);
    let recovered = stage.recovered();
    let told = stage.finish(Fault::between(fault, over), recovered);
    let late = told.of(Class::Regular, outdated, over);
    let late = late.iter().filter(|o| o.begun >= outdated && o.ended < over);
    let served: Vec<_> = late.clone().filter(|o| o.status != 503).collect();
    assert!(late.count() > 20, "{what}: somebody asked");
    assert!(served.is_empty(), "{what}: {served:#?}");
    told.class_succeeds(Class::Regular, recovered, what);
    told.class_succeeds(Class::New, recovered, what);
}

/// A user that was deleted before the database went away is not served from memory.
#[test]
fn a_deleted_user_is_not_served_while_the_database_is_away() {
    let stage = Stage::set(MariaDb::shared().fresh_database(), Setting::default());
    delete(&stage.database, "regular0");
    stage.settle(&regulars()[1..]);
    let fault = stage.during(|| take_away(&stage), || give_back(&stage));
    let recovered = stage.recovered();
    let told = stage.finish(fault, recovered);
    let served = statuses(&told, "regular0", fault.begun);
    assert!(!served.contains(&200), "deleted, and served: {served:?}");
    let others = statuses(&told, "regular1", fault.begun);
    assert!(others.iter().all(|status| *status == 200), "{others:?}");
}

/// MariaDB forgets when a table was changed when it is restarted: what was changed since the server
/// looked last is seen all the same.
#[test]
fn a_user_deleted_while_the_database_was_away_is_not_served() {
    let maria = MariaDb::start();
    let stage = Stage::set(maria.fresh_database(), Setting::default());
    let fault = Instant::now();
    take_away(&stage);
    delete(&stage.database, "regular0");
    maria.restart();
    let over = Instant::now();
    give_back(&stage);
    let recovered = stage.recovered();
    stage.settle(&regulars()[1..]);
    let seen = Instant::now();
    stage.wait_for_some(seen);
    let told = stage.finish(Fault::between(fault, over), recovered);
    let served = statuses(&told, "regular0", seen);
    assert!(!served.contains(&200), "deleted, and served: {served:?}");
    let others = statuses(&told, "regular1", seen);
    assert!(others.iter().all(|status| *status == 200), "{others:?}");
}
