//! Request forwarding (RFC 3261 §16.6): the edits that turn the received request into the one
//! that leaves, and the sending, with or without state.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::Range;

use sip_message::number::write_decimal;
use sip_message::write::Edits;
use sip_message::{HeaderName, Message, Method, Uri};

use super::branch::{OurVia, client_hash, write_via};
use super::flow_token::RouteFlow;
use crate::activity::Component;
use crate::config::StateMode;
use crate::engine::context::{BranchPolicy, Context, Decided, Target, TargetState};
use crate::engine::destination::is_no_host;
use crate::engine::place::{DomainNumber, PlaceId};
use crate::engine::request::{Authorized, Request};
use crate::engine::secrets::Branched;
use crate::engine::seed::Seed;
use crate::engine::{ClientUser, Course, Engine, FlowOnly, TransactionUser};
use crate::id::ListenerId;
use crate::resolve::{Candidate, Candidates};
use crate::time::Millis;
use crate::transaction::table::{ClientKey, ServerKey};
use crate::transport::{Flow, PeerName, Proof, Transport, via};

/// The contact that a request goes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContactRef<'a> {
    pub(crate) uri: &'a [u8],
    pub(crate) path: &'a [u8],
    /// The domain of the account that registered the contact; 0: not looked up, or no domain asks for
    /// credentials.
    pub(crate) domain: DomainNumber,
}

/// The routing decision for a request with one target, beside the edits already made.
#[derive(Clone, Debug)]
pub(crate) struct RouteDecision<'a> {
    pub(crate) authorized: Authorized,
    /// The addresses to try, in order.
    pub(crate) candidates: Candidates,
    /// The domain that the peer's certificate must be for, at addresses that are reached by TLS.
    pub(crate) peer: Option<PeerName>,
    /// Whether `flow` is the only way.
    pub(crate) flow_only: FlowOnly,
    /// The flow of a registration, if the contact is reached through it.
    pub(crate) flow: Option<Flow>,
    /// State to keep.
    pub(crate) state: StateMode,
    pub(crate) policy: BranchPolicy,
    /// Whether the outgoing Request-URI or Route is SIPS.
    pub(crate) secure: bool,
    /// The registered contact, if the target is one.
    pub(crate) contact: Option<ContactRef<'a>>,
    /// Whether the edits have that contact already.
    pub(crate) has_contact_edits: bool,
    /// See [`Decided::dialog`].
    pub(crate) dialog: Option<PlaceId>,
    /// See [`Decided::secure`].
    pub(crate) request_secure: bool,
    /// The source address of the contact's registration, if the contact is reached by that flow.
    pub(crate) from: Option<IpAddr>,
}

/// One branch that is to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Branch {
    pub(crate) server: ServerKey,
    /// The number of the branch's target.
    pub(crate) target: u8,
    pub(crate) to: Flow,
    /// The domain that the peer's certificate must be for.
    pub(crate) peer: Option<PeerName>,
    /// Whether the flow `to` is the only way.
    pub(crate) flow_only: FlowOnly,
    /// The flow by which requests of the dialog reach the target, too.
    pub(crate) back: Option<RouteFlow>,
    /// Whether the branch may leave by TCP instead, if it is too long for a datagram.
    pub(crate) may_switch: bool,
    pub(crate) policy: BranchPolicy,
    /// Whether the outgoing Request-URI or Route is SIPS.
    pub(crate) secure: bool,
    /// Max-Breadth to write.
    pub(crate) breadth: Option<u32>,
    /// Milliseconds after which the branch is left if no response came.
    pub(crate) reply_timeout_ms: Option<u32>,
    /// Whether the branch goes to a user agent by a contact or flow, and not to a next hop of the
    /// configuration.
    pub(crate) is_contact: bool,
    /// See [`ContactRef::domain`].
    pub(crate) domain: DomainNumber,
}

/// The input of a forwarded request's edits, beside the request.
#[derive(Clone, Copy, Debug)]
pub(super) struct EgressEdits {
    branch: Branched,
    /// Number of the branch among those of this request.
    number: u8,
    pub(super) to: Flow,
    /// See [`Branch::is_contact`].
    pub(super) is_contact: bool,
    /// See [`ContactRef::domain`].
    pub(super) domain: DomainNumber,
    pub(super) policy: BranchPolicy,
    pub(super) secure: bool,
    pub(super) back: Option<RouteFlow>,
    breadth: Option<u32>,
    stateless: bool,
}

/// The reason why a request could not be sent on.
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
        server: Option<ServerKey>,
        decision: &RouteDecision<'_>,
    ) -> Result<(), NotSent> {
        let ingress = request.flow.listener;
        let (at, to) = match decision.flow {
            // The flow of a registration carries every request for its contact (RFC 5626 §5.3).
            Some(flow) => (None, flow),
            None => self
                .next_candidate(&decision.candidates, 0, ingress)
                .map(|(at, to)| (Some(at), to))
                .ok_or(NotSent::NoListener)?,
        };
        let may_switch = at
            .and_then(|at| decision.candidates.get(at))
            .is_some_and(super::switch::may_switch);
        let stateless =
            request.method == Method::Ack || (decision.state == StateMode::Stateless && server.is_none());
        // If a registration's flow fails, all candidates are still to be tried, or a name to be resolved.
        let next = at.map_or(0, |at| at + 1);
        let has_more = || {
            self.next_candidate(&decision.candidates, next, ingress).is_some()
                || (decision.flow_only == FlowOnly::None
                    && decision.flow.is_some_and(|f| f.transport.is_reliable())
                    && decision.contact.is_some())
        };
        let keeps_context = !stateless && (decision.policy.recurse || has_more());
        let decided = keeps_context.then(|| self.decided(decision));
        if let Some(contact) = decision.contact.filter(|_| !decision.has_contact_edits) {
            self.edit_for_target(request, contact.uri, contact.path);
        }
        if stateless {
            self.forward_stateless(request, decision, to, may_switch);
            return Ok(());
        }
        let server = match server {
            // The request has waited, and there may be no room for its copy any more.
            Some(key) if self.has_room_for_copy(request) => key,
            Some(_) => return Err(NotSent::Full),
            None => {
                let vouched = decision.authorized.vouches_for_source();
                self.begin(request, vouched).ok_or(NotSent::Full)?
            }
        };
        self.note_routed(server);
        let client = self.start_branch(
            request,
            &Branch {
                server,
                target: 0,
                to,
                peer: by_tls(to, &decision.peer),
                flow_only: decision.flow_only,
                back: self.back(decision),
                may_switch,
                policy: decision.policy,
                secure: decision.secure,
                breadth: None,
                reply_timeout_ms: None,
                is_contact: decision.contact.is_some(),
                domain: decision.contact.map_or(0, |contact| contact.domain),
            },
        );
        if let Some(decided) = decided {
            self.keep_context(request, (server, client), decision, next, decided);
        }
        Ok(())
    }

    /// The flow by which later requests of the dialog reach the contact that a request goes to.
    fn back(&self, decision: &RouteDecision<'_>) -> Option<RouteFlow> {
        let only = matches!(
            decision.flow_only,
            FlowOnly::Registration | FlowOnly::Path { in_dialogs: true }
        );
        self.flow_of_contact(decision.contact?.uri, decision.flow?, only)
    }

    /// The decision that further branches begin from.
    fn decided(&self, decision: &RouteDecision<'_>) -> Decided {
        let mut edits = Edits::new();
        edits.copy_from(&self.edits);
        Decided {
            edits,
            dialog: decision.dialog,
            secure: decision.request_secure,
        }
    }

    fn forward_stateless(
        &mut self,
        request: &Request<'_>,
        decision: &RouteDecision<'_>,
        to: Flow,
        may_switch: bool,
    ) {
        self.activity.enter(Component::Build);
        let leaving = EgressEdits {
            branch: self.secrets.branch(&request.branch_input(), 0),
            number: 0,
            to,
            is_contact: decision.contact.is_some(),
            domain: decision.contact.map_or(0, |contact| contact.domain),
            policy: decision.policy,
            secure: decision.secure,
            back: self.back(decision),
            breadth: None,
            stateless: true,
        };
        let _ = self.final_edits(request, &leaving);
        self.out.push_with(to, |text| {
            self.edits.apply(request.message.source(), span(request), text)
        });
        self.out.name_last(by_tls(to, &decision.peer));
        if decision.flow_only.holds(&to) {
            self.out.pin_last();
        }
        if self.out.last_len() > self.config.limits.udp_mtu && may_switch {
            self.switch_stateless(request, decision.state, to);
        }
        self.counters.relayed_stateless += 1;
    }

    /// Notes that the request of this server transaction goes on by the rule at hand.
    pub(crate) fn note_routed(&mut self, server: ServerKey) {
        if let Some(found) = self.table.live_mut(server) {
            found.user.rule = self.rule_at_hand;
        }
        self.counters.relayed_stateful += 1;
    }

    /// Keeps a response context, with what is left to try if this branch fails.
    fn keep_context(
        &mut self,
        request: &Request<'_>,
        (server, client): (ServerKey, ClientKey),
        decision: &RouteDecision<'_>,
        next: usize,
        decided: Decided,
    ) {
        let path = decision.contact.map_or(&[][..], |contact| contact.path);
        // The contact stays the same if others register meanwhile, and no 3xx leads back to a URI that was
        // tried.
        let uri = if decision.contact.is_some() || decision.policy.recurse {
            self.edited_uri(request)
        } else {
            Box::default()
        };
        let mut context = Context::new(Vec::new(), decision.policy);
        context.decided = decided;
        context.breadth = max_breadth(request);
        let target = Target {
            path: Box::from(path),
            state: TargetState::Pending(client),
            candidates: decision.candidates.clone(),
            peer: decision.peer.clone(),
            by_flow: decision.flow.is_some(),
            next,
            // A datagram's source is all there is to try, as in a fork.
            located: decision.flow.is_none_or(|flow| !flow.transport.is_reliable())
                || decision.flow_only != FlowOnly::None
                || !decision.candidates.is_empty(),
            breadth: context.whole_breadth(),
            // A contact registered by TLS is reached by nothing else.
            secure: decision.flow.is_some_and(|flow| flow.transport.is_secure()),
            is_contact: decision.contact.is_some(),
            domain: decision.contact.map_or(0, |contact| contact.domain),
            from: decision.from,
            ..Target::new(uri, 0)
        };
        context.targets.push(target);
        // Without room for the context this branch is the only one.
        if self.table.bytes() + context.bytes() > self.config.limits.response_bytes() {
            self.counters.limited_transactions += 1;
            return;
        }
        if let Some(found) = self.table.live_mut(server) {
            found.user.context = Some(Box::new(context));
        }
        self.count_context(server);
    }

    /// The Request-URI as the edits make it.
    pub(crate) fn edited_uri(&self, request: &Request<'_>) -> Box<[u8]> {
        let source = request.message.source();
        let text = request.message.request_uri().unwrap_or_default();
        let mut uri = Vec::with_capacity(text.len() + 16);
        if let Some(span) = sip_message::chars::span_in(source, text) {
            self.edits.apply(source, span, &mut uri);
        }
        uri.into_boxed_slice()
    }

    /// The first candidate from `from` on that a listener of ours can reach.
    pub(crate) fn next_candidate(
        &self,
        candidates: &Candidates,
        from: usize,
        ingress: ListenerId,
    ) -> Option<(usize, Flow)> {
        candidates
            .iter()
            .enumerate()
            .skip(from)
            .find_map(|(at, c)| self.flow_to(c, Some(ingress)).map(|flow| (at, flow)))
    }

    /// The flow to a candidate, from the listener that reaches it.
    pub(crate) fn flow_to(&self, candidate: &Candidate, ingress: Option<ListenerId>) -> Option<Flow> {
        let Candidate {
            transport, address, ..
        } = *candidate;
        if is_no_host(address.ip()) {
            return None;
        }
        let listener = self
            .directory
            .egress(&self.config, transport, address.ip(), ingress)?;
        Some(Flow {
            transport,
            listener,
            remote: address,
            conn: None,
            proof: Proof::None,
        })
    }

    /// Sends one branch of a request in a client transaction of its own.
    pub(crate) fn start_branch(&mut self, request: &Request<'_>, plan: &Branch) -> ClientKey {
        self.activity.enter(Component::Build);
        let number = self.table.live(plan.server).map_or(0, |s| s.user.branches.len());
        let number = u8::try_from(number).unwrap_or(u8::MAX);
        let branch = self.secrets.branch(&request.branch_input(), number);
        let leaving = EgressEdits {
            branch,
            number,
            to: plan.to,
            is_contact: plan.is_contact,
            domain: plan.domain,
            policy: plan.policy,
            secure: plan.secure,
            back: plan.back,
            breadth: plan.breadth,
            stateless: false,
        };
        let seed = self.final_edits(request, &leaving);
        let mut text = core::mem::take(&mut self.scratch);
        text.clear();
        self.edits
            .apply(request.message.source(), span(request), &mut text);
        let invite = request.method == Method::Invite;
        let mut to = plan.to;
        let switched = text.len() > self.config.limits.udp_mtu
            && plan.may_switch
            && self.switch_to_stream(&mut to, &mut text, request.flow.listener);
        self.activity.enter(Component::Transaction);
        let user = ClientUser {
            target: plan.target,
            c_ms: plan.policy.c_ms,
            course: if switched { Course::SWITCHED } else { Course::PLAIN },
            peer: plan.peer.clone(),
            flow_only: plan.flow_only,
            is_contact: plan.is_contact,
            seed,
            ..ClientUser::new(TransactionUser::Server(plan.server))
        };
        // Timer C is an INVITE's; a request of any method may wait for the first sign of life.
        let wait = match (plan.reply_timeout_ms, invite) {
            (Some(ms), true) => Some(ms.min(plan.policy.c_ms)),
            (None, true) => Some(plan.policy.c_ms),
            (first, false) => first,
        };
        let hash = client_hash(branch.id, request.method);
        self.forget_completed(hash);
        let client = self.begin_client(hash, invite, to, &text, user, wait.map(Millis));
        self.scratch = text;
        if let Some(server) = self.table.live_mut(plan.server) {
            server.user.branches.push(client);
        }
        client
    }

    /// Makes room for a transaction of the same branch. Over TCP no server transaction outlives its response.
    /// If a hop before this server repeats a request that came by UDP, the copy is a new request here. The
    /// copy's response would be taken for that of the first, and the request would be sent again and again.
    fn forget_completed(&mut self, hash: u128) {
        let Some(found) = self.table.find_client(hash) else {
            return;
        };
        let client = self.table.client(found);
        if client.is_some_and(|client| client.machine.is_completed()) {
            self.forget_client(found);
        }
    }

    /// The edits that every forwarded request gets: received, Max-Forwards, Record-Route, Via (§16.6
    /// steps 3, 4, 8) and, toward a stream, Content-Length. A REGISTER gets Path. Returns the seed of the caller's mark in
    /// the responses.
    fn final_edits(&mut self, request: &Request<'_>, leaving: &EgressEdits) -> Option<Seed> {
        let to = leaving.to;
        let message = &request.message;
        let egress = self.config.listeners.get(usize::from(to.listener.0))?;
        if !via::is_final(&request.via, request.flow.remote)
            && let Some(top) = sip_message::chars::span_in(message.source(), request.via.text)
        {
            self.edits.replace_with(top, |out| {
                via::write_received(out, &request.via, request.flow.remote)
            });
        }
        let first = message.headers_offset();
        let stay = self.stay(request, leaving);
        let seed = stay.as_ref().and_then(|stay| stay.seed);
        let record_route = stay
            .as_ref()
            .and_then(|stay| stay.lines(&self.config, request.flow, leaving));
        // Before the topmost Record-Route; if there is none, behind our Via.
        let others = record_route.and_then(|_| message.fields_named(HeaderName::RecordRoute).next());
        let start = self.directory.via_start(to.listener);
        let via = OurVia {
            branch: leaving.branch,
            number: leaving.number,
            loop_mark: leaving.policy.loop_mark,
            stateless: leaving.stateless.then_some((request.flow, seed)),
        };
        self.edits.insert_with(first, |out| {
            write_via(out, start, egress.transport, &via);
            if let (Some(lines), None) = (record_route, others) {
                lines.write(out);
            }
        });
        lower_max_forwards(&mut self.edits, request);
        if let Some(breadth) = leaving.breadth {
            write_max_breadth(&mut self.edits, message, breadth);
        }
        if let (Some(lines), Some(field)) = (record_route, others) {
            self.edits
                .insert_with(field.start as usize, |out| lines.write(out));
        }
        if to.transport.is_reliable() {
            self.edits.add_content_length(message);
        }
        if request.method == Method::Register {
            self.write_path(request, leaving);
        }
        seed
    }
}

/// The domain that the peer's certificate must be for, if the message may open a connection by TLS.
pub(crate) fn by_tls(to: Flow, peer: &Option<PeerName>) -> Option<PeerName> {
    match to.transport {
        Transport::Tls if to.conn.is_none() => peer.clone(),
        Transport::Udp | Transport::Tcp | Transport::Tls | Transport::Ws | Transport::Wss => None,
    }
}

fn lower_max_forwards(edits: &mut Edits, request: &Request<'_>) {
    let message = &request.message;
    match message.fields_named(HeaderName::MaxForwards).next() {
        Some(field) => {
            let hops = request.max_forwards.ok().flatten().unwrap_or(0);
            edits.replace_with(field.value as usize..field.value_end as usize, |out| {
                write_decimal(out, u64::from(hops.saturating_sub(1)));
            });
        }
        None => edits.insert(message.headers_offset(), b"Max-Forwards: 70\r\n"),
    }
}

/// Writes the branch's share of Max-Breadth (RFC 5393 §5.3.3).
fn write_max_breadth(edits: &mut Edits, message: &Message<'_>, breadth: u32) {
    match message.fields_named(HeaderName::MaxBreadth).next() {
        Some(field) => edits.replace_with(field.value as usize..field.value_end as usize, |out| {
            write_decimal(out, u64::from(breadth));
        }),
        None => edits.insert_with(message.headers_offset(), |out| {
            out.extend_from_slice(b"Max-Breadth: ");
            write_decimal(out, u64::from(breadth));
            out.extend_from_slice(b"\r\n");
        }),
    }
}

/// Max-Breadth as received; `None`: the request has none that can be read.
pub(crate) fn max_breadth(request: &Request<'_>) -> Option<u32> {
    let message = &request.message;
    let field = message.fields_named(HeaderName::MaxBreadth).next()?;
    sip_message::number::decimal_u32(message.field_value(field))
}

/// The message's place in the bytes given to the parser.
pub(crate) fn span(request: &Request<'_>) -> Range<usize> {
    request.message.start_offset()..request.message.end_offset()
}

/// Appends a contact as Request-URI: without `method` and headers, which may not stand there
/// (RFC 3261 §19.1.1 Table 1, §16.6 step 2).
pub(crate) fn write_request_uri(out: &mut Vec<u8>, contact: &[u8]) {
    let Ok(Uri::Sip(uri)) = Uri::parse(contact) else {
        return out.extend_from_slice(contact);
    };
    if uri.headers.is_none() && uri.param(b"method").is_none() {
        return out.extend_from_slice(contact);
    }
    let headers = uri.headers.map_or(0, |h| h.len() + 1);
    let end = contact.len() - (headers + uri.params.as_bytes().len()).min(contact.len());
    out.extend_from_slice(contact.get(..end).unwrap_or_default());
    let unwanted = uri.param(b"method").map(|p| p.name);
    for param in uri.params.iter().filter(|p| Some(p.name) != unwanted) {
        out.push(b';');
        out.extend_from_slice(param.name);
        if let Some(value) = param.value {
            out.push(b'=');
            out.extend_from_slice(value);
        }
    }
}
