//! The parts of the store, without files, threads or clocks. The simulator drives the same writer and folder
//! on a disk that loses power.

pub use super::disk::{Disk, SegmentFile};
pub use super::fold::Folder;
pub use super::open::{OpenError, Opened, open};
pub use super::socket::Mapper;
pub use super::table::{Part, Scan, Table, Write};
pub use super::writer::{Answered, Writer};
