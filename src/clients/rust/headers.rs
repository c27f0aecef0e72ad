//! What an HTTP response says of limits.

use std::borrow::Cow;
use std::time::Duration;

use crate::decision::{Decision, Decisions};
use crate::quota::Quota;

/// The largest integer that a structured field may hold.
const MOST: u64 = 999_999_999_999_999;

/// What the fields say about one limit.
#[derive(Clone, Debug)]
pub struct Limited<'a> {
    /// What its policy is called.
    pub name: Cow<'a, str>,
    /// Units admitted per window.
    pub limit: u64,
    /// The window; `None` of a budget, whose periods are not all as long.
    pub window: Option<Duration>,
    /// Units still available, and how long until nothing counts any more; `None` where nobody knows.
    pub left: Option<(u64, Duration)>,
}

/// The fields `ratelimit-policy` and `ratelimit`, each of all these limits; none where nothing is limited.
pub fn of_limits<'a>(limits: impl IntoIterator<Item = Limited<'a>>) -> Vec<(&'static str, String)> {
    let told = limits.into_iter().map(|Limited { name, limit, window, left }| {
        let (name, limit) = (quoted(&name), limit.min(MOST));
        let window = window.map(|window| format!(";w={}", seconds(window))).unwrap_or_default();
        let policy = format!("{name};q={limit}{window}");
        let left =
            left.map(|(remaining, reset_after)| format!("{name};r={};t={}", remaining.min(MOST), seconds(reset_after)));
        (policy, left)
    });
    let (policies, left): (Vec<_>, Vec<_>) = told.unzip();
    let left = left.into_iter().flatten().collect();
    let fields = [("ratelimit-policy", policies), ("ratelimit", left)].into_iter();
    fields.filter(|(_, values)| !values.is_empty()).map(|(name, values)| (name, values.join(", "))).collect()
}

/// Whole seconds, rounded up.
pub fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

impl Decision {
    /// The fields of an HTTP response for this decision: `ratelimit-policy`, `ratelimit` and, where such a
    /// request would be granted later, `retry-after`. Seconds are whole and rounded up. The name is that of the limit's
    /// policy; the draft of these fields calls a single one `default`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), swlimit_client::Error> {
    /// use swlimit_client::{Client, Quota};
    ///
    /// let api = Client::local().limiter(Quota::new(100, "1m")?).build()?;
    /// let decision = api.allow("user:1").await?;
    /// let headers = decision.headers("default", api.quota());
    /// assert_eq!(headers[0], ("ratelimit-policy", r#""default";q=100;w=60"#.into()));
    /// assert!(headers[1].1.starts_with(r#""default";r=99;t="#));
    /// # Ok(())
    /// # }
    /// ```
    pub fn headers(&self, name: &str, quota: &Quota) -> Vec<(&'static str, String)> {
        Decisions { granted: self.granted(), each: vec![*self] }.headers([(name, quota)])
    }
}

impl Decisions {
    /// The same of several limits, each with its policy's name and its quota, in the order asked. Where they are
    /// denied, they describe the limits that deny: of the others nothing may be known.
    pub fn headers<'a>(&self, policies: impl IntoIterator<Item = (&'a str, &'a Quota)>) -> Vec<(&'static str, String)> {
        let telling = self.each().iter().zip(policies).filter(|(decision, _)| decision.granted() == self.granted());
        let told = telling.map(|(decision, (name, quota))| Limited {
            name: name.into(),
            limit: decision.limit(),
            window: Some(quota.window()),
            left: decision.remaining().zip(decision.reset_after()),
        });
        let mut fields = of_limits(told);
        let retry_after = self.retry_after().filter(|_| !self.granted());
        fields.extend(retry_after.map(|wait| ("retry-after", seconds(wait).to_string())));
        fields
    }
}

/// A structured field's string. What it cannot hold becomes a question mark.
fn quoted(name: &str) -> String {
    let mut quoted = String::from('"');
    for letter in name.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            ' '..='~' => quoted.push(letter),
            _ => quoted.push('?'),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Source;

    fn decision(granted: u64, limit: u64, remaining: u64, retry_after: i64, reset_after: u64) -> Decision {
        let retry_after = u64::try_from(retry_after).ok();
        let exact = swlimit_window::Decision { granted, limit, remaining, retry_after, reset_after };
        Source::Server.decided(exact)
    }

    #[test]
    fn what_the_documentation_shows() {
        let quota = Quota::with_resolution(100, "60", "5").unwrap();
        let policy = ("ratelimit-policy", r#""default";q=100;w=60"#.to_owned());
        let granted = decision(1, 100, 99, 0, 65000).headers("default", &quota);
        assert_eq!(granted, [policy.clone(), ("ratelimit", r#""default";r=99;t=65"#.into())]);
        let denied = decision(0, 100, 0, 11001, 65000).headers("default", &quota);
        let left = ("ratelimit", r#""default";r=0;t=65"#.to_owned());
        assert_eq!(denied, [policy.clone(), left.clone(), ("retry-after", "12".into())]);
        assert_eq!(decision(0, 100, 0, -1, 65000).headers("default", &quota), [policy, left], "never");
    }

    #[test]
    fn what_fields_can_hold() {
        let quota = Quota::with_resolution(1 << 53 >> 1, "250ms", "250ms").unwrap();
        let told = decision(1, 1 << 52, 1 << 52, 0, 1).headers("a \"b\"\\ß\n", &quota);
        assert_eq!(told[0].1, r#""a \"b\"\\??";q=999999999999999;w=1"#);
        assert_eq!(told[1].1, r#""a \"b\"\\??";r=999999999999999;t=1"#);
    }

    #[test]
    fn several_limits() {
        let (minute, hour) =
            (Quota::with_resolution(10, "1m", "1m").unwrap(), Quota::with_resolution(100, "1h", "1h").unwrap());
        let told = |granted, each| {
            let fields = Decisions { granted, each }.headers([("a", &minute), ("b", &hour)]);
            fields.into_iter().map(|(_, value)| value).collect::<Vec<_>>()
        };
        let (grant, deny) = (decision(1, 10, 9, 0, 1000), decision(0, 100, 0, 2000, 3000));
        assert_eq!(
            told(true, vec![grant, grant]),
            [r#""a";q=10;w=60, "b";q=10;w=3600"#, r#""a";r=9;t=1, "b";r=9;t=1"#]
        );
        assert_eq!(told(false, vec![grant, deny]), [r#""b";q=100;w=3600"#, r#""b";r=0;t=3"#, "2"]);
        assert_eq!(told(true, vec![]), [""; 0]);
    }
}
