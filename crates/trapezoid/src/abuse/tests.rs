use std::net::SocketAddr;

use settings::{Machine, read_text};
use sip_core::event::AuthFailure;

use super::*;

/// Abuse control with these lines of `[abuse]`, and the reports of its workers. No source is banned; the
/// trust domain is 10.0.0.0/8.
pub(crate) fn opened(lines: &str) -> (Abuse, Reports) {
    let machine = Machine::default();
    let dir = tempfile::tempdir().expect("a directory").keep();
    let text = format!("[server]\ndata_dir = {dir:?}\n[abuse]\n{lines}\n[trust]\npeers = [\"10.0.0.0/8\"]\n");
    let loaded = read_text(&text, "f", None, &machine).unwrap_or_else(|problems| panic!("{problems}"));
    let (hub, mailboxes) = Hub::new(1, &loaded.shell.sockets).expect("mailboxes");
    // The mailboxes must live as long as the test.
    std::mem::forget(mailboxes);
    Abuse::open(&loaded, &hub)
}

fn failed(n: u32) -> Event {
    Event::AuthFailed {
        user: b"alice"[..].into(),
        source: SocketAddr::from((std::net::Ipv4Addr::from_bits(0xc633_0000 + n), 5060)),
        method: b"INVITE"[..].into(),
        domain: b"example.com"[..].into(),
        call_id: b"c1"[..].into(),
        reason: AuthFailure::WrongPassword,
        counts: true,
        unreported: None,
    }
}

/// Workers report a peer once in ten minutes: a lost report leaves the peer unprotected for as long.
#[test]
fn a_flood_of_failures_does_not_keep_a_peer_from_being_known() {
    let (abuse, reports) = opened("failures = 5");
    let watch = abuse.watch();
    for n in 0..REPORTS as u32 + 100 {
        watch.see(&failed(n));
    }
    assert_eq!(watch.lost.get(), 100);
    let address: IpAddr = [192, 0, 2, 44].into();
    watch.see(&Event::PeerMet { address });
    assert_eq!(watch.lost.get(), 100);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let judging = tokio::spawn(abuse.clone().run(reports));
        // All waiting reports are judged once the queue is empty.
        while abuse.0.guard.lock().watched() != (REPORTS, 1) {
            tokio::task::yield_now().await;
        }
        judging.abort();
    });
    assert!(
        abuse
            .0
            .guard
            .lock()
            .standing(unix_ms())
            .peers
            .contains(Source::of(address))
    );
}

/// An office of a hundred phones with wrong passwords is not banned; a source that guesses is.
#[test]
fn the_default_limits_ban_no_office() {
    let (abuse, _reports) = opened("");
    let mut guard = abuse.0.guard.lock();
    let now = unix_ms();
    let source = |text: &str| text.parse::<Source>().expect("a source");
    let (registered, unknown) = (source("192.0.2.10"), source("192.0.2.11"));
    for minute in 0..30 {
        for phone in 0..100 {
            let at = now + minute * 60_000 + phone * 500;
            assert!(guard.fail(at, unknown, Some(phone), false).is_none(), "{minute}");
            // In an office with registered users, each phone tries twice.
            for _ in 0..2 {
                assert!(
                    guard.fail(at, registered, Some(phone), true).is_none(),
                    "{minute}"
                );
            }
        }
    }
    let guesses = |guard: &mut Guard, source, is_shared| {
        let all = (0..10_000).take_while(|_| guard.fail(now, source, Some(1), is_shared).is_none());
        all.count()
    };
    assert_eq!(guesses(&mut guard, source("192.0.2.66"), false), 199);
    assert_eq!(guesses(&mut guard, source("192.0.2.67"), true), 1999);
}
