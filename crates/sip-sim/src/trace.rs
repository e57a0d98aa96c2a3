//! Log of everything sent, with its fate in the network; printed as a ladder.

use std::fmt::Write as _;
use std::net::SocketAddr;

use crate::clock::Micros;
use crate::message::View;
use crate::network::node::NodeId;

/// A node in the ladder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Station {
    /// Name in the ladder.
    pub name: &'static str,
    /// Address of the node.
    pub address: SocketAddr,
}

/// A message that a node sent.
#[derive(Clone, Debug)]
pub struct Sent {
    /// When it was sent.
    pub at: Micros,
    /// The sending node.
    pub from: NodeId,
    /// The receiving node; `None` if no node has that address.
    pub to: Option<NodeId>,
    /// The message's text.
    pub text: String,
    /// When its copies arrived; empty if it was lost.
    pub arrivals: Vec<Micros>,
    /// The parsed fields of the message.
    pub facts: Facts,
}

impl Sent {
    /// Whether a copy arrived.
    pub fn arrived(&self) -> bool {
        !self.arrivals.is_empty()
    }
}

/// Fields of a message, as far as the checkers need them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Number of the call; `None` if it is not one of the scenario's.
    pub call: Option<u32>,
    /// Status of a response; `None` for a request.
    pub status: Option<u16>,
    /// Method; for a response, that of its CSeq.
    pub method: String,
    /// CSeq number.
    pub cseq: u32,
    /// Branch of the topmost Via.
    pub branch: String,
    /// Tag of To; may be empty.
    pub to_tag: String,
    /// Number of Via values.
    pub vias: usize,
    /// Max-Forwards.
    pub max_forwards: Option<u32>,
    /// Whether it has credentials for a proxy.
    pub credentials: bool,
}

impl Facts {
    /// Reads a message.
    pub fn of(text: &str) -> Self {
        let view = View::new(text);
        Self {
            call: view.call(),
            status: view.status(),
            method: view.method().to_owned(),
            cseq: view.cseq().0,
            branch: view.branch().to_owned(),
            to_tag: view.to_tag().to_owned(),
            vias: view.all("Via").count(),
            max_forwards: view.get("Max-Forwards").parse().ok(),
            credentials: !view.get("Proxy-Authorization").is_empty(),
        }
    }

    /// Whether it is a request of this method.
    pub fn is_request(&self, method: &str) -> bool {
        self.status.is_none() && self.method == method
    }

    /// Whether it is a final response to this method.
    pub fn is_final_to(&self, method: &str) -> bool {
        self.status.is_some_and(|s| s >= 200) && self.method == method
    }
}

/// The whole log of a run.
#[derive(Debug, Default)]
pub struct Log {
    /// Messages in the order of sending.
    pub sent: Vec<Sent>,
    /// Remarks between the messages: `(index of the next message, time, text)`.
    pub notes: Vec<(usize, Micros, String)>,
}

impl Log {
    /// Adds a remark at this point.
    pub fn note(&mut self, at: Micros, text: impl Into<String>) {
        self.notes.push((self.sent.len(), at, text.into()));
    }

    /// The ladder: a line for each message. If `call` is given, only messages of that call.
    pub fn ladder(&self, stations: &[Station], call: Option<u32>) -> String {
        let mut out = String::new();
        let _ = write!(out, "{:>10}  ", "seconds");
        for station in stations {
            let _ = write!(out, "{:<26}", format!("{} {}", station.name, station.address));
        }
        out.push('\n');
        let mut notes = self.notes.iter().peekable();
        for (index, sent) in self.sent.iter().enumerate() {
            while let Some((_, at, text)) = notes.next_if(|n| n.0 <= index) {
                let _ = writeln!(out, "{:>10.4}  -- {text}", *at as f64 / 1e6);
            }
            if call.is_none() || sent.facts.call == call {
                line(&mut out, sent, stations);
            }
        }
        for (_, at, text) in notes {
            let _ = writeln!(out, "{:>10.4}  -- {text}", *at as f64 / 1e6);
        }
        out
    }
}

/// One line of the ladder: an arrow from the sender's column to the receiver's, with the message and its
/// fate.
fn line(out: &mut String, sent: &Sent, stations: &[Station]) {
    const COLUMN: usize = 12;
    let _ = write!(out, "{:>10.4}  ", sent.at as f64 / 1e6);
    let to = sent.to.unwrap_or(stations.len());
    let (left, right) = (sent.from.min(to), sent.from.max(to));
    for column in 0..=stations.len() {
        let (mark, fill) = match column {
            _ if column == right => (if to > sent.from { '>' } else { '+' }, ' '),
            _ if column == left => (if to > sent.from { '+' } else { '<' }, '-'),
            _ if column > left && column < right => ('-', '-'),
            _ if column == stations.len() => (' ', ' '),
            _ => ('|', ' '),
        };
        out.push(mark);
        if column < stations.len() {
            out.extend(core::iter::repeat_n(fill, COLUMN));
        }
    }
    let facts = &sent.facts;
    let what = match facts.status {
        Some(status) => format!("{status} ({})", facts.method),
        None => facts.method.clone(),
    };
    let call = facts.call.map_or_else(|| "?".to_owned(), |c| c.to_string());
    let fate = match sent.arrivals.as_slice() {
        _ if sent.to.is_none() => "to nobody".to_owned(),
        [] => "lost".to_owned(),
        times => {
            let times: Vec<String> = times
                .iter()
                .map(|t| format!("+{:.1}", (*t - sent.at) as f64 / 1e3))
                .collect();
            times.join(" ")
        }
    };
    let tail = facts
        .branch
        .get(facts.branch.len().saturating_sub(8)..)
        .unwrap_or_default();
    let _ = writeln!(out, " #{call} {what} cseq {} ..{tail}  [{fate}]", facts.cseq);
}
