//! What a user agent does with a call.

use crate::clock::Micros;

/// What the callee does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// 200 after this time.
    Answer(Micros),
    /// 486 after this time.
    Busy(Micros),
    /// This answer after this time.
    Refuse(Micros, &'static str),
    /// Rings, for ever.
    Ring,
    /// Is there, and says nothing.
    Silent,
}

/// Who hangs up, and when after the call was answered (acknowledged, at the callee).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HangUp {
    /// The caller; else the callee.
    pub by_caller: bool,
    /// Talking time.
    pub after: Micros,
}

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallPlan {
    /// Its number.
    pub call: u32,
    /// Address-of-record of the caller.
    pub from: &'static str,
    /// That of the callee.
    pub to: &'static str,
    /// When the INVITE is sent.
    pub start: Micros,
    /// When, after that, the caller wants no more: CANCEL follows as soon as it may be sent.
    pub cancel_after: Micros,
    /// The callee says 100 at once.
    pub trying: bool,
    /// The callee rings after this time; `None`: no 180.
    pub ring_after: Option<Micros>,
    /// What the callee does.
    pub behaviour: Behaviour,
    /// How it ends.
    pub hang_up: HangUp,
}
