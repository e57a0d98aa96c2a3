//! The plan of a run.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use sip_core::transport::Transport;

use crate::schedule::Offered;

/// Kind of the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// INVITE, 180, 200, ACK; after the hold time BYE, 200.
    Call,
    /// INVITE, a 3xx response, ACK.
    Redirect,
    /// REGISTER, one user after the other.
    Register,
    /// OPTIONS to the server.
    Options,
    /// MESSAGE from one user to another.
    Message,
}

impl Kind {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Redirect => "redirect",
            Self::Register => "register",
            Self::Options => "options",
            Self::Message => "message",
        }
    }

    /// Whether a call of this kind begins with an INVITE.
    pub(crate) const fn is_invite(self) -> bool {
        matches!(self, Self::Call | Self::Redirect)
    }

    /// The method of the first request.
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
        /// Prefix of each name, before the number.
        prefix: String,
        /// Number of users; at least 1.
        count: u32,
        /// Password of each user, where `{user}` stands for the name and `{n}` for its digits.
        password: String,
    },
    /// Name and password of each user; at least one.
    Listed(Vec<(String, String)>),
}

impl Users {
    /// Number of users.
    pub fn count(&self) -> u32 {
        match self {
            Self::Numbered { count, .. } => *count,
            Self::Listed(list) => u32::try_from(list.len()).unwrap_or(u32::MAX),
        }
    }

    /// Appends the name of a user.
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

    /// The password of a user.
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

/// Appends a number with at least five digits.
fn write_number(out: &mut Vec<u8>, number: u32) {
    for (most, zeros) in [(9, 4), (99, 3), (999, 2), (9_999, 1)] {
        if number <= most {
            out.extend_from_slice(&b"0000"[..zeros]);
            break;
        }
    }
    sip_message::number::write_decimal(out, u64::from(number));
}

/// Connections of the callers' end, if the transport has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// Number of shared connections, at least 1. They are used in turn, and opened again if they are lost.
    Shared(u32),
    /// One connection for each call.
    PerCall,
}

/// The end that is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callee {
    /// Address at which the called end listens.
    pub listen: SocketAddr,
    /// Its transport: UDP, TCP or TLS.
    pub transport: Transport,
    /// Time from the 180 to the 200.
    pub ring: Duration,
}

/// TLS settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsPlan {
    /// File with the authorities of the server's certificate, PEM; `None` for those of the system.
    pub ca: Option<PathBuf>,
    /// Name that the server's certificate must contain; `None` for the domain.
    pub name: Option<String>,
    /// Files with our certificate and its key, PEM. The callers show it if asked, the called end always.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Whether sessions are resumed.
    pub resume: bool,
}

/// The whole plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Kind of the calls.
    pub kind: Kind,
    /// Transport of the callers' end.
    pub transport: Transport,
    /// Address of the server.
    pub target: SocketAddr,
    /// Address of the callers' end; its port is used for datagrams and for a single connection. `None` for
    /// the address from which the target is reached, and any port.
    pub local: Option<SocketAddr>,
    /// Domain of all users.
    pub domain: String,
    /// Name of the server, as OPTIONS address it: the domain, or address and port.
    pub server: String,
    /// Users of the calls.
    pub users: Users,
    /// Whether challenges are answered (digest).
    pub digest: bool,
    /// Whether requests have credentials for the last nonce at once, counted, instead of after a challenge.
    pub reuse_nonce: bool,
    /// Number of calls, and their distribution in time.
    pub offered: Offered,
    /// Time at the start in which calls do not count.
    pub warmup: Duration,
    /// Time in which calls count, after the warm-up.
    pub duration: Duration,
    /// Time for calls to end after `duration`. `None` for as long as they take, at most their time-outs.
    pub drain: Option<Duration>,
    /// Time from ACK to BYE.
    pub hold: Duration,
    /// Timer T1 (RFC 3261 §17.1.1.1).
    pub t1: Duration,
    /// Time for which a call may ring before it is cancelled.
    pub answer_within: Duration,
    /// Connections of the callers' end.
    pub connections: Connections,
    /// Length of the text in a MESSAGE, bytes.
    pub text_len: usize,
    /// Whether requests within a dialog go to the target even without Record-Route. That suits an outbound
    /// proxy, or a relay that reads no message.
    pub outbound: bool,
    /// Contact address of REGISTER; `None` for the callee's address if there is a called end, else the
    /// caller's own.
    pub contact: Option<SocketAddr>,
    /// Expiry of REGISTER, seconds.
    pub expires_s: u32,
    /// The called end; `None` if it is elsewhere.
    pub callee: Option<Callee>,
    /// Most calls at a time. Further calls fail with the generator as the cause.
    pub max_calls: u32,
    /// TLS settings.
    pub tls: TlsPlan,
    /// Path of the WebSocket.
    pub path: String,
    /// Number that distinguishes this run's messages from those of other runs.
    pub run: u32,
}

/// The name of the transport in Via (RFC 3261 §20.42, RFC 7118 §5.2).
pub(crate) const fn via_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Udp => "UDP",
        Transport::Tcp => "TCP",
        Transport::Tls => "TLS",
        Transport::Ws => "WS",
        Transport::Wss => "WSS",
    }
}

/// The URI parameter of the transport; empty if none is needed.
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
