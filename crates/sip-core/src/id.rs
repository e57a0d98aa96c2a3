//! Identifiers that name things across the core's boundary.

/// Index of a listener in [`crate::config::Config::listeners`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u16);

/// Index of a worker, 0-based.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub u16);

/// A stream connection: the worker that owns it, its slot there, and the slot's generation. By the
/// generation, a number that outlived its connection names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId {
    /// The worker that owns the socket.
    pub worker: WorkerId,
    /// Slot in that worker's connection table.
    pub slot: u32,
    /// The number of the slot's use.
    pub generation: u32,
}

/// The identifier of a query ([`crate::query::Query`]), which its result carries, too. The generation
/// makes a late result of a forgotten query harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueryId {
    /// Slot in the endpoint's table of open queries.
    pub slot: u32,
    /// The number of the slot's use.
    pub generation: u32,
}
