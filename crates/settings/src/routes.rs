//! `[[route]]`.

use regex::bytes::{Regex, RegexBuilder};
use sip_core::config::{self, Action, Redirect, Relay, RelayTarget};
use sip_core::transport::{NextHop, Transport};
use sip_message::uri::Uri;

use super::context::Context;
use super::domains::method;
use super::groups;
use super::hosts::{domain, is_token, network};
use super::model::{Do, ListenTransport, Route, Settings, StateMode, When};

/// Most bytes of one compiled pattern.
const MAX_PATTERN_BYTES: usize = 1024 * 1024;
/// The method of a rule that makes this server an edge.
const REGISTER: &str = "REGISTER";

/// Most bytes of the cache for matching one pattern.
const MAX_PATTERN_CACHE_BYTES: usize = 1024 * 1024;

/// The rules; wrong ones are left out.
pub(super) fn routes(settings: &Settings, cx: &mut Context<'_>) -> Vec<config::Route> {
    let rules = settings.route.iter().enumerate();
    rules
        .filter_map(|(i, rule)| route(i, rule, settings, cx))
        .collect()
}

fn route(i: usize, route: &Route, settings: &Settings, cx: &mut Context<'_>) -> Option<config::Route> {
    let when = when(i, &route.when, cx);
    let action = action(i, &route.r#do, settings, cx)?;
    if let Some(j) = route.when.method.iter().position(|method| method == REGISTER) {
        registers((i, j), route, &action, settings, cx);
    }
    let stateless = route.state.unwrap_or(settings.state.mode) == StateMode::Stateless;
    if route.r#do.recurse && stateless {
        let what = "without state nothing is known of the request when the 3xx comes";
        let remedy = "write state = \"transaction\" in this rule, or remove it";
        cx.problem(&format!("route[{i}].do.recurse"), what, remedy);
    }
    Some(config::Route {
        when,
        action,
        auth: route.auth,
        state: route.state.map(state_mode),
        record_route: route.record_route,
    })
}

/// Checks a rule that names REGISTER as its method `j`: it relays to the registrar of a domain that is not served here.
fn registers(
    (i, j): (usize, usize),
    route: &Route,
    action: &Action,
    settings: &Settings,
    cx: &mut Context<'_>,
) {
    let remedy = "relay to the registrar: a URI or \"group:NAME\"";
    match action {
        Action::Relay(Relay {
            target: RelayTarget::Uri(_) | RelayTarget::Group(_),
            ..
        })
        | Action::Reject { .. } => {}
        Action::Relay(_) => {
            let target = route.r#do.relay.as_deref().unwrap_or_default();
            let what = format!("{target:?} is no registrar, to which a REGISTER could go");
            cx.problem(&format!("route[{i}].do.relay"), what, remedy);
        }
        Action::Redirect(_) => {
            let what = "a REGISTER is not redirected";
            cx.problem(&format!("route[{i}].do.redirect"), what, remedy);
        }
    }
    if route.auth == Some(true) {
        let what = "the registrar asks for the credentials of a REGISTER, and not this server";
        let remedy = "remove it, or give REGISTER a rule of its own";
        cx.problem(&format!("route[{i}].auth"), what, remedy);
    }
    let named = route.when.domain.as_deref().and_then(domain);
    let is_it = |text: &str| named.is_some() && domain(text) == named;
    let mut served = settings.domain.iter();
    if let Some(served) =
        served.find(|served| is_it(&served.name) || served.aliases.iter().any(|alias| is_it(alias)))
    {
        let what = format!("users of {} register here, as [[domain]] has it", served.name);
        let remedy = "remove REGISTER, or that domain from [[domain]]";
        cx.problem(&format!("route[{i}].when.method[{j}]"), what, remedy);
    }
}

/// The core's value of the state mode.
pub(super) fn state_mode(mode: StateMode) -> config::StateMode {
    match mode {
        StateMode::Stateless => config::StateMode::Stateless,
        StateMode::Transaction => config::StateMode::Transaction,
    }
}

fn when(i: usize, when: &When, cx: &mut Context<'_>) -> config::When {
    let methods = when.method.iter().enumerate();
    let methods = methods
        .filter_map(|(j, text)| {
            let path = format!("route[{i}].when.method[{j}]");
            match text.as_str() {
                // RFC 3261 §16.6, §16.10: ACK and CANCEL follow their INVITE.
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

/// Name and value of a header field, in the form in which the core compares them.
type HeaderIs = (Box<[u8]>, Box<[u8]>);

fn header(i: usize, name: &str, value: &str, cx: &mut Context<'_>) -> Option<HeaderIs> {
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

fn pattern(i: usize, when: &When, cx: &mut Context<'_>) -> Option<Regex> {
    compiled(&format!("route[{i}].when.uri"), when.uri.as_ref()?, false, cx)
}

/// Compiles the pattern at `path`.
pub(super) fn compiled(path: &str, text: &str, any_case: bool, cx: &mut Context<'_>) -> Option<Regex> {
    // URIs are ASCII (RFC 3986 §2). Without Unicode the tables of character classes stay small.
    let built = RegexBuilder::new(text)
        .unicode(false)
        .case_insensitive(any_case)
        .size_limit(MAX_PATTERN_BYTES)
        .dfa_size_limit(MAX_PATTERN_CACHE_BYTES)
        .nest_limit(64)
        .build();
    match built {
        Ok(regex) => Some(regex),
        Err(error) => {
            if matches!(error, regex::Error::CompiledTooBig(_)) {
                cx.problem(
                    path,
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
                    path,
                    format!("not a regular expression: {cause}"),
                    "in TOML write patterns in 'single quotes'",
                );
            }
            None
        }
    }
}

fn action(i: usize, action: &Do, settings: &Settings, cx: &mut Context<'_>) -> Option<Action> {
    let path = format!("route[{i}].do");
    let given = [
        ("relay", action.relay.is_some()),
        ("redirect", action.redirect.is_some()),
        ("reject", action.reject.is_some()),
    ];
    let given: Vec<&str> = given
        .into_iter()
        .filter(|(_, is)| *is)
        .map(|(key, _)| key)
        .collect();
    let &[verb] = given.as_slice() else {
        if given.is_empty() {
            let remedy = "write { relay = \"sip:192.0.2.1\" }, { relay = \"location\" }, \
                          { redirect = \"location\" } or { reject = 403 }";
            cx.problem(&path, "none of relay, redirect and reject", remedy);
        } else {
            cx.problem(&path, given.join(" and "), "keep one of them");
        }
        return None;
    };
    belonging(&path, verb, action, cx);
    if let Some(target) = &action.relay {
        relay(&path, target, action, settings, cx)
    } else if let Some(target) = &action.redirect {
        redirect(&format!("{path}.redirect"), target, cx).map(Action::Redirect)
    } else {
        let reason = action.reason.as_deref().unwrap_or_default();
        if reason.contains(|c: char| c.is_control()) {
            let remedy = "write one line of text";
            cx.problem(&format!("{path}.reason"), "has control characters", remedy);
        }
        action.reject.map(|status| Action::Reject {
            status,
            reason: reason.as_bytes().into(),
        })
    }
}

/// Checks that every other key belongs to the given one of the three verbs.
fn belonging(path: &str, verb: &str, action: &Do, cx: &mut Context<'_>) {
    let given = [
        ("strip", "relay", action.strip != 0),
        ("prefix", "relay", !action.prefix.is_empty()),
        ("rewrite_host", "relay", action.rewrite_host),
        ("timeout_s", "relay", action.timeout_s.is_some()),
        ("recurse", "relay", action.recurse),
        ("reason", "reject", action.reason.is_some()),
    ];
    for (key, of, given) in given {
        if given && of != verb {
            cx.problem(&format!("{path}.{key}"), format!("belongs to {of}"), "remove it");
        }
    }
}

fn relay(path: &str, target: &str, action: &Do, settings: &Settings, cx: &mut Context<'_>) -> Option<Action> {
    let target = relay_target(&format!("{path}.relay"), target, settings, cx)?;
    if action.rewrite_host && matches!(target, RelayTarget::Location | RelayTarget::RequestUri) {
        let remedy = "remove it, or relay to a URI or a group";
        cx.problem(
            &format!("{path}.rewrite_host"),
            "there is no host to take",
            remedy,
        );
    }
    if action.recurse && target == RelayTarget::RequestUri {
        let what = "the next hop that is asked speaks for no domain of ours";
        let remedy = "remove it, or relay to \"location\", a URI or a group";
        cx.problem(&format!("{path}.recurse"), what, remedy);
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
        recurse: action.recurse,
    }))
}

fn relay_target(path: &str, text: &str, settings: &Settings, cx: &mut Context<'_>) -> Option<RelayTarget> {
    let remedy = "write \"location\", \"request-uri\", \"group:NAME\" or a URI as \"sip:192.0.2.1:5060;transport=tcp\"";
    let target = match (text, text.strip_prefix("group:")) {
        ("location", _) => Ok(RelayTarget::Location),
        ("request-uri", _) => Ok(RelayTarget::RequestUri),
        (_, Some(name)) => groups::find(&settings.group, name).map(RelayTarget::Group),
        (uri, None) => next_hop(uri, remedy, cx).map(RelayTarget::Uri),
    };
    target
        .map_err(|(what, remedy)| cx.problem(path, what, remedy))
        .ok()
}

/// The target of a 302. The caller connects to it, so any transport is allowed.
fn redirect(path: &str, text: &str, cx: &mut Context<'_>) -> Option<Redirect> {
    if text == "location" {
        return Some(Redirect::Location);
    }
    let cause = match Uri::parse(text.as_bytes()) {
        Ok(Uri::Sip(_)) => return Some(Redirect::Uri(text.as_bytes().into())),
        Ok(Uri::Tel(_) | Uri::Other { .. }) => String::new(),
        Err(error) => format!(": {error}"),
    };
    let remedy = "write \"location\" or a URI as \"sip:gw1.example.net\"";
    cx.problem(path, format!("{text:?} is not a SIP URI{cause}"), remedy);
    None
}

/// Reads a SIP URI to which requests can be sent from here. `remedy` is for texts that are no SIP URI.
pub(super) fn next_hop(text: &str, remedy: &str, cx: &Context<'_>) -> Result<NextHop, (String, String)> {
    let not = |cause: &str| (format!("{text:?} is not a SIP URI{cause}"), remedy.to_owned());
    let uri = match Uri::parse(text.as_bytes()) {
        Ok(Uri::Sip(uri)) => uri,
        Ok(Uri::Tel(_) | Uri::Other { .. }) => return Err(not("")),
        Err(error) => return Err(not(&format!(": {error}"))),
    };
    let name = uri.transport().map(String::from_utf8_lossy);
    let transport = match (&name, uri.transport().map(Transport::parse)) {
        (None, _) => None,
        (_, Some(Some(known @ (Transport::Udp | Transport::Tcp | Transport::Tls)))) => Some(known),
        (Some(name), Some(Some(Transport::Ws | Transport::Wss))) => {
            let what = format!("transport={name}: a WebSocket is opened by the other side (RFC 7118 §5)");
            return Err((what, "use udp, tcp or tls".to_owned()));
        }
        (Some(name), _) => {
            let what = format!("transport={name} is not known");
            return Err((what, "use udp, tcp or tls".to_owned()));
        }
    };
    // RFC 3261 §26.2.2, RFC 5630 §3.1.3: sips with transport=tcp is TLS as well. Over UDP there is no TLS.
    if uri.secure && transport == Some(Transport::Udp) {
        let what = "sips: and transport=udp exclude each other".to_owned();
        return Err((what, "remove one of them".to_owned()));
    }
    let needed = match transport {
        _ if uri.secure => Some(ListenTransport::Tls),
        Some(Transport::Tls) => Some(ListenTransport::Tls),
        Some(Transport::Tcp) => Some(ListenTransport::Tcp),
        Some(Transport::Udp) => Some(ListenTransport::Udp),
        Some(Transport::Ws | Transport::Wss) | None => None,
    };
    if let Some(needed) = needed.filter(|needed| !cx.speaks.is_empty() && !cx.speaks.contains(needed)) {
        let name = needed.name();
        let what = format!(
            "no listener speaks {}, from which it could be sent",
            name.to_uppercase()
        );
        return Err((what, format!("add a [[listen]] with transport = \"{name}\"")));
    }
    NextHop::parse(text.as_bytes())
        .ok_or_else(|| (format!("{text:?} has a maddr that is no host"), remedy.to_owned()))
}
