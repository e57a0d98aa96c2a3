//! User agents behind a NAT that come by UDP: how they are recognized.
//!
//! Such a user agent is reached only where its requests came from, by the port that its NAT opened for them.
//! Its Contact names an address behind the NAT, or the NAT's own address with another port. So requests in its
//! dialogs go by a flow token ([`super::flow_token`]), which names our listener and the source.
//!
//! With `nat = "auto"` on the listener, the Contact of the request that begins a dialog decides:
//!
//! - The Contact is the source address with another port: behind a NAT if Via has `rport` (RFC 3581 §4). Such a
//!   user agent receives at the port that it sends from.
//! - The Contact is another address that is not public (RFC 1918, 3927, 4193, 6598, the loopback): behind a
//!   NAT if Via has `rport`, or the source is public.
//! - The Contact is another public address, or a name: not behind a NAT. Its peer answers there, and may send
//!   from another address.
//!
//! A registered contact gets every INVITE at the source of its REGISTER. So for the other requests of the
//! dialog all of its contacts count that are not the source, but for other public addresses.
//!
//! **Not behind a NAT** are peers of the configuration (`[trust]`, groups, a rule's `source`). A source that
//! may be spoofed and must not be (a denied destination, or this server itself) gets no token.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use sip_message::SipUri;

use super::hop::Hop;
use crate::config::Nat;
use crate::engine::Engine;
use crate::engine::request::Request;
use crate::location::codec::may_have_ob;
use crate::resolve::HostRef;
use crate::transport::{Flow, Proof, Transport};

/// The place of a Contact beside the source address of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContactPlace {
    /// The source itself.
    Source,
    /// Another port of the source address.
    OtherPort,
    /// Another address, which is not public.
    Private,
    /// Another public address.
    Public,
    /// A name.
    Name,
}

impl Engine {
    /// Whether a Contact that came by UDP shows at a glance that its user agent needs no flow token.
    pub(crate) fn needs_no_token(&self, contact: &[u8], flow: &Flow) -> bool {
        !may_have_ob(contact)
            && match self.nat(flow) {
                Nat::Never => true,
                Nat::Auto => is_at_source(contact, flow.remote),
                Nat::Always => false,
            }
    }

    /// Whether the sender of a request that came by UDP, with this Contact, is behind a NAT.
    pub(crate) fn is_sender_behind_nat(&self, request: &Request<'_>, contact: &SipUri<'_>) -> bool {
        let flow = &request.flow;
        match self.nat(flow) {
            Nat::Never => false,
            Nat::Always => self.may_be_behind_nat(flow),
            Nat::Auto => {
                let has_rport = || request.via.params.has(b"rport");
                let shows = match place(contact, flow) {
                    ContactPlace::Source | ContactPlace::Public | ContactPlace::Name => false,
                    ContactPlace::OtherPort => has_rport(),
                    ContactPlace::Private => has_rport() || !is_private(flow.remote.ip()),
                };
                shows && self.may_be_behind_nat(flow)
            }
        }
    }

    /// Whether the user agent that registered this contact by UDP is behind a NAT.
    pub(crate) fn is_contact_behind_nat(&self, contact: &SipUri<'_>, flow: &Flow) -> bool {
        let shows = match self.nat(flow) {
            Nat::Never => false,
            Nat::Always => true,
            Nat::Auto => !matches!(place(contact, flow), ContactPlace::Source | ContactPlace::Public),
        };
        shows && self.may_be_behind_nat(flow)
    }

    /// Whether a Request-URI in a dialog is where its user agent moved to, and not what stands behind the NAT
    /// that a token leads to: another public address (RFC 3261 §12.2, target refresh).
    pub(crate) fn leads_past_nat(uri: &SipUri<'_>, flow: &Flow) -> bool {
        flow.transport == Transport::Udp && place(uri, flow) == ContactPlace::Public
    }

    fn nat(&self, flow: &Flow) -> Nat {
        let listener = self.config.listeners.get(usize::from(flow.listener.0));
        listener.map_or(Nat::Never, |listener| listener.nat)
    }

    /// Whether requests may go back to this source because a token says so.
    fn may_be_behind_nat(&self, flow: &Flow) -> bool {
        let ip = flow.remote.ip();
        flow.proof != Proof::Ourselves
            && self.is_source_unverified(flow)
            && self.place_of_address(ip) == 0
            && !self.must_be_proved(ip)
    }
}

/// Whether the first host and port in a Contact are an IPv4 source address. If something else stands there, the
/// Contact has to be parsed.
fn is_at_source(contact: &[u8], source: SocketAddr) -> bool {
    let IpAddr::V4(ip) = source.ip() else {
        return false;
    };
    let Some(mut rest) = memchr::memchr(b'@', contact).and_then(|at| contact.get(at + 1..)) else {
        return false;
    };
    let octets = ip.octets();
    for (number, octet) in octets.into_iter().enumerate() {
        let is_it = take_decimal(&mut rest) == Some(u32::from(octet));
        let is_last = number + 1 == octets.len();
        if !is_it || !(is_last || take(&mut rest, b'.')) {
            return false;
        }
    }
    let port = match take(&mut rest, b':') {
        true => take_decimal(&mut rest),
        false => Some(u32::from(Transport::Udp.default_port())),
    };
    let is_at_end = match rest.first() {
        None | Some(b'>') => true,
        Some(b';') => memchr::memmem::find(rest, b"maddr").is_none(),
        Some(_) => false,
    };
    is_at_end && port == Some(u32::from(source.port()))
}

/// Takes a number of five digits at most from the front.
fn take_decimal(rest: &mut &[u8]) -> Option<u32> {
    let (mut value, mut count) = (0, 0);
    while let [digit @ b'0'..=b'9', tail @ ..] = *rest
        && count < 5
    {
        value = value * 10 + u32::from(digit - b'0');
        count += 1;
        *rest = tail;
    }
    (count > 0).then_some(value)
}

/// Takes this byte from the front, if it is there.
fn take(rest: &mut &[u8], byte: u8) -> bool {
    match *rest {
        [first, tail @ ..] if *first == byte => {
            *rest = tail;
            true
        }
        _ => false,
    }
}

fn place(contact: &SipUri<'_>, flow: &Flow) -> ContactPlace {
    let hop = Hop::of(contact);
    let HostRef::Ip(ip) = hop.host else {
        return ContactPlace::Name;
    };
    let (ip, source) = (ip.to_canonical(), flow.remote.ip().to_canonical());
    let port = hop.port.unwrap_or(Transport::Udp.default_port());
    match ip == source {
        true if port == flow.remote.port() => ContactPlace::Source,
        true => ContactPlace::OtherPort,
        false if is_private(ip) => ContactPlace::Private,
        false => ContactPlace::Public,
    }
}

/// Whether an address is not one of the public Internet: many hosts may have it, each in its own network.
pub(crate) fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_private_v4(ip),
        IpAddr::V6(ip) => is_private_v6(ip),
    }
}

fn is_private_v4(ip: Ipv4Addr) -> bool {
    let [first, second, ..] = ip.octets();
    // RFC 6598: the network between a provider's NAT and the customers'.
    let is_shared = first == 100 && second & 0xc0 == 0x40;
    ip.is_private() || ip.is_link_local() || ip.is_loopback() || is_shared
}

fn is_private_v6(ip: Ipv6Addr) -> bool {
    ip.is_unique_local() || ip.is_unicast_link_local() || ip.is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::ListenerId;

    #[test]
    fn private_addresses_are_those_of_the_rfcs() {
        for (text, expected) in [
            ("10.0.0.1", true),
            ("172.16.0.1", true),
            ("172.32.0.1", false),
            ("192.168.255.255", true),
            ("192.169.0.1", false),
            ("169.254.1.1", true),
            ("127.0.0.1", true),
            ("100.63.255.255", false),
            ("100.64.0.1", true),
            ("100.127.255.255", true),
            ("100.128.0.0", false),
            ("198.51.100.1", false),
            ("::ffff:10.0.0.1", true),
            ("::1", true),
            ("fd00::1", true),
            ("fe80::1", true),
            ("2001:db8::1", false),
        ] {
            assert_eq!(is_private(text.parse().unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn a_contact_has_its_place_beside_the_source() {
        let flow = Flow {
            transport: Transport::Udp,
            listener: ListenerId(0),
            remote: "203.0.113.7:5060".parse().unwrap(),
            conn: None,
            proof: Proof::None,
        };
        for (uri, expected) in [
            ("sip:a@203.0.113.7", ContactPlace::Source),
            ("sip:a@203.0.113.7:5060", ContactPlace::Source),
            ("sip:a@[::ffff:203.0.113.7]", ContactPlace::Source),
            ("sip:a@203.0.113.7:5062", ContactPlace::OtherPort),
            ("sip:a@192.168.1.2", ContactPlace::Private),
            ("sip:a@phone.example;maddr=192.168.1.2", ContactPlace::Private),
            ("sip:a@203.0.113.8", ContactPlace::Public),
            ("sip:a@phone.example", ContactPlace::Name),
        ] {
            let parsed = sip_message::Uri::parse(uri.as_bytes()).unwrap();
            assert_eq!(place(parsed.sip().unwrap(), &flow), expected, "{uri}");
            // The glance never sees more than there is.
            let contact = alloc::format!("\"A\" <{uri};x=y>");
            let glance = is_at_source(contact.as_bytes(), flow.remote);
            assert!(!glance || expected == ContactPlace::Source, "{contact}");
        }
    }

    #[test]
    fn a_glance_sees_most_contacts_at_their_source() {
        let source = "203.0.113.7:5060".parse().unwrap();
        for (contact, expected) in [
            ("<sip:a@203.0.113.7:5060>", true),
            ("<sip:a@203.0.113.7>;q=0.5", true),
            ("sip:a@203.0.113.7:5060", true),
            ("\"A\" <sip:a@203.0.113.7;transport=udp>", true),
            ("<sip:a@203.0.113.7:5061>", false),
            ("<sip:a@203.0.113.70>", false),
            ("<sip:a@203.0.113.7;maddr=10.0.0.1>", false),
            ("<sip:203.0.113.7>", false),
            ("<sip:a@203.0.113.7:>", false),
            ("<sip:a@", false),
            ("*", false),
        ] {
            assert_eq!(is_at_source(contact.as_bytes(), source), expected, "{contact}");
        }
    }
}
