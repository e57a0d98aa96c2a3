//! Sixteen bytes at once: sets of their places as bits, the first byte lowest.

use wide::u8x16;

/// Bytes of a block.
pub(crate) const LEN: usize = 16;

/// Sixteen bytes of a message.
#[derive(Clone, Copy)]
pub(crate) struct Block(u8x16);

/// Which bytes of a [`Block`] are meant: all bits of those, no bit of the others.
#[derive(Clone, Copy)]
pub(crate) struct Places(u8x16);

impl Block {
    #[inline(always)]
    pub(crate) fn new(bytes: &[u8; LEN]) -> Self {
        Self(u8x16::new(*bytes))
    }

    /// Where `c` is.
    #[inline(always)]
    pub(crate) fn is(self, c: u8) -> Places {
        Places(self.0.simd_eq(u8x16::splat(c)))
    }

    /// Where bytes up to `most` are.
    #[inline(always)]
    pub(crate) fn up_to(self, most: u8) -> Places {
        Places(self.0.min(u8x16::splat(most)).simd_eq(self.0))
    }
}

impl Places {
    /// As bits, the first byte lowest.
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
