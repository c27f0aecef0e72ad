//! Loading: what the module tells the server of itself.

use std::ffi::{c_char, c_int, c_longlong, c_void, CStr, CString};
use std::ptr;

use redis_module::{raw, Context, RedisString, Status};

use super::allocator::ServerAllocator;
use super::window_type::WINDOW_TYPE;
use super::{api, call, command, OK};
use crate::commands::{Allow, Info, Mallow, Peek, Record, Refund};
use crate::configuration::{self, max_subintervals};
use crate::statistics;

/// major · 10000 + minor · 100 + patch.
const VERSION: c_int = number(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
    + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
    + number(env!("CARGO_PKG_VERSION_PATCH"));

const fn number(digits: &str) -> c_int {
    match c_int::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => panic!("not a number"),
    }
}

redis_module::redis_module! {
    name: "swlimit",
    version: VERSION,
    allocator: (ServerAllocator, ServerAllocator),
    data_types: [],
    init: load,
}

fn load(context: &Context, arguments: &[RedisString]) -> Status {
    // SAFETY: the server is loading this module, and this is its context.
    match unsafe { register(context, arguments) } {
        Ok(()) => Status::Ok,
        Err(error) => {
            context.log_warning(&format!("swlimit: {error}"));
            Status::Err
        }
    }
}

/// # Safety
/// `context` is the context of the module's loading.
unsafe fn register(context: &Context, arguments: &[RedisString]) -> Result<(), String> {
    let ctx = context.ctx;
    if let Some(function) = api::missing() {
        return Err(format!("needs Redis 7.0 or Valkey 8.0, or later: this server has no {function}"));
    }
    let most = configuration::from_load_arguments(arguments.iter().map(RedisString::as_slice))?;
    call::prepare();
    // SAFETY: the caller's promise.
    unsafe {
        if !WINDOW_TYPE.register(ctx) {
            return Err("cannot register the data type".into());
        }
        let own_category = command::add_own_category(ctx);
        command::register::<Allow>(ctx, own_category)?;
        command::register::<Peek>(ctx, own_category)?;
        command::register::<Record>(ctx, own_category)?;
        command::register::<Refund>(ctx, own_category)?;
        command::register::<Info>(ctx, own_category)?;
        command::register::<Mallow>(ctx, own_category)?;
        configure(ctx, most)?;
        api!(RedisModule_RegisterInfoFunc(ctx, Some(info)));
        api!(RedisModule_SetModuleOptions(ctx, options(context) as c_int));
    }
    Ok(())
}

/// I/O errors and asynchronous loading are handled, so that replication may go on without disks; a key is signalled as
/// modified only by those who modify it.
fn options(context: &Context) -> u32 {
    /// Valkey 9 moves slots only with modules that set this, and other servers may mean something else by it.
    const HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;
    // SAFETY: the loading context; a field's text lives as long as the information, and is read before that is freed.
    let major = unsafe {
        let information = api!(RedisModule_GetServerInfo(context.ctx, c"server".as_ptr()));
        let version = api!(RedisModule_ServerInfoGetFieldC(information, c"valkey_version".as_ptr()));
        let major = (!version.is_null())
            .then(|| CStr::from_ptr(version).to_string_lossy())
            .and_then(|version| version.split('.').next()?.parse::<u32>().ok());
        api!(RedisModule_FreeServerInfo(context.ctx, information));
        major
    };
    raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD
        | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
        | if major >= Some(9) { HANDLE_ATOMIC_SLOT_MIGRATION } else { 0 }
}

/// # Safety
/// `ctx` is the context of the module's loading.
unsafe fn configure(ctx: *mut raw::RedisModuleCtx, most: i64) -> Result<(), String> {
    let name = CString::new(max_subintervals::NAME).unwrap_or_default();
    let (low, high) = max_subintervals::RANGE.into_inner();
    // SAFETY: the caller's promise; the server copies the name, and the callbacks need no data.
    unsafe {
        let registered = api!(RedisModule_RegisterNumericConfig(
            ctx,
            name.as_ptr(),
            most,
            raw::REDISMODULE_CONFIG_DEFAULT,
            low,
            high,
            Some(get_max_subintervals),
            Some(set_max_subintervals),
            None,
            ptr::null_mut(),
        )) == OK;
        if !registered || api!(RedisModule_LoadConfigs(ctx)) != OK {
            return Err(format!("cannot load the configuration of swlimit.{}", max_subintervals::NAME));
        }
    }
    Ok(())
}

unsafe extern "C" fn get_max_subintervals(_name: *const c_char, _data: *mut c_void) -> c_longlong {
    max_subintervals::get()
}

unsafe extern "C" fn set_max_subintervals(
    _name: *const c_char,
    value: c_longlong,
    _data: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    max_subintervals::set(value);
    OK
}

/// `INFO swlimit`; also part of crash reports, and so takes nothing that may be broken.
unsafe extern "C" fn info(ctx: *mut raw::RedisModuleInfoCtx, _for_crash_report: c_int) {
    // SAFETY: the server's own context, C strings, and numbers.
    unsafe {
        api!(RedisModule_InfoAddSection(ctx, ptr::null()));
        for (name, value) in statistics::fields() {
            api!(RedisModule_InfoAddFieldULongLong(ctx, name.as_ptr(), value));
        }
        api!(RedisModule_InfoAddFieldCString(ctx, c"version".as_ptr(), VERSION_TEXT.as_ptr()));
    }
}

const VERSION_TEXT: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => c"",
};
