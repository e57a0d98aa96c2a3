//! The proxy core (RFC 3261 §16): requests sent on, responses sent back, forks, CANCEL; probes of groups.

pub(crate) mod allowed;
pub(crate) mod branch;
pub(crate) mod branches;
pub(crate) mod cancel;
pub(crate) mod edge;
pub(crate) mod flawed;
pub(crate) mod flow_token;
pub(crate) mod fork;
pub(crate) mod forward;
pub(crate) mod hop;
pub(crate) mod mark;
pub(crate) mod nat;
pub(crate) mod path_token;
mod peers;
pub(crate) mod ping;
mod probe;
pub(crate) mod record_route;
pub(crate) mod redirected;
pub(crate) mod response;
pub(crate) mod switch;
mod undelivered;
