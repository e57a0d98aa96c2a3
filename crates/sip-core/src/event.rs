//! Counters of the core, which cost one addition each, and typed events, for logs and call records.
//! The core logs nothing itself.

mod calls;
mod refusal;

pub use calls::{BOUNDS_US, Calls, Code, Times};
pub use refusal::RefusalCause;

use alloc::boxed::Box;
use core::net::{IpAddr, SocketAddr};

/// Defines the counters once: field, Prometheus name and help.
macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $field:ident => $name:literal { $($label:literal),* };)+) => {
        /// Counts since the endpoint was made. One set per worker, written only by it.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[doc = $doc])+ pub $field: u64,)+ }

        /// Name, help and label (`key="value"`, or empty) of one counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct CounterInfo {
            /// Metric name without the `trapezoid_` prefix and the `_total` suffix.
            pub name: &'static str,
            /// One sentence.
            pub help: &'static str,
            /// Labels as Prometheus writes them between the braces; may be empty.
            pub labels: &'static str,
        }

        impl Counters {
            /// Descriptions, in the order of [`Counters::values`].
            pub const INFO: &'static [CounterInfo] = &[
                $(CounterInfo { name: $name, help: concat!($($doc),+), labels: concat!($($label),*) },)+
            ];

            /// All values, in the order of [`Counters::INFO`].
            pub fn values(&self) -> [u64; Self::INFO.len()] {
                [$(self.$field,)+]
            }
        }
    };
}

counters! {
    /// Requests received.
    requests_invite => "requests_received" { "method=\"INVITE\"" };
    /// Requests received.
    requests_ack => "requests_received" { "method=\"ACK\"" };
    /// Requests received.
    requests_bye => "requests_received" { "method=\"BYE\"" };
    /// Requests received.
    requests_cancel => "requests_received" { "method=\"CANCEL\"" };
    /// Requests received.
    requests_register => "requests_received" { "method=\"REGISTER\"" };
    /// Requests received.
    requests_options => "requests_received" { "method=\"OPTIONS\"" };
    /// Requests received.
    requests_other => "requests_received" { "method=\"other\"" };
    /// Responses received.
    responses_1xx => "responses_received" { "class=\"1xx\"" };
    /// Responses received.
    responses_2xx => "responses_received" { "class=\"2xx\"" };
    /// Responses received.
    responses_3xx => "responses_received" { "class=\"3xx\"" };
    /// Responses received.
    responses_4xx => "responses_received" { "class=\"4xx\"" };
    /// Responses received.
    responses_5xx => "responses_received" { "class=\"5xx\"" };
    /// Responses received.
    responses_6xx => "responses_received" { "class=\"6xx\"" };
    /// Requests relayed, by state kept.
    relayed_stateless => "requests_relayed" { "state=\"stateless\"" };
    /// Requests relayed, by state kept.
    relayed_stateful => "requests_relayed" { "state=\"transaction\"" };
    /// Responses relayed, by state kept.
    responses_relayed_stateless => "responses_relayed" { "state=\"stateless\"" };
    /// Responses relayed, by state kept.
    responses_relayed_stateful => "responses_relayed" { "state=\"transaction\"" };
    /// Responses with a flaw, by what became of them.
    responses_mended => "responses_flawed" { "result=\"mended\"" };
    /// Responses with a flaw, by what became of them.
    responses_flawed => "responses_flawed" { "result=\"not-passed-on\"" };
    /// Responses made by this server.
    replies_100 => "responses_made" { "class=\"1xx\",code=\"100\"" };
    /// Responses made by this server.
    replies_1xx => "responses_made" { "class=\"1xx\",code=\"other\"" };
    /// Responses made by this server.
    replies_200 => "responses_made" { "class=\"2xx\",code=\"200\"" };
    /// Responses made by this server.
    replies_2xx => "responses_made" { "class=\"2xx\",code=\"other\"" };
    /// Responses made by this server.
    replies_302 => "responses_made" { "class=\"3xx\",code=\"302\"" };
    /// Responses made by this server.
    replies_3xx => "responses_made" { "class=\"3xx\",code=\"other\"" };
    /// Responses made by this server.
    replies_400 => "responses_made" { "class=\"4xx\",code=\"400\"" };
    /// Responses made by this server.
    replies_401 => "responses_made" { "class=\"4xx\",code=\"401\"" };
    /// Responses made by this server.
    replies_403 => "responses_made" { "class=\"4xx\",code=\"403\"" };
    /// Responses made by this server.
    replies_404 => "responses_made" { "class=\"4xx\",code=\"404\"" };
    /// Responses made by this server.
    replies_405 => "responses_made" { "class=\"4xx\",code=\"405\"" };
    /// Responses made by this server.
    replies_407 => "responses_made" { "class=\"4xx\",code=\"407\"" };
    /// Responses made by this server.
    replies_408 => "responses_made" { "class=\"4xx\",code=\"408\"" };
    /// Responses made by this server.
    replies_413 => "responses_made" { "class=\"4xx\",code=\"413\"" };
    /// Responses made by this server.
    replies_416 => "responses_made" { "class=\"4xx\",code=\"416\"" };
    /// Responses made by this server.
    replies_420 => "responses_made" { "class=\"4xx\",code=\"420\"" };
    /// Responses made by this server.
    replies_423 => "responses_made" { "class=\"4xx\",code=\"423\"" };
    /// Responses made by this server.
    replies_430 => "responses_made" { "class=\"4xx\",code=\"430\"" };
    /// Responses made by this server.
    replies_440 => "responses_made" { "class=\"4xx\",code=\"440\"" };
    /// Responses made by this server.
    replies_480 => "responses_made" { "class=\"4xx\",code=\"480\"" };
    /// Responses made by this server.
    replies_481 => "responses_made" { "class=\"4xx\",code=\"481\"" };
    /// Responses made by this server.
    replies_482 => "responses_made" { "class=\"4xx\",code=\"482\"" };
    /// Responses made by this server.
    replies_483 => "responses_made" { "class=\"4xx\",code=\"483\"" };
    /// Responses made by this server.
    replies_484 => "responses_made" { "class=\"4xx\",code=\"484\"" };
    /// Responses made by this server.
    replies_486 => "responses_made" { "class=\"4xx\",code=\"486\"" };
    /// Responses made by this server.
    replies_487 => "responses_made" { "class=\"4xx\",code=\"487\"" };
    /// Responses made by this server.
    replies_488 => "responses_made" { "class=\"4xx\",code=\"488\"" };
    /// Responses made by this server.
    replies_4xx => "responses_made" { "class=\"4xx\",code=\"other\"" };
    /// Responses made by this server.
    replies_500 => "responses_made" { "class=\"5xx\",code=\"500\"" };
    /// Responses made by this server.
    replies_501 => "responses_made" { "class=\"5xx\",code=\"501\"" };
    /// Responses made by this server.
    replies_502 => "responses_made" { "class=\"5xx\",code=\"502\"" };
    /// Responses made by this server.
    replies_503 => "responses_made" { "class=\"5xx\",code=\"503\"" };
    /// Responses made by this server.
    replies_504 => "responses_made" { "class=\"5xx\",code=\"504\"" };
    /// Responses made by this server.
    replies_505 => "responses_made" { "class=\"5xx\",code=\"505\"" };
    /// Responses made by this server.
    replies_513 => "responses_made" { "class=\"5xx\",code=\"513\"" };
    /// Responses made by this server.
    replies_5xx => "responses_made" { "class=\"5xx\",code=\"other\"" };
    /// Responses made by this server.
    replies_600 => "responses_made" { "class=\"6xx\",code=\"600\"" };
    /// Responses made by this server.
    replies_603 => "responses_made" { "class=\"6xx\",code=\"603\"" };
    /// Responses made by this server.
    replies_607 => "responses_made" { "class=\"6xx\",code=\"607\"" };
    /// Responses made by this server.
    replies_608 => "responses_made" { "class=\"6xx\",code=\"608\"" };
    /// Responses made by this server.
    replies_6xx => "responses_made" { "class=\"6xx\",code=\"other\"" };
    /// Retransmissions received and absorbed by a transaction.
    retransmissions_absorbed => "retransmissions_absorbed" {};
    /// Requests and responses sent again by a timer.
    retransmissions_sent => "retransmissions_sent" {};
    /// Messages dropped, by cause.
    dropped_not_sip => "dropped" { "cause=\"not-sip\"" };
    /// Messages dropped, by cause.
    dropped_stun => "dropped" { "cause=\"stun\"" };
    /// Keep-alives by STUN that got a response.
    stun_responses => "stun_responses" {};
    /// Messages dropped, by cause.
    dropped_malformed => "dropped" { "cause=\"malformed\"" };
    /// Messages dropped, by cause.
    dropped_stray_response => "dropped" { "cause=\"stray-response\"" };
    /// Messages dropped, by cause.
    dropped_stray_ack => "dropped" { "cause=\"stray-ack\"" };
    /// Messages dropped, by cause.
    dropped_no_route => "dropped" { "cause=\"no-next-hop\"" };
    /// Messages dropped, by cause.
    dropped_banned => "dropped" { "cause=\"banned\"" };
    /// Messages dropped, by cause.
    dropped_rate => "dropped" { "cause=\"rate\"" };
    /// Messages dropped, by cause.
    dropped_scanner => "dropped" { "cause=\"scanner\"" };
    /// Messages dropped, by cause.
    dropped_event => "dropped" { "cause=\"event-queue-full\"" };
    /// Outcomes of digest authentication.
    auth_challenges => "auth" { "result=\"challenged\"" };
    /// Outcomes of digest authentication.
    auth_accepted => "auth" { "result=\"accepted\"" };
    /// Outcomes of digest authentication.
    auth_rejected => "auth" { "result=\"rejected\"" };
    /// Outcomes of digest authentication.
    auth_stale => "auth" { "result=\"stale\"" };
    /// Outcomes of digest authentication.
    auth_replayed => "auth" { "result=\"replayed\"" };
    /// Outcomes of digest authentication.
    auth_unavailable => "auth" { "result=\"unavailable\"" };
    /// REGISTER requests, by outcome.
    registrations => "registrations" { "result=\"accepted\"" };
    /// REGISTER requests, by outcome.
    registrations_relayed => "registrations" { "result=\"relayed\"" };
    /// REGISTER requests, by outcome.
    registrations_refused => "registrations" { "result=\"refused\"" };
    /// REGISTER requests, by outcome.
    registrations_failed => "registrations" { "result=\"store-failed\"" };
    /// Relayed REGISTER requests that got 2xx, by whether their bindings are kept here.
    relayed_kept => "relayed_registrations" { "result=\"kept\"" };
    /// Relayed REGISTER requests that got 2xx, by whether their bindings are kept here.
    relayed_not_kept => "relayed_registrations" { "result=\"not-kept\"" };
    /// Requests refused for the path token in their Route, by reason.
    path_tokens_forged => "path_tokens_refused" { "reason=\"forged\"" };
    /// Requests refused for the path token in their Route, by reason.
    path_tokens_foreign => "path_tokens_refused" { "reason=\"foreign\"" };
    /// Transactions begun, by side.
    transactions_server => "transactions" { "side=\"server\"" };
    /// Transactions begun, by side.
    transactions_client => "transactions" { "side=\"client\"" };
    /// Client transactions that timed out (timers B, F and C).
    transactions_timed_out => "transactions_timed_out" {};
    /// Client transactions with a next hop that could not be reached.
    transactions_unreachable => "transactions_unreachable" {};
    /// Requests refused because a limit was reached.
    limited_transactions => "limit_reached" { "limit=\"transactions\"" };
    /// Responses of which nothing was kept, to be sent again or as the best of several.
    limited_responses => "limit_reached" { "limit=\"responses\"" };
    /// Requests refused because a limit was reached.
    limited_parked => "limit_reached" { "limit=\"parked\"" };
    /// Requests refused because a limit was reached.
    limited_source_look_ups => "limit_reached" { "limit=\"look-ups-of-a-source\"" };
    /// Requests refused because a limit was reached.
    limited_location => "limit_reached" { "limit=\"location-bytes\"" };
    /// Requests refused because a limit was reached.
    limited_flow_registrations => "limit_reached" { "limit=\"registrations-per-connection\"" };
    /// Requests refused because a limit was reached.
    limited_flows => "limit_reached" { "limit=\"flows\"" };
    /// Requests refused because a limit was reached.
    limited_aliases => "limit_reached" { "limit=\"aliases\"" };
    /// Responses dropped, beyond those that may go to the addresses in the Via of one source.
    limited_response_failover => "limit_reached" { "limit=\"responses-elsewhere\"" };
    /// Sources forgotten although they had sent something recently, as the table was full.
    sources_evicted => "sources_evicted" {};
    /// Messages of sources that were not counted, as no other source could be forgotten.
    sources_untracked => "sources_untracked" {};
    /// Bindings with a connection that has closed.
    flows_lost => "registration_flows_lost" {};
    /// Requests sent to another address of the next hop after the first failed (RFC 3263 §4.3).
    failovers => "failovers" {};
    /// Requests too long for a datagram, by what was done.
    switched_to_tcp => "udp_too_long" { "result=\"sent-by-tcp\"" };
    /// Requests too long for a datagram, by what was done.
    switched_back => "udp_too_long" { "result=\"sent-by-udp-after-tcp-failed\"" };
    /// Requests too long for a datagram, by what was done.
    kept_on_udp => "udp_too_long" { "result=\"sent-by-udp-as-tcp-failed-before\"" };
    /// Requests sent to several targets at once or in turn (RFC 3261 §16.7).
    forked => "forked" {};
    /// Responses 3xx with contacts that became targets.
    recursions => "recursions" {};
    /// Registered contacts that lead back to this server, and were looked up here.
    contacts_own => "contacts_own" {};
    /// Addresses to which no request was sent, as a contact, a 3xx or a dialog must not lead there.
    destinations_denied => "destinations_denied" {};
    /// REGISTER requests refused for their contacts, by reason.
    contacts_unproved => "contacts_refused" { "reason=\"source-not-proved\"" };
    /// REGISTER requests refused for their contacts, by reason.
    contacts_too_new => "contacts_refused" { "reason=\"new-addresses\"" };
    /// Pings of contacts behind NATs.
    pings_sent => "pings_sent" {};
    /// Responses to pings of contacts behind NATs.
    pings_answered => "pings_answered" {};
    /// Contacts behind NATs that stopped answering pings.
    contacts_lost => "contacts_lost" {};
    /// Lost contacts that answered or registered again.
    contacts_returned => "contacts_returned" {};
    /// Contacts that got no request, as they no longer answer pings.
    contacts_unreachable => "contacts_unreachable" {};
    /// Forked requests that came back unchanged and got 482 (RFC 5393 §4.2).
    loops => "loops" {};
    /// OPTIONS sent to members of groups, by outcome.
    probe_responses => "probes" { "result=\"answered\"" };
    /// OPTIONS sent to members of groups, by outcome.
    probes_failed => "probes" { "result=\"failed\"" };
    /// Credentials for a `uri` that is not the Request-URI, accepted if both name the same user here.
    auth_uri_rewritten => "auth_uri_rewritten" { "result=\"accepted\"" };
    /// Credentials for a `uri` that is not the Request-URI, accepted if both name the same user here.
    auth_uri_refused => "auth_uri_rewritten" { "result=\"refused\"" };
    /// Queries sent to a back-end.
    queries_credentials => "queries" { "kind=\"credentials\"" };
    /// Queries sent to a back-end.
    queries_resolve => "queries" { "kind=\"resolve\"" };
    /// Queries sent to a back-end.
    queries_save => "queries" { "kind=\"save-bindings\"" };
    /// Queries without a result by their deadline.
    queries_expired => "queries_expired" {};
}

/// Values that go up and down, read when metrics are scraped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Server transactions held, finished ones included.
    pub server_transactions: u64,
    /// Server transactions that have sent no final response.
    pub live_transactions: u64,
    /// INVITE transactions that have sent no final response.
    pub live_invites: u64,
    /// Client transactions held, finished ones included.
    pub client_transactions: u64,
    /// Bytes of the messages that transactions hold.
    pub transaction_bytes: u64,
    /// Requests that wait for a back-end.
    pub parked_requests: u64,
    /// Bytes that those requests hold.
    pub parked_bytes: u64,
    /// Timers running.
    pub timers: u64,
    /// Names in the resolver's cache.
    pub dns_entries: u64,
    /// Connections on which registrations, client transactions or waiting REGISTERs hang.
    pub flows: u64,
    /// Connections that registrations were made over.
    pub flows_registered: u64,
    /// Sources that have sent something recently, if messages are limited by source.
    pub sources: u64,
}

/// An event for logs and call records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A REGISTER got 200: here, or from the registrar that it was relayed to.
    Registered {
        /// `user@domain`.
        aor: Box<[u8]>,
        /// Source.
        source: SocketAddr,
        /// The number of bindings after the REGISTER.
        contacts: u32,
    },
    /// An INVITE for which this worker holds state got its final response.
    InviteCompleted {
        /// Call-ID.
        call_id: Box<[u8]>,
        /// Status code relayed to the caller.
        status: u16,
        /// Microseconds from the INVITE's arrival to that response.
        after_us: u64,
    },
    /// A response with a flaw came. It was mended and relayed, or it ended its branch.
    ResponseFlawed {
        /// Source.
        source: SocketAddr,
        /// Call-ID; empty if it cannot be read.
        call_id: Box<[u8]>,
        /// The flaw: one of few texts.
        flaw: &'static str,
        /// Whether the response was mended.
        mended: bool,
    },
    /// Authentication failed: wrong credentials, an unknown user, or a request in another user's
    /// name.
    AuthFailed {
        /// `username` as sent.
        user: Box<[u8]>,
        /// Source.
        source: SocketAddr,
        /// Method of the request.
        method: Box<[u8]>,
        /// The domain whose credentials were asked for.
        domain: Box<[u8]>,
        /// Call-ID of the request.
        call_id: Box<[u8]>,
        /// The reason of the failure.
        reason: AuthFailure,
        /// Whether the failure counts towards a ban of the source. A failure counts if it is a guess at a
        /// password, from a verified source outside of the trust domain. The source of a datagram is verified
        /// if it returns a nonce that was sent to it.
        counts: bool,
        /// `Some`: log the failure, with the number of failures of this source and reason that were not
        /// logged since the last that was. `None`: do not log it; abuse control counts it.
        unreported: Option<u32>,
    },
    /// This server refused a request. Each refusal is reported, up to a bound for one source and status, and
    /// a bound for all.
    Refused {
        /// Source.
        source: SocketAddr,
        /// Method; empty if the message is no request that can be read.
        method: Box<[u8]>,
        /// Request-URI, as far as it is kept. The following texts are kept in the same way.
        uri: Box<[u8]>,
        /// Call-ID.
        call_id: Box<[u8]>,
        /// URI of From.
        from: Box<[u8]>,
        /// URI of To.
        to: Box<[u8]>,
        /// `uri` of the digest credentials if that was refused, else empty.
        digest_uri: Box<[u8]>,
        /// Number of the rule that the request went by, from 0; `None`: no rule matched, or none was looked
        /// for. If the configuration has been loaded again, rules may have other numbers since.
        rule: Option<u16>,
        /// Status code of the response.
        status: u16,
        /// The reason phrase of the response.
        reason: Box<str>,
        /// The cause, if the reason phrase does not show it.
        cause: Option<RefusalCause>,
        /// Refusals of this source, status and cause since the last report that were not reported.
        unreported: u32,
    },
    /// Credentials were accepted for a `uri` that is not the Request-URI but another of the same user. Each
    /// request is reported, up to a bound for one source and a bound for all.
    DigestUriRewritten {
        /// Source.
        source: SocketAddr,
        /// Method.
        method: Box<[u8]>,
        /// Request-URI.
        uri: Box<[u8]>,
        /// `uri` of the credentials.
        digest_uri: Box<[u8]>,
        /// Call-ID.
        call_id: Box<[u8]>,
        /// Such requests of this source since the last report that were not reported.
        unreported: u32,
    },
    /// A source sends more than it may. The event comes at once, then from time to time.
    SourceLimited {
        /// Source.
        source: SocketAddr,
        /// Messages dropped since its last report.
        dropped: u32,
    },
    /// A request of a scanner was dropped.
    Scanned {
        /// Source.
        source: SocketAddr,
        /// The part of the request by which the scanner was recognised.
        sign: ScanSign,
        /// Whether the request counts towards a ban of the source; see [`Event::AuthFailed`].
        counts: bool,
        /// `Some(n)`: the request is to be logged, for `n` such requests of this source since the last
        /// report, this one included. `None`: the request is not to be logged.
        unreported: Option<u32>,
    },
    /// A peer of the trust domain is at this address. The event comes at once, then from time to time.
    PeerMet {
        /// The address of the peer.
        address: IpAddr,
    },
    /// A member of a group failed, and gets no calls any more.
    MemberFailed {
        /// Name of the group.
        group: Box<[u8]>,
        /// URI of the member.
        member: Box<[u8]>,
    },
    /// A member of a group responds again, and gets calls again.
    MemberRecovered {
        /// Name of the group.
        group: Box<[u8]>,
        /// URI of the member.
        member: Box<[u8]>,
    },
    /// A contact behind a NAT no longer answers pings.
    ContactLost {
        /// `user@domain`.
        aor: Box<[u8]>,
        /// The address behind which the phone was.
        source: SocketAddr,
    },
    /// A lost contact has answered a ping, or has registered again.
    ContactReturned {
        /// The address behind which the phone is.
        source: SocketAddr,
    },
    /// A next hop gave no response in time, or could not be reached.
    NextHopFailed {
        /// Address to which the request was sent.
        destination: SocketAddr,
        /// Whether it was a time-out, and not an error of the transport.
        timed_out: bool,
        /// Whether the next hop is a registered contact, whose return is no event.
        is_contact: bool,
    },
    /// A next hop that had failed gave a response. Each worker reports this for itself, once after the last
    /// [`Event::NextHopFailed`] with this address, from any worker.
    NextHopReturned {
        /// The address that the response came from.
        destination: SocketAddr,
    },
}

/// The reason of a failed authentication; never sent to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthFailure {
    /// No such subscriber.
    UnknownUser,
    /// The digest response does not match.
    WrongPassword,
    /// The credentials are good, but From, To or P-Preferred-Identity is another's address.
    NotOwner,
    /// A nonce count seen before.
    Replay,
}

/// The part of a request by which a scanner was recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanSign {
    /// User-Agent.
    UserAgent,
    /// The user of From.
    FromUser,
    /// The user of To.
    ToUser,
    /// The user of the Request-URI.
    UriUser,
}
