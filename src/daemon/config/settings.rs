//! The keys of `swlimitd.yaml`.

use std::path::{Path, PathBuf};

use serde::{de, Deserialize, Deserializer};

use super::address::Address;
use super::duration::Duration;
use super::error::{parse, ConfigError};
use super::policy::{Defaults, Mode, OnFailure, PolicyKeys, Share};
use super::proxy::Auth;
use super::source::Source;
use super::tls::Tls;

/// The environment variable that overrides `server`, whose URL may hold a password.
const SERVER_VARIABLE: &str = "SWLIMITD_SERVER";

/// `swlimitd.yaml`. Every key has a default.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    pub server: Server,
    /// The longest time a request waits for the server.
    pub timeout: Duration,
    /// What every key begins with.
    pub prefix: String,
    pub max_keys: usize,
    pub max_waiting: usize,
    pub max_untracked_age: Duration,

    pub grpc: Grpc,
    pub http: Http,
    pub auth: Auth,
    pub api: Api,

    /// Files of limits, or folders of such files.
    pub limits: Vec<PathBuf>,
    /// Files whose keys override those of `limits`.
    pub overlays: Vec<PathBuf>,

    // The policy of limits that do not set it.
    pub mode: Option<Mode>,
    pub on_failure: Option<OnFailure>,
    pub local_share: Option<Share>,
    pub lease_share: Option<Share>,
    pub sync_interval: Option<Duration>,

    /// Decide and count, but never deny.
    pub shadow_mode: bool,
    /// All descriptors are in quota mode.
    pub quota_mode: bool,
    /// Send the headers `RateLimit-Limit`, `-Remaining` and `-Reset`.
    pub rate_limit_headers: bool,
    /// Send the request and the metadata of its rules as dynamic metadata.
    pub dynamic_metadata: bool,

    pub log: Log,
    pub traces: Option<Traces>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            server: Server::default(),
            timeout: Duration(50),
            prefix: String::new(),
            max_keys: 100_000,
            max_waiting: 10,
            max_untracked_age: Duration(100),
            grpc: Grpc::default(),
            http: Http::default(),
            auth: Auth::default(),
            api: Api::default(),
            limits: Vec::new(),
            overlays: Vec::new(),
            mode: None,
            on_failure: None,
            local_share: None,
            lease_share: None,
            sync_interval: None,
            shadow_mode: false,
            quota_mode: false,
            rate_limit_headers: false,
            dynamic_metadata: false,
            log: Log::default(),
            traces: None,
        }
    }
}

/// Where the counts are kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Server {
    /// In this process.
    None,
    /// On the server at this URL.
    Url(String),
}

impl Default for Server {
    fn default() -> Self {
        Self::Url("redis://127.0.0.1:6379".into())
    }
}

impl From<String> for Server {
    fn from(word: String) -> Self {
        match &*word {
            "none" => Self::None,
            _ => Self::Url(word),
        }
    }
}

impl<'de> Deserialize<'de> for Server {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match String::deserialize(deserializer)? {
            word if word == "only_local" => Err(de::Error::custom("`only_local` is now `none`")),
            word => Ok(word.into()),
        }
    }
}

/// The gRPC listener.
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

/// The HTTP listener.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    pub address: Address,
    pub tls: Option<Tls>,
    /// The longest time for a request's headers, and between requests of a connection.
    pub header_timeout: Duration,
    pub max_headers: usize,
    pub max_header_bytes: usize,
    /// The most connections of an address that is not a trusted proxy's.
    pub max_connections_per_address: usize,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            address: Address::Tcp(([127, 0, 0, 1], 8080).into()),
            tls: None,
            header_timeout: Duration(75_000), // longer than proxies keep idle connections
            max_headers: 100,
            max_header_bytes: 128 * 1024,
            max_connections_per_address: 1000,
        }
    }
}

/// Access to the API under `/v1`.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Api {
    /// A file of accepted tokens, one a line.
    pub tokens: Option<PathBuf>,
    /// Without tokens, accept requests from other machines.
    pub anybody: bool,
    /// Without tokens, host names of this service. Others are refused, since a page can make its own name lead here.
    pub hosts: Vec<String>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// In the syntax of `RUST_LOG`: `info`, or `swlimitd=debug,warn`.
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

/// OpenTelemetry traces.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Traces {
    /// A collector that accepts OTLP over gRPC.
    pub endpoint: String,
    /// The sampled part of the requests whose callers did not decide about sampling.
    #[serde(default = "Traces::all")]
    pub share: Share,
}

impl Traces {
    fn all() -> Share {
        Share::WHOLE
    }
}

impl Settings {
    /// Parses the file. Relative paths begin in its folder.
    pub fn read(source: &Source, folder: &Path) -> Result<Self, ConfigError> {
        let mut settings: Self = parse(&source.file, &source.text)?;
        if let Ok(server) = std::env::var(SERVER_VARIABLE) {
            settings.server = server.into();
        }
        for (address, tls) in
            [(&settings.grpc.address, &settings.grpc.tls), (&settings.http.address, &settings.http.tls)]
        {
            if let (Address::Unix(_), Some(_)) = (address, tls) {
                return Err(ConfigError::in_file(&source.file, format!("{address} is a local socket and has no TLS")));
            }
        }
        for on_failure in [OnFailure::Error, OnFailure::Local] {
            let policy = settings.policy().policy(settings.defaults(on_failure));
            policy.map_err(|message| ConfigError::in_file(&source.file, message))?;
        }
        let tls = settings.grpc.tls.iter_mut().chain(&mut settings.http.tls);
        let keys =
            tls.flat_map(|tls| [&mut tls.certificate, &mut tls.key].into_iter().chain(&mut tls.client_authority));
        for path in keys.chain(&mut settings.limits).chain(&mut settings.overlays).chain(&mut settings.api.tokens) {
            *path = folder.join(&*path);
        }
        Ok(settings)
    }

    /// All paths that the configuration reads.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let Self { limits, overlays, api, grpc, http, .. } = self;
        let tls = grpc.tls.iter().chain(&http.tls);
        let pem = tls.flat_map(|tls| [&tls.certificate, &tls.key].into_iter().chain(&tls.client_authority));
        limits.iter().chain(overlays).chain(&api.tokens).chain(pem).map(PathBuf::as_path)
    }

    /// The policy of limits that do not set it.
    pub fn policy(&self) -> PolicyKeys {
        let Self { mode, on_failure, local_share, lease_share, sync_interval, .. } = *self;
        PolicyKeys { mode, on_failure, local_share, lease_share, sync_interval }
    }

    /// The defaults of policies, whose `on_failure` depends on the protocol.
    pub fn defaults(&self, on_failure: OnFailure) -> Defaults {
        Defaults { has_server: self.server != Server::None, on_failure }
    }

    /// Whether the keys that need a restart are equal.
    pub fn starts_as(&self, other: &Self) -> bool {
        (&self.server, self.timeout) == (&other.server, other.timeout)
            && (self.max_keys, self.max_waiting) == (other.max_keys, other.max_waiting)
            && self.max_untracked_age == other.max_untracked_age
            && (&self.grpc.address, self.grpc.tls.is_some()) == (&other.grpc.address, other.grpc.tls.is_some())
            && (&self.http.address, self.http.tls.is_some()) == (&other.http.address, other.http.tls.is_some())
            && self.http.header_timeout == other.http.header_timeout
            && (self.http.max_headers, self.http.max_header_bytes)
                == (other.http.max_headers, other.http.max_header_bytes)
            && self.log == other.log
            && self.traces == other.traces
    }
}
