//! Chromium without a screen, driven over WebDriver: a phone in a web page.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::child::{Child, wait_within};
use crate::{DOMAIN, Identity, Message, STARTING, Scene, tool};

/// Between looks at it.
const PAUSE: Duration = Duration::from_millis(50);

/// The port of the page.
const PAGE: u16 = 8000;

/// Starts with what a test needs: no screen, no sandbox (tests may run as root), nothing in the
/// background that would look for hosts outside, a microphone that is made up, and media between
/// addresses of this machine.
const ARGUMENTS: [&str; 16] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    "--disable-features=WebRtcHideLocalIpsWithMdns",
    "--allow-loopback-in-peer-connection",
    "--autoplay-policy=no-user-gesture-required",
];

/// A running browser, and the server of its pages. Both end with it.
#[derive(Debug)]
pub struct Browser {
    driver: Driver,
    session: String,
    page: SocketAddr,
    _server: PageServer,
    /// Ends with the driver, and after it.
    _child: Child,
}

/// A tab of the browser with a phone in it.
#[derive(Debug)]
pub struct Tab<'a> {
    browser: &'a Browser,
    handle: String,
    user: String,
}

impl Browser {
    /// Starts it. It accepts the certificate of `trusted`, and no other that is not of an
    /// authority of the system. `None` where Chromium or its driver is missing and may be.
    ///
    /// # Panics
    /// When it does not start.
    #[track_caller]
    pub fn start(scene: &Scene, trusted: Option<&Identity>) -> Option<Self> {
        let (chromium, chromedriver) = (tool("chromium")?, tool("chromedriver")?);
        let server = PageServer::start(scene.at(PAGE));
        let log = scene.path("chromedriver.log");
        let mut command = Command::new(chromedriver);
        command.arg("--port=0").current_dir(scene.dir());
        command
            .env("HOME", scene.dir())
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_CACHE_HOME");
        let mut child = Child::start_with_others("chromedriver", &mut command, &log);
        let mut port = None;
        wait_within("chromedriver listens", STARTING, || {
            assert!(child.ended().is_none(), "chromedriver ended at its start");
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let said = text.split_once("successfully on port ").map(|(_, rest)| rest);
            port = said.and_then(|rest| rest.split(['.', '\n']).next()?.parse::<u16>().ok());
            port.is_some()
        });
        let at = (Ipv4Addr::LOCALHOST, port.expect("a port, as above")).into();
        let driver = Driver { at };
        let options = json!({ "binary": chromium, "args": arguments(scene, trusted) });
        let wanted = json!({ "browserName": "chrome", "goog:chromeOptions": options });
        let made = driver.ask(
            "POST",
            "/session",
            &json!({ "capabilities": { "alwaysMatch": wanted } }),
        );
        let session = made["sessionId"].as_str().expect("a session").to_owned();
        Some(Self {
            driver,
            session,
            page: scene.at(PAGE),
            _server: server,
            _child: child,
        })
    }

    /// Opens a tab with a phone for a user of [`DOMAIN`], which connects to `url`, a WebSocket, and
    /// registers.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn phone(&self, url: &str, user: &str, password: &str) -> Tab<'_> {
        let tab = self.command("POST", "/window/new", &json!({ "type": "tab" }));
        let tab = Tab {
            browser: self,
            handle: tab["handle"].as_str().expect("a tab").to_owned(),
            user: user.to_owned(),
        };
        tab.select();
        let page = format!("http://{}/", self.page);
        self.command("POST", "/url", &json!({ "url": page }));
        let uri = format!("sip:{user}@{DOMAIN}");
        tab.run(
            "phone.start(arguments[0])",
            &json!({ "url": url, "uri": uri, "password": password }),
        );
        tab.expect("registered", &json!(true));
        tab
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Value {
        let path = format!("/session/{}{path}", self.session);
        self.driver.ask(method, &path, body)
    }
}

fn arguments(scene: &Scene, trusted: Option<&Identity>) -> Vec<String> {
    let mut all: Vec<String> = ARGUMENTS.map(str::to_owned).to_vec();
    let profile = scene.path("chromium");
    all.push(format!("--user-data-dir={}", profile.display()));
    if let Some(identity) = trusted {
        all.push(format!(
            "--ignore-certificate-errors-spki-list={}",
            identity.spki_hash()
        ));
    }
    all
}

impl Drop for Browser {
    fn drop(&mut self) {
        // In order, if its driver can; it does not outlive that in any case.
        let path = format!("/session/{}", self.session);
        let _ = self.driver.try_ask("DELETE", &path, &Value::Null);
    }
}

impl Tab<'_> {
    /// Calls this user of [`DOMAIN`].
    pub fn call(&self, user: &str) {
        self.run("phone.call(arguments[0])", &json!(format!("sip:{user}@{DOMAIN}")));
    }

    /// Takes the call that rings.
    pub fn answer(&self) {
        self.run("phone.answer()", &Value::Null);
    }

    /// Ends the call.
    pub fn hang_up(&self) {
        self.run("phone.hangUp()", &Value::Null);
    }

    /// What it knows of itself and its call, as phone.js has it.
    pub fn state(&self) -> Value {
        self.run("return phone.state", &Value::Null)
    }

    /// Waits until a value of [`Self::state`] is this one; all of them then.
    ///
    /// # Panics
    /// When it does not become so.
    pub fn expect(&self, name: &str, value: &Value) -> Value {
        self.expect_that(name, |found| found == value)
    }

    /// Waits until a value of [`Self::state`] is as wished; all of them then.
    ///
    /// # Panics
    /// When it does not become so.
    #[track_caller]
    pub fn expect_that(&self, name: &str, wished: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + STARTING;
        loop {
            let state = self.state();
            if wished(&state[name]) {
                return state;
            }
            let user = &self.user;
            assert!(
                Instant::now() < deadline,
                "{user}'s phone, while waiting for {name}: {state}"
            );
            std::thread::sleep(PAUSE);
        }
    }

    fn select(&self) {
        let handle = json!({ "handle": self.handle });
        self.browser.command("POST", "/window", &handle);
    }

    fn run(&self, script: &str, argument: &Value) -> Value {
        self.select();
        let body = json!({ "script": script, "args": [argument] });
        self.browser.command("POST", "/execute/sync", &body)
    }
}

/// The far end of WebDriver: HTTP with JSON.
#[derive(Debug)]
struct Driver {
    at: SocketAddr,
}

impl Driver {
    #[track_caller]
    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.try_ask(method, path, body);
        let (status, value) = answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        assert_eq!(status, 200, "{method} {path} {body}: {value}");
        value
    }

    fn try_ask(&self, method: &str, path: &str, body: &Value) -> std::io::Result<(u16, Value)> {
        let mut stream = TcpStream::connect_timeout(&self.at, STARTING)?;
        // To make a session is to start a browser.
        stream.set_read_timeout(Some(2 * STARTING))?;
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.at,
            body.len()
        )?;
        // Chromium's driver does not close the connection when it is asked to.
        let mut answer = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            if let Some(bytes) = Message::take(&mut answer) {
                let message = Message::parse(&bytes);
                let status = message.first_line.split(' ').nth(1);
                let status = status.and_then(|s| s.parse().ok()).unwrap_or(0);
                let value: Value = serde_json::from_str(&message.body).unwrap_or(Value::Null);
                return Ok((status, value["value"].clone()));
            }
            match stream.read(&mut buffer)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                length => answer.extend_from_slice(&buffer[..length]),
            }
        }
    }
}

/// Serves the files of a phone in a web page.
#[derive(Debug)]
struct PageServer {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PageServer {
    #[track_caller]
    fn start(at: SocketAddr) -> Self {
        let listener = TcpListener::bind(at).expect("the page's port");
        listener.set_nonblocking(true).expect("not to block");
        let end = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&end);
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                match listener.accept() {
                    // Each by itself: Chromium opens connections ahead of need, and says nothing on some. A browser
                    // that goes away is the test's business.
                    Ok((stream, _)) => drop(std::thread::spawn(move || drop(serve(stream)))),
                    Err(_) => std::thread::sleep(Duration::from_millis(2)),
                }
            }
        });
        Self {
            end,
            thread: Some(thread),
        }
    }
}

impl Drop for PageServer {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It panics nowhere; and if it did, the browser has missed a page.
            drop(thread.join());
        }
    }
}

/// Answers one request.
fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(STARTING))?;
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            length => request.extend_from_slice(&buffer[..length]),
        }
    }
    let request = String::from_utf8_lossy(&request);
    let (file, kind) = match request.split(' ').nth(1) {
        Some("/") => ("index.html", "text/html"),
        Some("/jssip.js") => ("jssip-3.13.8.min.js", "text/javascript"),
        Some("/phone.js") => ("phone.js", "text/javascript"),
        _ => return stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
    };
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("browser");
    let text = std::fs::read(folder.join(file))?;
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        text.len()
    )?;
    stream.write_all(&text)
}
