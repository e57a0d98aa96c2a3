//! Kamailio, from PATH or where Debian puts it.

use std::ffi::OsString;
use std::path::PathBuf;

use super::{Site, suffix, words};
use crate::case::{Setup, State};
use crate::failure::{Failure, Outcome};
use crate::load::{Operation, Transport};
use crate::process::{Child, Output};
use crate::programs;

const CONFIGURATION: &str = include_str!("kamailio.cfg");
const TLS_FILE: &str = "tls.cfg";
const OPENSSL_FILE: &str = "openssl.cnf";
/// The suite that our side prefers, for both servers: Kamailio leaves those of TLS 1.3 to its library, which would
/// choose AES with 256 bits.
const OPENSSL: &str = "openssl_conf = main\n[main]\nssl_conf = ssl\n[ssl]\nsystem_default = all\n[all]\n\
    MinProtocol = TLSv1.3\nCiphersuites = TLS_AES_128_GCM_SHA256\n";

pub(super) fn start(setup: &Setup, site: &Site<'_>) -> Outcome<Child> {
    let mut more = Vec::new();
    if let Some(look_ups) = setup.look_ups {
        more.extend(["-n".into(), look_ups.connections.to_string().into()]);
    }
    run(site, "32", more, &defines(setup, site))
}

/// Starts it with so many MiB of private memory for each process, more options, and what the configuration is to have
/// defined.
pub(super) fn run(site: &Site<'_>, private: &str, more: Vec<OsString>, defines: &[String]) -> Outcome<Child> {
    let program = programs::find("kamailio").ok_or_else(|| {
        Failure::Usage("kamailio is missing (Debian: kamailio, kamailio-mysql-modules)".to_owned())
    })?;
    let config = site.write("kamailio.cfg", CONFIGURATION)?;
    if let Some(certificates) = site.certificates {
        site.write(TLS_FILE, &tls(&certificates.server()))?;
        site.write(OPENSSL_FILE, OPENSSL)?;
    }
    // Its default allocator (qm) is three times slower: fm for shared and private memory.
    let mut line = words([
        "", "-DD", "-E", "-m", "4096", "-M", private, "-x", "fm", "-X", "fm", "-f",
    ]);
    if let Some(first) = line.first_mut() {
        *first = program.into();
    }
    line.push(config.into());
    for (option, path) in [("-Y", site.directory.clone()), ("-P", site.directory.join("pid"))] {
        line.extend([option.into(), path.into()]);
    }
    line.extend(more);
    for define in defines {
        line.extend(["-A".into(), define.into()]);
    }
    if site.certificates.is_some() {
        let mut variable = OsString::from("OPENSSL_CONF=");
        variable.push(site.directory.join(OPENSSL_FILE));
        line.splice(..0, ["env".into(), variable]);
    }
    site.start("kamailio", line, Output::Log)
}

/// Whether one of its modules is there: where Debian puts it, or where it is built to look.
pub(super) fn has_module(name: &str) -> bool {
    let module = format!("kamailio/modules/{name}.so");
    let mut roots: Vec<PathBuf> = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"]
        .map(PathBuf::from)
        .to_vec();
    // Debian's name for the kind of machine is a directory in between.
    let below = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    roots.extend(below.map(|entry| entry.path()));
    roots.iter().any(|root| root.join(&module).exists())
}

/// Its module's configuration: the same certificate for both sides; no certificate is verified.
pub(super) fn tls((certificate, key): &(PathBuf, PathBuf)) -> String {
    let side = |name: &str| {
        format!(
            "[{name}:default]\nmethod = TLSv1.2+\nverify_certificate = no\nrequire_certificate = no\n\
             certificate = {}\nprivate_key = {}\n",
            certificate.display(),
            key.display()
        )
    };
    side("server") + &side("client")
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
        format!("TLS_CONFIG=\"{}\"", site.directory.join(TLS_FILE).display()),
    ];
    let more = [
        (case.auth, "DIGEST"),
        (case.transport == Transport::Tcp, "OVER_TCP"),
        (case.transport == Transport::Tls, "OVER_TLS"),
        (case.durable, "ON_DISK"),
    ];
    defines.extend(
        more.iter()
            .filter(|(is_so, _)| *is_so)
            .map(|(_, name)| (*name).to_owned()),
    );
    defines
}

#[cfg(test)]
mod tests {
    use super::super::{Certificates, with_site};
    use super::*;
    use crate::case::{Case, Server};

    /// The configuration as Kamailio reads it with these names defined: without what they leave out.
    fn preprocessed(text: &str, defines: &[String]) -> String {
        let name = |define: &String| define.split('=').next().unwrap_or_default().to_owned();
        let mut names: Vec<String> = defines.iter().map(name).collect();
        // Whether each of the conditions around a line holds.
        let mut holds: Vec<bool> = Vec::new();
        let mut kept = String::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("#!ifdef ") {
                holds.push(names.iter().any(|known| known == name));
            } else if line == "#!else" {
                let last = holds.last_mut().expect("a condition");
                *last = !*last;
            } else if line == "#!endif" {
                holds.pop().expect("a condition");
            } else if holds.iter().all(|holds| *holds) {
                match line.strip_prefix("#!define ") {
                    Some(name) => names.push(name.to_owned()),
                    None => kept.push_str(&format!("{line}\n")),
                }
            }
        }
        assert!(holds.is_empty(), "a condition without its end");
        kept
    }

    fn text(case: Case) -> String {
        let setup = Setup::of(Server::Kamailio, case);
        with_site(&setup, |site| {
            let defines = defines(&setup, site);
            format!("{defines:?}\n{}", preprocessed(CONFIGURATION, &defines))
        })
    }

    #[test]
    fn each_case_has_its_configuration() {
        use State::{Stateless, Transaction};
        use Transport::{Tcp, Tls, Udp};
        // What is in the configuration of one case and not in that of each other.
        const PARTS: [&str; 8] = [
            "listen=udp:127.0.0.1:SIP_PORT",
            "listen=tcp:127.0.0.1:SIP_PORT",
            "listen=tls:127.0.0.1:SIP_PORT",
            "\tforward();",
            "proxy_authorize(\"bench\", \"subscriber\")",
            "save(\"location\");",
            "modparam(\"usrloc\", \"db_mode\", 1)",
            "loadmodule \"db_mysql.so\"",
        ];
        for (case, expected) in [
            (Case::call(Stateless, false, Udp), &[0, 3][..]),
            (Case::call(Transaction, false, Udp), &[0]),
            (Case::call(Transaction, true, Udp), &[0, 4, 7]),
            (Case::call(Transaction, false, Tcp), &[1]),
            (Case::call(Transaction, false, Tls), &[2]),
            (Case::register(false, false), &[0, 5]),
            (Case::register(false, true), &[0, 5, 6, 7]),
        ] {
            let text = text(case);
            let found: Vec<usize> = (0..PARTS.len())
                .filter(|index| text.contains(PARTS[*index]))
                .collect();
            assert_eq!(found, expected, "{}: {text}", case.text());
            assert_eq!(text.contains("disable_tcp=yes"), case.transport == Udp, "{text}");
            assert_eq!(text.contains("loadmodule \"tls.so\""), case.transport == Tls);
        }
        let secure = text(Case::call(Transaction, false, Tls));
        assert!(
            secure.contains(r#"CALLEE=\"sip:127.0.0.1:5070;transport=tls\""#)
                && secure.contains(r#"TLS_CONFIG=\"/nowhere/tls.cfg\""#),
            "{secure}"
        );
    }

    #[test]
    fn both_sides_of_tls_show_the_servers_certificate() {
        let text = tls(&Certificates::of("/certificates".as_ref()).server());
        for side in ["[server:default]", "[client:default]"] {
            let part = text.split_once(side).map(|(_, rest)| rest).unwrap_or_default();
            assert!(
                part.starts_with("\nmethod = TLSv1.2+\nverify_certificate = no\n")
                    && part.contains("certificate = /certificates/p256.pem\n"),
                "{text}"
            );
        }
    }
}
