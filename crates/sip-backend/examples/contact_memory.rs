//! What a registered contact costs: resident bytes, measured on the maps that the workers share.
//!
//! ```text
//! cargo run --release -p sip-backend --example contact_memory -- [CONTACTS]
//! ```
//!
//! Each line is one process of its own (the program runs itself), so that nothing freed before is
//! used again: `phone` (no instance, no Path), `instance` (`+sip.instance` and `reg-id`), `path`
//! (both and a Path). Every contact is registered twice, the second time as the refresh that every
//! phone sends; the figure after it has the memory that refreshing leaves behind. The allocator is
//! the server's.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sip_backend::shared::Shared;
use sip_backend::subscribers::CredentialCache;
use sip_core::location::Binding;
use sip_core::shared::SharedState as _;
use sip_core::transport::Flow;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Any = Result<(), Box<dyn std::error::Error>>;

const START_UNIX_MS: u64 = 1_800_000_000_000;
const EXPIRES_S: u64 = 3_600;

const KINDS: [&str; 3] = ["phone", "instance", "path"];

/// Bytes of this process in memory.
fn resident() -> Result<u64, Box<dyn std::error::Error>> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).ok_or("statm")?.parse()?;
    Ok(pages * 4096)
}

/// A phone as there are many: Contact of 45 bytes, Call-ID of 40, User-Agent of 25.
fn binding(kind: &str, n: u32, unix_s: u64, cseq: u32) -> Binding {
    let address = Ipv4Addr::from(0x0a00_0000 | (n & 0x00ff_ffff));
    let port = 1024 + (n % 60_000) as u16;
    let text = |text: String| text.into_bytes().into_boxed_slice();
    let instance = format!("<urn:uuid:{n:08x}-7dec-11d0-a765-00a0c91e6bf6>");
    let (instance, path) = match kind {
        "phone" => (String::new(), String::new()),
        "instance" => (instance, String::new()),
        _ => (instance, "<sip:edge1.example.com:5060;lr;ob>".to_owned()),
    };
    let mut contact = format!("sip:u{n:07}@{address}:{port};transport=udp");
    while contact.len() < 45 {
        contact.push('x');
    }
    Binding {
        contact: text(contact),
        received: Flow::udp(SocketAddr::new(IpAddr::V4(address), port)),
        path: text(path),
        reg_id: u32::from(!instance.is_empty()),
        instance: text(instance),
        call_id: text(format!("{n:024x}@{:>15}", "192.168.178.021")),
        cseq,
        q_milli: 1000,
        expires_unix_s: unix_s + EXPIRES_S,
        user_agent: text("Example Phone 2.1 (b47.1)".to_owned()),
        updated: 0,
    }
}

/// Registers `contacts` phones and says what they cost.
fn measure(kind: &str, contacts: u32) -> Any {
    let cache = CredentialCache::new(0, Duration::ZERO, Duration::ZERO);
    let shared = Shared::new((1, 2), 1, START_UNIX_MS, Arc::new(cache));
    let register = |n: u32, round: u32| {
        // An hour's phones, spread over the hour; the refresh comes after half of it.
        let unix_ms =
            START_UNIX_MS + u64::from(round) * 1_800_000 + u64::from(n) * 3_600_000 / u64::from(contacts);
        let aor = format!("user{n:07}@example.com");
        shared.update_bindings(aor.as_bytes(), &mut |record| {
            record.bindings.clear();
            record.put(Binding {
                updated: record.next_version(unix_ms),
                ..binding(kind, n, unix_ms / 1000, 1 + round)
            });
            record.changed(unix_ms);
        });
    };
    // What the process needs before the first phone.
    register(0, 0);
    let before = resident()?;
    let mut figures = Vec::new();
    for round in 0..2 {
        let start = Instant::now();
        (0..contacts).for_each(|n| register(n, round));
        let each = start.elapsed().as_nanos() / u128::from(contacts.max(1));
        let bytes = (resident()?.saturating_sub(before)) / u64::from(contacts.max(1));
        figures.push(format!("{bytes} B resident a contact ({each} ns each)"));
    }
    let held = shared.held();
    say(&format!(
        "{kind}: {} contacts: registered {}, refreshed {}",
        held.1, figures[0], figures[1]
    ));
    // All contacts have expired: no request touches them, and the sweep removes them all the same.
    let end = START_UNIX_MS + 3 * 3_600_000;
    let start = Instant::now();
    let mut removed = 0;
    loop {
        let swept = shared.sweep(end, 100_000);
        removed += swept.bindings;
        if swept.finished {
            break;
        }
    }
    say(&format!(
        "{kind}: expired {removed} in {:?}, {} held, {} MB resident",
        start.elapsed(),
        shared.held().1,
        resident()?.saturating_sub(before) / 1_000_000
    ));
    Ok(())
}

fn say(text: &str) {
    #[expect(clippy::print_stdout, reason = "the figures are this program's output")]
    {
        println!("{text}");
    }
}

fn main() -> Any {
    let mut args = std::env::args().skip(1);
    let contacts = args.next().map_or(Ok(1_000_000), |n| n.parse())?;
    if let Some(kind) = args.next() {
        return measure(&kind, contacts);
    }
    for kind in KINDS {
        let program = std::env::current_exe()?;
        let status = Command::new(program)
            .args([&contacts.to_string(), kind])
            .status()?;
        if !status.success() {
            return Err(format!("{kind}: {status}").into());
        }
    }
    Ok(())
}
