//! Blocks and unblocks clients, and runs a timer. What becomes of them is decided by [`Waiting`].

use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use redis_module::raw;

use super::call::Call;
use super::changes;
use super::context::Context;
use super::reply::Reply;
use super::OK;

/// A client that was blocked, until [`Waiting::is_dropped`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockedClient(usize);

/// A reply, or an error with its code.
pub type Answer = Result<Reply, String>;

/// What becomes of blocked clients.
pub trait Waiting {
    /// The reply to a client that was unblocked.
    fn answer(client: BlockedClient) -> Answer;
    /// `CLIENT UNBLOCK … TIMEOUT`: ends the client's wait, and the server unblocks it; the reply. Raises no event, because the server goes on with the
    /// client.
    fn has_timed_out(context: Context, client: BlockedClient) -> Answer;
    /// The client is gone, or was unblocked by `CLIENT UNBLOCK … ERROR`.
    fn is_gone(client: BlockedClient);
    /// The server has replied to the client, or forgotten it.
    fn is_dropped(client: BlockedClient);
    /// The timer has run out. `is_paused`: the server pauses writes.
    fn run(context: Context, is_paused: bool);
    /// Runs some times a second.
    fn check();
    /// The server has become a replica.
    fn is_replica();
}

/// The clients that are blocked: the server takes a handle for unblocking once.
static BLOCKED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
/// A context that is valid for ever, for timers; null until a client is blocked.
static DETACHED: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(ptr::null_mut());

fn blocked() -> MutexGuard<'static, BTreeSet<usize>> {
    BLOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Call<'_> {
    /// Whether the server lets this call block its client.
    pub fn may_block(&self) -> bool {
        let forbidding = raw::REDISMODULE_CTX_FLAGS_MULTI
            | raw::REDISMODULE_CTX_FLAGS_LUA
            | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
        !self.has_flags(forbidding)
    }

    /// Block the client; the call replies with [`Reply::Blocked`].
    pub fn block<W: Waiting>(&self) -> BlockedClient {
        // SAFETY: the context of a call that may block; callbacks of the right type. The server's own timeout is not
        // used: when it coincides with a grant, Redis 7.0 sends no reply at all. A detached context is never freed.
        let handle = unsafe {
            if DETACHED.load(Ordering::Relaxed).is_null() {
                DETACHED.store(api!(RedisModule_GetDetachedThreadSafeContext(self.raw())), Ordering::Relaxed);
                changes::listen_to_expiries(**self);
            }
            let handle =
                api!(RedisModule_BlockClient(self.raw(), Some(reply::<W>), Some(timed_out::<W>), Some(free::<W>), 0));
            api!(RedisModule_SetDisconnectCallback(handle, Some(disconnected::<W>)));
            handle
        };
        blocked().insert(handle as usize);
        BlockedClient(handle as usize)
    }
}

impl BlockedClient {
    /// Unblock the client, if it is still blocked: the server then asks for its [answer](Waiting::answer).
    pub fn unblock(self) {
        let is_blocked = blocked().remove(&self.0);
        if is_blocked {
            let handle = self.0 as *mut raw::RedisModuleBlockedClient;
            // SAFETY: the handle of a client that is still blocked.
            unsafe { api!(RedisModule_UnblockClient(handle, handle.cast())) };
        }
    }
}

/// A timer that may have run out.
#[derive(Clone, Copy)]
pub struct Timer(raw::RedisModuleTimerID);

impl Timer {
    /// Let [`Waiting::run`] be called in so many ms. A client has been blocked before.
    pub fn start<W: Waiting>(ms: u64) -> Option<Self> {
        let ctx = DETACHED.load(Ordering::Relaxed);
        if ctx.is_null() {
            return None;
        }
        // SAFETY: a context that is never freed, and a callback of the right type.
        let id = unsafe { api!(RedisModule_CreateTimer(ctx, ms as i64, Some(on_timer::<W>), ptr::null_mut())) };
        Some(Self(id))
    }

    /// Stop it. The server does not call back.
    pub fn stop(self) {
        let ctx = DETACHED.load(Ordering::Relaxed);
        // SAFETY: a context that is never freed; the server knows which timers have run out.
        unsafe { api!(RedisModule_StopTimer(ctx, self.0, ptr::null_mut())) };
    }
}

/// The wall clock, in ms. The clock that commands see may be cached.
pub fn wall_clock() -> u64 {
    // SAFETY: needs nothing.
    unsafe { api!(RedisModule_Milliseconds()) as u64 }
}

unsafe extern "C" fn on_timer<W: Waiting>(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // SAFETY: needs nothing.
    let is_paused = unsafe { api!(RedisModule_AvoidReplicaTraffic()) } != 0;
    // SAFETY: the context of this callback.
    W::run(unsafe { Context::new(ctx) }, is_paused);
}

unsafe extern "C" fn reply<W: Waiting>(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the context of this callback, with what the client was unblocked with.
    let (context, handle) = unsafe { (Context::new(ctx), api!(RedisModule_GetBlockedClientPrivateData(ctx))) };
    send(context, W::answer(BlockedClient(handle as usize)));
    OK
}

unsafe extern "C" fn timed_out<W: Waiting>(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the context of this callback, with the client's handle.
    let (context, handle) = unsafe { (Context::new(ctx), api!(RedisModule_GetBlockedClientHandle(ctx)) as usize) };
    send(context, W::has_timed_out(context, BlockedClient(handle)));
    BlockedClient(handle).unblock();
    OK
}

fn send(context: Context, answer: Answer) {
    match answer {
        Ok(reply) => reply.send(context),
        Err(error) => context.reply_error_text(error),
    }
}

unsafe extern "C" fn disconnected<W: Waiting>(
    _ctx: *mut raw::RedisModuleCtx,
    handle: *mut raw::RedisModuleBlockedClient,
) {
    let client = BlockedClient(handle as usize);
    W::is_gone(client);
    client.unblock();
}

unsafe extern "C" fn free<W: Waiting>(_ctx: *mut raw::RedisModuleCtx, handle: *mut c_void) {
    blocked().remove(&(handle as usize));
    W::is_dropped(BlockedClient(handle as usize));
}
