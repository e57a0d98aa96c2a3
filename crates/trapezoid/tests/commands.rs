//! The commands, through the built binary.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn run(dir: &Path, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_trapezoid"))
        .args(arguments)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // A command that fails early does not read its input.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    child.wait_with_output().expect("it ends")
}

/// Exit code, standard output, standard error.
fn told(output: &Output) -> (i32, &str, &str) {
    let text = |bytes| std::str::from_utf8(bytes).expect("text");
    (
        output.status.code().expect("no signal"),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn subscribers_come_and_go() {
    let dir = tempfile::tempdir().expect("a directory");
    let user = |arguments: &[&str], input: &str| {
        let output = run(dir.path(), &[&["user"], arguments].concat(), input);
        let (code, stdout, stderr) = told(&output);
        (code, stdout.to_owned(), stderr.to_owned())
    };
    let said = |code, text: &str| (code, String::new(), format!("{text}\n"));
    let add = |name: &str, password: &str| user(&["add", name, "--password-stdin"], password);

    assert_eq!(user(&["list"], ""), (0, String::new(), String::new()));
    assert_eq!(
        add("alice@trapezoid", "secret\n"),
        said(0, "added alice@trapezoid")
    );
    // The only domain may be left out, and an alias of it may be used; the server's own name counts as one.
    assert_eq!(add("bob", "secret"), said(0, "added bob@trapezoid"));
    assert_eq!(
        add("carol@127.0.0.1", "secret\r\n"),
        said(0, "added carol@trapezoid")
    );
    assert_eq!(
        add("alice@trapezoid", "other\n"),
        said(1, "alice@trapezoid exists already")
    );
    assert_eq!(
        add("alice@elsewhere", "x\n"),
        said(2, "elsewhere is not served here; the configuration has trapezoid")
    );
    assert_eq!(
        add("dave@trapezoid", "\n"),
        said(2, "an empty password is none; nothing was changed")
    );
    let (code, _, stderr) = add("da ve@trapezoid", "x\n");
    assert_eq!(code, 2, "{stderr}");
    let (code, _, stderr) = add("dave@trapezoid", &"x".repeat(2000));
    assert_eq!(
        (code, stderr.contains("1024 bytes at most")),
        (2, true),
        "{stderr}"
    );

    let changed = user(&["passwd", "bob@trapezoid", "--password-stdin"], "new\n");
    assert_eq!(changed, said(0, "changed bob@trapezoid"));
    let unknown = user(&["passwd", "dave@trapezoid", "--password-stdin"], "new\n");
    assert_eq!(unknown, said(1, "no subscriber dave@trapezoid"));

    assert_eq!(
        user(&["del", "carol@trapezoid"], ""),
        said(0, "deleted carol@trapezoid")
    );
    assert_eq!(
        user(&["del", "carol@trapezoid"], ""),
        said(1, "no subscriber carol@trapezoid")
    );
    assert_eq!(
        user(&["list"], ""),
        (0, "alice@trapezoid\nbob@trapezoid\n".to_owned(), String::new())
    );
    let (_, json, _) = user(&["list", "--json", "trapezoid"], "");
    let list: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        list,
        serde_json::json!([
            { "user": "alice", "domain": "trapezoid" },
            { "user": "bob", "domain": "trapezoid" },
        ])
    );
    let database = std::fs::read(dir.path().join("data/subscribers.db")).expect("the default place");
    assert!(
        !database.windows(6).any(|bytes| bytes == b"secret"),
        "no plain password is stored"
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
        (0, "", "t.toml: valid; 1 listeners, 1 domains, 0 routes\n")
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
