//! Server transactions: the key that requests are matched by, and their begin (RFC 3261 §17.2).

use sip_message::Method;

use super::Engine;
use super::directory::comes_from;
use super::reply::Reply;
use super::request::Request;
use super::status::Status;
use crate::activity::Component;
use crate::transaction::table::ServerKey;
use crate::transport::{Flow, Transport};

/// Classes of server transactions: an ACK belongs to its INVITE's, a CANCEL to its own.
const INVITE: u8 = 1;
const OTHER: u8 = 2;

/// Bytes by which a request may grow on its way, by our Via, Record-Route and others.
const MOST_ADDED: usize = 1024;

impl Engine {
    /// The hash of the server transaction that `request` belongs to as `method`: branch, sent-by and method
    /// (§17.2.3). For RFC 2543 peers, without the cookie, it covers the fields that §17.2.3 lists (save the
    /// To tag, which an ACK has and its INVITE has not).
    pub(crate) fn server_hash(&self, request: &Request<'_>, method: Method<'_>) -> u128 {
        let via = &request.via;
        let port = via.port.unwrap_or(0).to_be_bytes();
        let class = if method == Method::Invite { INVITE } else { OTHER };
        let name: &[u8] = if method == Method::Invite {
            &[]
        } else {
            method.as_bytes()
        };
        match via.branch().filter(|_| via.has_cookie()) {
            Some(branch) => self
                .secrets
                .map_hash([branch, via.host_text, &port, name, &[class]]),
            None => {
                let number = request.cseq.number.to_be_bytes();
                let fields = [
                    via.text,
                    request.uri_text,
                    request.from_tag(),
                    request.call_id,
                    &number,
                    name,
                    &[class],
                ];
                self.secrets.map_hash(fields)
            }
        }
    }

    /// Whether the source address of a request that came on `flow` may be spoofed: UDP, from an untrusted source, matching
    /// no rule's `source`. Credentials for a nonce that was sent to this address verify it, too.
    pub(crate) fn is_source_unverified(&self, flow: &Flow) -> bool {
        flow.transport == Transport::Udp
            && !self.is_trusted(flow)
            && !self
                .config
                .routes
                .iter()
                .any(|rule| comes_from(&rule.when.source, flow))
    }

    /// Whether there is room for the forwarded copy of a request that has its server transaction. The copy
    /// may use the eighth above the limit, since waiting requests have a bound of their own, too.
    pub(crate) fn has_room_for_copy(&mut self, request: &Request<'_>) -> bool {
        let copy = request.message.bytes().len() + MOST_ADDED;
        let fits = self.table.bytes() + copy <= self.config.limits.response_bytes();
        self.counters.limited_transactions += u64::from(!fits);
        fits
    }

    /// Whether there is room for a client transaction of a request of our own, of this many bytes.
    pub(crate) fn has_room_for_own(&self, bytes: usize) -> bool {
        let limits = &self.config.limits;
        self.held_transactions() < limits.held_transactions
            && self.table.bytes() + bytes <= limits.response_bytes()
    }

    /// Transactions that are held: servers and clients, finished ones included.
    pub(crate) fn held_transactions(&self) -> usize {
        self.table.servers() + self.table.clients()
    }

    /// Begins the server transaction of a request. `None`: a limit is reached.
    ///
    /// An INVITE gets 100 at once, unless its source address may be spoofed and some callers are asked for
    /// credentials. Such a source gets no more than it sends until credentials verify its address. `vouched`:
    /// they did, or the configuration exempts the source from credentials.
    pub(crate) fn begin(&mut self, request: &Request<'_>, vouched: bool) -> Option<ServerKey> {
        let limits = &self.config.limits;
        let held = self.held_transactions();
        // The request is held as received, and as it goes on.
        let bytes = self.table.bytes() + 2 * request.message.bytes().len() + MOST_ADDED;
        if self.live >= limits.transactions
            || held >= limits.held_transactions
            || bytes > limits.transaction_bytes
        {
            self.counters.limited_transactions += 1;
            return None;
        }
        self.activity.enter(Component::Transaction);
        let invite = request.method == Method::Invite;
        let hash = request
            .server_hash
            .unwrap_or_else(|| self.server_hash(request, request.method));
        let bytes = request.message.bytes();
        let source_unverified = self.asks_callers && !vouched && self.is_source_unverified(&request.flow);
        let key = self.begin_server(
            hash,
            invite,
            request.flow,
            request.reply_to(),
            bytes,
            source_unverified,
        );
        if invite
            && request.to.tag().is_none()
            && let Some(live) = self.table.live_mut(key)
        {
            live.user.begins_call = true;
        }
        if invite && !source_unverified {
            self.reply(
                &request.message,
                request.flow,
                Some(key),
                &Reply {
                    status: Status::TRYING,
                    extra: &[],
                },
            );
        }
        Some(key)
    }
}
