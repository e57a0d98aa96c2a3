//! `[abuse]`.

use std::time::Duration;

use regex::bytes::Regex;
use sip_core::config;

use super::context::Context;
use super::hosts::network;
use super::model::Settings;
use super::routes::compiled;

/// The ban policy: the failures that ban a source, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BanPolicy {
    /// Failures within `window` that ban a source; 0: no source is banned for failures.
    pub failures: u32,
    /// Window in which failures count.
    pub window: Duration,
    /// Length of a first ban.
    pub first: Duration,
    /// Length of the longest ban.
    pub longest: Duration,
    /// Most bans held.
    pub limit: usize,
}

/// The core's part of `[abuse]`.
pub(super) fn abuse(settings: &Settings, cx: &mut Context<'_>) -> config::Abuse {
    let abuse = &settings.abuse;
    let mut exempt = Vec::new();
    for (i, text) in abuse.exempt.iter().enumerate() {
        match network(text) {
            Some(network) => exempt.push(network),
            None => cx.problem(
                &format!("abuse.exempt[{i}]"),
                format!("{text:?} is not a network"),
                "write it as \"10.0.0.0/24\" or \"192.0.2.1\"",
            ),
        }
    }
    let scanners = &abuse.scanners;
    let mut pattern = |key: &str, patterns: &[String]| joined(key, patterns, cx);
    config::Abuse {
        rate: abuse.rate,
        burst: abuse.burst,
        sources: abuse.sources,
        exempt,
        bans: abuse.failures > 0,
        scanners: config::Scanners {
            user_agent: pattern("user_agent", &scanners.user_agent),
            from_user: pattern("from_user", &scanners.from_user),
            to_user: pattern("to_user", &scanners.to_user),
            uri_user: pattern("uri_user", &scanners.uri_user),
        },
    }
}

/// One pattern that matches if one of these patterns matches. Each must be valid by itself: a bracket opened
/// in one must not close in another.
fn joined(key: &str, patterns: &[String], cx: &mut Context<'_>) -> Option<Regex> {
    let path = format!("abuse.scanners.{key}");
    let mut right = Vec::new();
    for (i, text) in patterns.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let Some(regex) = compiled(&path, text, true, cx) else {
            continue;
        };
        if regex.is_match(b"") {
            cx.problem(
                &path,
                format!("{text:?} is found in everything"),
                "write what only scanners have",
            );
            continue;
        }
        right.push(format!("(?:{text})"));
    }
    let all = (!right.is_empty()).then(|| right.join("|"))?;
    compiled(&path, &all, true, cx)
}

/// The ban policy of `[abuse]`.
pub(super) fn bans(settings: &Settings, cx: &mut Context<'_>) -> BanPolicy {
    let abuse = &settings.abuse;
    if abuse.ban_max_s < abuse.ban_s {
        let key = if cx.has("abuse", "ban_max_s") {
            "ban_max_s"
        } else {
            "ban_s"
        };
        cx.problem(
            &format!("abuse.{key}"),
            format!(
                "ban_max_s = {} is less than ban_s = {}",
                abuse.ban_max_s, abuse.ban_s
            ),
            "make ban_max_s at least ban_s",
        );
    }
    BanPolicy {
        failures: abuse.failures,
        window: Duration::from_secs(abuse.failures_s.into()),
        first: Duration::from_secs(abuse.ban_s.into()),
        longest: Duration::from_secs(abuse.ban_max_s.into()),
        limit: abuse.bans,
    }
}
