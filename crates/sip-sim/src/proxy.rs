//! A proxy: the real core, the state that its workers would share in plain cells, and a
//! subscriber store that answers after a while or never.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use sip_core::auth::digest;
use sip_core::config::{
    Action, Algorithm, AuthPolicy, Config, Domain, Durability, Listener, RegistrarPolicy, Relay, RelayTarget,
    Route, StateMode, Timers, When,
};
use sip_core::dispatcher::Group;
use sip_core::endpoint::{Endpoint, Handled, Keys};
use sip_core::id::{ListenerId, QueryId, WorkerId};
use sip_core::limits::Limits;
use sip_core::location::Binding;
use sip_core::query::{Answer, QueryKind, Secrets};
use sip_core::shared::SharedState as _;
use sip_core::time::{Instant, Now};
use sip_core::transport::{Flow, NextHop, Proof, TransmitBatch, Transport};

use crate::agent::PASSWORD;
use crate::cells::Cells;
use crate::clock::{Micros, Queue};
use crate::node::{Node, Outgoing};
use crate::rng::Rng;
use crate::scenario::{ProxyPlan, Store};

/// Virtual time begins here, on the wall clock.
const EPOCH_UNIX_MS: u64 = 1_700_000_000_000;

/// Name of the domain, and its realm.
const DOMAIN: &[u8] = b"example.com";

/// A proxy.
pub struct Proxy {
    endpoint: Endpoint,
    plan: ProxyPlan,
    batch: TransmitBatch,
    out: VecDeque<Outgoing>,
    answers: Queue<(QueryId, Answer)>,
    rng: Rng,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy")
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

impl Proxy {
    /// A proxy at `address` that sends everything new to `next`.
    pub fn new(plan: &ProxyPlan, address: SocketAddr, next: SocketAddr, rng: Rng) -> Self {
        let cached = plan.digest.as_ref().is_some_and(|d| d.store == Store::Cached);
        Self::of(plan, &config(plan, address, next), cached, &[], rng)
    }

    /// A proxy at `address` with this action for everything new, these groups, and these contacts
    /// of bob.
    pub fn forking(
        c_ms: u32,
        address: SocketAddr,
        action: Action,
        groups: Vec<Group>,
        contacts: &[Binding],
        rng: Rng,
    ) -> Self {
        let plan = ProxyPlan {
            stateful: true,
            record_route: true,
            c_ms,
            digest: None,
        };
        let mut config = config(&plan, address, address);
        for route in &mut config.routes {
            route.action = action.clone();
        }
        config.groups = groups;
        Self::of(&plan, &config, false, contacts, rng)
    }

    fn of(plan: &ProxyPlan, config: &Config, cached: bool, contacts: &[Binding], mut rng: Rng) -> Self {
        let hash_seed = (rng.next_u64(), rng.next_u64());
        let shared = Arc::new(Cells::new(hash_seed, 1000, EPOCH_UNIX_MS - 1));
        if cached {
            shared.cache(b"alice", Some(secrets()), Micros::MAX);
        }
        if !contacts.is_empty() {
            shared.update_bindings(b"bob@example.com", &mut |record| {
                record.bindings = contacts.to_vec();
                record.changed(EPOCH_UNIX_MS);
            });
        }
        let mut key = || {
            let words: [[u8; 8]; 4] = core::array::from_fn(|_| rng.next_u64().to_le_bytes());
            let mut bytes = [0; 32];
            for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
                place.copy_from_slice(&word);
            }
            bytes
        };
        let keys = Keys {
            domain_secret: key(),
            seed: key(),
        };
        Self {
            endpoint: Endpoint::new(config, &keys, WorkerId(0), shared),
            plan: plan.clone(),
            batch: TransmitBatch::new(),
            out: VecDeque::new(),
            answers: Queue::default(),
            rng,
        }
    }

    /// Takes what the endpoint has to say.
    fn collect(&mut self, now: Micros) {
        while self.endpoint.poll_transmit(&mut self.batch) {
            for item in self.batch.items() {
                self.out.push_back(Outgoing {
                    to: item.to.remote,
                    text: String::from_utf8_lossy(self.batch.message(item)).into_owned(),
                });
            }
        }
        while let Some(query) = self.endpoint.poll_query() {
            let store = self.plan.digest.as_ref().map(|d| d.store);
            let (Some(id), QueryKind::Credentials { username, .. }, Some(Store::Slow(low, high))) =
                (query.id, query.kind, store)
            else {
                continue;
            };
            let found = (*username == *b"alice").then(secrets);
            let at = now + self.rng.between(low, high);
            self.answers.put(at, (id, Answer::Credentials(Ok(found))));
        }
        while self.endpoint.poll_event().is_some() {}
    }
}

fn secrets() -> Secrets {
    digest::secrets(b"alice", DOMAIN, PASSWORD.as_bytes())
}

fn clocks(now: Micros) -> Now {
    Now {
        instant: Instant::from_micros(now),
        unix_ms: EPOCH_UNIX_MS + now / 1000,
    }
}

impl Node for Proxy {
    fn handle_message(&mut self, now: Micros, from: SocketAddr, text: &str) {
        let flow = Flow {
            transport: Transport::Udp,
            listener: ListenerId(0),
            remote: from,
            conn: None,
            proof: Proof::None,
        };
        let handled = self.endpoint.handle_message(clocks(now), flow, text.as_bytes());
        assert_eq!(handled, Handled::Here, "there is one worker");
        self.collect(now);
    }

    fn handle_timeout(&mut self, now: Micros) {
        while let Some((id, answer)) = self.answers.pop_due(now) {
            self.endpoint.handle_answer(clocks(now), id, answer);
        }
        self.endpoint.handle_timeout(clocks(now));
        self.collect(now);
    }

    fn poll_transmit(&mut self) -> Option<Outgoing> {
        self.out.pop_front()
    }

    fn poll_timeout(&self) -> Option<Micros> {
        let timer = self.endpoint.poll_timeout().map(Instant::as_micros);
        timer.into_iter().chain(self.answers.next_at()).min()
    }

    fn leftovers(&self) -> Option<String> {
        let gauges = self.endpoint.gauges();
        let held = [
            gauges.server_transactions,
            gauges.client_transactions,
            gauges.parked_requests,
            gauges.parked_bytes,
            gauges.timers,
            gauges.flows - gauges.flows_registered,
        ];
        let quiet = self.endpoint.is_idle() && held.iter().all(|n| *n == 0);
        (!quiet).then(|| format!("quiet: {}, {gauges:?}", self.endpoint.is_idle()))
    }
}

fn config(plan: &ProxyPlan, address: SocketAddr, next: SocketAddr) -> Config {
    let text = |s: String| s.into_bytes().into_boxed_slice();
    let methods: Vec<Box<[u8]>> = match &plan.digest {
        None => vec![],
        Some(d) if d.bye_too => vec![Box::from(*b"INVITE"), Box::from(*b"BYE")],
        Some(_) => vec![Box::from(*b"INVITE")],
    };
    Config {
        server_header: Box::default(),
        listeners: vec![Listener {
            transport: Transport::Udp,
            address,
            prefix_len: 24,
            sent_by: text(address.to_string()),
            preloaded_route: false,
            any_page: false,
        }],
        own_hosts: vec![],
        domains: vec![Domain {
            name: DOMAIN.into(),
            aliases: vec![],
            auth: AuthPolicy {
                realm: DOMAIN.into(),
                methods,
                algorithms: plan
                    .digest
                    .as_ref()
                    .map_or_else(|| vec![Algorithm::Md5], |d| d.algorithms.clone()),
                nonce_lifetime_s: 300,
                strict_uri: false,
            },
        }],
        routes: vec![Route {
            when: When::default(),
            action: Action::Relay(Relay::to(RelayTarget::Uri(
                NextHop::parse(format!("sip:{next}").as_bytes()).expect("an address is a next hop"),
            ))),
            auth: None,
            state: None,
            record_route: plan.record_route,
        }],
        groups: vec![],
        state: if plan.stateful {
            StateMode::Transaction
        } else {
            StateMode::Stateless
        },
        timers: Timers {
            c_ms: plan.c_ms,
            ..Timers::default()
        },
        limits: Limits::default(),
        registrar: RegistrarPolicy {
            min_expires_s: 60,
            default_expires_s: 3600,
            max_expires_s: 7200,
            durability: Durability::Memory,
        },
        trust: vec![],
        trust_names: vec![],
        destinations: sip_core::config::Destinations::default(),
        abuse: sip_core::config::Abuse::default(),
        credentials_deadline_ms: 3000,
        credentials_unavailable: 503,
        workers: 1,
        node_id: 1,
    }
}
