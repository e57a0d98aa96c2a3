//! Proxies with known faults, by which the checkers are checked.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use crate::clock::Micros;
use crate::message::View;
use crate::node::{Node, Outgoing};

/// What is wrong with a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A CANCEL that comes is not seen.
    DropsCancel,
    /// A CANCEL that should leave does not.
    SendsNoCancel,
    /// Final answers to INVITE leave twice.
    DoublesFinals,
    /// A failure is followed by another one.
    SendsSecondFailure,
    /// An INVITE that leaves again has another branch.
    ChangesBranch,
    /// A copy of an INVITE goes on like the first.
    ForgetsToAbsorb,
    /// An INVITE is sent once only.
    NeverRepeatsInvite,
    /// The ACK to a 2xx is not sent on.
    DropsAck,
    /// The ACK to a failure is sent on.
    ForwardsFailureAck,
    /// The ACK to a failure is not seen.
    IgnoresFailureAck,
    /// Max-Forwards stays.
    KeepsMaxForwards,
    /// The 200 to a BYE is not sent on.
    DropsByeAnswer,
    /// The 2xx to an INVITE is not sent on.
    DropsSuccess,
    /// BYE goes to somebody else.
    SendsToStranger,
    /// Its clock stands still.
    StopsClock,
    /// No 100.
    SendsNoTrying,
    /// Credentials of callers go on.
    LeaksCredentials,
    /// Answers go to who did not ask.
    MisdirectsAnswers,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::DropsCancel,
        Self::SendsNoCancel,
        Self::DoublesFinals,
        Self::SendsSecondFailure,
        Self::ChangesBranch,
        Self::ForgetsToAbsorb,
        Self::NeverRepeatsInvite,
        Self::DropsAck,
        Self::ForwardsFailureAck,
        Self::IgnoresFailureAck,
        Self::KeepsMaxForwards,
        Self::DropsByeAnswer,
        Self::DropsSuccess,
        Self::SendsToStranger,
        Self::StopsClock,
        Self::SendsNoTrying,
        Self::LeaksCredentials,
        Self::MisdirectsAnswers,
    ];
}

/// A node with a fault.
pub struct Mutant {
    inner: Box<dyn Node>,
    fault: Fault,
    out: VecDeque<Outgoing>,
    /// INVITEs that left, by Call-ID and CSeq.
    invites: BTreeMap<(String, u32), Outgoing>,
    /// Credentials that came, by Call-ID.
    credentials: BTreeMap<String, String>,
    /// INVITEs that came.
    came: Vec<String>,
}

impl std::fmt::Debug for Mutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mutant")
            .field("fault", &self.fault)
            .finish_non_exhaustive()
    }
}

fn key(view: &View<'_>) -> (String, u32) {
    (view.get("Call-ID").to_owned(), view.cseq().0)
}

impl Mutant {
    /// `inner` with `fault`.
    pub fn new(inner: Box<dyn Node>, fault: Fault) -> Self {
        Self {
            inner,
            fault,
            out: VecDeque::new(),
            invites: BTreeMap::new(),
            credentials: BTreeMap::new(),
            came: Vec::new(),
        }
    }

    /// What the fault does to a message that leaves.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the other faults do nothing here")]
    fn leave(&mut self, mut message: Outgoing) {
        let text = message.text.clone();
        let view = View::new(&text);
        let (status, method) = (view.status(), view.method());
        let is_final = status.is_some_and(|s| s >= 200) && method == "INVITE";
        let request = |wanted: &str| status.is_none() && method == wanted;
        match self.fault {
            Fault::SendsNoCancel if request("CANCEL") => return,
            Fault::DropsAck if request("ACK") && view.all("Via").count() > 1 => return,
            Fault::DropsByeAnswer if status.is_some() && method == "BYE" => return,
            Fault::DropsSuccess if is_final && status == Some(200) => return,
            Fault::SendsNoTrying if status == Some(100) => return,
            Fault::NeverRepeatsInvite if request("INVITE") && self.invites.contains_key(&key(&view)) => {
                return;
            }
            Fault::DoublesFinals if is_final => self.out.push_back(message.clone()),
            Fault::SendsSecondFailure if is_final && status == Some(486) => {
                self.out.push_back(message.clone());
                message.text = text.replacen("SIP/2.0 486", "SIP/2.0 603", 1);
            }
            Fault::ChangesBranch if request("INVITE") && self.invites.contains_key(&key(&view)) => {
                message.text = text.replacen("branch=z9hG4bK", "branch=z9hG4bKx", 1);
            }
            Fault::KeepsMaxForwards => {
                message.text = text.replacen("Max-Forwards: 69", "Max-Forwards: 70", 1)
            }
            Fault::SendsToStranger if request("BYE") => {
                message.to = SocketAddr::from(([203, 0, 113, 9], 5060))
            }
            Fault::LeaksCredentials if request("INVITE") => {
                if let Some(line) = self.credentials.get(view.get("Call-ID")) {
                    let with = format!("Proxy-Authorization: {line}\r\nContent-Length:");
                    message.text = text.replacen("Content-Length:", &with, 1);
                }
            }
            Fault::MisdirectsAnswers if status == Some(180) => {
                message.to = SocketAddr::from(([192, 0, 2, 20], 5060));
            }
            _ => {}
        }
        if request("INVITE") {
            self.invites.entry(key(&view)).or_insert_with(|| message.clone());
        }
        self.out.push_back(message);
    }

    fn take(&mut self) -> usize {
        let mut taken = 0;
        while let Some(message) = self.inner.poll_transmit() {
            taken += 1;
            self.leave(message);
        }
        taken
    }

    /// What the fault does after a message that came.
    fn afterwards(&mut self, view: &View<'_>, taken: usize) {
        let request = |wanted: &str| view.status().is_none() && view.method() == wanted;
        let Some(invite) = self.invites.get(&key(view)).cloned() else {
            return;
        };
        if self.fault == Fault::ForgetsToAbsorb
            && request("INVITE")
            && self.came.iter().any(|t| t == view.text())
        {
            self.out.push_back(invite);
        } else if self.fault == Fault::ForwardsFailureAck && request("ACK") && taken == 0 {
            let branch = View::new(&invite.text).branch().to_owned();
            let via = format!("\r\nVia: SIP/2.0/UDP 192.0.2.99;branch={branch}x\r\nVia:");
            let text = view.text().replacen("\r\nVia:", &via, 1);
            let text = text.replacen("Max-Forwards: 70", "Max-Forwards: 69", 1);
            self.out.push_back(Outgoing { to: invite.to, text });
        }
    }
}

impl Node for Mutant {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the other faults do nothing here")]
    fn handle_message(&mut self, now: Micros, from: SocketAddr, text: &str) {
        let view = View::new(text);
        let request = |wanted: &str| view.status().is_none() && view.method() == wanted;
        let failure_ack = request("ACK") && view.all("Route").next().is_none();
        match self.fault {
            Fault::DropsCancel if request("CANCEL") => return,
            Fault::IgnoresFailureAck if failure_ack => return,
            Fault::LeaksCredentials if !view.get("Proxy-Authorization").is_empty() => {
                let line = view.get("Proxy-Authorization").to_owned();
                self.credentials.insert(view.get("Call-ID").to_owned(), line);
            }
            _ => {}
        }
        self.inner.handle_message(now, from, text);
        let taken = self.take();
        self.afterwards(&view, taken);
        if request("INVITE") {
            self.came.push(text.to_owned());
        }
    }

    fn handle_timeout(&mut self, now: Micros) {
        self.inner.handle_timeout(now);
        self.take();
    }

    fn poll_transmit(&mut self) -> Option<Outgoing> {
        self.out.pop_front()
    }

    fn poll_timeout(&self) -> Option<Micros> {
        if self.fault == Fault::StopsClock {
            return None;
        }
        self.inner.poll_timeout()
    }

    fn leftovers(&self) -> Option<String> {
        self.inner.leftovers()
    }
}
