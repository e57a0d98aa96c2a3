//! What the engine does about who is not heard: it counts, tells now and then, and never answers.

use super::Engine;
use crate::admission::Refused;
use crate::auth::challenge::Credentials;
use crate::event::Event;
use crate::time::Now;
use crate::transport::Flow;

impl Engine {
    /// Whether a message that came by `flow` is heard.
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

    /// Whether what came by `flow` may be held against its source: that is outside of the trust
    /// domain, and certain. Of a connection the addresses are; of a datagram, whoever sends it writes
    /// what he likes, unless he brings back what was sent to that address: `credentials`, whose nonce
    /// was found good.
    pub(crate) fn counts_against(&self, flow: &Flow, credentials: Option<&Credentials<'_>>) -> bool {
        let ip = flow.remote.ip();
        let is_certain = flow.conn.is_some()
            || credentials.is_some_and(|credentials| self.authenticator.answers_from(credentials, ip));
        is_certain && !self.admission.is_exempt(flow)
    }

    /// A peer of the trust domain is at this address. Where there is no room for the event it is told at
    /// the next occasion: an unknown peer could be taken for an attacker.
    pub(crate) fn meet_peer(&mut self, address: core::net::IpAddr) {
        let now = self.now.instant;
        if self.admission.is_to_be_told_of(now, address) && self.event(Event::PeerMet { address }) {
            self.admission.told_of(now, address);
        }
    }
}
