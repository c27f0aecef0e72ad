//! `SWLIMIT.HOLD key limit ttl id [COST n] [AT unix-ms] [END unix-ms TOKEN n [RESERVED count word [word …]]
//! [UNTIL unix-ms]]`

use swlimit_hold::{decode_reservation, Decision, Holds, Request, Reservation, Verdict, MAX_RESERVATIONS};
use swlimit_window::integer;

use super::holding;
use super::request::{self, KEY};
use crate::arguments::{positive, Keyword, Options, Parse, Words};
use crate::configuration::MAX_HOLDS;
use crate::error::Error;
use crate::server::{Call, Command, Declaration, Effect, Expiry, HoldEffect, Keys, OwnText, Parameter, Reply};
use crate::statistics;

/// Take units of a limit until they are released.
pub struct Hold;

/// The index of the id among a call's arguments.
const ID: usize = 4;

/// The hold that is asked for, and options.
struct HoldArguments {
    limit: u64,
    ttl: u64,
    options: Options,
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
        let accepted = [Keyword::Cost, Keyword::At, Keyword::End, Keyword::Token, Keyword::Reserved, Keyword::Until];
        words.each_option(&accepted, |keyword, values| {
            match keyword {
                Keyword::End => end = Some(integer(values.value()?).ok_or(Error::Instant("END"))?),
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
        let put = match (token, needs_token) {
            (None, None) => None,
            (None, Some(error)) => return Err(error),
            (Some(token), _) => Some(Put { end: end.ok_or(Error::Syntax(b"TOKEN".into()))?, token, reserved }),
        };
        Ok(Self { limit, ttl, options, put })
    }
}

impl Command for Hold {
    const DECLARATION: Declaration = Declaration {
        name: c"swlimit.hold",
        summary:
            c"Takes units of a limit on what is under way, until they are released or their time to live has passed.",
        complexity: c"O(log H), H being the number of holds of the key",
        since: c"0.2.0",
        arity: -5,
        flags: c"write deny-oom fast",
        categories: "write fast",
        keys: Keys::Change,
        parameters: &[
            request::KEY_PARAMETER,
            request::LIMIT,
            holding::TTL,
            holding::ID,
            request::COST,
            request::AT,
            Parameter::UnixTimeAfter(c"END", c"end-unix-ms"),
            Parameter::IntegerAfter(c"TOKEN", c"token"),
            Parameter::BlockAfter(
                c"RESERVED",
                c"reservations",
                &[Parameter::Integer(c"count"), Parameter::Strings(c"reservation")],
            ),
            request::UNTIL,
        ],
    };

    fn run(call: &Call) -> Result<Reply, Error> {
        let HoldArguments { limit, ttl, options, put } = call.parse()?;
        let (name, [id]) = (&call.arguments()[KEY], call.words::<1>(ID)?);
        let moment = call.moment(options.at);
        let now = moment.now();
        let cost = options.cost;
        if let Some(put) = put {
            return apply(call, limit, &options, put);
        }

        let mut key = call.write::<Holds>(name)?;
        let request = Request { limit, ttl, id: id.bytes(), cost };
        let decision = match Holds::decide(key.entry(), now, &request, MAX_HOLDS.get())? {
            Verdict::Granted(grant) => {
                let (decision, effect) = holding::grant(call, &mut key, id, grant, moment, None)?;
                drop(key);
                call.replicate(name, effect);
                statistics::granted(cost);
                statistics::HELD.add(1);
                call.notify(c"swlimit.held", name);
                decision
            }
            Verdict::Renewed(decision) => {
                holding::renew(call, &mut key, name, ttl, std::slice::from_ref(id), moment, None)?;
                decision
            }
            Verdict::Denied(decision) => {
                drop(key);
                holding::deny(call, name, cost, moment);
                decision
            }
        };
        Ok(Reply::Hold(decision))
    }
}

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
    let until = change.done(Expiry::of(options.until, moment));
    drop(key);
    let effect = HoldEffect::Put { id, units, end, token, reserved: &words };
    call.replicate(name, Effect::Holds { effect, instant: now, until });
    statistics::HELD.add(1);
    call.notify(c"swlimit.held", name);
    let expires_after = end.saturating_sub(now);
    Ok(Reply::Hold(Decision { granted: units, limit, remaining, retry_after: Some(0), expires_after, token }))
}
