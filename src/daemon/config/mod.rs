//! The configuration: `swlimitd.yaml` and all files that it names, parsed and validated.

pub mod access;
pub mod address;
pub mod duration;
pub mod environment;
pub mod error;
pub mod hashed;
pub mod limits;
pub mod path;
pub mod policy;
pub mod proxy;
mod renamed;
pub mod settings;
pub mod source;
pub mod tls;
pub mod watched;
pub mod words;
pub mod xds;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{json, Map, Value};
use tokio_rustls::rustls::ServerConfig;

use access::Access;
use environment::Environment;
use error::ConfigError;
use limits::Limits;
pub use renamed::explained;
use settings::Settings;
use source::Source;
use tls::Tls;
use watched::Watched;

/// Where the configuration is read if nothing names another file.
const DEFAULT_FILE: &str = "/etc/swlimitd/swlimitd.yaml";

/// Digits of a configuration's hash.
const HASH_DIGITS: usize = 16;

/// Where the configuration is read.
pub enum Origin {
    File(PathBuf),
    /// envoyproxy/ratelimit's variables.
    Environment,
}

impl Origin {
    /// The named file; else envoyproxy/ratelimit's variables if they are set; else the default file.
    pub fn new(named: Option<PathBuf>) -> Self {
        match named {
            Some(path) => Self::File(path),
            None if Environment::is_set() => Self::Environment,
            None => Self::File(DEFAULT_FILE.into()),
        }
    }

    /// The text of `swlimitd.yaml`, and the folder where its paths begin.
    fn read(&self) -> Result<(Source, &Path), ConfigError> {
        match self {
            Self::File(path) => Ok((Source::read(path)?, path.parent().unwrap_or(Path::new("")))),
            Self::Environment => Ok((Environment::read()?.source(), Path::new(""))),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Environment => f.write_str(environment::NAME),
        }
    }
}

/// A valid configuration.
#[derive(Debug)]
pub struct Configuration {
    pub settings: Settings,
    pub limits: Limits,
    pub access: Access,
    pub grpc_tls: Option<Arc<ServerConfig>>,
    pub http_tls: Option<Arc<ServerConfig>>,
    /// The limits of the control plane; `None` until the first ones are known.
    pub discovered: Option<Vec<Source>>,
    /// Why the cached limits are not used. The start then waits for the control plane to send them again.
    pub unusable: Option<ConfigError>,
    /// The files it was read from, with their text.
    pub sources: Vec<Source>,
    /// Equal for processes that decide by the same configuration. Passwords are no part of it, since it is public.
    pub hash: String,
}

impl Configuration {
    /// Reads `swlimitd.yaml`, or the variables in its place, and the files that it names. Until the control plane has
    /// sent limits, the cached ones are read.
    pub fn load(origin: &Origin, discovered: Option<Vec<Source>>) -> Result<Self, ConfigError> {
        let (own, folder) = origin.read()?;
        let settings = Settings::read(&own, folder)?;
        let read = |paths: &[PathBuf]| Source::read_all(paths, settings.ignore_dot_files);
        let (mut files, overlays) = (read(&settings.limits)?, read(&settings.overlays)?);
        let (discovered, unusable) = match (&settings.xds, discovered) {
            (Some(xds), None) => match xds.kept().and_then(|kept| valid(kept, &settings)) {
                Ok(kept) => (kept, None),
                Err(error) => (None, Some(error)),
            },
            (Some(_), known) => (known, None),
            (None, _) => (None, None),
        };
        let is_empty = settings.xds.is_some() && discovered.as_ref().is_none_or(Vec::is_empty);
        files.extend(discovered.clone().unwrap_or_default());
        // What overlays name is still to come.
        let limits = Limits::load(&files, if is_empty { &[] } else { &overlays }, &settings)?;
        let hash = hash(&own, &settings, files.iter().chain(&overlays))?;
        let tokens = read(settings.api.tokens.as_slice())?;
        let access = Access::new(&tokens, &settings.api)?;
        let mut sources: Vec<_> = [vec![own], files, overlays, tokens].into_iter().flatten().collect();
        let mut server = |tls: &Option<Tls>, protocols: &[&str]| {
            tls.as_ref().map(|tls| tls.server(protocols, &mut sources)).transpose()
        };
        let grpc_tls = server(&settings.grpc.tls, &["h2"])?;
        let http_tls = server(&settings.http.tls, &["h2", "http/1.1"])?;
        Ok(Self { settings, limits, access, grpc_tls, http_tls, discovered, unusable, sources, hash })
    }

    /// Whether it was read from the same text.
    pub fn says_the_same_as(&self, other: &Self) -> bool {
        (&self.sources, &self.discovered) == (&other.sources, &other.discovered)
    }

    /// Takes over from another configuration. Listeners keep their TLS until a restart.
    pub fn replace(&mut self, other: &Self) {
        for (own, before) in [(&mut self.grpc_tls, &other.grpc_tls), (&mut self.http_tls, &other.http_tls)] {
            *own = own.take().or_else(|| before.clone());
        }
    }

    /// What to watch for changes of this configuration.
    pub fn watched(&self, origin: &Origin) -> Watched {
        let mut watched = Watched::default();
        let own = match origin {
            Origin::File(path) => Some(&**path),
            Origin::Environment => None,
        };
        for path in self.settings.paths().chain(own) {
            watched.add(path, self.settings.ignore_dot_files);
        }
        watched
    }
}

/// Hashes a configuration: its keys in any order, and the text of its limits. Comments, secrets and keys that differ
/// between the processes of a fleet are left out.
fn hash<'a>(
    own: &Source,
    settings: &Settings,
    limits: impl Iterator<Item = &'a Source>,
) -> Result<String, ConfigError> {
    let mut keys: Map<String, Value> = error::parse::<Option<_>>(&own.file, &own.text)?.unwrap_or_default();
    keys.insert("server".into(), settings.server.to_string().into());
    for (group, key) in [
        ("grpc", "address"),
        ("http", "address"),
        ("sentinel", "password"),
        ("xds", "headers"),
        ("xds", "node"),
        ("xds", "node_metadata"),
    ] {
        keys.get_mut(group).and_then(Value::as_object_mut).map(|group| group.remove(key));
    }
    for paths in ["limits", "overlays"] {
        keys.remove(paths);
    }
    let texts: Vec<_> = limits.map(|source| &*source.text).collect();
    let mut hash = hashed::sha256(json!([keys, texts]).to_string().as_bytes());
    hash.truncate(HASH_DIGITS);
    Ok(hash)
}

/// The cached limits, if this version accepts them.
fn valid(kept: Option<Vec<Source>>, settings: &Settings) -> Result<Option<Vec<Source>>, ConfigError> {
    Limits::load(kept.as_deref().unwrap_or_default(), &[], settings).map(|_| kept)
}
