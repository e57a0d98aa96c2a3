//! Warnings about settings that are allowed but may be a mistake: logged at the start and after a reload, and
//! printed by `trapezoid check`.

use std::net::IpAddr;

use sip_core::config::{self, Action, Config, Network, RelayTarget};
use sip_core::transport::Transport;
use sip_net::tls::ClientAuth;

use super::model::{Route, Settings};
use super::patterns::{Hidden, can_match, can_match_at};
use super::{Machine, Shell, groups};

/// Shortest prefix lengths without a warning: a wider network holds more than any operator has.
const WIDEST: (u8, u8) = (8, 16);

pub(super) fn warnings(settings: &Settings, core: &Config, shell: &Shell, machine: &Machine) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(admin) = shell.admin.filter(|admin| !admin.ip().is_loopback()) {
        out.push(format!(
            "admin.listen: any host that reaches {admin} can read the metrics"
        ));
    }
    addresses(core, shell, machine, &mut out);
    trust(settings, core, shell, &mut out);
    groups::warnings(&settings.group, &core.routes, &mut out);
    rules(settings, core, &mut out);
    for domain in core.domains.iter().filter(|domain| {
        !domain
            .auth
            .methods
            .iter()
            .any(|m| matches!(&**m, b"REGISTER" | b"*"))
    }) {
        let name = String::from_utf8_lossy(&domain.name);
        out.push(format!(
            "{name}: REGISTER is not in auth.methods, so any source may take any user's calls"
        ));
    }
    out
}

/// Addresses that this machine lacks. The start fails on them, or they appear later, such as a virtual
/// address that another node holds now.
fn addresses(core: &Config, shell: &Shell, machine: &Machine, out: &mut Vec<String>) {
    let mut seen = Vec::new();
    let listeners = core.listeners.iter().map(|listener| ("listen", listener.address));
    let admin = shell.admin.map(|address| ("admin.listen", address));
    for (key, address) in listeners.chain(admin) {
        let ip = address.ip();
        let has = ip.is_unspecified()
            || ip.is_loopback()
            || machine
                .addresses
                .iter()
                .any(|(known, _)| *known == ip.to_canonical());
        if !has && !machine.addresses.is_empty() && !seen.contains(&ip) {
            seen.push(ip);
            out.push(format!("{key}: this machine does not have the address {ip}"));
        }
    }
}

fn is_everybody(network: &Network) -> bool {
    let widest = if network.address.is_ipv4() {
        WIDEST.0
    } else {
        WIDEST.1
    };
    network.prefix_len < widest
}

/// Warns about trust that is too wide, or has no effect: of peers, origins and certificates.
fn trust(settings: &Settings, core: &Config, shell: &Shell, out: &mut Vec<String>) {
    let tls = || core.listeners.iter().filter(|l| l.transport == Transport::Tls);
    let asking = || {
        let listeners = shell.tls.listeners.iter();
        listeners.filter(|listener| listener.client_auth != ClientAuth::None)
    };
    if !core.trust_names.is_empty() && tls().next().is_none() {
        out.push("trust.peers: san: has no effect without a listener of tls".to_owned());
    } else if !core.trust_names.is_empty() && asking().next().is_none() {
        out.push(
            "trust.peers: san: has no effect without a listener that asks for certificates (client_auth)"
                .to_owned(),
        );
    }
    let has_page = core.listeners.iter().any(|listener| listener.any_page);
    let sources = core
        .routes
        .iter()
        .filter(|rule| rule.auth == Some(false) && !rule.when.source.is_empty());
    if has_page && !settings.listen.is_empty() && (!core.trust.is_empty() || sources.count() > 0) {
        out.push(
            "listen.origins: without it trust.peers and a rule's source do not hold for WebSockets, as any web page may \
             open one"
                .to_owned(),
        );
    }
    behind_web_servers(core, out);
    let is_preloaded = settings.listen.iter().any(|listen| listen.preloaded_route);
    if is_preloaded && core.trust.is_empty() && core.trust_names.is_empty() {
        out.push("listen.preloaded_route has no effect without trust.peers".to_owned());
    }
    for network in core.trust.iter().filter(|network| is_everybody(network)) {
        let name = format!("{}/{}", network.address, network.prefix_len);
        out.push(format!(
            "trust.peers: {name} trusts the identity that any caller claims"
        ));
        if is_preloaded {
            out.push(format!(
                "listen.preloaded_route: with {name} in trust.peers this server relays for any source (an open relay)"
            ));
        }
    }
    for listener in asking().filter(|listener| listener.client_ca.is_none()) {
        out.push(format!(
            "{}: client_auth without client_ca: a certificate of any authority of the system is good",
            listener.label
        ));
    }
}

/// Warns about trust in the address of a listener for WebSockets: a web server of this machine in front gives its own
/// address to all browsers. Without `origins` no network counts for that listener, which has a
/// warning of its own.
fn behind_web_servers(core: &Config, out: &mut Vec<String>) {
    let is_behind = |listener: &&config::Listener| {
        let is_websocket = matches!(listener.transport, Transport::Ws | Transport::Wss);
        is_websocket && !listener.any_page && !listener.address.ip().is_unspecified()
    };
    for listener in core.listeners.iter().filter(is_behind) {
        let ip = listener.address.ip();
        let is_near =
            |network: &&Network| network.contains(ip) || (ip.is_loopback() && is_loopback_like(network, ip));
        let mut warn = |key: &str, network: &Network| {
            out.push(format!(
                "{key}: {}/{} does not hold for the clients of {} {}, as every client of a web server in front of it has \
                 that address",
                network.address,
                network.prefix_len,
                listener.transport.uri_name(),
                listener.address
            ));
        };
        for network in core.trust.iter().filter(is_near) {
            warn("trust.peers", network);
        }
        for (i, rule) in core
            .routes
            .iter()
            .enumerate()
            .filter(|(_, rule)| rule.auth == Some(false))
        {
            for network in rule.when.source.iter().filter(is_near) {
                warn(&format!("{}: when.source", rule_name(i)), network);
            }
        }
    }
}

/// Whether the network is a part of the loopback, in the family of `ip`.
fn is_loopback_like(network: &Network, ip: IpAddr) -> bool {
    network.address.is_loopback() && network.address.is_ipv4() == ip.is_ipv4()
}

/// A rule by its path, as in errors, and by its number, as in the log.
fn rule_name(i: usize) -> String {
    format!("route[{i}] (rule {})", i + 1)
}

/// Warns about rules that admit strangers, or have no effect.
fn rules(settings: &Settings, core: &Config, out: &mut Vec<String>) {
    let mut hidden = Hidden::new();
    for (i, (written, rule)) in settings.route.iter().zip(&core.routes).enumerate() {
        let name = rule_name(i);
        let is_for_all = rule.when.source.is_empty() || rule.when.source.iter().any(is_everybody);
        let why = match rule.auth {
            Some(false) => "auth = false for every source".to_owned(),
            None if rule.when.source.iter().any(is_everybody) => {
                "as its source holds every address, it".to_owned()
            }
            None => unasked(core, rule),
            Some(true) => String::new(),
        };
        if !why.is_empty() && is_for_all && !leads_to_registrar(core, rule) {
            open_door(&name, &why, written, rule, out);
        }
        let domain = rule.when.domain.as_deref();
        if let Some(host) = domain.filter(|host| !is_ours(core, host) && !is_behind(core, host)) {
            out.push(format!(
                "{name}: when.domain {} is no domain of this server",
                String::from_utf8_lossy(host)
            ));
        }
        if written.when.uri.as_deref().is_some_and(|text| !can_match(text)) {
            out.push(format!(
                "{name}: when.uri matches no Request-URI: its scheme and host are in lower case, an IPv6 address is \
                 in its shortest form, the user part is without needless escapes, and a number without -.()"
            ));
        }
        let uri = written.when.uri.as_deref().filter(|text| can_match(text));
        if let (Some(text), Some(host)) = (uri, domain)
            && !holds_in_domain(core, text, host)
        {
            out.push(format!(
                "{name}: cannot match, as when.uri matches no Request-URI in when.domain {}",
                String::from_utf8_lossy(host)
            ));
        }
        let mut before = settings.route.iter().zip(&core.routes).take(i);
        if let Some(first) = before.position(|(earlier, rule_before)| {
            covers(rule_before, rule)
                && (earlier.when.uri.as_deref())
                    .is_none_or(|earlier| uri.is_some_and(|later| hidden.hides(earlier, later)))
        }) {
            out.push(format!(
                "{name}: is never reached: {} takes all that it would",
                rule_name(first)
            ));
        }
    }
}

/// Whether this server is an edge before the registrar of this domain.
fn is_behind(core: &Config, host: &[u8]) -> bool {
    let mut rules = core.routes.iter();
    rules.any(|rule| rule.takes_register() && rule.when.domain.as_deref() == Some(host))
}

/// Whether a rule leads where another relays REGISTER to. That registrar asks for credentials itself.
fn leads_to_registrar(core: &Config, rule: &config::Route) -> bool {
    let target = |rule: &config::Route| match &rule.action {
        Action::Relay(relay) => Some(relay.target.clone()),
        Action::Redirect(_) | Action::Reject { .. } => None,
    };
    let mut registrars = core.routes.iter().filter(|rule| rule.takes_register());
    target(rule).is_some_and(|to| registrars.any(|rule| target(rule).as_ref() == Some(&to)))
}

fn open_door(name: &str, why: &str, written: &Route, rule: &config::Route, out: &mut Vec<String>) {
    let Action::Relay(relay) = &rule.action else {
        return;
    };
    let what = match relay.target {
        RelayTarget::RequestUri => "relays for any source to anywhere (an open relay)",
        RelayTarget::Group(_) | RelayTarget::Uri(_) => "lets any source call by that next hop",
        RelayTarget::Location => return,
    };
    let header = match written.when.header.is_empty() {
        true => "",
        false => "; a header is no credential, as the caller writes it",
    };
    out.push(format!("{name}: {why} {what}{header}"));
}

/// Why the rule takes calls without credentials: the domain that it names, or every domain, asks for none. Empty if it
/// takes none.
fn unasked(core: &Config, rule: &config::Route) -> String {
    let asks = |domain: &&config::Domain| {
        let methods = &domain.auth.methods;
        methods.iter().any(|m| matches!(&**m, b"INVITE" | b"*"))
    };
    let is_for = |domain: &&config::Domain| {
        let named = |host: &[u8]| rule.when.domain.as_deref() == Some(host);
        named(&domain.name) || domain.aliases.iter().any(|alias| named(alias))
    };
    let without = core.domains.iter().find(|domain| is_for(domain) && !asks(domain));
    match without {
        _ if !core.domains.iter().any(|domain| asks(&domain)) => {
            "as no domain asks for credentials, it".to_owned()
        }
        Some(domain) => format!(
            "as {} asks for no credentials, it",
            String::from_utf8_lossy(&domain.name)
        ),
        None => String::new(),
    }
}

fn is_ours(core: &Config, name: &[u8]) -> bool {
    let is_it = |known: &[u8]| known.eq_ignore_ascii_case(name);
    let of_domain = |domain: &config::Domain| is_it(&domain.name) || domain.aliases.iter().any(|a| is_it(a));
    core.domains.iter().any(of_domain) || core.own_hosts.iter().any(|own| is_it(&own.host))
}

/// Whether a pattern matches a Request-URI with a host that is a name of this domain.
fn holds_in_domain(core: &Config, pattern: &str, host: &[u8]) -> bool {
    let is_it = |known: &[u8]| known.eq_ignore_ascii_case(host);
    let of = |domain: &&config::Domain| is_it(&domain.name) || domain.aliases.iter().any(|a| is_it(a));
    let domain = core.domains.iter().find(of);
    let names = domain.map_or(vec![host], |domain| {
        let aliases = domain.aliases.iter().map(|alias| &**alias);
        aliases.chain([&*domain.name]).collect()
    });
    let names: Option<Vec<&str>> = names.into_iter().map(|name| str::from_utf8(name).ok()).collect();
    // An IP address has several spellings.
    let is_address = |name: &&str| name.starts_with('[') || name.ends_with(|c: char| c.is_ascii_digit());
    match names {
        Some(names) if !names.iter().any(is_address) => can_match_at(pattern, &names),
        Some(_) | None => true,
    }
}

/// Whether `before` takes each request that `rule` would take, as far as conditions other than `uri` go.
fn covers(before: &config::Route, rule: &config::Route) -> bool {
    let (first, then) = (&before.when, &rule.when);
    let methods = (first.methods.is_empty() && !rule.takes_register())
        || (!then.methods.is_empty() && then.methods.iter().all(|m| first.methods.contains(m)));
    let domain = first.domain.is_none() || first.domain == then.domain;
    let holds = |network: &Network| {
        let within = |wide: &Network| wide.prefix_len <= network.prefix_len && wide.contains(network.address);
        first.source.iter().any(within)
    };
    let source = first.source.is_empty() || (!then.source.is_empty() && then.source.iter().all(holds));
    let headers = first.headers.iter().all(|header| then.headers.contains(header));
    // A rule that denies also holds for requests that this server itself has sent; a rule that admits does
    // not.
    let denies =
        |rule: &config::Route| matches!(rule.action, Action::Reject { .. }) || rule.auth == Some(true);
    let loops = first.source.is_empty() || denies(before) || !denies(rule);
    methods && domain && source && headers && loops
}
