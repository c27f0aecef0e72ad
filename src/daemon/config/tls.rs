//! TLS certificates, keys and client authorities from PEM files.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::{
    DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
};

use super::error::ConfigError;
use super::source::Source;

/// PEM files.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Clients need a certificate of this authority.
    pub client_authority: Option<PathBuf>,
    /// The name or address that client certificates must have.
    pub client_name: Option<String>,
}

/// PEM files for a server with TLS. Without an authority, the system's authorities are trusted.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct ServerTls {
    pub authority: Option<PathBuf>,
    /// The client certificate, with its key.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

impl Tls {
    /// Reads the files, adds them to `sources`, and makes a configuration for these ALPN protocols.
    pub fn server(&self, protocols: &[&str], sources: &mut Vec<Source>) -> Result<Arc<ServerConfig>, ConfigError> {
        let mut read = |path| -> Result<usize, ConfigError> {
            sources.push(Source::read(path)?);
            Ok(sources.len() - 1)
        };
        let (chain, key) = (read(&self.certificate)?, read(&self.key)?);
        let authority = self.client_authority.as_deref().map(read).transpose()?;
        let (chain, key, authority) = (&sources[chain], &sources[key], authority.map(|at| &sources[at]));

        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
        let builder = builder.expect("the provider supports them");
        let builder = match authority {
            None if self.client_name.is_some() => {
                return Err(invalid(chain)("client_name needs client_authority"));
            }
            None => builder.with_no_client_auth(),
            Some(source) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(source)? {
                    roots.add(certificate).map_err(invalid(source))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
                let mut verifier = verifier.map_err(invalid(source))?;
                if let Some(name) = &self.client_name {
                    let name = ServerName::try_from(name.clone()).map_err(invalid(source))?;
                    verifier = Arc::new(NamedClient { verifier, name });
                }
                builder.with_client_cert_verifier(verifier)
            }
        };
        let secret = PrivateKeyDer::from_pem_slice(key.text.as_bytes()).map_err(invalid(key))?;
        let mut config = builder.with_single_cert(certificates(chain)?, secret).map_err(invalid(key))?;
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().into()).collect();
        Ok(config.into())
    }
}

/// Accepts client certificates of one name only.
#[derive(Debug)]
struct NamedClient {
    verifier: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl ClientCertVerifier for NamedClient {
    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier.verify_client_cert(certificate, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(certificate)?, &self.name)?;
        Ok(verified)
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

fn certificates(source: &Source) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let all = CertificateDer::pem_slice_iter(source.text.as_bytes()).collect::<Result<Vec<_>, _>>();
    match all.map_err(invalid(source))? {
        none if none.is_empty() => Err(invalid(source)("the file has no certificate")),
        all => Ok(all),
    }
}

fn invalid<E: Display>(source: &Source) -> impl Fn(E) -> ConfigError + '_ {
    |error| ConfigError::in_file(&source.file, error)
}
