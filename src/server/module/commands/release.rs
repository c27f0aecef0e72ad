//! `SWLIMIT.RELEASE key id [id …] [AT unix-ms]`

use swlimit_hold::Holds;

use super::holding::{self, IdOptions};
use super::request::{self, KEY};
use crate::arguments::{Parse, Words};
use crate::error::Error;
use crate::server::{Call, Command, Declaration, Effects, Keys, Reply, Text};
use crate::statistics;

/// End holds.
pub struct Release;

/// The index of the first id among a call's arguments.
const IDS: usize = 2;

/// How many ids there are, and options.
struct ReleaseArguments(IdOptions);

impl Parse for ReleaseArguments {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, _max_subintervals: u64) -> Result<Self, Error> {
        words.word()?;
        IdOptions::parse(words).map(Self)
    }
}

impl Command for Release {
    const DECLARATION: Declaration = Declaration {
        name: c"swlimit.release",
        summary: c"Ends holds, which gives their units back.",
        complexity:
            c"O(K log H), K being the number of ids and H that of holds of the key; O(K log H + H) when more than a \
            quarter of them end, by their time or by this",
        since: c"0.2.0",
        arity: -3,
        flags: c"write fast",
        categories: "write fast",
        keys: Keys::Change,
        parameters: &[request::KEY_PARAMETER, holding::IDS, request::AT],
    };

    fn run(call: &Call) -> Result<Reply, Error> {
        let ReleaseArguments(IdOptions { ids, at }) = call.parse()?;
        let (name, ids) = (&call.arguments()[KEY], &call.arguments()[IDS..][..ids]);
        let moment = call.moment(at);
        let now = moment.now();

        call.end_waits(name, ids)?;
        let mut key = call.write::<Holds>(name)?;
        let is_live = |id: &Text| key.entry().is_some_and(|holds| holds.get(id.bytes(), now).is_some());
        if !ids.iter().any(is_live) {
            return Ok(Reply::Integer(0));
        }
        let mut effects = Effects::new();
        let freed = holding::release(call, &mut key, name, ids, moment, &mut effects)?;
        drop(key);
        call.replicate_all(effects);
        statistics::RELEASED.add(freed.iter().filter(|units| **units > 0).count() as u64);
        call.notify(c"swlimit.released", name);
        Ok(Reply::Integer(freed.iter().sum()))
    }
}
