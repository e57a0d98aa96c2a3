//! What the models of shared state need: the locks of `parking_lot` over those of the model checker
//! loom ([`locks`]), and the bounds within which a model is explored ([`explore`]).
//!
//! A model is a test in `tests/`. Each test program there includes the source files of one crate by
//! path, beside a module `sync` that names loom's locks and atomics: so the code that is modelled is
//! the code that runs.
#![forbid(unsafe_code)]

pub mod locks;

/// Times that a model's threads are interrupted where they need not wait, at most. Most faults of
/// order need two. Without such a bound the orders of even small models are too many to try.
const PREEMPTIONS: usize = 3;

/// A model that takes more steps than this in one run hangs, or is too large.
const BRANCHES: usize = 10_000;

/// Runs a model under every order of its threads' steps within the bounds. `LOOM_MAX_PREEMPTIONS`
/// replaces the default bound of three interruptions (`cargo xtask loom --preemptions N`).
///
/// # Panics
/// If the model fails under one of them, deadlocks, or takes more than 10,000 steps.
#[track_caller]
pub fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(PREEMPTIONS);
    builder.max_branches = builder.max_branches.max(BRANCHES);
    builder.check(model);
}
