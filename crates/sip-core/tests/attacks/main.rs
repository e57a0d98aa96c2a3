//! Known attacks, a test for each row of `docs/attacks.md`.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../common/mod.rs"]
mod common;

mod amplification;
mod broken;
mod relaying;
mod replay;
mod smuggling;
