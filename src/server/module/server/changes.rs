//! Calls a listener for changed keys: keys whose value the module changed or that lost it, and whole databases.

use std::ffi::{c_char, c_int, CStr};
use std::sync::OnceLock;

use redis_module::raw;

use super::context::Context;
use super::text::Text;
use super::OK;
use crate::statistics;

/// Gets the changed keys while any client waits.
pub struct Listener {
    /// A key of a database was changed or removed. It may be open, and the command or transaction has not ended.
    pub key_changed: fn(c_int, &[u8]),
    /// All keys of one database, or of all, may have changed.
    pub all_changed: fn(Option<c_int>),
}

static LISTENER: OnceLock<Listener> = OnceLock::new();

/// Call the listener for a key that was changed or removed.
#[inline(always)]
pub(super) fn key_changed(database: impl FnOnce() -> c_int, name: &Text) {
    if statistics::WAITING.get() > 0 {
        tell(database(), name);
    }
}

#[cold]
fn tell(database: c_int, name: &Text) {
    if let Some(listener) = LISTENER.get() {
        (listener.key_changed)(database, name.bytes());
    }
}

/// Register the listener.
pub(super) fn listen(listener: Listener) {
    let _ = LISTENER.set(listener);
}

/// All keys of one database, or of all, may have changed.
pub(super) fn all_changed(database: Option<c_int>) {
    if let Some(listener) = LISTENER.get().filter(|_| statistics::WAITING.get() > 0) {
        (listener.all_changed)(database);
    }
}

/// Get changes of keys' expiries, too. The server then calls this module for every DEL, RENAME and the like, so it is
/// done only when a client waits for the first time.
pub(super) fn listen_to_expiries(context: Context) {
    let class = raw::REDISMODULE_NOTIFY_GENERIC as c_int;
    // SAFETY: a valid context, and a callback of the right type.
    unsafe { api!(RedisModule_SubscribeToKeyspaceEvents(context.raw(), class, Some(on_key_event))) };
}

unsafe extern "C" fn on_key_event(
    ctx: *mut raw::RedisModuleCtx,
    _class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the event's name, and the context and key of this callback.
    unsafe {
        if CStr::from_ptr(event) == c"expire" {
            key_changed(|| Context::new(ctx).database(), Text::borrow(&key));
        }
    }
    OK
}
