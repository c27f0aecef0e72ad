//! A module context: the server's clock, flags and databases.

use std::ffi::c_int;

use redis_module::raw;

/// A context of the server's, used only while it is valid.
#[derive(Clone, Copy)]
pub struct Context(*mut raw::RedisModuleCtx);

impl Context {
    /// A context of the server's.
    ///
    /// # Safety
    /// It is valid for as long as this value is used.
    pub(super) unsafe fn new(ctx: *mut raw::RedisModuleCtx) -> Self {
        Self(ctx)
    }

    pub(super) fn raw(self) -> *mut raw::RedisModuleCtx {
        self.0
    }

    /// The server's clock, in ms; frozen inside of transactions and scripts where the server offers that.
    pub fn clock(self) -> u64 {
        // SAFETY: neither function needs anything; the first one is new in 7.2.
        let ms = unsafe {
            match raw::RedisModule_CachedMicroseconds {
                Some(cached_microseconds) => cached_microseconds() / 1000,
                None => api!(RedisModule_Milliseconds()),
            }
        };
        ms as u64
    }

    /// Whether the command comes from a primary, an AOF file or a migrating slot: it was accepted once, so today's settings
    /// do not apply.
    pub fn must_obey(self) -> bool {
        self.has_flags(raw::REDISMODULE_CTX_FLAGS_REPLICATED | raw::REDISMODULE_CTX_FLAGS_LOADING)
    }

    pub(super) fn has_flags(self, flags: u32) -> bool {
        // SAFETY: a valid context.
        let set = unsafe { api!(RedisModule_GetContextFlags(self.0)) } as u32;
        set & flags != 0
    }

    /// The number of the database that is selected.
    pub fn database(self) -> c_int {
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_GetSelectedDb(self.0)) }
    }

    /// Select a database that there is.
    pub fn select(self, database: c_int) {
        // SAFETY: a valid context.
        unsafe { api!(RedisModule_SelectDb(self.0, database)) };
    }
}
