//! Our ends towards peers, of which some are shown or verified by files of their own.

use std::collections::HashMap;
use std::sync::Arc;

use super::config::TlsClient;

/// Our end of TLS towards peers: one for all, and others for some.
#[derive(Debug)]
pub struct TlsClients {
    all: Arc<TlsClient>,
    /// By the peer's domain, lower case.
    some: HashMap<Box<str>, Arc<TlsClient>>,
}

impl TlsClients {
    /// `all` for every peer but those of `some`, each a domain and the end that serves it.
    pub fn new(all: Arc<TlsClient>, some: impl IntoIterator<Item = (String, Arc<TlsClient>)>) -> Self {
        let lower = |(domain, client): (String, _)| (domain.to_ascii_lowercase().into(), client);
        Self {
            all,
            some: some.into_iter().map(lower).collect(),
        }
    }

    /// The end that serves the peer of this domain.
    pub fn for_domain(&self, domain: &str) -> &Arc<TlsClient> {
        let own = match self.some.is_empty() {
            true => None,
            false => self.some.get(domain.to_ascii_lowercase().as_str()),
        };
        own.unwrap_or(&self.all)
    }
}
