//! An open key, and the one place that changes one: its value, its expiry, and its signals.

use std::ffi::{c_int, c_longlong, c_void};
use std::marker::PhantomData;
use std::ptr;

use redis_module::raw;
use swlimit_budget::Budget;
use swlimit_effect::Expiry;
use swlimit_hold::Holds;
use swlimit_window::Entry;

use super::context::Context;
use super::events::{self, Events};
use super::text::Text;
use super::types::{self, Value};
use super::{changes, OK};
use crate::error::Error;
use crate::statistics;

/// How a key is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Read,
    Write,
}

/// The time of a command.
#[derive(Clone, Copy)]
pub enum Moment {
    /// By the server's clock, in ms.
    Clock(u64),
    /// Given by the caller (`AT`), in ms.
    At(u64),
}

impl Moment {
    /// Unix time in ms.
    pub fn now(self) -> u64 {
        match self {
            Moment::Clock(ms) | Moment::At(ms) => ms,
        }
    }

    /// The same moment by the server's clock, in ms.
    pub(super) fn clock(self, context: Context) -> u64 {
        match self {
            Moment::Clock(ms) => ms,
            Moment::At(_) => context.clock(),
        }
    }

    /// `end` shifted to the server's clock: as far ahead of the clock as `end` is of this moment. So a replayed log keeps its
    /// keys for as long as they would have lived.
    fn by_clock(self, end: u64, context: Context) -> u64 {
        match self {
            Moment::Clock(_) => end,
            Moment::At(now) => (context.clock() + end).saturating_sub(now),
        }
    }
}

/// A key that holds a value of one type or nothing, open until dropped.
pub struct Key<'a, V = Entry> {
    handle: Handle<'a>,
    own: PhantomData<&'a mut V>,
}

/// A key, whatever it holds, open until dropped.
struct Handle<'a> {
    context: Context,
    name: &'a Text,
    raw: *mut raw::RedisModuleKey,
    /// The module's value, which the key owns: null if there is none.
    value: *mut c_void,
    /// Where its deletion is announced, if it is open for writing.
    events: Option<&'a Events>,
    /// How often `expired` had been raised when it was opened.
    expired: u64,
}

/// A key that holds a value of any of the module's types.
pub enum AnyKey<'a> {
    /// Counts, a block, or both.
    Window(Key<'a, Entry>),
    /// Holds.
    Holds(Key<'a, Holds>),
    /// A budget.
    Budget(Key<'a, Budget>),
}

impl Drop for Handle<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.expired != events::expired() && !may_be_closed(self.context, self.name, self.raw, self.value) {
            return;
        }
        // SAFETY: opened in `open` and closed only here. The server accepts null, the handle of a missing key.
        unsafe { api!(RedisModule_CloseKey(self.raw)) }
    }
}

impl<'a> Handle<'a> {
    /// # Safety
    /// The name is alive when the events are raised.
    #[inline(always)]
    unsafe fn open(context: Context, name: &'a Text, mode: Mode, events: Option<&'a Events>) -> Result<Self, Error> {
        let flags = match mode {
            Mode::Read => raw::REDISMODULE_READ,
            Mode::Write => raw::REDISMODULE_READ | raw::REDISMODULE_WRITE,
        };
        // SAFETY: a valid context and a string that is alive.
        let raw = unsafe { api!(RedisModule_OpenKey(context.raw(), name.raw(), flags as c_int)) };
        // Null is a missing key where it is only read. For writing there is a handle for that, too: null is a refusal.
        match mode == Mode::Write && raw.is_null() {
            true => Err(Error::NotOpened),
            false => Ok(Self { context, name, raw, value: ptr::null_mut(), events, expired: events::expired() }),
        }
    }

    /// Whether the key holds a value of this type.
    #[inline(always)]
    fn holds<V: Value>(&self) -> bool {
        // SAFETY: a handle just opened, or null, which the server accepts.
        unsafe { api!(RedisModule_ModuleTypeGetType(self.raw)) == V::value_type().raw() }
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        // SAFETY: a handle just opened, or null, which the server accepts.
        unsafe { api!(RedisModule_KeyType(self.raw)) == EMPTY }
    }

    /// The key of a value that it holds.
    ///
    /// # Safety
    /// The key holds a value of this type.
    #[inline(always)]
    unsafe fn with<V: Value>(mut self) -> Key<'a, V> {
        // SAFETY: the caller's promise: what a key of this type holds is a value of this type.
        self.value = unsafe { api!(RedisModule_ModuleTypeGetValue(self.raw)) };
        Key { handle: self, own: PhantomData }
    }
}

/// Whether the server can close a handle, although `expired` was raised since it was opened: closing looks at the
/// value, which a subscriber may have removed. The handle of a name that is missing now is made to forget its value; one
/// of a name that a subscriber has given another value cannot be, and stays for ever.
#[cold]
fn may_be_closed(context: Context, name: &Text, handle: *mut raw::RedisModuleKey, value: *mut c_void) -> bool {
    if value.is_null() {
        return true;
    }
    // SAFETY: a valid context, a string that is alive, and handles that are open; this one's value is not looked into.
    // Where one is deleted, its name is missing.
    unsafe {
        let flags = (raw::REDISMODULE_READ | raw::REDISMODULE_WRITE) as c_int;
        let now = api!(RedisModule_OpenKey(context.raw(), name.raw(), flags));
        if now.is_null() {
            return false;
        }
        let is_empty = api!(RedisModule_KeyType(now)) == EMPTY;
        let is_same = api!(RedisModule_ModuleTypeGetValue(now)) == value;
        api!(RedisModule_CloseKey(now));
        if is_empty {
            api!(RedisModule_DeleteKey(handle));
        }
        is_empty || is_same
    }
}

impl<'a> AnyKey<'a> {
    /// Open a key; `None` if it does not exist, and an error if it holds something else.
    ///
    /// # Safety
    /// The name is alive when the events are raised.
    pub(super) unsafe fn open(
        context: Context,
        name: &'a Text,
        mode: Mode,
        events: Option<&'a Events>,
    ) -> Result<Option<Self>, Error> {
        // SAFETY: the caller's promise, and of the type that was found.
        unsafe {
            let handle = Handle::open(context, name, mode, events)?;
            if handle.is_empty() {
                Ok(None)
            } else if handle.holds::<Entry>() {
                Ok(Some(AnyKey::Window(handle.with())))
            } else if handle.holds::<Holds>() {
                Ok(Some(AnyKey::Holds(handle.with())))
            } else if handle.holds::<Budget>() {
                Ok(Some(AnyKey::Budget(handle.with())))
            } else {
                Err(Error::WrongType)
            }
        }
    }
}

impl<'a, V: Value> Key<'a, V> {
    /// Open a key; an error if it holds something else.
    ///
    /// # Safety
    /// The name is alive when the events are raised.
    #[inline(always)]
    pub(super) unsafe fn open(
        context: Context,
        name: &'a Text,
        mode: Mode,
        events: Option<&'a Events>,
    ) -> Result<Self, Error> {
        // SAFETY: the caller's promise.
        let handle = unsafe { Handle::open(context, name, mode, events)? };
        if handle.holds::<V>() {
            // SAFETY: of the type that was found.
            Ok(unsafe { handle.with() })
        } else if handle.is_empty() {
            Ok(Self { handle, own: PhantomData })
        } else {
            Err(Error::WrongType)
        }
    }

    /// The value stored here, if any.
    #[inline(always)]
    pub fn entry(&self) -> Option<&V> {
        // SAFETY: the key owns it, and this borrows the key: whatever changes or frees it here borrows the key exclusively.
        // Nobody else can: events are raised when keys are closed, except `expired`, for which see `Call::open`.
        unsafe { self.handle.value.cast::<V>().as_ref() }
    }

    /// When to check a request again that is denied for `retry_after` ms from `now` on, in ms by the server's clock: when it
    /// fits, or when the key expires before that, because another command has shortened its expiry.
    pub fn next_check(&self, now: u64, retry_after: Option<u64>) -> u64 {
        let fits = retry_after.map_or(u64::MAX, |ms| now + ms.max(1));
        match self.expiry() {
            // The server keeps expired keys while it imports data, for one.
            Some(expiry) if expiry < now => fits.min(now + EXPIRED_RETRY),
            Some(expiry) => fits.min(expiry + 1),
            None => fits,
        }
    }

    /// When the key expires, in ms by the server's clock; `None` for never, and for a missing key.
    fn expiry(&self) -> Option<u64> {
        // A missing key that is open for writing has a handle, too, and Redis 8.6 crashes when it is asked about that.
        if self.handle.value.is_null() {
            return None;
        }
        // SAFETY: an open key that holds a value.
        let expiry = unsafe { api!(RedisModule_GetAbsExpire(self.handle.raw)) };
        u64::try_from(expiry).ok()
    }

    /// Change the value stored here, or one made for the purpose, with [`Change::done`] to end it.
    ///
    /// Opened for writing, and found to hold a value of this type or nothing.
    #[inline(always)]
    pub fn change(&mut self) -> Result<Change<'_, 'a, V>, Error> {
        if self.handle.value.is_null() {
            self.handle.value = create::<V>(self.handle.raw)?;
        }
        // SAFETY: not null; see `entry`, this borrows the key exclusively.
        let entry = unsafe { &*self.handle.value.cast::<V>() };
        let (bytes, end) = (entry.bytes(), entry.end());
        Ok(Change { key: self, bytes, end, least: 0 })
    }

    #[inline(always)]
    fn delete(&mut self) {
        delete(self.handle.raw);
        self.handle.value = ptr::null_mut();
        if let Some(events) = self.handle.events {
            // SAFETY: the code that opened the key has promised that the name is alive when the events are raised.
            unsafe { events.add_deletion(self.handle.name) };
        }
    }

    #[inline(always)]
    fn expire_at(&self, until: u64) {
        let until = if until == 0 { NO_EXPIRY } else { until as c_longlong };
        // SAFETY: the key is open for writing.
        unsafe { api!(RedisModule_SetAbsExpire(self.handle.raw, until)) };
    }
}

/// Create the value of a missing key that is open for writing; a pointer to it.
#[cold]
fn create<V: Value>(handle: *mut raw::RedisModuleKey) -> Result<*mut c_void, Error> {
    let value = types::into_raw(V::default());
    // SAFETY: the key is open for writing and the value one of the type's; the key owns it from here on, unless the
    // server refuses, which it does only for keys not open for writing.
    unsafe {
        if api!(RedisModule_ModuleTypeSetValue(handle, V::value_type().raw(), value)) != OK {
            types::free::<V>(value);
            return Err(Error::NotCreated);
        }
    }
    Ok(value)
}

/// Delete a key that is open for writing.
#[cold]
fn delete(handle: *mut raw::RedisModuleKey) {
    // SAFETY: the key is open for writing; nobody borrows the value any more.
    unsafe { api!(RedisModule_DeleteKey(handle)) };
}

/// A change of a value in progress.
#[must_use = "`done` sets the expiry and signals the key"]
pub struct Change<'k, 'a, V = Entry> {
    key: &'k mut Key<'a, V>,
    bytes: usize,
    /// The value's end before; 0 where the expiry is set whatever it was.
    end: u64,
    /// What the change has put there ends then: the key does not expire before that.
    least: u64,
}

impl Change<'_, '_> {
    /// Block until an instant, in ms, or lift the block. The key gets a new expiry even if the value's end stays: the counts
    /// may be from another moment, which `AT` has said.
    pub fn block(&mut self, until: Option<u64>) {
        match until {
            Some(until) => self.entry().block(until),
            None => self.entry().unblock(),
        }
        self.end = 0;
    }
}

impl<V: Value> Change<'_, '_, V> {
    /// The value to change.
    #[inline(always)]
    pub fn entry(&mut self) -> &mut V {
        // SAFETY: not null, as `Key::change` saw to, and the key is borrowed exclusively.
        unsafe { &mut *self.key.handle.value.cast() }
    }

    /// What the change puts there ends then, in ms, seen from its moment (the moment itself if it puts nothing there). The key
    /// does not expire before that, nor before the end of what was put there at another moment, which `AT` may have said.
    pub fn lasts_until(&mut self, end: u64) {
        self.least = end;
    }

    /// End the change: delete the key if nothing in it matters any more, seen from this moment, else set its expiry; then
    /// signal it to WATCH, client tracking and waiting clients. Returns what the effect says of the expiry.
    #[inline(always)]
    pub fn done(mut self, moment: Moment) -> Expiry {
        let end = self.entry().end();
        let until = if end <= moment.now() { None } else { self.new_expiry(end, moment) };
        self.finish(end, moment.now(), until);
        match until {
            None => Expiry::Kept,
            Some(until) if until == end => Expiry::OwnEnd,
            Some(until) => Expiry::At(until),
        }
    }

    /// End a change that was made elsewhere at this instant, with the expiry that its effect says.
    #[inline(always)]
    pub fn done_as(mut self, expiry: Expiry, instant: u64) {
        let end = self.entry().end();
        let until = match expiry {
            Expiry::Kept => (self.end == 0).then_some(end),
            Expiry::OwnEnd => Some(end),
            Expiry::At(until) => Some(until),
        };
        self.finish(end, instant, until);
    }

    #[inline(always)]
    fn finish(mut self, end: u64, now: u64, until: Option<u64>) {
        statistics::value_resized(self.bytes, self.entry().bytes());
        let Self { key, .. } = self;
        let is_deleted = end <= now;
        if is_deleted {
            key.delete();
        }
        // SAFETY: a valid context and a string that is alive.
        unsafe { api!(RedisModule_SignalModifiedKey(key.handle.context.raw(), key.handle.name.raw())) };
        // Afterwards: Redis 8.6 looks the key up for a signal, and replicates the deletion of one whose expiry has passed
        // before the effect of the command, which makes the replica keep the key.
        if let Some(until) = until.filter(|_| !is_deleted) {
            key.expire_at(until);
        }
        changes::key_changed(|| key.handle.context.database(), key.handle.name);
    }

    /// The key's new expiry, in ms by the server's clock, if it changes.
    #[inline(always)]
    fn new_expiry(&self, end: u64, moment: Moment) -> Option<u64> {
        let Self { key, .. } = self;
        let by_clock = |end: u64| moment.by_clock(end, key.handle.context);
        if self.least == 0 {
            return (end != self.end).then(|| by_clock(end));
        }
        let until = by_clock(if end != self.end { end } else { self.least });
        if end != self.end {
            // An AT ahead of the clock: what was there before may end later than it says.
            let before = if until < end { key.expiry() } else { None };
            Some(until.max(before.map_or(0, |before| before.min(end))))
        } else if self.least > moment.now() {
            key.expiry().filter(|before| *before < until).map(|_| until)
        } else {
            None
        }
    }
}

impl Context {
    /// Open a key for reading; WRONGTYPE if it holds another type.
    #[inline(always)]
    pub fn read<V: Value>(self, name: &Text) -> Result<Key<'_, V>, Error> {
        // SAFETY: what is only read raises no event at the end.
        unsafe { Key::open(self, name, Mode::Read, None) }
    }
}

/// How often to check an expired key that the server keeps, in ms.
const EXPIRED_RETRY: u64 = 20;
const EMPTY: c_int = raw::REDISMODULE_KEYTYPE_EMPTY as c_int;
/// The server's value for a key without expiry.
const NO_EXPIRY: c_longlong = raw::REDISMODULE_NO_EXPIRE as c_longlong;

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn refuse(
        _context: *mut raw::RedisModuleCtx,
        _name: *mut raw::RedisModuleString,
        _flags: c_int,
    ) -> *mut raw::RedisModuleKey {
        ptr::null_mut()
    }

    unsafe extern "C" fn close(_key: *mut raw::RedisModuleKey) {}

    // A server that saves without fork refuses to open for writing a key that is there.
    #[test]
    fn a_refused_open_is_no_missing_key() {
        // SAFETY: no other test of this crate calls a function of a server.
        unsafe {
            raw::RedisModule_OpenKey = Some(refuse);
            raw::RedisModule_CloseKey = Some(close);
        }
        // SAFETY: the functions above look at neither.
        let (context, name) = unsafe { (Context::new(ptr::null_mut()), Text::borrow(&ptr::null_mut())) };
        // SAFETY: there are no events.
        let open = |mode| unsafe { Handle::open(context, name, mode, None) }.map(|_| ());
        assert_eq!(open(Mode::Write).unwrap_err().to_string(), "TRYAGAIN the server refuses to open the key now");
        assert!(open(Mode::Read).is_ok());
    }
}
