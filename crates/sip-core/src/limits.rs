//! The bounds of the core, and the effect of reaching each. Each such case is counted.

/// The upper bounds. The defaults suit one worker with a few gigabytes of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Header fields of one message; more: 400 (or dropped if no response can be built).
    pub headers: usize,
    /// Bytes of start line and headers of one message on a stream; more: 400 and the connection is closed.
    pub header_bytes: usize,
    /// Bytes of one body on a stream; more: 413 and the connection is closed.
    pub body_bytes: usize,
    /// Live (not yet finished) transactions of one worker. At the limit a new request that needs one
    /// gets 503, statelessly.
    pub transactions: usize,
    /// Transactions of one worker, finished ones included, which are kept for 32 s to absorb
    /// retransmissions. At the limit a new request that needs one gets 503, statelessly.
    pub held_transactions: usize,
    /// Bytes of the messages that one worker's transactions hold. At the limit a new request that needs a
    /// transaction gets 503, statelessly. An eighth above the limit ([`Limits::response_bytes`]) no response
    /// is kept.
    pub transaction_bytes: usize,
    /// Branches of one request, over all its targets and their addresses (at most 255); at the
    /// limit no other is tried.
    pub branches: usize,
    /// Requests of one worker that wait for a back-end; at the limit: 503.
    pub parked_requests: usize,
    /// Bytes held by parked requests of one worker; at the limit: 503.
    pub parked_bytes: usize,
    /// Contacts of one address-of-record; one more: 403 (the registrar's own policy).
    pub contacts_per_aor: usize,
    /// Bytes that the registrations of all workers take. At the limit a REGISTER that adds a contact gets
    /// 503. An eighth above the limit, a REGISTER that lengthens the texts of existing contacts gets 503,
    /// too. Records that a store held at the start are always taken.
    pub location_bytes: usize,
    /// Entries of the resolver's cache of one worker; at the limit the soonest to expire leaves, names
    /// without records first.
    pub dns_entries: usize,
    /// Events not yet taken by the shell; at the limit new ones are dropped and counted.
    pub events: usize,
    /// Nonces in use whose counts are kept, over all workers. At the limit the oldest of its shard leaves,
    /// and its user is challenged again with `stale=true`.
    pub nonces: usize,
    /// Route header values of one request; more: 400.
    pub route_values: usize,
    /// Addresses-of-record registered over one connection that are known when it closes. Beyond that, a call
    /// finds the connection closed when the call is sent there. Addresses-of-record that have unregistered or
    /// moved are forgotten as others come.
    pub registrations_per_connection: usize,
    /// Connections of one worker with known registrations, transactions and waiting REGISTERs. Beyond
    /// that, a transaction learns by a timer that its connection has closed.
    pub flows: usize,
    /// Via header values of one message; more: 400.
    pub via_values: usize,
    /// Bytes of a request over UDP. A longer one leaves by TCP if there is a TCP listener and its
    /// next hop did not name UDP (RFC 3261 §18.1.1). 0: none is too long.
    pub udp_mtu: usize,
}

impl Limits {
    /// Bytes within which transactions keep responses, to send them again or as the best of several. A
    /// response beyond this bound is sent all the same.
    pub(crate) const fn response_bytes(&self) -> usize {
        self.transaction_bytes.saturating_add(self.transaction_bytes / 8)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            headers: 256,
            header_bytes: 64 * 1024,
            body_bytes: 1024 * 1024,
            transactions: 1_000_000,
            held_transactions: 4_000_000,
            transaction_bytes: 2 * 1024 * 1024 * 1024,
            branches: 32,
            parked_requests: 10_000,
            parked_bytes: 64 * 1024 * 1024,
            contacts_per_aor: 10,
            location_bytes: 2 * 1024 * 1024 * 1024,
            dns_entries: 10_000,
            events: 65_536,
            nonces: 1_000_000,
            route_values: 64,
            registrations_per_connection: 1024,
            flows: 1_000_000,
            via_values: 70,
            udp_mtu: 1300,
        }
    }
}
