//! Reports of refused requests, failed authentications and rewritten digest URIs. Each source and status (or
//! reason) has a bound; so have all together.
//!
//! A request that is refused in silence is the hardest fault to find. A flood of refused requests must not
//! become a flood of events. Refusals beyond a bound are counted; the next report of the same source and
//! status has the count. The table is direct-mapped: a colliding source evicts the older entry and its count.

use alloc::boxed::Box;
use core::net::IpAddr;

use sip_message::header::AuthValue;
use sip_message::{HeaderName, Message};

use super::Engine;
use super::request::Request;
use super::status::Status;
use crate::event::Event;
use crate::transaction::table::ServerKey;
use crate::transport::Flow;

/// Entries of the table, each for a source and status.
const PLACES: usize = 1024;
/// Reports in one minute for one source and status.
const OF_ONE: u16 = 30;
/// Reports in one minute for one source of rewritten digest URIs: a proxy on the way rewrites them all.
const OF_ONE_PROXY: u16 = 1;
/// Reports of one kind in one second in all.
const OF_ALL: u16 = 50;
/// Bytes of a value of the request that are kept.
const MOST_TEXT: usize = 128;

/// Counts of reports; see the module.
#[derive(Debug)]
pub(crate) struct Refusals {
    places: Box<[Place]>,
    /// The current second and the reports in it, for each kind: no kind uses up the bound of another.
    seconds: [(u64, u16); 3],
}

/// The kind of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// A request was refused.
    Refusal = 0,
    /// Credentials were wrong.
    AuthFailure = 1,
    /// Credentials for another URI of the same user were accepted.
    RewrittenUri = 2,
}

impl Report {
    /// The most reports in one minute for one source and code.
    const fn of_one(self) -> u16 {
        match self {
            Self::Refusal | Self::AuthFailure => OF_ONE,
            Self::RewrittenUri => OF_ONE_PROXY,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    hash: u64,
    minute: u64,
    reported: u16,
    unreported: u32,
}

impl Default for Refusals {
    fn default() -> Self {
        Self {
            places: alloc::vec![Place::default(); PLACES].into_boxed_slice(),
            seconds: [(0, 0); 3],
        }
    }
}

impl Refusals {
    /// Counts a refusal. `Some`: the refusal is to be reported, with the number of those since the last
    /// report.
    fn note(&mut self, report: Report, hash: u64, now_s: u64) -> Option<u32> {
        let place = self.places.get_mut(hash as usize % PLACES)?;
        if place.hash != hash {
            *place = Place {
                hash,
                ..Place::default()
            };
        }
        if place.minute != now_s / 60 {
            (place.minute, place.reported) = (now_s / 60, 0);
        }
        let second = self.seconds.get_mut(report as usize)?;
        if second.0 != now_s {
            *second = (now_s, 0);
        }
        if place.reported >= report.of_one() || second.1 >= OF_ALL {
            place.unreported = place.unreported.saturating_add(1);
            return None;
        }
        place.reported += 1;
        second.1 += 1;
        Some(core::mem::take(&mut place.unreported))
    }
}

impl Engine {
    /// Counts an event with this code from the source of `flow`. `Some`: report it, with the number of such
    /// events since the last report.
    pub(crate) fn may_report(&mut self, report: Report, flow: Flow, code: u16) -> Option<u32> {
        let ip = match flow.remote.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        };
        let hash = self.secrets.map_hash([&[report as u8], &ip, &code.to_be_bytes()]) as u64;
        self.refusals
            .note(report, hash, self.now.instant.as_micros() / 1_000_000)
    }

    /// Reports a request that this server refuses. Challenges are no refusals, nor is the end of a cancelled
    /// call.
    pub(crate) fn note_refusal(
        &mut self,
        message: &Message<'_>,
        flow: Flow,
        server: Option<ServerKey>,
        status: Status<'_>,
    ) {
        // If a rule rejects with 487, it is a refusal, and has a cause.
        let is_cancelled = status.code == 487 && status.cause.is_none();
        if status.code < 400 || is_cancelled || matches!(status.code, 401 | 407) {
            return;
        }
        // A status has ten bits.
        let cause = status.cause.map_or(0, |cause| 1 + cause as u16);
        let Some(unreported) = self.may_report(Report::Refusal, flow, status.code | cause << 10) else {
            return;
        };
        let uri_of = |name| {
            let value = message.value(name).unwrap_or_default();
            text(sip_message::header::NameAddr::parse(value).map_or(value, |addr| addr.uri))
        };
        self.event(Event::Refused {
            source: flow.remote,
            method: text(message.method().map_or(&[], |method| method.as_bytes())),
            uri: text(message.request_uri().unwrap_or_default()),
            call_id: text(message.value(HeaderName::CallId).unwrap_or_default()),
            from: uri_of(HeaderName::From),
            to: uri_of(HeaderName::To),
            digest_uri: match status.reason == Status::WRONG_DIGEST_URI.reason {
                true => text(wrong_digest_uri(message)),
                false => Box::default(),
            },
            // The transaction knows the rule of a request that was routed.
            rule: self.rule_at_hand.or_else(|| self.table.live(server?)?.user.rule),
            status: status.code,
            reason: status.reason.chars().take(MOST_TEXT).collect(),
            cause: status.cause,
            unreported,
        });
    }

    /// Reports credentials for `digest_uri` that were accepted for another Request-URI.
    #[cold]
    pub(crate) fn note_rewritten_uri(&mut self, request: &Request<'_>, digest_uri: &[u8]) {
        if let Some(unreported) = self.may_report(Report::RewrittenUri, request.flow, 0) {
            self.event(Event::DigestUriRewritten {
                source: request.flow.remote,
                method: text(request.method.as_bytes()),
                uri: text(request.message.request_uri().unwrap_or_default()),
                digest_uri: text(digest_uri),
                call_id: text(request.call_id),
                unreported,
            });
        }
    }
}

/// A value of a request, as far as it is kept.
pub(crate) fn text(value: &[u8]) -> Box<[u8]> {
    Box::from(value.get(..MOST_TEXT).unwrap_or(value))
}

/// `uri` of the first digest credentials in which it is not the Request-URI.
fn wrong_digest_uri<'a>(message: &Message<'a>) -> &'a [u8] {
    [HeaderName::Authorization, HeaderName::ProxyAuthorization]
        .into_iter()
        .flat_map(|name| message.fields_named(name))
        .filter_map(|field| AuthValue::parse(message.field_value(field)))
        .filter(AuthValue::is_digest)
        .filter_map(|value| value.params.unquoted(b"uri"))
        .find(|uri| Some(*uri) != message.request_uri())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_and_status_has_a_bound() {
        let mut refusals = Refusals::default();
        // The refusals are spread, so that the bound of all is not met.
        let reported = |refusals: &mut Refusals, from: u64| {
            let all = (from..from + 60).filter(|second| refusals.note(Report::Refusal, 7, *second).is_some());
            all.count() as u16
        };
        assert_eq!(reported(&mut refusals, 60), OF_ONE);
        // Another one, meanwhile.
        assert_eq!(refusals.note(Report::Refusal, 8, 119), Some(0));
        assert_eq!(refusals.note(Report::Refusal, 7, 120), Some(30));
        assert_eq!(refusals.note(Report::Refusal, 7, 121), Some(0));
    }

    #[test]
    fn all_together_have_a_bound() {
        let mut refusals = Refusals::default();
        let reported = |refusals: &mut Refusals, second| {
            let all = (0..10_000).filter(|key| refusals.note(Report::Refusal, *key, second).is_some());
            all.count() as u16
        };
        assert_eq!(reported(&mut refusals, 60), OF_ALL);
        assert_eq!(reported(&mut refusals, 61), OF_ALL);
        // The reports of guessed passwords, on which bans are based, have a bound of their own.
        assert_eq!(refusals.note(Report::AuthFailure, 20_000, 61), Some(0));
    }
}
