//! The test databases themselves: a module for each subject.

mod orphans;
mod servers;
