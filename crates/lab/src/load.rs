//! The load generator, as a child process: what it is asked, and what it reports.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::statistics::Verdict;

/// What users and passwords the databases hold, in the generator's words.
pub(crate) const USERS: u32 = 10_000;
/// The domain of all of them.
pub(crate) const DOMAIN: &str = "bench";

/// What one operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// INVITE, 180, 200, ACK, BYE, 200 through a proxy.
    Call,
    /// A REGISTER that refreshes a binding.
    Register,
    /// An INVITE that is answered by 302, and its ACK.
    Redirect,
}

impl Operation {
    /// As the generator's command line has it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Register => "register",
            Self::Redirect => "redirect",
        }
    }

    /// The response that ends the time of the operation.
    pub fn response(self) -> &'static str {
        match self {
            Self::Call => "INVITE 200",
            Self::Register => "REGISTER 200",
            Self::Redirect => "INVITE 302",
        }
    }
}

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Datagrams.
    Udp,
    /// One connection from the caller and one to the callee.
    Tcp,
    /// The same, encrypted.
    Tls,
}

impl Transport {
    /// As configurations and the generator's command line have it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
        }
    }
}

/// What the generator is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What one operation is.
    pub operation: Operation,
    /// The server.
    pub target: SocketAddr,
    /// What carries the messages.
    pub transport: Transport,
    /// Whether to answer challenges.
    pub auth: bool,
    /// Operations a second, at random times (a Poisson process).
    pub rate: f64,
    /// Seconds before what is counted.
    pub warmup_s: f64,
    /// Seconds that are counted.
    pub duration_s: f64,
    /// Seconds after which operations that have not ended are given up.
    pub drain_s: f64,
    /// What its random times follow from.
    pub seed: u64,
    /// Where it answers calls.
    pub uas: Option<SocketAddr>,
    /// Whether requests within a call go to the server although it does not ask for that (Record-Route).
    pub outbound: bool,
    /// Where registrations point to: the same in all runs, so that what comes again refreshes.
    pub contact: Option<SocketAddr>,
    /// The callers' address; absent: the system chooses it.
    pub local: Option<SocketAddr>,
    /// What both ends need for TLS.
    pub tls: Option<TlsFiles>,
    /// Users that call or register, one after the other.
    pub users: u32,
    /// Seconds that calls ring before they are answered.
    pub ring_s: f64,
}

/// Files of the generator's ends for TLS, PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authority by which callers verify the server.
    pub authority: PathBuf,
    /// The certificate that the called end shows.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Request {
    /// The words after the program's name. Its report goes to `report`.
    pub fn words(&self, report: &Path) -> Vec<OsString> {
        let mut words: Vec<OsString> = ["load", self.operation.word(), "--poisson"]
            .map(OsString::from)
            .to_vec();
        let mut option = |name: &str, value: String| words.extend([name.into(), value.into()]);
        option("--target", self.target.to_string());
        option("--transport", self.transport.word().to_owned());
        option("--rate", format!("{:.3}", self.rate));
        option("--warmup", format!("{}ms", (self.warmup_s * 1e3).round()));
        option("--duration", format!("{}ms", (self.duration_s * 1e3).round()));
        option("--auth", if self.auth { "digest" } else { "none" }.to_owned());
        option("--users", format!("user:{}", self.users));
        option("--password", "pass{n}".to_owned());
        option("--domain", DOMAIN.to_owned());
        option("--seed", self.seed.to_string());
        option("--drain", format!("{}ms", (self.drain_s * 1e3).round()));
        if let Some(uas) = self.uas {
            option("--uas", uas.to_string());
        }
        if let Some(contact) = self.contact {
            option("--contact", contact.to_string());
        }
        if let Some(local) = self.local {
            option("--local", local.to_string());
        }
        if self.ring_s > 0.0 {
            option("--ring", format!("{}ms", (self.ring_s * 1e3).round()));
        }
        if let Some(tls) = &self.tls {
            for (name, path) in [
                ("--tls-ca", &tls.authority),
                ("--tls-cert", &tls.certificate),
                ("--tls-key", &tls.key),
            ] {
                words.extend([name.into(), path.as_os_str().to_owned()]);
            }
        }
        words.extend(self.outbound.then(|| "--outbound".into()));
        words.extend(["--json".into(), report.as_os_str().to_owned()]);
        words
    }
}

/// What the generator reports. Fields that it does not write are empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Seconds that were counted.
    pub duration_s: f64,
    /// Operations begun in that time.
    pub offered: u64,
    /// Of which were completed as they should.
    pub succeeded: u64,
    /// Of which were not.
    pub failed: u64,
    /// Completed operations a second.
    pub goodput: f64,
    /// Why they failed, and how many.
    pub failures: BTreeMap<String, u64>,
    /// Messages by what they are.
    pub messages: Messages,
    /// Messages that were sent again, by what they are.
    pub retransmissions: BTreeMap<String, u64>,
    /// Times from when an operation was meant to begin, by response.
    pub response_ms: BTreeMap<String, Times>,
    /// How the generator itself fared.
    pub generator: Generator,
    /// Each second.
    pub series: Vec<Second>,
    /// All else that it reports, as it reports it.
    #[serde(flatten)]
    pub rest: BTreeMap<String, serde_json::Value>,
}

/// Messages of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Messages {
    /// Sent by either end of the generator.
    pub sent: BTreeMap<String, u64>,
    /// Received by either end.
    pub received: BTreeMap<String, u64>,
}

/// Times of one response, milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "they are what they are called")]
pub struct Times {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
    /// Milliseconds, and the fraction of responses that took at most that.
    pub cdf: Vec<(f64, f64)>,
}

/// How the generator fared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Generator {
    /// Seconds on its CPU.
    pub cpu_s: f64,
    /// Share of its CPU.
    pub utilization: f64,
    /// How late it began what it meant to begin.
    pub lag_ms: Lag,
    /// Whether it, not the server, was full.
    pub saturated: bool,
    /// Why it says so.
    pub why: Option<String>,
}

/// Milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "they are what they are called")]
pub struct Lag {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

/// One second of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "they are what they are called")]
pub struct Second {
    pub t: f64,
    pub offered: u64,
    pub succeeded: u64,
    pub failed: u64,
}

/// When a load counts as carried.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Criterion {
    /// Less than this part of the operations fails.
    pub failed: f64,
    /// At least this part of what is offered a second is completed a second.
    pub goodput: f64,
    /// 99 % of the answers come within this, milliseconds.
    pub p99_ms: Option<f64>,
}

impl Criterion {
    /// That of both papers: less than 1 % fails; and what is carried is what was offered.
    pub const PAPERS: Self = Self {
        failed: 0.01,
        goodput: 0.98,
        p99_ms: None,
    };
}

impl Report {
    /// Part of the operations that failed; of none, 0.
    pub fn failed_part(&self) -> f64 {
        crate::cpu::ratio(self.failed as f64, self.offered as f64)
    }

    /// Part of the operations that succeeded, in time or late; of none, 0.
    pub fn succeeded_part(&self) -> f64 {
        crate::cpu::ratio(self.succeeded as f64, self.offered as f64)
    }

    /// Part of the operations offered in a second that completed in that second, at most 1. The others failed, or
    /// succeeded only after the load had ended.
    pub fn completed_part(&self) -> f64 {
        crate::cpu::ratio(self.goodput, self.offered_rate()).min(1.0)
    }

    /// Why operations failed, the most frequent first, for people; empty when none did.
    pub fn causes(&self) -> String {
        let mut all: Vec<(&String, &u64)> = self.failures.iter().collect();
        all.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let each = all.into_iter().map(|(cause, count)| format!("{cause}: {count}"));
        each.collect::<Vec<_>>().join(", ")
    }

    /// Operations begun a second.
    pub fn offered_rate(&self) -> f64 {
        crate::cpu::ratio(self.offered as f64, self.duration_s)
    }

    /// The verdict on this load.
    pub fn judge(&self, operation: Operation, criterion: &Criterion) -> Verdict {
        let late = criterion.p99_ms.is_some_and(|most| {
            let times = self.response_ms.get(operation.response());
            times.is_some_and(|times| times.p99 > most)
        });
        // More may be under way at the end than at the beginning, by chance: as many as a Poisson process varies by.
        let slack = (self.offered as f64).sqrt();
        let carried = self.offered > 0
            && self.failed_part() < criterion.failed
            && self.goodput * self.duration_s >= criterion.goodput * self.offered as f64 - slack
            && !late;
        // However hard it was for the generator: what succeeded in time was carried.
        if carried {
            Verdict::Carried
        } else if self.generator.saturated {
            Verdict::GeneratorFull
        } else {
            Verdict::Failed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"{
        "version": 1, "kind": "call", "transport": "udp", "target": "127.0.0.1:5060", "rate": 1000.0,
        "duration_s": 10.0, "warmup_s": 2.0, "poisson": true,
        "offered": 10000, "succeeded": 9950, "failed": 50, "goodput": 995.0,
        "failures": {"timeout": 43, "status 503": 7},
        "messages": {"sent": {"INVITE": 10000}, "received": {"180 INVITE": 9990}},
        "retransmissions": {"INVITE": 3},
        "response_ms": {"INVITE 200": {"count": 9950, "mean": 0.5, "p50": 0.4, "p90": 0.8, "p95": 0.9, "p99": 1.5,
            "p999": 3.0, "max": 9.0, "cdf": [[0.1, 0.0], [0.4, 0.5], [9.0, 1.0]]}},
        "generator": {"cpu_s": 2.0, "utilization": 0.2, "lag_ms": {"p50": 0.0, "p99": 0.1, "max": 0.4},
            "saturated": false, "why": null},
        "series": [{"t": 0.0, "offered": 1000, "succeeded": 995, "failed": 5}], "new field": [1]
    }"#;

    #[test]
    fn reports_are_read_and_written() {
        let report: Report = serde_json::from_str(REPORT).unwrap();
        assert_eq!(report.failures["status 503"], 7);
        assert_eq!(report.response_ms["INVITE 200"].cdf[1], (0.4, 0.5));
        assert_eq!(report.offered_rate(), 1000.0);
        assert_eq!(report.causes(), "timeout: 43, status 503: 7");
        let again: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(again, report);
        assert_eq!(again.rest["new field"], serde_json::json!([1]), "nothing is lost");
        let empty: Report = serde_json::from_str("{}").unwrap();
        assert_eq!(empty.judge(Operation::Call, &Criterion::PAPERS), Verdict::Failed);
    }

    #[test]
    fn what_counts_as_carried() {
        let good: Report = serde_json::from_str(REPORT).unwrap();
        let judge = |change: fn(&mut Report), criterion: Criterion| {
            let mut report = good.clone();
            change(&mut report);
            report.judge(Operation::Call, &criterion)
        };
        let papers = Criterion::PAPERS;
        assert_eq!(judge(|_| (), papers), Verdict::Carried);
        assert_eq!(
            judge(|r| r.failed = 100, papers),
            Verdict::Failed,
            "1 % is too much"
        );
        assert_eq!(judge(|r| r.failed = 99, papers), Verdict::Carried);
        // 98 % less the square root of what was offered, 100.
        assert_eq!(judge(|r| r.goodput = 969.0, papers), Verdict::Failed);
        assert_eq!(judge(|r| r.goodput = 970.0, papers), Verdict::Carried);
        assert_eq!(judge(|r| r.offered = 0, papers), Verdict::Failed);
        assert_eq!(judge(|r| r.generator.saturated = true, papers), Verdict::Carried);
        let failed = |r: &mut Report| (r.generator.saturated, r.failed) = (true, 500);
        assert_eq!(judge(failed, papers), Verdict::GeneratorFull);
        let quick = Criterion {
            p99_ms: Some(1.0),
            ..papers
        };
        assert_eq!(judge(|_| (), quick), Verdict::Failed);
        assert_eq!(
            judge(
                |_| (),
                Criterion {
                    p99_ms: Some(2.0),
                    ..papers
                }
            ),
            Verdict::Carried
        );
    }

    #[test]
    fn the_generators_command_line() {
        let request = Request {
            operation: Operation::Call,
            target: "127.0.0.1:5060".parse().unwrap(),
            transport: Transport::Tcp,
            auth: true,
            rate: 1234.5,
            warmup_s: 0.5,
            duration_s: 3.0,
            drain_s: 4.0,
            seed: 7,
            uas: Some("127.0.0.1:5070".parse().unwrap()),
            outbound: true,
            contact: Some("127.0.0.1:5071".parse().unwrap()),
            local: Some("127.0.0.1:5072".parse().unwrap()),
            tls: Some(TlsFiles {
                authority: "ca.pem".into(),
                certificate: "phone.pem".into(),
                key: "phone.key".into(),
            }),
            users: 10_000,
            ring_s: 1.5,
        };
        let words: Vec<String> = request
            .words(Path::new("out.json"))
            .into_iter()
            .map(|word| word.into_string().unwrap())
            .collect();
        assert_eq!(
            words.join(" "),
            "load call --poisson --target 127.0.0.1:5060 --transport tcp --rate 1234.500 --warmup 500ms \
             --duration 3000ms --auth digest --users user:10000 --password pass{n} --domain bench \
             --seed 7 --drain 4000ms --uas 127.0.0.1:5070 --contact 127.0.0.1:5071 \
             --local 127.0.0.1:5072 --ring 1500ms --tls-ca ca.pem --tls-cert phone.pem --tls-key phone.key \
             --outbound --json out.json"
        );
    }
}
