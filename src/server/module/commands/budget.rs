//! `SWLIMIT.BUDGET key limit until [COST n] [PARTIAL | FORCE] [AT unix-ms]`

use swlimit_budget::{self as arithmetic, Request};
use swlimit_effect::{Effect, Expiry};
use swlimit_window::{integer, Decision, MAX_WINDOW};

use super::request::{self, KEY};
use crate::arguments::{Keyword, Options, Parse, Words};
use crate::error::Error;
use crate::server::{Call, Command, Declaration, Key, Keys, Moment, Parameter, Reply};
use crate::statistics;

/// Decide on a quota of the calendar, and count if granted.
pub struct Budget;

/// The limit, the end of the period, in ms, and options.
struct BudgetArguments {
    limit: u64,
    until: u64,
    options: Options,
}

impl Parse for BudgetArguments {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, _max_subintervals: u64) -> Result<Self, Error> {
        words.word()?;
        let limit = words.limit()?;
        let until = integer(words.word()?).ok_or(Error::PeriodEnd)?;
        let mut options = Options::default();
        let accepted = [Keyword::Cost, Keyword::Partial, Keyword::Force, Keyword::At];
        words.each_option(&accepted, |keyword, values| {
            options.set(keyword, values)?;
            match options.partial && options.force {
                true => Err(values.syntax()),
                false => Ok(()),
            }
        })?;
        Ok(Self { limit, until, options })
    }
}

impl Command for Budget {
    const DECLARATION: Declaration = Declaration {
        name: c"swlimit.budget",
        summary: c"Decides whether a request is within a quota until an instant, and counts it if it is.",
        complexity: c"O(1)",
        since: c"0.2.0",
        arity: -4,
        flags: c"write deny-oom fast",
        categories: "write fast",
        keys: Keys::Change,
        parameters: &[
            request::KEY_PARAMETER,
            request::LIMIT,
            Parameter::integer(c"until"),
            request::COST,
            Parameter::one_of(
                c"beyond",
                &[Parameter::flag(c"partial", c"PARTIAL"), Parameter::flag(c"force", c"FORCE")],
            )
            .optional(),
            request::AT,
        ],
    };

    fn run(call: &Call) -> Result<Reply, Error> {
        let BudgetArguments { limit, until, options } = call.parse()?;
        let name = &call.arguments()[KEY];
        let moment = call.moment(options.at);
        let request = Request { limit, until, cost: options.cost, partial: options.partial };
        check_end(until, moment.now())?;

        let mut key = call.write::<arithmetic::Budget>(name)?;
        let (count, decision) = if options.force {
            let (count, decision) = arithmetic::Budget::force(key.entry(), moment.now(), &request)?;
            (Some(count), decision)
        } else {
            arithmetic::Budget::decide(key.entry(), moment.now(), &request)
        };
        if let Some(count) = count {
            let (effect, expiry) = self::count(&mut key, count, moment)?;
            drop(key);
            call.replicate(name, effect, expiry);
            if options.force {
                statistics::RECORDED.add(1);
                call.notify(c"swlimit.recorded", name);
            } else {
                statistics::granted(decision.granted);
                call.notify(c"swlimit.granted", name);
            }
        }
        deny(call, &request, decision, moment, options.force);
        Ok(Reply::Decision(decision))
    }
}

/// Count and notify a denial. What is forced counts as RECORD does: for TOP alone, where it was asked for.
fn deny(call: &Call, request: &Request, decision: Decision, moment: Moment, forced: bool) {
    let name = &call.arguments()[KEY];
    if decision.granted > 0 || forced && call.must_obey() {
        return;
    }
    call.count_denial(name, moment);
    if !forced {
        statistics::denied(request.cost);
        call.notify(c"swlimit.denied", name);
    }
}

/// An error unless a period may end then, seen from `now`.
pub fn check_end(until: u64, now: u64) -> Result<(), Error> {
    match until.checked_sub(now) {
        Some(1..=MAX_WINDOW) => Ok(()),
        _ => Err(Error::PeriodEnd),
    }
}

/// Count units in a budget; the effect to replicate, and the key's expiry.
pub fn count(
    key: &mut Key<arithmetic::Budget>,
    count: arithmetic::Count,
    moment: Moment,
) -> Result<(Effect<'static>, Expiry), Error> {
    let (units, instant, until) = (count.units(), count.instant(), count.budget().until());
    let mut change = key.change()?;
    *change.entry() = count.budget();
    let expiry = change.done(moment);
    Ok((Effect::Period { until, units, instant }, expiry))
}
