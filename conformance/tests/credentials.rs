//! The look-up of credentials in a database that is far away, slow, broken or gone: a real server,
//! a real database, and between them a relay that delays, stalls and cuts.
//!
//! Whatever happens there, strangers that need no look-up notice nothing, and neither do users with secrets
//! in memory; others get a response in time, and are served again when the database is back. The log has no
//! secret in it. `--nocapture` shows the times.

mod faults;
mod memory;
mod stage;
mod tables;
