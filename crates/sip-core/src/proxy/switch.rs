//! Requests that are too long for a datagram (RFC 3261 §18.1.1): they leave by TCP, and by UDP after
//! all if TCP leads nowhere.
//!
//! Decisions that the RFC leaves open, or in which it is not followed to the letter:
//! - **A URI with `transport=udp` is obeyed** (RFC 3263 §4.1), although §18.1.1 knows no such
//!   exception: by it an operator names a peer behind a firewall that swallows TCP. If the transport
//!   came from name service or from the default, the request switches.
//! - **The flow of a registration is kept** (RFC 5626 §5.3): nothing else reaches a user agent behind a NAT.
//! - **Without state an INVITE does not switch.** Its CANCEL and the ACK to its failure must go where the
//!   INVITE went (§9.1, §17.1.1.3). But these are short, and no state says how long the INVITE was. Other
//!   requests have no CANCEL and no ACK, and a copy has the same length, so that it takes the same way. The
//!   number in the branch, under the branch's hash, shows that a request has switched.
//! - With state the branch knows its transport, and CANCEL and ACK follow it.
//! - **A request goes back to UDP** if it could not be delivered before a response came. Every cause counts:
//!   the shell does not distinguish a reset from a time-out. The transaction begins anew with the same
//!   branch, so that a peer that got both requests recognises a copy. The attempt by TCP counts as no failure
//!   of the next hop. A request that was cancelled meanwhile is not sent again.
//! - **After that, requests to this address go by UDP at once** for five minutes
//!   ([`crate::engine::tcp_failures`]): a firewall that swallows new connections costs each try its
//!   time-out. A response on a connection to that address ends this. Without state such a request is
//!   written as if it had switched and come back, so that copies are the same before and after.

use alloc::vec::Vec;

use sip_message::header::NameAddr;
use sip_message::write::Edits;
use sip_message::{HeaderName, Message, Method};

use super::branch::ingress_token;
use super::branch::{BRANCH_DIGITS, Ingress, rehide_seed, write_via_start};
use super::mark::Mark;
use super::record_route::RecordRoute;
use crate::config::StateMode;
use crate::engine::request::Request;
use crate::engine::{Course, Engine};
use crate::id::ListenerId;
use crate::resolve::Candidate;
use crate::transaction::table::ClientKey;
use crate::transport::{Flow, Proof, Transport};

/// The branch number of a request that switched without state. Branches with state have lower numbers
/// (`limits.branches`).
const SWITCHED: u8 = u8::MAX;

/// Whether a request to this candidate may leave by TCP instead.
pub(crate) fn may_switch(candidate: &Candidate) -> bool {
    candidate.transport == Transport::Udp && !candidate.named
}

/// The move of a request, written for one listener, to another listener.
#[derive(Clone, Copy, Debug)]
struct TransportSwitch {
    ingress: ListenerId,
    from: ListenerId,
    to: ListenerId,
    /// The new branch, if the request gets one.
    branch: Option<NewBranch>,
}

#[derive(Clone, Copy, Debug)]
struct NewBranch {
    id: u64,
    number: u8,
    /// The difference between the pads of the old branch and of this one.
    pads: u64,
}

impl Engine {
    /// Switches a request with state, which is too long for a datagram, to TCP: changes `text` and `to`.
    /// Returns whether the request was switched. It stays on UDP if no listener reaches that address by TCP,
    /// or if TCP failed there recently.
    #[cold]
    pub(super) fn switch_to_stream(
        &mut self,
        to: &mut Flow,
        text: &mut Vec<u8>,
        ingress: ListenerId,
    ) -> bool {
        let stream = self.by(Transport::Tcp, *to, ingress);
        let Some(stream) = stream.filter(|_| self.config.limits.udp_mtu > 0) else {
            return false;
        };
        if self.tcp_failures.has(to.remote, self.now.instant) {
            self.counters.kept_on_udp += 1;
            return false;
        }
        let moved = TransportSwitch {
            ingress,
            from: to.listener,
            to: stream.listener,
            branch: None,
        };
        if !self.readdress(text, &moved) {
            return false;
        }
        *to = stream;
        self.counters.switched_to_tcp += 1;
        true
    }

    /// Switches the message appended last to the output, which has no state and is too long for a
    /// datagram.
    #[cold]
    pub(super) fn switch_stateless(&mut self, request: &Request<'_>, state: StateMode, to: Flow) {
        #[expect(clippy::wildcard_enum_match_arm, reason = "most methods are alike here")]
        let stays = match request.method {
            Method::Invite | Method::Cancel => true,
            // With state, an ACK that is forwarded is for a 2xx: it stands alone.
            Method::Ack if state == StateMode::Stateless => true,
            _ => self.config.limits.udp_mtu == 0,
        };
        let ingress = request.flow.listener;
        let stream = self.by(Transport::Tcp, to, ingress);
        let Some(stream) = stream.filter(|_| !stays) else {
            return;
        };
        let in_vain = self.tcp_failures.has(to.remote, self.now.instant);
        let by = if in_vain { to } else { stream };
        let [old, new] = [0, SWITCHED].map(|number| self.secrets.branch(&request.branch_input(), number));
        let moved = TransportSwitch {
            ingress,
            from: to.listener,
            to: by.listener,
            branch: Some(NewBranch {
                id: new.id,
                number: SWITCHED,
                pads: old.pad ^ new.pad,
            }),
        };
        let mut text = core::mem::take(&mut self.scratch);
        text.clear();
        self.out.take_last(&mut text);
        if self.readdress(&mut text, &moved) {
            let counter = match in_vain {
                true => &mut self.counters.kept_on_udp,
                false => &mut self.counters.switched_to_tcp,
            };
            *counter += 1;
            self.out.push(by, &text);
        } else {
            self.out.push(to, &text);
        }
        self.scratch = text;
    }

    /// Sends an undelivered request of a client transaction by UDP, if the request had switched and no
    /// response has come. Returns whether the request was sent.
    pub(super) fn switch_back(&mut self, key: ClientKey) -> bool {
        let Some(client) = self.table.client_mut(key) else {
            return false;
        };
        let silent = client.machine.has_no_response();
        if client.user.course != Course::SWITCHED {
            return false;
        }
        client.user.course = Course::PLAIN;
        if !silent {
            return false;
        }
        let (stream, server) = (client.to, client.user.server());
        let again = (!client.user.cancel_wanted).then(|| Vec::from(&*client.request));
        self.note_no_tcp(stream.remote);
        let Some(mut text) = again else {
            return false;
        };
        let ingress = server
            .and_then(|key| self.table.live(key))
            .map(|s| s.source.listener);
        let Some(ingress) = ingress else {
            return false;
        };
        self.by_udp(stream, ingress, &mut text).is_some_and(|to| {
            self.restart_client(key, to, &text);
            true
        })
    }

    /// Sends an undelivered request without state by UDP. The request itself shows that it had switched, and
    /// at which listener it came in.
    pub(super) fn switch_back_stateless(&mut self, message: &Message<'_>, stream: Flow, number: u8) {
        if number != SWITCHED || stream.transport != Transport::Tcp {
            return;
        }
        self.note_no_tcp(stream.remote);
        let top = message.top_via().ok();
        let token = top.as_ref().and_then(ingress_token);
        let Some(Ingress {
            listener: ingress, ..
        }) = token.and_then(Ingress::read)
        else {
            return;
        };
        let span = message.start_offset()..message.end_offset();
        let mut text = Vec::from(message.source().get(span).unwrap_or_default());
        if let Some(to) = self.by_udp(stream, ingress, &mut text) {
            self.out.push(to, &text);
        }
    }

    fn by_udp(&mut self, stream: Flow, ingress: ListenerId, text: &mut Vec<u8>) -> Option<Flow> {
        let to = self.by(Transport::Udp, stream, ingress)?;
        let moved = TransportSwitch {
            ingress,
            from: stream.listener,
            to: to.listener,
            branch: None,
        };
        self.readdress(text, &moved).then(|| {
            self.counters.switched_back += 1;
            to
        })
    }

    /// The flow to the same address by another transport.
    fn by(&self, transport: Transport, to: Flow, ingress: ListenerId) -> Option<Flow> {
        let listener = self
            .directory
            .egress(&self.config, transport, to.remote.ip(), Some(ingress))?;
        Some(Flow {
            transport,
            listener,
            remote: to.remote,
            conn: None,
            proof: Proof::None,
        })
    }

    /// Rewrites a message for another listener: our Via, our Record-Route, and Content-Length if a stream
    /// needs one. Returns whether the message could be rewritten.
    fn readdress(&mut self, text: &mut Vec<u8>, moved: &TransportSwitch) -> bool {
        let mut edits = Edits::new();
        let mut new = Vec::with_capacity(text.len() + 64);
        let done = self.with_message(text, |engine, message| {
            engine.move_via(&mut edits, message, moved)?;
            engine.move_record_route(&mut edits, message, moved);
            edits.add_content_length(message);
            let span = message.start_offset()..message.end_offset();
            edits.apply(message.source(), span, &mut new);
            Some(())
        });
        let done = done.flatten().is_some();
        if done {
            core::mem::swap(text, &mut new);
        }
        done
    }

    /// Rewrites the topmost Via. `None`: the Via is not as we wrote it.
    fn move_via(&self, edits: &mut Edits, message: &Message<'_>, moved: &TransportSwitch) -> Option<()> {
        let field = message.fields_named(HeaderName::Via).next()?;
        let start = field.start as usize;
        let line = message.source().get(start..field.end as usize)?;
        let rest = line.strip_prefix(self.directory.via_start(moved.from))?;
        let digits = rest.get(..BRANCH_DIGITS)?;
        let of_branch = rest.iter().position(|c| matches!(c, b';' | b'\r'))?;
        let branch_end = line.len() - rest.len() + of_branch;
        let to = self.config.listeners.get(usize::from(moved.to.0))?;
        let new = self.directory.via_start(moved.to);
        let replaced = start..start + line.len() - rest.len() + BRANCH_DIGITS;
        edits.replace_with(replaced, |out| match moved.branch {
            Some(branch) => write_via_start(out, new, branch.id, branch.number),
            None => {
                out.extend_from_slice(new);
                out.extend_from_slice(digits);
            }
        });
        if let Some((digits, text)) = moved.branch.and_then(|branch| rehide_seed(line, branch.pads)) {
            edits.replace(start + digits.start..start + digits.end, &text);
        }
        // RFC 3581 §3: over UDP only.
        let rport = b";rport".as_slice();
        let has = line.get(branch_end..).is_some_and(|rest| rest.starts_with(rport));
        let at = start + branch_end;
        match (has, to.transport == Transport::Udp) {
            (true, false) => edits.delete(at..at + rport.len()),
            (false, true) => edits.insert(at, rport),
            _ => {}
        }
        Some(())
    }

    /// Rewrites the topmost Record-Route lines, if they are what we write for the listener that is left.
    fn move_record_route(
        &self,
        edits: &mut Edits,
        message: &Message<'_>,
        moved: &TransportSwitch,
    ) -> Option<()> {
        let first = message.fields_named(HeaderName::RecordRoute).next()?;
        let listener = |id: ListenerId| self.config.listeners.get(usize::from(id.0));
        let ingress = listener(moved.ingress)?;
        let topmost = message.values(HeaderName::RecordRoute).next()?;
        let uri = NameAddr::parse(topmost.text)?.sip_uri()?;
        let mark = Mark::of_params(&uri.params)?;
        // The token of the sender stands in the second of two lines.
        let own = message.values(HeaderName::RecordRoute).nth(1);
        let sender = own.and_then(|value| NameAddr::parse(value.text)?.sip_uri()?.user);
        let sender = sender.map(Vec::from).unwrap_or_default();
        let mut lines = Vec::with_capacity(160);
        let before = RecordRoute {
            mark,
            ingress,
            egress: listener(moved.from)?,
            // Nothing that must go by TLS leaves by UDP.
            secure: false,
            sender: &sender,
            receiver: &[],
        };
        before.write(&mut lines);
        let start = first.start as usize;
        let rest = message.source().get(start..)?;
        if rest.starts_with(&lines) {
            let after = RecordRoute {
                egress: listener(moved.to)?,
                ..before
            };
            edits.replace_with(start..start + lines.len(), |out| after.write(out));
        }
        Some(())
    }
}
