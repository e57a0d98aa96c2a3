//! The non-INVITE server transaction: RFC 3261 §17.2.2 as changed by RFC 4320 §4 and RFC 6026.

use super::{Effect, MachineContext, Passed, Sink, Timer};

/// RFC 3261 Figure 8 with RFC 4320 §4 and RFC 6026's §17.2.4:
///
/// ```text
///                                   | request received
///                                   | pass to TU
///                                   V
///               request: -    +------------+
///                    +--------|            |   TU abandons
///                    +------->|   Trying   |   -
///                             |            |------------------->+
///                             +------------+                    |
///             200-699 from TU   |       | timer Trying: send 100|
///             (not 408)         |       | or, reliable: 100     |
///             send response     |       | from TU, send response|
///            +------------------+       |                       |
///            |                          |                       |
///            |   request                V                       |
///            |   send response +------------+                   |
///            |        +--------|            | TU abandons       V   request: -
///            |        +------->| Proceeding | -           +-----------+----+
///            |                 |            |------------>| Abandoned |    |
///            |                 |            |---+         +-----------+<---+
///            |                 |            |<--+ transport     |
///            |                 +------------+    error: inform TU
///            | 200-699 from TU      |                           |
///            | send response        |                           |
///            |   request            V                           |
///            |   send response +------------+                   |
///            |        +--------|            |---+ transport     |
///            |        +------->| Completed  |<--+ error: inform TU
///            +---------------->|            |                   |
///                              +------------+                   |
///                                   | timer J                   | timer J
///                                   V -                         | -
///                              +------------+                   |
///                              | Terminated |<------------------+
///                              +------------+
/// ```
///
/// RFC 4320 takes two responses from the transaction user: a provisional one other than 100 (§4.1), and a 408
/// (§4.2), instead of which it abandons the transaction. An abandoned transaction still absorbs
/// retransmissions: as new requests they would be sent on a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NonInviteServer {
    state: State,
}

/// The state of the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// No response yet.
    Trying,
    /// 100 was sent.
    Proceeding,
    /// A final response was sent: it is repeated for retransmissions.
    Completed,
    /// There will be no response: retransmissions are absorbed.
    Abandoned,
    /// The transaction is over.
    Terminated,
}

/// An event of the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A timer fired.
    Timer(Timer),
    /// The request came again.
    Request,
    /// The transaction user gives a 100 (never another 1xx: RFC 4320 §4.1).
    SendTrying,
    /// The transaction user gives a 2xx to 6xx (never a 408: RFC 4320 §4.2).
    SendFinal,
    /// The transaction user will not respond: it would have been a 408 (RFC 4320 §4.2).
    Abandon,
    /// The transport could not deliver a response.
    TransportError,
}

impl NonInviteServer {
    /// Passes the request up (§17.2.2) and begins to wait for the late 100 (RFC 4320 §4.1).
    pub fn new(ctx: &MachineContext, sink: &mut impl Sink) -> Self {
        sink.effect(Effect::PassToUser(Passed::Request));
        sink.effect(Effect::Start(Timer::Trying, ctx.trying_delay()));
        Self { state: State::Trying }
    }

    /// Handles one event.
    pub fn handle(&mut self, event: Event, ctx: &MachineContext, sink: &mut impl Sink) {
        match (self.state, event) {
            // RFC 4320 §4.1: "MUST respond ... with a Status-Code of 100 if it has not otherwise responded",
            // whatever the transport. If the source is unverified, the 100 waits for the next copy of the
            // request.
            (State::Trying, Event::Timer(Timer::Trying)) => {
                if !ctx.source_unverified {
                    sink.effect(Effect::SendTrying);
                }
                self.state = State::Proceeding;
            }
            // RFC 4320 §4.1: earlier only on a reliable transport; else it is not sent.
            (State::Trying, Event::SendTrying) if ctx.reliable => {
                sink.effect(Effect::SendResponse);
                sink.effect(Effect::Stop(Timer::Trying));
                self.state = State::Proceeding;
            }
            // §17.2.2.
            (State::Proceeding, Event::SendTrying) => sink.effect(Effect::SendResponse),
            // §17.2.2: wait J for retransmissions; zero on reliable transports.
            (State::Trying | State::Proceeding, Event::SendFinal) => {
                sink.effect(Effect::SendResponse);
                self.stop_trying(sink);
                self.wait_for_copies(State::Completed, ctx, sink);
            }
            // RFC 4320 §4.2: the client has timed out by itself.
            (State::Trying | State::Proceeding, Event::Abandon) => {
                self.stop_trying(sink);
                self.wait_for_copies(State::Abandoned, ctx, sink);
            }
            // §17.2.2: the most recent response again.
            (State::Proceeding | State::Completed, Event::Request) => sink.effect(Effect::ResendResponse),
            // RFC 6026 §8 (for §17.2.4): inform, and remain in the state; a retransmission of the
            // request gets a response again.
            (State::Proceeding | State::Completed, Event::TransportError) => {
                sink.effect(Effect::PassToUser(Passed::TransportFailed));
            }
            (State::Completed | State::Abandoned, Event::Timer(Timer::J)) => self.terminate(sink),
            // Everything else is absorbed: a request before there is a response or if there will be
            // none, and responses after the final one, which "MUST be discarded" (§17.2.2).
            _ => {}
        }
    }

    /// The state of the transaction.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether the transaction is over.
    pub const fn is_terminated(&self) -> bool {
        matches!(self.state, State::Terminated)
    }

    /// Stops timer Trying, which runs in Trying only.
    fn stop_trying(&self, sink: &mut impl Sink) {
        if self.state == State::Trying {
            sink.effect(Effect::Stop(Timer::Trying));
        }
    }

    /// Waits J for copies of the request (§17.2.2); zero on reliable transports.
    fn wait_for_copies(&mut self, state: State, ctx: &MachineContext, sink: &mut impl Sink) {
        if ctx.reliable {
            self.terminate(sink);
        } else {
            sink.effect(Effect::Start(Timer::J, ctx.time_out()));
            self.state = state;
        }
    }

    fn terminate(&mut self, sink: &mut impl Sink) {
        self.state = State::Terminated;
        sink.effect(Effect::Terminated);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Machine, On, Row};
    use super::*;
    use crate::time::Millis;

    impl Machine for NonInviteServer {
        type State = State;
        type Event = Event;
        const TIMERS: &'static [Timer] = &[Timer::Trying, Timer::J];
        const STATES: &'static [State] = &[
            State::Trying,
            State::Proceeding,
            State::Completed,
            State::Abandoned,
            State::Terminated,
        ];
        const EVENTS: &'static [Event] = &[
            Event::Request,
            Event::SendTrying,
            Event::SendFinal,
            Event::Abandon,
            Event::TransportError,
        ];

        fn start(ctx: &MachineContext, sink: &mut impl Sink) -> Self {
            Self::new(ctx, sink)
        }
        fn in_state(state: State) -> Self {
            Self { state }
        }
        fn timer(timer: Timer) -> Event {
            Event::Timer(timer)
        }
        fn take(&mut self, event: Event, ctx: &MachineContext, sink: &mut impl Sink) {
            self.handle(event, ctx, sink);
        }
        fn at(&self) -> State {
            self.state()
        }
        fn over(&self) -> bool {
            self.is_terminated()
        }
    }

    use Effect::{PassToUser, ResendResponse, SendResponse, Start, Stop, Terminated as Over};
    use Event::{Abandon, Request, SendFinal, SendTrying, TransportError};
    use On::{Both, Reliable, Unreliable};
    use State::{Abandoned, Completed, Proceeding, Terminated, Trying};
    use Timer::J;

    const LATE: Timer = Timer::Trying;
    const FAILED: Effect = PassToUser(Passed::TransportFailed);
    const J32: Effect = Start(J, Millis(32_000));

    const fn t(timer: Timer) -> Event {
        Event::Timer(timer)
    }

    #[rustfmt::skip]
    const TABLE: &[Row<State, Event>] = &[
        (Trying, t(LATE), Both, Proceeding, &[Effect::SendTrying]),
        (Trying, t(J), Both, Trying, &[]),
        (Trying, Request, Both, Trying, &[]),
        (Trying, SendTrying, Unreliable, Trying, &[]),
        (Trying, SendTrying, Reliable, Proceeding, &[SendResponse, Stop(LATE)]),
        (Trying, SendFinal, Unreliable, Completed, &[SendResponse, Stop(LATE), J32]),
        (Trying, SendFinal, Reliable, Terminated, &[SendResponse, Stop(LATE), Over]),
        (Trying, Abandon, Unreliable, Abandoned, &[Stop(LATE), J32]),
        (Trying, Abandon, Reliable, Terminated, &[Stop(LATE), Over]),
        (Trying, TransportError, Both, Trying, &[]),

        (Proceeding, t(LATE), Both, Proceeding, &[]),
        (Proceeding, t(J), Both, Proceeding, &[]),
        (Proceeding, Request, Both, Proceeding, &[ResendResponse]),
        (Proceeding, SendTrying, Both, Proceeding, &[SendResponse]),
        (Proceeding, SendFinal, Unreliable, Completed, &[SendResponse, J32]),
        (Proceeding, SendFinal, Reliable, Terminated, &[SendResponse, Over]),
        (Proceeding, Abandon, Unreliable, Abandoned, &[J32]),
        (Proceeding, Abandon, Reliable, Terminated, &[Over]),
        (Proceeding, TransportError, Both, Proceeding, &[FAILED]),

        (Completed, t(LATE), Both, Completed, &[]),
        (Completed, t(J), Both, Terminated, &[Over]),
        (Completed, Request, Both, Completed, &[ResendResponse]),
        (Completed, SendTrying, Both, Completed, &[]),
        (Completed, SendFinal, Both, Completed, &[]),
        (Completed, Abandon, Both, Completed, &[]),
        (Completed, TransportError, Both, Completed, &[FAILED]),

        (Abandoned, t(LATE), Both, Abandoned, &[]),
        (Abandoned, t(J), Both, Terminated, &[Over]),
        (Abandoned, Request, Both, Abandoned, &[]),
        (Abandoned, SendTrying, Both, Abandoned, &[]),
        (Abandoned, SendFinal, Both, Abandoned, &[]),
        (Abandoned, Abandon, Both, Abandoned, &[]),
        (Abandoned, TransportError, Both, Abandoned, &[]),
    ];

    /// The late 100 waits for a copy of the request.
    #[test]
    fn a_quiet_one_sends_no_more_than_it_gets() {
        let ctx = testing::source_unverified();
        let mut seen = alloc::vec::Vec::new();
        let mut machine = NonInviteServer::new(&ctx, &mut seen);
        seen.clear();
        machine.handle(Event::Timer(Timer::Trying), &ctx, &mut seen);
        assert_eq!(seen, []);
        machine.handle(Event::Request, &ctx, &mut seen);
        assert_eq!(seen, [Effect::ResendResponse]);
        assert_eq!(machine.state(), State::Proceeding);
    }

    #[test]
    fn every_state_and_event() {
        testing::check_table::<NonInviteServer>(TABLE);
    }

    #[test]
    fn timers_are_kept_in_order() {
        testing::check_timers::<NonInviteServer>();
    }

    #[test]
    fn starts_by_passing_the_request() {
        let effects = &[PassToUser(Passed::Request), Start(LATE, Millis(3500))];
        testing::check_start::<NonInviteServer>(Both, Trying, effects);
    }

    #[test]
    fn an_unanswered_request_gets_one_late_100() {
        // RFC 4320 §4.1.
        assert_eq!(
            testing::times_of::<NonInviteServer>(&[Effect::SendTrying, SendResponse]),
            [3500]
        );
    }
}
