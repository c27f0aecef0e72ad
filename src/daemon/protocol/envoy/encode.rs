//! Encodes the reply.

use std::cmp::Reverse;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    rate_limit, Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{self, ListValue, Struct};

use super::request::Request;
use crate::config::limits::{Metadata, Per, Unit};
use crate::config::settings::HeaderNames;
use crate::core::{retry_after, Answer, Descriptor, Plan, Question, Role};
use crate::protocol::headers::seconds;

/// Optional parts of replies.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplyOptions<'a> {
    /// Never deny.
    pub shadow_mode: bool,
    pub rate_limit_headers: Option<&'a HeaderNames>,
    pub dynamic_metadata: bool,
}

/// The reply, from the answers to the plan's questions.
pub fn reply(request: &Request, plan: &Plan, answers: &[Answer], options: ReplyOptions) -> RateLimitResponse {
    let statuses: Vec<_> = plan.descriptors.iter().map(|descriptor| status(plan, descriptor, answers)).collect();
    let is_over = plan.is_denied(|at| !answers[at].granted) && !options.shadow_mode;
    let code = if is_over { Code::OverLimit } else { Code::Ok };
    let mut headers = Vec::new();
    if let Some(names) = options.rate_limit_headers {
        headers.extend(rate_limit_headers(names, &statuses));
    }
    if is_over {
        headers.extend(retry_after(plan, answers).map(|wait| header("Retry-After", seconds(wait))));
    }
    let dynamic_metadata = options.dynamic_metadata.then(|| dynamic_metadata(request, plan, &statuses));
    RateLimitResponse {
        overall_code: code.into(),
        statuses,
        response_headers_to_add: headers,
        dynamic_metadata,
        ..Default::default()
    }
}

fn status(plan: &Plan, descriptor: &Descriptor, answers: &[Answer]) -> DescriptorStatus {
    let mut status = DescriptorStatus { code: Code::Ok.into(), ..Default::default() };
    if descriptor.rule.is_some_and(|rule| rule.unlimited) {
        status.limit_remaining = u32::MAX;
    }
    let asked = descriptor.questions.iter().map(|at| (&plan.questions[*at], answers[*at]));
    // The tightest limit: the longest denial, else the one with the least remaining.
    let tightness = |(_, answer): &(&Question, Answer)| {
        let wait = answer.retry_after.unwrap_or(Duration::MAX);
        (answer.granted, Reverse(wait), answer.remaining.unwrap_or(u64::MAX))
    };
    if let Some((question, answer)) = asked.min_by_key(tightness) {
        if !answer.granted && question.role != Role::Shadow {
            status.code = Code::OverLimit.into();
        }
        // Without a limit Envoy shows nothing; with one it shows 0 for unknown fields.
        // The end of the next hold is unknown; all have ended by `retry_after`.
        let is_place = matches!(question.limit.per, Per::Hold(_));
        let reset_after = if is_place { answer.retry_after } else { answer.reset_after };
        if let Some((remaining, reset_after)) = answer.remaining.zip(reset_after) {
            status.current_limit = Some(RateLimit {
                name: question.limit.name.clone(),
                requests_per_unit: saturated(question.limit.units),
                unit: unit(question.limit.per.unit()).into(),
            });
            status.limit_remaining = saturated(remaining);
            status.duration_until_reset = (!is_place || !answer.granted).then(|| protobuf::Duration {
                seconds: i64::try_from(reset_after.as_secs()).unwrap_or(i64::MAX),
                nanos: reset_after.subsec_nanos().cast_signed(),
            });
        }
    }
    status
}

/// The protocol has 32-bit numbers.
fn saturated(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

/// The protocol's unit; Envoy omits the window for an unknown one.
fn unit(unit: Option<Unit>) -> rate_limit::Unit {
    match unit {
        None => rate_limit::Unit::Unknown,
        Some(Unit::Second) => rate_limit::Unit::Second,
        Some(Unit::Minute) => rate_limit::Unit::Minute,
        Some(Unit::Hour) => rate_limit::Unit::Hour,
        Some(Unit::Day) => rate_limit::Unit::Day,
        Some(Unit::Week) => rate_limit::Unit::Week,
        Some(Unit::Month) => rate_limit::Unit::Month,
        Some(Unit::Year) => rate_limit::Unit::Year,
    }
}

/// The headers of the descriptor that is nearest to its limit.
fn rate_limit_headers(names: &HeaderNames, statuses: &[DescriptorStatus]) -> Vec<HeaderValue> {
    let limited = statuses.iter().filter_map(|status| Some((status, status.current_limit.as_ref()?)));
    let nearest = limited.min_by_key(|(status, _)| (status.code != Code::OverLimit as i32, status.limit_remaining));
    let Some((status, limit)) = nearest else { return Vec::new() };
    let reset = status.duration_until_reset.unwrap_or_default();
    let reset = reset.seconds.saturating_add(i64::from(reset.nanos > 0));
    vec![
        header(&names.limit, limit.requests_per_unit),
        header(&names.remaining, status.limit_remaining),
        header(&names.reset, reset),
    ]
}

fn header(key: &str, value: impl ToString) -> HeaderValue {
    HeaderValue { key: key.into(), value: value.to_string(), ..Default::default() }
}

/// The request, and the metadata of the rules that granted it.
fn dynamic_metadata(request: &Request, plan: &Plan, statuses: &[DescriptorStatus]) -> Struct {
    let text = String::from_utf8_lossy;
    let mut fields = Metadata::new();
    fields.insert("domain".into(), request.domain.clone().into());
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let entries = descriptor
            .entries
            .iter()
            .map(|entry| format!("{}={}", text(&entry.key), text(&entry.value)))
            .collect::<Vec<_>>();
        let mut fields = Metadata::from_iter([("entries".into(), entries.into())]);
        if let Some(hits) = descriptor.hits_addend {
            fields.insert("hitsAddend".into(), hits.into());
        }
        fields.into()
    });
    fields.insert("descriptors".into(), descriptors.collect::<Vec<serde_json::Value>>().into());
    if request.hits_addend != 0 {
        fields.insert("hitsAddend".into(), request.hits_addend.into());
    }
    let mut metadata = Metadata::new();
    let granted = plan.descriptors.iter().zip(statuses).filter(|(_, status)| status.code == Code::Ok as i32);
    for rule in
        granted.filter(|(descriptor, _)| !descriptor.questions.is_empty()).filter_map(|(descriptor, _)| descriptor.rule)
    {
        add(&mut metadata, rule.metadata.as_ref().unwrap_or(&Metadata::new()));
    }
    if !metadata.is_empty() {
        fields.insert("metadata".into(), metadata.into());
    }
    structure(fields)
}

/// Adds missing keys.
fn add(metadata: &mut Metadata, more: &Metadata) {
    for (key, value) in more {
        match (metadata.get_mut(key), value) {
            (Some(serde_json::Value::Object(inner)), serde_json::Value::Object(more)) => add(inner, more),
            (Some(_), _) => {}
            (None, value) => drop(metadata.insert(key.clone(), value.clone())),
        }
    }
}

fn structure(metadata: Metadata) -> Struct {
    Struct { fields: metadata.into_iter().map(|(key, value)| (key, protobuf_value(value))).collect() }
}

fn protobuf_value(value: serde_json::Value) -> protobuf::Value {
    let kind = match value {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(is) => Kind::BoolValue(is),
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::MAX)),
        serde_json::Value::String(text) => Kind::StringValue(text),
        serde_json::Value::Array(all) => {
            Kind::ListValue(ListValue { values: all.into_iter().map(protobuf_value).collect() })
        }
        serde_json::Value::Object(inner) => Kind::StructValue(structure(inner)),
    };
    protobuf::Value { kind: Some(kind) }
}
