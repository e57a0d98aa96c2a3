//! Calls that a stranger would end.

use crate::common::{Bench, CALLER, config, one, request, response, udp_flow};

/// RFC 3261 §9.1: a CANCEL has Call-ID, From, To and the number of CSeq from its INVITE. An attacker
/// that has seen a branch in a trace has no right to end the call.
#[test]
fn a_cancel_is_of_its_invite() {
    let mut bench = Bench::new(&config());
    let invite = bench.udp(CALLER, &request("INVITE", "sip:bob@example.com", "a1", ""));
    let invite = invite
        .iter()
        .find(|s| s.text.starts_with("INVITE"))
        .expect("it goes on");
    let callee = invite.to;
    bench.receive(callee, &response(invite, "180 Ringing", ""));
    let cancel = request("CANCEL", "sip:bob@example.com", "a1", "");
    let stranger = "192.0.2.66:5060";
    for (what, from, text) in [
        ("from another address", stranger, cancel.clone()),
        ("another call", CALLER, cancel.replace("c1@", "c2@")),
        ("another caller", CALLER, cancel.replace("tag=f1", "tag=f2")),
        ("no caller", CALLER, cancel.replace(";tag=f1", "")),
        ("another number", CALLER, cancel.replace("CSeq: 1", "CSeq: 2")),
        (
            "a callee",
            CALLER,
            cancel.replace("To: <sip:bob@example.com>", "To: <sip:bob@example.com>;tag=t1"),
        ),
    ] {
        let sent = one(bench.udp(from, &text));
        assert_eq!(
            sent.first_line(),
            "SIP/2.0 481 Call/Transaction Does Not Exist",
            "{what}"
        );
        assert_eq!(sent.to, udp_flow(from), "{what}");
    }
    // Another port of the same host, as behind a translator, is the same.
    let sent = bench.udp("192.0.2.10:6060", &cancel);
    assert!(
        sent.iter().any(|s| s.first_line() == "SIP/2.0 200 OK"),
        "{sent:?}"
    );
    assert!(
        sent.iter()
            .any(|s| s.to == callee && s.text.starts_with("CANCEL")),
        "{sent:?}"
    );
}
