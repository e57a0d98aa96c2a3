//! `[[group]]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sip_core::dispatcher::MAX_MEMBERS;

/// Next hops that stand for each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    /// Its name, by which rules relay to it: `relay = "group:NAME"`.
    #[schemars(length(max = 64))]
    pub name: String,
    /// How requests are shared out among the members that are up.
    #[serde(default)]
    pub algorithm: GroupAlgorithm,
    /// Time between two OPTIONS to each member; 0: none are sent.
    #[serde(default = "probe_s")]
    #[schemars(range(max = 3600))]
    pub probe_s: u32,
    /// Failures in a row after which a member gets no more requests.
    #[serde(default = "fail_after")]
    #[schemars(range(min = 1, max = 1000))]
    pub fail_after: u32,
    /// Answered probes in a row after which a failed member gets requests again.
    #[serde(default = "recover_after")]
    #[schemars(range(min = 1, max = 1000))]
    pub recover_after: u32,
    /// Without probes: how long a failed member gets no requests.
    #[serde(default = "hold_s")]
    #[schemars(range(min = 1, max = 86_400))]
    pub hold_s: u32,
    /// A member from which nothing at all came after this is left for the next one.
    #[serde(default = "reply_timeout_ms")]
    #[schemars(range(min = 100, max = 32_000))]
    pub reply_timeout_ms: u32,
    /// Status codes of a member that send the request on to the next one.
    #[serde(default = "failover")]
    #[schemars(inner(range(min = 400, max = 599)), length(max = 32))]
    pub failover: Vec<u16>,
    /// The members; at least one.
    #[serde(default)]
    #[schemars(length(max = MAX_MEMBERS))]
    pub members: Vec<Member>,
}

fn probe_s() -> u32 {
    10
}

fn fail_after() -> u32 {
    3
}

fn recover_after() -> u32 {
    2
}

/// The default. A group with another value has it from the file.
pub(crate) fn hold_s() -> u32 {
    30
}

fn reply_timeout_ms() -> u32 {
    2000
}

fn failover() -> Vec<u16> {
    vec![503]
}

/// How requests are shared out among the members of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum GroupAlgorithm {
    #[default]
    RoundRobin,
    Weighted,
    CallId,
    LeastLoad,
    Priority,
}

/// A member of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Member {
    /// Where it is: a SIP URI, which may name a port and a transport.
    pub uri: String,
    /// Its share among the others. 0: it is drained; requests that it has go on, and new ones go to the others.
    #[serde(default = "weight")]
    #[schemars(range(max = 1000))]
    pub weight: u16,
    /// For `algorithm = "priority"`: members with a lower one are tried first.
    #[serde(default)]
    #[schemars(range(max = 65_535))]
    pub priority: u16,
}

fn weight() -> u16 {
    1
}
