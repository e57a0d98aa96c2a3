//! Transactions (RFC 3261 §17, with RFC 4320 and RFC 6026): the four machines, a file each, and the
//! vocabulary that they share.
//!
//! A machine is a value of a few bytes, and knows neither messages nor clocks: an event goes in, [`Effect`]s
//! go into a [`Sink`] that the caller lends, in the order in which they are to be carried out. The owner of
//! the machine keeps the bytes to send again and the timers that run.

pub mod invite_client;
pub mod invite_server;
pub mod non_invite_client;
pub mod non_invite_server;
pub mod table;
#[cfg(test)]
mod testing;

pub use invite_client::InviteClient;
pub use invite_server::InviteServer;
pub use non_invite_client::NonInviteClient;
pub use non_invite_server::NonInviteServer;

use crate::config::Timers;
use crate::time::Millis;

/// Every timer of the transaction layer and of the proxy's response context
/// (RFC 3261 Table 4, RFC 6026 §7, RFC 4320 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Timer {
    /// INVITE retransmission, unreliable transports: T1, doubling (§17.1.1.2).
    A,
    /// INVITE transaction time-out: 64·T1 (§17.1.1.2).
    B,
    /// Proxy INVITE time-out, run by the response context, not by a machine (§16.6 step 11).
    C,
    /// Wait for retransmitted responses: at least 32 s; none on reliable transports (§17.1.1.2).
    D,
    /// Non-INVITE retransmission, unreliable transports: T1, doubling to T2 (§17.1.2.2).
    E,
    /// Non-INVITE transaction time-out: 64·T1 (§17.1.2.2).
    F,
    /// INVITE response retransmission, unreliable transports: T1, doubling to T2 (§17.2.1).
    G,
    /// Wait for the ACK: 64·T1 (§17.2.1).
    H,
    /// Wait for retransmitted ACKs: T4; none on reliable transports (§17.2.1).
    I,
    /// Wait for retransmitted non-INVITE requests: 64·T1; none on reliable transports (§17.2.2).
    J,
    /// Wait for retransmitted responses: T4; none on reliable transports (§17.1.2.2).
    K,
    /// Wait for retransmissions of an accepted INVITE: 64·T1 on all transports (RFC 6026 §7.1).
    L,
    /// Wait for more 2xx responses: 64·T1 on all transports (RFC 6026 §7.2).
    M,
    /// A non-INVITE request gets 100 when this fires (RFC 4320 §4.1, which names no letter): see
    /// [`MachineContext::trying_delay`].
    Trying,
}

/// The surroundings of a machine: timer values, and whether the transport of this transaction is
/// reliable (the same at every event of one transaction).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineContext {
    /// RTT estimate.
    pub t1: Millis,
    /// Longest interval between retransmissions of non-INVITE requests and INVITE responses.
    pub t2: Millis,
    /// Longest time that a message stays in the network.
    pub t4: Millis,
    /// Whether the transport is reliable: nothing is retransmitted, and nothing waits for retransmissions.
    pub reliable: bool,
    /// Whether the source address may be spoofed (server transactions only). If so, for each datagram that
    /// comes no more than one leaves, and nothing is repeated unless the request is.
    pub source_unverified: bool,
}

/// The shortest timer D on unreliable transports (§17.1.1.2), however small T1 is.
const SHORTEST_D: Millis = Millis(32_000);

impl MachineContext {
    /// The context by the configured timers.
    pub const fn new(timers: &Timers, reliable: bool) -> Self {
        Self {
            t1: Millis(timers.t1_ms),
            t2: Millis(timers.t2_ms),
            t4: Millis(timers.t4_ms),
            reliable,
            source_unverified: false,
        }
    }

    /// 64·T1: timers B, F, H, J, L, M.
    pub const fn time_out(&self) -> Millis {
        Millis(self.t1.0.saturating_mul(64))
    }

    /// Timer D on unreliable transports: at least 32 s, and at least as long as the server's timer H, to
    /// which it corresponds.
    pub fn d(&self) -> Millis {
        self.time_out().max(SHORTEST_D)
    }

    /// T1·2^`times`: timer A after that many retransmissions.
    pub fn doubled(&self, times: u8) -> Millis {
        let ms = u64::from(self.t1.0) << times.min(32);
        Millis(u32::try_from(ms).unwrap_or(u32::MAX))
    }

    /// min(T1·2^`times`, T2): timers E and G after that many retransmissions.
    pub fn doubled_to_t2(&self, times: u8) -> Millis {
        self.doubled(times).min(self.t2)
    }

    /// The time until a client's timer E is first reset to T2 (3.5 s with the default values). On an
    /// unreliable transport a 100 to a non-INVITE request may go no earlier. On any transport it must go by
    /// then, if no other response has (RFC 4320 §4.1).
    pub fn trying_delay(&self) -> Millis {
        let mut interval = self.t1.0.max(1);
        let mut sum = interval;
        while interval.saturating_mul(2) < self.t2.0 {
            interval = interval.saturating_mul(2);
            sum = sum.saturating_add(interval);
        }
        Millis(sum)
    }
}

/// An action that a machine wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send the request for the first time.
    SendRequest,
    /// Send the request again, the same bytes.
    ResendRequest,
    /// Make the ACK to the response at hand, a 3xx to 6xx, or take the one made before, and send it
    /// (§17.1.1.3).
    SendAck,
    /// Send the response at hand, which the transaction user gave, and keep it for
    /// [`Effect::ResendResponse`].
    SendResponse,
    /// Make and send a 100 (Trying), which [`Effect::ResendResponse`] sends again.
    SendTrying,
    /// Send the most recent response again, the same bytes.
    ResendResponse,
    /// Pass this to the transaction user.
    PassToUser(Passed),
    /// Start a timer that does not run.
    Start(Timer, Millis),
    /// Stop a timer that runs.
    Stop(Timer),
    /// The transaction is over and none of its timers runs; the last effect of a machine.
    Terminated,
}

/// The message of a transaction to its transaction user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// The request that made this server transaction.
    Request,
    /// The response at hand.
    Response,
    /// The ACK at hand, to a 2xx.
    Ack,
    /// Timer B, F or H fired: no response, or no ACK. The transaction is over.
    TimedOut,
    /// A message could not be sent. A client transaction is over; a server transaction goes on.
    TransportFailed,
}

/// The receiver of effects, which the owner of the machines implements.
pub trait Sink {
    /// Carries out `effect`, or notes it; effects of one event come in order.
    fn effect(&mut self, effect: Effect);
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: MachineContext = MachineContext {
        t1: Millis(500),
        t2: Millis(4000),
        t4: Millis(5000),
        reliable: false,
        source_unverified: false,
    };

    #[test]
    fn intervals_follow_table_4() {
        assert_eq!(MachineContext::new(&Timers::default(), false), DEFAULT);
        assert_eq!(DEFAULT.time_out(), Millis(32_000));
        assert_eq!(DEFAULT.d(), Millis(32_000));
        assert_eq!(
            MachineContext {
                t1: Millis(100),
                ..DEFAULT
            }
            .d(),
            Millis(32_000)
        );
        assert_eq!(
            MachineContext {
                t1: Millis(1000),
                ..DEFAULT
            }
            .d(),
            Millis(64_000)
        );
        assert_eq!(
            [0, 1, 2, 6].map(|n| DEFAULT.doubled(n).0),
            [500, 1000, 2000, 32_000]
        );
        assert_eq!(
            [0, 1, 2, 3, 4, 255].map(|n| DEFAULT.doubled_to_t2(n).0),
            [500, 1000, 2000, 4000, 4000, 4000]
        );
        assert_eq!(DEFAULT.doubled(255), Millis(u32::MAX));
        assert_eq!(
            MachineContext {
                t1: Millis(u32::MAX),
                ..DEFAULT
            }
            .time_out(),
            Millis(u32::MAX)
        );
    }

    #[test]
    fn the_late_100_waits_until_timer_e_reaches_t2() {
        // E fires after 500, 1,500 and 3,500 ms; the last of these resets it to T2.
        assert_eq!(DEFAULT.trying_delay(), Millis(3500));
        assert_eq!(
            MachineContext {
                t2: Millis(500),
                ..DEFAULT
            }
            .trying_delay(),
            Millis(500)
        );
        assert_eq!(
            MachineContext {
                t2: Millis(3000),
                ..DEFAULT
            }
            .trying_delay(),
            Millis(3500)
        );
        assert_eq!(
            MachineContext {
                t1: Millis(0),
                t2: Millis(0),
                ..DEFAULT
            }
            .trying_delay(),
            Millis(1)
        );
        assert_eq!(
            MachineContext {
                t2: Millis(u32::MAX),
                ..DEFAULT
            }
            .trying_delay(),
            Millis(u32::MAX)
        );
    }
}
