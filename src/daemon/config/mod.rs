//! The configuration: `swlimitd.yaml` and all files that it names, parsed and validated.

pub mod access;
pub mod address;
pub mod duration;
pub mod error;
pub mod limits;
pub mod path;
pub mod policy;
pub mod proxy;
mod renamed;
pub mod settings;
pub mod source;
pub mod tls;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;

use access::Access;
use error::ConfigError;
use limits::Limits;
pub use renamed::explained;
use settings::Settings;
use source::Source;
use tls::Tls;

/// A valid configuration.
#[derive(Debug)]
pub struct Configuration {
    pub settings: Settings,
    pub limits: Limits,
    pub access: Access,
    pub grpc_tls: Option<Arc<ServerConfig>>,
    pub http_tls: Option<Arc<ServerConfig>>,
    /// The files it was read from, with their text.
    pub sources: Vec<Source>,
}

impl Configuration {
    /// Reads `swlimitd.yaml` and the files that it names.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let own = Source::read(path)?;
        let settings = Settings::read(&own, path.parent().unwrap_or(Path::new("")))?;
        let (files, overlays) = (Source::read_all(&settings.limits)?, Source::read_all(&settings.overlays)?);
        let limits = Limits::load(&files, &overlays, &settings)?;
        let tokens = Source::read_all(settings.api.tokens.as_slice())?;
        let access = Access::new(&tokens, &settings.api)?;
        let mut sources: Vec<_> = [vec![own], files, overlays, tokens].into_iter().flatten().collect();
        let mut server = |tls: &Option<Tls>, protocols: &[&str]| {
            tls.as_ref().map(|tls| tls.server(protocols, &mut sources)).transpose()
        };
        let grpc_tls = server(&settings.grpc.tls, &["h2"])?;
        let http_tls = server(&settings.http.tls, &["h2", "http/1.1"])?;
        Ok(Self { settings, limits, access, grpc_tls, http_tls, sources })
    }

    /// Takes over from another configuration. Listeners keep their TLS until a restart.
    pub fn replace(&mut self, other: &Self) {
        for (own, before) in [(&mut self.grpc_tls, &other.grpc_tls), (&mut self.http_tls, &other.http_tls)] {
            *own = own.take().or_else(|| before.clone());
        }
    }

    /// The folders to watch for changes of the configuration at `path`.
    pub fn folders(&self, path: &Path) -> BTreeSet<PathBuf> {
        let folder = |path: &Path| match path.is_dir() {
            true => path.into(),
            false => path.parent().map_or(PathBuf::from("."), |parent| Path::new(".").join(parent)),
        };
        self.settings.paths().chain([path]).map(folder).collect()
    }
}
