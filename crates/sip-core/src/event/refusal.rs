//! The causes for which this server refuses requests.

/// The cause of a refusal, if status and reason phrase do not show it. The phrase goes to the peer,
/// and says no more than a stranger may know. The cause goes to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCause {
    /// No rule matches, and the Request-URI is in no domain of this server.
    NoRule,
    /// The rule rejects.
    RuleRejects,
    /// Credentials are needed, but neither From nor the Request-URI is in a domain of this server.
    NoDomain,
    /// The Request-URI of a REGISTER is in no domain of this server.
    ForeignDomain,
    /// The account of the credentials may not use this From, P-Preferred-Identity or, in a REGISTER, To.
    NotOwner,
    /// A new request names a Route that is not this server's.
    ForeignRoute,
    /// A Route of this server has a flow or path token that this server did not make.
    ForgedToken,
    /// A Route has a path token of this server, and the request comes from another source than the registrar that the
    /// token was given to, or another Route follows.
    ForeignPath,
    /// A request of a dialog leads to a guarded place that its mark does not name.
    GuardedPlace,
    /// The database gave no result in time.
    CredentialsUnavailable,
    /// This server drains.
    Draining,
    /// `limits.transactions`, `held_transactions` or `transaction_bytes` is reached.
    TransactionLimit,
    /// `limits.branches` or one of the limits of transactions is reached, so a further target is not tried.
    BranchLimit,
    /// `limits.parked_requests` or `parked_bytes` is reached.
    ParkedLimit,
    /// Too many requests of this source wait for credentials.
    SourceLimit,
    /// The location store did not save the registration.
    NotSaved,
    /// `limits.location_bytes` is reached.
    LocationLimit,
    /// No contact is registered.
    NotRegistered,
    /// The registered contact can be reached by its connection only, which has closed.
    ContactFlowClosed,
    /// The registered contact cannot be reached: its host has no address, or its transport failed.
    ContactUnreachable,
    /// The registered contact gave no response.
    ContactSilent,
    /// The registered contact is no URI that a request can be sent to.
    ContactUnusable,
    /// A SIPS URI leads, or has led, by a hop without TLS.
    NotSecure,
    /// The next hop gave no final response in time.
    NextHopSilent,
    /// The next hop cannot be reached: it has no address, or its transport failed.
    NextHopUnreachable,
    /// The next hop's response was 503, which RFC 3261 §16.7 step 6 turns into 500.
    NextHopUnavailable,
    /// The next hop's response had a flaw, and could not be relayed.
    FlawedResponse,
    /// All members of the group are drained or failed.
    MembersDown,
}

impl RefusalCause {
    /// The word for the cause in the log.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoRule => "no-rule",
            Self::RuleRejects => "rule-rejects",
            Self::NoDomain => "no-domain",
            Self::ForeignDomain => "foreign-domain",
            Self::NotOwner => "not-owner",
            Self::ForeignRoute => "foreign-route",
            Self::ForgedToken => "forged-token",
            Self::ForeignPath => "foreign-path",
            Self::GuardedPlace => "guarded-place",
            Self::CredentialsUnavailable => "credentials-unavailable",
            Self::Draining => "draining",
            Self::TransactionLimit => "transaction-limit",
            Self::BranchLimit => "branch-limit",
            Self::ParkedLimit => "parked-limit",
            Self::SourceLimit => "source-limit",
            Self::NotSaved => "not-saved",
            Self::LocationLimit => "location-limit",
            Self::NotRegistered => "not-registered",
            Self::ContactFlowClosed => "contact-flow-closed",
            Self::ContactUnreachable => "contact-unreachable",
            Self::ContactSilent => "contact-silent",
            Self::ContactUnusable => "contact-unusable",
            Self::NotSecure => "not-secure",
            Self::NextHopSilent => "next-hop-silent",
            Self::NextHopUnreachable => "next-hop-unreachable",
            Self::NextHopUnavailable => "next-hop-unavailable",
            Self::FlawedResponse => "flawed-response",
            Self::MembersDown => "members-down",
        }
    }
}
