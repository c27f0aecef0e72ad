//! The effects of commands on holds, which have any number of words.

use std::ffi::CStr;

use redis_module::raw;

use super::words::{milliseconds, AT, COST, END, EXPIRY, INSTANT, UNITS, UNTIL, ZERO};
use crate::server::context::Context;
use crate::server::text::{FixedText, NumberText, OwnText, Text};

/// What happened to holds of one key.
pub enum HoldEffect<'a> {
    /// One came: `SWLIMIT.HOLD key 0 1ms id [COST units] AT instant END end TOKEN token [RESERVED count reserved …]
    /// [UNTIL until]`.
    Put {
        /// Its id.
        id: &'a Text,
        /// Its units.
        units: u64,
        /// Its end, in ms.
        end: u64,
        /// Its token.
        token: u64,
        /// What is reserved under it, each in a word.
        reserved: &'a [OwnText],
    },
    /// They go on: `SWLIMIT.RENEW key ttl id [id …] AT instant [UNTIL until]`.
    Renew {
        /// From the instant on, in ms.
        ttl: u64,
        /// Their ids.
        ids: &'a [&'a Text],
    },
    /// They were released: `SWLIMIT.RELEASE key id [id …] AT instant [UNTIL until]`.
    Release {
        /// Their ids.
        ids: &'a [&'a Text],
    },
}

static TTL: FixedText = FixedText::new(c"1ms");
static END_WORD: FixedText = FixedText::new(c"END");
static TOKEN_WORD: FixedText = FixedText::new(c"TOKEN");
static RESERVED: FixedText = FixedText::new(c"RESERVED");
static TOKEN: NumberText = NumberText::new();
static COUNT: NumberText = NumberText::new();

/// A string, then a vector of strings and its length. The key is not in the vector: while an append-only file is
/// rewritten, its name is on the server's stack, and only a single string may be.
const FORMAT: &CStr = c"sv";

/// The words of an effect after the key, with those that are its own.
struct Words {
    name: &'static CStr,
    words: Vec<*mut raw::RedisModuleString>,
    /// Lives until the server has taken over the words.
    own: Option<OwnText>,
}

impl HoldEffect<'_> {
    pub(super) fn replicate(&self, context: Context, key: &Text, instant: u64, until: Option<u64>) {
        let Words { name, words, own } = self.words(instant, until);
        let (name, format, first) = (name.as_ptr(), FORMAT.as_ptr(), words.as_ptr());
        // SAFETY: a valid context; strings that are alive, of which there are as many in the vector as it says.
        unsafe { api!(RedisModule_Replicate(context.raw(), name, format, key.raw(), first, words.len())) };
        drop(own);
    }

    /// # Safety
    /// `io` is what the server writes an append-only file to.
    pub(super) unsafe fn write(&self, io: *mut raw::RedisModuleIO, key: &Text, instant: u64, until: Option<u64>) {
        let Words { name, words, own } = self.words(instant, until);
        let (name, format, first) = (name.as_ptr(), FORMAT.as_ptr(), words.as_ptr());
        // SAFETY: the caller's promise; strings that are alive, of which there are as many in the vector as it says.
        unsafe { api!(RedisModule_EmitAOF(io, name, format, key.raw(), first, words.len())) };
        drop(own);
    }

    fn words(&self, instant: u64, until: Option<u64>) -> Words {
        let (mut words, mut own) = (Vec::with_capacity(14), None);
        let name = match *self {
            HoldEffect::Put { id, units, .. } => {
                words.extend([ZERO.raw(), TTL.raw(), id.raw()]);
                if units != 1 {
                    words.extend([COST.raw(), UNITS.raw(units)]);
                }
                c"SWLIMIT.HOLD"
            }
            HoldEffect::Renew { ttl, ids } => {
                words.push(own.insert(milliseconds(ttl)).raw());
                words.extend(ids.iter().map(|id| id.raw()));
                c"SWLIMIT.RENEW"
            }
            HoldEffect::Release { ids } => {
                words.extend(ids.iter().map(|id| id.raw()));
                c"SWLIMIT.RELEASE"
            }
        };
        words.extend([AT.raw(), INSTANT.raw(instant)]);
        if let HoldEffect::Put { end, token, reserved, .. } = *self {
            words.extend([END_WORD.raw(), END.raw(end), TOKEN_WORD.raw(), TOKEN.raw(token)]);
            if !reserved.is_empty() {
                words.extend([RESERVED.raw(), COUNT.raw(reserved.len() as u64)]);
                words.extend(reserved.iter().map(|word| word.raw()));
            }
        }
        if let Some(until) = until {
            words.extend([UNTIL.raw(), EXPIRY.raw(until)]);
        }
        Words { name, words, own }
    }
}
