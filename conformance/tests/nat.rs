//! Phones behind real NATs: homes in network namespaces, which all have one private address, each behind a router of
//! Linux's that translates.

mod dialogs;
mod lost;
mod programs;
mod silence;
mod stage;
mod talk;

pub(crate) use stage::networks;
pub(crate) use talk::{established, exchange, talk};
