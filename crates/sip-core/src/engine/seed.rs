//! What makes the caller's mark of a dialog ([`crate::proxy::mark`]): it waits for the responses with their request.

use core::num::NonZeroU64;

use super::secrets::hex16;

/// Bits of a MAC.
const MAC_BITS: u64 = (1 << 48) - 1;

/// What makes the caller's mark of a dialog: 48 bits that the callee does not get to know, and above them 16 of the
/// callee's MAC, by which a mark in a response is known to be of its transaction. A transaction keeps it. Without state
/// our Via carries it, under a pad that only the request tells ([`crate::engine::secrets::Branched`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(NonZeroU64);

/// How a response turns marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// The last digits of the callee's mark.
    pub(crate) ends_with: [u8; 4],
    /// The MAC of the caller's.
    pub(crate) mac: u64,
}

impl Seed {
    /// Of a mark that ends with `mac`, and of bits that nothing else shows.
    #[inline]
    pub(crate) fn new(mac: u64, hidden: u64) -> Option<Self> {
        NonZeroU64::new(mac << 48 | hidden >> 16).map(Self)
    }

    /// Of what a Via carries. Where that is not as we wrote it, it makes marks that are good for nothing.
    #[inline]
    pub(crate) fn uncovered(hidden: u64, pad: u64) -> Option<Self> {
        NonZeroU64::new(hidden ^ pad).map(Self)
    }

    /// For a Via.
    #[inline]
    pub(crate) const fn hidden_by(self, pad: u64) -> u64 {
        self.0.get() ^ pad
    }

    /// For a response with this tag of the callee.
    #[inline]
    pub(crate) fn turn(self, callee_tag: &[u8]) -> Turn {
        Turn {
            ends_with: hex16((self.0.get() >> 48) as u16),
            mac: self.caller_mac(callee_tag),
        }
    }

    /// The MAC of the caller's mark. Multiplications are hash enough: the callee sees none of its results, and callers
    /// that find out the seed from several could make marks of their own dialog.
    #[inline]
    pub(crate) fn caller_mac(self, callee_tag: &[u8]) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let fold = |state: u64, word: u64| {
            let product = u128::from(state ^ word) * u128::from(ODD);
            product as u64 ^ (product >> 64) as u64
        };
        let state = self.0.get() ^ (callee_tag.len() as u64) << 48;
        let (words, rest) = callee_tag.as_chunks::<8>();
        let state = words
            .iter()
            .fold(state, |state, word| fold(state, u64::from_le_bytes(*word)));
        let last = rest.iter().fold(0, |word, c| word << 8 | u64::from(*c));
        fold(fold(state, last), 0) & MAC_BITS
    }
}
