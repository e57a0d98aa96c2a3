//! `[[listen]]`: addresses to bind, wildcards expanded, with the advertised name of each.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use sip_core::config::{Listener, Nat, OwnHost};
use sip_core::transport::Transport;
use sip_message::host::Host;

use super::context::Context;
use super::hosts::{canonical, host_port};
use super::model::{Listen, ListenNat, ListenTransport, Settings};
use super::tls::{self, Service, Tls};

/// Most listeners of one configuration after expansion.
const MAX_LISTENERS: usize = 1024;

/// The listeners, and the hosts that mean this server.
#[derive(Debug, Default)]
pub(super) struct Listening {
    pub listeners: Vec<Listener>,
    /// For each of `listeners`, the settings of its connections.
    pub services: Vec<Service>,
    pub own_hosts: Vec<OwnHost>,
}

/// `server.name` and `[[listen]]`. TLS of listeners is added to `tls`.
pub(super) fn listeners(
    settings: &Settings,
    data_dir: &Path,
    tls: &mut Tls,
    cx: &mut Context<'_>,
) -> Listening {
    let mut out = Listening::default();
    let name = server_name(settings, cx);
    out.own_hosts.extend(name.iter().map(|name| OwnHost {
        host: name.clone(),
        port: None,
    }));
    if settings.listen.is_empty() {
        out.built_in(name.as_deref(), data_dir, tls, cx);
        return out;
    }
    let addresses: Vec<Option<SocketAddr>> = settings
        .listen
        .iter()
        .enumerate()
        .map(|(i, entry)| address(i, entry, cx))
        .collect();
    // In the order of the file, which numbers otherwise equal listeners.
    let services: Vec<Service> = settings
        .listen
        .iter()
        .enumerate()
        .map(|(i, entry)| tls::service(i, entry, tls, cx))
        .collect();
    // Concrete addresses first: they may have more settings (advertise) than a wildcard that covers them.
    let mut order: Vec<usize> = (0..settings.listen.len()).collect();
    order.sort_by_key(|&i| {
        addresses
            .get(i)
            .is_some_and(|a| a.is_some_and(|a| a.ip().is_unspecified()))
    });
    for i in order {
        let (Some(entry), Some(service), Some(Some(address))) =
            (settings.listen.get(i), services.get(i), addresses.get(i))
        else {
            continue;
        };
        advertised(i, entry, &mut out.own_hosts, cx);
        check_nat(i, entry, cx);
        if duplicate(i, &settings.listen, &addresses, cx) {
            continue;
        }
        let place = format!("listen[{i}].address");
        if !out.expand(entry, service, *address, name.as_deref(), &place, cx) {
            let what = "this machine has no address of that family";
            cx.problem(
                &format!("listen[{i}].address"),
                what,
                "name an address that it has",
            );
        }
    }
    if out.listeners.len() > MAX_LISTENERS {
        let what = format!("{} addresses in all", out.listeners.len());
        cx.problem(
            "listen",
            what,
            format!("name those to listen on, {MAX_LISTENERS} at most"),
        );
    }
    out
}

/// `server.name` after a check.
fn server_name(settings: &Settings, cx: &mut Context<'_>) -> Option<Box<[u8]>> {
    let name = settings.server.name.as_ref()?;
    let host = Host::parse(name.as_bytes());
    if host.is_none() {
        let what = format!("{name:?} is not a host name");
        cx.problem(
            "server.name",
            what,
            "write a name as \"sip.example.com\", without a port",
        );
    }
    host.map(|host| canonical(&host))
}

fn address(i: usize, entry: &Listen, cx: &mut Context<'_>) -> Option<SocketAddr> {
    let path = format!("listen[{i}].address");
    match entry.address.parse::<SocketAddr>() {
        Ok(address) if address.port() > 0 => Some(address),
        Ok(_) => {
            cx.problem(
                &path,
                "port 0 would be another port at each start",
                "write a port from 1 to 65535",
            );
            None
        }
        Err(_) => {
            let remedy = match entry.address.parse::<IpAddr>() {
                Ok(ip) => format!("add the port: \"{}\"", SocketAddr::new(ip, 5060)),
                Err(_) => "write it as \"192.0.2.1:5060\" or \"[2001:db8::1]:5060\"".to_owned(),
            };
            cx.problem(
                &path,
                format!("{:?} is not an address and port", entry.address),
                remedy,
            );
            None
        }
    }
}

fn advertised(i: usize, entry: &Listen, own_hosts: &mut Vec<OwnHost>, cx: &mut Context<'_>) {
    let Some(text) = &entry.advertise else { return };
    match host_port(text) {
        Some((host, port)) => {
            let own = OwnHost {
                host: canonical(&host),
                port,
            };
            if !own_hosts.contains(&own) {
                own_hosts.push(own);
            }
        }
        None => cx.problem(
            &format!("listen[{i}].advertise"),
            format!("{text:?} is not a host with or without a port"),
            "write it as \"sip.example.com\", \"203.0.113.5:5060\" or \"[2001:db8::1]:5060\"",
        ),
    }
}

/// Whether an earlier `[[listen]]` has the same socket; if so, reports it.
fn duplicate(i: usize, entries: &[Listen], addresses: &[Option<SocketAddr>], cx: &mut Context<'_>) -> bool {
    let Some(entry) = entries.get(i) else { return false };
    let same = |j: &usize| {
        entries
            .get(*j)
            .is_some_and(|other| is_datagram(other.transport) == is_datagram(entry.transport))
            && addresses.get(*j) == addresses.get(i)
    };
    let Some(j) = (0..i).find(same) else { return false };
    let other = entries.get(j).map_or(entry.transport, |other| other.transport);
    if other == entry.transport {
        let what = format!("the same transport and address as listen[{j}]");
        cx.problem(&format!("listen[{i}].address"), what, "remove one of them");
    } else {
        let what = format!("listen[{j}] has this address and port, with {}", other.name());
        cx.problem(&format!("listen[{i}].address"), what, "name another port");
    }
    true
}

/// Whether the transport uses datagrams. All others use TCP sockets.
fn is_datagram(transport: ListenTransport) -> bool {
    transport == ListenTransport::Udp
}

fn of_core(transport: ListenTransport) -> Transport {
    match transport {
        ListenTransport::Udp => Transport::Udp,
        ListenTransport::Tcp => Transport::Tcp,
        ListenTransport::Tls => Transport::Tls,
        ListenTransport::Ws => Transport::Ws,
        ListenTransport::Wss => Transport::Wss,
    }
}

impl Listening {
    /// Adds the built-in listeners, used if the file has none.
    fn built_in(&mut self, name: Option<&[u8]>, data_dir: &Path, tls: &mut Tls, cx: &mut Context<'_>) {
        let wildcards = [
            IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        ];
        for (transport, port, service) in [
            (ListenTransport::Udp, 5060, Service::default()),
            (ListenTransport::Tcp, 5060, Service::default()),
            (ListenTransport::Tls, 5061, tls::built_in(data_dir, tls)),
            (ListenTransport::Ws, 5066, Service::default()),
        ] {
            for ip in wildcards {
                let address = SocketAddr::new(ip, port);
                let entry = Listen {
                    transport,
                    address: address.to_string(),
                    advertise: None,
                    preloaded_route: false,
                    nat: None,
                    tls: None,
                    origins: None,
                    connection: None,
                };
                self.expand(&entry, &service, address, name, "listen", cx);
            }
        }
    }

    /// Adds the listener of `entry`, or one for each address that its wildcard covers. Returns whether there
    /// was any. `place` is the key with the address.
    fn expand(
        &mut self,
        entry: &Listen,
        service: &Service,
        address: SocketAddr,
        name: Option<&[u8]>,
        place: &str,
        cx: &mut Context<'_>,
    ) -> bool {
        let wildcard = address.ip().is_unspecified();
        let of_machine = cx.machine.addresses.iter().copied();
        let places: Vec<(IpAddr, u8)> = if wildcard {
            of_machine
                .filter(|(ip, _)| ip.is_ipv4() == address.ip().is_ipv4() && !is_link_local(*ip))
                .collect()
        } else {
            let whole = if address.is_ipv4() { 32 } else { 128 };
            let prefix_len = of_machine
                .filter(|(ip, _)| *ip == address.ip())
                .map(|(_, len)| len)
                .next();
            vec![(address.ip(), prefix_len.unwrap_or(whole))]
        };
        let transport = of_core(entry.transport);
        for (ip, prefix_len) in &places {
            let address = SocketAddr::new(*ip, address.port());
            let is_udp = |transport| transport == Transport::Udp;
            let covered = self
                .listeners
                .iter()
                .find(|other| other.address == address && is_udp(other.transport) == is_udp(transport));
            if let Some(other) = covered {
                if other.transport != transport {
                    let other = other.transport.uri_name();
                    let what = format!("{address}, which is among them, is listened on with {other}");
                    cx.problem(place, what, "name another port, or each address by itself");
                }
                continue;
            }
            self.services.push(service.clone());
            let is_websocket = matches!(transport, Transport::Ws | Transport::Wss);
            self.listeners.push(Listener {
                transport,
                address,
                prefix_len: *prefix_len,
                sent_by: sent_by(entry.advertise.as_deref(), name, transport, address),
                preloaded_route: entry.preloaded_route,
                any_page: is_websocket && entry.origins.is_none(),
                nat: nat_of(entry),
            });
        }
        !places.is_empty()
    }
}

fn check_nat(i: usize, entry: &Listen, cx: &mut Context<'_>) {
    if entry.nat.is_some() && entry.transport != ListenTransport::Udp {
        let what = format!(
            "{} has connections, which need no NAT setting",
            entry.transport.name()
        );
        cx.problem(&format!("listen[{i}].nat"), what, "remove it");
    }
}

fn nat_of(entry: &Listen) -> Nat {
    match entry.nat.unwrap_or_default() {
        ListenNat::Auto => Nat::Auto,
        ListenNat::Always => Nat::Always,
        ListenNat::Never => Nat::Never,
    }
}

/// The sent-by of a listener in Via and Record-Route: `advertise` unchanged; else `server.name` with the
/// port; else the address, with the port unless it is the transport's default.
///
/// A sent-by without a port means the transport's default (RFC 3261 §18.1.1, §20.42). For an address that
/// loses nothing. For a name without a port, RFC 3263 §4.2 and §5 require SRV records, which may lead to
/// another server of the same name. A port means this very server. If SRV is wanted, `advertise` has no port.
fn sent_by(
    advertise: Option<&str>,
    name: Option<&[u8]>,
    transport: Transport,
    address: SocketAddr,
) -> Box<[u8]> {
    let port = address.port();
    let text = match (advertise, name) {
        (Some(text), _) => text.to_owned(),
        (None, Some(name)) => {
            let name = String::from_utf8_lossy(name);
            // `server.name` may be an IPv6 address, stored without its brackets.
            if name.contains(':') {
                format!("[{name}]:{port}")
            } else {
                format!("{name}:{port}")
            }
        }
        (None, None) if port != transport.default_port() => address.to_string(),
        (None, None) => match address.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        },
    };
    text.into_bytes().into()
}

/// Whether the address is link-local. Such an address needs a zone, which SIP cannot write (RFC 5118 §4.2 ff.
/// has none).
fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
