//! Record-Route values of ours, and how we know them again (RFC 3261 §16.6 step 4, RFC 5658).
//!
//! Each carries `tz=`, a day and a keyed MAC over it, the Call-ID and the tag of the dialog's initiator,
//! so that loose routing serves dialogs that came through here and no others: no open relay. Whoever
//! took part in a dialog, or saw its messages, has its mark; so it ends after [`MARK_DAYS`].
//!
//! They are SIPS URIs where the Request-URI that leaves, or the Route that leads it, is one
//! (RFC 3261 §16.6 step 4, RFC 5630 §5.3), but for a side that the request did not pass by TLS.

use alloc::vec::Vec;

use sip_message::SipUri;

use super::flow_token::TokenOwner;
use crate::config::Listener;
use crate::engine::Engine;
use crate::engine::request::Request;
use crate::engine::secrets::{read_hex, write_hex};
use crate::transport::Transport;

/// What the Record-Route lines of one request are made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordRoute<'c> {
    /// See [`Engine::route_owner`].
    pub(crate) mark: u64,
    /// Where the request came in.
    pub(crate) ingress: &'c Listener,
    /// Where it leaves.
    pub(crate) egress: &'c Listener,
    /// It leaves for a SIPS URI.
    pub(crate) secure: bool,
    /// Token of the flow by which the dialog finds back to who sent it; empty: none is needed.
    pub(crate) sender: &'c [u8],
    /// The same of who gets it.
    pub(crate) receiver: &'c [u8],
}

/// The parameter that holds the mark.
const MARK: &[u8] = b"tz";
/// Days for which a mark is good: none but broken calls last longer.
const MARK_DAYS: u16 = 32;
const DAY_MS: u64 = 86_400_000;

/// What a Route value is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteOwner {
    /// Another's.
    Foreign,
    /// Names this server, without a valid mark.
    OwnHost,
    /// Made by us for this dialog.
    Marked {
        /// The request comes from who began the dialog.
        from_initiator: bool,
        /// The flow that it names.
        flow: Option<TokenOwner>,
    },
}

impl Engine {
    /// The mark of a dialog that begins now.
    pub(crate) fn new_mark(&self, call_id: &[u8], initiator_tag: &[u8]) -> u64 {
        self.secrets
            .route_mark(call_id, initiator_tag, day(self.now.unix_ms))
    }

    /// Whether a mark was made for this dialog, and not too long ago. Another node's clock may be
    /// ahead of ours.
    fn is_mark_of(&self, mark: u64, call_id: &[u8], initiator_tag: &[u8]) -> bool {
        let made = (mark >> 48) as u16;
        let age = day(self.now.unix_ms).wrapping_add(1).wrapping_sub(made);
        age <= MARK_DAYS + 1 && self.secrets.route_mark(call_id, initiator_tag, made) == mark
    }

    /// Says whose this Route URI is, for a request of this dialog.
    pub(crate) fn route_owner(&self, request: &Request<'_>, uri: &SipUri<'_>) -> RouteOwner {
        if !self.directory.is_own(&uri.host, uri.port) {
            return RouteOwner::Foreign;
        }
        let Some(mark) = uri.params.value(MARK).and_then(|m| read_hex(m, 16)) else {
            return RouteOwner::OwnHost;
        };
        let mark = mark as u64;
        let made_with =
            |tag: Option<&[u8]>| tag.is_some_and(|tag| self.is_mark_of(mark, request.call_id, tag));
        let from_initiator = made_with(request.from.tag());
        if !from_initiator && !made_with(request.to.tag()) {
            return RouteOwner::OwnHost;
        }
        RouteOwner::Marked {
            from_initiator,
            flow: uri.user.map(|token| self.read_flow_token(token, mark)),
        }
    }
}

/// Days since 1970, as far as two bytes hold them: enough to tell which came first for 89 years.
pub(super) const fn day(unix_ms: u64) -> u16 {
    (unix_ms / DAY_MS) as u16
}

impl RecordRoute<'_> {
    /// Appends the lines: one, or two where the sides differ (RFC 5658 §5), the egress side on top.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let (ingress, egress) = (self.ingress, self.egress);
        let two = ingress.transport != egress.transport
            || ingress.address.is_ipv4() != egress.address.is_ipv4()
            || ingress.sent_by != egress.sent_by
            || !(self.sender.is_empty() || self.receiver.is_empty());
        if two {
            self.write_one(out, egress, self.receiver, two);
            self.write_one(out, ingress, self.sender, two);
        } else {
            let token = if self.sender.is_empty() {
                self.receiver
            } else {
                self.sender
            };
            self.write_one(out, egress, token, two);
        }
    }

    fn write_one(&self, out: &mut Vec<u8>, listener: &Listener, token: &[u8], two: bool) {
        let secure = self.secure && listener.transport.is_secure();
        out.extend_from_slice(match secure {
            true => b"Record-Route: <sips:",
            false => b"Record-Route: <sip:",
        });
        if !token.is_empty() {
            out.extend_from_slice(token);
            out.push(b'@');
        }
        out.extend_from_slice(&listener.sent_by);
        // RFC 5630 §3.1.4: a SIPS URI means TLS, and does not say so a second time.
        let implied = match listener.transport {
            Transport::Udp => true,
            Transport::Tls => secure,
            Transport::Tcp | Transport::Ws | Transport::Wss => false,
        };
        if !implied {
            out.extend_from_slice(b";transport=");
            out.extend_from_slice(listener.transport.param_name().as_bytes());
        }
        out.extend_from_slice(b";lr");
        if two {
            // Understood by nobody but us; others write it too, so traces read alike.
            out.extend_from_slice(b";r2=on");
        }
        out.extend_from_slice(b";tz=");
        write_hex(out, u128::from(self.mark), 16);
        out.extend_from_slice(b">\r\n");
    }
}
