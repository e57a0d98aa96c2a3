//! Plan of a user agent for a call.

use crate::clock::Micros;

/// Behaviour of the callee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// 200 after this time.
    Answer(Micros),
    /// 486 after this time.
    Busy(Micros),
    /// This response after this time.
    Refuse(Micros, &'static str),
    /// Rings for ever.
    Ring,
    /// Sends no response at all.
    Silent,
}

/// The side that hangs up, and when after the call was answered (acknowledged, at the callee).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HangUp {
    /// Whether the caller hangs up; otherwise the callee does.
    pub by_caller: bool,
    /// Talking time.
    pub after: Micros,
}

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallPlan {
    /// Number of the call.
    pub call: u32,
    /// Address-of-record of the caller.
    pub from: &'static str,
    /// Address-of-record of the callee.
    pub to: &'static str,
    /// When the INVITE is sent.
    pub start: Micros,
    /// When, after that, the caller cancels: CANCEL follows as soon as it may be sent.
    pub cancel_after: Micros,
    /// Whether the callee sends 100 at once.
    pub trying: bool,
    /// The callee rings after this time; `None`: no 180.
    pub ring_after: Option<Micros>,
    /// Behaviour of the callee.
    pub behaviour: Behaviour,
    /// End of the call.
    pub hang_up: HangUp,
}
