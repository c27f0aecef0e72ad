//! A module context: the server's clock, flags and databases.

use std::ffi::{c_int, CStr};

use redis_module::raw;

use super::OK;

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

    /// Numbers of the server's own INFO section about replication; `None` where it has no such field.
    pub(super) fn replication<const N: usize>(self, names: [&CStr; N]) -> [Option<u64>; N] {
        // SAFETY: a valid context; the information is freed after it was read.
        unsafe {
            let information = api!(RedisModule_GetServerInfo(self.0, c"replication".as_ptr()));
            let numbers = names.map(|name| {
                let mut failed = 0;
                let number = api!(RedisModule_ServerInfoGetFieldUnsigned(information, name.as_ptr(), &mut failed));
                (failed == OK).then_some(number)
            });
            api!(RedisModule_FreeServerInfo(self.0, information));
            numbers
        }
    }
}
