//! Pings of phones behind NATs: a datagram to each registered contact, by which its NAT keeps the port open.
//!
//! A ping is an OPTIONS (RFC 3261 §11) without a transaction: it is not sent again, and any response shows that the phone is
//! there. Its branch is a MAC over our listener and the address, so that a response counts for the flow that it comes by, and
//! nothing is kept for a ping under way. With `ping = "crlf"` a phone that has answered once gets an empty line instead
//! (RFC 5626 §3.5.1), to which nothing answers.
//!
//! **Rounds.** The bindings themselves are the list of what is to be pinged. In each interval a worker walks once through its
//! share of them, at an even pace, a few records at a time under the lock of their shard. So a phone that unregisters or moves
//! gets no ping at its old place, a restart needs nothing but the bindings, and pings are as even as the places of the records.
//! A worker that was kept from its pace makes up for it a quarter faster, and finishes its round late if that is not enough.
//!
//! What a flow's pings gave is kept in [`crate::location::reachability`].

use alloc::boxed::Box;
use core::ops::Range;

use sip_message::Uri;
use sip_message::number::write_decimal;

use super::branch::write_via_start;
use crate::activity::Component;
use crate::config::{Durability, Listener, Nat, PingKind, Pings};
use crate::engine::pings::Found;
use crate::engine::secrets::write_hex;
use crate::engine::stored::encoded;
use crate::engine::{Engine, Wake};
use crate::event::Event;
use crate::location::codec::BindingRef;
use crate::location::reachability::{Bounds, Turn};
use crate::time::{Instant, Millis};
use crate::transport::{Flow, Transport};

/// The least and the most milliseconds from one step of a round to the next.
const STEP_MS: Range<u32> = 20..1_000;
/// The most places of records that a step looks at: 100,000 a second at the shortest step.
const MOST_PLACES: u64 = 2_048;
/// The most milliseconds since the last step that count for the length of a step.
const MOST_LATE_MS: u64 = 1_000;
/// The most places that are looked at under one lock.
const SLICE: u32 = 64;
/// The longest Contact that is pinged, in bytes. A ping has it twice, and must not be longer than a REGISTER.
const LONGEST_CONTACT: usize = 256;
/// Intervals without a ping, and the least seconds, after which a flow is forgotten. A worker that stalled must not forget
/// which contacts are lost.
const FORGOTTEN_AFTER: (u64, u64) = (3, 120);

impl Engine {
    /// Starts the pings of the present configuration. The steps of an older configuration end by themselves, and the round
    /// goes on where it is. Without pings nothing is known of any flow.
    pub(crate) fn start_pings(&mut self) {
        let may_ping = |l: &Listener| l.transport == Transport::Udp && l.nat != Nat::Never;
        if self.config.pings.is_some() && self.config.listeners.iter().any(may_ping) {
            self.wake_for_pings(STEP_MS.start);
            return;
        }
        let mut part = self.own_part(0);
        while let Some(own) = part {
            self.shared.forget_flows(own, u64::MAX);
            part = self.own_part(own + 1);
        }
    }

    fn wake_for_pings(&mut self, after_ms: u32) {
        self.wheel
            .start(self.now.instant, Millis(after_ms), Wake::Ping(self.epoch));
    }

    /// The first part of the bindings from `part` on that belongs to this worker's share.
    fn own_part(&self, part: u32) -> Option<u32> {
        let workers = u32::from(self.config.workers.max(1));
        let gap = (u32::from(self.worker.0) + workers - part % workers) % workers;
        let own = part.checked_add(gap)?;
        (own < self.shared.parts()).then_some(own)
    }

    /// The places in this worker's share.
    fn own_places(&self) -> u32 {
        let mut places = 0u32;
        let mut part = self.own_part(0);
        while let Some(own) = part {
            places = places.saturating_add(self.shared.places(own));
            part = self.own_part(own + 1);
        }
        places
    }

    fn begin_round(&mut self, at: Instant) {
        self.round.began = Some(at);
        self.round.looked = 0;
        self.round.at = self.own_part(0).map(|part| (part, 0));
    }

    /// Takes a step of the round, and sets the time of the next.
    pub(crate) fn ping_step(&mut self, epoch: u16) {
        let Some(pings) = self.config.pings.filter(|_| epoch == self.epoch) else {
            return;
        };
        let before = self.activity.enter(Component::Location);
        let every_ms = u64::from(pings.every_s) * 1_000;
        let now = self.now.instant;
        if self.round.at.is_none() {
            let next = self
                .round
                .began
                .map_or(now, |began| began + Millis(every_ms as u32));
            // Steps come a little late, and rounds must not for that.
            if next <= now {
                let is_far_behind = now.micros_since(next) >= every_ms * 1_000;
                self.begin_round(if is_far_behind { now } else { next });
            }
        }
        // They are counted anew, since a million phones may register within one round.
        let places = u64::from(self.own_places());
        let passed_ms = now.micros_since(self.round.began.unwrap_or(now)) / 1_000;
        let due = match passed_ms >= every_ms {
            true => places,
            false => (places * passed_ms / every_ms + 1).saturating_sub(u64::from(self.round.looked)),
        };
        // What is late follows a quarter faster than the even pace, and not at once: all of its responses would come at
        // once, too, and find no room.
        let stepped = self.round.stepped.replace(now).unwrap_or(now);
        let waited_ms = (now.micros_since(stepped) / 1_000).clamp(u64::from(STEP_MS.start), MOST_LATE_MS);
        let pace = places * waited_ms / every_ms;
        let most = (pace + pace / 4 + 1).min(MOST_PLACES);
        self.ping_some(&pings, due.min(most) as u32);
        // A step for each place, if they are few.
        let step_ms = (every_ms / places.max(10)).clamp(u64::from(STEP_MS.start), u64::from(STEP_MS.end));
        self.wake_for_pings(step_ms as u32);
        self.activity.enter(before);
    }

    /// Looks at this many places, and pings what is found there.
    fn ping_some(&mut self, pings: &Pings, mut due: u32) {
        while due > 0
            && let Some((part, from)) = self.round.at
        {
            let mut found = core::mem::take(&mut self.round.found);
            let mut texts = core::mem::take(&mut self.round.texts);
            let now = self.now.unix_s();
            let walked = self
                .shared
                .walk_bindings(part, from, due.min(SLICE), &mut |aor, record| {
                    let bindings = record.bindings().filter_map(Result::ok);
                    for binding in bindings.filter(|b| b.expires_unix_s > now && self.is_pinged(b)) {
                        let start = texts.len();
                        texts.extend_from_slice(aor);
                        let aor = start..texts.len();
                        texts.extend_from_slice(binding.contact);
                        found.push(Found {
                            flow: binding.received,
                            contact: aor.end..texts.len(),
                            aor,
                        });
                    }
                });
            for found in found.drain(..) {
                let text = |range: Range<usize>| texts.get(range).unwrap_or_default();
                self.ping(pings, found.flow, text(found.aor), text(found.contact));
            }
            texts.clear();
            self.round.found = found;
            self.round.texts = texts;
            self.round.looked = self.round.looked.saturating_add(walked.looked);
            due = due.saturating_sub(walked.looked);
            self.round.at = match walked.next {
                Some(next) => Some((part, next)),
                None => {
                    let (intervals, least_s) = FORGOTTEN_AFTER;
                    let unpinged_s = (u64::from(pings.every_s) * intervals).max(least_s);
                    self.shared.forget_flows(part, now.saturating_sub(unpinged_s));
                    self.own_part(part + 1).map(|part| (part, 0))
                }
            };
        }
    }

    /// Whether this binding's phone is behind a NAT, and comes by UDP without a proxy before us.
    fn is_pinged(&self, binding: &BindingRef<'_>) -> bool {
        let flow = &binding.received;
        let listener = self.config.listeners.get(usize::from(flow.listener.0));
        flow.transport == Transport::Udp
            && binding.contact.len() <= LONGEST_CONTACT
            && listener.is_some_and(|l| {
                l.transport == Transport::Udp && l.address.is_ipv4() == flow.remote.is_ipv4()
            })
            && binding.path.is_empty()
            && match Uri::parse(binding.contact).as_ref().map(Uri::sip) {
                Ok(Some(uri)) => self.is_contact_behind_nat(uri, flow),
                Ok(None) | Err(_) => false,
            }
    }

    fn ping(&mut self, pings: &Pings, flow: Flow, aor: &[u8], contact: &[u8]) {
        let bounds = Bounds {
            every_s: pings.every_s,
            most: pings.lost,
            must_answer: pings.kind == PingKind::Options,
        };
        // The low bits will do.
        let turn_aor = self.secrets.dice(aor) as u32;
        let (now, mut turn) = (self.now.unix_s(), Turn::Pinged);
        self.shared.reachability(&flow, &mut |flows, key| {
            turn = flows.turn(key, turn_aor, now, &bounds);
        });
        if turn == Turn::Lost {
            self.counters.contacts_lost += 1;
            self.event(Event::ContactLost {
                aor: Box::from(aor),
                source: flow.remote,
            });
        }
        if pings.remove_lost && self.is_flow_lost(&flow) {
            // Each address-of-record on the flow comes here at its own turn.
            return self.remove_lost(flow, aor);
        }
        match turn {
            Turn::Pinged | Turn::Silent => return,
            Turn::Ping { answered: true } if pings.kind == PingKind::Crlf => {
                self.out.push_with(flow, |out| out.extend_from_slice(b"\r\n\r\n"));
            }
            Turn::Ping { .. } | Turn::Lost => self.send_ping(flow, contact),
        }
        self.counters.pings_sent += 1;
    }

    /// Removes the bindings of a lost flow from this address-of-record.
    fn remove_lost(&mut self, flow: Flow, aor: &[u8]) {
        let (now_ms, mut saved) = (self.now.unix_ms, None);
        self.shared.update_bindings(aor, &mut |record| {
            // A REGISTER may have come meanwhile.
            if self.is_flow_lost(&flow) && record.remove_received(&flow, now_ms) {
                saved = Some((encoded(record), record.version));
            }
        });
        if let Some((record, version)) = saved
            && self.config.registrar.durability != Durability::Memory
        {
            self.save_later(aor, record, version);
        }
    }

    fn send_ping(&mut self, flow: Flow, contact: &[u8]) {
        let Self {
            out,
            config,
            directory,
            secrets,
            now,
            ..
        } = self;
        let Some(egress) = config.listeners.get(usize::from(flow.listener.0)) else {
            return;
        };
        // A phone must not take a ping for a copy of the last one.
        let number = now.unix_s() as u8;
        let branch = secrets.ping_mac(&flow, number);
        let via_start = directory.via_start(flow.listener);
        out.push_with(flow, |out| {
            out.extend_from_slice(b"OPTIONS ");
            out.extend_from_slice(contact);
            out.extend_from_slice(b" SIP/2.0\r\n");
            write_via_start(out, via_start, branch, number);
            out.extend_from_slice(b";rport\r\nMax-Forwards: 70\r\nFrom: <sip:");
            out.extend_from_slice(&egress.sent_by);
            out.extend_from_slice(b">;tag=");
            write_hex(out, u128::from(branch), 8);
            out.extend_from_slice(b"\r\nTo: <");
            out.extend_from_slice(contact);
            out.extend_from_slice(b">\r\nCall-ID: ");
            write_hex(out, u128::from(branch.rotate_left(32)), 8);
            write_decimal(out, now.unix_ms);
            out.extend_from_slice(b"\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n");
        });
    }

    /// Takes a response to OPTIONS for that to a ping, if its branch shows that. Returns whether it does.
    pub(super) fn is_ping_response(&mut self, branch: u64, number: u8, flow: &Flow) -> bool {
        let may_be = flow.transport == Transport::Udp && self.config.pings.is_some();
        if !may_be || branch != self.secrets.ping_mac(flow, number) {
            return false;
        }
        self.counters.pings_answered += 1;
        let mut was_lost = false;
        self.shared
            .reachability(flow, &mut |flows, key| was_lost = flows.answer(key));
        self.note_contact_returned(was_lost, flow);
        true
    }

    /// Notes a REGISTER that was accepted from this flow: a phone there is not lost.
    pub(crate) fn note_flow_registered(&mut self, flow: &Flow) {
        if flow.transport != Transport::Udp || self.config.pings.is_none() {
            return;
        }
        let mut was_lost = false;
        self.shared
            .reachability(flow, &mut |flows, key| was_lost = flows.register(key));
        self.note_contact_returned(was_lost, flow);
    }

    fn note_contact_returned(&mut self, was_lost: bool, flow: &Flow) {
        if was_lost {
            self.counters.contacts_returned += 1;
            self.event(Event::ContactReturned { source: flow.remote });
        }
    }
}
