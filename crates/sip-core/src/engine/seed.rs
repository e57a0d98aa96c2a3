//! The seed of the caller's mark of a dialog ([`crate::proxy::mark`]), kept with its request until
//! the responses come.

use core::num::NonZeroU64;

use super::secrets::{Secrets, hex16};

/// Bits of a MAC.
const MAC_BITS: u64 = (1 << 48) - 1;

/// The seed of the caller's mark of a dialog: 48 bits that are hidden from the callee, and above them 16 of
/// the callee's MAC. These 16 bits show that a mark in a response is of its transaction. A transaction keeps
/// the seed. Without state our Via carries it, under a pad that only the request yields
/// ([`crate::engine::secrets::Branched`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(NonZeroU64);

/// The change of marks by one response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// The last digits of the callee's mark.
    pub(crate) ends_with: [u8; 4],
    /// The MAC of the caller's mark.
    pub(crate) mac: u64,
    /// The seed that both are made of.
    pub(crate) seed: Seed,
}

/// Rounds of the Feistel cipher that seals a seed.
const ROUNDS: core::ops::Range<u8> = 0..4;

impl Seed {
    /// The seed of a mark that ends with `mac`, with hidden bits that nothing else shows.
    #[inline]
    pub(crate) fn new(mac: u64, hidden: u64) -> Option<Self> {
        NonZeroU64::new(mac << 48 | hidden >> 16).map(Self)
    }

    /// The seed that a Via carries. If the Via was changed, the seed makes marks that are not valid.
    #[inline]
    pub(crate) fn uncovered(hidden: u64, pad: u64) -> Option<Self> {
        NonZeroU64::new(hidden ^ pad).map(Self)
    }

    /// The form in which a Via carries the seed.
    #[inline]
    pub(crate) const fn hidden_by(self, pad: u64) -> u64 {
        self.0.get() ^ pad
    }

    /// The sealed seed, for a request with other hosts below in Record-Route. `below` is their hash; 0: there
    /// are none. Only a response with the same hosts opens the seed. If a callee adds a host below, that host
    /// receives the caller's requests and mark. The seal makes such a mark invalid.
    ///
    /// The seed is under a cipher and not a pad: a callee could know a pad from calls of its own, and find
    /// out the seed. The visible bits are changed, too, so that each of two passes through this server turns
    /// its own mark.
    pub(crate) fn sealed(self, secrets: &Secrets, below: u64) -> Option<Self> {
        if below == 0 {
            return Some(self);
        }
        self.shown_by(below)?.with_halves(|left, right| {
            ROUNDS.fold((left, right), |(left, right), round| {
                (right, left ^ secrets.seal_round(below, round, right))
            })
        })
    }

    /// The seed that was sealed, for a value of the response with these hosts below.
    pub(crate) fn opened(self, secrets: &Secrets, below: u64) -> Option<Self> {
        if below == 0 {
            return Some(self);
        }
        self.shown_by(below)?.with_halves(|left, right| {
            ROUNDS.rev().fold((left, right), |(left, right), round| {
                (right ^ secrets.seal_round(below, round, left), left)
            })
        })
    }

    /// The seed with the bits changed that show which mark is to be turned.
    fn shown_by(self, below: u64) -> Option<Self> {
        NonZeroU64::new(self.0.get() ^ below & !MAC_BITS).map(Self)
    }

    /// The seed with the two halves of its hidden bits changed.
    fn with_halves(self, change: impl FnOnce(u32, u32) -> (u32, u32)) -> Option<Self> {
        const HALF: u64 = 0xff_ffff;
        let bits = self.0.get();
        let (left, right) = change((bits >> 24 & HALF) as u32, (bits & HALF) as u32);
        NonZeroU64::new(bits & !MAC_BITS | u64::from(left) << 24 | u64::from(right)).map(Self)
    }

    /// The change of marks by a response with this tag of the callee.
    #[inline]
    pub(crate) fn turn(self, callee_tag: &[u8]) -> Turn {
        Turn {
            ends_with: hex16((self.0.get() >> 48) as u16),
            mac: self.caller_mac(callee_tag),
            seed: self,
        }
    }

    /// The MAC of the caller's mark. Multiplications suffice as a hash: the callee of a call sees none of
    /// these MACs. Callers that find out the seed from several could make marks of their own dialog. The
    /// callee of a subscription sees some (RFC 6665 §4.4.1), but no mark of a subscription is good for calls.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_seed_is_opened_by_what_sealed_it_only(mac in 1..u64::MAX, hidden in any::<u64>(), below in any::<[u64; 2]>()) {
            let secrets = Secrets::new(&[7; 32], &[9; 32]);
            let [below, other] = below;
            prop_assume!(below != other && mac & 0xffff != 0);
            let seed = Seed::new(mac, hidden).unwrap();
            let sealed = seed.sealed(&secrets, below).unwrap();
            prop_assert_eq!(sealed.opened(&secrets, below), Some(seed));
            prop_assert_ne!(sealed.opened(&secrets, other), Some(seed));
            if below >> 48 != 0 {
                prop_assert_ne!(sealed.turn(b"b").ends_with, seed.turn(b"b").ends_with);
            }
        }
    }
}
