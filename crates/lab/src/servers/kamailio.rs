//! Kamailio, from PATH or where Debian puts it.

use std::path::PathBuf;

use super::{Site, suffix, words};
use crate::case::{Setup, State};
use crate::failure::{Failure, Outcome};
use crate::load::{Operation, Transport};
use crate::process::{Child, Output};
use crate::programs;

const CONFIGURATION: &str = include_str!("kamailio.cfg");

pub(super) fn start(setup: &Setup, site: &Site<'_>) -> Outcome<Child> {
    let program = programs::find("kamailio").ok_or_else(|| {
        Failure::Usage("kamailio is missing (Debian: kamailio, kamailio-mysql-modules)".to_owned())
    })?;
    let config = site.write("kamailio.cfg", CONFIGURATION)?;
    // Its default allocator (qm) is three times slower: fm for shared and private memory.
    let mut line = words([
        "", "-DD", "-E", "-m", "4096", "-M", "32", "-x", "fm", "-X", "fm", "-f",
    ]);
    if let Some(first) = line.first_mut() {
        *first = program.into();
    }
    line.push(config.into());
    for (option, path) in [("-Y", site.directory.clone()), ("-P", site.directory.join("pid"))] {
        line.extend([option.into(), path.into()]);
    }
    if let Some(look_ups) = setup.look_ups {
        line.extend(["-n".into(), look_ups.connections.to_string().into()]);
    }
    for define in defines(setup, site) {
        line.extend(["-A".into(), define.into()]);
    }
    site.start("kamailio", line, Output::Log)
}

/// Whether its module for the database is there: where Debian puts it, or where it is built to look.
pub(crate) fn has_mysql() -> bool {
    let module = "kamailio/modules/db_mysql.so";
    let mut roots: Vec<PathBuf> = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"]
        .map(PathBuf::from)
        .to_vec();
    // Debian's name for the kind of machine is a directory in between.
    let below = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    roots.extend(below.map(|entry| entry.path()));
    roots.iter().any(|root| root.join(module).exists())
}

fn defines(setup: &Setup, site: &Site<'_>) -> Vec<String> {
    let case = &setup.case;
    let callee = format!("sip:127.0.0.1:{}{}", site.ports.uas, suffix(case.transport));
    let what = match (case.operation, case.state) {
        (Operation::Call, State::Stateless) => "STATELESS",
        (Operation::Call, State::Transaction) => "TRANSACTION",
        (Operation::Register, _) => "REGISTRAR",
        (Operation::Redirect, _) => "REDIRECT",
    };
    let mut defines = vec![
        what.to_owned(),
        format!("SIP_PORT={}", site.ports.sip),
        format!("CALLEE=\"{callee}\""),
        format!("CONTACT=\"Contact: <{callee}>\\r\\n\""),
        format!(
            "DATABASE=\"{}\"",
            super::database::url(site.database.unwrap_or(0))
        ),
    ];
    let more = [
        (case.auth, "DIGEST"),
        (case.transport == Transport::Tcp, "OVER_TCP"),
        (case.durable, "ON_DISK"),
    ];
    defines.extend(
        more.iter()
            .filter(|(is_so, _)| *is_so)
            .map(|(_, name)| (*name).to_owned()),
    );
    defines
}
