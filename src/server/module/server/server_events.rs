//! The server's own events. A module has one callback for each kind, so this one tells all whom it concerns.

use std::ffi::{c_int, c_void};

use redis_module::raw;

use super::blocking::Waiting;
use super::context::Context;
use super::effect::listeners;
use super::{changes, OK};

const KINDS: [u64; 6] = [
    raw::REDISMODULE_EVENT_CRON_LOOP,
    raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
    raw::REDISMODULE_EVENT_FORK_CHILD,
    raw::REDISMODULE_EVENT_PERSISTENCE,
    // These change keys without calling their type's methods.
    raw::REDISMODULE_EVENT_FLUSHDB,
    raw::REDISMODULE_EVENT_SWAPDB,
];

/// Subscribe to the server's events; whether the server agrees.
///
/// # Safety
/// `ctx` is the context of the module's loading.
pub(super) unsafe fn subscribe<W: Waiting>(ctx: *mut raw::RedisModuleCtx) -> bool {
    KINDS.into_iter().all(|id| {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the caller's promise, and a callback of the right type.
        unsafe { api!(RedisModule_SubscribeToServerEvent(ctx, event, Some(on_event::<W>))) == OK }
    })
}

unsafe extern "C" fn on_event<W: Waiting>(
    ctx: *mut raw::RedisModuleCtx,
    event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    match (event.id, subevent) {
        (raw::REDISMODULE_EVENT_CRON_LOOP, _) => {
            // SAFETY: the context and the data of this event.
            let (context, crons) = unsafe { (Context::new(ctx), (*data.cast::<raw::RedisModuleCronLoopInfo>()).hz) };
            listeners::look_at_times(context, crons.unsigned_abs());
            W::check();
        }
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, now) => {
            listeners::expect();
            if now == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_REPLICA {
                W::is_replica();
            }
        }
        (raw::REDISMODULE_EVENT_FLUSHDB, raw::REDISMODULE_SUBEVENT_FLUSHDB_END) => {
            // SAFETY: the data of this event.
            let database: c_int = unsafe { (*data.cast::<raw::RedisModuleFlushInfo>()).dbnum };
            changes::all_changed((database >= 0).then_some(database));
        }
        (raw::REDISMODULE_EVENT_SWAPDB, _) => changes::all_changed(None),
        (raw::REDISMODULE_EVENT_FORK_CHILD | raw::REDISMODULE_EVENT_PERSISTENCE, _) => listeners::expect(),
        _ => {}
    }
}
