//! The proof that a request may be relayed is given in few places.
//!
//! `Authorized` is an enum below the phases that decide, and Rust lets no type name the modules above it that may
//! make its values. So this rule does.

use super::{File, Violation};

const TYPE: &str = "crates/sip-core/src/engine/request.rs";
/// The phase authorize: whether credentials are needed, and their check.
const MAY: [&str; 2] = [
    "crates/sip-core/src/request_path/asking.rs",
    "crates/sip-core/src/request_path/authorize.rs",
];
const VARIANTS: [&str; 4] = ["Credentials", "Exempt", "Dialog", "Unasked"];

/// Checks the sources of the core.
pub(super) fn check(files: &[File]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let is_core = |file: &&File| file.path.starts_with("crates/sip-core/src/");
    for file in files.iter().filter(is_core) {
        if file.path == TYPE || MAY.contains(&file.path.as_str()) {
            continue;
        }
        for (number, line) in (1..).zip(file.text.lines()) {
            let names = |variant: &&str| line.contains(&format!("Authorized::{variant}"));
            if VARIANTS.iter().any(names) {
                violations.push(Violation::new(
                    format!("{}:{number}", file.path),
                    "makes an `Authorized`: only the phase authorize may (asking.rs, authorize.rs)",
                ));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn only_the_phase_authorize_makes_the_proof() {
        let made = "let a = Some(Authorized::Exempt);";
        let fine = [
            file(MAY[0], made),
            file(MAY[1], made),
            file(TYPE, made),
            file("xtask/src/tidy/proof.rs", made),
            file(
                "crates/sip-core/src/proxy/forward.rs",
                "authorized.is_some_and(Authorized::source_verified)",
            ),
        ];
        assert_eq!(check(&fine), []);
        let found = check(&[file("crates/sip-core/src/proxy/forward.rs", &format!("\n{made}"))]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].place, "crates/sip-core/src/proxy/forward.rs:2");
    }
}
