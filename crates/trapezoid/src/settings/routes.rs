//! `[[route]]`.

use regex::bytes::{Regex, RegexBuilder};
use sip_core::config::{self, Action, Relay, RelayTarget};
use sip_core::transport::NextHop;
use sip_message::uri::Uri;

use super::convert::Cx;
use super::domains::method;
use super::hosts::{domain, is_token, network};
use super::model::{Do, Route, StateMode, When};

/// Bytes of one compiled pattern.
const MAX_PATTERN_BYTES: usize = 1024 * 1024;
/// Bytes of the cache that matching one pattern may use.
const MAX_PATTERN_CACHE_BYTES: usize = 1024 * 1024;

/// A rule; `None` where it is wrong.
pub(super) fn route(i: usize, route: &Route, cx: &mut Cx<'_>) -> Option<config::Route> {
    let when = when(i, &route.when, cx);
    let action = action(i, &route.r#do, cx)?;
    Some(config::Route {
        when,
        action,
        auth: route.auth,
        state: route.state.map(state_mode),
        record_route: route.record_route,
    })
}

/// The core's word for it.
pub(super) fn state_mode(mode: StateMode) -> config::StateMode {
    match mode {
        StateMode::Stateless => config::StateMode::Stateless,
        StateMode::Transaction => config::StateMode::Transaction,
    }
}

fn when(i: usize, when: &When, cx: &mut Cx<'_>) -> config::When {
    let methods = when.method.iter().enumerate();
    let methods = methods
        .filter_map(|(j, text)| {
            let path = format!("route[{i}].when.method[{j}]");
            match text.as_str() {
                "REGISTER" => cx.problem(&path, "routes are not asked for REGISTER", "remove it"),
                // RFC 3261 §16.6, §16.10: they follow their INVITE.
                "ACK" | "CANCEL" => {
                    cx.problem(&path, format!("{text} takes the path of its INVITE"), "remove it")
                }
                _ => return method(text, &path, cx),
            }
            None
        })
        .collect();
    let name = when.domain.as_ref().and_then(|text| {
        let name = domain(text);
        if name.is_none() {
            let what = format!("{text:?} is not a domain name");
            cx.problem(
                &format!("route[{i}].when.domain"),
                what,
                "write it as \"example.com\"",
            );
        }
        name
    });
    let source = when.source.iter().enumerate();
    let source = source
        .filter_map(|(j, text)| {
            let network = network(text);
            if network.is_none() {
                let path = format!("route[{i}].when.source[{j}]");
                cx.problem(
                    &path,
                    format!("{text:?} is not a network"),
                    "write it as \"10.0.0.0/8\"",
                );
            }
            network
        })
        .collect();
    let headers = when
        .header
        .iter()
        .filter_map(|(name, value)| header(i, name, value, cx))
        .collect();
    config::When {
        methods,
        uri: pattern(i, when, cx),
        domain: name,
        source,
        headers,
    }
}

/// Name and value of a header field, as the core compares them.
type HeaderIs = (Box<[u8]>, Box<[u8]>);

fn header(i: usize, name: &str, value: &str, cx: &mut Cx<'_>) -> Option<HeaderIs> {
    let path = format!("route[{i}].when.header.{name}");
    if !is_token(name) {
        cx.problem(&path, "not the name of a header field", "write it as \"X-Trunk\"");
        return None;
    }
    if value.contains(['\r', '\n']) || value.trim() != value {
        cx.problem(
            &path,
            "no header field has this value",
            "remove line ends and outer blanks",
        );
        return None;
    }
    Some((
        name.to_ascii_lowercase().into_bytes().into(),
        value.as_bytes().into(),
    ))
}

fn pattern(i: usize, when: &When, cx: &mut Cx<'_>) -> Option<Regex> {
    let text = when.uri.as_ref()?;
    // URIs are ASCII (RFC 3986 §2): without Unicode the tables of character classes stay small.
    let built = RegexBuilder::new(text)
        .unicode(false)
        .size_limit(MAX_PATTERN_BYTES)
        .dfa_size_limit(MAX_PATTERN_CACHE_BYTES)
        .nest_limit(64)
        .build();
    match built {
        Ok(regex) => Some(regex),
        Err(error) => {
            let path = format!("route[{i}].when.uri");
            if matches!(error, regex::Error::CompiledTooBig(_)) {
                cx.problem(
                    &path,
                    "the pattern compiles to more than 1 MiB",
                    "lower its repetition counts",
                );
            } else {
                let text = error.to_string();
                let cause = text
                    .lines()
                    .last()
                    .unwrap_or_default()
                    .trim_start_matches("error: ")
                    .trim();
                cx.problem(
                    &path,
                    format!("not a regular expression: {cause}"),
                    "in TOML write patterns in 'single quotes'",
                );
            }
            None
        }
    }
}

fn action(i: usize, action: &Do, cx: &mut Cx<'_>) -> Option<Action> {
    let path = format!("route[{i}].do");
    match (&action.relay, action.reject) {
        (Some(target), None) => {
            if action.reason.is_some() {
                cx.problem(&format!("{path}.reason"), "belongs to reject", "remove it");
            }
            relay(&path, target, action, cx)
        }
        (None, Some(status)) => {
            reject_alone(&path, action, cx);
            let reason = action.reason.as_deref().unwrap_or_default();
            if reason.contains(|c: char| c.is_control()) {
                cx.problem(
                    &format!("{path}.reason"),
                    "has control characters",
                    "write one line of text",
                );
            }
            Some(Action::Reject {
                status,
                reason: reason.as_bytes().into(),
            })
        }
        (Some(_), Some(_)) => {
            cx.problem(&path, "both relay and reject", "keep one of them");
            None
        }
        (None, None) => {
            let remedy = "write { relay = \"sip:192.0.2.1\" }, { relay = \"location\" } or { reject = 403 }";
            cx.problem(&path, "neither relay nor reject", remedy);
            None
        }
    }
}

/// Nothing that changes a relayed request goes with a refusal.
fn reject_alone(path: &str, action: &Do, cx: &mut Cx<'_>) {
    let given = [
        ("strip", action.strip != 0),
        ("prefix", !action.prefix.is_empty()),
        ("rewrite_host", action.rewrite_host),
        ("timeout_s", action.timeout_s.is_some()),
    ];
    for (key, _) in given.into_iter().filter(|(_, given)| *given) {
        cx.problem(&format!("{path}.{key}"), "belongs to relay", "remove it");
    }
}

fn relay(path: &str, target: &str, action: &Do, cx: &mut Cx<'_>) -> Option<Action> {
    let target = relay_target(&format!("{path}.relay"), target, cx)?;
    if action.rewrite_host && !matches!(target, RelayTarget::Uri(_)) {
        let remedy = "remove it, or relay to a URI";
        cx.problem(
            &format!("{path}.rewrite_host"),
            "there is no host to take",
            remedy,
        );
    }
    // `user` of RFC 3261 §25.1, without escapes.
    let allowed = |c: u8| c.is_ascii_alphanumeric() || b"-_.!~*'()&=+$,;?/".contains(&c);
    if !action.prefix.bytes().all(allowed) {
        let what = format!("{:?} cannot stand in the user part of a URI", action.prefix);
        cx.problem(
            &format!("{path}.prefix"),
            what,
            "use letters, digits and -_.!~*'()&=+$,;?/",
        );
    }
    Some(Action::Relay(Relay {
        target,
        strip: action.strip,
        prefix: action.prefix.as_bytes().into(),
        rewrite_host: action.rewrite_host,
        timeout_s: action.timeout_s,
        recurse: false,
    }))
}

fn relay_target(path: &str, text: &str, cx: &mut Cx<'_>) -> Option<RelayTarget> {
    match text {
        "location" => return Some(RelayTarget::Location),
        "request-uri" => return Some(RelayTarget::RequestUri),
        _ => {}
    }
    let lower = text.to_ascii_lowercase();
    let unsupported = |what: &str| format!("{what} not supported by this version");
    if lower.starts_with("group:") {
        cx.problem(
            path,
            unsupported("groups are"),
            "relay to one URI, as \"sip:gw1.example.net\"",
        );
    } else if lower.starts_with("sips:") {
        cx.problem(path, unsupported("sips: is"), "use a sip: URI");
    } else {
        match next_hop(text) {
            Ok(hop) => return Some(RelayTarget::Uri(hop)),
            Err((what, remedy)) => cx.problem(path, what, remedy),
        }
    }
    None
}

/// Reads a SIP URI that this version can send to.
fn next_hop(text: &str) -> Result<NextHop, (String, &'static str)> {
    let remedy = "write \"location\", \"request-uri\" or a URI as \"sip:192.0.2.1:5060;transport=tcp\"";
    let uri = match Uri::parse(text.as_bytes()) {
        Ok(Uri::Sip(uri)) => uri,
        Ok(Uri::Tel(_) | Uri::Other { .. }) => return Err((format!("{text:?} is not a SIP URI"), remedy)),
        Err(error) => return Err((format!("{text:?} is not a SIP URI: {error}"), remedy)),
    };
    match uri.transport() {
        Some(name) if !name.eq_ignore_ascii_case(b"udp") && !name.eq_ignore_ascii_case(b"tcp") => {
            let name = String::from_utf8_lossy(name).into_owned();
            Err((
                format!("transport={name} is not supported by this version"),
                "use udp or tcp",
            ))
        }
        _ => NextHop::parse(text.as_bytes())
            .ok_or_else(|| (format!("{text:?} has a maddr that is no host"), remedy)),
    }
}
