//! Real MariaDB and PostgreSQL servers for tests.
//!
//! Each server is private: its own data, configuration, port on 127.0.0.1 and Unix socket, all
//! under one temporary directory; nothing of an installation of the machine is read or touched.
//! What a server needs at first (system tables) is made once per machine and copied for each
//! start (in `test-databases-UID` of the temporary directory, or of `TRAPEZOID_TEST_TEMPLATES`; remove
//! it at will). A server and its directory go when its value is dropped, and also when the test program
//! ends without that ([`MariaDb::shared`] lives in a static), however it ends.
//!
//! `MariaDb::shared().fresh_database()` gives an empty database; its `url()` is
//! `mysql://user:password@127.0.0.1:port/name`, and `sql()` runs statements in it.
//!
//! Everything blocks, and panics with an explanation where it cannot do what it was asked: it is
//! the ground that tests stand on.

mod database;
mod instance;
mod loan;
mod mariadb;
mod postgresql;
mod server;
mod system;
mod template;
mod tls;
mod watchdog;

pub use database::Database;
pub use mariadb::MariaDb;
pub use postgresql::PostgreSql;
pub use server::Server;
