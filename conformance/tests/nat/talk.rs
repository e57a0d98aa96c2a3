//! Whole calls between two agents, with every method of a dialog from either side.

use conformance::{Agent, Dialog, Message};

/// Methods that each side of a confirmed dialog sends, beside ACK and BYE.
const METHODS: [&str; 8] = [
    "INVITE",
    "UPDATE",
    "INFO",
    "NOTIFY",
    "MESSAGE",
    "REFER",
    "SUBSCRIBE",
    "OPTIONS",
];

/// A request of the dialog and its 200.
#[track_caller]
pub(crate) fn exchange(from: &mut Agent, dialog: &Dialog, to: &mut Agent, method: &str) {
    exchange_with(from, dialog, to, (method, ""));
}

/// The same, with further header lines.
#[track_caller]
fn exchange_with(from: &mut Agent, dialog: &Dialog, to: &mut Agent, (method, more): (&str, &str)) {
    from.in_dialog_with(method, dialog, more);
    let request = to.expect_request(method);
    to.answer(&request, 200, "");
    from.expect_status(200);
    if method == "INVITE" {
        from.in_dialog("ACK", dialog);
        to.expect_request("ACK");
    }
}

/// A call that `caller` begins. It returns the dialog as both see it.
#[track_caller]
pub(crate) fn established(caller: &mut Agent, callee: &mut Agent, call: &str) -> (Dialog, Dialog) {
    caller.invite(callee.user(), call, "");
    let invite = callee.expect_request("INVITE");
    callee.answer(&invite, 180, "");
    caller.expect_status(180);
    callee.answer(&invite, 200, "");
    let answer = caller.expect_status(200);
    let dialogs = (Dialog::of_caller(&answer), Dialog::of_callee(&invite, &answer));
    caller.in_dialog("ACK", &dialogs.0);
    callee.expect_request("ACK");
    dialogs
}

/// A call that rings until the caller takes it back. PRACK (RFC 3262) and UPDATE (RFC 3311) go by the route set that the
/// 180 has.
#[track_caller]
fn taken_back(caller: &mut Agent, callee: &mut Agent, call: &str) {
    caller.invite(callee.user(), call, "");
    let invite = callee.expect_request("INVITE");
    let ringing = callee.response(&invite, 180, "");
    let ringing = ringing.replacen(
        "Content-Length",
        "Require: 100rel\r\nRSeq: 1\r\nContent-Length",
        1,
    );
    callee.client().send_bytes(ringing.as_bytes());
    let ringing = caller.expect_status(180);
    let (of_caller, of_callee) = (Dialog::of_caller(&ringing), Dialog::of_callee(&invite, &ringing));
    let acknowledged = format!("\nRAck: 1 {}", invite.header("cseq"));
    exchange_with(caller, &of_caller, callee, ("PRACK", &acknowledged));
    exchange(caller, &of_caller, callee, "UPDATE");
    exchange(callee, &of_callee, caller, "UPDATE");
    caller.cancel(callee.user(), call);
    let cancel = callee.expect_request("CANCEL");
    callee.answer(&cancel, 200, "");
    callee.answer(&invite, 487, "");
    // Between Kamailio's processes one response may overtake the other.
    let mut both = [caller.receive(), caller.receive()];
    both.sort_by_key(Message::status);
    let [done, over] = both;
    assert_eq!((done.status(), over.status()), (200, 487), "{done:?}, {over:?}");
    caller.acknowledge_refusal(callee.user(), &over);
    callee.expect_request("ACK");
}

/// All that a caller and a callee say to each other. Each side ends a call.
#[track_caller]
pub(crate) fn talk(caller: &mut Agent, callee: &mut Agent, call: &str) {
    taken_back(caller, callee, &format!("{call}-1"));
    let (of_caller, of_callee) = established(caller, callee, &format!("{call}-2"));
    for method in METHODS {
        exchange(caller, &of_caller, callee, method);
        exchange(callee, &of_callee, caller, method);
    }
    exchange(caller, &of_caller, callee, "BYE");
    let (of_caller, of_callee) = established(caller, callee, &format!("{call}-3"));
    exchange(caller, &of_caller, callee, "INVITE");
    exchange(callee, &of_callee, caller, "BYE");
}
