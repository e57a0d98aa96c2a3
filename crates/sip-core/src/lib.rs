//! The SIP protocol without IO.
//!
//! Nothing in this crate opens a socket, reads a clock or draws a random number. Bytes, time, seeds and
//! results of back-ends come in as values; bytes to send, queries to back-ends and events go out as values.
//! The same inputs give the same outputs, byte for byte.
//!
//! [`endpoint::Endpoint`] is the only entry point. Modules import downwards only, in this order:
//! `endpoint`, `request_path`, `proxy`, `engine`, `registrar`, `shared`, `auth`, `location`,
//! `resolve`, `transaction`, `timer`, `admission`, `overload`, `config`, `dispatcher`, `transport`, `query`,
//! `event`, `limits`, `affinity`, `id`, `keys`, `time`, `slab`, `spelling`, `activity`.
//!
//! A panic is a bug; malformed input never causes one.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

extern crate alloc;

pub mod activity;
pub mod admission;
pub mod affinity;
pub mod auth;
pub mod config;
pub mod dispatcher;
pub mod endpoint;
mod engine;
pub mod event;
pub mod id;
pub mod keys;
pub mod limits;
pub mod location;
pub mod overload;
mod proxy;
pub mod query;
mod registrar;
mod request_path;
pub mod resolve;
pub mod shared;
pub mod slab;
pub mod spelling;
pub mod time;
pub mod timer;
pub mod transaction;
pub mod transport;
