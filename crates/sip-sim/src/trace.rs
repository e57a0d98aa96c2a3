//! Everything that was sent, and what the network made of it; printed as a ladder.

use std::fmt::Write as _;
use std::net::SocketAddr;

use crate::clock::Micros;
use crate::message::View;
use crate::network::node::NodeId;

/// Who a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Station {
    /// As the ladder calls it.
    pub name: &'static str,
    /// Where it is reached.
    pub address: SocketAddr,
}

/// A datagram that a node sent.
#[derive(Clone, Debug)]
pub struct Sent {
    /// When.
    pub at: Micros,
    /// By whom.
    pub from: NodeId,
    /// To whom; `None`: nobody has that address.
    pub to: Option<NodeId>,
    /// Its bytes.
    pub text: String,
    /// When its copies arrived; none: lost.
    pub arrivals: Vec<Micros>,
    /// What it says.
    pub facts: Facts,
}

impl Sent {
    /// Whether a copy arrived.
    pub fn arrived(&self) -> bool {
        !self.arrivals.is_empty()
    }
}

/// What a message says, as far as the checkers want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Number of the call; `None`: not one of ours.
    pub call: Option<u32>,
    /// Status of a response; `None`: a request.
    pub status: Option<u16>,
    /// Method, of a response that of its CSeq.
    pub method: String,
    /// CSeq number.
    pub cseq: u32,
    /// Branch of the topmost Via.
    pub branch: String,
    /// Tag of To; may be empty.
    pub to_tag: String,
    /// Via values.
    pub vias: usize,
    /// Max-Forwards.
    pub max_forwards: Option<u32>,
    /// It carries credentials for a proxy.
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

    /// A request of this method.
    pub fn is_request(&self, method: &str) -> bool {
        self.status.is_none() && self.method == method
    }

    /// A final response to this method.
    pub fn is_final_to(&self, method: &str) -> bool {
        self.status.is_some_and(|s| s >= 200) && self.method == method
    }
}

/// The whole log of a run.
#[derive(Debug, Default)]
pub struct Log {
    /// In the order of sending.
    pub sent: Vec<Sent>,
    /// Remarks between them: `(before which message, when, text)`.
    pub notes: Vec<(usize, Micros, String)>,
}

impl Log {
    /// A remark at this point.
    pub fn note(&mut self, at: Micros, text: impl Into<String>) {
        self.notes.push((self.sent.len(), at, text.into()));
    }

    /// The ladder: a line for each message, `call` only if given.
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

/// One rung: an arrow from the sender's column to the receiver's, what it is and how it fared.
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
