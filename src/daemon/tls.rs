//! TLS: what clients are shown and asked for, as the files have it at the moment.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use tls_listener::AsyncTls;
use tokio::net::TcpStream;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

use crate::fault::Fault;
use crate::limits::Source;
use crate::service::Service;
use crate::settings::Configuration;

/// PEM files.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Clients have to show a certificate that this one vouches for.
    pub client_authority: Option<PathBuf>,
}

impl Tls {
    /// What the files say, for a server that speaks these protocols. The files are added to `sources`.
    pub fn server(&self, protocols: &[&str], sources: &mut Vec<Source>) -> Result<Arc<ServerConfig>, Fault> {
        let mut read = |path| -> Result<usize, Fault> {
            sources.push(Source::read(path)?);
            Ok(sources.len() - 1)
        };
        let (chain, key) = (read(&self.certificate)?, read(&self.key)?);
        let authority = self.client_authority.as_deref().map(read).transpose()?;
        let (chain, key, authority) = (&sources[chain], &sources[key], authority.map(|at| &sources[at]));

        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
        let builder = builder.expect("the provider has them");
        let builder = match authority {
            None => builder.with_no_client_auth(),
            Some(source) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(source)? {
                    roots.add(certificate).map_err(fault(source))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(fault(source))?)
            }
        };
        let secret = PrivateKeyDer::from_pem_slice(key.text.as_bytes()).map_err(fault(key))?;
        let mut config = builder.with_single_cert(certificates(chain)?, secret).map_err(fault(key))?;
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().into()).collect();
        Ok(config.into())
    }
}

fn certificates(source: &Source) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let all = CertificateDer::pem_slice_iter(source.text.as_bytes()).collect::<Result<Vec<_>, _>>();
    match all.map_err(fault(source))? {
        none if none.is_empty() => Err(fault(source)("there is no certificate in it")),
        all => Ok(all),
    }
}

fn fault<E: Display>(source: &Source) -> impl Fn(E) -> Fault + '_ {
    |error| Fault::in_file(&source.file, error)
}

/// Accepts each connection with what is in force when it comes.
#[derive(Clone)]
pub struct Acceptor {
    service: Arc<Service>,
    of: fn(&Configuration) -> Option<&Arc<ServerConfig>>,
}

impl Acceptor {
    /// None if the service began without TLS there.
    pub fn new(service: &Arc<Service>, of: fn(&Configuration) -> Option<&Arc<ServerConfig>>) -> Option<Self> {
        of(&service.live().configuration)?;
        Some(Self { service: service.clone(), of })
    }
}

impl AsyncTls<TcpStream> for Acceptor {
    type Stream = TlsStream<TcpStream>;
    type Error = io::Error;
    type AcceptFuture = Accept<TcpStream>;

    fn accept(&self, stream: TcpStream) -> Self::AcceptFuture {
        let _ = stream.set_nodelay(true); // else a small answer waits for the one before it to arrive
        let live = self.service.live();
        let config = (self.of)(&live.configuration).expect("TLS that has begun goes on");
        TlsAcceptor::from(config.clone()).accept(stream)
    }
}
