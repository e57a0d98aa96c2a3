//! A request, with the parts that routing needs already read: parse, don't validate.

use sip_message::header::{CSeq, Mandatory, NameAddr, Via};
use sip_message::{Defect, HeaderName, Message, Method, Uri};

use super::secrets::BranchInput;
use super::status::Status;
use crate::limits::Limits;
use crate::transport::{Flow, via};

/// The reason why a request may be relayed. Forwarding demands this value, so that no path skips the check.
/// Only the phase authorize makes one: `cargo xtask tidy` sees to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Authorized {
    /// The credentials are those of an account, for a nonce that was sent to the source.
    Credentials,
    /// The configuration exempts the request from credentials.
    Exempt,
    /// The request belongs to a dialog, in which its side is not challenged.
    Dialog,
    /// An ACK cannot be challenged, a CANCEL must not be (RFC 3261 §22.1), and a REGISTER to another registrar is
    /// challenged there.
    Unasked,
}

impl Authorized {
    /// Whether this reason verifies the source address of the request.
    pub(crate) const fn source_verified(self) -> bool {
        matches!(self, Self::Credentials)
    }

    /// Whether the source may get more than it sends: the source is verified, or the operator exempts it.
    pub(crate) const fn vouches_for_source(self) -> bool {
        matches!(self, Self::Credentials | Self::Exempt)
    }
}

/// A request that can be routed and responded to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) message: Message<'a>,
    pub(crate) method: Method<'a>,
    pub(crate) uri: Uri<'a>,
    pub(crate) uri_text: &'a [u8],
    pub(crate) via: Via<'a>,
    pub(crate) from: NameAddr<'a>,
    pub(crate) to: NameAddr<'a>,
    pub(crate) call_id: &'a [u8],
    pub(crate) cseq: CSeq<'a>,
    /// Max-Forwards; `Err`: it cannot be read.
    pub(crate) max_forwards: Result<Option<u8>, ()>,
    /// The flow that the request came by.
    pub(crate) flow: Flow,
    /// The hash of the server transaction, if it has been computed.
    pub(crate) server_hash: Option<u128>,
}

impl<'a> Request<'a> {
    /// Reads a request (RFC 3261 §8.1.1, §16.3 step 1).
    ///
    /// # Errors
    /// The status to respond with.
    #[inline(always)]
    pub(crate) fn read(message: Message<'a>, flow: Flow) -> Result<Self, Status<'static>> {
        match message.defect() {
            None => {}
            Some(Defect::Version) => return Err(Status::VERSION_NOT_SUPPORTED),
            Some(defect) => return Err(Status::bad_request(defect.reason())),
        }
        let bad = Status::bad_request;
        let (Some(method), Some(uri_text)) = (message.method(), message.request_uri()) else {
            return Err(bad("Not A Request"));
        };
        // The parts are large, so that they are read in place.
        let mandatory = message.mandatory();
        let &Mandatory {
            via,
            from,
            to,
            call_id,
            cseq,
            ..
        } = mandatory.as_ref().map_err(|e| bad(mandatory_reason(e.name())))?;
        if cseq.method != method {
            return Err(bad("CSeq Method Does Not Match"));
        }
        let uri = Uri::parse(uri_text).map_err(|_| bad("Malformed Request-URI"))?;
        if let Uri::Sip(uri) = &uri
            && uri.headers.is_some()
        {
            // RFC 3261 §19.1.1, Table 1: headers are not allowed in a Request-URI.
            return Err(bad("Headers In Request-URI"));
        }
        Ok(Self {
            message,
            method,
            uri,
            uri_text,
            via,
            from,
            to,
            call_id,
            cseq,
            max_forwards: message.max_forwards().map_err(|_| ()),
            flow,
            server_hash: None,
        })
    }

    /// Checks the limits of a request that arrives. The limits are not checked again after a wait, because
    /// they may have changed by then.
    pub(crate) fn check_limits(&self, limits: &Limits) -> Result<(), Status<'static>> {
        if too_many(&self.message, HeaderName::Via, limits.via_values) {
            return Err(Status::bad_request("Too Many Via Values"));
        }
        if too_many(&self.message, HeaderName::Route, limits.route_values) {
            return Err(Status::bad_request("Too Many Route Values"));
        }
        Ok(())
    }

    /// From tag; empty if an RFC 2543 peer sent none.
    #[expect(clippy::wrong_self_convention, reason = "From is a header field")]
    pub(crate) fn from_tag(&self) -> &'a [u8] {
        self.from.tag().unwrap_or_default()
    }

    /// Whether the Request-URI is a SIPS URI.
    pub(crate) fn is_secure(&self) -> bool {
        self.uri.sip().is_some_and(|uri| uri.secure)
    }

    /// The input of the request's branch.
    pub(crate) fn branch_input(&self) -> BranchInput<'a> {
        BranchInput {
            received_branch: self.via.branch().unwrap_or_default(),
            sent_by: self.via.host_text,
            port: self.via.port.unwrap_or(0),
            source: self.flow.remote.ip().to_canonical(),
            call_id: self.call_id,
            from_tag: self.from_tag(),
            cseq: self.cseq.number,
            method: self.method,
        }
    }

    /// The flow that responses to the request go to.
    pub(crate) fn reply_to(&self) -> Flow {
        via::reply_to(self.flow, &self.via)
    }
}

/// Bytes of the shortest value of these headers, with its separator: `SIP/2.0/X a,`, `<sip:a>,`.
const SHORTEST_VALUE: usize = 8;

/// Whether a header has more than `limit` values. A short message cannot hold so many, so that most messages
/// need no counting.
fn too_many(message: &Message<'_>, name: HeaderName, limit: usize) -> bool {
    let room = message.headers_end_offset() / SHORTEST_VALUE;
    room > limit && message.has(name) && message.values(name).nth(limit).is_some()
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the rest is not mandatory")]
const fn mandatory_reason(name: HeaderName) -> &'static str {
    match name {
        HeaderName::Via => "Missing Or Malformed Via",
        HeaderName::From => "Missing Or Malformed From",
        HeaderName::To => "Missing Or Malformed To",
        HeaderName::CallId => "Missing Or Malformed Call-ID",
        HeaderName::CSeq => "Missing Or Malformed CSeq",
        _ => "Missing Or Malformed Header Field",
    }
}
