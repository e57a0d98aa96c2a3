//! A TCP relay with a delay: it puts a server that is on this machine 30 ms away, stalls it,
//! swallows what is said to it, and cuts its connections, all on command and while it runs. It
//! counts what passes. For tests and experiments; Linux only.
//!
//! One thread does everything, with timers of nanoseconds. There is no limit of throughput: bytes
//! wait in a queue until they are due, and only where a connection has as many on their way as it
//! may have ([`Options::pipe_bytes`]) is its sender slowed down, by TCP itself.
//!
//! What is delayed is bytes, and the end or the reset of a stream behind them. Opening a
//! connection is not: the client is connected at once, and to the target a connection is opened at
//! that moment. What the client writes then is due when its delay has passed.
//!
//! [`Relay::start`] with [`Options`] makes one; `tests/relay.rs` shows what it does.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod connection;
mod counters;
mod engine;
mod pipe;
mod poll;

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::connection::Mode;
use crate::counters::Tally;
use crate::engine::{Command, Engine, Order, Shared};
use crate::poll::Bell;

pub use crate::counters::{Counters, Flow, SEGMENT_HEADERS, SEGMENT_PAYLOAD};

/// Longest delay of a direction: an hour.
pub const MAX_DELAY: Duration = Duration::from_secs(3_600);
/// Longest [`Options::spin`].
pub const MAX_SPIN: Duration = Duration::from_millis(1);
/// Least [`Options::pipe_bytes`].
pub const MIN_PIPE_BYTES: usize = 4_096;

/// What a relay begins with.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where clients connect; with port 0 the system chooses one ([`Relay::address`]).
    pub listen: SocketAddr,
    /// Where connections go.
    pub target: SocketAddr,
    /// Delay of what clients say, up to [`MAX_DELAY`]; 0 passes it on at once.
    pub to_target: Duration,
    /// Delay of what the target says, up to [`MAX_DELAY`].
    pub to_client: Duration,
    /// Bytes on their way in each direction of each connection, [`MIN_PIPE_BYTES`] or more; each
    /// chunk read counts as 64 bytes more than it has. At the bound the sender is not read from
    /// until half of it has gone, so that TCP slows it down; [`Flow::pauses`] counts that.
    pub pipe_bytes: usize,
    /// How long before something is due the thread stops sleeping and looks again and again, up
    /// to [`MAX_SPIN`]. A machine that sleeps wakes some time after it was to; on a virtual one
    /// often 0.1 ms, by which everything is late. 150 µs make up for that, and take up to so much
    /// CPU for each chunk. With 0, bytes are as late as the machine wakes.
    pub spin: Duration,
    /// Connections at once; more are reset as they come, and counted in [`Counters::refused`].
    pub connections: usize,
}

impl Options {
    /// No delay, no spinning, 64 MiB in each direction of each connection, 10,000 connections.
    pub fn new(listen: SocketAddr, target: SocketAddr) -> Self {
        Self {
            listen,
            target,
            to_target: Duration::ZERO,
            to_client: Duration::ZERO,
            pipe_bytes: 64 << 20,
            spin: Duration::ZERO,
            connections: 10_000,
        }
    }
}

/// How new connections are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// They are accepted and reset at once, as by a server that has too many.
    Reset,
    /// The port does not listen, as where a server does not run: the kernel refuses them. It stays the
    /// relay's.
    Closed,
}

/// A running relay. When it is dropped its thread ends and everything is closed.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    control: Control,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Listens, and relays from then on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for options out of their range; else what the system says, of
    /// the address above all.
    pub fn start(options: Options) -> io::Result<Self> {
        check_delays(options.to_target, options.to_client)?;
        if options.pipe_bytes < MIN_PIPE_BYTES {
            let text = format!("pipe_bytes is {MIN_PIPE_BYTES} at least");
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        if options.spin > MAX_SPIN {
            let text = format!("spin is {} µs at most", MAX_SPIN.as_micros());
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        let listener = engine::listen(options.listen)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            tally: Tally::default(),
            bell: Bell::new()?,
        });
        let (commands, told) = channel();
        let engine = Engine::new(options, listener, Arc::clone(&shared), told)?;
        let thread = std::thread::Builder::new()
            .name("delay-relay".to_owned())
            .spawn(move || engine.run())?;
        Ok(Self {
            address,
            control: Control { shared, commands },
            thread: Some(thread),
        })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle that controls the relay, for any thread.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// What it has counted until now.
    pub fn counters(&self) -> Counters {
        self.control.counters()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // It fails where the thread has ended already.
        let _ = self.control.tell(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // It returns nothing, and a panic of it has been reported.
            let _ = thread.join();
        }
    }
}

fn check_delays(to_target: Duration, to_client: Duration) -> io::Result<()> {
    if to_target.max(to_client) > MAX_DELAY {
        let text = format!("a delay is {} s at most", MAX_DELAY.as_secs());
        return Err(io::Error::new(ErrorKind::InvalidInput, text));
    }
    Ok(())
}

/// Controls a [`Relay`]. Each command has been done when it returns. It comes after everything that happened
/// on this machine before it was given: clients that connected, bytes that were written.
///
/// # Errors
/// Each fails with [`ErrorKind::NotConnected`] when the relay has ended.
#[derive(Debug, Clone)]
pub struct Control {
    shared: Arc<Shared>,
    commands: Sender<Order>,
}

impl Control {
    fn tell(&self, command: Command) -> io::Result<()> {
        let ended = || io::Error::new(ErrorKind::NotConnected, "the relay has ended");
        let (answer, outcome) = sync_channel(1);
        self.commands.send((command, answer)).map_err(|_| ended())?;
        self.shared.bell.ring();
        outcome.recv().map_err(|_| ended())?
    }

    /// What the relay has counted until now; after its end, until its end.
    pub fn counters(&self) -> Counters {
        self.shared.tally.read()
    }

    /// Delays what comes from now on by these times. What is on its way keeps its time, and what
    /// comes after it waits for it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] above [`MAX_DELAY`].
    pub fn set_delay(&self, to_target: Duration, to_client: Duration) -> io::Result<()> {
        check_delays(to_target, to_client)?;
        self.tell(Command::Delay { to_target, to_client })
    }

    /// Holds everything until [`Self::resume`]: connections are accepted, and opened to the
    /// target, but nothing is read and nothing passed on, ends and resets included. No byte is
    /// lost.
    pub fn stall(&self) -> io::Result<()> {
        self.tell(Command::Mode(Mode::Stall))
    }

    /// Swallows what comes from now on until [`Self::resume`], as a network does that loses
    /// everything. What is on its way still arrives. Ends and resets are not passed on before it
    /// resumes.
    ///
    /// A connection that lost bytes goes on without them after that, as TCP never would; close or
    /// reset it first where that matters.
    pub fn drop_bytes(&self) -> io::Result<()> {
        self.tell(Command::Mode(Mode::Swallow))
    }

    /// Ends [`Self::stall`] and [`Self::drop_bytes`]. What the stall held goes on, at once where
    /// its time has passed.
    pub fn resume(&self) -> io::Result<()> {
        self.tell(Command::Mode(Mode::Pass))
    }

    /// Closes all open connections in order: nothing more is taken from either side, what is on
    /// its way arrives, and the end of the stream comes behind it. In a stall what is on its way
    /// is lost and the end comes at once. A connection counts as open until its peers have closed
    /// it too.
    pub fn close_all(&self) -> io::Result<()> {
        self.tell(Command::Close)
    }

    /// Resets all open connections, to both sides, at once. What is on its way is lost.
    pub fn reset_all(&self) -> io::Result<()> {
        self.tell(Command::Reset)
    }

    /// Cuts the next `connections` connections that come: each is reset, to both sides, when
    /// `bytes` bytes have been passed on to its client, which gets no more than these, and all of
    /// them where it reads in time. With 0 bytes it is reset instead of the first. Replaces what
    /// was said before; 0 connections takes it back.
    pub fn reset_after(&self, bytes: u64, connections: u32) -> io::Result<()> {
        self.tell(Command::ResetNextAfter { bytes, connections })
    }

    /// As [`Self::reset_after`], for all connections that are open, counted from now.
    pub fn reset_open_after(&self, bytes: u64) -> io::Result<()> {
        self.tell(Command::ResetOpenAfter { bytes })
    }

    /// Refuses new connections until [`Self::accept`]. Open ones go on.
    pub fn refuse(&self, how: Refusal) -> io::Result<()> {
        self.tell(Command::Refuse(how))
    }

    /// Accepts connections again.
    ///
    /// # Errors
    /// What the system says where it does not let the relay listen again.
    pub fn accept(&self) -> io::Result<()> {
        self.tell(Command::Accept)
    }

    /// Sends connections that come from now on to this address.
    pub fn set_target(&self, target: SocketAddr) -> io::Result<()> {
        self.tell(Command::Target(target))
    }
}
