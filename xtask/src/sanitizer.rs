//! `cargo xtask asan`: what has `unsafe` code, and the server itself, under the address sanitizer.

use std::path::PathBuf;
use std::process::Command;

use crate::steps::{Outcome, cargo, host_triple, run_step, run_tests, target_dir};
use crate::suite::conformance;

/// Packages with `unsafe` code, and the tests that run it.
const TESTS: &[(&str, &[&str])] = &[("sip-net", &["--lib", "--tests"])];

/// An allocator that counts, for tests, and the tests that use it.
const ALLOCATORS: &[(&str, &[&str])] = &[
    ("counting-allocator", &["--lib"]),
    ("sip-message", &["--test", "no_alloc"]),
    ("sip-core", &["--test", "allocations"]),
];

/// Conformance tests, by module, that start a server and need no other program's help.
const SCENARIOS: &[&str] = &["cancel::", "forking::", "redirect::", "websocket::", "tls::"];

/// What the sanitizer is to look for besides the usual, memory that nothing leads to at the end among
/// it. Not two definitions of one name: SQLite has functions with static arrays of the same name, which
/// a C compiler's part of the sanitizer takes for that.
const OPTIONS: &str =
    "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1:detect_odr_violation=0";

/// Runs the tests of [`TESTS`]; with `--server`, those of [`ALLOCATORS`] and the server, too.
pub(crate) fn run(args: &[String]) -> Outcome {
    let whole = match args {
        [] => false,
        [option] if option == "--server" => true,
        _ => return Err("usage: asan [--server]".into()),
    };
    let build = Build::new()?;
    for (package, tests) in TESTS {
        build.test(package, tests)?;
    }
    if whole {
        for (package, tests) in ALLOCATORS {
            build.test(package, tests)?;
        }
        build.server()?;
    }
    Ok(())
}

/// How to build with the sanitizer.
struct Build {
    /// Named, so that build scripts and macros are built without.
    triple: String,
    /// Of its own: these flags fit nothing else that we build.
    target_dir: PathBuf,
}

impl Build {
    fn new() -> Result<Self, String> {
        Ok(Self {
            triple: host_triple()?,
            target_dir: target_dir()?.join("asan"),
        })
    }

    fn cargo(&self, command: &str, package: &str) -> Command {
        let mut cargo = cargo();
        cargo
            .args([command, "--package", package, "--target", &self.triple])
            .arg("--target-dir")
            .arg(&self.target_dir)
            // The sanitizer is in the stable compiler, its option is not.
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", "-Zsanitizer=address")
            .env("ASAN_OPTIONS", OPTIONS);
        cargo
    }

    fn test(&self, package: &str, tests: &[&str]) -> Outcome {
        let mut command = self.cargo("test", package);
        command.arg("--quiet").args(tests);
        run_step(&format!("address sanitizer: {package}"), &mut command)
    }

    /// The server without mimalloc (the sanitizer would not know its memory), as the conformance tests meet
    /// it. It must also end with code 0, which it does not after a leak.
    fn server(&self) -> Outcome {
        let mut command = self.cargo("build", "trapezoid");
        command.args(["--quiet", "--features", "system-allocator"]);
        run_step("address sanitizer: build the server", &mut command)?;
        let server = self.target_dir.join(&self.triple).join("debug/trapezoid");
        for module in SCENARIOS {
            let what = format!("address sanitizer: the server, {module}");
            let mut tests = conformance(&server, &[module]);
            run_tests(&what, tests.env("ASAN_OPTIONS", OPTIONS))?;
        }
        Ok(())
    }
}
