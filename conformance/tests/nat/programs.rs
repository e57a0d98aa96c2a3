//! Programs of others behind NATs: baresip and SIPp call and are called, and each side hangs up.

use conformance::{Baresip, DOMAIN, Mapping, Networks, Running, Sipp, Transport, in_networks, port};

use super::stage::{ALICE, BOB, Place, Stage, User, config, networks};

/// Calls of each SIPp, which overlap.
const CALLS: u32 = 3;

/// A user, and where its phone is.
type Line<'a> = (User, Place<'a>);

/// Alice's phone and bob's behind NATs.
fn both_in_homes(networks: &Networks) -> [Line<'_>; 2] {
    [
        (ALICE, Place::Home(networks.home(0))),
        (BOB, Place::Home(networks.home(1))),
    ]
}

/// Only alice's phone is behind a NAT.
fn one_in_public(networks: &Networks) -> [Line<'_>; 2] {
    let public = Place::Public(networks.server());
    [(ALICE, Place::Home(networks.home(0))), (BOB, public)]
}

/// One calls the other who answers; both directions, and each side hangs up.
fn baresip_calls(networks: &Networks, [alice, bob]: [Line<'_>; 2]) {
    let stage = Stage::new(networks, config());
    let Some(mut alice) = stage.baresip(alice.1, 1, alice.0) else {
        return;
    };
    let mut bob = stage.baresip(bob.1, 2, bob.0).expect("baresip, as above");
    alice.expect_registered();
    bob.expect_registered();
    for caller_hangs_up in [true, false] {
        baresip_call(&mut alice, &mut bob, caller_hangs_up);
        baresip_call(&mut bob, &mut alice, caller_hangs_up);
    }
}

fn baresip_call(caller: &mut Baresip, callee: &mut Baresip, caller_hangs_up: bool) {
    caller.command("dial", &format!("sip:{}@{DOMAIN}", callee.user()));
    callee.expect_event("CALL_INCOMING");
    caller.expect_event("CALL_RINGING");
    callee.command("accept", "");
    caller.expect_event("CALL_ESTABLISHED");
    callee.expect_event("CALL_ESTABLISHED");
    let ends = if caller_hangs_up {
        &mut *caller
    } else {
        &mut *callee
    };
    ends.command("hangup", "");
    caller.expect_event("CALL_CLOSED");
    callee.expect_event("CALL_CLOSED");
}

#[test]
fn baresip_behind_two_symmetric_nats() {
    if in_networks("nat::programs::baresip_behind_two_symmetric_nats") {
        let networks = networks(&[Mapping::Random, Mapping::Random]);
        baresip_calls(&networks, both_in_homes(&networks));
    }
}

#[test]
fn baresip_behind_two_port_preserving_nats() {
    if in_networks("nat::programs::baresip_behind_two_port_preserving_nats") {
        let networks = networks(&[Mapping::PortPreserving, Mapping::PortPreserving]);
        baresip_calls(&networks, both_in_homes(&networks));
    }
}

#[test]
fn baresip_behind_a_symmetric_nat_and_in_public() {
    if in_networks("nat::programs::baresip_behind_a_symmetric_nat_and_in_public") {
        let networks = networks(&[Mapping::Random]);
        baresip_calls(&networks, one_in_public(&networks));
    }
}

/// SIPp at the place of a line, as its user.
fn sipp<'a>(stage: &'a Stage, ((user, password), place): Line<'_>, scenario: &'static str) -> Sipp<'a> {
    let (scene, transport) = (&stage.scene, Transport::Udp);
    let sipp = match scenario {
        "uac_talk" => Sipp::client(scene, scenario, transport, port::CALLER, stage.server),
        "register_auth" => Sipp::client(scene, scenario, transport, port::CALLEE, stage.server),
        _ => Sipp::server(scene, scenario, transport, port::CALLEE),
    };
    let aor = format!("sip:{user}@{DOMAIN}");
    let sipp = sipp.at(place.ip()).set("rport", ";rport");
    sipp.set("from", aor).set("user", user).set("password", password)
}

/// The phone of a line registers: the port of its UAS, which is not there yet. `None`: SIPp is missing and may be.
fn sipp_registers(stage: &Stage, line: Line<'_>) -> Option<()> {
    let ((user, _), place) = line;
    let contact = format!(
        "Contact: <sip:{user}@{}:{};transport=udp>",
        place.ip(),
        port::CALLEE
    );
    let sipp = sipp(stage, line, "register_auth").set("to", format!("sip:{user}@{DOMAIN}"));
    let register = place.enter(|| sipp.set("contact", contact).start())?;
    register.succeed(1);
    Some(())
}

/// Calls from the one line to the other, with a re-INVITE of each side.
fn sipp_call(stage: &Stage, caller: Line<'_>, callee: Line<'_>, caller_hangs_up: bool) {
    let [of_caller, of_callee] = if caller_hangs_up {
        ["hangs_up", "is_hung_up"]
    } else {
        ["is_hung_up", "hangs_up"]
    };
    let uas = sipp(stage, callee, "uas_talk").set("end", of_callee);
    let uas = start(uas, callee.1);
    let aor = format!("sip:{}@{DOMAIN}", callee.0.0);
    let uac = sipp(stage, caller, "uac_talk").set("end", of_caller);
    let uac = start(uac.set("uri", aor.clone()).set("to", aor), caller.1);
    uac.succeed(CALLS);
    uas.succeed(CALLS);
}

fn start(sipp: Sipp<'_>, place: Place<'_>) -> Running {
    let sipp = sipp.calls(CALLS, 50);
    place.enter(|| sipp.start()).expect("SIPp, as before")
}

/// Both directions, and each side hangs up.
fn sipp_calls(networks: &Networks, [alice, bob]: [Line<'_>; 2]) {
    // A UAS of SIPp takes a ping for a call that fails.
    let stage = Stage::new(networks, config().table("[nat]", "ping = \"none\""));
    if sipp_registers(&stage, alice).is_none() {
        return;
    }
    sipp_registers(&stage, bob).expect("SIPp, as above");
    for caller_hangs_up in [true, false] {
        sipp_call(&stage, alice, bob, caller_hangs_up);
        sipp_call(&stage, bob, alice, caller_hangs_up);
    }
}

#[test]
fn sipp_behind_two_symmetric_nats() {
    if in_networks("nat::programs::sipp_behind_two_symmetric_nats") {
        let networks = networks(&[Mapping::Random, Mapping::Random]);
        sipp_calls(&networks, both_in_homes(&networks));
    }
}

#[test]
fn sipp_behind_two_port_preserving_nats() {
    if in_networks("nat::programs::sipp_behind_two_port_preserving_nats") {
        let networks = networks(&[Mapping::PortPreserving, Mapping::PortPreserving]);
        sipp_calls(&networks, both_in_homes(&networks));
    }
}

#[test]
fn sipp_behind_a_symmetric_nat_and_in_public() {
    if in_networks("nat::programs::sipp_behind_a_symmetric_nat_and_in_public") {
        let networks = networks(&[Mapping::Random]);
        sipp_calls(&networks, one_in_public(&networks));
    }
}
