//! Reports of user agents about calls, made when everything is over. The checkers compare them with what the
//! network saw.

use crate::clock::Micros;

/// Side of a user agent in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The user agent placed the call.
    Caller,
    /// The user agent was called.
    Callee,
}

/// End of a request that a user agent sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestEnd {
    /// The request was never sent.
    #[default]
    NotSent,
    /// The request waits for its final response.
    Pending,
    /// A final response came.
    Answered(u16),
    /// No final response came in time (timers B, F, or the wait of RFC 3261 §9.1 after a CANCEL).
    TimedOut(Micros),
}

/// Report of a call by one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallReport {
    /// Number of the call.
    pub call: u32,
    /// The reporting side.
    pub side: Side,
    /// The caller's INVITE; if it was challenged, the last one.
    pub invite: RequestEnd,
    /// The caller's CANCEL.
    pub cancel: RequestEnd,
    /// This side's BYE.
    pub bye: RequestEnd,
    /// The BYEs by which the caller ended further dialogs, beside the one in which it talked.
    pub other_byes: Vec<RequestEnd>,
    /// Whether this side's dialog was ended by the other's BYE.
    pub was_ended: bool,
    /// Whether the ACK to the callee's 2xx came; `None` if there was no 2xx.
    pub acknowledged: Option<bool>,
}

impl CallReport {
    /// The report of a new call.
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
