//! The relay's thread: it accepts, moves bytes when they are due, and obeys commands.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::connection::{Connection, Direction, Means, Mode, Turn};
use crate::counters::Tally;
use crate::poll::{BATCH, BELL, Bell, Poll, Ready, TIMER};
use crate::{Options, Refusal};

/// Key of the listener.
const LISTENER: u64 = u64::MAX - 2;
/// Connections accepted in one turn.
const ACCEPTS: usize = 64;
/// Turns in which it catches up before a command, at most.
const CATCH_UPS: usize = 100;
/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 4_096;
/// How long nothing is accepted after that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Most bytes in one read.
const READ: usize = 64 * 1024;
/// Tries to find a port that is free twice.
const PORTS: usize = 16;

/// A command to the thread; each is answered when it is done.
#[derive(Debug)]
pub(crate) enum Command {
    Delay {
        to_target: Duration,
        to_client: Duration,
    },
    Mode(Mode),
    Close,
    Reset,
    ResetNextAfter {
        bytes: u64,
        connections: u32,
    },
    ResetOpenAfter {
        bytes: u64,
    },
    Refuse(Refusal),
    Accept,
    Target(SocketAddr),
    Stop,
}

/// A command and where its outcome goes.
pub(crate) type Order = (Command, SyncSender<io::Result<()>>);

/// What the thread shares with its [`super::Control`]s.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) tally: Tally,
    pub(crate) bell: Bell,
}

#[derive(Debug)]
pub(crate) struct Engine {
    options: Options,
    shared: Arc<Shared>,
    told: Receiver<Order>,
    poll: Poll,
    listener: TcpListener,
    refusal: Option<Refusal>,
    /// There may be connections to accept.
    acceptable: bool,
    accept_again: Option<Instant>,
    mode: Mode,
    /// Bytes after which a connection is cut, and how many of the next ones are.
    cuts: (u64, u32),
    connections: HashMap<u64, Connection>,
    next_id: u64,
    /// When which connection is to be looked at: at most one entry for each direction.
    alarms: BTreeSet<(Instant, u64, Direction)>,
    /// Connections with something to do, each once.
    ready: VecDeque<u64>,
    scratch: Box<[u8]>,
}

/// Key of the side which sends in this direction.
fn key(id: u64, direction: Direction) -> u64 {
    id * 2 + u64::from(direction == Direction::ToClient)
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A listener that keeps its port when it is shut down: Linux gives a port up then that it has
/// chosen itself, so a port of its choice is asked for once more by number.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let bound = |address: SocketAddr| -> io::Result<Socket> {
        let socket = socket(address)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        Ok(socket)
    };
    let mut outcome = Err(ErrorKind::AddrInUse.into());
    for _ in 0..if address.port() == 0 { PORTS } else { 1 } {
        let mut wanted = address;
        if wanted.port() == 0 {
            let chosen = bound(address)?.local_addr()?.as_socket();
            wanted.set_port(chosen.ok_or(ErrorKind::AddrNotAvailable)?.port());
        }
        outcome = bound(wanted).and_then(|socket| {
            socket.listen(BACKLOG)?;
            Ok(socket.into())
        });
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// A connection to `target` that is being made.
fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket(target)?;
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&target.into()) {
        Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {
            Err(error)
        }
        Ok(()) | Err(_) => Ok(socket.into()),
    }
}

/// Closes with a reset.
fn reset(stream: &TcpStream) {
    // Where the peer has gone already it fails, and no reset is needed.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

impl Engine {
    pub(crate) fn new(
        options: Options,
        listener: TcpListener,
        shared: Arc<Shared>,
        told: Receiver<Order>,
    ) -> io::Result<Self> {
        let poll = Poll::new(&shared.bell, options.spin)?;
        poll.add(&listener, LISTENER)?;
        Ok(Self {
            options,
            shared,
            told,
            poll,
            listener,
            refusal: None,
            acceptable: true,
            accept_again: None,
            mode: Mode::Pass,
            cuts: (0, 0),
            connections: HashMap::new(),
            next_id: 0,
            alarms: BTreeSet::new(),
            ready: VecDeque::new(),
            scratch: vec![0; READ].into(),
        })
    }

    /// Runs until the command to stop, which dropping the relay gives.
    pub(crate) fn run(mut self) {
        // Waiting fails only where the kernel has no memory; everything is closed then.
        while self.poll.wait(self.deadline()).is_ok() {
            self.cycle();
            if !self.obey_all() {
                break;
            }
        }
        let all: Vec<u64> = self.connections.keys().copied().collect();
        all.into_iter().for_each(|id| self.remove(id));
    }

    /// Does what the last wait found, and gives each connection with something to do its turn.
    fn cycle(&mut self) {
        self.take_changes();
        self.take_alarms();
        self.accept();
        for _ in 0..self.ready.len() {
            if let Some(id) = self.ready.pop_front() {
                self.turn(id);
            }
        }
    }

    /// Sees what happened before a command was given: the caller that gives it knows that a client is
    /// connected, or that bytes were sent, and means these too.
    fn catch_up(&mut self) {
        self.acceptable |= self.refusal != Some(Refusal::Closed);
        for _ in 0..CATCH_UPS {
            let waited = self.poll.wait(Some(Instant::now()));
            let more = waited.is_ok() && self.poll.found().len() == BATCH;
            self.cycle();
            if !more && (!self.acceptable || self.accept_again.is_some()) {
                return;
            }
        }
    }

    /// Until when nothing is to be done unless something changes.
    fn deadline(&self) -> Option<Instant> {
        if !self.ready.is_empty() || (self.acceptable && self.accept_again.is_none()) {
            return Some(Instant::now());
        }
        let alarm = self.alarms.first().map(|(time, ..)| *time);
        alarm.into_iter().chain(self.accept_again).min()
    }

    fn take_changes(&mut self) {
        let mut heard = std::mem::take(&mut self.ready);
        for ready in self.poll.found() {
            match ready.key {
                LISTENER => self.acceptable |= self.refusal != Some(Refusal::Closed),
                BELL | TIMER => {}
                key => changed(&mut self.connections, &mut heard, key, *ready),
            }
        }
        self.ready = heard;
    }

    fn take_alarms(&mut self) {
        let now = Instant::now();
        while let Some((_, id, _)) = self.alarms.first().copied().filter(|(time, ..)| *time <= now) {
            // It sets its alarms again in its turn.
            self.clear_alarms(id);
            self.enqueue(id);
        }
        if self.accept_again.is_some_and(|time| time <= now) {
            self.accept_again = None;
        }
    }

    fn enqueue(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id)
            && !std::mem::replace(&mut connection.queued, true)
        {
            self.ready.push_back(id);
        }
    }

    fn enqueue_all(&mut self) {
        let all: Vec<u64> = self.connections.keys().copied().collect();
        all.into_iter().for_each(|id| self.enqueue(id));
    }

    fn clear_alarms(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        for (alarm, direction) in connection.alarms.iter_mut().zip(Direction::BOTH) {
            if let Some(time) = alarm.take() {
                self.alarms.remove(&(time, id, direction));
            }
        }
    }

    /// Lets a connection move what it can.
    fn turn(&mut self, id: u64) {
        self.clear_alarms(id);
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.queued = false;
        let mut means = Means {
            mode: self.mode,
            to_target: self.options.to_target,
            to_client: self.options.to_client,
            tally: &self.shared.tally,
            scratch: &mut self.scratch,
        };
        let turn = connection.turn(&mut means);
        for (alarm, direction) in connection.alarms.iter().zip(Direction::BOTH) {
            self.alarms.extend(alarm.map(|time| (time, id, direction)));
        }
        match turn {
            Turn::Idle => {}
            Turn::Again => self.enqueue(id),
            Turn::Over => self.remove(id),
        }
    }

    fn remove(&mut self, id: u64) {
        self.clear_alarms(id);
        if let Some(mut connection) = self.connections.remove(&id) {
            connection.settle(&self.shared.tally);
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            if !self.acceptable || self.accept_again.is_some() {
                return;
            }
            match self.listener.accept() {
                Ok((client, _)) => self.open(client),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.acceptable = false,
                // The client has gone already.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.shared.tally.accept_failures.fetch_add(1, Relaxed);
                    self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Begins to relay for a client, or sends it away.
    fn open(&mut self, client: TcpStream) {
        let shared = Arc::clone(&self.shared);
        let tally = &shared.tally;
        if self.refusal.is_some() || self.connections.len() >= self.options.connections {
            tally.refused.fetch_add(1, Relaxed);
            return reset(&client);
        }
        tally.opened.fetch_add(1, Relaxed);
        let Ok(target) = connect(self.options.target) else {
            tally.unreachable.fetch_add(1, Relaxed);
            tally.ended.fetch_add(1, Relaxed);
            return reset(&client);
        };
        let id = self.next_id;
        if self.register(id, &client, &target).is_err() {
            tally.accept_failures.fetch_add(1, Relaxed);
            tally.ended.fetch_add(1, Relaxed);
            return reset(&client);
        }
        self.next_id += 1;
        let mut connection = Connection::new(client, target, self.options.pipe_bytes);
        if let (bytes, left @ 1..) = self.cuts {
            connection.cut = Some(bytes);
            self.cuts = (bytes, left - 1);
        }
        self.connections.insert(id, connection);
        self.enqueue(id);
    }

    fn register(&self, id: u64, client: &TcpStream, target: &TcpStream) -> io::Result<()> {
        client.set_nonblocking(true)?;
        client.set_nodelay(true)?;
        self.poll.add(client, key(id, Direction::ToTarget))?;
        self.poll.add(target, key(id, Direction::ToClient))
    }

    /// Obeys the commands that wait; false after the command to stop.
    fn obey_all(&mut self) -> bool {
        while let Ok((command, answer)) = self.told.try_recv() {
            self.catch_up();
            let stop = matches!(command, Command::Stop);
            let outcome = self.obey(command);
            // The caller may have gone.
            let _ = answer.send(outcome);
            if stop {
                return false;
            }
        }
        true
    }

    fn obey(&mut self, command: Command) -> io::Result<()> {
        match command {
            Command::Delay { to_target, to_client } => {
                (self.options.to_target, self.options.to_client) = (to_target, to_client);
            }
            Command::Mode(mode) => {
                self.mode = mode;
                self.enqueue_all();
            }
            Command::Close => {
                for connection in self.connections.values_mut() {
                    connection.close(self.mode, &self.shared.tally);
                }
                self.enqueue_all();
            }
            Command::Reset => self.reset_all(),
            Command::ResetNextAfter { bytes, connections } => self.cuts = (bytes, connections),
            Command::ResetOpenAfter { bytes } => {
                for connection in self.connections.values_mut() {
                    connection.cut = Some(bytes);
                }
            }
            Command::Refuse(refusal) => return self.refuse(refusal),
            Command::Accept => return self.accept_again(),
            Command::Target(target) => self.options.target = target,
            Command::Stop => {}
        }
        Ok(())
    }

    fn reset_all(&mut self) {
        let all: Vec<u64> = self.connections.keys().copied().collect();
        for id in all {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.reset();
                self.shared.tally.reset.fetch_add(1, Relaxed);
            }
            self.remove(id);
        }
    }

    fn refuse(&mut self, refusal: Refusal) -> io::Result<()> {
        match refusal {
            // It has to listen in order to reset.
            Refusal::Reset => self.accept_again()?,
            // Linux: the socket listens no more and keeps its port; what was not accepted is reset.
            Refusal::Closed if self.refusal != Some(Refusal::Closed) => {
                let listener = SockRef::from(&self.listener);
                listener.shutdown(Shutdown::Read)?;
                // Or others might bind to it as well.
                listener.set_reuse_address(false)?;
                self.acceptable = false;
            }
            Refusal::Closed => {}
        }
        self.refusal = Some(refusal);
        Ok(())
    }

    fn accept_again(&mut self) -> io::Result<()> {
        if self.refusal == Some(Refusal::Closed) {
            let listener = SockRef::from(&self.listener);
            // Open connections have the port too.
            listener.set_reuse_address(true)?;
            listener.listen(BACKLOG)?;
            self.acceptable = true;
        }
        self.refusal = None;
        Ok(())
    }
}

fn changed(connections: &mut HashMap<u64, Connection>, queue: &mut VecDeque<u64>, key: u64, ready: Ready) {
    let (id, direction) = match key % 2 {
        0 => (key / 2, Direction::ToTarget),
        _ => (key / 2, Direction::ToClient),
    };
    if let Some(connection) = connections.get_mut(&id) {
        connection.changed(direction, ready);
        if !std::mem::replace(&mut connection.queued, true) {
            queue.push_back(id);
        }
    }
}
