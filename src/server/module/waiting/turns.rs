//! When waits end: the first of a queue when its wish fits, and everybody when the time is up.

use std::time::{Duration, Instant};

use super::grants::{deny, end, key_of, refund_gone_clients, try_grant, UNKNOWN_CLIENT};
use super::queues::{QueueId, WaiterId};
use super::state::{monotonic_clock, state, Outcome};
use crate::server::{Answer, BlockedClient, Context, Listener, Reply, Timer, Waiting};

/// Who waits, in turn.
pub struct Turns;

impl Turns {
    /// What makes the queue of a changed key due.
    pub const LISTENER: Listener = Listener {
        key_changed: |database, name| {
            let waits = state().queues.wake(database, name);
            if waits {
                set_timer(0);
            }
        },
        all_changed: |database| {
            state().queues.wake_all(database);
            set_timer(0);
        },
    };
}

impl Waiting for Turns {
    fn answer(client: BlockedClient) -> Answer {
        let outcome = state().take_outcome(client);
        outcome.map_or(Err(UNKNOWN_CLIENT.into()), Outcome::into_answer)
    }

    fn has_timed_out(context: Context, client: BlockedClient) -> Answer {
        let waiter = state().clients.get(&client).and_then(|client| client.waiter);
        if let Some(waiter) = waiter {
            deny_in_timer(context, context.clock(), waiter);
        }
        // Also where the wait has ended before, and the timer has not run yet.
        Self::answer(client)
    }

    fn is_gone(client: BlockedClient) {
        let mut state = state();
        let waiter = state.clients.get(&client).and_then(|client| client.waiter);
        if let Some(outcome) = state.take_outcome(client) {
            state.refund_later(outcome);
            drop(state);
            set_timer(0);
        } else if let Some(waiter) = waiter {
            drop(state);
            end(waiter, Outcome::Error(String::new()));
        }
    }

    fn is_dropped(client: BlockedClient) {
        state().forget(client);
    }

    fn run(context: Context, is_paused: bool) {
        let began = Instant::now();
        let now = context.clock();
        {
            let mut state = state();
            state.timer = None;
            state.is_running = true;
        }
        unblock_ended();
        raise_events(context);
        if !is_paused {
            refund_gone_clients(context);
        }
        while let Some(task) = next_task(now, is_paused) {
            match task {
                Task::TryGrant(queue) => try_grant(context, now, queue),
                Task::TimeIsUp(waiter) => deny_in_timer(context, now, waiter),
            }
            unblock_ended();
            raise_events(context);
            if began.elapsed() > TIME_SLICE {
                break;
            }
        }
        state().is_running = false;
        set_timer(if is_paused { PAUSE_RETRY } else { 0 });
    }

    fn check() {
        check_timer();
    }

    fn is_replica() {
        let ids = state().queues.ids();
        for id in ids {
            end(id, Outcome::Error(NOW_A_REPLICA.into()));
        }
        set_timer(0);
    }
}

/// How often to check again while the server pauses writes, in ms.
const PAUSE_RETRY: u64 = 20;
/// The longest period of the timer, in ms: half an hour. It is set again then. Redis 7.0 counts the time from one run of
/// timers to the next in µs, in 32 bits: with 36 minutes its main thread no longer sleeps.
const MAX_PERIOD: u64 = 30 * 60 * 1000;
/// The longest run of the timer's callback.
const TIME_SLICE: Duration = Duration::from_millis(5);

/// The error that clients of the server's own blocking commands get.
const NOW_A_REPLICA: &str =
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";

impl Outcome {
    fn into_answer(self) -> Answer {
        match self {
            Outcome::Granted(reply, _) => Ok(Reply::Integers(reply)),
            Outcome::Denied(decision) => Ok(decision.into_reply()),
            Outcome::Error(error) => Err(error),
        }
    }
}

/// The next thing to do.
enum Task {
    TryGrant(QueueId),
    TimeIsUp(WaiterId),
}

/// Grants come before timeouts, so that a grant wins a tie, also when the waiter ahead has just timed out.
fn next_task(now: u64, is_paused: bool) -> Option<Task> {
    let state = state();
    let due = state.queues.next_due().filter(|(due, _)| *due <= now && !is_paused);
    due.map(|(_, queue)| Task::TryGrant(queue)).or_else(|| {
        let (deadline, waiter) = state.queues.next_deadline()?;
        (deadline <= monotonic_clock()).then_some(Task::TimeIsUp(waiter))
    })
}

/// Unblock the clients whose wait has ended: the server answers them before it reads another command.
fn unblock_ended() {
    let ended = std::mem::take(&mut state().ended);
    ended.into_iter().for_each(BlockedClient::unblock);
}

/// Raise the events of waits that ended. No key is open.
fn raise_events(context: Context) {
    let events = std::mem::take(&mut state().events);
    for (key, event) in events {
        context.select(key.0);
        context.raise(event, &key.1);
    }
}

/// End a wait without a grant, and let the timer raise the event of a denial.
fn deny_in_timer(context: Context, now: u64, id: WaiterId) {
    let key = key_of(id);
    if deny(context, now, id) {
        state().events.extend(key.map(|key| (key, c"swlimit.denied")));
        set_timer(0);
    }
}

/// Set the timer to the next due instant, but at least `least` ms from now.
pub fn set_timer(least: u64) {
    let mut state = state();
    let Some(next) = state.next().filter(|_| !state.is_running) else { return };
    let period = next.clamp(least, MAX_PERIOD);
    let at = monotonic_clock() + period;
    if state.timer.is_some_and(|(_, earlier)| earlier <= at) {
        return;
    }
    state.stop_timer();
    state.timer = Timer::start::<Turns>(period).map(|timer| (timer, at));
}

/// The server's timers follow the wall clock, and so run late when that is set. Cron checks for that.
fn check_timer() {
    let mut state = state();
    let is_late = state.timer.is_some_and(|(_, at)| at < monotonic_clock() || state.next() == Some(0));
    if is_late {
        state.stop_timer();
        drop(state);
        set_timer(0);
    }
}
