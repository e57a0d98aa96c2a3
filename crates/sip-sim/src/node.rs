//! What lives in the network: something that takes bytes and time and gives bytes back.

use std::net::SocketAddr;

use crate::clock::Micros;
use crate::report::CallReport;

/// Index of a node in its world.
pub type NodeId = usize;

/// A datagram on its way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Destination.
    pub to: SocketAddr,
    /// Its bytes, which are text in everything that is simulated here.
    pub text: String,
}

/// A node, sans IO: the world hands it datagrams and time, and takes what it wants to send.
pub trait Node {
    /// A datagram came from `from`.
    fn handle_message(&mut self, now: Micros, from: SocketAddr, text: &str);

    /// The time that [`Node::poll_timeout`] named has come.
    fn handle_timeout(&mut self, now: Micros);

    /// The next datagram to send.
    fn poll_transmit(&mut self) -> Option<Outgoing>;

    /// When it wants [`Node::handle_timeout`]; `None`: never, unless something arrives.
    fn poll_timeout(&self) -> Option<Micros>;

    /// What it still holds although everything is over; `None`: nothing.
    fn leftovers(&self) -> Option<String>;

    /// What became of the calls that it took part in, for a user agent.
    fn reports(&self) -> Vec<CallReport> {
        Vec::new()
    }
}
