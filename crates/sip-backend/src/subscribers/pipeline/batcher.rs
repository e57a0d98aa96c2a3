//! The rules of which questions go to the database, when, and with which others. A value without threads,
//! sockets or clock.
//!
//! A question joins the *flight* of its subject, if there is one. Otherwise a new flight waits in the
//! queue until [`Batcher::take`] gives it to a connection. A flight ends by [`Batcher::settle`], or by
//! [`Batcher::expire`] when its time is over.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashTable;
use sip_core::id::QueryId;

use super::breaker::{Breaker, Failure, State};
use crate::subscribers::CredentialQuery;

/// Connections that may end under a question before the question is given up: the question may be the cause.
/// Connections whose opening had begun when the first one ended count once, with it, since all may have ended
/// together. The end of an idle connection, or of a connection that is being opened, is noticed late.
const MAX_LOST: u8 = 3;

/// The rule for the time at which a batch is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Each question is sent by itself, as a server with one process for each connection does.
    Single,
    /// A batch is sent once `max_batch` questions wait, or the oldest has waited `max_wait`.
    Fixed,
    /// A batch is sent at once if a connection is idle and no batch was sent just before. Otherwise the queue
    /// grows until a connection is idle and the last batch is far enough away for all connections to be used
    /// in turn. A connection that carries several batches at a time takes another one once `max_batch`
    /// questions wait or the oldest has waited `max_wait`.
    Adaptive,
}

/// Shortest gap between batches that is kept: timers are no finer.
const LEAST_GAP: Duration = Duration::from_millis(1);

/// Least wait for a result, however short the deadline of questions is: a new connection costs more than
/// that.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);

/// Divisor of the deadline that gives the patience with a connection. A connection that is silent for longer
/// may be dead: its questions are sent again, on another connection.
const PATIENCE: u32 = 4;

/// The most times that a question is sent again because its connection is silent. The second connection may
/// be silent as well: a firewall drops several at once, and a database that has just started serves its first
/// connections late. If four rounds are short, almost half of the deadline is left to the last one.
const MAX_ASKED_AGAIN: u8 = 2;

/// Least patience in rounds: a database that is slow as a whole would only become slower by repeated
/// questions.
const PATIENCE_ROUNDS: u32 = 4;

/// Results within this part of a round count as one measurement. After a pause of the database all batches
/// come together; counted singly, they would make the waiting questions look too late.
const ROUND_PARTS: u32 = 8;

/// Settings of the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) mode: Mode,
    pub(super) max_batch: usize,
    pub(super) max_wait: Duration,
    /// Longest time for a question in all.
    pub(super) deadline: Duration,
    /// Most open questions; a further one is refused.
    pub(super) questions: usize,
}

/// A question that waits for a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) origin: u16,
    pub(super) id: Option<QueryId>,
    pub(super) asked: Instant,
}

/// The subscriber and realm of the wanted secrets.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Subject {
    /// The name as in the credentials, with or without `@` and a domain.
    pub(super) username: Box<[u8]>,
    /// Length of the user's name in `username`.
    pub(super) user_len: usize,
    pub(super) domain: Box<[u8]>,
    pub(super) realm: Box<[u8]>,
}

impl Subject {
    pub(super) fn user(&self) -> &[u8] {
        self.username.get(..self.user_len).unwrap_or(&self.username)
    }

    /// Whether the name in the credentials has a domain.
    pub(super) fn is_full(&self) -> bool {
        self.user_len < self.username.len()
    }

    fn is(&self, query: &CredentialQuery) -> bool {
        self.username == query.username && self.domain == query.domain && self.realm == query.realm
    }
}

/// Number of a flight. The number of an ended flight names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlightId {
    slot: u32,
    generation: u32,
}

#[derive(Debug)]
struct Flight {
    subject: Arc<Subject>,
    hash: u64,
    waiters: Vec<Waiter>,
    asked: Instant,
    deadline: Instant,
    /// Whether the flight is in the queue.
    queued: bool,
    /// Number of batches under way that carry the flight.
    carried: u8,
    /// The time at which the flight was last sent.
    sent: Option<Instant>,
    /// Number of times that the flight was put into the queue again because its connection was silent.
    asked_again: u8,
    /// Number of counted ends of connections with the flight under way; the time of the last one follows.
    lost: u8,
    lost_at: Option<Instant>,
    /// Whether the flight is sent by itself, because the database refused it together with others.
    alone: bool,
    /// Value of `Batcher::epoch` when the earliest batch under way with this flight was sent.
    epoch: u64,
}

impl Flight {
    /// Whether every possible result of the flight is read after change `epoch`, so that a question may join
    /// the flight. A flight that is sent again may get the result of its first connection.
    const fn is_as_new_as(&self, epoch: u64) -> bool {
        (self.queued && self.carried == 0) || self.epoch == epoch
    }
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    flight: Option<Flight>,
}

/// A flight that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) subject: Arc<Subject>,
    pub(super) waiters: Vec<Waiter>,
}

/// Flights that are sent together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) flights: Vec<(FlightId, Arc<Subject>)>,
    /// The time at which the first question of the batch was asked.
    pub(super) oldest: Instant,
    /// The time at which the flights left the queue.
    pub(super) sent: Instant,
    /// The end of the wait for the result, counted from the sending, so that a long queue is not taken for a
    /// silent database.
    pub(super) deadline: Instant,
    /// Number of flights that another connection carries, too.
    pub(super) again: usize,
    /// Flights taken from the queue too late for a result in time.
    pub(super) too_late: Vec<Ended>,
}

/// The acceptance of a question.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The question waits. If `wake`, a connection must look at the queue.
    Queued { wake: bool },
    /// The question joined the flight of its subject.
    Joined,
}

/// The reason why a question was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Too many questions are open.
    Full,
    /// The database is given up for now.
    Broken,
    /// The store is shut down.
    Closed,
}

/// The next task of a connection.
#[derive(Debug)]
pub(super) enum Take {
    Batch(Batch),
    /// Nothing yet. Look again at the given time.
    Wait(Option<Instant>),
    /// Nothing any more.
    Closed,
}

/// The queue and all flights.
#[derive(Debug)]
pub(super) struct Batcher {
    rules: Rules,
    slots: Vec<Slot>,
    free: Vec<u32>,
    index: HashTable<u32>,
    keys: RandomState,
    queue: VecDeque<FlightId>,
    /// Number of live flights in `queue`.
    queued: usize,
    /// All flights, oldest first. Ended ones stay until their deadline.
    by_age: VecDeque<(Instant, FlightId)>,
    /// Flights in the order of sending. Entries of ended or resent flights stay until they reach the front.
    by_sending: VecDeque<(Instant, FlightId)>,
    /// Sending time of the last flight that was sent again. All earlier batches were sent again as well, or
    /// have no attempt left.
    asked_again_up_to: Option<Instant>,
    /// Sending time of the newest batch with a response.
    answered_up_to: Option<Instant>,
    questions: usize,
    sessions: usize,
    breaker: Breaker,
    probing: bool,
    closed: bool,
    last_sent: Option<Instant>,
    /// Duration of a batch, smoothed.
    round: Duration,
    /// The time at which the last duration was counted.
    measured: Option<Instant>,
    /// The time at which a connection looks at the queue again.
    clock: Option<Instant>,
    /// Number of changes of the table.
    epoch: u64,
}

impl Batcher {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            rules,
            slots: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
            keys: RandomState::new(),
            queue: VecDeque::new(),
            queued: 0,
            by_age: VecDeque::new(),
            by_sending: VecDeque::new(),
            asked_again_up_to: None,
            answered_up_to: None,
            questions: 0,
            sessions: 0,
            breaker: Breaker::new(),
            probing: false,
            closed: false,
            last_sent: None,
            round: Duration::ZERO,
            measured: None,
            clock: None,
            epoch: 0,
        }
    }

    /// Accepts a question. A refused one leaves no trace.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        query: CredentialQuery,
    ) -> Result<Asked, (Refusal, CredentialQuery)> {
        if self.closed {
            return Err((Refusal::Closed, query));
        }
        if !self.breaker.admits(now, self.sessions) {
            return Err((Refusal::Broken, query));
        }
        if self.questions >= self.rules.questions {
            return Err((Refusal::Full, query));
        }
        let waiter = Waiter {
            origin: query.origin,
            id: query.id,
            asked: now,
        };
        let hash = self.keys.hash_one((&query.username, &query.domain, &query.realm));
        let (slots, epoch) = (&mut self.slots, self.epoch);
        let known = self.index.find(hash, |at| {
            flight_at(slots, *at)
                .is_some_and(|flight| flight.subject.is(&query) && flight.is_as_new_as(epoch))
        });
        if let Some(flight) = known.copied().and_then(|at| flight_at_mut(slots, at)) {
            flight.waiters.push(waiter);
            self.questions += 1;
            return Ok(Asked::Joined);
        }
        self.questions += 1;
        let deadline = now + self.rules.deadline;
        let id = self.insert(Flight {
            subject: Arc::new(Subject {
                username: query.username,
                user_len: query.user_len,
                domain: query.domain,
                realm: query.realm,
            }),
            hash,
            waiters: vec![waiter],
            asked: now,
            deadline,
            queued: true,
            carried: 0,
            sent: None,
            asked_again: 0,
            lost: 0,
            lost_at: None,
            alone: false,
            epoch: self.epoch,
        });
        self.queue.push_back(id);
        self.queued += 1;
        // With one deadline the entries are in order. After a change, a shorter one waits for those before
        // it.
        self.by_age.push_back((deadline, id));
        Ok(Asked::Queued {
            wake: self.queued >= self.rules.max_batch || self.clock.is_none_or(|at| at < now),
        })
    }

    /// The next task of a connection; `busy` if it has a batch under way.
    pub(super) fn take(&mut self, now: Instant, busy: bool) -> Take {
        let held_back = match self.breaker.state() {
            State::Closed => false,
            State::Open { .. } => true,
            State::HalfOpen => self.probing,
        };
        if self.queued == 0 && self.closed {
            return Take::Closed;
        }
        let Some(oldest) = self.oldest_queued().filter(|_| !held_back) else {
            return Take::Wait(None);
        };
        let by_time = oldest + self.rules.max_wait;
        let at = match self.rules.mode {
            _ if self.closed || self.queued >= self.rules.max_batch => now,
            Mode::Single => now,
            Mode::Fixed => by_time,
            Mode::Adaptive if busy => by_time,
            Mode::Adaptive => self.next_turn().map_or(now, |turn| turn.min(by_time)),
        };
        if at > now {
            self.clock = Some(at);
            return Take::Wait(Some(at));
        }
        self.clock = None;
        self.last_sent = Some(now);
        let batch = self.next_batch(now, oldest);
        // A batch of late flights only is no probe.
        self.probing = self.breaker.state() == State::HalfOpen && !batch.flights.is_empty();
        Take::Batch(batch)
    }

    /// The time at which the next batch is sent, so that the connections are used in turn. If each batch went
    /// as soon as a connection is idle, a burst would use all connections with a question or two each. The
    /// connections would finish together and start together from then on, while other questions wait a whole
    /// round trip.
    fn next_turn(&self) -> Option<Instant> {
        let connections = u32::try_from(self.sessions).unwrap_or(u32::MAX);
        let gap = self.round.checked_div(connections)?;
        (connections > 1 && gap >= LEAST_GAP).then_some(self.last_sent? + gap)
    }

    /// Takes a batch from the front of the queue, which holds a live flight. The batch may be empty, if all
    /// flights are too late.
    fn next_batch(&mut self, now: Instant, oldest: Instant) -> Batch {
        let size = match self.rules.mode {
            Mode::Single => 1,
            Mode::Fixed | Mode::Adaptive => self.rules.max_batch.min(self.queued),
        };
        let mut batch = Batch {
            flights: Vec::with_capacity(size),
            oldest,
            sent: now,
            deadline: now + self.rules.deadline.max(LEAST_PATIENCE),
            again: 0,
            too_late: Vec::new(),
        };
        // A margin, because some rounds are longer than others.
        let (round, epoch) = (self.round + self.round / 4, self.epoch);
        while batch.flights.len() < size
            && let Some(id) = self.queue.front().copied()
        {
            let Some(flight) = self.live_mut(id) else {
                self.queue.pop_front();
                continue;
            };
            if flight.alone && !batch.flights.is_empty() {
                break;
            }
            // A flight that has waited most of its time is sent only if its result can come in time: under
            // overload, a look-up must be of use to a waiter. A new flight is always sent; otherwise a
            // database that has become faster would never be noticed.
            let left = flight.deadline.saturating_duration_since(now);
            let waited = now.saturating_duration_since(flight.asked);
            let is_late = left < round && waited > left;
            let alone = flight.alone;
            // The connection that carries the flight may still give a result.
            let is_carried = flight.carried > 0;
            if is_late && is_carried {
                flight.queued = false;
                self.queued -= 1;
            } else if !is_late {
                flight.queued = false;
                if !is_carried {
                    flight.epoch = epoch;
                }
                flight.carried += 1;
                flight.sent = Some(now);
                batch.flights.push((id, Arc::clone(&flight.subject)));
                batch.again += usize::from(is_carried);
                self.queued -= 1;
                self.by_sending.push_back((now, id));
            }
            self.queue.pop_front();
            if is_late && !is_carried {
                batch.too_late.extend(self.settle(id));
            } else if alone && !is_late {
                break;
            }
        }
        batch
    }

    /// Ends a flight, with or without a result. `None` if it had already ended.
    pub(super) fn settle(&mut self, id: FlightId) -> Option<Ended> {
        self.live(id)?;
        let slot = self.slots.get_mut(id.slot as usize)?;
        let flight = slot.flight.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot);
        if let Ok(entry) = self.index.find_entry(flight.hash, |at| *at == id.slot) {
            entry.remove();
        }
        self.questions -= flight.waiters.len();
        self.queued -= usize::from(flight.queued);
        Some(Ended {
            subject: flight.subject,
            waiters: flight.waiters,
        })
    }

    /// Returns the flights of a batch to the front of the queue after their connection, whose opening began at
    /// `opened`, has ended. Flights that were returned too often are given up, and appended to `given_up`.
    pub(super) fn put_back(
        &mut self,
        now: Instant,
        opened: Instant,
        batch: &Batch,
        given_up: &mut Vec<Ended>,
    ) {
        self.probing = false;
        for (id, _) in batch.flights.iter().rev() {
            let Some(flight) = self.live_mut(*id) else {
                continue;
            };
            flight.carried -= 1;
            if flight.lost_at.is_none_or(|before| opened > before) {
                flight.lost += 1;
                flight.lost_at = Some(now);
            }
            if flight.lost >= MAX_LOST {
                given_up.extend(self.settle(*id));
            } else if !flight.queued && flight.carried == 0 {
                flight.queued = true;
                self.queued += 1;
                self.queue.push_front(*id);
            }
        }
    }

    /// Returns the flights of a refused batch to the front of the queue, each to be sent by itself: one of
    /// them may be the cause. A flight that was sent by itself is given up.
    pub(super) fn separate(&mut self, batch: &Batch, given_up: &mut Vec<Ended>) {
        self.probing = false;
        let alone = batch.flights.len() == 1;
        for (id, _) in batch.flights.iter().rev() {
            if alone {
                given_up.extend(self.settle(*id));
            } else if let Some(flight) = self.live_mut(*id) {
                flight.carried -= 1;
                flight.alone = true;
                if flight.queued || flight.carried > 0 {
                    continue;
                }
                flight.queued = true;
                self.queued += 1;
                self.queue.push_front(*id);
            }
        }
    }

    /// Notes a change of the table. Flights under way may have read the old content, so no question joins
    /// them any more.
    pub(super) fn changed(&mut self) {
        self.epoch += 1;
    }

    /// Ends all flights.
    pub(super) fn drain(&mut self, ended: &mut Vec<Ended>) {
        self.by_sending.clear();
        while let Some((_, id)) = self.by_age.pop_front() {
            ended.extend(self.settle(id));
        }
    }

    /// Ends the flights that are past their deadline.
    pub(super) fn expire(&mut self, now: Instant, ended: &mut Vec<Ended>) {
        while let Some((deadline, id)) = self.by_age.front().copied() {
            if deadline > now && self.live(id).is_some() {
                break;
            }
            self.by_age.pop_front();
            ended.extend(self.settle(id));
        }
    }

    /// The time at which [`Batcher::expire`] is due, if no result comes before.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.by_age.front().map(|(deadline, _)| *deadline)
    }

    /// The longest silence of a connection before its flights are sent again.
    pub(super) fn patience(&self) -> Duration {
        (self.rules.deadline / PATIENCE).max(self.round * PATIENCE_ROUNDS)
    }

    /// Whether a connection is silent if its oldest batch under way was sent at `sent`. The time is that of
    /// [`Batcher::ask_again`], so that the connection does not itself take the flights that are sent again
    /// because of it.
    pub(super) fn is_silent(&self, now: Instant, sent: Instant) -> bool {
        // The patience may have grown since the flights were sent again.
        self.was_asked_again(sent) || now.saturating_duration_since(sent) >= self.patience()
    }

    /// Whether flights that were sent at `sent` were sent again.
    pub(super) fn was_asked_again(&self, sent: Instant) -> bool {
        self.asked_again_up_to.is_some_and(|last| sent <= last)
    }

    /// Puts flights that were sent too long ago to the front of the queue, each [`MAX_ASKED_AGAIN`] times at
    /// most. Returns their number. If no other connection is up, or the database may be down, that would be
    /// useless: the flights stay for later.
    pub(super) fn ask_again(&mut self, now: Instant) -> usize {
        let patience = self.patience();
        let is_of_use = self.sessions > 1 && self.breaker.state() == State::Closed;
        let mut again = Vec::new();
        while let Some((sent, id)) = self.by_sending.front().copied() {
            let flight = self.live_mut(id).filter(|flight| {
                // A flight that was sent again since has a later entry.
                flight.sent == Some(sent) && !flight.queued && flight.asked_again < MAX_ASKED_AGAIN
            });
            if let Some(flight) = flight {
                // The list stays bounded, because a live flight expires.
                if !is_of_use || now.saturating_duration_since(sent) < patience {
                    break;
                }
                flight.asked_again += 1;
                flight.queued = true;
                self.queued += 1;
                self.asked_again_up_to = Some(sent);
                again.push(id);
            }
            self.by_sending.pop_front();
        }
        for id in again.iter().rev() {
            self.queue.push_front(*id);
        }
        again.len()
    }

    /// Notes the response to a batch that was sent at `sent`, on time or late.
    pub(super) fn answered(&mut self, sent: Instant) {
        self.answered_up_to = self.answered_up_to.max(Some(sent));
    }

    /// Notes that a batch sent at `sent` got no response in time. If the database has responded to a newer
    /// one, the connection is at fault; otherwise the database is.
    pub(super) fn unanswered(&mut self, now: Instant, sent: Instant, given_up: &mut Vec<Ended>) {
        if self.answered_up_to.is_none_or(|newest| newest <= sent) {
            self.failed(now, Failure::Batch, given_up);
        }
    }

    /// Notes the result of a batch after `round`.
    pub(super) fn succeeded(&mut self, now: Instant, round: Duration) {
        let is_together = |at| now.saturating_duration_since(at) < round / ROUND_PARTS;
        if !self.measured.is_some_and(is_together) {
            self.measured = Some(now);
            self.round = if self.round.is_zero() {
                round
            } else {
                self.round - self.round / 8 + round / 8
            };
        }
        self.answers();
    }

    /// Notes that the database responds.
    pub(super) fn answers(&mut self) {
        self.probing = false;
        self.breaker.succeeded();
    }

    /// Notes a failure of the database. If the database is now given up, so are all queued flights.
    pub(super) fn failed(&mut self, now: Instant, failure: Failure, given_up: &mut Vec<Ended>) {
        if matches!(failure, Failure::Connect { .. }) && self.sessions > 0 {
            return;
        }
        self.probing = false;
        if self.breaker.failed(now, failure) {
            while let Some(id) = self.queue.pop_front() {
                given_up.extend(self.settle(id));
            }
        }
    }

    /// Sets the number of connections that are up.
    pub(super) fn set_sessions(&mut self, sessions: usize) {
        self.sessions = sessions;
    }

    /// Sets the longest time for questions from now on.
    pub(super) fn set_deadline(&mut self, deadline: Duration) {
        self.rules.deadline = deadline;
    }

    /// Refuses all further questions.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Number of flights that wait for a connection.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Number of flights under way.
    pub(super) fn under_way(&self) -> usize {
        self.index.len() - self.queued
    }

    /// Number of questions that wait for a result.
    pub(super) fn questions(&self) -> usize {
        self.questions
    }

    /// Number of connections that are up.
    pub(super) fn sessions(&self) -> usize {
        self.sessions
    }

    pub(super) fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    fn insert(&mut self, flight: Flight) -> FlightId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let hash = flight.hash;
        let mut generation = 0;
        if let Some(place) = self.slots.get_mut(slot as usize) {
            generation = place.generation;
            place.flight = Some(flight);
        }
        let slots = &self.slots;
        self.index
            .insert_unique(hash, slot, |at| flight_at(slots, *at).map_or(0, |f| f.hash));
        FlightId { slot, generation }
    }

    fn live(&self, id: FlightId) -> Option<&Flight> {
        let slot = self.slots.get(id.slot as usize)?;
        slot.flight.as_ref().filter(|_| slot.generation == id.generation)
    }

    fn live_mut(&mut self, id: FlightId) -> Option<&mut Flight> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        slot.flight.as_mut().filter(|_| slot.generation == id.generation)
    }

    /// The time at which the first flight of the queue was asked.
    fn oldest_queued(&mut self) -> Option<Instant> {
        while let Some(id) = self.queue.front().copied() {
            if let Some(flight) = self.live(id) {
                return Some(flight.asked);
            }
            self.queue.pop_front();
        }
        None
    }
}

fn flight_at(slots: &[Slot], at: u32) -> Option<&Flight> {
    slots.get(at as usize).and_then(|slot| slot.flight.as_ref())
}

fn flight_at_mut(slots: &mut [Slot], at: u32) -> Option<&mut Flight> {
    slots.get_mut(at as usize).and_then(|slot| slot.flight.as_mut())
}

#[cfg(test)]
mod tests;
