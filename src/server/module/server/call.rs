//! One call of a command: its arguments, its time, its keys, and what its changes send.

use std::cell::Cell;
use std::ffi::{c_int, CStr};
use std::marker::PhantomData;
use std::ops::Deref;
use std::slice;

use redis_module::raw;
use swlimit_effect::{Effect, Expiry};
use swlimit_window::MAX_SUBINTERVALS;

use super::caller::Caller;
use super::context::Context;
use super::effect::{self, Effects};
use super::events::{self, Events};
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
    events: Events,
    /// No shorter lifetime will do: events are about names that live as long as the arguments.
    lifetime: PhantomData<Cell<&'a ()>>,
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
        let (context, arguments) = unsafe { (Context::new(ctx), Text::borrow_all(argv, argc as usize)) };
        Self { context, arguments, events: Events::default(), lifetime: PhantomData }
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
        let arguments = &self.arguments[1..];
        let parse = |max| T::parse(arguments.iter().map(Text::bytes), max);
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
    pub fn read<'c, V: Value>(&'c self, name: &'a Text) -> Result<Key<'c, V>, Error> {
        self.context.read(name)
    }

    /// Open a key for writing; WRONGTYPE if it holds another type. Nothing is signalled unless it is changed.
    #[inline(always)]
    pub fn write<'c, V: Value>(&'c self, name: &'a Text) -> Result<Key<'c, V>, Error> {
        // SAFETY: the name lives as long as the arguments, with which the events end.
        self.open(|| unsafe { Key::open(self.context, name, Mode::Write, Some(&self.events)) })
    }

    /// Open a key for reading, whichever of the module's types it holds; `None` if it does not exist.
    pub fn read_any<'c>(&'c self, name: &'a Text) -> Result<Option<AnyKey<'c>>, Error> {
        // SAFETY: as in `write`.
        unsafe { AnyKey::open(self.context, name, Mode::Read, None) }
    }

    /// Open a key for writing, whichever of the module's types it holds; `None` if it does not exist.
    pub fn write_any<'c>(&'c self, name: &'a Text) -> Result<Option<AnyKey<'c>>, Error> {
        // SAFETY: as in `write`.
        self.open(|| unsafe { AnyKey::open(self.context, name, Mode::Write, Some(&self.events)) })
    }

    /// Open keys, one or several, with nothing between. Opening one may raise `expired`, and a subscriber may then put another
    /// value there, or remove keys that are open already: if it was raised, all are closed and opened once more. The
    /// clock stands still within a command, so none expires again, unless a subscriber puts an expired one there.
    #[inline(always)]
    pub fn open<T>(&self, open: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        let before = events::expired();
        let opened = open();
        if events::expired() == before {
            return opened;
        }
        drop(opened);
        Self::open_again(open)
    }

    #[cold]
    fn open_again<T>(open: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        let before = events::expired();
        let opened = open();
        match events::expired() == before {
            true => opened,
            false => Err(Error::NotOpened),
        }
    }

    /// Replicate an effect on a key, also into the append-only file.
    #[inline(always)]
    pub fn replicate(&self, key: &Text, effect: Effect, expiry: Expiry) {
        effect::replicate(self.context, key, effect, expiry);
    }

    /// Replicate the effects of one decision.
    pub fn replicate_all(&self, effects: Effects) {
        effects.replicate(self.context);
    }

    /// Replicate the call as it is.
    #[inline(always)]
    pub fn replicate_verbatim(&self) {
        effect::verbatim(self.context);
    }

    /// Raise a key event of the module class when the command has closed its keys.
    #[inline(always)]
    pub fn notify(&self, event: &'static CStr, key: &'a Text) {
        self.notify_all(event, slice::from_ref(key));
    }

    /// Raise a key event for each of some keys when the command has closed them.
    #[inline(always)]
    pub fn notify_all(&self, event: &'static CStr, keys: &'a [Text]) {
        // SAFETY: the names live as long as the arguments, with which the events end.
        unsafe { self.events.add(event, keys) };
    }

    /// Raise the events of the command, which has closed its keys, before its reply.
    #[inline(always)]
    pub(super) fn end(self) -> Context {
        self.events.raise(self.context);
        self.context
    }
}
