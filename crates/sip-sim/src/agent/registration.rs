//! Registration of a user agent (RFC 3261 §10.2), one REGISTER at a time. The binding is refreshed in time,
//! removed when the agent leaves, and fetched at intervals. The history of all REGISTERs is kept for the
//! checkers.

use std::collections::VecDeque;

use super::digest::Challenge;
use super::{Core, T2, TIME_OUT, Timer, doubled_to_t2};
use crate::clock::{Micros, SECOND};
use crate::message::{View, bracketed, param};
use crate::report::RequestEnd;

/// Challenges to one REGISTER after which it counts as refused.
const MOST_TRIES: u32 = 3;
/// First pause before a failed REGISTER is repeated, doubled each time.
const RETRY_AFTER: Micros = 2 * SECOND;
/// Longest pause before a failed REGISTER is repeated.
const LONGEST_RETRY: Micros = 30 * SECOND;

/// Purpose of a REGISTER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Adds the binding, for this many seconds.
    Bind(u32),
    /// Removes the binding.
    Unbind,
    /// Fetches the bindings.
    Fetch,
}

/// One REGISTER, with all its transactions (challenges and credentials).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// CSeq numbers, first and last.
    pub cseq: (u32, u32),
    /// Purpose of the REGISTER.
    pub ask: Ask,
    /// When the REGISTER was first sent.
    pub sent_at: Micros,
    /// When the REGISTER ended.
    pub ended_at: Option<Micros>,
    /// How the REGISTER ended.
    pub end: RequestEnd,
    /// Contacts in the 200, with their remaining seconds.
    pub contacts: Vec<(String, u32)>,
}

/// Purpose of a registrant's timer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RegistrationTimer {
    /// The agent comes, or returns.
    Come,
    /// The agent leaves for a while.
    Leave,
    /// The agent leaves for good.
    End,
    /// Refresh the binding of the REGISTER with this index in the history, or repeat that REGISTER.
    Refresh(usize),
    /// Fetch the bindings.
    Fetch,
    /// Timer E, by branch.
    Again(String),
    /// Timer F.
    GivenUp(String),
}

/// Plan of a user agent's registration.
#[derive(Clone, Debug)]
pub(crate) struct RegistrationPlan {
    pub(crate) aor: &'static str,
    pub(crate) expires_s: u32,
    pub(crate) start: Micros,
    pub(crate) leaves: Vec<(Micros, Micros)>,
    pub(crate) fetch_every: Micros,
    pub(crate) end: Micros,
    /// Preference of the agent's contact, in thousandths.
    pub(crate) q: Option<u16>,
}

/// The REGISTER under way.
#[derive(Debug)]
struct Current {
    branch: String,
    text: String,
    sent: u32,
    tries: u32,
    proceeding: bool,
}

/// The registering part of a user agent.
#[derive(Debug)]
pub(crate) struct Registrant {
    plan: RegistrationPlan,
    /// The binding wanted at present.
    wants: Option<Ask>,
    current: Option<Current>,
    /// The next REGISTERs.
    queue: VecDeque<Ask>,
    cseq: u32,
    challenge: Option<Challenge>,
    /// Number of failures in a row.
    failures: u32,
    over: bool,
    history: Vec<Registration>,
}

impl Registrant {
    pub(crate) const fn new(plan: RegistrationPlan) -> Self {
        Self {
            plan,
            wants: None,
            current: None,
            queue: VecDeque::new(),
            cseq: 0,
            challenge: None,
            failures: 0,
            over: false,
            history: Vec::new(),
        }
    }

    pub(crate) fn begin(&mut self, core: &mut Core) {
        let timer = |timer| Timer::Registration(timer);
        core.start(self.plan.start, timer(RegistrationTimer::Come));
        for (leaves, comes) in self.plan.leaves.clone() {
            core.start(leaves, timer(RegistrationTimer::Leave));
            core.start(comes, timer(RegistrationTimer::Come));
        }
        self.fetch_later(core);
        core.start(self.plan.end, timer(RegistrationTimer::End));
    }

    fn fetch_later(&self, core: &mut Core) {
        if core.now + self.plan.fetch_every < self.plan.end {
            core.start(
                self.plan.fetch_every,
                Timer::Registration(RegistrationTimer::Fetch),
            );
        }
    }

    pub(crate) fn history(&self) -> &[Registration] {
        &self.history
    }

    /// Whether the agent has left for good, and nothing is under way any more.
    pub(crate) fn has_signed_off(&self) -> bool {
        self.over && self.wants.is_none() && self.current.is_none() && self.queue.is_empty()
    }

    /// REGISTERs that are still unfinished although everything is over.
    pub(crate) fn leftovers(&self) -> Option<String> {
        let unfinished = self.current.is_some() || !self.queue.is_empty();
        unfinished.then(|| format!("a REGISTER: {:?}", self.history.last()))
    }

    pub(crate) fn fire(&mut self, core: &mut Core, timer: RegistrationTimer) {
        match timer {
            RegistrationTimer::Come => self.want(core, Ask::Bind(self.plan.expires_s)),
            RegistrationTimer::Leave => self.want(core, Ask::Unbind),
            RegistrationTimer::End => {
                self.over = true;
                self.want(core, Ask::Unbind);
                self.ask(core, Ask::Fetch);
            }
            RegistrationTimer::Refresh(place) => {
                if place + 1 >= self.binding_history_len()
                    && let Some(wants) = self.wants
                {
                    self.ask(core, wants);
                }
            }
            RegistrationTimer::Fetch if self.over => {}
            RegistrationTimer::Fetch => {
                self.fetch_later(core);
                self.ask(core, Ask::Fetch);
            }
            RegistrationTimer::Again(branch) => self.send_again(core, &branch),
            RegistrationTimer::GivenUp(branch) => {
                if self
                    .current
                    .as_ref()
                    .is_some_and(|current| current.branch == branch)
                {
                    let end = RequestEnd::TimedOut(core.now);
                    self.ended(core, end, Vec::new());
                }
            }
        }
    }

    /// Number of REGISTERs up to the last one that binds or unbinds: a timer of an earlier one is void.
    fn binding_history_len(&self) -> usize {
        let last = self.history.iter().rposition(|r| r.ask != Ask::Fetch);
        last.map_or(0, |last| last + 1)
    }

    fn want(&mut self, core: &mut Core, ask: Ask) {
        self.wants = Some(ask);
        self.failures = 0;
        self.ask(core, ask);
    }

    pub(crate) fn reconnected(&mut self, core: &mut Core) {
        if let Some(Ask::Bind(expires_s)) = self.wants {
            self.ask(core, Ask::Bind(expires_s));
        }
    }

    fn ask(&mut self, core: &mut Core, ask: Ask) {
        if !self.queue.contains(&ask) {
            self.queue.push_back(ask);
        }
        self.next(core);
    }

    fn next(&mut self, core: &mut Core) {
        if self.current.is_some() {
            return;
        }
        let Some(ask) = self.queue.pop_front() else { return };
        // The wish may have changed since the REGISTER was queued.
        if ask != Ask::Fetch && self.wants != Some(ask) {
            return self.next(core);
        }
        self.history.push(Registration {
            cseq: (self.cseq + 1, self.cseq + 1),
            ask,
            sent_at: core.now,
            ended_at: None,
            end: RequestEnd::Pending,
            contacts: Vec::new(),
        });
        self.send(core, ask, 0);
    }

    /// Starts a new transaction.
    fn send(&mut self, core: &mut Core, ask: Ask, tries: u32) {
        self.cseq += 1;
        if let Some(last) = self.history.last_mut() {
            last.cseq.1 = self.cseq;
        }
        let branch = core.branch();
        let domain = self.plan.aor.split('@').nth(1).unwrap_or_default();
        let uri = format!("sip:{domain}");
        let q = self
            .plan
            .q
            .map_or_else(String::new, |q| format!(";q={}.{:03}", q / 1_000, q % 1_000));
        let contact = match ask {
            Ask::Bind(expires_s) => format!("Contact: {}{q};expires={expires_s}\r\n", core.contact()),
            Ask::Unbind => format!("Contact: {};expires=0\r\n", core.contact()),
            Ask::Fetch => String::new(),
        };
        let credentials = self.challenge.as_mut().map(|challenge| {
            let answer = challenge.answer(core.user, "REGISTER", &uri);
            format!("Authorization: {answer}\r\n")
        });
        let text = format!(
            "REGISTER {uri} SIP/2.0\r\nVia: {}\r\nMax-Forwards: 70\r\nFrom: <sip:{aor}>;tag=reg\r\n\
             To: <sip:{aor}>\r\nCall-ID: reg-{user}@sim\r\nCSeq: {} REGISTER\r\n{contact}{}\
             Content-Length: 0\r\n\r\n",
            core.via(&branch),
            self.cseq,
            credentials.unwrap_or_default(),
            aor = self.plan.aor,
            user = core.name,
        );
        core.start(
            TIME_OUT,
            Timer::Registration(RegistrationTimer::GivenUp(branch.clone())),
        );
        self.current = Some(Current {
            branch: branch.clone(),
            text,
            sent: 0,
            tries,
            proceeding: false,
        });
        self.send_again(core, &branch);
    }

    /// Timer E.
    fn send_again(&mut self, core: &mut Core, branch: &str) {
        let Some(current) = self.current.as_mut().filter(|current| current.branch == branch) else {
            return;
        };
        core.send(core.proxy, current.text.clone());
        current.sent += 1;
        let after = if current.proceeding {
            T2
        } else {
            doubled_to_t2(current.sent)
        };
        if !core.reliable {
            let timer = RegistrationTimer::Again(branch.to_owned());
            core.start(after, Timer::Registration(timer));
        }
    }

    pub(crate) fn response(&mut self, core: &mut Core, view: &View<'_>, status: u16) {
        let Some(current) = self
            .current
            .as_mut()
            .filter(|current| current.branch == view.branch())
        else {
            return;
        };
        match status {
            100..200 => current.proceeding = true,
            401 if current.tries < MOST_TRIES => {
                let tries = current.tries + 1;
                self.challenge = Challenge::first(view.all("WWW-Authenticate"));
                if let (Some(ask), true) = (self.history.last().map(|r| r.ask), self.challenge.is_some()) {
                    self.send(core, ask, tries);
                } else {
                    self.ended(core, RequestEnd::Answered(status), Vec::new());
                }
            }
            _ => self.ended(core, RequestEnd::Answered(status), contacts(view)),
        }
    }

    fn ended(&mut self, core: &mut Core, end: RequestEnd, contacts: Vec<(String, u32)>) {
        self.current = None;
        let place = self.history.len().saturating_sub(1);
        let Some(last) = self.history.last_mut() else {
            return;
        };
        last.end = end;
        last.ended_at = Some(core.now);
        last.contacts = contacts;
        let ask = last.ask;
        let own = bracketed(core.contact());
        let granted = last
            .contacts
            .iter()
            .find(|(contact, _)| contact == own)
            .map(|c| c.1);
        if ask != Ask::Fetch {
            let refresh = Timer::Registration(RegistrationTimer::Refresh(place));
            match (end, ask) {
                (RequestEnd::Answered(200), Ask::Bind(_)) => {
                    self.failures = 0;
                    let granted = u64::from(granted.unwrap_or(60));
                    core.start(granted * SECOND * 3 / 5, refresh);
                }
                // The agent may have returned meanwhile.
                (RequestEnd::Answered(200), Ask::Unbind) => {
                    self.wants = self.wants.filter(|wants| *wants != ask)
                }
                _ => {
                    self.failures += 1;
                    let after = RETRY_AFTER << (self.failures - 1).min(8);
                    core.start(after.min(LONGEST_RETRY), refresh);
                }
            }
        }
        self.next(core);
    }
}

/// Contacts of a 200, with their remaining seconds.
fn contacts(view: &View<'_>) -> Vec<(String, u32)> {
    let values = view.all("Contact").flat_map(|line| line.split(", <"));
    values
        .map(|value| {
            let uri = bracketed(value).split('>').next().unwrap_or_default();
            let after = value.rsplit('>').next().unwrap_or_default();
            let expires = param(after, "expires").parse().unwrap_or(0);
            (uri.to_owned(), expires)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contacts_are_read_in_one_line_or_several() {
        let text = "SIP/2.0 200 OK\r\nContact: <sip:a@192.0.2.1:5060>;expires=59, <sip:b@x;transport=ws>;q=1;expires=7\r\n\
                    Contact: <sip:c@y>;expires=1\r\n\r\n";
        let expected = [
            ("sip:a@192.0.2.1:5060", 59),
            ("sip:b@x;transport=ws", 7),
            ("sip:c@y", 1),
        ];
        let expected: Vec<_> = expected.map(|(uri, s)| (uri.to_owned(), s)).into();
        assert_eq!(contacts(&View::new(text)), expected);
    }
}
