//! Requests for decisions: each becomes a question about its key.

use std::borrow::Cow;
use std::time::Duration;

use axum::http::StatusCode;
use serde::Deserialize;
use swlimit_client::{Period, Quota};
use swlimit_window::{Geometry, WarmUp, MAX_EXACT};

use super::decode::{one, Id, Key, Span};
use super::error::ErrorReply;
use crate::config::limits::{self, default_geometry, Anchor, Lifetime, Limit, Per, Periods};
use crate::config::policy::{Cold, DecisionPolicy, Mode, OnFailure, PolicyKeys};
use crate::config::settings::Settings;
use crate::core::{Operation, Question, Refusal};
use crate::observe::labels::Api;

/// Maximum timeout of `acquire`.
const MAX_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Maximum wait for a hold.
const MAX_WAIT: Duration = Duration::from_secs(60 * 60);

/// A rate, and units of one of its keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitRequest {
    key: Key,
    limit: u64,
    window: Span,
    resolution: Option<Span>,
    #[serde(default = "one")]
    pub cost: u64,
    #[serde(default)]
    strict: bool,
    #[serde(default)]
    partial: bool,
    block: Option<Span>,
    warm_up: Option<Span>,
    cold: Option<Cold>,
    age: Option<Span>,
    timeout: Option<Span>,
    mode: Option<Mode>,
    on_failure: Option<OnFailure>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldRequest {
    key: Key,
    limit: u64,
    ttl: Span,
    #[serde(default = "one")]
    cost: u64,
    wait: Option<Span>,
    id: Option<Id>,
    on_failure: Option<OnFailure>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetRequest {
    key: Key,
    limit: u64,
    period: Period,
    time_zone: Option<String>,
    anchor: Option<Anchor>,
    #[serde(default = "one")]
    cost: u64,
    #[serde(default)]
    partial: bool,
    #[serde(default)]
    record: bool,
    on_failure: Option<OnFailure>,
}

/// One of the limits that are decided together: a rate has a `window`, a hold a `ttl`, a budget a `period`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdmitRequest {
    key: Key,
    limit: u64,
    #[serde(default = "one")]
    cost: u64,
    window: Option<Span>,
    resolution: Option<Span>,
    #[serde(default)]
    strict: bool,
    warm_up: Option<Span>,
    cold: Option<Cold>,
    ttl: Option<Span>,
    id: Option<Id>,
    period: Option<Period>,
    time_zone: Option<String>,
    anchor: Option<Anchor>,
    on_failure: Option<OnFailure>,
}

impl LimitRequest {
    /// What a command asks, if it accepts all fields.
    pub fn question(&self, api: Api, settings: &Settings) -> Result<Question<'static>, ErrorReply> {
        let operation = match api {
            Api::Peek => Operation::Peek,
            Api::Record => Operation::Record,
            _ => Operation::Allow,
        };
        let is_allow = operation == Operation::Allow && api != Api::Acquire;
        let fields = [
            (self.partial, is_allow || api == Api::Peek, "partial is for allow and peek"),
            (self.block.is_some(), is_allow || api == Api::Record, "block is for allow and record"),
            (self.age.is_some(), api == Api::Record, "age is for record and refund"),
            (self.timeout.is_some(), api == Api::Acquire, "timeout is for acquire"),
        ];
        if let Some((.., message)) = fields.into_iter().find(|(is_set, is_accepted, _)| *is_set && !is_accepted) {
            return Err(ErrorReply::invalid(message));
        }
        if self.limit > MAX_EXACT {
            return Err(ErrorReply::invalid(format!("limit is at most {MAX_EXACT}")));
        }
        let geometry = match self.resolution {
            Some(Span(resolution)) => Geometry::new(self.window(), resolution).ok(),
            None => default_geometry(self.window()),
        };
        let geometry = geometry.ok_or_else(|| {
            ErrorReply::invalid(
                "the resolution divides the window evenly, at most 1 048 576 times, and both are 1 ms to 3650 d",
            )
        })?;
        let keys = PolicyKeys { mode: self.mode, on_failure: self.on_failure, ..PolicyKeys::default() };
        let policy = policy(keys.or(settings.policy()), settings)?;
        let limit = Limit::from_request(self.limit, Per::Window(geometry), policy);
        let warm_up = rising(self.warm_up, self.cold, &geometry)?;
        let limit = Limit { strict: self.strict, block: self.block.map(|Span(ms)| ms), warm_up, ..limit };
        let key = self.key.name(&settings.prefix)?;
        let wait = (api == Api::Acquire).then(|| self.timeout()).transpose()?;
        let (partial, age) = (self.partial, self.age.map(Into::into));
        Ok(Question { operation, partial, wait, age, ..Question::new(Cow::Owned(limit), key, self.cost) })
    }

    pub fn with_key(self, key: &str) -> Self {
        Self { key: Key(key.into()), ..self }
    }

    /// In ms.
    pub fn window(&self) -> u64 {
        self.window.0
    }

    fn timeout(&self) -> Result<Duration, ErrorReply> {
        let timeout = self.timeout.map(Duration::from).filter(|timeout| *timeout <= MAX_TIMEOUT);
        timeout.ok_or_else(|| ErrorReply::new(StatusCode::BAD_REQUEST, "acquire needs a timeout of at most 10m"))
    }
}

impl HoldRequest {
    pub fn question(&self, settings: &Settings) -> Result<Question<'_>, ErrorReply> {
        let key = self.key.name(&settings.prefix)?;
        let wait = self.wait.map(Duration::from).filter(|wait| !wait.is_zero());
        if wait.is_some_and(|wait| wait > MAX_WAIT) {
            return Err(ErrorReply::invalid("wait is at most 1h"));
        }
        let cost = units(self.cost)?;
        let limit = hold(self.limit, self.ttl, self.on_failure, settings)?;
        let id = self.id.as_ref().map(|Id(id)| Cow::Borrowed(&**id));
        Ok(Question { id, wait, ..Question::new(limit, key, cost) })
    }
}

impl BudgetRequest {
    pub fn question(self, settings: &Settings) -> Result<Question<'static>, ErrorReply> {
        if self.partial && self.record {
            return Err(ErrorReply::invalid("record does not support partial"));
        }
        let key = self.key.name(&settings.prefix)?;
        let periods = Periods { period: self.period, time_zone: self.time_zone, anchor: self.anchor };
        let on_failure = self.on_failure.or(settings.policy().on_failure);
        let limit = budget(self.limit, periods, on_failure, settings)?;
        let operation = if self.record { Operation::Record } else { Operation::Allow };
        Ok(Question { operation, partial: self.partial, ..Question::new(limit, key, units(self.cost)?) })
    }
}

impl AdmitRequest {
    pub fn question(&self, settings: &Settings) -> Result<Question<'_>, ErrorReply> {
        let (key, cost) = (self.key.name(&settings.prefix)?, units(self.cost)?);
        let is_rate_only = self.resolution.is_some() || self.strict || self.warm_up.is_some() || self.cold.is_some();
        let is_budget_only = self.time_zone.is_some() || self.anchor.is_some();
        let limit = match (self.window, self.ttl, self.period) {
            (Some(window), None, None) if self.id.is_none() && !is_budget_only => {
                let quota =
                    Quota::of(self.limit, window.into(), self.resolution.map(Into::into)).map_err(Refusal::from)?;
                let [window, resolution] = [quota.window(), quota.resolution()].map(|time| time.as_millis() as u64);
                let geometry = Geometry::new(window, resolution).expect("the quota has it");
                let policy = policy(PolicyKeys { on_failure: self.on_failure, ..PolicyKeys::default() }, settings)?;
                let limit = Limit::from_request(self.limit, Per::Window(geometry), policy);
                let warm_up = rising(self.warm_up, self.cold, &geometry)?;
                Cow::Owned(Limit { strict: self.strict, warm_up, ..limit })
            }
            (None, Some(ttl), None) if !is_rate_only && !is_budget_only => {
                hold(self.limit, ttl, self.on_failure, settings)?
            }
            (None, None, Some(period)) if !is_rate_only && self.id.is_none() => {
                let periods = Periods { period, time_zone: self.time_zone.clone(), anchor: self.anchor.clone() };
                budget(self.limit, periods, self.on_failure, settings)?
            }
            _ => {
                return Err(ErrorReply::invalid(
                    "a limit is a rate with window (resolution, strict, warm_up, cold), a hold with ttl (id), or a \
                     budget with period (time_zone, anchor)",
                ));
            }
        };
        let id = self.id.as_ref().map(|Id(id)| Cow::Borrowed(&**id));
        Ok(Question { id, ..Question::new(limit, key, cost) })
    }
}

/// How a limit rises after idleness.
fn rising(warm_up: Option<Span>, cold: Option<Cold>, geometry: &Geometry) -> Result<Option<WarmUp>, ErrorReply> {
    limits::warm_up(warm_up.map(|Span(ms)| ms), cold, geometry).map_err(ErrorReply::invalid)
}

/// A limit of units held at the same time. `on_failure: local` is refused: this process cannot hold for its callers.
fn hold(
    units: u64,
    Span(ttl): Span,
    on_failure: Option<OnFailure>,
    settings: &Settings,
) -> Result<Cow<'static, Limit>, ErrorReply> {
    let on_failure = match (on_failure, settings.policy().on_failure) {
        (Some(OnFailure::Local), _) => {
            return Err(ErrorReply::invalid("on_failure of a hold is allow, deny or error"));
        }
        (None, Some(OnFailure::Local)) => None,
        (asked, configured) => asked.or(configured),
    };
    let policy = policy(PolicyKeys { on_failure, ..PolicyKeys::default() }, settings)?;
    Ok(Cow::Owned(Limit::from_request(units, Per::Hold(Lifetime { ttl, id: None }), policy)))
}

/// A limit of each period of the calendar.
fn budget(
    units: u64,
    periods: Periods,
    on_failure: Option<OnFailure>,
    settings: &Settings,
) -> Result<Cow<'static, Limit>, ErrorReply> {
    let policy = policy(PolicyKeys { on_failure, ..PolicyKeys::default() }, settings)?;
    Ok(Cow::Owned(Limit::from_request(units, Per::Period(periods), policy)))
}

fn policy(keys: PolicyKeys, settings: &Settings) -> Result<DecisionPolicy, ErrorReply> {
    keys.policy(settings.defaults(OnFailure::Error)).map_err(ErrorReply::invalid)
}

/// A valid cost.
pub fn units(cost: u64) -> Result<u64, ErrorReply> {
    match cost {
        1..=MAX_EXACT => Ok(cost),
        _ => Err(ErrorReply::invalid(format!("cost is 1 to {MAX_EXACT}"))),
    }
}
