//! Project chores behind the make targets: `cargo xtask help`.

mod fuzz;
mod instructions;
mod ledger;
mod models;
mod nightly;
mod sanitizer;
mod setup;
mod sim;
mod steps;
mod suite;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  setup [--bench]      install what the tests (or the lab) need, where missing
  test [FILTER…]       setup, the checks but for those of documentation and of the server by itself,
                       instructions, two experiments, every test; with CI set also these two, the
                       long form whose turn it is, and what failed once more, alone
  repeat [--busy] TIMES [FILTER…]
                       every test so many times, also beside a busy loop on each core: which fail by
                       themselves
  check                formatting, tidy, dependency policy, clippy, the server by itself, documentation
  tidy                 the project's own rules (CONTRIBUTING.md)
  fuzz [--runs N | --total N | --seconds N] [--asan] [TARGET…]
                       fuzz each target for an hour, or for so many executions each or of all
                       together, or for a time
  fuzz --minimise [TARGET…]
                       make the corpus of earlier runs small and keep it
  sim                  the simulator: SEEDS=FROM..TO (default 0..500), MINUTES=N, SEED=N
                       with its ladder, or SCENARIO=FILE
  mutants [WORD…]      build known faults into a copy of the sources; each must be caught
  loom [--preemptions N] [FILTER…]
                       models of what threads share, under every order of their steps in which
                       no more than N (default: 3) interrupt another
  asan [--server]      tests of the code with `unsafe` under the address sanitizer; with --server
                       also those of counting allocators, and the server in conformance tests
  crash [CRASHES] [BINDINGS]
                       kill -9 under registration load (default: 200 times, 1,000,000 bindings)
  nat                  phones behind NATs that close their ports after 20 s, in five minutes of silence
  deny                 cargo-deny on deny.toml, which tidy checks as well; installed where missing
  nightly [--turn]     the long form of all these: sim (MINUTES=N, default 60), mutants, fuzz,
                       crash, nat, loom, asan, deny; what failed is said last. --turn: the one that
                       is due in CI at this commit, in minutes
  instructions [--accept]
                       instructions per message against bench/instructions.toml (or into it)
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match args.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", &[][..]),
    };
    let done = match command {
        "setup" => setup::run(rest),
        "test" => steps::test(rest),
        "repeat" => suite::repeat(rest),
        "check" => steps::check(),
        "tidy" => tidy::run(&steps::root()),
        "fuzz" => fuzz::run(rest),
        "sim" => sim::run(rest),
        "mutants" => sim::run_mutants(rest),
        "asan" => sanitizer::run(rest),
        "loom" => models::run(rest),
        "crash" => nightly::crash(rest),
        "nat" if rest.is_empty() => nightly::nat(),
        "deny" if rest.is_empty() => nightly::deny(),
        "nightly" => nightly::run(rest),
        "instructions" => instructions::run(rest),
        "help" | "--help" | "-h" => {
            eprint!("{HELP}");
            Ok(())
        }
        other => {
            eprintln!("xtask: no command `{other}`\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            if !message.is_empty() {
                eprintln!("xtask {command}: {message}");
            }
            ExitCode::FAILURE
        }
    }
}
