//! SIGHUP: the configuration again, as far as it can change while the server runs.

use std::sync::Arc;

use sip_core::config::{Config, Listener};

use crate::groups::carry_over;
use crate::settings::{Loaded, Shell};

/// The configuration to go on with, and the keys that differ but hold only after a restart.
#[derive(Debug)]
pub(crate) struct Reloaded {
    pub core: Arc<Config>,
    pub kept: Vec<&'static str>,
}

/// Takes from `new` what can change, and keeps the rest of `running`.
pub(crate) fn merge(running: &Loaded, new: &Loaded) -> Reloaded {
    let mut kept = kept(&running.shell, &new.shell);
    let mut core = new.core.clone();
    if !same_sockets(&running.core.listeners, &new.core.listeners) {
        core.listeners.clone_from(&running.core.listeners);
        kept.push("listen");
    }
    if core.workers != running.core.workers {
        core.workers = running.core.workers;
        kept.push("server.workers");
    }
    if core.limits.nonces != running.core.limits.nonces {
        core.limits.nonces = running.core.limits.nonces;
        kept.push("limits.nonces");
    }
    for (limit, old) in [
        (&mut core.limits.header_bytes, running.core.limits.header_bytes),
        (&mut core.limits.body_bytes, running.core.limits.body_bytes),
    ] {
        // The connections' framing has them since the start.
        if *limit != old {
            *limit = old;
            kept.push("transport");
        }
    }
    // A store that is not open cannot keep anything, and one that is stays open.
    if running.shell.location != new.shell.location {
        core.registrar.durability = running.core.registrar.durability;
    }
    carry_over(&running.core.groups, &mut core.groups);
    kept.sort_unstable();
    kept.dedup();
    Reloaded {
        core: Arc::new(core),
        kept,
    }
}

fn kept(running: &Shell, new: &Shell) -> Vec<&'static str> {
    let table = |shell: &Shell| {
        let options = &shell.subscribers;
        (
            options.path.clone(),
            options.table.clone(),
            options.columns.clone(),
            options.calculate_ha1,
        )
    };
    let differences = [
        ("server.data_dir", running.data_dir != new.data_dir),
        ("subscribers", table(running) != table(new)),
        ("location.url", running.location != new.location),
        (
            "credentials.cache_entries",
            running.cache_entries != new.cache_entries,
        ),
        ("credentials.cache_ttl_s", running.cache_ttl != new.cache_ttl),
        ("transport", running.sockets != new.sockets),
        (
            "dns",
            (&running.nameservers, running.dns_timeout) != (&new.nameservers, new.dns_timeout),
        ),
        ("log.format", running.log.format != new.log.format),
        ("admin.listen", running.admin != new.admin),
        ("admin.token_file", running.admin_token != new.admin_token),
    ];
    differences
        .into_iter()
        .filter(|(_, differs)| *differs)
        .map(|(key, _)| key)
        .collect()
}

/// Whether both have the same sockets in the same order; the names in Via may differ.
fn same_sockets(running: &[Listener], new: &[Listener]) -> bool {
    let sockets = |listeners: &[Listener]| -> Vec<_> {
        listeners
            .iter()
            .map(|listener| (listener.transport, listener.address))
            .collect()
    };
    sockets(running) == sockets(new)
}

#[cfg(test)]
mod tests {
    use sip_core::dispatcher::{Member, MemberState};

    use super::*;
    use crate::settings::{Machine, read_text};

    fn loaded(text: &str) -> Loaded {
        let machine = Machine {
            addresses: vec![("127.0.0.1".parse().expect("address"), 8)],
            host_name: None,
            processors: 2,
            variable: |_| None,
        };
        read_text(text, "f", None, &machine).unwrap_or_else(|problems| panic!("{problems}"))
    }

    const LISTEN: &str = "[[listen]]\ntransport = \"udp\"\naddress = \"127.0.0.1:5060\"\n";

    #[test]
    fn routes_domains_timers_and_names_change() {
        let running = loaded(LISTEN);
        let new = loaded(&format!(
            "{LISTEN}advertise = \"example.com\"\n[[domain]]\nname = \"example.com\"\n[timers]\nt1_ms = 200\n\
             [[route]]\ndo = {{ reject = 403 }}\n[[group]]\nname = \"a\"\nmembers = [ {{ uri = \"sip:a\" }} ]\n[server]\ndrain_s = 1\n[log]\nlevel = \"debug\"\n"
        ));
        let merged = merge(&running, &new);
        assert_eq!(merged.kept, [""; 0]);
        assert_eq!(merged.core.timers.t1_ms, 200);
        assert_eq!(merged.core.routes.len(), 1);
        assert_eq!(merged.core.groups.len(), 1);
        assert_eq!(*merged.core.listeners[0].sent_by, *b"example.com");
    }

    #[test]
    fn a_drained_member_stays_drained() {
        let group = "[[group]]\nname = \"a\"\nmembers = [ { uri = \"sip:a\" }, { uri = \"sip:b\" } ]\n";
        let running = loaded(&format!("{LISTEN}{group}"));
        running.core.groups[0].members[1].health.set_drained(true);
        let merged = merge(&running, &loaded(&format!("{LISTEN}{group}probe_s = 1\n")));
        let drained = |member: &Member| member.health.state(0) == MemberState::Drained;
        let drained: Vec<bool> = merged.core.groups[0].members.iter().map(drained).collect();
        assert_eq!(drained, [false, true]);
        assert_eq!(merged.core.groups[0].probe_ms, Some(1000));
    }

    #[test]
    fn sockets_workers_and_stores_stay() {
        let running = loaded(LISTEN);
        let new = loaded(
            "[[listen]]\ntransport = \"tcp\"\naddress = \"127.0.0.1:5060\"\n[server]\nworkers = 7\ndata_dir = \"x\"\n\
             [location]\nurl = \"memory:\"\n[admin]\nlisten = \"off\"\ntoken_file = \"t\"\n[transport]\nidle_s = 60\n[log]\nformat = \"json\"\n\
             [dns]\ntimeout_ms = 100\n[credentials]\ncache_entries = 0\ncache_ttl_s = 1\n[limits]\nnonces = 1000\n\
             [subscribers]\ncalculate_ha1 = true\n[timers]\nt1_ms = 200\n",
        );
        let merged = merge(&running, &new);
        assert_eq!(
            merged.kept,
            [
                "admin.listen",
                "admin.token_file",
                "credentials.cache_entries",
                "credentials.cache_ttl_s",
                "dns",
                "limits.nonces",
                "listen",
                "location.url",
                "log.format",
                "server.data_dir",
                "server.workers",
                "subscribers",
                "transport",
            ]
        );
        assert_eq!(merged.core.listeners, running.core.listeners);
        assert_eq!(merged.core.workers, running.core.workers);
        assert_eq!(merged.core.limits.nonces, running.core.limits.nonces);
        assert_eq!(
            merged.core.registrar.durability,
            running.core.registrar.durability
        );
        assert_eq!(merged.core.timers.t1_ms, 200, "the rest is taken");
    }
}
