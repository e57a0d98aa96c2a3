//! The response context of a request that has several branches, or may get more than one (RFC 3261
//! §16.7): its targets, the state of each, and the best response so far.
//!
//! ```text
//!            its order's turn            branch sent
//! Waiting ────────────────► Ready ──────────────────► Pending ── final, time-out, error ─► Done
//!                            │ ▲ ▲                       │
//!                   name is  │ │ │  another address      │
//!                  not known ▼ │ └───────────────────────┘
//!                         Locating
//! ```
//!
//! A request needs no context if it has one target with one address, and does not follow 3xx
//! responses.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use sip_message::write::Edits;

use crate::dispatcher::Group;
use crate::engine::place::{DomainNumber, PlaceId};
use crate::engine::status::Status;
use crate::engine::{FlowOnly, is_sips};
use crate::event::RefusalCause;
use crate::resolve::Candidates;
use crate::transaction::table::ClientKey;
use crate::transport::{Flow, PeerName};

/// The state of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetState {
    /// The turn of its order has not come.
    Waiting,
    /// The target is to get a branch now.
    Ready,
    /// The target's name is being looked up.
    Locating,
    /// This client transaction has no final response yet.
    Pending(ClientKey),
    /// Nothing more is expected of the target.
    Done,
}

/// An element of the target set (§16.5).
#[derive(Debug)]
pub(crate) struct Target {
    /// The Request-URI for the target; empty: as [`Decided::edits`] make it.
    pub(crate) uri: Box<[u8]>,
    /// The Route for the target (RFC 3327 §5.3); empty: none.
    pub(crate) path: Box<[u8]>,
    /// The flow of the registration, tried before the addresses.
    pub(crate) flow: Option<Flow>,
    /// Whether the target was reached by that flow last. If so, a response is the user agent's, and no
    /// address of its Contact leads to another user agent.
    pub(crate) by_flow: bool,
    /// Whether that flow is the only way to the target.
    pub(crate) flow_only: FlowOnly,
    /// The turn of the target: lower ones first, equal ones in parallel.
    pub(crate) order: u16,
    pub(crate) state: TargetState,
    /// The addresses of the target.
    pub(crate) candidates: Candidates,
    /// The number of the next address to try.
    pub(crate) next: usize,
    /// The domain that the peer's certificate must be for, at addresses that are reached by TLS.
    pub(crate) peer: Option<PeerName>,
    /// Whether the addresses have been looked up.
    pub(crate) located: bool,
    /// Times that the target has waited for name service.
    pub(crate) asked: u8,
    /// The number of the member in the context's group.
    pub(crate) member: Option<u16>,
    /// The target of which this one is another flow, to the same user agent instance (RFC 5626 §5.3). This
    /// one is begun only if that target cannot be reached.
    pub(crate) alternate_of: Option<u8>,
    /// Max-Breadth for the target's branch (RFC 5393 §5).
    pub(crate) breadth: u32,
    /// Whether the target is to be reached by TLS, even if its URI does not ask for TLS.
    pub(crate) secure: bool,
    /// Whether the target is a registered contact, and not a next hop of the configuration.
    pub(crate) is_contact: bool,
    /// The domain of the account that registered the contact.
    pub(crate) domain: DomainNumber,
    /// The source address of the registration, or of the 3xx, that named this contact.
    pub(crate) from: Option<IpAddr>,
}

impl Target {
    /// Takes the flow that the target is reached by now, if it has one. A later attempt has none.
    pub(crate) fn take_flow(&mut self) -> Option<Flow> {
        let flow = self.flow.take();
        self.by_flow = flow.is_some();
        flow
    }

    /// A target that has not been looked up yet.
    pub(crate) fn new(uri: Box<[u8]>, order: u16) -> Self {
        Self {
            uri,
            path: Box::default(),
            flow: None,
            by_flow: false,
            flow_only: FlowOnly::None,
            order,
            state: TargetState::Waiting,
            candidates: Candidates::new(),
            next: 0,
            peer: None,
            located: false,
            asked: 0,
            member: None,
            alternate_of: None,
            breadth: 0,
            secure: false,
            is_contact: false,
            domain: 0,
            from: None,
        }
    }

    /// Whether the target's URI, or the Route to it, is a SIPS URI.
    pub(crate) fn is_sips(&self) -> bool {
        let route = self.path.iter().position(|c| *c == b'<');
        let route = route.and_then(|at| self.path.get(at + 1..));
        is_sips(&self.uri) || route.is_some_and(is_sips)
    }
}

/// The policy of all branches of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BranchPolicy {
    /// Whether this server stays in the dialog's path.
    pub(crate) record_route: bool,
    /// Timer C, milliseconds.
    pub(crate) c_ms: u32,
    /// Whether the contacts of a 3xx are followed.
    pub(crate) recurse: bool,
    /// The loop mark (RFC 5393 §4.2), which goes into our Via if the request is forked.
    pub(crate) loop_mark: Option<u64>,
    /// The guarded place that the rule leads to; 0: none.
    pub(crate) place: PlaceId,
}

/// The routing decision of a request, as far as it holds for all branches. Each branch begins from this
/// decision, so that neither a reload nor a registration in between changes the way of a request.
#[derive(Debug, Default)]
pub(crate) struct Decided {
    /// The edits by the rule and the phases before it, without Request-URI and Route of the targets.
    pub(crate) edits: Edits,
    /// The guarded place that the mark of the dialog names; `None`: the request is in no dialog.
    pub(crate) dialog: Option<PlaceId>,
    /// Whether the Request-URI, or the next Route, is a SIPS URI.
    pub(crate) secure: bool,
}

/// A response context; see the module.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) targets: Vec<Target>,
    pub(crate) decided: Decided,
    pub(crate) policy: BranchPolicy,
    /// The group that the targets are members of.
    pub(crate) group: Option<Arc<Group>>,
    pub(crate) best: Best,
    /// Whether no new branches are begun: a 6xx came, or a CANCEL.
    pub(crate) ended: bool,
    /// Whether a branch had a 2xx that could not be relayed. If so, only another branch's 2xx is relayed.
    pub(crate) is_silent: bool,
    /// The number of targets that came from 3xx responses.
    pub(crate) redirected: usize,
    /// Max-Breadth as received; `None`: the request had none.
    pub(crate) breadth: Option<u32>,
}

/// The next step of a response context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Step {
    /// Some targets are ready.
    Begin,
    /// Some branch is pending.
    Wait,
    /// Nothing is left: the best response goes to the caller.
    Finish,
}

/// Max-Breadth of a request that has none, and the highest that counts (RFC 5393 §5.3.3).
const MOST_BREADTH: u32 = 60;

impl Context {
    pub(crate) fn new(targets: Vec<Target>, policy: BranchPolicy) -> Self {
        Self {
            targets,
            decided: Decided::default(),
            policy,
            group: None,
            best: Best::default(),
            ended: false,
            is_silent: false,
            redirected: 0,
            breadth: None,
        }
    }

    /// The bytes of texts of variable length that the context keeps.
    pub(crate) fn bytes(&self) -> usize {
        let target = |target: &Target| target.uri.len() + target.path.len();
        self.targets.iter().map(target).sum::<usize>() + self.decided.edits.bytes() + self.best.bytes()
    }

    /// Keeps as much of the best response as there is room for beside the targets. Returns whether all of it
    /// is kept.
    pub(crate) fn keep_within(&mut self, room: usize) -> bool {
        let targets = self.bytes() - self.best.bytes();
        self.best.keep_within(room.saturating_sub(targets))
    }

    pub(crate) fn target_mut(&mut self, number: u8) -> Option<&mut Target> {
        self.targets.get_mut(usize::from(number))
    }

    /// The number of the first target that is to be begun.
    pub(crate) fn next_ready(&self) -> Option<u8> {
        let at = self.targets.iter().position(|t| t.state == TargetState::Ready)?;
        u8::try_from(at).ok()
    }

    /// Changes a target's state, and the load of its group member.
    pub(crate) fn set_state(&mut self, number: u8, state: TargetState) {
        let Some(target) = self.targets.get_mut(usize::from(number)) else {
            return;
        };
        let pending = |s: TargetState| matches!(s, TargetState::Pending(_));
        let (before, after) = (pending(target.state), pending(state));
        target.state = state;
        let member = target.member;
        if let (Some(group), Some(member)) = (&self.group, member)
            && let Some(member) = group.member(member)
        {
            match (before, after) {
                (false, true) => member.begin(),
                (true, false) => member.end(),
                _ => {}
            }
        }
    }

    /// Whether this target awaits the final response of the branch `client`.
    pub(crate) fn awaits(&self, number: u8, client: ClientKey) -> bool {
        self.targets
            .get(usize::from(number))
            .is_some_and(|t| t.state == TargetState::Pending(client))
    }

    /// Whether a target waits for its turn.
    pub(crate) fn has_more(&self) -> bool {
        !self.ended
            && self
                .targets
                .iter()
                .any(|t| t.state == TargetState::Waiting && t.alternate_of.is_none())
    }

    /// Finds the next step (§16.6): the targets of the next order become ready when nothing is pending.
    pub(crate) fn advance(&mut self) -> Step {
        let mut waits = false;
        for target in &self.targets {
            match target.state {
                TargetState::Ready => return Step::Begin,
                TargetState::Locating | TargetState::Pending(_) => waits = true,
                TargetState::Waiting | TargetState::Done => {}
            }
        }
        if waits {
            return Step::Wait;
        }
        if self.ended {
            return Step::Finish;
        }
        let waiting = |t: &Target| t.state == TargetState::Waiting && t.alternate_of.is_none();
        let Some(order) = self.targets.iter().filter(|t| waiting(t)).map(|t| t.order).min() else {
            return Step::Finish;
        };
        // RFC 5393 §5.3.3: the branches share the breadth; if there are more branches than that, the rest go
        // after them.
        let breadth = self.whole_breadth();
        let among = self
            .targets
            .iter()
            .filter(|t| waiting(t) && t.order == order)
            .count();
        let parallel = u32::try_from(among).unwrap_or(u32::MAX).min(breadth);
        let (share, over) = (breadth / parallel, breadth % parallel);
        let turn = self.targets.iter_mut().filter(|t| waiting(t) && t.order == order);
        for (target, n) in turn.zip(0..parallel) {
            target.state = TargetState::Ready;
            target.breadth = share + u32::from(n < over);
        }
        Step::Begin
    }

    /// The breadth that the branches share.
    pub(crate) fn whole_breadth(&self) -> u32 {
        self.breadth.unwrap_or(MOST_BREADTH).clamp(1, MOST_BREADTH)
    }

    /// Makes another flow of the instance of target `failed` ready in its place. Returns whether the instance
    /// has one.
    pub(crate) fn take_alternate(&mut self, failed: u8) -> bool {
        let breadth = self.targets.get(usize::from(failed)).map_or(1, |t| t.breadth);
        let spare = self
            .targets
            .iter()
            .position(|t| t.state == TargetState::Waiting && t.alternate_of == Some(failed));
        let Some(at) = spare else { return false };
        if let Some(target) = self.targets.get_mut(at) {
            target.alternate_of = None;
            target.state = TargetState::Ready;
            target.breadth = breadth;
        }
        for other in &mut self.targets {
            if other.alternate_of == Some(failed) {
                other.alternate_of = u8::try_from(at).ok();
            }
        }
        true
    }

    /// Gives up the other addresses of a target that was reached, and the other flows of its instance.
    pub(crate) fn exhaust(&mut self, number: u8) {
        if let Some(target) = self.target_mut(number) {
            target.candidates.clear();
            target.located = true;
        }
        for other in &mut self.targets {
            if other.alternate_of == Some(number) && other.state == TargetState::Waiting {
                other.state = TargetState::Done;
            }
        }
    }

    /// Gives up the waiting members: one gave a response that stands for all of them.
    pub(crate) fn give_up_members(&mut self) {
        for target in &mut self.targets {
            if target.member.is_some() && target.state == TargetState::Waiting {
                target.state = TargetState::Done;
            }
        }
    }

    /// Ends the context: no new branches, and targets without a branch are given up.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        for target in &mut self.targets {
            if matches!(
                target.state,
                TargetState::Waiting | TargetState::Ready | TargetState::Locating
            ) {
                target.state = TargetState::Done;
            }
        }
    }

    /// Whether a branch has no final response yet.
    pub(crate) fn is_pending(&self) -> bool {
        self.targets
            .iter()
            .any(|t| matches!(t.state, TargetState::Pending(_)))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        for number in 0..self.targets.len() {
            if let Ok(number) = u8::try_from(number) {
                self.set_state(number, TargetState::Done);
            }
        }
    }
}

/// The best final response so far (§16.7 step 6), and all challenges (step 7).
#[derive(Debug)]
pub(crate) struct Best {
    /// The status of the best response; 0: there is none.
    pub(crate) status: u16,
    /// The response as it will leave; empty: it is made here from `status`.
    pub(crate) text: Vec<u8>,
    /// The reason phrase of the response, if there was no room for the text.
    pub(crate) reason: Box<str>,
    /// The cause for the `Reason` of a 480, if `status` is the 430 of [`offer_gone`](Self::offer_gone); else
    /// 0.
    pub(crate) gone: u16,
    /// The cause of the request's end with this status, for the log.
    pub(crate) cause: Option<RefusalCause>,
    /// `WWW-Authenticate` and `Proxy-Authenticate` lines of all 401 and 407 so far.
    pub(crate) challenges: Vec<u8>,
    /// The number of responses that `challenges` is from; `None`: there was no room for them.
    pub(crate) challengers: Option<u16>,
}

/// The most characters of a reason phrase that are kept without its response.
const MAX_REASON: usize = 64;

/// The most bytes of challenges that are collected for one request.
pub(crate) const MAX_CHALLENGES: usize = 16 * 1024;

impl Default for Best {
    fn default() -> Self {
        Self {
            status: 0,
            text: Vec::new(),
            reason: Box::default(),
            gone: 0,
            cause: None,
            challenges: Vec::new(),
            challengers: Some(0),
        }
    }
}

impl Best {
    /// Whether a response of this status is better than the best so far. Of equals the first stays.
    pub(crate) fn is_beaten_by(&self, status: u16) -> bool {
        self.status == 0 || rank(status) < rank(self.status)
    }

    /// Replaces the best response by the response that `write` makes.
    pub(crate) fn take(&mut self, status: u16, write: impl FnOnce(&mut Vec<u8>)) {
        let mut text = Vec::new();
        write(&mut text);
        text.shrink_to_fit();
        *self = Self {
            status,
            text,
            reason: Box::default(),
            gone: 0,
            // A relayed response is the next hop's refusal. A 503 becomes a 500 of this server.
            cause: (status == 503).then_some(RefusalCause::NextHopUnavailable),
            challenges: core::mem::take(&mut self.challenges),
            challengers: self.challengers,
        };
    }

    fn bytes(&self) -> usize {
        self.text.capacity() + self.reason.len() + self.challenges.capacity()
    }

    /// Whether there is room for the whole response. If not, the challenges of others go first, and then, if
    /// need be, the text. Status and reason phrase stay.
    fn keep_within(&mut self, room: usize) -> bool {
        if self.bytes() <= room {
            return true;
        }
        let had_none = self.challenges.is_empty() && self.text.is_empty();
        self.challenges = Vec::new();
        self.challengers = None;
        if had_none {
            return true;
        }
        if self.bytes() > room && !self.text.is_empty() {
            self.reason = reason_of(&self.text);
            self.text = Vec::new();
            self.cause = Some(RefusalCause::TransactionLimit);
        }
        false
    }

    /// The status to respond with if there was no room for the text. `None` if the status says
    /// nothing without a header field.
    pub(crate) fn status_alone(&self) -> Option<Status<'_>> {
        (tells_alone(self.status) && !self.reason.is_empty()).then_some(Status {
            code: self.status,
            reason: &self.reason,
            cause: self.cause,
        })
    }

    /// Offers a response that this server makes.
    pub(crate) fn offer(&mut self, status: u16, cause: Option<RefusalCause>) {
        if self.is_beaten_by(status) {
            self.take(status, |_| {});
            self.cause = cause;
        }
    }

    /// Offers the 430 of a registered contact that was not reached, as an edge proxy would send it (RFC 5626
    /// §5.3.1). `cause` is 408 if the contact was silent, 503 if its transport failed.
    pub(crate) fn offer_gone(&mut self, cause: u16) {
        if self.is_beaten_by(430) {
            self.take(430, |_| {});
            self.gone = cause;
            self.cause = Some(match cause {
                408 => RefusalCause::ContactSilent,
                _ => RefusalCause::ContactUnreachable,
            });
        }
    }

    /// Like [`offer`](Self::offer), with a reason phrase.
    pub(crate) fn offer_status(&mut self, status: Status<'_>) {
        if self.is_beaten_by(status.code) {
            self.take(status.code, |_| {});
            self.reason = bounded_reason(status.reason);
            self.cause = status.cause;
        }
    }
}

/// Whether a status of failure has a meaning without a header field.
pub(crate) const fn tells_alone(status: u16) -> bool {
    // RFC 3261 §8.1.3.5 and others: these statuses ask for something that a header field names.
    status >= 400
        && !matches!(
            status,
            401 | 405 | 407 | 415 | 420 | 421 | 422 | 423 | 469 | 489 | 494
        )
}

/// The reason phrase of a response, as far as it is kept.
fn reason_of(text: &[u8]) -> Box<str> {
    let line = text.split(|c| *c == b'\r').next().unwrap_or_default();
    let reason = line.splitn(3, |c| *c == b' ').nth(2).unwrap_or_default();
    bounded_reason(core::str::from_utf8(reason).unwrap_or_default())
}

fn bounded_reason(reason: &str) -> Box<str> {
    match reason {
        "" => Box::from("Refused"),
        _ => reason
            .chars()
            .take(MAX_REASON)
            .collect::<String>()
            .into_boxed_str(),
    }
}

/// The rank of a final response (§16.7 step 6): a 6xx first, else the lowest class. Within 4xx, statuses that
/// say how to ask again come first, and those of a user agent that was not reached come last. A 503 comes
/// behind all, since any other response says more.
const fn rank(status: u16) -> u8 {
    match status {
        600.. => 0,
        300..=399 => 1,
        401 | 407 | 415 | 420 | 484 => 2,
        408 | 430 | 487 => 4,
        400..=499 => 3,
        503 => 6,
        _ => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: BranchPolicy = BranchPolicy {
        record_route: true,
        c_ms: 180_000,
        recurse: false,
        loop_mark: None,
        place: 0,
    };

    fn context(orders: &[u16]) -> Context {
        Context::new(
            orders.iter().map(|o| Target::new(Box::default(), *o)).collect(),
            SHAPE,
        )
    }

    fn ready(context: &Context) -> Vec<usize> {
        (0..context.targets.len())
            .filter(|n| context.targets[*n].state == TargetState::Ready)
            .collect()
    }

    fn done(context: &mut Context, numbers: &[u8]) {
        for n in numbers {
            context.set_state(*n, TargetState::Done);
        }
    }

    /// The challenges of others go first, then the text. The status and reason phrase stay, whatever response
    /// comes later, and challenges that were lost in part count as none.
    #[test]
    fn what_has_no_room_goes_in_order() {
        let text = "SIP/2.0 486 Busy At Work\r\nX: y\r\n\r\n";
        let best = || {
            let mut best = Best::default();
            best.take(486, |out| out.extend_from_slice(text.as_bytes()));
            best.challenges.extend_from_slice(b"WWW-Authenticate: x\r\n");
            best.challengers = Some(1);
            best
        };
        let all = best().bytes();
        for (room, is_whole, has_text, challengers) in [
            (all, true, true, Some(1)),
            (all - 1, false, true, None),
            (text.len(), false, true, None),
            (text.len() - 1, false, false, None),
            (0, false, false, None),
        ] {
            let mut best = best();
            assert_eq!(best.keep_within(room), is_whole, "{room}");
            assert_eq!(best.challengers, challengers);
            assert_eq!(best.challenges.is_empty(), challengers.is_none());
            assert_eq!(!best.text.is_empty(), has_text);
            if !has_text {
                assert!(best.keep_within(0), "nothing else goes");
                let status = best.status_alone().unwrap();
                assert_eq!((status.code, status.reason), (486, "Busy At Work"));
            }
        }
        for (status, reason) in [
            (404, "Refused"),
            (600, "Refused"),
            (302, ""),
            (401, ""),
            (420, ""),
            (494, ""),
        ] {
            let mut best = Best::default();
            best.take(status, |out| out.extend_from_slice(b"SIP/2.0 000 \r\n\r\n"));
            best.keep_within(0);
            assert_eq!(best.status_alone().map_or("", |s| s.reason), reason, "{status}");
        }
    }

    #[test]
    fn orders_take_turns_and_equal_ones_go_together() {
        let mut c = context(&[1, 0, 1, 0]);
        assert_eq!(c.advance(), Step::Begin);
        assert_eq!(ready(&c), [1, 3]);
        let key = ClientKey::made_up(1);
        c.set_state(1, TargetState::Pending(key));
        c.set_state(3, TargetState::Locating);
        assert!(c.awaits(1, key) && !c.awaits(3, key));
        assert_eq!(c.advance(), Step::Wait);
        done(&mut c, &[1]);
        assert_eq!(c.advance(), Step::Wait);
        done(&mut c, &[3]);
        assert!(c.has_more());
        assert_eq!(c.advance(), Step::Begin);
        assert_eq!(ready(&c), [0, 2]);
        done(&mut c, &[0, 2]);
        assert_eq!(c.advance(), Step::Finish);
    }

    #[test]
    fn breadth_is_shared_and_bounds_what_goes_together() {
        let mut c = context(&[0, 0, 0]);
        c.breadth = Some(8);
        let _ = c.advance();
        let shares: Vec<u32> = c.targets.iter().map(|t| t.breadth).collect();
        assert_eq!(shares, [3, 3, 2]);
        let mut c = context(&[0, 0, 0]);
        c.breadth = Some(2);
        assert_eq!(c.advance(), Step::Begin);
        assert_eq!(ready(&c), [0, 1]);
        done(&mut c, &[0, 1]);
        assert_eq!(c.advance(), Step::Begin);
        assert_eq!(ready(&c), [2]);
        assert_eq!(c.targets[2].breadth, 2);
    }

    #[test]
    fn spares_step_in_one_after_the_other() {
        let mut c = context(&[0, 0, 0]);
        c.targets[1].alternate_of = Some(0);
        c.targets[2].alternate_of = Some(0);
        assert_eq!(c.advance(), Step::Begin);
        assert_eq!(ready(&c), [0]);
        done(&mut c, &[0]);
        assert!(c.take_alternate(0));
        assert_eq!(ready(&c), [1]);
        done(&mut c, &[1]);
        assert!(!c.take_alternate(0) && c.take_alternate(1));
        done(&mut c, &[2]);
        assert!(!c.take_alternate(2));
        assert_eq!(c.advance(), Step::Finish);
    }

    #[test]
    fn the_end_gives_up_what_was_not_sent() {
        let mut c = context(&[0, 0, 1]);
        let _ = c.advance();
        c.set_state(0, TargetState::Pending(ClientKey::made_up(0)));
        c.end();
        assert_eq!(c.advance(), Step::Wait);
        assert!(c.is_pending() && !c.has_more());
        done(&mut c, &[0]);
        assert_eq!(c.advance(), Step::Finish);
    }

    #[test]
    fn the_best_answer() {
        let in_order = [600, 302, 407, 404, 408, 500, 503];
        for (i, better) in in_order.iter().enumerate() {
            for worse in &in_order[i + 1..] {
                let mut best = Best::default();
                best.offer(*worse, None);
                best.take(*worse, |text| text.push(1));
                best.offer(*better, None);
                assert_eq!((best.status, best.text.len()), (*better, 0), "{better} {worse}");
                best.offer(*worse, None);
                assert_eq!(best.status, *better);
            }
        }
        let mut best = Best::default();
        best.offer(486, None);
        best.offer(404, None);
        assert_eq!(best.status, 486, "the first of its kind");
    }
}
