//! What the server asks of a module command of the shape of `SWLIMIT.ALLOW`, without any decision being made.
//!
//! All take `key limit window resolution` and reply five integers. `BENCH.FLOOR` does nothing else. `BENCH.LOOK` reads
//! the clock and opens the key, as every decision has to. `BENCH.EFFECT` also signals the key as modified and replicates
//! eight words, as every grant has to.

use std::ffi::{c_int, CStr};

use redis_module::raw::{self, RedisModuleCtx, RedisModuleString};
use redis_module::{Context, RedisString, Status};

/// A decision like those that are measured, number by number as many digits.
const REPLY: [i64; 5] = [1, 1_000_000, 999_000, 0, 7_000_000];

redis_module::redis_module! {
    name: "floor",
    version: 1,
    allocator: (redis_module::alloc::RedisAlloc, redis_module::alloc::RedisAlloc),
    data_types: [],
    init: load,
}

type Handler = unsafe extern "C" fn(*mut RedisModuleCtx, *mut *mut RedisModuleString, c_int) -> c_int;

const COMMANDS: [(&CStr, Handler); 3] = [(c"bench.floor", floor), (c"bench.look", look), (c"bench.effect", effect)];

fn load(context: &Context, _arguments: &[RedisString]) -> Status {
    let create = |(name, handler): (&CStr, Handler)| {
        // SAFETY: the server is loading this module, and this is its context; it copies the strings.
        unsafe {
            raw::RedisModule_CreateCommand.is_some_and(|create| {
                let flags = c"write deny-oom fast".as_ptr();
                create(context.ctx, name.as_ptr(), Some(handler), flags, 1, 1, 1) == raw::REDISMODULE_OK as c_int
            })
        }
    };
    // As for every module that signals only what has changed: closing a key signals nothing.
    // SAFETY: the context of loading.
    unsafe {
        if let Some(set_options) = raw::RedisModule_SetModuleOptions {
            set_options(context.ctx, raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED as c_int);
        }
    }
    if COMMANDS.into_iter().all(create) {
        Status::Ok
    } else {
        Status::Err
    }
}

unsafe extern "C" fn floor(ctx: *mut RedisModuleCtx, _argv: *mut *mut RedisModuleString, argc: c_int) -> c_int {
    // SAFETY: the context of this call.
    unsafe { reply(ctx, argc) }
}

unsafe extern "C" fn look(ctx: *mut RedisModuleCtx, argv: *mut *mut RedisModuleString, argc: c_int) -> c_int {
    let (Some(milliseconds), Some(open), Some(close)) =
        (raw::RedisModule_Milliseconds, raw::RedisModule_OpenKey, raw::RedisModule_CloseKey)
    else {
        return raw::REDISMODULE_ERR as c_int;
    };
    // SAFETY: functions of the server, called with the context and the strings of this call.
    unsafe {
        if argc == 5 {
            std::hint::black_box(milliseconds());
            close(open(ctx, *argv.add(1), (raw::REDISMODULE_READ | raw::REDISMODULE_WRITE) as c_int));
        }
        reply(ctx, argc)
    }
}

unsafe extern "C" fn effect(ctx: *mut RedisModuleCtx, argv: *mut *mut RedisModuleString, argc: c_int) -> c_int {
    let (Some(signal_modified), Some(replicate)) = (raw::RedisModule_SignalModifiedKey, raw::RedisModule_Replicate)
    else {
        return raw::REDISMODULE_ERR as c_int;
    };
    // SAFETY: as above; eight strings for the eight places in the format.
    unsafe {
        if argc == 5 {
            let [key, a, b, c] = [1, 2, 3, 4].map(|word| *argv.add(word));
            signal_modified(ctx, key);
            replicate(ctx, c"BENCH.EFFECT".as_ptr(), c"ssssssss".as_ptr(), key, a, b, c, a, b, c, a);
        }
        look(ctx, argv, argc)
    }
}

/// # Safety
/// The context of a call.
unsafe fn reply(ctx: *mut RedisModuleCtx, argc: c_int) -> c_int {
    let (Some(wrong_arity), Some(reply_with_array), Some(reply_with_integer)) =
        (raw::RedisModule_WrongArity, raw::RedisModule_ReplyWithArray, raw::RedisModule_ReplyWithLongLong)
    else {
        return raw::REDISMODULE_ERR as c_int;
    };
    // SAFETY: functions of the server, called with the context of this call.
    unsafe {
        if argc != 5 {
            return wrong_arity(ctx);
        }
        reply_with_array(ctx, REPLY.len() as _);
        for number in REPLY {
            reply_with_integer(ctx, number);
        }
    }
    raw::REDISMODULE_OK as c_int
}
