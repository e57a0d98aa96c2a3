//! The location journal on a simulated disk.

mod store;
