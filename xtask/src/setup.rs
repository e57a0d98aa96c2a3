//! Installs the programs that the tests and the lab drive. Nothing is asked of the network, and no privilege
//! is needed, when all are there.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::steps::{Outcome, run_step};

/// How to see that a package is there without asking dpkg: other systems have the programs too.
#[derive(Debug, Clone, Copy)]
enum Probe {
    /// A program in PATH or an sbin directory.
    Program(&'static str),
    /// A file under one of the library or include directories; a part of its path may be `*`.
    File(&'static str),
    /// Whichever of these is there.
    Any(&'static [Probe]),
}

/// A Debian package and what needs it.
#[derive(Debug, Clone, Copy)]
struct Package {
    name: &'static str,
    probe: Probe,
    reason: &'static str,
}

const MARIADB_SERVER: Probe = Probe::Program("mariadbd");
const MARIADB_CLIENT: Probe = Probe::Program("mariadb");

/// Debian has it outside PATH, in a directory for each version.
const POSTGRESQL: Probe = Probe::Any(&[
    Probe::Program("postgres"),
    Probe::File("postgresql/*/bin/postgres"),
]);

const FOR_TESTS: &[Package] = &[
    Package {
        name: "sip-tester",
        probe: Probe::Program("sipp"),
        reason: "SIPp scenarios",
    },
    Package {
        name: "baresip-core",
        probe: Probe::Program("baresip"),
        reason: "real user agents",
    },
    Package {
        name: "kamailio",
        probe: Probe::Program("kamailio"),
        reason: "a next hop of another make",
    },
    Package {
        name: "kamailio-tls-modules",
        probe: Probe::File("kamailio/modules/tls.so"),
        reason: "that next hop over TLS",
    },
    Package {
        name: "kamailio-websocket-modules",
        probe: Probe::File("kamailio/modules/websocket.so"),
        reason: "the same over WebSocket",
    },
    Package {
        name: "kamailio-mysql-modules",
        probe: Probe::File("kamailio/modules/db_mysql.so"),
        reason: "the subscriber table that it makes",
    },
    Package {
        name: "openssl",
        probe: Probe::Program("openssl"),
        reason: "a TLS client that resumes",
    },
    Package {
        name: "iproute2",
        probe: Probe::Program("ip"),
        reason: "a network for a server on the built-in configuration",
    },
    Package {
        name: "nftables",
        probe: Probe::Program("nft"),
        reason: "phones behind NATs",
    },
    Package {
        name: "chromium",
        probe: Probe::Program("chromium"),
        reason: "a phone in a web page",
    },
    Package {
        name: "chromium-driver",
        probe: Probe::Program("chromedriver"),
        reason: "drives that browser",
    },
    Package {
        name: "g++",
        probe: Probe::Program("c++"),
        reason: "SQLite and the fuzzer's runtime",
    },
    Package {
        name: "valgrind",
        probe: Probe::Program("valgrind"),
        reason: "the guard on instructions per message",
    },
    Package {
        name: "mariadb-server",
        probe: MARIADB_SERVER,
        reason: "a credential database",
    },
    Package {
        name: "mariadb-client",
        probe: MARIADB_CLIENT,
        reason: "fills that database",
    },
    Package {
        name: "postgresql",
        probe: POSTGRESQL,
        reason: "another credential database",
    },
];

/// For `trapezoid lab`: the cases of its experiments that need more than this server.
const FOR_BENCH: &[Package] = &[
    Package {
        name: "kamailio",
        probe: Probe::Program("kamailio"),
        reason: "the server beside which ours is measured",
    },
    Package {
        name: "kamailio-mysql-modules",
        probe: Probe::File("kamailio/modules/db_mysql.so"),
        reason: "its subscribers and registrations",
    },
    Package {
        name: "kamailio-tls-modules",
        probe: Probe::File("kamailio/modules/tls.so"),
        reason: "its TLS",
    },
    Package {
        name: "mariadb-server",
        probe: MARIADB_SERVER,
        reason: "its database, and one that is far away from ours",
    },
    Package {
        name: "mariadb-client",
        probe: MARIADB_CLIENT,
        reason: "fills that database",
    },
    Package {
        name: "gcc",
        probe: Probe::Program("cc"),
        reason: "the bare relay in C",
    },
];

/// Installs what is missing. `--bench`: for the lab instead of the tests.
pub(crate) fn run(args: &[String]) -> Outcome {
    let packages = match args {
        [] => FOR_TESTS,
        [only] if only == "--bench" => FOR_BENCH,
        _ => return Err("usage: setup [--bench]".into()),
    };
    let missing: Vec<Package> = packages.iter().copied().filter(|p| !present(p.probe)).collect();
    if missing.is_empty() {
        eprintln!("setup: all {} packages are there", packages.len());
        return Ok(());
    }
    for package in &missing {
        eprintln!("setup: {} is missing ({})", package.name, package.reason);
    }
    let names: Vec<&str> = missing.iter().map(|p| p.name).collect();
    let by_hand = format!("apt-get install --no-install-recommends {}", names.join(" "));
    if !present(Probe::Program("apt-get")) {
        return Err(format!(
            "no apt-get here; install the programs above by this system's means (Debian: {by_hand}), \
             or set TRAPEZOID_SKIP_MISSING=1 to skip the tests that need them"
        ));
    }
    if !is_root() {
        return Err(format!("not root; run once: sudo {by_hand}"));
    }
    install(&names)?;
    match packages.iter().find(|p| !present(p.probe)) {
        None => Ok(()),
        Some(p) => Err(format!(
            "{} is installed but {:?} is still not found",
            p.name, p.probe
        )),
    }
}

fn install(names: &[&str]) -> Outcome {
    let _no_services = ServicesStayDown::new();
    run_step("apt-get update", apt().args(["update", "-qq"]))?;
    run_step(
        "apt-get install",
        apt()
            .args(["install", "-qq", "-y", "--no-install-recommends"])
            .args(names),
    )
}

fn apt() -> Command {
    let mut apt = Command::new("apt-get");
    apt.env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(std::process::Stdio::null());
    apt
}

/// While it lives, Debian's packages do not start the daemons that they bring: Kamailio would
/// take port 5060 from the very server that the user is about to run. Tests start their own
/// databases.
#[derive(Debug)]
struct ServicesStayDown(Option<PathBuf>);

impl ServicesStayDown {
    fn new() -> Self {
        use std::os::unix::fs::PermissionsExt;
        let path = PathBuf::from("/usr/sbin/policy-rc.d");
        if path.exists() {
            return Self(None); // the user's own policy
        }
        let written = std::fs::write(&path, "#!/bin/sh\nexit 101\n")
            .and_then(|()| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)));
        Self(written.is_ok().then_some(path))
    }
}

impl Drop for ServicesStayDown {
    fn drop(&mut self) {
        if let Some(path) = &self.0
            && let Err(error) = std::fs::remove_file(path)
        {
            eprintln!("setup: could not remove {}: {error}", path.display());
        }
    }
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|out| out.stdout.trim_ascii() == b"0")
}

fn present(probe: Probe) -> bool {
    match probe {
        Probe::Program(name) => find_program(name).is_some(),
        Probe::File(rest) => ["/usr/include", "/usr/lib", "/usr/local/include", "/usr/local/lib"]
            .iter()
            .flat_map(|dir| {
                // Debian puts both under a directory named for the architecture.
                let nested = std::fs::read_dir(dir)
                    .into_iter()
                    .flatten()
                    .flatten()
                    .map(|e| e.path());
                std::iter::once(PathBuf::from(dir)).chain(nested)
            })
            .any(|dir| exists(&dir, rest)),
        Probe::Any(probes) => probes.iter().copied().any(present),
    }
}

/// Whether a directory has such a file; a part of its path that is `*` stands for any name.
fn exists(dir: &Path, rest: &str) -> bool {
    let Some((first, rest)) = rest.split_once('/') else {
        return dir.join(rest).exists();
    };
    if first != "*" {
        return exists(&dir.join(first), rest);
    }
    let entries = std::fs::read_dir(dir);
    entries
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| exists(&entry.path(), rest))
}

/// Where a program is; users other than root do not have the sbin directories in PATH.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_programs_and_misses_others() {
        assert!(find_program("sh").is_some());
        assert!(find_program("no-such-program-here").is_none());
        assert!(!present(Probe::File("no/such/file.h")));
        const NONE: Probe = Probe::Program("no-such-program-here");
        assert!(present(Probe::Any(&[NONE, Probe::Program("sh")])));
        assert!(!present(Probe::Any(&[NONE])));
    }

    #[test]
    fn finds_files_of_any_version() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        assert!(exists(&source, "setup.rs"));
        assert!(exists(&source, "tidy/graph.rs"));
        assert!(exists(&source, "*/graph.rs"));
        assert!(exists(source.parent().expect("a crate"), "src/*/graph.rs"));
        assert!(!exists(&source, "*/no-such-file.rs"));
        assert!(!exists(&source, "no-such-directory/*/graph.rs"));
    }

    #[test]
    fn rejects_unknown_arguments_before_doing_anything() {
        assert!(run(&["--everything".into()]).is_err());
    }
}
