//! Our TLS clients: one for most peers, and one for each peer with settings of its own.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rustls::time_provider::TimeProvider;

use super::config::{ClientSettings, TlsClient};
use super::error::{TlsFileError, TlsWarning};

/// TLS clients for the peers to which we connect. Each has the authorities that verify the peer, and our
/// certificate for the peer.
pub struct TlsClients {
    others: One,
    /// Clients for peers with settings of their own, by SIP domain in lower case.
    by_domain: HashMap<Box<str>, One>,
    clock: Arc<dyn TimeProvider>,
}

impl fmt::Debug for TlsClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClients")
            .field("others", &self.others)
            .field("by_domain", &self.by_domain)
            .finish_non_exhaustive()
    }
}

/// A client, with its settings, by which its files can be checked before they are used.
#[derive(Debug)]
struct One {
    /// `None` if the client was made elsewhere.
    settings: Option<ClientSettings>,
    client: Arc<TlsClient>,
}

impl One {
    fn load(
        settings: ClientSettings,
        clock: &Arc<dyn TimeProvider>,
        warnings: &mut Vec<TlsWarning>,
    ) -> Result<Self, TlsFileError> {
        let client = TlsClient::load(settings.clone(), Arc::clone(clock), warnings)?;
        Ok(Self {
            settings: Some(settings),
            client: Arc::new(client),
        })
    }

    fn made(client: Arc<TlsClient>) -> Self {
        Self {
            settings: None,
            client,
        }
    }
}

impl TlsClients {
    /// Clients that use `others` for every peer without an entry in `peers`, a list of SIP domains and their
    /// clients.
    pub fn new(others: Arc<TlsClient>, peers: impl IntoIterator<Item = (String, Arc<TlsClient>)>) -> Self {
        let own = |(domain, client): (String, _)| (Box::from(bare(&domain).as_ref()), One::made(client));
        Self {
            others: One::made(others),
            by_domain: peers.into_iter().map(own).collect(),
            clock: super::system_clock(),
        }
    }

    /// Reads and checks all files. `peers` are SIP domains with settings of their own; of two entries for one
    /// domain the later counts.
    ///
    /// # Errors
    /// A file is missing or wrong, or the system has no authorities where none are named.
    pub fn load(
        others: ClientSettings,
        peers: impl IntoIterator<Item = (String, ClientSettings)>,
        clock: Arc<dyn TimeProvider>,
        warnings: &mut Vec<TlsWarning>,
    ) -> Result<Self, TlsFileError> {
        let others = One::load(others, &clock, warnings)?;
        let mut by_domain = HashMap::new();
        for (domain, settings) in peers {
            let one = One::load(settings, &clock, warnings)?;
            by_domain.insert(Box::from(bare(&domain).as_ref()), one);
        }
        Ok(Self {
            others,
            by_domain,
            clock,
        })
    }

    /// The client for a server of `domain`: the host of the URI before any resolution, as
    /// [`TlsClient::connect`] takes it. Neither case nor a final dot matters.
    pub fn for_domain(&self, domain: &str) -> &Arc<TlsClient> {
        // Most configurations have no client of one domain.
        let own = match self.by_domain.is_empty() {
            true => None,
            false => self.by_domain.get(bare(domain).as_ref()),
        };
        &own.unwrap_or(&self.others).client
    }

    /// Reads all files again. The files of [`TlsClients::load`] are all checked before any is used, so that a
    /// bad file changes nothing (unless it turns bad between check and use).
    ///
    /// # Errors
    /// A file is missing or wrong.
    pub fn reload(&self) -> Result<Vec<TlsWarning>, TlsFileError> {
        let all = || std::iter::once(&self.others).chain(self.by_domain.values());
        for settings in all().filter_map(|one| one.settings.clone()) {
            TlsClient::load(settings, Arc::clone(&self.clock), &mut Vec::new())?;
        }
        let mut warnings = Vec::new();
        for one in all() {
            for warning in one.client.reload()? {
                // Several clients have the same authorities, and often the same certificate.
                if !warnings.contains(&warning) {
                    warnings.push(warning);
                }
            }
        }
        Ok(warnings)
    }
}

/// A domain in the form for look-ups: lower case, without a final dot or the brackets of an address.
fn bare(domain: &str) -> Cow<'_, str> {
    let bare = domain
        .strip_prefix('[')
        .and_then(|domain| domain.strip_suffix(']'))
        .unwrap_or(domain);
    let bare = bare.strip_suffix('.').unwrap_or(bare);
    if bare.bytes().any(|c| c.is_ascii_uppercase()) {
        Cow::Owned(bare.to_ascii_lowercase())
    } else {
        Cow::Borrowed(bare)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    use super::super::{ClientAuth, IdentityFiles, ServerSettings, TlsServer, system_clock};
    use super::*;

    /// An authority, with the files that it issued.
    struct Authority {
        directory: tempfile::TempDir,
        issuer: Issuer<'static, KeyPair>,
    }

    impl Authority {
        #[track_caller]
        fn new() -> Self {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().unwrap();
            let directory = tempfile::tempdir().unwrap();
            fs::write(
                directory.path().join("ca.pem"),
                params.self_signed(&key).unwrap().pem(),
            )
            .unwrap();
            Self {
                directory,
                issuer: Issuer::new(params, key),
            }
        }

        fn ca(&self) -> PathBuf {
            self.directory.path().join("ca.pem")
        }

        #[track_caller]
        fn issue(&self, domain: &str) -> IdentityFiles {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![domain.to_owned()]).unwrap();
            let place = |end: &str| self.directory.path().join(format!("{domain}{end}"));
            let files = IdentityFiles {
                certificate: place(".pem"),
                key: place(".key"),
            };
            fs::write(
                &files.certificate,
                params.signed_by(&key, &self.issuer).unwrap().pem(),
            )
            .unwrap();
            fs::write(&files.key, key.serialize_pem()).unwrap();
            files
        }
    }

    fn settings(ca: &Path, identity: Option<IdentityFiles>) -> ClientSettings {
        ClientSettings {
            identity,
            ca: Some(ca.to_owned()),
            remembered_peers: 4,
            ..ClientSettings::default()
        }
    }

    /// The identities in our certificate as seen by a server that asks for one; `None` if the handshake
    /// fails.
    #[track_caller]
    fn seen(clients: &TlsClients, domain: &str, server: &TlsServer) -> Option<Vec<String>> {
        let mut to_server = Vec::new();
        let mut to_client = Vec::new();
        let mut client = clients
            .for_domain(domain)
            .connect(domain, &mut to_server)
            .unwrap();
        let mut server = server.accept().unwrap();
        while !to_server.is_empty() || !to_client.is_empty() {
            server
                .feed(&mut std::mem::take(&mut to_server), &mut to_client, |_| {})
                .ok()?;
            client
                .feed(&mut std::mem::take(&mut to_client), &mut to_server, |_| {})
                .ok()?;
        }
        Some(server.peer_identities().iter().map(str::to_owned).collect())
    }

    #[track_caller]
    fn server(authority: &Authority, domain: &str) -> TlsServer {
        let settings = ServerSettings {
            identities: vec![authority.issue(domain)],
            client_auth: ClientAuth::Optional,
            client_ca: Some(authority.ca()),
            ..ServerSettings::default()
        };
        TlsServer::load(settings, None, system_clock(), &mut Vec::new()).unwrap()
    }

    #[test]
    fn a_peer_has_authorities_and_a_certificate_of_its_own() {
        let (all, partner) = (Authority::new(), Authority::new());
        let own = all.issue("us.example");
        let for_partner = partner.issue("guest.example");
        let clients = TlsClients::load(
            settings(&all.ca(), Some(own)),
            [(
                "Partner.example.".to_owned(),
                settings(&partner.ca(), Some(for_partner)),
            )],
            system_clock(),
            &mut Vec::new(),
        )
        .unwrap();
        let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(
            seen(&clients, "gw.example", &server(&all, "gw.example")),
            names(&["us.example"])
        );
        let theirs = server(&partner, "partner.example");
        assert_eq!(
            seen(&clients, "partner.example", &theirs),
            names(&["guest.example"])
        );
        assert_eq!(
            seen(&clients, "PARTNER.example.", &theirs),
            names(&["guest.example"])
        );
        // The partner's authority verifies the partner only, and no other authority verifies the partner.
        assert_eq!(
            seen(&clients, "gw.example", &server(&partner, "gw.example")),
            None
        );
        assert_eq!(
            seen(&clients, "partner.example", &server(&all, "partner.example")),
            None
        );
        assert!(!Arc::ptr_eq(
            clients.for_domain("partner.example"),
            clients.for_domain("sub.partner.example")
        ));
    }

    #[test]
    fn a_bad_file_leaves_all_as_they_were() {
        let (all, partner) = (Authority::new(), Authority::new());
        let own = all.issue("old.example");
        let for_partner = partner.issue("guest.example");
        let clients = TlsClients::load(
            settings(&all.ca(), Some(own.clone())),
            [(
                "partner.example".to_owned(),
                settings(&partner.ca(), Some(for_partner.clone())),
            )],
            system_clock(),
            &mut Vec::new(),
        )
        .unwrap();
        let theirs = server(&all, "gw.example");
        let shown = || seen(&clients, "gw.example", &theirs).unwrap();
        assert_eq!(shown(), ["old.example"]);

        let new = all.issue("new.example");
        fs::copy(&new.certificate, &own.certificate).unwrap();
        fs::copy(&new.key, &own.key).unwrap();
        let good = fs::read(&for_partner.key).unwrap();
        fs::write(&for_partner.key, "no key").unwrap();
        let error = clients.reload().unwrap_err();
        assert!(
            matches!(&error, TlsFileError::NoKey { path } if *path == for_partner.key),
            "{error}"
        );
        assert_eq!(shown(), ["old.example"], "the good one waits until all are good");

        fs::write(&for_partner.key, good).unwrap();
        clients.reload().unwrap();
        assert_eq!(shown(), ["new.example"]);
    }
}
