//! `[destinations]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where registered contacts, redirects (3xx) that are followed, and the Request-URI and Route of a dialog may lead.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Destinations {
    /// Networks, as `10.0.0.0/24` or a single address, that are allowed whatever `deny` says.
    #[schemars(length(max = 1000))]
    pub allow: Vec<String>,
    /// What is denied, in place of the default: the words of the table above, and networks as in `allow`.
    #[schemars(length(max = 1000))]
    pub deny: Vec<String>,
    /// New addresses that the contacts of one user may have within an hour, for one worker. Addresses that its
    /// REGISTER comes from, and what it registers by UDP, do not count. More: 403. 0: any number.
    #[schemars(range(max = 10_000))]
    pub new_per_hour: u32,
}

impl Default for Destinations {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            deny: ["loopback", "multicast", "own", "groups"]
                .map(str::to_owned)
                .to_vec(),
            new_per_hour: 30,
        }
    }
}
