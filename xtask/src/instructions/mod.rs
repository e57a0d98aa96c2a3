//! The guard on speed that no busy machine can upset: instructions per message, counted by
//! callgrind and compared with the figures in `bench/instructions.toml`.
//!
//! Instructions are not time, but a change that adds a copy, a look-up or an allocation to a
//! message's way shows here, on every machine the same. What is run is `bench/instructions`.

mod baseline;
mod callgrind;

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use self::baseline::Baseline;
use self::callgrind::Counts;
use crate::setup::find_program;
use crate::steps::{Outcome, cargo, root, run_own, run_step, rustc_field, target_dir};

const BASELINE: &str = "bench/instructions.toml";
/// More than this above the baseline fails.
const ALLOWANCE_PERCENT: f64 = 5.0;
/// The same with another compiler than the baseline's, which generates other code.
const OTHER_COMPILER_PERCENT: f64 = 20.0;

/// A kind of work: what the program calls it, how often it is done in the short and in the long
/// run, and what is counted: the function, and the name of the figure.
struct Work {
    name: &'static str,
    short: u32,
    long: u32,
    figures: &'static [(&'static str, &'static str)],
}

/// A call's transactions live for 320 calls: both runs end with the tables as full.
const WORKS: &[Work] = &[
    Work {
        name: "parse",
        short: 100,
        long: 600,
        figures: &[("counted_parse", "parse INVITE")],
    },
    Work {
        name: "stateless",
        short: 400,
        long: 1_200,
        figures: &[
            ("counted_invite", "stateless INVITE"),
            ("counted_ringing", "stateless 180"),
            ("counted_ok", "stateless 200"),
            ("counted_ack", "stateless ACK"),
            ("counted_bye", "stateless BYE"),
            ("counted_bye_ok", "stateless 200 to BYE"),
        ],
    },
    Work {
        name: "stateful",
        short: 400,
        long: 1_200,
        figures: &[
            ("counted_invite", "stateful INVITE"),
            ("counted_ringing", "stateful 180"),
            ("counted_ok", "stateful 200"),
            ("counted_ack", "stateful ACK"),
            ("counted_bye", "stateful BYE"),
            ("counted_bye_ok", "stateful 200 to BYE"),
            ("counted_timers", "stateful timers of a call"),
        ],
    },
    Work {
        name: "register",
        short: 400,
        long: 1_200,
        figures: &[("counted_register", "REGISTER refresh")],
    },
    Work {
        name: "ping",
        short: 1_000,
        long: 3_000,
        figures: &[("counted_pings", "ping"), ("counted_ping_ok", "200 to a ping")],
    },
];

/// What glibc finds out about the processor, all of it unsaid: copies and comparisons then run in
/// their SSE2 variants, which every x86-64 has. (Valgrind itself shows the program a processor of
/// its own making, but with AVX2 where the host has it.) Names that a glibc does not know are
/// ignored.
const TUNABLES: &str = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-EVEX,-AVX2,-AVX,\
    -AVX_Usable,-AVX2_Usable,-AVX512F_Usable,-AVX_Fast_Unaligned_Load,-Fast_Unaligned_Copy,-ERMS,-FSRM,\
    -RTM,-BMI1,-BMI2,-LZCNT,-MOVBE,-SSE4_2,-SSE4_1,-SSSE3";

/// `instructions [--accept]`.
pub(crate) fn run(args: &[String]) -> Outcome {
    let accept = match args {
        [] => false,
        [only] if only == "--accept" => true,
        _ => return Err("usage: instructions [--accept]".into()),
    };
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        eprintln!("── instructions are NOT compared: the baseline is one of x86-64 Linux");
        return Ok(());
    }
    if find_program("valgrind").is_none() {
        if std::env::var_os("TRAPEZOID_SKIP_MISSING").is_some() {
            eprintln!("── instructions are NOT compared: valgrind is missing (TRAPEZOID_SKIP_MISSING)");
            return Ok(());
        }
        return Err("valgrind is missing: `cargo xtask setup` installs it".into());
    }
    run_step(
        "build what is counted",
        cargo().args(["build", "--release", "--locked", "--package", "instructions"]),
    )?;
    let mut measured = Figures::new();
    run_own("count instructions", || {
        measured = measure(&target_dir()?)?;
        Ok(())
    })?;
    let compiler = rustc_field("release: ")?;
    let path = root().join(BASELINE);
    if accept {
        let text = Baseline::text(&compiler, &measured);
        std::fs::write(&path, text).map_err(|error| format!("{BASELINE}: {error}"))?;
        eprintln!("── {BASELINE} is written: commit it with the change that is the reason");
        return Ok(());
    }
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{BASELINE}: {error}"))?;
    let baseline = Baseline::parse(&text).map_err(|error| format!("{BASELINE}: {error}"))?;
    verdict(&baseline, &compiler, &measured)
}

/// Every figure: its name and instructions for each time.
type Figures = Vec<(&'static str, u64)>;

fn measure(target: &Path) -> Result<Figures, String> {
    let mut figures = Figures::new();
    for work in WORKS {
        let short = count(target, work.name, work.short)?;
        let long = count(target, work.name, work.long)?;
        for (function, name) in work.figures {
            let times = u64::from(work.long - work.short);
            let more = long.of(function)?.saturating_sub(short.of(function)?);
            figures.push((name, (more + times / 2) / times));
        }
    }
    Ok(figures)
}

/// Runs the program under callgrind.
fn count(target: &Path, work: &str, times: u32) -> Result<Counts, String> {
    let out = target.join("instructions").join(format!("{work}-{times}.out"));
    let _ = std::fs::create_dir_all(target.join("instructions"));
    let done = Command::new("valgrind")
        .args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(target.join("release").join("instructions"))
        .args([work, &times.to_string()])
        // The same environment everywhere: it lies on the stack and moves what comes after it.
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("GLIBC_TUNABLES", TUNABLES)
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(format!("valgrind, {work} {times}: {}\n{said}", done.status));
    }
    let text = std::fs::read_to_string(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    Ok(Counts::parse(&text))
}

/// Prints the table; fails when something became dearer than the allowance.
fn verdict(baseline: &Baseline, compiler: &str, measured: &[(&'static str, u64)]) -> Outcome {
    let same_compiler = baseline.compiler == compiler;
    let allowance = if same_compiler {
        ALLOWANCE_PERCENT
    } else {
        OTHER_COMPILER_PERCENT
    };
    let mut table = format!(
        "{:28} {:>9} {:>9} {:>8}\n",
        "instructions for each", "baseline", "now", "change"
    );
    let (mut worse, mut better, mut unknown) = (0, 0, 0);
    for (name, now) in measured {
        let Some(before) = baseline.figure(name) else {
            unknown += 1;
            let _ = writeln!(table, "{name:28} {:>9} {now:>9}", "none");
            continue;
        };
        let change = change_percent(before, *now);
        let note = if change > allowance {
            worse += 1;
            "  DEARER"
        } else if change < -ALLOWANCE_PERCENT {
            better += 1;
            "  cheaper"
        } else {
            ""
        };
        let _ = writeln!(table, "{name:28} {before:>9} {now:>9} {change:>+7.1}%{note}");
    }
    eprint!("{table}");
    if !same_compiler {
        eprintln!(
            "── the baseline is of rustc {}, this is {compiler}: the allowance is {OTHER_COMPILER_PERCENT} %, not \
             {ALLOWANCE_PERCENT} %",
            baseline.compiler
        );
    }
    if worse + unknown > 0 {
        return Err(format!(
            "{worse} figures are more than {allowance} % above {BASELINE}, {unknown} are not in it. Look where the \
             instructions are spent (`callgrind_annotate --inclusive=yes target/instructions/stateful-1200.out`); if \
             they are worth it: `cargo xtask instructions --accept`, and say why in the commit"
        ));
    }
    if better > 0 {
        eprintln!(
            "── {better} figures are more than {ALLOWANCE_PERCENT} % below {BASELINE}: \
             `cargo xtask instructions --accept` keeps the gain"
        );
    }
    Ok(())
}

fn change_percent(before: u64, now: u64) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "instructions of one message are far below 2^52"
    )]
    let (before, now) = (before.max(1) as f64, now as f64);
    (now - before) * 100.0 / before
}

#[cfg(test)]
mod tests {
    use super::*;

    fn baseline(compiler: &str) -> Baseline {
        Baseline::parse(&Baseline::text(
            compiler,
            &[("stateless INVITE", 10_000), ("parse INVITE", 3_000)],
        ))
        .expect("what was written can be read")
    }

    #[test]
    fn dearer_than_the_allowance_fails() {
        let same = baseline("1.0.0");
        assert!(
            verdict(
                &same,
                "1.0.0",
                &[("stateless INVITE", 10_500), ("parse INVITE", 1)]
            )
            .is_ok()
        );
        let error = verdict(&same, "1.0.0", &[("stateless INVITE", 10_501)]).expect_err("too dear");
        assert!(
            error.contains("1 figures") && error.contains("--accept"),
            "{error}"
        );
    }

    #[test]
    fn another_compiler_has_a_wider_allowance() {
        let other = baseline("1.0.0");
        assert!(verdict(&other, "1.1.0", &[("parse INVITE", 3_600)]).is_ok());
        assert!(verdict(&other, "1.1.0", &[("parse INVITE", 3_601)]).is_err());
    }

    #[test]
    fn a_figure_without_a_baseline_fails() {
        assert!(verdict(&baseline("1.0.0"), "1.0.0", &[("new", 1)]).is_err());
    }

    #[test]
    fn rejects_unknown_arguments() {
        assert!(run(&["--accpet".into()]).is_err());
    }
}
