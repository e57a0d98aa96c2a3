//! The phases of a request, in order, by the names of docs/request-path.md. Names in bold are the files
//! below:
//!
//! - reading ([`crate::engine::request`]): a request without its mandatory header fields ends here.
//! - affinity: a request of another worker's Call-ID is handed over.
//! - **scanner**: requests that are dropped without a response.
//! - **transaction**: a retransmission, an ACK or a CANCEL of something known ends here.
//!
//! Then come the phases of [`Engine::dispatch`]:
//!
//! - **sanity** (RFC 3261 §16.3): a request that is malformed or demands what we cannot do is refused.
//! - **in_dialog** (§16.4): Route values of ours come off; a valid mark makes it part of a dialog. It ends in
//!   **guard**, after which a request of a dialog may go by the rules all the same.
//! - security (in **sanity**): a SIPS request that came without TLS is refused.
//! - drain: a server that drains takes no new request.
//! - **register**: REGISTER to a domain of ours. **edge**: REGISTER to the registrar of another domain.
//! - **local**: OPTIONS and other requests to this server.
//! - hops (in **sanity**): Max-Forwards.
//! - match (**matching**): the first rule that matches a new request.
//! - authorize (§22): **asking**, whether a request needs credentials; **authorize**, the check of them. A
//!   request that may be relayed has [`Authorized`], which forwarding demands.
//! - **route** (§16.5): the target by rule, location (**contacts**) or group. A request with several
//!   **targets** gets a response context.
//! - forward ([`crate::proxy::forward`], §16.6).
//!
//! A request that waits for a back-end is kept as received. docs/request-path.md ("Waiting") says where it
//! resumes.

mod asking;
mod authorize;
mod contacts;
mod edge;
mod guard;
mod in_dialog;
mod local;
mod matching;
mod register;
mod resume;
mod route;
mod sanity;
mod scanner;
mod targets;
mod transaction;

use alloc::vec::Vec;

use sip_message::{Defect, HeaderName, Message, Method};

use crate::activity::Component;
use crate::engine::Engine;
use crate::engine::place::DomainNumber;
use crate::engine::reply::Reply;
use crate::engine::request::{Authorized, Request};
use crate::engine::status::Status;
use crate::id::WorkerId;
use crate::proxy::branch::{OWN_BRANCH, read_branch};
use crate::transaction::table::ServerKey;
use crate::transport::{Flow, Proof, via};
use in_dialog::Position;

/// The progress of a request through the phases.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// The reason why the request may be relayed; `None`: not decided yet.
    pub(crate) authorized: Option<Authorized>,
    /// The server transaction of the request.
    pub(crate) server: Option<ServerKey>,
    /// Times that the request has waited for name service.
    pub(crate) asked: u8,
    /// The domain of which any account is accepted: for a side of a dialog, where From does not decide. 0:
    /// From decides.
    pub(crate) any_account_of: DomainNumber,
}

/// The outcome of handling a request from the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Handled {
    Here,
    HandOver(WorkerId),
    /// The message may not end where framing found its end: a defect concerns its length.
    Broken,
}

impl Engine {
    /// Handles a request from the network.
    pub(crate) fn handle_request(&mut self, message: &Message<'_>, flow: Flow) -> Handled {
        let mut request = match Request::read(*message, flow) {
            Ok(request) => request,
            Err(status) => return self.refuse_unreadable(message, flow, status),
        };
        if let Err(status) = request.check_limits(&self.config.limits) {
            return self.refuse_unreadable(message, flow, status);
        }
        if self.is_by_ourselves(&request) {
            request.flow.proof = Proof::Ourselves;
        } else {
            request.flow = self.as_page(request.flow);
        }
        let flow = request.flow;
        self.activity.enter(Component::Transaction);
        if matches!(flow.proof, Proof::Certificate | Proof::Trusted) {
            if flow.proof == Proof::Trusted {
                self.meet_peer(flow.remote.ip());
            }
            self.note_alias(&request);
        }
        if self.holds_state
            && (request.method != Method::Register || self.may_relay_register(&request))
            && let Some(other) = self.other_worker(request.call_id)
        {
            return Handled::HandOver(other);
        }
        self.count_request(request.method);
        if self.drops_scanner(&request) {
            return Handled::Here;
        }
        if self.find_transaction(&mut request) {
            return Handled::Here;
        }
        // An ACK to a stateless response of ours is recognised by our To tag.
        if request.method == Method::Ack && self.has_own_tag(message) {
            self.counters.retransmissions_absorbed += 1;
            return Handled::Here;
        }
        self.dispatch(&request, Progress::default());
        Handled::Here
    }

    /// Runs the phases from *sanity* on.
    pub(crate) fn dispatch(&mut self, request: &Request<'_>, progress: Progress) {
        self.run_phases(request, progress);
        self.rule_at_hand = None;
    }

    fn run_phases(&mut self, request: &Request<'_>, progress: Progress) {
        self.activity.enter(Component::Route);
        self.edits.clear();
        if let Err((status, extra)) = self.check_sanity(request) {
            self.refuse_with(request, progress.server, status, &extra);
            return;
        }
        let mut position = Position::default();
        let real = match self.take_routes(request, &mut position) {
            Ok(real) => real,
            Err(status) => return self.refuse(request, progress.server, status),
        };
        let real = real.or_else(|| self.without_own_maddr(request));
        // A request is large: it is copied for a strict router and for maddr only.
        let changed;
        let request = match real {
            None => request,
            Some((uri, uri_text)) => {
                changed = Request {
                    uri,
                    uri_text,
                    ..*request
                };
                &changed
            }
        };
        if self.goes_as_new(request, &position)
            && let Err(status) = self.leave_dialog(request, &mut position)
        {
            return self.refuse(request, progress.server, status);
        }
        if !position.in_dialog
            && let Err((status, extra)) = self.check_secure(request)
        {
            return self.refuse_with(request, progress.server, status, &extra);
        }
        let is_new = progress.server.is_none() && progress.authorized.is_none() && !position.in_dialog;
        if self.draining && is_new && !matches!(request.method, Method::Ack | Method::Cancel) {
            return self.refuse(request, progress.server, Status::DRAINING);
        }
        if request.method == Method::Register {
            return self.register(request, &position, progress);
        }
        if self.is_for_us(request, &position) {
            return self.serve_local(request, progress);
        }
        if let Err(status) = self.check_hops(request) {
            return self.refuse(request, progress.server, status);
        }
        let config = self.config.clone();
        let matched = self.match_rule(&config, request, &position);
        if let Some(live) = progress.server.and_then(|server| self.table.live_mut(server)) {
            // The request waited, and the rules may have changed meanwhile.
            live.user.rule = self.rule_at_hand;
        }
        if let Some(authorized) = self.authorize_routed(&config, request, &position, progress, matched.rule) {
            self.route(request, &position, progress, (matched, authorized));
        }
    }

    /// Whether this server sent the request: the topmost Via and the source address are both ours. Via alone
    /// proves nothing: a peer that a rule refuses by its address may forge it.
    fn is_by_ourselves(&self, request: &Request<'_>) -> bool {
        // Few other branches are as long as ours.
        let is_ours = |branch: &[u8]| branch.len() >= OWN_BRANCH && read_branch(branch).is_some();
        request.via.branch().is_some_and(is_ours)
            && self.is_sent_by(&request.via)
            && self.directory.is_own_address(request.flow.remote.ip())
    }

    /// Refuses a request that was read.
    pub(crate) fn refuse(&mut self, request: &Request<'_>, server: Option<ServerKey>, status: Status<'_>) {
        self.refuse_with(request, server, status, &[]);
    }

    /// Refuses a request that was read, with header lines.
    pub(crate) fn refuse_with(
        &mut self,
        request: &Request<'_>,
        server: Option<ServerKey>,
        status: Status<'_>,
        extra: &[u8],
    ) {
        self.reply(&request.message, request.flow, server, &Reply { status, extra });
    }

    /// Bytes of the response with this status and these header lines.
    pub(crate) fn reply_len(&self, request: &Request<'_>, status: Status<'_>, extra: &[u8]) -> usize {
        let mut text = Vec::new();
        self.write_reply(
            &mut text,
            &request.message,
            request.flow,
            &Reply { status, extra },
        );
        text.len()
    }

    /// Refuses a request that could not be read, if a response can be sent at all.
    pub(crate) fn refuse_unreadable(
        &mut self,
        message: &Message<'_>,
        flow: Flow,
        status: Status<'_>,
    ) -> Handled {
        self.counters.requests_other += 1;
        if self.drops_broken_scanner(message, &flow) {
            return Handled::Here;
        }
        let can_reply = via::way_back(flow, message).is_some()
            && [
                HeaderName::From,
                HeaderName::To,
                HeaderName::CallId,
                HeaderName::CSeq,
            ]
            .iter()
            .all(|name| message.value(*name).is_some_and(|v| !v.is_empty()));
        if can_reply {
            self.reply(message, flow, None, &Reply { status, extra: &[] });
        } else {
            self.counters.dropped_malformed += 1;
        }
        if message.defect().is_some_and(breaks_framing) {
            Handled::Broken
        } else {
            Handled::Here
        }
    }

    fn count_request(&mut self, method: Method<'_>) {
        let c = &mut self.counters;
        let counter = match method {
            Method::Invite => &mut c.requests_invite,
            Method::Ack => &mut c.requests_ack,
            Method::Bye => &mut c.requests_bye,
            Method::Cancel => &mut c.requests_cancel,
            Method::Register => &mut c.requests_register,
            Method::Options => &mut c.requests_options,
            Method::Prack
            | Method::Subscribe
            | Method::Notify
            | Method::Publish
            | Method::Info
            | Method::Refer
            | Method::Message
            | Method::Update
            | Method::Other(_) => &mut c.requests_other,
        };
        *counter += 1;
    }
}

/// Whether a message with this defect may have ended elsewhere than its sender meant.
const fn breaks_framing(defect: Defect) -> bool {
    match defect {
        Defect::RequestLine
        | Defect::Version
        | Defect::StatusLine
        | Defect::ReasonPhrase
        | Defect::Control => false,
        Defect::Repeated(name) => matches!(name, HeaderName::ContentLength),
        Defect::HeaderLine
        | Defect::LineEnd
        | Defect::HeadEnd
        | Defect::ContentLength
        | Defect::Truncated
        | Defect::Unterminated
        | Defect::TooManyHeaders => true,
    }
}
