//! Both makes of servers.

use test_databases::{MariaDb, PostgreSql};

#[test]
fn mariadb_start() {
    let t = std::time::Instant::now();
    let server = MariaDb::start();
    eprintln!("start {:?}", t.elapsed());
    let t = std::time::Instant::now();
    let database = server.fresh_database();
    eprintln!("fresh {:?}", t.elapsed());
    database.sql("CREATE TABLE a (b INT, c INT); INSERT INTO a VALUES (7, 8)");
    assert_eq!(database.sql("SELECT * FROM a"), "7\t8\n");
    let t = std::time::Instant::now();
    server.kill();
    eprintln!("kill {:?}", t.elapsed());
    let t = std::time::Instant::now();
    server.restart();
    eprintln!("restart {:?}", t.elapsed());
    assert_eq!(database.sql("SELECT * FROM a"), "7\t8\n");
    let t = std::time::Instant::now();
    server.shut_down();
    eprintln!("shut {:?}", t.elapsed());
    let t = std::time::Instant::now();
    server.restart();
    eprintln!("restart {:?}", t.elapsed());
    let t = std::time::Instant::now();
    drop(server);
    eprintln!("drop {:?}", t.elapsed());
}

#[test]
fn postgresql_start() {
    let t = std::time::Instant::now();
    let server = PostgreSql::start();
    eprintln!("start {:?}", t.elapsed());
    let t = std::time::Instant::now();
    let database = server.fresh_database();
    eprintln!("fresh {:?}", t.elapsed());
    database.sql("CREATE TABLE a (b INT, c INT); INSERT INTO a VALUES (7, 8)");
    assert_eq!(database.sql("SELECT * FROM a"), "7\t8\n");
    let t = std::time::Instant::now();
    server.kill();
    eprintln!("kill {:?}", t.elapsed());
    let t = std::time::Instant::now();
    server.restart();
    eprintln!("restart {:?}", t.elapsed());
    assert_eq!(database.sql("SELECT * FROM a"), "7\t8\n");
    let t = std::time::Instant::now();
    server.shut_down();
    eprintln!("shut {:?}", t.elapsed());
    let t = std::time::Instant::now();
    server.restart();
    eprintln!("restart {:?}", t.elapsed());
    let t = std::time::Instant::now();
    drop(server);
    eprintln!("drop {:?}", t.elapsed());
}
