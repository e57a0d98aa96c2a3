//! Endpoints on a table: several workers of one process, connections, two clocks; bytes in and out.

use std::sync::Arc;

use sip_core::config::Config;
use sip_core::endpoint::{Endpoint, Handled};
use sip_core::id::{ConnId, QueryId, WorkerId};
use sip_core::query::{Query, QueryResult};
use sip_core::time::{Instant, Now};
use sip_core::transport::framing::FramingError;
use sip_core::transport::{Flow, TransmitBatch};

use crate::common::{Sent, Shared, keys};

/// The wall clock when the other one is at zero.
const UNIX_MS: i64 = 1_700_000_000_000;

/// A message that left.
#[derive(Clone, Debug)]
pub(crate) struct Out {
    /// The worker that sent it.
    pub(crate) worker: usize,
    pub(crate) to: Flow,
    pub(crate) bytes: Vec<u8>,
}

impl Out {
    /// As text, to look for words in it.
    pub(crate) fn as_sent(&self) -> Sent {
        Sent {
            to: self.to,
            text: String::from_utf8_lossy(&self.bytes).into_owned(),
            peer: None,
            pinned: false,
        }
    }
}

/// One process: its workers and what they share.
pub(crate) struct Table {
    workers: Vec<Endpoint>,
    batch: TransmitBatch,
    now_us: u64,
    /// What the wall clock was set by.
    wall_ms: i64,
}

impl Table {
    pub(crate) fn new(config: &Config) -> Self {
        let shared = Arc::new(Shared::default());
        let worker = |n: u16| {
            let seed = u8::try_from(n).unwrap_or_default() + 9;
            Endpoint::new(config, &keys(seed), WorkerId(n), shared.clone())
        };
        Self {
            workers: (0..config.workers.max(1)).map(worker).collect(),
            batch: TransmitBatch::new(),
            now_us: 1_000_000,
            wall_ms: 0,
        }
    }

    fn now(&self) -> Now {
        let elapsed_ms = i64::try_from(self.now_us / 1000).unwrap_or(i64::MAX);
        Now {
            instant: Instant::from_micros(self.now_us),
            unix_ms: u64::try_from(UNIX_MS + elapsed_ms + self.wall_ms).unwrap_or_default(),
        }
    }

    /// A datagram came to worker `at`, which looks first which worker owns it.
    pub(crate) fn steer(&mut self, at: usize, flow: Flow, bytes: &[u8]) {
        let at = at % self.workers.len();
        let owner = self.workers[at].worker_of(bytes);
        self.handle(owner.map_or(at, |worker| usize::from(worker.0)), flow, bytes);
    }

    /// A message came to worker `at`; it is handed over once at most. Whether the connection is to be
    /// closed.
    pub(crate) fn handle(&mut self, at: usize, flow: Flow, bytes: &[u8]) -> bool {
        let now = self.now();
        let at = at % self.workers.len();
        let handled = match self.workers[at].handle_message(now, flow, bytes) {
            Handled::HandOver(worker) => {
                let there = usize::from(worker.0);
                assert_ne!(there, at, "handed over to itself");
                let handled = self.workers[there].handle_message(now, flow, bytes);
                assert!(!matches!(handled, Handled::HandOver(_)), "handed over twice");
                handled
            }
            handled @ (Handled::Here | Handled::Close) => handled,
        };
        handled == Handled::Close
    }

    pub(crate) fn framing_error(&mut self, at: usize, flow: Flow, error: FramingError<'_>) {
        let now = self.now();
        let at = at % self.workers.len();
        self.workers[at].handle_framing_error(now, flow, error);
    }

    /// A message was not delivered.
    pub(crate) fn undelivered(&mut self, sent: &Out) {
        let now = self.now();
        self.workers[sent.worker].handle_undelivered(now, sent.to, &sent.bytes);
    }

    /// A connection is closed, which is reported to all workers.
    pub(crate) fn closed(&mut self, conn: ConnId) {
        let now = self.now();
        for worker in &mut self.workers {
            worker.handle_flow_closed(now, conn);
        }
    }

    /// A back-end answers worker `at`.
    pub(crate) fn answer(&mut self, at: usize, id: QueryId, answer: QueryResult) {
        let now = self.now();
        self.workers[at].handle_result(now, id, answer);
    }

    pub(crate) fn reconfigure(&mut self, config: &Config) {
        for worker in &mut self.workers {
            worker.reconfigure(config);
        }
    }

    pub(crate) fn drain_calls(&mut self) {
        for worker in &mut self.workers {
            worker.drain();
        }
    }

    /// Moves the wall clock by `ms`.
    pub(crate) fn set_wall_by(&mut self, ms: i64) {
        self.wall_ms = self.wall_ms.saturating_add(ms).clamp(-UNIX_MS, UNIX_MS);
    }

    /// Takes what is to be sent.
    pub(crate) fn sent(&mut self, mut take: impl FnMut(Out)) {
        for (at, worker) in self.workers.iter_mut().enumerate() {
            while worker.poll_transmit(&mut self.batch) {
                for item in self.batch.items() {
                    take(Out {
                        worker: at,
                        to: item.to,
                        bytes: self.batch.message(item).to_vec(),
                    });
                }
            }
        }
    }

    /// Takes everything else: questions, with the worker that asks.
    pub(crate) fn asked(&mut self, mut take: impl FnMut(usize, Query)) {
        for (at, worker) in self.workers.iter_mut().enumerate() {
            while let Some(query) = worker.poll_query() {
                take(at, query);
            }
            while worker.poll_event().is_some() {}
            while worker.poll_alias().is_some() {}
        }
    }

    /// What is asked of back-ends.
    pub(crate) fn questions(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        self.asked(|at, query| all.push(format!("{at}: {:?}", query.kind)));
        all
    }

    /// Lets `ms` pass, firing timers as the shell would.
    pub(crate) fn pass(&mut self, ms: u64, mut take: impl FnMut(Out)) {
        let end = self.now_us + ms * 1000;
        loop {
            let next = |worker: &Endpoint| worker.poll_timeout().map(Instant::as_micros);
            let Some(next) = self.workers.iter().filter_map(next).min() else {
                break;
            };
            if next > end {
                break;
            }
            self.now_us = self.now_us.max(next);
            let now = self.now();
            for worker in &mut self.workers {
                if worker.poll_timeout().is_some_and(|due| due <= now.instant) {
                    worker.handle_timeout(now);
                }
            }
            self.sent(&mut take);
        }
        self.now_us = end;
    }

    /// Asserts that nothing is left: no transaction, no timer, nothing parked, no work; and of connections
    /// only what is registered over them.
    pub(crate) fn assert_idle(&self) {
        for worker in &self.workers {
            let gauges = worker.gauges();
            assert_eq!(
                (
                    gauges.server_transactions,
                    gauges.client_transactions,
                    gauges.timers
                ),
                (0, 0, 0)
            );
            assert_eq!((gauges.parked_requests, gauges.parked_bytes), (0, 0));
            assert_eq!(gauges.flows, gauges.flows_registered);
            assert!(worker.is_idle());
        }
    }
}
