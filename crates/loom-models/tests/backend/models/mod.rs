//! Models of what threads share here: loom runs each under every order of steps that its bounds allow,
//! and under every value that the memory model lets a read see.
//!
//! A thread that waits for ever is a deadlock, which loom reports: so a lost wake-up shows. Counters
//! for metrics are not modelled: nothing is decided by them.

mod cache;
mod known;
mod queue;
mod shared;
