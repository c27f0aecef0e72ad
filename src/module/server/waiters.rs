//! Clients that wait for their turn: blocked by the server, kept in a queue of ours, answered from a timer.
//!
//! One timer, for the earliest instant at which anything has to be looked at. Nothing is counted within a notification of
//! the server's: what changes a key only makes its queue due at once, and the timer follows when the command or
//! transaction has ended. It does a bounded part of what there is to do, so that others are not kept from the server.
//!
//! A client that waits has a seat. It is given up in one place, [`free`], which the server calls for every client it
//! unblocked, whatever became of it. Until then a seat says what the client is to be answered, if that is known.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis_module::raw;
use swlimit_window::{Decision, Demand, Entry};

use super::ask::Answer;
use super::call::Call;
use super::context::Context;
use super::key::{Key, Mode, Moment};
use super::redirection::redirection;
use super::reply::Reply;
use super::text::{OwnText, Text};
use super::OK;
use crate::configuration::MAX_WAITING;
use crate::error::Error;
use crate::statistics;
use crate::waiting::{Place, Ticket, Waiter, Waiting};

/// A blocked client's handle, by which the server and we know it.
type Handle = *mut raw::RedisModuleBlockedClient;

/// What a waiting client is answered.
enum Outcome {
    /// The five integers of a grant, which is given back if nobody takes it.
    Granted(Vec<i64>, Return),
    /// The decision that denies.
    Denied(Decision),
    /// An error, with its code.
    Error(String),
}

/// A client that waits, or that has not been answered yet.
struct Seat {
    ticket: Ticket,
    /// `limit window resolution`, as the client spells them.
    quota: [Box<[u8]>; 3],
    outcome: Option<Outcome>,
}

/// Units of a grant, for somebody who may be gone before the answer.
struct Return {
    place: Place,
    units: u64,
    instant: u64,
}

#[derive(Default)]
struct Room {
    waiting: Waiting,
    /// By the address of the handle.
    seats: HashMap<usize, Seat>,
    handles: HashMap<Ticket, usize>,
    returns: Vec<Return>,
    /// The timer, and the instant it is set to, in ms by the steady clock.
    timer: Option<(raw::RedisModuleTimerID, u64)>,
    /// Whether the timer is at work, and will be set anew.
    at_work: bool,
    /// A context that is valid at all times, for timers; null until somebody waits.
    detached: usize,
}

static ROOM: LazyLock<Mutex<Room>> = LazyLock::new(Mutex::default);

/// While the server pauses writes, look again after so many ms.
const PAUSED: u64 = 20;
/// The longest that a timer is set to, in ms: a day. It is looked at again then.
const LONGEST: u64 = 24 * 60 * 60 * 1000;
/// How long the server is kept at a time.
const PART: Duration = Duration::from_millis(5);

/// The room; never kept while the server is called, which may call back.
fn room() -> MutexGuard<'static, Room> {
    ROOM.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Call<'_> {
    /// Whether the client can be made to wait.
    pub fn may_wait(&self) -> bool {
        let forbidding = raw::REDISMODULE_CTX_FLAGS_MULTI
            | raw::REDISMODULE_CTX_FLAGS_LUA
            | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
        !self.has_flags(forbidding)
    }

    /// When the first of those who wait for a key may be granted, in ms; `None` when nobody does.
    pub fn due(&self, name: &Text) -> Option<u64> {
        if statistics::WAITING.get() == 0 {
            return None;
        }
        room().waiting.due(&(self.database(), name.bytes().into()))
    }

    /// Let the client wait behind all others, for as long as `timeout`, in ms; `due` is when its demand would fit if
    /// nothing else is counted.
    pub fn wait(&self, name: &Text, quota: &[Text; 3], demand: Demand, timeout: u64, due: u64) -> Result<Reply, Error> {
        if room().waiting.len() as u64 >= MAX_WAITING.get() {
            return Err(Error::TooManyWaiting);
        }
        // SAFETY: the context of a call that may block; callbacks of the server's form. The server's own timeout is not
        // used: with a grant in the same instant, some releases would answer nothing.
        let handle = unsafe {
            let handle = api!(RedisModule_BlockClient(self.raw(), Some(answer), Some(time_out), Some(free), 0));
            api!(RedisModule_SetDisconnectCallback(handle, Some(disconnected)));
            handle
        };
        let mut room = room();
        let place: Place = (self.database(), name.bytes().into());
        let ticket = room.waiting.join(Waiter { place, demand, deadline: steady_clock() + timeout }, due);
        let quota = quota.each_ref().map(|word| word.bytes().into());
        room.seats.insert(handle as usize, Seat { ticket, quota, outcome: None });
        room.handles.insert(ticket, handle as usize);
        statistics::WAITING.add(1);
        if room.detached == 0 {
            // SAFETY: a valid context, and one made of it that is for ever.
            room.detached = unsafe { api!(RedisModule_GetDetachedThreadSafeContext(self.raw())) } as usize;
        }
        drop(room);
        set_timer(0);
        Ok(Reply::Later)
    }
}

/// A key has changed or gone: its queue goes on once the command or transaction has ended.
#[inline(always)]
pub(super) fn wake(database: impl FnOnce() -> c_int, name: &Text) {
    if statistics::WAITING.get() > 0 {
        wake_queue(database(), name);
    }
}

#[cold]
fn wake_queue(database: c_int, name: &Text) {
    room().waiting.postpone(&(database, name.bytes().into()), 0);
    set_timer(0);
}

/// All keys may have changed, of one database or of all.
fn wake_all(database: Option<c_int>) {
    if statistics::WAITING.get() > 0 {
        room().waiting.wake(database);
        set_timer(0);
    }
}

/// Hear of what changes keys without telling their types, of becoming a replica, and that time passes.
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
        // SAFETY: the caller's promise, and a callback of the server's form.
        unsafe { api!(RedisModule_SubscribeToServerEvent(ctx, event, Some(on_event))) == OK }
    })
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
            let tickets = room().waiting.tickets();
            for ticket in tickets {
                finish(ticket, Outcome::Error(NOW_A_REPLICA.into()));
            }
        }
        _ => {}
    }
}

/// What clients of the server's own blocking commands are told.
const NOW_A_REPLICA: &str =
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";

impl Room {
    /// In how many ms something has to be looked at.
    fn next(&self) -> Option<u64> {
        let due = self.waiting.next_due().map(|(due, _)| due.saturating_sub(wall_clock()));
        let deadline = self.waiting.next_deadline().map(|(deadline, _)| deadline.saturating_sub(steady_clock()));
        let returns = (!self.returns.is_empty()).then_some(0);
        [due, deadline, returns].into_iter().flatten().min()
    }
}

/// Set the timer to when something has to be looked at, but to no sooner than so many ms from now.
fn set_timer(least: u64) {
    let mut room = room();
    let Some(next) = room.next().filter(|_| !room.at_work) else { return };
    let period = next.clamp(least, LONGEST);
    let at = steady_clock() + period;
    if room.timer.is_some_and(|(_, earlier)| earlier <= at) {
        return;
    }
    stop_timer(&mut room);
    let ctx = room.detached as *mut raw::RedisModuleCtx;
    // SAFETY: a context that is for ever, and a callback of the server's form.
    let id = unsafe { api!(RedisModule_CreateTimer(ctx, period as i64, Some(on_timer), ptr::null_mut())) };
    room.timer = Some((id, at));
}

fn stop_timer(room: &mut Room) {
    if let Some((id, _)) = room.timer.take() {
        // SAFETY: a context that is for ever, and a timer of ours. The server does not call back.
        unsafe { api!(RedisModule_StopTimer(room.detached as *mut raw::RedisModuleCtx, id, ptr::null_mut())) };
    }
}

/// The server's timers go by the wall clock. When that is set, they come early or late, and this is what notices.
fn check_timer() {
    let mut room = room();
    if room.timer.is_some() && room.next() == Some(0) {
        stop_timer(&mut room);
        drop(room);
        set_timer(0);
    }
}

/// The wall clock, in ms: the one that commands see may stand still.
fn wall_clock() -> u64 {
    // SAFETY: needs nothing.
    unsafe { api!(RedisModule_Milliseconds()) as u64 }
}

/// A clock that nobody sets, in ms.
fn steady_clock() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_millis() as u64
}

/// What is to be done next.
enum Task {
    Serve(Place),
    GiveUp(Ticket),
}

unsafe extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    // SAFETY: the context of this callback.
    let context = unsafe { Context::new(ctx) };
    // SAFETY: needs nothing.
    let paused = unsafe { api!(RedisModule_AvoidReplicaTraffic()) } != 0;
    let began = Instant::now();
    let now = context.clock();
    {
        let mut room = room();
        room.timer = None;
        room.at_work = true;
    }
    if !paused {
        give_back(context, now);
    }
    while let Some(task) = next_task(now, paused) {
        match task {
            Task::Serve(place) => serve(context, now, &place),
            Task::GiveUp(ticket) => give_up(context, now, ticket),
        }
        if began.elapsed() > PART {
            break;
        }
    }
    room().at_work = false;
    set_timer(if paused { PAUSED } else { 0 });
}

/// Grants come first: one wins a tie with a timeout, also when somebody ahead has only just given up.
fn next_task(now: u64, paused: bool) -> Option<Task> {
    let room = room();
    let due = room.waiting.next_due().filter(|(due, _)| *due <= now && !paused);
    due.map(|(_, place)| Task::Serve(place.clone())).or_else(|| {
        let (deadline, ticket) = room.waiting.next_deadline()?;
        (*deadline <= steady_clock()).then_some(Task::GiveUp(*ticket))
    })
}

/// Grant the first in a key's queue, if it fits. The next one's turn follows at once.
fn serve(context: Context, now: u64, place: &Place) {
    let Some((ticket, demand)) = room().waiting.first(place).map(|(ticket, waiter)| (ticket, waiter.demand)) else {
        return;
    };
    let name = OwnText::new(&place.1);
    context.select(place.0);
    if let Ok(Some(retry_after)) = denied_for(context, now, &name, &demand) {
        return room().waiting.postpone(place, now + retry_after);
    }
    // What ALLOW would answer: the grant, counted and told, or an error.
    let outcome = match ask_to_allow(context, ticket, &name, &demand) {
        Answer::Elsewhere => Outcome::Error(redirection(context, &name)),
        Answer::Error(error) => Outcome::Error(error),
        Answer::Array(reply) => {
            let reply: Vec<i64> = reply.iter().filter_map(Answer::integer).collect();
            if reply.first() == Some(&0) {
                // The clock was set back between two looks at it.
                return room().waiting.postpone(place, now + 1);
            }
            statistics::ACQUIRED.add(1);
            Outcome::Granted(reply, Return { place: place.clone(), units: demand.cost, instant: now })
        }
        other => Outcome::Error(format!("ERR unexpected answer {other:?}")),
    };
    finish(ticket, outcome);
}

/// How many ms, at least one, a demand is denied for; `None` when it fits now.
fn denied_for(context: Context, now: u64, name: &Text, demand: &Demand) -> Result<Option<u64>, Error> {
    let key = Key::open(context, name, Mode::Read)?;
    let decision = Entry::peek(key.entry(), now, demand)?;
    Ok((decision.granted == 0).then(|| decision.retry_after.unwrap_or(u64::MAX - now).max(1)))
}

fn ask_to_allow(context: Context, ticket: Ticket, name: &Text, demand: &Demand) -> Answer {
    let [cost_word, strict] = [&b"COST"[..], b"STRICT"].map(OwnText::new);
    let cost = OwnText::new(demand.cost.to_string().as_bytes());
    let quota = {
        let room = room();
        let seat = room.handles.get(&ticket).and_then(|handle| room.seats.get(handle));
        let Some(seat) = seat else { return Answer::Other };
        seat.quota.each_ref().map(|word| OwnText::new(word))
    };
    let mut words: Vec<&Text> = vec![name, &quota[0], &quota[1], &quota[2], &cost_word, &cost];
    if demand.strict {
        words.push(&strict);
    }
    context.ask_for_memory(c"SWLIMIT.ALLOW", &words)
}

/// Answer somebody whose time has passed.
fn give_up(context: Context, now: u64, ticket: Ticket) {
    let Some((place, demand)) = room().waiting.waiter(ticket).map(|waiter| (waiter.place.clone(), waiter.demand))
    else {
        return;
    };
    let name = OwnText::new(&place.1);
    context.select(place.0);
    let outcome = denial(context, now, &place, &name, &demand);
    finish(ticket, outcome);
}

/// The answer to somebody who has waited in vain, of which subscribers are told.
fn denial(context: Context, now: u64, place: &Place, name: &Text, demand: &Demand) -> Outcome {
    if context.is_elsewhere(name) {
        return Outcome::Error(redirection(context, name));
    }
    let decision = Key::open(context, name, Mode::Read).and_then(|key| Ok(Entry::peek(key.entry(), now, demand)?));
    match decision {
        Ok(decision) => {
            context.count_denial(name, Moment::Clock(now));
            context.notify(c"swlimit.denied", name);
            let due = room().waiting.due(place).unwrap_or(0);
            Outcome::Denied(decision.behind(due.saturating_sub(now).max(1)))
        }
        Err(error) => Outcome::Error(error.to_string()),
    }
}

/// Let a client go, with an answer. A wait without a grant is a denial.
fn finish(ticket: Ticket, outcome: Outcome) {
    let handle = {
        let mut room = room();
        let waiter = room.waiting.leave(ticket);
        let handle = room.handles.remove(&ticket);
        let (Some(Waiter { demand, .. }), Some(handle)) = (waiter, handle) else {
            // It was made to go by somebody who heard of the grant.
            return room.give_back_later(outcome);
        };
        if !matches!(outcome, Outcome::Granted(..)) {
            statistics::denied(demand.cost);
        }
        if let Some(seat) = room.seats.get_mut(&handle) {
            seat.outcome = Some(outcome);
        }
        handle as Handle
    };
    statistics::WAITING.subtract(1);
    // SAFETY: a client that was blocked and has not been unblocked, as it still had a handle.
    unsafe { api!(RedisModule_UnblockClient(handle, handle.cast())) };
}

/// The server answers a client that was let go.
unsafe extern "C" fn answer(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the context of this callback, with what the client was unblocked with.
    let (context, handle) = unsafe { (Context::new(ctx), api!(RedisModule_GetBlockedClientPrivateData(ctx)) as usize) };
    let outcome = room().seats.get_mut(&handle).and_then(|seat| seat.outcome.take());
    match outcome {
        Some(Outcome::Granted(reply, _)) => Reply::Integers(reply).send(context),
        Some(Outcome::Denied(decision)) => Reply::Decision(decision).send(context),
        Some(Outcome::Error(error)) => context.reply_error_text(error),
        None => context.reply_error_text("ERR nothing is known of this client".into()),
    }
    OK
}

/// Somebody has ended a client's wait with `CLIENT UNBLOCK … TIMEOUT`: it is answered here.
unsafe extern "C" fn time_out(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the context of this callback, with the client's handle.
    let (context, handle) = unsafe { (Context::new(ctx), api!(RedisModule_GetBlockedClientHandle(ctx)) as usize) };
    let waiter = {
        let room = room();
        room.seats.get(&handle).and_then(|seat| Some((seat.ticket, room.waiting.waiter(seat.ticket)?.clone())))
    };
    if let Some((ticket, Waiter { place, demand, .. })) = waiter {
        let name = OwnText::new(&place.1);
        let outcome = denial(context, context.clock(), &place, &name, &demand);
        match &outcome {
            Outcome::Denied(decision) => Reply::Decision(*decision).send(context),
            Outcome::Error(error) => context.reply_error_text(error.clone()),
            Outcome::Granted(..) => {}
        }
        finish(ticket, outcome);
    }
    OK
}

/// A client is gone: killed, closed, or unblocked with an error by somebody else.
unsafe extern "C" fn disconnected(_ctx: *mut raw::RedisModuleCtx, handle: Handle) {
    let mut room = room();
    let Some(seat) = room.seats.get_mut(&(handle as usize)) else { return };
    let (ticket, outcome) = (seat.ticket, seat.outcome.take());
    if let Some(outcome) = outcome {
        room.give_back_later(outcome);
        drop(room);
        set_timer(0);
    } else {
        drop(room);
        finish(ticket, Outcome::Error(String::new()));
    }
}

impl Room {
    /// Give back what was granted to somebody who is gone, if that is what became of the wait.
    fn give_back_later(&mut self, outcome: Outcome) {
        if let Outcome::Granted(_, units) = outcome {
            self.returns.push(units);
        }
    }
}

/// Give back what was granted to clients that were gone before they were answered. Not where that is noticed: what is
/// written there would be taken for a part of the command that made them go.
fn give_back(context: Context, now: u64) {
    let returns = std::mem::take(&mut room().returns);
    for Return { place, units, instant } in returns {
        let age = now.saturating_sub(instant);
        let words =
            [&place.1[..], units.to_string().as_bytes(), b"AGE", format!("{age}ms").as_bytes()].map(OwnText::new);
        context.select(place.0);
        context.ask(c"SWLIMIT.REFUND", &words.each_ref().map(|word| &**word));
    }
}

/// The server needs a client's handle no longer.
unsafe extern "C" fn free(_ctx: *mut raw::RedisModuleCtx, handle: *mut c_void) {
    let mut room = room();
    room.seats.remove(&(handle as usize));
    if room.seats.is_empty() {
        room.seats.shrink_to_fit();
        room.handles.shrink_to_fit();
        room.waiting.shrink();
    }
}
