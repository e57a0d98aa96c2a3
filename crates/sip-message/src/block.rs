//! Sixteen bytes at once: sets of places in them as bits, the first byte lowest.

use wide::u8x16;

/// Bytes of a block.
pub(crate) const LEN: usize = 16;

/// Sixteen bytes of a message.
#[derive(Clone, Copy)]
pub(crate) struct Block(u8x16);

/// A set of the bytes of a [`Block`]: all bits of each byte in the set, no bit of the others.
#[derive(Clone, Copy)]
pub(crate) struct Places(u8x16);

impl Block {
    #[inline(always)]
    pub(crate) fn new(bytes: &[u8; LEN]) -> Self {
        Self(u8x16::new(*bytes))
    }

    /// The places of `c`.
    #[inline(always)]
    pub(crate) fn is(self, c: u8) -> Places {
        Places(self.0.simd_eq(u8x16::splat(c)))
    }

    /// The places of bytes up to `most`.
    #[inline(always)]
    pub(crate) fn up_to(self, most: u8) -> Places {
        Places(self.0.min(u8x16::splat(most)).simd_eq(self.0))
    }
}

impl Places {
    /// The set as bits, the first byte lowest.
    #[inline(always)]
    pub(crate) fn bits(self) -> u32 {
        self.0.to_bitmask()
    }
}

impl core::ops::BitOr for Places {
    type Output = Self;
    #[inline(always)]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
