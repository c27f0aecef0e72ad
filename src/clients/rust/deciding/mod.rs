//! How requests are decided near themselves: a module for each mode except `direct`.

pub(crate) mod cached;
pub(crate) mod eventual;
pub(crate) mod leased;
pub(crate) mod local;

/// Numbers of `tests/conformance/vectors/defaults.json`.
#[cfg(test)]
pub(crate) const NUMBERS: &[(&str, u64)] = &[
    ("look_from", cached::WORTH.0.as_millis() as u64),
    ("look_round_trips", cached::WORTH.1 as u64),
    ("look_denials", cached::MANY as u64),
    ("drift", cached::SLEW as u64),
];
