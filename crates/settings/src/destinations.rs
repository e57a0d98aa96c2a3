//! `[destinations]`: conversion to the core's configuration.

use sip_core::config::{self, Network};

use super::context::Context;
use super::hosts::network;
use super::model::Settings;

/// The core's part of the table `[destinations]`.
pub(super) fn destinations(settings: &Settings, cx: &mut Context<'_>) -> config::Destinations {
    let written = &settings.destinations;
    let mut made = config::Destinations {
        allow: Vec::new(),
        deny: Vec::new(),
        loopback: false,
        own: false,
        own_sockets: Vec::new(),
        groups: false,
        new_per_hour: written.new_per_hour,
    };
    for (i, text) in written.allow.iter().enumerate() {
        let path = format!("destinations.allow[{i}]");
        made.allow.extend(network_at(&path, text, "", cx));
    }
    for (i, text) in written.deny.iter().enumerate() {
        let path = format!("destinations.deny[{i}]");
        match text.as_str() {
            "loopback" => made.loopback = true,
            "own" => made.own = true,
            "groups" => made.groups = true,
            // Multicast is always denied: nothing is ever sent there.
            "multicast" => {}
            _ => made.deny.extend(network_at(
                &path,
                text,
                ", or one of \"loopback\", \"multicast\", \"own\", \"groups\"",
                cx,
            )),
        }
    }
    made
}

fn network_at(path: &str, text: &str, also: &str, cx: &mut Context<'_>) -> Option<Network> {
    let found = network(text);
    if found.is_none() {
        cx.problem(
            path,
            format!("{text:?} is not a network"),
            format!("write it as \"10.0.0.0/24\" or \"192.0.2.1\"{also}"),
        );
    }
    found
}
