//! The protocol's messages as JSON, in protobuf's mapping.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{self, RateLimitOverride};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{rate_limit, Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{self, UInt64Value};
use serde::{de, Deserialize, Deserializer};
use serde_json::{json, Map, Value};

/// A request. Field names are accepted in both of protobuf's spellings, numbers as numbers or strings.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[derive(Default)]
pub struct Request {
    domain: String,
    descriptors: Vec<Descriptor>,
    #[serde(alias = "hits_addend", deserialize_with = "number")]
    hits_addend: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Descriptor {
    entries: Vec<Entry>,
    limit: Option<Limit>,
    #[serde(alias = "hits_addend", deserialize_with = "optional_number")]
    hits_addend: Option<u64>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Entry {
    key: String,
    value: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Limit {
    #[serde(alias = "requests_per_unit", deserialize_with = "number")]
    requests_per_unit: u32,
    #[serde(deserialize_with = "unit")]
    unit: i32,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Number(u64),
    Text(String),
}

fn optional_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Option::<Number>::deserialize(deserializer)?
        .map(|written| match written {
            Number::Number(number) => Ok(number),
            Number::Text(text) => text.parse().map_err(de::Error::custom),
        })
        .transpose()
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    optional_number(deserializer)?.unwrap_or_default().try_into().map_err(de::Error::custom)
}

fn unit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    match Number::deserialize(deserializer)? {
        Number::Number(number) => number.try_into().map_err(de::Error::custom),
        Number::Text(name) => RateLimitUnit::from_str_name(&name)
            .map(Into::into)
            .ok_or_else(|| de::Error::custom(format!("'{name}' is not a unit of time"))),
    }
}

impl From<Request> for RateLimitRequest {
    fn from(request: Request) -> Self {
        let Request { domain, descriptors, hits_addend } = request;
        Self { domain, descriptors: descriptors.into_iter().map(Into::into).collect(), hits_addend }
    }
}

impl From<Descriptor> for RateLimitDescriptor {
    fn from(descriptor: Descriptor) -> Self {
        let entry = |Entry { key, value }| rate_limit_descriptor::Entry { key, value };
        let limit = |Limit { requests_per_unit, unit }| RateLimitOverride { requests_per_unit, unit };
        Self {
            entries: descriptor.entries.into_iter().map(entry).collect(),
            limit: descriptor.limit.map(limit),
            hits_addend: descriptor.hits_addend.map(|value| UInt64Value { value }),
            is_negative_hits: descriptor.is_negative_hits,
        }
    }
}

/// A reply; what has its default is left out.
pub fn response(response: RateLimitResponse) -> Value {
    let mut told = Map::new();
    told.insert("overallCode".into(), response.overall_code().as_str_name().into());
    told.insert("statuses".into(), response.statuses.iter().map(status).collect());
    if !response.response_headers_to_add.is_empty() {
        let headers = response.response_headers_to_add.iter();
        let headers = headers.map(|header| json!({"key": header.key, "value": header.value})).collect();
        told.insert("responseHeadersToAdd".into(), headers);
    }
    if let Some(metadata) = response.dynamic_metadata {
        told.insert("dynamicMetadata".into(), structure(metadata));
    }
    told.into()
}

fn status(status: &DescriptorStatus) -> Value {
    let mut told = Map::new();
    told.insert("code".into(), Code::try_from(status.code).unwrap_or(Code::Unknown).as_str_name().into());
    if let Some(limit) = &status.current_limit {
        let mut inner = Map::new();
        inner.insert("requestsPerUnit".into(), limit.requests_per_unit.into());
        if limit.unit() != rate_limit::Unit::Unknown {
            inner.insert("unit".into(), limit.unit().as_str_name().into());
        }
        if !limit.name.is_empty() {
            inner.insert("name".into(), limit.name.clone().into());
        }
        told.insert("currentLimit".into(), inner.into());
    }
    if status.limit_remaining != 0 {
        told.insert("limitRemaining".into(), status.limit_remaining.into());
    }
    if let Some(reset) = status.duration_until_reset {
        let fraction = match reset.nanos / 1_000_000 {
            0 => String::new(),
            ms => format!(".{ms:03}"),
        };
        told.insert("durationUntilReset".into(), format!("{}{fraction}s", reset.seconds).into());
    }
    told.into()
}

fn structure(metadata: protobuf::Struct) -> Value {
    metadata.fields.into_iter().map(|(key, value)| (key, value_of(value))).collect()
}

fn value_of(value: protobuf::Value) -> Value {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(is)) => is.into(),
        Some(Kind::NumberValue(number)) => number.into(),
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(value_of).collect(),
        Some(Kind::StructValue(inner)) => structure(inner),
    }
}
