//! The non-INVITE client transaction: RFC 3261 §17.1.2.

use super::{Effect, MachineContext, Passed, Sink, Timer};

/// RFC 3261 Figure 6:
///
/// ```text
///                                  | request from TU
///                                  | send request
///              timer E             V
///              send request  +-----------+
///                  +---------|           |-------------------+
///                  |         |  Trying   |  timer F          |
///                  +-------->|           |  or transport err.|
///                            +-----------+  inform TU        |
///               200-699         |  |                         |
///               resp. to TU     |  | 1xx                     |
///               +---------------+  | resp. to TU             |
///               |                  |                         |
///               |   timer E        V       timer F           |
///               |   send req +------------+ or transport err.|
///               |  +---------|            | inform TU        |
///               |  |         | Proceeding |----------------->|
///               |  +-------->|            |-----+            |
///               |            +------------+     | 1xx        |
///               |               |      ^        | resp. to TU|
///               | 200-699       |      +--------+            |
///               | resp. to TU   |                            |
///               |               V                            |
///               |            +-----------+                   |
///               +----------->| Completed |                   |
///                            +-----------+                   |
///                               | timer K                    |
///                               V -                          |
///                            +------------+                  |
///                            | Terminated |<-----------------+
///                            +------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NonInviteClient {
    state: State,
    /// Times that the request was retransmitted.
    resent: u8,
}

/// The state of the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// The request was sent, and no response has come.
    Trying,
    /// A provisional response came.
    Proceeding,
    /// A final response came: its retransmissions are absorbed.
    Completed,
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
    /// A 2xx to 6xx came.
    Final,
    /// The transport could not deliver the request.
    TransportError,
}

impl NonInviteClient {
    /// Sends the request (§17.1.2.2).
    pub fn new(ctx: &MachineContext, sink: &mut impl Sink) -> Self {
        sink.effect(Effect::SendRequest);
        if !ctx.reliable {
            sink.effect(Effect::Start(Timer::E, ctx.doubled_to_t2(0)));
        }
        sink.effect(Effect::Start(Timer::F, ctx.time_out()));
        Self {
            state: State::Trying,
            resent: 0,
        }
    }

    /// Handles one event.
    pub fn handle(&mut self, event: Event, ctx: &MachineContext, sink: &mut impl Sink) {
        match (self.state, event) {
            // §17.1.2.2: "reset with a value of MIN(2*T1, T2)", and so on.
            (State::Trying, Event::Timer(Timer::E)) => {
                self.resent = self.resent.saturating_add(1);
                sink.effect(Effect::ResendRequest);
                sink.effect(Effect::Start(Timer::E, ctx.doubled_to_t2(self.resent)));
            }
            // §17.1.2.2: in Proceeding "reset with a value of T2".
            (State::Proceeding, Event::Timer(Timer::E)) => {
                sink.effect(Effect::ResendRequest);
                sink.effect(Effect::Start(Timer::E, ctx.t2));
            }
            // §17.1.2.2. (Nothing is sent upstream: RFC 4320 §4.2 forbids the 408.)
            (State::Trying | State::Proceeding, Event::Timer(Timer::F)) => {
                sink.effect(Effect::PassToUser(Passed::TimedOut));
                stop_e(ctx, sink);
                self.terminate(sink);
            }
            // §17.1.4.
            (State::Trying | State::Proceeding, Event::TransportError) => {
                sink.effect(Effect::PassToUser(Passed::TransportFailed));
                stop_e(ctx, sink);
                sink.effect(Effect::Stop(Timer::F));
                self.terminate(sink);
            }
            // §17.1.2.2: timers E and F go on.
            (State::Trying | State::Proceeding, Event::Provisional) => {
                sink.effect(Effect::PassToUser(Passed::Response));
                self.state = State::Proceeding;
            }
            // §17.1.2.2: wait K for retransmissions; zero on reliable transports.
            (State::Trying | State::Proceeding, Event::Final) => {
                sink.effect(Effect::PassToUser(Passed::Response));
                stop_e(ctx, sink);
                sink.effect(Effect::Stop(Timer::F));
                if ctx.reliable {
                    self.terminate(sink);
                } else {
                    sink.effect(Effect::Start(Timer::K, ctx.t4));
                    self.state = State::Completed;
                }
            }
            (State::Completed, Event::Timer(Timer::K)) => self.terminate(sink),
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

    fn terminate(&mut self, sink: &mut impl Sink) {
        self.state = State::Terminated;
        sink.effect(Effect::Terminated);
    }
}

fn stop_e(ctx: &MachineContext, sink: &mut impl Sink) {
    if !ctx.reliable {
        sink.effect(Effect::Stop(Timer::E));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Machine, On, Row};
    use super::*;
    use crate::time::Millis;

    impl Machine for NonInviteClient {
        type State = State;
        type Event = Event;
        const TIMERS: &'static [Timer] = &[Timer::E, Timer::F, Timer::K];
        const STATES: &'static [State] = &[
            State::Trying,
            State::Proceeding,
            State::Completed,
            State::Terminated,
        ];
        const EVENTS: &'static [Event] = &[Event::Provisional, Event::Final, Event::TransportError];

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

    use Effect::{PassToUser, ResendRequest, SendRequest, Start, Stop, Terminated as Over};
    use Event::{Final, Provisional, TransportError};
    use On::{Both, Reliable, Unreliable};
    use State::{Completed, Proceeding, Terminated, Trying};
    use Timer::{E, F, K};

    const UP: Effect = PassToUser(Passed::Response);
    const TIMED_OUT: Effect = PassToUser(Passed::TimedOut);
    const FAILED: Effect = PassToUser(Passed::TransportFailed);
    const K5: Effect = Start(K, Millis(5000));

    const fn t(timer: Timer) -> Event {
        Event::Timer(timer)
    }

    #[rustfmt::skip]
    const TABLE: &[Row<State, Event>] = &[
        (Trying, t(E), Both, Trying, &[ResendRequest, Start(E, Millis(1000))]),
        (Trying, t(F), Unreliable, Terminated, &[TIMED_OUT, Stop(E), Over]),
        (Trying, t(F), Reliable, Terminated, &[TIMED_OUT, Over]),
        (Trying, t(K), Both, Trying, &[]),
        (Trying, Provisional, Both, Proceeding, &[UP]),
        (Trying, Final, Unreliable, Completed, &[UP, Stop(E), Stop(F), K5]),
        (Trying, Final, Reliable, Terminated, &[UP, Stop(F), Over]),
        (Trying, TransportError, Unreliable, Terminated, &[FAILED, Stop(E), Stop(F), Over]),
        (Trying, TransportError, Reliable, Terminated, &[FAILED, Stop(F), Over]),

        (Proceeding, t(E), Both, Proceeding, &[ResendRequest, Start(E, Millis(4000))]),
        (Proceeding, t(F), Unreliable, Terminated, &[TIMED_OUT, Stop(E), Over]),
        (Proceeding, t(F), Reliable, Terminated, &[TIMED_OUT, Over]),
        (Proceeding, t(K), Both, Proceeding, &[]),
        (Proceeding, Provisional, Both, Proceeding, &[UP]),
        (Proceeding, Final, Unreliable, Completed, &[UP, Stop(E), Stop(F), K5]),
        (Proceeding, Final, Reliable, Terminated, &[UP, Stop(F), Over]),
        (Proceeding, TransportError, Unreliable, Terminated, &[FAILED, Stop(E), Stop(F), Over]),
        (Proceeding, TransportError, Reliable, Terminated, &[FAILED, Stop(F), Over]),

        (Completed, t(E), Both, Completed, &[]),
        (Completed, t(F), Both, Completed, &[]),
        (Completed, t(K), Both, Terminated, &[Over]),
        (Completed, Provisional, Both, Completed, &[]),
        (Completed, Final, Both, Completed, &[]),
        (Completed, TransportError, Both, Completed, &[]),
    ];

    #[test]
    fn every_state_and_event() {
        testing::check_table::<NonInviteClient>(TABLE);
    }

    #[test]
    fn timers_are_kept_in_order() {
        testing::check_timers::<NonInviteClient>();
    }

    #[test]
    fn starts_by_sending() {
        let f = Start(F, Millis(32_000));
        let e = Start(E, Millis(500));
        testing::check_start::<NonInviteClient>(Unreliable, Trying, &[SendRequest, e, f]);
        testing::check_start::<NonInviteClient>(Reliable, Trying, &[SendRequest, f]);
    }

    #[test]
    fn an_unanswered_request_is_sent_eleven_times() {
        // §17.1.2.2: intervals T1, 2·T1, 4·T1, then T2; F fires at 64·T1.
        let sent = testing::times_of::<NonInviteClient>(&[SendRequest, ResendRequest]);
        assert_eq!(
            sent,
            [
                0, 500, 1500, 3500, 7500, 11_500, 15_500, 19_500, 23_500, 27_500, 31_500
            ]
        );
    }
}
