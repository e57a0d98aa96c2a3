//! What both ends need before the first message: addresses and certificates.

use std::net::SocketAddr;
use std::sync::Arc;

use sip_core::transport::Transport;
use sip_net::epoll::Epoll;
use sip_net::tls::{ClientSettings, IdentityFiles, ServerSettings, TlsClient, TlsServer, system_clock};

use super::streams::outgoing;
use super::{CALLED_SOCKET, Datagrams, Dial, Streams};
use crate::plan::{Callee, Connections, Plan};
use crate::run::{LoadError, socket};

/// How callers connect; `None` if they send datagrams.
pub(crate) fn dial(plan: &Plan) -> Result<Option<Dial>, LoadError> {
    let secure = match plan.transport {
        Transport::Udp => return Ok(None),
        Transport::Tcp | Transport::Ws => false,
        Transport::Tls | Transport::Wss => true,
    };
    // Several connections cannot share one port.
    let local = plan.local.map(|local| match plan.connections {
        Connections::Shared(1) => local,
        Connections::Shared(_) | Connections::PerCall => SocketAddr::new(local.ip(), 0),
    });
    if let Some(local) = local {
        outgoing(plan.target, Some(local)).map_err(socket(format!("bind to {local}")))?;
    }
    let websocket = matches!(plan.transport, Transport::Ws | Transport::Wss);
    let mut tls = None;
    if secure {
        let settings = ClientSettings {
            identity: identity(plan),
            ca: plan.tls.ca.clone(),
            remembered_peers: usize::from(plan.tls.resume),
            ..ClientSettings::default()
        };
        let client = TlsClient::load(settings, system_clock(), &mut Vec::new());
        let client = client.map_err(|error| LoadError::Tls(error.to_string()))?;
        let name = plan.tls.name.clone().unwrap_or_else(|| plan.domain.clone());
        // An IPv6 address has brackets in URIs only.
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        let name = bare.map_or_else(|| name.clone(), str::to_owned);
        tls = Some((Arc::new(client), name));
    }
    Ok(Some(Dial {
        target: plan.target,
        local,
        tls,
        websocket: websocket.then(|| (plan.path.clone(), plan.domain.clone())),
    }))
}

fn identity(plan: &Plan) -> Option<IdentityFiles> {
    let (certificate, key) = plan.tls.identity.clone()?;
    Some(IdentityFiles { certificate, key })
}

/// Binds the called end. Returns its address.
pub(crate) fn listen(
    callee: &Callee,
    plan: &Plan,
    epoll: &Epoll,
    streams: &mut Streams,
    called: &mut Option<Datagrams>,
) -> Result<SocketAddr, LoadError> {
    let cannot = || socket(format!("listen at {}", callee.listen));
    if callee.transport == Transport::Udp {
        let bound = Datagrams::bind(callee.listen, epoll, CALLED_SOCKET).map_err(cannot())?;
        let at = bound.local();
        *called = Some(bound);
        return Ok(at);
    }
    let mut tls = None;
    if callee.transport == Transport::Tls {
        let Some(identity) = identity(plan) else {
            let text = "the called end speaks TLS, and needs a certificate and its key";
            return Err(LoadError::Plan(text.to_owned()));
        };
        let settings = ServerSettings {
            name: "called".to_owned(),
            identities: vec![identity],
            ..ServerSettings::default()
        };
        let server = TlsServer::load(settings, None, system_clock(), &mut Vec::new());
        tls = Some(Arc::new(
            server.map_err(|error| LoadError::Tls(error.to_string()))?,
        ));
    }
    streams.listen(callee.listen, tls, epoll).map_err(cannot())
}
