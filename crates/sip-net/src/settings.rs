//! Every bound and time-out of the sockets and the workers' loop, in one place. The comment of each says what
//! happens there; [`crate::counters::NetCounters`] counts it.

/// Bounds and time-outs. Each worker has its own share: nothing here is a total over workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Datagrams received or sent in one system call.
    pub udp_batch: usize,
    /// Receive buffer requested for each datagram socket, bytes. Default buffers overflow at stalls of a few
    /// milliseconds; the kernel then drops datagrams, which it counts and we report.
    pub udp_receive_buffer: usize,
    /// Receive buffer requested for each queue of new work, bytes: each worker and listener has one of calls and
    /// one of other requests ([`crate::udp::steer`]). A datagram of up to 640 bytes takes 640 of these, a longer one 1,152, and
    /// of a network driver often more. A queue that
    /// stays filled gets less, so that nothing waits for long. Beyond it, the kernel drops new work, and counts it.
    /// 0: new work has no queues of its own.
    pub new_work_buffer: usize,
    /// Milliseconds for which a CANCEL is held at most for the calls that came before it: once at each worker to which it
    /// comes.
    pub cancel_wait_ms: u32,
    /// Send buffer requested for each datagram socket, bytes.
    pub udp_send_buffer: usize,
    /// Bytes of datagrams that wait for each socket while its send buffer is full. Datagrams beyond it are
    /// dropped, as a network would drop them.
    pub udp_backlog_bytes: usize,
    /// Refuse to start if another process listens on the same address, even if it shares the address.
    pub exclusive: bool,
    /// Most open connections. Beyond it, a connection from a peer is closed at once, and one from us is not
    /// opened. Of 16 places one (at least one of several) is kept for connections that we open, and half for
    /// those that peers open. If there are too many, connections that only wait for the peer's end are closed
    /// first.
    pub connections: usize,
    /// Connections accepted from one listener in one turn; the rest wait in the kernel.
    pub accepts_per_turn: usize,
    /// Connections that the kernel keeps waiting to be accepted, for each listener.
    pub accept_backlog: i32,
    /// Most connections with one address (of IPv6, one network of 64 bits), opened by either end; those for
    /// one call alone do not count. Beyond it, a connection is closed at once, or not opened. 0: any number.
    pub connections_per_address: usize,
    /// Steps of TLS handshakes in one turn. Further steps wait, in order, while established connections are
    /// served.
    pub handshakes_per_turn: usize,
    /// Bytes read from one connection in one turn; the rest waits in the kernel.
    pub read_bytes: usize,
    /// Messages taken from connections in one turn; the rest waits in the kernel.
    pub stream_messages_per_turn: usize,
    /// Bytes that wait for one slow reader. At the bound its connection is closed.
    pub write_queue_bytes: usize,
    /// Unsent bytes for a peer that has connected to us, beyond which nothing is read from this peer until it
    /// reads. A client that does not read its responses may send no more requests.
    pub pause_reading_bytes: usize,
    /// Bytes of memory that all connections together take for unsent and incomplete messages. Beyond it,
    /// those that hold the most are closed, unless their sockets take bytes at that moment. Connections that
    /// we opened come last.
    pub stream_bytes: usize,
    /// Milliseconds within which a connection that we open must be established.
    pub connect_timeout_ms: u32,
    /// Milliseconds within which the handshakes of TLS and WebSocket must be done.
    pub handshake_timeout_ms: u32,
    /// Milliseconds within which a peer that has connected must have sent a whole message. 0: no limit.
    pub first_message_timeout_ms: u32,
    /// Milliseconds within which a message that has begun to arrive must be complete.
    pub message_timeout_ms: u32,
    /// Milliseconds within which a reader must read at least some of the waiting bytes, and its system must
    /// acknowledge the sent ones.
    pub write_timeout_ms: u32,
    /// Milliseconds within which the system of a peer to which we have connected must acknowledge sent bytes,
    /// if that is less. After three times as long without traffic, keep-alives probe the peer.
    pub peer_timeout_ms: u32,
    /// Milliseconds after which a connection without traffic is closed. Keep-alives are traffic
    /// (RFC 5626 §3.5.1: clients send them every 2 minutes or less).
    pub idle_timeout_ms: u32,
    /// Milliseconds after which a connection for one call alone is closed, if it is without traffic.
    pub per_call_idle_ms: u32,
    /// Milliseconds without traffic after which a WebSocket gets a ping. After as many more without traffic,
    /// the WebSocket is closed. 0: no pings.
    pub ws_ping_ms: u32,
    /// Milliseconds within which a connection that we close must end in order.
    pub close_timeout_ms: u32,
    /// Messages that wait in a worker's mailbox. Further ones are refused to their sender.
    pub mailbox_messages: usize,
    /// Bytes of the messages that wait in a worker's mailbox.
    pub mailbox_bytes: usize,
    /// Results and orders that wait in a worker's mailbox. Further ones are refused to their sender.
    pub mailbox_items: usize,
    /// Milliseconds between two publications of a busy worker's counters.
    pub publish_interval_ms: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            udp_batch: 64,
            udp_receive_buffer: 4 << 20,
            new_work_buffer: 1 << 20,
            cancel_wait_ms: 200,
            udp_send_buffer: 4 << 20,
            udp_backlog_bytes: 1 << 20,
            exclusive: true,
            connections: 100_000,
            accepts_per_turn: 16,
            accept_backlog: 4096,
            connections_per_address: 2_000,
            handshakes_per_turn: 8,
            read_bytes: 32 << 10,
            stream_messages_per_turn: 1024,
            write_queue_bytes: 1 << 20,
            pause_reading_bytes: 64 << 10,
            stream_bytes: 256 << 20,
            connect_timeout_ms: 4_000,
            handshake_timeout_ms: 10_000,
            first_message_timeout_ms: 30_000,
            message_timeout_ms: 10_000,
            write_timeout_ms: 32_000,
            peer_timeout_ms: 10_000,
            idle_timeout_ms: 3_600_000,
            per_call_idle_ms: 32_000,
            ws_ping_ms: 60_000,
            close_timeout_ms: 2_000,
            mailbox_messages: 16_384,
            mailbox_bytes: 32 << 20,
            mailbox_items: 65_536,
            publish_interval_ms: 200,
        }
    }
}
