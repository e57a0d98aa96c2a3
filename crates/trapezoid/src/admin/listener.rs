//! Accepts HTTP connections within bounds: so many at once, each for so long. More wait in the
//! kernel; a peer that says nothing, or stays for ever, makes room for them.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep_until};

/// Connections at once.
const CONNECTIONS: usize = 64;
/// Time of one; a client that asks again and again opens another.
const LIFETIME: Duration = Duration::from_secs(60);
/// Pause after an error of accepting, such as having no file descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// The admin address.
pub(super) struct Bounded {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    lifetime: Duration,
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
        }
    }
}

impl axum::serve::Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            // The semaphore is never closed.
            let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let until = Box::pin(sleep_until(Instant::now() + self.lifetime));
                    return (
                        Connection {
                            stream,
                            until,
                            _permit: permit,
                        },
                        peer,
                    );
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an HTTP connection");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends in time and then gives its place back.
pub(super) struct Connection {
    stream: TcpStream,
    until: Pin<Box<Sleep>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// Whether its time is over; if not, the task is woken when it is.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
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

    #[test]
    fn a_silent_peer_makes_room_in_the_end() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("binds");
        let address = listener.local_addr().expect("an address");
        let router = axum::Router::new().route("/", axum::routing::get(|| async { "here" }));
        let bounded = Bounded::with(listener, 1, Duration::from_millis(1_500));
        runtime.spawn(async move { axum::serve(bounded, router).await });

        let mut silent = std::net::TcpStream::connect(address).expect("connects");
        let mut asking = std::net::TcpStream::connect(address).expect("waits in the kernel");
        asking
            .write_all(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
            .expect("writes");
        let mut answer = String::new();
        asking.read_to_string(&mut answer).expect("an answer");
        assert!(answer.ends_with("here"), "{answer}");
        assert_eq!(silent.read(&mut [0]).expect("closed"), 0);
    }
}
