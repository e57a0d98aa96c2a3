//! The first start on the built-in configuration, and where its secrets are.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{ChildStdin, Command};

use conformance::digest::md5;
use conformance::{Child, STARTING, Scene, binary, namespaces, tool, wait_until};

/// The server on the built-in configuration, as `make run` starts it, but without a terminal. Its ports are fixed, so it
/// has a network of its own: the loopback, and what this script makes with `$1`, which is `ip`.
fn first_start(scene: &Scene, network: &str) -> Option<Child> {
    let (mut command, ip) = (namespaces(&["--net"])?, tool("ip")?);
    let script = format!("\"$1\" link set lo up && {network} exec \"$0\" serve");
    command.args(["sh", "-c", &script]).arg(binary()).arg(ip);
    let log = scene.path("server.log");
    let mut server = Child::start("trapezoid serve", command.current_dir(scene.dir()), &log);
    wait_until("the lines of a first start", || {
        let log = fs::read_to_string(&log).expect("the log");
        assert_eq!(server.ended(), None, "the server ended: {log}");
        log.contains("the token of /api/v1/ was made")
    });
    Some(server)
}

/// The password of a subscriber of the first start.
fn password_of<'a>(welcome: &'a str, user: &str) -> &'a str {
    let after = welcome.split(&format!("user {user} ")).nth(1).expect(user);
    after.split_whitespace().nth(1).expect("a password")
}

#[test]
fn a_first_start_without_a_terminal_logs_no_secret() {
    let scene = Scene::new();
    let Some(mut server) = first_start(&scene, "") else {
        return;
    };
    server.signal("TERM");
    assert!(server.wait(STARTING).success());

    let log = fs::read_to_string(scene.path("server.log")).expect("the log");
    let kept = |name: &str| {
        let path = scene.path(name);
        let mode = fs::metadata(&path).expect(name).permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
        assert!(log.contains(&format!("{name} has ")), "{name} in {log}");
        fs::read_to_string(&path).expect(name)
    };
    let welcome = kept("data/first-start.txt");
    let token = kept("data/admin.token");
    let mut secrets = BTreeSet::from([token.trim().to_owned()]);
    let table = fs::read(scene.path("data/subscribers.db")).expect("the subscribers");
    for user in ["alice", "bob"] {
        let password = password_of(&welcome, user);
        let ha1 = md5(&format!("{user}:trapezoid:{password}"));
        let is_stored = table.windows(ha1.len()).any(|part| part == ha1.as_bytes());
        assert!(is_stored, "{user} has another password than {password}");
        secrets.extend([password.to_owned(), ha1]);
    }
    assert_eq!(secrets.len(), 5);
    for secret in secrets {
        assert!(!log.contains(&secret), "{secret} in {log}");
    }
}

/// The README's words on calls between two baresips: the lines for a shell, and what is entered in the phones.
fn of_the_readme() -> (Vec<&'static str>, Vec<&'static str>) {
    const README: &str = include_str!("../../README.md");
    let after = README.split("use Debian's `baresip`").nth(1);
    let mut parts = after.expect("the README's phones").split("```\n");
    let lines = parts.nth(1).expect("its lines").lines().collect();
    let entered = parts
        .next()
        .expect("what is entered")
        .split('`')
        .skip(1)
        .step_by(2);
    (lines, entered.take_while(|text| text.starts_with('/')).collect())
}

/// A phone of the README.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    log: PathBuf,
}

impl Terminal {
    #[track_caller]
    fn expect(&mut self, text: &str) {
        wait_until(&format!("{text:?} in {}", self.log.display()), || {
            assert_eq!(self.child.ended(), None, "the phone ended");
            let log = fs::read(&self.log).expect("the log");
            String::from_utf8_lossy(&log).contains(text)
        });
    }

    fn enter(&mut self, line: &str) {
        writeln!(self.keys, "{line}").expect("the phone reads");
    }
}

/// A machine with an address of its own, since baresip does without the loopback; the address is that in the README.
#[test]
fn the_phones_of_the_readme_call_each_other() {
    const NETWORK: &str = r#""$1" link add v0 type veth peer name v1 && "$1" address add 192.0.2.2/24 dev v0 &&
        "$1" link set v0 up && "$1" link set v1 up &&"#;
    let scene = Scene::new();
    let (Some(_), Some(nsenter)) = (tool("baresip"), tool("nsenter")) else {
        return;
    };
    let Some(mut server) = first_start(&scene, NETWORK) else {
        return;
    };
    let (lines, entered) = of_the_readme();
    let ([prepare, of_alice, of_bob], [dial, accept, hang_up]) = (&lines[..], &entered[..]) else {
        panic!("the README has {lines:?} and {entered:?}");
    };
    let welcome = fs::read_to_string(scene.path("data/first-start.txt")).expect("the passwords");
    // All but the place of the files and the passwords is as it stands there.
    let shell = |line: &str, password: &str| {
        let place = format!("{}/", scene.dir().display());
        let line = line.replace("/tmp/", &place).replace("PASSWORD", password);
        let mut command = Command::new(&nsenter);
        let of = server.id().to_string();
        command.args(["--target", &of, "--user", "--net", "--preserve-credentials"]);
        command.args(["sh", "-c", &line]);
        command
    };
    let prepared = shell(prepare, "").status().expect("nsenter runs");
    assert!(prepared.success(), "{prepare}: {prepared}");
    let start = |line: &str, user: &str| {
        let log = scene.path(&format!("baresip-{user}.log"));
        let mut command = shell(line, password_of(&welcome, user));
        let (child, keys) = Child::start_with_input(user, &mut command, &log);
        Terminal { child, keys, log }
    };
    let (mut alice, mut bob) = (start(of_alice, "alice"), start(of_bob, "bob"));
    for phone in [&mut alice, &mut bob] {
        phone.expect("[1 binding]");
    }
    alice.enter(dial);
    bob.expect("Incoming call from:");
    bob.enter(accept);
    alice.expect("Call established: sip:bob@127.0.0.1");
    bob.expect("Call established: sip:alice@127.0.0.1");
    alice.enter(hang_up);
    bob.expect("session closed");
    drop((alice, bob));
    server.signal("TERM");
    assert!(server.wait(STARTING).success());
}
