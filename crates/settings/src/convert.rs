//! Conversion of the settings: checks across keys, and the values for core and shell.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sip_core::config::{Config, Network, PingKind, Pings, RegistrarPolicy, Timers};
use sip_core::limits::Limits;
use sip_message::host::Host;

use super::context::Context;
use super::hosts::{network, socket_address};
use super::listeners::Listening;
use super::model::{self, NatPing, OnUnavailable, Settings};
use super::problems::Problems;
use super::tree::Node;
use super::{
    Loaded, Machine, Shell, abuse, destinations, domains, groups, listeners, routes, stores, tls, warnings,
};

/// Converts all settings. If a part is wrong, it is reported and a substitute is used.
pub(super) fn convert(
    settings: &Settings,
    tree: &Node,
    file: Option<&Path>,
    machine: &Machine,
    problems: &mut Problems,
) -> Loaded {
    let base = file.and_then(Path::parent).unwrap_or(Path::new("")).to_owned();
    let mut cx = Context {
        machine,
        speaks: settings.listen.iter().map(|listen| listen.transport).collect(),
        tree,
        base,
        problems,
    };
    if settings.server.data_dir.is_empty() {
        cx.problem("server.data_dir", "empty", "write the name of a directory");
    }
    let data_dir = cx.path(&settings.server.data_dir);
    let subscribers = stores::subscribers(settings, &data_dir, &mut cx);
    let admin_table = stores::admin_table(settings, &subscribers, &mut cx);
    let (location, registrar) = stores::location(settings, &data_dir, &subscribers, &mut cx);
    let mut tls = tls::tls(settings, &data_dir, &mut cx);
    let listening = listeners::listeners(settings, &data_dir, &mut tls, &mut cx);
    let services = listening.services.clone();
    let mut core = core(settings, listening, registrar, &mut cx);
    let admin = admin(settings, &mut cx);
    core.destinations.own_sockets.extend(admin);
    let admin_hosts = admin_hosts(settings, &mut cx);
    let admin_token = admin_token(settings, &data_dir, &mut cx);
    let shell = Shell {
        file: file.map(Path::to_owned),
        data_dir,
        drain: Duration::from_secs(settings.server.drain_s.into()),
        drain_min: Duration::from_secs(settings.server.drain_min_s.into()),
        subscribers,
        admin_table,
        location,
        cache_entries: settings.credentials.cache_entries,
        cache_ttl: Duration::from_secs(settings.credentials.cache_ttl_s.into()),
        cache_stale: Duration::from_secs(settings.credentials.cache_stale_s.into()),
        lookups: stores::lookups(&settings.credentials),
        sockets: sockets(settings, cx.machine, core.workers),
        services,
        tls,
        nameservers: nameservers(settings, &mut cx),
        dns_timeout: Duration::from_millis(settings.dns.timeout_ms.into()),
        bans: abuse::bans(settings, &mut cx),
        log: settings.log.clone(),
        admin,
        admin_hosts,
        admin_token,
        cpu_split: settings.admin.cpu_split,
    };
    let warnings = warnings::warnings(settings, &core, &shell, cx.machine);
    Loaded {
        core,
        shell,
        warnings,
        keys: serde_json::to_value(settings).unwrap_or_default(),
    }
}

/// The core's configuration.
fn core(
    settings: &Settings,
    listening: Listening,
    registrar: RegistrarPolicy,
    cx: &mut Context<'_>,
) -> Config {
    let domains = domains::domains(settings, &listening, cx);
    let groups = groups::groups(settings, cx);
    let routes = routes::routes(settings, cx);
    let processors = u16::try_from(cx.machine.processors).unwrap_or(256).clamp(1, 256);
    let workers = match settings.server.workers {
        0 => processors,
        workers => workers,
    };
    Config {
        server_header: b"Trapezoid".as_slice().into(),
        listeners: listening.listeners,
        own_hosts: listening.own_hosts,
        domains,
        routes,
        groups,
        state: routes::state_mode(settings.state.mode),
        timers: timers(settings, cx),
        limits: limits(settings, cx.machine, workers),
        registrar,
        pings: pings(&settings.nat),
        trust: trust(settings, cx),
        trust_names: trust_names(settings, cx),
        destinations: destinations::destinations(settings, cx),
        abuse: abuse::abuse(settings, cx),
        credentials_deadline_ms: settings.credentials.deadline_ms,
        credentials_unavailable: match settings.credentials.on_unavailable {
            OnUnavailable::Unavailable503 => 503,
            OnUnavailable::Timeout504 => 504,
        },
        workers,
        node_id: 0,
    }
}

fn pings(nat: &model::Nat) -> Option<Pings> {
    let kind = match nat.ping {
        NatPing::Options => PingKind::Options,
        NatPing::Crlf => PingKind::Crlf,
        NatPing::None => return None,
    };
    Some(Pings {
        kind,
        every_s: nat.ping_s,
        lost: nat.ping_lost,
        remove_lost: nat.remove_lost,
    })
}

fn timers(settings: &Settings, cx: &mut Context<'_>) -> Timers {
    let timers = &settings.timers;
    if timers.t2_ms < timers.t1_ms {
        let key = if cx.has("timers", "t2_ms") {
            "t2_ms"
        } else {
            "t1_ms"
        };
        let what = format!("t2_ms = {} is less than t1_ms = {}", timers.t2_ms, timers.t1_ms);
        cx.problem(&format!("timers.{key}"), what, "make t2_ms at least t1_ms");
    }
    Timers {
        t1_ms: timers.t1_ms,
        t2_ms: timers.t2_ms,
        t4_ms: timers.t4_ms,
        c_ms: timers.c_s.saturating_mul(1000),
    }
}

/// Divisors of the machine's memory that give the defaults of limits in bytes. Together the limits leave
/// three tenths of the memory to everything without such a limit.
mod parts {
    pub(super) const REGISTRATIONS: u64 = 4;
    pub(super) const TRANSACTIONS: u64 = 4;
    pub(super) const CONNECTIONS: u64 = 8;
    pub(super) const PARKED: u64 = 32;
    pub(super) const HANDOVER: u64 = 64;
}

/// Least default of a limit, bytes: a message of the largest size accepted by default fits.
const LEAST: usize = 2 << 20;

/// The default of a limit in bytes: the machine's memory divided by `part` and by `among`. It is at least
/// [`LEAST`], and at most `most`.
fn share(memory_bytes: Option<u64>, part: u64, among: u16, most: usize) -> usize {
    let share = memory_bytes.map(|bytes| bytes / part / u64::from(among.max(1)));
    let share = share.and_then(|share| usize::try_from(share).ok());
    share.map_or(most, |share| share.clamp(LEAST, most))
}

fn limits(settings: &Settings, machine: &Machine, workers: u16) -> Limits {
    let limits = &settings.limits;
    let (memory, core) = (machine.memory_bytes, Limits::default());
    Limits {
        headers: limits.headers,
        header_bytes: settings.transport.max_header_bytes,
        body_bytes: settings.transport.max_body_bytes,
        transactions: limits.transactions,
        held_transactions: limits.held_transactions,
        transaction_bytes: limits
            .transaction_bytes
            .unwrap_or_else(|| share(memory, parts::TRANSACTIONS, workers, core.transaction_bytes)),
        branches: limits.branches,
        parked_requests: limits.parked_requests,
        parked_bytes: limits
            .parked_bytes
            .unwrap_or_else(|| share(memory, parts::PARKED, workers, core.parked_bytes)),
        location_bytes: limits
            .location_bytes
            .unwrap_or_else(|| share(memory, parts::REGISTRATIONS, 1, core.location_bytes)),
        contacts_per_aor: settings.location.max_contacts,
        dns_entries: limits.dns_entries,
        events: limits.events,
        nonces: limits.nonces,
        route_values: limits.route_values,
        via_values: limits.via_values,
        udp_mtu: settings.transport.udp_mtu,
        registrations_per_connection: Limits::default().registrations_per_connection,
        flows: Limits::default().flows,
    }
}

fn sockets(settings: &Settings, machine: &Machine, workers: u16) -> sip_net::settings::Settings {
    let transport = &settings.transport;
    let (memory, net) = (machine.memory_bytes, sip_net::settings::Settings::default());
    sip_net::settings::Settings {
        udp_receive_buffer: transport.udp_receive_buffer_bytes,
        new_work_buffer: settings.overload.new_work_queue_bytes,
        udp_send_buffer: transport.udp_send_buffer_bytes,
        udp_backlog_bytes: transport.udp_backlog_bytes,
        connections: transport.max_connections,
        write_queue_bytes: transport.write_buffer_bytes,
        stream_bytes: transport
            .connection_bytes
            .unwrap_or_else(|| share(memory, parts::CONNECTIONS, workers, net.stream_bytes)),
        connect_timeout_ms: transport.connect_timeout_ms,
        message_timeout_ms: transport.message_timeout_ms,
        write_timeout_ms: transport.write_timeout_ms,
        peer_timeout_ms: transport.peer_timeout_ms,
        idle_timeout_ms: transport.idle_s.saturating_mul(1000),
        per_call_idle_ms: transport.per_call_idle_s.saturating_mul(1000),
        handshake_timeout_ms: transport.handshake_s.saturating_mul(1000),
        first_message_timeout_ms: transport.first_message_s.saturating_mul(1000),
        ws_ping_ms: transport.ws_ping_s.saturating_mul(1000),
        connections_per_address: settings.limits.connections_per_address,
        handshakes_per_turn: settings.limits.handshakes_per_turn,
        mailbox_messages: transport.handover_messages,
        mailbox_bytes: transport
            .handover_bytes
            .unwrap_or_else(|| share(memory, parts::HANDOVER, workers, net.mailbox_bytes)),
        ..net
    }
}

fn trust(settings: &Settings, cx: &mut Context<'_>) -> Vec<Network> {
    let mut out = Vec::new();
    for (i, text) in settings.trust.peers.iter().enumerate() {
        let path = format!("trust.peers[{i}]");
        match network(text) {
            Some(network) => out.push(network),
            None if text.starts_with(NAME_IN_CERTIFICATE) => {}
            None => cx.problem(
                &path,
                format!("{text:?} is neither a network nor a name in a certificate"),
                "write it as \"10.0.0.0/24\" or \"san:edge2.example.com\"",
            ),
        }
    }
    out
}

/// Prefix of a SIP domain that a peer must prove.
const NAME_IN_CERTIFICATE: &str = "san:";

/// The trusted peers that are named by domains in their certificates.
fn trust_names(settings: &Settings, cx: &mut Context<'_>) -> Vec<Box<str>> {
    let mut out = Vec::new();
    for (i, text) in settings.trust.peers.iter().enumerate() {
        let Some(name) = text.strip_prefix(NAME_IN_CERTIFICATE) else {
            continue;
        };
        match Host::parse(name.as_bytes()) {
            // RFC 5922 §7.2 allows no wildcards, which are no host either.
            Some(Host::Name(_)) => out.push(name.trim_end_matches('.').to_ascii_lowercase().into()),
            _ => cx.problem(
                &format!("trust.peers[{i}]"),
                format!("{name:?} is not a domain"),
                "write the peer's SIP domain, as \"san:edge2.example.com\"",
            ),
        }
    }
    out
}

fn nameservers(settings: &Settings, cx: &mut Context<'_>) -> Vec<SocketAddr> {
    let mut out = Vec::new();
    for (i, text) in settings.dns.nameservers.iter().enumerate() {
        match socket_address(text, 53) {
            Some(address) if address.port() > 0 && !address.ip().is_unspecified() => out.push(address),
            _ => {
                let what = format!("{text:?} is not the address of a name server");
                cx.problem(
                    &format!("dns.nameservers[{i}]"),
                    what,
                    "write it as \"192.0.2.53\"",
                );
            }
        }
    }
    out
}

fn admin(settings: &Settings, cx: &mut Context<'_>) -> Option<SocketAddr> {
    let text = settings.admin.listen.as_str();
    if text == "off" {
        return None;
    }
    let address = text.parse::<SocketAddr>().ok();
    if address.is_none() {
        let remedy = match text.parse::<IpAddr>() {
            Ok(ip) => format!("add the port: \"{}\"", SocketAddr::new(ip, 8080)),
            Err(_) => "write it as \"127.0.0.1:8080\", or \"off\"".to_owned(),
        };
        cx.problem(
            "admin.listen",
            format!("{text:?} is not an address and port"),
            remedy,
        );
    }
    address
}

/// `server.name` and `admin.hosts`. Addresses are left out, because a request may name any address.
fn admin_hosts(settings: &Settings, cx: &mut Context<'_>) -> Vec<Box<str>> {
    let mut out: Vec<Box<str>> = Vec::new();
    let mut add = |text: &str| {
        let host = Host::parse(text.as_bytes());
        if let Some(Host::Name(_)) = host {
            out.push(text.trim_end_matches('.').to_ascii_lowercase().into());
        }
        host.is_some()
    };
    // Errors of `server.name` are reported with the listeners.
    settings.server.name.as_deref().map(&mut add);
    for (i, text) in settings.admin.hosts.iter().enumerate() {
        if !add(text) {
            cx.problem(
                &format!("admin.hosts[{i}]"),
                format!("{text:?} is not a host name"),
                "write it as \"metrics.example.com\", without \"http://\" and port",
            );
        }
    }
    out
}

fn admin_token(settings: &Settings, data_dir: &Path, cx: &mut Context<'_>) -> PathBuf {
    match settings.admin.token_file.as_deref() {
        Some("") => {
            cx.problem("admin.token_file", "empty", "write the name of a file");
            data_dir.to_owned()
        }
        Some(file) => cx.path(file),
        None => data_dir.join("admin.token"),
    }
}
