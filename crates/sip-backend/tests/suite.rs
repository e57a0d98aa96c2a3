//! Stores, name service and their front, each with what it really talks to: a module for each subject.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod battery;
mod dns;
mod front;
mod location;
mod subscriber_servers;
mod subscribers;
