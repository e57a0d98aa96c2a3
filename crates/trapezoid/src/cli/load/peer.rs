//! A server on the command line: an address or a name, with its port.

use std::net::{SocketAddr, ToSocketAddrs};

use crate::cli::Failure;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Peer {
    Address(SocketAddr),
    Name(String, u16),
}

impl Peer {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        let wrong =
            || "write HOST:PORT, as 192.0.2.1:5060, [2001:db8::1]:5060 or sip.example.com:5060".to_owned();
        let (name, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_');
        let port = port.parse().map_err(|_| wrong())?;
        // A name whose last part is a number would be an address, but this is none (RFC 3261 §25.1).
        let last = name.rsplit('.').next().unwrap_or_default();
        let number = last.bytes().all(|c| c.is_ascii_digit());
        let is_name = name.bytes().all(plain) && !number;
        is_name
            .then(|| Self::Name(name.to_owned(), port))
            .ok_or_else(wrong)
    }

    /// The peer's address; if it has several, the first.
    pub(super) fn resolve(&self, option: &str) -> Result<SocketAddr, Failure> {
        let (name, port) = match self {
            Self::Address(address) => return Ok(*address),
            Self::Name(name, port) => (name.as_str(), *port),
        };
        let cannot = |why: String| Failure::Failed(format!("{option}: cannot find {name}: {why}"));
        let mut found = (name, port)
            .to_socket_addrs()
            .map_err(|error| cannot(error.to_string()))?;
        found.next().ok_or_else(|| cannot("it has no address".to_owned()))
    }

    /// The host as in a URI, without the port.
    pub(super) fn host(&self) -> String {
        match self {
            Self::Address(SocketAddr::V4(address)) => address.ip().to_string(),
            Self::Address(SocketAddr::V6(address)) => format!("[{}]", address.ip()),
            Self::Name(name, _) => name.clone(),
        }
    }

    /// Host and port as in a URI; without a port, 5060 is meant.
    pub(super) fn host_and_port(&self) -> String {
        match self.port() {
            5060 => self.host(),
            port => format!("{}:{port}", self.host()),
        }
    }

    fn port(&self) -> u16 {
        match self {
            Self::Address(address) => address.port(),
            Self::Name(_, port) => *port,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names() {
        for (text, host, host_and_port) in [
            ("192.0.2.1:5060", "192.0.2.1", "192.0.2.1"),
            ("127.0.0.1:27130", "127.0.0.1", "127.0.0.1:27130"),
            ("[::1]:5060", "[::1]", "[::1]"),
            ("[2001:db8::1]:5061", "[2001:db8::1]", "[2001:db8::1]:5061"),
            ("sip.example.com:5060", "sip.example.com", "sip.example.com"),
            ("gw_1:5070", "gw_1", "gw_1:5070"),
        ] {
            let peer = Peer::parse(text).unwrap();
            assert_eq!(
                (peer.host().as_str(), peer.host_and_port().as_str()),
                (host, host_and_port)
            );
        }
        for wrong in [
            "",
            "example.com",
            ":5060",
            "::1:5060",
            "example.com:x",
            "example.com:99999",
            "a b:1",
            "1.2.3:5060",
        ] {
            assert!(Peer::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_looked_up() {
        let found = Peer::parse("localhost:5070")
            .unwrap()
            .resolve("--target")
            .unwrap();
        assert!(found.ip().is_loopback() && found.port() == 5070);
        // Too long for a name, so no name server is queried.
        let long = "x".repeat(64);
        let told = Peer::parse(&format!("{long}:5060")).unwrap().resolve("--target");
        assert!(
            matches!(told, Err(Failure::Failed(why)) if why.starts_with(&format!("--target: cannot find {long}: ")))
        );
    }
}
