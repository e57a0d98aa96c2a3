//! The INVITE client transaction: RFC 3261 §17.1.1 as changed by RFC 6026 §7.2.

use super::{Effect, MachineContext, Passed, Sink, Timer};

/// RFC 3261 Figure 5 with RFC 6026 §8.4:
///
/// ```text
///                            | INVITE from TU
///       timer A fires        | INVITE sent          timer B fires
///       reset A,             V                      or transport error
///       INVITE sent     +-----------+               inform TU
///            +----------|           |--------------------+
///            +--------->|  Calling  |                    |
///                       |           |----+               |
///                       +-----------+    |               |
///         300-699         |   |  2xx      |               |
///         ACK sent,       |   |  2xx to TU|               |
///         resp. to TU     |   | 1xx       |               |
///       +-----------------+   | 1xx to TU |               |
///       |                     V           |               |
///       | 300-699       +------------+    |               |
///       | ACK sent,     |            |---------+ 1xx      |
///       | resp. to TU   | Proceeding |    |    | to TU    |
///       +---------------|            |<--------+          |
///       |               +------------+    |               |
///       V                     | 2xx       |               |
///   +-----------+             | 2xx to TU |               |
///   |           |--+          V           V               |
///   | Completed |  | 300-699  +-----------+--+ 2xx        |
///   |           |<-+ ACK sent | Accepted  |  | to TU      |
///   +-----------+             |           |<-+            |
///     |     |                 +-----------+               |
///     |     | transport error       | timer M fires       |
///     |     | inform TU             | -                   |
///     |     +-------------------+   |                     |
///     | timer D fires           V   V                     |
///     | -                     +------------+              |
///     +---------------------->| Terminated |<-------------+
///                             +------------+
/// ```
///
/// Beside the figure: the transaction user may abandon the transaction (§9.1), and failures of the transport
/// are ignored in Proceeding and Accepted. Nothing is sent in these states. So a failure can only concern a
/// copy of the INVITE that no longer matters, as the peer has responded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InviteClient {
    state: State,
    /// Times that the INVITE was retransmitted.
    resent: u8,
}

/// The state of the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// The INVITE was sent, and no response has come.
    Calling,
    /// A provisional response came.
    Proceeding,
    /// A 3xx to 6xx came: its retransmissions are acknowledged.
    Completed,
    /// A 2xx came: more are passed up.
    Accepted,
    /// The transaction is over.
    Terminated,
}

/// An event of the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A timer fired.
    Timer(Timer),
    /// A 1xx came.
    Provisional,
    /// A 2xx came.
    Success,
    /// A 3xx to 6xx came.
    Failure,
    /// The transport could not deliver the INVITE or the ACK.
    TransportError,
    /// The transaction user waits no longer (a cancelled INVITE without a final response,
    /// §9.1; a proxy's branch that timed out, §16.8).
    Abandon,
}

impl InviteClient {
    /// Sends the INVITE (§17.1.1.2).
    pub fn new(ctx: &MachineContext, sink: &mut impl Sink) -> Self {
        sink.effect(Effect::SendRequest);
        if !ctx.reliable {
            sink.effect(Effect::Start(Timer::A, ctx.t1));
        }
        sink.effect(Effect::Start(Timer::B, ctx.time_out()));
        Self {
            state: State::Calling,
            resent: 0,
        }
    }

    /// Handles one event.
    pub fn handle(&mut self, event: Event, ctx: &MachineContext, sink: &mut impl Sink) {
        match (self.state, event) {
            // §17.1.1.2: "the client transaction MUST retransmit the request ... and MUST reset
            // the timer with a value of 2*T1", and so on, doubling without bound.
            (State::Calling, Event::Timer(Timer::A)) => {
                self.resent = self.resent.saturating_add(1);
                sink.effect(Effect::ResendRequest);
                sink.effect(Effect::Start(Timer::A, ctx.doubled(self.resent)));
            }
            // §17.1.1.2: no response at all.
            (State::Calling, Event::Timer(Timer::B)) => {
                sink.effect(Effect::PassToUser(Passed::TimedOut));
                stop_a(ctx, sink);
                self.terminate(sink);
            }
            // §17.1.4.
            (State::Calling, Event::TransportError) => {
                sink.effect(Effect::PassToUser(Passed::TransportFailed));
                stop_a_and_b(ctx, sink);
                self.terminate(sink);
            }
            // §17.1.1.2: "SHOULD NOT retransmit the request any further"; B matters in Calling only.
            (State::Calling, Event::Provisional) => {
                sink.effect(Effect::PassToUser(Passed::Response));
                stop_a_and_b(ctx, sink);
                self.state = State::Proceeding;
            }
            (State::Proceeding, Event::Provisional) => sink.effect(Effect::PassToUser(Passed::Response)),
            // RFC 6026 §7.2: to Accepted, with timer M on all transports.
            (State::Calling | State::Proceeding, Event::Success) => {
                sink.effect(Effect::PassToUser(Passed::Response));
                if self.state == State::Calling {
                    stop_a_and_b(ctx, sink);
                }
                sink.effect(Effect::Start(Timer::M, ctx.time_out()));
                self.state = State::Accepted;
            }
            // §17.1.1.2: this transaction sends the ACK; then it waits D for retransmissions.
            (State::Calling | State::Proceeding, Event::Failure) => {
                sink.effect(Effect::SendAck);
                sink.effect(Effect::PassToUser(Passed::Response));
                if self.state == State::Calling {
                    stop_a_and_b(ctx, sink);
                }
                self.complete(ctx, sink);
            }
            // §9.1, §16.8.
            (State::Calling, Event::Abandon) => {
                stop_a_and_b(ctx, sink);
                self.terminate(sink);
            }
            (State::Proceeding, Event::Abandon) => self.terminate(sink),
            // §17.1.1.2: the response is acknowledged again, not passed up.
            (State::Completed, Event::Failure) => sink.effect(Effect::SendAck),
            // §17.1.1.2 (Figure 5): the ACK could not be sent.
            (State::Completed, Event::TransportError) => {
                sink.effect(Effect::PassToUser(Passed::TransportFailed));
                sink.effect(Effect::Stop(Timer::D));
                self.terminate(sink);
            }
            (State::Completed, Event::Timer(Timer::D)) => self.terminate(sink),
            // RFC 6026 §7.2: 2xx of other branches downstream, and retransmissions.
            (State::Accepted, Event::Success) => sink.effect(Effect::PassToUser(Passed::Response)),
            (State::Accepted, Event::Timer(Timer::M)) => self.terminate(sink),
            // Everything else is absorbed: no arrow in the figure.
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

    /// Completes the transaction. Timer D is zero on reliable transports (§17.1.1.2): nothing is waited for.
    fn complete(&mut self, ctx: &MachineContext, sink: &mut impl Sink) {
        if ctx.reliable {
            self.terminate(sink);
        } else {
            sink.effect(Effect::Start(Timer::D, ctx.d()));
            self.state = State::Completed;
        }
    }

    fn terminate(&mut self, sink: &mut impl Sink) {
        self.state = State::Terminated;
        sink.effect(Effect::Terminated);
    }
}

fn stop_a(ctx: &MachineContext, sink: &mut impl Sink) {
    if !ctx.reliable {
        sink.effect(Effect::Stop(Timer::A));
    }
}

fn stop_a_and_b(ctx: &MachineContext, sink: &mut impl Sink) {
    stop_a(ctx, sink);
    sink.effect(Effect::Stop(Timer::B));
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Machine, On, Row};
    use super::*;
    use crate::time::Millis;

    impl Machine for InviteClient {
        type State = State;
        type Event = Event;
        const TIMERS: &'static [Timer] = &[Timer::A, Timer::B, Timer::D, Timer::M];
        const STATES: &'static [State] = &[
            State::Calling,
            State::Proceeding,
            State::Completed,
            State::Accepted,
            State::Terminated,
        ];
        const EVENTS: &'static [Event] = &[
            Event::Provisional,
            Event::Success,
            Event::Failure,
            Event::TransportError,
            Event::Abandon,
        ];

        fn start(ctx: &MachineContext, sink: &mut impl Sink) -> Self {
            Self::new(ctx, sink)
        }
        fn in_state(state: State) -> Self {
            Self { state, resent: 0 }
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

    use Effect::{PassToUser, ResendRequest, SendAck, SendRequest, Start, Stop, Terminated as Over};
    use Event::{Abandon, Failure, Provisional, Success, TransportError};
    use On::{Both, Reliable, Unreliable};
    use State::{Accepted, Calling, Completed, Proceeding, Terminated};
    use Timer::{A, B, D, M};

    const UP: Effect = PassToUser(Passed::Response);
    const TIMED_OUT: Effect = PassToUser(Passed::TimedOut);
    const FAILED: Effect = PassToUser(Passed::TransportFailed);
    const A2: Effect = Start(A, Millis(1000));
    const D32: Effect = Start(D, Millis(32_000));
    const M32: Effect = Start(M, Millis(32_000));

    const fn t(timer: Timer) -> Event {
        Event::Timer(timer)
    }

    #[rustfmt::skip]
    const TABLE: &[Row<State, Event>] = &[
        (Calling, t(A), Unreliable, Calling, &[ResendRequest, A2]),
        (Calling, t(A), Reliable, Calling, &[ResendRequest, A2]), // Never started there.
        (Calling, t(B), Unreliable, Terminated, &[TIMED_OUT, Stop(A), Over]),
        (Calling, t(B), Reliable, Terminated, &[TIMED_OUT, Over]),
        (Calling, t(D), Both, Calling, &[]),
        (Calling, t(M), Both, Calling, &[]),
        (Calling, Provisional, Unreliable, Proceeding, &[UP, Stop(A), Stop(B)]),
        (Calling, Provisional, Reliable, Proceeding, &[UP, Stop(B)]),
        (Calling, Success, Unreliable, Accepted, &[UP, Stop(A), Stop(B), M32]),
        (Calling, Success, Reliable, Accepted, &[UP, Stop(B), M32]),
        (Calling, Failure, Unreliable, Completed, &[SendAck, UP, Stop(A), Stop(B), D32]),
        (Calling, Failure, Reliable, Terminated, &[SendAck, UP, Stop(B), Over]),
        (Calling, TransportError, Unreliable, Terminated, &[FAILED, Stop(A), Stop(B), Over]),
        (Calling, TransportError, Reliable, Terminated, &[FAILED, Stop(B), Over]),
        (Calling, Abandon, Unreliable, Terminated, &[Stop(A), Stop(B), Over]),
        (Calling, Abandon, Reliable, Terminated, &[Stop(B), Over]),

        (Proceeding, t(A), Both, Proceeding, &[]),
        (Proceeding, t(B), Both, Proceeding, &[]),
        (Proceeding, t(D), Both, Proceeding, &[]),
        (Proceeding, t(M), Both, Proceeding, &[]),
        (Proceeding, Provisional, Both, Proceeding, &[UP]),
        (Proceeding, Success, Both, Accepted, &[UP, M32]),
        (Proceeding, Failure, Unreliable, Completed, &[SendAck, UP, D32]),
        (Proceeding, Failure, Reliable, Terminated, &[SendAck, UP, Over]),
        (Proceeding, TransportError, Both, Proceeding, &[]),
        (Proceeding, Abandon, Both, Terminated, &[Over]),

        (Completed, t(A), Both, Completed, &[]),
        (Completed, t(B), Both, Completed, &[]),
        (Completed, t(D), Both, Terminated, &[Over]),
        (Completed, t(M), Both, Completed, &[]),
        (Completed, Provisional, Both, Completed, &[]),
        (Completed, Success, Both, Completed, &[]),
        (Completed, Failure, Both, Completed, &[SendAck]),
        (Completed, TransportError, Both, Terminated, &[FAILED, Stop(D), Over]),
        (Completed, Abandon, Both, Completed, &[]),

        (Accepted, t(A), Both, Accepted, &[]),
        (Accepted, t(B), Both, Accepted, &[]),
        (Accepted, t(D), Both, Accepted, &[]),
        (Accepted, t(M), Both, Terminated, &[Over]),
        (Accepted, Provisional, Both, Accepted, &[]),
        (Accepted, Success, Both, Accepted, &[UP]),
        (Accepted, Failure, Both, Accepted, &[]),
        (Accepted, TransportError, Both, Accepted, &[]),
        (Accepted, Abandon, Both, Accepted, &[]),
    ];

    #[test]
    fn every_state_and_event() {
        testing::check_table::<InviteClient>(TABLE);
    }

    #[test]
    fn timers_are_kept_in_order() {
        testing::check_timers::<InviteClient>();
    }

    #[test]
    fn starts_by_sending() {
        let b = Start(B, Millis(32_000));
        testing::check_start::<InviteClient>(Unreliable, Calling, &[SendRequest, Start(A, Millis(500)), b]);
        testing::check_start::<InviteClient>(Reliable, Calling, &[SendRequest, b]);
    }

    #[test]
    fn an_unanswered_invite_is_sent_seven_times() {
        // §17.1.1.2: at 0, T1, 3·T1, 7·T1, 15·T1, 31·T1, 63·T1; B fires at 64·T1.
        let sent = testing::times_of::<InviteClient>(&[SendRequest, ResendRequest]);
        assert_eq!(sent, [0, 500, 1500, 3500, 7500, 15_500, 31_500]);
    }
}
