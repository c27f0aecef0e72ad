//! `SWLIMIT.MALLOW numkeys key limit window resolution cost [key limit window resolution cost …] [STRICT] [AT unix-ms]`

use crate::arguments::{integer, Keyword, Options, Quota, Words};
use crate::error::Error;
use crate::server::{Call, Command, Documentation, Keys, Parameter, Parse};
use crate::statistics;
use swlimit_window::{Decision, Demand, Window};

/// Decide several limits at once: all or nothing.
pub struct Mallow;

/// Where the first key stands among a call's arguments.
const FIRST: usize = 2;
/// `key limit window resolution cost`
const WORDS_PER_KEY: usize = 5;

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
        if (words.len() / WORDS_PER_KEY) < numkeys as usize {
            return Err(Error::NumKeys);
        }
        let (limits, options) = words.split_at(numkeys as usize * WORDS_PER_KEY);
        let mut names = Vec::with_capacity(numkeys as usize);
        let mut quotas = Vec::with_capacity(numkeys as usize);
        for limit in limits.chunks_exact(WORDS_PER_KEY) {
            let mut words = limit.iter().copied();
            names.push(words.word()?);
            quotas.push((words.quota(max_subintervals)?, words.units("cost")?));
        }
        let options = options.iter().copied().options(&[Keyword::Strict, Keyword::At])?;
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
        flags: c"write deny-oom getkeys-api",
        categories: "write",
        keys: Keys::ChangeCounted(WORDS_PER_KEY as i32),
        parameters: &[
            Parameter::Integer(c"numkeys"),
            Parameter::Repeated(
                c"limits",
                &[
                    Parameter::Key(c"key"),
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
        let limits = || call.arguments()[FIRST..].chunks_exact(WORDS_PER_KEY).zip(&quotas);

        let mut keys = limits().map(|(words, _)| call.write(&words[0])).collect::<Result<Vec<_>, _>>()?;
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
            for ((words, _), _) in limits().zip(&decisions).filter(|(_, decision)| decision.granted == 0) {
                call.notify(c"swlimit.denied", &words[0]);
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
        for ((words, (_, cost)), instant) in limits().zip(counted) {
            call.replicate_record(&words[0], &words[1..4], *cost, instant);
        }
        statistics::granted(units);
        for (words, _) in limits() {
            call.notify(c"swlimit.granted", &words[0]);
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
