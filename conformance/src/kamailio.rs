//! Kamailio as a neighbouring proxy.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use crate::child::{Child, wait_until};
use crate::{Scene, Transport, tool};

/// A Kamailio that keeps transactions, records the route, and sends new requests to one place.
#[derive(Debug)]
pub struct Kamailio {
    child: Child,
}

impl Kamailio {
    /// Starts it on `local`, in front of `target`. `None` where it is missing and may be.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(scene: &Scene, transport: Transport, local: SocketAddr, target: SocketAddr) -> Option<Self> {
        let kamailio = tool("kamailio")?;
        let name = transport.name();
        let config = CONFIG
            .replace("{local}", &format!("{name}:{local}"))
            .replace("{target}", &format!("sip:{target};transport={name}"));
        let file = scene.path("kamailio.cfg");
        let run = scene.path("kamailio.run");
        std::fs::create_dir_all(&run).expect("its directory");
        std::fs::write(&file, config).expect("its configuration");
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
        let mut child = Child::start("kamailio", &mut command, &log);
        wait_until("Kamailio listens", Duration::from_secs(15), || {
            assert!(child.ended().is_none(), "Kamailio ended at its start");
            let probe = std::net::UdpSocket::bind((scene.ip(), 0)).expect("a socket");
            let target = local.to_string();
            match transport {
                Transport::Tcp => std::net::TcpStream::connect(local).is_ok(),
                Transport::Udp => answers(&probe, &target),
            }
        });
        Some(Self { child })
    }
}

impl Drop for Kamailio {
    /// Its workers end with their parent, which a plain kill would leave behind.
    fn drop(&mut self) {
        self.child.signal("TERM");
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        while self.child.ended().is_none() && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether an OPTIONS gets any answer.
fn answers(probe: &std::net::UdpSocket, target: &str) -> bool {
    let Ok(local) = probe.local_addr() else {
        return false;
    };
    let request = format!(
        "OPTIONS sip:{target} SIP/2.0\r\nVia: SIP/2.0/UDP {local};branch=z9hG4bKprobe{port}\r\nMax-Forwards: 70\r\n\
         From: <sip:probe@{local}>;tag=1\r\nTo: <sip:{target}>\r\nCall-ID: probe{port}\r\nCSeq: 1 OPTIONS\r\n\
         Content-Length: 0\r\n\r\n",
        port = local.port()
    );
    probe
        .set_read_timeout(Some(Duration::from_millis(200)))
        .expect("a time-out");
    let mut buffer = [0; 2048];
    probe.send_to(request.as_bytes(), target).is_ok() && probe.recv(&mut buffer).is_ok()
}

const CONFIG: &str = r#"
listen={local}
debug=1
log_stderror=yes
children=2
tcp_children=2
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

request_route {
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
    }
    record_route();
    $du = "{target}";
    t_relay();
}
"#;
