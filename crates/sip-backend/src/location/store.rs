//! The store on this machine's disk, with its files, lock and threads.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use sip_core::query::{QueryResult, Unavailable};
use sip_core::time::Instant;

use super::backlog::{Backlog, FoldRequest};
use super::clock::Clock;
use super::disk::{Disk as _, OsDisk};
use super::open::{FindListener, Load, Loaded, OpenError, Opened, open};
use super::socket::LocalSocket;
use super::table::sqlite::SqliteTable;
use super::writer::Writer;
use super::{LocationError, LocationStore, Options, Save, Stats};
use crate::ResultSink;
use crate::metrics::Sample;
use crate::queue::{Queue, Taken};
use crate::sqlite;

/// Attempts of the last writes at the end.
const FINISH_TRIES: u32 = 10;
/// Pause between attempts of the last writes.
const FINISH_PAUSE: Duration = Duration::from_millis(100);

/// A task of the writing thread.
#[derive(Debug)]
enum Item {
    /// Write this save, which was queued at this instant.
    Save(Save, Instant),
    /// Use these sockets for listener ids from here on.
    Listeners(Vec<LocalSocket>),
    /// End the segment and fold at once.
    Fold(Arc<FoldRequest>),
}

impl Item {
    /// Bytes of the item.
    fn weight(&self) -> usize {
        match self {
            Self::Save(save, _) => save.aor.len() + save.record.len() + size_of::<Self>(),
            Self::Listeners(_) | Self::Fold(_) => 0,
        }
    }
}

/// The store on this machine's disk.
#[derive(Debug)]
pub struct DiskStore {
    queue: Arc<Queue<Item>>,
    backlog: Arc<Backlog>,
    stats: Arc<Stats>,
    sink: Arc<dyn ResultSink>,
    clock: Clock,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for dyn ResultSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResultSink(..)")
    }
}

impl DiskStore {
    /// Opens the store, passes every live record to `load`, and starts its threads. A binding is left out if
    /// `find_listener` does not know its local socket. Connections are not restored.
    ///
    /// # Errors
    /// The database is in use, or the file system or SQLite fails.
    pub fn open(
        options: Options,
        sink: Arc<dyn ResultSink>,
        find_listener: &FindListener<'_>,
        load: &Load<'_>,
    ) -> Result<(Self, Loaded), LocationError> {
        let clock = Clock::new();
        if let Some(parent) = options.path.parent() {
            make_dirs(parent).map_err(LocationError::io(parent))?;
        }
        let lock = lock(&options)?;
        sqlite::create(&options.path).map_err(LocationError::io(&options.path))?;
        let table = SqliteTable::open(&options.path).map_err(LocationError::database(&options.path))?;
        let opened = open(clock.now(), OsDisk, table, &options, find_listener, load);
        let mut opened = opened.map_err(|error| match error {
            OpenError::Io { path, source } => LocationError::Io { path, source },
            OpenError::Table(source) => LocationError::database(&options.path)(source),
        })?;
        opened.loaded.took = clock.since(Instant::ORIGIN);
        let loaded = opened.loaded;
        tracing::info!(
            aors = loaded.aors,
            bindings = loaded.bindings,
            expired = loaded.expired,
            unmapped = loaded.unmapped,
            replayed = loaded.replayed,
            torn_bytes = loaded.torn_bytes,
            damaged = loaded.damaged,
            took_ms = u64::try_from(loaded.took.as_millis()).unwrap_or(u64::MAX),
            "location store opened"
        );
        let store = Self::start(&options, opened, sink, clock, lock)?;
        Ok((store, loaded))
    }

    fn start(
        options: &Options,
        opened: Opened<OsDisk, SqliteTable>,
        sink: Arc<dyn ResultSink>,
        clock: Clock,
        lock: File,
    ) -> Result<Self, LocationError> {
        let Opened {
            writer,
            folder,
            backlog,
            stats,
            loaded: _,
        } = opened;
        let queue = Arc::new(Queue::new(options.queue_items, options.queue_bytes));
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            thread::Builder::new()
                .name(name.to_owned())
                .spawn(run)
                .map_err(LocationError::io(&options.path))
        };
        let writing = Writing {
            queue: queue.clone(),
            backlog: backlog.clone(),
            stats: stats.clone(),
            sink: sink.clone(),
            longest: options.fold_every.max(Duration::from_millis(10)),
            clock,
            writer,
            saves: Vec::new(),
        };
        let writer = spawn("location-write", Box::new(move || writing.run()))?;
        let folder = spawn(
            "location-fold",
            Box::new(move || {
                folder.run(clock);
                // This thread is the last to use the files.
                drop(lock);
            }),
        )?;
        Ok(Self {
            queue,
            backlog,
            stats,
            sink,
            clock,
            threads: Mutex::new(vec![writer, folder]),
        })
    }

    /// Folds everything saved so far into the table, and waits for that, at most `timeout`. Returns whether
    /// it is done. For tools and tests: the store folds by itself in its own time.
    pub fn fold_now(&self, timeout: Duration) -> bool {
        let deadline = std::time::Instant::now() + timeout;
        let asked = Arc::new(FoldRequest::default());
        self.queue.push_control(Item::Fold(asked.clone())) && asked.wait(deadline)
    }
}

/// The writing thread.
struct Writing {
    queue: Arc<Queue<Item>>,
    backlog: Arc<Backlog>,
    stats: Arc<Stats>,
    sink: Arc<dyn ResultSink>,
    /// Longest wait for items.
    longest: Duration,
    clock: Clock,
    writer: Writer<OsDisk>,
    saves: Vec<(Save, Instant)>,
}

impl Writing {
    /// Runs until the queue is closed and empty.
    fn run(mut self) {
        let mut items = Vec::new();
        loop {
            let taken = self.queue.take(&mut items, self.until_timeout());
            for item in items.drain(..) {
                match item {
                    Item::Save(save, asked) => self.saves.push((save, asked)),
                    Item::Listeners(listeners) => {
                        self.commit();
                        self.writer.set_listeners(&listeners);
                    }
                    Item::Fold(request) => {
                        self.commit();
                        self.writer.end_segment(self.clock.instant(), true);
                        self.backlog.request(request);
                    }
                }
            }
            self.commit();
            self.writer.handle_timeout(self.clock.now());
            if taken == Taken::Closed {
                break;
            }
        }
        // A disk that refused something may need a moment.
        for _ in 0..FINISH_TRIES {
            if self.writer.finish(self.clock.now()) {
                return;
            }
            thread::sleep(FINISH_PAUSE);
        }
        tracing::error!(
            "location journal: at the end the disk still refuses to take or to give up registrations"
        );
    }

    fn until_timeout(&self) -> Duration {
        let due = self.writer.poll_timeout();
        let wait = due.map(|at| Duration::from_micros(at.micros_since(self.clock.instant())));
        wait.map_or(self.longest, |wait| wait.min(self.longest))
    }

    /// Writes all saves received so far, and delivers their results.
    fn commit(&mut self) {
        if self.saves.is_empty() {
            return;
        }
        let mut answered = Vec::with_capacity(self.saves.len());
        let now = self.clock.now();
        self.writer.commit(now, &mut self.saves, &mut answered);
        self.stats.sync.observe_duration(self.clock.since(now.instant), 1);
        for answer in answered {
            self.stats
                .latency
                .observe_duration(self.clock.since(answer.asked), 1);
            if let Some(id) = answer.id {
                self.sink
                    .deliver(answer.origin, id, QueryResult::Saved(answer.saved));
            }
        }
        self.sink.flush();
    }
}

impl LocationStore for DiskStore {
    fn save(&self, batch: Vec<Save>) {
        let asked = self.clock.instant();
        let mut refused = Vec::new();
        let items = batch.into_iter().map(|save| Item::Save(save, asked));
        self.queue.push_all(items, Item::weight, &mut refused);
        if refused.is_empty() {
            return;
        }
        self.stats.refused_queue.add(refused.len() as u64);
        self.backlog.note_lost();
        for item in refused {
            if let Item::Save(
                Save {
                    origin, id: Some(id), ..
                },
                _,
            ) = item
            {
                self.sink
                    .deliver(origin, id, QueryResult::Saved(Err(Unavailable)));
            }
        }
        self.sink.flush();
    }

    fn set_listeners(&self, listeners: Vec<LocalSocket>) {
        self.queue.push_control(Item::Listeners(listeners));
    }

    fn is_failing(&self) -> bool {
        self.stats.failing.get() > 0
    }

    fn metrics(&self) -> Vec<Sample> {
        let mut samples = self.stats.samples();
        samples.push(Sample::gauge(
            "location_queue",
            "",
            "Registrations that wait for the disk.",
            self.queue.len() as u64,
        ));
        samples
    }

    fn shutdown(&self) {
        self.queue.close();
        let mut threads = std::mem::take(&mut *self.threads.lock()).into_iter();
        // The writer ends first, because it passes its last segment to the folding thread.
        if let Some(writer) = threads.next()
            && writer.join().is_err()
        {
            tracing::error!("the location store's writer had panicked");
        }
        self.backlog.stop();
        if let Some(fold) = threads.next()
            && fold.join().is_err()
        {
            tracing::error!("the location store's folding thread had panicked");
        }
    }
}

impl Drop for DiskStore {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// Makes a directory and its missing parents, on stable storage.
fn make_dirs(path: &Path) -> io::Result<()> {
    if path == Path::new("") || path.is_dir() {
        return Ok(());
    }
    let above = path.parent().unwrap_or(Path::new(""));
    make_dirs(above)?;
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let above = if above == Path::new("") {
        Path::new(".")
    } else {
        above
    };
    OsDisk.sync_dir(above)
}

/// Takes the lock that keeps a second process out. The kernel releases the lock when this process ends,
/// however it ends.
fn lock(options: &Options) -> Result<File, LocationError> {
    let path = options.beside(".lock");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(LocationError::io(&path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(LocationError::Locked {
                path: options.path.clone(),
                lock: path,
            });
        }
        Err(TryLockError::Error(source)) => return Err(LocationError::Io { path, source }),
    }
    // The content is for operators only; the lock itself is what counts.
    let _ = file
        .set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}
