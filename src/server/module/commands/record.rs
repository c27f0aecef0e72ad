//! `SWLIMIT.RECORD key limit window resolution [COST n] [STRICT] [AGE duration] [WARMUP duration [COLD n]]
//! [BLOCK duration] [AT unix-ms]`

use swlimit_effect::{Effect, Expiry};
use swlimit_window::{Entry, Recording};

use super::request::{self, announce_block, QuotaRequest, TakesOptions, KEY};
use crate::arguments::Keyword;
use crate::error::Error;
use crate::server::{Call, Command, Declaration, Effects, Keys, Moment, Reply, Text};
use crate::statistics;

/// Count units whatever the limit says.
pub struct Record;

impl TakesOptions for Record {
    const OPTIONS: &'static [Keyword] =
        &[Keyword::Cost, Keyword::Strict, Keyword::WarmUp, Keyword::Cold, Keyword::Age, Keyword::Block, Keyword::At];
}

impl Command for Record {
    const DECLARATION: Declaration = Declaration {
        name: c"swlimit.record",
        summary: c"Counts units in a sliding window, whatever the limit says.",
        complexity: c"O(log C), C being the number of subintervals that hold a count; O(C) when the window or \
            resolution changes, or for an instant before the newest count",
        since: c"0.1.0",
        arity: -5,
        flags: c"write deny-oom fast",
        categories: "write fast",
        keys: Keys::Change,
        parameters: &[
            request::KEY_PARAMETER,
            request::LIMIT,
            request::WINDOW,
            request::RESOLUTION,
            request::COST,
            request::STRICT,
            request::AGE.optional(),
            request::WARM_UP,
            request::BLOCK,
            request::AT,
        ],
    };

    fn run(call: &Call) -> Result<Reply, Error> {
        let arguments: QuotaRequest<Self> = call.parse()?;
        let request = arguments.request();
        let name = &call.arguments()[KEY];
        let moment = call.moment(arguments.options.at);
        let now = moment.now();
        // What the caller dates counts where it says; what it does not, at the decision instant.
        let age = arguments.options.age;
        let dated = age.map(|age| now.saturating_sub(age)).or(arguments.options.at);

        let mut key = call.write(name)?;
        let record = match Entry::record(key.entry(), now, dated, &request)? {
            Recording::Counted(record) => record,
            Recording::Dropped(decision) => {
                count_denial(call, name, moment, decision.granted);
                return Ok(Reply::Decision(decision));
            }
        };
        let (geometry, units, counted, since) = (record.geometry(), request.cost, record.instant(), record.since());
        // A window that is replaced is replaced at `now`. So the effect says that, too.
        let replaces = age.is_some() && key.entry().is_some_and(|entry| entry.replaces_window(geometry, now));
        let (instant, dated) = if replaces { (now, Some(counted)) } else { (counted, None) };
        let effect = Effect::Count { geometry, units, instant, dated, since };
        let block = arguments.block_begun(key.entry(), now).filter(|_| record.is_denied());
        let mut change = key.change()?;
        let decision = record.apply(change.entry()).blocked_for(block);
        if let Some(duration) = block {
            change.block(Some(now + duration));
        }
        let expiry = change.done(moment);
        drop(key);
        match block {
            None => call.replicate(name, effect, expiry),
            Some(duration) => {
                let mut effects = Effects::new();
                effects.add(name, effect, Expiry::Kept);
                effects.add(name, Effect::Block { until: now + duration }, expiry);
                call.replicate_all(effects);
            }
        }
        statistics::RECORDED.add(1);
        count_denial(call, name, moment, decision.granted);
        call.notify(c"swlimit.recorded", name);
        if block.is_some() {
            announce_block(call, name);
        }
        Ok(Reply::Decision(decision))
    }
}

/// Count a denial. What a primary, an AOF file or a moving slot repeats was not denied here.
#[inline(always)]
fn count_denial(call: &Call, name: &Text, moment: Moment, granted: u64) {
    if granted == 0 && call.counts_denials() && !call.must_obey() {
        call.count_denial(name, moment);
    }
}
