//! The phase *sanity*: demands that we cannot meet (RFC 3261 §16.3).

use alloc::vec::Vec;

use sip_message::{HeaderName, Method, Uri};

use crate::engine::Engine;
use crate::engine::request::Request;
use crate::engine::status::Status;
use crate::registrar::extensions::{unknown, write_unsupported};

/// The option tags in Proxy-Require that this server understands.
const PROXY_OPTIONS: [&[u8]; 1] = [b"path"];

impl Engine {
    /// Checks steps 2 and 5 of §16.3. The refusal's header lines come with it.
    pub(crate) fn check_sanity(&self, request: &Request<'_>) -> Result<(), (Status<'static>, Vec<u8>)> {
        // §26.2.2: a request that must be secure on every hop cannot go on from here without TLS.
        let refused = matches!(request.uri, Uri::Other { .. }) || (request.is_secure() && !self.speaks_tls());
        if refused {
            return Err((Status::UNSUPPORTED_URI_SCHEME, Vec::new()));
        }
        if request.max_forwards.is_err() {
            return Err((Status::bad_request("Malformed Max-Forwards"), Vec::new()));
        }
        // §10.2: an address-of-record is a SIP or SIPS URI (RFC 4475 §3.3.4).
        if request.method == Method::Register && request.to.sip_uri().is_none() {
            return Err((Status::bad_request("To Is Not A SIP URI"), Vec::new()));
        }
        // §20.29: for ACK and CANCEL there is no client to inform.
        if !matches!(request.method, Method::Ack | Method::Cancel)
            && request.message.has(HeaderName::ProxyRequire)
        {
            let tags = unknown(&request.message, HeaderName::ProxyRequire, &PROXY_OPTIONS);
            if !tags.is_empty() {
                let mut line = Vec::new();
                write_unsupported(&mut line, &tags);
                return Err((Status::BAD_EXTENSION, line));
            }
        }
        Ok(())
    }

    fn speaks_tls(&self) -> bool {
        self.config.listeners.iter().any(|l| l.transport.is_secure())
    }

    /// Refuses a SIPS request that did not come by TLS (§26.2.2): its URI would promise the callee TLS on
    /// each hop. Requests in a dialog are not checked. Trusted sources pass: they may have taken TLS off
    /// before us. No RFC names a code; 480 with this warning is how RFC 5630 §5.3 ends a SIPS request that
    /// cannot go by TLS.
    pub(crate) fn check_secure(&self, request: &Request<'_>) -> Result<(), (Status<'static>, Vec<u8>)> {
        if !request.is_secure() || request.flow.transport.is_secure() || self.is_trusted(&request.flow) {
            return Ok(());
        }
        let mut warning = Vec::with_capacity(64);
        warning.extend_from_slice(b"Warning: 380 ");
        let listener = self.config.listeners.get(usize::from(request.flow.listener.0));
        warning.extend_from_slice(listener.map_or(&[], |l| &l.sent_by));
        warning.extend_from_slice(b" \"SIPS Not Allowed\"\r\n");
        Err((Status::NOT_SECURE, warning))
    }

    /// Checks step 3 of §16.3, for a request that is to be relayed.
    pub(crate) fn check_hops(&self, request: &Request<'_>) -> Result<(), Status<'static>> {
        match request.max_forwards {
            Ok(Some(0)) => Err(Status::TOO_MANY_HOPS),
            _ => Ok(()),
        }
    }
}
