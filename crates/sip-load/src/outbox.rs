//! What the user agents want sent: bytes one after the other, and where each message goes.

use std::net::SocketAddr;

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// Datagrams: this address.
    Address(SocketAddr),
    /// Streams: the connection of this number.
    Connection(u32),
}

#[derive(Clone, Copy, Debug)]
struct Outgoing {
    to: To,
    from: u32,
    until: u32,
}

/// Messages of one turn. Its memory is used again and again.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    messages: Vec<Outgoing>,
    /// Connections that are not needed any more.
    pub(crate) closing: Vec<u32>,
}

impl Outbox {
    /// A message, as `write` appends it.
    pub(crate) fn push(&mut self, to: To, write: impl FnOnce(&mut Vec<u8>)) {
        let from = self.bytes.len();
        write(&mut self.bytes);
        // Messages are some kilobytes, turns some hundred of them.
        self.messages.push(Outgoing {
            to,
            from: from as u32,
            until: self.bytes.len() as u32,
        });
    }

    /// Whether there is nothing to do for it.
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.closing.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(crate) fn get(&self, index: usize) -> Option<(To, &[u8])> {
        let message = self.messages.get(index)?;
        let bytes = self.bytes.get(message.from as usize..message.until as usize)?;
        Some((message.to, bytes))
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.messages.clear();
        self.closing.clear();
    }
}
