//! Frames from a client, and the messages in them (RFC 6455 §5).

use alloc::vec::Vec;

use super::{CLOSE, CloseCode, PONG, SHORT, grow};
use crate::limits::Limits;

/// The reader that cuts a client's bytes after the handshake into messages.
///
/// It is used as [`super::super::framing::Framer`] is: input is given to [`Frames::next`] again and again
/// until that returns [`Unframed::Incomplete`]. Every frame is masked, so every message is copied once, while
/// the mask is removed. The copy is freed at the next call. Between messages no memory is held.
#[derive(Debug)]
pub struct Frames {
    /// The message under way, unmasked; behind it, the reply to the control frame under way.
    buffer: Vec<u8>,
    /// Bytes of the buffer that belong to the message.
    message_len: u32,
    /// Bytes of the message that are known to be UTF-8.
    checked: u32,
    max_message: u32,
    /// Bytes that are still to come of the frame under way.
    payload_left: u32,
    /// The masking key, turned so that its first byte is for the next byte.
    key: [u8; 4],
    /// The head of the frame under way, as far as it has come.
    head: [u8; MAX_HEAD],
    head_len: u8,
    reading: Reading,
    message: Option<Kind>,
    state: State,
}

/// The longest head: two bytes, eight of length, four of masking key.
const MAX_HEAD: usize = 14;

/// The longest reply to a control frame: its head and its payload.
const MAX_CONTROL: usize = 2 + SHORT;

const MOST_MESSAGE_BYTES: usize = i32::MAX as usize;

/// The meaning of the next bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Head,
    /// The payload of a message, of its last frame or not.
    Data {
        last: bool,
    },
    Control(Control),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Control {
    Close,
    Ping,
    Pong,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Binary,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reading,
    /// The part of the buffer behind the message under way was returned.
    Delivered,
    /// A Close came, or a fault that is answered with one.
    Ended,
}

/// The next item of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Unframed<'a> {
    /// One whole message, text or binary: it is to be treated as a datagram.
    Message(&'a [u8]),
    /// A message of two CRLFs: the response is [`super::KEEP_ALIVE_PONG`] (RFC 7118 §6, RFC 5626 §3.5.1).
    KeepAlivePing,
    /// A message of one CRLF, or an empty one.
    KeepAlivePong,
    /// A Ping: the response is these bytes (RFC 6455 §5.5.2). If several wait, the last reply is enough
    /// (§5.5.3).
    Ping {
        /// The Pong.
        reply: &'a [u8],
    },
    /// A Pong: the reply to a ping of ours, or a sign of life.
    Pong,
    /// The client closes; later bytes are dropped. These bytes are to be sent, unless a Close was sent
    /// already, and then the connection is to end (RFC 6455 §5.5.1, §7.1.1).
    Close {
        /// The client's reason, if it gave one.
        code: Option<u16>,
        /// The Close to send back.
        reply: &'a [u8],
    },
    /// All input is used up; more is needed.
    Incomplete,
    /// The stream cannot be followed further, by the client's fault. A Close with [`FrameFault::close_code`]
    /// is to be sent, unless one was sent already, and the connection to be ended (RFC 6455 §7.1.7). Later
    /// bytes are dropped.
    Error(FrameFault),
}

/// A fault of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameFault {
    /// A frame without a mask, which every frame of a client has (RFC 6455 §5.1).
    Unmasked,
    /// A bit that only an extension could give a meaning (§5.2).
    ReservedBit,
    /// An opcode without a meaning (§5.2).
    ReservedOpcode,
    /// A control frame that is a fragment (§5.5).
    FragmentedControl,
    /// A control frame of more than 125 bytes (§5.5).
    LongControl,
    /// A continuation without a message under way (§5.4).
    UnexpectedContinuation,
    /// A message begins before the one under way has ended (§5.4).
    UnfinishedMessage,
    /// A length that has a shorter form (§5.2).
    LengthForm,
    /// A length of 2^63 or more (§5.2).
    LengthSign,
    /// A Close of one byte, or with a code that may not be sent (§5.5.1, §7.4).
    CloseCode,
    /// Text, or the reason of a Close, that is not UTF-8 (§8.1).
    NotUtf8,
    /// A message of more than [`Limits::header_bytes`] and [`Limits::body_bytes`] together.
    TooLarge,
}

impl FrameFault {
    /// The code of the Close that the client gets.
    pub const fn close_code(self) -> CloseCode {
        match self {
            Self::NotUtf8 => CloseCode::InvalidPayload,
            Self::TooLarge => CloseCode::TooBig,
            Self::Unmasked
            | Self::ReservedBit
            | Self::ReservedOpcode
            | Self::FragmentedControl
            | Self::LongControl
            | Self::UnexpectedContinuation
            | Self::UnfinishedMessage
            | Self::LengthForm
            | Self::LengthSign
            | Self::CloseCode => CloseCode::ProtocolError,
        }
    }
}

/// The kind of the item read, without its bytes.
enum Step {
    Message,
    Control(Control),
    Incomplete,
}

impl Frames {
    /// The reader of a connection after its handshake. A limit above 2 GiB counts as that.
    pub fn new(limits: &Limits) -> Self {
        let max_message = limits
            .header_bytes
            .saturating_add(limits.body_bytes)
            .min(MOST_MESSAGE_BYTES);
        Self {
            buffer: Vec::new(),
            message_len: 0,
            checked: 0,
            max_message: max_message as u32,
            payload_left: 0,
            key: [0; 4],
            head: [0; MAX_HEAD],
            head_len: 0,
            reading: Reading::Head,
            message: None,
            state: State::Reading,
        }
    }

    /// Takes the next item off the front of `input`, which becomes the rest of it. At
    /// [`Unframed::Incomplete`] nothing is left.
    pub fn next<'s>(&'s mut self, input: &mut &[u8]) -> Unframed<'s> {
        match self.state {
            State::Reading => {}
            State::Delivered => {
                self.drop_delivered();
                self.state = State::Reading;
            }
            State::Ended => {
                self.buffer = Vec::new();
                *input = &[];
                return Unframed::Incomplete;
            }
        }
        match self.step(input) {
            Ok(Step::Incomplete) => Unframed::Incomplete,
            Ok(Step::Message) => self.deliver_message(),
            Ok(Step::Control(control)) => self.deliver_control(control, input),
            Err(fault) => self.fail(fault, input),
        }
    }

    /// Bytes of memory held for the message under way.
    pub fn held_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// Whether a frame or a message has begun and not ended: such a connection is not idle but slow.
    pub fn is_mid_message(&self) -> bool {
        self.state != State::Ended
            && (self.head_len > 0 || self.reading != Reading::Head || self.message.is_some())
    }

    /// Whether a Close or an error was reported: no more items come from this stream.
    pub fn is_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Reads on to the end of a message or of a control frame.
    fn step(&mut self, input: &mut &[u8]) -> Result<Step, FrameFault> {
        loop {
            match self.reading {
                Reading::Head => {
                    if !self.read_head(input)? {
                        return Ok(Step::Incomplete);
                    }
                }
                Reading::Data { last } => {
                    // The end of the message is known with its last frame; before that, only the limit.
                    let end = self.message_len + self.payload_left;
                    self.read_payload(input, if last { end as usize } else { self.most_bytes() });
                    self.message_len = self.buffer.len() as u32;
                    if self.message == Some(Kind::Text) {
                        self.check_text()?;
                    }
                    if self.payload_left > 0 {
                        return Ok(Step::Incomplete);
                    }
                    self.reading = Reading::Head;
                    if last {
                        if self.message == Some(Kind::Text) && self.checked != self.message_len {
                            return Err(FrameFault::NotUtf8);
                        }
                        return Ok(Step::Message);
                    }
                }
                Reading::Control(control) => {
                    self.read_payload(input, self.most_bytes());
                    if self.payload_left > 0 {
                        return Ok(Step::Incomplete);
                    }
                    self.reading = Reading::Head;
                    return Ok(Step::Control(control));
                }
            }
        }
    }

    /// Bytes of the largest message and of a control frame within it.
    fn most_bytes(&self) -> usize {
        self.max_message as usize + MAX_CONTROL
    }

    /// Reads the head of a frame, in up to three parts. Each part is checked as soon as it is there, so that
    /// the fault found does not depend on how the bytes are split. Returns whether the whole head has come.
    fn read_head(&mut self, input: &mut &[u8]) -> Result<bool, FrameFault> {
        if !self.fill_head(2, input) {
            return Ok(false);
        }
        let [first, second, ..] = self.head;
        self.check_opening(first, second)?;
        let length_bytes = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        if !self.fill_head(2 + length_bytes, input) {
            return Ok(false);
        }
        let length = self.check_length(first)?;
        if !self.fill_head(2 + length_bytes + 4, input) {
            return Ok(false);
        }
        let key = self.head.get(2 + length_bytes..);
        self.key = key.and_then(|key| key.first_chunk()).copied().unwrap_or_default();
        self.payload_left = length;
        self.head_len = 0;
        self.begin_payload(first);
        Ok(true)
    }

    /// Reads bytes of the head until there are `wanted`. Returns whether there are that many.
    fn fill_head(&mut self, wanted: usize, input: &mut &[u8]) -> bool {
        let have = usize::from(self.head_len);
        let missing = wanted.saturating_sub(have).min(input.len());
        let (bytes, rest) = input.split_at(missing);
        if let Some(place) = self.head.get_mut(have..have + missing) {
            place.copy_from_slice(bytes);
        }
        self.head_len += missing as u8;
        *input = rest;
        have + missing >= wanted
    }

    /// Checks whether such a frame may come now (RFC 6455 §5.1, §5.2, §5.4, §5.5).
    fn check_opening(&self, first: u8, second: u8) -> Result<(), FrameFault> {
        if first & 0x70 != 0 {
            return Err(FrameFault::ReservedBit);
        }
        match (first & 0x0f, self.message) {
            (0, None) => return Err(FrameFault::UnexpectedContinuation),
            (1 | 2, Some(_)) => return Err(FrameFault::UnfinishedMessage),
            (0, Some(_)) | (1 | 2, None) => {}
            (8..=10, _) if first & 0x80 == 0 => return Err(FrameFault::FragmentedControl),
            (8..=10, _) if usize::from(second & 0x7f) > SHORT => return Err(FrameFault::LongControl),
            (8..=10, _) => {}
            _ => return Err(FrameFault::ReservedOpcode),
        }
        if second & 0x80 == 0 {
            return Err(FrameFault::Unmasked);
        }
        Ok(())
    }

    /// The length of the payload (§5.2), if there is room for it.
    fn check_length(&self, first: u8) -> Result<u32, FrameFault> {
        let [_, second, a, b, c, d, e, f, g, h, ..] = self.head;
        let (length, least) = match second & 0x7f {
            126 => (u64::from(u16::from_be_bytes([a, b])), SHORT as u64 + 1),
            127 => (u64::from_be_bytes([a, b, c, d, e, f, g, h]), 1 << 16),
            short => (u64::from(short), 0),
        };
        if length >> 63 != 0 {
            return Err(FrameFault::LengthSign);
        }
        if length < least {
            return Err(FrameFault::LengthForm);
        }
        let room = match first & 0x08 {
            0 => self.max_message - self.message_len,
            _ => SHORT as u32,
        };
        match u32::try_from(length) {
            Ok(length) if length <= room => Ok(length),
            _ => Err(FrameFault::TooLarge),
        }
    }

    /// Begins the payload of a frame with a complete head.
    fn begin_payload(&mut self, first: u8) {
        let control = match first & 0x0f {
            8 => Control::Close,
            9 => Control::Ping,
            10 => Control::Pong,
            opcode => {
                match opcode {
                    1 => self.message = Some(Kind::Text),
                    2 => self.message = Some(Kind::Binary),
                    _ => {}
                }
                self.reading = Reading::Data {
                    last: first & 0x80 != 0,
                };
                return;
            }
        };
        let answer = match control {
            Control::Close => CLOSE,
            Control::Ping | Control::Pong => PONG,
        };
        let needed = self.buffer.len() + 2 + self.payload_left as usize;
        grow(&mut self.buffer, needed, self.max_message as usize + MAX_CONTROL);
        self.buffer.extend_from_slice(&[answer, self.payload_left as u8]);
        self.reading = Reading::Control(control);
    }

    /// Reads the payload as far as it has come, and removes its mask.
    fn read_payload(&mut self, input: &mut &[u8], bound: usize) {
        let (bytes, rest) = input.split_at(input.len().min(self.payload_left as usize));
        *input = rest;
        let start = self.buffer.len();
        grow(&mut self.buffer, start + bytes.len(), bound);
        self.buffer.extend_from_slice(bytes);
        if let Some(fresh) = self.buffer.get_mut(start..) {
            unmask(fresh, self.key);
        }
        self.key.rotate_left(bytes.len() % 4);
        self.payload_left -= bytes.len() as u32;
    }

    /// Checks UTF-8 from where it was checked last; the end of a piece may cut a character.
    fn check_text(&mut self) -> Result<(), FrameFault> {
        let fresh = self.buffer.get(self.checked as usize..).unwrap_or_default();
        self.checked += match core::str::from_utf8(fresh) {
            Ok(text) => text.len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => return Err(FrameFault::NotUtf8),
        } as u32;
        Ok(())
    }

    fn deliver_message(&mut self) -> Unframed<'_> {
        self.state = State::Delivered;
        self.message = None;
        self.message_len = 0;
        self.checked = 0;
        match self.buffer.as_slice() {
            b"" | b"\r\n" => Unframed::KeepAlivePong,
            b"\r\n\r\n" => Unframed::KeepAlivePing,
            message => Unframed::Message(message),
        }
    }

    fn deliver_control(&mut self, control: Control, input: &mut &[u8]) -> Unframed<'_> {
        self.state = State::Delivered;
        let at = self.message_len as usize;
        let code = match control {
            Control::Ping => {
                let reply = self.buffer.get(at..).unwrap_or_default();
                return Unframed::Ping { reply };
            }
            Control::Pong => return Unframed::Pong,
            Control::Close => match close_code(self.buffer.get(at + 2..).unwrap_or_default()) {
                Ok(code) => code,
                Err(fault) => return self.fail(fault, input),
            },
        };
        // The code is echoed (§5.5.1), the reason is not: it is for logs, and ours has none.
        self.state = State::Ended;
        *input = &[];
        let payload = if code.is_some() { 2 } else { 0 };
        self.buffer.truncate(at + 2 + payload);
        if let Some(length) = self.buffer.get_mut(at + 1) {
            *length = payload as u8;
        }
        let reply = self.buffer.get(at..).unwrap_or_default();
        Unframed::Close { code, reply }
    }

    /// Frees the part that was returned, and keeps the message within which it came.
    fn drop_delivered(&mut self) {
        match self.message_len {
            0 => self.buffer = Vec::new(),
            length => self.buffer.truncate(length as usize),
        }
    }

    fn fail<'a>(&mut self, fault: FrameFault, input: &mut &[u8]) -> Unframed<'a> {
        self.state = State::Ended;
        self.buffer = Vec::new();
        *input = &[];
        Unframed::Error(fault)
    }
}

/// Reads the payload of a Close: nothing, or a code and a reason in UTF-8 (RFC 6455 §5.5.1, §7.4).
fn close_code(payload: &[u8]) -> Result<Option<u16>, FrameFault> {
    let [high, low, reason @ ..] = payload else {
        return match payload {
            [] => Ok(None),
            _ => Err(FrameFault::CloseCode),
        };
    };
    let code = u16::from_be_bytes([*high, *low]);
    // These are the codes defined for use in a Close (§7.4.1 and its registry), and those for libraries and
    // applications (§7.4.2). 1005, 1006 and 1015 stand for codes that were never sent.
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(FrameFault::CloseCode);
    }
    match core::str::from_utf8(reason) {
        Ok(_) => Ok(Some(code)),
        Err(_) => Err(FrameFault::NotUtf8),
    }
}

/// Removes the mask (§5.3), eight bytes at a time.
fn unmask(bytes: &mut [u8], key: [u8; 4]) {
    let [a, b, c, d] = key;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = bytes.as_chunks_mut();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(key.iter().cycle()) {
        *byte ^= key;
    }
}

#[cfg(test)]
mod tests;
