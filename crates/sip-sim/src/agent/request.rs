//! The client transaction of requests other than INVITE (RFC 3261 §17.1.2).

use std::net::SocketAddr;

use super::{Core, Purpose, T2, TIME_OUT, Timer, doubled_to_t2};

/// A CANCEL or a BYE under way.
#[derive(Debug)]
pub(crate) struct ClientRequest {
    pub(crate) call: u32,
    pub(crate) purpose: Purpose,
    pub(crate) branch: String,
    pub(crate) to: SocketAddr,
    pub(crate) text: String,
    /// Whether a provisional response came: timer E then continues at T2.
    pub(crate) proceeding: bool,
    sent: u32,
}

impl ClientRequest {
    /// A transaction that has not begun.
    pub(crate) fn new(call: u32, purpose: Purpose, branch: String, to: SocketAddr, text: String) -> Self {
        Self {
            call,
            purpose,
            branch,
            to,
            text,
            proceeding: false,
            sent: 0,
        }
    }

    /// Sends the request for the first time, and starts timers E and F.
    pub(crate) fn begin(&mut self, core: &mut Core) {
        core.start(TIME_OUT, Timer::RequestGivenUp(self.branch.clone(), self.purpose));
        self.send_again(core);
    }

    /// Timer E.
    pub(crate) fn send_again(&mut self, core: &mut Core) {
        core.send(self.to, self.text.clone());
        self.sent += 1;
        if core.reliable {
            return;
        }
        let after = if self.proceeding {
            T2
        } else {
            doubled_to_t2(self.sent)
        };
        core.start(after, Timer::RequestAgain(self.branch.clone(), self.purpose));
    }
}
