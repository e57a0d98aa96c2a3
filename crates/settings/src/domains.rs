//! `[[domain]]`.

use std::collections::HashMap;

use sip_core::config::{self, AuthPolicy};

use super::context::Context;
use super::hosts::{domain as read_domain, is_token};
use super::listeners::Listening;
use super::model::{self, Settings};

/// Name and realm of the domain that is served if none is configured. The realm is part of every stored hash,
/// so it is a word that no change of address or name affects.
const BUILT_IN: &str = "trapezoid";

/// Methods in the spelling of their RFCs, to detect `invite`.
const METHODS: [&str; 14] = [
    "INVITE",
    "ACK",
    "BYE",
    "CANCEL",
    "REGISTER",
    "OPTIONS",
    "PRACK",
    "SUBSCRIBE",
    "NOTIFY",
    "PUBLISH",
    "INFO",
    "REFER",
    "MESSAGE",
    "UPDATE",
];

/// The domains; the built-in one if none is configured.
pub(super) fn domains(
    settings: &Settings,
    listening: &Listening,
    cx: &mut Context<'_>,
) -> Vec<config::Domain> {
    let built_in = [model::Domain {
        name: BUILT_IN.to_owned(),
        aliases: Vec::new(),
        own_hosts: true,
        auth: model::Auth::default(),
    }];
    let entries = if settings.domain.is_empty() {
        built_in.as_slice()
    } else {
        &settings.domain
    };
    let mut seen: HashMap<Box<[u8]>, String> = HashMap::new();
    let mut out = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        let path = format!("domain[{i}].name");
        let name = name(&entry.name, path, &mut seen, cx).unwrap_or_default();
        let aliases = entry.aliases.iter().enumerate();
        let aliases: Vec<Box<[u8]>> = aliases
            .filter_map(|(j, alias)| name_of_alias(alias, i, j, &mut seen, cx))
            .collect();
        let auth = auth(i, entry, cx);
        out.push(config::Domain { name, aliases, auth });
    }
    own_hosts(entries, &mut out, &seen, listening, cx);
    out
}

fn name_of_alias(
    alias: &str,
    i: usize,
    j: usize,
    seen: &mut HashMap<Box<[u8]>, String>,
    cx: &mut Context<'_>,
) -> Option<Box<[u8]>> {
    name(alias, format!("domain[{i}].aliases[{j}]"), seen, cx)
}

/// A name, which no other domain may have.
fn name(
    text: &str,
    path: String,
    seen: &mut HashMap<Box<[u8]>, String>,
    cx: &mut Context<'_>,
) -> Option<Box<[u8]>> {
    let Some(name) = read_domain(text) else {
        let what = format!("{text:?} is not a domain name");
        cx.problem(
            &path,
            what,
            "write it as \"example.com\", without \"sip:\" and port",
        );
        return None;
    };
    if let Some(first) = seen.get(&name) {
        cx.problem(
            &path,
            format!("{text:?} is already {first}"),
            "remove one of them",
        );
        return None;
    }
    seen.insert(name.clone(), path);
    Some(name)
}

/// Adds every own host to the domain with `own_hosts`.
fn own_hosts(
    entries: &[model::Domain],
    out: &mut [config::Domain],
    seen: &HashMap<Box<[u8]>, String>,
    listening: &Listening,
    cx: &mut Context<'_>,
) {
    let mut asking = entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| entry.own_hosts)
        .map(|(i, _)| i);
    let Some(first) = asking.next() else { return };
    for i in asking {
        let what = format!("domain[{first}] has them already");
        cx.problem(&format!("domain[{i}].own_hosts"), what, "set it for one domain");
    }
    let mut hosts: Vec<Box<[u8]>> = listening.own_hosts.iter().map(|own| own.host.clone()).collect();
    let addresses = listening
        .listeners
        .iter()
        .map(|listener| listener.address.ip().to_string());
    hosts.extend(addresses.map(|text| text.into_bytes().into()));
    hosts.push(b"localhost".as_slice().into());
    if let Some(host_name) = cx.machine.host_name.as_deref().and_then(read_domain) {
        hosts.push([&host_name, b".local".as_slice()].concat().into());
        hosts.push(host_name);
    }
    hosts.sort();
    hosts.dedup();
    if let Some(domain) = out.get_mut(first) {
        domain
            .aliases
            .extend(hosts.into_iter().filter(|host| !seen.contains_key(host)));
    }
}

fn auth(i: usize, entry: &model::Domain, cx: &mut Context<'_>) -> AuthPolicy {
    let realm = entry.auth.realm.as_deref().unwrap_or(&entry.name);
    // The realm is a quoted-string in the challenge, and phones differ in escaping quotes and backslashes.
    if realm.is_empty()
        || realm.len() > 255
        || realm.contains(|c: char| c.is_control() || c == '"' || c == '\\')
    {
        let what = format!("{realm:?} cannot be a realm");
        cx.problem(
            &format!("domain[{i}].auth.realm"),
            what,
            "write 1 to 255 characters without quotes and backslashes",
        );
    }
    let mut algorithms = Vec::new();
    for (j, algorithm) in entry.auth.algorithms.iter().enumerate() {
        let algorithm = match algorithm {
            model::Algorithm::Md5 => config::Algorithm::Md5,
            model::Algorithm::Sha256 => config::Algorithm::Sha256,
            model::Algorithm::Sha512_256 => config::Algorithm::Sha512_256,
        };
        if algorithms.contains(&algorithm) {
            cx.problem(
                &format!("domain[{i}].auth.algorithms[{j}]"),
                "named twice",
                "remove it",
            );
        }
        algorithms.push(algorithm);
    }
    let methods = entry.auth.methods.iter().enumerate();
    let methods = methods
        .filter_map(|(j, text)| {
            let path = format!("domain[{i}].auth.methods[{j}]");
            if text == "ACK" || text == "CANCEL" {
                // RFC 3261 §22.1: no response to ACK; CANCEL is not submitted again.
                cx.problem(&path, format!("{text} cannot be challenged"), "remove it");
            }
            method(text, &path, cx)
        })
        .collect();
    AuthPolicy {
        realm: realm.as_bytes().into(),
        methods,
        algorithms,
        nonce_lifetime_s: entry.auth.nonce_lifetime_s,
        strict_uri: entry.auth.strict_uri,
    }
}

/// A method; methods are case-sensitive (RFC 3261 §7.1).
pub(super) fn method(text: &str, path: &str, cx: &mut Context<'_>) -> Option<Box<[u8]>> {
    let known = METHODS.iter().find(|known| known.eq_ignore_ascii_case(text));
    match known {
        Some(known) if *known != text => {
            cx.problem(
                path,
                format!("{text:?} is not a method"),
                format!("write \"{known}\""),
            );
            None
        }
        None if !is_token(text) => {
            cx.problem(
                path,
                format!("{text:?} is not a method"),
                "write a name as \"INVITE\"",
            );
            None
        }
        Some(_) | None => Some(text.as_bytes().into()),
    }
}
