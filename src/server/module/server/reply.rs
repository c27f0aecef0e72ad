//! The replies of commands.

use std::ffi::{c_long, c_longlong, CString};

use swlimit_hold::Hold;
use swlimit_window::{Count, Decision, Window};

use super::context::Context;
use crate::denials::Denied;
use crate::error::Error;

/// A command's reply, sent when the command is done.
pub enum Reply {
    /// The five integers.
    Decision(Decision),
    /// `[granted 0/1, [five integers], …]`
    Decisions {
        /// Whether all of them are granted.
        granted: bool,
        /// One for each key.
        decisions: Vec<Decision>,
    },
    /// `[granted 0/1, [integers], …]`, of several limits of any kind.
    Admission {
        /// Whether all of them are granted.
        granted: bool,
        /// One for each key.
        decisions: Vec<Admitted>,
    },
    /// The six integers of HOLD.
    Hold(swlimit_hold::Decision),
    /// Holds, for `SWLIMIT.HOLDERS`.
    Holders(Vec<Holder>),
    /// An integer of at most 2^63 − 1.
    Integer(u64),
    /// Integers as the server gave them.
    Integers(Vec<i64>),
    /// None yet: the client is blocked.
    Blocked,
    /// What a key holds.
    Info(Box<Info>),
    /// Keys whose requests were denied.
    Denied(Vec<DeniedKey>),
}

/// What is decided of a limit of any kind.
#[derive(Clone, Copy)]
pub enum Admitted {
    /// Of a rate or a budget.
    Units(Decision),
    /// Of a hold.
    Hold(swlimit_hold::Decision),
}

/// What `SWLIMIT.INFO` shows.
pub struct Info {
    /// Names and numbers, in order.
    pub numbers: Vec<(&'static str, u64)>,
    /// Of a window: the starts of subintervals in ms, and the units counted there, oldest first.
    pub counts: Option<Vec<(u64, u64)>>,
}

/// What `SWLIMIT.TOP` shows of a key.
pub struct DeniedKey {
    database: i32,
    name: Vec<u8>,
    /// How many of its requests were denied in this minute, and in the last one.
    denied: [u64; 2],
}

impl From<Denied<'_>> for DeniedKey {
    fn from(Denied { key, this, last }: Denied) -> Self {
        Self { database: key.database, name: key.name.to_vec(), denied: [this, last] }
    }
}

impl Info {
    /// The counts of a window.
    pub fn counts_of(window: &Window) -> Vec<(u64, u64)> {
        window.counts().map(|Count { subinterval, units }| (window.geometry().start_of(subinterval), units)).collect()
    }
}

impl Admitted {
    /// The same decision for a request whose turn comes in so many ms at the earliest.
    pub fn behind(self, ms: u64) -> Self {
        match self {
            Admitted::Units(decision) => Admitted::Units(decision.behind(ms)),
            Admitted::Hold(decision) => Admitted::Hold(decision.behind(ms)),
        }
    }

    /// The decision as a reply of its own.
    pub fn into_reply(self) -> Reply {
        match self {
            Admitted::Units(decision) => Reply::Decision(decision),
            Admitted::Hold(decision) => Reply::Hold(decision),
        }
    }
}

impl Reply {
    /// Send it to the client of this context.
    #[inline(always)]
    pub(super) fn send(self, context: Context) {
        match self {
            Reply::Decision(decision) => context.reply_decision(&decision),
            Reply::Decisions { granted, decisions } => {
                context.reply_array(1 + decisions.len());
                context.reply_integer(u64::from(granted));
                decisions.iter().for_each(|decision| context.reply_decision(decision));
            }
            Reply::Admission { granted, decisions } => {
                context.reply_array(1 + decisions.len());
                context.reply_integer(u64::from(granted));
                decisions.iter().for_each(|decision| match decision {
                    Admitted::Units(decision) => context.reply_decision(decision),
                    Admitted::Hold(decision) => context.reply_hold(decision),
                });
            }
            Reply::Hold(decision) => context.reply_hold(&decision),
            Reply::Holders(holders) => {
                context.reply_array(holders.len());
                holders.iter().for_each(|holder| holder.send(context));
            }
            Reply::Integer(value) => context.reply_integer(value),
            Reply::Integers(values) => {
                context.reply_array(values.len());
                values.iter().for_each(|value| context.reply_long(*value));
            }
            Reply::Blocked => {}
            Reply::Info(info) => info.send(context),
            Reply::Denied(keys) => {
                context.reply_array(keys.len());
                keys.iter().for_each(|key| key.send(context));
            }
        }
    }
}

/// A hold, as `SWLIMIT.HOLDERS` shows it.
pub struct Holder {
    id: Vec<u8>,
    /// Units, ms held, ms left, token.
    numbers: [u64; 4],
}

impl Holder {
    /// A hold that is live at `now`. Its token says when it was granted.
    pub fn of(hold: &Hold, now: u64) -> Self {
        let (held, left) = (now.saturating_sub(hold.token() / 1000), hold.end() - now);
        Self { id: hold.id().into(), numbers: [hold.units(), held, left, hold.token()] }
    }

    fn send(&self, context: Context) {
        context.reply_array(1 + self.numbers.len());
        context.reply_text(&self.id);
        self.numbers.iter().for_each(|number| context.reply_integer(*number));
    }
}

impl DeniedKey {
    fn send(&self, context: Context) {
        context.reply_array(4);
        context.reply_long(self.database.into());
        context.reply_text(&self.name);
        self.denied.iter().for_each(|count| context.reply_integer(*count));
    }
}

impl Info {
    fn send(&self, context: Context) {
        context.reply_map(self.numbers.len() + usize::from(self.counts.is_some()));
        for (name, number) in &self.numbers {
            context.reply_text(name.as_bytes());
            context.reply_integer(*number);
        }
        let Some(counts) = &self.counts else { return };
        context.reply_text(b"counts");
        context.reply_array(counts.len());
        for (start, units) in counts {
            context.reply_array(2);
            context.reply_integer(*start);
            context.reply_integer(*units);
        }
    }
}

impl Context {
    pub(super) fn reply_error(self, error: &Error) {
        match error {
            // SAFETY: a valid context.
            Error::Arity => drop(unsafe { api!(RedisModule_WrongArity(self.raw())) }),
            error => self.reply_error_text(error.to_string()),
        }
    }

    /// An error, with its code.
    pub(super) fn reply_error_text(self, error: String) {
        // SAFETY: a valid context; the server copies the text, a C string.
        unsafe { api!(RedisModule_ReplyWithError(self.raw(), c_string(error).as_ptr())) };
    }

    #[inline(always)]
    fn reply_decision(self, decision: &Decision) {
        self.reply_array(5);
        self.reply_integer(decision.granted);
        self.reply_integer(decision.limit);
        self.reply_integer(decision.remaining);
        self.reply_long(decision.retry_after.map_or(-1, |ms| ms as c_longlong));
        self.reply_integer(decision.reset_after);
    }

    fn reply_hold(self, decision: &swlimit_hold::Decision) {
        self.reply_array(6);
        self.reply_integer(decision.granted);
        self.reply_integer(decision.limit);
        self.reply_integer(decision.remaining);
        self.reply_long(decision.retry_after.map_or(-1, |ms| ms as c_longlong));
        self.reply_integer(decision.expires_after);
        self.reply_integer(decision.token);
    }

    fn reply_integer(self, value: u64) {
        self.reply_long(value as c_longlong);
    }

    /// An array: so many replies must follow.
    fn reply_array(self, len: usize) {
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_ReplyWithArray(self.raw(), len as c_long)) };
    }

    /// A map (RESP2: a flat array): so many pairs of replies must follow.
    fn reply_map(self, len: usize) {
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_ReplyWithMap(self.raw(), len as c_long)) };
    }

    fn reply_text(self, text: &[u8]) {
        // SAFETY: a valid context; the server copies the bytes.
        unsafe { api!(RedisModule_ReplyWithStringBuffer(self.raw(), text.as_ptr().cast(), text.len())) };
    }

    fn reply_long(self, value: c_longlong) {
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_ReplyWithLongLong(self.raw(), value)) };
    }
}

/// A text for the server, which ends texts with a NUL: without any that it has itself.
pub(super) fn c_string(text: String) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).expect("no NUL is left")
}
