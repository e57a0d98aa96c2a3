//! The inputs that are kept: seeds, and the minimised corpora.

use std::path::Path;

use crate::{Target, pack};

/// All inputs of a target, each with the name that a failure is reported by. `FUZZ_INPUT=FILE` puts
/// one file in their place.
///
/// # Panics
/// If a file cannot be read, or a target has no seeds.
pub fn inputs(target: &Target) -> Vec<(String, Vec<u8>)> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &Path| std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    if let Some(file) = std::env::var_os("FUZZ_INPUT") {
        let file = Path::new(&file);
        return vec![(file.display().to_string(), read(file))];
    }
    let seeds = here.join("seeds").join(target.name);
    let mut inputs: Vec<(String, Vec<u8>)> = std::fs::read_dir(&seeds)
        .expect("a folder of seeds")
        .map(|entry| entry.expect("a seed").path())
        .map(|path| (path.display().to_string(), read(&path)))
        .collect();
    assert!(!inputs.is_empty(), "{} has no seeds", target.name);
    // The order of a directory is not the same everywhere.
    inputs.sort();
    let corpus = here.join("corpus").join(format!("{}.cat", target.name));
    let packed = read(&corpus);
    let unpacked = pack::inputs(&packed).expect("a whole pack");
    for (at, input) in unpacked.into_iter().enumerate() {
        inputs.push((format!("{}, input {at}", corpus.display()), input.to_vec()));
    }
    inputs
}
