//! Request forwarding (RFC 3261 §16.6): the edits that turn the received request into the one
//! that leaves, and the sending, with or without state.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

use sip_message::number::write_decimal;
use sip_message::write::Edits;
use sip_message::{HeaderName, Message, Method};

use super::record_route;
use crate::config::{Listener, StateMode};
use crate::engine::directory::egress;
use crate::engine::request::Request;
use crate::engine::secrets::write_hex;
use crate::engine::{ClientUser, Engine, Failover};
use crate::id::{ConnId, ListenerId};
use crate::resolve::Candidate;
use crate::transaction::table::Key;
use crate::transport::{Flow, Transport, via};

/// Prefix of branches of ours, after the magic cookie: 32 hexadecimal digits and one for the
/// target's number follow.
pub(crate) const COOKIE: &[u8] = b"z9hG4bK";

/// What routing decided about a request, beside the edits that it already made.
#[derive(Clone, Debug)]
pub(crate) struct Decision {
    /// Where to, in the order in which to try.
    pub(crate) candidates: crate::resolve::Candidates,
    /// The flow of a registration, where the contact is reached through it.
    pub(crate) flow: Option<Flow>,
    /// State to keep.
    pub(crate) state: StateMode,
    /// Stay in the dialog's path.
    pub(crate) record_route: bool,
    /// Timer C, milliseconds.
    pub(crate) c_ms: u32,
    /// Number of the target among those of this request.
    pub(crate) target: u8,
}

/// Why a request could not be sent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotSent {
    /// No candidate can be reached from any listener.
    NoListener,
    /// The limit of transactions is reached.
    Full,
}

impl Engine {
    /// Sends a request on by `decision`. The edits of routing lie in `self.edits`.
    pub(crate) fn forward(
        &mut self,
        request: &Request<'_>,
        server: Option<Key>,
        decision: &Decision,
    ) -> Result<(), NotSent> {
        let (at, to) = self
            .first_reachable(request, decision, 0)
            .ok_or(NotSent::NoListener)?;
        let stateless =
            request.method == Method::Ack || (decision.state == StateMode::Stateless && server.is_none());
        if stateless {
            let branch = self.secrets.branch(&request.branch_input(), decision.target);
            self.final_edits(request, decision, branch, to, true);
            self.out.push_with(to, |text| {
                self.edits.apply(request.message.source(), span(request), text)
            });
            self.counters.relayed_stateless += 1;
            return Ok(());
        }
        let server = match server {
            Some(key) => key,
            None => self.begin(request).ok_or(NotSent::Full)?,
        };
        // What came so far need not prove itself again on its way to another address.
        if let Some(found) = self.table.server_mut(server) {
            found.user.authorized = true;
        }
        self.start_branch(request, server, decision, to);
        self.counters.relayed_stateful += 1;
        // Behind a registration's flow stand all candidates.
        let from = if decision.flow.is_some() { 0 } else { at + 1 };
        self.keep_failover(request, server, decision, from);
        Ok(())
    }

    /// Notes the candidates from `from` on, if one of them can be reached: where there is a
    /// [`Failover`], there is something left to try.
    fn keep_failover(&mut self, request: &Request<'_>, server: Key, decision: &Decision, from: usize) {
        let Some((next, _)) = self.next_candidate(request, decision, from) else {
            return;
        };
        if let Some(server) = self.table.server_mut(server) {
            let candidates = decision.candidates.iter().copied().collect();
            server.user.failover = Some(Box::new(Failover { candidates, next }));
        }
    }

    /// The first candidate from `from` on that a listener of ours can reach.
    fn first_reachable(
        &self,
        request: &Request<'_>,
        decision: &Decision,
        from: usize,
    ) -> Option<(usize, Flow)> {
        match decision.flow {
            Some(flow) => Some((0, flow)),
            None => self.next_candidate(request, decision, from),
        }
    }

    fn next_candidate(
        &self,
        request: &Request<'_>,
        decision: &Decision,
        from: usize,
    ) -> Option<(usize, Flow)> {
        decision
            .candidates
            .iter()
            .enumerate()
            .skip(from)
            .find_map(|(at, c)| self.flow_to(c, request.flow.listener).map(|flow| (at, flow)))
    }

    /// The flow to a candidate, from the listener that reaches it.
    pub(crate) fn flow_to(&self, candidate: &Candidate, ingress: ListenerId) -> Option<Flow> {
        let Candidate { transport, address } = *candidate;
        let listener = egress(&self.config, transport, address.ip(), Some(ingress))?;
        Some(Flow {
            transport,
            listener,
            remote: address,
            conn: None,
        })
    }

    fn start_branch(&mut self, request: &Request<'_>, server: Key, decision: &Decision, to: Flow) {
        let branch = self.secrets.branch(&request.branch_input(), decision.target);
        self.final_edits(request, decision, branch, to, false);
        let mut text = core::mem::take(&mut self.scratch);
        text.clear();
        self.edits
            .apply(request.message.source(), span(request), &mut text);
        let user = ClientUser {
            server: Some(server),
            timer_c: None,
            c_ms: decision.c_ms,
            provisional: false,
            cancel_wanted: false,
            cancel_sent: false,
        };
        let invite = request.method == Method::Invite;
        let client = self.begin_client(client_key(branch, request.method), invite, to, &text, user);
        self.scratch = text;
        if let Some(server) = self.table.server_mut(server) {
            server.user.branches.push(client);
        }
    }

    /// The edits that every forwarded request gets: received, Max-Forwards, Record-Route, Via
    /// (§16.6 steps 3, 4, 8) and, toward a stream, Content-Length.
    fn final_edits(
        &mut self,
        request: &Request<'_>,
        decision: &Decision,
        branch: u128,
        to: Flow,
        token: bool,
    ) {
        let message = &request.message;
        let Some(egress) = self.config.listeners.get(usize::from(to.listener.0)) else {
            return;
        };
        if !via::is_final(&request.via, request.flow.remote)
            && let Some(top) = sip_message::chars::span_in(message.source(), request.via.text)
        {
            self.edits.replace_with(top, |out| {
                via::write_received(out, &request.via, request.flow.remote)
            });
        }
        let first = message.headers_offset();
        self.edits.insert_with(first, |out| {
            write_via(
                out,
                egress,
                branch,
                decision.target,
                token.then_some(request.flow),
            );
        });
        lower_max_forwards(&mut self.edits, request);
        if decision.record_route
            && request.to.tag().is_none()
            && matches!(request.method, Method::Invite | Method::Subscribe | Method::Refer)
            && let Some(ingress) = self.config.listeners.get(usize::from(request.flow.listener.0))
        {
            let mark = self.secrets.route_mark(request.call_id, request.from_tag());
            // Before the topmost Record-Route; where there is none, behind our Via.
            let at = message
                .fields_named(HeaderName::RecordRoute)
                .next()
                .map_or(first, |f| f.start as usize);
            self.edits
                .insert_with(at, |out| record_route::write(out, mark, ingress, egress));
        }
        if to.transport.is_reliable() && !message.has(HeaderName::ContentLength) {
            self.edits.insert_with(message.headers_end_offset(), |out| {
                out.extend_from_slice(b"Content-Length: ");
                write_decimal(out, message.body().len() as u64);
                out.extend_from_slice(b"\r\n");
            });
        }
    }

    /// Next address of a failed next hop (RFC 3263 §4.3): the same request with a new branch.
    /// `false`: there is none.
    pub(crate) fn fail_over(&mut self, request: &Request<'_>, server: Key, decision: &mut Decision) -> bool {
        let Some(failover) = self.table.server_mut(server).and_then(|s| s.user.failover.take()) else {
            return false;
        };
        decision.candidates = failover.candidates.iter().copied().collect();
        decision.flow = None;
        let Some((at, to)) = self.first_reachable(request, decision, failover.next) else {
            return false;
        };
        self.counters.failovers += 1;
        self.start_branch(request, server, decision, to);
        self.keep_failover(request, server, decision, at + 1);
        true
    }
}

/// Removes the first `count` values of a header whose values may share lines (Via, Route).
pub(crate) fn remove_values(edits: &mut Edits, message: &Message<'_>, name: HeaderName, count: usize) {
    keep_values(edits, message, name, count..usize::MAX);
}

/// Removes all values of a header but those whose numbers, from the top, lie in `keep`.
pub(crate) fn keep_values(edits: &mut Edits, message: &Message<'_>, name: HeaderName, keep: Range<usize>) {
    // Of the line at hand: where its values begin, and what of it stays.
    let mut from = 0;
    let mut kept: Option<Range<usize>> = None;
    for (number, value) in message.values(name).enumerate() {
        if value.first {
            if number >= keep.start && keep.end == usize::MAX {
                return;
            }
            from = value.span(message).start;
            kept = None;
        }
        let keep_this = keep.contains(&number);
        if keep_this {
            let span = value.span(message);
            let start = kept.map_or(span.start, |k| k.start);
            kept = Some(start..span.end);
        }
        let Some(field) = message.fields().get(value.field).filter(|_| value.last) else {
            continue;
        };
        match kept.take() {
            None => edits.delete(field.start as usize..field.end as usize),
            Some(kept) => {
                if from < kept.start {
                    edits.delete(from..kept.start);
                }
                if !keep_this {
                    edits.delete(kept.end..field.value_end as usize);
                }
            }
        }
    }
}

fn lower_max_forwards(edits: &mut Edits, request: &Request<'_>) {
    let message = &request.message;
    match message.fields_named(HeaderName::MaxForwards).next() {
        Some(field) => {
            let hops = message
                .max_forwards()
                .ok()
                .flatten()
                .unwrap_or(0)
                .saturating_sub(1);
            edits.replace_with(field.value as usize..field.value_end as usize, |out| {
                write_decimal(out, u64::from(hops));
            });
        }
        None => edits.insert(message.headers_offset(), b"Max-Forwards: 70\r\n"),
    }
}

/// The message's place in the bytes given to the parser.
fn span(request: &Request<'_>) -> Range<usize> {
    request.message.start_offset()..request.message.end_offset()
}

/// Key of a client transaction: branch and method (§17.1.3), an INVITE's being the branch itself.
/// Branches are keyed hashes, so that any difference will do.
pub(crate) fn client_key(branch: u128, method: Method<'_>) -> u128 {
    if matches!(method, Method::Invite | Method::Ack) {
        return branch;
    }
    let name = method.as_bytes().iter();
    name.fold(branch, |key, c| key.rotate_left(5) ^ u128::from(*c))
}

/// Appends our Via line. `ingress`: where the response is to leave, for what keeps no state.
fn write_via(out: &mut Vec<u8>, egress: &Listener, branch: u128, target: u8, ingress: Option<Flow>) {
    out.extend_from_slice(b"Via: SIP/2.0/");
    out.extend_from_slice(egress.transport.via_name().as_bytes());
    out.push(b' ');
    out.extend_from_slice(&egress.sent_by);
    out.extend_from_slice(b";branch=");
    write_branch(out, branch, target);
    if egress.transport == Transport::Udp {
        // RFC 3581 §3: the answer finds its way through a NAT, and to the port that sent.
        out.extend_from_slice(b";rport");
    }
    if let Some(flow) = ingress {
        out.extend_from_slice(b";tz=");
        write_decimal(out, u64::from(flow.listener.0));
        if let Some(conn) = flow.conn {
            for number in [u32::from(conn.worker.0), conn.slot, conn.generation] {
                out.push(b'.');
                write_decimal(out, u64::from(number));
            }
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a branch of ours.
pub(crate) fn write_branch(out: &mut Vec<u8>, branch: u128, target: u8) {
    out.extend_from_slice(COOKIE);
    write_hex(out, branch, 32);
    write_hex(out, u128::from(target), 2);
}

/// Reads a branch of ours: its hash and the target's number.
pub(crate) fn read_branch(branch: &[u8]) -> Option<(u128, u8)> {
    use crate::engine::secrets::read_hex;
    let digits = branch.strip_prefix(COOKIE)?;
    let (hash, target) = digits.split_at_checked(32)?;
    Some((read_hex(hash, 32)?, read_hex(target, 2)? as u8))
}

/// Reads the ingress that [`write_via`] wrote.
pub(crate) fn read_ingress(text: &[u8]) -> Option<(ListenerId, Option<ConnId>)> {
    let mut numbers = text.split(|c| *c == b'.').map(sip_message::number::decimal_u32);
    let listener = ListenerId(u16::try_from(numbers.next()??).ok()?);
    let Some(worker) = numbers.next() else {
        return Some((listener, None));
    };
    let conn = ConnId {
        worker: crate::id::WorkerId(u16::try_from(worker?).ok()?),
        slot: numbers.next()??,
        generation: numbers.next()??,
    };
    if numbers.next().is_some() {
        return None;
    }
    Some((listener, Some(conn)))
}
