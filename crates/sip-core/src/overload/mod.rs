//! New work by UDP while there is more than can be served: which requests are new work, when a worker reads
//! them, how many may wait, and which CANCELs wait for them.
//!
//! New work waits apart from what belongs to established calls, so that it displaces nothing of these. The shell has a queue in the kernel for each [`Queue`]; here are the decisions. A simulated shell
//! takes the same ones.
//!
//! - A worker reads the queues of new work after everything else of a turn, calls first, and each only if little
//!   else came. If there is much else for long, each queue still gets its share ([`Schedule`]).
//! - What waits longer than 500 ms has a copy behind it (RFC 3261 §17.1.1.2), and its caller a long silence. So a
//!   queue that stays filled is made as short as what is read from it in [`LONGEST_QUEUE`], and what has waited longer
//!   is discarded. Once it has been empty it has its full size, for bursts.
//! - A CANCEL comes by the queue of established calls, and may so overtake its INVITE. It would then cancel nothing, and
//!   the INVITE would ring. So a CANCEL whose INVITE is not known is held until the calls that came before it have been
//!   read ([`Cancels`]). Few user agents send such a CANCEL, because RFC 3261 §9.1 lets it wait for a
//!   provisional response. Without state, each is one.

mod cancels;
mod schedule;

pub use cancels::{Cancel, Cancels, is_cancel};
pub use schedule::{LONGEST_QUEUE, Schedule};

/// One of the queues in which the datagrams of a listener wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// What belongs to what has been accepted: responses, ACK, CANCEL, requests in dialogs.
    Established,
    /// New calls.
    Calls,
    /// Other requests outside of dialogs.
    Requests,
}

impl Queue {
    /// The queues of new work, in the order in which they are read.
    pub const NEW_WORK: [Self; 2] = [Self::Calls, Self::Requests];
}

/// The begin of each request that may be new work, with the queue of those outside of dialogs.
pub const METHODS: [(&[u8], Queue); 6] = [
    (b"INVITE ", Queue::Calls),
    (b"REGISTER ", Queue::Requests),
    (b"OPTIONS ", Queue::Requests),
    (b"SUBSCRIBE ", Queue::Requests),
    (b"MESSAGE ", Queue::Requests),
    (b"PUBLISH ", Queue::Requests),
];

/// The one of [`METHODS`] that is in no dialog.
pub const REGISTER: &[u8] = b"REGISTER ";

/// The begin of a Request-URI whose calls are no new work: emergencies (RFC 5031).
pub const URN: &[u8; 4] = b"urn:";

/// The begin of the line in which the mark of a dialog stands.
pub const ROUTE: &[u8; 8] = b"\r\nRoute:";

/// What precedes the mark of a dialog, in a Route that is ours.
pub const MARK: &[u8; 4] = b";tz=";

/// The queue of a datagram. The program in the kernel (`sip_net::udp`) decides in the same way as far as it sees, but
/// takes a mark in the lines just behind a Route for one in the Route.
pub fn queue_of(datagram: &[u8]) -> Queue {
    let of_method = METHODS.iter().find(|(name, _)| datagram.starts_with(name));
    let Some((name, queue)) = of_method else {
        return Queue::Established;
    };
    if *queue == Queue::Calls && datagram.get(name.len()..).is_some_and(|uri| uri.starts_with(URN)) {
        return Queue::Established;
    }
    let mut rest = datagram;
    while *name != REGISTER
        && let Some(at) = memchr::memmem::find(rest, ROUTE)
    {
        let line = rest.get(at + 2..).unwrap_or_default();
        let end = memchr::memchr(b'\r', line).unwrap_or(line.len());
        let (line, after) = line.split_at(end);
        if memchr::memmem::find(line, MARK).is_some() {
            return Queue::Established;
        }
        rest = after;
    }
    *queue
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn the_queue_of_a_request_follows_method_and_mark() {
        let route = "Route: <sip:192.0.2.5;lr;tz=0123456789abcdef0123456789abcdef>\r\n";
        for (start, lines, queue) in [
            ("INVITE sip:b@a SIP/2.0", "", Queue::Calls),
            ("INVITE sip:b@a SIP/2.0", route, Queue::Established),
            (
                "INVITE sip:b@a SIP/2.0",
                "Route: <sip:192.0.2.5;lr>\r\n",
                Queue::Calls,
            ),
            (
                "INVITE sip:b@a SIP/2.0",
                "Route: <sip:a;lr>\r\nVia: a;tz=1\r\n",
                Queue::Calls,
            ),
            ("INVITE urn:service:sos SIP/2.0", "", Queue::Established),
            ("REGISTER sip:a SIP/2.0", route, Queue::Requests),
            ("OPTIONS sip:a SIP/2.0", "", Queue::Requests),
            ("OPTIONS sip:a SIP/2.0", route, Queue::Established),
            ("OPTIONS urn:service:sos SIP/2.0", "", Queue::Requests),
            ("BYE sip:b@a SIP/2.0", "", Queue::Established),
            ("CANCEL sip:b@a SIP/2.0", "", Queue::Established),
            ("SIP/2.0 200 OK", "", Queue::Established),
        ] {
            for before in ["", "Record-", "Via: x\r\n"] {
                let queue = if before == "Record-" && lines.starts_with(route) {
                    queue_of(format!("{start}\r\n\r\n").as_bytes())
                } else {
                    queue
                };
                let text = format!("{start}\r\n{before}{lines}Call-ID: a\r\n\r\n");
                assert_eq!(queue_of(text.as_bytes()), queue, "{text}");
            }
        }
        for short in ["", "INVITE", "INVITE ", "\r\n\r\n"] {
            let queue = if short == "INVITE " {
                Queue::Calls
            } else {
                Queue::Established
            };
            assert_eq!(queue_of(short.as_bytes()), queue);
        }
    }
}
