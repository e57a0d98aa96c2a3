//! One TLS connection as a value that is fed with bytes.
//!
//! No call blocks, and nothing is queued. Bytes to be sent go into the caller's buffer at once, and decrypted
//! data to the caller's function. Of received bytes only an incomplete record (during the handshake, an
//! incomplete message) is kept, up to a bound.
//!
//! A session with nothing under way holds no buffer at all: records are decrypted in the caller's memory. For
//! this reason the library's own buffered interface is not used: it keeps 4 KiB for reading in every
//! connection that has ever received something.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::{ClientConnectionData, ClientSessionStore, UnbufferedClientConnection};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::time_provider::TimeProvider;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic,
};
use rustls::{
    CipherSuite, ClientConfig, CommonState, HandshakeKind, NamedGroup, ProtocolVersion, ServerConfig,
};

use super::error::TlsError;
use super::files::validity;
use super::names::{SipIdentities, speaks_for};

/// Bytes of an incomplete record or handshake message that a session keeps by default: enough for the largest
/// record and for the certificates of a usual peer.
pub const DEFAULT_BUFFER_LIMIT: usize = 32 << 10;
/// The largest record on the wire: header, payload, and the most that encryption may add (RFC 5246 §6.2.3).
const RECORD_MAX: usize = 5 + (16 << 10) + 2048;
const HEADER: usize = 5;
/// Most bytes that a record adds to its payload: header, explicit nonce and tag of TLS 1.2.
const RECORD_OVERHEAD: usize = HEADER + 8 + 16;
const FRAGMENT: usize = 16 << 10;

/// The result of feeding bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fed {
    /// Bytes of data given to the caller's function.
    pub plaintext: usize,
    /// Whether these bytes completed the handshake.
    pub established: bool,
    /// Whether the peer has ended its direction by `close_notify`.
    pub peer_closed: bool,
}

/// One side of a TLS connection, server's or client's.
pub struct TlsSession {
    side: Side,
    /// An incomplete record, or message of the handshake. Takes no memory while empty.
    pending: Vec<u8>,
    limit: u32,
    established: bool,
    peer_closed: bool,
    phase: Phase,
    /// `Some` until the handshake is done.
    resumed: Option<Box<Resumed>>,
}

/// The means to check a resumed session. The library does not check the server's certificate again, and would
/// continue with an expired one as long as tickets last.
pub(super) struct Resumed {
    pub(super) sessions: Arc<dyn ClientSessionStore>,
    /// The server of the sessions.
    pub(super) name: ServerName<'static>,
    pub(super) clock: Arc<dyn TimeProvider>,
}

impl Resumed {
    /// Whether the session may continue with this certificate. If not, all of the peer's sessions are
    /// forgotten, so that the next handshake is a full one.
    fn holds(&self, certificate: Option<&CertificateDer<'_>>) -> bool {
        let until = certificate.and_then(validity).map(|(_, until)| until);
        let now = self.clock.current_time().map(|now| now.as_secs());
        let holds = until.zip(now).is_some_and(|(until, now)| now <= until);
        if !holds {
            self.sessions.remove_tls12_session(&self.name);
            while self.sessions.take_tls13_ticket(&self.name).is_some() {}
        }
        holds
    }
}

enum Side {
    Server(Box<UnbufferedServerConnection>),
    Client(Box<UnbufferedClientConnection>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// We have sent `close_notify`.
    Closed,
    Failed,
}

/// The request of a state of the library.
enum Step {
    /// Call again.
    Again,
    /// The peer has ended its direction; call again.
    PeerClosed,
    /// More bytes are needed.
    Wait,
}

/// The action to take once the library permits writing.
enum Order<'a> {
    Nothing,
    Write(&'a [u8]),
    Close,
}

impl TlsSession {
    /// The server's side of an accepted connection.
    ///
    /// # Errors
    /// The configuration is wrong, never the peer.
    pub fn server(config: Arc<ServerConfig>) -> Result<Self, TlsError> {
        let connection = UnbufferedServerConnection::new(config)?;
        Ok(Self::new(Side::Server(Box::new(connection))))
    }

    /// The client's side of a connection. The first bytes to send, the `ClientHello`, are appended to `out`.
    ///
    /// # Errors
    /// The configuration is wrong, or there is no randomness.
    pub fn client(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        out: &mut Vec<u8>,
    ) -> Result<Self, TlsError> {
        let connection = UnbufferedClientConnection::new(config, name)?;
        let mut session = Self::new(Side::Client(Box::new(connection)));
        session.feed(&mut [], out, |_| {})?;
        Ok(session)
    }

    fn new(side: Side) -> Self {
        Self {
            side,
            pending: Vec::new(),
            limit: DEFAULT_BUFFER_LIMIT as u32,
            established: false,
            peer_closed: false,
            phase: Phase::Open,
            resumed: None,
        }
    }

    /// Makes the session fail if it is resumed with a certificate that has expired.
    pub(super) fn check_resumption(&mut self, resumed: Resumed) {
        self.resumed = Some(Box::new(resumed));
    }

    /// Sets the most bytes of an incomplete record or handshake message that are kept. Beyond the bound the
    /// session fails. The bound is never less than one record.
    pub fn set_buffer_limit(&mut self, bytes: usize) {
        self.limit = u32::try_from(bytes.max(RECORD_MAX)).unwrap_or(u32::MAX);
    }

    /// Handles all of `input`, bytes received from the peer, and overwrites them. Data goes to `data`, piece
    /// by piece. Bytes to be sent in reply are appended to `out`.
    ///
    /// The cuts of the stream into calls make no difference. After the peer's `close_notify`, all further
    /// bytes are ignored (RFC 8446 §6.1).
    ///
    /// # Errors
    /// The session has failed; `out` ends with the alert for the peer. Data given before the fault is good.
    pub fn feed(
        &mut self,
        mut input: &mut [u8],
        out: &mut Vec<u8>,
        mut data: impl FnMut(&[u8]),
    ) -> Result<Fed, TlsError> {
        if self.phase == Phase::Failed {
            return Err(TlsError::Ended);
        }
        let mut fed = Fed::default();
        // Kept bytes are completed first, by no more than they lack, as the rest need not be copied.
        while !self.pending.is_empty() && !input.is_empty() {
            let take = lacking(&self.pending).map_or(input.len(), |lacking| lacking.min(input.len()));
            let (head, tail) = std::mem::take(&mut input).split_at_mut(take);
            input = tail;
            let mut pending = std::mem::take(&mut self.pending);
            pending.extend_from_slice(head);
            let used = self.advance(&mut pending, out, &mut data, &mut fed)?;
            if used < pending.len() {
                pending.drain(..used);
                self.pending = pending;
                self.check_pending(out)?;
            }
        }
        if self.pending.is_empty() {
            let used = self.advance(input, out, &mut data, &mut fed)?;
            if let Some(rest) = input
                .get(used..)
                .filter(|rest| !rest.is_empty() && !self.peer_closed)
            {
                self.pending = rest.to_vec();
                self.check_pending(out)?;
            }
        }
        if self.peer_closed {
            self.pending = Vec::new();
        }
        Ok(fed)
    }

    fn check_pending(&mut self, out: &mut Vec<u8>) -> Result<(), TlsError> {
        if self.pending.len() <= self.limit as usize {
            return Ok(());
        }
        // The library offers no way to send `record_overflow`; closing the connection suffices.
        self.fail(out);
        Err(TlsError::TooLarge(self.limit as usize))
    }

    /// Lets the library work on `input`. Returns the number of bytes that it is done with.
    fn advance(
        &mut self,
        input: &mut [u8],
        out: &mut Vec<u8>,
        data: &mut dyn FnMut(&[u8]),
        fed: &mut Fed,
    ) -> Result<usize, TlsError> {
        let mut used = 0;
        loop {
            let rest = input.get_mut(used..).unwrap_or_default();
            let (discard, step) = self
                .side
                .step(rest, out, data, &mut fed.plaintext, Order::Nothing);
            used += discard;
            match step {
                Ok(Step::Again) => {}
                Ok(Step::PeerClosed) => {
                    self.peer_closed = true;
                    fed.peer_closed = true;
                }
                Ok(Step::Wait) => break,
                Err(error) => {
                    self.fail(out);
                    return Err(error);
                }
            }
        }
        if !self.established && !self.side.common().is_handshaking() {
            let check = self.resumed.take().filter(|_| self.resumed() == Some(true));
            if check.is_some_and(|check| !check.holds(self.peer_certificates().first())) {
                self.fail(out);
                return Err(TlsError::ResumedExpired);
            }
            self.established = true;
            fed.established = true;
        }
        Ok(used)
    }

    /// Appends the alert to `out`, if there is one, and ends the session as failed.
    fn fail(&mut self, out: &mut Vec<u8>) {
        self.phase = Phase::Failed;
        self.pending = Vec::new();
        // While the library has something to send it does not look at its input, so an empty input does no
        // harm.
        while self.side.common().wants_write() {
            let mut none = 0;
            let (_, step) = self
                .side
                .step(&mut [], out, &mut |_| {}, &mut none, Order::Nothing);
            if !matches!(step, Ok(Step::Again)) {
                break;
            }
        }
    }

    /// Encrypts `plaintext` and appends the records to `out`.
    ///
    /// # Errors
    /// - The handshake is not done.
    /// - The session has ended.
    /// - The keys are used up (TLS 1.2 after 2^24 records or more); `out` then ends with `close_notify`.
    pub fn write(&mut self, plaintext: &[u8], out: &mut Vec<u8>) -> Result<(), TlsError> {
        if self.phase != Phase::Open {
            return Err(TlsError::Ended);
        }
        if !self.established {
            return Err(TlsError::NotEstablished);
        }
        self.order(&Order::Write(plaintext), out)
    }

    /// Appends `close_notify` to `out`, after which we send no more. Does nothing if it was sent already, or
    /// if the handshake is not done.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        if self.phase != Phase::Open {
            return;
        }
        if self.established {
            // It is too late to report an error.
            let _ = self.order(&Order::Close, out);
        }
        if self.phase == Phase::Open {
            self.phase = Phase::Closed;
        }
    }

    fn order(&mut self, order: &Order<'_>, out: &mut Vec<u8>) -> Result<(), TlsError> {
        let mut pending = std::mem::take(&mut self.pending);
        let result = loop {
            let order = match order {
                Order::Nothing => Order::Nothing,
                Order::Write(plaintext) => Order::Write(plaintext),
                Order::Close => Order::Close,
            };
            let mut none = 0;
            // Kept bytes are incomplete, so they yield no data here.
            let (discard, step) = self.side.step(&mut pending, out, &mut |_| {}, &mut none, order);
            pending.drain(..discard.min(pending.len()));
            match step {
                Ok(Step::Again | Step::PeerClosed) => {}
                Ok(Step::Wait) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.pending = pending;
        if result.is_err() {
            self.fail(out);
        }
        result
    }

    /// Whether the handshake is under way, so that no data goes either way.
    pub fn is_handshaking(&self) -> bool {
        !self.established && self.phase != Phase::Failed
    }

    /// Whether the session has failed, or we have closed it.
    pub fn has_ended(&self) -> bool {
        self.phase != Phase::Open
    }

    /// Whether the peer has ended its direction by `close_notify`. A connection that ends without it was cut.
    pub fn peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// Whether this session resumes an earlier one; `None` during the handshake.
    pub fn resumed(&self) -> Option<bool> {
        let kind = self.side.common().handshake_kind()?;
        Some(matches!(kind, HandshakeKind::Resumed))
    }

    /// Version, cipher suite and key-exchange group, as far as they are agreed.
    pub fn agreed(&self) -> Agreed {
        let common = self.side.common();
        Agreed {
            version: common.protocol_version(),
            suite: common.negotiated_cipher_suite().map(|suite| suite.suite()),
            group: common.negotiated_key_exchange_group().map(|group| group.name()),
        }
    }

    /// The peer's certificate and its chain, in this order. Empty if the peer presented none.
    pub fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        self.side.common().peer_certificates().unwrap_or_default()
    }

    /// The SIP domains that the peer has proved (RFC 5922 §7.1). Empty during the handshake, and if the peer
    /// presented no certificate.
    pub fn peer_identities(&self) -> SipIdentities {
        if !self.established {
            return SipIdentities::default();
        }
        self.peer_certificates()
            .first()
            .map(SipIdentities::of)
            .unwrap_or_default()
    }

    /// Whether the peer's certificate names this address.
    pub fn peer_speaks_for(&self, address: IpAddr) -> bool {
        let certificate = self.peer_certificates().first();
        self.established
            && certificate.is_some_and(|certificate| speaks_for(certificate, &ServerName::from(address)))
    }

    /// Bytes kept of an incomplete record or message.
    pub fn buffered(&self) -> usize {
        self.pending.capacity()
    }
}

/// The parameters that a handshake has agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// TLS 1.2 or 1.3.
    pub version: Option<ProtocolVersion>,
    /// The cipher suite.
    pub suite: Option<CipherSuite>,
    /// The group of the key exchange; `None` in a resumed session of TLS 1.2.
    pub group: Option<NamedGroup>,
}

/// Bytes that the record at the start of `pending` lacks. `None` if it lacks nothing, being part of a message
/// of several records.
fn lacking(pending: &[u8]) -> Option<usize> {
    let total = match pending {
        [_, _, _, high, low, ..] => HEADER + usize::from(u16::from_be_bytes([*high, *low])),
        _ => HEADER,
    };
    total.checked_sub(pending.len()).filter(|lacking| *lacking > 0)
}

impl Side {
    fn common(&self) -> &CommonState {
        match self {
            Self::Server(connection) => connection,
            Self::Client(connection) => connection,
        }
    }

    fn step(
        &mut self,
        input: &mut [u8],
        out: &mut Vec<u8>,
        data: &mut dyn FnMut(&[u8]),
        count: &mut usize,
        order: Order<'_>,
    ) -> (usize, Result<Step, TlsError>) {
        match self {
            Self::Server(connection) => {
                let status: UnbufferedStatus<'_, '_, ServerConnectionData> =
                    connection.process_tls_records(input);
                handle(status, out, data, count, order)
            }
            Self::Client(connection) => {
                let status: UnbufferedStatus<'_, '_, ClientConnectionData> =
                    connection.process_tls_records(input);
                handle(status, out, data, count, order)
            }
        }
    }
}

/// Does what the library's state asks for. Returns the number of input bytes that are done with.
fn handle<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    out: &mut Vec<u8>,
    data: &mut dyn FnMut(&[u8]),
    count: &mut usize,
    order: Order<'_>,
) -> (usize, Result<Step, TlsError>) {
    let mut discard = status.discard;
    let state = match status.state {
        Ok(state) => state,
        Err(error) => return (discard, Err(error.into())),
    };
    let step = match state {
        ConnectionState::ReadTraffic(mut traffic) => loop {
            match traffic.next_record() {
                Some(Ok(record)) => {
                    discard += record.discard;
                    *count += record.payload.len();
                    if !record.payload.is_empty() {
                        data(record.payload);
                    }
                }
                Some(Err(error)) => break Err(error.into()),
                None => break Ok(Step::Again),
            }
        },
        ConnectionState::EncodeTlsData(state) => encode(state, out).map(|()| Step::Again),
        ConnectionState::TransmitTlsData(state) => {
            state.done();
            Ok(Step::Again)
        }
        ConnectionState::PeerClosed => Ok(Step::PeerClosed),
        ConnectionState::WriteTraffic(mut traffic) => {
            carry_out(&mut traffic, order, out).map(|()| Step::Wait)
        }
        ConnectionState::BlockedHandshake | ConnectionState::Closed => Ok(Step::Wait),
        // Early data is off at every listener.
        ConnectionState::ReadEarlyData(_) => Err(TlsError::Protocol("early data".to_owned())),
        // The library has no more states, but may get more.
        _ => Err(TlsError::Internal("unexpected state".to_owned())),
    };
    (discard, step)
}

/// Appends a record of the handshake.
fn encode<Data>(mut state: EncodeTlsData<'_, Data>, out: &mut Vec<u8>) -> Result<(), TlsError> {
    let start = out.len();
    // If asked without room, the library returns the size that it needs.
    let needed = match state.encode(&mut []) {
        Ok(_) => return Ok(()),
        Err(EncodeError::InsufficientSize(size)) => size.required_size,
        Err(error @ EncodeError::AlreadyEncoded) => return Err(TlsError::Internal(error.to_string())),
    };
    out.resize(start + needed, 0);
    match state.encode(out.get_mut(start..).unwrap_or_default()) {
        Ok(_) => Ok(()),
        Err(error) => Err(TlsError::Internal(error.to_string())),
    }
}

fn carry_out<Data>(
    traffic: &mut WriteTraffic<'_, Data>,
    order: Order<'_>,
    out: &mut Vec<u8>,
) -> Result<(), TlsError> {
    let start = out.len();
    let mut room = match order {
        Order::Nothing => return Ok(()),
        Order::Write(plaintext) => plaintext.len() + plaintext.len().div_ceil(FRAGMENT) * RECORD_OVERHEAD,
        Order::Close => RECORD_OVERHEAD + 2,
    };
    loop {
        out.resize(start + room, 0);
        let free = out.get_mut(start..).unwrap_or_default();
        let written = match order {
            Order::Nothing => Ok(0),
            Order::Write(plaintext) => traffic.encrypt(plaintext, free),
            Order::Close => traffic.queue_close_notify(free),
        };
        match written {
            Ok(written) => {
                out.truncate(start + written);
                return Ok(());
            }
            // A key update goes before the data.
            Err(EncryptError::InsufficientSize(size)) if size.required_size > room => {
                room = size.required_size;
            }
            Err(error) => {
                out.truncate(start);
                return Err(TlsError::Internal(error.to_string()));
            }
        }
    }
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            Side::Server(_) => "server",
            Side::Client(_) => "client",
        };
        f.debug_struct("TlsSession")
            .field("side", &side)
            .field("phase", &self.phase)
            .field("established", &self.established)
            .field("pending", &self.pending.len())
            .finish_non_exhaustive()
    }
}
