//! Session tickets that every node of a cluster can read, also after a restart.
//!
//! The library's own ticketer generates its keys and keeps them in memory, so that a client can resume only
//! at the process that issued the ticket. Here keys come from a file that nodes share:
//!
//! ```text
//! # SECONDS-SINCE-1970  BASE64 of 48 random bytes: 16 of name, 32 of secret
//! 1795200000 q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJCrze8SNFZ4kKvN7xI0VniQ
//! ```
//!
//! - The line with the latest time that is not in the future encrypts; all lines decrypt. A new key is given
//!   to all nodes with a time in the near future, and is used by all from then on. An old key is deleted when
//!   its tickets have expired. A ticket of a removed key leads to a full handshake.
//! - No line encrypts anything itself. Each gives one AES-256-GCM key for each period of rotation since 1970,
//!   by HKDF (RFC 5869). So the keys change by time, and nodes agree without communication. Nonces are 96
//!   random bits, which no node need coordinate. A period's key makes far less than the 2^32 tickets at which
//!   that would be a concern (NIST SP 800-38D §8.3). Forward secrecy needs the file itself to be replaced: a
//!   line gives its reader the keys of all its periods.
//! - A ticket is bound to the listener's name, to the listener's demands on clients, and to the authorities
//!   that verify them. A digest of these is authenticated with the ticket, so that a change of any makes all
//!   older tickets void. The library calls a ticketer with the state alone; hence one [`Ticketer`] for each
//!   listener and set of authorities. The server name and the client's certificates are in the state. The
//!   library refuses to resume under another name (RFC 6066 §3).
//! - A ticket ends after the lifetime, or earlier when the client's certificates expire: the client then has
//!   to present valid ones.
//!
//! There is no early data (0-RTT): a request that can be replayed is unsuitable for SIP.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce};
use aws_lc_rs::hkdf;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::CertificateDer;
use rustls::server::ProducesTickets;
use rustls::time_provider::TimeProvider;
use zeroize::Zeroizing;

use super::error::{TlsError, TlsFileError, TlsWarning};
use super::files;

/// Most keys that a file may hold.
pub const MAX_TICKET_KEYS: usize = 8;
/// Longest lifetime of a ticket, seconds (RFC 8446 §4.6.1).
pub const MAX_TICKET_LIFETIME_S: u32 = 7 * 86_400;
/// Periods of rotation that a lifetime may span; bounds the keys in memory.
const MAX_PERIODS: u64 = 14;

const NAME: usize = 16;
const SECRET: usize = 32;
const TAG: usize = 16;
/// Bytes of version, key name, period and end of life.
const HEADER: usize = 1 + NAME + 8 + 8;
const VERSION: u8 = 1;
const PURPOSE: &[u8] = b"trapezoid session ticket 1";

/// Lifetime of tickets, and rotation of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketSettings {
    /// Seconds for which a ticket is valid; at most [`MAX_TICKET_LIFETIME_S`].
    pub lifetime_s: u32,
    /// Seconds after which the next key is derived; at least a fourteenth of the lifetime.
    pub rotation_s: u32,
}

impl Default for TicketSettings {
    fn default() -> Self {
        Self {
            lifetime_s: 86_400,
            rotation_s: 43_200,
        }
    }
}

/// The keys of tickets; shared by all listeners that name the same file.
pub struct TicketKeys {
    ring: ArcSwap<Ring>,
    source: Option<PathBuf>,
    settings: TicketSettings,
    clock: Arc<dyn TimeProvider>,
}

struct Master {
    name: [u8; NAME],
    secret: Zeroizing<[u8; SECRET]>,
    /// Seconds since 1970 from which on the key encrypts.
    from: u64,
}

/// All keys that can be used in one period.
struct Ring {
    /// The keys of the file, the latest first.
    masters: Arc<[Master]>,
    period: u64,
    derived: Vec<Derived>,
}

struct Derived {
    name: [u8; NAME],
    period: u64,
    key: LessSafeKey,
}

impl TicketKeys {
    /// Keys of this process alone: clients can resume here, until the process ends.
    ///
    /// # Errors
    /// There is no randomness, or no time.
    pub fn generate(settings: TicketSettings, clock: Arc<dyn TimeProvider>) -> Result<Self, TlsError> {
        let mut name = [0; NAME];
        let mut secret = Zeroizing::new([0; SECRET]);
        fill(&mut name)?;
        fill(secret.as_mut())?;
        let master = Master {
            name,
            secret,
            from: 0,
        };
        let failed = || TlsError::Internal("no ticket key can be derived".to_owned());
        Self::new(vec![master], None, settings, clock).ok_or_else(failed)
    }

    /// Keys of a file.
    ///
    /// # Errors
    /// The file cannot be read, a line is wrong, or the file holds no key.
    pub fn load(
        path: &Path,
        settings: TicketSettings,
        clock: Arc<dyn TimeProvider>,
        warnings: &mut Vec<TlsWarning>,
    ) -> Result<Self, TlsFileError> {
        let masters = read_masters(path)?;
        files::check_private(path, warnings);
        Self::new(masters, Some(path.to_owned()), settings, clock)
            .ok_or_else(|| TlsFileError::Config("no ticket key can be derived".to_owned()))
    }

    fn new(
        mut masters: Vec<Master>,
        source: Option<PathBuf>,
        settings: TicketSettings,
        clock: Arc<dyn TimeProvider>,
    ) -> Option<Self> {
        let lifetime_s = settings.lifetime_s.clamp(1, MAX_TICKET_LIFETIME_S);
        let shortest = u64::from(lifetime_s).div_ceil(MAX_PERIODS) as u32;
        let settings = TicketSettings {
            lifetime_s,
            rotation_s: settings.rotation_s.max(shortest),
        };
        masters.sort_by_key(|master| std::cmp::Reverse(master.from));
        let period = clock.current_time()?.as_secs() / u64::from(settings.rotation_s);
        let ring = Ring::new(masters.into(), period, &settings)?;
        Some(Self {
            ring: ArcSwap::from_pointee(ring),
            source,
            settings,
            clock,
        })
    }

    /// Reads the file again. If it is bad, the keys remain as they are.
    ///
    /// # Errors
    /// As [`TicketKeys::load`].
    pub fn reload(&self) -> Result<(), TlsFileError> {
        let Some(path) = &self.source else { return Ok(()) };
        let mut masters = read_masters(path)?;
        masters.sort_by_key(|master| std::cmp::Reverse(master.from));
        let ring = Ring::new(masters.into(), self.ring.load().period, &self.settings)
            .ok_or_else(|| TlsFileError::Config("no ticket key can be derived".to_owned()))?;
        self.ring.store(Arc::new(ring));
        Ok(())
    }

    /// Lifetime of a ticket made now, seconds.
    pub fn lifetime_s(&self) -> u32 {
        self.settings.lifetime_s
    }

    /// The keys of the present period, and the time.
    fn now(&self) -> Option<(Arc<Ring>, u64)> {
        let now = self.clock.current_time()?.as_secs();
        let period = now / u64::from(self.settings.rotation_s);
        let ring = self.ring.load_full();
        if ring.period == period {
            return Some((ring, now));
        }
        // The first thread in a new period derives its keys; a reload at the same moment wins.
        self.ring.rcu(|ring| {
            if ring.period == period {
                return Arc::clone(ring);
            }
            Ring::new(Arc::clone(&ring.masters), period, &self.settings)
                .map_or_else(|| Arc::clone(ring), Arc::new)
        });
        Some((self.ring.load_full(), now))
    }

    fn seal(&self, context: &[u8; 32], plain: &[u8]) -> Option<Vec<u8>> {
        let (ring, now) = self.now()?;
        let mut expires = now + u64::from(self.settings.lifetime_s);
        for certificate in client_certificates(plain)? {
            // If a certificate cannot be read, its expiry cannot bound the ticket, so no ticket is made.
            expires = expires.min(files::validity(&certificate)?.1);
        }
        if expires <= now {
            return None;
        }
        let key = ring.sealing(now)?;
        let mut ticket = Vec::with_capacity(HEADER + aead::NONCE_LEN + plain.len() + TAG);
        ticket.push(VERSION);
        ticket.extend_from_slice(&key.name);
        ticket.extend_from_slice(&key.period.to_be_bytes());
        ticket.extend_from_slice(&expires.to_be_bytes());
        let aad = Aad::from([ticket.as_slice(), context].concat());
        let mut nonce = [0; aead::NONCE_LEN];
        fill(&mut nonce).ok()?;
        ticket.extend_from_slice(&nonce);
        let start = ticket.len();
        ticket.extend_from_slice(plain);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let sealed = ticket.get_mut(start..)?;
        let tag = key.key.seal_in_place_separate_tag(nonce, aad, sealed).ok()?;
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    fn open(&self, context: &[u8; 32], ticket: &[u8]) -> Option<Vec<u8>> {
        let (header, rest) = ticket.split_at_checked(HEADER)?;
        let (nonce, sealed) = rest.split_at_checked(aead::NONCE_LEN)?;
        let (version, fields) = header.split_first()?;
        let (name, fields) = fields.split_at_checked(NAME)?;
        let (period, expires) = fields.split_at_checked(8)?;
        let period = u64::from_be_bytes(period.try_into().ok()?);
        let expires = u64::from_be_bytes(expires.try_into().ok()?);
        let (ring, now) = self.now()?;
        if *version != VERSION || expires <= now {
            return None;
        }
        let key = ring
            .derived
            .iter()
            .find(|key| key.period == period && key.name.as_slice() == name)?;
        let aad = Aad::from([header, context].concat());
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut plain = sealed.to_vec();
        let length = key.key.open_in_place(nonce, aad, &mut plain).ok()?.len();
        plain.truncate(length);
        Some(plain)
    }
}

impl Ring {
    fn new(masters: Arc<[Master]>, period: u64, settings: &TicketSettings) -> Option<Self> {
        let reach = u64::from(settings.lifetime_s).div_ceil(u64::from(settings.rotation_s));
        let mut derived = Vec::new();
        // One period ahead, for tickets of a node with a clock a little before ours.
        for period in period.saturating_sub(reach)..=period + 1 {
            for master in masters.iter() {
                derived.push(master.derive(period)?);
            }
        }
        Some(Self {
            masters,
            period,
            derived,
        })
    }

    /// The key that encrypts: of the latest line whose time has come, else of the earliest line.
    fn sealing(&self, now: u64) -> Option<&Derived> {
        let come = self.masters.iter().find(|master| master.from <= now);
        let master = come.or_else(|| self.masters.last())?;
        self.derived
            .iter()
            .find(|key| key.period == self.period && key.name == master.name)
    }
}

impl Master {
    fn derive(&self, period: u64) -> Option<Derived> {
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, &self.name);
        let period_bytes = period.to_be_bytes();
        let info = [PURPOSE, period_bytes.as_slice()];
        let secret = salt.extract(self.secret.as_slice());
        let material = secret.expand(&info, &aead::AES_256_GCM).ok()?;
        Some(Derived {
            name: self.name,
            period,
            key: LessSafeKey::new(material.into()),
        })
    }
}

fn fill(bytes: &mut [u8]) -> Result<(), TlsError> {
    getrandom::fill(bytes).map_err(|error| TlsError::Internal(format!("no randomness: {error}")))
}

/// A new line for a file of keys, which encrypts from `from` (seconds since 1970) on.
///
/// # Errors
/// There is no randomness.
pub fn new_ticket_key(from: u64) -> Result<String, TlsError> {
    let mut bytes = Zeroizing::new([0; NAME + SECRET]);
    fill(bytes.as_mut())?;
    Ok(format!("{from} {}\n", STANDARD.encode(bytes.as_slice())))
}

/// Makes a file with one key, readable by its owner alone.
///
/// # Errors
/// The file exists, or cannot be written.
pub fn create_ticket_key_file(path: &Path, from: u64) -> Result<(), TlsFileError> {
    let failed = |source| TlsFileError::Read {
        path: path.to_owned(),
        source,
    };
    let line = new_ticket_key(from).map_err(|error| TlsFileError::Config(error.to_string()))?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    file.write_all(line.as_bytes()).map_err(failed)?;
    file.sync_all().map_err(failed)
}

fn read_masters(path: &Path) -> Result<Vec<Master>, TlsFileError> {
    let text = files::read(path)?;
    let text = String::from_utf8_lossy(&text);
    let mut masters: Vec<Master> = Vec::new();
    let mut last = 0;
    for (index, line) in text.lines().enumerate() {
        last = index + 1;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |reason: &str| TlsFileError::TicketKeys {
            path: path.to_owned(),
            line: last,
            reason: reason.to_owned(),
        };
        let master = parse_master(line).map_err(wrong)?;
        if masters.iter().any(|other| other.name == master.name) {
            return Err(wrong("the same key is there twice"));
        }
        if masters.len() == MAX_TICKET_KEYS {
            return Err(wrong("more than 8 keys"));
        }
        masters.push(master);
    }
    if masters.is_empty() {
        return Err(TlsFileError::TicketKeys {
            path: path.to_owned(),
            line: last.max(1),
            reason: "no key".to_owned(),
        });
    }
    Ok(masters)
}

fn parse_master(line: &str) -> Result<Master, &'static str> {
    let (from, key) = line
        .split_once(char::is_whitespace)
        .ok_or("not two words in a line")?;
    let from = from.parse().map_err(|_| "the time is not a number of seconds")?;
    let bytes = Zeroizing::new(STANDARD.decode(key.trim()).map_err(|_| "the key is not base64")?);
    let (name, secret) = bytes
        .split_at_checked(NAME)
        .filter(|(_, secret)| secret.len() == SECRET)
        .ok_or("the key has not 48 bytes")?;
    let mut master = Master {
        name: [0; NAME],
        secret: Zeroizing::new([0; SECRET]),
        from,
    };
    master.name.copy_from_slice(name);
    master.secret.copy_from_slice(secret);
    Ok(master)
}

/// The client's certificates in a state that the library wants encrypted. The layout is the library's own:
/// server name, version, suite, secret, a flag, then the chain. `None` if the layout is not understood, so
/// that a change of it leads to no tickets, never to tickets without bound.
fn client_certificates(plain: &[u8]) -> Option<Vec<CertificateDer<'_>>> {
    let mut rest = plain;
    if take(&mut rest, 1)? != [0] {
        let length = usize::from(*take(&mut rest, 1)?.first()?);
        take(&mut rest, length)?;
    }
    take(&mut rest, 4)?;
    let secret = usize::from(*take(&mut rest, 1)?.first()?);
    take(&mut rest, secret)?;
    let flags = [take(&mut rest, 1)?, take(&mut rest, 1)?].concat();
    match flags.as_slice() {
        [0 | 1, 0] => Some(Vec::new()),
        [0 | 1, 1] => {
            let length = take_length(&mut rest)?;
            let mut chain = take(&mut rest, length)?;
            let mut found = Vec::new();
            while !chain.is_empty() {
                let length = take_length(&mut chain)?;
                found.push(CertificateDer::from(take(&mut chain, length)?));
            }
            Some(found)
        }
        _ => None,
    }
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(count)?;
    *rest = tail;
    Some(head)
}

/// A length of three bytes.
fn take_length(rest: &mut &[u8]) -> Option<usize> {
    let bytes = take(rest, 3)?;
    Some(bytes.iter().fold(0, |sum, byte| (sum << 8) | usize::from(*byte)))
}

/// Ticketer of one listener, with one set of authorities.
#[derive(Debug)]
pub(super) struct Ticketer {
    keys: Arc<TicketKeys>,
    context: [u8; 32],
}

impl Ticketer {
    pub(super) fn new(keys: Arc<TicketKeys>, context: [u8; 32]) -> Self {
        Self { keys, context }
    }
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.keys.lifetime_s()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.keys.seal(&self.context, plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.keys.open(&self.context, cipher)
    }
}

impl fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketKeys")
            .field("source", &self.source)
            .field("settings", &self.settings)
            .field("keys", &self.ring.load().masters.len())
            .finish_non_exhaustive()
    }
}
