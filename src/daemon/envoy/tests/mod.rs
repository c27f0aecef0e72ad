mod json;
mod planning;
mod replying;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::google::protobuf::UInt64Value;

use super::plan::{Invalid, Planning};
use crate::deciding::Plan;
use crate::limits::{Limits, Manner, Source};

fn limits(text: &str) -> Limits {
    Limits::load(&[Source { file: "limits.yaml".into(), text: text.into() }], &[], Manner::default(), false).unwrap()
}

fn plan<'a>(limits: &'a Limits, request: &'a RateLimitRequest) -> Result<Plan<'a>, Invalid> {
    Planning { limits, key_prefix: "", manner: Manner::default() }.plan(request)
}

/// `a=b c=d`: a descriptor with these entries.
fn descriptor(words: &str) -> RateLimitDescriptor {
    let pairs = words.split_whitespace().map(|word| word.split_once('=').unwrap());
    let entries = pairs.map(|(key, value)| Entry { key: key.into(), value: value.into() }).collect();
    RateLimitDescriptor { entries, ..Default::default() }
}

fn with_hits(words: &str, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value: hits }), ..descriptor(words) }
}

fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 }
}
