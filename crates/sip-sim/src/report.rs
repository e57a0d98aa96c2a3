//! What a user agent says of a call when everything is over; the checkers compare it with what
//! the network saw.

use crate::clock::Micros;

/// Who a user agent was in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It placed the call.
    Caller,
    /// It was called.
    Callee,
}

/// How a request that a user agent sent ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestEnd {
    /// It was never sent.
    #[default]
    NotSent,
    /// It waits for its answer.
    Pending,
    /// A final answer came.
    Answered(u16),
    /// None came in time (timers B, F, or the patience of RFC 3261 §9.1 after a CANCEL).
    TimedOut(Micros),
}

/// What became of a call, as one side saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallReport {
    /// Number of the call.
    pub call: u32,
    /// Which side.
    pub side: Side,
    /// The caller's INVITE, the last one where it was challenged.
    pub invite: RequestEnd,
    /// The caller's CANCEL.
    pub cancel: RequestEnd,
    /// This side's BYE.
    pub bye: RequestEnd,
    /// The BYEs by which the caller ended what others had answered, beside the one that it talked with.
    pub other_byes: Vec<RequestEnd>,
    /// This side's dialog was ended by the other's BYE.
    pub was_ended: bool,
    /// The callee's 2xx: whether its ACK came. `None`: there was no 2xx.
    pub acknowledged: Option<bool>,
}

impl CallReport {
    /// A call of which nothing is known yet.
    pub fn new(call: u32, side: Side) -> Self {
        Self {
            call,
            side,
            invite: RequestEnd::NotSent,
            cancel: RequestEnd::NotSent,
            bye: RequestEnd::NotSent,
            other_byes: Vec::new(),
            was_ended: false,
            acknowledged: None,
        }
    }
}
