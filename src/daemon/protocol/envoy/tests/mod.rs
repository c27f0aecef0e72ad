mod encoding;
mod json;
mod planning;

use super::plan::Planner;
use super::request::{Descriptor, Request};
use crate::config::limits::{Entry, Limits};
use crate::config::policy::{DecisionPolicy, OnFailure};
use crate::config::settings::Settings;
use crate::config::source::Source;
use crate::core::{Plan, Refusal};

fn limits(text: &str) -> Limits {
    let source = Source { file: "limits.yaml".into(), text: text.into() };
    Limits::load(&[source], &[], &Settings::default()).unwrap()
}

fn policy() -> DecisionPolicy {
    let settings = Settings::default();
    settings.policy().policy(settings.defaults(OnFailure::Error)).unwrap()
}

fn plan<'a>(limits: &'a Limits, request: &'a Request) -> Result<Plan<'a>, Refusal> {
    Planner { limits, prefix: "", policy: policy() }.plan(request)
}

/// `a=b c=d`: a descriptor with these entries.
fn descriptor(words: &str) -> Descriptor {
    let pairs = words.split_whitespace().map(|word| word.split_once('=').unwrap());
    let entries = pairs.map(|(key, value)| Entry { key: key.into(), value: value.into() }).collect();
    Descriptor { entries, ..Default::default() }
}

fn with_hits(words: &str, hits: u64) -> Descriptor {
    Descriptor { hits_addend: Some(hits), ..descriptor(words) }
}

fn request(descriptors: Vec<Descriptor>) -> Request {
    Request { domain: "d".into(), descriptors, hits_addend: 0 }
}
