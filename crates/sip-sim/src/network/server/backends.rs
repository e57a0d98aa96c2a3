//! Back-ends of a server: subscribers, names, the store of registrations; and their failures.

use std::collections::BTreeMap;

use sip_backend::location::Save;
use sip_core::auth::digest;
use sip_core::id::QueryId;
use sip_core::query::{Query, QueryKind, QueryResult, Record, RecordKind, Records, Secrets, Unavailable};
use sip_core::time::Now;

use super::super::scenario::{BackendKind, DiskFault, Trouble, USERS};
use super::super::{ACCOUNTS, server_ip};
use super::config::server_name;
use super::store::Store;
use crate::agent::PASSWORD;
use crate::clock::{Micros, Queue};
use crate::rng::Rng;

/// Seconds for which names are valid.
pub(super) const TTL_S: u32 = 30;

/// Present state of a back-end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Slow(Micros),
    Dead,
    Failing,
}

/// A result for one worker.
#[derive(Debug)]
pub(super) struct Answered {
    /// The worker of the query.
    pub worker: usize,
    /// Id of the query.
    pub id: QueryId,
    /// The result.
    pub answer: QueryResult,
    /// Secrets for the cache of the process.
    pub cache: Option<(Vec<u8>, Option<Secrets>)>,
}

/// The back-ends of one server. They outlive its process; the queries do not.
#[derive(Debug)]
pub(super) struct Backends {
    /// The store on the disk.
    pub store: Store,
    usual: Micros,
    health: BTreeMap<BackendKind, (Health, Micros)>,
    answers: Queue<Answered>,
    rng: Rng,
}

impl Backends {
    /// Back-ends of this server that usually take up to `usual`.
    pub(super) fn new(server: usize, usual: Micros, mut rng: Rng) -> Self {
        Self {
            store: Store::new(server, rng.fork()),
            usual,
            health: BTreeMap::new(),
            answers: Queue::default(),
            rng,
        }
    }

    /// Applies a trouble of a back-end, which lasts for a time.
    pub(super) fn trouble(&mut self, now: Micros, trouble: &Trouble) {
        let (backend, health, lasts) = match trouble {
            Trouble::Slow { backend, by, lasts } => (backend, Health::Slow(*by), lasts),
            Trouble::Dead { backend, lasts } => (backend, Health::Dead, lasts),
            Trouble::Failing {
                backend: BackendKind::Store,
                lasts,
            } => {
                let fault = DiskFault::Everything { per_mille: 1_000 };
                return self.store.fail(fault, now + lasts);
            }
            Trouble::Disk { fault, lasts } => return self.store.fail(*fault, now + lasts),
            Trouble::Failing { backend, lasts } => (backend, Health::Failing, lasts),
            Trouble::Crash { .. } | Trouble::Partition { .. } | Trouble::Reset | Trouble::WallJump { .. } => {
                return;
            }
        };
        self.health.insert(*backend, (health, now + lasts));
    }

    /// Ends all troubles now.
    pub(super) fn heal(&mut self, now: Micros) {
        for (_, until) in self.health.values_mut() {
            *until = (*until).min(now);
        }
        self.store.heal_at(now);
    }

    fn health(&self, now: Micros, backend: BackendKind) -> Option<(Health, Micros)> {
        self.health
            .get(&backend)
            .copied()
            .filter(|(_, until)| *until > now)
    }

    /// Ends the process, whose queries are dropped.
    pub(super) fn crash(&mut self, now: Now, power: bool) {
        self.answers = Queue::default();
        self.store.crash(now, power);
    }

    /// Handles a query of a worker.
    pub(super) fn ask(&mut self, now: Micros, worker: usize, query: Query) {
        match query.kind {
            QueryKind::Credentials {
                username,
                user_len,
                domain,
                realm,
            } => {
                let user = username.get(..user_len).unwrap_or_default();
                let secrets = secrets(user, &domain, &realm);
                let answer = QueryResult::Credentials(Ok(secrets.clone()));
                let refusal = QueryResult::Credentials(Err(Unavailable));
                let cache = self.rng.chance(500).then(|| (username.to_vec(), secrets));
                self.answer(
                    now,
                    BackendKind::Credentials,
                    worker,
                    query.id,
                    (answer, refusal),
                    cache,
                );
            }
            QueryKind::Resolve { name, kind } => {
                let answer = QueryResult::Resolved(Ok(records(&name, kind)));
                let refusal = QueryResult::Resolved(Err(Unavailable));
                self.answer(now, BackendKind::Names, worker, query.id, (answer, refusal), None);
            }
            QueryKind::SaveBindings { aor, record, version } => {
                let save = Save {
                    origin: worker as u16,
                    id: query.id,
                    aor,
                    record,
                    version,
                };
                self.save(now, save);
            }
        }
    }

    fn answer(
        &mut self,
        now: Micros,
        backend: BackendKind,
        worker: usize,
        id: Option<QueryId>,
        (answer, refusal): (QueryResult, QueryResult),
        cache: Option<(Vec<u8>, Option<Secrets>)>,
    ) {
        let Some(id) = id else { return };
        let usual = self.rng.between(0, self.usual);
        let (at, answer, cache) = match self.health(now, backend) {
            None => (now + usual, answer, cache),
            Some((Health::Slow(by), _)) => (now + usual + by, answer, cache),
            Some((Health::Failing, _)) => (now + usual, refusal, None),
            Some((Health::Dead, _)) => return,
        };
        self.answers.put(
            at,
            Answered {
                worker,
                id,
                answer,
                cache,
            },
        );
    }

    fn save(&mut self, now: Micros, save: Save) {
        let takes = self.write_takes(now);
        if let Err(save) = self.store.save(now, takes, save) {
            self.refuse(now, &save);
        }
    }

    /// Duration of a write that begins now.
    fn write_takes(&mut self, now: Micros) -> Micros {
        let usual = self.store.usual();
        match self.health(now, BackendKind::Store) {
            None | Some((Health::Failing, _)) => usual,
            Some((Health::Slow(by), _)) => usual + by,
            // A dead disk writes once it is back.
            Some((Health::Dead, until)) => until - now + usual,
        }
    }

    fn refuse(&mut self, now: Micros, save: &Save) {
        if let Some(id) = save.id {
            self.saved(now, usize::from(save.origin), id, Err(Unavailable));
        }
    }

    fn saved(&mut self, now: Micros, worker: usize, id: QueryId, saved: Result<(), Unavailable>) {
        let answered = Answered {
            worker,
            id,
            answer: QueryResult::Saved(saved),
            cache: None,
        };
        self.answers.put(now, answered);
    }

    /// When the next task or result is due.
    pub(super) fn next_at(&self, now: Micros) -> Option<Micros> {
        self.answers
            .next_at()
            .into_iter()
            .chain(self.store.next_at(now))
            .min()
    }

    /// Does the disk's work that is due.
    pub(super) fn handle_timeout(&mut self, now: Now) {
        let at = now.instant.as_micros();
        let takes = self.write_takes(at);
        for answered in self.store.handle_timeout(now, takes) {
            if let Some(id) = answered.id {
                self.saved(at, usize::from(answered.origin), id, answered.saved);
            }
        }
    }

    /// The next result, if it is due at `now`.
    pub(super) fn pop_due(&mut self, now: Micros) -> Option<Answered> {
        self.answers.pop_due(now)
    }
}

/// Secrets of a user in the table of subscribers.
fn secrets(user: &[u8], domain: &[u8], realm: &[u8]) -> Option<Secrets> {
    let mut aor = user.to_vec();
    aor.push(b'@');
    aor.extend_from_slice(domain);
    let mut known = USERS.iter().chain(&ACCOUNTS);
    if !known.any(|known| known.as_bytes() == aor) {
        return None;
    }
    Some(digest::secrets(user, realm, PASSWORD.as_bytes()))
}

/// Records of name service: each server has an A record for its name, and there is no other record.
fn records(name: &[u8], kind: RecordKind) -> Records {
    let is_named = |server: &usize| server_name(*server).as_bytes() == name;
    let server = (0..16).find(is_named).filter(|_| kind == RecordKind::A);
    Records {
        ttl_s: TTL_S,
        values: server.map(server_ip).map(Record::Address).into_iter().collect(),
    }
}
