use std::path::Path;

use axum::http::HeaderMap;
use proptest::prelude::*;

use super::*;
use crate::config::policy::Mode;

fn limits(text: &str) -> Limits {
    merged(&[text], &[]).unwrap()
}

fn error(text: &str) -> String {
    merged(&[text], &[]).unwrap_err().to_string()
}

fn merged(files: &[&str], overlays: &[&str]) -> Result<Limits, ConfigError> {
    let sources = |texts: &[&str], name: &str| -> Vec<Source> {
        let named = texts.iter().enumerate().map(|(at, text)| (format!("{name}{}.yaml", at + 1), text.to_string()));
        named.map(|(file, text)| Source { file, text }).collect()
    };
    Limits::load(&sources(files, "file"), &sources(overlays, "over"), &Settings::default())
}

/// `a=b c=d`, the entries of a descriptor.
pub fn entries(words: &str) -> Vec<Entry> {
    let pairs = words.split_whitespace().map(|word| word.split_once('=').unwrap());
    pairs.map(|(key, value)| Entry { key: key.into(), value: value.into() }).collect()
}

/// The name of the rule that a descriptor matches, and what its limits allow.
fn found(limits: &Limits, words: &str) -> Option<(String, Vec<u64>)> {
    let rule = limits.domain("d")?.find(&entries(words))?;
    Some((rule.name.clone(), rule.limits.iter().map(|limit| limit.units).collect()))
}

fn only_limit(limits: &Limits) -> &Limit {
    let all = limits.by_id();
    assert_eq!(all.len(), 1);
    all[0]
}

const MATCHING: &str = "
domain: d
descriptors:
  - {key: path, value: /api/*, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: path, value: '*.css', rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: path, value: /api/login, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: path, rate_limit: {unit: minute, requests_per_unit: 4}}
  - {key: path, value: /health}
  - key: tenant
    rate_limit: {unit: hour, requests_per_unit: 5}
    descriptors:
      - key: user
        rate_limit: {unit: second, requests_per_unit: 6}
        descriptors:
          - {key: method, value: POST, rate_limit: {unit: day, requests_per_unit: 7}}
      - {key: user, value: root, rate_limit: {unlimited: true}}
  - key: tenant
    value: big
    descriptors:
      - {key: user, rate_limit: {unit: year, requests_per_unit: 8}}
  - {key: status, value: 404, rate_limit: {unit: WEEK, requests_per_unit: 9}}
  - {key: bare, rate_limit: {unit: month}}
";

#[test]
fn the_most_specific_descriptor_of_each_level_matches() {
    let limits = limits(MATCHING);
    for (words, expected) in [
        ("path=/api/login", Some(("path_/api/login", 3))),
        ("path=/api/x", Some(("path_/api/*", 1))),
        ("path=/api/x.css", Some(("path_/api/*", 1))), // the first of two with a star
        ("path=/x.css", Some(("path_*.css", 2))),
        ("path=/other", Some(("path", 4))),
        ("path=", Some(("path", 4))),
        ("path=/health", None), // named without a limit: left alone
        ("tenant=a", Some(("tenant", 5))),
        ("tenant=a user=b", Some(("tenant.user", 6))),
        ("tenant=a user=b method=POST", Some(("tenant.user.method_POST", 7))),
        ("tenant=a user=b method=GET", None),
        ("tenant=a user=b method=POST x=y", None), // deeper than any limit
        ("tenant=big", None),                      // what matches has no limit, whatever others have
        ("tenant=big user=b", Some(("tenant_big.user", 8))),
        ("tenant=big user=root", Some(("tenant_big.user", 8))),
        ("user=b", None),
        ("status=404", Some(("status_404", 9))),
        ("bare=x", Some(("bare", 0))), // as envoyproxy/ratelimit has it: nothing is allowed
        ("", None),
    ] {
        let expected = expected.map(|(name, limit)| (name.to_string(), vec![limit]));
        assert_eq!(found(&limits, words), expected, "{words}");
    }
    assert!(limits.domain("e").is_none());
    let domain = limits.domain("d").unwrap();
    let unlimited = domain.find(&entries("tenant=a user=root")).unwrap();
    assert!(unlimited.unlimited && unlimited.limits.is_empty());
}

#[test]
fn key_and_value_are_not_one_word() {
    let limits = limits(
        "{domain: d, descriptors: [
            {key: a, value: b_c, rate_limit: {unit: second, requests_per_unit: 1}},
            {key: a_b, value: c, rate_limit: {unit: second, requests_per_unit: 2}}]}",
    );
    assert_eq!(found(&limits, "a=b_c").unwrap().1, [1]);
    assert_eq!(found(&limits, "a_b=c").unwrap().1, [2]);
}

#[test]
fn units_and_windows() {
    const DAY: u64 = 86_400_000;
    for (written, window, resolution) in [
        ("unit: second", 1000, 50),
        ("unit: minute", 60_000, 5_000),
        ("unit: Hour", 3_600_000, 300_000),
        ("unit: day", DAY, DAY / 12),
        ("unit: week", 7 * DAY, 7 * DAY / 12),
        ("unit: month", 30 * DAY, 30 * DAY / 12),
        ("unit: year", 365 * DAY, 365 * DAY / 12),
        ("window: 30", 30_000, 2_500),
        ("window: 30s", 30_000, 2_500),
        ("window: 5m, resolution: 1s", 300_000, 1_000),
        ("unit: minute, resolution: 60s", 60_000, 60_000),
        ("window: 7ms", 7, 7),
        ("window: 13ms", 13, 1),
    ] {
        let text = format!("{{domain: d, descriptors: [{{key: k, rate_limit: {{{written}}}}}]}}");
        let Per::Window(geometry) = only_limit(&limits(&text)).per else { panic!("{written}") };
        assert_eq!((geometry.window(), geometry.resolution()), (window, resolution), "{written}");
    }
}

#[test]
fn periods_of_the_calendar() {
    for (written, shown) in [
        ("period: hour", "7 per hour"),
        ("period: month, anchor: 15, time_zone: Europe/Berlin", "7 per month, time zone Europe/Berlin, from 15"),
        ("period: week, anchor: sunday", "7 per week, from sunday"),
        ("period: year, anchor: 04-01, on_failure: allow, local_share: 0.5", "7 per year, from 04-01"),
        ("period: day, mode: direct, record: true, name: n, priority: 1", "7 per day"),
    ] {
        let text = format!("{{domain: d, descriptors: [{{key: k, rate_limit: {{{written}, requests_per_unit: 7}}}}]}}");
        let limits = limits(&text);
        let limit = only_limit(&limits);
        assert_eq!((limit.to_string(), limit.policy.mode), (shown.to_string(), Mode::Direct));
        assert_eq!(limit.per.window(), None);
    }
    for (written, expected) in [
        ("period: month, anchor: 32", "anchor must be a day of the month, 1 to 31"),
        ("period: day, anchor: 1", "anchor must be left out: it is for week, month and year"),
        ("period: day, time_zone: Mars/Base", "time_zone must be a name such as Europe/Berlin, not 'Mars/Base'"),
        ("period: day, unit: day", "`period` excludes `unit`"),
        ("period: day, window: 1d", "`period` excludes `window`"),
        ("period: day, resolution: 1h", "`period` excludes `resolution`"),
        ("period: day, strict: true", "`period` excludes `strict`"),
        ("period: day, block: 1h", "`period` excludes `block`"),
        ("period: day, lease_share: 0.1", "`period` excludes `lease_share`"),
        ("period: day, lease_length: 1s", "`period` excludes `lease_length`"),
        ("period: day, sync_interval: 1s", "`period` excludes `sync_interval`"),
        ("period: day, mode: leased", "the mode of a period is direct"),
        ("period: day, mode: local", "the mode of a period is direct"),
        ("unit: day, time_zone: Europe/Berlin", "time_zone and anchor are for a period"),
        ("unit: day, anchor: 1", "time_zone and anchor are for a period"),
    ] {
        let text = format!("{{domain: d, descriptors: [{{key: k, rate_limit: {{{written}}}}}]}}");
        assert_eq!(error(&text), format!("file1.yaml:1:48: {expected}"));
    }
    let of = |text: &str| Settings::read(&Source { file: "s".into(), text: text.into() }, Path::new("")).unwrap();
    let file = |text: &str| [Source { file: "f".into(), text: with_lines(text) }];
    let days = file("    rate_limit: {period: day}");
    // What holds for all limits holds for windows.
    for (settings, mode) in [("mode: leased", Mode::Direct), ("server: none", Mode::Local)] {
        let limits = Limits::load(&days, &[], &of(settings)).unwrap();
        assert_eq!(only_limit(&limits).policy.mode, mode);
    }
    assert!(Limits::load(&days, &[], &of("module: never")).is_ok());
    let both = file("    rate_limits: [{period: day}, {unit: day}]");
    assert_eq!(Limits::load(&both, &[], &Settings::default()).unwrap().by_id().len(), 2);
    let twice = with_lines("    rate_limits: [{period: day}, {period: day, time_zone: Europe/Berlin}]");
    assert_eq!(error(&twice), "file1.yaml:4:34: two limits of one rule have the same period");
    let over = "{domain: d, descriptors: [{key: k, rate_limit: {time_zone: Europe/Berlin}}]}";
    let limits = merged(&[&with_lines("    rate_limit: {period: day, requests_per_unit: 5}")], &[over]).unwrap();
    assert_eq!(only_limit(&limits).to_string(), "5 per day, time zone Europe/Berlin");
}

#[test]
fn how_many_at_once() {
    let text = |written: &str| format!("domain: d\ndescriptors:\n  - {{key: k, rate_limit: {{{written}}}}}");
    let all = limits(&text("concurrency: 5, ttl: 1h, id: k, on_failure: deny, name: n"));
    let limit = only_limit(&all);
    assert_eq!((limit.to_string(), limit.per.id()), ("5 at once, each for at most 1h".into(), Some(0)));
    assert_eq!((limit.policy.mode, limit.policy.on_failure), (Mode::Direct, OnFailure::Deny));
    for (written, expected) in [
        ("concurrency: 5", "concurrency needs an id: the descriptor entry that says which request it is"),
        ("concurrency: 5, id: other", "no entry of the descriptor is the id 'other'"),
        ("concurrency: 5, id: k", "concurrency needs a ttl of at least 3s: the longest that a request counts"),
        ("concurrency: 5, id: k, ttl: 2s", "concurrency needs a ttl of at least 3s: the longest that a request counts"),
        ("concurrency: 5, id: k, ttl: 1h, unit: day", "`concurrency` excludes `unit`"),
        ("concurrency: 5, id: k, ttl: 1h, period: day", "`concurrency` excludes `period`"),
        ("concurrency: 5, id: k, ttl: 1h, record: true", "`concurrency` excludes `record`"),
        ("concurrency: 5, id: k, ttl: 1h, requests_per_unit: 5", "`concurrency` excludes `requests_per_unit`"),
        ("concurrency: 5, id: k, ttl: 1h, mode: leased", "the mode of concurrency is direct"),
        ("concurrency: 5, id: k, ttl: 1h, on_failure: local", "the on_failure of concurrency is allow, deny or error"),
        ("unit: day, ttl: 1h", "ttl and id are for concurrency"),
        ("unlimited: true, concurrency: 5", "`unlimited` excludes unit, window, period and concurrency"),
    ] {
        assert_eq!(error(&text(written)), format!("file1.yaml:3:26: {expected}"));
    }
    let policies = text("concurrency: 5, id: k, ttl: 1h, on_failure: deny")
        .replace("descriptors", "policies")
        .replace("key: k", "name: n, key: k");
    assert!(error(&policies).ends_with("concurrency is for descriptors: nothing tells policies when a request ends"));
}

#[test]
fn a_limit_sets_its_policy() {
    let all = limits(
        "{domain: d, hash_tag: tenant, descriptors: [{key: k, rate_limit: {requests_per_unit: 9007199254740991,
            window: 1s, resolution: 1s, strict: true, block: 1h, record: true, name: n, mode: leased, local_share: 0.5,
            lease_share: 0.25, lease_length: 500ms, sync_interval: 20ms, on_failure: deny}}]}",
    );
    let limit = only_limit(&all);
    assert_eq!(limit.units, (1 << 53) - 1);
    assert_eq!((limit.strict, limit.block, limit.record), (true, Some(3_600_000), true));
    let policy = limit.policy;
    assert_eq!((&*limit.name, policy.mode, policy.on_failure), ("n", Mode::Leased, OnFailure::Deny));
    let shares = (policy.local_share.fraction(), policy.lease_share.fraction());
    assert_eq!((shares, policy.lease_length, policy.sync_interval), ((0.5, 0.25), Some(500), 20));
    assert_eq!(all.domain("d").unwrap().hash_tag.as_deref(), Some("tenant"));
}

#[test]
fn limits_that_rise_after_idleness() {
    let text = |written: &str| with_lines(&format!("    rate_limit: {{requests_per_unit: 60, {written}}}"));
    for (written, duration, cold) in [
        ("unit: minute, warm_up: 10m", 600_000, 3),
        ("unit: minute, warm_up: 1h, cold: 2, mode: leased, block: 1h", 3_600_000, 2),
    ] {
        let all = limits(&text(written));
        let limit = only_limit(&all);
        let warm_up = limit.warm_up.unwrap();
        assert_eq!((warm_up.duration(), warm_up.cold()), (duration, cold));
        assert_eq!(limit.unnamed().warm_up, Some(warm_up));
        assert!(limit.to_string().contains(", warm-up 1"), "{limit}");
    }
    let merged = merged(&[&text("unit: minute, warm_up: 10m")], &[&text("cold: 4")]).unwrap();
    assert_eq!(only_limit(&merged).warm_up.unwrap().cold(), 4);
    for (written, expected) in [
        ("unit: minute, warm_up: 9m", "warm_up must be at least ten times the window"),
        ("unit: minute, cold: 2", "cold needs warm_up"),
        ("unit: minute, warm_up: 10m, cold: 1", "cold must be an integer between 2 and 1000"),
        ("unit: minute, warm_up: 10m, cold: 2.5", "cold must be an integer between 2 and 1000"),
        ("unit: minute, warm_up: 10m, cold: 1001", "cold must be an integer between 2 and 1000"),
        ("period: day, warm_up: 10d", "`period` excludes `warm_up`"),
    ] {
        let error = error(&text(written));
        assert!(error.starts_with("file1.yaml:4:") && error.contains(expected), "{error}");
    }
}

#[test]
fn several_limits_at_one_descriptor() {
    let all = limits(
        "{domain: d, descriptors: [{key: k, rate_limits: [
            {unit: second, requests_per_unit: 10}, {unit: hour, requests_per_unit: 100, replaces: [{name: other}]}]}]}",
    );
    assert_eq!(found(&all, "k=v").unwrap().1, [10, 100]);
    assert_eq!(all.domain("d").unwrap().find(&entries("k=v")).unwrap().replaces, ["other"]);
}

#[test]
fn files_of_one_domain_are_put_together() {
    let one = "{domain: d, descriptors: [{key: a, rate_limit: {unit: second, requests_per_unit: 1}}]}";
    let two = "{domain: d, descriptors: [{key: b, rate_limit: {unit: second, requests_per_unit: 2}}]}";
    let both = merged(&[one, two], &[]).unwrap();
    assert_eq!((found(&both, "a=x").unwrap().1, found(&both, "b=x").unwrap().1), (vec![1], vec![2]));
    assert_eq!(
        merged(&[one, two, one], &[]).unwrap_err().to_string(),
        "file3.yaml:1:27: the descriptor 'a' is defined twice"
    );
}

#[test]
fn overlays_override_other_files() {
    let below = "
domain: d
descriptors:
  - key: a
    rate_limit: {unit: minute, requests_per_unit: 5, name: n}
    shadow_mode: true
    descriptors:
      - {key: b, value: c, rate_limit: {unit: minute, requests_per_unit: 6}}
";
    let over = "
domain: d
descriptors:
  - key: a
    rate_limit: {window: 30s, strict: true}
    descriptors:
      - key: b
        value: c
        shadow_mode: true
        rate_limits: [{unit: second, requests_per_unit: 1}, {unit: minute, requests_per_unit: 6}]
";
    let both = merged(&[below], &[over]).unwrap();
    let domain = both.domain("d").unwrap();
    let rule = domain.find(&entries("a=x")).unwrap();
    let limit = &rule.limits[0];
    assert_eq!((limit.to_string(), limit.strict, &*limit.name), ("5 per 30s, resolution 2500ms".into(), true, "n"));
    assert!(rule.shadow_mode);
    let rule = domain.find(&entries("a=x b=c")).unwrap();
    assert_eq!((rule.limits.len(), rule.shadow_mode), (2, true));

    for (over, expected) in [
        ("{domain: e}", "over1.yaml: no other file has the domain 'e'"),
        ("{domain: d, descriptors: [{key: x}]}", "over1.yaml:1:27: no other file has the descriptor 'x' here"),
        (
            "{domain: d, descriptors: [{key: a, rate_limit: {resolution: 7s}}]}",
            "over1.yaml:1:48: the resolution does not divide the window evenly",
        ),
        (
            "{domain: d, descriptors: [{key: a, share_threshold: true}]}",
            "over1.yaml:1:27: share_threshold needs a value with a '*'",
        ),
    ] {
        assert_eq!(merged(&[below], &[over]).unwrap_err().to_string(), expected);
    }
}

#[test]
fn metrics_and_keys_name_values_as_configured() {
    let limits = limits(
        "
domain: d
descriptors:
  - {key: any, rate_limit: {unit: second}}
  - {key: one, value: v, rate_limit: {unit: second}}
  - {key: wild, value: v*, rate_limit: {unit: second}}
  - {key: detailed, detailed_metric: true, rate_limit: {unit: second}}
  - {key: named, value_to_metric: true, rate_limit: {unit: second}}
  - {key: files, value: f/*, share_threshold: true, value_to_metric: true, rate_limit: {unit: second}}
  - key: service
    value: svc/*
    share_threshold: true
    descriptors:
      - {key: endpoint, detailed_metric: true, rate_limit: {unit: second}}
  - key: route
    value: api/*
    value_to_metric: true
    descriptors:
      - {key: method, rate_limit: {unit: second}}
",
    );
    let domain = limits.domain("d").unwrap();
    for (words, metric, counted) in [
        ("any=x", "any", "any=x"),
        ("one=v", "one_v", "one=v"),
        ("wild=v1", "wild_v*", "wild=v1"),
        ("detailed=x", "detailed_x", "detailed=x"),
        ("detailed=", "detailed", "detailed="),
        ("named=x", "named_x", "named=x"),
        ("files=f/1", "files_f/*", "files=f/*"),
        ("service=svc/1 endpoint=x", "service_svc/*.endpoint_x", "service=svc/* endpoint=x"),
        ("route=api/1 method=GET", "route_api/1.method", "route=api/1 method=GET"),
    ] {
        let entries = entries(words);
        let rule = domain.find(&entries).unwrap();
        assert_eq!(rule.label(&entries), metric);
        let pair = |(at, entry): (usize, &Entry)| [&*entry.key, b"=", rule.key_value(at, entry)].concat();
        assert_eq!(entries.iter().enumerate().map(pair).collect::<Vec<_>>().join(&b' '), counted.as_bytes());
    }
}

#[test]
fn metadata_is_kept() {
    let limits = limits(
        "{domain: d, descriptors: [{key: k, rate_limit: {unit: second}, metadata: {a: {b: [1, x, null]}, unit: any}}]}",
    );
    let metadata = limits.domain("d").unwrap().find(&entries("k=v")).unwrap().metadata.clone().unwrap();
    assert_eq!(serde_json::Value::from(metadata), serde_json::json!({"a": {"b": [1, "x", null]}, "unit": "any"}));
}

#[test]
fn null_is_the_default() {
    let limits = limits("{domain: d, descriptors: [{key: k, value: null, rate_limit: null, descriptors: null}]}");
    assert!(limits.rules().is_empty());
    assert!(merged(&["{domain: d, descriptors: }"], &[]).unwrap().rules().is_empty());
}

/// A file with one descriptor, whose lines follow.
fn with_lines(lines: &str) -> String {
    format!("domain: d\ndescriptors:\n  - key: k\n{lines}")
}

#[test]
fn errors_have_a_position() {
    for (text, expected) in [
        ("", "file1.yaml: there is no domain"),
        ("domain: ''\n", "file1.yaml:1:9: the domain is empty"),
        ("domain: d\ndescriptors: [{value: v}]\n", "file1.yaml:2:15: the descriptor has no key"),
        ("domain: d\ndescriptors: [{key: a*}]\n", "file1.yaml:2:15: a key cannot have a '*', only a value can"),
        (&with_lines("    rate_limit: {unit: minutes}"), "file1.yaml:4:24: 'minutes' is not a unit of time"),
        (
            &with_lines("    rate_limit: {window: 3x}"),
            "file1.yaml:4:26: '3x' is not a duration such as 60, 500ms, 5m, 1h or 7d",
        ),
        (
            &with_lines("    rate_limit: {requests_per_unit: 5}"),
            "file1.yaml:4:17: unit, window, period or concurrency is missing",
        ),
        (
            &with_lines("    rate_limit: {unit: minute, window: 1m}"),
            "file1.yaml:4:17: unit and window exclude each other",
        ),
        (
            &with_lines("    rate_limit: {unlimited: true, unit: minute}"),
            "file1.yaml:4:17: `unlimited` excludes unit, window, period and concurrency",
        ),
        (
            &with_lines("    rate_limit: {window: 3650d, resolution: 1ms}"),
            "file1.yaml:4:17: window / resolution is 315360000000 subintervals, which is too many",
        ),
        (
            &with_lines("    rate_limit: {unit: second, local_share: 1.5}"),
            "file1.yaml:4:45: a share is above 0 and at most 1, not 1.5",
        ),
        (
            &with_lines("    rate_limit: {unit: second, requests_per_unit: 9007199254740992}"),
            "file1.yaml:4:51: a limit is at most 9007199254740991",
        ),
        (
            &with_lines("    rate_limit: {unit: second, replaces: [{}]}"),
            "file1.yaml:4:17: `replaces` needs the name of a limit",
        ),
        (
            &with_lines("    rate_limit: {unit: second, name: a, replaces: [{name: a}]}"),
            "file1.yaml:4:17: a limit cannot replace itself",
        ),
        (&with_lines("    share_threshold: true"), "file1.yaml:3:5: share_threshold needs a value with a '*'"),
        (
            &with_lines("    rate_limit: {unit: second}\n    rate_limits: []"),
            "file1.yaml:3:5: rate_limit and rate_limits exclude each other",
        ),
        (
            &with_lines("    rate_limits: [{unit: second}, {unlimited: true}]"),
            "file1.yaml:4:35: `unlimited` excludes other limits",
        ),
        (
            &with_lines("    rate_limits: [{unit: second}, {window: 1s}]"),
            "file1.yaml:4:35: two limits of one rule have the same window",
        ),
    ] {
        assert_eq!(error(text), expected, "{text}");
    }
    // Messages of the parser, by their beginning.
    for (text, expected) in [
        (&*with_lines("    rate_limit: {unit: day, deciding: direct}"), "file1.yaml:4:29: `deciding` is now `mode`"),
        (&with_lines("    rate_limit: {unit: day, mode: denials}"), "file1.yaml:4:35: `denials` is now `cached`"),
        (&with_lines("    ratelimit: {}"), "file1.yaml:4:5: unknown field `ratelimit`"),
        (&with_lines("    rate_limit: {requestsperunit: 1}"), "file1.yaml:4:18: unknown field `requestsperunit`"),
        ("0.25: a\n", "file1.yaml:1:1: unknown field `0.25`"),
        (&with_lines("    key: again"), "file1.yaml:4:5: duplicate mapping key"),
        ("domain: d\ndescriptors: [a]\n", "file1.yaml:2:15: "),
        ("domain: 'd\n", "file1.yaml:"),
        ("domain: d\n---\ndomain: e\n", "file1.yaml:3:1: only single YAML document expected"),
        (&"[".repeat(100_000), "file1.yaml:1:"),
        (&format!("descriptors: {}", "[{key: a, descriptors: ".repeat(3000)), "file1.yaml:1:"),
        (&format!("k: {}", "[{k: ".repeat(3000)), "file1.yaml:1:1: unknown field"),
        ("a: &a [*a, *a]\n", "file1.yaml:1:1: unknown field `a`"),
    ] {
        assert!(error(text).starts_with(expected), "{}", error(text));
    }
}

proptest! {
    /// Any file is limits or an error.
    #[test]
    fn nothing_crashes(text in "(domain: d\ndescriptors:\n)?[ -~\n]{0,200}") {
        let _ = merged(&[&text], &[&text]);
    }

    /// The lookup in the documented order, without an index.
    #[test]
    fn a_lookup_is_what_it_means(
        values in prop::collection::vec("(a|b|[*])?(a|b|[*])?", 1..6),
        asked in prop::collection::vec("[abc]{0,3}", 1..8),
    ) {
        let mut written: Vec<&String> = Vec::new();
        for value in &values {
            if !written.contains(&value) {
                written.push(value);
            }
        }
        let one = |(at, value): (usize, &&String)| {
            format!("{{key: k, value: '{value}', rate_limit: {{unit: second, requests_per_unit: {at}}}}}")
        };
        let descriptors: Vec<_> = written.iter().enumerate().map(one).collect();
        let limits = limits(&format!("{{domain: d, descriptors: [{}]}}", descriptors.join(", ")));
        for value in asked {
            let position = |is: &dyn Fn(&str) -> bool| written.iter().position(|written| is(written));
            let expected = position(&|written| !written.is_empty() && !written.contains('*') && written == value)
                .or_else(|| position(&|written| Wildcard::new(written).is_some_and(|wild| wild.matches(value.as_bytes()))))
                .or_else(|| position(&str::is_empty));
            let found = found(&limits, &format!("k={value}")).map(|(_, limits)| limits[0] as usize);
            prop_assert_eq!(found, expected, "{} in {:?}", value, written);
        }
    }
}

fn original<'a>(method: &str, host: &str, path: &str, headers: &'a HeaderMap) -> OriginalRequest<'a> {
    let sent = |word: &str| if word.is_empty() { Err(MissingHeader("a header".into())) } else { Ok(word.into()) };
    let method_written = sent(method);
    let method = sent(&method.to_ascii_uppercase());
    OriginalRequest { client: None, host: sent(host), path: sent(path), method, method_written, headers }
}

const POLICIES: &str = "
domain: d
policies:
  - {name: all, key: k, rate_limit: {window: 1m}}
  - {name: api, match: {path: /api/*}, key: k, rate_limit: {window: 1m}}
  - {name: exact, match: {path: [/a, '//x/../%62'], method: post}, key: k, rate_limit: {window: 1m}}
  - {name: hosts, match: {host: ['*.Example', other], method: [GET]}, key: k,
     rate_limits: [{window: 1m}, {unit: day}]}
  - {name: head, match: {path: /m, method: HEAD}, key: k, rate_limit: {window: 1m}}
  - {name: precise, match: {path: /m, method: [get, POST], method_exact: true}, key: k, rate_limit: {window: 1m}}
  - {name: any, match: {path: /m, method: 'P*'}, key: k, rate_limit: {window: 1m}}
";

#[test]
fn policies_match_requests() {
    let limits = limits(POLICIES);
    assert_eq!(limits.by_id().len(), 8);
    let headers = HeaderMap::new();
    for (method, host, path, expected) in [
        ("DELETE", "x", "/", Some("all")),
        ("DELETE", "x", "/api", Some("all")),
        ("DELETE", "x", "/api/", Some("all api")),
        ("DELETE", "x", "/api/v1/x", Some("all api")),
        ("POST", "x", "/a", Some("all exact")),
        ("POST", "x", "/b", Some("all exact")),
        ("POST", "x", "/b/", Some("all")),
        ("GET", "shop.example", "/b", Some("all hosts")),
        ("HEAD", "other", "/api/x", Some("all api hosts")),
        ("GET", "example", "/", Some("all")),
        ("post", "x", "/a", Some("all exact")),
        ("get", "other", "/", Some("all hosts")),
        ("hEaD", "other", "/", Some("all hosts")),
        ("HEADER", "other", "/", Some("all")),
        ("HEAD", "x", "/m", Some("all head")),
        ("GET", "x", "/m", Some("all precise")),
        ("get", "x", "/m", Some("all")),
        ("POST", "x", "/m", Some("all precise any")),
        ("put", "x", "/m", Some("all any")),
        // Missing headers matter only to policies that need them.
        ("", "x", "/", Some("all")),
        ("", "other", "/", None),
        ("GET", "", "/", None),
        ("GET", "other", "", None),
    ] {
        let request = original(method, host, path, &headers);
        let keys = limits.policies().map(|(_, policy)| Ok((&*policy.rule.name, policy.key_of(&request)?)));
        let keys: Result<Vec<_>, MissingHeader> = keys.collect();
        let matching = keys.map(|all| all.into_iter().filter_map(|(name, key)| key.map(|_| name)).collect::<Vec<_>>());
        let names = matching.ok().map(|names| names.join(" "));
        assert_eq!(names.as_deref(), expected, "{method} {host} {path}");
    }
}

#[test]
fn few_of_many_policies_are_tried() {
    let conditions = [
        "host: other-N.example",
        "path: '/tenants/N/*'",
        "host: N.example, path: /login",
        "host: '*.example', path: [/N, '*/N.css']",
        "host: ['*-N.example', '*.N.example'], path: '/*', method: GET",
    ];
    let policy = |number: usize| {
        let conditions = conditions[number % 5].replace('N', &number.to_string());
        format!("  - {{name: n{number}, match: {{{conditions}}}, key: k, rate_limit: {{unit: day}}}}\n")
    };
    let any = "  - {name: any, match: {method: PUT}, key: k, rate_limit: {unit: day}}\n";
    let text = format!("domain: d\npolicies:\n{any}{}", (0..2000).map(policy).collect::<String>());
    let headers = HeaderMap::new();
    let limits = limits(&text);
    for (host, path) in [
        ("1234.example", "/tenants/1001/x"),
        ("1002.example", "/login"),
        ("a.example", "/1003"),
        ("a-1004.example", "/1004.css"),
        ("", "/login"),
        ("a", ""),
    ] {
        let request = original("GET", host, path, &headers);
        let met = |policy: &Policy| policy.conditions.mismatch(&request).map(|it| it.is_none());
        let names = |(_, policy): (&Domain, &Policy)| policy.rule.name.clone();
        let expected: Vec<_> = limits.policies().filter(|(_, policy)| met(policy) != Ok(false)).map(names).collect();
        let found: Vec<_> = limits.policies_for(&request).collect();
        assert!(host.is_empty() || path.is_empty() || found.len() <= 5, "{host}{path}: {}", found.len());
        let found: Vec<_> = found.into_iter().filter(|(_, policy)| met(policy) != Ok(false)).map(names).collect();
        assert_eq!(found, expected, "{host}{path}");
    }
}

#[test]
fn methods_match_as_in_all_clients() {
    let cases: Vec<serde_json::Value> =
        serde_json::from_str(include_str!("../../../../tests/conformance/vectors/methods.json")).unwrap();
    let headers = HeaderMap::new();
    for case in cases {
        let conditions = format!("{{method: {}, method_exact: {}}}", case["methods"], case["exact"]);
        let policy = format!("{{name: n, key: k, match: {conditions}, rate_limit: {{unit: day}}}}");
        let limits = limits(&format!("{{domain: d, policies: [{policy}]}}"));
        let (_, policy) = limits.policies().next().unwrap();
        for (sent, matches) in [("matching", true), ("other", false)] {
            for method in case[sent].as_array().unwrap().iter().filter_map(|method| method.as_str()) {
                let key = policy.key_of(&original(method, "", "", &headers));
                assert_eq!(matches!(key, Ok(Some(_))), matches, "{method} {case}");
            }
        }
    }
}

#[test]
fn policies_that_can_be_bypassed_are_warned_of() {
    let limits = limits(
        "
domain: d
policies:
  - {name: a, match: {method: [POST, DELETE]}, key: k, rate_limit: {window: 1m}}
  - {name: b, match: {method: GET, method_exact: true}, key: k, rate_limit: {window: 1m}}
  - {name: c, match: {method: [GET, delete, PUT]}, key: k, rate_limit: {window: 1m}}
  - {name: d, key: k, rate_limit: {window: 1m}}
  - {name: e, match: {method: GET}, key: k, rate_limit: {window: 1m}}
  - {name: f, match: {method: POST}, key: k, rate_limit: {window: 1m}}
  - {name: g, match: {method: 'P*'}, key: k, rate_limit: {window: 1m}}
  - {name: h, match: {method: [GET, HEAD, POST], method_exact: true}, key: k, rate_limit: {window: 1m}}
",
    );
    let warnings: Vec<_> = limits.warnings.iter().map(ToString::to_string).collect();
    let overridden = |methods: &str| {
        format!(
            "applications that honour X-HTTP-Method-Override or `_method` treat POST like {methods}: name POST, too"
        )
    };
    assert_eq!(
        warnings,
        [
            format!(
                "file1.yaml:5:5: policy 'b' can be bypassed: some applications treat get like GET: leave out \
                 method_exact; most applications answer HEAD like GET: name HEAD, too; {}",
                overridden("GET")
            ),
            format!("file1.yaml:6:5: policy 'c' can be bypassed: {}", overridden("GET and DELETE and PUT")),
            format!("file1.yaml:8:5: policy 'e' can be bypassed: {}", overridden("GET")),
            "file1.yaml:11:5: policy 'h' can be bypassed: some applications treat get and head and post like GET and \
             HEAD and POST: leave out method_exact"
                .into(),
        ]
    );
}

#[test]
fn errors_of_policies_have_a_position() {
    let policy = |text: &str| format!("domain: d\npolicies:\n  - {{name: n, {text}}}\n");
    for (text, expected) in [
        (policy("key: k"), "file1.yaml:3:5: the policy has no limit"),
        (policy("key: k, rate_limit: {}"), "file1.yaml:3:35: unit, window, period or concurrency is missing"),
        (
            policy("key: k, rate_limit: {unit: day, replaces: [{name: a}]}"),
            "file1.yaml:3:5: a policy cannot replace limits",
        ),
        (
            policy("key: k, rate_limit: {unit: day}").replace("name: n", "name: a b"),
            "file1.yaml:3:5: a policy's name has letters, digits, dots, dashes and underscores",
        ),
        (
            policy("key: k, rate_limit: {unit: day}") + "  - {name: n, key: k, rate_limit: {unit: day}}\n",
            "file1.yaml:4:5: duplicate policy 'n'",
        ),
    ] {
        assert_eq!(error(&text), expected, "{text}");
    }
    for (text, expected) in [
        (policy("rate_limit: {unit: day}"), "file1.yaml:3:15: missing field `key`"),
        (policy("key: '{who}', rate_limit: {unit: day}"), "file1.yaml:3:20: '{who}' is none of"),
        (policy("key: k, cost: 0, rate_limit: {unit: day}"), "file1.yaml:3:29: a cost is at least 1"),
        (policy("key: k, match: {path: api}, rate_limit: {unit: day}"), "file1.yaml:3:37: a path begins with /"),
        (policy("key: k, match: {path: '/a?b'}, rate_limit: {unit: day}"), "file1.yaml:3:37: '/a?b' matches no path"),
        (policy("key: k, match: {path: []}, rate_limit: {unit: day}"), "file1.yaml:3:37: an empty list"),
        (policy("key: k, match: {host: 'a:80'}, rate_limit: {unit: day}"), "file1.yaml:3:37: 'a:80' matches no host"),
        (policy("key: k, match: {host: a/b}, rate_limit: {unit: day}"), "file1.yaml:3:37: 'a/b' matches no host"),
        (policy("key: k, match: {method: 'GET POST'}, rate_limit: {unit: day}"), "file1.yaml:3:39: 'GET POST' matches"),
        (policy("key: k, match: {method_exact: true}, rate_limit: {unit: day}"), "file1.yaml:3:5: method_exact needs"),
        (policy("key: k, match: {paths: /}, rate_limit: {unit: day}"), "file1.yaml:3:31: unknown field `paths`"),
    ] {
        assert!(error(&text).starts_with(expected), "{}", error(&text));
    }
    let overlaid = merged(&[POLICIES], &[POLICIES]).unwrap_err().to_string();
    assert_eq!(overlaid, "over1.yaml:4:5: an overlay cannot have policies");
}
