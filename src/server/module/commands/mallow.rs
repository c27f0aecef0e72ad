//! `SWLIMIT.MALLOW numkeys key [key …] limit window resolution cost [WARMUP duration [COLD n]] [limit window resolution
//! cost [WARMUP duration [COLD n]] …] [STRICT] [AT unix-ms]`
//!
//! The keys stand side by side, so that a key specification tells servers and clients where they are, without
//! calling the module: Valkey would call it on an I/O thread, where module code must not run. All keys are in one slot of a cluster.

use swlimit_window::{Decision, Entry, Request, Verdict};

use super::request;
use crate::arguments::{distinct, Keyword, Options, Parse, Words};
use crate::error::Error;
use crate::server::{Call, Command, Declaration, Effects, Key, Keys, Parameter, Reply};
use crate::statistics;

/// Decide several limits at once: all or nothing.
pub struct Mallow;

/// Where the first key stands among a call's arguments.
const FIRST_KEY: usize = 2;
/// `limit window resolution cost`
const FEWEST_WORDS_PER_QUOTA: usize = 4;

/// What is asked of several keys.
struct MallowArguments {
    /// The request for each key, in order.
    requests: Vec<Request>,
    at: Option<u64>,
}

impl Parse for MallowArguments {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, max_subintervals: u64) -> Result<Self, Error> {
        let numkeys = words.numkeys()?;
        let words: Vec<&[u8]> = words.collect();
        if words.len() / (1 + FEWEST_WORDS_PER_QUOTA) < numkeys {
            return Err(Error::NumKeys);
        }
        let (keys, mut words) = words.split_at(numkeys);
        let mut requests = Vec::with_capacity(keys.len());
        for _ in keys {
            let (limit, rest) = words.split_first_chunk::<FEWEST_WORDS_PER_QUOTA>().ok_or(Error::NumKeys)?;
            let (mut limit, mut after) = (limit.iter().copied(), rest.iter().copied());
            let (quota, cost, warm_up) = (limit.quota(max_subintervals)?, limit.units("cost")?, after.warm_up()?);
            requests.push(Request { quota, cost, partial: false, strict: false, warm_up });
            words = &rest[rest.len() - after.len()..];
        }
        let Options { strict, at, .. } = words.iter().copied().options(&[Keyword::Strict, Keyword::At])?;
        requests.iter_mut().for_each(|request| request.strict = strict);
        distinct(keys)?;
        Ok(Self { requests, at })
    }
}

impl Command for Mallow {
    const DECLARATION: Declaration = Declaration {
        name: c"swlimit.mallow",
        summary: c"Decides whether a request is within several sliding-window limits, and counts it in all or in none.",
        complexity:
            c"O(K log C), K being the number of keys and C that of subintervals that hold a count; O(K C) when \
            windows or resolutions change",
        since: c"0.1.0",
        arity: -7,
        flags: c"write deny-oom",
        categories: "write",
        keys: Keys::ChangeCounted,
        parameters: &[
            Parameter::integer(c"numkeys"),
            Parameter::key(c"key").multiple(),
            Parameter::block(c"quota", request::QUOTA_AND_COST).multiple(),
            request::STRICT,
            request::AT,
        ],
    };

    fn run(call: &Call) -> Result<Reply, Error> {
        let MallowArguments { requests, at } = call.parse()?;
        let moment = call.moment(at);
        let (names, _) = call.arguments()[FIRST_KEY..].split_at(requests.len());
        call.check_slots(names)?;
        let units = requests.iter().fold(0u64, |units, request| units.saturating_add(request.cost));

        let mut keys = call.open(|| names.iter().map(|name| call.write(name)).collect::<Result<Vec<_>, _>>())?;
        let mut grants = Vec::with_capacity(keys.len());
        for (key, request) in keys.iter().zip(&requests) {
            match Entry::decide(key.entry(), moment.now(), request)? {
                Verdict::Granted(grant) => grants.push(grant),
                Verdict::Denied(_) => break,
            }
        }
        if grants.len() < keys.len() {
            let peek = |(key, request): (&Key, &Request)| Entry::peek(key.entry(), moment.now(), request);
            let decisions: Vec<Decision> = keys.iter().zip(&requests).map(peek).collect::<Result<_, _>>()?;
            drop(keys);
            let denied = names.iter().zip(&decisions).filter(|(_, decision)| decision.granted == 0);
            request::deny(call, denied.map(|(name, _)| name), units, moment);
            return Ok(Reply::Decisions { granted: false, decisions });
        }

        let mut decisions = Vec::with_capacity(keys.len());
        let mut effects = Effects::new();
        for (name, (key, grant)) in names.iter().zip(keys.iter_mut().zip(grants)) {
            let effect = request::counted(&grant);
            let mut change = key.change()?;
            decisions.push(grant.apply(change.entry()));
            let expiry = change.done(moment);
            effects.add(name, effect, expiry);
        }
        drop(keys);
        call.replicate_all(effects);
        statistics::granted(units);
        call.notify_all(c"swlimit.granted", names);
        Ok(Reply::Decisions { granted: true, decisions })
    }
}
