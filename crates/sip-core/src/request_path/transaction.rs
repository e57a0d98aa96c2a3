//! Phase 1: what belongs to a transaction that we hold (RFC 3261 §17.2.3, §9.2).

use sip_message::Method;

use crate::activity::Component;
use crate::engine::Engine;
use crate::engine::directory::comes_from;
use crate::engine::effects::ServerEvent;
use crate::engine::reply::{Reply, Status};
use crate::engine::request::Request;
use crate::transaction::invite_server;
use crate::transaction::table::{Key, ServerMachine};
use crate::transport::Transport;

/// Classes of server transactions: an ACK belongs to its INVITE's, a CANCEL to its own.
const INVITE: u8 = 1;
const OTHER: u8 = 2;

/// Bytes by which a request may grow on its way: Via, Record-Route and others of ours.
const MOST_ADDED: usize = 1024;

impl Engine {
    /// Whether the request was dealt with by a transaction that we hold.
    #[expect(clippy::wildcard_enum_match_arm, reason = "most methods are alike here")]
    pub(crate) fn find_transaction(&mut self, request: &mut Request<'_>) -> bool {
        if self.table.servers() == 0 {
            return false;
        }
        match request.method {
            Method::Ack => self.ack(request),
            Method::Cancel => self.cancel(request),
            _ => {
                let key = self.server_key(request, request.method);
                request.transaction = Some(key);
                let Some(key) = self.table.find_server(key) else {
                    return false;
                };
                self.counters.retransmissions_absorbed += 1;
                self.server_event(key, ServerEvent::Again, &[]);
                true
            }
        }
    }

    /// An ACK to a final answer that we sent ends here; one to a 2xx goes on.
    fn ack(&mut self, request: &Request<'_>) -> bool {
        let Some(key) = self.table.find_server(self.server_key(request, Method::Invite)) else {
            return false;
        };
        let accepted = self
            .table
            .server(key)
            .is_some_and(|server| match &server.machine {
                ServerMachine::Invite(machine) => machine.state() == invite_server::State::Accepted,
                ServerMachine::NonInvite(_) => false,
            });
        if !accepted {
            self.server_event(key, ServerEvent::Ack, &[]);
        }
        !accepted
    }

    /// §9.2, §16.10: 200 to the CANCEL whatever becomes of the INVITE. Each copy of the CANCEL
    /// gets the same answer, so it needs no transaction of its own. One that has only the branch of an INVITE in
    /// common with it is another's: 481.
    fn cancel(&mut self, request: &Request<'_>) -> bool {
        let Some(key) = self.table.find_server(self.server_key(request, Method::Invite)) else {
            return false;
        };
        let is_of_it = self.is_cancel_of(key, request);
        let status = if is_of_it {
            Status::OK
        } else {
            Status::NO_TRANSACTION
        };
        self.reply(
            &request.message,
            request.flow,
            None,
            &Reply { status, extra: &[] },
        );
        if is_of_it {
            self.cancel_server(key);
        }
        true
    }

    /// Whether a CANCEL has from its INVITE what it must have (§9.1), and comes from the same address, or from a
    /// trusted one. An INVITE that has its final answer cannot be cancelled, so nothing is compared with it.
    fn is_cancel_of(&mut self, key: Key, request: &Request<'_>) -> bool {
        let Some(found) = self.table.live_mut(key) else {
            return true;
        };
        let source = found.source;
        let bytes = core::mem::take(&mut found.request);
        let is_same = self.with_message(&bytes, |_, invite| {
            Request::read(*invite, source).is_ok_and(|invite| {
                invite.call_id == request.call_id
                    && invite.cseq.number == request.cseq.number
                    && invite.from_tag() == request.from_tag()
                    && invite.to.tag() == request.to.tag()
            })
        });
        if let Some(found) = self.table.live_mut(key) {
            found.request = bytes;
        }
        let is_from_there = source.remote.ip() == request.flow.remote.ip() || self.is_trusted(&request.flow);
        is_same == Some(true) && is_from_there
    }

    /// Index key of the server transaction that `request` belongs to as `method`: branch, sent-by
    /// and method (§17.2.3); for RFC 2543 peers, without the cookie, what that section lists
    /// (save the To tag, which an ACK has and its INVITE has not).
    pub(crate) fn server_key(&self, request: &Request<'_>, method: Method<'_>) -> u128 {
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
                .map_key([branch, via.host_text, &port, name, &[class]]),
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
                self.secrets.map_key(fields)
            }
        }
    }

    /// Whether to send no more to the source of a request than it sends: its address may be forged, and some caller is
    /// asked for credentials, so that sources can be known. A rule that lets a source in as it is takes it as known.
    fn is_unproven(&self, request: &Request<'_>) -> bool {
        self.asks_callers && !self.is_let_in && self.may_be_forged(request)
    }

    /// Whether the source address of a request may be forged: UDP, from an untrusted source, matching no rule's
    /// `source`, without credentials for a nonce that was sent to this address.
    pub(super) fn may_be_forged(&self, request: &Request<'_>) -> bool {
        let flow = &request.flow;
        flow.transport == Transport::Udp
            && !self.proved
            && !self.is_trusted(flow)
            && !self
                .config
                .routes
                .iter()
                .any(|rule| comes_from(&rule.when.source, flow))
    }

    /// Whether a request that has its server transaction may go on, as to the bytes that it takes once more
    /// then. Those of what waits are bounded besides: it may take the eighth.
    pub(crate) fn has_room_for_copy(&mut self, request: &Request<'_>) -> bool {
        let copy = request.message.bytes().len() + MOST_ADDED;
        let fits = self.table.bytes() + copy <= self.config.limits.answer_bytes();
        self.counters.limited_transactions += u64::from(!fits);
        fits
    }

    /// Makes the server transaction of a request, and answers an INVITE with 100 at once, unless its
    /// source has proved nothing. `None`: the limit is reached.
    pub(crate) fn begin(&mut self, request: &Request<'_>) -> Option<Key> {
        let limits = &self.config.limits;
        let held = self.table.servers() + self.table.clients();
        // As received, and as it goes on.
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
        let key = request
            .transaction
            .unwrap_or_else(|| self.server_key(request, request.method));
        let bytes = request.message.bytes();
        let quiet = self.is_unproven(request);
        let key = self.begin_server(key, invite, request.flow, request.reply_to(), bytes, quiet);
        if invite
            && request.to.tag().is_none()
            && let Some(live) = self.table.live_mut(key)
        {
            live.user.begins_call = true;
        }
        if invite && !quiet {
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
