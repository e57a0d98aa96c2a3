//! Children that surely end.
//!
//! Each is in a process group of its own and on CPUs of its own. It ends when its handle is dropped. If the
//! lab dies without that, the kernel closes the pipe to a guard process, and the guard kills the group. (A
//! parent-death signal would reach the child only, and Kamailio has children of its own; the child has that,
//! too.)

mod child;
pub(crate) mod ports;
mod trampoline;

pub use child::{Child, Launcher, Order, Output};
pub(crate) use trampoline::set_affinity;
pub use trampoline::{Trampoline, guard};
