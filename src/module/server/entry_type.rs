//! The data type `sw-window`: what the server asks of a value that it stores.

use std::ffi::{c_int, c_void, CStr};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;

use crate::statistics;
use swlimit_window::{decode, encode, Blocked, Count, Entry, MAX_EXACT, VERSION};

use super::blocked_clients;
use super::effect::{milliseconds, Effect};
use super::reply::c_string;
use super::text::{OwnText, Text};

/// The type, once the server knows it.
pub struct EntryType(AtomicPtr<raw::RedisModuleType>);

/// `sw-window`.
pub static ENTRY_TYPE: EntryType = EntryType(AtomicPtr::new(ptr::null_mut()));

const NAME: &CStr = c"sw-window";

impl EntryType {
    pub(super) fn raw(&self) -> *mut raw::RedisModuleType {
        self.0.load(Ordering::Relaxed)
    }

    /// Make the type known to the server; whether it took it.
    ///
    /// # Safety
    /// `ctx` is the context of the module's loading.
    pub(super) unsafe fn register(&self, ctx: *mut raw::RedisModuleCtx) -> bool {
        let mut methods = raw::RedisModuleTypeMethods {
            version: u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION),
            rdb_load: Some(rdb_load),
            rdb_save: Some(rdb_save),
            aof_rewrite: Some(aof_rewrite),
            mem_usage: Some(mem_usage),
            digest: Some(digest),
            free: Some(free),
            free_effort: Some(free_effort),
            copy: Some(copy),
            defrag: Some(defrag),
            unlink: None,
            // Nothing is saved beside keys: a server without the module could not skip that.
            aux_load: None,
            aux_save: None,
            aux_save_triggers: 0,
            mem_usage2: None,
            free_effort2: None,
            unlink2: Some(unlinked),
            copy2: None,
            aux_save2: None,
        };
        // SAFETY: the server copies the methods.
        let made = unsafe { api!(RedisModule_CreateDataType(ctx, NAME.as_ptr(), VERSION, &mut methods)) };
        self.0.store(made, Ordering::Relaxed);
        !made.is_null()
    }
}

/// An entry as the value of a key, which frees it with [`free`].
pub(super) fn into_value(entry: Entry) -> *mut c_void {
    statistics::entry_created(entry.bytes());
    Box::into_raw(Box::new(entry)).cast()
}

/// The entry behind a value.
///
/// # Safety
/// A value of [`into_value`] that has not been freed and that nobody changes meanwhile.
unsafe fn as_entry<'a>(value: *const c_void) -> &'a Entry {
    // SAFETY: the caller's promise.
    unsafe { &*value.cast() }
}

unsafe extern "C" fn rdb_load(io: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void {
    // SAFETY: the server returns a buffer of `len` bytes that is ours to free, or null and an I/O error.
    let decoded = unsafe {
        let mut len = 0;
        let buffer = api!(RedisModule_LoadStringBuffer(io, &mut len));
        if buffer.is_null() || api!(RedisModule_IsIOError(io)) != 0 {
            return ptr::null_mut();
        }
        let decoded = decode(version, slice::from_raw_parts(buffer.cast(), len));
        api!(RedisModule_Free(buffer.cast()));
        decoded
    };
    match decoded {
        Ok(entry) => into_value(entry),
        Err(invalid) => {
            let message = c_string(format!("not a value of sw-window: {}", invalid.0));
            // SAFETY: `io` is what the server reads from; one C string for the one place in the format.
            unsafe { api!(RedisModule_LogIOError(io, c"warning".as_ptr(), c"%s".as_ptr(), message.as_ptr())) };
            ptr::null_mut()
        }
    }
}

unsafe extern "C" fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    // SAFETY: a value of ours; the server copies the bytes.
    unsafe {
        let bytes = encode(as_entry(value));
        api!(RedisModule_SaveStringBuffer(io, bytes.as_ptr().cast(), bytes.len()));
    }
}

/// One effect a count, oldest first, and one for the block. The limit plays no part in recording. Nothing here lets the key
/// expire: the server itself goes on with the time at which it does, if it does.
unsafe extern "C" fn aof_rewrite(io: *mut raw::RedisModuleIO, key: *mut raw::RedisModuleString, value: *mut c_void) {
    const NEVER: Option<u64> = Some(0);
    // SAFETY: a value of ours, and its key's name.
    let (entry, key) = unsafe { (as_entry(value), Text::borrow(&key)) };
    if let Some(window) = entry.window() {
        let geometry = window.geometry();
        let quota = [OwnText::new(b"0"), milliseconds(geometry.window()), milliseconds(geometry.resolution())];
        for Count { subinterval, units } in window.counts() {
            let instant = geometry.start_of(subinterval);
            let quota = OwnText::borrow_all(&quota);
            let effect = Effect::Record { quota, units, age: None, instant, until: NEVER };
            // SAFETY: `io` is what the server writes to.
            unsafe { effect.write(io, key) };
        }
    }
    if let until @ 1.. = entry.blocked_until() {
        // The shortest block that ends then, begun at an instant that commands take.
        let instant = (until - 1).min(MAX_EXACT);
        // SAFETY: `io` is what the server writes to.
        unsafe { Effect::Block { duration: until - instant, instant, until: NEVER }.write(io, key) };
    }
}

unsafe extern "C" fn mem_usage(value: *const c_void) -> usize {
    // SAFETY: a value of ours.
    unsafe { as_entry(value) }.bytes()
}

unsafe extern "C" fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    // SAFETY: a value of ours, and the server's own digest.
    unsafe {
        let bytes = encode(as_entry(value));
        api!(RedisModule_DigestAddStringBuffer(digest, bytes.as_ptr().cast(), bytes.len()));
        api!(RedisModule_DigestEndSequence(digest));
    }
}

/// Free a value.
///
/// # Safety
/// A value of [`into_value`] that nobody uses any more.
pub(super) unsafe extern "C" fn free(value: *mut c_void) {
    // SAFETY: the caller's promise.
    let entry: Box<Entry> = unsafe { Box::from_raw(value.cast()) };
    statistics::entry_freed(entry.bytes());
}

/// A value is leaving its key, whatever the reason.
unsafe extern "C" fn unlinked(ctx: *mut raw::RedisModuleKeyOptCtx, _value: *const c_void) {
    // SAFETY: the context of this callback, and the key's name, which outlives it.
    unsafe {
        let key = api!(RedisModule_GetKeyNameFromOptCtx(ctx)).cast_mut();
        blocked_clients::wake(|| api!(RedisModule_GetDbIdFromOptCtx(ctx)), Text::borrow(&key));
    }
}

unsafe extern "C" fn free_effort(_key: *mut raw::RedisModuleString, value: *const c_void) -> usize {
    // SAFETY: a value of ours.
    unsafe { as_entry(value) }.allocations()
}

unsafe extern "C" fn copy(
    _from: *mut raw::RedisModuleString,
    _to: *mut raw::RedisModuleString,
    value: *const c_void,
) -> *mut c_void {
    // SAFETY: a value of ours.
    into_value(unsafe { as_entry(value) }.clone())
}

unsafe extern "C" fn defrag(
    ctx: *mut raw::RedisModuleDefragCtx,
    _key: *mut raw::RedisModuleString,
    value: *mut *mut c_void,
) -> c_int {
    // SAFETY: the value is ours, and `value` where the server keeps it. What the server moved has been copied and freed
    // by it, so the old pointers are forgotten; null means that it stays where it is.
    unsafe {
        *value = moved(ctx, *value);
        let entry: &mut Entry = &mut *(*value).cast();
        let move_block = |block: Box<Blocked>| Box::from_raw(moved(ctx, Box::into_raw(block)));
        let move_counts = |words: Box<[u64]>| match words.len() {
            0 => words,
            len => {
                let words: *mut u64 = moved(ctx, Box::into_raw(words).cast());
                Box::from_raw(ptr::slice_from_raw_parts_mut(words, len))
            }
        };
        entry.relocate(move_block, move_counts);
    }
    0
}

/// Where the server has moved an allocation, or where it was.
///
/// # Safety
/// An allocation of the server's, which is forgotten in favour of the one returned.
unsafe fn moved<T>(ctx: *mut raw::RedisModuleDefragCtx, allocation: *mut T) -> *mut T {
    // SAFETY: the caller's promise.
    let moved = unsafe { api!(RedisModule_DefragAlloc(ctx, allocation.cast())) };
    if moved.is_null() {
        allocation
    } else {
        moved.cast()
    }
}
