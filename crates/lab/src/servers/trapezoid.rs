//! Ours.

use std::process::Command;

use rusqlite::Connection;

use super::database::users;
use super::{Certificates, Site, suffix};
use crate::case::{Mode, Setup, State};
use crate::failure::{Failure, Outcome};
use crate::load::{DOMAIN, Operation};
use crate::process::Child;
use crate::programs;

pub(super) fn start(setup: &Setup, site: &Site<'_>) -> Outcome<Child> {
    let config = site.write("trapezoid.toml", &configuration(setup, site))?;
    if setup.case.auth && setup.look_ups.is_none() {
        fill(site)?;
    }
    site.serve(config)
}

/// The configuration: all on loopback, no limit that the load would meet. All calls share one connection:
/// while its other end does something else for some milliseconds, megabytes wait.
fn configuration(setup: &Setup, site: &Site<'_>) -> String {
    let case = &setup.case;
    let (ports, transport) = (site.ports, case.transport.word());
    let state = match case.state {
        State::Stateless => "stateless",
        State::Transaction => "transaction",
    };
    let (location, durability) = if case.durable {
        ("sqlite:location.db", "commit")
    } else {
        ("memory:", "memory")
    };
    let methods = match (case.auth, case.operation) {
        (false, _) => "",
        (true, Operation::Register) => "\"REGISTER\"",
        (true, Operation::Call | Operation::Redirect) => "\"INVITE\"",
    };
    let callee = format!("sip:127.0.0.1:{}{}", ports.uas, suffix(case.transport));
    let tls = site.certificates.map_or_else(String::new, tls);
    let action = match case.operation {
        Operation::Redirect => "redirect",
        Operation::Call | Operation::Register => "relay",
    };
    let subscribers = site
        .database
        .filter(|_| setup.look_ups.is_some())
        .map_or_else(|| "sqlite:subscribers.db".to_owned(), super::database::url);
    let credentials = setup.look_ups.map_or_else(String::new, |look_ups| {
        let max_batch = if look_ups.mode == Mode::Single {
            1
        } else {
            look_ups.max_batch
        };
        format!(
            "[credentials]\nconnections = {}\nmode = \"{}\"\nmax_batch = {max_batch}\nmax_wait_ms = 5\n\
             cache_entries = 0\ndeadline_ms = 3000\n",
            look_ups.connections,
            look_ups.mode.word()
        )
    });
    let overload = if setup.one_queue {
        "[overload]\nnew_work_queue_bytes = 0\n"
    } else {
        ""
    };
    format!(
        "[server]\nworkers = {workers}\ndata_dir = \"data\"\ndrain_s = 1\n\
         [[listen]]\ntransport = \"{transport}\"\naddress = \"127.0.0.1:{sip}\"\n{tls}\
         [subscribers]\nurl = \"{subscribers}\"\n\
         [location]\nurl = \"{location}\"\ndurability = \"{durability}\"\n\
         [[domain]]\nname = \"{DOMAIN}\"\n[domain.auth]\nmethods = [{methods}]\n\
         [state]\nmode = \"{state}\"\n\
         [[route]]\nwhen = {{ method = [\"INVITE\"] }}\ndo = {{ {action} = \"{callee}\" }}\n\
         [transport]\nwrite_buffer_bytes = 67108864\n\
         [admin]\nlisten = \"127.0.0.1:{admin}\"\ncpu_split = true\n{overload}{credentials}",
        workers = site.workers,
        sip = ports.sip,
        admin = ports.admin,
    )
}

/// The listener's certificate, and the authority by which the callee is verified.
fn tls(certificates: &Certificates) -> String {
    let (certificate, key) = certificates.server();
    format!(
        "tls = {{ certificate = \"{}\", key = \"{}\" }}\n[tls]\nca = \"{}\"\n",
        certificate.display(),
        key.display(),
        certificates.authority().display()
    )
}

/// The file of subscribers: the program makes it with the first of them, we add the rest.
fn fill(site: &Site<'_>) -> Outcome<()> {
    let mut command = Command::new(site.program);
    command
        .args([
            "user",
            "add",
            &format!("first@{DOMAIN}"),
            "--password-stdin",
            "--config",
            "trapezoid.toml",
        ])
        .current_dir(&site.directory);
    programs::run(&mut command, "first\n").map_err(Failure::Failed)?;
    let failed = |error: rusqlite::Error| Failure::failed("the file of subscribers", error);
    let mut file = Connection::open(site.directory.join("subscribers.db")).map_err(failed)?;
    let transaction = file.transaction().map_err(failed)?;
    {
        let text = "INSERT INTO subscriber (username, domain, ha1) VALUES (?, ?, ?)";
        let mut statement = transaction.prepare(text).map_err(failed)?;
        for (name, ha1) in users() {
            statement.execute((name, DOMAIN, ha1)).map_err(failed)?;
        }
    }
    transaction.commit().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::super::with_site;
    use super::*;
    use crate::case::{Case, LookUps, Server};
    use crate::load::Transport;

    fn text(setup: &Setup) -> String {
        with_site(setup, |site| configuration(setup, site))
    }

    fn ours(case: Case) -> Setup {
        Setup::of(Server::Trapezoid, case)
    }

    #[test]
    fn each_case_has_its_configuration() {
        let call = text(&ours(Case::call(State::Stateless, false, Transport::Tcp)));
        assert!(
            call.contains("mode = \"stateless\"") && call.contains("methods = []"),
            "{call}"
        );
        assert!(
            call.contains("do = { relay = \"sip:127.0.0.1:5070;transport=tcp\" }"),
            "{call}"
        );
        assert!(!call.contains("[tls]") && !call.contains("[overload]"), "{call}");
        let one_queue = text(&Setup {
            one_queue: true,
            ..ours(Case::call(State::Stateless, false, Transport::Udp))
        });
        assert!(
            one_queue.contains("[overload]\nnew_work_queue_bytes = 0\n"),
            "{one_queue}"
        );
        assert!(call.starts_with("[server]\nworkers = 1\n"), "{call}");
        let secure = text(&ours(Case::call(State::Transaction, false, Transport::Tls)));
        assert!(
            secure.contains(
                "transport = \"tls\"\naddress = \"127.0.0.1:5060\"\n\
                 tls = { certificate = \"/certificates/p256.pem\", key = \"/certificates/p256.key\" }\n\
                 [tls]\nca = \"/certificates/authority.pem\"\n"
            ),
            "{secure}"
        );
        assert!(
            secure.contains("relay = \"sip:127.0.0.1:5070;transport=tls\""),
            "{secure}"
        );
        let digest = text(&ours(Case::call(State::Transaction, true, Transport::Udp)));
        assert!(digest.contains("methods = [\"INVITE\"]") && digest.contains("sqlite:subscribers.db"));
        assert!(!digest.contains("[credentials]"));
        let register = text(&ours(Case::register(true, true)));
        assert!(
            register.contains("methods = [\"REGISTER\"]") && register.contains("durability = \"commit\"")
        );
        let redirect = text(&ours(Case::redirect(false)));
        assert!(redirect.contains("do = { redirect = \"sip:127.0.0.1:5070\" }"));
        let mut far = ours(Case::call(State::Transaction, true, Transport::Udp));
        far.look_ups = Some(LookUps {
            connections: 8,
            mode: Mode::Single,
            max_batch: 16,
        });
        let far = text(&far);
        assert!(far.contains("mysql://") && far.contains(":3306/"), "{far}");
        assert!(
            far.contains("connections = 8\nmode = \"single\"\nmax_batch = 1\n"),
            "{far}"
        );
    }
}
