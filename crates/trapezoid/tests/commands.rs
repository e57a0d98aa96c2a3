//! The commands, through the built binary.

use crate::common;

use std::net::UdpSocket;

use common::{Place, run};

fn told((code, stdout, stderr): &(i32, String, String)) -> (i32, &str, &str) {
    (*code, stdout, stderr)
}

/// `trapezoid user …` in one directory.
struct Users(tempfile::TempDir);

impl Users {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn user(&self, arguments: &[&str], input: &str) -> (i32, String, String) {
        let output = run(self.0.path(), &[&["user"], arguments].concat(), input);
        let (code, stdout, stderr) = told(&output);
        (code, stdout.to_owned(), stderr.to_owned())
    }

    fn add(&self, name: &str, password: &str) -> (i32, String, String) {
        self.user(&["add", name, "--password-stdin"], password)
    }

    fn passwd(&self, name: &str, password: &str) -> (i32, String, String) {
        self.user(&["passwd", name, "--password-stdin"], password)
    }
}

/// An exit code and a line on standard error, nothing on standard output.
fn said(code: i32, text: &str) -> (i32, String, String) {
    (code, String::new(), format!("{text}\n"))
}

#[test]
fn subscribers_come_and_go() {
    let users = Users::new();
    let listed = |text: &str| (0, text.to_owned(), String::new());
    assert_eq!(users.user(&["list"], ""), listed(""));
    assert_eq!(
        users.add("alice@trapezoid", "secret\n"),
        said(0, "added alice@trapezoid")
    );
    // The only domain may be left out, and an alias of it may be used; the server's own name counts as one.
    assert_eq!(users.add("bob", "secret"), said(0, "added bob@trapezoid"));
    assert_eq!(
        users.add("carol@127.0.0.1", "secret\r\n"),
        said(0, "added carol@trapezoid")
    );
    assert_eq!(
        users.passwd("bob@trapezoid", "new\n"),
        said(0, "changed bob@trapezoid")
    );
    assert_eq!(
        users.user(&["del", "carol@trapezoid"], ""),
        said(0, "deleted carol@trapezoid")
    );
    assert_eq!(
        users.user(&["list"], ""),
        listed("alice@trapezoid\nbob@trapezoid\n")
    );
    let (_, json, _) = users.user(&["list", "--json", "trapezoid"], "");
    let list: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let entry = |user| serde_json::json!({ "user": user, "domain": "trapezoid" });
    assert_eq!(list, serde_json::json!([entry("alice"), entry("bob")]));
    let database = std::fs::read(users.0.path().join("data/subscribers.db")).expect("the default place");
    assert!(
        !database.windows(6).any(|bytes| bytes == b"secret"),
        "no plain password is stored"
    );
}

#[test]
fn wrong_subscribers_and_passwords_are_refused() {
    let users = Users::new();
    assert_eq!(
        users.add("alice@trapezoid", "secret\n"),
        said(0, "added alice@trapezoid")
    );
    assert_eq!(
        users.add("alice@trapezoid", "other\n"),
        said(1, "alice@trapezoid exists already")
    );
    let foreign = "elsewhere is not served here; the configuration has trapezoid";
    assert_eq!(users.add("alice@elsewhere", "x\n"), said(2, foreign));
    let empty = "an empty password is none; nothing was changed";
    assert_eq!(users.add("dave@trapezoid", "\n"), said(2, empty));
    assert_eq!(users.add("da ve@trapezoid", "x\n").0, 2);
    let (code, _, stderr) = users.add("dave@trapezoid", &"x".repeat(2000));
    assert_eq!(
        (code, stderr.contains("1024 bytes at most")),
        (2, true),
        "{stderr}"
    );
    assert_eq!(
        users.passwd("dave@trapezoid", "new\n"),
        said(1, "no subscriber dave@trapezoid")
    );
    assert_eq!(
        users.user(&["del", "dave@trapezoid"], ""),
        said(1, "no subscriber dave@trapezoid")
    );
}

#[test]
fn two_domains_need_a_choice() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = "[subscribers]\nurl = \"sqlite:s.db\"\n[[domain]]\nname = \"a.example\"\n[[domain]]\nname = \"b.example\"\n";
    std::fs::write(dir.path().join("t.toml"), text).expect("writable");
    let add = |name| {
        run(
            dir.path(),
            &["user", "add", name, "--password-stdin", "--config", "t.toml"],
            "x\n",
        )
    };
    let output = add("alice");
    let expected = "alice: which domain? Write alice@DOMAIN, one of a.example, b.example\n";
    assert_eq!(told(&output), (2, "", expected));
    assert_eq!(told(&add("alice@B.Example")), (0, "", "added alice@b.example\n"));
    let list = run(
        dir.path(),
        &["user", "list", "a.example", "--config", "t.toml"],
        "",
    );
    assert_eq!(told(&list), (0, "", ""));
    assert!(dir.path().join("s.db").exists(), "relative to the file");
    assert!(!dir.path().join("data").exists(), "nothing else is made");
}

#[test]
fn check_tells_everything_that_is_wrong() {
    let dir = tempfile::tempdir().expect("a directory");
    let check = |text: &str| {
        std::fs::write(dir.path().join("t.toml"), text).expect("writable");
        run(dir.path(), &["check", "--config", "t.toml"], "")
    };
    let good = "[[listen]]\ntransport = \"udp\"\naddress = \"127.0.0.1:5060\"\n";
    assert_eq!(
        told(&check(good)),
        (0, "", "t.toml: valid; 1 listener, 1 domain, 0 routes, 0 groups\n")
    );
    let wrong = "[server]\nnmae = \"x\"\nworkers = 1000\n[admin]\nlisten = \"x\"\n";
    let expected = "t.toml:2: server.nmae: unknown key; did you mean \"name\"?\n\
         t.toml:3: server.workers: 1000 is out of range; 0 to 256\n\
         t.toml:5: admin.listen: \"x\" is not an address and port; write it as \"127.0.0.1:8080\", or \"off\"\n";
    assert_eq!(told(&check(wrong)), (2, "", expected));
    let missing = run(dir.path(), &["check", "--config", "no.toml"], "");
    let expected =
        "no.toml: No such file or directory (os error 2); name a readable TOML file with --config\n";
    assert_eq!(told(&missing), (2, "", expected));
}

#[test]
fn data_goes_to_standard_output() {
    let dir = tempfile::tempdir().expect("a directory");
    let schema = run(dir.path(), &["config-schema"], "");
    let (code, stdout, stderr) = told(&schema);
    assert_eq!((code, stderr), (0, ""));
    let schema: serde_json::Value = serde_json::from_str(stdout).expect("JSON");
    assert_eq!(
        schema["properties"]["server"]["properties"]["drain_s"]["default"],
        32
    );
    for shell in ["bash", "zsh", "fish"] {
        let completions = run(dir.path(), &["completions", shell], "");
        let (code, stdout, stderr) = told(&completions);
        assert_eq!((code, stderr), (0, ""));
        assert!(stdout.contains("config-schema"), "{shell}");
    }
    for wrong in [
        &["frobnicate"][..],
        &["check"],
        &["user", "add"],
        &["completions", "csh"],
        &[],
    ] {
        let output = run(dir.path(), wrong, "");
        let (code, stdout, stderr) = told(&output);
        assert_eq!((code, stdout), (2, ""), "{wrong:?}");
        assert!(!stderr.is_empty(), "{wrong:?}");
    }
}

#[test]
fn check_tries_what_the_configuration_names() {
    let dir = tempfile::tempdir().expect("a directory");
    // A gateway that answers, a port on which no server listens, and a name server that does not answer.
    let gateway = UdpSocket::bind("127.0.0.1:0").expect("binds");
    let there = gateway.local_addr().expect("an address");
    // Of an address that is this test's own.
    let place = Place::claim();
    let closed: std::net::SocketAddr = place.at(5060);
    let silent = UdpSocket::bind("127.0.0.1:0").expect("binds");
    let names = silent.local_addr().expect("an address");
    let answering = std::thread::spawn(move || {
        let mut request = [0; 2048];
        let (length, from) = gateway.recv_from(&mut request).expect("a request");
        let request = String::from_utf8_lossy(&request[..length]).into_owned();
        let copied = request.lines().filter(|line| {
            let heads = ["Via:", "From:", "To:", "Call-ID:", "CSeq:"];
            heads.iter().any(|head| line.starts_with(head))
        });
        let lines: String = copied.map(|line| format!("{line}\r\n")).collect();
        let answer = format!("SIP/2.0 405 Method Not Allowed\r\n{lines}Content-Length: 0\r\n\r\n");
        gateway.send_to(answer.as_bytes(), from).expect("sends");
        request
    });
    let config = |names: std::net::SocketAddr, members: &str| {
        format!(
            "[[listen]]\ntransport = \"udp\"\naddress = \"127.0.0.1:5060\"\n[[listen]]\ntransport = \"tcp\"\n\
             address = \"127.0.0.1:5060\"\n[dns]\nnameservers = [\"{names}\"]\ntimeout_ms = 200\n\
             [[group]]\nname = \"carriers\"\nmembers = [ {members} ]\n[[route]]\ndo = {{ relay = \"group:carriers\" }}\n"
        )
    };
    let all = format!(
        "{{ uri = \"sip:{there}\" }}, {{ uri = \"sip:{closed};transport=tcp\" }}, {{ uri = \"sip:gw.example\" }}"
    );
    std::fs::write(dir.path().join("t.toml"), config(names, &all)).expect("writable");
    let run = || common::run(dir.path(), &["check", "--connect", "--config", "t.toml"], "");
    let (code, _, text) = run();
    assert_eq!(code, 1, "{text}");
    for line in [
        "subscribers.db: not there yet; it is made when it is needed".to_owned(),
        format!("ok: group carriers: sip:{there}: udp {there}: responds 405 Method Not Allowed"),
        format!("failed: group carriers: sip:{closed};transport=tcp: tcp {closed}: Connection refused"),
        format!("failed: name server {names}: gives no result for trapezoid"),
        "failed: group carriers: sip:gw.example: name service does not respond".to_owned(),
        "3 of these failed".to_owned(),
    ] {
        assert!(text.contains(&line), "{line} in {text}");
    }
    assert!(answering.join().expect("it ends").starts_with("OPTIONS sip:"));
    assert!(!dir.path().join("data").exists(), "nothing is written");
    // A name server that knows no name answers all the same.
    let empty = common::empty_name_server();
    std::fs::write(
        dir.path().join("t.toml"),
        config(empty, "{ uri = \"sip:gw.example\" }"),
    )
    .expect("writable");
    let (code, _, text) = run();
    assert_eq!(code, 0, "{text}");
    for line in [
        format!("ok: name server {empty}: responds, in "),
        "warning: group carriers: sip:gw.example: its name has no address that a listener's transport"
            .to_owned(),
    ] {
        assert!(text.contains(&line), "{line} in {text}");
    }
    // Without the option nothing is tried.
    let (code, _, text) = common::run(dir.path(), &["check", "--config", "t.toml"], "");
    assert!(code == 0 && !text.contains("ok:"), "{text}");
}
