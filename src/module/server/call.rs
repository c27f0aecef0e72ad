//! One call of a command: its arguments, its clock, its reply, and its effects elsewhere.

use std::ffi::{c_int, c_long, c_longlong, CStr, CString};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use redis_module::raw;

use super::command::Parse;
use super::key::{Key, Mode};
use crate::configuration::max_subintervals;
use crate::error::Error;
use swlimit_window::{Decision, Instant, MAX_SUBINTERVALS};

/// One word of a call, owned by the server.
#[repr(transparent)]
pub struct Argument(*mut raw::RedisModuleString);

impl Argument {
    /// The word itself: any bytes.
    pub fn bytes(&self) -> &[u8] {
        let mut len = 0;
        // SAFETY: an `Argument` is only ever borrowed from the arguments of a call, strings that outlive the call, and
        // the server returns the bytes of a string it was given, never null.
        unsafe {
            let bytes = api!(RedisModule_StringPtrLen(self.0, &mut len));
            slice::from_raw_parts(bytes.cast(), len)
        }
    }

    pub(super) fn raw(&self) -> *mut raw::RedisModuleString {
        self.0
    }
}

/// A word that replicated effects repeat, made once.
struct Word(AtomicPtr<raw::RedisModuleString>);

static COST: Word = Word::unmade();
static AT: Word = Word::unmade();

impl Word {
    const fn unmade() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    fn make(&self, word: &CStr) {
        // SAFETY: a string made without a context lives until it is freed, which this one never is.
        let made = unsafe { api!(RedisModule_CreateString(ptr::null_mut(), word.as_ptr(), word.count_bytes())) };
        self.0.store(made, Ordering::Relaxed);
    }

    fn raw(&self) -> *mut raw::RedisModuleString {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number in replicated effects, made when it is another one than the last: costs are mostly 1, and many a command
/// happens within the same millisecond.
struct Number {
    last: AtomicU64,
    word: Word,
}

static UNITS: Number = Number::unmade();
static INSTANT: Number = Number::unmade();

impl Number {
    const fn unmade() -> Self {
        Self { last: AtomicU64::new(0), word: Word::unmade() }
    }

    fn raw(&self, number: u64) -> *mut raw::RedisModuleString {
        let word = self.word.raw();
        if !word.is_null() && self.last.load(Ordering::Relaxed) == number {
            return word;
        }
        // SAFETY: a string made without a context lives until it is freed. Commands run on one thread, and who else
        // needs the string holds a reference.
        let made = unsafe {
            if !word.is_null() {
                api!(RedisModule_FreeString(ptr::null_mut(), word));
            }
            api!(RedisModule_CreateStringFromLongLong(ptr::null_mut(), number as c_longlong))
        };
        self.last.store(number, Ordering::Relaxed);
        self.word.0.store(made, Ordering::Relaxed);
        made
    }
}

/// To be called once, before any command is.
pub(super) fn prepare() {
    COST.make(c"COST");
    AT.make(c"AT");
}

/// One call of a command.
pub struct Call<'a> {
    ctx: *mut raw::RedisModuleCtx,
    arguments: &'a [Argument],
}

impl<'a> Call<'a> {
    /// A call with the server's words for it.
    ///
    /// # Safety
    /// The pointers are those that the server has passed to a command's handler, and that handler outlives `'a`.
    pub(super) unsafe fn new(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        argc: c_int,
    ) -> Self {
        // SAFETY: `argv` points to `argc` strings, and `Argument` is transparent.
        let arguments = unsafe { slice::from_raw_parts(argv.cast::<Argument>(), argc as usize) };
        Self { ctx, arguments }
    }

    pub(super) fn ctx(&self) -> *mut raw::RedisModuleCtx {
        self.ctx
    }

    /// The words, the command's own name being the first.
    pub fn arguments(&self) -> &'a [Argument] {
        self.arguments
    }

    /// What the words after the command's name mean. Up to `swlimit.max-subintervals` are accepted; a primary, an AOF
    /// file or a moving slot is obeyed beyond that, because it was accepted once.
    pub fn parse<T: Parse>(&self) -> Result<T, Error> {
        let parse = |max| T::parse(self.arguments[1..].iter().map(Argument::bytes), max);
        match parse(max_subintervals::get() as u64) {
            Err(Error::TooManySubintervals { .. }) if self.must_obey() => parse(MAX_SUBINTERVALS),
            parsed => parsed,
        }
    }

    fn must_obey(&self) -> bool {
        // SAFETY: the context of this call.
        let flags = unsafe { api!(RedisModule_GetContextFlags(self.ctx)) } as u32;
        flags & (raw::REDISMODULE_CTX_FLAGS_REPLICATED | raw::REDISMODULE_CTX_FLAGS_LOADING) != 0
    }

    /// When the call happens: `at` if the client says so, else the server's clock, frozen inside of transactions and
    /// scripts where the server offers that.
    pub fn instant(&self, at: Option<u64>) -> Instant {
        if let Some(at) = at {
            return Instant::At(at);
        }
        // SAFETY: neither function needs anything; the first one is new in 7.2.
        let ms = unsafe {
            match raw::RedisModule_CachedMicroseconds {
                Some(cached_microseconds) => cached_microseconds() / 1000,
                None => api!(RedisModule_Milliseconds()),
            }
        };
        Instant::Clock(ms as u64)
    }

    /// Open a key to look at it; an error if it holds something else than a window.
    pub fn read<'c>(&'c self, name: &'c Argument) -> Result<Key<'c>, Error> {
        Key::open(self, name, Mode::Read)
    }

    /// Open a key to change it; an error if it holds something else than a window. Nothing is signalled unless it is
    /// changed.
    pub fn write<'c>(&'c self, name: &'c Argument) -> Result<Key<'c>, Error> {
        Key::open(self, name, Mode::Write)
    }

    /// Replicate counted units as the effect they are: `SWLIMIT.RECORD key limit window resolution COST n AT ms`.
    /// `quota` are the client's own words for limit, window and resolution.
    #[inline(always)]
    pub fn replicate_record(&self, key: &Argument, quota: &[Argument], units: u64, instant: u64) {
        let [limit, window, resolution] = quota else { return };
        // SAFETY: eight strings for the eight places in the format. Spelled out, because the server makes room for them
        // at once, which it does not for a vector.
        unsafe {
            api!(RedisModule_Replicate(
                self.ctx,
                c"SWLIMIT.RECORD".as_ptr(),
                c"ssssssss".as_ptr(),
                key.0,
                limit.0,
                window.0,
                resolution.0,
                COST.raw(),
                UNITS.raw(units),
                AT.raw(),
                INSTANT.raw(instant),
            ));
        }
    }

    /// Replicate units given back: `SWLIMIT.REFUND key n AT ms`.
    pub fn replicate_refund(&self, key: &Argument, units: u64, instant: u64) {
        // SAFETY: four strings for the four places in the format.
        unsafe {
            api!(RedisModule_Replicate(
                self.ctx,
                c"SWLIMIT.REFUND".as_ptr(),
                c"ssss".as_ptr(),
                key.0,
                UNITS.raw(units),
                AT.raw(),
                INSTANT.raw(instant),
            ));
        }
    }

    /// Tell subscribers of the module's key events.
    pub fn notify(&self, event: &CStr, key: &Argument) {
        self.notify_as(raw::REDISMODULE_NOTIFY_MODULE, event, key);
    }

    pub(super) fn notify_as(&self, class: c_int, event: &CStr, key: &Argument) {
        // SAFETY: the context and a string of this call.
        unsafe { api!(RedisModule_NotifyKeyspaceEvent(self.ctx, class, event.as_ptr(), key.0)) };
    }

    /// Reply with the five integers.
    #[inline(always)]
    pub fn reply_decision(&self, decision: &Decision) {
        self.reply_array(5);
        self.reply_integer(decision.granted);
        self.reply_integer(decision.limit);
        self.reply_integer(decision.remaining);
        self.reply_long(decision.retry_after.map_or(-1, |ms| ms as c_longlong));
        self.reply_integer(decision.reset_after);
    }

    /// Reply with an integer of at most 2^63 − 1.
    pub fn reply_integer(&self, value: u64) {
        self.reply_long(value as c_longlong);
    }

    /// Reply with an array: so many replies must follow.
    pub fn reply_array(&self, len: usize) {
        // SAFETY: the context of this call.
        unsafe { api!(RedisModule_ReplyWithArray(self.ctx, len as c_long)) };
    }

    /// Reply with a map (RESP2: a flat array): so many pairs of replies must follow.
    pub fn reply_map(&self, len: usize) {
        // SAFETY: the context of this call.
        unsafe { api!(RedisModule_ReplyWithMap(self.ctx, len as c_long)) };
    }

    /// Reply with a field's name.
    pub fn reply_name(&self, name: &str) {
        // SAFETY: the context of this call; the server copies the bytes.
        unsafe { api!(RedisModule_ReplyWithStringBuffer(self.ctx, name.as_ptr().cast(), name.len())) };
    }

    fn reply_long(&self, value: c_longlong) {
        // SAFETY: the context of this call.
        unsafe { api!(RedisModule_ReplyWithLongLong(self.ctx, value)) };
    }

    pub(super) fn reply_error(&self, error: &Error) {
        // SAFETY: the context of this call; the server copies the text, which is a C string.
        unsafe {
            match error {
                Error::Arity => api!(RedisModule_WrongArity(self.ctx)),
                error => {
                    // No error's text has a NUL: words of clients are escaped.
                    let text = CString::new(error.to_string()).unwrap_or_default();
                    api!(RedisModule_ReplyWithError(self.ctx, text.as_ptr()))
                }
            };
        }
    }
}
