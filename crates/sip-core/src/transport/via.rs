//! `received` and `rport` (RFC 3261 §18.2.1, RFC 3581 §4), and the destination of responses (§18.2.2).

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use sip_message::header::Via;
use sip_message::number::write_decimal;
use sip_message::{HeaderName, Message};

use super::{Flow, Transport};

/// Whether the topmost Via of a request from `remote` stays unchanged.
pub fn is_final(via: &Via<'_>, remote: SocketAddr) -> bool {
    via.rport().is_none() && !via.has_received() && via.host.ip() == Some(remote.ip().to_canonical())
}

/// Appends the topmost Via value with `received` and `rport` set from the request's source. A `received` that
/// the client wrote is replaced: only this server knows the source.
pub fn write_received(out: &mut Vec<u8>, via: &Via<'_>, remote: SocketAddr) {
    if is_final(via, remote) {
        out.extend_from_slice(via.text);
        return;
    }
    let params = via.params.as_bytes();
    let head = via.text.len() - params.len().min(via.text.len());
    out.extend_from_slice(via.text.get(..head).unwrap_or_default());
    let rport = via.rport().is_some();
    for param in via.params.iter() {
        if param.name.eq_ignore_ascii_case(b"received") || param.name.eq_ignore_ascii_case(b"rport") {
            continue;
        }
        out.push(b';');
        out.extend_from_slice(param.name);
        if let Some(value) = param.value {
            out.push(b'=');
            out.extend_from_slice(value);
        }
    }
    let ip = remote.ip().to_canonical();
    // RFC 3581 §4: with rport, received is there even if it equals sent-by.
    if rport || via.host.ip() != Some(ip) {
        out.extend_from_slice(b";received=");
        write_ip(out, ip);
    }
    if rport {
        out.extend_from_slice(b";rport=");
        write_decimal(out, u64::from(remote.port()));
    }
}

/// Appends an address without brackets: `via-received` of RFC 3261 §25.1.
pub fn write_ip(out: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => {
            for (i, octet) in ip.octets().into_iter().enumerate() {
                if i > 0 {
                    out.push(b'.');
                }
                write_decimal(out, u64::from(octet));
            }
        }
        IpAddr::V6(ip) => out.extend_from_slice(alloc::format!("{ip}").as_bytes()),
    }
}

/// The flow to which responses go, for a request that came on `flow` with this topmost Via. On a stream, it
/// is the connection (and, if that is gone, the port of sent-by). Over UDP, it is the source address and,
/// with `rport`, the source port, else the port of sent-by (RFC 3261 §18.2.2, RFC 3581 §4).
pub fn reply_to(flow: Flow, via: &Via<'_>) -> Flow {
    // No user agent listens for WebSockets (RFC 7118 §5).
    let only_there = matches!(flow.transport, Transport::Ws | Transport::Wss);
    if only_there || (flow.transport == Transport::Udp && via.rport().is_some()) {
        return flow;
    }
    let port = via.port.unwrap_or(flow.transport.default_port());
    Flow {
        remote: SocketAddr::new(flow.remote.ip(), port),
        ..flow
    }
}

/// The flow to which responses to a request go, however malformed the request is. If the parameters of the
/// topmost Via cannot be read, sent-by still names the port (RFC 4475 §3.1.2.1). `None`: the request has no
/// usable Via.
pub fn way_back(flow: Flow, message: &Message<'_>) -> Option<Flow> {
    if let Ok(top) = message.top_via() {
        return Some(reply_to(flow, &top));
    }
    let text = message.value(HeaderName::Via)?;
    let sent_by = text.split(|c| matches!(c, b';' | b',')).next()?;
    Via::parse(sent_by.trim_ascii_end()).map(|top| reply_to(flow, &top))
}

/// The target of a response with `via` as its next Via, if no state was kept. `None`: the Via names no
/// address (we put `received` wherever sent-by was none).
pub fn response_target(via: &Via<'_>) -> Option<(Transport, SocketAddr)> {
    let transport = Transport::parse(via.transport)?;
    let ip = via.received_any().or_else(|| via.host.ip())?;
    // RFC 3581 is about datagrams: a stream's source port is no port to connect to (§18.2.2).
    let rport = via.rport().flatten().filter(|_| !transport.is_reliable());
    let port = rport.or(via.port).unwrap_or(transport.default_port());
    Some((transport, SocketAddr::new(ip, port)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::ListenerId;
    use alloc::string::String;

    fn written(via: &str, remote: &str) -> String {
        let mut out = Vec::new();
        write_received(
            &mut out,
            &Via::parse(via.as_bytes()).unwrap(),
            remote.parse().unwrap(),
        );
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn received_and_rport() {
        for (via, remote, expected) in [
            (
                "SIP/2.0/UDP 192.0.2.1:5070;branch=z9hG4bK1",
                "192.0.2.1:5070",
                "SIP/2.0/UDP 192.0.2.1:5070;branch=z9hG4bK1",
            ),
            (
                "SIP/2.0/UDP 10.0.0.1;branch=z9hG4bK1",
                "192.0.2.1:5070",
                "SIP/2.0/UDP 10.0.0.1;branch=z9hG4bK1;received=192.0.2.1",
            ),
            (
                "SIP/2.0/UDP 192.0.2.1;rport;branch=z9hG4bK1",
                "192.0.2.1:9",
                "SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK1;received=192.0.2.1;rport=9",
            ),
            (
                "SIP/2.0/UDP a.example;branch=z9hG4bK1;received=8.8.8.8",
                "192.0.2.1:9",
                "SIP/2.0/UDP a.example;branch=z9hG4bK1;received=192.0.2.1",
            ),
            (
                "SIP/2.0/UDP [2001:db8::1];branch=z9hG4bK1",
                "[2001:db8::2]:9",
                "SIP/2.0/UDP [2001:db8::1];branch=z9hG4bK1;received=2001:db8::2",
            ),
        ] {
            assert_eq!(written(via, remote), expected);
        }
    }

    #[test]
    fn answers_follow_18_2_2() {
        let flow = |transport| Flow {
            transport,
            listener: ListenerId(0),
            remote: "192.0.2.9:7777".parse().unwrap(),
            conn: None,
            proof: crate::transport::Proof::None,
        };
        let to = |via: &str, t| reply_to(flow(t), &Via::parse(via.as_bytes()).unwrap()).remote;
        assert_eq!(
            to("SIP/2.0/UDP 10.0.0.1:5080;branch=z9hG4bK1", Transport::Udp),
            "192.0.2.9:5080".parse().unwrap()
        );
        assert_eq!(
            to("SIP/2.0/UDP 10.0.0.1;branch=z9hG4bK1", Transport::Udp),
            "192.0.2.9:5060".parse().unwrap()
        );
        assert_eq!(
            to("SIP/2.0/UDP 10.0.0.1;branch=z9hG4bK1;rport", Transport::Udp),
            "192.0.2.9:7777".parse().unwrap()
        );
        assert_eq!(
            to("SIP/2.0/TCP 10.0.0.1:5080;branch=z9hG4bK1", Transport::Tcp),
            "192.0.2.9:5080".parse().unwrap()
        );
        assert_eq!(
            to("SIP/2.0/WSS df7jal23ls0d.invalid;branch=z9hG4bK1", Transport::Wss),
            "192.0.2.9:7777".parse().unwrap()
        );
        let target = |via: &str| response_target(&Via::parse(via.as_bytes()).unwrap()).map(|(_, a)| a);
        assert_eq!(
            target("SIP/2.0/UDP 10.0.0.1;received=192.0.2.9;rport=7777"),
            Some("192.0.2.9:7777".parse().unwrap())
        );
        assert_eq!(
            target("SIP/2.0/TCP 10.0.0.1:5080;received=192.0.2.9;rport=7777"),
            Some("192.0.2.9:5080".parse().unwrap())
        );
        assert_eq!(
            target("SIP/2.0/UDP 10.0.0.1:5080"),
            Some("10.0.0.1:5080".parse().unwrap())
        );
        assert_eq!(target("SIP/2.0/UDP a.example"), None);
    }
}
