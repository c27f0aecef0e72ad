//! `BENCH.FLOOR key limit window resolution`: takes what `SWLIMIT.ALLOW` takes, replies what it replies, does nothing.
//!
//! What is left is the price that the server asks of any module command of that shape.

use std::ffi::c_int;

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

fn load(context: &Context, _arguments: &[RedisString]) -> Status {
    // SAFETY: the server is loading this module, and this is its context; it copies the strings.
    let created = unsafe {
        raw::RedisModule_CreateCommand.is_some_and(|create| {
            let (name, flags) = (c"bench.floor".as_ptr(), c"write deny-oom fast".as_ptr());
            create(context.ctx, name, Some(floor), flags, 1, 1, 1) == raw::REDISMODULE_OK as c_int
        })
    };
    if created {
        Status::Ok
    } else {
        Status::Err
    }
}

unsafe extern "C" fn floor(ctx: *mut RedisModuleCtx, _argv: *mut *mut RedisModuleString, argc: c_int) -> c_int {
    let (Some(wrong_arity), Some(reply_with_array), Some(reply_with_integer)) =
        (raw::RedisModule_WrongArity, raw::RedisModule_ReplyWithArray, raw::RedisModule_ReplyWithLongLong)
    else {
        return raw::REDISMODULE_ERR as c_int;
    };
    // SAFETY: functions of the server, called with the context of this call.
    unsafe {
        if argc < 5 {
            return wrong_arity(ctx);
        }
        reply_with_array(ctx, REPLY.len() as _);
        for number in REPLY {
            reply_with_integer(ctx, number);
        }
    }
    raw::REDISMODULE_OK as c_int
}
