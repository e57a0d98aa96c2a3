//! Sub-keys: every secret value is derived from one secret and a label, here and nowhere else.
//!
//! A sub-key is `HMAC-SHA-256(secret, label)` (RFC 2104): the step that HKDF calls expand (RFC 5869 §2.3),
//! for one block. It reveals neither the secret nor another sub-key.

use sha2::{Digest, Sha256};
use zeroize::Zeroize;

/// Block of SHA-256, bytes.
const BLOCK: usize = 64;

/// The sub-key of `secret` named `label`. Labels are constants of the program, one for each use.
pub fn derive_key(secret: &[u8; 32], label: &str) -> [u8; 32] {
    let mut inner_pad = [0x36u8; BLOCK];
    let mut outer_pad = [0x5cu8; BLOCK];
    for ((inner, outer), byte) in inner_pad.iter_mut().zip(&mut outer_pad).zip(secret) {
        *inner ^= byte;
        *outer ^= byte;
    }
    let inner = Sha256::new()
        .chain_update(inner_pad)
        .chain_update(label.as_bytes())
        .finalize();
    let key = Sha256::new()
        .chain_update(outer_pad)
        .chain_update(inner)
        .finalize();
    inner_pad.zeroize();
    outer_pad.zeroize();
    key.into()
}

/// The two words of a SipHash key, derived from `secret` for `label`.
pub fn derive_siphash_key(secret: &[u8; 32], label: &str) -> (u64, u64) {
    let key = derive_key(secret, label);
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&key[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    (word(0), word(8))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231 §4.2: keys shorter than a block are padded with zeros, so its 20-byte key is this.
    #[test]
    fn is_hmac_sha_256() {
        let mut secret = [0; 32];
        secret[..20].fill(0x0b);
        let key = derive_key(&secret, "Hi There");
        let expected: [u8; 32] = [
            0xb0, 0x34, 0x4c, 0x61, 0xd8, 0xdb, 0x38, 0x53, 0x5c, 0xa8, 0xaf, 0xce, 0xaf, 0x0b, 0xf1, 0x2b,
            0x88, 0x1d, 0xc2, 0x00, 0xc9, 0x83, 0x3d, 0xa7, 0x26, 0xe9, 0x37, 0x6c, 0x2e, 0x32, 0xcf, 0xf7,
        ];
        assert_eq!(key, expected);
    }

    #[test]
    fn labels_and_secrets_tell_keys_apart() {
        let a = derive_siphash_key(&[1; 32], "a");
        assert_eq!(a, derive_siphash_key(&[1; 32], "a"));
        assert_ne!(a, derive_siphash_key(&[1; 32], "b"));
        assert_ne!(a, derive_siphash_key(&[2; 32], "a"));
    }
}
