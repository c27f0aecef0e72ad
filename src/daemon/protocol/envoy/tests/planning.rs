use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use proptest::prelude::*;

use super::*;
use crate::core::{self, Operation, Question, COMPARISONS};

const LIMITS: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {unit: minute, requests_per_unit: 5, name: a}}
  - {key: b, rate_limit: {unit: second, requests_per_unit: 9, replaces: [{name: a}, {name: hour}]}}
  - {key: two, rate_limits: [{unit: minute, requests_per_unit: 5}, {unit: hour, requests_per_unit: 50, name: hour}]}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: tokens, rate_limit: {unit: minute, requests_per_unit: 5, record: true}}
  - {key: free, rate_limit: {unlimited: true, replaces: [{name: a}]}}
  - {key: file, value: f/*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 5}}
";

fn with_limit(words: &str, requests_per_unit: u32, unit: RateLimitUnit) -> Descriptor {
    let limit = Some(RateLimitOverride { requests_per_unit, unit: unit.into() });
    Descriptor { limit, ..descriptor(words) }
}

/// Each question in words, and each descriptor's places among them.
fn planned(request: &Request) -> Result<(Vec<String>, Vec<Vec<usize>>), Refusal> {
    let limits = limits(LIMITS);
    let plan = plan(&limits, request)?;
    let words =
        |it: &Question| format!("{:?} {:?} {} of {} {}", it.role, it.operation, it.hits, it.limit.units, it.key);
    let places = plan.descriptors.iter().map(|descriptor| descriptor.questions.clone()).collect();
    Ok((plan.questions.iter().map(words).collect(), places))
}

fn questions_of(descriptors: Vec<Descriptor>) -> Vec<String> {
    planned(&request(descriptors)).unwrap().0
}

#[test]
fn a_request_says_whom_it_is_about() {
    let nowhere = Request { descriptors: vec![descriptor("a=x")], ..Default::default() };
    assert_eq!(planned(&nowhere), Err(Refusal::invalid("the domain is empty")));
    assert_eq!(planned(&request(vec![])), Err(Refusal::invalid("there are no descriptors")));
    let many = request(vec![descriptor("a=x"); 1001]);
    assert_eq!(planned(&many), Err(Refusal::invalid("there are more than 1000 descriptors")));
    let elsewhere = Request { domain: "e".into(), ..request(vec![descriptor("a=x")]) };
    assert_eq!(planned(&elsewhere), Ok((vec![], vec![vec![]])));
    assert_eq!(planned(&request(vec![Descriptor::default()])), Ok((vec![], vec![vec![]])));
}

#[test]
fn every_limit_that_matches_is_asked_once() {
    let request = request(vec![descriptor("a=x"), descriptor("c=x"), descriptor("two=y"), descriptor("free=z")]);
    let asks =
        ["Decides Allow 1 of 5 {d}|a=x|1m", "Decides Allow 1 of 5 {d}|two=y|1m", "Decides Allow 1 of 50 {d}|two=y|1h"];
    // What is unlimited replaces like any other.
    assert_eq!(
        planned(&request).unwrap(),
        (asks[1..].iter().map(|ask| ask.to_string()).collect(), vec![vec![], vec![], vec![0, 1], vec![]])
    );
    let limits = limits(LIMITS);
    let plan = Planner { limits: &limits, prefix: "p:", policy: policy() };
    let plan = plan.plan(&request).unwrap();
    assert_eq!(plan.questions[0].key, "p:{d}|two=y|1m");
    let named: Vec<_> =
        plan.descriptors.iter().map(|descriptor| (descriptor.rule.is_some(), &*descriptor.label)).collect();
    assert_eq!(named, [(true, "a"), (false, ""), (true, "two"), (true, "free")]);
}

#[test]
fn a_replaced_limit_does_not_hold() {
    let (asks, places) = planned(&request(vec![descriptor("a=x"), descriptor("b=x"), descriptor("two=x")])).unwrap();
    assert_eq!(asks, ["Decides Allow 1 of 9 {d}|b=x|1s", "Decides Allow 1 of 5 {d}|two=x|1m"]);
    assert_eq!(places, [vec![], vec![0], vec![1]]);
}

#[test]
fn hits_are_the_descriptors_own_or_the_requests() {
    assert_eq!(questions_of(vec![with_hits("a=x", 7)]), ["Decides Allow 7 of 5 {d}|a=x|1m"]);
    assert_eq!(questions_of(vec![with_hits("a=x", 0)]), ["Decides Peek 1 of 5 {d}|a=x|1m"]);
    let with_addend = Request { hits_addend: 3, ..request(vec![descriptor("a=x"), with_hits("b=x", 2)]) };
    let without = Request { descriptors: vec![descriptor("a=x")], ..with_addend.clone() };
    assert_eq!(planned(&without).unwrap().0, ["Decides Allow 3 of 5 {d}|a=x|1m"]);
    assert_eq!(planned(&with_addend).unwrap().0, ["Decides Allow 2 of 9 {d}|b=x|1s"]);
    let negative = Descriptor { is_negative_hits: true, ..with_hits("a=x", 4) };
    assert_eq!(questions_of(vec![negative]), ["Decides Refund 4 of 5 {d}|a=x|1m"]);
    assert_eq!(
        planned(&request(vec![with_hits("a=x", 1 << 53)])),
        Err(Refusal::invalid("a descriptor's hits_addend is above 2^53 - 1"))
    );
}

#[test]
fn usage_that_is_reported_is_recorded() {
    assert_eq!(questions_of(vec![with_hits("tokens=x", 700)]), ["Decides Record 700 of 5 {d}|tokens=x|1m"]);
    assert_eq!(questions_of(vec![with_hits("tokens=x", 0)]), ["Decides Peek 1 of 5 {d}|tokens=x|1m"]);
}

#[test]
fn shadows_and_quotas_stand_outside() {
    assert_eq!(
        questions_of(vec![descriptor("shadow=x"), descriptor("quota=x"), descriptor("a=x")]),
        [
            "Shadow Allow 1 of 5 {d}|shadow=x|1m",
            "Decides Allow 1 of 5 {d}|quota=x|1m",
            "Decides Allow 1 of 5 {d}|a=x|1m"
        ],
    );
    let (limits, several) = (limits(LIMITS), request(["quota=x", "quota=y", "a=x", "shadow=x"].map(descriptor).into()));
    let plan = plan(&limits, &several).unwrap();
    assert_eq!(plan.together().collect::<Vec<_>>(), [2]);
    assert_eq!(plan.behind().collect::<Vec<_>>(), [0, 1, 3]);
    assert_eq!(plan.before().count(), 0);
}

#[test]
fn equal_keys_are_one() {
    let (asks, places) =
        planned(&request(vec![with_hits("a=x", 2), descriptor("a=x"), with_hits("a=x", 0), descriptor("a=y")]))
            .unwrap();
    assert_eq!(
        asks,
        ["Decides Allow 3 of 5 {d}|a=x|1m", "Decides Peek 1 of 5 {d}|a=x|1m", "Decides Allow 1 of 5 {d}|a=y|1m"]
    );
    assert_eq!(places, [[0], [0], [1], [2]]);
    assert_eq!(questions_of(vec![with_hits("a=x", 0), with_hits("a=x", 0)]), ["Decides Peek 1 of 5 {d}|a=x|1m"]);
    let many = request(vec![with_hits("a=x", (1 << 53) - 1), descriptor("a=x")]);
    assert_eq!(planned(&many), Err(Refusal::invalid("the hits of equal descriptors are above 2^53 - 1")));
    // Values that share a threshold are equal.
    assert_eq!(
        questions_of(vec![descriptor("file=f/1"), descriptor("file=f/2")]),
        ["Decides Allow 2 of 5 {d}|file=f/*|1d"]
    );
}

#[test]
fn a_limit_of_the_request_goes_before_the_configured_one() {
    let minute = RateLimitUnit::Minute;
    assert_eq!(questions_of(vec![with_limit("a=x", 3, RateLimitUnit::Hour)]), ["Decides Allow 1 of 3 {d}|a=x|1h"]);
    assert_eq!(questions_of(vec![with_limit("new=x", 3, minute)]), ["Decides Allow 1 of 3 {d}|new=x|1m"]);
    assert_eq!(questions_of(vec![with_limit("file=f/1", 3, minute)]), ["Decides Allow 1 of 3 {d}|file=f/1|1m"]);
    // Of two limits for one key the lower one decides.
    assert_eq!(
        questions_of(vec![descriptor("a=x"), with_limit("a=x", 3, minute)]),
        ["Decides Allow 2 of 3 {d}|a=x|1m"]
    );
    let unknown = request(vec![with_limit("a=x", 3, RateLimitUnit::Unknown)]);
    assert_eq!(planned(&unknown), Err(Refusal::invalid("the unit of a descriptor's limit is unknown")));
    let elsewhere = Request { domain: "e".into(), ..request(vec![with_limit("a=x", 3, minute)]) };
    assert_eq!(planned(&elsewhere).unwrap().0, [""; 0]);
}

proptest! {
    /// What is asked together has a key each, and every descriptor that has a limit in force has a question.
    #[test]
    fn plans_are_sound(
        words in prop::collection::vec(("(a|b|two|shadow|quota|tokens|free|file|other)=(x|y|f/1|f/2)", 0..4u64), 1..6),
    ) {
        let descriptors = words.iter().map(|(words, hits)| with_hits(words, *hits)).collect();
        let (limits, request) = (limits(LIMITS), request(descriptors));
        let plan = plan(&limits, &request).unwrap();
        let mut keys: Vec<_> = plan.together().map(|at| &plan.questions[at].key).collect();
        keys.sort();
        keys.dedup();
        prop_assert_eq!(keys.len(), plan.together().count());
        let all = plan.before().count() + plan.together().count() + plan.behind().count();
        prop_assert_eq!(all, plan.questions.len());
        for (at, question) in plan.questions.iter().enumerate() {
            let of = |descriptor: &&core::Descriptor| descriptor.questions.contains(&at);
            let hits: u64 = plan.descriptors.iter().filter(of).map(|descriptor| descriptor.hits).sum();
            prop_assert!(plan.descriptors.iter().any(|descriptor| of(&descriptor)));
            prop_assert_eq!(question.hits, if question.operation == Operation::Peek { 1 } else { hits });
        }
    }
}

#[test]
fn a_question_is_not_compared_with_all_before_it() {
    let limits = limits(LIMITS);
    let request = request((0..1000).map(|number| descriptor(&format!("two={}", number % 900))).collect());
    COMPARISONS.set(0);
    let plan = plan(&limits, &request).unwrap();
    assert_eq!(plan.questions.len(), 2 * 900);
    assert!(COMPARISONS.get() < 2 * 1000, "{}", COMPARISONS.get());
}
