//! `--calibrate`: sends batches to the database now, through a relay that counts their bytes.

use std::net::ToSocketAddrs as _;
use std::time::Duration;

use capacity::batching::{BatchSample, BytesSample};
use delay_relay::{Options, Relay};
use sip_backend::subscribers::{Calibration, Server, Source, TableOptions, Tls};

use super::Args;
use crate::cli::plan::metrics::Measured;
use crate::cli::user::failure;
use crate::cli::{Failure, configuration, say};
use crate::machine;

/// Batches whose bytes are counted. Even a relay without a delay would lengthen the times, so these are
/// measured without it. The bytes are the same each time, so few batches suffice.
const COUNTED: usize = 4;

/// Measures the database of the configuration.
pub(super) fn measure(args: &Args) -> Result<Measured, Failure> {
    let loaded = configuration(args.config.config.as_deref(), &machine::read()?)?;
    let table = loaded.shell.subscribers;
    let largest = args.max_batch as usize;
    say(&format!("asking {} for batches of up to {largest}", table.source));
    let mut calibration = Calibration::open(&table, largest).map_err(failure)?;
    let mut measured = Measured::default();
    for size in calibration.sizes() {
        for elapsed in calibration.ask(size, usize::from(args.rounds)).map_err(failure)? {
            let rows = u32::try_from(size).unwrap_or(u32::MAX);
            let us = elapsed.as_secs_f64() * 1e6;
            measured.batches.push(BatchSample::one(rows, us));
        }
    }
    if let Source::Server(server) = &table.source
        && server.socket.is_none()
        && server.tls == Tls::Off
    {
        measured.bytes = bytes(&table, server, largest)?;
    }
    Ok(measured)
}

/// Payload of batches of each size, counted by a relay on the way.
fn bytes(table: &TableOptions, server: &Server, largest: usize) -> Result<Vec<BytesSample>, Failure> {
    let failed = |error: std::io::Error| Failure::failed("cannot count bytes", error);
    let target = (server.host.as_str(), server.port)
        .to_socket_addrs()
        .map_err(failed)?
        .next()
        .ok_or_else(|| Failure::Failed(format!("{} has no address", server.host)))?;
    let relay = Relay::start(Options::new(([127, 0, 0, 1], 0).into(), target)).map_err(failed)?;
    let mut by_relay = table.clone();
    by_relay.source = Source::Server(Server {
        host: "127.0.0.1".to_owned(),
        port: relay.address().port(),
        ..server.clone()
    });
    let mut calibration = Calibration::open(&by_relay, largest).map_err(failure)?;
    let mut samples = Vec::new();
    for size in calibration.sizes() {
        let before = relay.counters();
        calibration.ask(size, COUNTED).map_err(failure)?;
        // Bytes are counted just after they were passed on.
        std::thread::sleep(Duration::from_millis(20));
        let after = relay.counters();
        // One more round, which warms up.
        let each = |before: u64, after: u64| (after - before) as f64 / (COUNTED + 1) as f64;
        samples.push(BytesSample {
            rows: size as f64,
            out: each(before.to_target.bytes, after.to_target.bytes),
            back: each(before.to_client.bytes, after.to_client.bytes),
            batches: 1.0,
        });
    }
    Ok(samples)
}
