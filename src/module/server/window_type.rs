//! The data type `sw-window`: what the server asks of a value that it stores.

use std::ffi::{c_int, c_longlong, c_void, CStr, CString};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;

use crate::statistics;
use swlimit_window::{self as window, Window};

/// The type, once the server knows it.
pub struct WindowType(AtomicPtr<raw::RedisModuleType>);

/// `sw-window`.
pub static WINDOW_TYPE: WindowType = WindowType(AtomicPtr::new(ptr::null_mut()));

const NAME: &CStr = c"sw-window";

impl WindowType {
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
            // Nothing outside of a value needs to hear that its key was unlinked, and nothing is saved beside keys: a
            // server without the module could not skip that.
            unlink: None,
            aux_load: None,
            aux_save: None,
            aux_save_triggers: 0,
            mem_usage2: None,
            free_effort2: None,
            unlink2: None,
            copy2: None,
            aux_save2: None,
        };
        // SAFETY: the server copies the methods.
        let made = unsafe { api!(RedisModule_CreateDataType(ctx, NAME.as_ptr(), window::VERSION, &mut methods)) };
        self.0.store(made, Ordering::Relaxed);
        !made.is_null()
    }
}

/// A window as the value of a key, which frees it with [`free`].
pub(super) fn into_value(window: Window) -> *mut c_void {
    statistics::window_created(window.bytes());
    Box::into_raw(Box::new(window)).cast()
}

/// The window behind a value.
///
/// # Safety
/// A value of [`into_value`] that has not been freed and that nobody changes meanwhile.
unsafe fn as_window<'a>(value: *const c_void) -> &'a Window {
    // SAFETY: the caller's promise.
    unsafe { &*value.cast() }
}

unsafe extern "C" fn rdb_load(io: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void {
    if version != window::VERSION {
        // SAFETY: `io` is what the server reads from.
        unsafe { log(io, &format!("a window of encoding version {version}, this module reads {}", window::VERSION)) };
        return ptr::null_mut();
    }
    // SAFETY: the server returns a buffer of `len` bytes that is ours to free, or null and an I/O error.
    let decoded = unsafe {
        let mut len = 0;
        let buffer = api!(RedisModule_LoadStringBuffer(io, &mut len));
        if buffer.is_null() || api!(RedisModule_IsIOError(io)) != 0 {
            return ptr::null_mut();
        }
        let decoded = window::decode(slice::from_raw_parts(buffer.cast(), len));
        api!(RedisModule_Free(buffer.cast()));
        decoded
    };
    match decoded {
        Ok(window) => into_value(window),
        Err(invalid) => {
            // SAFETY: as above.
            unsafe { log(io, &format!("not a window: {}", invalid.0)) };
            ptr::null_mut()
        }
    }
}

/// # Safety
/// `io` is what the server reads from or writes to.
unsafe fn log(io: *mut raw::RedisModuleIO, message: &str) {
    let message = CString::new(message).unwrap_or_default();
    // SAFETY: the caller's promise; one C string for the one place in the format.
    unsafe { api!(RedisModule_LogIOError(io, c"warning".as_ptr(), c"%s".as_ptr(), message.as_ptr())) };
}

unsafe extern "C" fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    // SAFETY: a value of ours; the server copies the bytes.
    unsafe {
        let bytes = window::encode(as_window(value));
        api!(RedisModule_SaveStringBuffer(io, bytes.as_ptr().cast(), bytes.len()));
    }
}

/// One `SWLIMIT.RECORD` a count, oldest first. The limit plays no part in recording. Recording lets the key expire, which
/// somebody may have taken back; the server itself goes on with the time the key expires at, if it does.
unsafe extern "C" fn aof_rewrite(io: *mut raw::RedisModuleIO, key: *mut raw::RedisModuleString, value: *mut c_void) {
    // SAFETY: a value of ours.
    let window = unsafe { as_window(value) };
    let geometry = window.geometry();
    let [length, resolution] =
        [geometry.window(), geometry.resolution()].map(|ms| CString::new(format!("{ms}ms")).unwrap_or_default());
    for (start, units) in window.counts() {
        // SAFETY: the arguments are those of the format: a string, a C string, and so on.
        unsafe {
            api!(RedisModule_EmitAOF(
                io,
                c"SWLIMIT.RECORD".as_ptr(),
                c"slccclcl".as_ptr(),
                key,
                0 as c_longlong,
                length.as_ptr(),
                resolution.as_ptr(),
                c"COST".as_ptr(),
                units as c_longlong,
                c"AT".as_ptr(),
                start as c_longlong,
            ));
        }
    }
    // SAFETY: as above.
    unsafe { api!(RedisModule_EmitAOF(io, c"PERSIST".as_ptr(), c"s".as_ptr(), key)) };
}

unsafe extern "C" fn mem_usage(value: *const c_void) -> usize {
    // SAFETY: a value of ours.
    unsafe { as_window(value) }.bytes()
}

unsafe extern "C" fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    // SAFETY: a value of ours, and the server's own digest.
    unsafe {
        let bytes = window::encode(as_window(value));
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
    let window: Box<Window> = unsafe { Box::from_raw(value.cast()) };
    statistics::window_freed(window.bytes());
}

unsafe extern "C" fn free_effort(_key: *mut raw::RedisModuleString, value: *const c_void) -> usize {
    // SAFETY: a value of ours.
    unsafe { as_window(value) }.allocations()
}

unsafe extern "C" fn copy(
    _from: *mut raw::RedisModuleString,
    _to: *mut raw::RedisModuleString,
    value: *const c_void,
) -> *mut c_void {
    // SAFETY: a value of ours.
    into_value(unsafe { as_window(value) }.clone())
}

unsafe extern "C" fn defrag(
    ctx: *mut raw::RedisModuleDefragCtx,
    _key: *mut raw::RedisModuleString,
    value: *mut *mut c_void,
) -> c_int {
    // SAFETY: the value is ours, and `value` where the server keeps it. What the server moved has been copied and freed
    // by it, so the old pointers are forgotten; null means that it stays where it is.
    unsafe {
        let moved = api!(RedisModule_DefragAlloc(ctx, *value));
        if !moved.is_null() {
            *value = moved;
        }
        let window: &mut Window = &mut *(*value).cast();
        window.relocate(|words| {
            if words.is_empty() {
                return words;
            }
            let len = words.len();
            let words: *mut u64 = Box::into_raw(words).cast();
            let moved: *mut u64 = api!(RedisModule_DefragAlloc(ctx, words.cast())).cast();
            Box::from_raw(ptr::slice_from_raw_parts_mut(if moved.is_null() { words } else { moved }, len))
        });
    }
    0
}
