//! The stand-in for the protocol engine.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};

use sip_core::activity::{Activity, Component};
use sip_core::admission::{Source, SourceLists};
use sip_core::config::Config;
use sip_core::endpoint::Handled;
use sip_core::event::{Calls, Counters, Event, Gauges};
use sip_core::id::{ConnId, ListenerId, QueryId, WorkerId};
use sip_core::query::{Query, QueryKind, QueryResult, RecordKind};
use sip_core::time::{Instant, Millis, Now};
use sip_core::transport::framing::FramingError;
use sip_core::transport::{Flow, Proof, TransmitBatch, Transport};
use sip_net::worker::Core;

use super::{FIRST_CONNECTION, Report};

/// The stand-in. First words (of a datagram, or of the start line of a framed message):
/// - `ECHO`: sends the message back on its flow.
/// - `AT n rest`: hands the message to worker n, which obeys `rest`.
/// - `CANCEL of=n …`: hands the message to worker n.
/// - `OWNER n rest`: hands the message to worker n, which sends `rest` back, preceded by its number.
/// - `CLOSE`: sends `BYE` back and closes.
/// - `DATAGRAM address text`: sends text by the listener that the message came by.
/// - `SEND address text`: sends text by listener 1 (TCP) to the address.
/// - `STALE address text`: the same on a connection that is long gone.
/// - `VIA n address text`: sends text by listener n to the address.
/// - `CALL n id address text`: the same in a framed message of that Call-ID.
/// - `GUESS n address text`: as `VIA`, on the first connection of the process.
/// - `WHOLE`: sends the whole message back on its flow, body and all.
/// - `FLOOD n`: sends the flow n messages of 1,000 bytes.
/// - `ASK`: asks a back-end. `TIMER ms`: starts a timer. `BUSY`, `QUIET`: has work, has none.
/// - `ALIAS address`: the flow's connection is to be found by that address too.
/// - `SPIN n`: sends the message back; computes n million steps, as authentication, if the turn is measured.
/// - `HOLD`: does nothing until [`Rig::release`], nor does its worker.
/// - `FAIL address`, `FAIL-CONTACT address`: has the event that a next hop, or a contact, failed, twice.
/// - `WATCH`: from now on, reports connections that are closed.
pub struct Fake {
    worker: WorkerId,
    told: Sender<Report>,
    transports: Vec<Transport>,
    out: VecDeque<(Flow, Vec<u8>)>,
    queries: u32,
    events: Vec<Event>,
    due: Option<Instant>,
    busy: bool,
    tells_closed: bool,
    aliases: Vec<(ConnId, SocketAddr)>,
    standing: Arc<SourceLists>,
    activity: Activity,
    gate: Arc<Mutex<Receiver<()>>>,
}

impl Fake {
    pub fn new(
        worker: WorkerId,
        told: Sender<Report>,
        transports: Vec<Transport>,
        gate: Arc<Mutex<Receiver<()>>>,
    ) -> Self {
        Self {
            worker,
            told,
            transports,
            out: VecDeque::new(),
            queries: 0,
            events: Vec::new(),
            due: None,
            busy: false,
            tells_closed: false,
            aliases: Vec::new(),
            standing: Arc::default(),
            activity: Activity::default(),
            gate,
        }
    }

    fn obey(&mut self, now: Now, flow: Flow, text: &str) -> Handled {
        let mut words = text.splitn(3, ' ');
        let (verb, one, rest) = (
            words.next().unwrap_or(""),
            words.next().unwrap_or(""),
            words.next().unwrap_or(""),
        );
        match verb {
            "ECHO" => self.out.push_back((flow, text.as_bytes().to_vec())),
            "AT" => {
                let owner = WorkerId(one.parse().unwrap());
                if owner != self.worker {
                    return Handled::HandOver(owner);
                }
                return self.obey(now, flow, rest);
            }
            "CANCEL" if one.starts_with("of=") => {
                let owner = WorkerId(one["of=".len()..].parse().unwrap());
                if owner != self.worker {
                    return Handled::HandOver(owner);
                }
            }
            "OWNER" => {
                let owner = WorkerId(one.parse().unwrap());
                if owner != self.worker {
                    return Handled::HandOver(owner);
                }
                self.out
                    .push_back((flow, format!("{} {rest}", owner.0).into_bytes()));
            }
            "CLOSE" => {
                self.out.push_back((flow, b"BYE".to_vec()));
                return Handled::Close;
            }
            "DATAGRAM" => {
                let to = Flow {
                    remote: one.parse().unwrap(),
                    ..flow
                };
                self.out.push_back((to, rest.as_bytes().to_vec()));
            }
            "SEND" | "STALE" => {
                let conn = (verb == "STALE").then_some(sip_core::id::ConnId {
                    worker: WorkerId(0),
                    slot: 7,
                    generation: 7,
                });
                let remote = one.parse().unwrap();
                let to = Flow {
                    transport: Transport::Tcp,
                    listener: ListenerId(1),
                    remote,
                    conn,
                    proof: Proof::None,
                };
                self.out.push_back((to, rest.as_bytes().to_vec()));
            }
            "VIA" | "GUESS" => {
                let (address, text) = rest.split_once(' ').unwrap();
                let mut to = self.by_listener(one, address);
                to.conn = (verb == "GUESS").then_some(FIRST_CONNECTION);
                self.out.push_back((to, text.as_bytes().to_vec()));
            }
            "CALL" => {
                let mut words = rest.splitn(3, ' ');
                let (call_id, address) = (words.next().unwrap(), words.next().unwrap());
                let to = self.by_listener(one, address);
                let text = words.next().unwrap();
                let message = format!("{text}\r\nCall-ID: {call_id}\r\nContent-Length: 0\r\n\r\n");
                self.out.push_back((to, message.into_bytes()));
            }
            "FLOOD" => {
                let count: usize = one.trim().parse().unwrap();
                self.out
                    .extend((0..count).map(|number| (flow, format!("{number:-<1000}").into_bytes())));
            }
            "ASK" => self.queries += 1,
            "TIMER" => self.due = Some(now.instant + Millis(one.parse().unwrap())),
            "SPIN" => self.spin(flow, one.trim().parse().unwrap(), text),
            "HOLD" => self.hold(),
            "BUSY" => self.busy = true,
            "QUIET" => self.busy = false,
            "WATCH" => self.tells_closed = true,
            "FAIL" | "FAIL-CONTACT" => {
                let failed = Event::NextHopFailed {
                    destination: one.trim().parse().unwrap(),
                    timed_out: false,
                    is_contact: verb == "FAIL-CONTACT",
                };
                self.events.extend([failed.clone(), failed]);
            }
            "ALIAS" => self
                .aliases
                .push((flow.conn.unwrap(), one.trim().parse().unwrap())),
            _ => {}
        }
        Handled::Here
    }

    /// What it computes does not depend on how long the machine lets it.
    fn spin(&mut self, flow: Flow, millions: u64, text: &str) {
        let before = self.activity.enter(Component::Auth);
        // Where nothing is measured there is nothing before.
        if before != Component::Auth {
            for step in 0..millions * 1_000_000 {
                std::hint::black_box(step);
            }
        }
        self.activity.enter(before);
        self.out.push_back((flow, text.as_bytes().to_vec()));
    }

    #[track_caller]
    fn hold(&mut self) {
        let _ = self.told.send(Report::Held {
            worker: self.worker.0,
        });
        // The end of the rig releases it, too.
        let _ = self.gate.lock().unwrap().recv();
    }

    #[track_caller]
    fn by_listener(&self, number: &str, address: &str) -> Flow {
        let number: u16 = number.parse().unwrap();
        Flow {
            transport: self.transports[usize::from(number)],
            listener: ListenerId(number),
            remote: address.parse().unwrap(),
            conn: None,
            proof: Proof::None,
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .lines()
        .next()
        .unwrap_or("")
        .to_owned()
}

impl Core for Fake {
    fn admit(&mut self, _: Now, flow: &Flow) -> bool {
        let source = Source::of(flow.remote.ip());
        !self.standing.banned.contains(source) || self.standing.peers.contains(source)
    }

    fn set_source_lists(&mut self, standing: Arc<SourceLists>) {
        self.standing = standing;
    }

    /// Knows it of `OWNER`; not of `AT`.
    fn worker_of(&self, bytes: &[u8]) -> Option<WorkerId> {
        let text = std::str::from_utf8(bytes).ok()?;
        let owner = text.strip_prefix("OWNER ")?.split(' ').next()?.parse().ok()?;
        (WorkerId(owner) != self.worker).then_some(WorkerId(owner))
    }

    /// Knows none but those with "known" in the start line.
    fn knows_invite_of(&mut self, _: Flow, bytes: &[u8]) -> bool {
        text(bytes).contains("known")
    }

    fn handle_message(&mut self, now: Now, flow: Flow, bytes: &[u8]) -> Handled {
        let text = text(bytes);
        if text.starts_with("WHOLE") {
            self.out.push_back((flow, bytes.to_vec()));
        }
        let handled = self.obey(now, flow, &text);
        if !matches!(handled, Handled::HandOver(_)) {
            let _ = self.told.send(Report::Message {
                worker: self.worker.0,
                flow,
                text,
            });
        }
        handled
    }

    fn handle_framing_error(
        &mut self,
        _: Now,
        _: Flow,
        error: FramingError<'_>,
    ) -> Option<(WorkerId, Box<[u8]>)> {
        let _ = self.told.send(Report::Fault {
            worker: self.worker.0,
            fault: error.fault,
        });
        None
    }

    fn handle_undelivered(&mut self, _: Now, to: Flow, bytes: &[u8]) {
        let _ = self.told.send(Report::Undelivered {
            worker: self.worker.0,
            to,
            text: text(bytes),
        });
    }

    fn handle_flow_closed(&mut self, _: Now, conn: ConnId) {
        let worker = self.worker.0;
        if self.tells_closed {
            let _ = self.told.send(Report::Closed { worker, conn });
        }
    }

    fn is_registered_over(&mut self, _: Now, _: ConnId) -> bool {
        false
    }

    fn handle_failed_hop(&mut self, destination: SocketAddr) {
        let worker = self.worker.0;
        let _ = self.told.send(Report::HopFailed { worker, destination });
    }

    fn handle_result(&mut self, _: Now, id: QueryId, _: QueryResult) {
        let _ = self.told.send(Report::Answer {
            worker: self.worker.0,
            id,
        });
    }

    fn handle_timeout(&mut self, now: Now) {
        assert!(
            self.due.take().is_some_and(|due| due <= now.instant),
            "a timer fires when due, not before"
        );
        let _ = self.told.send(Report::Timeout {
            worker: self.worker.0,
        });
    }

    fn poll_transmit(&mut self, batch: &mut TransmitBatch) -> bool {
        let any = !self.out.is_empty();
        for (to, message) in self.out.drain(..) {
            batch.push(to, &message);
        }
        any
    }

    fn poll_query(&mut self) -> Option<Query> {
        let slot = self.queries.checked_sub(1)?;
        self.queries = slot;
        let kind = QueryKind::Resolve {
            name: b"example.com".as_slice().into(),
            kind: RecordKind::A,
        };
        Some(Query {
            id: Some(QueryId { slot, generation: 9 }),
            kind,
        })
    }

    fn poll_alias(&mut self) -> Option<(ConnId, SocketAddr)> {
        self.aliases.pop()
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    fn reconfigure(&mut self, _: &Config) {
        let _ = self.told.send(Report::Reconfigured {
            worker: self.worker.0,
        });
    }

    fn observe(&mut self, activity: Activity) {
        self.activity = activity;
    }

    fn drain(&mut self) {
        let _ = self.told.send(Report::Drained {
            worker: self.worker.0,
        });
    }

    fn is_idle(&self) -> bool {
        !self.busy
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn calls(&self) -> Calls {
        Calls::default()
    }

    fn gauges(&self) -> Gauges {
        Gauges::default()
    }
}
