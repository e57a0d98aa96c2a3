//! Flow tokens (RFC 5626 §5.2): a flow as the user part of our Record-Route. Requests of the dialog reach a
//! user agent by a flow token if the user agent has no address of its own.
//!
//! A token names the connection and both of its ends, and ends in a MAC under a key that only nodes
//! of this domain have. The MAC also covers the dialog, by its Call-ID and the caller's tag. So a
//! token is good in no other dialog, and no callee can lead strangers to another user agent's flow.
//!
//! User agents that get a token:
//! - **WebSocket clients** (RFC 7118 §5): no host is reached by their Contact.
//! - **User agents with outbound** (`ob` in the Contact, RFC 5626 §4.3; `reg-id` in the
//!   registration).
//! - **User agents on a stream with another address in the Contact** than the source address: these are
//!   behind a NAT. The flow is tried first, and then the Contact; for a WebSocket or outbound the flow is the
//!   only way. No connection is opened to the far end of the flow: by then another host may have that port of
//!   the NAT.
//! - **User agents behind a NAT that come by UDP** ([`super::nat`]): these have no connection. The address that
//!   the token names is the only way, unless the Request-URI has become another public address.
//! - **User agents by TLS without a certificate**: a connection opened to their Contact could not
//!   verify them. And the shell uses a connection that it finds by an address only if the peer has
//!   proved that address.
//!
//! Only a first hop gets a token: a user agent behind another proxy is reached through that proxy.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use base64ct::{Base64UrlUnpadded, Encoding as _};
use sip_message::header::NameAddr;
use sip_message::{HeaderName, Host, SipUri};

use crate::engine::Engine;
use crate::engine::request::Request;
use crate::engine::secrets::Secrets;
use crate::id::{ConnId, ListenerId, WorkerId};
use crate::transport::{Flow, Proof, Transport};

/// A flow that a Route names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteFlow {
    pub(crate) flow: Flow,
    /// Whether the flow is the only way.
    pub(crate) only: bool,
    /// Whether the flow leads to the side that began the dialog; else it leads to the side that was called.
    pub(crate) to_initiator: bool,
}

/// The origin of the user part of a Route of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenOrigin {
    /// A flow of this node.
    ThisNode(RouteFlow),
    /// A flow of another node that has our keys.
    OtherNode(RouteFlow),
    /// Not made by us, or not for this dialog.
    Forged,
}

/// The dialog of a token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dialog<'a> {
    pub(crate) call_id: &'a [u8],
    pub(crate) caller_tag: &'a [u8],
}

/// The bytes of a token before its MAC: at most 33, or 35 with the place of a path token.
pub(super) type Bytes = smallvec::SmallVec<[u8; 48]>;

pub(super) const MAC: usize = 8;
const ONLY: u8 = 1 << 3;
const IPV6: u8 = 1 << 4;
const CONN: u8 = 1 << 5;
const TO_INITIATOR: u8 = 1 << 6;

impl Engine {
    /// Appends the token of a flow, for this dialog.
    pub(crate) fn write_flow_token(&self, out: &mut Vec<u8>, route: &RouteFlow, dialog: Dialog<'_>) {
        seal(&self.secrets, self.config.node_id, out, route, dialog);
    }

    /// Reads what [`Engine::write_flow_token`] wrote for this dialog.
    pub(crate) fn read_flow_token(&self, text: &[u8], dialog: Dialog<'_>) -> TokenOrigin {
        open(&self.secrets, self.config.node_id, text, dialog)
    }

    /// The flow by which requests of the dialog reach the sender of this request, if the sender needs one.
    pub(crate) fn flow_of_sender(&self, request: &Request<'_>) -> Option<RouteFlow> {
        let flow = request.flow;
        let message = &request.message;
        let websocket = matches!(flow.transport, Transport::Ws | Transport::Wss);
        let contact = message.value(HeaderName::Contact);
        // Most user agents by UDP are where their Contact says, so that it need not be parsed.
        if flow.transport == Transport::Udp
            && contact.is_none_or(|contact| self.needs_no_token(request, contact))
        {
            return None;
        }
        // With a second Via, the sender is not the hop before us.
        if message.values(HeaderName::Via).nth(1).is_some() {
            return None;
        }
        let contact = contact.and_then(NameAddr::parse);
        let uri = contact.and_then(|addr| addr.sip_uri());
        let only = websocket || uri.is_some_and(|uri| uri.params.has(b"ob"));
        let by_flow = || {
            uri.is_some_and(|uri| match flow.transport.is_reliable() {
                true => goes_by_flow(&uri, &flow),
                false => self.is_sender_behind_nat(request, &uri),
            })
        };
        (only || by_flow()).then_some(RouteFlow {
            flow,
            only,
            to_initiator: true,
        })
    }

    /// The flow by which requests of the dialog reach a contact again, for a request that leaves on the flow of
    /// its registration. `only`: that flow is the only way to the contact.
    pub(crate) fn flow_of_contact(&self, contact: &[u8], flow: Flow, only: bool) -> Option<RouteFlow> {
        let by_flow = || {
            let uri = sip_message::Uri::parse(contact).ok();
            let uri = uri.as_ref().and_then(|uri| uri.sip());
            uri.is_some_and(|uri| match flow.transport.is_reliable() {
                true => goes_by_flow(uri, &flow),
                false => self.is_contact_behind_nat(uri, &flow),
            })
        };
        (only || by_flow()).then_some(RouteFlow {
            flow,
            only,
            to_initiator: false,
        })
    }
}

/// Whether requests to this Contact are to be tried by its connection first. A binding does not say whether its
/// peer was verified, so that the flow is tried for each binding made by TLS.
fn goes_by_flow(uri: &SipUri<'_>, flow: &Flow) -> bool {
    let unknown = flow.transport == Transport::Tls && flow.proof == Proof::None;
    unknown || differs_from_source(uri, flow)
}

/// Whether a Contact URI is another address than the far end of the flow.
fn differs_from_source(uri: &SipUri<'_>, flow: &Flow) -> bool {
    match uri.host {
        Host::V4(ip) => flow.remote.ip().to_canonical() != IpAddr::V4(ip),
        Host::V6(ip) => flow.remote.ip().to_canonical() != IpAddr::V6(ip).to_canonical(),
        Host::Name(_) => false,
    }
}

fn seal(secrets: &Secrets, node: u16, out: &mut Vec<u8>, route: &RouteFlow, dialog: Dialog<'_>) {
    let mut bytes = encode(route, node);
    let mac = secrets.flow_mac(&bytes, dialog.call_id, dialog.caller_tag);
    bytes.extend_from_slice(&mac.to_be_bytes());
    write_base64url(out, &bytes);
}

fn open(secrets: &Secrets, node: u16, text: &[u8], dialog: Dialog<'_>) -> TokenOrigin {
    let read = || {
        let bytes = read_base64url(text)?;
        let (body, mac) = bytes.split_last_chunk::<MAC>()?;
        // One word is compared with one word: the time that this takes reveals nothing.
        let genuine = secrets.flow_mac(body, dialog.call_id, dialog.caller_tag);
        (genuine == u64::from_be_bytes(*mac)).then_some(())?;
        decode(body)
    };
    match read() {
        Some((route, of)) if of != node => TokenOrigin::OtherNode(route),
        Some((route, _)) => TokenOrigin::ThisNode(route),
        None => TokenOrigin::Forged,
    }
}

pub(super) fn encode(route: &RouteFlow, node: u16) -> Bytes {
    let flow = &route.flow;
    let mut bytes = Bytes::new();
    let mut head = flow.transport as u8;
    head |= if route.only { ONLY } else { 0 };
    head |= if route.to_initiator { TO_INITIATOR } else { 0 };
    head |= if flow.remote.is_ipv6() { IPV6 } else { 0 };
    head |= if flow.conn.is_some() { CONN } else { 0 };
    bytes.push(head);
    bytes.extend_from_slice(&node.to_be_bytes());
    bytes.extend_from_slice(&flow.listener.0.to_be_bytes());
    match flow.remote.ip() {
        IpAddr::V4(ip) => bytes.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes.extend_from_slice(&ip.octets()),
    }
    bytes.extend_from_slice(&flow.remote.port().to_be_bytes());
    if let Some(conn) = flow.conn {
        bytes.extend_from_slice(&conn.worker.0.to_be_bytes());
        bytes.extend_from_slice(&conn.slot.to_be_bytes());
        bytes.extend_from_slice(&conn.generation.to_be_bytes());
    }
    bytes
}

pub(super) fn decode(bytes: &[u8]) -> Option<(RouteFlow, u16)> {
    fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
        let (head, tail) = rest.split_first_chunk()?;
        *rest = tail;
        Some(*head)
    }
    let mut rest = bytes;
    let [head] = take(&mut rest)?;
    let node = u16::from_be_bytes(take(&mut rest)?);
    let transport = [
        Transport::Udp,
        Transport::Tcp,
        Transport::Tls,
        Transport::Ws,
        Transport::Wss,
    ];
    let transport = *transport.get(usize::from(head & 7))?;
    let listener = ListenerId(u16::from_be_bytes(take(&mut rest)?));
    let ip = match head & IPV6 {
        0 => IpAddr::from(take::<4>(&mut rest)?),
        _ => IpAddr::from(take::<16>(&mut rest)?),
    };
    let port = u16::from_be_bytes(take(&mut rest)?);
    let conn = match head & CONN {
        0 => None,
        _ => Some(ConnId {
            worker: WorkerId(u16::from_be_bytes(take(&mut rest)?)),
            slot: u32::from_be_bytes(take(&mut rest)?),
            generation: u32::from_be_bytes(take(&mut rest)?),
        }),
    };
    let flow = Flow {
        transport,
        listener,
        remote: SocketAddr::new(ip, port),
        conn,
        proof: Proof::None,
    };
    let route = RouteFlow {
        flow,
        only: head & ONLY != 0,
        to_initiator: head & TO_INITIATOR != 0,
    };
    rest.is_empty().then_some((route, node))
}

/// Appends base64url without padding (RFC 4648 §5): all of it may stand in a user part.
pub(super) fn write_base64url(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    out.resize(start + Base64UrlUnpadded::encoded_len(bytes), 0);
    let room = out.get_mut(start..).unwrap_or_default();
    let encoded = Base64UrlUnpadded::encode(bytes, room);
    debug_assert!(encoded.is_ok());
}

/// Reads base64url strictly (RFC 4648 §3.5): a token has one spelling. More than 48 bytes are no token: the
/// longest has 43.
pub(super) fn read_base64url(text: &[u8]) -> Option<Bytes> {
    let mut room = [0; 48];
    let bytes = Base64UrlUnpadded::decode(text, &mut room).ok()?;
    Some(Bytes::from_slice(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::location::codec::tests::flow;
    use proptest::prelude::*;

    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

    fn route() -> impl Strategy<Value = RouteFlow> {
        (flow(), any::<[bool; 2]>()).prop_map(|(flow, [only, to_initiator])| RouteFlow {
            flow,
            only,
            to_initiator,
        })
    }

    proptest! {
        #[test]
        fn flows_come_back_and_nothing_else_does(route in route(), node: u16, cut in 0..40usize) {
            let bytes = encode(&route, node);
            prop_assert_eq!(decode(&bytes), Some((route, node)));
            let cut = cut % bytes.len();
            prop_assert_eq!(decode(&bytes[..cut]), None);
            let longer = [&bytes[..], &[0]].concat();
            prop_assert_eq!(decode(&longer), None);
            let mut text = Vec::new();
            write_base64url(&mut text, &bytes);
            prop_assert!(text.len() <= 64);
            prop_assert_eq!(read_base64url(&text), Some(bytes));
        }

        /// RFC 5626 §5.2: a token that is not exactly as it was written, or stands in another dialog, is
        /// forged.
        #[test]
        fn a_token_is_good_as_it_was_written_and_in_its_dialog_only(
            route in route(),
            node: u16,
            call_id in "[a-z0-9]{0,20}",
            other in "[A-Z]",
        ) {
            let (call_id, other) = (call_id.as_bytes(), other.as_bytes());
            let dialog = Dialog { call_id, caller_tag: b"a" };
            let secrets = Secrets::new(&[7; 32], &[9; 32]);
            let mut text = Vec::new();
            seal(&secrets, node, &mut text, &route, dialog);
            prop_assert_eq!(open(&secrets, node, &text, dialog), TokenOrigin::ThisNode(route));
            // Another node of the domain has the same secret, and a seed of its own.
            let of_another = Secrets::new(&[7; 32], &[8; 32]);
            let elsewhere = open(&of_another, node ^ 1, &text, dialog);
            prop_assert_eq!(elsewhere, TokenOrigin::OtherNode(route));
            let of_strangers = Secrets::new(&[6; 32], &[9; 32]);
            prop_assert_eq!(open(&of_strangers, node, &text, dialog), TokenOrigin::Forged);
            for of_another in [Dialog { call_id: other, ..dialog }, Dialog { caller_tag: other, ..dialog }] {
                prop_assert_eq!(open(&secrets, node, &text, of_another), TokenOrigin::Forged);
            }
            for (at, bit) in (0..text.len()).flat_map(|at| (0..6).map(move |bit| (at, bit))) {
                let mut changed = text.clone();
                let value = ALPHABET.iter().position(|digit| *digit == text[at]).unwrap();
                changed[at] = ALPHABET[value ^ 1 << bit];
                let owner = open(&secrets, node, &changed, dialog);
                prop_assert_eq!(owner, TokenOrigin::Forged, "digit {}, bit {}", at, bit);
            }
        }

        #[test]
        fn any_text_is_survived(text in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(bytes) = read_base64url(&text) {
                let _ = decode(&bytes);
            }
        }
    }

    /// RFC 4648 §10.
    #[test]
    fn base64url_is_that_of_rfc_4648() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg"),
            ("fo", "Zm8"),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg"),
        ] {
            let mut out = Vec::new();
            write_base64url(&mut out, bytes.as_bytes());
            assert_eq!(out, text.as_bytes());
            assert_eq!(
                read_base64url(text.as_bytes()).unwrap().as_slice(),
                bytes.as_bytes()
            );
        }
        for bad in ["A", "AAAAA", "A=", "A+", "A/", "Zh", "Zm9"] {
            assert_eq!(read_base64url(bad.as_bytes()), None, "{bad}");
        }
    }
}
