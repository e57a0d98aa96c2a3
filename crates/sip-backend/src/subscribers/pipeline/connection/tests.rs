//! Tests of connections to a scripted database.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt as _;
use sip_core::id::QueryId;
use sip_core::query::QueryResult;
use tokio::sync::oneshot;
use tokio::task::yield_now;

use super::*;
use crate::ResultSink;
use crate::subscribers::database::small_runtime;
use crate::subscribers::pipeline::breaker::State;
use crate::subscribers::pipeline::{LookupOptions, Mode};
use crate::subscribers::secrets::Row;
use crate::subscribers::{CredentialCache, CredentialQuery, TableOptions};

/// A time longer than any test.
const LONG: Duration = Duration::from_secs(1000);

struct Scripted;

/// A connection that returns the results that the test sends for its batches.
struct ScriptedSession {
    results: RefCell<VecDeque<oneshot::Receiver<Result<(), DbError>>>>,
    fetches: Cell<usize>,
}

impl Database for Scripted {
    type Session = ScriptedSession;

    const WATCH_EVERY: Duration = LONG;
    const DEPTH: usize = 6;

    async fn connect(&self, _: usize) -> Result<ScriptedSession, DbError> {
        pending().await
    }
}

impl Session for ScriptedSession {
    async fn fetch(&self, _: &[RowKey<'_>], _: &mut dyn FnMut(Row<'_>)) -> Result<(), DbError> {
        self.fetches.set(self.fetches.get() + 1);
        let result = self.results.borrow_mut().pop_front().expect("another batch");
        result.await.expect("the test goes on")
    }

    async fn mark(&self) -> Result<Option<String>, DbError> {
        Ok(None)
    }
}

/// Senders of the results of a connection's batches, the first one first.
type Results = VecDeque<oneshot::Sender<Result<(), DbError>>>;

fn session() -> (Open<ScriptedSession>, Results) {
    let (results, receivers) = (0..9).map(|_| oneshot::channel()).unzip();
    let session = ScriptedSession {
        results: RefCell::new(receivers),
        fetches: Cell::new(0),
    };
    let (begun, useful) = (Instant::now(), Cell::new(false));
    let open = Open {
        session,
        begun,
        useful,
    };
    (open, results)
}

#[derive(Debug)]
struct Unheard;

impl ResultSink for Unheard {
    fn deliver(&self, _: u16, _: QueryId, _: QueryResult) {}
}

/// A store with two connections up and questions for `questions` users.
fn store(mode: Mode, questions: usize) -> Inner {
    let options = LookupOptions {
        mode,
        max_wait: LONG,
        deadline: LONG,
        ..LookupOptions::default()
    };
    let cache = Arc::new(CredentialCache::new(0, LONG, LONG));
    let inner = Inner::new(&TableOptions::sqlite("none"), options, cache, Arc::new(Unheard));
    inner.batcher.lock().set_sessions(2);
    for user in 0..questions {
        ask(&inner, user);
    }
    inner
}

fn ask(inner: &Inner, user: usize) {
    let query = CredentialQuery {
        origin: 0,
        id: None,
        username: format!("user{user}").into_bytes().into(),
        user_len: format!("user{user}").len(),
        domain: b"d"[..].into(),
        realm: b"r"[..].into(),
    };
    inner.batcher.lock().ask(Instant::now(), query).expect("room");
}

/// Makes all questions under way so old that they are sent again. Returns their number.
fn ask_again(inner: &Inner) -> usize {
    inner.batcher.lock().ask_again(Instant::now() + LONG * 6 / 10)
}

/// Runs a connection as far as it can go now.
async fn go_on(mut connection: Pin<&mut impl Future<Output = End>>) {
    for _ in 0..20 {
        select! {
            biased;
            _ = &mut connection => panic!("the connection has ended"),
            () = yield_now() => {}
        }
    }
}

fn run(test: impl Future<Output = ()>) {
    small_runtime().expect("a runtime").block_on(test);
}

#[test]
fn one_connection_watches_and_another_when_it_has_gone() {
    let watch = Watch::default();
    let first = Watching::take(&watch);
    assert!(first.is_some());
    for _ in 0..3 {
        assert!(Watching::take(&watch).is_none(), "one has the duty");
    }
    drop(first);
    assert!(Watching::take(&watch).is_some());
}

/// The first of two batches gets a response, and the second none.
#[test]
fn a_silent_connection_does_not_take_what_is_asked_again_because_of_it() {
    run(async {
        let (inner, (session, mut results)) = (store(Mode::Single, 2), session());
        let watch = Watch::default();
        let mut connection = pin!(serve::<Scripted>(&inner, &session, &watch));
        go_on(connection.as_mut()).await;
        results.pop_front().unwrap().send(Ok(())).unwrap();
        go_on(connection.as_mut()).await;
        assert_eq!((session.session.fetches.get(), ask_again(&inner)), (2, 1));
        inner.wake();
        go_on(connection.as_mut()).await;
        assert_eq!(session.session.fetches.get(), 2, "it carries that already");
        assert!(
            inner.busy.notified().now_or_never().is_some(),
            "another may take it"
        );
        assert_eq!(inner.batcher.lock().queued(), 1);
    });
}

fn last_error(inner: &Inner) -> String {
    inner.last_error.lock().clone().expect("an error")
}

#[test]
fn batches_behind_a_refusal_have_results_of_their_own() {
    run(async {
        let (inner, (session, mut results)) = (store(Mode::Single, 3), session());
        let watch = Watch::default();
        let mut connection = pin!(serve::<Scripted>(&inner, &session, &watch));
        go_on(connection.as_mut()).await;
        let mut answer = |result| results.pop_front().unwrap().send(result).unwrap();
        answer(Err(DbError::refused("no rights")));
        go_on(connection.as_mut()).await;
        assert_eq!(
            (session.session.fetches.get(), inner.batcher.lock().queued()),
            (3, 1)
        );
        answer(Ok(()));
        go_on(connection.as_mut()).await;
        assert_eq!(inner.batcher.lock().questions(), 2, "the second is answered");
        answer(Ok(()));
        assert!(matches!(connection.await, End::Failed));
        assert_eq!(inner.batcher.lock().questions(), 1);
        assert_eq!(
            (last_error(&inner).as_str(), inner.stats.errors.get()),
            ("no rights", 1)
        );
    });
}

/// All connections end at once, and some of them were only being opened: each looks well until it is used.
#[test]
fn a_question_survives_connections_whose_opening_began_before_its_first_was_lost() {
    run(async {
        let inner = store(Mode::Single, 1);
        let opened = Instant::now();
        for number in 0..5 {
            lose_one(&inner, Some(opened)).await;
            assert_eq!(inner.batcher.lock().queued(), 1, "after {number}");
        }
        // Those that were opened since are ended by the question itself.
        for (left, number) in [(1, 1), (0, 2)] {
            lose_one(&inner, None).await;
            assert_eq!(inner.batcher.lock().queued(), left, "after {number} more");
        }
    });
}

/// A connection that takes what waits and is lost with it. `begun`: when its opening began, otherwise now.
async fn lose_one(inner: &Inner, begun: Option<Instant>) {
    let (watch, (mut open, mut results)) = (Watch::default(), session());
    open.begun = begun.unwrap_or(open.begun);
    let mut connection = Box::pin(serve::<Scripted>(inner, &open, &watch));
    go_on(connection.as_mut()).await;
    let result = results.pop_front().unwrap();
    result.send(Err(DbError::lost("closed"))).unwrap();
    assert!(matches!(connection.await, End::Failed));
}

/// A connection that carries six batches, of which the first `ended` end with `error`.
async fn failed_with_six(ended: usize, error: fn() -> DbError) -> Inner {
    let (inner, (session, mut results)) = (store(Mode::Single, 6), session());
    let watch = Watch::default();
    let mut connection = Box::pin(serve::<Scripted>(&inner, &session, &watch));
    go_on(connection.as_mut()).await;
    for result in results.drain(..ended) {
        result.send(Err(error())).unwrap();
    }
    assert!(matches!(connection.await, End::Failed));
    assert_eq!((session.session.fetches.get(), inner.stats.lost.get()), (6, 6));
    inner
}

#[test]
fn one_connection_that_breaks_is_one_error() {
    run(async {
        for ended in [1, 6] {
            let inner = failed_with_six(ended, || DbError::lost("reset")).await;
            assert_eq!(
                (last_error(&inner).as_str(), inner.stats.errors.get()),
                ("reset", 1)
            );
            let batcher = inner.batcher.lock();
            assert_eq!((batcher.queued(), batcher.breaker().state()), (6, State::Closed));
        }
    });
}

#[test]
fn batches_behind_silence_count_for_the_breaker() {
    run(async {
        let inner = failed_with_six(1, || DbError::Silent).await;
        assert_eq!(inner.stats.errors.get(), 1);
        let batcher = inner.batcher.lock();
        assert!(matches!(batcher.breaker().state(), State::Open { .. }));
        assert_eq!(batcher.questions(), 0, "answered without the database");
    });
}

/// The database has responded to a batch sent after those on two silent connections. So the connections are
/// at fault, not the database.
#[test]
fn silent_connections_beside_an_answer_leave_the_breaker_closed() {
    let inner = store(Mode::Single, 9);
    let take = || match inner.offer(true, false) {
        Take::Batch(batch) => batch,
        Take::Wait(_) | Take::Closed => panic!("questions wait"),
    };
    let silent: Vec<Batch> = (0..8).map(|_| take()).collect();
    let moment = inner.cache.moment();
    inner.finish(&take(), vec![None], moment, Duration::from_millis(1));
    for batch in &silent {
        let _ = inner.batch_failed(Instant::now(), batch, &DbError::Silent);
        inner.lost_behind(Instant::now(), batch, Cut::Silent);
    }
    assert_eq!(inner.batcher.lock().breaker().state(), State::Closed);
}

#[test]
fn what_is_asked_again_counts_when_it_is_sent() {
    // The first connection responds before, or after.
    for (is_answered, expected) in [(true, 0), (false, 3)] {
        let inner = store(Mode::Adaptive, 3);
        let Take::Batch(first) = inner.offer(true, false) else {
            panic!("questions wait");
        };
        assert_eq!((first.flights.len(), ask_again(&inner)), (3, 3));
        if is_answered {
            let moment = inner.cache.moment();
            inner.finish(&first, vec![None; 3], moment, Duration::from_millis(1));
        }
        let _ = inner.offer(true, false);
        assert_eq!(inner.stats.again.get(), expected);
    }
}

#[test]
fn a_connection_that_becomes_silent_before_its_time_passes_the_turn_on() {
    run(async {
        let (inner, (session, _results)) = (store(Mode::Adaptive, 1), session());
        let watch = Watch::default();
        let mut connection = pin!(serve::<Scripted>(&inner, &session, &watch));
        go_on(connection.as_mut()).await;
        ask(&inner, 1);
        inner.wake();
        go_on(connection.as_mut()).await;
        let _ = inner.idle.notified().now_or_never();
        assert_eq!((session.session.fetches.get(), ask_again(&inner)), (1, 1));
        // Another event wakes the connection before that time.
        watch.free.notify_one();
        go_on(connection.as_mut()).await;
        assert_eq!(session.session.fetches.get(), 1);
        assert!(
            inner.idle.notified().now_or_never().is_some(),
            "another is to look"
        );
    });
}

/// The time that a connection was stopped is no measure of the database. The delay of a slow database is one.
#[test]
fn a_stopped_connection_measures_nothing() {
    for (is_answered_elsewhere, grows) in [(true, false), (false, true)] {
        let inner = store(Mode::Adaptive, 3);
        let take = || match inner.offer(true, false) {
            Take::Batch(batch) => batch,
            other @ (Take::Wait(_) | Take::Closed) => panic!("{other:?}"),
        };
        let moment = inner.cache.moment();
        let patience = || inner.batcher.lock().patience();
        let (first, usual) = (take(), patience());
        if is_answered_elsewhere {
            ask_again(&inner);
            inner.finish(&take(), vec![None; 3], moment, Duration::from_millis(1));
        } else {
            let now = Instant::now() + LONG;
            inner.batcher.lock().expire(now, &mut Vec::new());
        }
        assert_eq!(patience(), usual);
        assert_eq!(inner.batcher.lock().questions(), 0);
        inner.finish(&first, vec![None; 3], moment, 9 * LONG);
        assert_eq!(patience() > usual, grows);
    }
}
