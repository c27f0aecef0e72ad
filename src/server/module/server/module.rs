//! Loading: registers the module's type, commands, settings and INFO section.

use std::ffi::{c_char, c_int, c_longlong, c_void, CStr};
use std::ptr;

use redis_module::{raw, RedisString, Status};

use super::allocator::ServerAllocator;
use super::blocking::Waiting;
use super::changes::Listener;
use super::command::{self, Command};
use super::denial_counts::settings_changed;
use super::effect::listeners;
use super::release::Release;
use super::reply::c_string;
use super::types::{self, Value};
use super::{api, changes, events, server_events, OK};
use crate::configuration::{Chosen, Setting};
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

fn load(context: &redis_module::Context, arguments: &[RedisString]) -> Status {
    let loaded = match api::missing() {
        Some(function) => Err(format!("needs Redis 7.0 or Valkey 8.0, or later: this server has no {function}")),
        None => {
            // SAFETY: the server is loading this module, and this is its context.
            let own_category = unsafe { command::add_own_category(context.ctx) };
            crate::load(&Loading { ctx: context.ctx, arguments, own_category })
        }
    };
    match loaded {
        Ok(()) => Status::Ok,
        Err(error) => {
            context.log_warning(&format!("swlimit: {error}"));
            Status::Err
        }
    }
}

/// The module's loading.
pub struct Loading<'a> {
    ctx: *mut raw::RedisModuleCtx,
    arguments: &'a [RedisString],
    own_category: bool,
}

impl Loading<'_> {
    /// The load arguments, which follow the module's path.
    pub fn arguments(&self) -> impl Iterator<Item = &[u8]> {
        self.arguments.iter().map(RedisString::as_slice)
    }

    /// Register a data type.
    pub fn register_type<V: Value>(&self) -> Result<(), String> {
        // SAFETY: the context of the module's loading.
        match unsafe { types::register::<V>(self.ctx) } {
            true => Ok(()),
            false => Err(format!("cannot register the data type {}", V::NAME.to_string_lossy())),
        }
    }

    /// Register a command.
    pub fn register<C: Command>(&self) -> Result<(), String> {
        // SAFETY: the context of the module's loading.
        unsafe { command::register::<C>(self.ctx, self.own_category) }
    }

    /// Register the settings with their initial values, the INFO section, and module options.
    pub fn configure(&self, settings: Vec<Chosen>) -> Result<(), String> {
        for (setting, value) in settings {
            self.register_setting(setting, value)?;
        }
        // SAFETY: the context of the module's loading; the callback is one of the server's form.
        unsafe {
            let release = Release::of_server(self.ctx);
            listeners::know(release);
            if api!(RedisModule_LoadConfigs(self.ctx)) != OK {
                return Err("cannot load the configuration".into());
            }
            api!(RedisModule_RegisterInfoFunc(self.ctx, Some(info)));
            api!(RedisModule_SetModuleOptions(self.ctx, options(release) as c_int));
        }
        Ok(())
    }

    /// Subscribe to the server's events, and let clients wait, by these rules, which get the changed keys. It comes last:
    /// Redis 7.0 forgets no subscription of a module whose loading fails, and would call what is gone.
    pub fn subscribe<W: Waiting>(&self, listener: Listener) -> Result<(), String> {
        changes::listen(listener);
        // SAFETY: the context of the module's loading.
        match unsafe { server_events::subscribe::<W>(self.ctx) && events::subscribe(self.ctx) } {
            true => Ok(()),
            false => Err("cannot subscribe to the server's events".into()),
        }
    }

    fn register_setting(&self, setting: &'static Setting, value: u64) -> Result<(), String> {
        let name = c_string(setting.name.into());
        let (low, high) = setting.range.clone().into_inner();
        // SAFETY: the context of the module's loading; the server copies the name, and hands the callbacks the setting,
        // which is for ever.
        let registered = unsafe {
            api!(RedisModule_RegisterNumericConfig(
                self.ctx,
                name.as_ptr(),
                value as c_longlong,
                raw::REDISMODULE_CONFIG_DEFAULT,
                low as c_longlong,
                high as c_longlong,
                Some(get_setting),
                Some(set_setting),
                None,
                ptr::from_ref(setting).cast_mut().cast(),
            ))
        };
        match registered {
            OK => Ok(()),
            _ => Err(format!("cannot register the setting swlimit.{}", setting.name)),
        }
    }
}

/// The module handles I/O errors and asynchronous loading (diskless replication), and signals modified keys itself.
fn options(release: Release) -> u32 {
    /// Valkey 9 refuses atomic slot migration without this bit; other servers may use the bit for something else.
    const HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5;
    let migrates = matches!(release, Release::Valkey(9.., _));
    raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD
        | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
        | if migrates { HANDLE_ATOMIC_SLOT_MIGRATION } else { 0 }
}

unsafe extern "C" fn get_setting(_name: *const c_char, setting: *mut c_void) -> c_longlong {
    // SAFETY: the setting that was registered.
    unsafe { &*setting.cast::<Setting>() }.get() as c_longlong
}

unsafe extern "C" fn set_setting(
    _name: *const c_char,
    value: c_longlong,
    setting: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the setting that was registered, with a value within its range.
    unsafe { &*setting.cast::<Setting>() }.set(value as u64);
    settings_changed();
    OK
}

/// `INFO swlimit`. Also runs for crash reports, so it takes no lock and reads no key.
unsafe extern "C" fn info(ctx: *mut raw::RedisModuleInfoCtx, _for_crash_report: c_int) {
    // SAFETY: the server's own context, C strings, and numbers.
    unsafe {
        api!(RedisModule_InfoAddSection(ctx, ptr::null()));
        for (name, value) in statistics::fields() {
            api!(RedisModule_InfoAddFieldULongLong(ctx, name.as_ptr(), value));
        }
        let replicating = if listeners::are_none() { c"no" } else { c"yes" };
        api!(RedisModule_InfoAddFieldCString(ctx, c"replicating".as_ptr(), replicating.as_ptr()));
        api!(RedisModule_InfoAddFieldCString(ctx, c"version".as_ptr(), VERSION_TEXT.as_ptr()));
    }
}

const VERSION_TEXT: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => panic!("a version without NUL"),
};
