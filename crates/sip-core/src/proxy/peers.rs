//! Location of the named next hops of the configuration, before anything is sent there. A trunk that only
//! calls in belongs to the trust domain, too ([`crate::admission`]). And no dialog may lead to a next hop
//! that its mark does not name ([`crate::engine::place`]). A registrar behind this edge may send requests by
//! our Path before a REGISTER has gone there. The first worker asks, as long as any source may be refused or a
//! rule relays REGISTER.

use super::hop::Hop;
use super::probe::{NAME_TRIES, NAME_WAIT_MS};
use crate::admission::next_hops;
use crate::engine::{Engine, Locate, Wake};
use crate::id::WorkerId;
use crate::resolve::Located;
use crate::time::Millis;
use crate::transport::HopHost;

/// Milliseconds between two look-ups of a next hop: new addresses are known this soon.
const EVERY_MS: u32 = 300_000;
/// Milliseconds after which name service is asked again if it gave no result.
const AGAIN_MS: u32 = 15_000;
/// Milliseconds between two next hops at the start: name service must not get all queries at once.
const SPREAD_MS: u32 = 5;

impl Engine {
    /// Begins to locate the next hops of the present configuration. Look-ups for an older configuration end
    /// by themselves.
    pub(crate) fn start_locating(&mut self) {
        // One worker asks for all workers: the addresses that it learns are shared.
        if self.worker != WorkerId(0) || !(self.admission.learns() || self.relays_register) {
            return;
        }
        let config = self.config.clone();
        let named = (0u32..)
            .zip(next_hops(&config))
            .filter(|(_, hop)| matches!(hop.host, HopHost::Name(_)));
        for (count, (hop, _)) in (0u32..).zip(named) {
            let locate = Locate {
                epoch: self.epoch,
                hop,
                asked: 0,
            };
            let after = Millis(count.saturating_mul(SPREAD_MS));
            self.wheel.start(self.now.instant, after, Wake::Locate(locate));
        }
    }

    /// Locates a next hop, and sets the time of the next look-up.
    pub(crate) fn locate_peer(&mut self, locate: Locate) {
        if locate.epoch != self.epoch {
            return;
        }
        let config = self.config.clone();
        let Some(next) = next_hops(&config).nth(locate.hop as usize) else {
            return;
        };
        let hop = Hop::configured(next);
        let question = self.question(hop, b"", false);
        let (after_ms, asked) = match self.resolver.locate(self.now.instant, &question) {
            Located::Done(candidates) => {
                self.meet_peers(&hop, &candidates);
                (EVERY_MS, 0)
            }
            Located::Ask { name, kind } if locate.asked < NAME_TRIES => {
                self.ask_for_name(name, kind);
                (NAME_WAIT_MS, locate.asked + 1)
            }
            Located::Ask { .. } | Located::Unavailable => (AGAIN_MS, 0),
        };
        let again = Locate { asked, ..locate };
        self.wheel
            .start(self.now.instant, Millis(after_ms), Wake::Locate(again));
    }
}
