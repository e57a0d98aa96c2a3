//! A corpus in one file: each input is its length (four bytes, little-endian) and its bytes. The
//! plain replay reads it too (`fuzz/src/pack.rs`).

use std::fs;
use std::path::Path;

use super::{renew, said};
use crate::steps::Outcome;

/// Writes `inputs` to `path`; how many bytes that are.
pub(super) fn pack(path: &Path, inputs: &[Vec<u8>]) -> Result<usize, String> {
    let mut out = Vec::new();
    for input in inputs {
        let length = u32::try_from(input.len()).map_err(|_| "an input of more than 4 GB")?;
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(input);
    }
    fs::write(path, &out).map_err(said(path))?;
    Ok(out.len())
}

/// Writes each input of `path` to a file of its own in `directory`, which is empty otherwise. No pack is
/// an empty one.
pub(super) fn unpack(path: &Path, directory: &Path) -> Outcome {
    renew(directory)?;
    let pack = match fs::read(path) {
        Ok(pack) => pack,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(said(path)(error)),
    };
    let mut rest = pack.as_slice();
    let mut number = 0;
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let cut = || format!("{}: an input is cut off", path.display());
        let (input, after) = after.split_at_checked(length).ok_or_else(cut)?;
        let file = directory.join(format!("{number:06}"));
        fs::write(&file, input).map_err(said(&file))?;
        number += 1;
        rest = after;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_out_again() {
        let directory = std::env::temp_dir().join(format!("xtask-pack-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let path = directory.join("corpus.cat");
        let inputs = [b"abc".to_vec(), Vec::new(), vec![0; 300]];
        assert_eq!(pack(&path, &inputs), Ok(315));
        let unpacked = directory.join("kept");
        unpack(&path, &unpacked).expect("a whole pack");
        for (at, input) in inputs.iter().enumerate() {
            assert_eq!(
                fs::read(unpacked.join(format!("{at:06}"))).ok().as_ref(),
                Some(input)
            );
        }
        fs::write(&path, b"\x09\0\0\0abc").expect("written");
        assert!(unpack(&path, &unpacked).is_err());
        assert_eq!(unpack(&directory.join("none"), &unpacked), Ok(()));
        fs::remove_dir_all(&directory).expect("removed");
    }
}
