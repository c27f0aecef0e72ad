//! Which server this is.

use std::ffi::CStr;

use redis_module::raw;

/// A release that this module knows by name and number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Release {
    /// Redis, (major, minor).
    Redis(u32, u32),
    /// Valkey, (major, minor).
    Valkey(u32, u32),
    /// Another server, or one that is built on these.
    Other,
}

impl Release {
    /// What the server says of itself.
    ///
    /// # Safety
    /// A valid context.
    pub(super) unsafe fn of_server(ctx: *mut raw::RedisModuleCtx) -> Self {
        // SAFETY: the caller's promise; a field's text lives as long as the information, and is read before that is freed.
        unsafe {
            let information = api!(RedisModule_GetServerInfo(ctx, c"server".as_ptr()));
            let field = |name: &CStr| {
                let text = api!(RedisModule_ServerInfoGetFieldC(information, name.as_ptr()));
                (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            };
            let number = |name| field(name).as_deref().and_then(major_and_minor);
            // Redis Enterprise replicates in a way of its own.
            let release = match (number(c"valkey_version"), number(c"redis_version"), field(c"rlec_version")) {
                (Some((major, minor)), ..) => Self::Valkey(major, minor),
                (None, Some((major, minor)), None) => Self::Redis(major, minor),
                _ => Self::Other,
            };
            api!(RedisModule_FreeServerInfo(ctx, information));
            release
        }
    }
}

fn major_and_minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}
