//! Every method of a dialog, from either side: the caller behind a NAT, the callee, and both.

use conformance::{Mapping, Networks, in_networks};

use super::stage::{ALICE, BOB, Place, Stage, config, networks};
use super::talk::talk;

/// Alice and bob call each other, through a server with state and through one without.
fn calls(networks: &Networks, alice: Place<'_>, bob: Place<'_>) {
    for state in ["transaction", "stateless"] {
        let config = match state {
            "stateless" => config().stateless(),
            _ => config(),
        };
        let stage = Stage::new(networks, config);
        let mut alice = stage.agent(alice, ALICE);
        let mut bob = stage.agent(bob, BOB);
        alice.register(600);
        bob.register(600);
        talk(&mut alice, &mut bob, &format!("{state}-a"));
        talk(&mut bob, &mut alice, &format!("{state}-b"));
    }
}

fn calls_between_homes(mappings: [Mapping; 2]) {
    let networks = networks(&mappings);
    let [alice, bob] = [0, 1].map(|number| Place::Home(networks.home(number)));
    assert_eq!(alice.ip(), bob.ip());
    calls(&networks, alice, bob);
}

/// Alice is behind a NAT, bob is not: she calls, then she is called.
fn calls_between_a_home_and_the_public(mapping: Mapping) {
    let networks = networks(&[mapping]);
    let bob = Place::Public(networks.server());
    calls(&networks, Place::Home(networks.home(0)), bob);
}

#[test]
fn phones_behind_two_symmetric_nats_call_each_other() {
    if in_networks("nat::dialogs::phones_behind_two_symmetric_nats_call_each_other") {
        calls_between_homes([Mapping::Random, Mapping::Random]);
    }
}

#[test]
fn phones_behind_two_port_preserving_nats_call_each_other() {
    if in_networks("nat::dialogs::phones_behind_two_port_preserving_nats_call_each_other") {
        calls_between_homes([Mapping::PortPreserving, Mapping::PortPreserving]);
    }
}

#[test]
fn a_phone_behind_a_symmetric_nat_and_one_in_public_call_each_other() {
    if in_networks("nat::dialogs::a_phone_behind_a_symmetric_nat_and_one_in_public_call_each_other") {
        calls_between_a_home_and_the_public(Mapping::Random);
    }
}

#[test]
fn a_phone_behind_a_port_preserving_nat_and_one_in_public_call_each_other() {
    if in_networks("nat::dialogs::a_phone_behind_a_port_preserving_nat_and_one_in_public_call_each_other") {
        calls_between_a_home_and_the_public(Mapping::PortPreserving);
    }
}

/// Two homes of bob, with one Contact in both.
#[test]
fn phones_of_one_user_with_one_private_address_both_ring() {
    if !in_networks("nat::dialogs::phones_of_one_user_with_one_private_address_both_ring") {
        return;
    }
    let networks = networks(&[Mapping::PortPreserving, Mapping::PortPreserving]);
    let stage = Stage::new(&networks, config());
    let mut phones = [0, 1].map(|number| stage.agent(Place::Home(networks.home(number)), BOB));
    assert_eq!(phones[0].contact(), phones[1].contact());
    for phone in &mut phones {
        phone.register(600);
    }
    let mut alice = stage.agent(Place::Public(networks.server()), ALICE);
    alice.invite(BOB.0, "both", "");
    let invites = phones.each_mut().map(|phone| phone.expect_request("INVITE"));
    for (phone, invite) in phones.iter_mut().zip(&invites) {
        phone.answer(invite, 486, "");
        phone.expect_request("ACK");
    }
    let over = alice.expect_status(486);
    alice.acknowledge_refusal(BOB.0, &over);
}
