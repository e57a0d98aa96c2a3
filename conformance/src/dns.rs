//! A name server for one scene: it knows addresses of some names and nothing else.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::Scene;

/// Its port.
const PORT: u16 = 5353;

/// Types and classes (RFC 1035 §3.2).
const A: u16 = 1;
const IN: u16 = 1;
/// "No such name" (§4.1.1).
const NAME_ERROR: u8 = 3;

/// A running name server; it ends when dropped.
#[derive(Debug)]
pub struct NameServer {
    at: SocketAddr,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NameServer {
    /// Answers that each of these names has the scene's address.
    ///
    /// # Panics
    /// When the port cannot be had.
    pub fn start(scene: &Scene, names: &[&str]) -> Self {
        let std::net::IpAddr::V4(address) = scene.ip() else {
            panic!("a scene is at 127/8");
        };
        let socket = UdpSocket::bind(Self::address(scene)).expect("the name server's port");
        socket
            .set_read_timeout(Some(Duration::from_millis(20)))
            .expect("a time-out");
        let names: Vec<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
        let end = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&end);
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while !ends.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut buffer)
                    && let Some(answer) = answer(&buffer[..length], &names, address)
                {
                    // A repeated query is answered again.
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Self {
            at: Self::address(scene),
            end,
            thread: Some(thread),
        }
    }

    /// The address of a scene's name server.
    pub fn address(scene: &Scene) -> SocketAddr {
        scene.at(PORT)
    }

    /// The keys of the server's table `[dns]`.
    pub fn toml(&self) -> String {
        format!("nameservers = [\"{}\"]", self.at)
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                assert!(ended.is_ok(), "the name server panicked");
            }
        }
    }
}

/// The answer to a query with one question (RFC 1035 §4.1).
fn answer(query: &[u8], names: &[String], address: Ipv4Addr) -> Option<Vec<u8>> {
    let (name, length) = name(query.get(12..)?)?;
    let question = query.get(12..12 + length + 4)?;
    let kind = u16::from_be_bytes([question[length], question[length + 1]]);
    let known = names.contains(&name);
    let found = known && kind == A;
    let code = if known { 0 } else { NAME_ERROR };
    let mut out = query.get(..2)?.to_vec();
    // A response of authority, with recursion desired and available.
    out.extend_from_slice(&[0x85, 0x80 | code]);
    out.extend_from_slice(&[0, 1, 0, u8::from(found), 0, 0, 0, 0]);
    out.extend_from_slice(question);
    if found {
        // The name of the question, for a minute.
        out.extend_from_slice(&[0xc0, 12]);
        for word in [A, IN, 0, 60, 4] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        out.extend_from_slice(&address.octets());
    }
    Some(out)
}

/// A name in lower case, and how many bytes it takes.
fn name(bytes: &[u8]) -> Option<(String, usize)> {
    let mut labels = Vec::new();
    let mut at = 0;
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        if length == 0 {
            return Some((labels.join("."), at));
        }
        let label = bytes.get(at..at + length)?;
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        at += length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(name: &str, kind: u16) -> Vec<u8> {
        let mut out = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            out.push(u8::try_from(label.len()).expect("short"));
            out.extend_from_slice(label.as_bytes());
        }
        out.push(0);
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&IN.to_be_bytes());
        out
    }

    #[test]
    fn it_knows_addresses_of_its_names_only() {
        let names = ["gateway.example.net".to_owned()];
        let ask = |name: &str, kind| {
            let answer = answer(&query(name, kind), &names, Ipv4Addr::new(127, 1, 2, 3));
            let answer = answer.expect("an answer");
            (answer[3] & 15, answer[7], answer[answer.len() - 4..].to_vec())
        };
        assert_eq!(ask("Gateway.example.net", A), (0, 1, vec![127, 1, 2, 3]));
        assert_eq!(ask("gateway.example.net", 33), (0, 0, vec![0, 33, 0, 1]));
        assert_eq!(ask("example.net", A), (3, 0, vec![0, 1, 0, 1]));
        assert_eq!(answer(&[0; 12], &names, Ipv4Addr::LOCALHOST), None);
    }
}
