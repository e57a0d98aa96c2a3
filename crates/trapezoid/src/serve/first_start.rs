//! The first start. With the built-in configuration, an empty store gets two subscribers, so that two phones
//! can call each other a minute after the program was downloaded.

use std::net::SocketAddr;
use std::path::Path;

use sip_backend::subscribers::SubscriberTable;
use sip_core::config::Config;
use sip_core::transport::Transport;
use zeroize::Zeroizing;

use crate::cli::Failure;
use crate::cli::user::failure;
use settings::Shell;

/// User names of the two subscribers.
const NAMES: [&str; 2] = ["alice", "bob"];
/// Characters of a password; none can be mistaken for another when read aloud or typed on a phone.
const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
/// Length of a password: 80 bits, more than a guesser can try against a server that counts failures.
const PASSWORD_LENGTH: usize = 16;

/// Makes the two users, if the configuration is the built-in one and the table is empty. Returns the text for
/// the operator, if so. The text holds passwords: it goes to the terminal and into no log.
///
/// `keep` gets the text before anything is in the store: a password that cannot be kept is given to no user.
pub(crate) fn prepare(
    core: &Config,
    shell: &Shell,
    keep: impl FnOnce(&str) -> Result<(), Failure>,
) -> Result<Option<Zeroizing<String>>, Failure> {
    if shell.file.is_some() {
        return Ok(None);
    }
    let mut table = SubscriberTable::open(shell.subscribers.clone()).map_err(failure)?;
    let Some(domain) = core.domains.first() else {
        return Ok(None);
    };
    if !table.is_empty().map_err(failure)? {
        return Ok(None);
    }
    let name = String::from_utf8_lossy(&domain.name);
    let realm = String::from_utf8_lossy(&domain.auth.realm);
    let mut made = Vec::new();
    for user in NAMES {
        made.push((user, password()?));
    }
    let listener = shell.tls.listeners.iter().find(|listener| listener.is_own);
    let files = listener.and_then(|listener| listener.identities.first());
    let certificate = files.map_or(Path::new(""), |files| &files.certificate);
    let text = text(&made, &name, core, certificate);
    keep(&text)?;
    for (user, password) in &made {
        table
            .add(user, &name, &realm, password.as_bytes())
            .map_err(failure)?;
    }
    Ok(Some(text))
}

fn password() -> Result<Zeroizing<String>, Failure> {
    let mut random = Zeroizing::new([0_u8; PASSWORD_LENGTH]);
    getrandom::fill(random.as_mut_slice()).map_err(|error| Failure::failed("no random bytes", error))?;
    // 256 is a multiple of the alphabet's length, so every character is as likely as any other.
    let character = |byte: &u8| char::from(ALPHABET.get(usize::from(byte % 32)).copied().unwrap_or(b'a'));
    Ok(Zeroizing::new(random.iter().map(character).collect()))
}

/// An address, with its port, that phones on the network can reach, if there is one.
fn reachable(core: &Config) -> Option<SocketAddr> {
    let addresses = || core.listeners.iter().map(|listener| listener.address);
    let outside = || addresses().filter(|address| !address.ip().is_loopback());
    outside()
        .find(SocketAddr::is_ipv4)
        .or_else(|| outside().next())
        .or_else(|| addresses().next())
}

fn text(
    made: &[(&str, Zeroizing<String>)],
    domain: &str,
    core: &Config,
    certificate: &Path,
) -> Zeroizing<String> {
    let mut out = Zeroizing::new(String::from(
        "First start: two subscribers were made. These are their passwords, which stand nowhere else.\n\n",
    ));
    for (user, password) in made {
        out.push_str(&format!("    user {user:<8} password {}\n", password.as_str()));
    }
    let Some(address) = reachable(core) else {
        return out;
    };
    let mut transports: Vec<&str> = core
        .listeners
        .iter()
        .filter(|listener| listener.address == address)
        .map(|listener| listener.transport.via_name())
        .collect();
    transports.dedup();
    let host = match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    };
    let port = |transport: Transport| {
        let mut listeners = core.listeners.iter();
        let found = listeners
            .find(|listener| listener.transport == transport && listener.address.ip() == address.ip());
        found.map(|listener| listener.address.port())
    };
    let first = made.first().map_or("alice", |(user, _)| user);
    let last = made.last().map_or("bob", |(user, _)| user);
    let mut secure = String::new();
    if let Some(port) = port(Transport::Tls) {
        let certificate = certificate.display();
        secure.push_str(&format!(
            "\x20   or, encrypted                  TLS, port {port}; the phone must trust {certificate}\n"
        ));
    }
    if let Some(port) = port(Transport::Ws) {
        secure.push_str(&format!(
            "\x20   phone in a browser             ws://{host}:{port}, as sip:{first}@{host} (https pages need wss: docs/tls.md)\n"
        ));
    }
    out.push_str(&format!(
        "\nIn each phone set\n\
         \x20   user and authentication name   {first} (in the other: {last})\n\
         \x20   domain, registrar or server    {host}\n\
         \x20   transport                      {}, port {}\n\
         {secure}\
         Any other address or name of this machine does as well, and so does the domain {domain} with the\n\
         outbound proxy sip:{host}:{}. Then call sip:{last}@{host} from {first}'s phone.\n\
         `trapezoid user` adds subscribers and changes passwords.\n",
        transports.join(" or "),
        address.port(),
        address.port(),
    ));
    out
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sip_backend::subscribers::Source;

    use super::*;
    use settings::{Loaded, Machine, load};

    fn built_in(data_dir: &Path) -> Loaded {
        let ip = |text: &str| text.parse().expect("address");
        let machine = Machine {
            addresses: vec![
                (ip("127.0.0.1"), 8),
                (ip("2001:db8::1"), 64),
                (ip("192.0.2.7"), 24),
            ],
            ..Machine::default()
        };
        let mut loaded = load(None, &machine).unwrap_or_else(|problems| panic!("{problems}"));
        loaded.shell.subscribers.source = Source::Sqlite(data_dir.join("subscribers.db"));
        loaded
    }

    #[test]
    fn the_first_start_makes_two_and_tells_how_to_use_them_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let Loaded { core, mut shell, .. } = built_in(dir.path());
        let full = |_: &str| Err(Failure::Failed("the disk is full".to_owned()));
        assert!(prepare(&core, &shell, full).is_err());
        let Ok(Some(text)) = prepare(&core, &shell, |_| Ok(())) else {
            panic!("two subscribers")
        };
        for expected in [
            "user alice",
            "user bob",
            "server    192.0.2.7",
            "UDP or TCP, port 5060",
            "sip:192.0.2.7:5060",
            "TLS, port 5061; the phone must trust data/tls/cert.pem",
            "ws://192.0.2.7:5066, as sip:alice@192.0.2.7",
        ] {
            assert!(text.contains(expected), "{expected} in {}", text.as_str());
        }
        // The addresses of the text are those of the domain's aliases.
        assert!(
            core.domains[0]
                .aliases
                .iter()
                .any(|alias| **alias == *b"192.0.2.7")
        );
        assert!(matches!(prepare(&core, &shell, |_| Ok(())), Ok(None)), "once");
        let mut table = SubscriberTable::open(shell.subscribers.clone()).expect("opens");
        let mut names = Vec::new();
        table
            .list(None, &mut |user, domain| names.push(format!("{user}@{domain}")))
            .expect("lists");
        assert_eq!(names, ["alice@trapezoid", "bob@trapezoid"]);
        // A user that the operator has removed does not return.
        table.delete("bob", "trapezoid").expect("deletes");
        assert!(matches!(prepare(&core, &shell, |_| Ok(())), Ok(None)));
        // With a configuration file, adding users is left to the operator.
        table.delete("alice", "trapezoid").expect("deletes");
        shell.file = Some("trapezoid.toml".into());
        assert!(matches!(prepare(&core, &shell, |_| Ok(())), Ok(None)));
    }

    #[test]
    fn passwords_differ_and_are_easy_to_type() {
        let (Ok(first), Ok(second)) = (password(), password()) else {
            panic!("random bytes")
        };
        assert_eq!(first.len(), PASSWORD_LENGTH);
        assert_ne!(*first, *second);
        assert!(first.bytes().all(|byte| ALPHABET.contains(&byte)));
        let distinct: std::collections::BTreeSet<u8> = ALPHABET.iter().copied().collect();
        assert_eq!(distinct.len(), ALPHABET.len());
    }
}
