use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use serde_json::json;

use super::*;
use crate::config::settings::HeaderNames;
use crate::core::{Answer, Source as DecisionSource};
use crate::protocol::envoy::encode::{reply, ReplyOptions};
use crate::protocol::envoy::json::response;

const LIMITS: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 5, name: a}, metadata: {who: {a: 1}, first: a}}
  - {key: b, rate_limit: {window: 30s, requests_per_unit: 9007199254740991}, metadata: {who: {a: 2, b: 2}, first: b}}
  - {key: two, rate_limits: [{unit: minute, requests_per_unit: 5}, {unit: hour, requests_per_unit: 50}]}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: free, rate_limit: {unlimited: true}}
";

const OPTIONS: ReplyOptions = ReplyOptions { shadow_mode: false, rate_limit_headers: None, dynamic_metadata: false };

fn granted(remaining: u64) -> Answer {
    Answer {
        granted: true,
        units: 1,
        limit: 5,
        remaining: Some(remaining),
        retry_after: Some(Duration::ZERO),
        reset_after: Some(Duration::from_millis(65_000)),
        since: None,
        source: DecisionSource::Server,
    }
}

fn denied(retry_after: Option<u64>) -> Answer {
    let reset_after = Duration::from_millis(61_001);
    Answer {
        granted: false,
        units: 0,
        limit: 5,
        remaining: Some(0),
        retry_after: retry_after.map(Duration::from_millis),
        reset_after: Some(reset_after),
        since: None,
        source: DecisionSource::Server,
    }
}

fn replied(descriptors: &[&str], answers: &[Answer], options: ReplyOptions) -> RateLimitResponse {
    let limits = limits(LIMITS);
    let request = request(descriptors.iter().map(|words| descriptor(words)).collect());
    let plan = plan(&limits, &request).unwrap();
    assert_eq!(plan.questions.len(), answers.len());
    reply(&request, &plan, answers, options)
}

fn codes(reply: &RateLimitResponse) -> (Code, Vec<Code>) {
    (reply.overall_code(), reply.statuses.iter().map(|status| status.code()).collect())
}

fn headers(reply: &RateLimitResponse) -> Vec<String> {
    reply.response_headers_to_add.iter().map(|header| format!("{}: {}", header.key, header.value)).collect()
}

const OK: Code = Code::Ok;
const OVER: Code = Code::OverLimit;

#[test]
fn statuses_are_in_the_order_of_the_descriptors() {
    let reply = replied(&["other=x", "b=x", "free=x", "a=x"], &[granted(7), denied(Some(1_001))], OPTIONS);
    assert_eq!(codes(&reply), (OVER, vec![OK, OK, OK, OVER]));
    let [nothing, b, free, a] = &reply.statuses[..] else { panic!() };
    assert_eq!(
        (nothing.current_limit.as_ref(), nothing.limit_remaining, nothing.duration_until_reset),
        (None, 0, None)
    );
    assert_eq!((free.current_limit.as_ref(), free.limit_remaining), (None, u32::MAX));
    let limit = b.current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit(), b.limit_remaining), (u32::MAX, Unit::Unknown, 7));
    let limit = a.current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit(), &*limit.name), (5, Unit::Minute, "a"));
    let reset = a.duration_until_reset.unwrap();
    assert_eq!((reset.seconds, reset.nanos), (61, 1_000_000));
    assert_eq!(headers(&reply), ["Retry-After: 2"]);
}

#[test]
fn of_several_limits_the_tightest_is_told() {
    for (answers, expected) in [
        ([granted(3), granted(40)], (OK, 5)),
        ([granted(3), granted(2)], (OK, 50)),
        ([granted(3), denied(Some(1))], (OVER, 50)),
        ([denied(Some(2)), denied(Some(1))], (OVER, 5)),
        ([denied(Some(2)), denied(None)], (OVER, 50)),
    ] {
        let reply = replied(&["two=x"], &answers, OPTIONS);
        let limit = reply.statuses[0].current_limit.as_ref().unwrap().requests_per_unit;
        assert_eq!((reply.statuses[0].code(), limit), expected);
        assert_eq!(reply.overall_code, reply.statuses[0].code);
    }
}

#[test]
fn what_nobody_knows_is_not_told() {
    let names = HeaderNames::default();
    let options = ReplyOptions { rate_limit_headers: Some(&names), ..OPTIONS };
    let unknown = |answer: Answer| Answer { remaining: None, reset_after: None, ..answer };
    // Beside a known denial, the other limit was not asked.
    let reply = replied(&["b=x", "a=x"], &[unknown(granted(0)), denied(Some(5_000))], options);
    assert_eq!(reply.statuses[0], DescriptorStatus { code: OK.into(), ..Default::default() });
    assert_eq!(reply.statuses[1].current_limit.as_ref().unwrap().name, "a");
    assert_eq!(
        headers(&reply),
        ["RateLimit-Limit: 5", "RateLimit-Remaining: 0", "RateLimit-Reset: 62", "Retry-After: 5"]
    );
    // A failure policy.
    let reply = replied(&["a=x"], &[unknown(denied(Some(1_000)))], options);
    assert_eq!((codes(&reply), headers(&reply)), ((OVER, vec![OVER]), vec!["Retry-After: 1".into()]));
    assert_eq!(reply.statuses[0].current_limit, None);
    // A known limit is preferred to an unknown one.
    let reply = replied(&["two=x"], &[unknown(granted(0)), granted(40)], options);
    assert_eq!(headers(&reply), ["RateLimit-Limit: 50", "RateLimit-Remaining: 40", "RateLimit-Reset: 65"]);
}

#[test]
fn shadows_deny_nothing() {
    let reply = replied(&["shadow=x", "a=x"], &[denied(Some(5_000)), granted(4)], OPTIONS);
    assert_eq!((codes(&reply), headers(&reply)), ((OK, vec![OK, OK]), vec![]));
    assert_eq!(reply.statuses[0].limit_remaining, 0);
    let reply = replied(&["shadow=x", "a=x"], &[denied(None), denied(Some(5_000))], OPTIONS);
    assert_eq!(headers(&reply), ["Retry-After: 5"]);
    let reply = replied(&["a=x"], &[denied(Some(5_000))], ReplyOptions { shadow_mode: true, ..OPTIONS });
    assert_eq!((codes(&reply), headers(&reply)), ((OK, vec![OVER]), vec![]));
}

#[test]
fn quotas_deny_when_all_of_them_do() {
    let two = ["quota=x", "quota=y", "a=x"];
    let one_over = replied(&two, &[denied(Some(1)), granted(1), granted(1)], OPTIONS);
    assert_eq!(codes(&one_over), (OK, vec![OVER, OK, OK]));
    let both_over = replied(&two, &[denied(Some(1)), denied(Some(9_000)), granted(1)], OPTIONS);
    assert_eq!((codes(&both_over).0, headers(&both_over)), (OVER, vec!["Retry-After: 9".into()]));
    assert_eq!(codes(&replied(&two, &[granted(1), granted(1), denied(Some(1))], OPTIONS)).0, OVER);
    assert_eq!(codes(&replied(&["quota=x"], &[denied(Some(1))], OPTIONS)).0, OVER);
}

#[test]
fn headers_are_those_of_the_descriptor_nearest_to_its_limit() {
    let names = HeaderNames::default();
    let options = ReplyOptions { rate_limit_headers: Some(&names), ..OPTIONS };
    let reply = replied(&["a=x", "b=x"], &[granted(4), granted(3)], options);
    assert_eq!(headers(&reply), ["RateLimit-Limit: 4294967295", "RateLimit-Remaining: 3", "RateLimit-Reset: 65"]);
    let reply = replied(&["a=x", "b=x"], &[denied(Some(100)), granted(0)], options);
    assert_eq!(
        headers(&reply),
        ["RateLimit-Limit: 5", "RateLimit-Remaining: 0", "RateLimit-Reset: 62", "Retry-After: 1"]
    );
    let never = replied(&["a=x"], &[denied(None)], options);
    assert!(headers(&never).iter().all(|header| !header.starts_with("Retry-After")));
    assert_eq!(headers(&replied(&["free=x"], &[], options)), [""; 0]);
}

#[test]
fn metadata_is_of_the_rules_that_granted() {
    let options = ReplyOptions { dynamic_metadata: true, ..OPTIONS };
    let limits = limits(LIMITS);
    let mut request = request(vec![descriptor("a=x"), with_hits("b=x", 2), descriptor("free=x")]);
    request.hits_addend = 3;
    let plan = plan(&limits, &request).unwrap();
    let told = |answers: &[Answer]| response(reply(&request, &plan, answers, options))["dynamicMetadata"].clone();
    let asked = json!({
        "domain": "d", "hitsAddend": 3.0,
        "descriptors": [{"entries": ["a=x"]}, {"entries": ["b=x"], "hitsAddend": 2.0}, {"entries": ["free=x"]}],
    });
    let with = |metadata: serde_json::Value| {
        let mut asked = asked.clone();
        asked["metadata"] = metadata;
        asked
    };
    assert_eq!(told(&[granted(1), granted(1)]), with(json!({"who": {"a": 1.0, "b": 2.0}, "first": "a"})));
    assert_eq!(told(&[denied(Some(1)), granted(1)]), with(json!({"who": {"a": 2.0, "b": 2.0}, "first": "b"})));
    assert_eq!(told(&[denied(Some(1)), denied(Some(1))]), asked);
}
