//! Counters of the sockets: one set per worker, written by that worker only, with one addition per count.

use sip_core::event::CounterInfo;

/// Defines the counters once: field, Prometheus name, labels and help.
macro_rules! net_counters {
    ($($(#[doc = $doc:literal])+ $field:ident => $name:literal { $($label:literal),* };)+) => {
        /// Counts of one worker's sockets since it started.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct NetCounters { $($(#[doc = $doc])+ pub $field: u64,)+ }

        impl NetCounters {
            /// Descriptions, in the order of [`NetCounters::values`].
            pub const INFO: &'static [CounterInfo] = &[
                $(CounterInfo { name: $name, help: concat!($($doc),+), labels: concat!($($label),*) },)+
            ];

            /// All values, in the order of [`NetCounters::INFO`].
            pub fn values(&self) -> [u64; Self::INFO.len()] {
                [$(self.$field,)+]
            }
        }
    };
}

net_counters! {
    /// Turns of the worker's loop.
    turns => "net_turns" {};
    /// Datagrams, by direction.
    udp_received => "net_udp_datagrams" { "direction=\"in\"" };
    /// Datagrams, by direction.
    udp_sent => "net_udp_datagrams" { "direction=\"out\"" };
    /// Bytes of datagrams, by direction.
    udp_received_bytes => "net_udp_bytes" { "direction=\"in\"" };
    /// Bytes of datagrams, by direction.
    udp_sent_bytes => "net_udp_bytes" { "direction=\"out\"" };
    /// Datagrams lost here, by cause.
    udp_truncated => "net_udp_dropped" { "cause=\"truncated\"" };
    /// Datagrams lost here, by cause.
    udp_kernel_drops => "net_udp_dropped" { "cause=\"receive-buffer-full\"" };
    /// Datagrams lost here, by cause.
    udp_calls_dropped => "net_udp_dropped" { "cause=\"call-queue-full\"" };
    /// Datagrams lost here, by cause.
    udp_requests_dropped => "net_udp_dropped" { "cause=\"request-queue-full\"" };
    /// Datagrams read from the queues of new work, by queue.
    udp_calls_read => "net_udp_new_work" { "queue=\"calls\"" };
    /// Datagrams read from the queues of new work, by queue.
    udp_requests_read => "net_udp_new_work" { "queue=\"requests\"" };
    /// CANCELs that waited for the new calls that had come before them.
    udp_cancels_held => "net_udp_udp_cancels_held" {};
    /// Datagrams lost here, by cause.
    udp_send_drops => "net_udp_dropped" { "cause=\"send-buffer-full\"" };
    /// Datagrams lost here, by cause.
    udp_send_errors => "net_udp_dropped" { "cause=\"send-error\"" };
    /// Datagrams that waited for room in the send buffer.
    udp_delayed => "net_udp_delayed" {};
    /// ICMP errors received.
    icmp_errors => "net_icmp_errors" {};
    /// Errors of datagram sockets when receiving.
    udp_receive_errors => "net_udp_receive_errors" {};
    /// Messages handed to the worker that holds their state.
    handed_over => "net_handed_over" {};
    /// Messages dropped because another worker's mailbox was full.
    hand_over_drops => "net_hand_over_drops" {};
    /// Messages given to the worker that owns their connection.
    forwarded_sends => "net_forwarded_sends" {};
    /// Messages received on connections.
    stream_received => "net_stream_messages" { "direction=\"in\"" };
    /// Messages put on connections.
    stream_sent => "net_stream_messages" { "direction=\"out\"" };
    /// Bytes read from connections.
    stream_received_bytes => "net_stream_bytes" { "direction=\"in\"" };
    /// Bytes written to connections.
    stream_sent_bytes => "net_stream_bytes" { "direction=\"out\"" };
    /// Turns in which so many messages came by connections that some of these had to wait for the next.
    stream_reads_put_off => "net_stream_reads_put_off" {};
    /// Times that nothing more was read from a peer until it reads what waits for it.
    stream_pauses => "net_stream_reads_paused" {};
    /// Keep-alive pings answered on connections.
    stream_pings => "net_stream_pings" {};
    /// Connections that came to stand, by the end that opened them.
    tcp_accepted => "net_connections" { "opened_by=\"peer\"" };
    /// Connections that came to stand, by the end that opened them.
    tcp_opened => "net_connections" { "opened_by=\"server\"" };
    /// Connections that could not be opened.
    tcp_open_failed => "net_connections_failed" {};
    /// Connections refused, by cause.
    tcp_refused_limit => "net_connections_refused" { "cause=\"limit\"" };
    /// Connections refused, by cause.
    tcp_refused_address => "net_connections_refused" { "cause=\"limit-per-address\"" };
    /// Connections refused, by cause.
    tcp_refused_files => "net_connections_refused" { "cause=\"file-descriptors\"" };
    /// Connections refused, by cause.
    tcp_refused_banned => "net_connections_refused" { "cause=\"banned\"" };
    /// Times that accepting connections paused because the system could not give one.
    tcp_accept_pauses => "net_accept_pauses" {};
    /// Connections closed, by cause.
    tcp_closed_by_peer => "net_connections_closed" { "cause=\"peer\"" };
    /// Connections closed, by cause.
    tcp_closed_error => "net_connections_closed" { "cause=\"error\"" };
    /// Connections closed, by cause.
    tcp_closed_framing => "net_connections_closed" { "cause=\"framing\"" };
    /// Connections closed, by cause.
    tcp_closed_by_core => "net_connections_closed" { "cause=\"protocol\"" };
    /// Connections closed, by cause.
    tcp_closed_idle => "net_connections_closed" { "cause=\"idle\"" };
    /// Connections closed, by cause.
    tcp_closed_handshake => "net_connections_closed" { "cause=\"handshake-timeout\"" };
    /// Connections closed, by cause.
    tcp_closed_silent => "net_connections_closed" { "cause=\"no-first-message\"" };
    /// Connections closed, by cause.
    tcp_closed_tls => "net_connections_closed" { "cause=\"tls\"" };
    /// Connections closed, by cause.
    tcp_closed_upgrade => "net_connections_closed" { "cause=\"websocket-refused\"" };
    /// Connections closed, by cause.
    tcp_closed_stopping => "net_connections_closed" { "cause=\"server-stops\"" };
    /// Connections closed, by cause.
    tcp_closed_incomplete => "net_connections_closed" { "cause=\"incomplete-message\"" };
    /// Connections closed, by cause.
    tcp_closed_slow => "net_connections_closed" { "cause=\"slow-reader\"" };
    /// Connections closed, by cause.
    tcp_closed_banned => "net_connections_closed" { "cause=\"banned\"" };
    /// Connections closed, by cause.
    tcp_closed_unregistered => "net_connections_closed" { "cause=\"registration-removed\"" };
    /// Connections closed, by cause.
    tcp_closed_memory => "net_connections_closed" { "cause=\"memory-limit\"" };
    /// TLS handshakes done, by our role and whether an earlier session goes on.
    tls_accepted_full => "net_tls_handshakes" { "role=\"server\",kind=\"full\"" };
    /// TLS handshakes done, by our role and whether an earlier session goes on.
    tls_accepted_resumed => "net_tls_handshakes" { "role=\"server\",kind=\"resumed\"" };
    /// TLS handshakes done, by our role and whether an earlier session goes on.
    tls_opened_full => "net_tls_handshakes" { "role=\"client\",kind=\"full\"" };
    /// TLS handshakes done, by our role and whether an earlier session goes on.
    tls_opened_resumed => "net_tls_handshakes" { "role=\"client\",kind=\"resumed\"" };
    /// Steps of TLS handshakes that had to wait for their turn.
    tls_parked => "net_tls_handshakes_delayed" {};
    /// WebSockets opened by peers.
    ws_opened => "net_websockets" {};
    /// Messages that came back because their connection was lost or not to be had.
    stream_undelivered => "net_stream_undelivered" {};
}

/// Values of one worker's sockets that go up and down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetGauges {
    /// Connections open or being opened.
    pub connections: u64,
    /// Bytes that connections hold, unsent or incomplete.
    pub stream_bytes: u64,
    /// Connections that wait for the turn of their TLS handshake.
    pub handshakes_waiting: u64,
    /// Datagrams that wait for room in a send buffer.
    pub udp_waiting: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_has_one_name_and_label_of_its_own() {
        let mut seen = std::collections::BTreeSet::new();
        for info in NetCounters::INFO {
            assert!(
                seen.insert((info.name, info.labels)),
                "{} {}",
                info.name,
                info.labels
            );
            assert!(info.help.trim().ends_with('.'));
        }
    }
}
