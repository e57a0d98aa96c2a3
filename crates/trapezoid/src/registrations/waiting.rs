//! Results of the back-ends for which an operator waits, and no worker.

use std::collections::HashMap;

use parking_lot::Mutex;
use sip_core::id::QueryId;
use sip_core::query::QueryResult;
use tokio::sync::oneshot;

/// Origin of an operator's queries. No worker has this number.
pub(crate) const OPERATOR: u16 = u16::MAX;

/// Most queries that wait at once. A further one gets the result `Unavailable`.
const MOST: usize = 256;

/// The waiting queries.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Mutex<Questions>);

#[derive(Debug, Default)]
struct Questions {
    /// Number of the next query.
    next: u32,
    open: HashMap<QueryId, oneshot::Sender<QueryResult>>,
}

impl Waiting {
    /// Begins to wait for a result; `None` if too many wait already.
    pub(super) fn open(&self) -> Option<(QueryId, oneshot::Receiver<QueryResult>)> {
        let mut questions = self.0.lock();
        if questions.open.len() >= MOST {
            return None;
        }
        let id = QueryId {
            slot: questions.next,
            generation: 0,
        };
        questions.next = questions.next.wrapping_add(1);
        let (sender, receiver) = oneshot::channel();
        questions.open.insert(id, sender);
        Some((id, receiver))
    }

    /// Stops waiting.
    pub(super) fn close(&self, id: QueryId) {
        self.0.lock().open.remove(&id);
    }

    /// Delivers a result. A late one is dropped.
    pub(crate) fn deliver(&self, id: QueryId, result: QueryResult) {
        if let Some(sender) = self.0.lock().open.remove(&id) {
            // The receiver may have gone at this moment.
            let _ = sender.send(result);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gets_its_own_answer_and_their_number_is_bounded() {
        let waiting = Waiting::default();
        let mut all: Vec<_> = (0..MOST).map(|_| waiting.open().expect("room")).collect();
        assert!(waiting.open().is_none());
        let (second, mut answered) = all.swap_remove(1);
        let (first, mut unanswered) = all.swap_remove(0);
        waiting.deliver(second, QueryResult::Saved(Ok(())));
        assert!(matches!(answered.try_recv(), Ok(QueryResult::Saved(Ok(())))));
        assert!(unanswered.try_recv().is_err());
        waiting.close(first);
        waiting.deliver(first, QueryResult::Saved(Ok(())));
        assert!(unanswered.try_recv().is_err(), "too late");
        assert!(waiting.open().is_some() && waiting.open().is_some());
        assert!(waiting.open().is_none());
    }
}
