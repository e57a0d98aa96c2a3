//! Figures of NAT keep-alive: what pinging many registered contacts costs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cpu::{Used, ratio};
use crate::crowd::said;

/// Registrations a second, at most: the generator waits for responses.
pub(crate) const REGISTRATIONS: f64 = 30_000.0;
/// Seconds of each window in which pings are counted, to see how evenly they are spread.
pub(crate) const WINDOW_S: f64 = 0.1;

/// How the server pings contacts behind NATs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ping {
    /// Not at all.
    None,
    /// By OPTIONS.
    Options,
    /// By OPTIONS until the contact has answered one, then by an empty line (RFC 5626 §3.5.1).
    Crlf,
}

impl Ping {
    /// As the configuration has it.
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Options => "options",
            Self::Crlf => "crlf",
        }
    }
}

/// One server with registered contacts: how they are pinged, and for how long that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PingPlan {
    /// How contacts are pinged.
    pub ping: Ping,
    /// Contacts, each from a source address of its own.
    pub contacts: u32,
    /// Seconds between two pings of a contact.
    pub interval_s: u32,
    /// Intervals that are measured while every ping is answered.
    pub rounds: u32,
    /// Intervals that are measured after them while no ping is answered.
    pub unanswered_rounds: u32,
}

impl PingPlan {
    /// For people, without a comma.
    pub fn text(&self) -> String {
        let contacts = self.contacts;
        match self.ping {
            Ping::None => format!("no pings {contacts} contacts"),
            Ping::Options | Ping::Crlf => {
                let (ping, interval_s) = (self.ping.word(), self.interval_s);
                format!("{ping} {contacts} contacts each {interval_s} s")
            }
        }
    }

    /// Pings a second of all contacts together.
    pub fn rate(&self) -> f64 {
        match self.ping {
            Ping::None => 0.0,
            Ping::Options | Ping::Crlf => ratio(f64::from(self.contacts), f64::from(self.interval_s)),
        }
    }

    /// Seconds from the last registration until the first phase. A contact may wait for the next round, and in it for its
    /// turn: so it may take two intervals until each has been pinged.
    pub(crate) fn settle_s(&self) -> f64 {
        match self.ping {
            Ping::None => 2.0,
            Ping::Options | Ping::Crlf => f64::from(2 * self.interval_s) + 1.0,
        }
    }

    /// Seconds that the step takes, about, start of the server aside.
    pub(crate) fn seconds(&self) -> f64 {
        /// Looks at memory and counters.
        const AROUND: f64 = 2.0;
        let rounds = f64::from(self.rounds + self.unanswered_rounds);
        let registering = f64::from(self.contacts) / REGISTRATIONS;
        registering + self.settle_s() + rounds * f64::from(self.interval_s) + AROUND
    }
}

/// What a server with registered contacts holds and does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pinged {
    /// What the phones say at the end.
    pub phones: said::Phones,
    /// Contacts that the server says it has, after all have registered.
    pub known: f64,
    /// Bytes of the process before the first registration.
    pub before: u64,
    /// After the last registration.
    pub registered: u64,
    /// After the last phase.
    pub after: u64,
    /// What was measured, in order.
    pub phases: Vec<Phase>,
}

impl Pinged {
    /// Bytes of the process for each contact.
    pub fn bytes_each(&self) -> f64 {
        ratio(self.registered as f64 - self.before as f64, self.known)
    }
}

/// Some rounds of pings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Whether the phones answer.
    pub answered: bool,
    /// Rounds that it lasts.
    pub rounds: u32,
    /// CPU of the server.
    pub server: Used,
    /// Pings and responses to pings, by the server's counters.
    pub counted: Counted,
    /// What came to the phones and what they answered.
    pub heard: said::Pings,
    /// Datagrams that the kernel dropped at the server's socket.
    pub server_drops: u64,
    /// The same, at the phones' socket.
    pub phone_drops: u64,
    /// Seconds of CPU of the server's components, by its own counters.
    pub components: BTreeMap<String, f64>,
}

/// What the server's counters grew by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// Seconds between the two readings.
    pub seconds: f64,
    /// Pings.
    pub sent: f64,
    /// Responses to pings.
    pub answered: f64,
}

impl Phase {
    /// Pings a second that came to the phones, those included that their socket had no room for.
    pub fn rate(&self) -> f64 {
        ratio((self.heard.total() + self.phone_drops) as f64, self.heard.seconds)
    }

    /// Responses a second that the phones sent.
    pub fn answer_rate(&self) -> f64 {
        ratio(self.heard.answered as f64, self.heard.seconds)
    }

    /// Part of the datagrams of both ways that the kernel dropped.
    pub fn lost(&self) -> f64 {
        let (pings, answers) = (self.heard.total() + self.phone_drops, self.heard.answered);
        ratio(
            (self.phone_drops + self.server_drops) as f64,
            (pings + answers) as f64,
        )
    }

    /// Pings in a window, in the mean. The last window is incomplete and left out.
    pub fn mean_window(&self) -> f64 {
        let windows = self.heard.whole_windows();
        ratio(
            windows.iter().map(|pings| f64::from(*pings)).sum(),
            windows.len() as f64,
        )
    }

    /// The most pings in a window.
    pub fn fullest_window(&self) -> f64 {
        let windows = self.heard.whole_windows().iter();
        windows.copied().max().map_or(0.0, f64::from)
    }

    /// Windows without any ping, if there are pings at all.
    pub fn empty_windows(&self) -> usize {
        let windows = self.heard.whole_windows().iter();
        let empty = windows.filter(|pings| **pings == 0).count();
        if self.heard.total() > 0 { empty } else { 0 }
    }

    /// Windows with more than `times` the pings of the mean, and windows in all.
    pub fn fuller_than(&self, times: f64) -> (usize, usize) {
        let windows = self.heard.whole_windows();
        let most = times * self.mean_window();
        let fuller = windows.iter().filter(|pings| f64::from(**pings) > most);
        (fuller.count(), windows.len())
    }

    /// Contacts that got so few pings that one of their rounds had none, and contacts that got so many that one of
    /// their rounds had two. A phase begins and ends in the middle of a round.
    pub fn uneven_contacts(&self) -> (u64, u64) {
        let rounds = self.rounds as usize;
        let (mut few, mut many) = (0, 0);
        for (pings, contacts) in self.heard.contacts_by_pings.iter().enumerate() {
            if pings + 1 < rounds {
                few += contacts;
            } else if pings > rounds + 1 {
                many += contacts;
            }
        }
        (few, many)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_says_what_it_does_and_how_long_that_takes() {
        let plan = |ping, unanswered_rounds| PingPlan {
            ping,
            contacts: 1_000_000,
            interval_s: 25,
            rounds: 2,
            unanswered_rounds,
        };
        let (none, options) = (plan(Ping::None, 0), plan(Ping::Options, 4));
        assert_eq!(none.text(), "no pings 1000000 contacts");
        assert_eq!(options.text(), "options 1000000 contacts each 25 s");
        assert_eq!((none.rate(), options.rate()), (0.0, 40_000.0));
        assert!(!options.text().contains(','), "--only parts its words there");
        assert!((options.seconds() - none.seconds() - 149.0).abs() < 1e-9);
    }

    #[test]
    fn rates_losses_and_evenness_follow_from_counts() {
        let phase = Phase {
            answered: true,
            rounds: 3,
            heard: said::Pings {
                seconds: 2.0,
                options: 70,
                crlf: 20,
                answered: 60,
                windows: vec![20, 40, 0, 20, 999],
                contacts_by_pings: vec![1, 2, 3, 5, 8, 13],
                ..said::Pings::default()
            },
            server_drops: 1,
            phone_drops: 10,
            ..Phase::default()
        };
        assert_eq!((phase.rate(), phase.answer_rate()), (50.0, 30.0));
        assert!((phase.lost() - 11.0 / 160.0).abs() < 1e-9);
        assert_eq!((phase.mean_window(), phase.fullest_window()), (20.0, 40.0));
        assert_eq!((phase.fuller_than(1.5), phase.fuller_than(2.0)), ((1, 4), (0, 4)));
        assert_eq!(phase.uneven_contacts(), (3, 13));
        assert_eq!(phase.empty_windows(), 1);
        let none = Phase::default();
        assert_eq!((none.rate(), none.lost(), none.mean_window()), (0.0, 0.0, 0.0));
    }

    #[test]
    fn bytes_of_a_contact_are_those_that_memory_grew_by() {
        let pinged = Pinged {
            known: 1_000.0,
            before: 10_000_000,
            registered: 10_300_000,
            after: 99_000_000,
            ..Pinged::default()
        };
        assert_eq!(pinged.bytes_each(), 300.0);
        assert_eq!(Pinged::default().bytes_each(), 0.0);
    }
}
