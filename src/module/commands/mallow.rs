//! `SWLIMIT.MALLOW numkeys key [key …] limit window resolution cost [limit window resolution cost …] [STRICT]
//! [AT unix-ms]`
//!
//! The keys stand side by side, so that a key specification tells servers and clients where they are and the module is
//! never asked: Valkey asks on an I/O thread, where module code must not run.

use crate::arguments::{integer, Keyword, Options, Quota, Words};
use crate::error::Error;
use crate::server::{Call, Command, Documentation, Keys, Parameter, Parse};
use crate::statistics;
use swlimit_window::{Decision, Demand, Window};

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
    const DOCUMENTATION: Documentation = Documentation {
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
                &[
                    Parameter::Integer(c"limit"),
                    Parameter::Word(c"window"),
                    Parameter::Word(c"resolution"),
                    Parameter::Integer(c"cost"),
                ],
            ),
            Parameter::Flag(c"strict", c"STRICT"),
            Parameter::UnixTimeAfter(c"AT", c"unix-ms"),
        ],
    };

    fn run(call: &Call) -> Result<(), Error> {
        let Requests { quotas, options } = call.parse()?;
        let now = call.instant(options.at).ms();
        let (names, words) = call.arguments()[FIRST_KEY..].split_at(quotas.len());

        let mut keys = names.iter().map(|name| call.write(name)).collect::<Result<Vec<_>, _>>()?;
        let mut decisions = Vec::with_capacity(keys.len());
        let mut grants = Vec::with_capacity(keys.len());
        for (key, (quota, cost)) in keys.iter().zip(&quotas) {
            let demand = Demand { cost: *cost, ..quota.demand(&options) };
            let window = Window::seen_at(key.window(), quota.geometry, now);
            decisions.push(window.decide(now, &demand)?);
            grants.push((window.decision_instant(now), window.into_replacement()));
        }
        let units = quotas.iter().fold(0u64, |units, (_, cost)| units.saturating_add(*cost));
        if decisions.iter().any(|decision| decision.granted == 0) {
            drop(keys);
            statistics::denied(units);
            for (name, _) in names.iter().zip(&decisions).filter(|(_, decision)| decision.granted == 0) {
                call.notify(c"swlimit.denied", name);
            }
            reply(call, 0, &decisions);
            return Ok(());
        }

        let mut counted = Vec::with_capacity(keys.len());
        for ((key, decision), (instant, replacement)) in keys.iter_mut().zip(&mut decisions).zip(grants) {
            *decision = key.change(replacement, now, |window| {
                window.count(instant, decision.granted);
                window.after_grant(now, *decision)
            })?;
            counted.push(instant);
        }
        drop(keys);
        let words = words.chunks_exact(WORDS_PER_QUOTA);
        for (((name, words), (_, cost)), instant) in names.iter().zip(words).zip(&quotas).zip(counted) {
            call.replicate_record(name, &words[..3], *cost, instant);
        }
        statistics::granted(units);
        for name in names {
            call.notify(c"swlimit.granted", name);
        }
        reply(call, 1, &decisions);
        Ok(())
    }
}

/// `[granted 0/1, [five integers], …]`
fn reply(call: &Call, granted: u64, decisions: &[Decision]) {
    call.reply_array(1 + decisions.len());
    call.reply_integer(granted);
    for decision in decisions {
        call.reply_decision(decision);
    }
}
