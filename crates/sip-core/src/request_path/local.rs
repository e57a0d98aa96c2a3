//! The phase *local*: requests to this server itself.

use alloc::vec::Vec;

use sip_message::{HeaderName, Method, Uri};

use super::Progress;
use super::in_dialog::Position;
use crate::engine::Engine;
use crate::engine::request::Request;
use crate::engine::status::Status;
use crate::registrar::extensions::{unknown, write_unsupported};

/// The header lines of a response to OPTIONS (RFC 3261 §11.2). Allow is left out: it would say little about a
/// proxy, which relays any method.
const CAPABILITIES: &[u8] =
    b"Accept: */*\r\nAccept-Encoding: identity\r\nAccept-Language: en\r\nSupported: path\r\n";

/// The methods that this server itself takes (§20.5: ACK and CANCEL are named, too).
const ALLOWED: &[u8] = b"Allow: OPTIONS, REGISTER, ACK, CANCEL\r\n";

impl Engine {
    /// Whether the Request-URI names this server: a host of ours without a user.
    pub(crate) fn is_for_us(&self, request: &Request<'_>, position: &Position<'_>) -> bool {
        match &request.uri {
            Uri::Sip(uri) => {
                position.next_route.is_none()
                    && uri.user.is_none()
                    && self.directory.is_own(&uri.host, uri.port)
            }
            Uri::Tel(_) | Uri::Other { .. } => false,
        }
    }

    /// Responds to a request to this server. OPTIONS gets 200; an ACK or a CANCEL for an earlier
    /// response ends here; anything else is refused.
    #[expect(clippy::wildcard_enum_match_arm, reason = "most methods are alike here")]
    pub(crate) fn serve_local(&mut self, request: &Request<'_>, progress: Progress) {
        match request.method {
            Method::Options => {
                // §8.2.2.3: no extension may be required of OPTIONS.
                let tags = unknown(&request.message, HeaderName::Require, &[b"path"]);
                if !tags.is_empty() {
                    let mut line = Vec::new();
                    write_unsupported(&mut line, &tags);
                    return self.refuse_with(request, progress.server, Status::BAD_EXTENSION, &line);
                }
                self.refuse_with(request, progress.server, Status::OK, CAPABILITIES);
            }
            Method::Ack => self.counters.dropped_stray_ack += 1,
            Method::Cancel => self.refuse(request, progress.server, Status::NO_TRANSACTION),
            _ if request.to.tag().is_some() => self.refuse(request, progress.server, Status::NO_TRANSACTION),
            // §21.5.2: the method is not known.
            Method::Other(_) => {
                self.refuse_with(request, progress.server, Status::NOT_IMPLEMENTED, ALLOWED);
            }
            // §8.2.1: this server does not take the method.
            _ => self.refuse_with(request, progress.server, Status::METHOD_NOT_ALLOWED, ALLOWED),
        }
    }
}
