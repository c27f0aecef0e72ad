//! The request messages of `envoy.service.ratelimit.v3`, with descriptor entries as bytes: clients choose their values,
//! and protobuf's `string` would refuse the whole request because of one that is not UTF-8.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::google::protobuf::UInt64Value;

use super::request::{Descriptor, Request};
use crate::config::limits::Entry;

#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<RateLimitEntry>,
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<UInt64Value>,
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitEntry {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

impl From<RateLimitRequest> for Request {
    fn from(RateLimitRequest { domain, descriptors, hits_addend }: RateLimitRequest) -> Self {
        Self { domain, descriptors: descriptors.into_iter().map(Into::into).collect(), hits_addend }
    }
}

impl From<RateLimitDescriptor> for Descriptor {
    fn from(descriptor: RateLimitDescriptor) -> Self {
        let entry = |RateLimitEntry { key, value }| Entry { key, value };
        Self {
            entries: descriptor.entries.into_iter().map(entry).collect(),
            limit: descriptor.limit,
            hits_addend: descriptor.hits_addend.map(|hits| hits.value),
            is_negative_hits: descriptor.is_negative_hits,
        }
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as common;
    use envoy_types::pb::envoy::service::ratelimit::v3 as service;
    use prost::Message;

    use super::*;

    #[test]
    fn the_messages_are_envoys() {
        let entry = common::rate_limit_descriptor::Entry { key: "k".into(), value: "v".into() };
        let descriptor = common::RateLimitDescriptor {
            entries: vec![entry],
            limit: Some(RateLimitOverride { requests_per_unit: 3, unit: 2 }),
            hits_addend: Some(UInt64Value { value: 5 }),
            is_negative_hits: true,
        };
        let sent =
            service::RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor.clone()], hits_addend: 4 };
        let request = Request::from(RateLimitRequest::decode(&*sent.encode_to_vec()).unwrap());
        let expected = Descriptor {
            entries: vec![Entry { key: b"k".into(), value: b"v".into() }],
            limit: descriptor.limit,
            hits_addend: Some(5),
            is_negative_hits: true,
        };
        assert_eq!(request, Request { domain: "d".into(), descriptors: vec![expected], hits_addend: 4 });
    }
}
