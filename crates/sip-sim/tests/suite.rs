//! The simulator itself: a module for each subject.

mod forks;
mod mutants;
mod seeds;
mod store;
