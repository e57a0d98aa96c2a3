//! The location journal on a simulated disk, and a server that is offered too much.

mod overload;
mod store;
