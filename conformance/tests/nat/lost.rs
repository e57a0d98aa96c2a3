//! Phones that stop to answer pings, and come back.

use std::time::Duration;

use conformance::{Agent, Home, Mapping, Networks, Part, Phone, in_networks, wait_until};

use super::stage::{ALICE, BOB, Place, Stage, config, expect_ringing, networks};

/// A server that pings each second, and bob's second phone. That one refuses calls, and is called after the others: it is
/// the only one called where the answer is its own.
struct Scenario<'a> {
    home: &'a Home,
    stage: Stage,
    second: Phone,
    alice: Agent,
}

impl<'a> Scenario<'a> {
    fn new(networks: &'a Networks) -> Self {
        let stage = Stage::new(networks, config().table("[nat]", "ping_s = 1\n"));
        let refuses = Part::Refuse(486, Duration::ZERO);
        let second = stage.phone(Place::Home(networks.home(1)), refuses);
        second.register_with(BOB.0, BOB.1, "0.5");
        stage.wait_for_ping(networks.home(1), "answered");
        let alice = stage.agent(Place::Public(networks.server()), ALICE);
        Self {
            home: networks.home(0),
            stage,
            second,
            alice,
        }
    }

    /// The first phone of bob's, in the other home: it rings.
    fn first(&self) -> Phone {
        let phone = self.stage.phone(Place::Home(self.home), Part::Ring);
        phone.register_with(BOB.0, BOB.1, "1");
        phone
    }

    /// Waits until the first phone is lost. A call goes to the second one then, and is over before any time-out.
    #[track_caller]
    fn expect_passed_over(&mut self, call: &str) {
        self.stage.wait_for_ping(self.home, "lost");
        let before = self.second.count("INVITE");
        self.alice.invite(BOB.0, call, "");
        // An INVITE to the first would hold this up for 32 s (RFC 3261 §17.1.1.2, timer B).
        let refusal = self.alice.expect_status(486);
        self.alice.acknowledge_refusal(BOB.0, &refusal);
        assert_eq!(self.second.count("INVITE"), before + 1);
    }

    /// A call goes to the first phone.
    #[track_caller]
    fn expect_first(&mut self, call: &str) {
        let before = self.second.count("INVITE");
        expect_ringing(&mut self.alice, call);
        assert_eq!(self.second.count("INVITE"), before);
    }
}

fn two_homes() -> Networks {
    networks(&[Mapping::Random, Mapping::Random])
}

#[test]
fn a_phone_whose_cable_is_out_is_passed_over_until_it_answers_again() {
    if !in_networks("nat::lost::a_phone_whose_cable_is_out_is_passed_over_until_it_answers_again") {
        return;
    }
    let networks = two_homes();
    let mut scenario = Scenario::new(&networks);
    let first = scenario.first();
    scenario.stage.wait_for_ping(scenario.home, "answered");
    scenario.expect_first("before");
    scenario.home.unplug();
    scenario.expect_passed_over("meanwhile");
    assert_eq!(first.count("INVITE"), 1);
    scenario.home.plug();
    scenario.stage.wait_for_ping(scenario.home, "answered");
    scenario.expect_first("after");
    assert_eq!(first.count("INVITE"), 2);
}

#[test]
fn a_phone_that_says_nothing_is_lost_after_three_pings_until_it_registers() {
    if !in_networks("nat::lost::a_phone_that_says_nothing_is_lost_after_three_pings_until_it_registers") {
        return;
    }
    let networks = two_homes();
    let mut scenario = Scenario::new(&networks);
    let first = scenario.first();
    scenario.stage.wait_for_ping(scenario.home, "answered");
    let answered = first.count("OPTIONS");
    first.set_mute(true);
    scenario.expect_passed_over("mute");
    // The third is missed only when the fourth is due, a second later.
    assert!(first.count("OPTIONS") >= answered + 3);
    assert_eq!(first.count("INVITE"), 0);
    first.register_with(BOB.0, BOB.1, "1");
    first.set_mute(false);
    scenario.expect_first("registered");
}

#[test]
fn baresip_that_is_killed_is_passed_over_until_it_is_started_again() {
    if !in_networks("nat::lost::baresip_that_is_killed_is_passed_over_until_it_is_started_again") {
        return;
    }
    let networks = two_homes();
    let mut scenario = Scenario::new(&networks);
    let place = Place::Home(scenario.home);
    let Some(mut first) = scenario.stage.baresip(place, 1, BOB) else {
        return;
    };
    first.expect_registered();
    scenario.stage.wait_for_ping(scenario.home, "answered");
    drop(first);
    scenario.expect_passed_over("killed");
    let mut first = scenario.stage.baresip(place, 1, BOB).expect("baresip, as above");
    first.expect_registered();
    scenario.alice.invite(BOB.0, "again", "");
    first.expect_event("CALL_INCOMING");
    scenario.alice.expect_status(180);
}

/// A phone that does not know OPTIONS is no worse off than without pings: after three it gets few more, and is called.
#[test]
fn a_phone_that_never_answered_a_ping_is_not_lost() {
    if !in_networks("nat::lost::a_phone_that_never_answered_a_ping_is_not_lost") {
        return;
    }
    let networks = two_homes();
    let mut scenario = Scenario::new(&networks);
    let first = scenario.stage.phone(Place::Home(scenario.home), Part::Ring);
    first.set_mute(true);
    first.register_with(BOB.0, BOB.1, "1");
    wait_until("three pings", || first.count("OPTIONS") >= 3);
    // The second phone is pinged as often as the first would be. Of eight turns the first one has pings at the second, the
    // fourth and the eighth.
    let before = scenario.second.count("OPTIONS");
    wait_until("eight more", || scenario.second.count("OPTIONS") >= before + 8);
    assert!(
        (4..=6).contains(&first.count("OPTIONS")),
        "{}",
        first.count("OPTIONS")
    );
    assert_eq!(scenario.stage.ping(scenario.home), "unanswered");
    first.set_mute(false);
    scenario.expect_first("call");
}

/// CRLF has no answer by UDP.
#[test]
fn a_phone_that_gets_crlf_is_not_lost() {
    if !in_networks("nat::lost::a_phone_that_gets_crlf_is_not_lost") {
        return;
    }
    let networks = networks(&[Mapping::Random]);
    let home = networks.home(0);
    let keys = "ping = \"crlf\"\nping_s = 1\nping_lost = 1\n";
    let stage = Stage::new(&networks, config().table("[nat]", keys));
    let phone = stage.phone(Place::Home(home), Part::Ring);
    phone.register_with(BOB.0, BOB.1, "1");
    stage.wait_for_ping(home, "answered");
    phone.set_mute(true);
    let before = phone.keep_alives().len();
    wait_until("three keep-alives", || phone.keep_alives().len() >= before + 3);
    assert_eq!(stage.ping(home), "answered");
    phone.set_mute(false);
    expect_ringing(&mut stage.agent(Place::Public(networks.server()), ALICE), "call");
}
