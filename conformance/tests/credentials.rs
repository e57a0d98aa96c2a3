//! The look-up of credentials in a database that is far away, slow, broken or gone: a real server,
//! a real database, and between them a relay that delays, stalls and cuts.
//!
//! Whatever happens there, strangers who need no look-up notice nothing, and neither do users whose
//! secrets are kept in memory; others get an answer in time, and are served again when the database is
//! back. The log has no secret in it. `--nocapture` shows the times.

#[path = "credentials/faults.rs"]
mod faults;
#[path = "credentials/memory.rs"]
mod memory;
#[path = "credentials/stage.rs"]
mod stage;
#[path = "credentials/tables.rs"]
mod tables;
