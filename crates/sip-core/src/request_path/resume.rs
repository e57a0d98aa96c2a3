//! Requests that waited for a back-end, and go on with its result.

use super::Progress;
use crate::engine::Engine;
use crate::engine::context::TargetState;
use crate::engine::request::Request;
use crate::engine::status::Status;
use crate::engine::waiting::{Parked, PendingOk, Purpose};
use crate::event::Event;
use crate::id::QueryId;
use crate::query::{QueryResult, Records, Unavailable};
use crate::transport::via;

/// The most requests that go on in one turn: about as many as one turn reads from a socket.
const RESUMED_AT_ONCE: usize = 64;

impl Engine {
    /// Takes the result of a query, or its time-out (`None`).
    pub(crate) fn resume(&mut self, id: QueryId, result: Option<QueryResult>) {
        let Some(purpose) = self.take_query(id) else {
            return;
        };
        if result.is_none() {
            self.counters.queries_expired += 1;
        }
        match purpose {
            Purpose::Credentials(mut parked) => {
                self.end_watch(&mut parked);
                let secrets = match result {
                    Some(QueryResult::Credentials(result)) => result,
                    _ => Err(Unavailable),
                };
                self.with_parked(&parked, |engine, request, progress| match &secrets {
                    Ok(secrets) => {
                        let authorized = engine.judge_parked(request, progress, secrets.as_ref());
                        if authorized.is_some() {
                            let progress = Progress {
                                authorized,
                                ..progress
                            };
                            engine.dispatch(request, progress);
                        }
                    }
                    Err(Unavailable) => engine.credentials_unavailable(request, progress),
                });
            }
            Purpose::Resolve { name, kind, waiters } => {
                let records: Result<Records, Unavailable> = match result {
                    Some(QueryResult::Resolved(result)) => result,
                    _ => Err(Unavailable),
                };
                self.resolver.store(self.now.instant, &name, kind, records);
                self.waiting.await_turn(waiters);
                self.resume_ready();
            }
            Purpose::Save {
                parked,
                ok,
                aor,
                lost,
                version,
            } => {
                let ok = if matches!(result, Some(QueryResult::Saved(Ok(())))) {
                    self.response_when_stored(&parked, &aor, version, ok)
                } else {
                    self.roll_back(&aor, lost.as_deref(), version, true);
                    None
                };
                match ok {
                    Some(ok) => self.saved(&parked, &ok, aor),
                    None => {
                        self.counters.registrations_failed += 1;
                        self.with_parked(&parked, |engine, request, progress| {
                            engine.refuse(request, progress.server, Status::NOT_SAVED);
                        });
                    }
                }
            }
        }
    }

    /// Resumes some of the requests that have their result. All at once would keep others waiting:
    /// 10,000 requests may wait for one name.
    #[inline(never)] // Its frame would be paid for at every turn of the timers.
    pub(crate) fn resume_ready(&mut self) {
        for _ in 0..RESUMED_AT_ONCE {
            let Some(parked) = self.waiting.next_ready() else {
                return;
            };
            self.with_parked(&parked, |engine, request, progress| {
                engine.dispatch(request, progress)
            });
        }
    }

    pub(crate) fn credentials_unavailable(&mut self, request: &Request<'_>, progress: Progress) {
        self.counters.auth_unavailable += 1;
        let status = Status::credentials_unavailable(self.config.credentials_unavailable);
        // §21.5.4: when to try again, for user agents; jittered, so that they do not come together.
        let seconds = 2 + (self.secrets.dice(request.call_id) % 6) as u8;
        let extra = [b"Retry-After: ".as_slice(), &[b'0' + seconds], b"\r\n"].concat();
        self.refuse_with(request, progress.server, status, &extra);
    }

    /// Sends the 200 of a REGISTER whose bindings are on disk.
    fn saved(&mut self, parked: &Parked, ok: &PendingOk, aor: alloc::boxed::Box<[u8]>) {
        self.counters.registrations += 1;
        self.count_reply(200);
        let flow = parked.flow;
        self.event(Event::Registered {
            aor,
            source: flow.remote,
            contacts: ok.contacts as u32,
        });
        match parked.server {
            Some(key) => self.send_response(key, 200, &ok.response),
            None => {
                let to = self.with_message(&parked.bytes, |_, message| {
                    message.top_via().ok().map(|top| via::reply_to(flow, &top))
                });
                if let Some(Some(to)) = to {
                    self.out.push(to, &ok.response);
                }
            }
        }
    }

    /// Parses a parked request and calls `go` with it. If the request waits for a target's name, resumes that
    /// target instead.
    fn with_parked(&mut self, parked: &Parked, go: impl FnOnce(&mut Self, &Request<'_>, Progress)) {
        let Some(server) = parked.server else {
            self.with_message(&parked.bytes, |engine, message| {
                if let Ok(request) = Request::read(*message, parked.flow) {
                    go(
                        engine,
                        &request,
                        Progress {
                            authorized: parked.authorized,
                            server: None,
                            asked: parked.asked,
                            any_account_of: parked.any_account_of,
                        },
                    );
                }
            });
            return;
        };
        if let Some(number) = parked.target {
            // The target's name is known now, unless the target was cancelled meanwhile.
            if let Some(context) = self.context(server) {
                let located = context
                    .target_mut(number)
                    .filter(|t| t.state == TargetState::Locating);
                if let Some(target) = located {
                    target.state = TargetState::Ready;
                    self.next_targets(server);
                }
            }
            return;
        }
        let (authorized, asked, any_account_of) = (parked.authorized, parked.asked, parked.any_account_of);
        self.with_server_request(server, |engine, request| {
            go(
                engine,
                request,
                Progress {
                    authorized,
                    server: Some(server),
                    asked,
                    any_account_of,
                },
            );
        });
    }
}
