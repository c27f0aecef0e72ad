//! The keys of `swlimitd.yaml`.

use std::fmt;
use std::path::{Path, PathBuf};

use axum::http::HeaderName;
use serde::{de, Deserialize, Deserializer};

use super::address::{self, Address};
use super::duration::{self, Duration};
use super::error::{parse, ConfigError};
use super::policy::{Defaults, Mode, Module, OnFailure, OnRefused, PolicyKeys, Share};
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

    /// What a request gets that the server refuses to decide.
    pub on_refused: OnRefused,
    /// Not ready for requests before the server can decide.
    pub wait_for_server: bool,

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
            on_refused: OnRefused::Error,
            wait_for_server: false,
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
    /// Where metrics, the page and explanations are, and not at `address`; none: at `address`.
    #[serde(deserialize_with = "address::one_or_several")]
    pub monitoring_address: Vec<Address>,
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
            monitoring_address: Vec::new(),
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

/// Compares the fields of two values that have a name; the others follow, so that none is forgotten.
macro_rules! differing {
    ($type:ident: $one:expr, $other:expr; $($name:literal => $key:ident),+; $($ignored:ident),+) => {{
        let ($type { $($key,)+ $($ignored: _),+ }, other) = ($one, $other);
        [$(($name, *$key == other.$key)),+]
    }};
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
        let over_http = http.address.iter().chain(&http.monitoring_address).map(|address| (address, &http.tls));
        for (address, tls) in [(&grpc.address, &grpc.tls)].into_iter().chain(over_http) {
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

    /// Keys that differ from another configuration and take effect only after a restart. A new key has to be named here,
    /// or this does not compile.
    pub fn restart_keys(&self, other: &Self) -> Vec<&'static str> {
        let keys = differing! { Settings: self, other;
            "server" => server, "server_tls" => server_tls, "sentinel" => sentinel, "timeout" => timeout,
            "max_keys" => max_keys, "max_waiting" => max_waiting, "max_bytes_in_flight" => max_bytes_in_flight,
            "module" => module, "max_untracked_age" => max_untracked_age, "on_refused" => on_refused,
            "wait_for_server" => wait_for_server, "xds" => xds, "log" => log, "traces" => traces;
            // Compared below.
            grpc, http,
            // Taken up.
            prefix, auth, api, limits, overlays, ignore_dot_files, mode, on_failure, local_share, lease_share, lease_length,
            sync_interval, shadow_mode, quota_mode, rate_limit_headers, dynamic_metadata
        };
        let grpc = differing! { Grpc: &self.grpc, &other.grpc;
            "grpc.address" => address, "grpc.max_connection_age" => max_connection_age,
            "grpc.max_connection_age_grace" => max_connection_age_grace, "grpc.body_timeout" => body_timeout,
            "grpc.reply_timeout" => reply_timeout;
            tls
        };
        let http = differing! { Http: &self.http, &other.http;
            "http.address" => address, "http.monitoring_address" => monitoring_address,
            "http.header_timeout" => header_timeout, "http.body_timeout" => body_timeout,
            "http.reply_timeout" => reply_timeout, "http.max_headers" => max_headers,
            "http.max_header_bytes" => max_header_bytes;
            tls, max_connections_per_address
        };
        // Certificates are taken up, whether there is TLS is not.
        let tls = [
            ("grpc.tls", self.grpc.tls.is_some() == other.grpc.tls.is_some()),
            ("http.tls", self.http.tls.is_some() == other.http.tls.is_some()),
        ];
        let all = keys.into_iter().chain(grpc).chain(http).chain(tls);
        all.filter_map(|(key, is_equal)| (!is_equal).then_some(key)).collect()
    }
}
