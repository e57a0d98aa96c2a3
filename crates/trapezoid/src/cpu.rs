//! CPU time of the process: that of workers by component, measured by themselves ([`sip_net::cpu`]), and that
//! of each other thread as a whole, counted by Linux.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sip_core::activity::Component;
use sip_net::cpu::CpuSplit;
use sip_net::hub::Hub;
use sip_net::mailbox::Control;

/// Name of the workers' threads, before their number.
pub(crate) const WORKER: &str = "worker-";

/// CPU time since the measurement was last switched on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CpuTime {
    /// Whether the measurement is on.
    pub on: bool,
    /// How long the measurement has been on, or was.
    pub elapsed: Duration,
    /// CPU time of the workers, in order.
    pub workers: Vec<CpuSplit>,
    /// CPU time of the other threads, summed by name.
    pub threads: Vec<ThreadTime>,
}

/// CPU time of threads that are no workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ThreadTime {
    pub name: String,
    /// The one component of the thread.
    pub component: &'static str,
    pub ns: u64,
}

/// A thread as Linux sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    id: u32,
    name: String,
    /// CPU time since the thread began, nanoseconds.
    ns: u64,
}

/// CPU time of other threads than workers, since a moment.
#[derive(Debug, Default)]
struct Others {
    /// By thread: its name, CPU time at that moment, and CPU time when last read.
    threads: HashMap<u32, (String, u64, u64)>,
    /// CPU time of ended threads, by name.
    ended: BTreeMap<String, u64>,
}

impl Others {
    /// Starts at these readings.
    fn since(seen: &[Seen]) -> Self {
        let threads = seen
            .iter()
            .map(|thread| (thread.id, (thread.name.clone(), thread.ns, thread.ns)));
        Self {
            threads: threads.collect(),
            ended: BTreeMap::new(),
        }
    }

    fn update(&mut self, seen: &[Seen]) {
        let ended = &mut self.ended;
        self.threads.retain(|id, (name, first, last)| {
            // A number may return for another thread, which has used less CPU time.
            let stays = seen
                .iter()
                .any(|thread| thread.id == *id && thread.name == *name && thread.ns >= *last);
            if !stays {
                *ended.entry(name.clone()).or_default() += last.saturating_sub(*first);
            }
            stays
        });
        for thread in seen {
            let known = self.threads.entry(thread.id);
            known.or_insert_with(|| (thread.name.clone(), 0, 0)).2 = thread.ns;
        }
    }

    /// CPU time by name.
    fn read(&self) -> Vec<ThreadTime> {
        let mut sums = self.ended.clone();
        for (name, first, last) in self.threads.values() {
            *sums.entry(name.clone()).or_default() += last.saturating_sub(*first);
        }
        let threads = sums.into_iter().map(|(name, ns)| ThreadTime {
            component: component_of(&name),
            name,
            ns,
        });
        threads.collect()
    }
}

/// The component of a thread that is no worker.
fn component_of(name: &str) -> &'static str {
    match name {
        "subscribers" => "store",
        _ if name.starts_with("location-") => "store",
        // The main thread and the threads of HTTP, name service and the databases' clients.
        "control" | "trapezoid" => "control",
        _ => "other",
    }
}

/// The threads of this process that are no workers; empty if `/proc` cannot be read.
fn other_threads() -> Vec<Seen> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return Vec::new();
    };
    let threads = tasks.filter_map(|task| {
        let task = task.ok()?;
        let id = task.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let name = name.trim_end().to_owned();
        if name.starts_with(WORKER) {
            return None;
        }
        let schedule = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let ns = schedule.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Seen { id, name, ns })
    });
    threads.collect()
}

/// The switch of the measurement of the whole process.
#[derive(Debug)]
pub(crate) struct Switch {
    hub: Hub,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    on: bool,
    /// When the measurement was switched on; `None` if it is off.
    began: Option<Instant>,
    /// How long the measurement was on, until it was switched off.
    lasted: Duration,
    others: Others,
}

impl Switch {
    /// A switch that is off.
    pub(crate) fn new(hub: Hub) -> Self {
        Self {
            hub,
            state: Mutex::default(),
        }
    }

    /// Gives the order to the workers, which obey after the present turn. Returns whether all took it. A
    /// worker with a full mailbox did not. A second order does not disturb the others.
    pub(crate) fn set(&self, on: bool) -> bool {
        let mut state = self.state.lock();
        if on && !state.on {
            *state = State {
                on,
                began: Some(Instant::now()),
                lasted: Duration::ZERO,
                others: Others::since(&other_threads()),
            };
        } else if !on && state.on {
            state.on = false;
            state.lasted = state.began.map_or(Duration::ZERO, |began| began.elapsed());
            state.others.update(&other_threads());
        }
        self.hub.order(&Control::SplitCpu(on)) == usize::from(self.hub.workers())
    }

    /// The CPU time measured so far; `workers` are the latest values of the workers.
    pub(crate) fn read(&self, workers: Vec<CpuSplit>) -> CpuTime {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.on {
            state.others.update(&other_threads());
            state.lasted = state.began.map_or(Duration::ZERO, |began| began.elapsed());
        }
        CpuTime {
            on: state.on,
            elapsed: state.lasted,
            workers,
            threads: state.others.read(),
        }
    }
}

impl CpuTime {
    /// Thread, component and nanoseconds of each part of the CPU time.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (String, &'static str, u64)> {
        let workers = self.workers.iter().enumerate().flat_map(|(number, split)| {
            let parts = Component::ALL.iter();
            parts.map(move |part| (format!("{WORKER}{number}"), part.label(), split.of(*part)))
        });
        let threads = self.threads.iter();
        workers.chain(threads.map(|thread| (thread.name.clone(), thread.component, thread.ns)))
    }

    /// Whether all workers measure, or none does, as ordered.
    pub(crate) fn is_settled(&self) -> bool {
        self.workers.iter().all(|split| split.on == self.on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(id: u32, name: &str, ns: u64) -> Seen {
        let name = name.to_owned();
        Seen { id, name, ns }
    }

    #[test]
    fn threads_that_come_and_go_are_counted_once() {
        let mut others = Others::since(&[seen(1, "trapezoid", 100), seen(2, "control", 1_000)]);
        let sums = |others: &Others| -> Vec<(String, u64)> {
            others
                .read()
                .into_iter()
                .map(|time| (time.name, time.ns))
                .collect()
        };
        let sum = |name: &str, ns| (name.to_owned(), ns);
        assert_eq!(sums(&others), [sum("control", 0), sum("trapezoid", 0)]);
        others.update(&[
            seen(1, "trapezoid", 150),
            seen(2, "control", 1_300),
            seen(3, "control", 40),
        ]);
        assert_eq!(sums(&others), [sum("control", 340), sum("trapezoid", 50)]);
        // Thread 2 has ended, and its number is another's now; thread 3 has ended.
        others.update(&[seen(1, "trapezoid", 150), seen(2, "subscribers", 7)]);
        let expected = [sum("control", 340), sum("subscribers", 7), sum("trapezoid", 50)];
        assert_eq!(sums(&others), expected);
        // The number again belongs to another thread, of the same name.
        others.update(&[seen(1, "trapezoid", 150), seen(2, "subscribers", 3)]);
        assert_eq!(sums(&others)[1], sum("subscribers", 10));
    }

    #[test]
    fn threads_belong_to_components() {
        let names = [
            "subscribers",
            "location-write",
            "location-fold",
            "control",
            "trapezoid",
            "x",
        ];
        let of = names.map(component_of);
        assert_eq!(of, ["store", "store", "store", "control", "control", "other"]);
    }

    #[test]
    fn this_process_is_seen() {
        let begun = other_threads();
        let own = begun.iter().map(|thread| thread.ns).sum::<u64>();
        assert!(!begun.is_empty() && own > 0, "{begun:?}");
        let worker = std::thread::Builder::new().name(format!("{WORKER}7"));
        let among = worker.spawn(|| {
            other_threads()
                .iter()
                .any(|thread| thread.name.starts_with(WORKER))
        });
        assert!(!among.expect("a thread").join().expect("no panic"));
    }

    #[test]
    fn it_is_switched_and_reported() {
        let (hub, _mailboxes) = Hub::new(2, &sip_net::settings::Settings::default()).expect("mailboxes");
        let switch = Switch::new(hub);
        assert_eq!(switch.read(Vec::new()), CpuTime::default());
        assert!(switch.set(true) && switch.set(true));
        let off = CpuSplit::default();
        let on = CpuSplit { on: true, ..off };
        assert!(!switch.read(vec![on, off]).is_settled());
        let time = switch.read(vec![on, on]);
        assert!(time.on && time.is_settled() && !time.threads.is_empty());
        assert!(switch.set(false));
        let ended = switch.read(vec![on, off]);
        assert!(!ended.on && !ended.is_settled() && ended.elapsed >= time.elapsed);
        assert_eq!(
            switch.read(vec![off, off]).elapsed,
            ended.elapsed,
            "it stands still"
        );
        assert_eq!(ended.parts().count(), 2 * Component::COUNT + ended.threads.len());
    }
}
