//! Verification of peers: the chain by the library, the name by the rules of SIP (RFC 5922 §7). The rules of
//! HTTPS would let `*.example.com` match.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use super::error::TlsFileError;
use super::names::{SipIdentities, speaks_for};
use super::trust::{Purpose, Trust};

/// Whether peers that connect to us must present a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ClientAuth {
    /// No certificate is asked for.
    #[default]
    None,
    /// A certificate is asked for. A peer without any is served; a peer with a bad one is not.
    Optional,
    /// A peer without a certificate is not served.
    Required,
}

/// The part that both verifiers leave to the library: the signatures that prove possession of the key.
macro_rules! signatures_by_library {
    () => {
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
    };
}

/// Verifies the servers that we connect to.
#[derive(Debug)]
pub(super) struct SipServerVerifier {
    trust: Trust,
    algorithms: WebPkiSupportedAlgorithms,
}

impl SipServerVerifier {
    pub(super) fn new(trust: Trust, provider: &CryptoProvider) -> Self {
        Self {
            trust,
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
        let chain = (end_entity, intermediates);
        self.trust.verify(Purpose::Server, chain, now, self.algorithms)?;
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

    signatures_by_library!();
}

/// Verifies the clients that connect to us. The code that relies on a client's certificate decides which
/// domain the certificate names (RFC 5922 §7.4), unless the listener accepts certain domains only.
#[derive(Debug)]
struct SipClientVerifier {
    trust: Trust,
    /// Names of the authorities, for clients that have several certificates.
    hints: Vec<DistinguishedName>,
    is_required: bool,
    /// The domains of which a client's certificate must name one; empty: any certificate is accepted.
    names: Vec<String>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// The verifier for a listener.
///
/// # Errors
/// There are no authorities to verify by.
pub(super) fn client_verifier(
    auth: ClientAuth,
    trust: Trust,
    names: &[String],
    provider: &CryptoProvider,
) -> Result<Arc<dyn ClientCertVerifier>, TlsFileError> {
    let is_required = match auth {
        ClientAuth::None => return Ok(WebPkiClientVerifier::no_client_auth()),
        ClientAuth::Optional => false,
        ClientAuth::Required => true,
    };
    if trust.roots.is_empty() {
        let what = "client certificates cannot be verified: there are no authorities";
        return Err(TlsFileError::Config(what.to_owned()));
    }
    Ok(Arc::new(SipClientVerifier {
        hints: trust.roots.subjects(),
        trust,
        is_required,
        names: names.to_vec(),
        algorithms: provider.signature_verification_algorithms,
    }))
}

impl ClientCertVerifier for SipClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.is_required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let chain = (end_entity, intermediates);
        self.trust.verify(Purpose::Client, chain, now, self.algorithms)?;
        let identities = SipIdentities::of(end_entity);
        if !self.names.is_empty() && !self.names.iter().any(|name| identities.contains(name)) {
            return Err(Error::InvalidCertificate(
                CertificateError::ApplicationVerificationFailure,
            ));
        }
        Ok(ClientCertVerified::assertion())
    }

    signatures_by_library!();
}
