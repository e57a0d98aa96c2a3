//! Messages of ours that did not reach their peer (RFC 3261 §18.4, §18.2.2; RFC 3263 §5).

use core::net::SocketAddr;

use sip_message::header::Via;
use sip_message::{Host, Message, Method};

use super::branch::{client_hash, read_branch};
use crate::engine::Engine;
use crate::engine::destination::source_of;
use crate::engine::effects::ClientEvent;
use crate::resolve::{Candidates, HostRef, Located, SentBy};
use crate::transport::{Flow, PeerName, Transport};

impl Engine {
    /// Handles a message that did not reach `to`. A request fails with an error of the transport (RFC 3261
    /// §8.1.3.1, §18.4). The transaction of a response stays (RFC 6026 §8), and the response goes to the next
    /// address that its topmost Via names.
    pub(crate) fn handle_undelivered(&mut self, message: &Message<'_>, to: Flow) {
        // An ICMP error quotes the first half kilobyte or so: start line and topmost Via must do.
        let Some(method) = message.method() else {
            return self.response_undelivered(message, to);
        };
        let Ok(top) = message.top_via() else {
            return;
        };
        let Some((branch, number)) = top.branch().and_then(read_branch) else {
            return;
        };
        let method = if method == Method::Ack {
            Method::Invite
        } else {
            method
        };
        match self.table.find_client(client_hash(branch, method)) {
            Some(key) => {
                let failed = self
                    .table
                    .client(key)
                    .is_some_and(|c| c.to.remote == to.remote && c.to.transport == to.transport);
                if !failed || self.switch_back(key) {
                    return;
                }
                self.client_failure(key, ClientEvent::TransportError)
            }
            None => self.switch_back_stateless(message, to, number),
        }
    }

    /// Whether one more response may go to the addresses in this Via: any number for a trusted
    /// source, few for another ([`crate::engine::response_failover`]).
    fn may_look_elsewhere(&mut self, via: &Via<'_>, to: Flow) -> bool {
        // The source of the request, not an address that was tried since: we put `received` into the Via if
        // sent-by is another address.
        let source = via.received_any().or_else(|| via.host.ip());
        let source = source.unwrap_or_else(|| to.remote.ip());
        let asked_by = Flow {
            remote: SocketAddr::new(source, to.remote.port()),
            ..to
        };
        let may = self.is_trusted(&asked_by) || self.response_failover.may_try(source, self.now.instant);
        if !may {
            self.counters.limited_response_failover += 1;
        }
        may
    }

    /// Removes the addresses to which a sent-by must not lead: its writer may not have proved anything yet. A
    /// trusted peer or a guarded place may write any address.
    fn drop_denied(&mut self, candidates: &mut Candidates, host: HostRef<'_>, asked_by: &Flow) {
        let from = source_of(asked_by);
        if self.is_trusted(asked_by) || self.is_guarded(HostRef::Ip(from), 0) {
            return;
        }
        let count = candidates.len();
        candidates.retain(|candidate| !self.is_denied_target(host, candidate.address, from));
        self.counters.destinations_denied += (count - candidates.len()) as u64;
    }

    /// Sends a response to the next address that sent-by stands for (RFC 3261 §18.2.2, RFC 3263 §5). The
    /// response's connection is gone, and the source address accepts no new one: the shell has tried.
    fn response_undelivered(&mut self, message: &Message<'_>, to: Flow) {
        let (Ok(top), Some(call_id)) = (message.top_via(), message.call_id()) else {
            return;
        };
        if !to.transport.is_reliable() || !self.may_look_elsewhere(&top, to) {
            return;
        }
        let sent_by = SentBy {
            host: match top.host {
                Host::Name(name) => HostRef::Name(name),
                Host::V4(ip) => HostRef::Ip(ip.into()),
                Host::V6(ip) => HostRef::Ip(ip.into()),
            },
            port: top.port,
            transport: to.transport,
            ipv4: self.directory.reach.ipv4,
            ipv6: self.directory.reach.ipv6,
            dice: self.secrets.dice(call_id),
        };
        match self.resolver.locate_response(self.now.instant, &sent_by) {
            Located::Done(mut candidates) => {
                self.drop_denied(&mut candidates, sent_by.host, &to);
                let peer = match sent_by.host {
                    HostRef::Name(name) if to.transport == Transport::Tls => PeerName::new(name),
                    HostRef::Name(_) | HostRef::Ip(_) => None,
                };
                // The search begins behind the address that failed. If the source itself failed, or, by TLS,
                // a connection, the search begins with the first address, which was not tried for this name
                // yet.
                let failed = candidates.iter().position(|c| c.address == to.remote);
                let failed = failed.filter(|_| peer.is_none() || to.conn.is_none());
                let from = failed.map_or(0, |at| at + 1);
                if let Some((_, flow)) = self.next_candidate(&candidates, from, to.listener) {
                    self.counters.failovers += 1;
                    self.out.push(flow, message.bytes());
                    self.out.name_last(peer);
                }
            }
            // The result is for a retransmission; this response is lost.
            Located::Ask { name, kind } => self.ask_for_name(name, kind),
            Located::Unavailable => {}
        }
    }
}
