//! What responses say of limits, as docs/http-headers.md has it.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use swlimit_client::headers;

pub use swlimit_client::headers::seconds;

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
    let printable = |name: String| name.replace(|c: char| !matches!(c, ' '..='~') || c == '"' || c == '\\', "_");
    let limits: Vec<_> = limits.map(|told| Told { name: printable(told.name), ..told }).collect();
    let told = limits.iter().map(|Told { name, limit, window, remaining, reset_after }| headers::Told {
        name,
        limit: *limit,
        window: Duration::from_millis(*window),
        remaining: *remaining,
        reset_after: *reset_after,
    });
    let fields = headers::of_limits(told).into_iter();
    let value = |value: String| HeaderValue::try_from(value).expect("it is printable");
    fields.map(|(name, text)| (HeaderName::from_static(name), value(text))).collect()
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
