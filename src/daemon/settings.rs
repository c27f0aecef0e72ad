//! The daemon's own configuration file: where it listens, which server counts, which files say what is limited.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde::{de, Deserialize, Deserializer};
use tokio_rustls::rustls::ServerConfig;

use crate::access::Access;
use crate::auth::Auth;
use crate::fault::{parse, Fault};
use crate::limits::{Deciding, Duration, Limits, Manner, Share, Source, WhenAway};
use crate::tls::Tls;

/// The server that stands for having none: everything is decided in this process.
pub const ONLY_LOCAL: &str = "only_local";

/// The environment variable that goes before `server`, whose address may hold a password.
const SERVER_VARIABLE: &str = "SWLIMITD_SERVER";

/// The configuration file. What is not there has a default.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Where the counting server is.
    pub server: String,
    /// The longest that a request waits for it.
    pub timeout: Duration,
    /// What every key begins with.
    pub key_prefix: String,

    pub grpc: Grpc,
    pub http: Http,
    pub auth: Auth,
    pub api: Api,

    /// Files of limits, or folders of such files.
    pub limits: Vec<PathBuf>,
    /// Files that are laid over those.
    pub overlays: Vec<PathBuf>,

    // For limits that do not say it themselves.
    pub deciding: Deciding,
    pub share: Share,
    pub interval: Duration,
    pub when_away: WhenAway,

    /// Nobody is told to deny anything.
    pub shadow_mode: bool,
    /// Every descriptor's rule is in quota mode.
    pub quota_mode: bool,
    /// Replies name the headers `RateLimit-Limit`, `-Remaining` and `-Reset`.
    pub rate_limit_headers: bool,
    /// Replies carry what was asked, and the metadata of the rules that granted it.
    pub dynamic_metadata: bool,

    pub log: Log,
    pub traces: Option<Traces>,
}

impl Default for Settings {
    fn default() -> Self {
        let Manner { deciding, share, interval, when_away } = Manner::default();
        Self {
            server: "redis://127.0.0.1:6379".into(),
            timeout: Duration(50),
            key_prefix: String::new(),
            grpc: Grpc::default(),
            http: Http::default(),
            auth: Auth::default(),
            api: Api::default(),
            limits: Vec::new(),
            overlays: Vec::new(),
            deciding,
            share: Share(share),
            interval: Duration(interval),
            when_away,
            shadow_mode: false,
            quota_mode: false,
            rate_limit_headers: false,
            dynamic_metadata: false,
            log: Log::default(),
            traces: None,
        }
    }
}

/// Where gRPC is spoken.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Grpc {
    pub address: Address,
    pub tls: Option<Tls>,
}

impl Default for Grpc {
    fn default() -> Self {
        Self { address: Address::Tcp(([127, 0, 0, 1], 8081).into()), tls: None }
    }
}

/// Where HTTP is spoken.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    pub address: Address,
    pub tls: Option<Tls>,
}

impl Default for Http {
    fn default() -> Self {
        Self { address: Address::Tcp(([127, 0, 0, 1], 8080).into()), tls: None }
    }
}

/// Who may use the API under `/v1`.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Api {
    /// A file of tokens, one a line: whoever has one.
    pub tokens: Option<PathBuf>,
    /// Without tokens: others than this machine, too.
    pub anybody: bool,
}

/// An address to listen at: `127.0.0.1:8081`, or `unix:/run/swlimitd.sock`.
#[derive(Clone, Debug, PartialEq)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word.strip_prefix("unix:") {
            Some(path) => Ok(Self::Unix(path.into())),
            None => {
                word.parse().map(Self::Tcp).map_err(|_| format!("'{word}' is not an address such as 127.0.0.1:8081"))
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// As `RUST_LOG` has it: `info`, or `swlimitd=debug,warn`.
    pub level: String,
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".into(), format: LogFormat::default() }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Whom to tell of every request, for OpenTelemetry.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Traces {
    /// A collector that takes OTLP over gRPC.
    pub endpoint: String,
    /// What part of the requests is told whose callers have not decided that.
    #[serde(default = "Traces::all")]
    pub share: Share,
}

impl Traces {
    fn all() -> Share {
        Share(1.0)
    }
}

/// All that is configured, checked.
#[derive(Debug)]
pub struct Configuration {
    pub settings: Settings,
    pub limits: Limits,
    /// Who may use the API.
    pub access: Access,
    /// What clients are shown, where they are.
    grpc_tls: Option<Arc<ServerConfig>>,
    http_tls: Option<Arc<ServerConfig>>,
    /// The files that say it, with their texts.
    pub sources: Vec<Source>,
}

impl Configuration {
    /// What a configuration file says, and the files that it names. Relative paths begin where that file is.
    pub fn load(path: &Path) -> Result<Self, Fault> {
        let own = Source::read(path)?;
        let settings = Settings::read(&own, path.parent().unwrap_or(Path::new("")))?;
        let (files, overlays) = (read_all(&settings.limits)?, read_all(&settings.overlays)?);
        let limits = Limits::load(&files, &overlays, settings.manner(), settings.quota_mode)?;
        let tokens = read_all(settings.api.tokens.as_slice())?;
        let access = Access::new(&tokens, settings.api.anybody)?;
        let mut sources: Vec<_> = [vec![own], files, overlays, tokens].into_iter().flatten().collect();
        let mut server = |tls: &Option<Tls>, protocols: &[&str]| {
            tls.as_ref().map(|tls| tls.server(protocols, &mut sources)).transpose()
        };
        let grpc_tls = server(&settings.grpc.tls, &["h2"])?;
        let http_tls = server(&settings.http.tls, &["h2", "http/1.1"])?;
        Ok(Self { settings, limits, access, grpc_tls, http_tls, sources })
    }

    pub fn grpc_tls(&self) -> Option<&Arc<ServerConfig>> {
        self.grpc_tls.as_ref()
    }

    pub fn http_tls(&self) -> Option<&Arc<ServerConfig>> {
        self.http_tls.as_ref()
    }

    /// Take the place of another one. TLS that has begun goes on until a restart.
    pub fn replace(&mut self, other: &Self) {
        for (own, before) in [(&mut self.grpc_tls, &other.grpc_tls), (&mut self.http_tls, &other.http_tls)] {
            *own = own.take().or_else(|| before.clone());
        }
    }

    /// The folders in which something changes when the configuration does.
    pub fn folders(&self, path: &Path) -> BTreeSet<PathBuf> {
        let Settings { limits, overlays, api, grpc, http, .. } = &self.settings;
        let tls = grpc.tls.iter().chain(&http.tls);
        let pem = tls.flat_map(|tls| [&tls.certificate, &tls.key].into_iter().chain(&tls.client_authority));
        let named = limits.iter().chain(overlays).chain(&api.tokens).chain(pem).map(PathBuf::as_path);
        let folder = |path: &Path| match path.is_dir() {
            true => path.into(),
            false => path.parent().map_or(PathBuf::from("."), |parent| Path::new(".").join(parent)),
        };
        named.chain([path]).map(folder).collect()
    }
}

impl Settings {
    fn read(source: &Source, folder: &Path) -> Result<Self, Fault> {
        let mut settings: Self = parse(&source.file, &source.text)?;
        if let Ok(server) = std::env::var(SERVER_VARIABLE) {
            settings.server = server;
        }
        for (address, tls) in
            [(&settings.grpc.address, &settings.grpc.tls), (&settings.http.address, &settings.http.tls)]
        {
            if let (Address::Unix(_), Some(_)) = (address, tls) {
                return Err(Fault::in_file(&source.file, format!("{address} is of this machine alone and has no TLS")));
            }
        }
        let tls = settings.grpc.tls.iter_mut().chain(&mut settings.http.tls);
        let keys =
            tls.flat_map(|tls| [&mut tls.certificate, &mut tls.key].into_iter().chain(&mut tls.client_authority));
        for path in keys.chain(&mut settings.limits).chain(&mut settings.overlays).chain(&mut settings.api.tokens) {
            *path = folder.join(&*path);
        }
        Ok(settings)
    }

    /// How limits are decided that do not say it themselves.
    pub fn manner(&self) -> Manner {
        let Self { deciding, share: Share(share), interval: Duration(interval), when_away, .. } = *self;
        Manner { deciding, share, interval, when_away }
    }

    /// Whether what is fixed when the daemon starts is the same.
    pub fn starts_as(&self, other: &Self) -> bool {
        (&self.server, self.timeout) == (&other.server, other.timeout)
            && (&self.grpc.address, self.grpc.tls.is_some()) == (&other.grpc.address, other.grpc.tls.is_some())
            && (&self.http.address, self.http.tls.is_some()) == (&other.http.address, other.http.tls.is_some())
            && self.log == other.log
            && self.traces == other.traces
    }
}

/// Files, and those in folders whose names end in `.yaml` or `.yml` and do not begin with a dot, by name.
fn read_all(paths: &[PathBuf]) -> Result<Vec<Source>, Fault> {
    let mut files = Vec::new();
    for path in paths {
        match path.is_dir() {
            true => files.extend(yaml_files(path).map_err(|error| Fault::in_file(&path.to_string_lossy(), error))?),
            false => files.push(path.clone()),
        }
    }
    files.iter().map(|file| Source::read(file)).collect()
}

fn yaml_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = folder.read_dir()?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    files.retain(|file| {
        let is_yaml = file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        is_yaml && file.is_file() && !file.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
    });
    files.sort();
    Ok(files)
}
