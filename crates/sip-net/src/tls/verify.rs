//! Verifying peers: the chain by the library, the name by the rules of SIP (RFC 5922 §7) and not
//! by those of HTTPS, which would let `*.example.com` match.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};
use webpki::{EndEntityCert, KeyUsage};

use super::error::TlsFileError;
use super::names::{SipIdentities, speaks_for};

/// `id-kp-sipDomain` (RFC 5924 §4): the certificate is for a SIP domain, at either end.
const SIP_DOMAIN: &[u8] = &[40 + 3, 6, 1, 5, 5, 7, 3, 20];

/// Whether peers that connect to us must show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ClientAuth {
    /// None is asked for.
    #[default]
    None,
    /// One is asked for; a peer without any is served, one with a bad one is not.
    Optional,
    /// None is served without.
    Required,
}

/// Verifies the servers that we connect to.
#[derive(Debug)]
pub(super) struct SipServerVerifier {
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl SipServerVerifier {
    pub(super) fn new(roots: Arc<RootCertStore>, provider: &CryptoProvider) -> Self {
        Self {
            roots,
            algorithms: provider.signature_verification_algorithms,
        }
    }
}

impl ServerCertVerifier for SipServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let chain = verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            intermediates,
            now,
            self.algorithms.all,
        );
        or_sip_domain(
            chain,
            end_entity,
            intermediates,
            now,
            &self.roots,
            self.algorithms,
        )?;
        if speaks_for(end_entity, server_name) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(Error::InvalidCertificate(
            CertificateError::NotValidForNameContext {
                expected: server_name.to_owned(),
                presented: SipIdentities::of(end_entity).iter().map(str::to_owned).collect(),
            },
        ))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Verifies the clients that connect to us. For which domain one speaks is decided by whoever relies
/// on it (RFC 5922 §7.4), unless the listener lets in certain ones alone.
#[derive(Debug)]
struct SipClientVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    /// The domains of which a client's certificate must name one; none: any will do.
    names: Vec<String>,
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// The verifier for a listener.
///
/// # Errors
/// There are no authorities to verify by.
pub(super) fn client_verifier(
    auth: ClientAuth,
    roots: Arc<RootCertStore>,
    names: &[String],
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsFileError> {
    let builder = || WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(provider));
    let inner = match auth {
        ClientAuth::None => return Ok(WebPkiClientVerifier::no_client_auth()),
        ClientAuth::Optional => builder().allow_unauthenticated().build(),
        ClientAuth::Required => builder().build(),
    }
    .map_err(|error| TlsFileError::Config(format!("client certificates cannot be verified: {error}")))?;
    Ok(Arc::new(SipClientVerifier {
        inner,
        names: names.to_vec(),
        roots,
        algorithms: provider.signature_verification_algorithms,
    }))
}

impl ClientCertVerifier for SipClientVerifier {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let chain = self
            .inner
            .verify_client_cert(end_entity, intermediates, now)
            .map(drop);
        or_sip_domain(
            chain,
            end_entity,
            intermediates,
            now,
            &self.roots,
            self.algorithms,
        )?;
        let identities = SipIdentities::of(end_entity);
        if !self.names.is_empty() && !self.names.iter().any(|name| identities.contains(name)) {
            return Err(Error::InvalidCertificate(
                CertificateError::ApplicationVerificationFailure,
            ));
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// A chain that holds but for what the certificate says it may be used for is verified once more
/// as that of a SIP domain, where it says so (RFC 5924 §5).
fn or_sip_domain(
    chain: Result<(), Error>,
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    now: UnixTime,
    roots: &RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
) -> Result<(), Error> {
    let Err(error) = chain else { return Ok(()) };
    let is_purpose = matches!(
        error,
        Error::InvalidCertificate(
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. }
        )
    );
    let for_sip_domain = || {
        EndEntityCert::try_from(end_entity).is_ok_and(|certificate| {
            certificate
                .verify_for_usage(
                    algorithms.all,
                    &roots.roots,
                    intermediates,
                    now,
                    KeyUsage::required(SIP_DOMAIN),
                    None,
                    None,
                )
                .is_ok()
        })
    };
    if is_purpose && for_sip_domain() {
        return Ok(());
    }
    Err(error)
}
