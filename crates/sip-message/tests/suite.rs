//! The parser and the writer from outside: a module for each subject.

mod common;
mod properties;
mod refusals;
mod torture;
