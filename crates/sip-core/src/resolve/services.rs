//! NAPTR and SRV records: their services, and the order of these (RFC 3263 §4.1, RFC 2782).

use alloc::vec::Vec;
use core::net::IpAddr;

use super::Question;
use crate::query::Record;
use crate::transport::Transport;

/// Service fields of NAPTR (RFC 3263 §4.1, RFC 7118 §6). `SIP+D2S` is SCTP, which this server does not speak;
/// TLS does not run over UDP, so there is no `SIPS+D2U`.
const SERVICES: [(&[u8], Transport); 5] = [
    (b"SIP+D2U", Transport::Udp),
    (b"SIP+D2T", Transport::Tcp),
    (b"SIPS+D2T", Transport::Tls),
    (b"SIP+D2W", Transport::Ws),
    (b"SIPS+D2W", Transport::Wss),
];

/// The target of a NAPTR record of the kind that RFC 3263 §4.1 knows: flag `s`, no regular expression, and a
/// replacement. Other records (ENUM, non-terminal rules) are ignored, so that there is no way to walk in
/// circles.
pub(super) fn pointer(record: &Record) -> Option<(Transport, &[u8])> {
    let Record::Naptr {
        flags,
        service,
        regexp,
        replacement,
        ..
    } = record
    else {
        return None;
    };
    if !flags.eq_ignore_ascii_case(b"s") || !regexp.is_empty() || is_root(replacement) {
        return None;
    }
    SERVICES
        .iter()
        .find(|(name, _)| service.eq_ignore_ascii_case(name))
        .map(|(_, transport)| (*transport, &**replacement))
}

/// The services that `records`, in their order, offer over the transports that may be used.
pub(super) fn pointers<'r>(
    records: &'r [Record],
    question: &Question<'_>,
) -> impl Iterator<Item = (Transport, &'r [u8])> {
    // A SIPS URI takes services of SIPS only; a SIP URI takes both.
    let (secure, transports) = (question.secure, question.transports);
    records.iter().filter_map(pointer).filter(move |(transport, _)| {
        transports.has(*transport) && (!secure || matches!(transport, Transport::Tls | Transport::Wss))
    })
}

/// The first labels of the name at which a transport's SRV records are (RFC 3263 §4.1, §4.2). RFC 7118
/// defines none.
pub(super) const fn srv_labels(transport: Transport) -> Option<&'static [u8]> {
    match transport {
        Transport::Udp => Some(b"_sip._udp."),
        Transport::Tcp => Some(b"_sip._tcp."),
        Transport::Tls => Some(b"_sips._tcp."),
        Transport::Ws | Transport::Wss => None,
    }
}

/// Whether a name is the root, as received or as written.
fn is_root(name: &[u8]) -> bool {
    matches!(name, b"" | b".")
}

/// Whether requests can be sent to this address. 0.0.0.0 would be this machine itself, and a
/// mapped address is of another family than it looks.
pub(super) fn is_host(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || broadcast || ip.to_canonical() != ip)
}

/// Hosts and ports of SRV records by RFC 2782: by priority; among equals, by weight, drawn with
/// numbers made from `dice`.
pub(super) fn order_services(records: &[Record], dice: u64) -> Vec<(&[u8], u16)> {
    let mut left: Vec<(u16, u16, u16, &[u8])> = records
        .iter()
        .filter_map(|r| match r {
            // The target "." says that the service is not offered here; nothing can be sent to port 0.
            Record::Service {
                priority,
                weight,
                port,
                target,
            } if !is_root(target) && *port != 0 => Some((*priority, *weight, *port, &**target)),
            Record::Service { .. } | Record::Address(_) | Record::Naptr { .. } => None,
        })
        .collect();
    // Weight 0 comes first within a priority, as the RFC's algorithm wants it; names settle the rest.
    left.sort_unstable();
    left.dedup();
    let mut state = dice;
    let mut order = Vec::with_capacity(left.len());
    while let Some(first) = left.first() {
        let equals = left.iter().take_while(|r| r.0 == first.0).count();
        let sum: u64 = left.iter().take(equals).map(|r| u64::from(r.1)).sum();
        state = step(state);
        // "Uniform between 0 and the sum": in whole numbers, 0 is for records of weight 0.
        let draw = if first.1 == 0 {
            state % (sum + 1)
        } else {
            state % sum + 1
        };
        let mut running = 0;
        let chosen = left
            .iter()
            .take(equals)
            .position(|r| {
                running += u64::from(r.1);
                running >= draw
            })
            .unwrap_or(0);
        let (_, _, port, target) = left.remove(chosen);
        order.push((target, port));
    }
    order
}

/// One step of SplitMix64: any state gives the next.
pub(super) const fn step(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
