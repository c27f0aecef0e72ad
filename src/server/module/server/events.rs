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
            Some(_) => self.later.set(Some(with_event(self.later.take(), event))),
        }
    }

    /// Add the server's own event `del`, which comes after all others.
    ///
    /// # Safety
    /// The key's name is alive when the events are raised.
    #[inline(always)]
    pub(super) unsafe fn add_deletion(&self, key: &Text) {
        let deletion = Event::new(DELETED, slice::from_ref(key));
        self.later.set(Some(with_deletion(self.later.take(), deletion)));
    }

    /// Raise the events. No key of the command is open.
    #[inline(always)]
    pub(super) fn raise(self, context: Context) {
        if let Some(event) = self.first.into_inner() {
            event.raise(context, raw::REDISMODULE_NOTIFY_MODULE);
        }
        if let Some(later) = self.later.into_inner() {
            raise_later(context, later);
        }
    }
}

// By value: a reference would keep the whole call in memory, on the way of every decision.
#[cold]
fn with_event(later: Option<Box<Later>>, event: Event) -> Box<Later> {
    let mut later = later.unwrap_or_default();
    later.events.push(event);
    later
}

#[cold]
fn with_deletion(later: Option<Box<Later>>, deletion: Event) -> Box<Later> {
    let mut later = later.unwrap_or_default();
    later.deletions.push(deletion);
    later
}

#[cold]
#[expect(clippy::boxed_local, reason = "a box is a pointer on the way here")]
fn raise_later(context: Context, later: Box<Later>) {
    let Later { events, deletions } = *later;
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
        if self.keys == 1 {
            self.raise_for(0, context, class);
        } else {
            self.raise_for_all(context, class);
        }
    }

    #[cold]
    fn raise_for_all(self, context: Context, class: c_int) {
        (0..self.keys).for_each(|place| self.raise_for(place, context, class));
    }

    #[inline(always)]
    fn raise_for(self, place: usize, context: Context, class: c_int) {
        // SAFETY: a valid context, and the name of an event. Who added the event has promised that its keys are alive,
        // and there are more of them than this place says.
        unsafe {
            let key = (*self.first.add(place)).raw();
            api!(RedisModule_NotifyKeyspaceEvent(context.raw(), class, self.name.as_ptr(), key));
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

/// Get expired keys; whether the server agrees.
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
