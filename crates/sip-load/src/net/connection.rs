//! One connection: it turns bytes into whole messages, and messages into bytes.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use sip_core::limits::Limits;
use sip_core::transport::framing::{Framed, Framer};
use sip_net::epoll::{Epoll, Interest};
use sip_net::tls::TlsSession;

use super::End;
use super::streams::{Dial, Inbox};
use super::websocket::{Came, Client};
use crate::Micros;
use crate::stats::Cause;

/// Most bytes that stay at the front of the output buffer after they are written.
const WRITTEN: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Connecting,
    Securing,
    Upgrading,
    Open,
}

/// The end of a connection.
#[derive(Debug)]
pub(super) struct Ended {
    /// Cause under which its calls fail.
    pub(super) cause: Cause,
    /// Reason for the report, in words.
    pub(super) why: String,
}

pub(super) struct Connection {
    socket: TcpStream,
    pub(super) end: End,
    pub(super) phase: Phase,
    pub(super) began: Micros,
    tls: Option<Box<TlsSession>>,
    websocket: Option<Box<Client>>,
    framer: Framer,
    /// Messages that wait until the connection is open.
    early: Vec<Box<[u8]>>,
    early_len: usize,
    /// Bytes for the peer. The first `written` bytes have gone to the kernel.
    out: Vec<u8>,
    written: usize,
    interest: Interest,
}

impl Connection {
    /// A connection of the callers that is being made.
    pub(super) fn calling(
        socket: TcpStream,
        websocket: Option<Box<Client>>,
        now: Micros,
        limits: &Limits,
    ) -> Self {
        Self {
            socket,
            end: End::Callers,
            phase: Phase::Connecting,
            began: now,
            tls: None,
            websocket,
            framer: Framer::new(limits),
            early: Vec::new(),
            early_len: 0,
            out: Vec::new(),
            written: 0,
            interest: Interest::Write,
        }
    }

    /// A connection that the called end accepted.
    pub(super) fn called(
        socket: TcpStream,
        tls: Option<Box<TlsSession>>,
        now: Micros,
        limits: &Limits,
    ) -> Self {
        let phase = if tls.is_some() {
            Phase::Securing
        } else {
            Phase::Open
        };
        Self {
            end: End::Called,
            phase,
            tls,
            interest: Interest::Read,
            ..Self::calling(socket, None, now, limits)
        }
    }

    /// Number of bytes that wait for the peer.
    pub(super) const fn waiting(&self) -> usize {
        self.out.len() - self.written + self.early_len
    }

    /// Handles the result of connecting the socket: begins TLS or the WebSocket if the plan has them.
    pub(super) fn connected(&mut self, dial: Option<&Dial>) -> Result<(), Ended> {
        if let Ok(Some(error)) | Err(error) = self.socket.take_error() {
            return Err(self.ended(error));
        }
        // No error is stored, and the socket is not connected all the same.
        if let Err(error) = self.socket.peer_addr() {
            return Err(self.ended(error));
        }
        match dial.and_then(|d| d.tls.as_ref()) {
            Some((tls, name)) => {
                let session = tls.connect(name, &mut self.out);
                self.tls = Some(Box::new(session.map_err(|error| self.ended(error))?));
                self.phase = Phase::Securing;
            }
            None => self.secured(dial),
        }
        Ok(())
    }

    /// Begins the WebSocket's handshake, or opens the connection, when TLS is done or not used.
    fn secured(&mut self, dial: Option<&Dial>) {
        let wanted = dial.and_then(|d| d.websocket.as_ref());
        match (&self.websocket, wanted) {
            (Some(client), Some((path, host))) => {
                let mut request = Vec::new();
                client.write_request(&mut request, host, path);
                self.phase = Phase::Upgrading;
                self.write_bytes(&request);
            }
            _ => self.phase = Phase::Open,
        }
    }

    /// Sends a message; if the connection is not open yet, the message waits.
    pub(super) fn say(&mut self, message: &[u8]) {
        if self.phase == Phase::Open {
            self.write_message(message);
        } else {
            self.early_len += message.len();
            self.early.push(message.into());
        }
    }

    /// Sends the waiting messages, once the connection is open.
    pub(super) fn say_what_waited(&mut self) {
        self.early_len = 0;
        for message in std::mem::take(&mut self.early) {
            self.write_message(&message);
        }
    }

    fn write_bytes(&mut self, bytes: &[u8]) {
        match &mut self.tls {
            // A session that cannot write any more has ended: the next read reports the end.
            Some(tls) => drop(tls.write(bytes, &mut self.out)),
            None => self.out.extend_from_slice(bytes),
        }
    }

    fn write_message(&mut self, message: &[u8]) {
        match &mut self.websocket {
            Some(client) => {
                let mut frame = Vec::with_capacity(message.len() + 14);
                client.write_frame(&mut frame, message);
                self.write_bytes(&frame);
            }
            None => self.write_bytes(message),
        }
    }

    /// Reads once, and adds whole messages to `inbox`. If bytes are left, epoll reports the socket again,
    /// after the calls that must begin meanwhile.
    pub(super) fn read(
        &mut self,
        id: u32,
        scratch: &mut [u8],
        plain: &mut Vec<u8>,
        dial: Option<&Dial>,
        inbox: &mut Inbox,
    ) -> Result<(), Ended> {
        let count = match self.socket.read(scratch) {
            Ok(0) => return Err(self.ended("closed by the peer")),
            Ok(count) => count,
            // Epoll reports the socket again while there are bytes to read.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(());
            }
            Err(error) => return Err(self.ended(error)),
        };
        let bytes = scratch.get_mut(..count).unwrap_or_default();
        if self.tls.is_none() {
            return self.take(id, bytes, inbox);
        }
        plain.clear();
        let decrypted = self.decrypt(bytes, plain, dial);
        self.take(id, plain, inbox)?;
        decrypted
    }

    /// The end of this connection for reason `why`. Its cause depends on whether the connection was open.
    pub(super) fn ended(&self, why: impl std::fmt::Display) -> Ended {
        let cause = if self.phase == Phase::Open {
            Cause::ConnectionLost
        } else {
            Cause::ConnectFailed
        };
        let why = why.to_string();
        Ended { cause, why }
    }

    fn decrypt(&mut self, bytes: &mut [u8], plain: &mut Vec<u8>, dial: Option<&Dial>) -> Result<(), Ended> {
        let Some(tls) = &mut self.tls else {
            return Ok(());
        };
        let fed = tls.feed(bytes, &mut self.out, |data| plain.extend_from_slice(data));
        let fed = fed.map_err(|error| self.ended(error))?;
        if fed.established {
            match self.end {
                End::Callers => self.secured(dial),
                End::Called => self.phase = Phase::Open,
            }
        }
        if fed.peer_closed {
            return Err(self.ended("closed by the peer"));
        }
        Ok(())
    }

    /// Takes plain bytes, as they are inside TLS.
    fn take(&mut self, id: u32, bytes: &[u8], inbox: &mut Inbox) -> Result<(), Ended> {
        if self.websocket.is_some() {
            return self.unframe(id, bytes, inbox);
        }
        let mut input = bytes;
        loop {
            match self.framer.next(&mut input) {
                Framed::Message(message) => inbox.push(self.end, id, message),
                Framed::KeepAlivePing => self.write_bytes(b"\r\n"),
                Framed::KeepAlivePong => {}
                Framed::Incomplete => return Ok(()),
                Framed::Error(error) => {
                    return Err(Ended {
                        cause: Cause::BadResponse,
                        why: error.fault.reason().to_owned(),
                    });
                }
            }
        }
    }

    fn unframe(&mut self, id: u32, bytes: &[u8], inbox: &mut Inbox) -> Result<(), Ended> {
        if let Some(client) = &mut self.websocket {
            client.feed(bytes);
        }
        loop {
            let Some(client) = &mut self.websocket else {
                return Ok(());
            };
            match client.next() {
                Came::Nothing => return Ok(()),
                Came::Agreed => self.phase = Phase::Open,
                Came::Message => inbox.push(self.end, id, client.message()),
                Came::Pong(pong) => self.write_bytes(&pong),
                Came::Closed => return Err(self.ended("the WebSocket was refused or closed")),
            }
        }
    }

    /// Writes as much as the kernel accepts.
    pub(super) fn flush(&mut self, epoll: &Epoll, token: u64) -> io::Result<()> {
        if self.phase == Phase::Connecting {
            return Ok(());
        }
        while let Some(rest) = self.out.get(self.written..).filter(|rest| !rest.is_empty()) {
            match self.socket.write(rest) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
        } else if self.written > WRITTEN {
            self.out.drain(..self.written);
            self.written = 0;
        }
        let wanted = if self.out.is_empty() {
            Interest::Read
        } else {
            Interest::ReadWrite
        };
        if wanted != self.interest {
            epoll.modify(&self.socket, token, wanted)?;
            self.interest = wanted;
        }
        Ok(())
    }

    /// Writes the rest and the end of TLS, as far as the kernel accepts them. The socket is closed in either
    /// case.
    pub(super) fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.close(&mut self.out);
        }
        let rest = self.out.get(self.written..).unwrap_or_default();
        let _ = self.socket.write(rest);
    }
}
