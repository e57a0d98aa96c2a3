//! Registrations on a disk that is full for a while.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::Path;

use conformance::{Client, Config, Scene, Server, Transport, namespaces, port, wait_until};

use crate::abuse::{client, register};

/// What a mended store logs.
const AGAIN: &str = "location journal: writing works again";

/// Of a registration that cannot be saved (RFC 3261 §10.3, step 7: the whole update fails).
const REFUSED: u16 = 500;

/// A command that runs its arguments with a disk of one megabyte at `small` in their directory.
fn with_small_disk() -> Option<std::process::Command> {
    let mut command = namespaces(&["--mount"])?;
    let script = "mkdir small && mount -t tmpfs -o size=1m none small && exec \"$0\" \"$@\"";
    command.args(["sh", "-c", script]);
    Some(command)
}

/// Writes until the disk has no page left.
fn fill(path: &Path) {
    let mut file = File::create(path).expect("a file");
    let error = loop {
        if let Err(error) = file.write_all(&[0; 4096]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
}

/// Registers one more user; the status of the final response.
fn register_another(phone: &mut Client, number: &mut u32) -> u16 {
    *number += 1;
    let call = format!("full-disk{number}");
    phone.send(&register(&format!("user{number}"), &call, 1, ""), &call);
    phone.final_response().status()
}

/// A balancer takes the server out while it can save no registration, and in again afterwards.
#[test]
fn a_full_disk_makes_the_server_unready_until_there_is_room() {
    let scene = Scene::new();
    let Some(launcher) = with_small_disk() else { return };
    let config = Config::new().location("small/location.db");
    let server = Server::start_by(&scene, &config, launcher);
    let mut phone = client(&scene, Transport::Tcp, port::CALLER);
    let mut number = 0;
    assert_eq!(register_another(&mut phone, &mut number), 200);
    assert_eq!(server.ready().0, 200);

    let filler = server.sees(&scene.path("small/filler"));
    fill(&filler);
    // The last page of the journal has room for some.
    wait_until("a refusal", || {
        register_another(&mut phone, &mut number) == REFUSED
    });
    let (status, body) = server.ready();
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("registrations cannot be saved"), "{body}");
    let log = server.wait_for_log("registrations cannot be saved");
    assert!(log.contains("No space left on device"), "{log}");
    assert_eq!(register_another(&mut phone, &mut number), REFUSED);
    assert!(!server.log().contains(AGAIN), "the disk is still full");

    std::fs::remove_file(&filler).expect("room");
    wait_until("a registration", || {
        register_another(&mut phone, &mut number) == 200
    });
    assert_eq!(server.ready().0, 200);
    assert_eq!(register_another(&mut phone, &mut number), 200);
    // At its end the server has logged everything.
    drop(server);
    let log = std::fs::read_to_string(scene.path("server.log")).expect("the log");
    assert_eq!(log.matches(AGAIN).count(), 1, "{log}");
}
