//! The experiments of the papers, one command each: they start what they need (servers, a database, relays, the load
//! generator), pin it, measure, end it, and write `results.json` and a report that needs no network.
#![warn(missing_docs)]

mod admin;
pub mod case;
mod cgroup;
pub mod cpu;
pub mod crowd;
pub mod experiments;
pub mod failure;
pub mod floor;
mod lab;
pub mod load;
pub mod machine;
mod memory;
mod metrics;
mod paper;
pub mod process;
mod programs;
pub mod progress;
pub mod report;
pub mod results;
mod servers;
pub mod station;
pub mod statistics;
pub mod steps;

pub use lab::{Name, Options, rewrite, run};
