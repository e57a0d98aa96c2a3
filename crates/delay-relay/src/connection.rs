//! One connection through the relay: two sockets and what is on its way between them.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::counters::{FlowTally, Tally};
use crate::pipe::{Due, Pipe};
use crate::poll::Ready;

/// Reads of one direction in one turn, before others have theirs.
const READS: usize = 4;
/// Bytes that one direction passes on in one turn.
const WRITES: usize = 1 << 20;

/// A direction; what it is of follows from the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    ToTarget,
    ToClient,
}

impl Direction {
    pub(crate) const BOTH: [Self; 2] = [Self::ToTarget, Self::ToClient];
}

/// What is done with bytes, of all connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Pass,
    Stall,
    Swallow,
}

/// What a connection needs of the relay to move bytes.
#[derive(Debug)]
pub(crate) struct Means<'a> {
    pub(crate) mode: Mode,
    pub(crate) to_target: Duration,
    pub(crate) to_client: Duration,
    pub(crate) tally: &'a Tally,
    pub(crate) scratch: &'a mut [u8],
}

impl Means<'_> {
    fn delay(&self, direction: Direction) -> Duration {
        match direction {
            Direction::ToTarget => self.to_target,
            Direction::ToClient => self.to_client,
        }
    }
}

/// The result of a turn.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing more to do before something changes or an alarm comes.
    Idle,
    /// More to do, after others.
    Again,
    /// It has ended.
    Over,
}

/// A socket, as far as it is known to be usable.
#[derive(Debug)]
struct Side {
    /// None once the peer has gone.
    stream: Option<TcpStream>,
    connected: bool,
    readable: bool,
    writable: bool,
    /// The peer has ended its stream, or has gone.
    ended: bool,
}

impl Side {
    fn new(stream: TcpStream, connected: bool) -> Self {
        Self {
            stream: Some(stream),
            connected,
            readable: connected,
            writable: connected,
            ended: false,
        }
    }

    fn reset(&mut self) {
        if let Some(stream) = self.stream.take() {
            // Closed with this set, it sends a reset. Where the peer has gone it fails and needs none.
            let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        }
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    client: Side,
    target: Side,
    to_target: Pipe,
    to_client: Pipe,
    /// It is being closed on command: what still comes is read and forgotten, so that the kernel
    /// closes both sides in order.
    closing: bool,
    /// It is reset when so many more bytes have been passed on to the client.
    pub(crate) cut: Option<u64>,
    /// It waits in the queue of those that have something to do.
    pub(crate) queued: bool,
    /// When it is to be looked at, for each direction.
    pub(crate) alarms: [Option<Instant>; 2],
}

impl Connection {
    /// `bound` is that of each direction.
    pub(crate) fn new(client: TcpStream, target: TcpStream, bound: usize) -> Self {
        Self {
            client: Side::new(client, true),
            target: Side::new(target, false),
            to_target: Pipe::new(bound),
            to_client: Pipe::new(bound),
            closing: false,
            cut: None,
            queued: false,
            alarms: [None; 2],
        }
    }

    /// Sender, receiver, and what is between them.
    fn parts(&mut self, direction: Direction) -> (&mut Side, &mut Side, &mut Pipe) {
        match direction {
            Direction::ToTarget => (&mut self.client, &mut self.target, &mut self.to_target),
            Direction::ToClient => (&mut self.target, &mut self.client, &mut self.to_client),
        }
    }

    /// Something changed at the side which sends in this direction.
    pub(crate) fn changed(&mut self, direction: Direction, ready: Ready) {
        let (side, ..) = self.parts(direction);
        side.readable |= ready.readable;
        side.writable |= ready.writable;
    }

    /// Ends both streams: after what is on its way; at once where that is held back by a stall.
    pub(crate) fn close(&mut self, mode: Mode, tally: &Tally) {
        self.closing = true;
        let now = Instant::now();
        for direction in Direction::BOTH {
            let (_, receiver, pipe) = self.parts(direction);
            let connected = receiver.connected;
            if !connected {
                receiver.stream = None;
                receiver.ended = true;
            }
            if mode == Mode::Stall || !connected {
                flow(tally, direction).lost(pipe.lose());
            }
            pipe.finish(now, Duration::ZERO);
        }
    }

    /// Resets both sides; nothing that is on its way arrives.
    pub(crate) fn reset(&mut self) {
        self.client.reset();
        self.target.reset();
    }

    /// Moves what can be moved.
    pub(crate) fn turn(&mut self, means: &mut Means<'_>) -> Turn {
        self.finish_connecting(means);
        for direction in Direction::BOTH {
            self.read(direction, means);
        }
        for direction in Direction::BOTH {
            if self.write(direction, means) == Turn::Over {
                return Turn::Over;
            }
        }
        if self.is_over() {
            return Turn::Over;
        }
        self.plan(means)
    }

    fn finish_connecting(&mut self, means: &mut Means<'_>) {
        if self.target.connected || !self.target.writable {
            return;
        }
        let Some(stream) = &self.target.stream else {
            return;
        };
        if matches!(stream.take_error(), Ok(None)) {
            // Writable without an error, but without a peer: not yet.
            self.target.connected = stream.peer_addr().is_ok();
            self.target.writable = self.target.connected;
            self.target.readable &= self.target.connected;
        } else {
            means.tally.unreachable.fetch_add(1, Relaxed);
            self.gone(Direction::ToClient, means);
        }
    }

    /// Whether what comes is forgotten.
    fn forgets(closing: bool, receiver: &Side, mode: Mode) -> bool {
        closing || receiver.stream.is_none() || mode == Mode::Swallow
    }

    /// Bytes that may be read now.
    fn readable(&mut self, direction: Direction, mode: Mode) -> usize {
        let closing = self.closing;
        let (sender, receiver, pipe) = self.parts(direction);
        let ready = sender.stream.is_some() && sender.connected && sender.readable && !sender.ended;
        if !ready || (mode == Mode::Stall && !closing) {
            0
        } else if Self::forgets(closing, receiver, mode) {
            usize::MAX
        } else {
            pipe.room()
        }
    }

    fn read(&mut self, direction: Direction, means: &mut Means<'_>) {
        let closing = self.closing;
        let delay = means.delay(direction);
        let tally = flow(means.tally, direction);
        for _ in 0..READS {
            let room = self.readable(direction, means.mode).min(means.scratch.len());
            let Some(buffer) = means.scratch.get_mut(..room).filter(|_| room > 0) else {
                return;
            };
            let (sender, receiver, pipe) = self.parts(direction);
            let Some(stream) = &mut sender.stream else {
                return;
            };
            match stream.read(buffer) {
                Ok(0) => {
                    sender.ended = true;
                    if !closing {
                        pipe.finish(Instant::now(), delay);
                    }
                }
                Ok(count) => {
                    let now = Instant::now();
                    tally.taken(count);
                    let mut kept = 0;
                    if !Self::forgets(closing, receiver, means.mode) {
                        kept = pipe.push(now, delay, buffer.get(..count).unwrap_or_default());
                        if pipe.is_full() {
                            tally.paused();
                        }
                    }
                    tally.lost(count - kept);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => sender.readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.gone(direction, means),
            }
        }
    }

    /// Whether anything may be passed on, and whether ends may.
    fn open(&self, mode: Mode) -> (bool, bool) {
        let pass = self.closing || mode == Mode::Pass;
        (pass || mode == Mode::Swallow, pass)
    }

    fn write(&mut self, direction: Direction, means: &mut Means<'_>) -> Turn {
        let (bytes, ends) = self.open(means.mode);
        let now = Instant::now();
        let tally = flow(means.tally, direction);
        let mut budget = WRITES;
        while bytes && budget > 0 {
            let cut = self.cut.filter(|_| direction == Direction::ToClient);
            let (_, receiver, pipe) = self.parts(direction);
            let Some(stream) = receiver.stream.as_mut().filter(|_| receiver.writable) else {
                break;
            };
            match pipe.due(now, ends) {
                Some(Due::Bytes(due)) => {
                    let most = cut.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
                    match write_some(stream, due.get(..most).unwrap_or(due)) {
                        Written::Some(count) => {
                            pipe.passed(count);
                            tally.passed(count);
                            budget = budget.saturating_sub(count);
                            if self.has_cut(direction, count, means.tally) {
                                return Turn::Over;
                            }
                        }
                        Written::Full => receiver.writable = false,
                        Written::Gone => self.gone(opposite(direction), means),
                    }
                }
                Some(Due::End) => {
                    // It fails where the peer has gone, which the next read shows.
                    let _ = stream.shutdown(Shutdown::Write);
                    pipe.pass_end();
                }
                Some(Due::Reset) => {
                    self.reset();
                    return Turn::Over;
                }
                None => break,
            }
        }
        Turn::Idle
    }

    /// Resets the connection if so many bytes to the client were the last that it was to get.
    fn has_cut(&mut self, direction: Direction, count: usize, tally: &Tally) -> bool {
        let Some(left) = self.cut.as_mut().filter(|_| direction == Direction::ToClient) else {
            return false;
        };
        *left = left.saturating_sub(u64::try_from(count).unwrap_or(u64::MAX));
        if *left > 0 {
            return false;
        }
        tally.reset.fetch_add(1, Relaxed);
        self.reset();
        true
    }

    /// The side which sends in this direction has gone without ending its stream, or after: the
    /// other one is reset when that would have come through.
    fn gone(&mut self, direction: Direction, means: &Means<'_>) {
        let closing = self.closing;
        let (sender, _, pipe) = self.parts(direction);
        sender.stream = None;
        sender.ended = true;
        if !closing {
            pipe.reset(Instant::now(), means.delay(direction));
        }
        let back = opposite(direction);
        let (_, _, pipe) = self.parts(back);
        flow(means.tally, back).lost(pipe.lose());
    }

    fn is_over(&mut self) -> bool {
        Direction::BOTH.into_iter().all(|direction| {
            let (sender, receiver, pipe) = self.parts(direction);
            sender.ended && (receiver.stream.is_none() || pipe.end_passed())
        })
    }

    /// Sets the alarms; returns whether there is something to do already.
    fn plan(&mut self, means: &Means<'_>) -> Turn {
        let (bytes, ends) = self.open(means.mode);
        let now = Instant::now();
        let mut turn = Turn::Idle;
        for (place, direction) in Direction::BOTH.into_iter().enumerate() {
            let can_read = self.readable(direction, means.mode) > 0;
            let (_, receiver, pipe) = self.parts(direction);
            let can_write = bytes && receiver.stream.is_some() && receiver.writable;
            let due = pipe.next_due(ends).filter(|_| can_write);
            if can_read || due.is_some_and(|due| due <= now) {
                turn = Turn::Again;
            }
            if let Some(alarm) = self.alarms.get_mut(place) {
                *alarm = due.filter(|due| *due > now);
            }
        }
        turn
    }

    /// Counts what is still on its way as lost: it has ended.
    pub(crate) fn settle(&mut self, tally: &Tally) {
        for direction in Direction::BOTH {
            let (_, _, pipe) = self.parts(direction);
            flow(tally, direction).lost(pipe.lose());
        }
        tally.ended.fetch_add(1, Relaxed);
    }
}

fn flow(tally: &Tally, direction: Direction) -> &FlowTally {
    match direction {
        Direction::ToTarget => &tally.to_target,
        Direction::ToClient => &tally.to_client,
    }
}

fn opposite(direction: Direction) -> Direction {
    match direction {
        Direction::ToTarget => Direction::ToClient,
        Direction::ToClient => Direction::ToTarget,
    }
}

enum Written {
    Some(usize),
    /// The kernel takes nothing more.
    Full,
    /// The peer has gone.
    Gone,
}

fn write_some(stream: &mut TcpStream, bytes: &[u8]) -> Written {
    if bytes.is_empty() {
        return Written::Some(0);
    }
    loop {
        match stream.write(bytes) {
            Ok(count) => return Written::Some(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Written::Full,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Written::Gone,
        }
    }
}
