//! Kamailio as a neighbouring proxy.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::child::{Child, wait_within};
use crate::{Authority, Identity, STARTING, Scene, Transport, tool};

/// A Kamailio that keeps transactions, records the route, and sends new requests to one place.
#[derive(Debug)]
pub struct Kamailio {
    child: Child,
}

/// What Kamailio shows to its neighbours and asks of them, over TLS.
#[derive(Debug, Clone, Copy)]
pub struct Secured<'a> {
    /// Its certificate.
    pub identity: &'a Identity,
    /// The authority that must have signed its neighbours' certificates.
    pub authority: &'a Authority,
    /// Whether neighbours that connect to it must show one.
    pub mutual: bool,
}

impl Kamailio {
    /// Starts Kamailio on `local`, in front of `target`. `None` if it is not installed and may be missing.
    ///
    /// # Panics
    /// When Kamailio does not start.
    pub fn start(scene: &Scene, transport: Transport, local: SocketAddr, target: SocketAddr) -> Option<Self> {
        let target = format!("sip:{target};transport={}", transport.name());
        Self::start_on(scene, &[(transport, local)], &target, None)
    }

    /// Starts Kamailio on all of these addresses, in front of a URI. TLS needs `secured`. A message that goes
    /// over TLS on one side should go over TCP on the other, so that one worker of Kamailio has both.
    ///
    /// # Panics
    /// When Kamailio does not start.
    pub fn start_on(
        scene: &Scene,
        listen: &[(Transport, SocketAddr)],
        target: &str,
        secured: Option<Secured<'_>>,
    ) -> Option<Self> {
        let text = configuration(listen, target, secured, &scene.path("kamailio-tls.cfg"));
        Self::start_as(scene, listen, &text)
    }

    /// Starts Kamailio as the registrar and proxy of a domain, behind an edge: it knows these users with their
    /// passwords, keeps the Path of their phones, and gives out a Service-Route.
    ///
    /// # Panics
    /// When Kamailio does not start.
    pub fn start_registrar(scene: &Scene, local: SocketAddr, users: &[(&str, &str)]) -> Option<Self> {
        let mut passwords = String::new();
        for (user, password) in users {
            let written = writeln!(
                passwords,
                "    if ($au == \"{user}\") $var(password) = \"{password}\";"
            );
            assert!(written.is_ok(), "writing to a string");
        }
        let text = REGISTRAR
            .replace("{dialogs}", DIALOGS)
            .replace("{passwords}", &passwords)
            .replace("{local}", &local.to_string());
        let text = format!("{}{text}", MODULES.replace("{workers}", "2"));
        Self::start_as(
            scene,
            &[(Transport::Udp, local)],
            &text.replace("{extra}", &format!("listen=udp:{local}")),
        )
    }

    fn start_as(scene: &Scene, listen: &[(Transport, SocketAddr)], text: &str) -> Option<Self> {
        let kamailio = tool("kamailio")?;
        let run = scene.path("kamailio.run");
        std::fs::create_dir_all(&run).expect("its directory");
        let file = scene.path("kamailio.cfg");
        std::fs::write(&file, text).expect("its configuration");
        let mut command = Command::new(kamailio);
        command
            .args(["-DD", "-E", "-m", "64", "-M", "8", "-f"])
            .arg(&file);
        command
            .arg("-Y")
            .arg(&run)
            .arg("-P")
            .arg(run.join("pid"))
            .current_dir(scene.dir());
        let log = scene.path("kamailio.log");
        let mut child = Child::start_with_others("kamailio", &mut command, &log);
        for (transport, local) in listen {
            wait_within("Kamailio listens", STARTING, || {
                assert!(child.ended().is_none(), "Kamailio ended at its start");
                let probe = std::net::UdpSocket::bind((scene.ip(), 0)).expect("a socket");
                match transport {
                    Transport::Udp => answers(&probe, &local.to_string()),
                    Transport::Tcp | Transport::Tls | Transport::Ws | Transport::Wss => {
                        std::net::TcpStream::connect(local).is_ok()
                    }
                }
            });
        }
        Some(Self { child })
    }
}

/// Its configuration; that of TLS goes into a file of its own.
fn configuration(
    listen: &[(Transport, SocketAddr)],
    target: &str,
    secured: Option<Secured<'_>>,
    tls: &Path,
) -> String {
    let mut extra = String::new();
    for (transport, local) in listen {
        // A WebSocket begins as a connection that SIP might use.
        let name = match transport {
            Transport::Udp => "udp",
            Transport::Tcp | Transport::Ws => "tcp",
            Transport::Tls | Transport::Wss => "tls",
        };
        let written = writeln!(extra, "listen={name}:{local}");
        assert!(written.is_ok(), "writing to a string");
    }
    if let Some(secured) = secured {
        std::fs::write(tls, secured.configuration()).expect("its configuration of TLS");
        extra.push_str("enable_tls=yes");
    }
    // Its workers are processes that share the errors of OpenSSL 3: one takes another's for its own and closes a
    // good connection (github.com/kamailio/kamailio/issues/3695, mended after 5.6).
    let workers = if secured.is_some() { "1" } else { "2" };
    let mut more = String::new();
    if secured.is_some() {
        more.push_str(&TLS.replace("{file}", &tls.display().to_string()));
    }
    if listen.iter().any(|(transport, _)| transport.is_websocket()) {
        more.push_str(WEBSOCKET);
    }
    let text = format!("{MODULES}{CONFIG}")
        .replace("{dialogs}", DIALOGS)
        .replace("{extra}", &extra)
        .replace("{target}", target);
    text.replace("{more}", &more).replace("{workers}", workers)
}

impl Secured<'_> {
    fn configuration(&self) -> String {
        let keys = |require: bool| {
            let yes = |wanted: bool| if wanted { "yes" } else { "no" };
            format!(
                "method = TLSv1.2+\nverify_certificate = {}\nrequire_certificate = {}\n\
                 private_key = {}\ncertificate = {}\nca_list = {}\n",
                yes(require),
                yes(require),
                self.identity.key.display(),
                self.identity.certificate.display(),
                self.authority.file().display(),
            )
        };
        format!(
            "[server:default]\n{}\n[client:default]\n{}",
            keys(self.mutual),
            keys(true)
        )
    }
}

impl Drop for Kamailio {
    /// In order, if it can; it and its workers do not outlive this in any case.
    fn drop(&mut self) {
        self.child.signal("TERM");
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.child.ended().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether an OPTIONS gets any answer.
fn answers(probe: &std::net::UdpSocket, target: &str) -> bool {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let Ok(local) = probe.local_addr() else {
        return false;
    };
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let request = format!(
        "OPTIONS sip:{target} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bKready{number}\r\nMax-Forwards: 70\r\n\
         From: <sip:probe@{local}>;tag=1\r\nTo: <sip:{target}>\r\nCall-ID: ready-{number}\r\nCSeq: 1 OPTIONS\r\n\
         Content-Length: 0\r\n\r\n"
    );
    probe
        .set_read_timeout(Some(Duration::from_millis(200)))
        .expect("a time-out");
    let mut buffer = [0; 2048];
    probe.send_to(request.as_bytes(), target).is_ok() && probe.recv(&mut buffer).is_ok()
}

const MODULES: &str = r#"
{extra}
debug=1
log_stderror=yes
children={workers}
tcp_children={workers}
auto_aliases=no
dns=no
loadmodule "kex.so"
loadmodule "tm.so"
loadmodule "sl.so"
loadmodule "rr.so"
loadmodule "pv.so"
loadmodule "maxfwd.so"
loadmodule "textops.so"
loadmodule "siputils.so"
"#;

/// The beginning of the route: what is done with all that begins no dialog.
const DIALOGS: &str = r#"request_route {
    if (!mf_process_maxfwd_header("10")) {
        sl_send_reply("483", "Too Many Hops");
        exit;
    }
    if (is_method("OPTIONS") && uri == myself) {
        sl_send_reply("200", "OK");
        exit;
    }
    if (is_method("CANCEL")) {
        if (t_check_trans()) t_relay();
        exit;
    }
    if (has_totag()) {
        if (loose_route()) {
            t_relay();
        } else if (is_method("ACK") && t_check_trans()) {
            t_relay();
        } else {
            sl_send_reply("404", "Not here");
        }
        exit;
    }"#;

const CONFIG: &str = r#"
{more}

{dialogs}
    record_route();
    $du = "{target}";
    t_relay();
}
"#;

/// A phone without `path` in Supported registers all the same (`path_mode`).
const REGISTRAR: &str = r#"
loadmodule "auth.so"
loadmodule "usrloc.so"
loadmodule "registrar.so"
modparam("registrar", "use_path", 1)
modparam("registrar", "path_mode", 1)

{dialogs}
    if (is_method("ACK")) exit;
    $var(password) = "";
{passwords}
    if (is_method("REGISTER")) {
        if (!pv_www_authenticate("$td", "$var(password)", "0")) {
            www_challenge("$td", "1");
            exit;
        }
        append_to_reply("Service-Route: <sip:{local};lr>\r\n");
        save("location");
        exit;
    }
    if (!pv_proxy_authenticate("$fd", "$var(password)", "0")) {
        proxy_challenge("$fd", "1");
        exit;
    }
    consume_credentials();
    record_route();
    if (!lookup("location")) {
        sl_send_reply("404", "Not Found");
        exit;
    }
    t_relay();
}
"#;

const TLS: &str = r#"
loadmodule "tls.so"
modparam("tls", "config", "{file}")
"#;

const WEBSOCKET: &str = r#"
tcp_accept_no_cl=yes
loadmodule "xhttp.so"
loadmodule "websocket.so"

event_route[xhttp:request] {
    if ($hdr(Upgrade) =~ "websocket") {
        ws_handle_handshake();
        exit;
    }
    xhttp_reply("404", "Not Found", "", "");
}
"#;
