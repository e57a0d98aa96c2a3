//! The workers' threads.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use sip_core::config::Config;
use sip_core::endpoint::{Endpoint, Keys};
use sip_core::id::WorkerId;
use sip_core::shared::SharedState;
use sip_net::bind::WorkerSockets;
use sip_net::clock::Clock;
use sip_net::hub::Hub;
use sip_net::mailbox::MailboxReceiver;
use sip_net::tcp::StreamService;
use sip_net::worker::{Ended, Parts, Published, QuerySink, Worker};
use tokio::sync::mpsc::UnboundedSender;

use super::away::Away;
use super::data_dir;
use super::flaws::Flaws;
use super::sinks::EventLog;
use crate::abuse::Watch;
use crate::cli::Failure;
use crate::cpu::WORKER;
use settings::Loaded;

/// The end of a worker, reported once by each.
#[derive(Debug)]
pub(crate) enum WorkerExit {
    /// The worker got the order to end, and did.
    Asked(Ended),
    /// The worker's loop failed.
    Failed(io::Error),
    /// The worker panicked, which is a bug.
    Panicked,
}

/// Parts that all workers share.
pub(crate) struct Common<'a> {
    pub loaded: &'a Loaded,
    pub settings: sip_net::settings::Settings,
    pub hub: &'a Hub,
    pub domain_secret: &'a [u8; data_dir::KEY_BYTES],
    pub shared: Arc<dyn SharedState>,
    pub watch: Watch,
    pub flaws: Flaws,
    pub away: Away,
    pub clock: Clock,
    /// TLS and other settings of the connections of each listener.
    pub services: &'a [StreamService],
}

/// Makes one worker and its thread, named `worker-N`. Returns the handle of its counters.
pub(crate) fn start<Q: QuerySink + 'static>(
    number: u16,
    common: &Common<'_>,
    sockets: WorkerSockets,
    mailbox: MailboxReceiver,
    queries: Q,
    ends: UnboundedSender<(u16, WorkerExit)>,
) -> Result<Published, Failure> {
    let failed = |error: io::Error| Failure::failed(&format!("cannot start worker {number}"), error);
    let config: &Config = &common.loaded.core;
    let keys = Keys {
        domain_secret: *common.domain_secret,
        seed: *data_dir::random_key()?,
    };
    let worker = Worker::new(Parts {
        worker: WorkerId(number),
        core: Endpoint::new(config, &keys, WorkerId(number), Arc::clone(&common.shared)),
        config: Arc::new(config.clone()),
        settings: common.settings.clone(),
        sockets,
        services: common.services.to_vec(),
        mailbox,
        hub: common.hub.clone(),
        clock: common.clock.clone(),
        queries,
        events: EventLog::new(
            &config.listeners,
            common.watch.clone(),
            common.flaws.clone(),
            common.away.clone(),
        ),
        seed: u32::from_le_bytes([keys.seed[0], keys.seed[1], keys.seed[2], keys.seed[3]]),
    })
    .map_err(failed)?;
    let published = worker.published();
    let run = move || {
        let end = match catch_unwind(AssertUnwindSafe(|| worker.run())) {
            Ok(Ok(ended)) => WorkerExit::Asked(ended),
            Ok(Err(error)) => WorkerExit::Failed(error),
            Err(_) => WorkerExit::Panicked,
        };
        // There is no receiver any more if the process is ending.
        let _ = ends.send((number, end));
    };
    std::thread::Builder::new()
        .name(format!("{WORKER}{number}"))
        .spawn(run)
        .map_err(failed)?;
    Ok(published)
}
