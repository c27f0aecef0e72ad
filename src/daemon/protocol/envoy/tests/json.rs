use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    rate_limit::Unit, Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::google::protobuf::Duration;
use serde_json::json;

use super::*;
use crate::protocol::envoy::json::{response, JsonRequest};

fn read(text: &str) -> Result<Request, String> {
    serde_json::from_str::<JsonRequest>(text).map(Into::into).map_err(|error| error.to_string())
}

#[test]
fn requests_are_read_in_both_spellings() {
    let limit = Some(RateLimitOverride { requests_per_unit: 3, unit: 2 });
    let expected = Request {
        hits_addend: 4,
        ..request(vec![Descriptor { limit, is_negative_hits: true, ..with_hits("a=x b=y", 5) }])
    };
    let entries = r#""entries": [{"key": "a", "value": "x"}, {"key": "b", "value": "y"}]"#;
    for text in [
        format!(
            r#"{{"domain": "d", "hitsAddend": 4, "descriptors": [{{{entries}, "hitsAddend": "5", "isNegativeHits": true,
                "limit": {{"requestsPerUnit": 3, "unit": "MINUTE"}}}}]}}"#
        ),
        format!(
            r#"{{"domain": "d", "hits_addend": "4", "descriptors": [{{{entries}, "hits_addend": 5, "is_negative_hits": true,
                "limit": {{"requests_per_unit": "3", "unit": 2}}}}]}}"#
        ),
    ] {
        assert_eq!(read(&text).unwrap(), expected);
    }
    assert_eq!(read("{}").unwrap(), Request::default());
}

#[test]
fn what_is_no_request_is_an_error() {
    for text in [
        "",
        "null",
        "{",
        r#"{"domain": 1}"#,
        r#"{"domains": "d"}"#,
        r#"{"hitsAddend": -1}"#,
        r#"{"hitsAddend": 4294967296}"#,
        r#"{"descriptors": [{"limit": {"unit": "FORTNIGHT"}}]}"#,
        r#"{"descriptors": [{"hitsAddend": "x"}]}"#,
        &"[".repeat(100_000),
    ] {
        assert!(read(text).is_err(), "{text}");
    }
}

#[test]
fn replies_are_as_protobuf_has_them() {
    let status = DescriptorStatus {
        code: Code::OverLimit.into(),
        current_limit: Some(RateLimit { name: "n".into(), requests_per_unit: 0, unit: Unit::Minute.into() }),
        limit_remaining: 0,
        duration_until_reset: Some(Duration { seconds: 61, nanos: 1_000_000 }),
        ..Default::default()
    };
    let bare = DescriptorStatus {
        code: Code::Ok.into(),
        current_limit: Some(RateLimit { requests_per_unit: 3, ..Default::default() }),
        limit_remaining: 2,
        duration_until_reset: Some(Duration { seconds: 60, nanos: 0 }),
        ..Default::default()
    };
    let told = RateLimitResponse {
        overall_code: Code::OverLimit.into(),
        statuses: vec![status, bare, DescriptorStatus { code: Code::Ok.into(), ..Default::default() }],
        response_headers_to_add: vec![HeaderValue { key: "K".into(), value: "v".into(), ..Default::default() }],
        ..Default::default()
    };
    let expected = json!({
        "overallCode": "OVER_LIMIT",
        "statuses": [
            {"code": "OVER_LIMIT", "currentLimit": {"name": "n", "requestsPerUnit": 0, "unit": "MINUTE"},
             "durationUntilReset": "61.001s"},
            {"code": "OK", "currentLimit": {"requestsPerUnit": 3}, "limitRemaining": 2, "durationUntilReset": "60s"},
            {"code": "OK"},
        ],
        "responseHeadersToAdd": [{"key": "K", "value": "v"}],
    });
    assert_eq!(response(told), expected);
}
