//! The connections of a store. Each is a loop: connect, take a batch, send it, deliver the results, repeat.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::hash::{BuildHasher as _, RandomState};
use std::mem;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::{Join, Ready, join, join_all, ready};
use futures_util::stream::FuturesUnordered;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use sip_core::query::Secrets;
use tokio::select;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{sleep, sleep_until, timeout, timeout_at};

use super::Inner;
use super::batcher::{Batch, Ended, Subject, Take};
use super::breaker::Failure;
use crate::subscribers::cache::Moment;
use crate::subscribers::database::{Database, DbError, RowKey, Session};

/// Longest wait for the response to a probe of a connection.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Shortest and longest pause before another attempt to connect.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Longest pause while other connections are up.
const BACKOFF_BESIDE: Duration = Duration::from_secs(15);
/// Number of connections that try again while none is up; the others follow once one is.
const PIONEERS: usize = 8;
/// Most connections that are opened at the same time.
const CONNECTING: usize = 16;
/// Idle time after which a connection is probed, so that a batch does not find it dead: servers and firewalls
/// end idle connections.
const PROBE_IDLE: Duration = Duration::from_secs(15);
/// Shortest interval between checks of deadlines.
const EXPIRE_EVERY: Duration = Duration::from_millis(10);
/// Number of checks for silent connections within their patience.
const LOOKS: u32 = 8;

/// State of the table that all connections share.
#[derive(Debug, Default)]
struct Watch {
    /// Whether a connection looks for changes.
    taken: Cell<bool>,
    mark: RefCell<Option<String>>,
    /// Notified when no connection looks for changes any more.
    free: Notify,
    /// Whether the warning that changes cannot be seen was logged.
    warned: Cell<bool>,
}

/// The reason why a connection is no longer used.
#[derive(Debug)]
enum End {
    Closed,
    Failed,
}

/// The cause of the end of a connection with batches under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// The database refused a batch. A database that refuses responds, so the batches behind have results of
    /// their own.
    Refused,
    /// A batch got no response in time.
    Silent,
    /// The connection broke, or reading the table's mark failed.
    Broken,
}

/// Runs until the store is closed and every question has a result.
pub(super) async fn run<D: Database>(inner: &Inner, database: &D, connections: usize) {
    let watch = Watch::default();
    let connecting = Semaphore::new(CONNECTING);
    let all = join_all((0..connections).map(|number| keep(inner, database, &watch, &connecting, number)));
    select! {
        _ = all => {}
        () = expire(inner) => {}
    }
}

/// Ends overdue questions, and sends the questions of silent connections again; never returns.
async fn expire(inner: &Inner) {
    loop {
        let mut ended = Vec::new();
        let (next, again) = {
            let now = Instant::now();
            let mut batcher = inner.batcher.lock();
            batcher.expire(now, &mut ended);
            let again = batcher.ask_again(now);
            let look = now + batcher.patience() / LOOKS;
            (batcher.next_deadline().map(|next| next.min(look)), again)
        };
        inner.expired(ended);
        if again > 0 {
            inner.wake();
        }
        match next {
            Some(next) => sleep_until(next.max(Instant::now() + EXPIRE_EVERY).into()).await,
            None => inner.ageing.notified().await,
        }
    }
}

/// Connects, when it is this connection's turn. `None` if the store is closed and no question waits.
async fn connect<D: Database>(
    inner: &Inner,
    database: &D,
    connecting: &Semaphore,
) -> Option<Result<D::Session, DbError>> {
    let mut closed = inner.closed.subscribe();
    let _turn = connecting.acquire().await;
    let mut connected = pin!(database.connect(inner.largest_batch()));
    select! {
        connected = &mut connected => return Some(connected),
        _ = closed.wait_for(|closed| *closed) => {}
    }
    let waiting = inner.batcher.lock().queued();
    if waiting == 0 {
        return None;
    }
    Some(connected.await)
}

/// Keeps one connection open.
async fn keep<D: Database>(
    inner: &Inner,
    database: &D,
    watch: &Watch,
    connecting: &Semaphore,
    number: usize,
) {
    let mut closed = inner.closed.subscribe();
    let jitter = RandomState::new();
    let (mut pause, mut attempts) = (BACKOFF.0, 0_u64);
    while !*closed.borrow() || inner.batcher.lock().queued() > 0 {
        let begun = Instant::now();
        let Some(connected) = connect(inner, database, connecting).await else {
            return;
        };
        match connected {
            Ok(session) => {
                inner.up(1);
                let useful = Cell::new(false);
                let open = Open {
                    session,
                    begun,
                    useful,
                };
                let end = serve::<D>(inner, &open, watch).await;
                inner.up(-1);
                // Perhaps this connection was to look at the queue again.
                inner.wake();
                if matches!(end, End::Closed) {
                    return;
                }
                if open.useful.get() {
                    pause = BACKOFF.0;
                    continue;
                }
            }
            Err(error) => {
                inner.note(&error);
                inner.failed(Failure::Connect { begun });
                if *closed.borrow() {
                    return;
                }
            }
        }
        attempts += 1;
        let up = inner.batcher.lock().sessions();
        if up == 0 && number >= PIONEERS {
            // The first few connections find out for all of them whether the database is back.
            select! {
                () = inner.revived.notified() => {}
                () = sleep(BACKOFF_BESIDE) => {}
                _ = closed.wait_for(|closed| *closed) => {}
            }
            continue;
        }
        // Between half of the pause and all of it, so that connections do not return together.
        let share = jitter.hash_one(attempts) % 512;
        let this = pause.mul_f64(0.5 + share as f64 / 1024.0);
        select! {
            () = sleep(this) => {}
            _ = closed.wait_for(|closed| *closed) => {}
        }
        // If other connections are up, this one probably exceeds the server's limit.
        let longest = if up == 0 { BACKOFF.1 } else { BACKOFF_BESIDE };
        pause = (pause * 2).min(longest);
    }
}

/// An open connection.
struct Open<S> {
    session: S,
    /// The time at which its opening began.
    begun: Instant,
    /// Whether it has carried a batch.
    useful: Cell<bool>,
}

/// Uses a connection until it fails or the store is closed.
async fn serve<D: Database>(inner: &Inner, open: &Open<D::Session>, watch: &Watch) -> End {
    let mut closed = inner.closed.subscribe();
    let mut under_way = UnderWay::new();
    let mut watching = None;
    let mut every = PROBE_IDLE;
    let mut look_at = Instant::now() + every;
    let mut has_turn = false;
    loop {
        if watching.is_none() {
            watching = Watching::begin(inner, watch);
            if watching.is_some() {
                every = D::WATCH_EVERY;
                look_at = Instant::now();
            }
        }
        let idle = under_way.is_empty();
        let is_silent = under_way.is_silent(inner);
        if mem::take(&mut has_turn) && is_silent {
            // This connection takes nothing, so another one must look at the queue.
            inner.wake();
        }
        let may_take = under_way.len() < D::DEPTH && !is_silent;
        if may_take && Instant::now() >= look_at {
            look_at = Instant::now() + every;
            if let Some(until) = rests_until(inner) {
                look_at = until;
            } else {
                let looking = look(inner, &open.session, watch, watching.is_some());
                if let Err(cut) = beside(&mut under_way, looking).await {
                    return under_way.end(cut).await;
                }
            }
        }
        let until = match inner.offer(may_take, !under_way.is_empty()) {
            Take::Batch(batch) if batch.flights.is_empty() => continue,
            Take::Batch(batch) => {
                open.useful.set(true);
                if watching.is_none() {
                    look_at = Instant::now() + every;
                }
                let (sent, lost) = (batch.sent, under_way.lost.subscribe());
                under_way.push(sent, send(inner, open, batch, lost));
                continue;
            }
            Take::Closed if idle => {
                inner.idle.notify_waiters();
                inner.busy.notify_waiters();
                return End::Closed;
            }
            Take::Closed => None,
            Take::Wait(until) => {
                has_turn = until.is_some();
                until
            }
        };
        select! {
            biased;
            Some(sent) = under_way.next(), if !idle => if let Err(cut) = sent {
                return under_way.end(cut).await;
            },
            () = woken(inner, idle), if may_take => has_turn = true,
            () = at(until) => {}
            () = watch.free.notified(), if watching.is_none() => {}
            _ = closed.wait_for(|closed| *closed), if !*inner.closed.borrow() => {}
            () = sleep_until(look_at.into()), if may_take => {}
        }
    }
}

/// Until when no connection reads the table's mark; `None` if they read it.
fn rests_until(inner: &Inner) -> Option<Instant> {
    if inner.batcher.lock().queued() > 0 {
        // This connection may have been the one to take the queued question.
        inner.wake();
    }
    // A change empties the cache, so the mark is not read before its subscribers can be looked up again.
    inner.batcher.lock().breaker().rests_until(Instant::now())
}

/// The batches under way on a connection.
struct UnderWay<F: Future> {
    batches: FuturesUnordered<Join<Ready<Instant>, F>>,
    /// The time at which each batch was sent.
    sent: Vec<Instant>,
    /// The reason why the batches still under way get no results.
    lost: watch::Sender<Option<Cut>>,
}

impl<F: Future<Output = Result<(), Cut>>> UnderWay<F> {
    fn new() -> Self {
        Self {
            batches: FuturesUnordered::new(),
            sent: Vec::new(),
            lost: watch::Sender::new(None),
        }
    }

    fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    fn len(&self) -> usize {
        self.sent.len()
    }

    fn push(&mut self, sent: Instant, batch: F) {
        self.sent.push(sent);
        self.batches.push(join(ready(sent), batch));
    }

    /// The next result of a batch; `None` if none is under way.
    async fn next(&mut self) -> Option<Result<(), Cut>> {
        let (sent, result) = self.batches.next().await?;
        if let Some(at) = self.sent.iter().position(|at| *at == sent) {
            self.sent.remove(at);
        }
        Some(result)
    }

    /// Whether the oldest batch has had no result for so long that the connection takes no more.
    fn is_silent(&self, inner: &Inner) -> bool {
        let oldest = self.sent.iter().min();
        oldest.is_some_and(|sent| inner.batcher.lock().is_silent(Instant::now(), *sent))
    }

    /// Ends the batches under way. Behind a refusal each has its own result; otherwise all return to the
    /// queue.
    async fn end(mut self, cut: Cut) -> End {
        let mut next = Some(Err(cut));
        while let Some(sent) = next {
            if let Err(cut @ (Cut::Silent | Cut::Broken)) = sent {
                self.lost.send_replace(Some(cut));
            }
            next = self.next().await;
        }
        End::Failed
    }
}

/// Waits for `this` while batches under way continue. Fails if `this` or a batch fails.
async fn beside(
    under_way: &mut UnderWay<impl Future<Output = Result<(), Cut>>>,
    this: impl Future<Output = Result<(), Cut>>,
) -> Result<(), Cut> {
    let mut this = pin!(this);
    loop {
        select! {
            biased;
            Some(sent) = under_way.next(), if !under_way.is_empty() => sent?,
            done = &mut this => return done,
        }
    }
}

async fn woken(inner: &Inner, idle: bool) {
    if idle {
        inner.idle.notified().await;
    } else {
        inner.busy.notified().await;
    }
}

async fn at(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until.into()).await,
        None => pending().await,
    }
}

/// The duty of looking for changes, held by one connection.
struct Watching<'a>(&'a Watch);

impl<'a> Watching<'a> {
    fn begin(inner: &Inner, watch: &'a Watch) -> Option<Self> {
        // Without a cache there is nothing to forget.
        if inner.cache.is_kept() {
            Self::take(watch)
        } else {
            None
        }
    }

    fn take(watch: &'a Watch) -> Option<Self> {
        // Not `then_some`: a value made and dropped would release the duty of the connection that holds it.
        (!watch.taken.replace(true)).then(|| Self(watch))
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.taken.set(false);
        self.0.free.notify_one();
    }
}

/// Probes the connection, and checks whether the table was changed.
async fn look(inner: &Inner, session: &impl Session, watch: &Watch, watching: bool) -> Result<(), Cut> {
    let mark = timeout(
        PROBE_TIMEOUT.min(inner.options.deadline.max(Duration::from_secs(1))),
        session.mark(),
    )
    .await
    .unwrap_or_else(|_| Err(DbError::lost("an idle connection does not respond")));
    match mark {
        Ok(_) if !watching => Ok(()),
        Ok(mark) => {
            if mark.is_none() && !watch.warned.replace(true) {
                tracing::warn!(
                    store = &*inner.store,
                    "this database reports no changes of the table: a change takes effect when cached entries end (credentials.cache_ttl_s) or are dropped by command"
                );
            }
            // A server that gave a mark and gives none now was restarted, and has lost its record of earlier
            // changes.
            let before = watch.mark.replace(mark);
            if before != *watch.mark.borrow() {
                inner.changed();
            }
            Ok(())
        }
        Err(error) => {
            inner.note(&error);
            Err(Cut::Broken)
        }
    }
}

/// Sends one batch on a connection, and delivers its results. Once `lost` is set, the batch
/// fails as if the connection had ended.
async fn send(
    inner: &Inner,
    open: &Open<impl Session>,
    batch: Batch,
    mut lost: watch::Receiver<Option<Cut>>,
) -> Result<(), Cut> {
    let begun = Instant::now();
    inner.stats.sent(begun - batch.oldest, batch.flights.len());
    // Rows read from now on are at least as new as this moment.
    let moment = inner.cache.moment();
    let subjects: Vec<&Subject> = batch.flights.iter().map(|(_, subject)| &**subject).collect();
    let mut found: Vec<Option<Secrets>> = vec![None; subjects.len()];
    let fetching = timeout_at(
        batch.deadline.into(),
        fetch(inner, &open.session, &subjects, &mut found),
    );
    let fetched = select! {
        biased;
        fetched = fetching => fetched.unwrap_or(Err(DbError::Silent)),
        _ = lost.wait_for(Option::is_some) => Err(DbError::lost("the connection was given up")),
    };
    let error = match fetched {
        Ok(()) => {
            let round = begun.elapsed();
            inner.finish(&batch, found, moment, round);
            return Ok(());
        }
        Err(error) => error,
    };
    let before = *lost.borrow();
    if let Some(cut) = before {
        inner.lost_behind(open.begun, &batch, cut);
        return Err(cut);
    }
    inner.note(&error);
    match inner.batch_failed(open.begun, &batch, &error) {
        None => Ok(()),
        Some(cut) => Err(cut),
    }
}

impl Inner {
    /// Handles a failed batch: returns its look-ups to the queue or gives them up. `None` if the connection
    /// continues.
    fn batch_failed(&self, opened: Instant, batch: &Batch, error: &DbError) -> Option<Cut> {
        let mut given_up = Vec::new();
        let now = Instant::now();
        let cut = {
            let mut batcher = self.batcher.lock();
            match error {
                // One question may be the cause; the connection is as good as before.
                DbError::Unfit(_) => {
                    batcher.separate(batch, &mut given_up);
                    None
                }
                DbError::Silent => {
                    given_up.extend(batch.flights.iter().filter_map(|(id, _)| batcher.settle(*id)));
                    batcher.unanswered(now, batch.sent, &mut given_up);
                    Some(Cut::Silent)
                }
                DbError::Lost(_) => {
                    batcher.put_back(now, opened, batch, &mut given_up);
                    Some(Cut::Broken)
                }
                DbError::Refused(_) | DbError::NoTable { .. } | DbError::NoColumn { .. } => {
                    batcher.put_back(now, opened, batch, &mut given_up);
                    if !given_up.is_empty() {
                        batcher.failed(now, Failure::Batch, &mut given_up);
                    }
                    Some(Cut::Refused)
                }
            }
        };
        self.fail(given_up);
        if cut.is_some() {
            self.stats.lost.inc();
            self.wake();
        }
        cut
    }
}

/// Fetches the rows of all subjects, and writes their secrets to the places of the subjects.
async fn fetch(
    inner: &Inner,
    session: &impl Session,
    subjects: &[&Subject],
    found: &mut [Option<Secrets>],
) -> Result<(), DbError> {
    let mut keys: Vec<RowKey<'_>> = Vec::with_capacity(subjects.len());
    // The first subject of a key, and for each subject the next one with the same key.
    let mut first: HashMap<(&[u8], &[u8]), usize> = HashMap::with_capacity(subjects.len());
    let mut next: Vec<Option<usize>> = vec![None; subjects.len()];
    for (at, subject) in subjects.iter().enumerate() {
        let (user, domain) = (subject.user(), &*subject.domain);
        // A name that is not text is in no table.
        let (Ok(user_text), Ok(domain_text)) = (std::str::from_utf8(user), std::str::from_utf8(domain))
        else {
            continue;
        };
        match first.entry((user, domain)) {
            Entry::Vacant(entry) => {
                entry.insert(at);
                keys.push((user_text, domain_text));
            }
            Entry::Occupied(mut entry) => {
                let before = entry.insert(at);
                if let Some(next) = next.get_mut(at) {
                    *next = Some(before);
                }
            }
        }
    }
    if keys.is_empty() {
        return Ok(());
    }
    session
        .fetch(&keys, &mut |row| {
            let domain = row.domain.to_ascii_lowercase();
            let mut of = first.get(&(row.user, &*domain)).copied();
            while let Some(at) = of {
                if let (Some(subject), Some(place)) = (subjects.get(at), found.get_mut(at)) {
                    let secrets = || {
                        inner
                            .reader
                            .read(&row, &subject.username, subject.is_full(), &subject.realm)
                    };
                    place.get_or_insert_with(secrets);
                }
                of = next.get(at).copied().flatten();
            }
        })
        .await
}

impl Inner {
    /// The next task of a connection.
    fn offer(&self, may_take: bool, busy: bool) -> Take {
        if !may_take {
            return Take::Wait(None);
        }
        let mut ended = Vec::new();
        let (mut offer, more) = {
            let now = Instant::now();
            let mut batcher = self.batcher.lock();
            // No worker waits for the expired ones any more.
            batcher.expire(now, &mut ended);
            let offer = batcher.take(now, busy);
            (offer, batcher.queued() > 0)
        };
        if let Take::Batch(batch) = &mut offer {
            ended.append(&mut batch.too_late);
            self.stats.again.add(batch.again as u64);
        }
        self.expired(ended);
        if more && matches!(offer, Take::Batch(_)) {
            // Other connections need not wait for this one.
            self.wake();
        }
        offer
    }

    /// Gives the waiters of expired flights their result.
    fn expired(&self, ended: Vec<Ended>) {
        if ended.is_empty() {
            return;
        }
        self.stats.timed_out.add(ended.len() as u64);
        self.fail(ended);
        if *self.closed.borrow() {
            // The queue may be empty now.
            self.idle.notify_waiters();
            self.busy.notify_waiters();
        }
    }

    /// Handles a batch without a result because an earlier one on the same connection got none. The failure
    /// itself was noted before. Each batch without a response in time counts for the breaker.
    fn lost_behind(&self, opened: Instant, batch: &Batch, cut: Cut) {
        let mut given_up = Vec::new();
        {
            let now = Instant::now();
            let mut batcher = self.batcher.lock();
            batcher.put_back(now, opened, batch, &mut given_up);
            if cut == Cut::Silent {
                batcher.unanswered(now, batch.sent, &mut given_up);
            }
        }
        self.fail(given_up);
        self.stats.lost.inc();
        self.wake();
    }

    /// Counts a connection that came up, or ended.
    fn up(&self, by: isize) {
        let mut batcher = self.batcher.lock();
        let sessions = batcher.sessions().saturating_add_signed(by);
        batcher.set_sessions(sessions);
        drop(batcher);
        if by > 0 {
            self.stats.connected.inc();
            self.revived.notify_waiters();
        }
    }

    fn failed(&self, failure: Failure) {
        let mut given_up = Vec::new();
        self.batcher.lock().failed(Instant::now(), failure, &mut given_up);
        self.fail(given_up);
    }

    /// Delivers the results of a batch.
    fn finish(&self, batch: &Batch, found: Vec<Option<Secrets>>, moment: Moment, round: Duration) {
        let mut ended = Vec::with_capacity(batch.flights.len());
        {
            let mut batcher = self.batcher.lock();
            batcher.answered(batch.sent);
            ended.extend(batch.flights.iter().map(|(id, _)| batcher.settle(*id)));
            // The time of a connection that was stopped is no measure of the database's. That all results are
            // too late because the database is slow is one.
            if ended.iter().all(Option::is_none) && batcher.was_asked_again(batch.sent) {
                batcher.answers();
            } else {
                batcher.succeeded(Instant::now(), round);
                self.stats.carried(round, batch.flights.len());
            }
        }
        self.note_response();
        for (((_, subject), secrets), ended) in batch.flights.iter().zip(found).zip(ended) {
            if self.cache.is_kept() {
                let Subject {
                    username,
                    domain,
                    realm,
                    ..
                } = &**subject;
                self.cache
                    .keep((username, domain, realm), moment, secrets.clone());
            }
            if let Some(ended) = ended {
                self.answer(ended, &secrets);
            }
        }
        self.sink.flush();
    }
}

#[cfg(test)]
mod tests;
