//! Requests to the running server, at its admin address, with its token.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use clap::Args;
use serde_json::Value;
use zeroize::Zeroizing;

use super::http::{self, Question};
use super::{ConfigOption, Failure, configuration};
use crate::machine;

/// Options of the commands that list something.
#[derive(Debug, Args)]
pub(super) struct List {
    /// As JSON: an array of objects, as the admin page has them.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) config: ConfigOption,
}

/// The server that runs with a configuration.
pub(super) struct Running {
    address: SocketAddr,
    /// The contents of the token file.
    token: Zeroizing<String>,
}

impl Running {
    /// Reads address and token from the configuration.
    pub(super) fn of(option: &ConfigOption) -> Result<Self, Failure> {
        let loaded = configuration(option.config.as_deref(), &machine::read()?)?;
        let Some(admin) = loaded.shell.admin else {
            return Err(Failure::Usage(
                "[admin] listen is \"off\", so the server cannot be asked; give it an address".to_owned(),
            ));
        };
        let file = &loaded.shell.admin_token;
        let token = std::fs::read_to_string(file)
            .map(Zeroizing::new)
            .map_err(|error| {
                let place = file.display();
                Failure::Failed(format!(
                    "{place}: {error}; the server makes it at its first start"
                ))
            })?;
        Ok(Self {
            address: reachable(admin),
            token,
        })
    }

    /// Sends a request to the server.
    pub(super) fn ask(&self, method: &str, path: &str, body: &str) -> Result<Value, Failure> {
        let address = self.address;
        let question = Question {
            method,
            path,
            token: self.token.lines().next().unwrap_or_default().trim(),
            body,
        };
        let (status, text) = http::ask(&address.to_string(), &question).map_err(|error| {
            Failure::Failed(format!(
                "no server responds at {address}: {error}; is it running?"
            ))
        })?;
        let answer: Value = serde_json::from_str(&text)
            .map_err(|_| Failure::Failed(format!("the server at {address} is no Trapezoid")))?;
        match status {
            200 => Ok(answer),
            _ => Err(Failure::Failed(
                answer["error"]
                    .as_str()
                    .unwrap_or("the server refused")
                    .to_owned(),
            )),
        }
    }
}

/// Sends one request to the server that runs with this configuration.
pub(super) fn ask(option: &ConfigOption, method: &str, path: &str, body: &str) -> Result<Value, Failure> {
    Running::of(option)?.ask(method, path, body)
}

/// A text in a response; empty if it is absent.
pub(super) fn word(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

/// Percent-encodes every byte that is not an unreserved character (RFC 3986 §2.3).
pub(super) fn escaped(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let one = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

/// The address to connect to: the loopback address, if the server listens at every address.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => ip.into(),
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unreserved_characters_stay_as_they_are() {
        assert_eq!(escaped("a b/%\u{fc}.~"), "a%20b%2F%25%C3%BC.~");
    }

    #[test]
    fn a_server_that_listens_everywhere_is_asked_on_the_loopback() {
        for (listens, asked) in [
            ("[::]:8080", "[::1]:8080"),
            ("0.0.0.0:80", "127.0.0.1:80"),
            ("192.0.2.1:80", "192.0.2.1:80"),
        ] {
            let listens = listens.parse().expect("an address");
            assert_eq!(reachable(listens).to_string(), asked);
        }
    }
}
