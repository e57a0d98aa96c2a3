//! Rules about retransmissions of a server with state: not sooner than the timer, and not later than one tick
//! of the wheel for each time (RFC 3261 §17.1.1.2, §17.1.2.2, §17.2.1).
//!
//! They are judged over UDP only, because nothing is retransmitted elsewhere. Transactions of a server that
//! then crashed are not judged.

use std::collections::BTreeMap;

use sip_core::timer::wheel::TICK_US;

use super::super::node::NodeId;
use super::super::scenario::ServerPlan;
use super::super::stranger::is_changed_copy;
use super::{Case, Violation, is_udp};
use crate::clock::{MS, Micros, SECOND};
use crate::message::{View, param};

use crate::trace::Sent;

const T1: Micros = 500 * MS;
const T2: Micros = 4 * SECOND;
/// Timers B, F and H.
const TIME_OUT: Micros = 64 * T1;
/// Timer I over UDP (T4), after the ACK.
const TIMER_I: Micros = 5 * SECOND;
/// Time from worker to worker.
const HAND_OVER: Micros = MS;

/// Kind of a retransmitted message, with its timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// INVITE, by timer A, which doubles.
    Invite,
    /// Another request, by timer E, which doubles up to T2.
    Request,
    /// A failure of an INVITE, by timer G, which is like timer E.
    Failure,
}

impl Kind {
    /// Interval between the `sent`-th sending and the next.
    fn interval(self, sent: usize) -> Micros {
        let doubled = T1 << sent.saturating_sub(1).min(10);
        match self {
            Self::Invite => doubled,
            Self::Request | Self::Failure => doubled.min(T2),
        }
    }
}

/// A transaction: sender, receiver, branch, method.
type Key<'a> = (NodeId, NodeId, &'a str, &'a str);

/// Events of one transaction, on one side.
#[derive(Debug, Default)]
struct Course<'a> {
    /// When the message was sent.
    sent: Vec<Micros>,
    /// When a message came back that ends or slows the timer.
    first_back: Option<Micros>,
    /// When final responses came back.
    finals_back: Vec<Micros>,
    /// Branch at the hop before.
    before: Option<&'a str>,
    /// When copies of the request came, for a failure.
    copies: Vec<Micros>,
    /// Whether a failure's INVITE got a 100: it has a transaction, and its source is not the stranger.
    has_trying: bool,
}

/// All judged transactions.
#[derive(Default)]
struct Courses<'a> {
    requests: BTreeMap<Key<'a>, Course<'a>>,
    failures: BTreeMap<Key<'a>, Course<'a>>,
    /// When requests came to a server, by branch and method.
    came: BTreeMap<(NodeId, &'a str, &'a str), Vec<Micros>>,
}

pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let scenario = case.scenario;
    let is_judged = |node: NodeId| scenario.servers.get(node).is_some_and(|server| server.stateful);
    let mut courses = Courses::default();
    for sent in &case.log.sent {
        let Some(to) = sent.to else { continue };
        // A changed copy has the branch of a phone's request, and is another request.
        if is_changed_copy(&sent.text) {
            continue;
        }
        if is_judged(to) && sent.facts.status.is_none() {
            let key = (to, &*sent.facts.branch, &*sent.facts.method);
            courses
                .came
                .entry(key)
                .or_default()
                .extend_from_slice(&sent.arrivals);
        }
        if !is_udp(sent) {
            continue;
        }
        if is_judged(sent.from) {
            courses.leaves(sent, to);
        }
        if is_judged(to) {
            courses.comes(sent, to);
        }
    }
    courses.judge(case)
}

impl<'a> Courses<'a> {
    /// Notes a message that a server sends.
    fn leaves(&mut self, sent: &'a Sent, to: NodeId) {
        let facts = &sent.facts;
        let key = (sent.from, to, &*facts.branch, &*facts.method);
        match facts.status {
            None if facts.method != "ACK" => {
                let course = self.requests.entry(key).or_default();
                course.sent.push(sent.at);
                course.before = View::new(&sent.text)
                    .all("Via")
                    .nth(1)
                    .map(|via| param(via, "branch"));
            }
            Some(100) if facts.method == "INVITE" => {
                self.failures.entry(key).or_default().has_trying = true;
            }
            Some(300..) if facts.method == "INVITE" => {
                let course = self.failures.entry(key).or_default();
                // Without a 100 the INVITE was refused without state: its copies are new requests.
                if course.has_trying {
                    course.sent.push(sent.at);
                }
            }
            _ => {}
        }
    }

    /// Notes a message that comes to a server.
    fn comes(&mut self, sent: &'a Sent, to: NodeId) {
        let facts = &sent.facts;
        let Some(&first) = sent.arrivals.first() else {
            return;
        };
        let noted = |back: &mut Option<Micros>| *back = Some(back.map_or(first, |at| at.min(first)));
        match (facts.status, &*facts.method) {
            (Some(_), method) => {
                let key = (to, sent.from, &*facts.branch, method);
                if let Some(course) = self.requests.get_mut(&key) {
                    noted(&mut course.first_back);
                    if facts.status >= Some(200) {
                        course.finals_back.extend_from_slice(&sent.arrivals);
                    }
                }
            }
            (None, "INVITE") => {
                let key = (to, sent.from, &*facts.branch, "INVITE");
                let course = self.failures.entry(key).or_default();
                course.copies.extend_from_slice(&sent.arrivals);
            }
            (None, "ACK") => {
                let key = (to, sent.from, &*facts.branch, "INVITE");
                if let Some(course) = self.failures.get_mut(&key) {
                    noted(&mut course.first_back);
                }
            }
            (None, _) => {}
        }
    }

    fn judge(&self, case: &Case<'_>) -> Vec<Violation> {
        let scenario = case.scenario;
        let mut found = Vec::new();
        let requests = self.requests.iter().map(|(key, course)| {
            let kind = if key.3 == "INVITE" {
                Kind::Invite
            } else {
                Kind::Request
            };
            (key, kind, course)
        });
        // The servers that send to this one over TCP: one without state sends copies.
        let before = |server: NodeId| {
            let to_it = move |s: &&ServerPlan| s.next.is_some_and(|next| next.tcp && next.server == server);
            scenario.servers.iter().filter(to_it)
        };
        let failures = self
            .failures
            .iter()
            .map(|(key, course)| (key, Kind::Failure, course));
        for (key, kind, course) in requests.chain(failures) {
            let Some(&began) = course.sent.first() else {
                continue;
            };
            // A server that was away may have lost its state.
            let ended = course.sent.last().map_or(began, |last| began.max(*last)) + TIME_OUT;
            if case.was_away(key.0, began.saturating_sub(2 * TIME_OUT), ended) {
                continue;
            }
            let fault = match kind {
                Kind::Invite | Kind::Request => {
                    let copies = course
                        .before
                        .and_then(|branch| self.came.get(&(key.0, branch, key.3)));
                    let copies = copies.map_or(&[][..], Vec::as_slice);
                    let acked = course
                        .before
                        .and_then(|branch| self.came.get(&(key.0, branch, "ACK")));
                    let news = News {
                        copied: before(key.0).any(|s| !s.stateful),
                        by_tcp: before(key.0).next().is_some(),
                        acked: acked.and_then(|at| at.iter().min().copied()),
                    };
                    early(kind, course, copies, &news).or_else(|| late(case, (key.0, key.1), kind, course))
                }
                Kind::Failure => too_often(course)
                    .or_else(|| after_ack(course))
                    .or_else(|| overdue(course)),
            };
            if let Some((rule, what)) = fault {
                let (server, to, branch, method) = key;
                let what = format!("S{server} to node {to}, {method} {branch}: {what}");
                found.push(Violation::new(rule, None, what));
            }
        }
        found
    }
}

type Fault = Option<(&'static str, String)>;

/// When a copy of a request counts as a new one at a server.
struct News {
    /// Whether a server without state sends copies to it over TCP.
    copied: bool,
    /// Whether any server sends requests to it over TCP.
    by_tcp: bool,
    /// When an ACK first came.
    acked: Option<Micros>,
}

/// Judges early retransmissions: a request is sent again by its timer only, which a response stops (that of
/// an INVITE) or slows. Over TCP a request with a response leaves nothing behind, and a copy is a new request
/// with the same branch. By UDP a copy of an INVITE is a new one after timer I.
fn early(kind: Kind, course: &Course<'_>, copies: &[Micros], news: &News) -> Fault {
    let first = course.finals_back.iter().min().copied();
    let answered = first.filter(|_| kind == Kind::Request);
    // Whether there was no response since the last copy.
    let is_right = |at: Micros| {
        let asked = copies.iter().filter(|copy| **copy <= at).max();
        let since = asked.map_or(0, |copy| copy + HAND_OVER);
        let ended = |back: &Micros| (since..at.saturating_sub(HAND_OVER)).contains(back);
        !course.finals_back.iter().any(ended)
    };
    if answered.is_some() && !course.sent.iter().all(|at| is_right(*at)) {
        let what = format!(
            "answered at {:?}, and sent again: {:?}",
            course.finals_back, course.sent
        );
        return Some(("retransmission after answer", what));
    }
    for (n, pair) in course.sent.windows(2).enumerate() {
        if answered.is_some_and(|back| pair[1] > back) {
            break;
        }
        // As above, for an INVITE too. By UDP a copy is new once timer I of the transaction before has ended.
        let over = news.acked.map(|at| at + if news.by_tcp { 0 } else { TIMER_I });
        let anew = |copy: &Micros| {
            let is_new = news.copied || over.is_some_and(|over| over <= *copy);
            is_new && *copy <= pair[1] && *copy + HAND_OVER >= pair[1]
        };
        if copies.iter().any(anew) {
            break;
        }
        let least = kind.interval(n + 1);
        if pair[1] - pair[0] < least {
            let what = format!(
                "sent after {} µs, and not {least}: {:?}",
                pair[1] - pair[0],
                course.sent
            );
            return Some(("retransmission early", what));
        }
        if kind == Kind::Invite && course.first_back.is_some_and(|at| pair[1] > at + HAND_OVER) {
            let what = format!(
                "answered at {:?}, and sent again: {:?}",
                course.first_back, course.sent
            );
            return Some(("retransmission after answer", what));
        }
    }
    None
}

/// Judges missing retransmissions: the request is sent again until something comes back.
fn late(case: &Case<'_>, (server, to): (NodeId, NodeId), kind: Kind, course: &Course<'_>) -> Fault {
    let &began = course.sent.first()?;
    let ends = began
        + match kind {
            Kind::Invite => case.patience(server, to),
            Kind::Request | Kind::Failure => TIME_OUT,
        };
    // If the receiver is away, ICMP ends the transaction.
    if case.was_away(to, began, ends) {
        return None;
    }
    for (n, at) in course.sent.iter().enumerate() {
        let due = at + kind.interval(n + 1) + TICK_US;
        let next = course.sent.get(n + 1);
        let excused = course.first_back.is_some_and(|back| back <= due) || due >= ends;
        if !excused && next.is_none_or(|next| *next > due) {
            let what = format!("due at {due} µs, and sent at {:?}", course.sent);
            return Some(("retransmission missing", what));
        }
    }
    None
}

/// Judges the number of failures: one is sent again by timer G, and for each copy of its INVITE.
fn too_often(course: &Course<'_>) -> Fault {
    let &first = course.sent.first()?;
    for (n, at) in course.sent.iter().enumerate() {
        let copies = course
            .copies
            .iter()
            .filter(|copy| **copy + HAND_OVER >= first && *copy <= at);
        let by_timer = due_times().take_while(|due| first + due <= *at).count();
        if n > by_timer + copies.count() {
            return Some(("final too often", format!("{:?}", course.sent)));
        }
    }
    None
}

/// Judges failures after the ACK: none is sent, unless a copy of the INVITE came after timer I, which is a
/// new request.
fn after_ack(course: &Course<'_>) -> Fault {
    let ack = course.first_back?;
    let is_new = |at: Micros| {
        let mut copies = course.copies.iter();
        copies.any(|copy| (ack + TIMER_I..=at).contains(copy))
    };
    let late = course
        .sent
        .iter()
        .find(|at| **at > ack + HAND_OVER && !is_new(**at))?;
    let what = format!("acknowledged at {ack} µs, and sent again at {late}");
    Some(("final after ACK", what))
}

/// Judges missing failures: one is sent again until its ACK comes.
fn overdue(course: &Course<'_>) -> Fault {
    let &first = course.sent.first()?;
    for (n, due) in due_times().enumerate() {
        let latest = first + due + (n as u64 + 1) * TICK_US;
        if latest >= first + TIME_OUT || course.first_back.is_some_and(|ack| ack <= latest) {
            return None;
        }
        if !course.sent.iter().any(|at| (first + due..=latest).contains(at)) {
            let what = format!("due {due} µs after the first, and sent at {:?}", course.sent);
            return Some(("retransmission missing", what));
        }
    }
    None
}

/// When timer G fires, after the first sending.
fn due_times() -> impl Iterator<Item = Micros> {
    (1..).scan(0, |at, sent| {
        *at += Kind::Failure.interval(sent);
        Some(*at)
    })
}
