//! Admission of messages. Messages of banned or limited sources are counted, reported from time to time, and
//! get no response.

use super::Engine;
use crate::admission::Refused;
use crate::auth::challenge::Credentials;
use crate::event::Event;
use crate::time::Now;
use crate::transport::Flow;

impl Engine {
    /// Whether a message that came by `flow` is admitted. Counts and reports a refusal.
    pub(crate) fn admit(&mut self, now: Now, flow: &Flow) -> bool {
        self.now = now;
        let refused = match self.admission.check(now.instant, flow, &mut self.counters) {
            Ok(()) => return true,
            Err(refused) => refused,
        };
        match refused {
            Refused::Banned => self.counters.dropped_banned += 1,
            Refused::Limited(told) => {
                self.counters.dropped_rate += 1;
                if let Some(dropped) = told {
                    let source = flow.remote;
                    self.event(Event::SourceLimited { source, dropped });
                }
            }
        }
        false
    }

    /// Whether a message that came by `flow` counts towards a ban of its source: the source is
    /// outside of the trust domain, and verified. A connection verifies its source. The source of a
    /// datagram may be spoofed, unless its `credentials` are for a nonce that was sent to that
    /// address. That nonce must have been found good before.
    pub(crate) fn counts_against(&self, flow: &Flow, credentials: Option<&Credentials<'_>>) -> bool {
        let ip = flow.remote.ip();
        let is_certain = flow.conn.is_some()
            || credentials.is_some_and(|credentials| self.authenticator.answers_from(credentials, ip));
        is_certain && !self.admission.is_exempt(flow)
    }

    /// Reports that a peer of the trust domain is at this address. If there is no room for the event,
    /// a later message reports it: an unknown peer could be taken for an attacker.
    pub(crate) fn meet_peer(&mut self, address: core::net::IpAddr) {
        let now = self.now.instant;
        if self.admission.is_to_be_told_of(now, address) && self.event(Event::PeerMet { address }) {
            self.admission.told_of(now, address);
        }
    }
}
