//! The INVITE server transaction: RFC 3261 §17.2.1 as changed by RFC 6026 §7.1.

use super::{Effect, MachineContext, Passed, Sink, Timer};

/// RFC 3261 Figure 7 with RFC 6026 §8.5:
///
/// ```text
///                               | INVITE
///                               | pass INVITE to TU
///            INVITE             V
///            send response +------------+
///                 +--------|            |--------+ 101-199 from TU
///                 |        |            |        | send response
///                 +------->| Proceeding |<-------+
///                          |            |--------+ transport error
///                          |            |        | inform TU
///                          |            |<-------+
///                          +------------+
///          300-699 from TU   |        |   2xx from TU
///          send response     |        |   send response
///                 +----------+        +-----------+
///   INVITE,       V                               V      2xx from TU
///   timer G   +-----------+                 +-----------+ send response
///   send      |           |--+              |           |---+
///   response  | Completed |  |              | Accepted  |   | ACK to TU
///        +----|           |<-+              |           |<--+
///        +--->|           | transport error |           |--+ INVITE: -
///             +-----------+ inform TU       +-----------+<-+ transport error:
///                |     |                          |          inform TU
///   ACK          |     | timer H fires            |
///   -            |     | inform TU                | timer L fires
///                V     +----------------+         | -
///          +-----------+                |         |
///     +----| Confirmed | timer I fires  |         |
///     +--->|           | -              V         V
///   INVITE,+-----------+          +------------------+
///   ACK: -       +--------------->|    Terminated    |
///                                 +------------------+
/// ```
///
/// No more responses leave than INVITEs came, if the source may be spoofed
/// ([`MachineContext::source_unverified`]). So there is no 1xx, and timer G does not run. The client repeats
/// the INVITE as long as it has no response, and for each copy the final response is sent again. The callee
/// repeats a 2xx, which passes if a copy of the INVITE came since the last 2xx.
///
/// The 100 (Trying) is due "unless it knows that the TU will generate a provisional or final response within
/// 200 ms" (§17.2.1). The 100 has no timer here: the proxy sends the 100 as soon as it knows that it will not
/// respond at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InviteServer {
    state: State,
    /// In Proceeding: whether there is a provisional response to send again.
    responded: bool,
    /// Times that timer G sent the final response again.
    resent: u8,
    /// Whether an INVITE came since the last response left; it counts only if the source may be spoofed.
    credit: bool,
}

/// The state of the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// No final response yet.
    Proceeding,
    /// A 3xx to 6xx was sent: it is repeated until the ACK comes.
    Completed,
    /// The ACK came: more ACKs are absorbed.
    Confirmed,
    /// A 2xx was sent: retransmitted INVITEs are absorbed, more 2xx let through.
    Accepted,
    /// The transaction is over.
    Terminated,
}

/// An event of the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A timer fired.
    Timer(Timer),
    /// The INVITE came again.
    Invite,
    /// An ACK that matches this transaction came. (The ACK to a 2xx does only from RFC 2543
    /// elements and from those that reuse the branch.)
    Ack,
    /// The transaction user gives a 1xx.
    SendProvisional,
    /// The transaction user gives a 2xx.
    SendSuccess,
    /// The transaction user gives a 3xx to 6xx.
    SendFailure,
    /// The transport could not deliver a response.
    TransportError,
}

impl InviteServer {
    /// Passes the INVITE up (§17.2.1).
    pub fn new(sink: &mut impl Sink) -> Self {
        sink.effect(Effect::PassToUser(Passed::Request));
        Self {
            state: State::Proceeding,
            responded: false,
            resent: 0,
            credit: true,
        }
    }

    /// Handles one event.
    #[inline]
    pub fn handle(&mut self, event: Event, ctx: &MachineContext, sink: &mut impl Sink) {
        match (self.state, event) {
            // §17.2.1: the most recent provisional response, if there is one.
            (State::Proceeding, Event::Invite) if self.responded => sink.effect(Effect::ResendResponse),
            (State::Proceeding, Event::SendProvisional) if !ctx.source_unverified => {
                self.responded = true;
                sink.effect(Effect::SendResponse);
            }
            // RFC 6026 §7.1: to Accepted, with timer L on all transports.
            (State::Proceeding, Event::SendSuccess) => {
                sink.effect(Effect::SendResponse);
                sink.effect(Effect::Start(Timer::L, ctx.time_out()));
                self.credit = false;
                self.state = State::Accepted;
            }
            // §17.2.1: G on unreliable transports only, H on all.
            (State::Proceeding, Event::SendFailure) => {
                sink.effect(Effect::SendResponse);
                if repeats(ctx) {
                    sink.effect(Effect::Start(Timer::G, ctx.doubled_to_t2(0)));
                }
                sink.effect(Effect::Start(Timer::H, ctx.time_out()));
                self.state = State::Completed;
            }
            // RFC 6026 §8 (for §17.2.4): inform, and remain in the state; a retransmission of the
            // INVITE gets a response again.
            (State::Proceeding | State::Completed | State::Accepted, Event::TransportError) => {
                sink.effect(Effect::PassToUser(Passed::TransportFailed));
            }
            (State::Completed, Event::Invite) => sink.effect(Effect::ResendResponse),
            // §17.2.1: "reset with a value of MIN(2*T1, T2)", and so on.
            (State::Completed, Event::Timer(Timer::G)) => {
                self.resent = self.resent.saturating_add(1);
                sink.effect(Effect::ResendResponse);
                sink.effect(Effect::Start(Timer::G, ctx.doubled_to_t2(self.resent)));
            }
            // §17.2.1: the ACK never came.
            (State::Completed, Event::Timer(Timer::H)) => {
                sink.effect(Effect::PassToUser(Passed::TimedOut));
                stop_g(ctx, sink);
                self.terminate(sink);
            }
            // §17.2.1: wait I for more ACKs; zero on reliable transports.
            (State::Completed, Event::Ack) => {
                stop_g(ctx, sink);
                sink.effect(Effect::Stop(Timer::H));
                if ctx.reliable {
                    self.terminate(sink);
                } else {
                    sink.effect(Effect::Start(Timer::I, ctx.t4));
                    self.state = State::Confirmed;
                }
            }
            (State::Confirmed, Event::Timer(Timer::I)) => self.terminate(sink),
            // RFC 6026 §7.1: the transaction user repeats the 2xx, and gets the ACK.
            (State::Accepted, Event::Invite) => self.credit = true,
            (State::Accepted, Event::SendSuccess) if self.credit || !ctx.source_unverified => {
                self.credit = false;
                sink.effect(Effect::SendResponse);
            }
            (State::Accepted, Event::Ack) => sink.effect(Effect::PassToUser(Passed::Ack)),
            (State::Accepted, Event::Timer(Timer::L)) => self.terminate(sink),
            // Everything else is absorbed: retransmissions, and responses after the final one,
            // which "MUST be discarded" (§17.2.1).
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

/// Whether timer G runs.
const fn repeats(ctx: &MachineContext) -> bool {
    !ctx.reliable && !ctx.source_unverified
}

fn stop_g(ctx: &MachineContext, sink: &mut impl Sink) {
    if repeats(ctx) {
        sink.effect(Effect::Stop(Timer::G));
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::super::testing::{self, Machine, On, Row};
    use super::*;
    use crate::time::Millis;

    impl Machine for InviteServer {
        type State = State;
        type Event = Event;
        const TIMERS: &'static [Timer] = &[Timer::G, Timer::H, Timer::I, Timer::L];
        const STATES: &'static [State] = &[
            State::Proceeding,
            State::Completed,
            State::Confirmed,
            State::Accepted,
            State::Terminated,
        ];
        const EVENTS: &'static [Event] = &[
            Event::Invite,
            Event::Ack,
            Event::SendProvisional,
            Event::SendSuccess,
            Event::SendFailure,
            Event::TransportError,
        ];

        fn start(_: &MachineContext, sink: &mut impl Sink) -> Self {
            Self::new(sink)
        }
        fn in_state(state: State) -> Self {
            Self {
                state,
                responded: true,
                resent: 0,
                credit: false,
            }
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
    use Event::{Ack, Invite, SendFailure, SendProvisional, SendSuccess, TransportError};
    use On::{Both, Reliable, Unreliable};
    use State::{Accepted, Completed, Confirmed, Proceeding, Terminated};
    use Timer::{G, H, I, L};

    const TIMED_OUT: Effect = PassToUser(Passed::TimedOut);
    const FAILED: Effect = PassToUser(Passed::TransportFailed);
    const H32: Effect = Start(H, Millis(32_000));

    const fn t(timer: Timer) -> Event {
        Event::Timer(timer)
    }

    #[rustfmt::skip]
    const TABLE: &[Row<State, Event>] = &[
        (Proceeding, t(G), Both, Proceeding, &[]),
        (Proceeding, t(H), Both, Proceeding, &[]),
        (Proceeding, t(I), Both, Proceeding, &[]),
        (Proceeding, t(L), Both, Proceeding, &[]),
        (Proceeding, Invite, Both, Proceeding, &[ResendResponse]),
        (Proceeding, Ack, Both, Proceeding, &[]),
        (Proceeding, SendProvisional, Both, Proceeding, &[SendResponse]),
        (Proceeding, SendSuccess, Both, Accepted, &[SendResponse, Start(L, Millis(32_000))]),
        (Proceeding, SendFailure, Unreliable, Completed, &[SendResponse, Start(G, Millis(500)), H32]),
        (Proceeding, SendFailure, Reliable, Completed, &[SendResponse, H32]),
        (Proceeding, TransportError, Both, Proceeding, &[FAILED]),

        (Completed, t(G), Both, Completed, &[ResendResponse, Start(G, Millis(1000))]),
        (Completed, t(H), Unreliable, Terminated, &[TIMED_OUT, Stop(G), Over]),
        (Completed, t(H), Reliable, Terminated, &[TIMED_OUT, Over]),
        (Completed, t(I), Both, Completed, &[]),
        (Completed, t(L), Both, Completed, &[]),
        (Completed, Invite, Both, Completed, &[ResendResponse]),
        (Completed, Ack, Unreliable, Confirmed, &[Stop(G), Stop(H), Start(I, Millis(5000))]),
        (Completed, Ack, Reliable, Terminated, &[Stop(H), Over]),
        (Completed, SendProvisional, Both, Completed, &[]),
        (Completed, SendSuccess, Both, Completed, &[]),
        (Completed, SendFailure, Both, Completed, &[]),
        (Completed, TransportError, Both, Completed, &[FAILED]),

        (Confirmed, t(G), Both, Confirmed, &[]),
        (Confirmed, t(H), Both, Confirmed, &[]),
        (Confirmed, t(I), Both, Terminated, &[Over]),
        (Confirmed, t(L), Both, Confirmed, &[]),
        (Confirmed, Invite, Both, Confirmed, &[]),
        (Confirmed, Ack, Both, Confirmed, &[]),
        (Confirmed, SendProvisional, Both, Confirmed, &[]),
        (Confirmed, SendSuccess, Both, Confirmed, &[]),
        (Confirmed, SendFailure, Both, Confirmed, &[]),
        (Confirmed, TransportError, Both, Confirmed, &[]),

        (Accepted, t(G), Both, Accepted, &[]),
        (Accepted, t(H), Both, Accepted, &[]),
        (Accepted, t(I), Both, Accepted, &[]),
        (Accepted, t(L), Both, Terminated, &[Over]),
        (Accepted, Invite, Both, Accepted, &[]),
        (Accepted, Ack, Both, Accepted, &[PassToUser(Passed::Ack)]),
        (Accepted, SendProvisional, Both, Accepted, &[]),
        (Accepted, SendSuccess, Both, Accepted, &[SendResponse]),
        (Accepted, SendFailure, Both, Accepted, &[]),
        (Accepted, TransportError, Both, Accepted, &[FAILED]),
    ];

    #[test]
    fn every_state_and_event() {
        testing::check_table::<InviteServer>(TABLE);
    }

    #[test]
    fn timers_are_kept_in_order() {
        testing::check_timers::<InviteServer>();
    }

    #[test]
    fn starts_by_passing_the_invite() {
        testing::check_start::<InviteServer>(Both, Proceeding, &[PassToUser(Passed::Request)]);
    }

    #[test]
    fn an_invite_before_any_response_is_absorbed() {
        let ctx = MachineContext {
            t1: Millis(500),
            t2: Millis(4000),
            t4: Millis(5000),
            reliable: false,
            source_unverified: false,
        };
        let mut seen = Vec::new();
        let mut machine = InviteServer::new(&mut seen);
        seen.clear();
        machine.handle(Invite, &ctx, &mut seen);
        assert_eq!((machine.state(), seen.as_slice()), (Proceeding, [].as_slice()));
    }

    /// Whatever happens, no more responses leave than requests came.
    #[test]
    fn a_quiet_one_sends_no_more_than_it_gets() {
        let ctx = testing::source_unverified();
        let mut seen = Vec::new();
        let mut machine = InviteServer::new(&mut seen);
        seen.clear();
        machine.handle(Invite, &ctx, &mut seen);
        machine.handle(SendProvisional, &ctx, &mut seen);
        machine.handle(Invite, &ctx, &mut seen);
        assert_eq!(seen, []);
        let mut accepted = machine;
        machine.handle(SendFailure, &ctx, &mut seen);
        assert_eq!(seen, [SendResponse, H32]);
        seen.clear();
        machine.handle(Invite, &ctx, &mut seen);
        machine.handle(Ack, &ctx, &mut seen);
        assert_eq!(seen, [ResendResponse, Stop(H), Start(I, Millis(5000))]);
        assert_eq!(machine.state(), Confirmed);
        seen.clear();
        for event in [SendSuccess, SendSuccess, Invite, Invite, SendSuccess, SendSuccess] {
            accepted.handle(event, &ctx, &mut seen);
        }
        assert_eq!(seen, [SendResponse, Start(L, Millis(32_000)), SendResponse]);
        let mut given_up = InviteServer::in_state(Completed);
        seen.clear();
        given_up.handle(t(H), &ctx, &mut seen);
        assert_eq!(seen, [TIMED_OUT, Over]);
    }

    #[test]
    fn an_unacknowledged_failure_is_repeated_until_h() {
        // §17.2.1: T1, 2·T1, 4·T1, then every T2; H fires at 64·T1.
        let sent = testing::times_from(
            |ctx, sink| {
                let mut machine = InviteServer::new(sink);
                machine.handle(SendFailure, ctx, sink);
                machine
            },
            &[SendResponse, ResendResponse],
        );
        assert_eq!(
            sent,
            [
                0, 500, 1500, 3500, 7500, 11_500, 15_500, 19_500, 23_500, 27_500, 31_500
            ]
        );
    }
}
