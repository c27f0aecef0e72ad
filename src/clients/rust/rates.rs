//! Rates as text: `100/minute`, `100/hour; 5/second`.

use std::str::FromStr;

use swlimit_window::{MAX_EXACT, MAX_WINDOW};

use crate::error::Error;
use crate::quota::Quota;

const SPACES: [char; 4] = [' ', '\t', '\r', '\n'];

/// The quotas of a text, in its order: one or more.
///
/// # Errors
/// [`Error::Invalid`] says what to write instead.
pub(crate) fn all(text: &str) -> Result<Vec<Quota>, Error> {
    let text = text.trim_matches(SPACES);
    if text.is_empty() {
        return Err(invalid("no rate: write one such as 100/minute"));
    }
    let parts: Vec<&str> = text.split([';', ',']).map(|part| part.trim_matches(SPACES)).collect();
    if parts.contains(&"") {
        return Err(invalid(format!("'{text}' has a separator without a rate: write such as 100/hour; 5/second")));
    }
    let quotas = parts.iter().map(|part| one(part)).collect::<Result<Vec<_>, _>>()?;
    for (i, quota) in quotas.iter().enumerate() {
        if let Some(earlier) = quotas[..i].iter().position(|earlier| earlier.window() == quota.window()) {
            let (first, second) = (parts[earlier], parts[i]);
            return Err(invalid(format!("'{first}' and '{second}' have the same window: keep the lower limit")));
        }
    }
    Ok(quotas)
}

/// A rate such as `100/minute` or `5/10s`.
impl FromStr for Quota {
    type Err = Error;

    fn from_str(rate: &str) -> Result<Self, Error> {
        match all(rate)?.as_slice() {
            [quota] => Ok(*quota),
            several => Err(invalid(format!(
                "'{}' has {} rates, and a limiter takes one: use Limits",
                rate.trim_matches(SPACES),
                several.len()
            ))),
        }
    }
}

fn one(text: &str) -> Result<Quota, Error> {
    let refused = |why: &str| invalid(format!("'{text}' {why}"));
    let no_rate = || refused("is no rate: write one such as 100/minute or 5/10s");
    let no_unit = || refused("has no unit: write one such as 100/minute or 5/10s");
    let lower = text.to_ascii_lowercase();
    let (Some(limit), rest) = number(&lower) else { return Err(no_rate()) };
    if rest.is_empty() {
        return Err(no_unit());
    }
    if is_nginx(rest) {
        return Err(refused(
            "is written as for nginx, where 10r/s admits one request per 100 ms: write that as 1/100ms, or ten at once \
             as 10/second",
        ));
    }
    let rest = rest.strip_prefix('/').ok_or_else(no_rate)?;
    let (times, unit) = number(rest.trim_start_matches(SPACES));
    let ms = match unit {
        "" => return Err(no_unit()),
        "ms" => 1,
        "s" | "sec" | "second" | "seconds" => 1_000,
        "m" | "min" | "minute" | "minutes" => 60_000,
        "h" | "hour" | "hours" => 3_600_000,
        "d" | "day" | "days" => 86_400_000,
        "month" | "months" | "year" | "years" => {
            return Err(refused(&format!(
                "has no fixed length: write days, such as 100/30 days, or use a budget for a calendar {}",
                unit.trim_end_matches('s')
            )));
        }
        _ if unit.bytes().all(|byte| byte.is_ascii_lowercase()) => {
            return Err(refused("has an unknown unit: write ms, second, minute, hour or day"));
        }
        _ => return Err(no_rate()),
    };
    if limit > MAX_EXACT {
        return Err(refused(&format!("has a limit above {MAX_EXACT}: write at most that")));
    }
    match times.unwrap_or(1).saturating_mul(ms) {
        0 => Err(refused("has no window: write at least 1 ms")),
        window if window > MAX_WINDOW => Err(refused("has a window above 3650 days: write at most that")),
        window => Quota::per_window(limit, window),
    }
}

/// The number that a text begins with, if it does, as large as there are; and what follows behind spaces.
fn number(text: &str) -> (Option<u64>, &str) {
    let rest = text.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let digits = &text[..text.len() - rest.len()];
    (
        Some(digits).filter(|digits| !digits.is_empty()).map(|digits| digits.parse().unwrap_or(u64::MAX)),
        rest.trim_start_matches(SPACES),
    )
}

/// Whether what follows the number is nginx's `r/s` or `r/m`.
fn is_nginx(rest: &str) -> bool {
    let unit = || rest.strip_prefix('r')?.trim_start_matches(SPACES).strip_prefix('/');
    unit().is_some_and(|unit| matches!(unit.trim_start_matches(SPACES), "s" | "m"))
}

fn invalid(text: impl Into<String>) -> Error {
    Error::Invalid(text.into())
}

#[cfg(test)]
mod tests {
    use serde_json::{json, Value};

    use super::*;

    fn vectors(part: &str) -> Vec<Value> {
        let vectors: Value =
            serde_json::from_str(include_str!("../../../tests/conformance/vectors/rates.json")).unwrap();
        vectors[part].as_array().unwrap().clone()
    }

    fn pair(quota: &Quota) -> Value {
        json!([quota.limit(), quota.window().as_millis() as u64])
    }

    #[test]
    fn texts_mean_what_the_vectors_say() {
        for case in vectors("texts") {
            match all(case["text"].as_str().unwrap()) {
                Ok(quotas) => assert_eq!(Value::from_iter(quotas.iter().map(pair)), case["rates"], "{case}"),
                Err(error) => assert_eq!(error.to_string(), case["error"], "{case}"),
            }
        }
        for case in vectors("single") {
            match case["text"].as_str().unwrap().parse::<Quota>() {
                Ok(quota) => assert_eq!(pair(&quota), case["rate"], "{case}"),
                Err(error) => assert_eq!(error.to_string(), case["error"], "{case}"),
            }
        }
    }
}
