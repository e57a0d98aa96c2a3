//! What is fuzzed. Each module is one target: `run` takes any bytes and panics where something is
//! wrong with what our code makes of them.
//!
//! libFuzzer's binaries (`fuzz/libfuzzer`) only call these, so that what it found is replayed by a
//! plain test as well (`fuzz/tests/replay.rs`): on any machine, with any profile.
#![forbid(unsafe_code)]

pub mod auth_header;
pub mod configuration;
pub mod datagram;
pub mod differential;
pub mod endpoint;
pub mod journal;
pub mod kept;
pub mod pack;
pub mod smuggle;
pub mod stream;
pub mod uri;
pub mod websocket;

mod pieces;
mod table;

#[path = "../../crates/sip-core/tests/common/mod.rs"]
mod common;
#[path = "../../crates/sip-message/tests/common/mod.rs"]
mod message;

/// One target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: of the binary, the seeds' folder and the corpus.
    pub name: &'static str,
    /// Takes one input.
    pub run: fn(&[u8]),
}

/// Gives the names of all targets to a macro: each names a module here, a program of libFuzzer's, and
/// a test of each test program.
#[macro_export]
macro_rules! for_all_targets {
    ($macro:ident) => {
        $macro!(
            datagram,
            stream,
            websocket,
            uri,
            auth_header,
            configuration,
            journal,
            endpoint,
            differential,
            smuggle,
        );
    };
}

macro_rules! targets {
    ($($name:ident),+ $(,)?) => {
        /// All of them.
        pub const TARGETS: &[Target] = &[
            $(Target { name: stringify!($name), run: $name::run }),+
        ];
    };
}

for_all_targets!(targets);

/// The target of this name.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn target(name: &str) -> &'static Target {
    let target = TARGETS.iter().find(|target| target.name == name);
    target.expect("a target of this name")
}
