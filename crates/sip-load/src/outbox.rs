//! Outgoing messages of the user agents: bytes one after the other, and the destination of each message.

use std::net::SocketAddr;

/// Destination of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// The address of a datagram.
    Address(SocketAddr),
    /// The number of a connection.
    Connection(u32),
}

#[derive(Clone, Copy, Debug)]
struct Outgoing {
    to: To,
    from: u32,
    until: u32,
    /// Number of messages of the same call that stand before this one.
    rank: u32,
}

/// Number of places in which ranks are kept. Two calls that share a place are ranked as one.
const RANKS: usize = 1024;

/// Messages of one turn. Their memory is used again and again.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    messages: Vec<Outgoing>,
    /// By call: the turn of its last message, and the rank of the next.
    ranks: Vec<(u32, u32)>,
    turn: u32,
    /// Connections that are not needed any more.
    pub(crate) closing: Vec<u32>,
}

impl Outbox {
    /// Adds a message, which `write` appends, of `call` if it belongs to one.
    pub(crate) fn push(&mut self, to: To, call: Option<u32>, write: impl FnOnce(&mut Vec<u8>)) {
        let from = self.bytes.len();
        write(&mut self.bytes);
        let rank = call.map_or(0, |call| self.rank(call));
        // Messages are some kilobytes, turns some hundred messages.
        self.messages.push(Outgoing {
            to,
            from: from as u32,
            until: self.bytes.len() as u32,
            rank,
        });
    }

    fn rank(&mut self, call: u32) -> u32 {
        self.ranks.resize(RANKS, (0, 0));
        let (turn, next) = &mut self.ranks[call as usize % RANKS];
        if *turn != self.turn {
            (*turn, *next) = (self.turn, 0);
        }
        *next += 1;
        *next - 1
    }

    /// Puts messages of one length next to each other, and keeps the order of each call. The kernel takes
    /// neighbours of one length to one address as one. This is for datagrams, which may overtake each other
    /// anyhow.
    pub(crate) fn gather(&mut self) {
        let key = |message: &Outgoing| (message.rank, message.until - message.from, message.from);
        self.messages.sort_unstable_by_key(key);
    }

    /// Whether no message is to be sent, and no connection to be closed.
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
        self.turn = self.turn.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: To = To::Connection(1);

    fn texts(outbox: &Outbox) -> Vec<String> {
        let all = (0..outbox.len()).filter_map(|index| outbox.get(index));
        all.map(|(_, bytes)| String::from_utf8(bytes.to_vec()).unwrap())
            .collect()
    }

    #[test]
    fn equally_long_ones_stand_together_and_calls_keep_their_order() {
        let mut outbox = Outbox::default();
        for round in 0..2 {
            // Two responses to each of three calls, of which the second is longer; a third of one call; and a
            // message of no call.
            for call in [7, 3, 1027] {
                outbox.push(TO, Some(call), |out| out.extend_from_slice(b"180"));
                outbox.push(TO, Some(call), |out| out.extend_from_slice(b"200 OK"));
            }
            outbox.push(TO, Some(7), |out| out.extend_from_slice(b"2"));
            outbox.push(TO, None, |out| out.extend_from_slice(b"OPT"));
            outbox.gather();
            // Calls 3 and 1027 share a place.
            assert_eq!(
                texts(&outbox),
                ["180", "180", "OPT", "200 OK", "200 OK", "2", "180", "200 OK"],
                "{round}"
            );
            outbox.clear();
            assert!(outbox.is_empty());
        }
    }
}
