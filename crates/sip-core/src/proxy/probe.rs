//! Probes of group members: OPTIONS (RFC 3261 §11), from the first worker only. Any final response
//! but 503 shows that a member is there.

use alloc::sync::Arc;
use alloc::vec::Vec;

use sip_message::Method;
use sip_message::number::write_decimal;

use super::branch::{client_hash, write_via_start};
use super::forward::by_tls;
use super::hop::Hop;
use crate::config::Listener;
use crate::dispatcher::Group;
use crate::engine::secrets::write_hex;
use crate::engine::{ClientUser, Engine, Probe, TransactionUser, Wake};
use crate::event::Event;
use crate::id::WorkerId;
use crate::resolve::Located;
use crate::time::Millis;
use crate::transaction::table::ClientKey;
use crate::transport::{Flow, PeerName};

/// Milliseconds from a query for a member's name until the probe is tried again.
pub(super) const NAME_WAIT_MS: u32 = 250;
/// Tries after which the probe counts as failed.
pub(super) const NAME_TRIES: u8 = 16;

impl Engine {
    /// Starts the probes of the present configuration. Probes of an older configuration end by themselves.
    pub(crate) fn start_probes(&mut self) {
        // One worker probes for all workers: what it learns is shared.
        if self.worker != WorkerId(0) {
            return;
        }
        let config = self.config.clone();
        for (group, settings) in (0u16..).zip(&config.groups) {
            let Some(every) = settings.probe_ms else { continue };
            let count = u32::try_from(settings.members.len().max(1)).unwrap_or(u32::MAX);
            for member in 0..settings.members.len() {
                let member = u16::try_from(member).unwrap_or(u16::MAX);
                let probe = Probe {
                    epoch: self.epoch,
                    group,
                    member,
                    asked: 0,
                };
                // Spread over the interval.
                let after = Millis(every / count * u32::from(member));
                self.wheel.start(self.now.instant, after, Wake::Probe(probe));
            }
        }
    }

    /// Sends a probe that is due, and sets the time of the next.
    pub(crate) fn probe(&mut self, probe: Probe) {
        if probe.epoch != self.epoch {
            return;
        }
        let Some(group) = self.groups.get(usize::from(probe.group)).cloned() else {
            return;
        };
        let (Some(member), Some(every)) = (group.member(probe.member), group.probe_ms) else {
            return;
        };
        let question = self.question(Hop::configured(&member.hop), b"", false);
        let next = match self.resolver.locate(self.now.instant, &question) {
            Located::Done(candidates) => {
                self.meet_peers(&Hop::configured(&member.hop), &candidates);
                let reachable = candidates.iter().find_map(|c| self.flow_to(c, None));
                match reachable {
                    Some(to) => {
                        let peer = Hop::configured(&member.hop).peer(&candidates);
                        self.send_probe(&group, probe, to, by_tls(to, &peer));
                    }
                    None => self.probe_failure(&group, probe.member),
                }
                None
            }
            Located::Ask { name, kind } if probe.asked < NAME_TRIES => {
                self.ask_for_name(name, kind);
                Some(Probe {
                    asked: probe.asked + 1,
                    ..probe
                })
            }
            Located::Ask { .. } | Located::Unavailable => {
                self.probe_failure(&group, probe.member);
                None
            }
        };
        let (after, wake) = match next {
            Some(again) => (Millis(NAME_WAIT_MS), again),
            None => (Millis(every), Probe { asked: 0, ..probe }),
        };
        self.wheel.start(self.now.instant, after, Wake::Probe(wake));
    }

    fn send_probe(&mut self, group: &Group, probe: Probe, to: Flow, peer: Option<PeerName>) {
        let config = self.config.clone();
        let listener = config.listeners.get(usize::from(to.listener.0));
        let (Some(member), Some(egress)) = (group.member(probe.member), listener) else {
            return;
        };
        // The response goes to the worker that owns the Call-ID: that must be this one.
        let (unique, call_id) = loop {
            self.probes = self.probes.wrapping_add(1);
            let unique = self
                .secrets
                .map_hash([b"probe", &self.probes.to_be_bytes(), &member.hop.uri]);
            let mut call_id = Vec::with_capacity(32);
            write_hex(&mut call_id, unique, 32);
            if self.other_worker(&call_id).is_none() {
                break (unique, call_id);
            }
        };
        let mut text = core::mem::take(&mut self.scratch);
        text.clear();
        let start = self.directory.via_start(to.listener);
        write_options(&mut text, egress, start, &member.hop.uri, unique, &call_id);
        let user = ClientUser {
            peer,
            ..ClientUser::new(TransactionUser::Probe(probe))
        };
        let patience = Millis(group.reply_timeout_ms);
        let hash = client_hash(unique as u64, Method::Options);
        self.begin_client(hash, false, to, &text, user, Some(patience));
        self.scratch = text;
    }

    /// Handles the response to a probe.
    pub(super) fn probe_completed(&mut self, key: ClientKey, status: u16) {
        let Some((group, number)) = self.probed(key) else {
            return;
        };
        self.stop_timer_c(key);
        if status < 200 {
            return;
        }
        if status == 503 {
            return self.probe_failure(&group, number);
        }
        self.counters.probe_responses += 1;
        let Some(member) = group.member(number) else {
            return;
        };
        if member.health.note_probe_response(self.now.unix_ms, &group.marks) {
            self.event(Event::MemberRecovered {
                group: group.name.clone(),
                member: member.hop.uri.clone(),
            });
        }
    }

    /// Notes that a probe got no response.
    pub(super) fn probe_failed(&mut self, key: ClientKey) {
        if let Some((group, number)) = self.probed(key) {
            self.probe_failure(&group, number);
        }
    }

    fn probe_failure(&mut self, group: &Group, number: u16) {
        self.counters.probes_failed += 1;
        self.note_member_failure(group, number);
    }

    fn probed(&self, key: ClientKey) -> Option<(Arc<Group>, u16)> {
        let TransactionUser::Probe(probe) = self.table.client(key)?.user.owner else {
            return None;
        };
        // A probe of an older configuration says nothing about the members of this one.
        let group = self.groups.get(usize::from(probe.group))?;
        (probe.epoch == self.epoch).then(|| (Arc::clone(group), probe.member))
    }
}

/// Appends an OPTIONS of ours.
fn write_options(
    out: &mut Vec<u8>,
    egress: &Listener,
    via_start: &[u8],
    uri: &[u8],
    unique: u128,
    call_id: &[u8],
) {
    out.extend_from_slice(b"OPTIONS ");
    out.extend_from_slice(uri);
    out.extend_from_slice(b" SIP/2.0\r\n");
    write_via_start(out, via_start, unique as u64, 0);
    if !egress.transport.is_reliable() {
        out.extend_from_slice(b";rport");
    }
    out.extend_from_slice(b"\r\nMax-Forwards: 70\r\nFrom: <sip:");
    out.extend_from_slice(&egress.sent_by);
    out.extend_from_slice(b">;tag=");
    write_hex(out, unique >> 64, 16);
    out.extend_from_slice(b"\r\nTo: <");
    out.extend_from_slice(uri);
    out.extend_from_slice(b">\r\nCall-ID: ");
    out.extend_from_slice(call_id);
    out.extend_from_slice(b"\r\nCSeq: ");
    write_decimal(out, 1);
    out.extend_from_slice(b" OPTIONS\r\nAccept: */*\r\nContent-Length: 0\r\n\r\n");
}
