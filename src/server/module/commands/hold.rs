//! `SWLIMIT.HOLD key limit ttl id [COST n] [WAIT timeout | AT unix-ms]`

use std::slice;

use swlimit_hold::{Holds, Request, Verdict};

use super::holding;
use super::request::{self, KEY};
use crate::arguments::{Keyword, Options, Parse, Words};
use crate::error::Error;
use crate::server::{Call, Command, Declaration, Effects, Keys, Parameter, Reply};
use crate::statistics;
use crate::waiting::Wish;

/// Take units of a limit until they are released.
pub struct Hold;

/// The index of the id among a call's arguments.
const ID: usize = 4;

/// The hold that is asked for, and options.
struct HoldArguments {
    limit: u64,
    ttl: u64,
    options: Options,
}

impl Parse for HoldArguments {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, _max_subintervals: u64) -> Result<Self, Error> {
        words.word()?;
        let limit = words.limit()?;
        let ttl = words.duration("ttl")?;
        words.id()?;
        let options = words.options(&[Keyword::Cost, Keyword::Wait, Keyword::At])?;
        holding::check_instant(options.at)?;
        Ok(Self { limit, ttl, options })
    }
}

impl Command for Hold {
    const DECLARATION: Declaration = Declaration {
        name: c"swlimit.hold",
        summary:
            c"Takes units of a limit on what is under way, until they are released or their time to live has passed.",
        complexity:
            c"O(log H + log W), H being the number of holds of the key and W that of waiting clients; O(H) when more \
            than a quarter of the holds has ended since the last change",
        since: c"0.2.0",
        arity: -5,
        flags: c"write deny-oom blocking",
        categories: "write blocking",
        keys: Keys::Change,
        parameters: &[
            request::KEY_PARAMETER,
            request::LIMIT,
            holding::TTL,
            holding::ID,
            request::COST,
            Parameter::one_of(
                c"when",
                &[Parameter::string(c"timeout").after(c"WAIT"), Parameter::unix_time(c"unix-ms").after(c"AT")],
            )
            .optional(),
        ],
    };

    fn run(call: &Call) -> Result<Reply, Error> {
        let HoldArguments { limit, ttl, options } = call.parse()?;
        let (name, [id]) = (&call.arguments()[KEY], call.words::<1>(ID)?);
        let moment = call.moment(options.at);
        let now = moment.now();
        let (cost, wait) = (options.cost, options.wait.unwrap_or(0));

        // Who wants a new hold takes its turn behind those that wait.
        let first = call.due(name);
        let mut key = call.write::<Holds>(name)?;
        let request = Request { limit, ttl, id: id.bytes(), cost };
        let decision = match (Holds::decide(key.entry(), now, &request, holding::most(first))?, first) {
            (Verdict::Granted(grant), None) => {
                let (decision, effect, expiry) = holding::grant(call, &mut key, id, grant, moment, &[])?;
                drop(key);
                call.replicate(name, effect, expiry);
                statistics::granted(cost);
                statistics::HELD.add(1);
                call.notify(c"swlimit.held", name);
                return Ok(Reply::Hold(decision));
            }
            (Verdict::Renewed(decision), _) => {
                let mut effects = Effects::new();
                holding::renew(call, &mut key, name, ttl, slice::from_ref(id), moment, &mut effects)?;
                drop(key);
                call.replicate_all(effects);
                return Ok(Reply::Hold(decision));
            }
            (Verdict::Granted(_), Some(_)) => Holds::peek(key.entry(), now, &request),
            (Verdict::Denied(decision), _) => decision,
        };
        let due = key.next_check(now, decision.retry_after);
        drop(key);
        if wait > 0 && decision.retry_after.is_some() && call.may_block() {
            return call.wait(name, Wish::Hold { limit, ttl, id: id.bytes().into(), cost }, wait, due);
        }
        request::deny(call, [name], cost, moment);
        Ok(Reply::Hold(match first {
            Some(due) => decision.behind(due.saturating_sub(now).max(1)),
            None => decision,
        }))
    }
}
