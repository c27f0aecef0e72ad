//! Limits from a control plane: its address, and its resources as files of limits.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use envoy_types::pb::envoy::service::discovery::v3::DiscoveryResponse;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Any, Struct};
use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use prost::{Message, Name};
use serde::Deserialize;
use serde_json::{json, Value};

use super::duration::{self, Duration};
use super::error::ConfigError;
use super::source::Source;
use super::tls::ServerTls;

/// A control plane that speaks the aggregated discovery service, state of the world.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Xds {
    /// `http://host:port`; `https://` with TLS.
    pub server: String,
    /// The node id in requests for resources.
    pub node: String,
    pub node_metadata: BTreeMap<String, String>,
    /// Sent with each stream.
    pub headers: BTreeMap<String, String>,
    pub tls: ServerTls,
    /// The name in the server's certificate, if it is not the host's.
    pub tls_name: Option<String>,
    /// A file that caches the last valid limits, so that a restart needs no control plane.
    pub cache: Option<PathBuf>,
    /// Start without limits, and grant every request until the control plane sends the first ones.
    pub start_without: bool,
    pub max_message_bytes: usize,
    /// How long the control plane may take to answer a stream.
    #[serde(deserialize_with = "duration::with_unit")]
    pub response_timeout: Duration,
    /// The pause before reconnecting; it doubles with each failure.
    #[serde(deserialize_with = "duration::with_unit")]
    pub retry_interval: Duration,
    #[serde(deserialize_with = "duration::with_unit")]
    pub max_retry_interval: Duration,
}

impl Default for Xds {
    fn default() -> Self {
        Self {
            server: "http://localhost:18000".into(),
            node: "default".into(),
            node_metadata: BTreeMap::new(),
            headers: BTreeMap::new(),
            tls: ServerTls::default(),
            tls_name: None,
            cache: None,
            start_without: false,
            max_message_bytes: 4 * 1024 * 1024,
            response_timeout: Duration(15_000),
            retry_interval: Duration(1000),
            max_retry_interval: Duration(60_000),
        }
    }
}

impl Xds {
    /// The cached limits; `None` if there is no such file.
    pub fn kept(&self) -> Result<Option<Vec<Source>>, ConfigError> {
        let Some(path) = &self.cache else { return Ok(None) };
        let error = |error: &dyn std::fmt::Display| ConfigError::in_file(&path.to_string_lossy(), error);
        match std::fs::read(path) {
            Ok(bytes) if bytes.is_empty() => Err(error(&"the file is empty")),
            Ok(bytes) => {
                let response = DiscoveryResponse::decode(&*bytes).map_err(|cause| error(&cause))?;
                sources(&response.resources).map(Some)
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(error(&cause)),
        }
    }

    /// Caches the limits of a response. The file is replaced atomically.
    pub fn keep(&self, response: DiscoveryResponse) -> io::Result<()> {
        let Some(path) = &self.cache else { return Ok(()) };
        let mut following = path.clone().into_os_string();
        following.push(".new");
        write(Path::new(&following), &response.encode_to_vec())?;
        std::fs::rename(following, path)
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The resources of a response, each as a file of limits.
pub fn sources(resources: &[Any]) -> Result<Vec<Source>, ConfigError> {
    resources.iter().map(source).collect()
}

fn source(resource: &Any) -> Result<Source, ConfigError> {
    let error = |message: String| ConfigError::in_file("xds", message);
    if resource.type_url != RateLimitConfig::type_url() {
        return Err(error(format!("'{}' is not the type of limits", resource.type_url)));
    }
    let config = RateLimitConfig::decode(&*resource.value).map_err(|cause| error(cause.to_string()))?;
    let document = json!({ "domain": config.domain, "descriptors": descriptors(config.descriptors) });
    Ok(Source { file: format!("xds:{}", config.name), text: format!("{document:#}") })
}

fn descriptors(descriptors: Vec<RateLimitDescriptor>) -> Vec<Value> {
    let document = |descriptor: RateLimitDescriptor| {
        json!({
            "key": descriptor.key,
            "value": descriptor.value,
            "rate_limit": descriptor.rate_limit.map(rate_limit),
            "descriptors": self::descriptors(descriptor.descriptors),
            "shadow_mode": descriptor.shadow_mode,
            "quota_mode": descriptor.quota_mode,
            "detailed_metric": descriptor.detailed_metric,
            "metadata": descriptor.metadata.map(object),
        })
    };
    descriptors.into_iter().map(document).collect()
}

fn rate_limit(policy: RateLimitPolicy) -> Value {
    let unit = match policy.unit() {
        RateLimitUnit::Unknown => None,
        unit => Some(unit.as_str_name()),
    };
    let replaces: Vec<_> = policy.replaces.into_iter().map(|replaced| json!({ "name": replaced.name })).collect();
    json!({
        "unit": unit,
        "requests_per_unit": policy.requests_per_unit,
        "unlimited": policy.unlimited,
        "name": policy.name,
        "replaces": replaces,
    })
}

fn object(object: Struct) -> Value {
    Value::Object(object.fields.into_iter().map(|(name, field)| (name, value(field.kind))).collect())
}

fn value(kind: Option<Kind>) -> Value {
    match kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) => number.into(),
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::BoolValue(flag)) => flag.into(),
        Some(Kind::StructValue(fields)) => object(fields),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(|element| value(element.kind)).collect(),
    }
}
