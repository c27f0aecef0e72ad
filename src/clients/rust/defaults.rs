//! The defaults, and how they are rounded: `tests/conformance/vectors/defaults.json`, which all clients share.

use std::time::Duration;

use serde_json::Value;
use swlimit_window::{MAX_EXACT, MAX_SUBINTERVALS, MAX_WINDOW};

use crate::client::{CLOSING, CLOSING_ROUND_TRIPS};
use crate::deciding::cached::certain;
use crate::mode::{Share, SHARE, SYNC_INTERVAL};
use crate::quota::default_resolution;
use crate::wait::POLL;
use crate::{Client, Mode, OnFailure};

fn defaults() -> Value {
    serde_json::from_str(include_str!("../../../tests/conformance/vectors/defaults.json")).unwrap()
}

fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_else(|| panic!("{name} of {of}"))
}

/// Whole ms.
fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}

#[test]
fn options() {
    let defaults = defaults();
    let of = |name: &str| number(&defaults["options"], name);
    let builder = Client::builder();
    assert_eq!(ms(builder.timeout), of("timeout"));
    assert_eq!(ms(builder.max_untracked_age), of("max_untracked_age"));
    assert_eq!(builder.max_keys as u64, of("max_keys"));
    assert_eq!(builder.max_waiting as u64, of("max_waiting"));
    assert_eq!(builder.prefix, defaults["options"]["prefix"].as_str().unwrap().as_bytes());
    assert_eq!(ms(SYNC_INTERVAL), of("sync_interval"));
    for share in ["local_share", "lease_share"] {
        assert_eq!(defaults["options"][share].as_f64(), Some(SHARE));
    }
    assert_eq!(format!("{:?}", Mode::default()).to_lowercase(), defaults["options"]["mode"].as_str().unwrap());
    assert_eq!(
        format!("{:?}", OnFailure::default()).to_lowercase(),
        defaults["options"]["on_failure"].as_str().unwrap()
    );
}

#[test]
fn numbers() {
    let defaults = defaults();
    let own: &[(&str, u64)] = &[
        ("poll", ms(POLL)),
        ("closing", ms(CLOSING)),
        ("closing_round_trips", CLOSING_ROUND_TRIPS.into()),
        ("max_limit", MAX_EXACT),
        ("max_window", MAX_WINDOW),
        ("max_subintervals", MAX_SUBINTERVALS),
    ];
    let rooms = [
        crate::transport::NUMBERS,
        crate::protocol::NUMBERS,
        crate::upstream::NUMBERS,
        crate::deciding::NUMBERS,
        crate::hold::NUMBERS,
        crate::admission::NUMBERS,
        own,
    ];
    let (numbers, breaker) = (&defaults["numbers"], &defaults["breaker"]);
    let all = rooms.concat();
    for (name, value) in &all {
        let shared = numbers[name].as_u64().or_else(|| breaker[name].as_u64());
        assert_eq!(Some(*value), shared, "{name}");
    }
    // What this client has not: records that are kept for later, and admissions that wait or reserve without holds.
    let missing = numbers.as_object().unwrap().keys().filter(|name| !all.iter().any(|(own, _)| own == name));
    assert_eq!(
        missing.collect::<Vec<_>>(),
        ["admission_jitter", "admission_poll", "hold_retry_after", "max_kept", "reservation_ttl"]
    );
}

#[test]
fn roundings() {
    let defaults = defaults();
    let each = |name: &str| defaults[name].as_array().unwrap().clone();
    let us = |of: &Value, name: &str| Duration::from_micros(number(of, name));
    for one in each("resolutions") {
        assert_eq!(default_resolution(number(&one, "window")), number(&one, "resolution"), "{one}");
    }
    for one in each("shares") {
        let share = Share::of(one["share"].as_f64().unwrap()).unwrap();
        assert_eq!(share.units(number(&one, "limit")), number(&one, "units"), "{one}");
    }
    for one in each("denials") {
        let wait = Duration::from_millis(number(&one, "retry_after"));
        assert_eq!(certain(wait), us(&one, "denied_for_us"), "{one}");
    }
    for one in each("reservations") {
        let name = crate::admission::beside(one["key"].as_str().unwrap().as_bytes());
        assert_eq!(String::from_utf8(name).unwrap(), one["name"].as_str().unwrap());
    }
    for one in each("refusals") {
        let error = crate::upstream::refused(one["reply"].as_str().unwrap().into());
        assert_eq!(error.to_string(), one["error"].as_str().unwrap());
    }
    for one in each("deadlines") {
        let wait = crate::upstream::time_to_wait(us(&one, "left_us")).unwrap_or_default();
        assert_eq!(wait.as_micros(), us(&one, "wait_us").as_micros(), "{one}");
    }
}
