//! What is to be played.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use sip_core::transport::Transport;

use crate::schedule::Offered;

/// What a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// INVITE, 180, 200, ACK; after the hold time BYE, 200.
    Call,
    /// INVITE that a 3xx answers, ACK.
    Redirect,
    /// REGISTER of one user after the other.
    Register,
    /// OPTIONS to the server.
    Options,
    /// MESSAGE from one user to another.
    Message,
}

impl Kind {
    /// As on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Redirect => "redirect",
            Self::Register => "register",
            Self::Options => "options",
            Self::Message => "message",
        }
    }

    /// Whether it begins with an INVITE.
    pub(crate) const fn is_invite(self) -> bool {
        matches!(self, Self::Call | Self::Redirect)
    }

    /// The method that it begins with.
    pub(crate) const fn method(self) -> &'static [u8] {
        match self {
            Self::Call | Self::Redirect => b"INVITE",
            Self::Register => b"REGISTER",
            Self::Options => b"OPTIONS",
            Self::Message => b"MESSAGE",
        }
    }
}

/// Callers and called users: user `i` calls user `i + 1`, the last one the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Users {
    /// `user00000`, `user00001`, …: a prefix and at least five digits.
    Numbered {
        /// Before the number.
        prefix: String,
        /// How many; at least 1.
        count: u32,
        /// The password of each, where `{user}` stands for the name and `{n}` for its digits.
        password: String,
    },
    /// Name and password of each; at least one.
    Listed(Vec<(String, String)>),
}

impl Users {
    /// How many.
    pub fn count(&self) -> u32 {
        match self {
            Self::Numbered { count, .. } => *count,
            Self::Listed(list) => u32::try_from(list.len()).unwrap_or(u32::MAX),
        }
    }

    /// Appends the name of one.
    pub(crate) fn write_name(&self, out: &mut Vec<u8>, user: u32) {
        match self {
            Self::Numbered { prefix, .. } => {
                out.extend_from_slice(prefix.as_bytes());
                write_number(out, user);
            }
            Self::Listed(list) => {
                let name = list.get(user as usize).map_or("", |(name, _)| name);
                out.extend_from_slice(name.as_bytes());
            }
        }
    }

    /// The password of one.
    pub(crate) fn password(&self, user: u32) -> Vec<u8> {
        match self {
            Self::Numbered { password, .. } => {
                let (mut name, mut digits) = (Vec::new(), Vec::new());
                self.write_name(&mut name, user);
                write_number(&mut digits, user);
                let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap_or_default();
                let filled = password
                    .replace("{user}", &text(name))
                    .replace("{n}", &text(digits));
                filled.into_bytes()
            }
            Self::Listed(list) => list
                .get(user as usize)
                .map_or(Vec::new(), |(_, password)| password.clone().into_bytes()),
        }
    }
}

/// At least five digits.
fn write_number(out: &mut Vec<u8>, number: u32) {
    for (most, zeros) in [(9, 4), (99, 3), (999, 2), (9_999, 1)] {
        if number <= most {
            out.extend_from_slice(&b"0000"[..zeros]);
            break;
        }
    }
    sip_message::number::write_decimal(out, u64::from(number));
}

/// Connections of the callers' end, where the transport has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// So many, used in turn, opened again when they are lost. At least 1.
    Shared(u32),
    /// One for each call.
    PerCall,
}

/// The end that is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callee {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Its transport: UDP, TCP or TLS.
    pub transport: Transport,
    /// How long it rings before it answers.
    pub ring: Duration,
}

/// TLS settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsPlan {
    /// The authorities of the server's certificate, PEM. None: those of the system.
    pub ca: Option<PathBuf>,
    /// The name that the server's certificate must speak for. None: the domain.
    pub name: Option<String>,
    /// Certificate and key of ours, PEM: what we show when asked, and what the called end shows.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Resume sessions.
    pub resume: bool,
}

/// The whole plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What a call is.
    pub kind: Kind,
    /// Of the callers' end.
    pub transport: Transport,
    /// The server.
    pub target: SocketAddr,
    /// The callers' own address, and port for datagrams; `None`: that from which the target is
    /// reached, and any port.
    pub local: Option<SocketAddr>,
    /// The domain of all users.
    pub domain: String,
    /// The server's own name, as OPTIONS ask for it: the domain, or address and port.
    pub server: String,
    /// The users that play.
    pub users: Users,
    /// Answer challenges (digest).
    pub digest: bool,
    /// Send credentials for the last nonce at once, counted, instead of waiting for a challenge.
    pub reuse_nonce: bool,
    /// How many calls.
    pub offered: Offered,
    /// Before calls count.
    pub warmup: Duration,
    /// While they count.
    pub duration: Duration,
    /// How long after that those under way may end. `None`: as long as it takes, at most their
    /// time-outs.
    pub drain: Option<Duration>,
    /// From ACK to BYE.
    pub hold: Duration,
    /// Timer T1 (RFC 3261 §17.1.1.1).
    pub t1: Duration,
    /// How long a call may ring before it is cancelled.
    pub answer_within: Duration,
    /// The callers' connections.
    pub connections: Connections,
    /// Bytes of text in a MESSAGE.
    pub text_len: usize,
    /// Whether requests within a dialog go to the target, too, although no Record-Route asks for that: an outbound
    /// proxy, or a relay that reads no message.
    pub outbound: bool,
    /// What REGISTER registers; `None`: the callee's address, or else the caller's own.
    pub contact: Option<SocketAddr>,
    /// Seconds that REGISTER asks for.
    pub expires_s: u32,
    /// The end that is called. `None`: it is somewhere else.
    pub callee: Option<Callee>,
    /// Calls at a time; more fail as the generator's own.
    pub max_calls: u32,
    /// TLS settings.
    pub tls: TlsPlan,
    /// The path of the WebSocket.
    pub path: String,
    /// Tells this run's messages from those of others.
    pub run: u32,
}

/// As in Via (RFC 3261 §20.42, RFC 7118 §5.2).
pub(crate) const fn via_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Udp => "UDP",
        Transport::Tcp => "TCP",
        Transport::Tls => "TLS",
        Transport::Ws => "WS",
        Transport::Wss => "WSS",
    }
}

/// As in a URI's parameters; empty: none is needed.
pub(crate) const fn uri_parameter(transport: Transport) -> &'static str {
    match transport {
        Transport::Udp => "",
        Transport::Tcp => ";transport=tcp",
        Transport::Tls => ";transport=tls",
        Transport::Ws | Transport::Wss => ";transport=ws",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_and_passwords() {
        let users = Users::Numbered {
            prefix: "user".into(),
            count: 200_000,
            password: "p{n}-{user}".into(),
        };
        for (user, name) in [
            (0, "00000"),
            (9, "00009"),
            (10, "00010"),
            (12_345, "12345"),
            (123_456, "123456"),
        ] {
            let mut out = Vec::new();
            users.write_name(&mut out, user);
            assert_eq!(out, format!("user{name}").as_bytes());
            assert_eq!(users.password(user), format!("p{name}-user{name}").as_bytes());
        }
    }
}
