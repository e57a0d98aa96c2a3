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
//!   NAT if Via has `rport`, or the source is public. In an access network whose addresses are private too,
//!   the sources of phones behind home routers are private.
//! - The Contact is another public address, or a name: not behind a NAT. Its peer answers there, and may send
//!   from another address.
//!
//! A registered contact gets every INVITE at the source of its REGISTER. So for the other requests of the
//! dialog all of its contacts count that are not the source, but for other public addresses.
//!
//! **Not behind a NAT** are peers of the configuration (`[trust]`, groups, a rule's `source`). A source that
//! may be spoofed and must not be (a denied destination, or this server itself) gets no token.

use core::net::{IpAddr, SocketAddr};

use sip_message::header::Via;
use sip_message::{Host, SipUri};

use super::hop::Hop;
use crate::config::Nat;
use crate::engine::Engine;
use crate::engine::request::Request;
use crate::location::codec::may_have_ob;
use crate::resolve::HostRef;
use crate::transport::private::is_private;
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
    pub(crate) fn needs_no_token(&self, request: &Request<'_>, contact: &[u8]) -> bool {
        let flow = &request.flow;
        !may_have_ob(contact)
            && match self.nat(flow) {
                Nat::Never => true,
                Nat::Auto => is_at_source(contact, &request.via, flow.remote),
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
    pub(crate) fn leads_past_nat(&self, uri: &SipUri<'_>, flow: &Flow) -> bool {
        flow.transport == Transport::Udp
            && self.nat(flow) != Nat::Always
            && place(uri, flow) == ContactPlace::Public
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
            && !self.is_own_socket(flow.remote)
    }
}

/// Whether the first host and port in a Contact are the source address, as the topmost Via has it. If something
/// else stands there, the Contact has to be parsed.
fn is_at_source(contact: &[u8], via: &Via<'_>, source: SocketAddr) -> bool {
    let IpAddr::V4(ip) = source.ip() else {
        return false;
    };
    let behind_at = memchr::memchr(b'@', contact).and_then(|at| contact.get(at + 1..));
    let Some(mut rest) = behind_at.and_then(|host| host.strip_prefix(via.host_text)) else {
        return false;
    };
    let port = match take(&mut rest, b':') {
        true => take_decimal(&mut rest),
        false => Some(u32::from(Transport::Udp.default_port())),
    };
    let is_at_end = match rest.first() {
        None | Some(b'>') => true,
        Some(b';') => memchr::memmem::find(rest, b"maddr").is_none(),
        Some(_) => false,
    };
    is_at_end && port == Some(u32::from(source.port())) && via.host == Host::V4(ip)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::ListenerId;

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
            let via = Via::parse(b"SIP/2.0/UDP 203.0.113.7:5060").unwrap();
            let glance = is_at_source(contact.as_bytes(), &via, flow.remote);
            assert!(!glance || expected == ContactPlace::Source, "{contact}");
        }
    }

    #[test]
    fn a_glance_sees_most_contacts_at_their_source() {
        let source = "203.0.113.7:5060".parse().unwrap();
        let [same, other, name] = ["203.0.113.7:5060", "203.0.113.8", "phone.example"]
            .map(|sent_by| alloc::format!("SIP/2.0/UDP {sent_by};branch=z9hG4bK1"));
        for (via, contact, expected) in [
            (&same, "<sip:a@203.0.113.7:5060>", true),
            (&same, "<sip:a@203.0.113.7>;q=0.5", true),
            (&same, "sip:a@203.0.113.7:5060", true),
            (&same, "\"A\" <sip:a@203.0.113.7;transport=udp>", true),
            (&same, "<sip:a@203.0.113.7:5061>", false),
            (&same, "<sip:a@203.0.113.70>", false),
            (&same, "<sip:a@203.0.113.7:50600>", false),
            (&same, "<sip:a@203.0.113.7;maddr=10.0.0.1>", false),
            (&same, "<sip:203.0.113.7>", false),
            (&same, "<sip:a@203.0.113.7:>", false),
            (&same, "<sip:a@", false),
            (&same, "*", false),
            // A Via that is not the source shows nothing.
            (&other, "<sip:a@203.0.113.8:5060>", false),
            (&name, "<sip:a@phone.example>", false),
            (&name, "<sip:a@203.0.113.7>", false),
        ] {
            let via = Via::parse(via.as_bytes()).unwrap();
            let found = is_at_source(contact.as_bytes(), &via, source);
            assert_eq!(found, expected, "{contact}, {}", via.host);
        }
    }
}
