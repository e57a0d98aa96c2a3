//! `[abuse]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which sources are not heard: those that send too much, guess passwords, or scan. See [abuse.md](abuse.md). On by
/// default, with limits that no phone, trunk or office of a hundred phones meets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Abuse {
    /// Messages a second that one source (an IPv4 address, or an IPv6 network of 64 bits) may send to one worker, of
    /// any kind; more are dropped unread, and counted. 0: any number.
    #[schemars(range(max = 1_000_000))]
    pub rate: u32,
    /// Messages that it may send at once, after a pause.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub burst: u32,
    /// Sources that one worker counts, 16 bytes each; rounded up to a power of two. If there are more, the
    /// one that has sent least recently is forgotten, never one that is being limited; both are counted.
    #[schemars(range(min = 64, max = 16_777_216))]
    pub sources: usize,
    /// Failed authentications and requests of scanners, of one source within `failures_s`, after which it is
    /// banned. If other users registered from the same address within the last two hours, each failing user
    /// counts once. 0: bans are made by hand only.
    #[schemars(range(max = 10_000))]
    pub failures: u32,
    /// See `failures`.
    #[schemars(range(min = 1, max = 86_400))]
    pub failures_s: u32,
    /// Length of a first ban. Each further one of the same source takes twice as long.
    #[schemars(range(min = 1, max = 31_536_000))]
    pub ban_s: u32,
    /// Length of the longest ban, and for how long after its end a ban is remembered.
    #[schemars(range(min = 1, max = 31_536_000))]
    pub ban_max_s: u32,
    /// Bans in force and remembered. At the limit one that is over makes room, then the one that ends
    /// soonest; not those made by hand. If all are such, a new one is refused, and counted.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub bans: usize,
    /// Networks that are neither limited nor banned, as `10.0.0.0/24` or a single address, in place of the default (the
    /// loopback), beside `trust.peers`, next hops and members of groups. Nothing else is believed of them.
    #[schemars(length(max = 1000))]
    pub exempt: Vec<String>,
    pub scanners: Scanners,
}

impl Default for Abuse {
    fn default() -> Self {
        Self {
            rate: 2000,
            burst: 5000,
            sources: 65_536,
            failures: 200,
            failures_s: 60,
            ban_s: 300,
            ban_max_s: 86_400,
            bans: 10_000,
            exempt: vec!["127.0.0.0/8".to_owned(), "::1".to_owned()],
            scanners: Scanners::default(),
        }
    }
}

/// Requests of scanners are dropped without a response, and counted. The patterns are regular expressions,
/// found anywhere, in any case.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Scanners {
    /// On User-Agent.
    #[schemars(length(max = 256))]
    pub user_agent: Vec<String>,
    /// On the user part of From.
    #[schemars(length(max = 256))]
    pub from_user: Vec<String>,
    /// On the user part of To.
    #[schemars(length(max = 256))]
    pub to_user: Vec<String>,
    /// On the user part of the Request-URI.
    #[schemars(length(max = 256))]
    pub uri_user: Vec<String>,
}
