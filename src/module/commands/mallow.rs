//! `SWLIMIT.MALLOW numkeys key [key …] limit window resolution cost [limit window resolution cost …] [STRICT]
//! [AT unix-ms]`
//!
//! The keys stand side by side, so that key specifications tell servers and clients where they are and the module is
//! never asked: Valkey asks on an I/O thread, where module code must not run. All keys are in one slot of a cluster.

use swlimit_window::{integer, Decision, Demand, Entry, Grant, Quota, Verdict};

use super::request;
use crate::arguments::{Keyword, Options, Parse, Words};
use crate::error::Error;
use crate::server::{Call, Command, Declaration, Effect, Expiry, Key, Keys, Parameter, Reply};
use crate::statistics;

/// Decide several limits at once: all or nothing.
pub struct Mallow;

/// Where the first key stands among a call's arguments.
const FIRST_KEY: usize = 2;
/// `limit window resolution cost`
const WORDS_PER_QUOTA: usize = 4;

/// Several limits and what they have in common.
struct Requests {
    /// The quota and the cost for each key, in order.
    quotas: Vec<(Quota, u64)>,
    options: Options,
}

impl Parse for Requests {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, max_subintervals: u64) -> Result<Self, Error> {
        let numkeys = integer(words.word()?).filter(|numkeys| *numkeys > 0).ok_or(Error::NumKeys)?;
        let words: Vec<&[u8]> = words.collect();
        if (words.len() / (1 + WORDS_PER_QUOTA)) < numkeys as usize {
            return Err(Error::NumKeys);
        }
        let (keys, words) = words.split_at(numkeys as usize);
        let (limits, options) = words.split_at(keys.len() * WORDS_PER_QUOTA);
        let mut quotas = Vec::with_capacity(keys.len());
        for limit in limits.chunks_exact(WORDS_PER_QUOTA) {
            let mut words = limit.iter().copied();
            quotas.push((words.quota(max_subintervals)?, words.units("cost")?));
        }
        let options = options.iter().copied().options(&[Keyword::Strict, Keyword::At])?;
        let mut names = keys.to_vec();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::KeyTwice);
        }
        Ok(Self { quotas, options })
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
            Parameter::Integer(c"numkeys"),
            Parameter::Keys(c"key"),
            Parameter::Repeated(
                c"limits",
                &[request::LIMIT, request::WINDOW, request::RESOLUTION, Parameter::Integer(c"cost")],
            ),
            request::STRICT,
            request::AT,
        ],
    };

    fn run(call: &Call) -> Result<Reply, Error> {
        let Requests { quotas, options } = call.parse()?;
        let moment = call.moment(options.at);
        let (names, _) = call.arguments()[FIRST_KEY..].split_at(quotas.len());
        call.check_slots(names)?;
        let units = quotas.iter().fold(0u64, |units, (_, cost)| units.saturating_add(*cost));

        let mut keys = names.iter().map(|name| call.write(name)).collect::<Result<Vec<_>, _>>()?;
        let decide = |(key, (quota, cost)): (&_, &(Quota, u64))| {
            let demand = Demand { quota: *quota, cost: *cost, partial: false, strict: options.strict };
            Entry::decide(Key::entry(key), moment.now(), &demand)
        };
        let verdicts = keys.iter().zip(&quotas).map(decide).collect::<Result<Vec<_>, _>>()?;
        let grants = match all_granted(verdicts) {
            Ok(grants) => grants,
            Err(decisions) => {
                drop(keys);
                statistics::denied(units);
                for (name, _) in names.iter().zip(&decisions).filter(|(_, decision)| decision.granted == 0) {
                    call.notify(c"swlimit.denied", name);
                }
                return Ok(Reply::Decisions { granted: false, decisions });
            }
        };

        let mut decisions = Vec::with_capacity(keys.len());
        let mut effects = Vec::with_capacity(keys.len());
        for (place, (key, grant)) in keys.iter_mut().zip(grants).enumerate() {
            let quota = call.words(FIRST_KEY + names.len() + place * WORDS_PER_QUOTA)?;
            let (units, instant) = (grant.units(), grant.instant());
            let changed = key.change(Expiry::AfterEnd(moment), |entry| grant.apply(entry))?;
            decisions.push(changed.result);
            effects.push(Effect::Record { quota, units, instant, until: changed.until });
        }
        drop(keys);
        for (name, effect) in names.iter().zip(effects) {
            call.replicate(name, effect);
        }
        statistics::granted(units);
        for name in names {
            call.notify(c"swlimit.granted", name);
        }
        Ok(Reply::Decisions { granted: true, decisions })
    }
}

/// The grants, if there is nothing else; otherwise every decision as it reads while nothing is counted.
fn all_granted(verdicts: Vec<Verdict>) -> Result<Vec<Grant>, Vec<Decision>> {
    if verdicts.iter().all(|verdict| matches!(verdict, Verdict::Granted(_))) {
        return Ok(verdicts.into_iter().filter_map(Verdict::grant).collect());
    }
    Err(verdicts.into_iter().map(Verdict::decision).collect())
}
