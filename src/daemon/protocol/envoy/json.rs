//! The protocol in JSON, by protobuf's mapping.

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::Json;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{rate_limit, Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::google::protobuf;
use envoy_types::pb::google::protobuf::value::Kind;
use serde::{de, Deserialize, Deserializer};
use serde_json::{json, Map, Value};

use super::answer;
use super::request::{Descriptor, Request};
use crate::config::limits;
use crate::core::Refusal;
use crate::observe::labels::Api;
use crate::protocol::access::is_from_page;
use crate::protocol::object::Object;
use crate::service::Service;

/// Decides a request in JSON, whatever its content type. Pages are refused: a browser would send it for any of them.
pub async fn answer(service: &Service, headers: &HeaderMap, body: &Bytes) -> Response {
    if is_from_page(headers) {
        return (StatusCode::FORBIDDEN, "requests of browsers' pages are refused\n").into_response();
    }
    let request = match serde_json::from_slice::<Object<JsonRequest>>(body) {
        Ok(Object(request)) => request.into(),
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    match answer::answer(service, Api::Json, headers, &request, None).await {
        Ok(reply) if reply.overall_code() == Code::OverLimit => {
            (StatusCode::TOO_MANY_REQUESTS, Json(response(reply))).into_response()
        }
        Ok(reply) => Json(response(reply)).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Refused(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::NeedsServer => StatusCode::NOT_IMPLEMENTED,
        };
        (status, format!("{}\n", self.message())).into_response()
    }
}

/// A request. Field names in both of protobuf's spellings, numbers as numbers or strings.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[derive(Default)]
pub struct JsonRequest {
    domain: String,
    descriptors: Vec<Object<JsonDescriptor>>,
    #[serde(alias = "hits_addend", deserialize_with = "number")]
    hits_addend: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct JsonDescriptor {
    entries: Vec<Object<JsonEntry>>,
    limit: Option<Object<JsonLimit>>,
    #[serde(alias = "hits_addend", deserialize_with = "optional_number")]
    hits_addend: Option<u64>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct JsonEntry {
    key: String,
    value: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct JsonLimit {
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

impl From<JsonRequest> for Request {
    fn from(JsonRequest { domain, descriptors, hits_addend }: JsonRequest) -> Self {
        Self { domain, descriptors: descriptors.into_iter().map(|Object(it)| it.into()).collect(), hits_addend }
    }
}

impl From<JsonDescriptor> for Descriptor {
    fn from(descriptor: JsonDescriptor) -> Self {
        let entry =
            |Object(JsonEntry { key, value })| limits::Entry { key: key.into_bytes(), value: value.into_bytes() };
        let limit = |Object(JsonLimit { requests_per_unit, unit })| RateLimitOverride { requests_per_unit, unit };
        Self {
            entries: descriptor.entries.into_iter().map(entry).collect(),
            limit: descriptor.limit.map(limit),
            hits_addend: descriptor.hits_addend,
            is_negative_hits: descriptor.is_negative_hits,
        }
    }
}

/// A reply, without fields that have their default.
pub fn response(response: RateLimitResponse) -> Value {
    let mut object = Map::new();
    object.insert("overallCode".into(), response.overall_code().as_str_name().into());
    object.insert("statuses".into(), response.statuses.iter().map(status).collect());
    if !response.response_headers_to_add.is_empty() {
        let headers = response.response_headers_to_add.iter();
        let headers = headers.map(|header| json!({"key": header.key, "value": header.value})).collect();
        object.insert("responseHeadersToAdd".into(), headers);
    }
    if let Some(metadata) = response.dynamic_metadata {
        object.insert("dynamicMetadata".into(), structure(metadata));
    }
    object.into()
}

fn status(status: &DescriptorStatus) -> Value {
    let mut object = Map::new();
    object.insert("code".into(), Code::try_from(status.code).unwrap_or(Code::Unknown).as_str_name().into());
    if let Some(limit) = &status.current_limit {
        let mut inner = Map::new();
        inner.insert("requestsPerUnit".into(), limit.requests_per_unit.into());
        if limit.unit() != rate_limit::Unit::Unknown {
            inner.insert("unit".into(), limit.unit().as_str_name().into());
        }
        if !limit.name.is_empty() {
            inner.insert("name".into(), limit.name.clone().into());
        }
        object.insert("currentLimit".into(), inner.into());
    }
    if status.limit_remaining != 0 {
        object.insert("limitRemaining".into(), status.limit_remaining.into());
    }
    if let Some(reset) = status.duration_until_reset {
        let fraction = match reset.nanos / 1_000_000 {
            0 => String::new(),
            ms => format!(".{ms:03}"),
        };
        object.insert("durationUntilReset".into(), format!("{}{fraction}s", reset.seconds).into());
    }
    object.into()
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
