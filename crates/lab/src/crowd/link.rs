//! A connection with its socket: blocking with time-outs, or asked what is there.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;

use super::speech::Speech;
use super::target::Target;

/// What a client waits for at most.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) socket: TcpStream,
    pub(crate) speech: Speech,
    pub(crate) local: SocketAddr,
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Link {
    /// Connects and shakes hands.
    pub(crate) fn open(
        target: &Target,
        number: usize,
        config: Option<&Arc<ClientConfig>>,
    ) -> io::Result<Self> {
        let mut link = Self::connect(target, number, config)?;
        link.shake_hands()?;
        Ok(link)
    }

    /// Connects, no more.
    pub(crate) fn connect(
        target: &Target,
        number: usize,
        config: Option<&Arc<ClientConfig>>,
    ) -> io::Result<Self> {
        let socket = dial(target, number, None)?;
        Ok(Self {
            local: socket.local_addr()?,
            socket,
            speech: Speech::new(target, config)?,
        })
    }

    /// The rest of what has to be done before anything can be said.
    pub(crate) fn shake_hands(&mut self) -> io::Result<()> {
        self.flush()?;
        while !self.speech.is_open() {
            self.step()?;
        }
        Ok(())
    }

    pub(crate) fn say(&mut self, message: &[u8]) -> io::Result<()> {
        self.speech.say(message)?;
        self.flush()
    }

    /// Waits for a response; its status.
    pub(crate) fn hear(&mut self) -> io::Result<u16> {
        loop {
            if let Some(status) = self.speech.heard() {
                return Ok(status);
            }
            self.step()?;
        }
    }

    /// Sends what is to be sent.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if !self.speech.out.is_empty() {
            self.socket.write_all(&self.speech.out)?;
            self.speech.out = Vec::new();
        }
        Ok(())
    }

    /// Waits for something, takes it and answers.
    pub(crate) fn step(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 << 10];
        let count = loop {
            match self.socket.read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
                result => break result?,
            }
        };
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.speech.feed(buffer.get_mut(..count).unwrap_or_default())?;
        self.flush()
    }

    /// Says that it ends, and waits for the server's end.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        self.speech.close()?;
        self.flush()?;
        self.socket.shutdown(std::net::Shutdown::Write)?;
        loop {
            match self.step() {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Of a socket that does not block: takes what is there. False: the server has ended it.
    pub(crate) fn pump(&mut self) -> bool {
        match self.step() {
            Ok(()) => !self.speech.is_closed(),
            Err(error) => error.kind() == ErrorKind::TimedOut,
        }
    }
}

/// A blocking socket that stands. `receive`: the size of its receive buffer.
pub(crate) fn dial(target: &Target, number: usize, receive: Option<usize>) -> io::Result<TcpStream> {
    let socket = target.socket(number)?;
    if let Some(bytes) = receive {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.connect_timeout(&target.address.into(), PATIENCE)?;
    let socket = TcpStream::from(socket);
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}
