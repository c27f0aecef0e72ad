//! Key events: a command collects its own, and the handler raises them once the command has closed its keys. A subscriber
//! may remove any key, so no value may be in use then.

use std::cell::Cell;
use std::ffi::{c_char, c_int, CStr};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use redis_module::raw;

use super::context::Context;
use super::text::Text;
use super::OK;

/// The events of one command, in the order of its changes.
#[derive(Default)]
pub(super) struct Events {
    /// Most commands have one, which takes no allocation.
    first: Cell<Option<Event>>,
    later: Cell<Option<Box<Later>>>,
}

#[derive(Default)]
struct Later {
    events: Vec<Event>,
    /// Keys that are gone.
    deletions: Vec<Event>,
}

/// An event about some keys.
#[derive(Clone, Copy)]
struct Event {
    name: NonNull<c_char>,
    first: *const Text,
    keys: usize,
}

impl Events {
    /// Add an event.
    ///
    /// # Safety
    /// The keys' names are alive when the events are raised.
    #[inline(always)]
    pub(super) unsafe fn add(&self, name: &'static CStr, keys: &[Text]) {
        let event = Event::new(name, keys);
        match self.first.get() {
            None => self.first.set(Some(event)),
            Some(_) => self.add_later(|later| later.events.push(event)),
        }
    }

    /// Add the server's own event `del`, which comes after all others.
    ///
    /// # Safety
    /// The key's name is alive when the events are raised.
    pub(super) unsafe fn add_deletion(&self, key: &Text) {
        self.add_later(|later| later.deletions.push(Event::new(DELETED, slice::from_ref(key))));
    }

    #[cold]
    fn add_later(&self, add: impl FnOnce(&mut Later)) {
        let mut later = self.later.take().unwrap_or_default();
        add(&mut later);
        self.later.set(Some(later));
    }

    /// Raise the events. No key of the command is open.
    #[inline(always)]
    pub(super) fn raise(&self, context: Context) {
        if let Some(event) = self.first.get() {
            event.raise(context, raw::REDISMODULE_NOTIFY_MODULE);
        }
        if let Some(later) = self.later.take() {
            raise_later(context, *later);
        }
    }
}

#[cold]
fn raise_later(context: Context, Later { events, deletions }: Later) {
    events.into_iter().for_each(|event| event.raise(context, raw::REDISMODULE_NOTIFY_MODULE));
    deletions.into_iter().for_each(|event| event.raise(context, raw::REDISMODULE_NOTIFY_GENERIC));
}

impl Event {
    #[inline(always)]
    fn new(name: &'static CStr, keys: &[Text]) -> Self {
        Self { name: NonNull::from(name).cast(), first: keys.as_ptr(), keys: keys.len() }
    }

    #[inline(always)]
    fn raise(self, context: Context, class: c_int) {
        // SAFETY: a valid context, and the name of an event. Whoever added the event has promised that its keys are alive.
        unsafe {
            for place in 0..self.keys {
                let key = (*self.first.add(place)).raw();
                api!(RedisModule_NotifyKeyspaceEvent(context.raw(), class, self.name.as_ptr(), key));
            }
        }
    }
}

/// The server's own event of a key that is deleted.
const DELETED: &CStr = c"del";

impl Context {
    /// Raise a key event of the module class now. No key is open.
    pub fn raise(self, name: &'static CStr, key: &Text) {
        Event::new(name, slice::from_ref(key)).raise(self, raw::REDISMODULE_NOTIFY_MODULE);
    }
}

/// How often the server has raised `expired`, which it does while a key is opened.
static EXPIRED: AtomicU64 = AtomicU64::new(0);

/// How often the server has raised `expired`: values found before may be gone when this has changed.
#[inline(always)]
pub(super) fn expired() -> u64 {
    EXPIRED.load(Ordering::Relaxed)
}

/// Hear of expired keys; whether the server agrees.
///
/// # Safety
/// `ctx` is the context of the module's loading.
pub(super) unsafe fn subscribe(ctx: *mut raw::RedisModuleCtx) -> bool {
    let class = raw::REDISMODULE_NOTIFY_EXPIRED as c_int;
    // SAFETY: the caller's promise, and a callback of the right type.
    unsafe { api!(RedisModule_SubscribeToKeyspaceEvents(ctx, class, Some(on_expired))) == OK }
}

unsafe extern "C" fn on_expired(
    _ctx: *mut raw::RedisModuleCtx,
    _class: c_int,
    _event: *const c_char,
    _key: *mut raw::RedisModuleString,
) -> c_int {
    EXPIRED.fetch_add(1, Ordering::Relaxed);
    OK
}
