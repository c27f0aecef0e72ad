//! How waits end: with a grant, a denial or an error.

use swlimit_hold::Holds;
use swlimit_window::Entry;

use super::queues::{QueueId, Waiter, WaiterId, Wish};
use super::state::{state, Granted, Key, Outcome, PendingRefund};
use crate::error::Error;
use crate::server::{self, redirection, Admitted, CallReply, Caller, Context, Moment, OwnText, Text};
use crate::statistics;

/// The server asks about a client that does not wait.
pub const UNKNOWN_CLIENT: &str = "ERR unknown blocked client";
const WAITS_ELSEWHERE: &str = "UNBLOCKED another client now waits for this id";

/// Grant the first waiter of a queue, if it fits. The next one is due at once.
pub fn try_grant(context: Context, now: u64, queue: QueueId) {
    let Some((id, wish, key)) = first(queue) else { return };
    let name = &key.1;
    context.select(key.0);
    if let Ok(Some(due)) = denied_until(context, now, name, &wish) {
        return state().queues.set_due(queue, due);
    }
    let Some((user, words)) = command(id) else {
        end(id, Outcome::Error(UNKNOWN_CLIENT.into()));
        return;
    };
    if let Err(error) = check_rights(user.as_deref(), &words, name, key.0, &wish) {
        end(id, Outcome::Error(error.to_string()));
        return;
    }
    // ALLOW or HOLD counts, replicates and notifies, or returns the error that the waiter gets.
    let outcome = match call_to_grant(context, queue, &words, name, &wish) {
        CallReply::SlotElsewhere => Outcome::Error(redirection(context, name)),
        CallReply::Error(error) => Outcome::Error(error),
        CallReply::Array(reply) => {
            let reply: Vec<i64> = reply.iter().filter_map(CallReply::integer).collect();
            if reply.first() == Some(&0) {
                // The clock was set back since `denied_until`.
                return state().queues.set_due(queue, now + 1);
            }
            statistics::ACQUIRED.add(1);
            let of = match wish {
                Wish::Units(request) => Granted::Units { units: request.cost, instant: now },
                Wish::Hold { id, .. } => {
                    Granted::Hold { id, token: reply.last().map_or(0, |token| token.unsigned_abs()) }
                }
            };
            Outcome::Granted(reply, Some(PendingRefund { key, of }))
        }
        _ => Outcome::Error("ERR unexpected reply".into()),
    };
    end(id, outcome);
}

/// The first waiter of a queue, what it wants, and the key.
fn first(queue: QueueId) -> Option<(WaiterId, Wish, Key)> {
    let state = state();
    let (id, waiter) = state.queues.first(queue)?;
    Some((id, waiter.wish.clone(), state.queues.key(queue)?))
}

/// The key that a waiter waits for.
pub fn key_of(id: WaiterId) -> Option<Key> {
    let state = state();
    state.queues.key(state.queues.waiter(id)?.queue)
}

/// When a denied wish may be granted, in Unix ms; `None` when it can be now.
fn denied_until(context: Context, now: u64, name: &Text, wish: &Wish) -> Result<Option<u64>, Error> {
    match wish {
        Wish::Units(request) => {
            let key = context.read(name)?;
            let decision = Entry::peek(key.entry(), now, request)?;
            Ok((decision.granted == 0).then(|| key.next_check(now, decision.retry_after)))
        }
        Wish::Hold { limit, ttl, id, cost } => {
            let key = context.read::<Holds>(name)?;
            let request = swlimit_hold::Request { limit: *limit, ttl: *ttl, id, cost: *cost };
            let decision = Holds::peek(key.entry(), now, &request);
            Ok((decision.granted == 0).then(|| key.next_check(now, decision.retry_after)))
        }
    }
}

/// The decision on a wish as it reads now.
fn peek(context: Context, now: u64, name: &Text, wish: &Wish) -> Result<Admitted, Error> {
    match wish {
        Wish::Units(request) => {
            let key = context.read(name)?;
            Ok(Admitted::Units(Entry::peek(key.entry(), now, request)?))
        }
        Wish::Hold { limit, ttl, id, cost } => {
            let key = context.read(name)?;
            let request = swlimit_hold::Request { limit: *limit, ttl: *ttl, id, cost: *cost };
            Ok(Admitted::Hold(Holds::peek(key.entry(), now, &request)))
        }
    }
}

/// A waiter's ACL user, and its command.
fn command(id: WaiterId) -> Option<(Option<OwnText>, Box<[OwnText]>)> {
    let state = state();
    let client = state.clients.get(state.by_waiter.get(&id)?)?;
    Some((client.user.clone(), client.words.clone()))
}

/// NOPERM if the waiter's user has lost its rights since it began to wait.
fn check_rights(user: Option<&Text>, words: &[OwnText], key: &Text, database: i32, wish: &Wish) -> Result<(), Error> {
    let command = match wish {
        Wish::Units(_) => "swlimit.acquire",
        Wish::Hold { .. } => "swlimit.hold",
    };
    match user {
        Some(user) => Caller::named(user, OwnText::borrow_slice(words)).check(command, key, database),
        None => Ok(()),
    }
}

/// Where the limit stands in a command that waits, before two more words.
const QUOTA: usize = 2;

/// Call the command that grants a wish, with the words for it that the client has given.
fn call_to_grant(context: Context, queue: QueueId, command: &[OwnText], name: &Text, wish: &Wish) -> CallReply {
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
            let warm_up = request.warm_up.map(|warm_up| {
                let (duration, cold) = (format!("{}ms", warm_up.duration()), warm_up.cold().to_string());
                ["WARMUP", &duration, "COLD", &cold].map(|word| OwnText::new(word.as_bytes()))
            });
            words.extend(warm_up.iter().flatten().map(|word| &**word));
            context.call_deny_oom(c"SWLIMIT.ALLOW", &words)
        }
        Wish::Hold { .. } => {
            state().granting = Some(queue);
            let reply = context.call_deny_oom(c"SWLIMIT.HOLD", &words);
            state().granting = None;
            reply
        }
    }
}

/// End a wait without a grant; whether that is a denial, whose event is still to be raised.
pub fn deny(context: Context, now: u64, id: WaiterId) -> bool {
    let Some(Waiter { queue, wish, .. }) = state().queues.waiter(id).cloned() else { return false };
    let Some((database, name)) = key_of(id) else { return false };
    context.select(database);
    let outcome = denial(context, now, queue, &name, &wish);
    let is_denial = matches!(outcome, Outcome::Denied(_));
    let is_denied = end(id, outcome) && is_denial;
    if is_denied {
        context.count_denial(&name, Moment::Clock(now));
    }
    is_denied
}

/// The outcome of a wait without a grant.
fn denial(context: Context, now: u64, queue: QueueId, name: &Text, wish: &Wish) -> Outcome {
    if context.slot_is_elsewhere(name) {
        return Outcome::Error(redirection(context, name));
    }
    match peek(context, now, name, wish) {
        Ok(decision) => {
            let due = state().queues.due(queue).unwrap_or(0);
            Outcome::Denied(decision.behind(due.saturating_sub(now).max(1)))
        }
        Err(error) => Outcome::Error(error.to_string()),
    }
}

/// End a wait: its client gets this outcome from the timer; whether it had not ended before. A wait without a grant counts as
/// denied.
pub fn end(id: WaiterId, outcome: Outcome) -> bool {
    let mut state = state();
    let waiter = state.queues.remove(id);
    let client = state.by_waiter.remove(&id);
    let (Some(Waiter { wish, .. }), Some(client)) = (waiter, client) else {
        // A subscriber of a key event has ended the wait meanwhile.
        state.refund_later(outcome);
        return false;
    };
    match outcome {
        Outcome::Granted(..) => state.unsent += 1,
        _ => statistics::denied(wish.cost()),
    }
    state.answer(client, outcome);
    true
}

/// End the wait of a client whose place another client has taken.
pub fn replace(id: WaiterId) {
    let mut state = state();
    if let Some(client) = state.by_waiter.remove(&id) {
        state.answer(client, Outcome::Error(WAITS_ELSEWHERE.into()));
    }
}

/// Refund grants whose clients were gone before their reply. This runs in the timer: a write in the disconnect callback
/// would replicate as part of the command that disconnected the client.
pub fn refund_gone_clients(context: Context) {
    let refunds = std::mem::take(&mut state().refunds);
    for PendingRefund { key: (database, name), of } in refunds {
        context.select(database);
        match of {
            Granted::Units { units, instant } => {
                let (units, instant) = (units.to_string(), instant.to_string());
                let [units, since, instant] = [units.as_bytes(), b"SINCE", instant.as_bytes()].map(OwnText::new);
                context.call(c"SWLIMIT.REFUND", &[&name, &units, &since, &instant]);
            }
            Granted::Hold { id, token } => {
                let now = context.clock();
                let is_same = |key: server::Key<Holds>| {
                    key.entry().and_then(|holds| holds.get(&id, now)).is_some_and(|hold| hold.token() == token)
                };
                if context.read(&name).is_ok_and(is_same) {
                    context.call(c"SWLIMIT.RELEASE", &[&name, &OwnText::new(&id)]);
                }
            }
        }
    }
}
