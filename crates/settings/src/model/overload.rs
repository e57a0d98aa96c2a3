//! `[overload]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What happens while more comes than can be served. On by default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Overload {
    /// Receive buffer asked of the kernel for each UDP socket's new work: INVITEs without a Route. It is read when little
    /// else waits, so that the calls that are there do not wait behind new ones. When it is full the kernel drops
    /// new work, and nothing else; they are counted. An INVITE of 600 bytes takes some 1,150 of these. 0: new work
    /// waits among everything else.
    #[schemars(range(max = 1_073_741_824))]
    pub new_work_queue_bytes: usize,
}

impl Default for Overload {
    fn default() -> Self {
        Self {
            new_work_queue_bytes: sip_net::settings::Settings::default().new_work_buffer,
        }
    }
}
