//! Accepts HTTP connections within bounds of number and time. Beyond the number, a new connection ends an old
//! one, first of those without a response. So silent peers do not keep a probe from its response.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep_until};

/// Most connections at once.
const CONNECTIONS: usize = 64;
/// Longest time of a connection; a client with more requests opens another.
const LIFETIME: Duration = Duration::from_secs(60);
/// Pause after an error of accepting, such as having no file descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// The listener of the admin address.
pub(super) struct Bounded {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    lifetime: Duration,
    /// Live connections, the oldest first, and some that have ended since the last one was accepted.
    open: VecDeque<Open>,
}

/// Silence after which a connection makes room first: a new one may be about to send its request.
const SILENCE: Duration = Duration::from_secs(1);

/// A live connection, with the means to end it.
struct Open {
    since: Instant,
    /// Ends the connection when dropped.
    end: Sender<()>,
    is_answered: Arc<AtomicBool>,
}

impl Bounded {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self::with(listener, CONNECTIONS, LIFETIME)
    }

    fn with(listener: TcpListener, connections: usize, lifetime: Duration) -> Self {
        Self {
            listener,
            permits: Arc::new(Semaphore::new(connections)),
            lifetime,
            open: VecDeque::new(),
        }
    }

    /// Ends a connection: the oldest that has been silent for a while, else the oldest with a response, else
    /// the oldest.
    fn make_room(&mut self) {
        let is_answered = |open: &Open| open.is_answered.load(Ordering::Relaxed);
        let silent = |open: &Open| !is_answered(open) && open.since.elapsed() >= SILENCE;
        let at = self.open.iter().position(silent);
        let at = at.or_else(|| self.open.iter().position(is_answered));
        self.open.remove(at.unwrap_or(0));
    }
}

impl axum::serve::Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    self.open.retain(|open| !open.end.is_closed());
                    if self.permits.available_permits() == 0 {
                        self.make_room();
                    }
                    // The semaphore is never closed.
                    let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
                    let until = Box::pin(sleep_until(Instant::now() + self.lifetime));
                    let (end, ended) = channel();
                    let is_answered = Arc::new(AtomicBool::new(false));
                    self.open.push_back(Open {
                        since: Instant::now(),
                        end,
                        is_answered: Arc::clone(&is_answered),
                    });
                    return (
                        Connection {
                            stream,
                            until,
                            ended,
                            is_over: false,
                            is_answered,
                            _permit: permit,
                        },
                        peer,
                    );
                }
                Err(error) => {
                    tracing::warn!(error = error.to_string(), "cannot accept an HTTP connection");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends in time and then releases its place.
pub(super) struct Connection {
    // Released before the peer notices the end.
    _permit: Option<OwnedSemaphorePermit>,
    stream: TcpStream,
    until: Pin<Box<Sleep>>,
    ended: Receiver<()>,
    is_over: bool,
    is_answered: Arc<AtomicBool>,
}

impl Connection {
    /// Fails if the connection's time is over, or its place is needed. Otherwise the task is woken when that
    /// is so.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.is_over = self.is_over || Pin::new(&mut self.ended).poll(cx).is_ready();
        if self.is_over {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match self.until.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        self.is_answered.store(true, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    /// Serves with room for this many connections. Returns the address.
    fn served(connections: usize, lifetime: Duration) -> (tokio::runtime::Runtime, SocketAddr) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("binds");
        let address = listener.local_addr().expect("an address");
        let router = axum::Router::new().route("/", axum::routing::get(|| async { "here" }));
        let bounded = Bounded::with(listener, connections, lifetime);
        runtime.spawn(async move { axum::serve(bounded, router).await });
        (runtime, address)
    }

    fn ask(address: SocketAddr) {
        let mut asking = std::net::TcpStream::connect(address).expect("connects");
        asking
            .write_all(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
            .expect("writes");
        let mut answer = String::new();
        asking.read_to_string(&mut answer).expect("an answer");
        assert!(answer.ends_with("here"), "{answer}");
    }

    /// Silent peers end long before their time.
    #[test]
    fn silent_peers_make_room() {
        let (_runtime, address) = served(4, Duration::from_secs(3_600));
        let silent: Vec<_> = (0..9)
            .map(|_| {
                let mut silent = std::net::TcpStream::connect(address).expect("connects");
                silent.write_all(b"GET / HTTP/1.1\r\n").expect("writes");
                silent
            })
            .collect();
        for _ in 0..3 {
            ask(address);
        }
        // The oldest connections have ended.
        for mut stream in silent.into_iter().take(5) {
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
        }
    }

    #[test]
    fn a_silent_peer_ends_with_its_time() {
        let (_runtime, address) = served(2, Duration::from_millis(500));
        let mut silent = std::net::TcpStream::connect(address).expect("connects");
        assert_eq!(silent.read(&mut [0]).expect("closed"), 0);
    }
}
