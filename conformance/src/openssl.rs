//! OpenSSL's command line as a TLS client of another make.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::child::wait_until;
use crate::{Authority, DOMAIN, Identity, Scene, Transport, tool};

/// What `openssl s_client` does against one server.
#[derive(Debug, Clone)]
pub struct SClient<'a> {
    scene: &'a Scene,
    arguments: Vec<String>,
}

impl<'a> SClient<'a> {
    /// A client of the server in `scene`, at its port for TLS, that wants a certificate of this
    /// authority for [`DOMAIN`]. `None` where OpenSSL is missing and may be.
    pub fn new(scene: &'a Scene, authority: &Authority) -> Option<Self> {
        tool("openssl")?;
        let at = scene.at(Transport::Tls.port()).to_string();
        let client = Self {
            scene,
            arguments: vec![],
        };
        let file = authority.file();
        let names = ["-connect", &at, "-servername", DOMAIN, "-verify_hostname", DOMAIN];
        let more = ["-verify_return_error", "-nocommands", "-CAfile"];
        Some(
            client
                .with(&names)
                .with(&more)
                .with(&[&file.display().to_string()]),
        )
    }

    /// With further arguments.
    pub fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|a| (*a).to_owned()));
        self
    }

    /// Shows a certificate of its own.
    pub fn presenting(self, identity: &Identity) -> Self {
        let [certificate, key] = [&identity.certificate, &identity.key].map(|p| p.display().to_string());
        self.with(&["-cert", &certificate, "-key", &key])
    }

    /// Runs it: sends an OPTIONS over its (last) connection, waits for the 200, and ends. What it
    /// has printed.
    ///
    /// # Panics
    /// When there is no 200.
    #[track_caller]
    pub fn run(&self) -> String {
        let (said, success) = self.run_until(|said| said.contains("SIP/2.0 200 "));
        assert!(success, "{:?}\n{said}", self.arguments);
        said
    }

    /// Runs it where it should fail. What it has printed.
    ///
    /// # Panics
    /// When it got an answer.
    #[track_caller]
    pub fn run_refused(&self) -> String {
        let (said, success) = self.run_until(|said| said.contains("SIP/2.0 200 "));
        assert!(!success, "{:?}\n{said}", self.arguments);
        assert!(!said.contains("SIP/2.0"), "{said}");
        said
    }

    /// Its words, and whether `done` came before its end.
    #[track_caller]
    fn run_until(&self, done: impl Fn(&str) -> bool) -> (String, bool) {
        let log = self.scene.path("s_client.log");
        let out = File::create(&log).expect("a log file");
        let err = out.try_clone().expect("a log file");
        let mut child = Command::new("openssl")
            .arg("s_client")
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(out)
            .stderr(err)
            .spawn()
            .expect("starting openssl");
        let mut input = child.stdin.take().expect("its input");
        // It reads this once it is connected. Where it ends before, that is seen below.
        let _ = input.write_all(self.options().as_bytes());
        let mut success = false;
        wait_until("openssl s_client", || {
            // In this order: what it has said before its end is read.
            let has_ended = child.try_wait().expect("a child can be asked").is_some();
            success = done(&read(&log));
            success || has_ended
        });
        drop(input);
        wait_until("the end of openssl s_client", || {
            child.try_wait().expect("a child can be asked").is_some()
        });
        (read(&log), success)
    }

    fn options(&self) -> String {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let at = self.scene.at(Transport::Tls.port());
        format!(
            "OPTIONS sip:{at} SIP/2.0\r\nVia: SIP/2.0/TLS {ip}:1;branch=z9hG4bKopenssl{number};rport\r\n\
             Max-Forwards: 70\r\nFrom: <sip:openssl@{DOMAIN}>;tag=1\r\nTo: <sip:{at}>\r\n\
             Call-ID: openssl-{number}\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n",
            ip = self.scene.ip(),
        )
    }
}

fn read(log: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(log).unwrap_or_default()).into_owned()
}

/// Makes a file with one key for session tickets, as an operator would. `None` where OpenSSL is
/// missing and may be.
///
/// # Panics
/// When it cannot be written.
#[track_caller]
pub fn make_ticket_keys(path: &Path) -> Option<()> {
    use std::os::unix::fs::PermissionsExt;
    let openssl = tool("openssl")?;
    let random = Command::new(openssl).args(["rand", "-base64", "48"]).output();
    let random = random.expect("openssl rand");
    let text = String::from_utf8_lossy(&random.stdout).into_owned();
    std::fs::write(path, format!("0 {}\n", text.trim())).expect("writing keys");
    let owner_only = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, owner_only).expect("guarding keys");
    Some(())
}
