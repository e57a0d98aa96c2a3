//! baresip as a phone without a sound card, driven through its TCP control module.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::child::{Child, wait_within};
use crate::{Authority, DOMAIN, PATIENCE, STARTING, Scene, Transport, tool};

/// A running phone with one account of [`DOMAIN`].
#[derive(Debug)]
pub struct Baresip {
    user: String,
    _child: Child,
    control: TcpStream,
    pending: Vec<u8>,
    events: Vec<Value>,
}

impl Baresip {
    /// The user of the phone.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Starts a phone for `user`, its `line`-th of the scene, which registers at `server`.
    /// `None` where baresip is missing and may be.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(
        scene: &Scene,
        line: u16,
        user: &str,
        password: &str,
        transport: Transport,
        server: SocketAddr,
    ) -> Option<Self> {
        Self::start_trusting(scene, line, user, password, (transport, server), None)
    }

    /// The same; over TLS the server's certificate must be of this authority.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_trusting(
        scene: &Scene,
        line: u16,
        user: &str,
        password: &str,
        (transport, server): (Transport, SocketAddr),
        authority: Option<&Authority>,
    ) -> Option<Self> {
        let line = (line, scene.ip());
        Self::start_at(scene, line, user, password, (transport, server), authority)
    }

    /// The same, at another address than the scene's.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_at(
        scene: &Scene,
        (line, ip): (u16, IpAddr),
        user: &str,
        password: &str,
        (transport, server): (Transport, SocketAddr),
        authority: Option<&Authority>,
    ) -> Option<Self> {
        let baresip = tool("baresip")?;
        let dir = scene.path(user);
        std::fs::create_dir_all(&dir).expect("the phone's directory");
        let control = SocketAddr::new(ip, 4400 + line);
        let sip = SocketAddr::new(ip, 5100 + 10 * line);
        let (low, high) = (30_000 + 100 * line, 30_099 + 100 * line);
        let config = format!(
            "poll_method epoll\nsip_listen {sip}\nnet_interface {ip}\ncall_max_calls 4\n\
             audio_player aubridge,nil\naudio_source aubridge,nil\naudio_alert aubridge,nil\n\
             ausrc_srate 8000\nauplay_srate 8000\nausrc_channels 1\nauplay_channels 1\n\
             rtp_ports {low}-{high}\nmodule_path {modules}\n\
             module g711.so\nmodule aubridge.so\nmodule_tmp account.so\n\
             module_app menu.so\nmodule_app ctrl_tcp.so\nctrl_tcp_listen {control}\n",
            modules = modules().display(),
        );
        let trust = authority.map(|authority| format!("sip_cafile {}\n", authority.file().display()));
        let config = config + &trust.unwrap_or_default();
        let name = transport.name();
        let account = format!(
            "<sip:{user}@{DOMAIN};transport={name}>;auth_user={user};auth_pass={password};regint=600;\
             outbound=\"sip:{server};transport={name}\";answermode=manual\n"
        );
        for (file, text) in [
            ("config", config),
            ("accounts", account),
            ("contacts", String::new()),
        ] {
            std::fs::write(dir.join(file), text).expect("writing the phone's configuration");
        }
        let mut command = Command::new(baresip);
        command
            .arg("-v")
            .arg("-s")
            .arg("-f")
            .arg(&dir)
            .current_dir(scene.dir());
        let mut child = Child::start(user, &mut command, &scene.path(&format!("baresip-{user}.log")));
        let mut stream = None;
        wait_within(&format!("{user}'s phone takes commands"), STARTING, || {
            assert!(child.ended().is_none(), "{user}'s phone ended at its start");
            stream = TcpStream::connect(control).ok();
            stream.is_some()
        });
        let control = stream.expect("connected above");
        control
            .set_read_timeout(Some(Duration::from_millis(50)))
            .expect("a time-out");
        Some(Self {
            user: user.to_owned(),
            _child: child,
            control,
            pending: Vec::new(),
            events: Vec::new(),
        })
    }

    /// Gives a command of baresip's menu, such as `dial`, `accept`, `hangup`.
    pub fn command(&mut self, command: &str, params: &str) {
        let text = json!({ "command": command, "params": params, "token": command }).to_string();
        let netstring = format!("{}:{text},", text.len());
        self.control
            .write_all(netstring.as_bytes())
            .expect("the phone takes commands");
    }

    /// Waits until the phone's account is registered, as baresip itself reports it.
    ///
    /// # Panics
    /// When it does not become so.
    #[track_caller]
    pub fn expect_registered(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.command("reginfo", "");
            self.read_for(Duration::from_millis(200));
            let registered = |v: &Value| {
                let text = v["data"].as_str().unwrap_or_default();
                v["token"] == "reginfo" && text.contains("OK") && text.contains("Expires")
            };
            if self.events.iter().any(registered) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{}'s phone is not registered: {:?}",
                self.user,
                self.events
            );
        }
    }

    /// Waits for an event of a call, such as `CALL_ESTABLISHED`, and returns it.
    ///
    /// # Panics
    /// When it does not come.
    #[track_caller]
    pub fn expect_event(&mut self, kind: &str) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self
                .events
                .iter()
                .position(|v| v["event"] == true && v["type"] == kind)
            {
                return self.events.remove(at);
            }
            assert!(
                Instant::now() < deadline,
                "{}: no {kind}; it told {:?}",
                self.user,
                self.events
            );
            self.read_for(Duration::from_millis(50));
        }
    }

    fn read_for(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        let mut buffer = [0; 16_384];
        while Instant::now() < deadline {
            match self.control.read(&mut buffer) {
                Ok(0) | Err(_) => {}
                Ok(n) => self.pending.extend_from_slice(&buffer[..n]),
            }
            while let Some((value, length)) = netstring(&self.pending) {
                self.events.push(value);
                self.pending.drain(..length);
            }
        }
    }
}

/// The first complete netstring (`12:{"a": "bcd"},`) and its length in bytes.
fn netstring(bytes: &[u8]) -> Option<(Value, usize)> {
    let colon = bytes.iter().position(|&b| b == b':')?;
    let length: usize = std::str::from_utf8(&bytes[..colon]).ok()?.parse().ok()?;
    let body = bytes.get(colon + 1..colon + 1 + length)?;
    let total = colon + 1 + length + 1;
    (bytes.len() >= total).then(|| (serde_json::from_slice(body).unwrap_or(Value::Null), total))
}

/// Debian's directory, or where baresip puts itself by default.
fn modules() -> PathBuf {
    let places = [
        "/usr/lib/baresip/modules",
        "/usr/local/lib/baresip/modules",
        "/usr/lib64/baresip/modules",
    ];
    let found = places.iter().map(PathBuf::from).find(|p| p.is_dir());
    found.expect("baresip's modules")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netstrings_are_cut_at_their_length() {
        let bytes = br#"7:{"a":1},9:{"b":"#;
        assert_eq!(netstring(bytes), Some((json!({ "a": 1 }), 10)));
        assert_eq!(netstring(&bytes[10..]), None);
        assert_eq!(netstring(b"7:{\"a\":1}"), None);
    }
}
