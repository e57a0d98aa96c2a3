//! Abuse control of the whole process. It judges the workers' reports ([`guard`]), keeps the bans over
//! restarts ([`mod@file`]), and sends the source lists to all workers.
//!
//! Workers report by bounded queues and never wait; a report that does not fit is lost, and counted. Peers of
//! the trust domain have a queue of their own: their reports are rare, and no other source must cost them
//! their protection. One task handles the reports, and checks the time once a second.

mod file;
mod guard;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sip_backend::known::Known;
use sip_backend::metrics::{Counter, Sample, Value};
use sip_core::admission::{Source, SourceLists, exempt_networks};
use sip_core::config::Config;
use sip_core::event::Event;
use sip_net::hub::Hub;
use sip_net::mailbox::Control;
use tokio::sync::mpsc;

pub(crate) use self::file::plain;
use self::guard::Guard;
pub(crate) use self::guard::{Ban, NotBanned, REASON};
use crate::machine::unix_ms;
use settings::{BanPolicy, Loaded};

/// Most waiting reports of the workers.
const REPORTS: usize = 16_384;

/// Most peers of the trust domain that wait to be noted. A worker reports each peer once in ten minutes.
const MET: usize = 16_384;

/// Most reports judged at once.
const AT_ONCE: usize = 1_024;

/// An observation of a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Report {
    /// A failure of authentication, with a hash of the user's name.
    Failed(IpAddr, u64),
    /// A request of a scanner.
    Scanned(IpAddr),
}

/// The reports of the workers.
#[derive(Debug)]
pub(crate) struct Reports {
    seen: mpsc::Receiver<Report>,
    /// Addresses of peers of the trust domain.
    met: mpsc::Receiver<IpAddr>,
}

/// Handle for the workers' sinks. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    reports: mpsc::Sender<Report>,
    met: mpsc::Sender<IpAddr>,
    lost: Arc<Counter>,
    known: Arc<Known>,
    /// Whether sources are banned for failures.
    is_on: Arc<AtomicBool>,
    hasher: RandomState,
}

impl Watch {
    /// Reports an event, if abuse control needs it.
    pub(crate) fn see(&self, event: &Event) {
        let report = match event {
            Event::Registered { source, .. } => {
                if self.is_on.load(Ordering::Relaxed) {
                    self.known.note(unix_ms(), Source::of(source.ip()));
                }
                return;
            }
            Event::AuthFailed {
                user,
                source,
                counts: true,
                ..
            } => Report::Failed(source.ip(), self.hasher.hash_one(user)),
            Event::Scanned {
                source, counts: true, ..
            } => Report::Scanned(source.ip()),
            Event::PeerMet { address } => {
                if self.met.try_send(*address).is_err() {
                    self.lost.inc();
                }
                return;
            }
            Event::AuthFailed { .. }
            | Event::Scanned { .. }
            | Event::SourceLimited { .. }
            | Event::ResponseFlawed { .. }
            | Event::Refused { .. }
            | Event::DigestUriRewritten { .. }
            | Event::InviteCompleted { .. }
            | Event::MemberFailed { .. }
            | Event::MemberRecovered { .. }
            | Event::ContactLost { .. }
            | Event::ContactReturned { .. }
            | Event::NextHopFailed { .. }
            | Event::NextHopReturned { .. } => return,
        };
        if self.is_on.load(Ordering::Relaxed) && self.reports.try_send(report).is_err() {
            self.lost.inc();
        }
    }
}

/// Abuse control, for the admin pages and the server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Abuse(Arc<Inner>);

struct Inner {
    guard: Mutex<Guard>,
    watch: Watch,
    hub: Hub,
    path: PathBuf,
    /// Lock for writing the file: each writer writes the latest bans.
    writing: tokio::sync::Mutex<()>,
    /// Whether a change is not on disk yet.
    is_unsaved: AtomicBool,
    /// Whether the last attempt to write the file of bans failed.
    has_failed: AtomicBool,
    /// Whether the source lists have not reached all workers.
    is_untold: AtomicBool,
    save_failures: Counter,
}

impl fmt::Debug for Abuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.guard.lock().fmt(f)
    }
}

/// Why a change by hand failed.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The ban is refused.
    Refused(NotBanned),
    /// The change is in force, but lost at a restart: the file cannot be written.
    NotSaved(String),
}

impl Abuse {
    /// Reads the bans of the data directory. If the file is damaged, it is set aside and no source is banned.
    /// Refusing to start because of it would serve the attackers.
    pub(crate) fn open(loaded: &Loaded, hub: &Hub) -> (Self, Reports) {
        let path = loaded.shell.data_dir.join("bans");
        let mut guard = Guard::new(loaded.shell.bans, exempt_networks(&loaded.core));
        match file::read(&path) {
            Ok(bans) => guard.load(bans),
            Err(wrong) => {
                let place = path.display();
                match file::set_aside(&path) {
                    Ok(aside) => tracing::error!(
                        "{place}: {wrong}; no source is banned now, and the file is set aside as {}: make its \
                         bans again by hand",
                        aside.display()
                    ),
                    Err(error) => tracing::error!(
                        "{place}: {wrong}; no source is banned now, and the file cannot be set aside ({error}): bans will \
                         be written over it"
                    ),
                }
            }
        }
        let (reports, seen) = mpsc::channel(REPORTS);
        let (meeting, met) = mpsc::channel(MET);
        let watch = Watch {
            reports,
            met: meeting,
            lost: Arc::default(),
            known: Arc::default(),
            is_on: Arc::new(AtomicBool::new(guard.is_watching())),
            hasher: RandomState::new(),
        };
        let inner = Inner {
            guard: Mutex::new(guard),
            watch,
            hub: hub.clone(),
            path,
            writing: tokio::sync::Mutex::default(),
            is_unsaved: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            is_untold: AtomicBool::new(false),
            save_failures: Counter::default(),
        };
        let abuse = Self(Arc::new(inner));
        // Posted before the workers begin: the lists wait in their mailboxes.
        abuse.tell_workers();
        (abuse, Reports { seen, met })
    }

    /// The handle for a worker's sink.
    pub(crate) fn watch(&self) -> Watch {
        self.0.watch.clone()
    }

    /// Notes a registration from this address, which the store had at the start.
    pub(crate) fn note_registered(&self, ip: IpAddr) {
        self.0.watch.known.note(unix_ms(), Source::of(ip));
    }

    /// Whether sources are banned for failures.
    pub(crate) fn is_watching(&self) -> bool {
        self.0.watch.is_on.load(Ordering::Relaxed)
    }

    /// Uses a new configuration.
    pub(crate) fn reconfigure(&self, policy: BanPolicy, core: &Config) {
        let lifted = {
            let mut guard = self.0.guard.lock();
            let lifted = guard.reconfigure(unix_ms(), policy, exempt_networks(core));
            self.0.watch.is_on.store(guard.is_watching(), Ordering::Relaxed);
            lifted
        };
        for source in &lifted {
            tracing::info!(%source, "ban lifted: the configuration trusts it now");
        }
        self.tell_workers();
        self.0.is_unsaved.store(true, Ordering::Relaxed);
    }

    /// Judges reports, ends bans in time and writes the file, until the server stops.
    pub(crate) async fn run(self, mut reports: Reports) {
        let mut seconds = tokio::time::interval(Duration::from_secs(1));
        seconds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut taken, mut met) = (Vec::with_capacity(AT_ONCE), Vec::new());
        let mut last_ms = unix_ms();
        loop {
            let is_different = tokio::select! {
                count = reports.met.recv_many(&mut met, AT_ONCE) => {
                    if count == 0 {
                        return;
                    }
                    self.meet(&mut met)
                }
                count = reports.seen.recv_many(&mut taken, AT_ONCE) => {
                    if count == 0 {
                        return;
                    }
                    self.judge(&mut taken)
                }
                _ = seconds.tick() => {
                    let now_ms = unix_ms();
                    let is_different = self.pass(last_ms, now_ms);
                    last_ms = now_ms;
                    is_different || self.0.is_untold.load(Ordering::Relaxed)
                }
            };
            if is_different {
                self.tell_workers();
            }
            if self.0.is_unsaved.load(Ordering::Relaxed) {
                // A failure is logged, and the write is repeated within a second.
                let _ = self.save().await;
            }
        }
    }

    /// Notes peers of the trust domain. Returns whether the workers need new source lists.
    fn meet(&self, met: &mut Vec<IpAddr>) -> bool {
        let now_ms = unix_ms();
        let mut is_different = false;
        let mut guard = self.0.guard.lock();
        for ip in met.drain(..) {
            let (is_news, lifted) = guard.meet(now_ms, ip);
            is_different |= is_news;
            if lifted {
                self.0.is_unsaved.store(true, Ordering::Relaxed);
                tracing::info!(source = %Source::of(ip), "ban lifted: a peer of the trust domain is there");
            }
        }
        is_different
    }

    /// Judges reports. Returns whether the workers need new source lists.
    fn judge(&self, reports: &mut Vec<Report>) -> bool {
        let now_ms = unix_ms();
        let mut is_different = false;
        let mut guard = self.0.guard.lock();
        for report in reports.drain(..) {
            let (ip, user) = match report {
                Report::Failed(ip, user) => (ip, Some(user)),
                Report::Scanned(ip) => (ip, None),
            };
            let source = Source::of(ip);
            let is_shared = self.0.watch.known.has(now_ms, source);
            match guard.fail(now_ms, source, user, is_shared) {
                None => {}
                Some(Ok(ban)) => {
                    is_different = true;
                    self.0.is_unsaved.store(true, Ordering::Relaxed);
                    let seconds = ban.until_ms.map(|until| until.saturating_sub(now_ms) / 1000);
                    let (strikes, reason) = (ban.strikes, ban.reason.as_str());
                    tracing::warn!(%source, seconds, strikes, reason, "source banned");
                }
                Some(Err(_)) => {
                    tracing::warn!(%source, "not banned: all of [abuse] bans are held, by operators' bans");
                }
            }
        }
        is_different
    }

    fn pass(&self, last_ms: u64, now_ms: u64) -> bool {
        let (ended, is_different) = self.0.guard.lock().pass(last_ms, now_ms);
        for source in &ended {
            tracing::info!(%source, "ban ended");
        }
        if is_different {
            self.0.is_unsaved.store(true, Ordering::Relaxed);
        }
        is_different || !ended.is_empty()
    }

    fn tell_workers(&self) {
        let standing: SourceLists = self.0.guard.lock().standing(unix_ms());
        let told = self.0.hub.order(&Control::SourceLists(Arc::new(standing)));
        let is_untold = told < usize::from(self.0.hub.workers());
        self.0.is_untold.store(is_untold, Ordering::Relaxed);
    }

    /// Writes the file. `Err` has the reason of a failure.
    async fn save(&self) -> Result<(), String> {
        let _turn = self.0.writing.lock().await;
        self.0.is_unsaved.store(false, Ordering::Relaxed);
        let text = file::render(self.0.guard.lock().bans());
        let path = self.0.path.clone();
        let written = tokio::task::spawn_blocking(move || file::write(&path, &text)).await;
        let failed = match written {
            Ok(Ok(())) => {
                if self.0.has_failed.swap(false, Ordering::Relaxed) {
                    tracing::info!("bans are written again");
                }
                return Ok(());
            }
            Ok(Err(error)) => format!("{}: {error}", self.0.path.display()),
            Err(error) => error.to_string(),
        };
        self.0.is_unsaved.store(true, Ordering::Relaxed);
        self.0.has_failed.store(true, Ordering::Relaxed);
        self.0.save_failures.inc();
        tracing::error!("bans hold but cannot be written, and would be lost with a restart: {failed}");
        Err(failed)
    }

    /// The bans in force, in order, and the most bans that may be held, including remembered ones.
    pub(crate) fn list(&self, now_ms: u64) -> (Vec<(Source, Ban)>, usize) {
        let guard = self.0.guard.lock();
        let held = guard.bans().filter(|(_, ban)| ban.holds(now_ms));
        (
            held.map(|(source, ban)| (source, ban.clone())).collect(),
            guard.limit(),
        )
    }

    /// Bans a source for this many seconds, or until the ban is lifted. When this function returns, the ban
    /// is in force and on disk.
    pub(crate) async fn add(
        &self,
        source: Source,
        seconds: Option<u32>,
        reason: &str,
    ) -> Result<Ban, Failed> {
        let now_ms = unix_ms();
        let until_ms = seconds.map(|seconds| now_ms + u64::from(seconds) * 1000);
        let added = self
            .0
            .guard
            .lock()
            .add(now_ms, source, until_ms, plain(reason))
            .cloned();
        let ban = added.map_err(Failed::Refused)?;
        tracing::warn!(%source, seconds, reason = ban.reason, "source banned by the operator");
        self.tell_workers();
        self.save().await.map_err(Failed::NotSaved)?;
        Ok(ban)
    }

    /// Lifts the ban of a source, and forgets its failures. Returns whether the source was banned.
    pub(crate) async fn lift(&self, source: Source) -> Result<bool, Failed> {
        let now_ms = unix_ms();
        let was_banned = {
            let mut guard = self.0.guard.lock();
            let was_banned = guard
                .bans()
                .any(|(other, ban)| other == source && ban.holds(now_ms));
            // A remembered ban that is over is forgotten, too.
            guard.lift(source) && was_banned
        };
        if was_banned {
            tracing::info!(%source, "ban lifted by the operator");
            self.tell_workers();
        }
        self.save().await.map_err(Failed::NotSaved)?;
        Ok(was_banned)
    }

    /// Samples for `/metrics`.
    pub(crate) fn metrics(&self) -> Vec<Sample> {
        let now_ms = unix_ms();
        let (counts, held, (suspects, peers)) = {
            let guard = self.0.guard.lock();
            let held = guard.bans().filter(|(_, ban)| ban.holds(now_ms)).count();
            (guard.counts, held as u64, guard.watched())
        };
        let sample = |name, labels, help, value| Sample {
            name,
            help,
            labels,
            value,
        };
        let count = |name, labels, help, n| sample(name, labels, help, Value::Counter(n));
        let gauge = |name, help, n| sample(name, "", help, Value::Gauge(n));
        let made = "Bans made, by origin.";
        vec![
            gauge("bans_in_force", "Sources that are banned.", held),
            gauge(
                "abuse_suspects",
                "Sources that have failed recently.",
                suspects as u64,
            ),
            gauge(
                "abuse_peers",
                "Addresses of the trust domain that were learnt.",
                peers as u64,
            ),
            count("bans_made", "by=\"failures\"", made, counts.made),
            count("bans_made", "by=\"hand\"", made, counts.made_by_hand),
            count(
                "bans_lifted",
                "",
                "Bans lifted by hand, or as the source is trusted now.",
                counts.lifted,
            ),
            count("bans_ended", "", "Bans that ended by time.", counts.ended),
            count(
                "bans_evicted",
                "",
                "Bans forgotten for others at the limit.",
                counts.evicted,
            ),
            count(
                "bans_refused",
                "",
                "Bans not made, as the limit was full of operators' bans.",
                counts.refused,
            ),
            count(
                "abuse_suspects_evicted",
                "",
                "Sources forgotten at the limit although they had failed recently.",
                counts.suspects_evicted,
            ),
            count(
                "abuse_reports_lost",
                "",
                "Reports of workers for which the queue had no room.",
                self.0.watch.lost.get(),
            ),
            count(
                "bans_save_failures",
                "",
                "Times that the file of the bans could not be written.",
                self.0.save_failures.get(),
            ),
        ]
    }
}

#[cfg(test)]
pub(crate) mod tests;
