//! Response headers about limits, see docs/in-my-code/http-headers.md.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::core::headers;
pub use crate::core::headers::{seconds, Limited};

/// `RateLimit-Policy` and `RateLimit`; neither without a limit.
pub fn of_limits<'a>(limits: impl Iterator<Item = Limited<'a>>) -> HeaderMap {
    let printable = |name: &str| name.replace(|c: char| !matches!(c, ' '..='~') || c == '"' || c == '\\', "_");
    let fields = headers::of_limits(limits.map(|told| Limited { name: printable(&told.name).into(), ..told }));
    let value = |value: String| HeaderValue::try_from(value).expect("the text is printable");
    fields.into_iter().map(|(name, text)| (HeaderName::from_static(name), value(text))).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn headers_follow_the_draft() {
        let told = |name: &'static str, limit, window, remaining, ms| Limited {
            name: name.into(),
            limit,
            window: Some(Duration::from_millis(window)),
            left: Some((remaining, Duration::from_millis(ms))),
        };
        let headers = of_limits([told("default", 100, 60_000, 99, 65_000), told("a\"\\ü\n", 1, 500, 0, 1)].into_iter());
        assert_eq!(headers["RateLimit-Policy"], "\"default\";q=100;w=60, \"a____\";q=1;w=1");
        assert_eq!(headers["RateLimit"], "\"default\";r=99;t=65, \"a____\";r=0;t=1");
        assert!(of_limits([].into_iter()).is_empty());
    }
}
