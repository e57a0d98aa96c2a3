//! Which questions go to the database, when, and together with which: a value without threads,
//! sockets or clock.
//!
//! A question for a subscriber that is asked about already joins that *flight*; else a new flight
//! waits in the queue until [`Batcher::take`] gives it to a connection, and ends by
//! [`Batcher::settle`], or by [`Batcher::expire`] when its time is over.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashTable;
use sip_core::id::QueryId;

use super::breaker::{Breaker, Failure, State};
use crate::subscribers::CredentialQuery;

/// A question that was under way on so many connections when they ended is given up: it may be what ended
/// them. Connections that were made before the first of these ended count only once, with it. They may all
/// have ended together, and the end of an idle connection is not noticed.
const MAX_LOST: u8 = 3;

/// When a batch goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Each question by itself: what a server with one process for each connection does.
    Single,
    /// Once `max_batch` questions wait, or the oldest has waited `max_wait`.
    Fixed,
    /// At once while a connection is idle and no batch has just gone; else the queue gathers, until
    /// one is idle and the last batch so far away that all connections are in use in turn. A
    /// connection that carries several batches at a time takes one more once `max_batch` wait or
    /// the oldest has waited `max_wait`.
    Adaptive,
}

/// Below this, batches are not kept apart: timers are no finer.
const LEAST_GAP: Duration = Duration::from_millis(1);

/// An answer is waited for at least so long, however short the deadline of questions is: a connection
/// costs more than that.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);

/// A connection that has not answered for this part of the deadline may be dead, and the others are not: what it
/// carries is asked once more, on another.
const PATIENCE: u32 = 2;

/// The same in rounds: a database that is slow as a whole would only become slower by it.
const PATIENCE_ROUNDS: u32 = 4;

/// The rules of the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) mode: Mode,
    pub(super) max_batch: usize,
    pub(super) max_wait: Duration,
    /// How long a question may take in all.
    pub(super) deadline: Duration,
    /// Questions that may be open; one more is refused.
    pub(super) questions: usize,
}

/// A question that waits for a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) origin: u16,
    pub(super) id: Option<QueryId>,
    pub(super) asked: Instant,
}

/// The subscriber and realm that secrets are wanted for.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Subject {
    /// As in the credentials: with `@` and a domain, or without.
    pub(super) username: Box<[u8]>,
    /// How much of that is the user's name.
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

/// Names a flight; outlived ones name nothing.
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
    /// In the queue.
    queued: bool,
    /// Batches under way that it is in.
    carried: u8,
    /// When it was sent last.
    sent: Option<Instant>,
    /// It was asked once more while the first connection was silent.
    asked_again: bool,
    /// Times that it was under way when a connection ended; the last that counted.
    lost: u8,
    lost_at: Option<Instant>,
    /// The database refused it together with others: it goes by itself.
    alone: bool,
    /// The changes of the table before it was sent, by the earliest batch under way that it is in.
    epoch: u64,
}

impl Flight {
    /// Whether each result that the flight may get is read after change `epoch`, so that a question
    /// may join it. A flight that is asked again may get the result of its first connection.
    const fn is_as_new_as(&self, epoch: u64) -> bool {
        (self.queued && self.carried == 0) || self.epoch == epoch
    }
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    flight: Option<Flight>,
}

/// A flight that has come to its end.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) subject: Arc<Subject>,
    pub(super) waiters: Vec<Waiter>,
}

/// Flights that travel together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) flights: Vec<(FlightId, Arc<Subject>)>,
    /// When the first of them was asked for.
    pub(super) oldest: Instant,
    /// When they left the queue.
    pub(super) sent: Instant,
    /// When an answer that has not come comes no more: counted from the sending, so that a long
    /// queue is not taken for a silent database.
    pub(super) deadline: Instant,
    /// How many of them another connection carries, too.
    pub(super) again: usize,
    /// Taken from the queue too late to be answered in time.
    pub(super) too_late: Vec<Ended>,
}

/// How a question was taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// It waits; `wake`: a connection should look.
    Queued { wake: bool },
    /// A question of the same subject is under way: it joined that.
    Joined,
}

/// Why a question was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Too many wait.
    Full,
    /// The database is given up for now.
    Broken,
    /// The store has ended.
    Closed,
}

/// What a connection is to do.
#[derive(Debug)]
pub(super) enum Take {
    Batch(Batch),
    /// Nothing yet; at the time given, look again.
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
    /// Of those in `queue`, how many live.
    queued: usize,
    /// All flights, oldest first; ended ones too, until their time has come.
    by_age: VecDeque<(Instant, FlightId)>,
    /// Flights in the order in which they were sent; others too, until their time has come.
    by_sending: VecDeque<(Instant, FlightId)>,
    /// When the last flight was sent that was asked again: of each batch sent before, the same is true.
    asked_again_up_to: Option<Instant>,
    /// When the newest batch was sent that was answered.
    answered_up_to: Option<Instant>,
    questions: usize,
    sessions: usize,
    breaker: Breaker,
    probing: bool,
    closed: bool,
    last_sent: Option<Instant>,
    /// How long a batch takes, smoothed.
    round: Duration,
    /// A connection looks again at this time.
    clock: Option<Instant>,
    /// Counts changes of the table.
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
            clock: None,
            epoch: 0,
        }
    }

    /// A question. Refused ones leave no trace.
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
            asked_again: false,
            lost: 0,
            lost_at: None,
            alone: false,
            epoch: self.epoch,
        });
        self.queue.push_back(id);
        self.queued += 1;
        // Of one deadline they come in order; a shorter one waits for those before it.
        self.by_age.push_back((deadline, id));
        Ok(Asked::Queued {
            wake: self.queued >= self.rules.max_batch || self.clock.is_none_or(|at| at < now),
        })
    }

    /// What a connection does next; `busy`: it has a batch under way.
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
        // What came too late probes nothing.
        self.probing = self.breaker.state() == State::HalfOpen && !batch.flights.is_empty();
        Take::Batch(batch)
    }

    /// When the next batch goes, for the connections to be in use in turn. Were each sent as soon as
    /// one is idle, a burst would send them all with a question or two each, and they would come
    /// back together and go together from then on, while others wait a whole round trip.
    fn next_turn(&self) -> Option<Instant> {
        let connections = u32::try_from(self.sessions).unwrap_or(u32::MAX);
        let gap = self.round.checked_div(connections)?;
        (connections > 1 && gap >= LEAST_GAP).then_some(self.last_sent? + gap)
    }

    /// Takes a batch from the front of the queue, which holds a live flight. It may turn out empty,
    /// with all of them too late.
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
        // Some rounds are longer than others.
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
            // A flight that has waited most of its time goes only if its result can come in time: under
            // overload, a look-up must be of use to a waiter. A new flight always goes, or else it would
            // never be seen that the database has become faster.
            let left = flight.deadline.saturating_duration_since(now);
            let waited = now.saturating_duration_since(flight.asked);
            let is_late = left < round && waited > left;
            let alone = flight.alone;
            // The connection that carries it may yet answer.
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

    /// A flight has its answer, or will get none. `None`: its time was over before.
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

    /// Puts the flights of a batch back to the front of the queue after its connection, made at `made`, has
    /// ended. Those that were put back too often are given up: appended to `given_up`.
    pub(super) fn put_back(&mut self, now: Instant, made: Instant, batch: &Batch, given_up: &mut Vec<Ended>) {
        self.probing = false;
        for (id, _) in batch.flights.iter().rev() {
            let Some(flight) = self.live_mut(*id) else {
                continue;
            };
            flight.carried -= 1;
            if flight.lost_at.is_none_or(|before| made > before) {
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

    /// Puts the flights of a batch that the database refused back to the front of the queue, each to
    /// go by itself: one of them may be what it refused. One that went by itself is given up.
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

    /// The table has changed: flights under way may be of before, and no question joins them any more.
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

    /// When [`Batcher::expire`] has something to do, should nothing be answered.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.by_age.front().map(|(deadline, _)| *deadline)
    }

    /// How long a connection may be silent before what it carries is asked once more.
    pub(super) fn patience(&self) -> Duration {
        (self.rules.deadline / PATIENCE).max(self.round * PATIENCE_ROUNDS)
    }

    /// Whether a connection is silent if its oldest batch under way was sent at `sent`. It reads the same
    /// clock as [`Batcher::ask_again`], so that it does not take itself what is asked again because of it.
    pub(super) fn is_silent(&self, now: Instant, sent: Instant) -> bool {
        // Patience may have grown since.
        self.was_asked_again(sent) || now.saturating_duration_since(sent) >= self.patience()
    }

    /// Whether flights that were sent at `sent` were asked again.
    pub(super) fn was_asked_again(&self, sent: Instant) -> bool {
        self.asked_again_up_to.is_some_and(|last| sent <= last)
    }

    /// Puts flights that were sent too long ago to the front of the queue, once each; how many. While no other
    /// connection is up, or it is not certain that the database is, there is no use in that: they stay for later.
    pub(super) fn ask_again(&mut self, now: Instant) -> usize {
        let patience = self.patience();
        let is_of_use = self.sessions > 1 && self.breaker.state() == State::Closed;
        let mut again = Vec::new();
        while let Some((sent, id)) = self.by_sending.front().copied() {
            let flight = self.live_mut(id).filter(|flight| {
                // One that was sent again since has a later entry.
                flight.sent == Some(sent) && !flight.queued && !flight.asked_again
            });
            if let Some(flight) = flight {
                // Bounded meanwhile: a live flight expires.
                if !is_of_use || now.saturating_duration_since(sent) < patience {
                    break;
                }
                flight.asked_again = true;
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

    /// A batch that was sent at `sent` was answered, on time or late.
    pub(super) fn answered(&mut self, sent: Instant) {
        self.answered_up_to = self.answered_up_to.max(Some(sent));
    }

    /// A batch that was sent at `sent` was not answered in time. The database is at fault unless it has answered a
    /// newer one: then the connection is.
    pub(super) fn unanswered(&mut self, now: Instant, sent: Instant, given_up: &mut Vec<Ended>) {
        if self.answered_up_to.is_none_or(|newest| newest <= sent) {
            self.failed(now, Failure::Batch, given_up);
        }
    }

    /// A batch was answered, after `round`.
    pub(super) fn succeeded(&mut self, round: Duration) {
        self.round = if self.round.is_zero() {
            round
        } else {
            self.round - self.round / 8 + round / 8
        };
        self.answers();
    }

    /// The database answers.
    pub(super) fn answers(&mut self) {
        self.probing = false;
        self.breaker.succeeded();
    }

    /// The database failed; gives up what waits if it is given up by that.
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

    /// A connection came up or ended.
    pub(super) fn set_sessions(&mut self, sessions: usize) {
        self.sessions = sessions;
    }

    /// How long questions may take from now on.
    pub(super) fn set_deadline(&mut self, deadline: Duration) {
        self.rules.deadline = deadline;
    }

    /// No question is taken from now on.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Flights that wait for a connection.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Flights under way.
    pub(super) fn under_way(&self) -> usize {
        self.index.len() - self.queued
    }

    /// Questions that wait for an answer.
    pub(super) fn questions(&self) -> usize {
        self.questions
    }

    /// Connections that are up.
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

    /// When the first flight of the queue was asked for.
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
