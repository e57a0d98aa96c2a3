//! The phase *match*: the rule of a request, which is the first that matches.

use alloc::borrow::Cow;
use core::cell::OnceCell;

use sip_message::{HeaderName, Host, Method};

use super::in_dialog::Position;
use crate::config::{Action, Config, Route, When};
use crate::engine::Engine;
use crate::engine::directory::{comes_from, in_networks};
use crate::engine::request::Request;
use crate::spelling::normalised;
use crate::transport::Flow;

/// The rule that a request goes by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matched<'c> {
    /// The number of the rule; [`NO_RULE`] without one.
    pub(crate) number: usize,
    /// The rule; `None`: no rule matches, or the request goes by its dialog or by a Path of ours.
    pub(crate) rule: Option<&'c Route>,
}

/// The number if no rule matches.
const NO_RULE: usize = usize::MAX;

impl Engine {
    /// The first rule that matches a new request.
    pub(crate) fn match_rule<'c>(
        &mut self,
        config: &'c Config,
        request: &Request<'_>,
        position: &Position<'_>,
    ) -> Matched<'c> {
        let matched = match position.in_dialog || position.by_path {
            true => Matched {
                number: NO_RULE,
                rule: None,
            },
            false => self.first_match(config, request),
        };
        self.rule_at_hand = u16::try_from(matched.number).ok();
        matched
    }

    fn first_match<'c>(&self, config: &'c Config, request: &Request<'_>) -> Matched<'c> {
        // The URI is normalised once, and only if a rule compares it.
        let uri = OnceCell::new();
        let mut rules = config.routes.iter().enumerate();
        let found = rules.find(|(_, rule)| self.matches(config, rule, request, &uri));
        Matched {
            number: found.map_or(NO_RULE, |(number, _)| number),
            rule: found.map(|(_, rule)| rule),
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "most methods are alike here")]
    fn matches<'a>(
        &self,
        config: &Config,
        rule: &Route,
        request: &Request<'a>,
        uri: &OnceCell<Cow<'a, [u8]>>,
    ) -> bool {
        let when: &When = &rule.when;
        // CANCEL and the ACK to a non-2xx take the path of their INVITE.
        let method = match request.method {
            Method::Ack | Method::Cancel => Method::Invite,
            method => method,
        };
        // A rule takes a REGISTER only if it names the method.
        let is_for_method = match when.methods.as_slice() {
            [] => request.method != Method::Register,
            named => named.iter().any(|m| **m == *method.as_bytes()),
        };
        is_for_method
            && (when.source.is_empty() || is_source_of(rule, &request.flow))
            && when
                .domain
                .as_ref()
                .is_none_or(|name| self.is_in_domain(config, request, name))
            && when
                .uri
                .as_ref()
                .is_none_or(|pattern| pattern.is_match(uri.get_or_init(|| normalised(request.uri_text))))
            && when
                .headers
                .iter()
                .all(|(name, value)| has_header(request, name, value))
    }

    fn is_in_domain(&self, config: &Config, request: &Request<'_>, name: &[u8]) -> bool {
        let Some(uri) = request.uri.sip() else {
            return false;
        };
        // The request goes to `maddr`, if there is one (RFC 3261 §19.1.1), so the rule is compared with that. A `maddr`
        // that names this server has been taken off before.
        if let Some(maddr) = uri.params.value(b"maddr") {
            return is_host(maddr, name);
        }
        match self.directory.domain_of(config, uri) {
            Some(domain) => *domain.name == *name || domain.aliases.iter().any(|a| **a == *name),
            None => is_host(uri.host_text, name),
        }
    }
}

/// Whether a rule's sources include that of `flow`. A rule that denies holds for requests that this
/// server has sent itself, too.
fn is_source_of(rule: &Route, flow: &Flow) -> bool {
    let denies = matches!(rule.action, Action::Reject { .. }) || rule.auth == Some(true);
    match denies {
        true => in_networks(&rule.when.source, flow.remote.ip()),
        false => comes_from(&rule.when.source, flow),
    }
}

/// Whether a header with exactly this value is there. The name is in lower case.
fn has_header(request: &Request<'_>, name: &[u8], value: &[u8]) -> bool {
    let message = &request.message;
    let known = HeaderName::lookup(name);
    let same = |field: &sip_message::Field| message.field_value(field) == value;
    if known == HeaderName::Other {
        message.fields_other(name).any(same)
    } else {
        message.fields_named(known).any(same)
    }
}

/// Whether two hosts, as they are written, are the same. Addresses are compared by value; a final dot of a name does
/// not matter.
fn is_host(text: &[u8], name: &[u8]) -> bool {
    let known = |text| Host::parse(text).filter(|host| !matches!(host, Host::Name(_)));
    match (known(text), known(name)) {
        (Some(one), Some(other)) => one == other,
        (None, None) => {
            let [text, name] = [text, name].map(|name| name.strip_suffix(b".").unwrap_or(name));
            text.eq_ignore_ascii_case(name)
        }
        _ => false,
    }
}
