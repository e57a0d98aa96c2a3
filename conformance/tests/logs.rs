//! What programs read in a JSON log, and what they must not find there.

use std::fs;
use std::process::Command;

use conformance::digest::md5;
use conformance::{Client, Config, DOMAIN, Scene, Server, Transport, binary, port};
use serde_json::{Map, Value};
use test_databases::MariaDb;

use crate::abuse::{client, log_in};

/// The password of the user that tests of the log have.
pub(crate) const PASSWORD: &str = "Never-In-A-Log";

/// An INVITE for another domain is refused.
pub(crate) fn refused_call(client: &mut Client, call: &str) {
    let text = format!(
        "INVITE sip:x@elsewhere.example SIP/2.0\nMax-Forwards: 70\nFrom: \"X\" <sip:x@elsewhere.example>;tag=1\n\
         To: <sip:x@elsewhere.example>\nCall-ID: {call}\nCSeq: 1 INVITE\nContact: <sip:x@192.0.2.9>\n"
    );
    client.send(&text, call);
    assert_eq!(client.final_response().status(), 403);
}

/// The objects of a JSON log, one of each line.
fn objects(log: &str) -> Vec<Map<String, Value>> {
    let object = |line: &str| match serde_json::from_str(line) {
        Ok(Value::Object(object)) => object,
        other => panic!("no object: {line}\n{other:?}"),
    };
    log.lines().map(object).collect()
}

/// Each string is quoted by JSON alone.
fn assert_quoted_once(object: &Map<String, Value>) {
    for (key, value) in object {
        match value {
            Value::String(text) => {
                let is_quoted = text.len() > 1 && text.starts_with('"') && text.ends_with('"');
                assert!(!is_quoted, "{key} of {object:?}");
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
            Value::Array(_) | Value::Object(_) => panic!("{key} is no single value: {object:?}"),
        }
    }
}

/// The only line with this value of this field.
fn the_line<'a>(lines: &'a [Map<String, Value>], key: &str, text: &str) -> &'a Map<String, Value> {
    let found: Vec<_> = lines
        .iter()
        .filter(|line| line.get(key).is_some_and(|value| value == text))
        .collect();
    match found[..] {
        [line] => line,
        _ => panic!("{key} {text:?}: {found:?} in {lines:?}"),
    }
}

/// A second server on the same addresses: it ends with an error.
fn second_server(scene: &Scene) -> String {
    let output = Command::new(binary())
        .args(["serve", "--config"])
        .arg(scene.path("trapezoid.toml"))
        .current_dir(scene.dir())
        .output()
        .expect("the program runs");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8([output.stdout, output.stderr].concat()).expect("text")
}

#[test]
fn each_line_of_a_json_log_is_an_object_without_secrets() {
    let scene = Scene::new();
    let database = MariaDb::shared().fresh_database();
    let config = Config::new()
        .auth(&["REGISTER"])
        .subscribers(&format!("url = \"{}\"", database.url()))
        .user("alice", PASSWORD)
        // On a busy machine the first connection to the database takes a while.
        .table("[credentials]", "deadline_ms = 30000")
        .table("[log]", "level = \"debug\"\nformat = \"json\"");
    let server = Server::start(&scene, &config);
    let mut caller = client(&scene, Transport::Tcp, port::CALLER);
    assert_eq!(log_in(&mut caller, "alice", "guess", "wrong").status(), 401);
    assert_eq!(log_in(&mut caller, "alice", PASSWORD, "right").status(), 200);
    refused_call(&mut caller, "refused");
    let second = second_server(&scene);

    // The wrong value holds the password of the database.
    let file = scene.path("trapezoid.toml");
    let good = fs::read_to_string(&file).expect("a configuration");
    fs::write(&file, good.replace("mysql://", "mysq://")).expect("writable");
    let (status, answer) = server.reload();
    assert!(
        status != 200 && answer["result"] == "refused",
        "{status} {answer}"
    );
    fs::write(&file, good.replace("drain_s = 1", "drain_s = 2")).expect("writable");
    assert_eq!(server.reload().0, 200);
    let token = fs::read_to_string(scene.path("data/admin.token")).expect("a token");
    // At its end the server has logged everything.
    drop(server);

    let log = fs::read_to_string(scene.path("server.log")).expect("the log");
    let lines = objects(&log);
    let of_second = objects(&second);
    lines.iter().chain(&of_second).for_each(assert_quoted_once);
    let failed = the_line(&lines, "message", "authentication failed");
    assert_eq!(failed["level"], "INFO");
    assert_eq!(failed["user"], "alice");
    let source = failed["source"].as_str().expect("a text");
    assert_eq!(source.parse(), Ok(caller.local()));
    let refused = the_line(&lines, "message", "request refused");
    assert_eq!(refused["status"], 403);
    assert_eq!(refused["call_id"], "refused");
    the_line(&lines, "message", "the configuration is wrong; the old one stays");
    the_line(&lines, "message", "configuration reloaded");
    the_line(&lines, "message", "ended");
    let last = of_second.last().expect("a line");
    assert_eq!(last["level"], "ERROR");
    let message = last["message"].as_str().expect("a text");
    assert!(message.contains("cannot listen at"), "{message}");

    let ha1 = md5(&format!("alice:{DOMAIN}:{PASSWORD}"));
    for secret in [database.password(), PASSWORD, token.trim(), &ha1] {
        assert!(secret.len() > 4, "a secret");
        let all = format!("{log}{second}{answer}");
        let line = all.lines().find(|line| line.contains(secret));
        assert_eq!(line, None, "a secret");
    }
}
