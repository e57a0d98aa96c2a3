//! The next hop of a request, before name service (RFC 3263 §4).

use core::net::IpAddr;

use sip_message::header::NameAddr;
use sip_message::{Host, SipUri};

use crate::engine::Engine;
use crate::resolve::{Candidates, HostRef, Question};
use crate::transport::{Known, NextHop, PeerName, Transport};

/// A next hop as its URI gives it, and the origin of that URI.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop<'a> {
    pub(crate) host: HostRef<'a>,
    pub(crate) port: Option<u16>,
    pub(crate) transport: Option<Transport>,
    pub(crate) secure: bool,
    /// The addresses found so far, if the configuration names the hop: all of them belong to the trust
    /// domain.
    pub(crate) known: Option<&'a Known>,
    /// The origin of this hop, which decides which addresses are allowed.
    pub(crate) lead: Lead,
}

/// The origin of a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lead {
    /// The configuration, or a Path, which was checked when it was registered.
    Believed,
    /// The Request-URI or a Route of the request.
    Request,
    /// A registered contact or a 3xx that came from this address.
    Contact(IpAddr),
}

impl<'a> Hop<'a> {
    pub(crate) fn configured(hop: &'a NextHop) -> Self {
        Self {
            host: HostRef::from(&hop.host),
            port: hop.port,
            transport: hop.transport,
            secure: hop.secure,
            known: Some(&hop.known),
            lead: Lead::Believed,
        }
    }

    /// The same hop for a request that must go by TLS (RFC 3261 §26.2.2). `None`: the hop's URI means another
    /// transport.
    pub(crate) fn secured(self) -> Option<Self> {
        let by_tls = match (self.transport, self.port) {
            _ if self.secure => true,
            (Some(transport), _) => transport.is_secure(),
            // A port without a transport is that of UDP (RFC 3263 §4.1).
            (None, port) => port.is_none(),
        };
        by_tls.then_some(Self { secure: true, ..self })
    }

    /// The hop of a contact that came from `from`, or of the Request-URI (`None`). If `secure`, the hop must
    /// be TLS. A contact that was registered by TLS has the port of TLS, even if its URI does not say so.
    pub(crate) fn of_contact(uri: &SipUri<'a>, secure: bool, from: Option<IpAddr>) -> Option<Self> {
        let hop = Self::of(uri);
        let fits = !secure || hop.transport.is_none_or(Transport::is_secure);
        fits.then_some(Self {
            secure: secure || hop.secure,
            lead: from.map_or(Lead::Request, Lead::Contact),
            ..hop
        })
    }

    /// The domain that the peer's certificate must be for, if any of these addresses is reached by
    /// TLS.
    pub(crate) fn peer(&self, candidates: &Candidates) -> Option<PeerName> {
        match self.host {
            HostRef::Name(name) if candidates.iter().any(|c| c.transport == Transport::Tls) => {
                PeerName::new(name)
            }
            HostRef::Name(_) | HostRef::Ip(_) => None,
        }
    }

    pub(crate) fn of(uri: &SipUri<'a>) -> Self {
        // RFC 3263 §4: the maddr parameter, if there is one, is the target.
        let host = uri
            .params
            .value(b"maddr")
            .and_then(Host::parse)
            .unwrap_or(uri.host);
        let host = match host {
            Host::Name(name) => HostRef::Name(name),
            Host::V4(ip) => HostRef::Ip(ip.into()),
            Host::V6(ip) => HostRef::Ip(ip.into()),
        };
        let transport = uri.transport().and_then(Transport::parse);
        Self {
            host,
            port: uri.port,
            transport,
            secure: uri.secure,
            known: None,
            lead: Lead::Request,
        }
    }
}

/// The next hop that a Path leads to.
pub(crate) fn first_hop(path: &[u8]) -> Option<Hop<'_>> {
    let (first, _) = sip_message::values::split_value(path);
    let addr = NameAddr::parse(first)?;
    addr.sip_uri().map(|uri| Hop {
        lead: Lead::Believed,
        ..Hop::of(&uri)
    })
}

impl Engine {
    /// Learns the addresses of a next hop of the configuration. An IP address is known already.
    pub(crate) fn meet_peers(&mut self, hop: &Hop<'_>, candidates: &Candidates) {
        let HostRef::Name(_) = hop.host else { return };
        let Some(known) = hop.known else { return };
        for candidate in candidates {
            let ip = candidate.address.ip();
            known.learn(ip);
            self.meet_peer(ip);
        }
    }

    /// The look-up that locates `hop`. `call_id` chooses among equals; `stateless`: no transaction
    /// will remember the choice.
    pub(crate) fn question<'h>(&self, hop: Hop<'h>, call_id: &[u8], stateless: bool) -> Question<'h> {
        let dice = match hop.host {
            HostRef::Name(_) => self.secrets.dice(call_id),
            HostRef::Ip(_) => 0,
        };
        Question {
            host: hop.host,
            port: hop.port,
            transport: hop.transport,
            secure: hop.secure,
            transports: self.directory.reach.transports,
            ipv4: self.directory.reach.ipv4,
            ipv6: self.directory.reach.ipv6,
            dice,
            stateless,
        }
    }
}
