//! A kept corpus: many small inputs in one file, so that the repository has one file a target.
//!
//! Each input is its length (four bytes, little-endian) and its bytes.

/// The inputs of a pack.
///
/// # Errors
/// Where it ends in the middle of one.
pub fn inputs(mut pack: &[u8]) -> Result<Vec<&[u8]>, &'static str> {
    let mut out = Vec::new();
    while let Some((length, rest)) = pack.split_first_chunk::<4>() {
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let (input, rest) = rest.split_at_checked(length).ok_or("an input is cut off")?;
        out.push(input);
        pack = rest;
    }
    if pack.is_empty() {
        Ok(out)
    } else {
        Err("a length is cut off")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_follow_each_other() {
        let pack = b"\x03\0\0\0abc\0\0\0\0\x01\0\0\0d";
        assert_eq!(inputs(pack), Ok(vec![&b"abc"[..], b"", b"d"]));
        assert_eq!(inputs(b""), Ok(vec![]));
        assert!(inputs(&pack[..pack.len() - 1]).is_err());
        assert!(inputs(b"\x03\0\0").is_err());
    }
}
