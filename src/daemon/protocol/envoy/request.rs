//! A decoded request of Envoy's protocol.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;

use crate::config::limits::Entry;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    pub domain: String,
    pub descriptors: Vec<Descriptor>,
    pub hits_addend: u32,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Descriptor {
    pub entries: Vec<Entry>,
    pub limit: Option<RateLimitOverride>,
    pub hits_addend: Option<u64>,
    pub is_negative_hits: bool,
}
