//! `SWLIMIT.HOLD key limit ttl id [COST n] [WAIT timeout | AT unix-ms [END unix-ms TOKEN n [RESERVED count word [word …]]
//! [UNTIL unix-ms]]]`

use std::slice;

use swlimit_hold::{decode_reservation, Decision, Holds, Request, Reservation, Verdict, MAX_RESERVATIONS};
use swlimit_window::{duration_or_zero, integer};

use super::holding;
use super::request::{self, KEY};
use crate::arguments::{positive, Keyword, Options, Parse, Words};
use crate::error::Error;
use crate::server::{Call, Command, Declaration, Effect, Expiry, HoldEffect, Keys, OwnText, Parameter, Reply};
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
    /// How long to wait, in ms.
    wait: u64,
    put: Option<Put>,
}

/// A hold as a primary, an AOF file or a moving slot has it.
struct Put {
    end: u64,
    token: u64,
    reserved: Vec<Reservation>,
}

impl Parse for HoldArguments {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, _max_subintervals: u64) -> Result<Self, Error> {
        words.word()?;
        let limit = words.limit()?;
        let ttl = words.duration("ttl")?;
        words.id()?;
        let (mut options, mut end, mut token, mut reserved) = (Options::default(), None, None, Vec::new());
        // The options that only a hold with a token has.
        let mut needs_token = None;
        let mut wait = None;
        let accepted = [
            Keyword::Cost,
            Keyword::Wait,
            Keyword::At,
            Keyword::End,
            Keyword::Token,
            Keyword::Reserved,
            Keyword::Until,
        ];
        words.each_option(&accepted, |keyword, values| {
            match keyword {
                Keyword::End => end = Some(integer(values.value()?).ok_or(Error::Instant("END"))?),
                Keyword::Wait => {
                    let timeout = duration_or_zero(values.value()?).filter(|ms| *ms <= MAX_WAIT);
                    wait = Some((timeout.ok_or(Error::Duration("timeout"))?, values.syntax()));
                }
                Keyword::Token => token = Some(positive(values.value()?).ok_or(Error::Units("TOKEN"))?),
                Keyword::Reserved => {
                    let count = positive(values.value()?).filter(|count| *count <= MAX_RESERVATIONS as u64);
                    for _ in 0..count.ok_or(Error::Reservation)? {
                        reserved.push(decode_reservation(values.value()?).map_err(|_| Error::Reservation)?);
                    }
                }
                keyword => options.set(keyword, values)?,
            }
            if matches!(keyword, Keyword::End | Keyword::Reserved | Keyword::Until) {
                needs_token.get_or_insert_with(|| values.syntax());
            }
            Ok(())
        })?;
        holding::check_instant(options.at)?;
        let wait = match wait {
            Some((_, error)) if options.at.is_some() || token.is_some() => return Err(error),
            wait => wait.map_or(0, |(timeout, _)| timeout),
        };
        let put = match (token, needs_token) {
            (None, None) => None,
            (None, Some(error)) => return Err(error),
            (Some(token), _) => Some(Put { end: end.ok_or(Error::Syntax(b"TOKEN".into()))?, token, reserved }),
        };
        Ok(Self { limit, ttl, options, wait, put })
    }
}

/// How a hold as a primary, an AOF file or a moving slot has it is declared.
const PUT: Parameter = Parameter::block(
    c"put",
    &[
        Parameter::unix_time(c"end-unix-ms").after(c"END"),
        Parameter::integer(c"token").after(c"TOKEN"),
        RESERVED.after(c"RESERVED").optional(),
        request::UNTIL,
    ],
);
const RESERVED: Parameter =
    Parameter::block(c"reservations", &[Parameter::integer(c"count"), Parameter::string(c"reservation").multiple()]);

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
                &[
                    Parameter::string(c"timeout").after(c"WAIT"),
                    Parameter::block(c"at", &[Parameter::unix_time(c"unix-ms").after(c"AT"), PUT.optional()]),
                ],
            )
            .optional(),
        ],
    };

    fn run(call: &Call) -> Result<Reply, Error> {
        let HoldArguments { limit, ttl, options, wait, put } = call.parse()?;
        let (name, [id]) = (&call.arguments()[KEY], call.words::<1>(ID)?);
        let moment = call.moment(options.at);
        let now = moment.now();
        let cost = options.cost;
        if let Some(put) = put {
            return apply(call, limit, &options, put);
        }

        // Who wants a new hold takes its turn behind those that wait.
        let first = call.due(name);
        let mut key = call.write::<Holds>(name)?;
        let request = Request { limit, ttl, id: id.bytes(), cost };
        let decision = match (Holds::decide(key.entry(), now, &request, holding::most(first))?, first) {
            (Verdict::Granted(grant), None) => {
                let (decision, effect) = holding::grant(call, &mut key, id, grant, moment, None)?;
                drop(key);
                call.replicate(name, effect);
                statistics::granted(cost);
                statistics::HELD.add(1);
                call.notify(c"swlimit.held", name);
                return Ok(Reply::Hold(decision));
            }
            (Verdict::Renewed(decision), _) => {
                holding::renew(call, &mut key, name, ttl, slice::from_ref(id), moment, None)?;
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

/// The longest wait, in ms: an hour.
const MAX_WAIT: u64 = 60 * 60 * 1000;

/// Put a hold as it was granted elsewhere, whatever the limit is.
fn apply(call: &Call, limit: u64, options: &Options, put: Put) -> Result<Reply, Error> {
    let (name, [id]) = (&call.arguments()[KEY], call.words::<1>(ID)?);
    let (moment, units) = (call.moment(options.at), options.cost);
    let (now, Put { end, token, reserved }) = (moment.now(), put);
    let words: Vec<OwnText> =
        reserved.iter().map(|reservation| OwnText::new(&swlimit_hold::encode_reservation(reservation))).collect();
    let hold = swlimit_hold::Hold::new(id.bytes(), units, end, token, Some(reserved.into_boxed_slice()))
        .map_err(|_| Error::Instant("END"))?;

    let mut key = call.write::<Holds>(name)?;
    Holds::check_put(key.entry(), now, &hold)?;
    let mut change = key.change()?;
    let holds = change.entry();
    holding::sweep(call, holds, now);
    holds.put(hold);
    let remaining = limit.saturating_sub(holds.live(now).units);
    change.lasts_until(end);
    let until = change.done(Expiry::of(options.until, moment));
    drop(key);
    let effect = HoldEffect::Put { id, units, end, token, reserved: &words };
    call.replicate(name, Effect::Holds { effect, instant: now, until });
    statistics::HELD.add(1);
    call.notify(c"swlimit.held", name);
    let expires_after = end.saturating_sub(now);
    Ok(Reply::Hold(Decision { granted: units, limit, remaining, retry_after: Some(0), expires_after, token }))
}
