//! The phase *authorize*: the check of credentials (RFC 3261 §22, RFC 7616).

use alloc::boxed::Box;
use alloc::vec::Vec;

use sip_message::header::NameAddr;
use sip_message::uri::is_same;
use sip_message::{HeaderName, Host, Method, SipUri, TelUri, Uri};

use super::Progress;
use crate::activity::Component;
use crate::auth::challenge::{self, Credentials, Found, Role};
use crate::auth::nonce::NonceId;
use crate::auth::verify::Refusal;
use crate::auth::window::NonceUse;
use crate::config::{AuthPolicy, Config, Domain, StateMode};
use crate::engine::Engine;
use crate::engine::directory::address_of_record;
use crate::engine::place::DomainNumber;
use crate::engine::refusals::{Report, text};
use crate::engine::request::{Authorized, Request};
use crate::engine::status::Status;
use crate::engine::waiting::{Parked, Purpose};
use crate::event::{AuthFailure, Event};
use crate::location::aor::unescape;
use crate::query::{QueryKind, Secrets};
use crate::transport::Transport;

/// The longest user name that is looked up, in bytes. Account names are shorter in every table, but a
/// stranger may send a name of any length.
const MAX_USERNAME: usize = 255;

impl Engine {
    /// The domain with the policy that holds for a request: that of From if it is ours, else that of
    /// the Request-URI.
    pub(crate) fn policy_domain<'c>(&self, config: &'c Config, request: &Request<'_>) -> Option<&'c Domain> {
        self.domain_of_from(config, request)
            .or_else(|| match &request.uri {
                Uri::Sip(uri) => self.directory.domain_of(config, uri),
                Uri::Tel(_) | Uri::Other { .. } => None,
            })
    }

    /// The domain of From, if it is ours.
    pub(crate) fn domain_of_from<'c>(&self, config: &'c Config, request: &Request<'_>) -> Option<&'c Domain> {
        let uri = request.from.sip_uri()?;
        self.directory.domain_of_host(config, &uri.host)
    }

    /// The domain with this number that asks for credentials: a side of a dialog must have an account there.
    /// If two such domains share the number, the domain that From names.
    pub(crate) fn domain_of_side<'c>(
        &self,
        config: &'c Config,
        request: &Request<'_>,
        number: DomainNumber,
    ) -> Option<&'c Domain> {
        let asks = |domain: &&Domain| domain.auth.asks(request.method.as_bytes(), true);
        let from = self.domain_of_from(config, request);
        let is_named = |domain: &&Domain| from.is_some_and(|from| core::ptr::eq(from, *domain));
        let all = || self.directory.domains_of(config, number).filter(asks);
        all().find(is_named).or_else(|| all().next())
    }

    /// Checks the credentials for `domain`, and challenges if none are valid.
    pub(crate) fn authorize(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        domain: &Domain,
    ) -> Option<Authorized> {
        // §22.1: an ACK cannot be challenged, a CANCEL must not be.
        if matches!(request.method, Method::Ack | Method::Cancel) {
            return Some(Authorized::Unasked);
        }
        if progress.authorized == Some(Authorized::Credentials) {
            return progress.authorized;
        }
        let before = self.activity.enter(Component::Auth);
        let authorized = self.check_credentials(request, progress, domain);
        self.activity.enter(before);
        authorized
    }

    fn check_credentials(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        domain: &Domain,
    ) -> Option<Authorized> {
        let role = role_of(request.method);
        let credentials = match challenge::find(&request.message, role, &domain.auth) {
            Found::Credentials(credentials) => credentials,
            Found::None => {
                self.challenge(request, progress, &domain.auth, false);
                return None;
            }
            Found::Malformed => {
                self.refuse(request, progress.server, Status::MALFORMED_CREDENTIALS);
                return None;
            }
        };
        let nonce = self.precheck(request, progress, domain, &credentials)?;
        let mut user = Vec::with_capacity(credentials.username.len());
        unquote(credentials.username, &mut user);
        if user.len() > MAX_USERNAME {
            return self.judge(request, progress, domain, (&credentials, Some(nonce)), None);
        }
        match self
            .shared
            .cached_secrets(&user, &domain.name, &domain.auth.realm)
        {
            Some(secrets) => {
                let credentials = (&credentials, Some(nonce));
                self.judge(request, progress, domain, credentials, secrets.as_ref())
            }
            None => self.park_for_credentials(request, progress, domain, user),
        }
    }

    /// Checks the parts of credentials that need no secret. Returns the number of the nonce; `None`: a
    /// response was sent.
    fn precheck(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        domain: &Domain,
        credentials: &Credentials<'_>,
    ) -> Option<NonceId> {
        let now = self.now.unix_ms;
        let uri = self.expected_uri(request, domain, credentials);
        match self.authenticator.precheck(&domain.auth, credentials, uri, now) {
            // The nonce was sent to another address than this UDP source. A new challenge, which only the
            // source can answer, costs a client that has moved a round trip, and others nothing.
            Ok(_) if !self.is_proved_by(request, credentials) => {
                self.counters.auth_stale += 1;
                self.challenge(request, progress, &domain.auth, true);
                None
            }
            Ok(nonce) => Some(nonce),
            Err(Refusal::Stale | Refusal::Forged) => {
                self.counters.auth_stale += 1;
                self.challenge(request, progress, &domain.auth, true);
                None
            }
            Err(Refusal::WrongUri) => {
                self.counters.auth_uri_refused += 1;
                self.refuse(request, progress.server, Status::WRONG_DIGEST_URI);
                None
            }
        }
    }

    /// The URI that `uri` in credentials must equal: the Request-URI. If a proxy before this server rewrote
    /// its host (RFC 3261 §22.4, rule 6), it is the URI before that. Both must name the same user at hosts of
    /// this server: an authenticated request must not be redirected on its way here.
    fn expected_uri<'a>(
        &self,
        request: &Request<'a>,
        domain: &Domain,
        credentials: &Credentials<'a>,
    ) -> &'a [u8] {
        let original = original_uri(request);
        if domain.auth.strict_uri || credentials.uri == original {
            return original;
        }
        let (Ok(Uri::Sip(now)), Ok(Uri::Sip(then))) = (Uri::parse(original), Uri::parse(credentials.uri))
        else {
            return original;
        };
        let is_own = |uri: &SipUri<'_>| self.directory.is_own(&uri.host, uri.port);
        let domain_of = |uri: &SipUri<'_>| self.directory.domain_of(&self.config, uri);
        // Two domains have different users of one name. A host of ours that is no domain has no users.
        let domains = match (domain_of(&now), domain_of(&then)) {
            (Some(now), Some(then)) => now.name == then.name,
            (Some(_) | None, None) | (None, Some(_)) => true,
        };
        let user = |uri: &SipUri<'_>| {
            let mut user = Vec::new();
            unescape(uri.user.unwrap_or_default(), &mut user);
            user
        };
        // Parameters affect routing, too: none may have been added on the way here.
        let params = now.params.as_bytes().is_empty() || now.params.as_bytes() == then.params.as_bytes();
        let is_same = now == then
            || (is_own(&now)
                && is_own(&then)
                && domains
                && params
                && now.secure == then.secure
                && user(&now) == user(&then));
        if is_same { credentials.uri } else { original }
    }

    /// Whether the source may have sent these credentials: it got the challenge, cannot be spoofed, or is
    /// trusted.
    fn is_proved_by(&self, request: &Request<'_>, credentials: &Credentials<'_>) -> bool {
        request.flow.transport != Transport::Udp
            || self
                .authenticator
                .answers_from(credentials, request.flow.remote.ip())
            || self.is_trusted(&request.flow)
    }

    /// Compares the digest response with the secrets (`None`: no such user). The number of the nonce is given
    /// if the nonce has just been checked.
    fn judge(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        domain: &Domain,
        (credentials, nonce): (&Credentials<'_>, Option<NonceId>),
        secrets: Option<&Secrets>,
    ) -> Option<Authorized> {
        let verdict = self
            .authenticator
            .check(credentials, request.method.as_bytes(), secrets);
        if verdict.is_err() && secrets.is_some_and(|secrets| secrets.outdated) {
            // The user may have a new password. A user that was not known before must get the same
            // response.
            self.credentials_unavailable(request, progress);
            return None;
        }
        if let Err(reason) = verdict {
            self.counters.auth_rejected += 1;
            self.note_failure(request, &domain.name, credentials, reason);
            self.challenge(request, progress, &domain.auth, false);
            return None;
        }
        let now = self.now.unix_ms;
        let look = || {
            let uri = self.expected_uri(request, domain, credentials);
            let looked = self.authenticator.precheck(&domain.auth, credentials, uri, now);
            looked.ok()
        };
        let Some(nonce) = nonce.or_else(look) else {
            self.challenge(request, progress, &domain.auth, true);
            return None;
        };
        let this = self
            .authenticator
            .request_hash(request.message.bytes(), request.flow.remote);
        match self.shared.use_nonce(now, nonce, credentials.count, this) {
            NonceUse::Fresh | NonceUse::Retransmission => {}
            NonceUse::Replay => {
                self.counters.auth_replayed += 1;
                self.note_failure(request, &domain.name, credentials, AuthFailure::Replay);
                self.challenge(request, progress, &domain.auth, true);
                return None;
            }
            NonceUse::Unknown => {
                self.counters.auth_stale += 1;
                self.challenge(request, progress, &domain.auth, true);
                return None;
            }
        }
        let any_from = progress.any_account_of != 0;
        if !self.may_use_identity(request, domain, credentials.username, any_from) {
            self.counters.auth_rejected += 1;
            self.note_failure(request, &domain.name, credentials, AuthFailure::NotOwner);
            self.refuse(request, progress.server, Status::NOT_OWNER);
            return None;
        }
        self.counters.auth_accepted += 1;
        if !is_same(credentials.uri, original_uri(request)) {
            self.counters.auth_uri_rewritten += 1;
            self.note_rewritten_uri(request, credentials.uri);
        }
        Some(Authorized::Credentials)
    }

    fn note_failure(
        &mut self,
        request: &Request<'_>,
        domain: &[u8],
        credentials: &Credentials<'_>,
        reason: AuthFailure,
    ) {
        let is_guess = matches!(reason, AuthFailure::UnknownUser | AuthFailure::WrongPassword);
        let counts = is_guess && self.counts_against(&request.flow, Some(credentials));
        let unreported = self.may_report(Report::AuthFailure, request.flow, reason as u16);
        self.event(Event::AuthFailed {
            user: text(credentials.username),
            source: request.flow.remote,
            method: Box::from(request.method.as_bytes()),
            domain: Box::from(domain),
            call_id: text(request.call_id),
            reason,
            counts,
            unreported,
        });
    }

    /// Whether the account `username` may use the identities of this request (RFC 3261 §10.3 step 4, RFC 3325
    /// §9.1). These are From and each P-Preferred-Identity; for REGISTER, To. `any_from`: From may be
    /// another's, as on the called side of a forwarded call.
    fn may_use_identity(
        &self,
        request: &Request<'_>,
        domain: &Domain,
        username: &[u8],
        any_from: bool,
    ) -> bool {
        let mut user = Vec::with_capacity(username.len());
        unquote(username, &mut user);
        let user_len = self.user_part(domain, &user).len();
        user.truncate(user_len);
        let mut wanted = user;
        wanted.push(b'@');
        wanted.extend_from_slice(&domain.name);
        let is_his = |addr: &NameAddr<'_>| {
            addr.sip_uri().is_some_and(|uri| {
                self.directory
                    .domain_of_host(&self.config, &uri.host)
                    .is_some_and(|d| *address_of_record(uri.user.unwrap_or_default(), d) == *wanted)
            })
        };
        if request.method == Method::Register {
            return is_his(&request.to);
        }
        let may_prefer = |addr: NameAddr<'_>| match addr.parsed_uri() {
            Ok(Uri::Tel(tel)) => is_number_of(&tel, wanted.get(..user_len).unwrap_or_default(), &domain.name),
            Ok(Uri::Sip(_) | Uri::Other { .. }) | Err(_) => is_his(&addr),
        };
        let mut preferred = request.message.values(HeaderName::PPreferredIdentity);
        (any_from || is_his(&request.from))
            && preferred.all(|v| NameAddr::parse(v.text).is_some_and(may_prefer))
    }

    /// The user part of `username`. Some phones append `@` and one of the domain's names (the column `ha1b`
    /// is for them).
    fn user_part<'u>(&self, domain: &Domain, username: &'u [u8]) -> &'u [u8] {
        let Some(at) = username.iter().rposition(|b| *b == b'@').filter(|at| *at > 0) else {
            return username;
        };
        let (user, host) = username.split_at(at);
        let named = Host::parse(host.get(1..).unwrap_or_default())
            .and_then(|host| self.directory.domain_of_host(&self.config, &host));
        if named.is_some_and(|named| named.name == domain.name) {
            user
        } else {
            username
        }
    }

    /// Sends a 401 or 407 (§22.2, §22.3), without state if the request has none.
    fn challenge(&mut self, request: &Request<'_>, progress: Progress, policy: &AuthPolicy, stale: bool) {
        self.counters.auth_challenges += 1;
        let role = role_of(request.method);
        let mut lines = Vec::with_capacity(160 * policy.algorithms.len());
        let source = request.flow.remote.ip();
        self.authenticator
            .challenge(&mut lines, role, policy, self.now.unix_ms, source, stale);
        if request.flow.transport == Transport::Udp {
            let request_len = request.message.bytes().len();
            shorten(&mut lines, request_len);
            if 3 * request_len < request_len + lines.len() + OWN_HEADERS
                && self.reply_len(request, role.into(), &lines) > 3 * request_len
            {
                return self.refuse(request, progress.server, Status::TOO_SHORT_TO_CHALLENGE);
            }
        }
        self.refuse_with(request, progress.server, role.into(), &lines);
    }

    fn park_for_credentials(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        domain: &Domain,
        user: Vec<u8>,
    ) -> Option<Authorized> {
        let kind = QueryKind::Credentials {
            user_len: self.user_part(domain, &user).len(),
            username: user.into_boxed_slice(),
            domain: domain.name.clone(),
            realm: domain.auth.realm.clone(),
        };
        if !self.may_ask_for(&request.flow) {
            self.refuse(request, progress.server, Status::SOURCE_LIMIT);
            return None;
        }
        // The nonce of the request was sent to its source.
        if let Some(mut parked) = self.park(request, progress, StateMode::Transaction, true) {
            parked.watched = self.watch_flow(request);
            self.ask(kind, Purpose::Credentials(parked));
        }
        None
    }

    /// Parks a request until its result arrives. A server transaction holds the request, so that its client
    /// does not retransmit. A stateless request, an ACK, a CANCEL and a REGISTER are held as bytes: their
    /// copies may be handled separately. `vouched` as in [`Engine::begin`]. `None`: the request was refused.
    pub(crate) fn park(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        state: StateMode,
        vouched: bool,
    ) -> Option<Parked> {
        let bytes = request.message.bytes();
        if !self.may_park(bytes.len()) {
            self.refuse(request, progress.server, Status::NO_ROOM_TO_WAIT);
            return None;
        }
        let plain = state == StateMode::Stateless
            || matches!(request.method, Method::Register | Method::Ack | Method::Cancel);
        let server = match progress.server {
            Some(key) => Some(key),
            None if plain => None,
            None => match self.begin(request, vouched) {
                Some(key) => Some(key),
                None => {
                    self.refuse(request, None, Status::NO_ROOM);
                    return None;
                }
            },
        };
        let bytes = if server.is_some() {
            Box::default()
        } else {
            Box::from(bytes)
        };
        Some(Parked {
            flow: request.flow,
            bytes,
            server,
            authorized: progress.authorized,
            any_account_of: progress.any_account_of,
            asked: progress.asked,
            target: None,
            watched: false,
        })
    }

    /// Checks the credentials of a request that waited for the secrets of its user.
    pub(crate) fn judge_parked(
        &mut self,
        request: &Request<'_>,
        progress: Progress,
        secrets: Option<&Secrets>,
    ) -> Option<Authorized> {
        self.activity.enter(Component::Auth);
        let config = self.config.clone();
        let Some(domain) = self.auth_domain(request, &config, progress) else {
            // The configuration changed while it waited: the domain is no longer ours.
            self.refuse(request, progress.server, Status::FOREIGN_DOMAIN);
            return None;
        };
        match challenge::find(&request.message, role_of(request.method), &domain.auth) {
            Found::Credentials(credentials) => {
                self.judge(request, progress, domain, (&credentials, None), secrets)
            }
            // The configuration changed while it waited.
            Found::None | Found::Malformed => {
                self.challenge(request, progress, &domain.auth, false);
                None
            }
        }
    }

    /// The domain for which a request was challenged.
    fn auth_domain<'c>(
        &self,
        request: &Request<'_>,
        config: &'c Config,
        progress: Progress,
    ) -> Option<&'c Domain> {
        if request.method == Method::Register {
            return self.directory.domain_of(config, request.uri.sip()?);
        }
        if progress.any_account_of != 0 {
            return self.domain_of_side(config, request, progress.any_account_of);
        }
        self.policy_domain(config, request)
    }

    /// Removes credentials for realms of ours, and the identity claims that only trusted peers may make (RFC
    /// 3261 §22.3, RFC 3325 §5).
    pub(crate) fn strip_identity(&mut self, request: &Request<'_>) {
        let message = &request.message;
        if message.has(HeaderName::ProxyAuthorization) || message.has(HeaderName::Authorization) {
            for domain in &self.config.domains {
                for line in challenge::own_credentials(message, &domain.auth.realm) {
                    self.edits.delete(line);
                }
            }
        }
        self.strip_asserted_identity(message, &request.flow);
        self.strip_verstat(request);
    }
}

/// Whether a telephone number is the name of `user`. No other numbers of a user are known here.
fn is_number_of(tel: &TelUri<'_>, user: &[u8], domain: &[u8]) -> bool {
    // RFC 3966 §5.1.1: separators that only people read.
    let digits = tel
        .number
        .iter()
        .filter(|c| !matches!(c, b'-' | b'.' | b'(' | b')'));
    let context = tel.params.value(b"phone-context");
    digits.eq(user) && context.is_none_or(|context| context.eq_ignore_ascii_case(domain))
}

/// Bytes of the status line of a response, and of its headers that are not copied from the request.
const OWN_HEADERS: usize = 160;

/// Drops challenges of less preferred algorithms, never the first. A response to a source that may be spoofed
/// must be at most three times as long as the request of `request_len` bytes.
fn shorten(lines: &mut Vec<u8>, request_len: usize) {
    let most = (2 * request_len).saturating_sub(OWN_HEADERS);
    let mut kept = 0;
    for line in lines.split_inclusive(|c| *c == b'\n') {
        if kept > 0 && kept + line.len() > most {
            break;
        }
        kept += line.len();
    }
    lines.truncate(kept);
}

/// The role in which this server challenges: a server for REGISTER, a proxy for all other requests.
pub(super) fn role_of(method: Method<'_>) -> Role {
    if method == Method::Register {
        Role::Server
    } else {
        Role::Proxy
    }
}

/// The Request-URI as it came, over which the client computed its digest response.
pub(super) fn original_uri<'a>(request: &Request<'a>) -> &'a [u8] {
    request.message.request_uri().unwrap_or_default()
}

/// Appends `text` to `out` without the escapes of a quoted string.
fn unquote(text: &[u8], out: &mut Vec<u8>) {
    let mut bytes = text.iter();
    while let Some(&c) = bytes.next() {
        match c {
            b'\\' => out.extend(bytes.next()),
            _ => out.push(c),
        }
    }
    // Some phones percent-encode the user name as From does.
    if out.contains(&b'%') {
        let text = core::mem::take(out);
        unescape(&text, out);
    }
}
