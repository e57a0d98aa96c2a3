//! Known attacks, a test for each row of `docs/attacks.md`.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../common/digest.rs"]
mod agent;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/forks.rs"]
mod forks;

use counting_allocator::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

mod amplification;
mod answers;
mod broken;
mod bursts;
mod cancelling;
mod destinations;
mod digest;
mod enumeration;
mod floods;
mod loops;
mod marks;
mod next_hops;
mod refused;
mod registering;
mod relaying;
mod replay;
mod smuggling;
mod subscriptions;
mod tokens;
mod turned_marks;
