//! The phase *transaction*: requests that belong to a transaction that we hold (RFC 3261 §17.2.3, §9.2).

use sip_message::Method;

use crate::engine::Engine;
use crate::engine::effects::ServerEvent;
use crate::engine::reply::Reply;
use crate::engine::request::Request;
use crate::engine::status::Status;
use crate::transaction::table::ServerKey;

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
                let hash = self.server_hash(request, request.method);
                request.server_hash = Some(hash);
                let Some(key) = self.table.find_server(hash) else {
                    return false;
                };
                self.counters.retransmissions_absorbed += 1;
                self.server_event(key, ServerEvent::Again, &[]);
                true
            }
        }
    }

    /// Takes an ACK: one to a final response that we sent ends here, one to a 2xx goes on.
    fn ack(&mut self, request: &Request<'_>) -> bool {
        let Some(key) = self.table.find_server(self.server_hash(request, Method::Invite)) else {
            return false;
        };
        let server = self.table.server(key);
        let accepted = server.is_some_and(|server| server.machine.is_accepted());
        if !accepted {
            self.server_event(key, ServerEvent::Ack, &[]);
        }
        !accepted
    }

    /// Handles a CANCEL: the CANCEL gets 200 regardless of the INVITE's outcome (§9.2, §16.10). Each copy of
    /// the CANCEL gets the same response, so the CANCEL needs no transaction of its own. A CANCEL that shares
    /// only the branch with an INVITE is of another sender, and gets 481.
    fn cancel(&mut self, request: &Request<'_>) -> bool {
        let Some(key) = self.table.find_server(self.server_hash(request, Method::Invite)) else {
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

    /// Whether a CANCEL has the fields of its INVITE that it must have (§9.1), and comes from the same
    /// address or a trusted one. An INVITE with a final response cannot be cancelled, so nothing is compared
    /// with it.
    fn is_cancel_of(&mut self, key: ServerKey, request: &Request<'_>) -> bool {
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
}
