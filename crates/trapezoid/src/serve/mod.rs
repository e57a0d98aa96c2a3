//! The server.

pub(crate) mod data_dir;
