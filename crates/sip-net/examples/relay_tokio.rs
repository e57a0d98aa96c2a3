//! What `relay.rs` does, on a tokio current-thread runtime, one datagram at a time as its
//! interface has it. Measured only; see `docs/spikes/event-loop.md`.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let socket = tokio::net::UdpSocket::bind(local(5060)).await?;
    socket2::SockRef::from(&socket).set_recv_buffer_size(4 << 20)?;
    let mut buffer = vec![0; 65_535];
    loop {
        let (len, source) = socket.recv_from(&mut buffer).await?;
        let to = if source.port() == 6001 {
            local(6002)
        } else {
            local(6001)
        };
        socket.send_to(buffer.get(..len).unwrap_or_default(), to).await?;
    }
}
