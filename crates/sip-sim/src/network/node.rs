//! What lives in the network: a machine with one process on it, sans IO. The world hands it bytes,
//! connections and time, and takes what it wants to send.

use std::net::SocketAddr;

use crate::agent::registration::Registration;
use crate::clock::Micros;
use crate::report::CallReport;

/// Index of a node in its world.
pub type NodeId = usize;

/// A connection between two nodes; never used again once it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wire(pub u32);

/// Both clocks of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// Time since the start of the run.
    pub now: Micros,
    /// What the node takes for the time of day, milliseconds since 1970.
    pub unix_ms: u64,
}

/// Something that happens to a node.
#[derive(Debug)]
pub enum Input<'a> {
    /// A datagram came to a local address.
    Datagram {
        /// From there.
        from: SocketAddr,
        /// To this socket of ours.
        to: SocketAddr,
        /// Its content.
        bytes: &'a [u8],
    },
    /// A datagram of ours came back: nobody listens there (ICMP).
    Unreachable {
        /// Where it was sent to.
        to: SocketAddr,
        /// Its content.
        bytes: &'a [u8],
    },
    /// A connection came to a local address, or one of ours was accepted.
    Opened {
        /// Its name.
        wire: Wire,
        /// The other end.
        peer: SocketAddr,
        /// Our end.
        local: SocketAddr,
    },
    /// Bytes came on a connection.
    Bytes {
        /// On which.
        wire: Wire,
        /// The bytes: any piece of what was sent.
        bytes: &'a [u8],
    },
    /// A connection ended, or could not be opened.
    Closed {
        /// Which.
        wire: Wire,
    },
    /// A datagram that another sent to a third, for who listens on the way.
    Overheard {
        /// From there.
        from: SocketAddr,
        /// To there.
        to: SocketAddr,
        /// Its content.
        bytes: &'a [u8],
    },
    /// The time that [`Node::poll_timeout`] named has come.
    Timeout,
}

/// Something that a node wants to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a datagram.
    Datagram {
        /// From this socket of ours.
        from: SocketAddr,
        /// To there.
        to: SocketAddr,
        /// Its content.
        bytes: Vec<u8>,
    },
    /// Open a connection. The node chose its name ([`WireNames`]).
    Open {
        /// Its name.
        wire: Wire,
        /// To there.
        to: SocketAddr,
    },
    /// Send on a connection.
    Bytes {
        /// On which.
        wire: Wire,
        /// What goes over it.
        bytes: Vec<u8>,
        /// The SIP message in it, for the log; empty: none (a handshake, a keep-alive).
        message: Vec<u8>,
    },
    /// Close a connection.
    Close {
        /// Which.
        wire: Wire,
    },
}

/// A node.
pub trait Node {
    /// Something happened.
    fn handle(&mut self, clocks: Clocks, input: Input<'_>);

    /// The next thing that it wants.
    fn poll_output(&mut self) -> Option<Output>;

    /// When it wants [`Input::Timeout`]; `None`: never, unless something happens.
    fn poll_timeout(&self) -> Option<Micros>;

    /// The process ends at once; with `power` the machine does, and what no disk has said to have
    /// is gone.
    fn crash(&mut self, clocks: Clocks, power: bool);

    /// The process starts again, with what is on disk.
    fn restart(&mut self, clocks: Clocks);

    /// Another kind of thing happens to it ([`super::scenario::Trouble`]).
    fn trouble(&mut self, clocks: Clocks, trouble: &super::scenario::Trouble);

    /// The rule of its own that it breaks, and how, as holding more than it may; `None`: none. Asked
    /// after each step.
    fn fault(&self) -> Option<(&'static str, String)> {
        None
    }

    /// What it still holds although everything is over; `None`: nothing.
    fn leftovers(&self) -> Option<String>;

    /// Ends the process. What it had on its heap that it must not have when everything is over;
    /// `None`: nothing.
    fn end(&mut self) -> Option<String> {
        None
    }

    /// What became of the calls that it took part in, for a user agent.
    fn calls(&self) -> Vec<CallReport> {
        Vec::new()
    }

    /// The registrations that it asked for, for a user agent.
    fn registrations(&self) -> &[Registration] {
        &[]
    }
}

/// Gives names to the connections that one node opens: they differ from every other node's.
#[derive(Debug)]
pub struct WireNames {
    node: NodeId,
    next: u32,
}

impl WireNames {
    /// For this node.
    pub const fn new(node: NodeId) -> Self {
        Self { node, next: 0 }
    }

    /// A name that was not used before.
    pub fn take(&mut self) -> Wire {
        self.next += 1;
        Wire((self.node as u32) << 20 | self.next)
    }
}
