//! Sinks between the workers and the rest of the program: results in, events out.

use std::sync::Arc;

use sip_backend::ResultSink;
use sip_backend::metrics::{Counter, Sample};
use sip_core::config::Listener;
use sip_core::event::{AuthFailure, Event, RefusalCause, ScanSign};
use sip_core::id::{ListenerId, QueryId, WorkerId};
use sip_core::query::QueryResult;
use sip_core::transport::PeerName;
use sip_net::hub::Hub;
use sip_net::mailbox::Item;
use sip_net::tcp::{ForeignPage, TlsFailure};
use sip_net::worker::EventSink;

use crate::abuse::Watch;
use crate::logs::BOUNDED;
use crate::registrations::{OPERATOR, Waiting};

use super::away::Away;
use super::flaws::Flaws;

/// Delivers the back-ends' results to the mailbox of the query's worker, or to the operator.
pub(crate) struct Results {
    hub: Hub,
    operator: Arc<Waiting>,
    lost: Counter,
}

impl Results {
    pub(crate) fn new(hub: Hub, operator: Arc<Waiting>) -> Self {
        Self {
            hub,
            operator,
            lost: Counter::default(),
        }
    }

    /// The metric of lost results.
    pub(crate) fn metrics(&self) -> Sample {
        Sample {
            name: "results_lost",
            help: "Results of back-ends that the worker's mailbox had no room for.",
            labels: "",
            value: sip_backend::metrics::Value::Counter(self.lost.get()),
        }
    }
}

impl ResultSink for Results {
    fn deliver(&self, origin: u16, id: QueryId, result: QueryResult) {
        if origin == OPERATOR {
            return self.operator.deliver(id, result);
        }
        let mailbox = self.hub.mailbox(WorkerId(origin));
        // A lost result is noticed by the worker: the core gives the query up at its deadline.
        if mailbox.is_none_or(|mailbox| mailbox.post(Item::Result { id, result }).is_err()) {
            self.lost.inc();
        }
    }
}

/// Passes the workers' events to abuse control, and logs them; the bound on the lines of one cause applies
/// here too. Texts from peers are escaped, so that no peer can write log lines of its own.
#[derive(Clone, Debug)]
pub(crate) struct EventLog {
    /// Listeners by number, as `tls 0.0.0.0:5061`.
    listeners: Arc<[Box<str>]>,
    watch: Watch,
    flaws: Flaws,
    away: Away,
}

impl EventLog {
    pub(crate) fn new(listeners: &[Listener], watch: Watch, flaws: Flaws, away: Away) -> Self {
        let name = |listener: &Listener| {
            let transport = listener.transport.uri_name();
            format!("{transport} {}", listener.address).into_boxed_str()
        };
        Self {
            listeners: listeners.iter().map(name).collect(),
            watch,
            flaws,
            away,
        }
    }

    fn name_of(&self, listener: ListenerId) -> &str {
        let name = self.listeners.get(usize::from(listener.0));
        name.map_or("unknown", |name| name)
    }
}

impl EventSink for EventLog {
    fn record(&mut self, _worker: WorkerId, events: &mut Vec<Event>) {
        for event in events.drain(..) {
            self.watch.see(&event);
            self.flaws.see(&event);
            self.away.see(&event);
            record(&event);
        }
    }

    fn tls_failed(&mut self, _worker: WorkerId, failure: &TlsFailure) {
        let TlsFailure {
            flow,
            outbound,
            domain,
            error,
        } = failure;
        let (peer, listener) = (flow.remote, self.name_of(flow.listener));
        if *outbound {
            let address = peer.ip().to_string();
            let domain = domain.as_ref().map_or(address.as_str(), PeerName::as_str);
            tracing::warn!(%peer, domain, error = error.to_string(), "TLS to the next hop failed");
        } else {
            tracing::info!(%peer, listener, error = error.to_string(), "TLS of a peer failed");
        }
    }

    fn origin_refused(&mut self, _worker: WorkerId, page: &ForeignPage) {
        let (peer, listener) = (page.flow.remote, self.name_of(page.flow.listener));
        let origin = &*page.origin;
        tracing::info!(%peer, listener, origin, "a WebSocket was refused: its page is of none of the listener's origins");
    }
}

fn record(event: &Event) {
    match event {
        // Logged by `Flaws` and `Away`.
        Event::ResponseFlawed { .. } | Event::NextHopFailed { .. } | Event::NextHopReturned { .. } => {}
        Event::Registered {
            aor,
            source,
            contacts,
        } => {
            tracing::debug!(aor = &*lossy(aor), %source, contacts, "registered");
        }
        Event::InviteCompleted {
            call_id,
            status,
            after_us,
        } => {
            tracing::debug!(call_id = &*lossy(call_id), status, after_us, "INVITE completed");
        }
        Event::AuthFailed { .. } | Event::Refused { .. } => record_failure(event),
        Event::DigestUriRewritten { .. } => record_rewritten(event),
        Event::SourceLimited { source, dropped } => {
            tracing::warn!(%source, dropped, "a source sends more than it may; messages were dropped");
        }
        Event::Scanned {
            source,
            sign,
            unreported,
            ..
        } => {
            if let Some(dropped) = unreported {
                let sign = match sign {
                    ScanSign::UserAgent => "User-Agent",
                    ScanSign::FromUser => "From",
                    ScanSign::ToUser => "To",
                    ScanSign::UriUser => "Request-URI",
                };
                tracing::info!(%source, sign, dropped, "requests of a scanner were dropped");
            }
        }
        Event::PeerMet { address } => {
            tracing::debug!(%address, "a peer of the trust domain");
        }
        Event::ContactLost { aor, source } => {
            tracing::debug!(aor = &*lossy(aor), %source, "a contact behind a NAT no longer answers pings, and gets no requests");
        }
        Event::ContactReturned { source } => {
            tracing::debug!(%source, "a contact behind a NAT is there again");
        }
        Event::MemberFailed { group, member } => {
            tracing::warn!(
                group = &*lossy(group),
                member = &*lossy(member),
                "member failed, and gets no requests"
            );
        }
        Event::MemberRecovered { group, member } => {
            tracing::info!(
                group = &*lossy(group),
                member = &*lossy(member),
                "member responds, and gets requests again"
            );
        }
    }
}

/// Logs a request that failed here.
fn record_failure(event: &Event) {
    if let Event::AuthFailed {
        user,
        source,
        method,
        domain,
        call_id,
        reason,
        unreported: Some(unreported),
        ..
    } = event
    {
        let reason = match reason {
            AuthFailure::UnknownUser => "unknown user",
            AuthFailure::WrongPassword => "wrong password",
            AuthFailure::NotOwner => "the account may not use that address",
            AuthFailure::Replay => "nonce count seen before",
        };
        let (method, domain) = (lossy(method), lossy(domain));
        tracing::info!(
            target: BOUNDED, user = &*lossy(user), %source, method = &*method, domain = &*domain, call_id = &*lossy(call_id), reason, unreported,
            "authentication failed"
        );
    }
    if let Event::Refused {
        source,
        method,
        uri,
        call_id,
        from,
        to,
        digest_uri,
        rule,
        status,
        reason,
        cause,
        unreported,
    } = event
    {
        // Numbered from 1 for the reader.
        let rule = rule.map(|number| u32::from(number) + 1);
        let (method, uri, call_id) = (lossy(method), lossy(uri), lossy(call_id));
        let digest_uri = (!digest_uri.is_empty()).then(|| lossy(digest_uri));
        let digest_uri = digest_uri.as_deref();
        let cause = cause.map(RefusalCause::as_str);
        tracing::info!(
            target: BOUNDED, status, reason = &**reason, cause, %source, method = &*method, uri = &*uri, call_id = &*call_id, from = &*lossy(from), to = &*lossy(to), digest_uri, rule, unreported,
            "request refused"
        );
    }
}

/// Logs credentials that were accepted for another URI.
fn record_rewritten(event: &Event) {
    if let Event::DigestUriRewritten {
        source,
        method,
        uri,
        digest_uri,
        call_id,
        unreported,
    } = event
    {
        let (method, uri, call_id) = (lossy(method), lossy(uri), lossy(call_id));
        tracing::info!(
            target: BOUNDED, %source, method = &*method, uri = &*uri, digest_uri = &*lossy(digest_uri), call_id = &*call_id, unreported,
            "credentials are for another URI of the same user; accepted"
        );
    }
}

fn lossy(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Instant;

    use parking_lot::Mutex;

    use super::*;
    use crate::abuse::tests::opened;
    use crate::serve::flaws::SILENCE;

    /// Output of a log.
    #[derive(Clone, Debug, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that this thread logs during `act`: level, message and fields.
    fn logged(act: impl FnOnce()) -> Vec<String> {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_target(false)
            .without_time()
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, act);
        let text = String::from_utf8(written.0.lock().clone()).expect("text");
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    fn flawed(source: &str, flaw: &'static str, mended: bool) -> Event {
        Event::ResponseFlawed {
            source: source.parse().expect("an address"),
            call_id: b"c1"[..].into(),
            flaw,
            mended,
        }
    }

    /// Workers have clones of one `Flaws`, so they write one line together.
    #[test]
    fn a_flaw_of_a_peer_is_logged_once_and_counted_until_the_next_line() {
        let (abuse, _reports) = opened("");
        let flaws = Flaws::default();
        let mut workers = [0, 1].map(|_| EventLog::new(&[], abuse.watch(), flaws.clone(), Away::default()));
        for (worker, source, flaw, mended, line) in [
            (
                0,
                "192.0.2.20:5060",
                "Malformed To",
                true,
                "INFO responses of a peer have a flaw; they go on mended peer=192.0.2.20:5060 flaw=\"Malformed To\" \
                 call_id=\"c1\" since=1",
            ),
            (0, "192.0.2.20:5060", "Malformed To", true, ""),
            // Another connection of the same peer.
            (1, "192.0.2.20:40000", "Malformed To", true, ""),
            (
                1,
                "192.0.2.20:5060",
                "Malformed From",
                false,
                "WARN responses of a peer cannot be passed on; their requests fail peer=192.0.2.20:5060 \
                 flaw=\"Malformed From\" call_id=\"c1\" since=1",
            ),
            (0, "192.0.2.20:5060", "Malformed From", false, ""),
            (
                0,
                "192.0.2.21:5060",
                "Malformed To",
                true,
                "INFO responses of a peer have a flaw; they go on mended peer=192.0.2.21:5060 flaw=\"Malformed To\" \
                 call_id=\"c1\" since=1",
            ),
        ] {
            let mut events = vec![flawed(source, flaw, mended)];
            let log = &mut workers[worker];
            let lines = logged(|| log.record(WorkerId(0), &mut events));
            let expected: Vec<&str> = [line].into_iter().filter(|line| !line.is_empty()).collect();
            assert_eq!(lines, expected, "{source} {flaw}");
            assert!(events.is_empty(), "taken");
        }
        // The hour is then over for each of them.
        let later = Instant::now() + SILENCE;
        for (flaw, mended, since) in [("Malformed To", true, 3), ("Malformed From", false, 2)] {
            let lines = logged(|| flaws.see_at(&flawed("192.0.2.20:5060", flaw, mended), later));
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(lines[0].ends_with(&format!(" since={since}")), "{lines:?}");
        }
    }
    /// Each worker has its own failures and returns; the log has one line for the return.
    #[test]
    fn the_return_of_a_next_hop_is_logged_once_after_a_failure() {
        let (abuse, _reports) = opened("");
        let away = Away::default();
        let mut workers = [0, 1].map(|_| EventLog::new(&[], abuse.watch(), Flaws::default(), away.clone()));
        let destination = "192.0.2.20:5060".parse().expect("an address");
        let phone = "192.0.2.99:5060".parse().expect("an address");
        let failed = |destination, is_contact| Event::NextHopFailed {
            destination,
            timed_out: true,
            is_contact,
        };
        let returned = |destination| Event::NextHopReturned { destination };
        let gone = |of: &str| format!("WARN next hop failed destination={of} cause=\"no response\"");
        let back = "INFO next hop responds again destination=192.0.2.20:5060".to_owned();
        for (worker, event, line) in [
            (0, returned(destination), None),
            (0, failed(destination, false), Some(gone("192.0.2.20:5060"))),
            (1, failed(destination, false), Some(gone("192.0.2.20:5060"))),
            (0, failed(phone, true), Some(gone("192.0.2.99:5060"))),
            (1, returned(destination), Some(back.clone())),
            (0, returned(destination), None),
            (0, returned(phone), None),
            (0, failed(destination, false), Some(gone("192.0.2.20:5060"))),
            (0, returned(destination), Some(back)),
        ] {
            let mut events = vec![event];
            let lines = logged(|| workers[worker].record(WorkerId(0), &mut events));
            assert_eq!(lines, Vec::from_iter(line));
        }
    }
}
