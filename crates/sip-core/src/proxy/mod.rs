//! The proxy core (RFC 3261 §16): requests sent on, responses sent back, CANCEL.

pub(crate) mod cancel;
pub(crate) mod forward;
pub(crate) mod record_route;
pub(crate) mod response;
