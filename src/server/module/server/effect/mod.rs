//! The effects of commands, as replicas, the append-only file and its rewrite get them.
//!
//! An effect carries the instant it happened at, so that applying it gives the same counts and blocks whatever the applying
//! server's clock and settings are. The client's own command never replicates. `until` is the key's expiry (ms; 0: never),
//! where the command has set it.

mod holds;
pub(super) mod listeners;
mod words;

use std::ffi::{c_char, CStr};
use std::ptr;

use redis_module::raw;

use super::context::Context;
use super::text::{OwnText, Text};
use words::{AGE, AT, COST, END, EXPIRY, FORCE, INSTANT, SINCE, SINCE_INSTANT, UNITS, UNTIL, ZERO};

pub use holds::HoldEffect;
pub use words::{milliseconds, NEVER};

/// An effect on a key.
pub enum Effect<'a> {
    /// Units were counted: `SWLIMIT.RECORD key limit window resolution [COST units] [AGE age] AT instant [UNTIL until]`.
    Record {
        /// The quota's words: limit, window, resolution.
        quota: &'a [Text; 3],
        /// How many.
        units: u64,
        /// Their age at `instant`, in ms, where the window was replaced then.
        age: Option<u64>,
        /// When, in ms.
        instant: u64,
        /// When the key expires.
        until: Option<u64>,
    },
    /// Units were given back: `SWLIMIT.REFUND key units [SINCE since] AT instant [UNTIL until]`.
    Refund {
        /// How many.
        units: u64,
        /// From which instant on they were counted, in ms. An age may be longer than any duration that commands take.
        since: Option<u64>,
        /// When, in ms.
        instant: u64,
        /// When the key expires.
        until: Option<u64>,
    },
    /// The key was blocked: `SWLIMIT.BLOCK key duration AT instant [UNTIL until]`.
    Block {
        /// For how long, in ms.
        duration: u64,
        /// From when on, in ms.
        instant: u64,
        /// When the key expires.
        until: Option<u64>,
    },
    /// A block was lifted: `SWLIMIT.UNBLOCK key AT instant [UNTIL until]`.
    Unblock {
        /// When, in ms.
        instant: u64,
        /// When the key expires.
        until: Option<u64>,
    },
    /// Units were counted in a budget: `SWLIMIT.BUDGET key 0 end [COST units] FORCE AT instant [UNTIL until]`.
    Budget {
        /// The end of the period, in ms.
        end: u64,
        /// How many.
        units: u64,
        /// When, in ms.
        instant: u64,
        /// When the key expires.
        until: Option<u64>,
    },
    /// Holds came, went on or ended.
    Holds {
        /// Which of these.
        effect: HoldEffect<'a>,
        /// When, in ms.
        instant: u64,
        /// When the key expires.
        until: Option<u64>,
    },
}

/// The command of most effects.
const RECORD: &CStr = c"SWLIMIT.RECORD";
/// The maximum number of arguments of an effect.
const MOST: usize = 12;
/// The format of as many strings.
const STRINGS: &CStr = c"ssssssssssss";
const _: () = assert!(STRINGS.count_bytes() == MOST);

/// An effect as a command's arguments.
struct Words {
    name: &'static CStr,
    words: [*mut raw::RedisModuleString; MOST],
    len: usize,
    /// The argument that is not shared with other effects.
    own: Option<OwnText>,
}

impl Words {
    #[inline(always)]
    fn push(&mut self, word: *mut raw::RedisModuleString) {
        self.words[self.len] = word;
        self.len += 1;
    }

    /// A cost of 1 goes without saying.
    #[inline(always)]
    fn push_cost(&mut self, units: u64) {
        if units != 1 {
            self.push(COST.raw());
            self.push(UNITS.raw(units));
        }
    }

    #[inline(always)]
    fn push_age(&mut self, age: Option<u64>) {
        if let Some(age) = age {
            self.push(AGE.raw());
            self.push_own(milliseconds(age));
        }
    }

    #[inline(always)]
    fn push_moment(&mut self, instant: u64, until: Option<u64>) {
        self.push(AT.raw());
        self.push(INSTANT.raw(instant));
        if let Some(until) = until {
            self.push(UNTIL.raw());
            self.push(EXPIRY.raw(until));
        }
    }

    fn push_own(&mut self, word: OwnText) {
        self.push(word.raw());
        self.own = Some(word);
    }
}

/// The format for so many strings; the server ignores the rest.
#[inline(always)]
fn format_of(len: usize) -> *const c_char {
    STRINGS.to_bytes_with_nul()[MOST - len..].as_ptr().cast()
}

impl Effect<'_> {
    /// Replicate it, also into the append-only file.
    #[inline(always)]
    pub(super) fn replicate(&self, context: Context, key: &Text) {
        if listeners::are_none() {
            // SAFETY: the context of a command's handler.
            unsafe { api!(RedisModule_ReplicateVerbatim(context.raw())) };
            return;
        }
        let Effect::Record { quota: [limit, window, resolution], units: 1, age: None, instant, until } = *self else {
            return self.replicate_words(context, key);
        };
        // Most effects: spelled out, so that nothing has to be counted.
        let (key, at, instant) = (key.raw(), AT.raw(), INSTANT.raw(instant));
        let (limit, window, resolution) = (limit.raw(), window.raw(), resolution.raw());
        // SAFETY: as many strings as the format names.
        unsafe {
            let (context, name, six, eight) = (context.raw(), RECORD.as_ptr(), format_of(6), format_of(8));
            match until {
                None => api!(RedisModule_Replicate(context, name, six, key, limit, window, resolution, at, instant)),
                Some(until) => {
                    let (word, until) = (UNTIL.raw(), EXPIRY.raw(until));
                    api!(RedisModule_Replicate(
                        context, name, eight, key, limit, window, resolution, at, instant, word, until
                    ))
                }
            };
        }
    }

    /// Replicate its words. One variadic argument each, because the server allocates those at once, and a vector's one by
    /// one.
    #[inline(never)]
    fn replicate_words(&self, context: Context, key: &Text) {
        if let Effect::Holds { effect, instant, until } = self {
            return effect.replicate(context, key, *instant, *until);
        }
        let words = self.words(key);
        let ([a, b, c, d, e, f, g, h, i, j, k, l], name, format) =
            (words.words, words.name.as_ptr(), format_of(words.len));
        // SAFETY: as many strings as the format names come first.
        unsafe { api!(RedisModule_Replicate(context.raw(), name, format, a, b, c, d, e, f, g, h, i, j, k, l)) };
    }

    /// Write it to an append-only file that is being rewritten.
    ///
    /// # Safety
    /// `io` is what the server writes to.
    pub(super) unsafe fn write(&self, io: *mut raw::RedisModuleIO, key: &Text) {
        if let Effect::Holds { effect, instant, until } = self {
            // SAFETY: the caller's promise.
            return unsafe { effect.write(io, key, *instant, *until) };
        }
        let words = self.words(key);
        let ([a, b, c, d, e, f, g, h, i, j, k, l], name, format) =
            (words.words, words.name.as_ptr(), format_of(words.len));
        // SAFETY: the caller's promise; as many strings as the format names come first.
        unsafe { api!(RedisModule_EmitAOF(io, name, format, a, b, c, d, e, f, g, h, i, j, k, l)) };
    }

    #[inline(always)]
    fn words(&self, key: &Text) -> Words {
        let (name, instant, until) = match *self {
            Effect::Record { instant, until, .. } => (RECORD, instant, until),
            Effect::Refund { instant, until, .. } => (c"SWLIMIT.REFUND", instant, until),
            Effect::Block { instant, until, .. } => (c"SWLIMIT.BLOCK", instant, until),
            Effect::Unblock { instant, until } => (c"SWLIMIT.UNBLOCK", instant, until),
            Effect::Budget { instant, until, .. } => (c"SWLIMIT.BUDGET", instant, until),
            Effect::Holds { instant, until, .. } => (c"", instant, until),
        };
        let mut words = Words { name, words: [ptr::null_mut(); MOST], len: 0, own: None };
        words.push(key.raw());
        match *self {
            Effect::Record { quota: [limit, window, resolution], units, age, .. } => {
                words.push(limit.raw());
                words.push(window.raw());
                words.push(resolution.raw());
                words.push_cost(units);
                words.push_age(age);
            }
            Effect::Refund { units, since, .. } => {
                words.push(UNITS.raw(units));
                if let Some(since) = since {
                    words.push(SINCE.raw());
                    words.push(SINCE_INSTANT.raw(since));
                }
            }
            Effect::Block { duration, .. } => words.push_own(milliseconds(duration)),
            Effect::Budget { end, units, .. } => {
                words.push(ZERO.raw());
                words.push(END.raw(end));
                words.push_cost(units);
                words.push(FORCE.raw());
            }
            Effect::Unblock { .. } | Effect::Holds { .. } => {}
        }
        words.push_moment(instant, until);
        words
    }
}
