//! TLS certificates, keys and client authorities from PEM files.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::error::ConfigError;
use super::source::Source;

/// PEM files.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Clients need a certificate of this authority.
    pub client_authority: Option<PathBuf>,
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
            None => builder.with_no_client_auth(),
            Some(source) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(source)? {
                    roots.add(certificate).map_err(invalid(source))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(invalid(source))?)
            }
        };
        let secret = PrivateKeyDer::from_pem_slice(key.text.as_bytes()).map_err(invalid(key))?;
        let mut config = builder.with_single_cert(certificates(chain)?, secret).map_err(invalid(key))?;
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().into()).collect();
        Ok(config.into())
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
