//! The TLS files made at the first start: the certificate of the built-in listener, and the keys of tickets.
//! Both are kept, so that phones continue to trust the certificate, and resume sessions after a restart.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    SanType, SerialNumber,
};
use sip_net::tls::{IdentityFiles, new_ticket_key};
use zeroize::Zeroizing;

use crate::cli::Failure;
use crate::machine::unix_ms;
use crate::serve::data_dir::{create, random_key, write_once};
use settings::Loaded;

/// Days for which phones and browsers accept a certificate that their users have trusted by hand.
const VALID_DAYS: u64 = 825;
/// Allowance for clocks of phones that are behind ours.
const BEHIND: Duration = Duration::from_secs(3600);
/// Most names in one certificate, which is sent at each handshake.
const MAX_NAMES: usize = 64;

/// Makes the absent files. `host_name` is the machine's.
pub(crate) fn prepare(loaded: &Loaded, host_name: Option<&str>) -> Result<(), Failure> {
    let tls = &loaded.shell.tls;
    if tls
        .listeners
        .iter()
        .any(|listener| listener.ticket_keys.is_none())
        && !tls.ticket_keys.exists()
    {
        let line = new_ticket_key(unix_ms() / 1000).map_err(|error| Failure::Failed(error.to_string()))?;
        let line = Zeroizing::new(line);
        write(&tls.ticket_keys, line.as_bytes())?;
    }
    for listener in tls.listeners.iter().filter(|listener| listener.is_own) {
        for files in &listener.identities {
            certificate(files, &names(loaded, host_name))?;
        }
    }
    Ok(())
}

/// Makes the certificate and its key. If only the key exists, it is used.
fn certificate(files: &IdentityFiles, names: &[String]) -> Result<(), Failure> {
    if files.certificate.exists() {
        return Ok(());
    }
    if let Some(directory) = files.certificate.parent() {
        create(directory)?;
    }
    if !files.key.exists() {
        let made = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256);
        let key = made.map_err(|error| Failure::failed("cannot make a key for TLS", error))?;
        write(&files.key, Zeroizing::new(key.serialize_pem()).as_bytes())?;
    }
    // If two processes start at once, both must use the same key: the file's.
    let unusable = |why: String| {
        let remedy = "remove it to have a new one made";
        Failure::Usage(format!("{}: {why}; {remedy}", files.key.display()))
    };
    let text = std::fs::read_to_string(&files.key).map_err(|error| unusable(error.to_string()))?;
    let key = KeyPair::from_pem(&Zeroizing::new(text)).map_err(|error| unusable(error.to_string()))?;
    let made = params(names, SystemTime::now())?.self_signed(&key);
    let made = made.map_err(|error| Failure::failed("cannot make a certificate for TLS", error))?;
    write(&files.certificate, made.pem().as_bytes())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    write_once(path, bytes).map_err(|error| {
        let remedy = "the server must be able to write its data directory";
        Failure::Usage(format!("{}: {error}; {remedy}", path.display()))
    })
}

fn params(names: &[String], now: SystemTime) -> Result<CertificateParams, Failure> {
    let mut params = CertificateParams::default();
    params.subject_alt_names = names.iter().filter_map(|name| subject(name)).collect();
    let first = names.first().map_or("trapezoid", String::as_str);
    params.distinguished_name.push(DnType::CommonName, first);
    // A serial number of its own for each certificate: browsers refuse a second one with the same.
    let random = random_key()?;
    let mut serial = random.get(..16).unwrap_or_default().to_vec();
    if let Some(byte) = serial.first_mut() {
        // A positive number (RFC 5280 §4.1.2.2).
        *byte = (*byte & 0x7f) | 0x01;
    }
    params.serial_number = Some(SerialNumber::from(serial));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.not_before = (now - BEHIND).into();
    params.not_after = (now + Duration::from_secs(VALID_DAYS * 86_400)).into();
    Ok(params)
}

fn subject(name: &str) -> Option<SanType> {
    match name.parse::<IpAddr>() {
        Ok(ip) => Some(SanType::IpAddress(ip)),
        Err(_) => name.try_into().ok().map(SanType::DnsName),
    }
}

/// Every name by which this server is known, its own first: phones are configured with one of them, so the
/// certificate must contain them.
fn names(loaded: &Loaded, host_name: Option<&str>) -> Vec<String> {
    let core = &loaded.core;
    let own = core.own_hosts.iter().map(|own| &own.host);
    let domains = core.domains.iter();
    let domains = domains.flat_map(|domain| std::iter::once(&domain.name).chain(&domain.aliases));
    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let own: Vec<String> = own.map(|name| text(name)).collect();
    let domains = domains.map(|name| text(name));
    let addresses = core
        .listeners
        .iter()
        .map(|listener| listener.address.ip().to_string());
    let mut out: Vec<String> = Vec::new();
    let all = own
        .into_iter()
        .chain(host_name.map(str::to_ascii_lowercase))
        .chain(["localhost".to_owned()])
        .chain(addresses)
        .chain(domains);
    for name in all.filter(|name| is_host(name)) {
        if out.len() < MAX_NAMES && !out.contains(&name) {
            out.push(name);
        }
    }
    out
}

/// Whether `name` is an address, or a name that a client could ask for (RFC 6066 §3).
fn is_host(name: &str) -> bool {
    use sip_net::tls::rustls::pki_types::ServerName;
    ServerName::try_from(name).is_ok()
}
