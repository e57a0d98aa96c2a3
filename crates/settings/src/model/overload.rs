//! `[overload]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What waits while more comes than can be served. On by default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Overload {
    /// Receive buffer asked of the kernel for each queue of new work by UDP: each worker and UDP listener has one of
    /// new calls, and one of registrations and other requests outside of dialogs. They are read when little else waits,
    /// so that established calls do not wait behind new ones. A queue that stays filled is made shorter, to what is read
    /// from it in 100 ms. When it is full the kernel drops new work, and nothing else; that is counted. An INVITE of up to
    /// 640 bytes takes 640 of these, a longer one 1,152, and of a network driver often more. 0: new work waits among
    /// everything else.
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
