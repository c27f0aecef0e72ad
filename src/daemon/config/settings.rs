//! The keys of `swlimitd.yaml`.

use std::fmt;
use std::path::{Path, PathBuf};

use axum::http::HeaderName;
use serde::{de, Deserialize, Deserializer};

use super::address::{self, Address};
use super::duration::{self, Duration};
use super::error::{parse, ConfigError};
use super::policy::{Defaults, Mode, Module, OnFailure, PolicyKeys, Share};
use super::proxy::Auth;
use super::source::Source;
use super::tls::{ServerTls, Tls};
use super::xds::Xds;

/// The environment variable that overrides `server`, whose URL may hold a password.
const SERVER_VARIABLE: &str = "SWLIMITD_SERVER";

/// `swlimitd.yaml`. Every key has a default.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    pub server: Server,
    pub server_tls: ServerTls,
    pub sentinel: Sentinel,
    /// The longest time a request waits for the server.
    #[serde(deserialize_with = "duration::with_unit")]
    pub timeout: Duration,
    /// The prefix of every key.
    pub prefix: String,
    pub max_keys: usize,
    pub max_waiting: usize,
    /// Maximum bytes of all requests and replies in progress.
    pub max_bytes_in_flight: usize,
    /// Whether the module decides, or a script on servers that have not loaded it.
    pub module: Module,
    #[serde(deserialize_with = "duration::with_unit")]
    pub max_untracked_age: Duration,

    pub grpc: Grpc,
    pub http: Http,
    pub auth: Auth,
    pub api: Api,

    /// Files of limits, or folders of such files.
    pub limits: Vec<PathBuf>,
    /// Files whose keys override those of `limits`.
    pub overlays: Vec<PathBuf>,
    /// Ignore files and folders whose names begin with a dot.
    pub ignore_dot_files: bool,

    /// A control plane that sends limits.
    pub xds: Option<Xds>,

    // The policy of limits that do not set it.
    pub mode: Option<Mode>,
    pub on_failure: Option<OnFailure>,
    pub local_share: Option<Share>,
    pub lease_share: Option<Share>,
    pub lease_length: Option<Duration>,
    pub sync_interval: Option<Duration>,

    /// Decide and count, but never deny.
    pub shadow_mode: bool,
    /// All descriptors are in quota mode.
    pub quota_mode: bool,
    /// Send headers that tell the tightest limit.
    #[serde(deserialize_with = "HeaderNames::or_flag")]
    pub rate_limit_headers: Option<HeaderNames>,
    /// Send the request and the metadata of its rules as dynamic metadata.
    pub dynamic_metadata: bool,

    pub log: Log,
    pub traces: Option<Traces>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            server: Server::default(),
            server_tls: ServerTls::default(),
            sentinel: Sentinel::default(),
            timeout: Duration(50),
            prefix: String::new(),
            max_keys: 100_000,
            max_waiting: 10,
            max_bytes_in_flight: 64 * 1024 * 1024,
            module: Module::Auto,
            max_untracked_age: Duration(100),
            grpc: Grpc::default(),
            http: Http::default(),
            auth: Auth::default(),
            api: Api::default(),
            limits: Vec::new(),
            overlays: Vec::new(),
            ignore_dot_files: true,
            xds: None,
            mode: None,
            on_failure: None,
            local_share: None,
            lease_share: None,
            lease_length: None,
            sync_interval: None,
            shadow_mode: false,
            quota_mode: false,
            rate_limit_headers: None,
            dynamic_metadata: false,
            log: Log::default(),
            traces: None,
        }
    }
}

/// The server that counts.
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

impl fmt::Display for Server {
    /// The URL without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Url(url) = self else { return f.write_str("none") };
        let url = url.split(['?', '#']).next().unwrap_or_default();
        match url.split_once("://") {
            Some((scheme, rest)) => write!(f, "{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, host)| host)),
            None => f.write_str(url),
        }
    }
}

/// Connections to sentinels.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Sentinel {
    pub tls: bool,
    pub user: Option<String>,
    pub password: Option<String>,
}

/// The gRPC listener.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Grpc {
    pub address: Address,
    pub tls: Option<Tls>,
    /// After this time a connection takes no new requests, so that clients reconnect and reach new instances.
    pub max_connection_age: Duration,
    /// How long requests of such a connection may take; any time if missing.
    pub max_connection_age_grace: Option<Duration>,
    /// The longest time for a request's body, and for a reply to be read.
    pub body_timeout: Duration,
    pub reply_timeout: Duration,
}

/// Default timeouts of both listeners.
const BODY_TIMEOUT: Duration = Duration(10_000);
const REPLY_TIMEOUT: Duration = Duration(30_000);

impl Default for Grpc {
    fn default() -> Self {
        Self {
            address: Address::Tcp(([127, 0, 0, 1], 8081).into()),
            tls: None,
            max_connection_age: Duration(30 * 60 * 1000),
            max_connection_age_grace: None,
            body_timeout: BODY_TIMEOUT,
            reply_timeout: REPLY_TIMEOUT,
        }
    }
}

/// The HTTP listener.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// One address, or several that answer alike.
    #[serde(deserialize_with = "address::one_or_several")]
    pub address: Vec<Address>,
    pub tls: Option<Tls>,
    /// The longest time for a request's headers, and between requests of a connection.
    pub header_timeout: Duration,
    /// The longest time for a request's body, and for a reply to be read.
    pub body_timeout: Duration,
    pub reply_timeout: Duration,
    pub max_headers: usize,
    pub max_header_bytes: usize,
    /// The most connections of an address that is not a trusted proxy's.
    pub max_connections_per_address: usize,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            address: vec![Address::Tcp(([127, 0, 0, 1], 8080).into())],
            tls: None,
            header_timeout: Duration(75_000), // longer than proxies keep idle connections
            body_timeout: BODY_TIMEOUT,
            reply_timeout: REPLY_TIMEOUT,
            max_headers: 100,
            max_header_bytes: 128 * 1024,
            max_connections_per_address: 1000,
        }
    }
}

/// The names of the headers that tell the tightest limit.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct HeaderNames {
    pub limit: String,
    pub remaining: String,
    pub reset: String,
}

impl Default for HeaderNames {
    fn default() -> Self {
        let [limit, remaining, reset] = ["Limit", "Remaining", "Reset"].map(|name| format!("RateLimit-{name}"));
        Self { limit, remaining, reset }
    }
}

impl HeaderNames {
    /// The names, or whether there are headers at all.
    fn or_flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Self>, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Flag(bool),
            Names(HeaderNames),
        }
        let names = match Written::deserialize(deserializer)? {
            Written::Flag(is_on) => is_on.then(Self::default),
            Written::Names(names) => Some(names),
        };
        for name in names.iter().flat_map(|names| [&names.limit, &names.remaining, &names.reset]) {
            name.parse::<HeaderName>().map_err(|_| de::Error::custom(format!("'{name}' is not a header's name")))?;
        }
        Ok(names)
    }
}

/// Access to the API under `/v1`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Api {
    /// A file of accepted tokens, one a line.
    pub tokens: Option<PathBuf>,
    /// Without tokens, accept requests from other machines.
    pub anybody: bool,
    /// Host names of this service, without tokens. Others are refused, because a page can point its own name here.
    pub hosts: Vec<String>,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
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
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Traces {
    /// A collector that accepts OTLP over gRPC.
    pub endpoint: String,
    /// The sampling ratio of requests whose callers have not decided about sampling.
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
        let error = |message: &dyn fmt::Display| Err(ConfigError::in_file(&source.file, message));
        let Self { grpc, http, .. } = &settings;
        let mut addresses: Vec<&Address> = Vec::new();
        for (address, tls) in
            [(&grpc.address, &grpc.tls)].into_iter().chain(http.address.iter().map(|address| (address, &http.tls)))
        {
            if let (Address::Unix(_), Some(_)) = (address, tls) {
                return error(&format!("{address} is a local socket and has no TLS"));
            }
            if !address.is_chosen_by_system() && addresses.contains(&address) {
                return error(&format!("{address} is used by two listeners"));
            }
            addresses.push(address);
        }
        if settings.server_tls.certificate.is_some() != settings.server_tls.key.is_some() {
            return error(&"server_tls: certificate and key need each other");
        }
        for on_failure in [OnFailure::Error, OnFailure::Local] {
            let policy = settings.policy().policy(settings.defaults(on_failure));
            policy.map_err(|message| ConfigError::in_file(&source.file, message))?;
        }
        let tls = settings.grpc.tls.iter_mut().chain(&mut settings.http.tls);
        let keys =
            tls.flat_map(|tls| [&mut tls.certificate, &mut tls.key].into_iter().chain(&mut tls.client_authority));
        let (cache, tls) = settings.xds.as_mut().map(|xds| (&mut xds.cache, &mut xds.tls)).unzip();
        let tls = [&mut settings.server_tls].into_iter().chain(tls);
        let keys = keys.chain(tls.flat_map(|tls| {
            let ServerTls { authority, certificate, key } = tls;
            authority.iter_mut().chain(certificate).chain(key)
        }));
        let keys = keys.chain(cache.into_iter().flatten());
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
        let Self { mode, on_failure, local_share, lease_share, lease_length, sync_interval, .. } = *self;
        PolicyKeys { mode, on_failure, local_share, lease_share, lease_length, sync_interval }
    }

    /// Defaults of policies; `on_failure` depends on the protocol.
    pub fn defaults(&self, on_failure: OnFailure) -> Defaults {
        Defaults { has_server: self.server != Server::None, on_failure }
    }

    /// Keys that differ from another configuration and take effect only after a restart.
    pub fn restart_keys(&self, other: &Self) -> Vec<&'static str> {
        let (grpc, http, others_grpc, others_http) = (&self.grpc, &self.http, &other.grpc, &other.http);
        let keys = [
            ("server", self.server == other.server),
            ("server_tls", self.server_tls == other.server_tls),
            ("sentinel", self.sentinel == other.sentinel),
            ("timeout", self.timeout == other.timeout),
            ("max_keys", self.max_keys == other.max_keys),
            ("max_waiting", self.max_waiting == other.max_waiting),
            ("module", self.module == other.module),
            ("max_untracked_age", self.max_untracked_age == other.max_untracked_age),
            ("grpc.address", grpc.address == others_grpc.address),
            ("grpc.tls", grpc.tls.is_some() == others_grpc.tls.is_some()),
            ("grpc.max_connection_age", grpc.max_connection_age == others_grpc.max_connection_age),
            ("grpc.max_connection_age_grace", grpc.max_connection_age_grace == others_grpc.max_connection_age_grace),
            ("grpc.body_timeout", grpc.body_timeout == others_grpc.body_timeout),
            ("grpc.reply_timeout", grpc.reply_timeout == others_grpc.reply_timeout),
            ("http.address", http.address == others_http.address),
            ("http.tls", http.tls.is_some() == others_http.tls.is_some()),
            ("max_bytes_in_flight", self.max_bytes_in_flight == other.max_bytes_in_flight),
            ("http.body_timeout", http.body_timeout == others_http.body_timeout),
            ("http.reply_timeout", http.reply_timeout == others_http.reply_timeout),
            ("http.header_timeout", http.header_timeout == others_http.header_timeout),
            ("http.max_headers", http.max_headers == others_http.max_headers),
            ("http.max_header_bytes", http.max_header_bytes == others_http.max_header_bytes),
            ("xds", self.xds == other.xds),
            ("log", self.log == other.log),
            ("traces", self.traces == other.traces),
        ];
        keys.into_iter().filter_map(|(key, is_equal)| (!is_equal).then_some(key)).collect()
    }
}
