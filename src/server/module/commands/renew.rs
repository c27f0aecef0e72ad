//! `SWLIMIT.RENEW key ttl id [id …] [AT unix-ms]`

use swlimit_hold::Holds;

use super::holding::{self, IdOptions};
use super::request::{self, KEY};
use crate::arguments::{Parse, Words};
use crate::error::Error;
use crate::server::{Call, Command, Declaration, Effects, Keys, Reply, Text};

/// Let holds go on.
pub struct Renew;

/// The index of the first id among a call's arguments.
const IDS: usize = 3;

/// For how long, in ms, and how many ids there are, and options.
struct RenewArguments {
    ttl: u64,
    options: IdOptions,
}

impl Parse for RenewArguments {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, _max_subintervals: u64) -> Result<Self, Error> {
        words.word()?;
        let ttl = words.duration("ttl")?;
        let options = IdOptions::parse(words)?;
        holding::check_instant(options.at)?;
        Ok(Self { ttl, options })
    }
}

impl Command for Renew {
    const DECLARATION: Declaration = Declaration {
        name: c"swlimit.renew",
        summary: c"Lets live holds go on for another time to live.",
        complexity:
            c"O(K log H), K being the number of ids and H that of holds of the key; O(K log H + H) when more than a \
            quarter of them has ended or is renewed",
        since: c"0.2.0",
        arity: -4,
        flags: c"write fast",
        categories: "write fast",
        keys: Keys::Change,
        parameters: &[request::KEY_PARAMETER, holding::TTL, holding::IDS, request::AT],
    };

    fn run(call: &Call) -> Result<Reply, Error> {
        let RenewArguments { ttl, options: IdOptions { ids, at } } = call.parse()?;
        let (name, ids) = (&call.arguments()[KEY], &call.arguments()[IDS..][..ids]);
        let moment = call.moment(at);

        let mut key = call.write::<Holds>(name)?;
        let is_live = |id: &Text| key.entry().is_some_and(|holds| holds.get(id.bytes(), moment.now()).is_some());
        let live = ids.iter().map(|id| i64::from(is_live(id))).collect();
        let mut effects = Effects::new();
        holding::renew(call, &mut key, name, ttl, ids, moment, &mut effects)?;
        drop(key);
        call.replicate_all(effects);
        Ok(Reply::Integers(live))
    }
}
