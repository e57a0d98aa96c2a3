//! Servers that listen for a crowd of clients.

use std::path::Path;

use super::{Certificates, PATIENCE, Site};
use crate::case::Server;
use crate::failure::{Failure, Outcome};
use crate::load::{DOMAIN, Transport};
use crate::process::{Child, ports};
use crate::programs;
use crate::steps::{Key, Kind};

/// Where a server listens for the crowd.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listener<'a> {
    pub(crate) kind: Kind,
    pub(crate) port: u16,
    pub(crate) key: Key,
    pub(crate) certificates: &'a Certificates,
    /// Whether calls come by one connection at a high rate: while its other end does something else for some
    /// milliseconds, megabytes wait.
    pub(crate) has_much_to_wait: bool,
}

/// Starts a server and waits until it listens. Ours takes calls by TCP at the site's port, too. What it finds in its
/// directory stays: so it has its ticket keys again after a restart.
pub(crate) fn listen(server: Server, listener: &Listener<'_>, site: &Site<'_>) -> Outcome<Child> {
    let mut child = match server {
        Server::Trapezoid => trapezoid(listener, site)?,
        Server::Kamailio => kamailio(listener, site)?,
        Server::Floor | Server::BareRelay => {
            return Err(Failure::Usage("a relay listens for no crowd".to_owned()));
        }
    };
    child.wait_until(PATIENCE, || {
        let is_there = |port| ports::is_bound(Transport::Tcp, port);
        is_there(listener.port) && (server == Server::Kamailio || is_there(site.ports.sip))
    })?;
    Ok(child)
}

fn trapezoid(listener: &Listener<'_>, site: &Site<'_>) -> Outcome<Child> {
    let config = site.write("trapezoid.toml", &configuration(listener, site))?;
    site.serve(config)
}

/// All on loopback, the usual limits but one: the crowd comes from sixteen addresses, as if behind as many
/// NATs.
fn configuration(listener: &Listener<'_>, site: &Site<'_>) -> String {
    let ports = site.ports;
    let quoted = |path: &Path| format!("\"{}\"", path.display());
    let (certificate, key) = listener.certificates.identity(listener.key);
    let identity = if listener.kind == Kind::Tcp {
        String::new()
    } else {
        format!(
            "tls = {{ certificate = {}, key = {} }}\n",
            quoted(&certificate),
            quoted(&key)
        )
    };
    let buffer = if listener.has_much_to_wait {
        "[transport]\nwrite_buffer_bytes = 67108864\n"
    } else {
        ""
    };
    format!(
        "[server]\nworkers = {workers}\ndata_dir = \"data\"\ndrain_s = 1\n\
         [[listen]]\ntransport = \"tcp\"\naddress = \"127.0.0.1:{sip}\"\n\
         [[listen]]\ntransport = \"{transport}\"\naddress = \"127.0.0.1:{port}\"\n{identity}\
         [tls]\nca = {authority}\n\
         [location]\nurl = \"memory:\"\ndurability = \"memory\"\n\
         [[domain]]\nname = \"{DOMAIN}\"\n[domain.auth]\nmethods = []\n\
         [state]\nmode = \"transaction\"\n\
         [[route]]\nwhen = {{ method = [\"INVITE\"] }}\ndo = {{ relay = \"sip:127.0.0.1:{uas};transport=tcp\" }}\n\
         [limits]\nconnections_per_address = 0\n{buffer}\
         [admin]\nlisten = \"127.0.0.1:{admin}\"\n",
        workers = site.workers,
        sip = ports.sip,
        transport = listener.kind.transport(),
        port = listener.port,
        authority = quoted(&listener.certificates.authority()),
        uas = ports.uas,
        admin = ports.admin,
    )
}

/// Kamailio answers OPTIONS, and no more.
fn kamailio(listener: &Listener<'_>, site: &Site<'_>) -> Outcome<Child> {
    let tls = super::kamailio::tls(&listener.certificates.identity(listener.key));
    let tls = site.write("tls.cfg", &tls)?;
    let over = match listener.kind {
        Kind::Tcp => "OVER_TCP",
        Kind::Tls13 | Kind::Tls12 => "OVER_TLS",
        Kind::Wss => {
            return Err(Failure::Usage(
                "Kamailio listens for no WebSocket here".to_owned(),
            ));
        }
    };
    let callee = format!("sip:127.0.0.1:{}", site.ports.uas);
    let defines = [
        "ANSWER".to_owned(),
        over.to_owned(),
        format!("SIP_PORT={}", listener.port),
        format!("CALLEE=\"{callee}\""),
        format!("CONTACT=\"Contact: <{callee}>\\r\\n\""),
        format!("DATABASE=\"{}\"", super::database::url(0)),
        format!("TLS_CONFIG=\"{}\"", tls.display()),
    ];
    super::kamailio::run(site, "64", Vec::new(), &defines)
}

/// Why a server cannot listen for a crowd here; `None`: it can.
pub(crate) fn cannot_listen(server: Server, kind: Kind) -> Option<&'static str> {
    if server != Server::Kamailio {
        None
    } else if programs::find("kamailio").is_none() {
        Some("kamailio is not installed (Debian: kamailio, kamailio-tls-modules)")
    } else if kind != Kind::Tcp && !super::kamailio::has_module("tls") {
        Some("Kamailio's tls module is not installed (Debian: kamailio-tls-modules)")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::with_bare_site;
    use super::*;

    fn text(kind: Kind, has_much_to_wait: bool) -> String {
        let directory = tempfile::tempdir().unwrap();
        let certificates = Certificates::make(&directory.path().join("certificates")).unwrap();
        let listener = Listener {
            kind,
            port: 5061,
            key: Key::Rsa2048,
            certificates: &certificates,
            has_much_to_wait,
        };
        with_bare_site(|site| configuration(&listener, site))
    }

    #[test]
    fn each_kind_has_its_configuration() {
        let tcp = text(Kind::Tcp, false);
        assert!(
            tcp.contains("transport = \"tcp\"\naddress = \"127.0.0.1:5061\"\n[tls]\n"),
            "{tcp}"
        );
        assert!(!tcp.contains("write_buffer_bytes"));
        let tls = text(Kind::Tls12, true);
        assert!(
            tls.contains("transport = \"tls\"") && tls.contains("rsa.pem"),
            "{tls}"
        );
        assert!(tls.contains("write_buffer_bytes = 67108864\n[admin]"), "{tls}");
        assert!(text(Kind::Wss, false).contains("transport = \"wss\""));
        assert_eq!(cannot_listen(Server::Trapezoid, Kind::Wss), None);
    }
}
