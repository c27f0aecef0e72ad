//! What responses say of limits, as docs/http-headers.md has it.

use std::fmt::Write;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// One limit, and what is left of it.
pub struct Told {
    pub name: String,
    pub limit: u64,
    /// In ms.
    pub window: u64,
    pub remaining: u64,
    pub reset_after: Duration,
}

/// `RateLimit-Policy` and `RateLimit`; neither where nothing is limited.
pub fn of_limits(limits: impl Iterator<Item = Told>) -> HeaderMap {
    let (mut policies, mut states) = (String::new(), String::new());
    for Told { name, limit, window, remaining, reset_after } in limits {
        let name = name.replace(|c: char| !matches!(c, ' '..='~') || c == '"' || c == '\\', "_");
        let comma = if policies.is_empty() { "" } else { ", " };
        let (window, reset) = (window.div_ceil(1000), seconds(reset_after));
        write!(policies, "{comma}\"{name}\";q={limit};w={window}").expect("a string takes it");
        write!(states, "{comma}\"{name}\";r={remaining};t={reset}").expect("a string takes it");
    }
    let headers = [(RATELIMIT_POLICY, policies), (RATELIMIT, states)];
    let told = headers.into_iter().filter(|(_, value)| !value.is_empty());
    told.map(|(name, value)| (name, HeaderValue::try_from(value).expect("it is printable"))).collect()
}

/// Whole seconds, never too few.
pub fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_as_the_draft_has_them() {
        let told = |name: &str, limit, window, remaining, ms| Told {
            name: name.into(),
            limit,
            window,
            remaining,
            reset_after: Duration::from_millis(ms),
        };
        let headers = of_limits([told("default", 100, 60_000, 99, 65_000), told("a\"\\ü\n", 1, 500, 0, 1)].into_iter());
        assert_eq!(headers["RateLimit-Policy"], "\"default\";q=100;w=60, \"a____\";q=1;w=1");
        assert_eq!(headers["RateLimit"], "\"default\";r=99;t=65, \"a____\";r=0;t=1");
        assert!(of_limits([].into_iter()).is_empty());
    }
}
