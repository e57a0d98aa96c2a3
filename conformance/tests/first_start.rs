//! The first start on the built-in configuration, and where its secrets are.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use conformance::digest::md5;
use conformance::{Child, STARTING, Scene, binary, namespaces, tool, wait_until};

/// On the built-in configuration, with the network of this machine's loopback alone: its ports are fixed.
#[test]
fn a_first_start_without_a_terminal_logs_no_secret() {
    let scene = Scene::new();
    let (Some(mut command), Some(ip)) = (namespaces(&["--net"]), tool("ip")) else {
        return;
    };
    let script = "\"$1\" link set lo up && exec \"$0\" serve";
    command.args(["sh", "-c", script]).arg(binary()).arg(ip);
    let path = scene.path("server.log");
    let mut server = Child::start("trapezoid serve", command.current_dir(scene.dir()), &path);
    let read_log = || fs::read_to_string(&path).expect("the log");
    wait_until("the lines of a first start", || {
        assert_eq!(server.ended(), None, "the server ended: {}", read_log());
        read_log().contains("the token of /api/v1/ was made")
    });
    server.signal("TERM");
    assert!(server.wait(STARTING).success());

    let log = read_log();
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
        let after = welcome.split(&format!("user {user} ")).nth(1).expect(user);
        let password = after.split_whitespace().nth(1).expect("a password");
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
