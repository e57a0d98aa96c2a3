//! A node of the network: a machine with one process on it, sans IO. The world gives it bytes, connections
//! and time, and takes its output.

use std::net::SocketAddr;

use crate::agent::registration::Registration;
use crate::clock::Micros;
use crate::report::CallReport;

/// Index of a node in its world.
pub type NodeId = usize;

/// Name of a connection between two nodes; never used again once the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wire(pub u32);

/// Both clocks of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// Time since the start of the run.
    pub now: Micros,
    /// Time of day according to the node, milliseconds since 1970.
    pub unix_ms: u64,
}

/// An event for a node.
#[derive(Debug)]
pub enum Input<'a> {
    /// A datagram came to a local address.
    Datagram {
        /// Source address.
        from: SocketAddr,
        /// Our socket.
        to: SocketAddr,
        /// Its content.
        bytes: &'a [u8],
    },
    /// A datagram of ours was refused: no process listens there (ICMP).
    Unreachable {
        /// Destination of the datagram.
        to: SocketAddr,
        /// Its content.
        bytes: &'a [u8],
    },
    /// A connection came to a local address, or one of ours was accepted.
    Opened {
        /// The connection's name.
        wire: Wire,
        /// The other end.
        peer: SocketAddr,
        /// Our end.
        local: SocketAddr,
    },
    /// Bytes came on a connection.
    Bytes {
        /// The connection.
        wire: Wire,
        /// Any piece of the bytes that were sent.
        bytes: &'a [u8],
    },
    /// A connection ended, or could not be opened.
    Closed {
        /// The connection.
        wire: Wire,
    },
    /// A datagram between two other nodes, for a node that overhears it.
    Overheard {
        /// Source address.
        from: SocketAddr,
        /// Destination address.
        to: SocketAddr,
        /// Its content.
        bytes: &'a [u8],
    },
    /// The time-out named by [`Node::poll_timeout`] has passed.
    Timeout,
}

/// An action of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a datagram.
    Datagram {
        /// Our socket.
        from: SocketAddr,
        /// Destination address.
        to: SocketAddr,
        /// Its content.
        bytes: Vec<u8>,
    },
    /// Open a connection, whose name the node chose ([`WireNames`]).
    Open {
        /// The connection's name.
        wire: Wire,
        /// Destination address.
        to: SocketAddr,
    },
    /// Send on a connection.
    Bytes {
        /// The connection.
        wire: Wire,
        /// The bytes to send.
        bytes: Vec<u8>,
        /// The SIP message in them, for the log; empty if there is none (a handshake, a keep-alive).
        message: Vec<u8>,
    },
    /// Close a connection.
    Close {
        /// The connection.
        wire: Wire,
    },
}

/// A node of the network.
pub trait Node {
    /// Handles an event.
    fn handle(&mut self, clocks: Clocks, input: Input<'_>);

    /// The next action of the node.
    fn poll_output(&mut self) -> Option<Output>;

    /// When [`Input::Timeout`] is due; `None` until something happens.
    fn poll_timeout(&self) -> Option<Micros>;

    /// Ends the process at once. With `power` the machine goes off, and everything that no disk has confirmed
    /// is lost.
    fn crash(&mut self, clocks: Clocks, power: bool);

    /// Starts the process again, with the content of the disk.
    fn restart(&mut self, clocks: Clocks);

    /// Applies another kind of trouble ([`super::scenario::Trouble`]).
    fn trouble(&mut self, clocks: Clocks, trouble: &super::scenario::Trouble);

    /// The name of a rule that the node itself finds broken, such as a limit on what it holds, and how.
    /// `None` if there is none. Called after each step.
    fn fault(&self) -> Option<(&'static str, String)> {
        None
    }

    /// State that the node still holds although everything is over; `None` if there is none.
    fn leftovers(&self) -> Option<String>;

    /// Ends the process. Returns heap memory that the process must not hold when everything is over; `None`
    /// if there is none.
    fn end(&mut self) -> Option<String> {
        None
    }

    /// Reports of the calls of a user agent.
    fn calls(&self) -> Vec<CallReport> {
        Vec::new()
    }

    /// REGISTERs of a user agent.
    fn registrations(&self) -> &[Registration] {
        &[]
    }
}

/// Names for the connections that one node opens. They differ from the names of every other node.
#[derive(Debug)]
pub struct WireNames {
    node: NodeId,
    next: u32,
}

impl WireNames {
    /// Names of this node.
    pub const fn new(node: NodeId) -> Self {
        Self { node, next: 0 }
    }

    /// A new name.
    pub fn take(&mut self) -> Wire {
        self.next += 1;
        Wire((self.node as u32) << 20 | self.next)
    }
}
