//! Request methods.

/// A request method; case matters (RFC 3261 §7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the variants are the names")]
pub enum Method<'a> {
    Invite,
    Ack,
    Bye,
    Cancel,
    Register,
    Options,
    Prack,
    Subscribe,
    Notify,
    Publish,
    Info,
    Refer,
    Message,
    Update,
    /// Any other token.
    Other(&'a [u8]),
}

impl<'a> Method<'a> {
    /// Reads a method token.
    pub fn parse(token: &'a [u8]) -> Self {
        match token {
            b"INVITE" => Self::Invite,
            b"ACK" => Self::Ack,
            b"BYE" => Self::Bye,
            b"CANCEL" => Self::Cancel,
            b"REGISTER" => Self::Register,
            b"OPTIONS" => Self::Options,
            b"PRACK" => Self::Prack,
            b"SUBSCRIBE" => Self::Subscribe,
            b"NOTIFY" => Self::Notify,
            b"PUBLISH" => Self::Publish,
            b"INFO" => Self::Info,
            b"REFER" => Self::Refer,
            b"MESSAGE" => Self::Message,
            b"UPDATE" => Self::Update,
            other => Self::Other(other),
        }
    }

    /// The method as written.
    pub const fn as_bytes(&self) -> &'a [u8] {
        match self {
            Self::Invite => b"INVITE",
            Self::Ack => b"ACK",
            Self::Bye => b"BYE",
            Self::Cancel => b"CANCEL",
            Self::Register => b"REGISTER",
            Self::Options => b"OPTIONS",
            Self::Prack => b"PRACK",
            Self::Subscribe => b"SUBSCRIBE",
            Self::Notify => b"NOTIFY",
            Self::Publish => b"PUBLISH",
            Self::Info => b"INFO",
            Self::Refer => b"REFER",
            Self::Message => b"MESSAGE",
            Self::Update => b"UPDATE",
            Self::Other(text) => text,
        }
    }
}
