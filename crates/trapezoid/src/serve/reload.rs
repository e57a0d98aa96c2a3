//! SIGHUP and `POST /api/v1/reload`: reading the configuration again, as far as it can change while the
//! server runs.

use std::time::Duration;

use sip_backend::subscribers::LookupOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use serde_json::Value as Json;
use sip_backend::metrics::{Sample, Value};
use sip_core::config::{Config, Listener};
use tokio::sync::{mpsc, oneshot};

use super::tls::Findings;
use crate::groups::carry_over;
use settings::{Loaded, Service, Shell};

/// Requests for a reload that may wait while one is under way.
const WAITING: usize = 8;

/// The result of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// The file was good, and so were all files that it names.
    Reloaded,
    /// The file was good. A file that it names was not, and its part stays as it was.
    Partly,
    /// The file was wrong; everything stays as it was.
    Refused,
}

/// The report of a reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Outcome {
    pub result: Verdict,
    /// Keys with new values in force now.
    pub taken: Vec<String>,
    /// Keys with new values that take effect after a restart.
    pub after_restart: Vec<String>,
    /// Certificates, keys, authorities and ticket keys that were read again.
    pub files: Vec<String>,
    /// Errors, each with its place and a remedy.
    pub errors: Vec<String>,
    /// Findings that do not prevent use, but need attention.
    pub warnings: Vec<String>,
}

impl Outcome {
    /// The report of a wrong file.
    pub(crate) fn refused(errors: Vec<String>) -> Self {
        Self {
            result: Verdict::Refused,
            taken: Vec::new(),
            after_restart: Vec::new(),
            files: Vec::new(),
            errors,
            warnings: Vec::new(),
        }
    }

    /// The report of a good file. `findings` are those of the files that it names.
    pub(crate) fn taken(
        running: &Loaded,
        new: &Loaded,
        kept: &[&'static str],
        files: Vec<String>,
        findings: Findings,
    ) -> Self {
        let mut warnings = new.warnings.clone();
        warnings.extend(findings.warnings);
        Self {
            result: if findings.errors.is_empty() {
                Verdict::Reloaded
            } else {
                Verdict::Partly
            },
            taken: changed(&running.keys, &new.keys)
                .into_iter()
                .filter(|key| !is_kept(key, kept))
                .collect(),
            after_restart: kept.iter().map(|key| (*key).to_owned()).collect(),
            files,
            errors: findings.errors,
            warnings,
        }
    }
}

/// Whether `key` takes effect after a restart, or is below a key that does.
fn is_kept(key: &str, kept: &[&'static str]) -> bool {
    // The only key of its table that belongs to the core.
    key != "transport.udp_mtu"
        && kept.iter().any(|kept| {
            let rest = key.strip_prefix(kept);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
}

/// The keys with different values, as `table.key`; for a list of tables, its name.
fn changed(running: &Json, new: &Json) -> Vec<String> {
    let mut out = Vec::new();
    let tables = running.as_object().into_iter().flatten();
    for (table, old) in tables {
        let Some(new) = new.get(table) else { continue };
        match (old, new) {
            (Json::Object(old), Json::Object(new)) => {
                let keys = old.iter().filter(|(key, value)| new.get(*key) != Some(value));
                out.extend(keys.map(|(key, _)| format!("{table}.{key}")));
            }
            _ => {
                // Keys of the sockets are reported separately.
                let differs = match table.as_str() {
                    "listen" => sockets_apart(old) != sockets_apart(new),
                    _ => old != new,
                };
                out.extend(differs.then(|| table.clone()));
            }
        }
    }
    out
}

/// The configuration in force now: that of `new`, except for the `kept` keys.
pub(crate) fn in_force(running: &Json, new: &Json, kept: &[&'static str]) -> Json {
    let mut out = new.clone();
    for (table, value) in out.as_object_mut().into_iter().flatten() {
        let Some(old) = running.get(table) else { continue };
        if let Some(keys) = value.as_object_mut() {
            for (key, value) in keys.iter_mut() {
                if let Some(old) = old.get(key).filter(|_| is_kept(&format!("{table}.{key}"), kept)) {
                    value.clone_from(old);
                }
            }
        } else if is_kept(table, kept) {
            value.clone_from(old);
        } else if table == "listen" {
            let pairs = value
                .as_array_mut()
                .into_iter()
                .flatten()
                .zip(old.as_array().into_iter().flatten());
            for (new, old) in pairs {
                for key in OF_SOCKETS {
                    if let (Some(new), Some(old)) = (new.get_mut(key), old.get(key)) {
                        new.clone_from(old);
                    }
                }
            }
        }
    }
    out
}

/// Keys of `[[listen]]` that take effect after a restart only.
const OF_SOCKETS: [&str; 3] = ["tls", "origins", "connection"];

/// `[[listen]]` without the keys [`OF_SOCKETS`].
fn sockets_apart(listen: &Json) -> Json {
    let mut listen = listen.clone();
    let tables = listen.as_array_mut().into_iter().flatten();
    for table in tables.filter_map(Json::as_object_mut) {
        for key in OF_SOCKETS {
            table.remove(key);
        }
    }
    listen
}

/// Counts of reloads.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    reloaded: AtomicU64,
    partly: AtomicU64,
    refused: AtomicU64,
}

impl Counts {
    /// Counts a reload.
    pub(crate) fn note(&self, result: Verdict) {
        let counter = match result {
            Verdict::Reloaded => &self.reloaded,
            Verdict::Partly => &self.partly,
            Verdict::Refused => &self.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Samples for `/metrics`.
    pub(crate) fn metrics(&self) -> Vec<Sample> {
        [
            ("result=\"reloaded\"", &self.reloaded),
            ("result=\"partly\"", &self.partly),
            ("result=\"refused\"", &self.refused),
        ]
        .into_iter()
        .map(|(labels, counter)| Sample {
            name: "reloads",
            help: "Reloads of the configuration and its files, by result.",
            labels,
            value: Value::Counter(counter.load(Ordering::Relaxed)),
        })
        .collect()
    }
}

/// A request for a reload: the sender of its report.
pub(crate) type Asked = oneshot::Sender<Outcome>;

/// Handle for requesting reloads. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Reloads(mpsc::Sender<Asked>);

impl Reloads {
    /// The handle, and the server's receiver.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Asked>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(sender), receiver)
    }

    /// Requests a reload. Returns its report; `None` if the server is about to stop.
    pub(crate) async fn ask(&self) -> Option<Outcome> {
        let (sender, receiver) = oneshot::channel();
        self.0.send(sender).await.ok()?;
        receiver.await.ok()
    }
}

/// The configuration to continue with, and the keys that differ but take effect after a restart only.
#[derive(Debug)]
pub(crate) struct Reloaded {
    pub core: Arc<Config>,
    pub kept: Vec<&'static str>,
}

/// Takes the changeable parts from `new`, and keeps the rest of `running`.
pub(crate) fn merge(running: &Loaded, new: &Loaded) -> Reloaded {
    let mut kept = kept(&running.shell, &new.shell);
    let mut core = new.core.clone();
    if !same_sockets(&running.core.listeners, &new.core.listeners) {
        core.listeners.clone_from(&running.core.listeners);
        kept.push("listen");
    }
    // `origins` and `admin.listen` take effect after a restart. Until then any page may still open a
    // WebSocket, and the admin pages stay at their address.
    for (listener, before) in core.listeners.iter_mut().zip(&running.core.listeners) {
        listener.any_page = before.any_page;
    }
    let own_sockets = &running.core.destinations.own_sockets;
    core.destinations.own_sockets.clone_from(own_sockets);
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
        // The connections' framing has had these since the start.
        if *limit != old {
            *limit = old;
            kept.push("transport");
        }
    }
    let (old, new_tls) = (&running.shell, &new.shell);
    if !old.tls.is_same(&new_tls.tls) {
        // Reported for listeners that stay; for others `listen` covers it.
        if !kept.contains(&"listen") && tls_of_listeners(&running.keys) != tls_of_listeners(&new.keys) {
            kept.push("listen.tls");
        }
        if running.keys.get("tls") != new.keys.get("tls") {
            kept.push("tls");
        }
    }
    if !kept.contains(&"listen") {
        for (key, differs) in [
            (
                "listen.origins",
                differs(old, new_tls, |service| service.origins.clone()),
            ),
            (
                "listen.connection",
                differs(old, new_tls, |service| service.sharing),
            ),
        ] {
            if differs {
                kept.push(key);
            }
        }
    }
    // A store that is not open cannot keep anything, and an open one stays open.
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

fn tls_of_listeners(keys: &Json) -> Vec<Option<Json>> {
    let listen = keys.get("listen").and_then(Json::as_array).into_iter().flatten();
    listen.map(|listen| listen.get("tls").cloned()).collect()
}

/// Whether the value of `of` differs for a listener.
fn differs<T: PartialEq>(running: &Shell, new: &Shell, of: impl Fn(&Service) -> T) -> bool {
    let all = |shell: &Shell| shell.services.iter().map(&of).collect::<Vec<_>>();
    all(running) != all(new)
}

fn kept(running: &Shell, new: &Shell) -> Vec<&'static str> {
    let lookups = |shell: &Shell| LookupOptions {
        // The deadline takes effect at once.
        deadline: Duration::ZERO,
        ..shell.lookups.clone()
    };
    let differences = [
        ("server.data_dir", running.data_dir != new.data_dir),
        ("subscribers", running.subscribers != new.subscribers),
        ("credentials", lookups(running) != lookups(new)),
        ("location.url", running.location != new.location),
        (
            "credentials.cache_entries",
            running.cache_entries != new.cache_entries,
        ),
        ("credentials.cache_ttl_s", running.cache_ttl != new.cache_ttl),
        (
            "credentials.cache_stale_s",
            running.cache_stale != new.cache_stale,
        ),
        (
            "overload.new_work_queue_bytes",
            running.sockets.new_work_buffer != new.sockets.new_work_buffer,
        ),
        ("transport", of_transport(running) != of_transport(new)),
        (
            "limits.connections_per_address",
            running.sockets.connections_per_address != new.sockets.connections_per_address,
        ),
        (
            "limits.handshakes_per_turn",
            running.sockets.handshakes_per_turn != new.sockets.handshakes_per_turn,
        ),
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

/// The socket settings of `[transport]`.
fn of_transport(shell: &Shell) -> sip_net::settings::Settings {
    sip_net::settings::Settings {
        connections_per_address: 0,
        handshakes_per_turn: 0,
        new_work_buffer: 0,
        ..shell.sockets.clone()
    }
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
    use settings::{Machine, read_text};

    fn loaded(text: &str) -> Loaded {
        let machine = Machine {
            processors: 2,
            ..Machine::default()
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

    /// Values that depend on keys that take effect after a restart wait for it, too.
    #[test]
    fn what_follows_from_origins_and_the_admin_address_stays() {
        let text = |origins: &str, admin: u16| {
            let listen = "[[listen]]\ntransport = \"ws\"\naddress = \"127.0.0.1:80\"\n";
            loaded(&format!(
                "{listen}{origins}[admin]\nlisten = \"127.0.0.1:{admin}\"\n"
            ))
        };
        let (open, closed) = (text("", 8080), text("origins = [\"https://a\"]\n", 8081));
        for (running, new, any_page, port) in [(&open, &closed, true, 8080), (&closed, &open, false, 8081)] {
            let core = merge(running, new).core;
            assert_eq!(core.listeners[0].any_page, any_page);
            let ports: Vec<u16> = core
                .destinations
                .own_sockets
                .iter()
                .map(|socket| socket.port())
                .collect();
            assert_eq!(ports, [port]);
        }
    }

    #[test]
    fn the_outcome_tells_what_holds_now_and_what_after_a_restart() {
        let running = loaded(LISTEN);
        let text = format!(
            "{LISTEN}advertise = \"example.com\"\n[[listen]]\ntransport = \"ws\"\naddress = \"127.0.0.1:80\"\n"
        );
        let with_ws = loaded(&text);
        let new = loaded(&format!(
            "{text}origins = [\"https://a\"]\n[transport]\nidle_s = 60\nudp_mtu = 0\n[timers]\nt1_ms = 200\n\
             [limits]\nhandshakes_per_turn = 1\nbranches = 2\n[tls]\nremembered_peers = 1\n[[route]]\ndo = {{ reject = 403 }}\n\
             [server]\nworkers = 3\ndrain_s = 1\n"
        ));
        let told = |running: &Loaded, new: &Loaded| {
            let merged = merge(running, new);
            Outcome::taken(running, new, &merged.kept, Vec::new(), Findings::default())
        };
        let outcome = told(&with_ws, &new);
        assert_eq!(outcome.result, Verdict::Reloaded);
        assert_eq!(
            outcome.taken,
            [
                "server.drain_s",
                "route",
                "timers.t1_ms",
                "transport.udp_mtu",
                "limits.branches"
            ]
        );
        assert_eq!(
            outcome.after_restart,
            [
                "limits.handshakes_per_turn",
                "listen.origins",
                "server.workers",
                "tls",
                "transport"
            ]
        );
        let outcome = told(&running, &new);
        assert!(
            !outcome.taken.contains(&"listen".to_owned()),
            "{:?}",
            outcome.taken
        );
        assert!(outcome.after_restart.contains(&"listen".to_owned()));

        // The next reload reports what is new then, and again the keys that wait for a restart.
        let kept = merge(&with_ws, &new).kept;
        let keys = in_force(&with_ws.keys, &new.keys, &kept);
        assert_eq!(changed(&keys, &with_ws.keys).len(), 5, "what was taken");
        let waiting: Vec<String> = changed(&keys, &new.keys);
        assert_eq!(
            waiting,
            [
                "server.workers",
                "tls.remembered_peers",
                "transport.idle_s",
                "limits.handshakes_per_turn"
            ]
        );
        assert_eq!(keys["listen"][1]["origins"], Json::Null);
        assert_eq!(keys["listen"][0]["advertise"], "example.com");

        let findings = Findings {
            errors: vec!["bad".to_owned()],
            warnings: Vec::new(),
        };
        let outcome = Outcome::taken(&running, &running, &[], Vec::new(), findings);
        assert_eq!((outcome.result, outcome.taken.len()), (Verdict::Partly, 0));
    }

    #[test]
    fn tls_stays_as_it_was() {
        let listen = "[[listen]]\ntransport = \"tls\"\naddress = \"127.0.0.1:5061\"\n";
        let tls = |name: &str| {
            let files = format!("tls = {{ certificate = \"{name}\", key = \"k\" }}");
            loaded(&format!("{listen}{files}\nconnection = \"per-call\"\n"))
        };
        assert_eq!(merge(&tls("a"), &tls("a")).kept, [""; 0]);
        assert_eq!(merge(&tls("a"), &tls("b")).kept, ["listen.tls"]);
        let mut shared = tls("a");
        shared.shell.services[0].sharing = sip_net::tcp::Sharing::PerPeer;
        assert_eq!(merge(&shared, &tls("a")).kept, ["listen.connection"]);
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

    /// Both are settings of the sockets.
    #[test]
    fn the_queue_of_new_work_is_no_part_of_transport() {
        let queue = loaded(&format!("{LISTEN}[overload]\nnew_work_queue_bytes = 0\n"));
        assert_eq!(
            merge(&loaded(LISTEN), &queue).kept,
            ["overload.new_work_queue_bytes"]
        );
        let backlog = loaded(&format!("{LISTEN}[transport]\nudp_backlog_bytes = 100000\n"));
        assert_eq!(merge(&loaded(LISTEN), &backlog).kept, ["transport"]);
    }

    #[test]
    fn sockets_workers_and_stores_stay() {
        let running = loaded(LISTEN);
        let new = loaded(
            "[[listen]]\ntransport = \"tcp\"\naddress = \"127.0.0.1:5060\"\n[server]\nworkers = 7\ndata_dir = \"x\"\n\
             [location]\nurl = \"memory:\"\n[admin]\nlisten = \"off\"\ntoken_file = \"t\"\n[transport]\nidle_s = 60\n[log]\nformat = \"json\"\n\
             [dns]\ntimeout_ms = 100\n[credentials]\ncache_entries = 0\ncache_ttl_s = 1\n[limits]\nnonces = 1000\n\
             [subscribers]\ncalculate_ha1 = true\n[timers]\nt1_ms = 200\n[overload]\nnew_work_queue_bytes = 0\n",
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
                "overload.new_work_queue_bytes",
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
