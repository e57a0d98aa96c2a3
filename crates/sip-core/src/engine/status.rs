//! The status of each response that this server makes: its code, its reason phrase, and the cause for the log.
//!
//! A constant for each reason of the engine to refuse a request, and a conversion for each type of error of the modules
//! below, which names its status beside itself. A rule of the configuration may reject with a status of its own.

use crate::auth::challenge::Role;
use crate::event::RefusalCause;
use crate::registrar::Rejection;
use crate::transport::framing::FramingFault;

/// A status with its reason phrase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status<'a> {
    pub(crate) code: u16,
    pub(crate) reason: &'a str,
    /// The cause of the refusal, for the log. `None`: the phrase says it.
    pub(crate) cause: Option<RefusalCause>,
}

impl<'a> Status<'a> {
    pub(crate) const fn new(code: u16, reason: &'a str) -> Self {
        Self {
            code,
            reason,
            cause: None,
        }
    }

    /// The same status, logged with this cause.
    pub(crate) const fn because(self, cause: RefusalCause) -> Self {
        Self {
            cause: Some(cause),
            ..self
        }
    }
}

impl Status<'static> {
    pub(crate) const TRYING: Self = Self::new(100, "Trying");
    pub(crate) const OK: Self = Self::new(200, "OK");
    pub(crate) const MOVED_TEMPORARILY: Self = Self::new(302, "Moved Temporarily");
    pub(crate) const UNAUTHORIZED: Self = Self::new(401, "Unauthorized");
    pub(crate) const FORBIDDEN: Self = Self::new(403, "Forbidden");
    pub(crate) const DESTINATION_DENIED: Self = Self::new(403, "Destination Denied");
    /// The status has the same code as for a user that is not registered.
    pub(crate) const CONTACT_DENIED: Self = Self::new(480, "Contact Denied");
    pub(crate) const METHOD_NOT_ALLOWED: Self = Self::new(405, "Method Not Allowed");
    pub(crate) const PROXY_AUTHENTICATION_REQUIRED: Self = Self::new(407, "Proxy Authentication Required");
    pub(crate) const REQUEST_TIMEOUT: Self = Self::new(408, "Request Timeout");
    pub(crate) const UNSUPPORTED_URI_SCHEME: Self = Self::new(416, "Unsupported URI Scheme");
    pub(crate) const BAD_EXTENSION: Self = Self::new(420, "Bad Extension");
    /// RFC 5626 §11.
    pub(crate) const FLOW_FAILED: Self = Self::new(430, "Flow Failed");
    pub(crate) const TEMPORARILY_UNAVAILABLE: Self = Self::new(480, "Temporarily Unavailable");
    pub(crate) const NO_TRANSACTION: Self = Self::new(481, "Call/Transaction Does Not Exist");
    /// RFC 3261 §21.4.20.
    pub(crate) const LOOP_DETECTED: Self = Self::new(482, "Loop Detected");
    /// RFC 5393 §6.
    pub(crate) const MAX_BREADTH_EXCEEDED: Self = Self::new(440, "Max-Breadth Exceeded");
    pub(crate) const TOO_MANY_HOPS: Self = Self::new(483, "Too Many Hops");
    pub(crate) const REQUEST_TERMINATED: Self = Self::new(487, "Request Terminated");
    pub(crate) const SERVER_ERROR: Self = Self::new(500, "Server Internal Error");
    pub(crate) const BAD_GATEWAY: Self = Self::new(502, "Bad Gateway");
    pub(crate) const NOT_IMPLEMENTED: Self = Self::new(501, "Not Implemented");
    pub(crate) const SERVICE_UNAVAILABLE: Self = Self::new(503, "Service Unavailable");
    pub(crate) const VERSION_NOT_SUPPORTED: Self = Self::new(505, "Version Not Supported");

    /// The `uri` of digest credentials is not the Request-URI (RFC 3261 §22.4, rule 5).
    pub(crate) const WRONG_DIGEST_URI: Self = Self::bad_request("Digest uri Is Not The Request-URI");
    /// A challenge would be longer than a stranger's datagram may provoke.
    pub(crate) const TOO_SHORT_TO_CHALLENGE: Self = Self::bad_request("Too Short");
    pub(crate) const MALFORMED_CREDENTIALS: Self = Self::bad_request("Malformed Credentials");
    /// A Route that no node of ours has written leads to another host.
    pub(crate) const FOREIGN_ROUTE: Self = Self::FORBIDDEN.because(RefusalCause::ForeignRoute);
    pub(crate) const FORGED_TOKEN: Self = Self::FORBIDDEN.because(RefusalCause::ForgedToken);
    /// A path token of ours came from another source than the registrar, or leads past the phone.
    pub(crate) const FOREIGN_PATH: Self = Self::FORBIDDEN.because(RefusalCause::ForeignPath);
    /// The domain is none of ours.
    pub(crate) const FOREIGN_DOMAIN: Self = Self::FORBIDDEN.because(RefusalCause::ForeignDomain);
    /// The request names no domain of ours whose credentials could be asked for.
    pub(crate) const NO_DOMAIN: Self = Self::FORBIDDEN.because(RefusalCause::NoDomain);
    /// The credentials are those of another user.
    pub(crate) const NOT_OWNER: Self = Self::FORBIDDEN.because(RefusalCause::NotOwner);
    /// No rule takes the request.
    pub(crate) const NO_RULE: Self = Self::FORBIDDEN.because(RefusalCause::NoRule);
    /// The request leads to a place that its mark does not name.
    pub(crate) const GUARDED_PLACE: Self = Self::FORBIDDEN.because(RefusalCause::GuardedPlace);
    /// To of a REGISTER names no address-of-record of the domain.
    pub(crate) const NO_SUCH_AOR: Self = Self::new(404, "Not Found");

    pub(crate) const NOT_REGISTERED: Self =
        Self::TEMPORARILY_UNAVAILABLE.because(RefusalCause::NotRegistered);
    /// The response has [`reason_of_gone`](crate::proxy::response::reason_of_gone), as for the three that
    /// follow.
    pub(crate) const CONTACT_UNREACHABLE: Self =
        Self::TEMPORARILY_UNAVAILABLE.because(RefusalCause::ContactUnreachable);
    pub(crate) const CONTACT_SILENT: Self =
        Self::TEMPORARILY_UNAVAILABLE.because(RefusalCause::ContactSilent);
    pub(crate) const CONTACT_FLOW_CLOSED: Self =
        Self::TEMPORARILY_UNAVAILABLE.because(RefusalCause::ContactFlowClosed);
    pub(crate) const CONTACT_UNUSABLE: Self =
        Self::TEMPORARILY_UNAVAILABLE.because(RefusalCause::ContactUnusable);
    /// The Path of a contact cannot be read, although it was checked when it came.
    pub(crate) const PATH_UNUSABLE: Self = Self::SERVER_ERROR.because(RefusalCause::ContactUnusable);
    /// RFC 5630 §5.3: a SIPS request goes on by TLS only.
    pub(crate) const NOT_SECURE: Self = Self::TEMPORARILY_UNAVAILABLE.because(RefusalCause::NotSecure);

    pub(crate) const NEXT_HOP_SILENT: Self = Self::REQUEST_TIMEOUT.because(RefusalCause::NextHopSilent);
    pub(crate) const NEXT_HOP_UNREACHABLE: Self =
        Self::SERVER_ERROR.because(RefusalCause::NextHopUnreachable);
    /// The status is as for a 503 of the next hop, which goes on as 500 (RFC 3263 §4.3, RFC 3261 §16.7 step
    /// 6).
    pub(crate) const NEXT_HOP_NOT_FOUND: Self =
        Self::new(500, "Next Hop Not Found").because(RefusalCause::NextHopUnreachable);
    pub(crate) const NO_LISTENER: Self =
        Self::new(500, "No Listener Reaches The Next Hop").because(RefusalCause::NextHopUnreachable);
    /// The next hop sent a 503 (§16.7 step 6): as 503 it would say that this proxy can serve nothing.
    pub(crate) const NEXT_HOP_UNAVAILABLE: Self =
        Self::SERVER_ERROR.because(RefusalCause::NextHopUnavailable);
    pub(crate) const MEMBERS_DOWN: Self =
        Self::new(500, "No Member Of The Group Is Up").because(RefusalCause::MembersDown);
    pub(crate) const FLAWED_RESPONSE: Self = Self::BAD_GATEWAY.because(RefusalCause::FlawedResponse);

    /// No further transaction is begun.
    pub(crate) const NO_ROOM: Self = Self::SERVICE_UNAVAILABLE.because(RefusalCause::TransactionLimit);
    /// No further request waits for a back-end.
    pub(crate) const NO_ROOM_TO_WAIT: Self = Self::SERVICE_UNAVAILABLE.because(RefusalCause::ParkedLimit);
    /// Too many requests of one source wait for credentials.
    pub(crate) const SOURCE_LIMIT: Self = Self::SERVICE_UNAVAILABLE.because(RefusalCause::SourceLimit);
    pub(crate) const DRAINING: Self = Self::SERVICE_UNAVAILABLE.because(RefusalCause::Draining);
    /// The registration is not on disk.
    pub(crate) const NOT_SAVED: Self = Self::SERVER_ERROR.because(RefusalCause::NotSaved);

    pub(crate) const fn bad_request(reason: &'static str) -> Self {
        Self::new(400, reason)
    }

    /// The credentials are unknown, since the database does not respond. `code` is the configured one: 504 or 503.
    pub(crate) const fn credentials_unavailable(code: u16) -> Self {
        let status = match code {
            504 => Self::new(504, "Server Time-out"),
            _ => Self::SERVICE_UNAVAILABLE,
        };
        status.because(RefusalCause::CredentialsUnavailable)
    }
}

impl<'a> Status<'a> {
    /// The status with which a rule rejects.
    pub(crate) const fn of_rule(code: u16, reason: &'a str) -> Self {
        Self::new(code, reason).because(RefusalCause::RuleRejects)
    }
}

impl From<Rejection> for Status<'static> {
    fn from(rejection: Rejection) -> Self {
        let status = Self::new(rejection.status(), rejection.reason());
        match rejection == Rejection::Full {
            true => status.because(RefusalCause::LocationLimit),
            false => status,
        }
    }
}

impl From<FramingFault> for Status<'static> {
    fn from(fault: FramingFault) -> Self {
        Self::new(fault.status(), fault.reason())
    }
}

/// The status of a challenge.
impl From<Role> for Status<'static> {
    fn from(role: Role) -> Self {
        match role {
            Role::Server => Self::UNAUTHORIZED,
            Role::Proxy => Self::PROXY_AUTHENTICATION_REQUIRED,
        }
    }
}
