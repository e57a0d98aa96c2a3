//! The phase *scanner*: requests of scanners, recognised by the operator's patterns, are dropped. A response
//! would show that a server is here.

use sip_message::header::NameAddr;
use sip_message::{HeaderName, Message, Uri};

use crate::auth::challenge::{self, Found};
use crate::engine::Engine;
use crate::engine::request::Request;
use crate::event::{Event, ScanSign};
use crate::transport::Flow;

use super::authorize::{original_uri, role_of};

impl Engine {
    /// Whether `request` was dropped as one of a scanner.
    #[inline]
    pub(crate) fn drops_scanner(&mut self, request: &Request<'_>) -> bool {
        if self.config.abuse.scanners.is_empty() {
            return false;
        }
        let uri = request.uri.sip().and_then(|uri| uri.user);
        let sign = self.sign_of(
            &request.message,
            user_of(&request.from),
            user_of(&request.to),
            uri,
        );
        let Some(sign) = sign.filter(|_| !self.admission.is_exempt(&request.flow)) else {
            return false;
        };
        let counts = self.config.abuse.bans && self.scan_counts(request);
        self.note_scan(&request.flow, sign, counts);
        true
    }

    /// Whether an unreadable request was dropped as a scanner's. A scanner is recognised by the parts that
    /// can be read.
    pub(crate) fn drops_broken_scanner(&mut self, message: &Message<'_>, flow: &Flow) -> bool {
        if self.config.abuse.scanners.is_empty() {
            return false;
        }
        let (from, to) = (message.from().ok(), message.to().ok());
        let uri = message.request_uri().and_then(|text| Uri::parse(text).ok());
        let uri = uri.as_ref().and_then(|uri| uri.sip()).and_then(|uri| uri.user);
        let (from, to) = (from.as_ref().and_then(user_of), to.as_ref().and_then(user_of));
        let sign = self.sign_of(message, from, to, uri);
        let Some(sign) = sign.filter(|_| !self.admission.is_exempt(flow)) else {
            return false;
        };
        let counts = self.config.abuse.bans && self.counts_against(flow, None);
        self.note_scan(flow, sign, counts);
        true
    }

    fn sign_of(
        &self,
        message: &Message<'_>,
        from: Option<&[u8]>,
        to: Option<&[u8]>,
        uri: Option<&[u8]>,
    ) -> Option<ScanSign> {
        let scanners = &self.config.abuse.scanners;
        let agent = scanners
            .user_agent
            .as_ref()
            .and_then(|_| message.value(HeaderName::UserAgent));
        [
            (&scanners.user_agent, agent, ScanSign::UserAgent),
            (&scanners.from_user, from, ScanSign::FromUser),
            (&scanners.to_user, to, ScanSign::ToUser),
            (&scanners.uri_user, uri, ScanSign::UriUser),
        ]
        .into_iter()
        .find(|(pattern, text, _)| {
            let pattern = pattern.as_ref();
            pattern.is_some_and(|pattern| text.is_some_and(|text| pattern.is_match(text)))
        })
        .map(|(_, _, sign)| sign)
    }

    /// Whether a scan counts towards a ban of the source of `request`.
    fn scan_counts(&self, request: &Request<'_>) -> bool {
        let domain = self.policy_domain(&self.config, request);
        let found = domain.map(|d| {
            (
                d,
                challenge::find(&request.message, role_of(request.method), &d.auth),
            )
        });
        let Some((domain, Found::Credentials(credentials))) = found else {
            return self.counts_against(&request.flow, None);
        };
        let (uri, now) = (original_uri(request), self.now.unix_ms);
        let checked = self.authenticator.precheck(&domain.auth, &credentials, uri, now);
        self.counts_against(&request.flow, checked.is_ok().then_some(&credentials))
    }

    fn note_scan(&mut self, flow: &Flow, sign: ScanSign, counts: bool) {
        self.counters.dropped_scanner += 1;
        let unreported = self.admission.tell(self.now.instant, flow.remote.ip());
        if counts || unreported.is_some() {
            self.event(Event::Scanned {
                source: flow.remote,
                sign,
                counts,
                unreported,
            });
        }
    }
}

fn user_of<'a>(addr: &NameAddr<'a>) -> Option<&'a [u8]> {
    addr.sip_uri().and_then(|uri| uri.user)
}
