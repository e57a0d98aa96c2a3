//! Groups of next hops while the server runs: their states for operators, and what of these outlives a
//! reload.

use std::sync::Arc;

use parking_lot::Mutex;
use sip_core::dispatcher::{Group, MarkPolicy, Member};

use crate::machine::unix_ms;

/// The groups of the configuration in force. The workers read the health of their members.
#[derive(Debug)]
pub(crate) struct Groups(Mutex<Arc<[Group]>>);

impl Groups {
    /// The groups of the configuration at the start.
    pub(crate) fn new(groups: &[Group]) -> Self {
        Self(Mutex::new(groups.into()))
    }

    /// All groups.
    pub(crate) fn current(&self) -> Arc<[Group]> {
        Arc::clone(&self.0.lock())
    }

    /// Replaces the groups by those of a new configuration.
    pub(crate) fn replace(&self, groups: &[Group]) {
        *self.0.lock() = groups.into();
    }
}

/// Copies the health of members that stay (the same URI in a group of the same name). So a reload neither
/// ends a drain nor sends calls to members that failed. The health of the others is forgotten.
pub(crate) fn carry_over(running: &[Group], new: &mut [Group]) {
    for group in new {
        let Some(old) = running.iter().find(|old| old.name == group.name) else {
            continue;
        };
        let probes_ended = old.probe_ms.is_some() && group.probe_ms.is_none();
        for member in &mut group.members {
            let same = |old: &&Member| old.hop.uri == member.hop.uri;
            let Some(old) = old.members.iter().find(same) else {
                continue;
            };
            member.health = Arc::clone(&old.health);
            if probes_ended {
                // The mark would have lasted until a probe gets a response, and there will be no more probes.
                let at_once = MarkPolicy {
                    recover_after: 1,
                    ..group.marks
                };
                member.health.note_probe_response(unix_ms(), &at_once);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sip_core::dispatcher::{Distribution, Local, MemberState};
    use sip_core::transport::NextHop;

    use super::*;

    fn group(name: &str, uris: &[&str]) -> Group {
        let member = |uri: &&str| Member::new(NextHop::parse(uri.as_bytes()).expect("a URI"), 1, 0);
        Group {
            name: name.as_bytes().into(),
            algorithm: Distribution::RoundRobin,
            members: uris.iter().map(member).collect(),
            probe_ms: Some(1000),
            marks: MarkPolicy {
                fail_after: 1,
                recover_after: 2,
                hold_ms: None,
            },
            reply_timeout_ms: 2000,
            failover_on: vec![503],
            cursor: Local::default(),
        }
    }

    fn states(group: &Group) -> Vec<MemberState> {
        let state = |member: &Member| member.health.state(unix_ms());
        group.members.iter().map(state).collect()
    }

    #[test]
    fn drains_and_marks_outlive_a_reload_where_the_member_stays() {
        use MemberState::{Drained, Failed, Up};
        let running = [group("a", &["sip:a", "sip:b", "sip:c"]), group("b", &["sip:a"])];
        running[0].members[0].health.set_drained(true);
        running[0].members[1]
            .health
            .note_failure(unix_ms(), &running[0].marks);
        let mut new = [group("c", &["sip:a"]), group("a", &["sip:d", "sip:b", "sip:a"])];
        carry_over(&running, &mut new);
        assert_eq!(states(&new[0]), [Up], "another group is another matter");
        assert_eq!(states(&new[1]), [Up, Failed, Drained]);
        assert_eq!(new[1].members[1].health.failures(), 1);

        // A removed member is forgotten: if it returns, it starts anew.
        let mut without = [group("a", &["sip:b"])];
        carry_over(&new, &mut without);
        let mut again = [group("a", &["sip:a", "sip:b"])];
        carry_over(&without, &mut again);
        assert_eq!(states(&again[0]), [Up, Failed]);

        // The workers of the old configuration see the same health.
        again[0].members[1].health.set_drained(true);
        assert_eq!(states(&new[1]), [Up, Drained, Drained]);
    }

    #[test]
    fn a_mark_that_only_probes_could_end_ends_with_them() {
        let running = [group("a", &["sip:a", "sip:b"])];
        running[0].members[0]
            .health
            .note_failure(unix_ms(), &running[0].marks);
        running[0].members[1].health.set_drained(true);
        let mut new = [group("a", &["sip:a", "sip:b"])];
        new[0].probe_ms = None;
        new[0].marks.hold_ms = Some(30_000);
        carry_over(&running, &mut new);
        assert_eq!(states(&new[0]), [MemberState::Up, MemberState::Drained]);
    }
}
