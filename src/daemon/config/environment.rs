//! Translates envoyproxy/ratelimit's environment variables into a configuration.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::str::FromStr;

use percent_encoding::{utf8_percent_encode, NON_ALPHANUMERIC};
use serde_json::{json, Map, Value};

use super::error::ConfigError;
use super::source::Source;

/// The name of this source in errors.
pub const NAME: &str = "the environment";

/// Where the limits of a control plane are kept, unless `SWLIMITD_XDS_CACHE` names another file.
const XDS_CACHE: &str = "/var/lib/swlimitd/limits.pb";

/// Variables that only envoyproxy/ratelimit has.
const DISTINCTIVE: [&str; 4] = ["CONFIG_TYPE", "REDIS_SOCKET_TYPE", "RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY"];

/// Variables that are ignored, and why.
const WITHOUT_MEANING: [(&[&str], &str); 14] = [
    (
        &[
            "USE_STATSD",
            "STATSD_HOST",
            "STATSD_PORT",
            "STATS_FLUSH_INTERVAL",
            "EXTRA_TAGS",
            "DISABLE_STATS",
            "USE_DOG_STATSD",
            "USE_DOG_STATSD_MOGRIFIERS",
            "PROMETHEUS_MAPPER_YAML",
            "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
            "PROMETHEUS_PATH",
        ],
        "metrics are at /metrics, in Prometheus's format and in seconds",
    ),
    (&["NEAR_LIMIT_RATIO"], "the ratio is 0.8"),
    (&["LOCAL_CACHE_SIZE_IN_BYTES"], "denials are cached, see mode and max_keys"),
    (&["EXPIRATION_JITTER_MAX_SECONDS"], "keys expire with their window"),
    (&["STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"], "a denied request is not counted"),
    (&["MERGE_DOMAIN_CONFIG"], "files of one domain are merged"),
    (
        &[
            "REDIS_POOL_SIZE",
            "REDIS_PIPELINE_WINDOW",
            "REDIS_PIPELINE_LIMIT",
            "REDIS_CLUSTER_PIPELINE_PARALLELISM",
            "REDIS_POOL_ON_EMPTY_BEHAVIOR",
        ],
        "requests share a connection",
    ),
    (
        &[
            "REDIS_PERSECOND",
            "REDIS_PERSECOND_SOCKET_TYPE",
            "REDIS_PERSECOND_TYPE",
            "REDIS_PERSECOND_URL",
            "REDIS_PERSECOND_POOL_SIZE",
            "REDIS_PERSECOND_AUTH",
            "REDIS_PERSECOND_TLS",
            "REDIS_PERSECOND_SENTINEL_AUTH",
            "REDIS_PERSECOND_PIPELINE_WINDOW",
            "REDIS_PERSECOND_PIPELINE_LIMIT",
            "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
            "REDIS_PERSECOND_TIMEOUT",
            "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR",
        ],
        "limits per second are counted by the same server",
    ),
    (
        &[
            "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
            "REDIS_STARTUP_INITIAL_INTERVAL",
            "REDIS_STARTUP_MAX_INTERVAL",
            "REDIS_STARTUP_MAX_ELAPSED_TIME",
            "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        ],
        "health does not depend on the server: on_failure decides while it is unavailable; see wait_for_server",
    ),
    (
        &["XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "XDS_CLIENT_BACKOFF_JITTER"],
        "a lost control plane is tried again after CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL, then after ever longer",
    ),
    (&["REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"], "the server's name is always verified"),
    (
        &["TRACING_SERVICE_NAME", "TRACING_SERVICE_NAMESPACE", "TRACING_SERVICE_INSTANCE_ID"],
        "the service in traces is swlimitd",
    ),
    (&["RUNTIME_WATCH_ROOT"], "changes of files, and of links on the way to them, are noticed"),
    (
        &["GRPC_SERVER_TLS_CA_CERT"],
        "envoyproxy/ratelimit does not read it either; GRPC_CLIENT_TLS_CACERT demands certificates of clients",
    ),
];

/// The variables as a configuration.
pub struct Environment {
    settings: Map<String, Value>,
    /// The ignored variables that are set, and why.
    pub notes: Vec<String>,
}

impl Environment {
    /// Whether the process was started for envoyproxy/ratelimit's variables.
    pub fn is_set() -> bool {
        DISTINCTIVE.iter().any(|name| std::env::var_os(name).is_some())
    }

    /// Reads the variables of the process.
    pub fn read() -> Result<Self, ConfigError> {
        Self::from(&|name| std::env::var(name).ok())
    }

    /// The configuration in YAML, with the notes as comments.
    pub fn source(&self) -> Source {
        let notes: String = self.notes.iter().map(|note| format!("# {note}\n")).collect();
        let settings = serde_saphyr::to_string(&self.settings).expect("strings, numbers, lists and maps can be YAML");
        Source { file: NAME.into(), text: format!("{notes}{settings}") }
    }

    fn from(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let variables = Variables(variable);
        let mut notes: Vec<String> = Vec::new();
        for (names, reason) in WITHOUT_MEANING {
            let set = names.iter().filter(|name| variables.text(name).is_some());
            notes.extend(set.map(|name| format!("{name} has no meaning here: {reason}")));
        }
        let settings = variables.settings(&mut notes).map_err(|error| ConfigError::in_file(NAME, error))?;
        let Value::Object(settings) = without_nulls(settings) else { unreachable!("settings are a map") };
        Ok(Self { settings, notes })
    }
}

/// Variables by name. An empty one is as if it were not set.
struct Variables<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Variables<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|text| !text.is_empty())
    }

    fn parsed<T>(&self, name: &str, kind: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>, String> {
        let Some(text) = self.text(name) else { return Ok(None) };
        parse(&text).map(Some).ok_or_else(|| format!("{name}: '{text}' is not {kind}"))
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, String> {
        self.parsed(name, "a boolean", |text| match text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
            _ => None,
        })
    }

    fn is_on(&self, name: &str) -> Result<bool, String> {
        Ok(self.flag(name)?.unwrap_or(false))
    }

    fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        self.parsed(name, "a number", |text| text.parse().ok())
    }

    fn duration(&self, name: &str) -> Result<Option<String>, String> {
        let milliseconds = self.parsed(name, "a duration such as 1m30s", milliseconds)?;
        Ok(milliseconds.map(|ms| format!("{}ms", ms.max(1))))
    }

    fn address(&self, host: &str, port: &str, default_port: u16) -> Result<String, String> {
        let host = self.parsed(host, "an address", |text| text.parse::<IpAddr>().ok())?;
        let port = self.number(port)?.unwrap_or(default_port);
        Ok(SocketAddr::new(host.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), port).to_string())
    }

    fn settings(&self, notes: &mut Vec<String>) -> Result<Value, String> {
        if let Some(other) = self.text("BACKEND_TYPE").filter(|backend| backend != "redis") {
            return Err(format!("BACKEND_TYPE: '{other}' is not supported, only redis"));
        }
        let is_discovered = match self.text("CONFIG_TYPE").as_deref() {
            None | Some("FILE") => false,
            Some("GRPC_XDS_SOTW") => true,
            Some(other) => return Err(format!("CONFIG_TYPE: '{other}' is not FILE or GRPC_XDS_SOTW")),
        };
        let folder = self.text("RUNTIME_ROOT").unwrap_or("/srv/runtime_data/current".into());
        let folder = Path::new(&folder).join(self.text("RUNTIME_SUBDIRECTORY").unwrap_or_default());
        let folder = folder.join(self.text("RUNTIME_APPDIRECTORY").unwrap_or("config".into()));
        Ok(json!({
            "server": self.server()?,
            "server_tls": self.server_tls("REDIS_TLS_CACERT", "REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY"),
            "sentinel": self.sentinel()?,
            "timeout": self.duration("REDIS_TIMEOUT")?,
            "prefix": self.text("CACHE_KEY_PREFIX"),
            "grpc": self.grpc()?,
            "http": { "address": self.http_addresses()? },
            "limits": (!is_discovered).then_some([folder]),
            "ignore_dot_files": if is_discovered { None } else { Some(self.is_on("RUNTIME_IGNOREDOTFILES")?) },
            "xds": if is_discovered { self.xds()? } else { Value::Null },
            "shadow_mode": self.flag("SHADOW_MODE")?,
            "quota_mode": self.flag("QUOTA_MODE")?,
            "rate_limit_headers": self.rate_limit_headers()?,
            "dynamic_metadata": self.flag("RESPONSE_DYNAMIC_METADATA")?,
            "log": { "level": self.log_level()?, "format": self.text("LOG_FORMAT") },
            "traces": self.traces(notes)?,
        }))
    }

    /// The server's URL, with its password. Without `REDIS_URL` the default stays.
    fn server(&self) -> Result<Option<String>, String> {
        let Some(url) = self.text("REDIS_URL") else { return Ok(None) };
        let kind = self.text("REDIS_TYPE").unwrap_or("SINGLE".into()).to_ascii_lowercase();
        let scheme = if self.is_on("REDIS_TLS")? { "rediss" } else { "redis" };
        let (user, password) = self.login("REDIS_AUTH");
        let (user, password) = (user.map(|user| encoded(&user)), password.map(|password| encoded(&password)));
        let login = password.as_ref().map(|password| format!("{}:{password}@", user.as_deref().unwrap_or_default()));
        let login = login.unwrap_or_default();
        let is_unix = self.text("REDIS_SOCKET_TYPE").is_none_or(|kind| kind == "unix");
        Ok(Some(match (&*kind, url.split_once("://")) {
            ("single", Some((_, rest))) => format!("{scheme}://{login}{rest}"),
            ("single", None) if is_unix => match (user, password) {
                (Some(user), Some(password)) => format!("unix://{url}?user={user}&pass={password}"),
                (None, Some(password)) => format!("unix://{url}?pass={password}"),
                (_, None) => format!("unix://{url}"),
            },
            ("single", None) => format!("{scheme}://{login}{url}"),
            ("cluster", _) => format!("{scheme}-cluster://{login}{url}"),
            ("sentinel", _) => match url.split_once(',') {
                Some((name, sentinels)) => format!("{scheme}-sentinel://{login}{sentinels}/{name}"),
                None => return Err("REDIS_URL: of sentinels it is NAME,SENTINEL,…".into()),
            },
            _ => return Err(format!("REDIS_TYPE: '{kind}' is not SINGLE, SENTINEL or CLUSTER")),
        }))
    }

    /// The user, if one is named, and the password: `user:password`, or a password.
    fn login(&self, name: &str) -> (Option<String>, Option<String>) {
        let Some(text) = self.text(name) else { return (None, None) };
        match text.split_once(':') {
            Some((user, password)) => (Some(user.into()), Some(password.into())),
            None => (None, Some(text)),
        }
    }

    /// The PEM files for a server with TLS.
    fn server_tls(&self, authority: &str, certificate: &str, key: &str) -> Value {
        json!({ "authority": self.text(authority), "certificate": self.text(certificate), "key": self.text(key) })
    }

    fn sentinel(&self) -> Result<Value, String> {
        if !self.text("REDIS_TYPE").is_some_and(|kind| kind.eq_ignore_ascii_case("sentinel")) {
            return Ok(Value::Null);
        }
        let (user, password) = self.login("REDIS_SENTINEL_AUTH");
        Ok(json!({ "tls": self.flag("REDIS_TLS")?, "user": user, "password": password }))
    }

    fn grpc(&self) -> Result<Value, String> {
        let address = match self.text("GRPC_UDS") {
            Some(path) => format!("unix:{path}"),
            None => self.address("GRPC_HOST", "GRPC_PORT", 8081)?,
        };
        let tls = self.is_on("GRPC_SERVER_USE_TLS")?.then(|| {
            json!({
                "certificate": self.text("GRPC_SERVER_TLS_CERT"),
                "key": self.text("GRPC_SERVER_TLS_KEY"),
                "client_authority": self.text("GRPC_CLIENT_TLS_CACERT"),
                "client_name": self.text("GRPC_CLIENT_TLS_SAN"),
            })
        });
        Ok(json!({
            "address": address,
            "tls": tls,
            "max_connection_age": self.duration("GRPC_MAX_CONNECTION_AGE")?,
            "max_connection_age_grace": self.duration("GRPC_MAX_CONNECTION_AGE_GRACE")?,
        }))
    }

    fn xds(&self) -> Result<Value, String> {
        let server = self.text("CONFIG_GRPC_XDS_SERVER_URL").unwrap_or("localhost:18000".into());
        let has_tls = self.is_on("CONFIG_GRPC_XDS_SERVER_USE_TLS")?;
        let tls = has_tls.then(|| {
            let [authority, certificate, key] = ["SERVER_TLS_CACERT", "CLIENT_TLS_CERT", "CLIENT_TLS_KEY"]
                .map(|name| format!("CONFIG_GRPC_XDS_{name}"));
            self.server_tls(&authority, &certificate, &key)
        });
        Ok(json!({
            "server": format!("{}://{server}", if has_tls { "https" } else { "http" }),
            "node": self.text("CONFIG_GRPC_XDS_NODE_ID"),
            "node_metadata": self.pairs("CONFIG_GRPC_XDS_NODE_METADATA", '=')?,
            "headers": self.pairs("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", ':')?,
            "tls": tls,
            "tls_name": self.text("CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
            "cache": self.text("SWLIMITD_XDS_CACHE").unwrap_or(XDS_CACHE.into()),
            "start_without": self.flag("FORCE_START_WITHOUT_INITIAL_CONFIG")?,
            "max_message_bytes": self.number::<usize>("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES")?,
            "retry_interval": self.duration("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL")?,
            "max_retry_interval": self.duration("XDS_CLIENT_BACKOFF_MAX_INTERVAL")?,
        }))
    }

    /// Names and values, separated by commas.
    fn pairs(&self, name: &str, separator: char) -> Result<Map<String, Value>, String> {
        let text = self.text(name).unwrap_or_default();
        let pair = |word: &str| match word.split_once(separator) {
            Some((name, value)) => Ok((name.trim().to_owned(), value.into())),
            None => Err(format!("{name}: '{word}' has no '{separator}'")),
        };
        text.split(',').filter(|word| !word.is_empty()).map(pair).collect()
    }

    /// All paths are served at each address.
    fn http_addresses(&self) -> Result<Vec<String>, String> {
        let mut addresses = vec![self.address("HOST", "PORT", 8080)?];
        let debug = self.address("DEBUG_HOST", "DEBUG_PORT", 6070)?;
        let metrics = self.is_on("USE_PROMETHEUS")?.then(|| {
            let address = self.text("PROMETHEUS_ADDR").unwrap_or(":9090".into());
            if address.starts_with(':') {
                format!("0.0.0.0{address}")
            } else {
                address
            }
        });
        for address in [debug].into_iter().chain(metrics) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        Ok(addresses)
    }

    /// Whether replies have the headers, or their names.
    fn rate_limit_headers(&self) -> Result<Value, String> {
        if !self.is_on("LIMIT_RESPONSE_HEADERS_ENABLED")? {
            return Ok(Value::Null);
        }
        let names =
            [("limit", "LIMIT_LIMIT_HEADER"), ("remaining", "LIMIT_REMAINING_HEADER"), ("reset", "LIMIT_RESET_HEADER")];
        let named =
            names.map(|(key, variable)| (key.to_owned(), self.text(variable).map_or(Value::Null, Value::String)));
        let named = Map::from_iter(named.into_iter().filter(|(_, name)| !name.is_null()));
        Ok(if named.is_empty() { json!(true) } else { Value::Object(named) })
    }

    fn log_level(&self) -> Result<Option<&'static str>, String> {
        self.parsed("LOG_LEVEL", "a level of a log", |text| match &*text.to_ascii_lowercase() {
            "panic" | "fatal" | "error" => Some("error"),
            "warn" | "warning" => Some("warn"),
            "info" => Some("info"),
            "debug" => Some("debug"),
            "trace" => Some("trace"),
            _ => None,
        })
    }

    fn traces(&self, notes: &mut Vec<String>) -> Result<Value, String> {
        if !self.is_on("TRACING_ENABLED")? {
            return Ok(Value::Null);
        }
        if self.text("TRACING_EXPORTER_PROTOCOL").as_deref() != Some("grpc") {
            notes.push(
                "TRACING_ENABLED has no meaning here without TRACING_EXPORTER_PROTOCOL=grpc: traces are sent over gRPC"
                    .into(),
            );
            return Ok(Value::Null);
        }
        let endpoint = self.text("OTEL_EXPORTER_OTLP_ENDPOINT").unwrap_or("http://localhost:4317".into());
        Ok(json!({ "endpoint": endpoint, "share": self.number::<f64>("TRACING_SAMPLING_RATE")? }))
    }
}

/// A part of a URL.
fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// A duration as Go writes it, such as `1m30s`, in ms.
fn milliseconds(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let (mut rest, mut ms) = (text, 0.0);
    while !rest.is_empty() {
        let (number, behind) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let (unit, behind) = behind.split_at(behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len()));
        let length = match unit {
            "ns" => 1e-6,
            "us" | "µs" | "μs" => 1e-3,
            "ms" => 1.0,
            "s" => 1e3,
            "m" => 60e3,
            "h" => 3600e3,
            _ => return None,
        };
        ms += number.parse::<f64>().ok()? * length;
        rest = behind;
    }
    (!text.is_empty()).then_some(ms.ceil() as u64)
}

/// Without nulls, and without maps that have nothing else.
fn without_nulls(value: Value) -> Value {
    let Value::Object(map) = value else { return value };
    let map = map.into_iter().map(|(key, value)| (key, without_nulls(value)));
    let is_empty = |value: &Value| value.is_null() || value.as_object().is_some_and(Map::is_empty);
    Value::Object(map.filter(|(_, value)| !is_empty(value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(variables: &[(&str, &str)]) -> Result<Value, String> {
        let find = |name: &str| variables.iter().find(|(other, _)| *other == name).map(|(_, text)| (*text).to_owned());
        let environment = Environment::from(&find).map_err(|error| error.to_string())?;
        Ok(Value::Object(environment.settings))
    }

    #[test]
    fn servers() {
        for (variables, expected) in [
            (&[("REDIS_URL", "/run/redis.sock")][..], "unix:///run/redis.sock"),
            (&[("REDIS_URL", "/s"), ("REDIS_AUTH", "u:a&b")], "unix:///s?user=u&pass=a%26b"),
            (&[("REDIS_URL", "r:6379"), ("REDIS_SOCKET_TYPE", "tcp")], "redis://r:6379"),
            (&[("REDIS_URL", "redis://r:6379/3"), ("REDIS_TLS", "true")], "rediss://r:6379/3"),
            (&[("REDIS_URL", "r:1"), ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_AUTH", "a@b")], "redis://:a%40b@r:1"),
            (
                &[("REDIS_URL", "a:1,b:2"), ("REDIS_TYPE", "CLUSTER"), ("REDIS_AUTH", "u:p")],
                "redis-cluster://u:p@a:1,b:2",
            ),
            (&[("REDIS_URL", "m,a:1,b:2"), ("REDIS_TYPE", "sentinel")], "redis-sentinel://a:1,b:2/m"),
        ] {
            assert_eq!(from(variables).unwrap()["server"], expected, "{variables:?}");
        }
        assert!(from(&[("REDIS_URL", "m"), ("REDIS_TYPE", "SENTINEL")]).unwrap_err().contains("NAME,SENTINEL"));
        assert!(from(&[("REDIS_URL", "m"), ("REDIS_TYPE", "SHARDS")]).unwrap_err().contains("'shards' is not"));
    }

    #[test]
    fn addresses_are_named_once() {
        let addresses = |variables| from(variables).unwrap()["http"]["address"].clone();
        assert_eq!(addresses(&[]), json!(["0.0.0.0:8080", "0.0.0.0:6070"]));
        let variables = [("USE_PROMETHEUS", "1"), ("PROMETHEUS_ADDR", ":6070"), ("HOST", "::1")];
        assert_eq!(addresses(&variables), json!(["[::1]:8080", "0.0.0.0:6070"]));
    }

    #[test]
    fn durations_are_gos() {
        for (text, expected) in [("0", 0), ("10s", 10_000), ("1m30s", 90_000), ("1.5h", 5_400_000), ("150us", 1)] {
            assert_eq!(milliseconds(text), Some(expected), "{text}");
        }
        for text in ["", "10", "s", "1d", "-1s", "1..s"] {
            assert_eq!(milliseconds(text), None, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_an_error() {
        for (name, text, expected) in [
            ("GRPC_PORT", "many", "GRPC_PORT: 'many' is not a number"),
            ("GRPC_HOST", "here", "GRPC_HOST: 'here' is not an address"),
            ("SHADOW_MODE", "yes", "SHADOW_MODE: 'yes' is not a boolean"),
            ("REDIS_TIMEOUT", "soon", "REDIS_TIMEOUT: 'soon' is not a duration"),
            ("LOG_LEVEL", "loud", "LOG_LEVEL: 'loud' is not a level"),
            ("BACKEND_TYPE", "memcache", "BACKEND_TYPE: 'memcache' is not supported"),
            ("CONFIG_TYPE", "ETCD", "CONFIG_TYPE: 'ETCD' is not"),
        ] {
            let error = from(&[(name, text)]).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
