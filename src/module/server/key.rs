//! An open key.

use std::ffi::{c_int, c_longlong};
use std::ptr;

use redis_module::raw;

use super::call::{Argument, Call};
use super::window_type::{self, WINDOW_TYPE};
use super::OK;
use crate::error::Error;
use crate::statistics;
use swlimit_window::Window;

/// What a key is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Read,
    Write,
}

/// A key that holds a window or nothing, open until dropped.
pub struct Key<'a> {
    call: &'a Call<'a>,
    name: &'a Argument,
    handle: *mut raw::RedisModuleKey,
    /// The window, which the key owns: null if there is none.
    window: *mut Window,
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        // SAFETY: opened in `open` and closed only here. The server accepts null, the handle of a missing key.
        unsafe { api!(RedisModule_CloseKey(self.handle)) }
    }
}

impl<'a> Key<'a> {
    /// Open a key; an error if it holds something else.
    pub(super) fn open(call: &'a Call<'a>, name: &'a Argument, mode: Mode) -> Result<Self, Error> {
        let mode = match mode {
            Mode::Read => raw::REDISMODULE_READ,
            Mode::Write => raw::REDISMODULE_READ | raw::REDISMODULE_WRITE,
        };
        // SAFETY: the context and a string of the same call; a handle just opened, or null, which the server accepts.
        // What a key of this type holds is a value of this type.
        unsafe {
            let handle = api!(RedisModule_OpenKey(call.ctx(), name.raw(), mode as c_int));
            let mut key = Self { call, name, handle, window: ptr::null_mut() };
            if api!(RedisModule_ModuleTypeGetType(handle)) == WINDOW_TYPE.raw() {
                key.window = api!(RedisModule_ModuleTypeGetValue(handle)).cast();
            } else if api!(RedisModule_KeyType(handle)) != EMPTY {
                return Err(Error::WrongType);
            }
            Ok(key)
        }
    }

    /// The window stored here, if any.
    pub fn window(&self) -> Option<&Window> {
        // SAFETY: the key owns it, and this borrows the key: whatever changes or frees it borrows the key exclusively.
        unsafe { self.window.as_ref() }
    }

    /// Change the window stored here, after putting `replacement` in its place if there is one; `now` is the command's
    /// own instant. The key then expires when its last count can no longer matter, and goes at once if none does.
    /// Whoever watches or tracks the key is told.
    ///
    /// Opened for writing, and found to hold a window or nothing; nothing needs a replacement.
    pub fn change<T>(
        &mut self,
        replacement: Option<Window>,
        now: u64,
        change: impl FnOnce(&mut Window) -> T,
    ) -> Result<T, Error> {
        let replacement = match replacement {
            Some(window) if self.window.is_null() => {
                self.create(window);
                None
            }
            replacement => replacement,
        };
        // SAFETY: see `window`; this borrows the key exclusively.
        let window = unsafe { self.window.as_mut() }.ok_or(Error::NoSuchKey)?;
        let (bytes, end) = (window.bytes(), window.end());
        if let Some(replacement) = replacement {
            *window = replacement;
        }
        let result = change(window);
        let changed_end = window.end();
        statistics::window_resized(bytes, window.bytes());
        if changed_end != end {
            self.end_at(changed_end, now);
        }
        // SAFETY: the context and a string of the same call.
        unsafe { api!(RedisModule_SignalModifiedKey(self.call.ctx(), self.name.raw())) };
        Ok(result)
    }

    fn create(&mut self, window: Window) {
        let value = window_type::into_value(window);
        // SAFETY: the key is open for writing and the value one of the type's; the key owns it from here on, unless the
        // server refuses, which it does only for keys not open for writing.
        unsafe {
            if api!(RedisModule_ModuleTypeSetValue(self.handle, WINDOW_TYPE.raw(), value)) == OK {
                self.window = value.cast();
            } else {
                window_type::free(value);
            }
        }
    }

    /// Let the key expire at `end`, relative to the command's own `now`.
    fn end_at(&mut self, end: u64, now: u64) {
        match end.checked_sub(now) {
            None | Some(0) => {
                // SAFETY: the key is open for writing; nobody borrows the window any more.
                unsafe { api!(RedisModule_DeleteKey(self.handle)) };
                self.window = ptr::null_mut();
                self.call.notify_as(raw::REDISMODULE_NOTIFY_GENERIC, c"del", self.name);
            }
            Some(ms) => {
                // SAFETY: the key is open for writing. At most 2^53 and two windows, `ms` is within range.
                unsafe { api!(RedisModule_SetExpire(self.handle, ms as c_longlong)) };
            }
        }
    }
}

const EMPTY: c_int = raw::REDISMODULE_KEYTYPE_EMPTY as c_int;
