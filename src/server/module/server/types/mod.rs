//! The module's data types: what the server calls for a value that it stores, whichever of the types it is.

mod budget;
mod holds;
mod window;

use std::ffi::{c_int, c_ulong, c_void, CStr};
use std::mem::ManuallyDrop;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;
use swlimit_effect::Effect;
use swlimit_hold::Relocate;
use swlimit_window::Invalid;

use super::changes;
use super::effect;
use super::reply::c_string;
use super::text::Text;
use crate::statistics::{self, Statistic};

/// What a key of one of the types holds.
pub trait Value: Clone + Default + 'static {
    /// The type's name, nine characters.
    const NAME: &'static CStr;
    /// The encoding version, which the server stores beside every value.
    const VERSION: c_int;

    /// The type, as the server knows it.
    fn value_type() -> &'static ValueType;
    /// The number of keys with such a value.
    fn keys() -> &'static Statistic;
    /// The first instant at which nothing in it matters any more, in ms; 0 when there is nothing.
    fn end(&self) -> u64;
    /// Bytes it takes, with what it has allocated.
    fn bytes(&self) -> usize;
    /// How many allocations there are to free.
    fn allocations(&self) -> usize;
    /// Its bytes in RDB files and payloads.
    fn encode(&self) -> Vec<u8>;
    /// The value of these bytes, which are not trusted.
    fn decode(version: c_int, bytes: &[u8]) -> Result<Self, Invalid>;
    /// The effects that make it where there is none.
    fn rewrite(&self, write: impl FnMut(Effect));
    /// Let the server move its allocations, from this position on, until it is time to stop; where to go on.
    fn relocate(&mut self, from: usize, defragmentation: &mut Defragmentation) -> Option<usize>;
}

/// A type's identity, once the server knows it.
pub struct ValueType(AtomicPtr<raw::RedisModuleType>);

impl ValueType {
    const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    pub(super) fn raw(&self) -> *mut raw::RedisModuleType {
        self.0.load(Ordering::Relaxed)
    }
}

/// Register the type of `V` with the server; whether it succeeded.
///
/// # Safety
/// `ctx` is the context of the module's loading.
pub(super) unsafe fn register<V: Value>(ctx: *mut raw::RedisModuleCtx) -> bool {
    let mut methods = raw::RedisModuleTypeMethods {
        version: u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION),
        rdb_load: Some(rdb_load::<V>),
        rdb_save: Some(rdb_save::<V>),
        aof_rewrite: Some(aof_rewrite::<V>),
        mem_usage: Some(mem_usage::<V>),
        digest: Some(digest::<V>),
        free: Some(free::<V>),
        free_effort: Some(free_effort::<V>),
        copy: Some(copy::<V>),
        defrag: Some(defrag::<V>),
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
    let made = unsafe { api!(RedisModule_CreateDataType(ctx, V::NAME.as_ptr(), V::VERSION, &mut methods)) };
    V::value_type().0.store(made, Ordering::Relaxed);
    !made.is_null()
}

/// A value for the server, which frees it with [`free`].
pub(super) fn into_raw<V: Value>(value: V) -> *mut c_void {
    statistics::value_created(V::keys(), value.bytes());
    Box::into_raw(Box::new(value)).cast()
}

/// The value behind a pointer.
///
/// # Safety
/// A pointer of [`into_raw`] for the same type that has not been freed and that nobody changes meanwhile.
unsafe fn as_value<'a, V: Value>(value: *const c_void) -> &'a V {
    // SAFETY: the caller's promise.
    unsafe { &*value.cast() }
}

unsafe extern "C" fn rdb_load<V: Value>(io: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void {
    // SAFETY: the server returns a buffer of `len` bytes that is ours to free, or null and an I/O error.
    let decoded = unsafe {
        let mut len = 0;
        let buffer = api!(RedisModule_LoadStringBuffer(io, &mut len));
        if buffer.is_null() || api!(RedisModule_IsIOError(io)) != 0 {
            return ptr::null_mut();
        }
        let decoded = V::decode(version, slice::from_raw_parts(buffer.cast(), len));
        api!(RedisModule_Free(buffer.cast()));
        decoded
    };
    match decoded {
        Ok(value) => into_raw(value),
        Err(invalid) => {
            let message = c_string(format!("not a value of {}: {}", V::NAME.to_string_lossy(), invalid.0));
            // SAFETY: `io` is what the server reads from; one C string for the one place in the format.
            unsafe { api!(RedisModule_LogIOError(io, c"warning".as_ptr(), c"%s".as_ptr(), message.as_ptr())) };
            ptr::null_mut()
        }
    }
}

unsafe extern "C" fn rdb_save<V: Value>(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    // SAFETY: a value of this type; the server copies the bytes.
    unsafe {
        let bytes = as_value::<V>(value).encode();
        api!(RedisModule_SaveStringBuffer(io, bytes.as_ptr().cast(), bytes.len()));
    }
}

unsafe extern "C" fn aof_rewrite<V: Value>(
    io: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    // SAFETY: a value of this type, and its key's name; `io` is what the server writes to.
    unsafe {
        let (value, key) = (as_value::<V>(value), Text::borrow(&key));
        value.rewrite(|effect| effect::write(io, key, effect));
    }
}

unsafe extern "C" fn mem_usage<V: Value>(value: *const c_void) -> usize {
    // SAFETY: a value of this type.
    unsafe { as_value::<V>(value) }.bytes()
}

unsafe extern "C" fn digest<V: Value>(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    // SAFETY: a value of this type, and the server's own digest.
    unsafe {
        let bytes = as_value::<V>(value).encode();
        api!(RedisModule_DigestAddStringBuffer(digest, bytes.as_ptr().cast(), bytes.len()));
        api!(RedisModule_DigestEndSequence(digest));
    }
}

/// Free a value.
///
/// # Safety
/// A value of [`into_raw`] for the same type that nobody uses any more.
pub(super) unsafe extern "C" fn free<V: Value>(value: *mut c_void) {
    // SAFETY: the caller's promise.
    let value: Box<V> = unsafe { Box::from_raw(value.cast()) };
    statistics::value_freed(V::keys(), value.bytes());
}

/// A value is leaving its key, whatever the reason.
unsafe extern "C" fn unlinked(ctx: *mut raw::RedisModuleKeyOptCtx, _value: *const c_void) {
    // SAFETY: the context of this callback, and the key's name, which outlives it.
    unsafe {
        let key = api!(RedisModule_GetKeyNameFromOptCtx(ctx)).cast_mut();
        changes::key_changed(|| api!(RedisModule_GetDbIdFromOptCtx(ctx)), Text::borrow(&key));
    }
}

unsafe extern "C" fn free_effort<V: Value>(_key: *mut raw::RedisModuleString, value: *const c_void) -> usize {
    // SAFETY: a value of this type.
    unsafe { as_value::<V>(value) }.allocations()
}

unsafe extern "C" fn copy<V: Value>(
    _from: *mut raw::RedisModuleString,
    _to: *mut raw::RedisModuleString,
    value: *const c_void,
) -> *mut c_void {
    // SAFETY: a value of this type.
    into_raw(unsafe { as_value::<V>(value) }.clone())
}

unsafe extern "C" fn defrag<V: Value>(
    ctx: *mut raw::RedisModuleDefragCtx,
    _key: *mut raw::RedisModuleString,
    value: *mut *mut c_void,
) -> c_int {
    let mut defragmentation = Defragmentation(ctx);
    let mut from: c_ulong = 0;
    // SAFETY: the value is of this type, and `value` where the server keeps it. A cursor is there only for a value that
    // was not moved to its end.
    unsafe {
        if api!(RedisModule_DefragCursorGet(ctx, &mut from)) != super::OK {
            from = 0;
        }
        if from == 0 {
            *value = defragmentation.moved(*value);
        }
        let moved: &mut V = &mut *(*value).cast();
        match moved.relocate(from as usize, &mut defragmentation) {
            Some(next) if api!(RedisModule_DefragCursorSet(ctx, next as c_ulong)) == super::OK => 1,
            _ => 0,
        }
    }
}

/// A defragmentation in progress.
pub struct Defragmentation(*mut raw::RedisModuleDefragCtx);

impl Defragmentation {
    /// The same box, elsewhere or where it was.
    pub(super) fn relocate_box<T>(&mut self, value: Box<T>) -> Box<T> {
        // SAFETY: the allocation of a box, which is forgotten in favour of what it was moved to.
        unsafe { Box::from_raw(self.moved(Box::into_raw(value))) }
    }

    /// Where the server has moved an allocation, or where it was.
    ///
    /// # Safety
    /// An allocation of the server's, which is forgotten in favour of the one returned.
    unsafe fn moved<T>(&mut self, allocation: *mut T) -> *mut T {
        // SAFETY: the caller's promise. What the server moved has been copied and freed by it; null means that it stays.
        let moved = unsafe { api!(RedisModule_DefragAlloc(self.0, allocation.cast())) };
        if moved.is_null() {
            allocation
        } else {
            moved.cast()
        }
    }
}

impl Relocate for Defragmentation {
    fn should_stop(&self) -> bool {
        // SAFETY: the context of the callback that made this.
        unsafe { api!(RedisModule_DefragShouldStop(self.0)) != 0 }
    }

    fn list<T>(&mut self, list: Vec<T>) -> Vec<T> {
        if list.capacity() == 0 {
            return list;
        }
        let mut list = ManuallyDrop::new(list);
        let (first, len, capacity) = (list.as_mut_ptr(), list.len(), list.capacity());
        // SAFETY: the allocation of a list with a capacity, which is forgotten in favour of what it was moved to.
        unsafe { Vec::from_raw_parts(self.moved(first), len, capacity) }
    }
}
