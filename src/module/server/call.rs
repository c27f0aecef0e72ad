//! One call of a command: its arguments and its time.

use std::ffi::c_int;
use std::ops::Deref;

use redis_module::raw;
use swlimit_window::MAX_SUBINTERVALS;

use super::caller::Caller;
use super::context::Context;
use super::key::{AnyKey, Key, Mode, Moment};
use super::text::Text;
use super::types::Value;
use crate::arguments::Parse;
use crate::configuration::MAX_SUBINTERVALS as SETTING;
use crate::error::Error;

/// One call of a command.
pub struct Call<'a> {
    context: Context,
    arguments: &'a [Text],
}

impl Deref for Call<'_> {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

impl<'a> Call<'a> {
    /// Wraps what the server passes to a command's handler.
    ///
    /// # Safety
    /// The pointers are those that the server has passed to a command's handler, and that handler outlives `'a`.
    pub(super) unsafe fn new(
        ctx: *mut raw::RedisModuleCtx,
        argv: *mut *mut raw::RedisModuleString,
        argc: c_int,
    ) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self { context: Context::new(ctx), arguments: Text::borrow_all(argv, argc as usize) } }
    }

    /// The arguments; the first is the command's name.
    pub fn arguments(&self) -> &'a [Text] {
        self.arguments
    }

    /// `N` arguments from this index on.
    pub fn words<const N: usize>(&self, first: usize) -> Result<&'a [Text; N], Error> {
        self.arguments.get(first..).and_then(<[Text]>::first_chunk).ok_or(Error::Arity)
    }

    /// Parse the arguments after the command's name. Clients may use up to `swlimit.max-subintervals`; replicated, loaded or
    /// migrated commands may use more, because they were accepted once.
    #[inline(always)]
    pub fn parse<T: Parse>(&self) -> Result<T, Error> {
        let parse = |max| T::parse(self.arguments[1..].iter().map(Text::bytes), max);
        match parse(SETTING.get()) {
            Err(Error::TooManySubintervals { .. }) if self.must_obey() => parse(MAX_SUBINTERVALS),
            parsed => parsed,
        }
    }

    /// The call's time: `at` if given, else the server's clock.
    pub fn moment(&self, at: Option<u64>) -> Moment {
        at.map_or_else(|| Moment::Clock(self.clock()), Moment::At)
    }

    /// The caller.
    pub fn caller(&self) -> Caller<'a> {
        self.context.caller(self.arguments)
    }

    /// Open a key for reading; WRONGTYPE if it holds another type.
    #[inline(always)]
    pub fn read<'c, V: Value>(&'c self, name: &'c Text) -> Result<Key<'c, V>, Error> {
        Key::open(self.context, name, Mode::Read)
    }

    /// Open a key for writing; WRONGTYPE if it holds another type. Nothing is signalled unless it is changed.
    #[inline(always)]
    pub fn write<'c, V: Value>(&'c self, name: &'c Text) -> Result<Key<'c, V>, Error> {
        Key::open(self.context, name, Mode::Write)
    }

    /// Open a key for reading, whichever of the module's types it holds; `None` if it does not exist.
    pub fn read_any<'c>(&'c self, name: &'c Text) -> Result<Option<AnyKey<'c>>, Error> {
        AnyKey::open(self.context, name, Mode::Read)
    }

    /// Open a key for writing, whichever of the module's types it holds; `None` if it does not exist.
    pub fn write_any<'c>(&'c self, name: &'c Text) -> Result<Option<AnyKey<'c>>, Error> {
        AnyKey::open(self.context, name, Mode::Write)
    }
}
