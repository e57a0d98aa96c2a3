//! Tests of `[destinations]`.

use super::*;
use sip_core::config::Destinations;

#[test]
fn what_is_denied_by_default_is_the_cores_default() {
    let expected = Destinations {
        // The socket of the admin pages.
        own_sockets: vec!["127.0.0.1:8080".parse().unwrap()],
        ..Destinations::default()
    };
    assert_eq!(valid("").core.destinations, expected);
    let off = valid("[admin]\nlisten = \"off\"").core.destinations;
    assert_eq!(off, Destinations::default());
}

#[test]
fn a_list_takes_the_place_of_the_default() {
    let loaded = valid(
        "[destinations]\nallow = [\"10.0.0.0/24\"]\ndeny = [\"own\", \"multicast\", \"10.0.0.0/8\", \"2001:db8::1\"]\n\
         new_per_hour = 0\n",
    );
    let made = &loaded.core.destinations;
    assert!(made.own && !made.loopback && !made.groups);
    assert_eq!((made.allow.len(), made.deny.len(), made.new_per_hour), (1, 2, 0));
    assert_eq!(made.deny[1].prefix_len, 128);
}

#[test]
fn what_is_no_network_is_an_error() {
    for (config, expected) in [
        (
            "[destinations]\nallow = [\"loopback\"]\n",
            "f:2: destinations.allow[0]: \"loopback\" is not a network; write it as \"10.0.0.0/24\" or \"192.0.2.1\"",
        ),
        (
            "[destinations]\ndeny = [\"own\", \"lan\"]\n",
            "f:2: destinations.deny[1]: \"lan\" is not a network; write it as \"10.0.0.0/24\" or \"192.0.2.1\", or one \
             of \"loopback\", \"multicast\", \"own\", \"groups\"",
        ),
    ] {
        let lines = read(config).expect_err(config);
        assert_eq!(lines, [expected], "{config}");
    }
}
