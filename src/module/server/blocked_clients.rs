//! Clients blocked by ACQUIRE and HOLD: the server blocks them, [`Queues`] orders them, a timer grants and answers.
//!
//! A single timer runs at the earliest instant at which a queue or a deadline is due. Key notifications count nothing: they
//! only make the key's queue due at once, and the timer runs after the command or transaction has ended. One run of the
//! timer takes a bounded time, so that it does not hold up other clients.
//!
//! [`BlockedClient`] holds a client's outcome until the server replies to it. Only [`free`] removes it, which the server
//! calls for every unblocked client, whatever the reason.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::ptr;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis_module::raw;
use swlimit_hold::Holds;
use swlimit_window::Entry;

use super::call::Call;
use super::call_server::CallReply;
use super::caller::Caller;
use super::context::Context;
use super::key::{Key, Mode, Moment};
use super::redirection::redirection;
use super::reply::{Admitted, Reply};
use super::text::{OwnText, Text};
use super::OK;
use crate::commands::QUOTA;
use crate::configuration::MAX_WAITING;
use crate::error::Error;
use crate::queues::{QueueKey, Queues, Waiter, WaiterId, Wish};
use crate::statistics;

/// The server's handle of a blocked client.
type Handle = *mut raw::RedisModuleBlockedClient;

/// How a wait ended.
enum Outcome {
    /// The integers of ALLOW or HOLD, and what is given back if the client is gone before it reads them.
    Granted(Vec<i64>, Option<PendingRefund>),
    /// The decision that denied it.
    Denied(Admitted),
    /// An error, with its code.
    Error(String),
}

/// A client that waits, or that waits for its reply to be sent.
struct BlockedClient {
    id: WaiterId,
    /// The client's ACL user, if it has one.
    user: Option<Box<[u8]>>,
    /// The client's command: its name, key, limit, window, resolution, and so on.
    words: Box<[Box<[u8]>]>,
    outcome: Option<Outcome>,
}

/// What was granted, to give back if the client is gone before its reply.
struct PendingRefund {
    key: QueueKey,
    of: Granted,
}

enum Granted {
    /// Units of a window, counted at an instant.
    Units { units: u64, instant: u64 },
    /// A hold.
    Hold { id: Box<[u8]>, token: u64 },
}

impl PendingRefund {
    fn is_of(&self, key: &QueueKey, hold: &[u8]) -> bool {
        matches!(&self.of, Granted::Hold { id, .. } if **id == *hold) && self.key == *key
    }
}

#[derive(Default)]
struct State {
    queues: Queues,
    /// By the handle's address.
    clients: HashMap<usize, BlockedClient>,
    handles: HashMap<WaiterId, usize>,
    refunds: Vec<PendingRefund>,
    /// Grants whose reply has not been sent.
    unsent: usize,
    /// The queue whose first waiter is being granted.
    granting: Option<QueueKey>,
    /// The timer, and when it runs, in ms by the monotonic clock.
    timer: Option<(raw::RedisModuleTimerID, u64)>,
    /// Whether the timer's callback is running, which sets the timer anew when it ends.
    running: bool,
    /// The address of a context that is always valid, for timers; 0 until a client waits.
    detached: usize,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

/// How often to check again while the server pauses writes, in ms.
const PAUSE_RETRY: u64 = 20;
/// The longest period of the timer, in ms: a day. It is set again then.
const MAX_PERIOD: u64 = 24 * 60 * 60 * 1000;
/// The longest run of the timer's callback.
const TIME_SLICE: Duration = Duration::from_millis(5);

/// Locks the state. Release it before calling the server, which may call back into this module.
fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Call<'_> {
    /// Whether the server lets this call block its client.
    pub fn may_wait(&self) -> bool {
        let forbidding = raw::REDISMODULE_CTX_FLAGS_MULTI
            | raw::REDISMODULE_CTX_FLAGS_LUA
            | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
        !self.has_flags(forbidding)
    }

    /// When the first waiter of a key is due, in Unix ms; `None` when nobody waits.
    pub fn due(&self, name: &Text) -> Option<u64> {
        if statistics::WAITING.get() == 0 {
            return None;
        }
        let (key, state) = ((self.database(), name.bytes().into()), state());
        state.queues.due(&key).filter(|_| state.granting.as_ref() != Some(&key))
    }

    /// Block the client at the end of the key's queue for at most `timeout` ms. `due` is when its wish may be granted if
    /// nothing else is counted, in Unix ms. A hold's id waits once: who waits for it before is let go, and its place taken.
    pub fn wait(&self, name: &Text, wish: Wish, timeout: u64, due: u64) -> Result<Reply, Error> {
        let key: QueueKey = (self.database(), name.bytes().into());
        let before = match &wish {
            Wish::Hold { id, .. } => state().queues.waiter_for(&key, id),
            Wish::Units(_) => None,
        };
        if before.is_none() && state().queues.len() as u64 >= MAX_WAITING.get() {
            return Err(Error::TooManyWaiting);
        }
        let user = self.user_name().map(|name| name.bytes().into());
        let words = self.arguments().iter().map(|word| word.bytes().into()).collect();
        // SAFETY: the context of a call that may block; callbacks of the right type. The server's own timeout is not
        // used: when it coincides with a grant, Redis 7.0 sends no reply at all.
        let handle = unsafe {
            let handle = api!(RedisModule_BlockClient(self.raw(), Some(reply), Some(timed_out), Some(free), 0));
            api!(RedisModule_SetDisconnectCallback(handle, Some(disconnected)));
            handle
        };
        let waiter = Waiter { key, wish, deadline: monotonic_clock() + timeout };
        let id = match before {
            Some(id) => {
                let_go(id);
                state().queues.replace(id, waiter);
                id
            }
            None => state().queues.push(waiter, due),
        };
        let mut state = state();
        state.clients.insert(handle as usize, BlockedClient { id, user, words, outcome: None });
        state.handles.insert(id, handle as usize);
        statistics::WAITING.add(1);
        if state.detached == 0 {
            // SAFETY: a valid context. The detached one is never freed.
            state.detached = unsafe { api!(RedisModule_GetDetachedThreadSafeContext(self.raw())) } as usize;
            subscribe_to_expiries(**self);
        }
        drop(state);
        set_timer(0);
        Ok(Reply::Blocked)
    }

    /// Deny whoever waits for the hold of this id.
    pub fn end_wait(&self, name: &Text, hold: &[u8]) {
        if statistics::WAITING.get() == 0 {
            return;
        }
        let key: QueueKey = (self.database(), name.bytes().into());
        let waiter = {
            let state = state();
            let id = state.queues.waiter_for(&key, hold);
            id.and_then(|id| Some((id, state.queues.waiter(id)?.wish.clone())))
        };
        if let Some((id, wish)) = waiter {
            unblock(id, denial(**self, self.clock(), &key, name, &wish));
        }
    }

    /// Somebody is told that the hold of this id is live: it stays, also when the client is gone that it was granted to.
    pub fn hold_is_known(&self, name: &Text, hold: &[u8]) {
        let mut state = state();
        if state.unsent + state.refunds.len() == 0 {
            return;
        }
        let key: QueueKey = (self.database(), name.bytes().into());
        state.refunds.retain(|refund| !refund.is_of(&key, hold));
        for client in state.clients.values_mut() {
            if let Some(Outcome::Granted(_, refund)) = &mut client.outcome {
                refund.take_if(|refund| refund.is_of(&key, hold));
            }
        }
    }
}

/// Unblock the client of a waiter that goes on waiting for another client.
fn let_go(id: WaiterId) {
    let handle = {
        let mut state = state();
        let Some(handle) = state.handles.remove(&id) else { return };
        if let Some(client) = state.clients.get_mut(&handle) {
            client.id = NOBODY;
            client.outcome = Some(Outcome::Error(WAITS_ELSEWHERE.into()));
        }
        handle as Handle
    };
    statistics::WAITING.subtract(1);
    // SAFETY: the client is still blocked, because `handles` still had it.
    unsafe { api!(RedisModule_UnblockClient(handle, handle.cast())) };
}

/// The waiter of a client that does not wait any more.
const NOBODY: WaiterId = WaiterId::MAX;
const WAITS_ELSEWHERE: &str = "UNBLOCKED another client now waits for this id";

/// A key was changed or removed: check its queue once the command or transaction has ended.
#[inline(always)]
pub(super) fn wake(database: impl FnOnce() -> c_int, name: &Text) {
    if statistics::WAITING.get() > 0 {
        wake_queue(database(), name);
    }
}

#[cold]
fn wake_queue(database: c_int, name: &Text) {
    state().queues.set_due(&(database, name.bytes().into()), 0);
    set_timer(0);
}

/// All keys of one database, or of all, may have changed.
fn wake_all(database: Option<c_int>) {
    if statistics::WAITING.get() > 0 {
        state().queues.wake_all(database);
        set_timer(0);
    }
}

/// Subscribe to the server events that change keys without calling their type's methods, to role changes, and to cron.
///
/// # Safety
/// `ctx` is the context of the module's loading.
pub(super) unsafe fn subscribe(ctx: *mut raw::RedisModuleCtx) -> bool {
    let events = [
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
        raw::REDISMODULE_EVENT_FLUSHDB,
        raw::REDISMODULE_EVENT_SWAPDB,
        raw::REDISMODULE_EVENT_CRON_LOOP,
    ];
    events.into_iter().all(|id| {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the caller's promise, and a callback of the right type.
        unsafe { api!(RedisModule_SubscribeToServerEvent(ctx, event, Some(on_event))) == OK }
    })
}

/// Subscribe to changes of keys' expiries. The server then calls this module for every DEL, RENAME and the like, so it is
/// done only when a client waits for the first time.
fn subscribe_to_expiries(context: Context) {
    let class = raw::REDISMODULE_NOTIFY_GENERIC as c_int;
    // SAFETY: a valid context, and a callback of the right type.
    unsafe { api!(RedisModule_SubscribeToKeyspaceEvents(context.raw(), class, Some(on_key_event))) };
}

unsafe extern "C" fn on_key_event(
    ctx: *mut raw::RedisModuleCtx,
    _class: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: the event's name, and the context and key of this callback.
    unsafe {
        if CStr::from_ptr(event) == c"expire" {
            wake(|| Context::new(ctx).database(), Text::borrow(&key));
        }
    }
    OK
}

unsafe extern "C" fn on_event(
    _ctx: *mut raw::RedisModuleCtx,
    event: raw::RedisModuleEvent,
    subevent: u64,
    data: *mut c_void,
) {
    match (event.id, subevent) {
        (raw::REDISMODULE_EVENT_FLUSHDB, raw::REDISMODULE_SUBEVENT_FLUSHDB_END) => {
            // SAFETY: the data of this event.
            let database = unsafe { (*data.cast::<raw::RedisModuleFlushInfo>()).dbnum };
            wake_all((database >= 0).then_some(database));
        }
        (raw::REDISMODULE_EVENT_SWAPDB, _) => wake_all(None),
        (raw::REDISMODULE_EVENT_CRON_LOOP, _) => check_timer(),
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_REPLICA) => {
            let ids = state().queues.ids();
            for id in ids {
                unblock(id, Outcome::Error(NOW_A_REPLICA.into()));
            }
        }
        _ => {}
    }
}

const UNKNOWN_CLIENT: &str = "ERR unknown blocked client";
/// The error that clients of the server's own blocking commands get.
const NOW_A_REPLICA: &str =
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";

impl State {
    /// ms until a queue or a deadline is due.
    fn next(&self) -> Option<u64> {
        let due = self.queues.next_due().map(|(due, _)| due.saturating_sub(wall_clock()));
        let deadline = self.queues.next_deadline().map(|(deadline, _)| deadline.saturating_sub(monotonic_clock()));
        let refunds = (!self.refunds.is_empty()).then_some(0);
        [due, deadline, refunds].into_iter().flatten().min()
    }
}

/// Set the timer to the next due instant, but at least `least` ms from now.
fn set_timer(least: u64) {
    let mut state = state();
    let Some(next) = state.next().filter(|_| !state.running) else { return };
    let period = next.clamp(least, MAX_PERIOD);
    let at = monotonic_clock() + period;
    if state.timer.is_some_and(|(_, earlier)| earlier <= at) {
        return;
    }
    stop_timer(&mut state);
    let ctx = state.detached as *mut raw::RedisModuleCtx;
    // SAFETY: a context that is never freed, and a callback of the right type.
    let id = unsafe { api!(RedisModule_CreateTimer(ctx, period as i64, Some(on_timer), ptr::null_mut())) };
    state.timer = Some((id, at));
}

fn stop_timer(state: &mut State) {
    if let Some((id, _)) = state.timer.take() {
        // SAFETY: a context that is never freed, and a timer of ours. The server does not call back.
        unsafe { api!(RedisModule_StopTimer(state.detached as *mut raw::RedisModuleCtx, id, ptr::null_mut())) };
    }
}

/// The server's timers follow the wall clock, and so run late when that is set back. Cron checks for that.
fn check_timer() {
    let mut state = state();
    if state.timer.is_some() && state.next() == Some(0) {
        stop_timer(&mut state);
        drop(state);
        set_timer(0);
    }
}

/// The wall clock, in ms. The clock that commands see may be cached.
fn wall_clock() -> u64 {
    // SAFETY: needs nothing.
    unsafe { api!(RedisModule_Milliseconds()) as u64 }
}

/// A clock that nobody can set, in ms.
fn monotonic_clock() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_millis() as u64
}

/// The next thing to do.
enum Task {
    TryGrant(QueueKey),
    TimeIsUp(WaiterId),
}

unsafe extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // SAFETY: the context of this callback.
    let context = unsafe { Context::new(ctx) };
    // SAFETY: needs nothing.
    let paused = unsafe { api!(RedisModule_AvoidReplicaTraffic()) } != 0;
    let began = Instant::now();
    let now = context.clock();
    {
        let mut state = state();
        state.timer = None;
        state.running = true;
    }
    if !paused {
        refund_gone_clients(context);
    }
    while let Some(task) = next_task(now, paused) {
        match task {
            Task::TryGrant(key) => try_grant(context, now, &key),
            Task::TimeIsUp(id) => time_is_up(context, now, id),
        }
        if began.elapsed() > TIME_SLICE {
            break;
        }
    }
    state().running = false;
    set_timer(if paused { PAUSE_RETRY } else { 0 });
}

/// Grants come before timeouts, so that a grant wins a tie, also when the waiter ahead has just timed out.
fn next_task(now: u64, paused: bool) -> Option<Task> {
    let state = state();
    let due = state.queues.next_due().filter(|(due, _)| *due <= now && !paused);
    due.map(|(_, key)| Task::TryGrant(key.clone())).or_else(|| {
        let (deadline, id) = state.queues.next_deadline()?;
        (*deadline <= monotonic_clock()).then_some(Task::TimeIsUp(*id))
    })
}

/// Grant the first waiter of a queue, if it fits. The next one is due at once.
fn try_grant(context: Context, now: u64, key: &QueueKey) {
    let Some((id, wish)) = state().queues.first(key).map(|(id, waiter)| (id, waiter.wish.clone())) else {
        return;
    };
    let name = OwnText::new(&key.1);
    context.select(key.0);
    if let Ok(Some(due)) = denied_until(context, now, &name, &wish) {
        return state().queues.set_due(key, due);
    }
    let Some((user, words)) = command(id) else {
        return unblock(id, Outcome::Error(UNKNOWN_CLIENT.into()));
    };
    if let Err(error) = check_rights(user.as_deref(), &words, &name, key.0) {
        return unblock(id, Outcome::Error(error.to_string()));
    }
    // ALLOW or HOLD counts, replicates and notifies, or returns the error that the waiter gets.
    state().granting = Some(key.clone());
    let reply = call_to_grant(context, &words, &name, &wish);
    state().granting = None;
    let outcome = match reply {
        CallReply::SlotElsewhere => Outcome::Error(redirection(context, &name)),
        CallReply::Error(error) => Outcome::Error(error),
        CallReply::Array(reply) => {
            let reply: Vec<i64> = reply.iter().filter_map(CallReply::integer).collect();
            if reply.first() == Some(&0) {
                // The clock was set back since `denied_until`.
                return state().queues.set_due(key, now + 1);
            }
            statistics::ACQUIRED.add(1);
            let of = match wish {
                Wish::Units(request) => Granted::Units { units: request.cost, instant: now },
                Wish::Hold { id, .. } => {
                    Granted::Hold { id, token: reply.last().map_or(0, |token| token.unsigned_abs()) }
                }
            };
            Outcome::Granted(reply, Some(PendingRefund { key: key.clone(), of }))
        }
        other => Outcome::Error(format!("ERR unexpected reply {other:?}")),
    };
    unblock(id, outcome);
}

/// When a denied wish may be granted, in Unix ms; `None` when it can be now.
fn denied_until(context: Context, now: u64, name: &Text, wish: &Wish) -> Result<Option<u64>, Error> {
    match wish {
        Wish::Units(request) => {
            let key = Key::open(context, name, Mode::Read)?;
            let decision = Entry::peek(key.entry(), now, request)?;
            Ok((decision.granted == 0).then(|| key.next_check(now, decision.retry_after)))
        }
        Wish::Hold { limit, ttl, id, cost } => {
            let key = Key::<Holds>::open(context, name, Mode::Read)?;
            let request = swlimit_hold::Request { limit: *limit, ttl: *ttl, id, cost: *cost };
            let decision = Holds::peek(key.entry(), now, &request);
            Ok((decision.granted == 0).then(|| key.next_check(now, decision.retry_after)))
        }
    }
}

/// The decision upon a wish as it reads now.
fn peek(context: Context, now: u64, name: &Text, wish: &Wish) -> Result<Admitted, Error> {
    match wish {
        Wish::Units(request) => {
            let key = Key::open(context, name, Mode::Read)?;
            Ok(Admitted::Units(Entry::peek(key.entry(), now, request)?))
        }
        Wish::Hold { limit, ttl, id, cost } => {
            let key = Key::open(context, name, Mode::Read)?;
            let request = swlimit_hold::Request { limit: *limit, ttl: *ttl, id, cost: *cost };
            Ok(Admitted::Hold(Holds::peek(key.entry(), now, &request)))
        }
    }
}

/// A waiter's ACL user, and its command.
fn command(id: WaiterId) -> Option<(Option<OwnText>, Vec<OwnText>)> {
    let state = state();
    let client = state.clients.get(state.handles.get(&id)?)?;
    let words = client.words.iter().map(|word| OwnText::new(word)).collect();
    Some((client.user.as_deref().map(OwnText::new), words))
}

/// NOPERM if the waiter's user has lost its rights since it began to wait.
fn check_rights(user: Option<&Text>, words: &[OwnText], key: &Text, database: c_int) -> Result<(), Error> {
    match user {
        Some(user) => Caller::named(user, OwnText::borrow_slice(words)).check(key, database),
        None => Ok(()),
    }
}

/// Call the command that grants a wish, with the words for it that the client has given.
fn call_to_grant(context: Context, command: &[OwnText], name: &Text, wish: &Wish) -> CallReply {
    let Some([first, second, third]) = command.get(QUOTA..).and_then(<[OwnText]>::first_chunk) else {
        return CallReply::Other;
    };
    let [cost_word, strict] = [&b"COST"[..], b"STRICT"].map(OwnText::new);
    let cost = OwnText::new(wish.cost().to_string().as_bytes());
    let mut words: Vec<&Text> = vec![name, first, second, third, &cost_word, &cost];
    match wish {
        Wish::Units(request) => {
            if request.strict {
                words.push(&strict);
            }
            context.call_deny_oom(c"SWLIMIT.ALLOW", &words)
        }
        Wish::Hold { .. } => context.call_deny_oom(c"SWLIMIT.HOLD", &words),
    }
}

/// Deny a waiter whose timeout has passed.
fn time_is_up(context: Context, now: u64, id: WaiterId) {
    let Some((key, wish)) = state().queues.waiter(id).map(|waiter| (waiter.key.clone(), waiter.wish.clone())) else {
        return;
    };
    let name = OwnText::new(&key.1);
    context.select(key.0);
    let outcome = denial(context, now, &key, &name, &wish);
    unblock(id, outcome);
}

/// The outcome of a wait without a grant; counts and notifies the denial.
fn denial(context: Context, now: u64, key: &QueueKey, name: &Text, wish: &Wish) -> Outcome {
    if context.slot_is_elsewhere(name) {
        return Outcome::Error(redirection(context, name));
    }
    match peek(context, now, name, wish) {
        Ok(decision) => {
            context.count_denial(name, Moment::Clock(now));
            context.notify(c"swlimit.denied", name);
            let due = state().queues.due(key).unwrap_or(0);
            let ms = due.saturating_sub(now).max(1);
            Outcome::Denied(match decision {
                Admitted::Units(decision) => Admitted::Units(decision.behind(ms)),
                Admitted::Hold(decision) => Admitted::Hold(decision.behind(ms)),
            })
        }
        Err(error) => Outcome::Error(error.to_string()),
    }
}

/// End a wait: unblock the client with this outcome. A wait without a grant counts as denied.
fn unblock(id: WaiterId, outcome: Outcome) {
    let handle = {
        let mut state = state();
        let waiter = state.queues.remove(id);
        let handle = state.handles.remove(&id);
        let (Some(Waiter { wish, .. }), Some(handle)) = (waiter, handle) else {
            // A subscriber of the grant's key event has ended the wait meanwhile.
            return state.refund_later(outcome);
        };
        match outcome {
            Outcome::Granted(..) => state.unsent += 1,
            _ => statistics::denied(wish.cost()),
        }
        if let Some(client) = state.clients.get_mut(&handle) {
            client.outcome = Some(outcome);
        }
        handle as Handle
    };
    statistics::WAITING.subtract(1);
    // SAFETY: the client is still blocked, because `handles` still had it.
    unsafe { api!(RedisModule_UnblockClient(handle, handle.cast())) };
}

/// The server's callback to reply to a client that was unblocked.
unsafe extern "C" fn reply(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the context of this callback, with what the client was unblocked with.
    let (context, handle) = unsafe { (Context::new(ctx), api!(RedisModule_GetBlockedClientPrivateData(ctx)) as usize) };
    match state().take_outcome(handle) {
        Some(Outcome::Granted(reply, _)) => Reply::Integers(reply).send(context),
        Some(Outcome::Denied(decision)) => decision.into_reply().send(context),
        Some(Outcome::Error(error)) => context.reply_error_text(error),
        None => context.reply_error_text(UNKNOWN_CLIENT.into()),
    }
    OK
}

/// The server's callback for `CLIENT UNBLOCK … TIMEOUT`, which replies at once.
unsafe extern "C" fn timed_out(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the context of this callback, with the client's handle.
    let (context, handle) = unsafe { (Context::new(ctx), api!(RedisModule_GetBlockedClientHandle(ctx)) as usize) };
    let waiter = {
        let state = state();
        state.clients.get(&handle).and_then(|client| Some((client.id, state.queues.waiter(client.id)?.clone())))
    };
    if let Some((id, Waiter { key, wish, .. })) = waiter {
        let name = OwnText::new(&key.1);
        let outcome = denial(context, context.clock(), &key, &name, &wish);
        match &outcome {
            Outcome::Denied(decision) => decision.into_reply().send(context),
            Outcome::Error(error) => context.reply_error_text(error.clone()),
            Outcome::Granted(..) => {}
        }
        unblock(id, outcome);
    }
    OK
}

/// The server's callback for a client that disconnected, was killed, or unblocked by `CLIENT UNBLOCK … ERROR`.
unsafe extern "C" fn disconnected(_ctx: *mut raw::RedisModuleCtx, handle: Handle) {
    let mut state = state();
    let Some(id) = state.clients.get(&(handle as usize)).map(|client| client.id) else { return };
    if let Some(outcome) = state.take_outcome(handle as usize) {
        state.refund_later(outcome);
        drop(state);
        set_timer(0);
    } else {
        drop(state);
        unblock(id, Outcome::Error(String::new()));
    }
}

impl State {
    /// Schedule the refund of a grant whose client is gone.
    fn refund_later(&mut self, outcome: Outcome) {
        if let Outcome::Granted(_, refund) = outcome {
            self.refunds.extend(refund);
        }
    }

    /// What is to be replied to a client, which is then not there any more.
    fn take_outcome(&mut self, handle: usize) -> Option<Outcome> {
        let outcome = self.clients.get_mut(&handle)?.outcome.take();
        if let Some(Outcome::Granted(..)) = outcome {
            self.unsent -= 1;
        }
        outcome
    }
}

/// Refund grants whose clients were gone before their reply. This runs in the timer: a write in the disconnect callback
/// would replicate as part of the command that disconnected the client.
fn refund_gone_clients(context: Context) {
    let refunds = std::mem::take(&mut state().refunds);
    for PendingRefund { key, of } in refunds {
        context.select(key.0);
        match of {
            Granted::Units { units, instant } => {
                let (units, instant) = (units.to_string(), instant.to_string());
                let words = [&key.1[..], units.as_bytes(), b"SINCE", instant.as_bytes()].map(OwnText::new);
                context.call(c"SWLIMIT.REFUND", &words.each_ref().map(|word| &**word));
            }
            Granted::Hold { id, token } => {
                let words = [&key.1[..], &id].map(OwnText::new);
                let now = context.clock();
                let is_same = |key: Key<Holds>| {
                    key.entry().and_then(|holds| holds.get(&id, now)).is_some_and(|hold| hold.token() == token)
                };
                if Key::open(context, &words[0], Mode::Read).is_ok_and(is_same) {
                    context.call(c"SWLIMIT.RELEASE", &words.each_ref().map(|word| &**word));
                }
            }
        }
    }
}

/// The server's callback when it drops a client's handle.
unsafe extern "C" fn free(_ctx: *mut raw::RedisModuleCtx, handle: *mut c_void) {
    let mut state = state();
    state.clients.remove(&(handle as usize));
    if state.clients.is_empty() {
        state.clients.shrink_to_fit();
        state.handles.shrink_to_fit();
        state.queues.shrink();
    }
}
